//! Signals, and whatever else happens beside the pump: one thread waits for both, and the pump is not asked.
//!
//! That thread never waits for anybody who reads what we write: what is shown is shown by another.

use super::NoThread;
pub(super) use super::before_main::is_ignored;
use super::commands::{Watch, has_terminal};
use super::exit::Exit;
use super::report::Report;
use super::say;
use anyhow::{Context, Result};
use nix::sys::signal::{self, SigSet, SigmaskHow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGPIPE, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
    SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

type Delivery = SignalDelivery<UnixStream, SignalOnly>;

/// From now on signals are answered, and progress is shown.
///
/// # Errors
/// The system refuses a handler or a thread.
pub(crate) fn attend(report: Arc<Report>, commands: Option<Arc<Watch>>) -> Result<()> {
    let mut wanted = vec![SIGINT, SIGTERM, SIGHUP, SIGUSR1];
    // By default it would stop us alone, and leave the bar.
    wanted.extend((commands.is_some() || report.has_bar()).then_some(SIGTSTP));
    if commands.is_some() {
        wanted.extend([SIGQUIT, SIGCONT]);
        // These end programs, too.
        wanted.extend([SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU]);
    }
    wanted.retain(|&signal| !is_ignored(signal));
    // Without a terminal to control them, commands cannot be stopped for wanting it.
    wanted.extend((commands.is_some() && has_terminal()).then_some(SIGCHLD));
    let (read, write) = UnixStream::pair()?;
    let ending = Arc::new(AtomicBool::new(false));
    let delivery = held_back(&wanted, || {
        if commands.is_none() {
            for signal in wanted.iter().filter(|signal| ![SIGUSR1, SIGTSTP].contains(signal)) {
                flag::register_conditional_default(*signal, Arc::clone(&ending))?;
            }
        }
        Delivery::with_pipe(read, write, SignalOnly, &wanted)
    })?;
    let answer = move || answer(delivery, &report, commands.as_ref(), &ending);
    thread::Builder::new().name("attendant".to_owned()).spawn(answer).context(NoThread)?;
    Ok(())
}

fn answer(mut delivery: Delivery, report: &Arc<Report>, commands: Option<&Arc<Watch>>, ending: &AtomicBool) {
    let (mut drawn, mut painter) = (Instant::now(), Painter::new(report, commands));
    loop {
        let every = report.tick_every();
        wait(&delivery, every.map(|every| every.saturating_sub(drawn.elapsed())));
        for signal in delivery.pending() {
            match (signal, commands) {
                (SIGUSR1, _) => painter.ask(Picture::Status),
                (SIGTSTP, _) => suspend(commands, &mut painter),
                (_, None) => {
                    // A second one does not wait for what is told on the way.
                    ending.store(true, Ordering::SeqCst);
                    end_by(signal, report);
                }
                (_, Some(commands)) => pass_on(signal, commands),
            }
        }
        // Not at each signal.
        if every.is_some_and(|every| drawn.elapsed() >= every) {
            drawn = Instant::now();
            painter.ask(Picture::Progress);
        }
    }
}

/// What is shown beside the work.
enum Picture {
    Progress,
    Status,
    /// The bar goes; whoever waits for that learns of it.
    Nothing(Sender<()>),
}

/// The bar is gone in less.
const HIDING: Duration = Duration::from_millis(100);

/// Pictures that may wait for who looks at them slowly; no more are drawn meanwhile.
const MOST_PICTURES: usize = 4;

/// Has pictures drawn by a thread that may have to wait, started when the first is wanted.
struct Painter {
    report: Arc<Report>,
    commands: Option<Arc<Watch>>,
    asked: Option<SyncSender<Picture>>,
}

impl Painter {
    fn new(report: &Arc<Report>, commands: Option<&Arc<Watch>>) -> Self {
        Painter { report: Arc::clone(report), commands: commands.cloned(), asked: None }
    }

    fn ask(&mut self, picture: Picture) {
        if self.asked.is_none() {
            self.asked = self.start().ok();
        }
        let _ = self.asked.as_ref().map(|asked| asked.try_send(picture));
    }

    fn start(&self) -> io::Result<SyncSender<Picture>> {
        let (asked, wanted) = mpsc::sync_channel(MOST_PICTURES);
        let (report, commands) = (Arc::clone(&self.report), self.commands.clone());
        let paint = move || {
            for picture in wanted {
                match picture {
                    Picture::Progress => report.tick(),
                    Picture::Status => {
                        // What has just happened may not be counted yet.
                        if let Some(commands) = &commands {
                            commands.flush();
                        }
                        report.status();
                    }
                    Picture::Nothing(_done) => report.hide(),
                }
            }
        };
        thread::Builder::new().name("painter".to_owned()).spawn(paint)?;
        Ok(asked)
    }
}

/// Returns when a signal has come, or after `at_most`.
fn wait(delivery: &Delivery, at_most: Option<Duration>) {
    let timeout = at_most.and_then(|limit| Timespec::try_from(limit).ok());
    // Interrupted or not, the signals are looked at next.
    let _ = poll(&mut [PollFd::new(delivery.get_read(), PollFlags::IN)], timeout.as_ref());
}

/// Commands have process groups of their own: what reaches us must be passed on.
fn pass_on(signal: i32, commands: &Arc<Watch>) {
    let Some(launcher) = commands.launcher() else { return };
    match signal {
        SIGCONT => launcher.slots().release_stopped_starts(),
        SIGCHLD => launcher.end_those_who_want_the_terminal(),
        _ if !commands.is_first_signal(signal) => {
            launcher.slots().end_with(Signal::KILL);
            commands.end_without_readers();
        }
        // A command in our own group got it from the terminal already.
        SIGINT | SIGQUIT if commands.in_our_group && is_in_foreground() => launcher.slots().others_end_them(),
        _ => launcher.slots().end_with(Signal::from_named_raw(signal).unwrap_or(Signal::TERM)),
    }
}

/// Stops us and all commands, with no bar left behind, until somebody lets us go on.
fn suspend(commands: Option<&Arc<Watch>>, painter: &mut Painter) {
    let launcher = commands.and_then(|commands| commands.launcher());
    if let Some(launcher) = &launcher {
        launcher.slots().suspend();
    }
    let (done, hidden) = mpsc::channel();
    painter.ask(Picture::Nothing(done));
    // Who does not read what we write does not keep us from stopping.
    let _ = hidden.recv_timeout(HIDING);
    // Returns when we go on.
    die_of(SIGTSTP);
    if let Some(launcher) = &launcher {
        launcher.slots().resume();
    }
}

/// Whether the terminal sends us its signals.
fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty").ok();
    let group = terminal.and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}

