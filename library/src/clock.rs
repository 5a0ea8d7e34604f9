//! Clocks: reading the time, sleeping, and waking futures.
//!
//! All decisions take the time as a parameter, in nanoseconds; only the pump and the queues hold a [`NanoClock`]. Every
//! [`Clock`] is also a [`NanoClock`], so one [`FakeClock`] is enough for a test.

#[cfg(unix)]
mod boot;
mod contract;
mod shown;
mod slack;
pub(crate) mod sync;
mod system;
mod time;
pub(crate) mod timer_thread;

#[cfg(unix)]
#[doc(hidden)]
pub use boot::BootClock;
pub use contract::Clock;
#[doc(hidden)]
pub use contract::NanoClock;
pub(crate) use contract::Unpark;
#[doc(hidden)]
pub use shown::{shown, shown_wait};
#[doc(hidden)]
pub use slack::{sharpen_this_thread, with_usual_slack};
use sync::unpoisoned;
pub use system::SystemClock;
#[doc(hidden)]
pub use time::{MILLISECOND, Nanos, SECOND, in_nanos};

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};
use timer_thread::TimerThread;

/// Frees the unused memory of a queue that is now much shorter than its capacity.
pub(crate) fn shrink<T>(history: &mut VecDeque<T>) {
    if history.capacity() > 64 && history.len() < history.capacity() / 4 {
        history.shrink_to(history.len() * 2);
    }
}

/// A clock that moves only when a test moves it, or when a thread sleeps on it, for example in a blocking call. Its
/// clones share one time.
///
/// It is for tests: give a clone to a [`Limiter`](crate::limiter::Builder::clock), a
/// [`Semaphore`](crate::semaphore::Builder::clock) or a pump, and hours pass in no time.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use throttle_limits::clock::FakeClock;
/// use throttle_limits::limiter::Limiter;
///
/// let clock = FakeClock::default();
/// let builder = Limiter::builder().rate(1, Duration::from_secs(3600)).clock(Arc::new(clock.clone()));
/// let limiter = builder.build()?;
/// assert!(limiter.try_acquire(1).is_ok());
/// assert!(limiter.try_acquire(1).is_err());
/// clock.advance(Duration::from_secs(3600));
/// assert!(limiter.try_acquire(1).is_ok());
/// # Ok::<(), throttle_limits::limiter::BuildError>(())
/// ```
#[derive(Clone, Default)]
pub struct FakeClock {
    now: Arc<AtomicU64>,
    alarms: Arc<Mutex<Vec<(Nanos, Waker)>>>,
}

impl FakeClock {
    /// Returns a clock at the time `now` since its origin.
    #[must_use]
    pub fn at(now: Duration) -> Self {
        FakeClock { now: Arc::new(AtomicU64::new(in_nanos(now))), alarms: Arc::default() }
    }

    /// Moves the clock forward by `time`. Each waker whose time the clock passes is woken at its own time, on this
    /// thread and before this call returns.
    pub fn advance(&self, time: Duration) {
        Clock::sleep_unless(self, Clock::now(self).saturating_add(time), &|| false);
    }

    /// Sets the clock to `now`, forward or back, in one step. Wakers whose time is passed are woken late, on this
    /// thread. A limiter treats a time before its latest reading as that latest reading.
    pub fn set(&self, now: Duration) {
        self.now.store(in_nanos(now), Ordering::SeqCst);
        self.wake_due();
    }

    /// Wakes every waker that is due.
    fn wake_due(&self) {
        let now = self.nanos();
        let due: Vec<_> = self.alarms().extract_if(.., |(time, _)| *time <= now).collect();
        for (_, waker) in due {
            waker.wake();
        }
    }

    fn alarms(&self) -> MutexGuard<'_, Vec<(Nanos, Waker)>> {
        unpoisoned(self.alarms.lock())
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    fn nanos(&self) -> Nanos {
        self.now.load(Ordering::SeqCst)
    }

    fn sleep_unless(&self, time: Duration, is_over: &dyn Fn() -> bool) -> bool {
        let time = in_nanos(time);
        loop {
            if is_over() {
                return false;
            }
            let next = self.alarms().iter().map(|(next, _)| *next).min().filter(|next| *next <= time);
            self.now.fetch_max(next.unwrap_or(time), Ordering::SeqCst);
            self.wake_due();
            if next.is_none() {
                return !is_over();
            }
        }
    }

    fn wake_at(&self, time: Duration, waker: &Waker) {
        let alarm = (in_nanos(time), waker.clone());
        let mut alarms = self.alarms();
        let replaced: Vec<_> = alarms.extract_if(.., |(_, own)| own.will_wake(waker)).collect();
        // The time may have passed already, but no waker is woken from within this call.
        let lies_ahead = alarm.0 > self.nanos();
        alarms.extend(lies_ahead.then_some(alarm));
        drop(alarms);
        drop(replaced);
        if !lies_ahead {
            TimerThread::of_process().wake_at(Instant::now(), waker);
        }
    }
}

