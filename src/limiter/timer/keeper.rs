//! One thread that keeps time for all queues of the process, on the system's clock, while somebody waits.
//!
//! It depends on no runtime. It is started for the first alarm and ends when there has been none for a second, so a
//! program that does not wait has no such thread. It rests for a millisecond after it rang, which makes one wake-up of
//! a thousand at a million a second; alarms that are further apart ring within microseconds.

use crate::limiter::panics::Panics;
use crate::limiter::sync::{Condvar, Mutex, MutexGuard, lock, spawn, wait};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Between two rounds of alarms.
const REST: Duration = if cfg!(throttle_loom) { Duration::ZERO } else { Duration::from_millis(1) };

/// The thread waits so long for another alarm.
const LINGER: Duration = if cfg!(throttle_loom) { Duration::ZERO } else { Duration::from_secs(1) };

#[derive(Debug, Default)]
pub(crate) struct Keeper {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By their times. The number tells those of the same time apart.
    alarms: BTreeMap<(Instant, u64), Waker>,
    is_running: bool,
    /// The thread looks again at this time, if nobody wakes it.
    sleeps_until: Option<Instant>,
}

/// One queue's alarm.
#[derive(Debug)]
pub(crate) struct Alarm {
    keeper: Arc<Keeper>,
    number: u64,
    at: Option<Instant>,
}

impl Alarm {
    pub(crate) fn of(keeper: Arc<Keeper>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Alarm { keeper, number: NUMBERS.fetch_add(1, Ordering::Relaxed), at: None }
    }

    /// Rings once, at `at` or a little later, or not at all.
    ///
    /// # Errors
    /// The thread cannot be started; then it does not ring.
    pub(crate) fn set(&mut self, at: Option<Instant>, waker: &Waker) -> io::Result<()> {
        let before = std::mem::replace(&mut self.at, at);
        if before.is_none() && at.is_none() {
            return Ok(());
        }
        let mut state = lock(&self.keeper.state);
        let removed = before.and_then(|before| state.alarms.remove(&(before, self.number)));
        let result = at.map_or(Ok(()), |at| self.keeper.add(&mut state, (at, self.number), waker));
        drop(state);
        drop(removed); // It may be the last to know its queue.
        result
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let _ = self.set(None, Waker::noop());
    }
}

impl Keeper {
    #[cfg(not(throttle_loom))]
    pub(crate) fn of_process() -> Arc<Self> {
        static KEEPER: std::sync::LazyLock<Arc<Keeper>> = std::sync::LazyLock::new(Arc::default);
        Arc::clone(&KEEPER)
    }

    #[cfg(throttle_loom)]
    pub(crate) fn of_process() -> Arc<Self> {
        Arc::default()
    }

    fn add(self: &Arc<Self>, state: &mut State, key: (Instant, u64), waker: &Waker) -> io::Result<()> {
        if !state.is_running {
            let keeper = Arc::clone(self);
            spawn("throttle-timer", move || keeper.run())?;
            state.is_running = true;
        }
        state.alarms.insert(key, waker.clone());
        if state.sleeps_until.is_some_and(|until| key.0 < until) {
            state.sleeps_until = None;
            self.changed.notify_one();
        }
        Ok(())
    }

    fn run(&self) {
        crate::clock::sharpen_this_thread();
        let mut state = lock(&self.state);
        let mut rests_until = None;
        loop {
            let now = Instant::now();
            let next = state.alarms.first_key_value().map(|(&(at, _), _)| at);
            match next {
                Some(at) if rests_until.is_none_or(|until| until <= now) && at <= now => {
                    state = self.ring(state, now);
                    rests_until = Instant::now().checked_add(REST);
                }
                Some(at) => state = self.sleep(state, now, at.max(rests_until.unwrap_or(at))),
                None if LINGER.is_zero() => break,
                None => {
                    let until = now + LINGER;
                    state = self.sleep(state, now, until);
                    if state.alarms.is_empty() && Instant::now() >= until {
                        break;
                    }
                }
            }
        }
        state.is_running = false;
    }

    /// Rings all that are due. A waker that panics says so on standard error, and the others ring.
    fn ring<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let later = state.alarms.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.alarms, later);
        drop(state);
        for waker in due.into_values() {
            Panics::default().hold(|| waker.wake());
        }
        lock(&self.state)
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant, until: Instant) -> MutexGuard<'a, State> {
        state.sleeps_until = Some(until);
        let mut state = wait(&self.changed, state, until.saturating_duration_since(now));
        state.sleeps_until = None;
        state
    }
}
