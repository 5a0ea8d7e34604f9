//! One thread waits for signals and for the next picture of the progress. The pump is not interrupted.
//!
//! This thread never waits for a reader of our output, because another thread writes.

use super::launch_run::LaunchRun;
use super::report::Report;
use super::say::NoThread;
use super::signals;
use anyhow::{Context, Result};
use rustix::event::PollFlags;
use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};
use signal_hook::flag;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::cell::LazyCell;
use std::io::{self, Stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};
use throttle::flow::{poll, poll_without_timer, start_thread};

type Delivery = SignalDelivery<UnixStream, SignalOnly>;

/// Starts to answer signals and to show progress.
///
/// # Errors
/// The system refuses a handler or a thread.
pub(crate) fn start(report: Arc<Report>, commands: Option<Arc<LaunchRun>>) -> Result<()> {
    let mut wanted = vec![SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1];
    // By default, this signal would stop only this process, and leave the bar on the terminal.
    wanted.extend((commands.is_some() || report.has_bar).then_some(SIGTSTP));
    if commands.is_some() {
        // SIGCONT continues commands. The other signals end a program by default.
        wanted.extend([SIGCONT, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU]);
    }
    wanted.retain(|&signal| !signals::is_ignored(signal));
    // SIGCHLD reports that a command was stopped because it uses the terminal. This needs a controlling terminal.
    wanted.extend((commands.is_some() && signals::has_terminal()).then_some(SIGCHLD));
    let (read, write) = UnixStream::pair()?;
    let ending = Arc::new(AtomicBool::new(false));
    let delivery = signals::with_blocked(&wanted, || {
        let is_end = |signal: i32, run: &Arc<LaunchRun>| signal == SIGINT || signal == SIGQUIT && run.is_once();
        for signal in [SIGINT, SIGQUIT].into_iter().filter(|signal| wanted.contains(signal)) {
            if commands.as_ref().is_some_and(|run| is_end(signal, run)) {
                flag::register(signal, Arc::clone(&report.is_signalled))?;
            }
        }
        if commands.is_none() {
            for signal in wanted.iter().filter(|signal| ![SIGUSR1, SIGTSTP].contains(signal)) {
                signals::die_of_if(*signal, &ending)?;
                flag::register(*signal, Arc::clone(&report.is_signalled))?;
            }
        }
        let delivery = Delivery::with_pipe(read, write, SignalOnly, &wanted)?;
        signals::has_begun();
        Ok(delivery)
    })?;
    let answer = move || answer(delivery, &report, commands.as_ref(), &ending);
    start_thread("signals", answer).context(NoThread)?;
    Ok(())
}

fn answer(mut delivery: Delivery, report: &Arc<Report>, commands: Option<&Arc<LaunchRun>>, ending: &AtomicBool) {
    let mut drawn = Instant::now();
    // The painter starts with the first picture.
    let painter = LazyCell::new(|| start_painter(Arc::clone(report), commands.cloned()).ok());
    let paint = |picture| drop(painter.as_ref().map(|painter| painter.try_send(picture)));
    // Only pipe mode ends when the reader of the output leaves. In launch mode commands may print nothing, and need no
    // reader.
    let mut watched = commands.is_none().then(io::stdout);
    loop {
        let every = report.tick_every;
        let at_most = every.map(|every| every.saturating_sub(drawn.elapsed()));
        if wait(&delivery, watched.as_ref(), at_most, commands.is_some()) {
            watched = None;
            report.reader_left();
        }
        for signal in delivery.pending() {
            match (signal, commands) {
                (SIGUSR1 | SIGUSR2, Some(commands)) if commands.is_once() => {
                    commands.launcher.slots.pass_on(named(signal));
                }
                (SIGUSR1, _) => paint(Picture::Status),
                (SIGTSTP, _) => suspend(commands, paint),
                (_, None) => {
                    // A second signal ends the program at once.
                    ending.store(true, Ordering::SeqCst);
                    end_by(signal, report);
                }
                (_, Some(commands)) => pass_on(signal, commands),
            }
        }
        // A signal may wake this thread early. Progress is drawn only when it is due.
        if every.is_some_and(|every| drawn.elapsed() >= every) {
            drawn = Instant::now();
            paint(Picture::Progress);
        }
    }
}