fn end_by(signal: i32, report: &Report) {
    report.close_or_say();
    die_of(signal);
}

/// Dies of SIGPIPE, as a program does whose reader is gone. If that was ignored at the start, it is an error.
pub(crate) fn die_of_broken_pipe() -> Exit {
    if is_ignored(SIGPIPE) {
        say("cannot write to standard output: nobody reads it any more");
    } else {
        die_of(SIGPIPE);
    }
    Exit::Error
}

/// Does what the signal does by default.
pub(super) fn die_of(signal: i32) {
    // Fails only for signals that cannot be handled at all, which none of ours is.
    let _ = emulate_default_handler(signal);
}

/// Another thread is about to end the program.
pub(super) fn wait_for_end() -> ! {
    loop {
        thread::park();
    }
}

/// Runs `act` while these signals do not reach this thread; they come afterwards. For what sets up their handlers: between
/// the system's and signal-hook's own list of what to do then, a signal would get lost.
///
/// # Errors
/// What `act` fails with, or the system's refusal to hold signals back.
pub(super) fn held_back<T>(wanted: &[i32], act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signals: SigSet = wanted.iter().filter_map(|signal| signal::Signal::try_from(*signal).ok()).collect();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let result = act();
    before.thread_set_mask()?;
    result
}

/// Who was started with SIGCHLD ignored has a system that waits for his children itself, and never learns how they ended
/// (wait(2)). A handler changes that. It is left out where it is not needed: each end of a command would interrupt somebody.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn notice_ends() -> io::Result<()> {
    if is_ignored(SIGCHLD) { flag::register(SIGCHLD, Arc::default()).map(drop) } else { Ok(()) }
}

/// From now on SIGUSR1 harms nobody; it is answered as soon as there is something to tell. SIGXFSZ becomes an error of the
/// write that went too far (setrlimit(2)), which says what it was about.
///
/// # Errors
/// The system refuses a handler.
pub(super) fn survive_questions() -> io::Result<()> {
    let mut heeded = [SIGUSR1, SIGXFSZ].into_iter().filter(|signal| !is_ignored(*signal));
    heeded.try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
}
