//! The sink that runs one command per unit.
//!
//! The pump's thread cuts the input into jobs, waits for a free slot, takes a grant, sleeps until it and hands the job over:
//! so a start is never later than its grant for want of a slot. From then on it belongs to a task on another thread, where
//! the command is started and tokio collects its output, watches its time and waits for its end. What both need to know of
//! each other stands in one place, the slots; whoever ends the whole (a signal, a reader that is gone, an exit of 255) stops
//! the slots, and the pump, wherever it is, starts nothing more.

use crate::clock::with_usual_slack;
use crate::flow::framing::Buffer;
use crate::flow::{Filled, Flow, FlowError, Passed, Source};
use rustix::process::{Pid, Signal};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

mod batches;
mod child;
mod lines;
mod loads;
mod names;
mod printer;
mod printing;
mod slots;
mod spool;
mod target;
mod template;
mod temporary;
mod units;

use batches::Batches;
pub use batches::{Job, Numbers, Shape};
use child::Running;
use loads::{Load, Loads};
pub use names::Names;
use printer::{Collected, Printer};
use slots::Slots;
use spool::{Budget, Spool};
use target::Target;
pub use template::{Place, Reading, Template, TemplateError, Words, quoted, quoted_for_terminal, steers_terminal};
use temporary::TemporaryError;
pub use units::{Units, room_for_words};

/// What all commands' output together may take in memory.
const MEMORY: usize = 1 << 20;

/// Before a command: it will ignore SIGPIPE. Rust's library has that signal end whatever it starts; a shell that becomes the
/// command can ignore it.
pub const IGNORING_SIGPIPE: [&str; 3] = ["/bin/sh", "-c", "trap '' PIPE; exec \"$0\" \"$@\""];

/// Far enough never to come.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// Threads that may be blocked by who does not read what we write: more would only take memory.
const BLOCKED: usize = 8;

/// What fits into any pipe before somebody reads it: one page (pipe(7)).
const FITS_A_PIPE: u64 = 4096;

/// How commands are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is run.
    pub template: Template,
    /// Where that was found, in place of the template's first word.
    pub program: Option<OsString>,
    /// How many at once; 0 without a cap.
    pub jobs: u32,
    /// How many may start together: the most that the limits let go at once.
    pub burst: u64,
    /// What becomes of their output.
    pub output: Output,
    /// Whether each line gets [`Observer::tag`] in front.
    pub tag: bool,
    /// What a command may take.
    pub timeout: Option<Duration>,
    /// Whether commands stay in our process group, where they may use the terminal.
    pub in_our_group: bool,
    /// Whether commands ignore SIGPIPE.
    pub ignore_sigpipe: bool,
}

/// What becomes of the output of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// It comes out whole, in the order of finishing.
    Whole,
    /// It comes out whole, in the order of the input.
    InOrder,
    /// Line by line.
    Lines,
    /// Commands write to our standard output and error themselves.
    Direct,
}

/// How a command ended.
#[derive(Debug)]
pub enum Outcome {
    /// It exited 0.
    Ok,
    /// It exited with another code.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
    /// It was ended for taking too long.
    TimedOut,
    /// It was stopped for wanting the terminal, and ended.
    WantedTerminal,
    /// There is no such command.
    NotFound(io::Error),
    /// It could not be started.
    CannotRun(io::Error),
    /// A unit is too long to be an argument.
    TooLong,
    /// A unit has a NUL byte, which no argument can hold.
    HasNul,
    /// What was to go to its standard input could not be held until its start.
    InputLost(io::Error),
    /// It ran, but what it wrote could not be held or passed on.
    OutputLost(io::Error),
}