/// The longest time for the last messages after a signal. Nobody may read standard error.
const MAX_LAST_WORDS: Duration = Duration::from_secs(5);

/// Writes the last messages and dies of the signal, on another thread: the write may block.
fn end_by(signal: i32, report: &Arc<Report>) {
    let closing = Arc::clone(report);
    let close = move || {
        closing.interrupt();
        signals::die_of(signal);
    };
    if start_thread("closer", close).is_err() {
        signals::die_of(signal);
    }
    let patience = move || {
        thread::sleep(MAX_LAST_WORDS);
        signals::die_of(signal);
    };
    // Best effort: without this thread, a second signal ends the program.
    let _ = start_thread("patience", patience);
}

/// A picture for the painter.
enum Picture {
    Progress,
    Status,
    /// No bar. The sender is dropped when the bar is hidden.
    Nothing(Sender<()>),
}

/// The longest wait until the bar is hidden.
const MAX_HIDING_TIME: Duration = Duration::from_secs(1);

/// The most pictures that wait for a slow terminal. Further pictures are dropped.
const MAX_PICTURES: usize = 4;

/// Starts a thread that draws pictures, because writing may block.
fn start_painter(report: Arc<Report>, commands: Option<Arc<LaunchRun>>) -> io::Result<SyncSender<Picture>> {
    let (sender, pictures) = mpsc::sync_channel(MAX_PICTURES);
    let paint = move || {
        for picture in pictures {
            match picture {
                Picture::Progress => report.tick(),
                Picture::Status => {
                    // The latest events may not be counted yet.
                    if let Some(commands) = &commands {
                        commands.launcher.flush();
                    }
                    report.status();
                }
                Picture::Nothing(_done) => report.hide(),
            }
        }
    };
    start_thread("painter", paint).map(|_| sender)
}

/// Waits for a signal, for `at_most`, or until the reader of `output` leaves. Returns whether the reader has left.
/// With `runs_commands` the wait opens no file, which a command may need: SIGCONT ends a wait that was stopped.
fn wait(delivery: &Delivery, output: Option<&Stdout>, at_most: Option<Duration>, runs_commands: bool) -> bool {
    // No event of the output is requested, but POLLERR is always reported: the output is a pipe without a reader.
    let output = (output.map(AsFd::as_fd), PollFlags::empty());
    let wanted = [output, (Some(delivery.get_read().as_fd()), PollFlags::IN)];
    let found = if runs_commands { poll_without_timer(wanted, at_most) } else { poll(wanted, at_most) };
    // The caller reads the signals next, even if this poll was interrupted.
    found.is_ok_and(|[output, _]| output.contains(PollFlags::ERR))
}

/// Passes a signal on to the commands, because they have process groups of their own.
fn pass_on(signal: i32, commands: &Arc<LaunchRun>) {
    let slots = &commands.launcher.slots;
    match signal {
        SIGCONT => slots.release_stopped_starts(),
        SIGCHLD => commands.launcher.end_commands_that_want_the_terminal(),
        SIGQUIT if !commands.is_once() => commands.start_nothing_more("QUIT (Ctrl-\\)"),
        _ if !commands.is_first_signal(signal) => commands.kill(),
        // A command in our own group already got the signal from the terminal.
        SIGINT | SIGQUIT if commands.in_our_group && signals::is_in_foreground() => slots.others_end_them(),
        _ => slots.end_with(named(signal)),
    }
}

fn named(signal: i32) -> Signal {
    Signal::from_named_raw(signal).unwrap_or(Signal::TERM)
}

/// Stops this process and all commands until this process is continued. Meanwhile there is no bar on the terminal.
fn suspend(commands: Option<&Arc<LaunchRun>>, paint: impl Fn(Picture)) {
    if let Some(commands) = commands {
        commands.launcher.slots.suspend();
    }
    let (done, hidden) = mpsc::channel();
    paint(Picture::Nothing(done));
    // A terminal that does not read delays the stop by at most this time.
    let _ = hidden.recv_timeout(MAX_HIDING_TIME);
    // This returns when the process is continued.
    signals::stop();
    if let Some(commands) = commands {
        commands.launcher.slots.resume();
    }
}
