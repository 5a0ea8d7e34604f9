//! How launch mode ends, and what is told on the way.
//!
//! Whoever finds that all must end (a signal, a reader that is gone, a command that exited 255) says so here. A thread
//! made for it then waits for the commands and ends the program: the pump may be blocked anywhere, and is not asked.

use super::commands::Watch;
use super::report::{Report, UnitName};
use super::signals;
use rustix::process::Signal;
use std::io;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Instant;
use throttle::clock::Nanos;
use throttle::launch::{Event, Events, Job, Outcome, Screen, Told, Words, quoted};

/// Why nothing is launched any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// This signal came.
    Signal(i32),
    /// Our reader is gone.
    ReaderGone,
    /// A command exited 255.
    Stopped,
    /// Our output cannot be written.
    CannotPrint,
}

/// How the threads that end the program are asked to. They are there from the start: later the system may have no room for
/// a thread, just when everything is to end.
#[derive(Debug)]
pub(super) struct Enders {
    ordinary: Sender<Ending>,
    without_readers: Sender<()>,
}

/// What those threads wait for.
#[derive(Debug)]
pub(super) struct Wanted {
    ordinary: mpsc::Receiver<Ending>,
    without_readers: mpsc::Receiver<()>,
}

impl Enders {
    pub(super) fn new() -> (Self, Wanted) {
        let ((ordinary, ending), (without_readers, killed)) = (mpsc::channel(), mpsc::channel());
        (Enders { ordinary, without_readers }, Wanted { ordinary: ending, without_readers: killed })
    }
}

/// Starts a thread that acts on the first that is `wanted`.
fn in_waiting<T: Send + 'static>(
    name: &str,
    wanted: mpsc::Receiver<T>,
    act: impl FnOnce(T) + Send + 'static,
) -> io::Result<()> {
    let wait = move || wanted.recv().map_or((), act);
    thread::Builder::new().name(name.to_owned()).spawn(wait).map(drop)
}

impl Watch {
    /// Launches nothing more, waits for what runs, and ends the program. Says whether that is news.
    pub(super) fn end(&self, ending: Ending) -> bool {
        let Some(launcher) = self.launcher() else { return false };
        if !launcher.slots().stop() {
            return false;
        }
        if let Some(mut tally) = self.report.tally() {
            tally.stop();
        }
        match ending {
            Ending::Signal(_) | Ending::Stopped => {}
            Ending::ReaderGone => {
                self.interrupt("the reader is gone");
                launcher.slots().end_with(Signal::TERM);
            }
            Ending::CannotPrint => {
                self.fail();
                launcher.slots().end_with(Signal::TERM);
            }
        }
        let _ = self.enders.ordinary.send(ending);
        true
    }

    /// Starts the threads that will end the program.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start_enders(self: &Arc<Self>, wanted: Wanted) -> io::Result<()> {
        let watch = Arc::clone(self);
        in_waiting("ender", wanted.ordinary, move |ending| {
            // Others go on while the commands that run are waited for.
            watch.report.supply().retire();
            watch.drain();
            watch.flush();
            watch.finish(ending)
        })?;
        let watch = Arc::clone(self);
        in_waiting("last ender", wanted.without_readers, move |()| {
            watch.drain();
            thread::sleep(watch.second);
            signals::die_of(watch.signal.load(Ordering::SeqCst));
        })
    }

    fn drain(&self) {
        if let Some(launcher) = self.launcher() {
            launcher.slots().drain();
        }
    }

    /// Returns when everything that happened so far was told.
    pub(super) fn flush(&self) {
        if let Some(launcher) = self.launcher() {
            launcher.flush();
        }
    }

    /// A signal has come; whether it is the first, which is passed on. A second one kills.
    pub(super) fn is_first_signal(self: &Arc<Self>, signal: i32) -> bool {
        let first = self.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if first {
            self.interrupt("interrupted");
            self.end(Ending::Signal(signal));
            self.tell_what_is_waited_for();
        }
        first
    }

    /// Says why nothing seems to happen where commands ignore the first signal. Without a thread for that it stays unsaid.
    fn tell_what_is_waited_for(self: &Arc<Self>) {
        let (Some(launcher), watch) = (self.launcher(), Arc::clone(self)) else { return };
        let tell = move || {
            if !launcher.slots().drains_within(watch.second) {
                let running = launcher.slots().count();
                let them = if running == 1 { "it" } else { "them" };
                watch.hint(|| format!("waiting for {}; again to kill {them}", UnitName::Command.count(running)));
            }
        };
        let _ = thread::Builder::new().name("teller".to_owned()).spawn(tell);
    }

    /// Everything was killed. Who does not read what we still have to tell does not keep us.
    pub(super) fn end_without_readers(&self) {
        let _ = self.enders.without_readers.send(());
    }

    fn interrupt(&self, why: &'static str) {
        if let Some(mut tally) = self.report.tally() {
            tally.interrupt(why);
        }
    }

    fn finish(&self, ending: Ending) -> ! {
        self.report.close_or_say();
        match (self.signal.load(Ordering::SeqCst), ending) {
            (0, Ending::ReaderGone) => std::process::exit(signals::die_of_broken_pipe().code().into()),
            (0, _) => {}
            // Also where something else was the end before it came.
            (signal, _) => signals::die_of(signal),
        }
        std::process::exit(self.exit().code().into())
    }
}

