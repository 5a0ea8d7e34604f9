//! One thread that wakes all queues of the process, and all clocks without their own timers, at times of the system's
//! clock.
//!
//! The thread depends on no runtime. It is started for the first alarm and ends when there has been no alarm for a
//! second. So a program that does not wait has no such thread. It pauses for a millisecond after each round of wakers:
//! at a million alarms a second it wakes up once for every thousand alarms. Alarms that are further apart are on time
//! within microseconds.

use super::sync::{Condvar, Mutex, MutexGuard, lock, spawn, wait};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// The pause between two rounds of wakers.
const PAUSE: Duration = if cfg!(throttle_loom) { Duration::ZERO } else { Duration::from_millis(1) };

/// The thread ends if no alarm was set for this long.
const IDLE_TIME: Duration = if cfg!(throttle_loom) { Duration::ZERO } else { Duration::from_secs(1) };

#[derive(Debug, Default)]
pub(crate) struct TimerThread {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alarms: BTreeMap<(Instant, WakerId), Waker>,
    /// The alarm time of each waker. No waker has two alarms.
    times: HashMap<WakerId, Instant>,
    is_running: bool,
    /// The time at which the thread wakes up if nobody wakes it earlier.
    sleeps_until: Option<Instant>,
}

/// Identifies wakers as [`Waker::will_wake`] does. While an alarm has a clone of a waker, no other waker gets its
/// number.
type WakerId = [usize; 2];

const LAST_ID: WakerId = [usize::MAX; 2];

fn id(waker: &Waker) -> WakerId {
    [waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr()]
}

impl TimerThread {
    #[cfg(not(throttle_loom))]
    pub(crate) fn of_process() -> Arc<Self> {
        static THREAD: std::sync::LazyLock<Arc<TimerThread>> = std::sync::LazyLock::new(Arc::default);
        Arc::clone(&THREAD)
    }

    #[cfg(throttle_loom)]
    pub(crate) fn of_process() -> Arc<Self> {
        Arc::default()
    }

    /// Wakes `waker` once, at `at` or a little later, on the timer thread. A later call for the same waker replaces
    /// this one. If the thread cannot be started, the waker is woken at once, and the next call tries again to start
    /// it.
    pub(crate) fn wake_at(self: &Arc<Self>, at: Instant, waker: &Waker) {
        if self.set(Some(at), waker).is_err() {
            waker.wake_by_ref();
        }
    }

    /// Sets the alarm of `waker` to `at`, or removes it with `None`.
    ///
    /// # Errors
    /// The thread cannot be started; then the waker is not woken.
    pub(crate) fn set(self: &Arc<Self>, at: Option<Instant>, waker: &Waker) -> io::Result<()> {
        let id = id(waker);
        let mut state = lock(&self.state);
        let replaced = state.times.remove(&id).and_then(|before| state.alarms.remove(&(before, id)));
        let result = at.map_or(Ok(()), |at| self.add(&mut state, at, waker));
        drop(state);
        drop(replaced); // This may run foreign code that takes the lock, or drop the last reference to a queue.
        result
    }

    fn add(self: &Arc<Self>, state: &mut State, at: Instant, waker: &Waker) -> io::Result<()> {
        if !state.is_running {
            let thread = Arc::clone(self);
            spawn("throttle-timer", move || thread.run())?;
            state.is_running = true;
        }
        state.times.insert(id(waker), at);
        state.alarms.insert((at, id(waker)), waker.clone());
        if state.sleeps_until.is_some_and(|until| at < until) {
            state.sleeps_until = None;
            self.changed.notify_one();
        }
        Ok(())
    }

    fn run(&self) {
        super::slack::sharpen_this_thread();
        let mut state = lock(&self.state);
        let mut paused_until = None;
        loop {
            let now = Instant::now();
            let next = state.alarms.first_key_value().map(|(&(at, _), _)| at);
            match next {
                Some(at) if paused_until.is_none_or(|until| until <= now) && at <= now => {
                    state = self.wake_due(state, now);
                    paused_until = Instant::now().checked_add(PAUSE);
                }
                Some(at) => state = self.sleep(state, now, at.max(paused_until.unwrap_or(at))),
                None if IDLE_TIME.is_zero() => break,
                None => {
                    let until = now + IDLE_TIME;
                    state = self.sleep(state, now, until);
                    if state.alarms.is_empty() && Instant::now() >= until {
                        break;
                    }
                }
            }
        }
        state.is_running = false;
    }

    /// Wakes all wakers that are due. A waker is foreign code: if one panics, the others are still woken.
    fn wake_due<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let later = state.alarms.split_off(&(now, LAST_ID));
        let due = std::mem::replace(&mut state.alarms, later);
        for (_, id) in due.keys() {
            state.times.remove(id);
        }
        drop(state);
        for waker in due.into_values() {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
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

#[cfg(all(test, not(throttle_loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::task::Wake;

    struct Send(mpsc::Sender<Instant>);

    impl Wake for Send {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(Instant::now());
        }
    }

    fn waker() -> (Waker, mpsc::Receiver<Instant>) {
        let (sender, woken) = mpsc::channel();
        (Waker::from(Arc::new(Send(sender))), woken)
    }

    #[test]
    fn a_later_call_for_the_same_waker_replaces_the_earlier_one() {
        let (thread, (waker, woken), (other, _)) = (Arc::<TimerThread>::default(), waker(), waker());
        let now = Instant::now();
        let at = now + Duration::from_millis(3);
        thread.wake_at(at, &other);
        for second in (1..1000).rev() {
            thread.wake_at(now + Duration::from_secs(second), &waker);
        }
        thread.wake_at(at, &waker);
        assert!(lock(&thread.state).alarms.len() <= 2);
        assert!(woken.recv().unwrap() >= at);
        thread.wake_at(now + Duration::from_secs(3600), &waker);
        assert_eq!(lock(&thread.state).times.len(), 1, "alarms that are over are forgotten");
        assert!(woken.try_recv().is_err(), "woken once");
    }

    #[test]
    fn queues_and_clocks_share_one_thread() {
        let (thread, (waker, woken), (other, woken_too)) = (Arc::<TimerThread>::default(), waker(), waker());
        let now = Instant::now();
        thread.set(Some(now + Duration::from_millis(2)), &waker).unwrap();
        thread.wake_at(now + Duration::from_millis(1), &other);
        assert_eq!(Arc::strong_count(&thread), 2, "this test and one thread");
        assert!(woken_too.recv().unwrap() <= woken.recv().unwrap());
    }
}
