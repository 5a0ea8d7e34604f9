//! One thread that wakes all queues of the process, and all clocks without timers of their own, at times of the system's
//! clock.
//!
//! It depends on no runtime. It is started for the first alarm and ends when there has been none for a second, so a
//! program that does not wait has no such thread. It pauses for a millisecond after each round of wakers: at a million
//! alarms a second it wakes up once for a thousand. Alarms that are further apart are on time within microseconds.

use super::sync::{Condvar, Mutex, MutexGuard, lock, spawn, wait};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The pause between two rounds of wakers.
const PAUSE: Duration = if cfg!(throttle_loom) { Duration::ZERO } else { Duration::from_millis(1) };

/// The thread ends if no alarm was set for this long.
const LINGER: Duration = if cfg!(throttle_loom) { Duration::ZERO } else { Duration::from_secs(1) };

#[derive(Debug, Default)]
pub(crate) struct TimerThread {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alarms: BTreeMap<Key, Waker>,
    /// The alarms that were set by [`TimerThread::wake_at`], and some that are over: few, so they are searched.
    by_waker: Vec<Key>,
    is_running: bool,
    /// The thread looks again at this time, if nobody wakes it.
    sleeps_until: Option<Instant>,
}

/// The time of an alarm. The number tells those of the same time apart.
type Key = (Instant, u64);

/// One queue's alarm.
#[derive(Debug)]
pub(crate) struct Alarm {
    thread: Arc<TimerThread>,
    number: u64,
    at: Option<Instant>,
}

impl Alarm {
    pub(crate) fn of(thread: Arc<TimerThread>) -> Self {
        Alarm { thread, number: next_number(), at: None }
    }

    /// Wakes `waker` once, at `at` or a little later; with `None`, never.
    ///
    /// # Errors
    /// The thread cannot be started; then the waker is not woken.
    pub(crate) fn set(&mut self, at: Option<Instant>, waker: &Waker) -> io::Result<()> {
        let before = std::mem::replace(&mut self.at, at);
        if before.is_none() && at.is_none() {
            return Ok(());
        }
        let mut state = lock(&self.thread.state);
        let removed = before.and_then(|before| state.alarms.remove(&(before, self.number)));
        let result = at.map_or(Ok(()), |at| self.thread.add(&mut state, (at, self.number), waker));
        drop(state);
        drop(removed); // It may hold the last reference to its queue.
        result
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let _ = self.set(None, Waker::noop());
    }
}

fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
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

    /// Wakes `waker` once, at `at` or a little later, on this thread. A later call for the same waker replaces this one. If
    /// the thread cannot be started, the waker is woken at once, and the next call tries again.
    pub(crate) fn wake_at(self: &Arc<Self>, at: Instant, waker: &Waker) {
        let mut state = lock(&self.state);
        let State { alarms, by_waker, .. } = &mut *state;
        let is_replaced = |key: &Key| alarms.get(key).is_none_or(|own| own.will_wake(waker));
        let replaced: Vec<_> = by_waker.extract_if(.., |key| is_replaced(key)).collect();
        let dropped: Vec<_> = replaced.iter().filter_map(|key| alarms.remove(key)).collect();
        let key = (at, next_number());
        let is_added = self.add(&mut state, key, waker);
        state.by_waker.extend(is_added.is_ok().then_some(key));
        drop(state);
        drop(dropped); // Foreign code, which may ask for the lock.
        if is_added.is_err() {
            waker.wake_by_ref();
        }
    }

    fn add(self: &Arc<Self>, state: &mut State, key: Key, waker: &Waker) -> io::Result<()> {
        if !state.is_running {
            let thread = Arc::clone(self);
            spawn("throttle-timer", move || thread.run())?;
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

    /// Wakes all that are due. A waker is foreign code: if one panics, the others are still woken.
    fn wake_due<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let later = state.alarms.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.alarms, later);
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
        assert_eq!(lock(&thread.state).by_waker.len(), 1, "alarms that are over are forgotten");
        assert!(woken.try_recv().is_err(), "woken once");
    }

    #[test]
    fn queues_and_clocks_share_one_thread() {
        let (thread, (waker, woken)) = (Arc::<TimerThread>::default(), waker());
        let mut alarm = Alarm::of(Arc::clone(&thread));
        let now = Instant::now();
        alarm.set(Some(now + Duration::from_millis(2)), &waker).unwrap();
        thread.wake_at(now + Duration::from_millis(1), &waker);
        assert_eq!(Arc::strong_count(&thread), 3, "this test, the alarm, and one thread");
        assert!(woken.recv().unwrap() <= woken.recv().unwrap());
    }
}