/// Who is told what happens. Called from several threads.
pub trait Observer: Send + Sync {
    /// The command is about to start, but has no slot yet: whoever waits for the end of all does not wait for this.
    fn tracing(&self, job: &Job, words: Words<'_>);
    /// The command starts now. This must not block.
    fn starting(&self, job: &Job);
    /// The command has ended, or could not start. Where it is [`Outcome::Ok`] this must not block.
    fn ended(&self, job: &Job, outcome: &Outcome);
    /// Our reader is gone.
    fn reader_gone(&self);
    /// Our standard output cannot be written.
    fn cannot_print(&self, error: &io::Error);
    /// The command ended, but something it started still holds its output open; what that writes is not waited for.
    fn left_behind(&self, job: &Job);
    /// So much output waits for its turn that launching waits; told once.
    fn held_up(&self);
    /// What was written early cannot be held until its turn.
    fn cannot_hold(&self, error: &io::Error);
    /// Has `print` write to our standard output or error, where something else may be shown at the moment. It says whether
    /// it has left a line open on a terminal.
    fn printing(&self, print: &mut dyn FnMut() -> bool);
    /// Whether something else may be shown there, so that nothing may be written without [`printing`](Self::printing),
    /// which may block.
    fn shows_something(&self) -> bool;
    /// What stands before each line of the command's output, or of what it writes to its standard error.
    fn tag(&self, job: &Job, is_stdout: bool) -> Vec<u8>;
    /// The next job, which was read and waits; blank units left out so far.
    fn next(&self, job: &Job, skipped: u64);
}

/// What the pump's thread and the children's tasks share.
struct Shared {
    options: Options,
    slots: Slots,
    loads: Arc<Loads>,
    budget: Budget,
    printer: Mutex<Printer>,
    /// Who prints where that may block. The others wait for him without a thread each, which would take its memory.
    printing: Arc<Semaphore>,
    observer: Arc<dyn Observer>,
    wanted_terminal: Mutex<BTreeSet<u64>>,
    told_of_holding: AtomicBool,
}

/// Starts commands, and ends them.
#[derive(Clone)]
pub struct Launcher {
    shared: Arc<Shared>,
    tasks: tokio::runtime::Handle,
}

impl std::fmt::Debug for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launcher").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Launcher {
    /// Ready to start commands as `options` say. SIGCHLD must not be ignored: the system would wait for commands itself, and
    /// how they ended would be lost (wait(2)).
    ///
    /// # Errors
    /// The system gives us no threads, none more for the caller, no process for a command, or no way to wait for events.
    pub fn new(options: Options, observer: Arc<dyn Observer>) -> io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(slots::STARTERS).thread_name("children").enable_all();
        // A thread that has gone could not be had again where there is no room for one.
        runtime.max_blocking_threads(BLOCKED).thread_keep_alive(NEVER);
        expect_room_for_a_runtime()?;
        // Its threads hand their timer slack down to the commands they start.
        let runtime = with_usual_slack(|| runtime.build())?;
        let tasks = runtime.handle().clone();
        // There is one to print at least, from now on.
        tasks.spawn_blocking(|| ());
        // Commands outlive the launcher.
        std::mem::forget(runtime);
        let printer = Mutex::new(Printer::new(options.output == Output::InOrder));
        let (slots, budget) = (Slots::new(options.jobs, options.burst), Budget::new(MEMORY));
        let (wanted_terminal, told_of_holding) = (Mutex::default(), AtomicBool::new(false));
        let (loads, printing) = (Arc::default(), Arc::new(Semaphore::new(1)));
        let shared =
            Shared { options, slots, loads, budget, printer, printing, observer, wanted_terminal, told_of_holding };
        Ok(Launcher { shared: Arc::new(shared), tasks })
    }

    /// Commands that run now.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.shared.slots.count()
    }

    /// Nothing starts any more; whether that is news.
    #[must_use = "only who stops it first may end it"]
    pub fn stop(&self) -> bool {
        self.shared.slots.stop()
    }

    /// Sends a signal to every command, and to those that are just starting.
    pub fn end_with(&self, signal: Signal) {
        self.shared.slots.signal(signal, true);
        self.shared.slots.signal(Signal::CONT, false);
    }

    /// Somebody else has sent every command a signal: whatever it started and does not end is waited for.
    pub fn others_end_them(&self) {
        self.shared.slots.remember_relatives();
    }

    /// Stops every command, those that are just starting, too.
    pub fn suspend(&self) {
        self.shared.slots.suspend();
    }

    /// Lets every command go on.
    pub fn resume(&self) {
        self.shared.slots.resume();
    }

    /// Has starts go on that were stopped together with us: until then whoever starts them is blocked.
    pub fn release_stopped_starts(&self) {
        self.shared.slots.release_stopped_starts();
    }

    /// Returns when no command runs.
    pub fn drain(&self) {
        self.shared.slots.drain();
    }

    /// Whether no command runs, after `time` at the latest.
    #[must_use]
    pub fn drains_within(&self, time: Duration) -> bool {
        self.shared.slots.drains_within(time)
    }

    /// Ends the commands that were stopped for wanting the terminal, which they will not get.
    pub fn end_those_who_want_the_terminal(&self) {
        for (seq, target) in self.shared.slots.running() {
            self.end_who_wants_the_terminal(seq, target);
        }
    }

    fn end_who_wants_the_terminal(&self, seq: u64, target: Target) {
        if matches!(target, Target::Group(_)) && is_stopped_for_the_terminal(target.pid()) {
            self.shared.wanted_terminal.lock().unwrap_or_else(PoisonError::into_inner).insert(seq);
            target.signal(Signal::KILL);
        }
    }

    /// Has the command for `job` started: by a task, as starting takes a while and several can start at once.
    fn start(&self, mut job: Job) {
        let load = self.shared.loads.take(self.memory_to_start(&job));
        self.shared.observer.tracing(&job, self.shared.options.template.fill(&job.units));
        let slot = self.shared.slots.take(job.seq);
        self.shared.observer.starting(&job);
        let words = self.shared.options.template.fill(&job.units);
        let loaded = match job.refused() {
            None => Ok((self.command(words), load)),
            Some(outcome) => Err(outcome),
        };
        // The command has copies. The first may stand in a tag, or be the name of the command.
        job.forget_units(self.shared.options.tag || self.shared.options.template.name().is_none());
        let launcher = self.clone();
        self.tasks.spawn(async move {
            let shared = Arc::clone(&launcher.shared);
            let started = match loaded {
                Ok((command, load)) => launcher.spawn(&mut job, command, load, slot).await,
                Err(outcome) => Err(outcome),
            };
            match started {
                Ok((child, target)) => {
                    // It may have been stopped before anybody knew it.
                    launcher.end_who_wants_the_terminal(job.seq, target);
                    child::attend(shared, Running { job, child, target, slot }).await;
                }
                Err(outcome) => {
                    let nothing = Collected { out: Spool::new(&shared.budget), err: Spool::new(&shared.budget) };
                    let printed = shared.print(job.seq, nothing).await;
                    shared.ended(&Arc::new(job), outcome, printed, slot).await;
                }
            }
        });
    }

    fn memory_to_start(&self, job: &Job) -> usize {
        self.shared.options.template.fill(&job.units).memory()
    }

    /// Starts the command, which is made on the pump's thread, so that what it takes of memory comes from one place. It is
    /// gone, and its `load` given back, when it has started.
    async fn spawn(
        &self,
        job: &mut Job,
        mut command: Command,
        _load: Option<Load>,
        slot: u32,
    ) -> Result<(Child, Target), Outcome> {
        command.env("THROTTLE_SEQ", job.seq.to_string()).env("THROTTLE_SLOT", slot.to_string());
        if let Some(mut units) = job.input.take() {
            let input = self.shared.slots.once_there_is_room(|| as_input(&mut units)).await;
            command.stdin(input.map_err(Outcome::InputLost)?);
        }
        let spawn = || {
            let child = command.spawn()?;
            let target = self.target(&child).ok_or(ErrorKind::NotFound)?;
            // Before anybody else can find no room: this one will end.
            self.shared.slots.started(job.seq, target);
            Ok((child, target))
        };
        self.shared.slots.once_there_is_room(spawn).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Outcome::NotFound(error),
            ErrorKind::ArgumentListTooLong => Outcome::TooLong,
            _ => Outcome::CannotRun(error),
        })
    }

    /// The command, but for its environment and standard input.
    fn command(&self, words: Words<'_>) -> Command {
        let options = &self.shared.options;
        let mut words = words.iter();
        // There always is one: no template is empty, and where the first word is {} there is a unit.
        let name = words.next().unwrap_or(Cow::Borrowed(OsStr::new("")));
        let program = options.program.as_deref().unwrap_or(&name);
        let mut command = if options.ignore_sigpipe { ignoring_sigpipe(program) } else { Command::new(program) };
        if !options.ignore_sigpipe {
            command.arg0(&name);
        }
        command.args(words).stdin(Stdio::null());
        if options.output != Output::Direct {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if !options.in_our_group {
            command.process_group(0);
        }
        command
    }

    /// Every child that was not waited for has a process id.
    fn target(&self, child: &Child) -> Option<Target> {
        let pid = Pid::from_raw(child.id()?.cast_signed())?;
        Some(if self.shared.options.in_our_group { Target::Process(pid) } else { Target::Group(pid) })
    }
}

