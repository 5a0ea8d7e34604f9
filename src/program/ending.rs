//! How launch mode ends, and what is told on the way.
//!
//! Whoever finds that all must end (a signal, a reader that is gone, a command that exited 255) says so here. A thread
//! made for it then waits for the commands and ends the program: the pump may be blocked anywhere, and is not asked.

use super::commands::Watch;
use super::report::UnitName;
use super::signals;
use rustix::process::Signal;
use std::io;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;
use throttle::launch::{Job, Observer, Outcome, Words, quoted, quoted_for_terminal};

/// For so long after everything was killed it is tried to tell how it ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Who ends soon after the first signal is not told to be waited for.
const PATIENCE: Duration = Duration::from_secs(1);

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
    ordinary: Receiver<Ending>,
    without_readers: Receiver<()>,
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
    wanted: Receiver<T>,
    act: impl FnOnce(T) + Send + 'static,
) -> io::Result<()> {
    let wait = move || wanted.recv().map_or((), act);
    thread::Builder::new().name(name.to_owned()).spawn(wait).map(drop)
}

impl Watch {
    /// Launches nothing more, waits for what runs, and ends the program. Says whether that is news.
    pub(super) fn end(&self, ending: Ending) -> bool {
        let Some(launcher) = self.launcher() else { return false };
        if !launcher.stop() {
            return false;
        }
        match ending {
            Ending::Signal(_) | Ending::Stopped => {}
            Ending::ReaderGone => {
                self.interrupt("the reader is gone");
                launcher.end_with(Signal::TERM);
            }
            Ending::CannotPrint => {
                self.fail();
                launcher.end_with(Signal::TERM);
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
            watch.finish(ending)
        })?;
        let watch = Arc::clone(self);
        in_waiting("last ender", wanted.without_readers, move |()| {
            watch.drain();
            thread::sleep(LAST_WORDS);
            signals::die_of(watch.signal.load(Ordering::SeqCst));
        })
    }

    fn drain(&self) {
        if let Some(launcher) = self.launcher() {
            launcher.drain();
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
            if !launcher.drains_within(PATIENCE) {
                let (running, them) = (launcher.running(), if launcher.running() == 1 { "it" } else { "them" });
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

/// Tells what happens to the user, and ends the program when that is due.
#[derive(Debug)]
pub(super) struct Teller(pub(super) Arc<Watch>);

impl Observer for Teller {
    fn tracing(&self, job: &Job, words: Words<'_>) {
        let is_traced = self.0.report.tally().is_some_and(|tally| tally.is_traced());
        if is_traced && job.refused().is_none() {
            let quoted = if io::stderr().is_terminal() { quoted_for_terminal(words) } else { quoted(words) };
            self.0.report.aside_bytes(&quoted);
        }
    }

    fn starting(&self, job: &Job) {
        if job.name().ends_with(b"\r") && self.0.looks_for_cr.swap(false, Ordering::SeqCst) {
            self.0.report.aside(
                "hint: the units end in CR, which the commands get, too; to drop it: tr -d '\\r' < FILE | throttle …",
            );
        }
        if let Some(mut tally) = self.0.report.tally() {
            tally.start(job, self.0.report.now());
        }
    }

    fn ended(&self, job: &Job, outcome: &Outcome) {
        let lines = self.0.report.tally().map(|mut tally| tally.end(job, outcome, self.0.report.now()));
        self.0.report.asides(&lines.unwrap_or_default());
        if matches!(outcome, Outcome::Exited(255)) {
            self.0.end(Ending::Stopped);
        }
    }

    fn reader_gone(&self) {
        self.0.end(Ending::ReaderGone);
    }

    fn cannot_print(&self, error: &io::Error) {
        if self.0.end(Ending::CannotPrint) {
            self.0.report.aside(format_args!("cannot write to standard output: {error}; ending the commands"));
        }
    }

    fn cannot_hold(&self, error: &io::Error) {
        if self.0.end(Ending::CannotPrint) {
            self.0.report.aside(format_args!("cannot hold output until its turn (-k): {error}; ending the commands"));
        }
    }

    fn left_behind(&self, job: &Job) {
        let name = self.0.report.tally().map(|tally| tally.name(job)).unwrap_or_default();
        self.0.hint(|| format!("{name} left something behind that holds its output open; not waited for"));
    }

    fn held_up(&self) {
        if self.0.report.tally().is_some_and(|tally| tally.advises()) {
            self.0.report.aside("launching waits: too much output waits for an earlier command to end (-k)");
        }
    }

    fn printing(&self, print: &mut dyn FnMut() -> bool) {
        self.0.report.beside_bar(print);
    }

    fn shows_something(&self) -> bool {
        self.0.report.has_bar()
    }

    fn tag(&self, job: &Job, is_stdout: bool) -> Vec<u8> {
        let unit = job.units().first().unwrap_or(job.name());
        let on_terminal = if is_stdout { io::stdout().is_terminal() } else { io::stderr().is_terminal() };
        let mut tag = if on_terminal { super::tally::printable(unit).into_bytes() } else { unit.to_vec() };
        if tag.last() == Some(&b'\n') {
            tag.pop();
        }
        tag.push(b'\t');
        tag
    }

    fn next(&self, job: &Job, skipped: u64) {
        let hint = self.0.report.tally().and_then(|mut tally| {
            tally.set_next(job, skipped);
            if tally.may_hint(self.0.report.now()) { tally.hint(self.0.report.read().sink) } else { None }
        });
        if let Some(hint) = hint {
            self.0.report.aside(hint);
        }
    }
}

impl Watch {
    fn hint(&self, words: impl FnOnce() -> String) {
        if self.report.tally().is_some_and(|tally| !tally.is_quiet()) {
            self.report.aside(words());
        }
    }
}
