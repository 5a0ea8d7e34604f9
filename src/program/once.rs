//! `--once`: take one unit from a bucket, then become the command.

use super::buckets::{self, AnyBucket, Taken};
use super::exit::Exit;
use super::say::say;
use super::task::Once;
use super::{advice, held, long_wait, lookup, signals};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use throttle::flow::start_thread;
use throttle::launch::command;
use throttle_limits::clock::{Nanos, sharpen_this_thread, with_usual_slack};
use throttle_limits::limits::{Grant, Refusal, Take};
use throttle_limits::store::{StoreError, wait_for};

/// Takes one unit, waits for its time, and becomes the command. If there is a command that can run, this does not
/// return. `explain` returns the message about a refusal.
///
/// # Errors
/// throttle itself failed.
pub(super) fn run(once: &Once, explain: impl FnOnce(&StoreError) -> String) -> Result<Exit> {
    let found = match once.command.first().map(|name| lookup::find(name)) {
        Some(Err(missing)) => return Ok(advice::refuse(&missing, "sh -c", None)),
        Some(Ok(path)) => Some(path),
        None => None,
    };
    let (grant, store, take, is_over) = match buckets::take_one(once).and_then(|taken| waited_for(once, taken)) {
        Ok(taken) => taken,
        Err(error) => match error.downcast_ref() {
            Some(refused) if is_too_long(once, refused) => {
                if !once.quiet {
                    say(explain(refused));
                }
                return Ok(Exit::TooLong);
            }
            _ => return Err(error),
        },
    };
    let Some(path) = found else { return Ok(Exit::Success) };
    let exit = if held::is_needed(&*store) {
        held::run((&store, &grant), (&path, &mut command_of(&path, &once.command)), &is_over)?
    } else {
        become_command(&path, &once.command)
    };
    // A command that cannot run takes nothing, like a command that is not found.
    give_back(&*store, &grant, &take);
    Ok(exit)
}

/// Whether `error` only means that the wait for a grant or for the server is longer than allowed.
fn is_too_long(once: &Once, error: &StoreError) -> bool {
    match error {
        StoreError::Refused(Refusal::TooLong { .. } | Refusal::Busy | Refusal::GivenUp(_)) => true,
        error => once.max_wait.is_some() && once.bucket.is_waited_for && error.may_pass(),
    }
}

/// A grant, its bucket, its request, and whether a signal ends the program.
type Waited = (Grant, Arc<AnyBucket>, Take, Arc<AtomicBool>);

/// Waits for the time of the grant.
fn waited_for(once: &Once, (grant, requested, store, take): Taken) -> Result<Waited> {
    let is_over = Arc::default();
    let grant = if grant.at > requested { wait(once, &*store, (grant, requested), &take, &is_over)? } else { grant };
    Ok((grant, store, take, is_over))
}

/// Sleeps until the time of the grant, and returns the grant, or another grant that replaced it. On a signal, gives the
/// grant back if possible, and dies of the signal.
///
/// No signal is lost. The thread that wakes this thread blocks signals, so their handlers run on this thread. A handler
/// stores its signal, and then reads `is_over`. So this function finds the signal, or the handler ends the program.
/// This holds until the program becomes the command.
fn wait(
    once: &Once,
    store: &AnyBucket,
    (mut found, requested): (Grant, Nanos),
    take: &Take,
    is_over: &Arc<AtomicBool>,
) -> Result<Grant> {
    let came = Arc::new(AtomicUsize::new(0));
    wake_on_signals(&came, is_over).context("cannot handle signals")?;
    sharpen_this_thread();
    let (mut announce, latest) = (!once.quiet, once.latest(requested));
    let mut sleep = |time, turn| {
        // A pause of the key, or the loss of the bucket, has moved the grant beyond `latest`.
        if turn > latest {
            return false;
        }
        let say = |line: String| {
            if std::mem::take(&mut announce) {
                long_wait::announced(store, line).into_iter().for_each(say);
            }
        };
        long_wait::sleep_unless(store.clock(), [time, turn], &|| came.load(Ordering::SeqCst) > 0, say)
    };
    let is_time = loop {
        if !wait_for(store, found, take, &mut sleep, |moved| found = *moved) {
            break false;
        }
        if !store.is_too_late(&found, take) {
            break true;
        }
        let now;
        (found, now) = store.take_as(Take { latest, ..take.clone() })?;
        if found.at <= now {
            break true;
        }
    };
    is_over.store(is_time, Ordering::SeqCst);
    if let Some(signal) = i32::try_from(came.load(Ordering::SeqCst)).ok().filter(|signal| *signal > 0) {
        give_back(store, &found, take);
        signals::die_of(signal);
    }
    if !is_time && found.at > latest {
        give_back(store, &found, take);
        let wait = found.at.saturating_sub(store.clock().now());
        return Err(StoreError::from(Refusal::TooLong { wait }).into());
    }
    Ok(found)
}

/// From now on, a signal is stored in `came` and wakes this thread. Once `is_over` is true, a signal ends the program
/// instead.
fn wake_on_signals(came: &Arc<AtomicUsize>, is_over: &Arc<AtomicBool>) -> io::Result<()> {
    let wanted: Vec<i32> =
        [SIGINT, SIGQUIT, SIGTERM, SIGHUP].into_iter().filter(|signal| !signals::is_ignored(*signal)).collect();
    let main = thread::current();
    signals::with_blocked(&wanted, || {
        for signal in &wanted {
            // The order matters: a handler must store the signal before it reads `is_over`.
            flag::register_usize(*signal, Arc::clone(came), usize::try_from(*signal).unwrap_or(0))?;
            signals::die_of_if(*signal, is_over)?;
        }
        signals::has_begun();
        let mut signals = Signals::new(&wanted)?;
        let wake = move || signals.forever().for_each(|_| main.unpark());
        start_thread("signals", wake).map(drop)
    })
}

/// Gives the grant back. Best effort: the program ends either way.
fn give_back(store: &AnyBucket, grant: &Grant, take: &Take) {
    store.leave();
    if let Err(error) = store.give_back(grant, take) {
        say(error);
    }
}

/// Becomes the command. Returns only if that fails.
fn become_command(path: &OsStr, words: &[OsString]) -> Exit {
    let error = with_usual_slack(|| command_of(path, words).exec());
    held::cannot_run(path, &error)
}

/// The command with these words and with the file at `path`.
fn command_of(path: &OsStr, words: &[OsString]) -> Command {
    let (name, args) = words.split_first().map_or((path, &[][..]), |(name, args)| (name.as_os_str(), args));
    let mut command = command(path, name, signals::is_ignored(SIGPIPE));
    command.args(args);
    command
}