fn ignoring_sigpipe(program: &OsStr) -> Command {
    let [shell, option, script] = IGNORING_SIGPIPE;
    let mut command = Command::new(shell);
    command.arg(option).arg(script).arg(program);
    command
}

/// tokio panics where it cannot open the six files it waits with (two pairs and a copy of one end of each, so far) or start
/// its threads, instead of saying so. A command's process counts as a thread does (`RLIMIT_NPROC`, getrlimit(2)).
fn expect_room_for_a_runtime() -> io::Result<()> {
    let pairs: io::Result<Vec<_>> = (0..3).map(|_| UnixStream::pair()).collect();
    pairs?;
    let (threads, one_to_print, who_asked, a_command) = (slots::STARTERS, 1, 1, 1);
    let all_at_once = RwLock::new(());
    thread::scope(|scope| {
        let _until_all_are_there = all_at_once.write();
        let wait = || drop(all_at_once.read());
        let started = |_| thread::Builder::new().spawn_scoped(scope, wait).map(drop);
        (0..threads + one_to_print + who_asked + a_command).try_for_each(started)
    })
}

/// Too many processes or open files: both end with somebody else's end.
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let error = TemporaryError::within(error).unwrap_or(error);
    let shortages = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    shortages.into_iter().any(|shortage| error.raw_os_error() == Some(shortage.raw_os_error()))
}

