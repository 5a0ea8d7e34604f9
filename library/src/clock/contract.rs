//! The contract of all clocks, and sleeping of threads on them.

use super::time::{Nanos, in_nanos};
use super::timer_thread::TimerThread;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The wait instead of a wait until a time that the system cannot represent. A waiter that is woken too early requests
/// again.
const MAX_WAIT: Duration = Duration::from_secs(86_400);

/// A monotonic clock, on which threads can sleep and futures can wait. A time is the duration since the clock's origin.
///
/// A clock that keeps real time needs only [`now`](Self::now). A clock that does not, or the clock of an executor with
/// its own timers, must also implement [`wake_at`](Self::wake_at).
pub trait Clock: Send + Sync {
    /// The time now. It never decreases.
    fn now(&self) -> Duration;

    /// The time now, in nanoseconds.
    #[doc(hidden)]
    #[inline]
    fn nanos(&self) -> Nanos {
        in_nanos(self.now())
    }

    /// Sleeps until `time` or a little later, never earlier, and returns true. It returns false as soon as `is_over`
    /// returns true.
    ///
    /// `is_over` is called first, then whenever another thread [unparks](Thread::unpark) this thread, and again at
    /// `time`. Unparking for another reason does no harm.
    fn sleep_unless(&self, time: Duration, is_over: &dyn Fn() -> bool) -> bool {
        let waker = Unpark::this_thread();
        loop {
            let has_come = self.now() >= time;
            if has_come || is_over() {
                return !is_over();
            }
            self.wake_at(time, &waker);
            thread::park();
        }
    }

    /// Wakes `waker` at `time`, or as soon as possible after it, but never from within this call. A later call for the
    /// same waker replaces the earlier ones; extra wake-ups do no harm.
    ///
    /// If the clock has no timer of its own, the thread `throttle-timer` sleeps in real time. All such clocks and all
    /// queues share it; it exists while somebody waits, and for a second after that. If the system allows no thread,
    /// `waker` is woken at once, from within this call.
    fn wake_at(&self, time: Duration, waker: &Waker) {
        wake_after(time.saturating_sub(self.now()), waker);
    }
}

/// A clock that counts in nanoseconds, as the limits do. Every [`Clock`] is one.
pub trait NanoClock: Send + Sync {
    /// The time now, in nanoseconds since the clock's origin. It never decreases.
    fn now(&self) -> Nanos;

    /// Blocks the thread, and returns at `time` or a little later, never earlier.
    fn sleep_until(&self, time: Nanos) {
        self.sleep_unless(time, &|| false);
    }

    /// As [`Clock::sleep_unless`]. To wait for the earliest of several times, sleep until the least of them. To check a
    /// condition every 5 seconds on the way, sleep until `time.min(self.now() + 5 * SECOND)`, check it, and sleep
    /// again.
    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool;

    /// As [`Clock::wake_at`].
    fn wake_at(&self, time: Nanos, waker: &Waker) {
        wake_after(Duration::from_nanos(time.saturating_sub(self.now())), waker);
    }
}

impl<C: Clock + ?Sized> NanoClock for C {
    #[inline]
    fn now(&self) -> Nanos {
        Clock::nanos(self)
    }

    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
        Clock::sleep_unless(self, Duration::from_nanos(time), is_over)
    }

    fn wake_at(&self, time: Nanos, waker: &Waker) {
        Clock::wake_at(self, Duration::from_nanos(time), waker);
    }
}

/// Wakes `waker` after this time, on the timer thread of the process.
fn wake_after(wait: Duration, waker: &Waker) {
    let now = Instant::now();
    TimerThread::of_process().wake_at(now.checked_add(wait).unwrap_or(now + MAX_WAIT), waker);
}

/// Wakes a thread that is parked.
pub(crate) struct Unpark(Thread);

impl Unpark {
    pub(crate) fn this_thread() -> Waker {
        Waker::from(Arc::new(Unpark(std::thread::current())))
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// [`NanoClock::sleep_unless`] for a clock that keeps real time; it reads the clock again after `longest`.
pub(super) fn park_until(clock: &impl NanoClock, time: Nanos, is_over: &dyn Fn() -> bool, longest: Duration) -> bool {
    loop {
        // The clock is read first, so a change of `is_over` at `time` is noticed.
        let remaining = time.saturating_sub(clock.now());
        if is_over() {
            return false;
        }
        if remaining == 0 {
            return true;
        }
        thread::park_timeout(longest.min(Duration::from_nanos(remaining)));
    }
}
