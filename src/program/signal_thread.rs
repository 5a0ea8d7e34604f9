//! One thread waits for signals and for the next picture of the progress. The pump is not interrupted.
//!
//! That thread never waits for a reader of our output: another one writes.

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
use std::time::{Duration, Instant};
use throttle::flow::{poll, start_thread};

type Delivery = SignalDelivery<UnixStream, SignalOnly>;

/// From now on signals are answered, and progress is shown.
///
/// # Errors
/// The system refuses a handler or a thread.
pub(crate) fn start(report: Arc<Report>, commands: Option<Arc<LaunchRun>>) -> Result<()> {
    let mut wanted = vec![SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1];
    // By default it would stop only this process, and leave the bar.
    wanted.extend((commands.is_some() || report.has_bar).then_some(SIGTSTP));
    if commands.is_some() {
        // SIGCONT continues commands; by default the others end a program.
        wanted.extend([SIGCONT, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU]);
    }
    wanted.retain(|&signal| !signals::is_ignored(signal));
    // Without a controlling terminal, commands cannot be stopped for using it.
    wanted.extend((commands.is_some() && signals::has_terminal()).then_some(SIGCHLD));
    let (read, write) = UnixStream::pair()?;
    let ending = Arc::new(AtomicBool::new(false));
    let delivery = signals::held_back(&wanted, || {
        if commands.is_none() {
            for signal in wanted.iter().filter(|signal| ![SIGUSR1, SIGTSTP].contains(signal)) {
                signals::die_of_if(*signal, &ending)?;
                flag::register(*signal, Arc::clone(&report.is_signalled))?;
            }
        }
        Delivery::with_pipe(read, write, SignalOnly, &wanted)
    })?;
    let answer = move || answer(delivery, &report, commands.as_ref(), &ending);
    start_thread("signals", answer).context(NoThread)?;
    Ok(())
}

fn answer(mut delivery: Delivery, report: &Arc<Report>, commands: Option<&Arc<LaunchRun>>, ending: &AtomicBool) {
    let mut drawn = Instant::now();
    // It starts with the first picture.
    let painter = LazyCell::new(|| start_painter(Arc::clone(report), commands.cloned()).ok());
    let paint = |picture| drop(painter.as_ref().map(|painter| painter.try_send(picture)));
    // Only a pipe ends when its reader leaves: commands may print nothing.
    let mut watched = commands.is_none().then(io::stdout);
    loop {
        let every = report.tick_every;
        if wait(&delivery, watched.as_ref(), every.map(|every| every.saturating_sub(drawn.elapsed()))) {
            watched = None;
            report.reader_left();
        }
        for signal in delivery.pending() {
            match (signal, commands) {
                (SIGUSR1 | SIGUSR2, Some(commands)) if commands.is_once() => {
                    commands.launcher.slots().pass_on(named(signal));
                }
                (SIGUSR1, _) => paint(Picture::Status),
                (SIGTSTP, _) => suspend(commands, paint),
                (_, None) => {
                    // A second signal ends the program at once.
                    ending.store(true, Ordering::SeqCst);
                    report.interrupt();
                    signals::die_of(signal);
                }
                (_, Some(commands)) => pass_on(signal, commands),
            }
        }
        // A signal alone draws nothing.
        if every.is_some_and(|every| drawn.elapsed() >= every) {
            drawn = Instant::now();
            paint(Picture::Progress);
        }
    }
}

/// What the painter shows.
enum Picture {
    Progress,
    Status,
    /// No bar. The sender is dropped when the bar is gone.
    Nothing(Sender<()>),
}

/// Hiding the bar takes less than this.
const HIDING: Duration = Duration::from_secs(1);

/// Pictures that may wait for a slow terminal. Further ones are dropped.
const MOST_PICTURES: usize = 4;

/// Starts a thread that draws pictures, since writing may block.
fn start_painter(report: Arc<Report>, commands: Option<Arc<LaunchRun>>) -> io::Result<SyncSender<Picture>> {
    let (asked, wanted) = mpsc::sync_channel(MOST_PICTURES);
    let paint = move || {
        for picture in wanted {
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
    start_thread("painter", paint).map(|_| asked)
}

/// Waits for a signal, for `at_most`, or until the reader of `output` leaves. Returns whether that has left.
fn wait(delivery: &Delivery, output: Option<&Stdout>, at_most: Option<Duration>) -> bool {
    // Of the output only what is always reported: POLLERR, if it is a pipe without a reader.
    let output = (output.map(AsFd::as_fd), PollFlags::empty());
    let found = poll([output, (Some(delivery.get_read().as_fd()), PollFlags::IN)], at_most);
    // The caller reads the signals next, also if this was interrupted.
    found.is_ok_and(|[output, _]| output.contains(PollFlags::ERR))
}

/// Commands have process groups of their own, so signals must be passed on to them.
fn pass_on(signal: i32, commands: &Arc<LaunchRun>) {
    let slots = commands.launcher.slots();
    match signal {
        SIGCONT => slots.release_stopped_starts(),
        SIGCHLD => commands.launcher.end_commands_that_want_the_terminal(),
        SIGQUIT if !commands.is_once() => commands.start_nothing_more("QUIT (Ctrl-\\)"),
        _ if !commands.is_first_signal(signal) => commands.kill(),
        // A command in our own group got it from the terminal already.
        SIGINT | SIGQUIT if commands.in_our_group && signals::is_in_foreground() => slots.others_end_them(),
        _ => slots.end_with(named(signal)),
    }
}

fn named(signal: i32) -> Signal {
    Signal::from_named_raw(signal).unwrap_or(Signal::TERM)
}

/// Stops this process and all commands, with no bar on the terminal, until it is continued.
fn suspend(commands: Option<&Arc<LaunchRun>>, paint: impl Fn(Picture)) {
    if let Some(commands) = commands {
        commands.launcher.slots().suspend();
    }
    let (done, hidden) = mpsc::channel();
    paint(Picture::Nothing(done));
    // A terminal that does not read delays the stop by no more than this.
    let _ = hidden.recv_timeout(HIDING);
    // Returns when the process is continued.
    signals::stop();
    if let Some(commands) = commands {
        commands.launcher.slots().resume();
    }
}