/// Units as a standard input: a pipe that already holds them all, or a file.
fn as_input(units: &mut Spool) -> io::Result<OwnedFd> {
    if units.length() > FITS_A_PIPE {
        return units.take_file().map(OwnedFd::from);
    }
    let (read, write) = io::pipe()?;
    units.copy_to(&mut &write)?;
    Ok(read.into())
}

/// Whether `pid` was stopped by the terminal for reading or writing it from the background.
fn is_stopped_for_the_terminal(pid: Pid) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let stopped_by = waitid(WaitId::Pid(pid), options).ok().flatten().and_then(|status| status.stopping_signal());
    [Signal::TTIN, Signal::TTOU].into_iter().any(|signal| stopped_by == Some(signal.as_raw()))
}

/// Units on their way from a source to commands.
#[derive(Debug)]
pub struct Launching<R> {
    batches: Batches<R>,
    launcher: Launcher,
    /// The job that was last told to be the next.
    told: u64,
}

impl<R: Source> Launching<R> {
    /// Commands for what `source` gives, framed by `buffer`.
    pub fn new(source: R, buffer: Buffer, shape: Shape, launcher: Launcher) -> Self {
        let budget = launcher.shared.budget.clone();
        let batches = Batches::new(source, buffer, shape, &launcher.shared.options.template, budget);
        Launching { batches, launcher, told: 0 }
    }

    /// Blank units left out so far.
    pub fn skipped(&self) -> u64 {
        self.batches.skipped()
    }

    fn tell_next(&mut self) {
        if let Some(job) = self.batches.peek() {
            self.told = job.seq;
            self.launcher.shared.observer.next(job, self.batches.skipped());
        }
    }

    /// Before more is waited for: nobody will be there to tell it when all ends meanwhile.
    fn tell_what_is_begun(&mut self) {
        if self.batches.peek().is_some_and(|job| job.seq != self.told) {
            self.tell_next();
        }
    }

    fn cut_or_read(&mut self, wait: bool) -> Result<Filled, FlowError> {
        let cut = self.batches.cut();
        if wait || cut.is_err() {
            self.tell_what_is_begun();
        }
        if cut? { Ok(Filled::Some) } else { self.batches.read(wait) }
    }
}

impl<R: Source> Flow for Launching<R> {
    /// Where the system has no room for what is read, it may have when a command has ended.
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError> {
        match self.cut_or_read(wait) {
            Err(FlowError::Hold(error)) if is_shortage(&error) => match wait {
                false => Ok(Filled::Nothing),
                true if self.launcher.shared.slots.wait_for_an_end() => Ok(Filled::Some),
                true => Err(FlowError::Hold(error)),
            },
            filled => filled,
        }
    }

    fn waiting(&self) -> u64 {
        self.batches.waiting()
    }

    fn read_ahead(&self) -> Passed {
        self.batches.read_ahead()
    }

    /// No command is foreseen for which no slot is free.
    fn foreseen(&self) -> u64 {
        self.batches.waiting().min(self.launcher.shared.slots.free())
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        self.batches.cut_ahead();
        self.tell_next();
        let load = self.batches.peek().map_or(0, |job| self.launcher.memory_to_start(job));
        self.launcher.shared.loads.wait_for(load);
        Ok(self.launcher.shared.slots.wait())
    }

    /// The bytes are those of the input.
    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        for _ in 0..units {
            let Some(job) = self.batches.next() else { break };
            passed.units += 1;
            passed.bytes += job.length;
            self.launcher.start(job);
            self.tell_next();
        }
        Ok(())
    }
}

/// Jobs that are shown in place of being run.
#[derive(Debug)]
pub struct Showing<R, S> {
    batches: Batches<R>,
    show: S,
}

impl<R: Source, S: FnMut(&Job) -> io::Result<()>> Showing<R, S> {
    /// Gives every job for what `source` holds to `show`, when it would start.
    pub fn new(source: R, buffer: Buffer, shape: Shape, template: &Template, show: S) -> Self {
        Showing { batches: Batches::new(source, buffer, shape, template, Budget::new(MEMORY)), show }
    }

    /// Blank units left out so far.
    pub fn skipped(&self) -> u64 {
        self.batches.skipped()
    }
}

impl<R: Source, S: FnMut(&Job) -> io::Result<()>> Flow for Showing<R, S> {
    fn fill(&mut self, wait: bool) -> Result<Filled, FlowError> {
        self.batches.fill(wait)
    }

    fn waiting(&self) -> u64 {
        self.batches.waiting()
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        Ok(1)
    }

    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        for _ in 0..units {
            let Some(job) = self.batches.next() else { break };
            (self.show)(&job).map_err(FlowError::Write)?;
            passed.units += 1;
        }
        Ok(())
    }
}
