//! A run of commands: what the threads other than the pump share and report, and how the run ends.
//!
//! The thread that finds that everything must end (a signal, a reader that left, a command that exited 255) calls
//! [`end`](LaunchRun::end). Another thread then waits for the commands and ends the program: the pump may be blocked
//! anywhere, and is not asked.

use super::exit::Exit;
use super::keys::told;
use super::names::shown;
use super::outcomes::Outcomes;
use super::records::Records;
use super::report::Report;
use super::signals;
use super::unit_name::UnitName;
use rustix::process::Signal;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use throttle::flow::News;
use throttle::flow::order::NO_KEY;
use throttle::launch::{
    Charge, Event, Events, Job, Launcher, Ledger, Options, Outcome, Screen, Settler, Told, Words, quoted,
};
use throttle_limits::clock::{Nanos, in_nanos};

/// Why nothing is launched any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// A signal came.
    Signal,
    /// Our reader is gone.
    ReaderGone,
    /// A command exited 255.
    Stopped,
    /// Our output cannot be written.
    CannotPrint,
    /// What has ended cannot be recorded.
    CannotRecord,
    /// Too many units have failed.
    TooManyFailed,
    /// A server asked to wait for too long.
    SentAway,
}

/// Later than this is as good as never.
const FAR: Duration = Duration::from_secs(86_400 * 365 * 100);

/// What the threads of the run share.
#[derive(Debug)]
pub(super) struct LaunchRun {
    pub(super) report: Arc<Report>,
    launcher: OnceLock<Launcher>,
    /// The first signal that came to end us; 0: none.
    signal: AtomicI32,
    pub(super) in_our_group: bool,
    ledger: Option<Arc<Records>>,
    /// See [`Options`].
    second: Duration,
    /// Whether a unit that ends in CR is worth a hint.
    hints_at_cr: AtomicBool,
    /// To the thread that ends the program.
    end: Sender<Reason>,
    /// To the thread that ends the program after everything was killed.
    end_after_kill: Sender<()>,
}

/// Starts a thread that acts on the first message.
fn on_message<T: Send + 'static>(
    name: &str,
    messages: Receiver<T>,
    act: impl FnOnce(T) + Send + 'static,
) -> io::Result<()> {
    let wait = move || messages.recv().map_or((), act);
    thread::Builder::new().name(name.to_owned()).spawn(wait).map(drop)
}

