//! The state that the pump's thread and the commands' tasks share, and the work at the end of an attempt.

use super::attempt::{Attempt, Ended, Ledger, Running};
use super::event::{Event, Events, Success};
use super::job::Outcome;
use super::options::{Options, Output};
use super::passed_input::PassedInput;
use super::printer::{Collected, Printer};
use super::queue::Queue;
use super::reply::{self, Reply};
use super::reply_file::unopened;
use super::retries::{Overlong, Paused, Verdict};
use super::settling::Real;
use super::slots::Slots;
use crate::flow::{Granted, poll, unpoisoned};
use rustix::event::PollFlags;
use rustix::process::Signal;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as StdInstant, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// The progress bar and other text around the commands' output. Called from several threads.
pub trait Screen: Send + Sync {
    /// Hides the progress bar and calls `print`, which writes to our standard output or error. `print` returns whether
    /// it has left a line open on a terminal. May block.
    fn beside(&self, print: &mut dyn FnMut() -> bool);
    /// Shows a command that is about to start. The command has no slot yet, so nothing waits for it. May block.
    fn trace(&self, words: &mut dyn Iterator<Item = Cow<'_, OsStr>>);
}

/// Starts commands, and attends to them. The pump's thread and the commands' tasks share it.
pub struct Launcher {
    /// The runtime of the commands' tasks.
    pub(super) tasks: Handle,
    pub(super) options: Arc<Options>,
    /// The slots of running commands.
    pub slots: Slots,
    pub(super) queue: Queue,
    pub(super) ledger: Option<Arc<dyn Ledger>>,
    /// Held while the ledger may block.
    pub(super) recording: Arc<Semaphore>,
    pub(super) printer: Mutex<Printer>,
    /// Whether too much output waits for the output of earlier jobs.
    pub(super) is_held_up: AtomicBool,
    /// Held while printing may block. A task that waits for this semaphore needs no thread, which would take memory.
    pub(super) printing: Arc<Semaphore>,
    pub(super) screen: Arc<dyn Screen>,
    pub(super) events: Events,
    /// The jobs whose commands were ended because they wanted the terminal.
    pub(super) wanted_terminal: Mutex<BTreeSet<u64>>,
}

impl Launcher {
    /// Decides what follows from the end of an attempt, prints the command's output, and records the end. The last step
    /// of a command's task.
    pub(super) async fn finish(self: &Arc<Self>, mut running: Running, outcome: Outcome, collected: Collected) {
        let (seq, at) = (running.seq(), StdInstant::now());
        drop(running.feed.take());
        let wanted_terminal = unpoisoned(self.wanted_terminal.lock()).remove(&seq);
        let mut outcome = if wanted_terminal { Outcome::WantedTerminal } else { outcome };
        // A command that writes to our standard output itself is the first to find its reader gone.
        let has_no_reader =
            self.options.output == Output::Direct && !matches!(outcome, Outcome::Ok) && has_no_reader(io::stdout());
        if has_no_reader {
            self.events.send(Event::ReaderGone);
        }
        let reply = self.reply(&running);
        if !matches!(outcome, Outcome::Ok) && reply == Reply::default() {
            self.report_unopened(&running, &collected);
        }
        let real = self.real(&running, &reply);
        self.settle(running.granted.as_ref(), &real);
        let is_stopped = has_no_reader || self.is_stopped(&outcome).await;
        let mut judge = || self.queue.judge(&mut running, at, &outcome, &reply);
        let mut verdict = if is_stopped { Verdict::Stopped } else { judge() };
        if verdict.is_repeated() && self.options.passed_input.as_ref().is_some_and(PassedInput::is_cut) {
            verdict = Verdict::Failed;
            let why = "the command is not tried again: more than 64 MiB of a pipe cannot be stored for another attempt; \
                       redirect a file instead: < FILE";
            self.events.send_once(Event::NotKept(why));
        }
        let success = matches!(verdict, Verdict::Ok)
            .then(|| Success { job: Arc::clone(&running.attempt.job), attempt: running.attempt.number });
        if matches!(verdict, Verdict::Failed) {
            self.advise_after_403(&reply);
        }
        let printed = if verdict.is_repeated() {
            // Only the last attempt's output counts, but the error messages of this attempt show why there were more
            // attempts.
            self.print_lines(collected.err, false).await
        } else {
            // Called even if some of this output is lost: the output of later jobs waits for this job.
            self.print(seq, collected, success).await
        };
        if let Err(error) = printed
            && !verdict.is_repeated()
            && !wanted_terminal
        {
            verdict = if has_left(&error) { Verdict::Stopped } else { Verdict::Failed };
            outcome = Outcome::OutputLost(error);
        }
        self.ended(running, (outcome, verdict), reply, &real, at).await;
    }

