//! A run of commands: the state that its threads share, the reports about events, and the end of the run.
//!
//! Any thread may find that everything must end: a signal arrives, a reader leaves, or a command exits 255. It calls
//! [`end`](LaunchRun::end). Another thread then waits for the commands and ends the program. The pump takes no part in
//! that, because it may be blocked anywhere.

use super::answer;
use super::failure::advice;
use super::names::{news_text, shown};
use super::outcomes::Outcomes;
use super::records::Records;
use super::report::Report;
use super::signals;
use super::time_of_day::until_text;
use super::unit_name::UnitName;
use rustix::process::Signal;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use throttle::flow::{Grants, start_thread, unpoisoned};
use throttle::launch::{Attempt, Ended, Event, Events, Excess, Job, Launcher, Ledger, Options, Overlong, Reported};
use throttle_limits::clock::{Nanos, in_nanos, shown_wait};
use throttle_limits::line::NO_KEY;

/// The reason to launch nothing more.
#[derive(Debug)]
enum Reason {
    /// A signal arrived.
    Signal,
    /// The reader of our output has left.
    ReaderGone,
    /// A command exited 255.
    Stopped,
    /// Our output cannot be written.
    CannotPrint,
    /// The done list or the log cannot be written.
    CannotRecord,
    /// Too many units have failed.
    TooManyFailed,
    /// The wait for a server is longer than `--max-pause`. The text describes the server: `a server that requested a
    /// wait until 14:05`.
    SentAway(String),
    /// The user requested that nothing more starts. The text is the reason: `stopped by --stop-after 8h`.
    Requested(String),
}

/// The state that the threads of the run share.
pub(super) struct LaunchRun {
    pub(super) report: Arc<Report>,
    outcomes: Arc<Mutex<Outcomes>>,
    pub(super) launcher: Arc<Launcher>,
    /// The first signal that ends the program; 0 is none.
    signal: AtomicI32,
    pub(super) in_our_group: bool,
    ledger: Option<Arc<Records>>,
    /// A second, or less in tests; see [`Options`].
    second: Duration,
    /// The channel to the thread that ends the program.
    end: Sender<Reason>,
}