impl LaunchRun {
    /// Starts the threads of a run, and the launcher. All threads start now: later the system may have no room for one, just
    /// when everything is to end.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(
        report: Report,
        options: Options,
        ledger: Option<Arc<Records>>,
        hints_at_cr: bool,
    ) -> io::Result<(Arc<Self>, Launcher)> {
        let ((end, reasons), (end_after_kill, kills)) = (mpsc::channel(), mpsc::channel());
        let advises = report.outcomes().is_some_and(|outcomes| outcomes.advises());
        let run = Arc::new(LaunchRun {
            report: Arc::new(report),
            launcher: OnceLock::new(),
            signal: AtomicI32::new(0),
            in_our_group: options.in_our_group,
            ledger: ledger.clone(),
            second: options.second,
            hints_at_cr: AtomicBool::new(hints_at_cr && advises),
            end,
            end_after_kill,
        });
        let ending = Arc::clone(&run);
        on_message("ender", reasons, move |reason| {
            // Other processes go on while we wait for the commands that run.
            ending.report.supply().retire();
            ending.launcher().into_iter().for_each(|launcher| launcher.slots().drain());
            ending.flush();
            ending.finish(reason)
        })?;
        let ending = Arc::clone(&run);
        on_message("last ender", kills, move |()| {
            ending.launcher().into_iter().for_each(|launcher| launcher.slots().drain());
            thread::sleep(ending.second);
            signals::die_of(ending.signal.load(Ordering::SeqCst));
        })?;
        let events = Events::default();
        run.receive(events.clone())?;
        let screen = Arc::new(BesideBar(Arc::clone(&run.report)));
        let ledger = ledger.map(|ledger| -> Arc<dyn Ledger> { ledger });
        let settler = Arc::new(BesideBar(Arc::clone(&run.report)));
        let launcher = Launcher::new(options, screen, ledger, settler, events)?;
        // Set once, here.
        let _ = run.launcher.set(launcher.clone());
        Ok((run, launcher))
    }

    /// `None` before the first command.
    pub(super) fn launcher(&self) -> Option<&Launcher> {
        self.launcher.get()
    }

    /// Something of our own went wrong, which comes before whatever commands do.
    pub(super) fn fail(&self) {
        if let Some(mut outcomes) = self.report.outcomes() {
            outcomes.fail();
        }
    }

    pub(super) fn exit(&self) -> Exit {
        self.report.outcomes().map_or(Exit::Success, |outcomes| outcomes.exit())
    }

    /// Launches nothing more, waits for what runs, and ends the program. Returns false if it was ending already.
    fn end(&self, reason: Reason) -> bool {
        let Some(launcher) = self.launcher().filter(|launcher| launcher.slots().stop()) else { return false };
        if let Some(mut outcomes) = self.report.outcomes() {
            outcomes.stop();
        }
        match reason {
            Reason::Signal | Reason::Stopped | Reason::TooManyFailed => {}
            Reason::CannotRecord => self.fail(),
            Reason::SentAway => {
                if let Some(mut outcomes) = self.report.outcomes() {
                    outcomes.send_away();
                }
            }
            Reason::ReaderGone => {
                self.interrupt("the reader is gone");
                launcher.slots().end_with(Signal::TERM);
            }
            Reason::CannotPrint => {
                self.fail();
                self.interrupt("the output is lost");
                launcher.slots().end_with(Signal::TERM);
            }
        }
        let _ = self.end.send(reason);
        true
    }

    /// Returns when all events so far were reported.
    pub(super) fn flush(&self) {
        self.launcher().into_iter().for_each(Launcher::flush);
    }

    /// Notes a signal. Returns whether it is the first one, which is passed on; the second one kills.
    pub(super) fn is_first_signal(self: &Arc<Self>, signal: i32) -> bool {
        let first = self.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if first {
            self.interrupt("interrupted");
            self.end(Reason::Signal);
            self.tell_what_is_waited_for();
        }
        first
    }

    /// Says what it waits for if commands ignore the first signal. Best effort: without a thread for it, it says nothing.
    fn tell_what_is_waited_for(self: &Arc<Self>) {
        let (Some(launcher), run) = (self.launcher().cloned(), Arc::clone(self)) else { return };
        let tell = move || {
            if !launcher.slots().drains_within(run.second) {
                let running = launcher.slots().count();
                let them = if running == 1 { "it" } else { "them" };
                run.hint(|| format!("waiting for {}; again to kill {them}", UnitName::Command.count(running)));
            }
        };
        let _ = thread::Builder::new().name("patience".to_owned()).spawn(tell);
    }

    /// Everything was killed. Ends the program even if nothing reads its last messages.
    pub(super) fn end_without_readers(&self) {
        let _ = self.end_after_kill.send(());
    }

    fn interrupt(&self, why: &'static str) {
        if let Some(mut outcomes) = self.report.outcomes() {
            outcomes.interrupt(why);
        }
    }

    /// Closes the ledger, and names the units that wait for another attempt, which will not be made.
    pub(super) fn close_ledger(&self) {
        let unprinted = self.launcher().map(Launcher::print_rest).unwrap_or_default();
        self.flush();
        let (waiting, unstarted) = self.launcher().map(Launcher::take_waiting).unwrap_or_default();
        let give_up = |mut outcomes: MutexGuard<'_, Outcomes>| {
            outcomes.set_unstarted(unstarted);
            [outcomes.unprinted(&unprinted), outcomes.give_up(&waiting)].concat()
        };
        let lines = self.report.outcomes().map(give_up).unwrap_or_default();
        self.report.asides(&lines);
        if let Err(error) = self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.finish()) {
            self.report.aside(format_args!("{error:#}"));
            self.fail();
        }
    }

    fn finish(&self, reason: Reason) -> ! {
        self.close_ledger();
        self.report.close_or_say();
        match (self.signal.load(Ordering::SeqCst), reason) {
            (0, Reason::ReaderGone) => std::process::exit(signals::die_of_broken_pipe().code().into()),
            (0, _) => {}
            // Also if the run had another reason to end.
            (signal, _) => signals::die_of(signal),
        }
        std::process::exit(self.exit().code().into())
    }
}

/// Writes the output of commands without breaking the bar, and settles what they were charged.
#[derive(Debug)]
struct BesideBar(Arc<Report>);

impl Screen for BesideBar {
    fn beside(&self, print: &mut dyn FnMut() -> bool) {
        self.0.beside_bar(print);
    }

    fn shows_something(&self) -> bool {
        self.0.has_bar()
    }

    fn trace(&self, words: Words<'_>) {
        if self.0.outcomes().is_some_and(|outcomes| outcomes.is_traced()) {
            self.0.aside_bytes(&quoted(words, io::stderr().is_terminal()));
        }
    }
}

impl Settler for BesideBar {
    fn settle(&self, charge: &Charge, real: &[u64]) {
        // If it fails, those behind wait longer.
        let _ = self.0.supply().settle(&charge.grant, [&charge.costs, real]);
    }

    fn may_block(&self) -> bool {
        self.0.supply().store().is_shared()
    }
}

/// Lines to be written, and a waiter to wake after that.
type Lines = (Vec<String>, Option<Told>);

impl LaunchRun {
    /// Starts the thread that receives events, and the one that writes the lines about them. The first never blocks: a
    /// standard error that nothing reads delays no count and no end.
    ///
    /// # Errors
    /// The system refuses a thread.
    fn receive(self: &Arc<Self>, events: Events) -> io::Result<()> {
        let (lines, wanted) = mpsc::channel::<Lines>();
        let report = Arc::clone(&self.report);
        let write = move || wanted.into_iter().for_each(|(lines, _told)| report.asides(&lines));
        thread::Builder::new().name("writer".to_owned()).spawn(write)?;
        let run = Arc::clone(self);
        let receive = move || loop {
            for (event, told) in events.receive() {
                let said = run.take(event);
                if !said.is_empty() || told.is_some() {
                    let _ = lines.send((said, told));
                }
            }
        };
        thread::Builder::new().name("receiver".to_owned()).spawn(receive).map(drop)
    }

