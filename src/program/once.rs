//! `--once`: take one unit from a bucket, then become the command.

use super::buckets::{self, AnyBucket, Asked};
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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use throttle::flow::start_thread;
use throttle::launch::command;
use throttle_limits::clock::{MILLISECOND, Nanos, sharpen_this_thread, with_usual_slack};
use throttle_limits::ledger::operation::{self, Grant, Operation};
use throttle_limits::limits::Refusal;
use throttle_limits::store::{Client, Next, StoreError};

/// How often it is computed again whether the wait is too long, at most.
const BETWEEN_ESTIMATES: Nanos = 100 * MILLISECOND;

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
    let on_signal = OnSignal::handled().context("cannot handle signals")?;
    let asked = buckets::ask_one(once, |store| on_signal.begin(store));
    let taken = asked.and_then(|asked| wait(once, asked, &on_signal));
    if let (Some(signal), Err(_)) = (on_signal.came(), &taken) {
        signals::die_of(signal);
    }
    let (mut client, grant) = match taken {
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
    let store = Arc::clone(client.store());
    let exit = if held::is_needed(&*store) {
        held::run((&store, grant.number), (&path, &mut command_of(&path, &once.command)), &on_signal.is_over)?
    } else {
        become_command(&path, &once.command)
    };
    // A command that cannot run takes nothing, like a command that is not found.
    client.report(Operation::Unused(vec![grant.number]));
    give_back(&mut client);
    Ok(exit)
}

/// Whether `error` only means that the wait for a grant or for the server is longer than allowed.
fn is_too_long(once: &Once, error: &StoreError) -> bool {
    match error {
        StoreError::Refused(Refusal::TooLong { .. } | Refusal::Busy | Refusal::GivenUp(_)) => true,
        error => once.max_wait.is_some() && once.bucket.is_waited_for && error.may_pass(),
    }
}

/// A grant whose time has come.
type Waited = (Client, Grant);

/// What a signal does. Before the request is made, and once the grant is used, a signal ends the program. In between, the
/// program gives everything back first.
#[derive(Default)]
struct OnSignal {
    came: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    /// The bucket, while a request may have to be given back.
    store: Mutex<Option<Arc<AnyBucket>>>,
}

/// Sleeps until the request is granted and the time of the grant has come. On a signal, cancels the request, and dies of
/// the signal.
///
/// No signal is lost. The thread that wakes this thread blocks signals, so their handlers run on this thread. A handler
/// stores its signal, and then reads `is_over`. So this function finds the signal, or the handler ends the program.
/// This holds until the program becomes the command.
fn wait(once: &Once, mut asked: Asked, on_signal: &OnSignal) -> Result<Waited> {
    sharpen_this_thread();
    let (store, begun) = (Arc::clone(asked.client.store()), asked.client.store().clock().now());
    let mut checked = begun;
    let (mut announce, is_signalled) = (!once.quiet, || on_signal.came().is_some());
    let granted = loop {
        let until = match asked.client.poll(1) {
            Ok(Next::Go(grant)) => break Ok(grant),
            Ok(Next::Refused(_, why)) => break Err(refusal(why)),
            Ok(Next::At(time)) => time,
            Ok(Next::Nothing) => Nanos::MAX,
            Err(error) => break Err(error),
        };
        let now = store.clock().now();
        if now >= asked.latest && asked.client.waits(asked.ticket) {
            break Err(asked.too_late().expect_err("a refusal is an error"));
        }
        if now >= checked.saturating_add(BETWEEN_ESTIMATES) {
            // Somebody may have paused the bucket, or changed its limits.
            checked = now;
            if let Err(error) = asked.refuse_if_late() {
                break Err(error);
            }
        }
        let turn = asked.client.leaves_at().unwrap_or(until).max(until);
        let say = |line: String| {
            if std::mem::take(&mut announce) {
                long_wait::announced(&*store, line).into_iter().for_each(say);
            }
        };
        let until = until.min(asked.latest.max(now.saturating_add(1)));
        if !long_wait::sleep_from(store.clock(), begun, [until, turn], &is_signalled, say) {
            break Err(StoreError::Stopped);
        }
    };
    on_signal.is_over.store(granted.is_ok(), Ordering::SeqCst);
    *on_signal.store() = None;
    if let Some(signal) = on_signal.came() {
        if let Ok(grant) = granted {
            asked.client.report(Operation::Unused(vec![grant.number]));
        }
        give_back(&mut asked.client);
        signals::die_of(signal);
    }
    Ok((asked.client, granted?))
}

/// Why the request is never granted.
fn refusal(why: operation::Refusal) -> StoreError {
    match why {
        operation::Refusal::GivenUp(failed) => Refusal::GivenUp(failed).into(),
        _ => Refusal::Never.into(),
    }
}

impl OnSignal {
    /// From now on, a signal is stored in `came` and wakes this thread, and while `is_over` is true, it ends the program.
    fn handled() -> io::Result<Arc<Self>> {
        let on_signal = Arc::new(OnSignal { is_over: Arc::new(true.into()), ..OnSignal::default() });
        let wanted: Vec<i32> =
            [SIGINT, SIGQUIT, SIGTERM, SIGHUP].into_iter().filter(|signal| !signals::is_ignored(*signal)).collect();
        let (main, shared) = (thread::current(), Arc::clone(&on_signal));
        signals::with_blocked(&wanted, || {
            for signal in &wanted {
                // The order matters: a handler must store the signal before it reads `is_over`.
                flag::register_usize(*signal, Arc::clone(&on_signal.came), usize::try_from(*signal).unwrap_or(0))?;
                signals::die_of_if(*signal, &on_signal.is_over)?;
            }
            signals::has_begun();
            let mut signals = Signals::new(&wanted)?;
            let wake = move || {
                for signal in signals.forever() {
                    // The other thread may be waiting for a server, or for a process that keeps the file locked.
                    let store = shared.store().clone();
                    if store.is_some_and(|store| !store.leave()) {
                        signals::die_of(signal);
                    }
                    main.unpark();
                }
            };
            start_thread("signals", wake).map(drop)
        })?;
        Ok(on_signal)
    }

    /// The request is about to be made.
    fn begin(&self, store: &Arc<AnyBucket>) {
        *self.store() = Some(Arc::clone(store));
        self.is_over.store(false, Ordering::SeqCst);
    }

    fn store(&self) -> MutexGuard<'_, Option<Arc<AnyBucket>>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The signal that came.
    fn came(&self) -> Option<i32> {
        i32::try_from(self.came.load(Ordering::SeqCst)).ok().filter(|signal| *signal > 0)
    }
}

/// Gives back what is not used. Best effort: the program ends either way.
fn give_back(client: &mut Client) {
    client.store().leave();
    if let Err(error) = client.withdraw() {
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