impl LaunchRun {
    /// Starts the launcher and the threads of a run. All threads start now, because the system may refuse a thread when
    /// the run must end.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(
        mut report: Report,
        outcomes: Outcomes,
        options: Options,
        (ledger, grants): (Option<Arc<Records>>, Arc<Grants<Attempt>>),
    ) -> io::Result<Arc<Self>> {
        let (end, reasons) = mpsc::channel();
        let outcomes = Arc::new(Mutex::new(outcomes));
        report.outcomes = Some(Arc::clone(&outcomes));
        let report = Arc::new(report);
        let (in_our_group, second, signal) = (options.in_our_group, options.second, AtomicI32::new(0));
        let recorder = ledger.clone().map(|ledger| -> Arc<dyn Ledger> { ledger });
        let (events, screen) = (Events::default(), Arc::clone(&report));
        let launcher = Launcher::new(options, screen, recorder, grants, events.clone())?;
        let run = Arc::new(LaunchRun { report, outcomes, launcher, signal, in_our_group, ledger, second, end });
        run.await_end(reasons)?;
        run.receive(events)?;
        Ok(run)
    }

    /// Starts the thread that ends the program.
    fn await_end(self: &Arc<Self>, reasons: Receiver<Reason>) -> io::Result<()> {
        let run = Arc::clone(self);
        let end = move || {
            let Ok(reason) = reasons.recv() else { return };
            // Unused grants go back first. So other processes get them while this thread waits for the running
            // commands.
            run.report.grants.retire();
            while !run.launcher.slots.drains_within(run.second) {
                // The ends and the real costs of commands that have ended since.
                run.report.grants.retire();
            }
            run.launcher.flush();
            run.finish(reason)
        };
        start_thread("ender", end).map(drop)
    }

    pub(super) fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        unpoisoned(self.outcomes.lock())
    }

    /// Launches nothing more, waits for the running commands, and ends the program. Returns false if the run was ending
    /// already.
    fn end(&self, reason: Reason) -> bool {
        if !self.launcher.slots.stop() {
            return false;
        }
        let mut outcomes = self.outcomes();
        outcomes.starts_no_more = true;
        match &reason {
            Reason::Signal | Reason::Stopped | Reason::TooManyFailed | Reason::Requested(_) => {}
            Reason::CannotRecord => outcomes.fail(),
            Reason::SentAway(server) => outcomes.leave(format!("ended by {server}")),
            Reason::ReaderGone => outcomes.lose_reader(),
            Reason::CannotPrint => {
                outcomes.fail();
                outcomes.interrupt("the output is lost");
            }
        }
        drop(outcomes);
        if let Reason::ReaderGone | Reason::CannotPrint = reason {
            self.launcher.slots.end_with(Signal::TERM);
        }
        let _ = self.end.send(reason);
        true
    }

    /// Records a signal. Returns whether it is the first signal. The caller passes the first signal on to the commands,
    /// and kills them at a second signal.
    pub(super) fn is_first_signal(self: &Arc<Self>, signal: i32) -> bool {
        let first = self.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if first {
            self.outcomes().interrupt("interrupted");
            self.end(Reason::Signal);
            self.announce_wait("again to kill");
        }
        first
    }

    /// Starts nothing more. Running commands may finish.
    pub(super) fn start_nothing_more(self: &Arc<Self>, how: &str) {
        if self.end(Reason::Requested(format!("stopped by {how}"))) {
            self.announce_wait("Ctrl-C ends");
        }
    }

    /// After a while, reports how many commands still run, and what the user can do about it. Best effort: this needs a
    /// thread.
    fn announce_wait(self: &Arc<Self>, advice: &'static str) {
        let run = Arc::clone(self);
        let announce = move || {
            if !run.launcher.slots.drains_within(run.second) && !run.outcomes().quiet {
                let running = run.launcher.slots.count();
                let them = if running == 1 { "it" } else { "them" };
                let waiting = UnitName::Command.count(running);
                run.report.aside(format_args!("waiting for {waiting}; {advice} {them}"));
            }
        };
        let _ = start_thread("patience", announce);
    }

    /// Kills all commands, and then ends the program, even if nothing reads its last messages.
    pub(super) fn kill(&self) {
        self.launcher.slots.end_with(Signal::KILL);
        self.launcher.slots.drain();
        thread::sleep(self.second);
        signals::die_of(self.signal.load(Ordering::SeqCst));
    }

    /// Closes the done list and the log. Names the units that wait for another attempt, because that attempt will not
    /// be made.
    pub(super) fn close_ledger(&self) {
        let unprinted = self.launcher.print_rest();
        self.launcher.flush();
        let waiting = self.launcher.take_waiting();
        let mut outcomes = self.outcomes();
        outcomes.retries.unstarted = waiting.unstarted;
        outcomes.unfinished.is_all_started = waiting.is_all_started;
        outcomes.unfinished.is_overwritten = answer::would_be_emptied();
        outcomes.unfinished.done = self.ledger.as_ref().and_then(|ledger| ledger.done_units());
        let lines = [outcomes.unprinted(&unprinted), outcomes.give_up(&waiting.again)].concat();
        drop(outcomes);
        self.report.asides(&lines);
        if let Err(error) = self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.finish()) {
            self.report.aside(format_args!("{error:#}"));
            self.outcomes().fail();
        }
    }

    fn finish(&self, reason: Reason) -> ! {
        self.close_ledger();
        let is_without_reader = matches!(reason, Reason::ReaderGone);
        if let Reason::Requested(why) = reason {
            self.outcomes().leave_rest(why);
        }
        self.report.close_or_say();
        if !is_without_reader && self.outcomes().has_ended_once() {
            // The command has already reacted to the reason to end, whatever that is.
            std::process::exit(self.outcomes().exit().code().into());
        }
        match (self.signal.load(Ordering::SeqCst), is_without_reader) {
            (0, true) => std::process::exit(signals::die_of_broken_pipe().code().into()),
            (0, _) => {}
            // A signal has priority over any other reason to end.
            (signal, _) => signals::die_of(signal),
        }
        std::process::exit(self.outcomes().exit().code().into())
    }

    /// Whether there is a single command, for which no unit is read.
    pub(super) fn is_once(&self) -> bool {
        self.outcomes().is_once
    }
}