impl fmt::Debug for FakeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FakeClock").field(&Clock::now(self)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Arc, BootClock, Duration, FakeClock, MILLISECOND, Mutex, NanoClock, Nanos, Ordering, SECOND, SystemClock,
        Unpark, Waker,
    };
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn a_sleep_never_ends_early() {
        let clocks: [&dyn NanoClock; 3] = [&SystemClock, &BootClock::new(), &OnlyNow];
        for clock in clocks {
            for nanos in [0, 1, 1_000, 100_000, 3_000_000] {
                let end = clock.now() + nanos;
                clock.sleep_until(end);
                assert!(clock.now() >= end);
            }
        }
    }

    #[test]
    fn a_sleep_ends_as_soon_as_it_is_over() {
        let clocks: [&dyn NanoClock; 3] = [&SystemClock, &BootClock::new(), &OnlyNow];
        for clock in clocks {
            let (is_over, sleeper) = (AtomicBool::new(false), thread::current());
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(1));
                    is_over.store(true, Ordering::SeqCst);
                    sleeper.unpark();
                });
                let slept = clock.sleep_unless(clock.now() + 3600 * SECOND, &|| is_over.load(Ordering::SeqCst));
                assert!(!slept);
            });
            assert!(!clock.sleep_unless(0, &|| true), "it was over before");
        }
    }

    #[test]
    fn a_thread_that_is_unparked_for_another_reason_sleeps_on() {
        let clocks: [&dyn NanoClock; 3] = [&SystemClock, &BootClock::new(), &OnlyNow];
        for clock in clocks {
            let (sleeper, has_slept) = (thread::current(), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !has_slept.load(Ordering::SeqCst) {
                        sleeper.unpark();
                    }
                });
                let end = clock.now() + 3 * MILLISECOND;
                let slept = clock.sleep_unless(end, &|| false);
                has_slept.store(true, Ordering::SeqCst);
                assert!(slept && clock.now() >= end);
            });
        }
    }

    #[test]
    fn a_sleep_on_a_fake_clock_ends_at_the_time_when_it_is_over() {
        struct Flag(AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        for (over_at, expected) in [(5, (false, 5)), (10, (false, 10)), (11, (true, 10))] {
            let (clock, over) = (FakeClock::default(), Arc::new(Flag(AtomicBool::new(false))));
            clock.wake_at(over_at, &Waker::from(Arc::clone(&over)));
            let slept = clock.sleep_unless(10, &|| over.0.load(Ordering::SeqCst));
            assert_eq!((slept, clock.now()), expected, "over at {over_at}");
        }
    }

    /// A clock that implements only `now`.
    struct OnlyNow;

    impl super::Clock for OnlyNow {
        fn now(&self) -> Duration {
            super::Clock::now(&SystemClock)
        }
    }

    #[test]
    fn wakers_wake_on_a_clock_of_time_alone() {
        let (clock, waker) = (OnlyNow, Unpark::this_thread());
        let (end, later) = (clock.now() + 3 * MILLISECOND, clock.now() + 3600 * SECOND);
        clock.wake_at(later, &waker);
        clock.wake_at(end, &waker);
        while clock.now() < end {
            std::thread::park();
        }
    }

    #[test]
    fn a_fake_clock_wakes_each_waker_at_its_own_time() {
        #[derive(Default)]
        struct Woken(FakeClock, Mutex<Vec<Nanos>>);
        impl std::task::Wake for Woken {
            fn wake(self: Arc<Self>) {
                let now = self.0.now();
                self.1.lock().unwrap().push(now);
                if now < 5 {
                    self.0.wake_at(now + 2, &Waker::from(Arc::clone(&self)));
                }
            }
        }
        let clock = FakeClock::default();
        let woken = [3, 4].map(|time| {
            let woken = Arc::new(Woken(clock.clone(), Mutex::default()));
            clock.wake_at(100, &Waker::from(Arc::clone(&woken)));
            clock.wake_at(time, &Waker::from(Arc::clone(&woken)));
            woken
        });
        clock.advance(Duration::from_nanos(2));
        assert_eq!(woken.each_ref().map(|woken| woken.1.lock().unwrap().len()), [0, 0]);
        clock.sleep_until(200);
        assert_eq!(*woken[0].1.lock().unwrap(), [3, 5], "the later call replaced the earlier one");
        assert_eq!(*woken[1].1.lock().unwrap(), [4, 6]);
        clock.wake_at(300, &Waker::from(Arc::clone(&woken[0])));
        clock.set(Duration::from_nanos(400));
        assert_eq!(*woken[0].1.lock().unwrap(), [3, 5, 400], "late");
    }

    #[test]
    fn a_fake_clock_wakes_for_a_past_time_from_another_thread() {
        struct SendThread(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl std::task::Wake for SendThread {
            fn wake(self: Arc<Self>) {
                self.0.send(std::thread::current().id()).unwrap();
            }
        }
        let (sender, woken_on) = std::sync::mpsc::channel();
        FakeClock::at(Duration::from_nanos(5)).wake_at(5, &Waker::from(Arc::new(SendThread(sender))));
        assert_ne!(woken_on.recv().unwrap(), std::thread::current().id());
    }

    #[test]
    fn clones_of_a_fake_clock_share_its_time() {
        let clock = FakeClock::at(Duration::from_nanos(5));
        let other = clock.clone();
        other.sleep_until(9);
        assert_eq!(clock.now(), 9);
        clock.sleep_until(3);
        assert_eq!(other.now(), 9, "sleeping until a past time does not set the clock back");
    }
}
