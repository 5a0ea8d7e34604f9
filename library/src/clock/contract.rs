//! What every clock does, and how threads sleep on one.

use super::time::Nanos;
use super::timer_thread::TimerThread;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A monotonic clock, on which threads can sleep and futures can wait.
///
/// A clock that keeps real time needs only [`now`](Self::now). A clock that does not, or an executor's clock with its
/// own timers, must also implement [`wake_at`](Self::wake_at).
pub trait Clock: Send + Sync {
    /// The time now, in nanoseconds since the clock's origin. It never decreases.
    fn now(&self) -> Nanos;

    /// Blocks the thread, and returns at `time` or a little later, never earlier.
    fn sleep_until(&self, time: Nanos) {
        self.sleep_unless(time, &|| false);
    }

    /// Sleeps until `time`, like [`sleep_until`](Self::sleep_until), and returns true; but returns false as soon as
    /// `is_over` is true.
    ///
    /// `is_over` is asked first, then whenever another thread [unparks](Thread::unpark) this one, and again at `time`.
    /// Unparking for another reason does no harm. To wait for the earliest of several times, sleep until the least of
    /// them. To look at something every 5 seconds on the way, sleep until `time.min(self.now() + 5 * SECOND)`, look,
    /// and sleep again.
    fn sleep_unless(&self, time: Nanos, is_over: &dyn Fn() -> bool) -> bool {
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
    /// Without one of the clock's own, the thread `throttle-timer` sleeps in real time. All such clocks and all queues
    /// share it; it exists while somebody waits, and for a second after that. If the system allows no thread, `waker`
    /// is woken at once, from within this call.
    fn wake_at(&self, time: Nanos, waker: &Waker) {
        let wait = Duration::from_nanos(time.saturating_sub(self.now()));
        let now = Instant::now();
        // As far as the system can count; a waiter that is woken too early asks again.
        let time = now.checked_add(wait).unwrap_or(now + Duration::from_secs(86_400));
        TimerThread::of_process().wake_at(time, waker);
    }
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

/// [`Clock::sleep_unless`] for a clock that keeps real time; it reads the clock again after `longest`.
pub(super) fn park_until(clock: &impl Clock, time: Nanos, is_over: &dyn Fn() -> bool, longest: Duration) -> bool {
    loop {
        // The clock is read first: what is over at `time` is noticed.
        let left = time.saturating_sub(clock.now());
        if is_over() {
            return false;
        }
        if left == 0 {
            return true;
        }
        thread::park_timeout(longest.min(Duration::from_nanos(left)));
    }
}
