//! Starts a command for each attempt at a job, and ends commands on request.

use super::attempt::{Attempt, Ledger, Running};
use super::child;
use super::event::{Event, Events};
use super::job::{Job, Outcome};
use super::launcher::{Launcher, Screen};
use super::options::{NEVER, Options, Output};
use super::passed_input::Feed;
use super::printer::{Collected, Printer};
use super::queue::Queue;
use super::reply_file::{ReplyFile, expect_replies};
use super::slots::{self, Slots};
use super::spool::Spool;
use super::target::Target;
use super::temporary::is_shortage;
use super::units::Units;
use crate::flow::{Grants, STACK, room, unpoisoned};
use rustix::process::{Pid, Signal};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};
use throttle_limits::clock::with_usual_slack;
use throttle_limits::ledger::operation::Operation;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

/// The most threads that may block on output whose reader does not read. More threads would only take memory.
const MAX_BLOCKED_THREADS: usize = 8;

/// The bytes that fit into any pipe before it is read: one page (pipe(7)).
const MIN_PIPE_BYTES: u64 = 4096;

/// The jobs that waited when a run ended.
#[derive(Debug)]
pub struct Waiting {
    /// The jobs that waited for another attempt, the oldest first.
    pub again: Vec<Arc<Job>>,
    /// The number of jobs that were read and never tried.
    pub unstarted: u64,
    /// Whether all input was read and no job waited.
    pub is_all_started: bool,
}

impl Launcher {
    /// Prepares to start commands with `options`. SIGCHLD must not be ignored: the system would then reap commands
    /// itself, and their exit statuses would be lost (wait(2)).
    ///
    /// # Errors
    /// The system has no room for the threads of the run (four threads of the caller included), for the process of a
    /// command, or for a means to wait for events.
    pub fn new(
        options: Options,
        screen: Arc<dyn Screen>,
        ledger: Option<Arc<dyn Ledger>>,
        grants: Arc<Grants<Attempt>>,
        events: Events,
    ) -> io::Result<Arc<Self>> {
        expect_replies();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(slots::STARTERS).thread_name("children").thread_stack_size(STACK).enable_all();
        // Threads are kept: the system may have no room to replace a thread that has ended.
        runtime.max_blocking_threads(MAX_BLOCKED_THREADS).thread_keep_alive(NEVER);
        expect_room_for_a_runtime()?;
        // Threads and commands inherit the timer slack of the thread that starts them, and any thread of the runtime
        // may later start commands. So the threads, including the printing thread, start here with the usual slack.
        let with_a_printer = || runtime.build().inspect(|runtime| drop(runtime.handle().spawn_blocking(|| ())));
        let runtime = with_usual_slack(with_a_printer)?;
        let tasks = runtime.handle().clone();
        // Commands outlive the launcher, so the runtime that attends to them is never dropped.
        std::mem::forget(runtime);
        let slots = Slots::new(options.jobs, options.burst);
        let options = Arc::new(options);
        let queue = Queue::new(Arc::clone(&options), grants)?;
        let one = || Arc::new(Semaphore::new(1));
        let printer = Mutex::new(Printer::new(options.output == Output::InOrder));
        Ok(Arc::new(Launcher {
            tasks,
            options,
            slots,
            queue,
            ledger,
            recording: one(),
            printer,
            is_held_up: AtomicBool::new(false),
            printing: one(),
            screen,
            events,
            wanted_terminal: Mutex::default(),
        }))
    }

    /// Checks that a command will find room for its files. Must be called before the first command, after everything
    /// else is open: without that room each command would fail.
    ///
    /// # Errors
    /// The system has no room for the files of a command: its input, its reply, and a pipe for each output.
    pub fn expect_room_for_a_command(&self) -> io::Result<()> {
        let pipes = if self.options.output == Output::Direct { 0 } else { 2 };
        // The error of a shortage names no file.
        let named = |error: io::Error| io::Error::new(error.kind(), format!("/dev/null: {error}"));
        let _input = File::open("/dev/null").map_err(|error| if is_shortage(&error) { error } else { named(error) })?;
        let _reply = self.replies().then(ReplyFile::new).transpose()?;
        (0..pipes).map(|_| io::pipe()).collect::<io::Result<Vec<_>>>().map(drop)
    }

