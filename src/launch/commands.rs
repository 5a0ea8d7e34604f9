//! The sink: takes jobs from the pump, has a command started for each, and ends them when asked to.

use super::child::{self, Shared};
use super::event::{Event, Events};
use super::job::{Batches, Job, Outcome, Shape};
use super::options::{NEVER, Options, Output};
use super::output::{Printing, Screen};
use super::printer::Collected;
use super::slots::{self, Slots};
use super::spool::Spool;
use super::target::Target;
use super::template::Words;
use super::temporary::is_shortage;
use crate::clock::with_usual_slack;
use crate::flow::framing::Buffer;
use crate::flow::{Filled, Flow, FlowError, Passed, Source};
use rustix::process::{Pid, Signal};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Instant;
use tokio::process::{Child, Command};

/// Before a command: it will ignore SIGPIPE. Rust's library has that signal end whatever it starts; a shell that becomes the
/// command can ignore it.
pub const IGNORING_SIGPIPE: [&str; 3] = ["/bin/sh", "-c", "trap '' PIPE; exec \"$0\" \"$@\""];

/// Threads that may be blocked by readers that do not read: more would only take memory.
const BLOCKED: usize = 8;

/// What fits into any pipe before it is read: one page (pipe(7)).
const FITS_A_PIPE: u64 = 4096;

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
    pub fn new(options: Options, screen: Arc<dyn Screen>, events: Events) -> io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(slots::STARTERS).thread_name("children").enable_all();
        // A thread that has ended might not be replaced: the system may have no room for a new one.
        runtime.max_blocking_threads(BLOCKED).thread_keep_alive(NEVER);
        expect_room_for_a_runtime()?;
        // Its threads hand their timer slack down to the commands they start. One to print is there from now on; any thread
        // may become one that starts commands.
        let with_a_printer = || runtime.build().inspect(|runtime| drop(runtime.handle().spawn_blocking(|| ())));
        let runtime = with_usual_slack(with_a_printer)?;
        let tasks = runtime.handle().clone();
        // Commands outlive the launcher.
        std::mem::forget(runtime);
        let slots = Arc::new(Slots::new(options.jobs, options.burst));
        let output = Arc::new(Printing::new(&options, screen, Arc::clone(&slots), events.clone()));
        let shared = Arc::new(Shared { options, slots, output, events, wanted_terminal: Mutex::default() });
        Ok(Launcher { shared, tasks })
    }

    /// For the time when nothing runs yet, and all else is open: without this room each command would fail.
    ///
    /// # Errors
    /// The system has no room for the files that one command takes: its input, and a pipe for each output that we read.
    pub fn expect_room_for_a_command(&self) -> io::Result<()> {
        let pipes = if self.shared.options.output == Output::Direct { 0 } else { 2 };
        let _input = File::open("/dev/null")?;
        (0..pipes).map(|_| io::pipe()).collect::<io::Result<Vec<_>>>().map(drop)
    }

    /// The commands that run.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.shared.slots
    }

    /// Returns when every event so far was reported to the user.
    pub fn flush(&self) {
        // An error means that it was reported.
        let _ = self.shared.events.send_and_wait(Event::Flush).blocking_recv();
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
        let options = &self.shared.options;
        let refused = job.refused();
        if refused.is_none() {
            self.shared.output.screen.trace(options.template.fill(&job.units));
        }
        let slot = self.shared.slots.take(job.seq);
        // Built on this thread, so that all of its memory comes from one allocator arena.
        let command = refused.map_or_else(|| Ok(self.command(options.template.fill(&job.units))), Err);
        // The command has copies. The first may be in a tag, or be the name of the command.
        job.forget_units(options.tag || options.template.name().is_none());
        let (input, job) = (job.input.take(), Arc::new(job));
        self.shared.events.send(Event::Started { job: Arc::clone(&job), at: Instant::now() });
        let launcher = self.clone();
        self.tasks.spawn(async move {
            let shared = Arc::clone(&launcher.shared);
            let started = match command {
                Ok(command) => launcher.spawn(job.seq, input, command, slot).await,
                Err(outcome) => Err(outcome),
            };
            match started {
                Ok((child, target)) => {
                    // It may have been stopped before anybody knew it.
                    launcher.end_who_wants_the_terminal(job.seq, target);
                    child::attend(shared, job, child, target, slot).await;
                }
                Err(outcome) => {
                    let printed = shared.output.print(job.seq, Collected::default()).await;
                    shared.ended(job, outcome, printed, slot).await;
                }
            }
        });
    }

    /// Starts the command, and frees its memory.
    async fn spawn(
        &self,
        seq: u64,
        input: Option<Spool>,
        mut command: Command,
        slot: u32,
    ) -> Result<(Child, Target), Outcome> {
        command.env("THROTTLE_SEQ", seq.to_string()).env("THROTTLE_SLOT", slot.to_string());
        if let Some(mut units) = input {
            let input = self.shared.slots.once_there_is_room(|| as_input(&mut units)).await;
            command.stdin(input.map_err(Outcome::InputLost)?);
        }
        let spawn = || {
            let child = command.spawn()?;
            let target = self.target(&child).ok_or(ErrorKind::NotFound)?;
            // Before anybody else can find no room: this one will end.
            self.shared.slots.started(seq, target);
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
        // There always is one: no template is empty, and if the first word is {} there is a unit.
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

/// tokio panics if it cannot open the six files it waits with (two pairs and a copy of one end of each, so far) or start
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
    /// The job that was last reported as the next.
    told: u64,
}

impl<R: Source> Launching<R> {
    /// Commands for what `source` gives, framed by `buffer`.
    pub fn new(source: R, buffer: Buffer, shape: Shape, launcher: Launcher) -> Self {
        let batches = Batches::new(source, buffer, shape, &launcher.shared.options.template);
        Launching { batches, launcher, told: 0 }
    }

    /// Blank units left out so far.
    pub fn skipped(&self) -> u64 {
        self.batches.skipped()
    }

    fn tell_next(&mut self) {
        let Some(job) = self.batches.peek().filter(|job| job.seq != self.told) else { return };
        let first = job.names.iter().next().map(|(number, name)| (number, name.to_vec()));
        self.told = job.seq;
        self.launcher.shared.events.send(Event::Next { first, skipped: self.batches.skipped() });
    }

    fn cut_or_read(&mut self, wait: bool) -> Result<Filled, FlowError> {
        let cut = self.batches.cut();
        if wait || cut.is_err() {
            // Nobody will be there to tell it if the run ends while more is waited for.
            self.tell_next();
        }
        if cut? { Ok(Filled::Some) } else { self.batches.read(wait) }
    }
}

impl<R: Source> Flow for Launching<R> {
    /// If the system has no room for the units, waits until a command has ended.
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
