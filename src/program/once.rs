//! `--once`: take one from a bucket, then become the command.

use super::bucket::{self, AnyBucket, Bucket};
use super::exit::Exit;
use super::flags::Flags;
use super::{lookup, say, signals, turn};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use throttle::clock::{sharpen_this_thread, with_usual_slack};
use throttle::launch::IGNORING_SIGPIPE;
use throttle::limits::{Grant, Refusal};
use throttle::store::StoreError;

/// Waits for one, and becomes `command`, if there is one: then this does not return.
///
/// # Errors
/// What failed of our own.
pub(super) fn run(flags: &Flags, bucket: &Bucket, command: &[OsString]) -> Result<Exit> {
    let found = match command.first().map(|name| lookup::find(name)) {
        Some(Err(missing)) => {
            say(missing.with_advice("sh -c"));
            return Ok(missing.exit());
        }
        Some(Ok(path)) => Some(path),
        None => None,
    };
    let (grant, asked, store) = match bucket::take_one(flags, bucket) {
        Ok(taken) => taken,
        Err(error) => match error.downcast_ref() {
            Some(refused) if is_too_long(flags, refused) => {
                say(bucket::told(flags, refused, refused));
                return Ok(Exit::TooLong);
            }
            _ => return Err(error),
        },
    };
    if grant.at > asked {
        wait(flags, &store, grant)?;
    }
    let Some(path) = found else { return Ok(Exit::Success) };
    let exit = become_command(&path, command);
    // Of what does not even run nothing counts, as where it is not found.
    store.leave();
    if let Err(error) = store.give_back(&grant) {
        say(error);
    }
    Ok(exit)
}

/// Whether it fails only for taking longer than was allowed, be it the limit or the server that takes so long.
fn is_too_long(flags: &Flags, error: &StoreError) -> bool {
    match error {
        StoreError::Refused(Refusal::TooLong { .. }) => true,
        error => flags.max_wait().is_some() && flags.waits_for_store() && error.may_pass(),
    }
}

/// Sleeps until the grant. Who is interrupted gives back what can be given back, and dies of the signal.
///
/// No signal is lost: not before this is the only thread is it looked whether one has come, and from then on the handler
/// itself ends the program, until the command has taken its place.
fn wait(flags: &Flags, store: &Arc<AnyBucket>, grant: Grant) -> Result<()> {
    let attendant = Attendant::start(store, grant).context("cannot handle signals")?;
    sharpen_this_thread();
    if turn::is_told(flags) {
        turn::sleep_unless(store.clock(), grant.at, &|| false, say);
    } else {
        store.clock().sleep_until(grant.at);
    }
    if let Some(signal) = attendant.dismiss() {
        signals::die_of(signal);
    }
    Ok(())
}

/// Who answers signals while the program sleeps.
struct Attendant {
    /// Whether the wait is over, or it was interrupted: who says so first decides.
    over: Arc<AtomicBool>,
    /// Whether signals end the program in the handler.
    dismissed: Arc<AtomicBool>,
    /// The last signal that came.
    came: Arc<AtomicUsize>,
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Attendant {
    fn start(store: &Arc<AnyBucket>, grant: Grant) -> io::Result<Self> {
        let wanted: Vec<i32> =
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !signals::is_ignored(*signal)).collect();
        let (over, dismissed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let came = Arc::new(AtomicUsize::new(0));
        let mut signals = signals::held_back(&wanted, || {
            for signal in &wanted {
                // In this order: what the handler does not see as dismissed was noted before.
                flag::register_usize(*signal, Arc::clone(&came), usize::try_from(*signal).unwrap_or(0))?;
                flag::register_conditional_default(*signal, Arc::clone(&dismissed))?;
            }
            Signals::new(&wanted)
        })?;
        let (handle, store, ended) = (signals.handle(), Arc::clone(store), Arc::clone(&over));
        let answer = move || {
            if let Some(signal) = signals.forever().next() {
                interrupt(&*store, &grant, &ended, signal);
            }
        };
        let thread = thread::Builder::new().name("attendant".to_owned()).spawn(answer)?;
        Ok(Attendant { over, dismissed, came, handle, thread })
    }

    /// The wait is over. Gives the signal that has come meanwhile; does not return where it came in time to interrupt.
    fn dismiss(self) -> Option<i32> {
        if self.over.swap(true, Ordering::SeqCst) {
            // The attendant ends the program.
            signals::wait_for_end();
        }
        self.handle.close();
        // What it meant to say it has said; a panic of its own would have been shown.
        let _ = self.thread.join();
        self.dismissed.store(true, Ordering::SeqCst);
        i32::try_from(self.came.load(Ordering::SeqCst)).ok().filter(|signal| *signal > 0)
    }
}

/// Gives back and ends the program, unless the wait is over.
fn interrupt(store: &AnyBucket, grant: &Grant, over: &AtomicBool, signal: i32) {
    if !over.swap(true, Ordering::SeqCst) {
        store.leave();
        if let Err(error) = store.give_back(grant) {
            say(error);
        }
        signals::die_of(signal);
    }
}

/// Returns only where that fails.
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