/// Where commands' output stands beside the bar.
#[derive(Debug)]
pub(super) struct Beside(pub(super) Arc<Report>);

impl Screen for Beside {
    fn beside(&self, print: &mut dyn FnMut() -> bool) {
        self.0.beside_bar(print);
    }

    fn shows_something(&self) -> bool {
        self.0.has_bar()
    }

    fn trace(&self, words: Words<'_>) {
        if self.0.tally().is_some_and(|tally| tally.is_traced()) {
            self.0.aside_bytes(&quoted(words, io::stderr().is_terminal()));
        }
    }
}

/// Lines to be written, and who waits until they are.
type Lines = (Vec<String>, Option<Told>);

impl Watch {
    /// Starts the thread that receives events, and the one that writes what is to be said of them. The first never blocks:
    /// a standard error that nobody reads holds up no count and no ending.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn receive(self: &Arc<Self>, events: Events) -> io::Result<()> {
        let (lines, wanted) = mpsc::channel::<Lines>();
        let report = Arc::clone(&self.report);
        let write = move || wanted.into_iter().for_each(|(lines, _told)| report.asides(&lines));
        thread::Builder::new().name("writer".to_owned()).spawn(write)?;
        let watch = Arc::clone(self);
        let receive = move || loop {
            for (event, told) in events.receive() {
                let said = watch.take(event);
                if !said.is_empty() || told.is_some() {
                    let _ = lines.send((said, told));
                }
            }
        };
        thread::Builder::new().name("receiver".to_owned()).spawn(receive).map(drop)
    }

    /// Counts what has happened, ends the run if it must end, and gives the lines that tell of it.
    fn take(&self, event: Event) -> Vec<String> {
        let Some(mut tally) = self.report.tally() else { return Vec::new() };
        let said = match event {
            Event::Next { first, skipped } => {
                tally.set_next(first.as_ref().map(|(number, name)| (*number, &name[..])), skipped);
                let may_hint = tally.may_hint(self.report.now());
                if may_hint { tally.hint(self.report.read().sink) } else { None }
            }
            Event::Started { job, at } => {
                tally.start(&job, self.at(at));
                self.hint_at_cr(&job)
            }
            Event::Ended { job, outcome, at } => {
                let lines = tally.end(&job, &outcome, self.at(at));
                drop(tally);
                if matches!(outcome, Outcome::Exited(255)) {
                    self.end(Ending::Stopped);
                }
                return lines;
            }
            Event::LeftBehind(job) => (!tally.is_quiet()).then(|| {
                format!("{} left something behind that holds its output open; not waited for", tally.name(&job))
            }),
            Event::HeldUp => tally
                .advises()
                .then(|| "launching waits: too much output waits for an earlier command to end (-k)".to_owned()),
            Event::ReaderGone | Event::CannotPrint(_) | Event::CannotHold(_) => {
                drop(tally);
                self.end_output(&event)
            }
            Event::Flush => None,
        };
        said.into_iter().collect()
    }

    /// Ends the run because output cannot be printed; says why, unless it has an end already.
    fn end_output(&self, event: &Event) -> Option<String> {
        let (ending, why) = match event {
            Event::CannotPrint(error) => (Ending::CannotPrint, format!("cannot write to standard output: {error}")),
            Event::CannotHold(error) => {
                (Ending::CannotPrint, format!("cannot hold output until its turn (-k): {error}"))
            }
            _ => (Ending::ReaderGone, String::new()),
        };
        let is_news = self.end(ending) && ending != Ending::ReaderGone;
        is_news.then(|| format!("{why}; ending the commands"))
    }

    /// The time on the report's clock.
    fn at(&self, at: Instant) -> Nanos {
        let ago = u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.report.now().saturating_sub(ago)
    }

    fn hint_at_cr(&self, job: &Job) -> Option<String> {
        let hint =
            "hint: the units end in CR, which the commands get, too; to drop it: tr -d '\\r' < FILE | throttle …";
        let is_first = job.name().ends_with(b"\r") && self.looks_for_cr.swap(false, Ordering::SeqCst);
        is_first.then(|| hint.to_owned())
    }

    fn hint(&self, words: impl FnOnce() -> String) {
        if self.report.tally().is_some_and(|tally| !tally.is_quiet()) {
            self.report.aside(words());
        }
    }
}