    /// Whether each command gets a reply file, for retries or for its real cost.
    fn replies(&self) -> bool {
        let Options { again, settling, .. } = &*self.options;
        again.is_some() || settling.is_any()
    }

    /// Takes out the waiting jobs. Must be called when no command runs and none will start.
    pub fn take_waiting(&self) -> Waiting {
        let queue = &self.queue;
        let waiting = queue.drain();
        let is_all_started = waiting.is_empty() && queue.is_all_read.load(Ordering::SeqCst);
        let (first, again): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|attempt| attempt.number == 1);
        let mut again: Vec<_> = again.into_iter().map(|attempt| attempt.job).collect();
        again.sort_by_key(|job| job.seq);
        // Without keys, a first attempt enters the queue only at its turn. Such a job was already reported as the next
        // job of the input, and must not be counted twice.
        let unstarted =
            if queue.grants.has_keys() { first.iter().map(|attempt| attempt.job.unit_count()).sum() } else { 0 };
        Waiting { again, unstarted, is_all_started }
    }

    /// Returns when every event that was sent before was reported to the user.
    pub fn flush(&self) {
        // The receiver drops the sender once the event was reported. This call then returns an error, which can be
        // ignored.
        let _ = self.events.send_and_wait(Event::Flush).blocking_recv();
    }

    /// Ends the commands that were stopped because they wanted the terminal, which they will not get.
    pub fn end_commands_that_want_the_terminal(&self) {
        for (seq, target) in self.slots.running() {
            self.end_if_it_wants_the_terminal(seq, target);
        }
    }

    fn end_if_it_wants_the_terminal(&self, seq: u64, target: Target) {
        if matches!(target, Target::Group(_)) && is_stopped_for_the_terminal(target.pid()) {
            unpoisoned(self.wanted_terminal.lock()).insert(seq);
            target.signal(Signal::KILL);
        }
    }

    /// Starts the chosen attempt once it has a slot. A refused attempt fails without a start. Returns the job if this is
    /// its first attempt.
    pub(super) fn start_next(self: &Arc<Self>) -> Option<Arc<Job>> {
        let Launcher { options, queue, slots, screen, events, .. } = &**self;
        let job = queue.chosen()?;
        if job.refused().is_none() {
            screen.trace(&mut options.template.fill(&job.units));
        }
        drop(job);
        let chosen = || queue.take_chosen().map(|chosen| (chosen.0.job.seq, chosen));
        let (slot, (mut attempt, granted)) = slots.take(chosen)?;
        let is_new = attempt.number == 1;
        let (granted, refused) = match granted {
            Ok(granted) => (Some(granted), attempt.job.refused()),
            Err(never) => (None, Some(never)),
        };
        // The command is built on this thread, so that all its memory comes from one allocator arena.
        let command = refused.map_or_else(|| Ok(self.command(&attempt.job.units)), Err);
        let mut input = None;
        // A job with a single attempt has no other owner.
        if let Some(job) = Arc::get_mut(&mut attempt.job).filter(|_| options.again.is_none()) {
            // The command has copies of the units. The first unit may be needed for a tag, or as the name of the
            // command.
            job.forget_units(options.tag || options.template.name().is_none());
            input = job.input.take();
        }
        let (job, started) = (Arc::clone(&attempt.job), Instant::now());
        events.send(Event::Started { job: Arc::clone(&job), attempt: attempt.number, at: started });
        self.run(Running { attempt, slot, started, reply: None, granted, feed: None }, command, input);
        is_new.then_some(job)
    }

    /// Starts the command and attends to it until its end. A task does both: a start takes a while, and several starts
    /// can overlap.
    fn run(self: &Arc<Self>, mut running: Running, command: Result<Command, Outcome>, input: Option<Spool>) {
        let launcher = Arc::clone(self);
        self.tasks.spawn(async move {
            let started = match command {
                Ok(command) => launcher.spawn(&mut running, command, input).await,
                Err(outcome) => Err(outcome),
            };
            match started {
                Ok((child, target)) => {
                    // The command may have been stopped before its process id was recorded.
                    launcher.end_if_it_wants_the_terminal(running.seq(), target);
                    launcher.report_start(&running, &child);
                    child::attend(launcher, running, child, target).await;
                }
                Err(outcome) => launcher.finish(running, outcome, Collected::default()).await,
            }
        });
    }

    /// Reports the command's process to a bucket that counts commands. Nothing waits for this report: it matters only
    /// if this process is killed. The pump may wait for a slot meanwhile.
    fn report_start(&self, running: &Running, child: &Child) {
        let bucket = self.queue.grants.shared().filter(|bucket| bucket.counts_jobs());
        let charge = running.granted.as_ref().and_then(|granted| granted.charge.as_ref());
        if let (Some(pid), Some(charge), Some(bucket)) = (child.id(), charge, bucket)
            && let Some(process) = bucket.store().owner_of(pid)
        {
            let (store, operation) = (Arc::clone(bucket.store()), Operation::HandOver(charge.number, process));
            tokio::task::spawn_blocking(move || store.send(vec![operation]));
        }
    }

    /// Starts the process of `command`, and frees the memory of `command`.
    async fn spawn(
        &self,
        running: &mut Running,
        mut command: Command,
        mut input: Option<Spool>,
    ) -> Result<(Child, Target), Outcome> {
        let Launcher { slots, options, .. } = self;
        let (seq, attempt) = (running.seq(), &running.attempt);
        let wait = |error: &io::Error| self.note_shortage(error);
        command.env("THROTTLE_SEQ", seq.to_string()).env("THROTTLE_SLOT", running.slot.to_string());
        command.envs(attempt.job.identity().map(|identity| ("THROTTLE_ID", identity.to_string())));
        command.envs(options.again.as_ref().map(|_| ("THROTTLE_ATTEMPT", attempt.number.to_string())));
        if self.queue.grants.has_keys() {
            command.env_remove("THROTTLE_KEY"); // An outer run may have set it.
        }
        command.envs(attempt.job.key.as_deref().map(|key| ("THROTTLE_KEY", without_nul(key))));
        // A file with the units is the input itself, so it is not given back.
        if let Some(mut units) = input.take_if(|units| units.in_memory().is_none()) {
            command.stdin(units.take_file().map_err(Outcome::InputLost)?);
        }
        let units = input.as_ref().or(attempt.job.input.as_ref());
        let mut has_input = false;
        // Takes all files and the process together, and gives all back on an error. Otherwise two starts could each hold
        // what the other start needs.
        let start = || {
            has_input = false;
            let (input, feed) = self.input(units)?;
            has_input = true;
            let reply = self.replies().then(ReplyFile::new).transpose()?;
            if let Some(reply) = &reply {
                command.env("THROTTLE_REPLY", reply.path());
            }
            let is_made = input.map(|input| command.stdin(input)).is_some();
            let child = command.spawn();
            if is_made {
                command.stdin(Stdio::null()); // Closes our copy.
            }
            let child = child?;
            (running.reply, running.feed) = (reply, feed);
            let target = self.target(&child).ok_or(ErrorKind::NotFound)?;
            // The start is recorded at once. Another start that then finds no room can wait for the end of this
            // command.
            slots.started(seq, target);
            Ok((child, target))
        };
        slots.once_there_is_room(start, wait).await.map_err(|error| match error.kind() {
            _ if !has_input => Outcome::InputLost(error),
            ErrorKind::NotFound => Outcome::NotFound(error),
            ErrorKind::ArgumentListTooLong => Outcome::TooLong,
            _ => Outcome::CannotRun(error),
        })
    }

    /// Opens the standard input of a command, if it has one that is not open yet: the `units`, or our own input with the
    /// thread that feeds it.
    fn input(&self, units: Option<&Spool>) -> io::Result<(Option<Stdio>, Option<Feed>)> {
        match (&self.options.passed_input, units) {
            (Some(passed), _) => passed.attach().map(|(input, feed)| (Some(input), feed)),
            (None, Some(units)) => as_input(units).map(|input| (Some(input.into()), None)),
            (None, None) => Ok((None, None)),
        }
    }

    /// Makes the command. Its environment and its standard input are set later.
    fn command(&self, units: &Units) -> Command {
        let options = &self.options;
        let mut words = options.template.fill(units);
        // The words are never empty: no template is empty, and if the first word is {} the job has a unit.
        let name = words.next().unwrap_or(Cow::Borrowed(OsStr::new("")));
        let program = options.program.as_deref().unwrap_or(&name);
        let mut command = Command::from(command(program, &name, options.ignore_sigpipe));
        command.args(words).stdin(Stdio::null());
        if options.output != Output::Direct {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if !options.in_our_group {
            command.process_group(0);
        }
        command
    }

    /// The target for signals to the child; `None` if it has no process id. A child that was not reaped always has one.
    fn target(&self, child: &Child) -> Option<Target> {
        let pid = Pid::from_raw(child.id()?.cast_signed())?;
        Some(if self.options.in_our_group { Target::Process(pid) } else { Target::Group(pid) })
    }
}