    /// Whether the command ended because the run ends. An error such as a full disk is a failure, even in a run that
    /// ends because of it.
    async fn is_stopped(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Ok => false,
            Outcome::OutputLost(error) => has_left(error),
            _ => {
                self.notice_signal(outcome).await;
                self.slots.are_ended()
            }
        }
    }

    /// Waits until the run has reacted to a signal of the terminal that may have ended this command. A command in our
    /// process group gets that signal at the same time as this process, and may end first. Without this wait, the command
    /// would count as failed, and the next command would start.
    async fn notice_signal(&self, outcome: &Outcome) {
        if !self.options.in_our_group {
            return;
        }
        let begun = StdInstant::now();
        let longest = |is_signalled: bool| match outcome {
            _ if is_signalled => MAX_REACTION,
            Outcome::Killed(signal) if *signal == Signal::INT.as_raw() => MAX_DELIVERY,
            _ => Duration::ZERO,
        };
        let is_signalled = || self.options.is_signalled.load(Ordering::SeqCst) || is_signal_pending();
        while !self.slots.are_ended() && begun.elapsed() < longest(is_signalled()) {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Settles the grant at the real cost.
    fn settle(&self, granted: Option<&Granted>, real: &Real) {
        if let Some(granted) = granted.filter(|_| self.options.settling.is_any()) {
            self.queue.grants.settle(granted, &real.costs);
            self.queue.wake_pump();
        }
    }

    /// Reads and parses the command's reply.
    fn reply(&self, running: &Running) -> Reply {
        let Some(file) = &running.reply else { return Reply::default() };
        let units = running.attempt.job.names.count();
        let reply = file.read().map(|bytes| Reply::parse(&bytes, units, SystemTime::now())).unwrap_or_default();
        if let Some(field) = &reply.bad {
            let is_cost = field.starts_with(reply::COST_FIELD);
            let right = if is_cost { self.options.settling.example() } else { "retry-after: 30".to_owned() };
            let remark = format!("a reply has '{field}', which is not valid; write for example {right}");
            self.events.send_once(Event::BadReply(remark));
        }
        reply
    }

    /// Advises, once, that some servers refuse too many calls with 403. With calls remaining and without
    /// `retry-after`, such an answer cannot be distinguished from one to a call that is forbidden.
    fn advise_after_403(&self, reply: &Reply) {
        let is_later = self.options.again.as_ref().is_some_and(|again| again.names_status(403));
        if reply.last.status == Some(403) && reply.last.has_rest && !is_later {
            self.events.send_once(Event::Forbidden);
        }
    }

    /// Reports, once, that a command could not open its reply file.
    fn report_unopened(&self, running: &Running, collected: &Collected) {
        let Some(file) = &running.reply else { return };
        let words = self.options.template.fill(&running.attempt.job.units);
        let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        let errors = collected.err.in_memory().unwrap_or_default();
        if let Some(remark) = unopened(file.path(), &words.join(" "), errors) {
            self.events.send_once(Event::UnopenedReply(remark));
        }
    }

    /// The real cost of an attempt for each limit.
    fn real(&self, running: &Running, reply: &Reply) -> Real {
        // An attempt that never runs costs nothing.
        let charged = running.granted.as_ref().map_or(&[][..], |granted| &granted.costs);
        self.options.settling.real(charged, reply, |event| self.events.send_once(event))
    }

    async fn ended(
        self: &Arc<Self>,
        running: Running,
        (outcome, verdict): (Outcome, Verdict),
        reply: Reply,
        real: &Real,
        at: StdInstant,
    ) {
        let Running { attempt, slot, started, reply: file, granted, .. } = running;
        // The reply file is closed now: other code may wait for a file descriptor.
        drop(file);
        let (job, number, seq) = (Arc::clone(&attempt.job), attempt.number, attempt.job.seq);
        let due_in = verdict.due().map(|due| self.queue.due_in(due, at));
        let waited = started.saturating_duration_since(attempt.ready);
        let ((pace, pause, overlong), cost) = (self.queue.standing(&job.key, at), real.reported);
        let overlong = overlong.filter(|_| due_in.is_some());
        let pause = Paused { is_overlong: overlong.is_some(), ..pause };
        let ended =
            Ended { job, number, outcome, verdict, due_in, pause, pace, reply, cost, waited, started, at, slot };
        let ended = Arc::new(ended);
        self.record(&ended).await;
        let is_sent_away = self.is_sent_away(overlong, &attempt, granted.as_ref()).await;
        let next = due_in.filter(|_| !is_sent_away).map(|due_in| attempt.next(at + due_in));
        let ended = Event::Ended(ended);
        if ended.is_urgent() {
            self.report(ended).await;
        } else {
            self.events.send(ended);
        }
        // Only now may the next attempt start. Both changes happen under one lock: the pump always finds either the
        // taken slot or the next attempt.
        self.slots.release(seq, slot, || self.queue.ended(granted.as_ref(), next));
        self.queue.wake_pump();
    }

    /// If the server requested a longer pause than allowed, the key is abandoned if limits are kept per key; otherwise the
    /// run ends. Returns whether the key was abandoned.
    async fn is_sent_away(
        self: &Arc<Self>,
        overlong: Option<Overlong>,
        attempt: &Attempt,
        granted: Option<&Granted>,
    ) -> bool {
        let Some(pause) = overlong else { return false };
        let Some(granted) = granted.filter(|_| self.queue.grants.has_keys()) else {
            self.events.send_once(Event::SentAway(pause));
            return false;
        };
        let waiting = [vec![attempt.clone()], self.queue.give_up(granted)].concat();
        let jobs: Vec<_> = waiting.into_iter().map(|attempt| attempt.job).collect();
        for job in &jobs {
            // Each job needs a result, even an empty one: output in input order waits for it.
            let _ = self.print(job.seq, Collected::default(), None).await;
        }
        self.events.send(Event::KeySentAway { pause, jobs });
        true
    }

    /// Records an attempt's end in the ledger, before the slot is freed.
    async fn record(&self, ended: &Arc<Ended>) {
        let Some(ledger) = &self.ledger else { return };
        let recorded = if ledger.may_block() {
            let (ledger, ended) = (Arc::clone(ledger), Arc::clone(ended));
            // Only one record is written at a time. So a reader that does not read blocks only one thread, and other
            // tasks can print meanwhile.
            self.on_a_thread(Some(&self.recording), move || ledger.record(&ended)).await.unwrap_or(Ok(()))
        } else {
            ledger.record(ended)
        };
        if let Err(error) = recorded {
            self.events.send(Event::CannotRecord(error.to_string()));
        }
    }
}

/// How long the run may take to react to a signal that has arrived.
const MAX_REACTION: Duration = Duration::from_secs(1);

/// How long a signal of the terminal may take to arrive here, after it has killed a command.
const MAX_DELIVERY: Duration = Duration::from_millis(50);

/// Whether SIGINT was sent to this process, and the thread that handles it has not run yet. See `proc_pid_status(5)`;
/// `false` on systems without that file.
fn is_signal_pending() -> bool {
    let interrupt = 1 << (Signal::INT.as_raw() - 1);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    pending.is_some_and(|set| set & interrupt != 0)
}

/// Whether output was lost because its reader has left, or because it did not read while the run was ended.
fn has_left(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::TimedOut)
}

/// Whether `fd` has lost its reader: a pipe without readers reports `POLLERR` (poll(2)).
fn has_no_reader(fd: impl AsFd) -> bool {
    let found = poll([(Some(fd.as_fd()), PollFlags::OUT)], Some(Duration::ZERO));
    found.is_ok_and(|[found]| found.contains(PollFlags::ERR))
}
