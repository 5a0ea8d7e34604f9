//! `--once`: take one from a bucket, then become the command.

use super::bucket::{self, AnyBucket, Bucket};
use super::exit::Exit;
use super::flags::Flags;
use super::{lookup, say, signals};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use throttle::clock::{Nanos, sharpen_this_thread, with_usual_slack};
use throttle::limits::{Grant, Refusal};
use throttle::store::StoreError;

/// Waits for one, and becomes `command`, if there is one: then this does not return.
///
/// # Errors
/// What failed of our own.
pub(super) fn run(flags: &Flags, bucket: &Bucket, command: &[OsString]) -> Result<Exit> {
    let found = match command.first().map(|name| lookup::find(name)) {
        Some(Err(missing)) => {
            say(&missing);
            return Ok(missing.exit());
        }
        Some(Ok(path)) => Some(path),
        None => None,
    };
    let (grant, store) = match take(flags, bucket) {
        Ok(taken) => taken,
        Err(error) if is_too_long(flags, &error) => {
            say(&error);
            return Ok(Exit::TooLong);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(grant) = grant {
        wait(&store, grant)?;
    }
    Ok(found.map_or(Exit::Success, |path| become_command(&path, command)))
}
/// One from the bucket; a grant where that has to be waited for.
fn take(flags: &Flags, bucket: &Bucket) -> Result<(Option<Grant>, Arc<AnyBucket>), StoreError> {
    let store = Arc::from(bucket::open(flags, bucket)?);
    let max_wait = flags.max_wait().map(|time| Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX));
    let (grant, asked) = AnyBucket::take(&*store, 1, max_wait)?;
    Ok(((grant.at > asked).then_some(grant), store))
}

/// Whether it fails only for taking longer than was allowed, be it the limit or the server that takes so long.
pub(super) fn is_too_long(flags: &Flags, error: &StoreError) -> bool {
    match error {
        StoreError::Refused(Refusal::TooLong { .. }) => true,
        error => flags.max_wait().is_some() && flags.waits_for_store() && error.may_pass(),
    }
}

/// Sleeps until the grant. Who is interrupted gives back what can be given back, and dies of the signal.
fn wait(store: &Arc<AnyBucket>, grant: Grant) -> Result<()> {
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !signals::is_ignored(*signal));
    let mut signals = Signals::new(wanted).context("cannot handle signals")?;
    let over = Arc::new(AtomicBool::new(false));
    let (theirs, ended) = (Arc::clone(store), Arc::clone(&over));
    let attendant = move || {
        if let Some(signal) = signals.forever().next() {
            if !ended.swap(true, Ordering::SeqCst)
                && let Err(error) = theirs.give_back(&grant)
            {
                say(error);
            }
            signals::die_of(signal);
        }
    };
    thread::Builder::new().name("attendant".to_owned()).spawn(attendant).context("cannot handle signals")?;
    sharpen_this_thread();
    store.clock().sleep_until(grant.at);
    if over.swap(true, Ordering::SeqCst) {
        // It was given back: the attendant ends the program.
        loop {
            thread::park();
        }
    }
    Ok(())
}

/// Returns only where that fails.
fn become_command(path: &OsStr, command: &[OsString]) -> Exit {
    let (name, args) = command.split_first().map_or((path, &[][..]), |(name, args)| (name.as_os_str(), args));
    let error = with_usual_slack(|| Command::new(path).arg0(name).args(args).exec());
    say(format_args!("'{}' cannot be run: {error}", path.display()));
    if error.kind() == ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun }
}