    /// Counts what has happened, ends the run if it must end, and returns the lines to write about it.
    fn take(&self, event: Event) -> Vec<String> {
        let Some(mut outcomes) = self.report.outcomes() else { return Vec::new() };
        let said = match event {
            Event::Next { first, skipped, done_before } => {
                outcomes.set_skipped(skipped, done_before);
                outcomes.set_next(first.as_ref().map(|(number, name)| (*number, &name[..])));
                None
            }
            Event::Started { job, attempt, at } => {
                outcomes.start(&job, attempt, self.at(at));
                let hint = outcomes.hint(self.report.now(), || self.report.read().sink);
                drop(outcomes);
                hint.or_else(|| self.hint_at_cr(&job))
            }
            Event::Ended(ended) => {
                let lines = outcomes.end(&ended, self.at(ended.at));
                let has_failed_enough = outcomes.has_failed_enough();
                drop(outcomes);
                if matches!(ended.outcome, Outcome::Exited(255)) {
                    self.end(Reason::Stopped);
                } else if has_failed_enough {
                    self.end(Reason::TooManyFailed);
                }
                return lines;
            }
            Event::Done(success) => {
                outcomes.done(&success);
                None
            }
            Event::SentAway(time) => {
                drop(outcomes);
                let until = humantime::format_rfc3339_seconds(SystemTime::now() + time.min(FAR));
                let words = format!("a server asked to wait until {until}, longer than --max-pause; ending");
                self.end(Reason::SentAway).then_some(words)
            }
            Event::KeySentAway { left, jobs } => {
                outcomes.send_away();
                let until = humantime::format_rfc3339_seconds(SystemTime::now() + left.min(FAR));
                let key = shown(jobs.first().and_then(|job| job.key.as_deref()).unwrap_or(NO_KEY));
                let line = format!("'{key}' asked to wait until {until}, longer than --max-pause; not tried any more");
                let lines = outcomes.give_up(&jobs);
                return if outcomes.is_quiet() { Vec::new() } else { std::iter::once(line).chain(lines).collect() };
            }
            Event::CannotRecord(error) => {
                drop(outcomes);
                self.end(Reason::CannotRecord).then(|| format!("{error}; launching nothing more"))
            }
            Event::QueueFull => {
                let words = "too many units wait for another attempt; new ones wait (more may with --ahead)";
                outcomes.advises().then(|| words.to_owned())
            }
            Event::NoKeys(per) => outcomes.advises().then(|| told(&News::NoKeys(per))),
            Event::AheadFull(crowd) => outcomes.advises().then(|| told(&News::Full(crowd))),
            Event::BadReply(remark) => (!outcomes.is_quiet()).then(|| format!("hint: {remark}")),
            Event::LeftBehind(job) => (!outcomes.is_quiet()).then(|| {
                format!("{} left a process behind that holds its output open; not waited for", outcomes.name(&job))
            }),
            Event::HeldUp => outcomes
                .advises()
                .then(|| "launching waits: too much output waits for an earlier command to end (-k)".to_owned()),
            Event::ReaderGone | Event::CannotPrint(_) | Event::CannotHold(_) => {
                drop(outcomes);
                self.end_output(&event)
            }
            Event::Flush => None,
        };
        said.into_iter().collect()
    }

    /// Ends the run because output cannot be printed; says why, unless it has an end already.
    fn end_output(&self, event: &Event) -> Option<String> {
        let (reason, why) = match event {
            Event::CannotPrint(error) => (Reason::CannotPrint, format!("cannot write to standard output: {error}")),
            Event::CannotHold(error) => {
                (Reason::CannotPrint, format!("cannot hold output until its turn (-k): {error}"))
            }
            _ => (Reason::ReaderGone, String::new()),
        };
        let is_news = self.end(reason) && reason != Reason::ReaderGone;
        is_news.then(|| format!("{why}; ending the commands"))
    }

    /// The time on the report's clock.
    fn at(&self, at: Instant) -> Nanos {
        let ago = in_nanos(at.elapsed());
        self.report.now().saturating_sub(ago)
    }

    fn hint_at_cr(&self, job: &Job) -> Option<String> {
        let hint =
            "hint: the units end in CR, which the commands get, too; to drop it: tr -d '\\r' < FILE | throttle …";
        let is_first = job.name().ends_with(b"\r") && self.hints_at_cr.swap(false, Ordering::SeqCst);
        is_first.then(|| hint.to_owned())
    }

    fn hint(&self, words: impl FnOnce() -> String) {
        if self.report.outcomes().is_some_and(|outcomes| !outcomes.is_quiet()) {
            self.report.aside(words());
        }
    }
}
