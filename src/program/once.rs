//! `--once`: take one from a bucket, then become the command.

use super::buckets::{self, AnyBucket};
use super::exit::Exit;
use super::say::say;
use super::task::Once;
use super::{advice, long_wait, lookup, signals};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use throttle::clock::{sharpen_this_thread, with_usual_slack};
use throttle::launch::IGNORING_SIGPIPE;
use throttle::limits::{Grant, Refusal};
use throttle::store::{StoreError, wait_for};

/// Takes one, waits for its time, and becomes the command, if there is one: then this does not return. `explain` puts a
/// refusal into words.
///
/// # Errors
/// What failed of our own.
pub(super) fn run(once: &Once, explain: impl FnOnce(&StoreError) -> String) -> Result<Exit> {
    let found = match once.command.first().map(|name| lookup::find(name)) {
        Some(Err(missing)) => return Ok(advice::refuse(&missing, "sh -c")),
        Some(Ok(path)) => Some(path),
        None => None,
    };
    let (grant, asked, store) = match buckets::take_one(once) {
        Ok(taken) => taken,
        Err(error) => match error.downcast_ref() {
            Some(refused) if is_too_long(once, refused) => {
                say(explain(refused));
                return Ok(Exit::TooLong);
            }
            _ => return Err(error),
        },
    };
    if grant.at > asked {
        wait(once, &store, grant)?;
    }
    let Some(path) = found else { return Ok(Exit::Success) };
    let exit = become_command(&path, &once.command);
    // A command that does not even run counts for nothing, like one that is not found.
    store.leave();
    if let Err(error) = store.give_back(&grant) {
        say(error);
    }
    Ok(exit)
}

/// Whether it fails only because it takes longer than allowed: the limit, or the server.
fn is_too_long(once: &Once, error: &StoreError) -> bool {
    match error {
        StoreError::Refused(Refusal::TooLong { .. }) => true,
        error => once.max_wait.is_some() && once.bucket.is_waited_for && error.may_pass(),
    }
}

/// Sleeps until the grant. On a signal, gives back what can be given back, and dies of it.
///
/// No signal is lost: once this is the only thread, it checks whether one has come, and from then on the handler itself
/// ends the program, until the command replaces it.
fn wait(once: &Once, store: &Arc<AnyBucket>, grant: Grant) -> Result<()> {
    let place = Arc::new(Mutex::new(grant));
    let attendant = SignalThread::start(store, &place).context("cannot handle signals")?;
    sharpen_this_thread();
    let mut announce = long_wait::is_announced(once.quiet);
    let sleep = |time, turn| {
        let say = |line: String| {
            if std::mem::take(&mut announce) {
                say(line);
            }
        };
        long_wait::sleep_unless(store.clock(), [time, turn], &|| false, say)
    };
    wait_for(&**store, grant, sleep, |moved| *place.lock().unwrap_or_else(PoisonError::into_inner) = *moved);
    if let Some(signal) = attendant.dismiss() {
        signals::die_of(signal);
    }
    Ok(())
}

/// The thread that answers signals while the program sleeps.
struct SignalThread {
    /// Set by the end of the wait or by a signal, whichever comes first.
    over: Arc<AtomicBool>,
    /// Whether signals end the program in the handler.
    dismissed: Arc<AtomicBool>,
    /// The last signal that came.
    came: Arc<AtomicUsize>,
    handle: Handle,
    thread: JoinHandle<()>,
}

impl SignalThread {
    fn start(store: &Arc<AnyBucket>, place: &Arc<Mutex<Grant>>) -> io::Result<Self> {
        let wanted: Vec<i32> =
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !signals::is_ignored(*signal)).collect();
        let (over, dismissed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let came = Arc::new(AtomicUsize::new(0));
        let mut signals = signals::held_back(&wanted, || {
            for signal in &wanted {
                // In this order: the signal is noted before the handler looks at `dismissed`.
                flag::register_usize(*signal, Arc::clone(&came), usize::try_from(*signal).unwrap_or(0))?;
                flag::register_conditional_default(*signal, Arc::clone(&dismissed))?;
            }
            Signals::new(&wanted)
        })?;
        let (handle, store, ended) = (signals.handle(), Arc::clone(store), Arc::clone(&over));
        let place = Arc::clone(place);
        let answer = move || {
            if let Some(signal) = signals.forever().next() {
                interrupt(&*store, &place, &ended, signal);
            }
        };
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(answer)?;
        Ok(SignalThread { over, dismissed, came, handle, thread })
    }

    /// The wait is over. Returns the signal that has come meanwhile; does not return if it came before the end of the wait.
    fn dismiss(self) -> Option<i32> {
        if self.over.swap(true, Ordering::SeqCst) {
            // The signal thread ends the program.
            signals::wait_for_end();
        }
        self.handle.close();
        // A panic in it was already shown.
        let _ = self.thread.join();
        self.dismissed.store(true, Ordering::SeqCst);
        i32::try_from(self.came.load(Ordering::SeqCst)).ok().filter(|signal| *signal > 0)
    }
}

/// Gives back and ends the program, unless the wait is over.
fn interrupt(store: &AnyBucket, place: &Mutex<Grant>, over: &AtomicBool, signal: i32) {
    if !over.swap(true, Ordering::SeqCst) {
        store.leave();
        let grant = *place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = store.give_back(&grant) {
            say(error);
        }
        signals::die_of(signal);
    }
}

/// Returns only if that fails.
fn become_command(path: &OsStr, command: &[OsString]) -> Exit {
    let (name, args) = command.split_first().map_or((path, &[][..]), |(name, args)| (name.as_os_str(), args));
    let mut command = if signals::is_ignored(SIGPIPE) {
        let [shell, option, script] = IGNORING_SIGPIPE;
        let mut shell = Command::new(shell);
        shell.args([option, script]).arg(path);
        shell
    } else {
        let mut command = Command::new(path);
        command.arg0(name);
        command
    };
    let error = with_usual_slack(|| command.args(args).exec());
    say(format_args!("'{}' cannot be run: {error}", path.display()));
    if error.kind() == ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun }
}