/// Lines to write, and a waiter to wake after that.
type Lines = (Vec<String>, Option<Reported>);

/// Why a pause is longer than `--max-pause`, with the end of the pause. `server` names the server.
fn overlong_text(server: &str, pause: Overlong) -> String {
    let (until, total) = (until_text(in_nanos(pause.rest)), shown_wait(in_nanos(pause.total)));
    match pause.why {
        Excess::OneWait => format!("{server} requested a wait {until}, longer than --max-pause"),
        Excess::SumOfWaits => {
            format!("{server} requested another wait {until}: together its waits take {total}, longer than --max-pause")
        }
        Excess::OwnPauses => format!(
            "{server} still refuses units: with the next pause, {until}, the pauses take {total}, longer than \
             --max-pause"
        ),
    }
}

/// The server that ends a run.
fn server_text(pause: Overlong) -> String {
    match pause.why {
        Excess::OneWait => format!("a server that requested a wait {}", until_text(in_nanos(pause.rest))),
        Excess::SumOfWaits => format!("a server whose waits take {}", shown_wait(in_nanos(pause.total))),
        Excess::OwnPauses => "a server that still refuses units".to_owned(),
    }
}

impl LaunchRun {
    /// Starts the thread that receives events, and the thread that writes the lines about them. The receiver never
    /// blocks. So it counts events and ends the run in time, even if nothing reads standard error.
    ///
    /// # Errors
    /// The system refuses a thread.
    fn receive(self: &Arc<Self>, events: Events) -> io::Result<()> {
        let (lines, wanted) = mpsc::channel::<Lines>();
        let report = Arc::clone(&self.report);
        let write = move || wanted.into_iter().for_each(|(lines, _waiter)| report.asides(&lines));
        start_thread("writer", write)?;
        let run = Arc::clone(self);
        let receive = move || loop {
            for (event, waiter) in events.receive() {
                let new_lines = run.take(event);
                if !new_lines.is_empty() || waiter.is_some() {
                    let _ = lines.send((new_lines, waiter));
                }
            }
        };
        start_thread("receiver", receive).map(drop)
    }

    /// Counts the event, ends the run if it must end, and returns the lines to write about the event.
    fn take(&self, event: Event) -> Vec<String> {
        let line = match event {
            Event::Next { first, skipped, done_before } => {
                let mut outcomes = self.outcomes();
                outcomes.set_skipped(skipped, done_before);
                outcomes.set_next(first.as_ref().map(|(number, name)| (*number, &name[..])));
                None
            }
            Event::Started { job, attempt, at } => {
                let mut outcomes = self.outcomes();
                outcomes.start(&job, attempt, self.at(at));
                let hint = outcomes.hint(self.report.now(), || self.report.read().sink);
                hint.or_else(|| outcomes.hint_at_mark(&job)).or_else(|| outcomes.hint_at_cr(&job))
            }
            Event::Ended(ended) => return self.take_end(&ended),
            Event::KeySentAway { pause, jobs } => return self.give_key_up(pause, &jobs),
            Event::Done(success) => {
                self.outcomes().done(&success);
                None
            }
            event => self.end_for(event),
        };
        line.into_iter().collect()
    }

