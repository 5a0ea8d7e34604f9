//! The sink: takes jobs from the pump, has a command started for each, and ends them when asked to.

use super::again::Again;
use super::attempt::{Attempt, Charge, Ledger, Running, Settler};
use super::child::{self, Shared};
use super::event::{Event, Events};
use super::job::{Batches, Job, Known, Outcome, Shape};
use super::options::{NEVER, Options, Output};
use super::output::{Printing, Screen};
use super::printer::Collected;
use super::reply_file::ReplyFile;
use super::slots::{self, Slots};
use super::spool::Spool;
use super::target::Target;
use super::template::Words;
use super::temporary::is_shortage;
use crate::clock::{Nanos, with_usual_slack};
use crate::flow::framing::Buffer;
use crate::flow::pricing::Pricing;
use crate::flow::{Filled, Flow, FlowError, Passed, Price, Source, Unpaid};
use crate::limits::Grant;
use rustix::process::{Pid, Signal};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Instant;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

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
    pub fn new(
        options: Options,
        screen: Arc<dyn Screen>,
        ledger: Option<Arc<dyn Ledger>>,
        settler: Arc<dyn Settler>,
        events: Events,
    ) -> io::Result<Self> {
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
        let again = options.again.clone().map(Again::new).transpose()?;
        let again = again.map(Arc::new);
        let (wanted_terminal, told) = (Mutex::default(), child::Told::default());
        let recording = Arc::new(Semaphore::new(1));
        let shared =
            Shared { options, slots, again, ledger, settler, recording, output, events, wanted_terminal, told };
        let shared = Arc::new(shared);
        Ok(Launcher { shared, tasks })
    }

    /// For the time when nothing runs yet, and all else is open: without this room each command would fail.
    ///
    /// # Errors
    /// The system has no room for the files that one command takes: its input, its reply, and a pipe for each output that
    /// we read.
    pub fn expect_room_for_a_command(&self) -> io::Result<()> {
        let pipes = if self.shared.options.output == Output::Direct { 0 } else { 2 };
        let _input = File::open("/dev/null")?;
        let _reply = self.shared.again.as_ref().map(|_| ReplyFile::new()).transpose()?;
        (0..pipes).map(|_| io::pipe()).collect::<io::Result<Vec<_>>>().map(drop)
    }

    /// The commands that run.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.shared.slots
    }

    /// Takes out the jobs that wait for another attempt, which will not be made any more, the oldest first.
    #[must_use]
    pub fn take_waiting(&self) -> Vec<Arc<Job>> {
        let waiting = self.shared.again.as_ref().map(|again| again.drain()).unwrap_or_default();
        waiting.into_iter().map(|attempt| attempt.job).collect()
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

    /// So many wait for another attempt that nothing new starts.
    fn tell_of_full_agenda(&self) {
        if !self.shared.told.full_agenda.swap(true, Ordering::Relaxed) {
            self.shared.events.send(Event::AgendaFull);
        }
    }

    fn end_who_wants_the_terminal(&self, seq: u64, target: Target) {
        if matches!(target, Target::Group(_)) && is_stopped_for_the_terminal(target.pid()) {
            self.shared.wanted_terminal.lock().unwrap_or_else(PoisonError::into_inner).insert(seq);
            target.signal(Signal::KILL);
        }
    }

    /// The attempt that is due.
    fn due(&self) -> Option<Attempt> {
        self.shared.again.as_ref().and_then(|again| again.next())
    }

    /// Makes the attempt that is `due`, or the first one at `next`, as soon as it has a slot; one that is not `paid` for
    /// fails at once. Returns the job if it is new.
    fn start_next(
        &self,
        due: Option<Attempt>,
        paid: Result<Option<Charge>, Unpaid>,
        next: impl FnOnce() -> Option<Job>,
    ) -> Option<Arc<Job>> {
        let again = self.shared.again.as_ref();
        let is_new = due.is_none();
        let mut attempt = due.or_else(|| next().map(Attempt::first))?;
        let (seq, refused) =
            (attempt.job.seq, paid.as_ref().err().copied().map(Outcome::Unpaid).or_else(|| attempt.job.refused()));
        let options = &self.shared.options;
        if refused.is_none() {
            self.shared.output.screen.trace(options.template.fill(&attempt.job.units));
        }
        let slot = self.shared.slots.take(seq);
        if let Some(again) = again {
            again.remove(&attempt);
        }
        // Built on this thread, so that all of its memory comes from one allocator arena.
        let command = refused.map_or_else(|| Ok(self.command(options.template.fill(&attempt.job.units))), Err);
        let mut input = None;
        // Nobody else has a job that is tried only once.
        if let Some(job) = Arc::get_mut(&mut attempt.job).filter(|_| again.is_none()) {
            // The command has copies. The first may be in a tag, or be the name of the command.
            job.forget_units(options.tag || options.template.name().is_none());
            input = job.input.take();
        }
        let (job, started) = (Arc::clone(&attempt.job), Instant::now());
        let event = Event::Started { job: Arc::clone(&job), attempt: attempt.number, at: started };
        self.shared.events.send(event);
        self.run(Running { attempt, slot, started, reply: None, charge: paid.ok().flatten() }, command, input);
        is_new.then_some(job)
    }

    /// Has the command started, and attended to until its end: by a task, as starting takes a while and several can start
    /// at once.
    fn run(&self, mut running: Running, command: Result<Command, Outcome>, input: Option<Spool>) {
        let launcher = self.clone();
        self.tasks.spawn(async move {
            let shared = Arc::clone(&launcher.shared);
            let started = match command {
                Ok(command) => launcher.spawn(&mut running, command, input).await,
                Err(outcome) => Err(outcome),
            };
            match started {
                Ok((child, target)) => {
                    // It may have been stopped before anybody knew it.
                    launcher.end_who_wants_the_terminal(running.seq(), target);
                    child::attend(shared, running, child, target).await;
                }
                Err(outcome) => shared.finish(running, outcome, Collected::default()).await,
            }
        });
    }

    /// Starts the command, and frees its memory.
    async fn spawn(
        &self,
        running: &mut Running,
        mut command: Command,
        mut input: Option<Spool>,
    ) -> Result<(Child, Target), Outcome> {
        let Shared { slots, again, .. } = &*self.shared;
        let (seq, attempt) = (running.seq(), &running.attempt);
        command.env("THROTTLE_SEQ", seq.to_string()).env("THROTTLE_SLOT", running.slot.to_string());
        if let Some(identity) = attempt.job.identity() {
            command.env("THROTTLE_ID", identity.to_string());
        }
        if again.is_some() {
            command.env("THROTTLE_ATTEMPT", attempt.number.to_string());
        }
        let units = || match (&mut input, &attempt.job.input) {
            (Some(units), _) => as_input(units).map(Some),
            // Another attempt will need them.
            (None, Some(units)) => as_input(&mut units.duplicate()?).map(Some),
            (None, None) => Ok(None),
        };
        if let Some(input) = slots.once_there_is_room(units).await.map_err(Outcome::InputLost)? {
            command.stdin(input);
        }
        // All that it needs at once: two that start must not each hold what the other one needs.
        let spawn = || {
            let replies = again.is_some() || running.charge.is_some();
            let reply = replies.then(ReplyFile::new).transpose()?;
            if let Some(reply) = &reply {
                command.env("THROTTLE_REPLY", reply.path());
            }
            let child = command.spawn()?;
            running.reply = reply;
            let target = self.target(&child).ok_or(ErrorKind::NotFound)?;
            // Before anybody else can find no room: this one will end.
            slots.started(seq, target);
            Ok((child, target))
        };
        slots.once_there_is_room(spawn).await.map_err(|error| match error.kind() {
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
    /// The attempt whose price was asked for; `None`: the first one of the next job.
    priced: Option<Attempt>,
    /// What the next one was charged.
    charge: Option<Charge>,
}

impl<R: Source> Launching<R> {
    /// Commands for what `source` gives, framed by `buffer`. The thread that calls this is the pump's.
    pub fn new(source: R, buffer: Buffer, shape: Shape, launcher: Launcher) -> Self {
        let batches = Batches::new(source, buffer, shape, &launcher.shared.options.template);
        launcher.shared.again.iter().for_each(|again| again.is_used_by_pump());
        Launching { batches, launcher, told: 0, priced: None, charge: None }
    }

    /// Leaves out the units that are known; see [`done_before`](Self::done_before).
    #[must_use]
    pub fn leaving_out(mut self, known: Option<Known>) -> Self {
        self.batches.known = known;
        self
    }

    /// Each unit has a price of its own.
    #[must_use]
    pub fn priced(mut self, pricing: Option<Pricing>) -> Self {
        self.batches.pricing = pricing;
        self
    }

    /// Blank units left out so far.
    pub fn skipped(&self) -> u64 {
        self.batches.skipped()
    }

    /// Known units left out so far. One that outgrows the buffer never is.
    pub fn done_before(&self) -> u64 {
        self.batches.done_before()
    }

    /// The bytes are those of the input. An attempt that is not the first of its unit passes no unit.
    fn start(&mut self, due: Option<Attempt>, unpaid: Option<Unpaid>, passed: &mut Passed) {
        let (batches, charge) = (&mut self.batches, self.charge.take());
        if let Some(job) = self.launcher.start_next(due, unpaid.map_or(Ok(charge), Err), || batches.next()) {
            passed.units += 1;
            passed.bytes += job.length;
            self.tell_next();
        }
    }

    fn tell_next(&mut self) {
        let Some(job) = self.batches.peek().filter(|job| job.seq != self.told) else { return };
        let first = job.names.iter().next().map(|(number, name)| (number, name.to_vec()));
        self.told = job.seq;
        let (skipped, done_before) = (self.batches.skipped(), self.batches.done_before());
        self.launcher.shared.events.send(Event::Next { first, skipped, done_before });
    }

    /// Reads what there is. With `wait`, and if there is nothing: waits until there is some, an attempt is due, or one has
    /// ended after which the input may be at its end.
    fn cut_or_wait(&mut self, wait: bool) -> Result<Filled, FlowError> {
        let Some(again) = &self.launcher.shared.again else { return self.cut_or_read(wait) };
        let (again, is_full) = (Arc::clone(again), again.is_full());
        let filled = if is_full { Filled::Nothing } else { self.cut_or_read(false)? };
        if filled == Filled::Some || !wait {
            return Ok(filled);
        }
        self.tell_next();
        let slots = &self.launcher.shared.slots;
        let is_over = || filled == Filled::End && slots.count() == 0 && again.is_empty();
        if is_over() {
            return Ok(Filled::End);
        }
        if is_full {
            self.launcher.tell_of_full_agenda();
        }
        let source = if filled == Filled::End || is_full { None } else { self.batches.source_fd() };
        again.wait(source, is_over).map_err(FlowError::Read)?;
        Ok(Filled::Nothing)
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
        match self.cut_or_wait(wait) {
            Err(FlowError::Hold(error)) if is_shortage(&error) => match wait {
                false => Ok(Filled::Nothing),
                true if self.launcher.shared.slots.wait_for_an_end() => Ok(Filled::Some),
                true => Err(FlowError::Hold(error)),
            },
            filled => filled,
        }
    }

    /// Nothing new starts while too many wait for another attempt.
    fn waiting(&self) -> u64 {
        match &self.launcher.shared.again {
            None => self.batches.waiting(),
            Some(again) if again.is_full() => again.due().0,
            Some(again) => again.due().0 + self.batches.waiting(),
        }
    }

    fn take_hold(&mut self) -> Option<Nanos> {
        self.launcher.shared.again.as_ref()?.take_hold()
    }

    fn has_hold(&self) -> bool {
        self.launcher.shared.again.as_ref().is_some_and(|again| again.has_hold())
    }

    fn read_ahead(&self) -> Passed {
        self.batches.read_ahead()
    }

    /// No command is foreseen for which no slot is free.
    fn foreseen(&self) -> u64 {
        self.waiting().min(self.launcher.shared.slots.free())
    }

    fn ready(&mut self) -> Result<u64, FlowError> {
        self.batches.cut_ahead();
        self.tell_next();
        let Shared { slots, again, .. } = &*self.launcher.shared;
        Ok(slots.wait(|| again.as_ref().map_or((0, None), |again| again.due())))
    }

    fn price(&mut self) -> Price {
        if self.batches.pricing.is_none() {
            return Price::Usual;
        }
        // Another attempt may be due when the grant has come.
        self.priced = self.launcher.due();
        self.priced.as_ref().map_or_else(|| self.batches.price(), |due| due.job.price.clone())
    }

    fn granted(&mut self, grant: &Grant, costs: &[u64]) -> bool {
        let charge = |pricing: &Pricing| Charge { grant: *grant, costs: costs.into(), pricing: pricing.clone() };
        self.charge = self.batches.pricing.as_ref().map(charge);
        self.charge.is_some()
    }

    fn pass(&mut self, units: u64, passed: &mut Passed) -> Result<(), FlowError> {
        for _ in 0..units {
            let due = if self.batches.pricing.is_some() { self.priced.take() } else { self.launcher.due() };
            self.start(due, None, passed);
        }
        Ok(())
    }

    /// It fails without a start.
    fn refuse(&mut self, why: Unpaid, passed: &mut Passed) -> Result<(), FlowError> {
        let due = self.priced.take();
        self.start(due, Some(why), passed);
        Ok(())
    }
}