/// A command without arguments that runs `program` under this `name`. With `ignores_sigpipe`, a shell first ignores
/// SIGPIPE and then executes the program. The shell is needed because Rust's library resets SIGPIPE in every process
/// that it starts.
pub fn command(program: &OsStr, name: &OsStr, ignores_sigpipe: bool) -> process::Command {
    if !ignores_sigpipe {
        let mut command = process::Command::new(program);
        command.arg0(name);
        return command;
    }
    let mut shell = process::Command::new("/bin/sh");
    shell.args(["-c", "trap '' PIPE; exec \"$0\" \"$@\""]).arg(program);
    shell
}

/// `bytes` without the NUL bytes that no environment variable can hold.
fn without_nul(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.iter().copied().filter(|byte| *byte != 0).collect())
}

/// Checks that the runtime can start. tokio panics if it cannot start its threads or open its six files. In current
/// versions the files are two pairs and a copy of one end of each. A command's process counts like a thread
/// (`RLIMIT_NPROC`, getrlimit(2)).
fn expect_room_for_a_runtime() -> io::Result<()> {
    let pairs: io::Result<Vec<_>> = (0..3).map(|_| UnixStream::pair()).collect();
    pairs?;
    let (threads, one_to_print, of_the_caller, a_command) = (slots::STARTERS, 1, 4, 1);
    let many = threads + one_to_print + of_the_caller + a_command;
    // The allocator of glibc reserves 64 MiB for each allocating thread while it can. The rest of the address space
    // (ulimit -v) may be too small for the next stack or for other memory. So both are reserved first.
    let mut stacks = (0..many).map(|_| room(2 * STACK)).collect::<io::Result<Vec<_>>>()?;
    let _all_else = room(OTHER_MEMORY)?;
    let (all_at_once, before) = (RwLock::new(()), count_threads());
    thread::scope(|scope| {
        let _until_all_are_there = all_at_once.write();
        let wait = || drop(all_at_once.read());
        let started = |_| {
            drop(stacks.pop());
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, wait).map(drop)
        };
        (0..many).try_for_each(started)
    })?;
    // The system counts a thread for a moment after its end, on a busy machine for longer.
    for _ in 0..2000 {
        if count_threads() <= before {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The memory of a run beyond its stacks, in bytes.
const OTHER_MEMORY: usize = 4 << 20;

/// The number of threads of this process, on Linux (proc(5)).
fn count_threads() -> Option<usize> {
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

/// Makes a standard input of units: a pipe that already holds them all, or a file of its own. Another try or another
/// attempt may need the units.
fn as_input(units: &Spool) -> io::Result<OwnedFd> {
    if units.length() > MIN_PIPE_BYTES {
        return units.duplicate()?.take_file().map(OwnedFd::from);
    }
    let (read, write) = io::pipe()?;
    units.copy_to(&mut &write)?;
    Ok(read.into())
}

/// Whether the process `pid` was stopped because it read from or wrote to the terminal in the background.
fn is_stopped_for_the_terminal(pid: Pid) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let stopped_by = waitid(WaitId::Pid(pid), options).ok().flatten().and_then(|status| status.stopping_signal());
    [Signal::TTIN, Signal::TTOU].into_iter().any(|signal| stopped_by == Some(signal.as_raw()))
}