    /// Ends the run if the event is a reason to end it. Returns the message about it, unless the run was ending
    /// already.
    fn end_for(&self, event: Event) -> Option<String> {
        let (reason, why) = match event {
            Event::ReaderGone => (Reason::ReaderGone, None),
            Event::SentAway(pause) => {
                let why = format!("{}; the run ends", overlong_text("a server", pause));
                (Reason::SentAway(server_text(pause)), Some(why))
            }
            Event::CannotRecord(error) => (Reason::CannotRecord, Some(format!("{error}; no more commands start"))),
            Event::CannotPrint(error) => {
                let why = format!("cannot write to standard output: {error}; the commands are ended");
                (Reason::CannotPrint, Some(why))
            }
            Event::CannotHold(error) => {
                let why = format!("cannot store output that waits for its turn (-k): {error}; the commands are ended");
                (Reason::CannotPrint, Some(why))
            }
            event => return self.remark(event),
        };
        let is_first = self.end(reason);
        why.filter(|_| is_first)
    }

    fn take_end(&self, ended: &Ended) -> Vec<String> {
        let mut outcomes = self.outcomes();
        let lines = outcomes.end(ended, self.at(ended.at), self.report.now());
        let (has_failed_enough, stops) = (outcomes.has_failed_enough(), outcomes.stops_at(&ended.outcome));
        drop(outcomes);
        if stops {
            self.end(Reason::Stopped);
        } else if has_failed_enough {
            self.end(Reason::TooManyFailed);
        }
        lines
    }

    fn give_key_up(&self, pause: Overlong, jobs: &[Arc<Job>]) -> Vec<String> {
        let mut outcomes = self.outcomes();
        let why = match pause.why {
            Excess::OneWait => "the server of a key requested a wait longer than --max-pause",
            Excess::SumOfWaits => "the waits for the server of a key add up to more than --max-pause",
            Excess::OwnPauses => "the server of a key accepts no unit for longer than --max-pause",
        };
        outcomes.leave(why.to_owned());
        let key = jobs.first().and_then(|job| job.key.as_deref()).unwrap_or(NO_KEY);
        let why = overlong_text(&format!("the server of '{}'", shown(key)), pause);
        let line = format!("{why}; units of this key are not tried again");
        let lines = outcomes.give_up(jobs);
        // The other running commands of the key may get the same answer. The line is printed only once.
        let is_first = outcomes.retries.given_up_keys.insert(key.into());
        (is_first && !outcomes.quiet).then_some(line).into_iter().chain(lines).collect()
    }

    /// The line about an event that changes no count: advice for a user at a terminal, or a remark for all users.
    fn remark(&self, event: Event) -> Option<String> {
        let mut outcomes = self.outcomes();
        let (is_advice, words) = match event {
            Event::QueueFull => {
                (true, "too many units wait for another attempt, so new units wait; --ahead allows more".to_owned())
            }
            Event::Shortage(error) => {
                let advice = advice(&error);
                let words = format!("commands wait until other commands end: {error}{advice}");
                (!outcomes.wait_for_room(), words)
            }
            Event::News(news) => (true, news_text(&news)),
            Event::HeldUp => {
                (true, "no command starts: too much output waits for an earlier command to end (-k)".to_owned())
            }
            Event::Forbidden => {
                let hint = "hint: a server answered 403 although calls remain; if it answers 403 to too many calls, \
                            write for example --attempts 5 --later-on http:403";
                (true, hint.to_owned())
            }
            Event::UncountedCost(why) => (true, format!("hint: {why}")),
            Event::BadReply(remark) | Event::UnopenedReply(remark) => (false, format!("hint: {remark}")),
            Event::NotKept(why) => (false, why.to_owned()),
            Event::LeftBehind(job) => {
                let name = outcomes.name(&job);
                (
                    false,
                    format!("{name} left a process behind that holds its output open; throttle does not wait for it"),
                )
            }
            _ => return None,
        };
        (if is_advice { outcomes.sums_up } else { !outcomes.quiet }).then_some(words)
    }

    /// Converts a time to the report's clock.
    fn at(&self, at: Instant) -> Nanos {
        let ago = in_nanos(at.elapsed());
        self.report.now().saturating_sub(ago)
    }
}
