//! Which waiters are woken, how often, and by what. The timer belongs to the queue, whichever waiter is polled.

use crate::limiters::{Count, FakeTimer, Panicking, ms, poll_once};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use throttle_limits::clock::NanoClock;
use throttle_limits::limiter::Limiter;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// A limiter whose next unit comes after 200 ms. A busy machine needs longer than 20 ms to make a runtime.
fn taken() -> Limiter {
    let limiter = Limiter::new(5, 1).unwrap();
    limiter.try_acquire(1).unwrap();
    limiter
}

#[test]
fn a_first_waiter_that_is_polled_only_once_blocks_no_other() {
    paused().block_on(async {
        let limiter = Limiter::new(10, 1).unwrap();
        limiter.acquire(1).await.unwrap();
        let start = tokio::time::Instant::now();
        let mut left_alone = Box::pin(limiter.acquire(1));
        assert!(poll_once(&mut left_alone).is_pending());
        limiter.acquire(1).await.unwrap();
        assert_eq!(start.elapsed(), ms(200));
        std::mem::forget(left_alone);
    });
}

#[test]
fn a_first_waiter_whose_runtime_is_dropped_blocks_no_other() {
    let limiter = taken();
    let gone = runtime();
    let mut head = Box::pin(limiter.acquire(1));
    gone.block_on(async { assert!(poll_once(&mut head).is_pending()) });
    let other = runtime();
    let mut next = Box::pin(limiter.acquire(1));
    other.block_on(async { assert!(poll_once(&mut next).is_pending()) });
    drop(gone);
    other.block_on(next).unwrap();
    other.block_on(head).unwrap();
}

#[test]
fn a_first_waiter_whose_runtime_stops_blocks_no_other() {
    let start = Instant::now();
    let limiter = taken();
    let idle = runtime();
    let mut head = Box::pin(limiter.acquire(1));
    idle.block_on(async { assert!(poll_once(&mut head).is_pending()) });
    runtime().block_on(limiter.acquire(1)).unwrap();
    assert!(start.elapsed() >= ms(400));
    assert!(poll_once(&mut head).is_ready());
}

#[test]
fn a_waiter_that_moves_to_another_runtime_keeps_its_alarm() {
    let limiter = taken();
    let first = runtime();
    let mut waiter = Box::pin(limiter.acquire(1));
    first.block_on(async { assert!(poll_once(&mut waiter).is_pending()) });
    drop(first);
    runtime().block_on(waiter).unwrap();
}

#[test]
fn a_task_that_waits_outside_its_runtime_needs_no_runtime() {
    let limiter = taken();
    let gone = runtime();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut waiter = Box::pin(limiter.acquire(1));
    {
        let _context = gone.enter();
        assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(gone);
    until(|| count.0.load(Ordering::SeqCst) == 1);
    assert_eq!(poll_once(&mut waiter), Poll::Ready(Ok(())));
}

fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(ms(1));
    }
}

#[test]
fn a_thread_behind_an_unpolled_task_is_served() {
    let limiter = taken();
    let idle = runtime();
    let mut head = Box::pin(limiter.acquire(1));
    idle.block_on(async { assert!(poll_once(&mut head).is_pending()) });
    limiter.acquire(1).block().unwrap();
    assert!(poll_once(&mut head).is_ready());
}

#[test]
fn a_thread_that_leaves_passes_timekeeping_to_the_next() {
    let start = Instant::now();
    let limiter = Limiter::new(200, 1).unwrap();
    limiter.try_acquire(1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| limiter.acquire(1).block().unwrap());
        }
        let leaves = scope.spawn(|| limiter.acquire(1).timeout(ms(60)).block().is_ok());
        let _ = leaves.join().unwrap();
    });
    assert!(start.elapsed() >= ms(50));
}

#[test]
fn a_future_waits_on_an_executor_that_knows_no_timers() {
    let limiter = Limiter::new(50, 1).unwrap();
    let start = Instant::now();
    ByHand::default().block_on(async {
        for _ in 0..3 {
            limiter.acquire(1).await.unwrap();
        }
    });
    assert!(start.elapsed() >= ms(40));
}

#[test]
fn a_future_waits_on_a_runtime_without_a_time_driver() {
    let limiter = Limiter::new(50, 1).unwrap();
    let start = Instant::now();
    Builder::new_current_thread().build().unwrap().block_on(async {
        for _ in 0..3 {
            limiter.acquire(1).await.unwrap();
        }
    });
    assert!(start.elapsed() >= ms(40));
}

#[test]
fn another_executor_with_a_timer_of_its_own() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(3, Duration::from_secs(1)).burst(1).clock(timer.clone()).build().unwrap();
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(limiter.acquire(1))).collect();
    let mut done = line.iter_mut().map(poll_once).filter(Poll::is_ready).count();
    while timer.to_next() {
        done += 1;
    }
    assert_eq!((done, timer.now()), (4, 1_000_000_000));
}

/// A hand-written executor: it polls, and parks until it is woken or its own alarm is due.
#[derive(Default)]
struct ByHand {
    alarm: Mutex<Option<(Duration, Waker)>>,
    origin: OnceLock<Instant>,
}

impl throttle_limits::clock::Clock for ByHand {
    fn now(&self) -> Duration {
        self.origin.get_or_init(Instant::now).elapsed()
    }

    fn wake_at(&self, time: Duration, waker: &Waker) {
        *self.alarm.lock().unwrap() = Some((time, waker.clone()));
    }
}

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl ByHand {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = Box::pin(future);
        let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            let due = self
                .alarm
                .lock()
                .unwrap()
                .as_ref()
                .map(|(time, _)| time.saturating_sub(throttle_limits::clock::Clock::now(self)));
            match due {
                Some(Duration::ZERO) => {
                    let rings = self.alarm.lock().unwrap().take();
                    rings.unwrap().1.wake();
                }
                Some(wait) => std::thread::park_timeout(wait),
                None => std::thread::park(),
            }
        }
    }
}

#[test]
fn an_executor_of_our_own_without_tokio() {
    let executor = Arc::new(ByHand::default());
    let limiter = Limiter::builder().rate(1000, ms(1000)).burst(1).clock(executor.clone()).build().unwrap();
    let start = Instant::now();
    executor.block_on(async {
        for _ in 0..50 {
            limiter.acquire(1).await.unwrap();
        }
    });
    assert!(start.elapsed() >= ms(48), "{:?}", start.elapsed());
}

#[test]
fn a8_at_most_three_wake_ups_per_grant_in_tokio_tasks() {
    for waiters in [1_000_u64, 100_000] {
        let count = Arc::new(Count::default());
        paused().block_on(async {
            let limiter = Limiter::new(1_000_000, 1).unwrap();
            limiter.acquire(1).await.unwrap();
            let start = tokio::time::Instant::now();
            let waker = Waker::from(count.clone());
            let mut line: Vec<_> = (0..waiters).map(|_| Box::pin(limiter.acquire(1))).collect();
            for one in &mut line {
                assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            while limiter.waiters() > 0 {
                tokio::time::sleep(ms(1)).await;
            }
            assert!(start.elapsed() <= Duration::from_micros(waiters) + ms(2));
            assert!(line.iter_mut().all(|one| poll_once(one).is_ready()));
        });
        let wakes = count.0.load(Ordering::SeqCst) as u64;
        assert_eq!(wakes, waiters, "each is woken once");
    }
}

#[test]
fn a_thousand_tasks_at_a_thousand_a_second() {
    let elapsed = runtime().block_on(async {
        let limiter = Limiter::new(1000, 1).unwrap();
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..1000 {
            let limiter = limiter.clone();
            tasks.spawn(async move { limiter.acquire(1).await.unwrap() });
        }
        tasks.join_all().await;
        start.elapsed()
    });
    // The ideal is 0.999 s; the benchmark checks 1.002 s on an idle machine.
    assert!(elapsed >= ms(998), "{elapsed:?}");
}

#[test]
fn late_timers_cost_one_task_after_another_no_rate() {
    let elapsed = paused().block_on(async {
        let limiter = Limiter::new(10_000, 1).unwrap();
        let start = tokio::time::Instant::now();
        for _ in 0..20_000 {
            limiter.acquire(1).await.unwrap();
        }
        start.elapsed()
    });
    assert!(elapsed >= Duration::from_micros(1_999_900) && elapsed <= ms(2001), "{elapsed:?}");
}

/// The allowance is a tenth of the time that fills the bucket, but at least 10 ms or that whole time, whichever is less, and at
/// least 2 ms: 2, 10 and 100 ms here. It was the whole time that fills the bucket, and at least 2 ms.
#[test]
fn law3_a_waiter_that_wakes_late_keeps_only_the_allowance() {
    for (rate, burst, kept) in [(10_000, 1, 21), (1000, 20, 11), (100, 100, 11)] {
        let timer = Arc::new(FakeTimer::default());
        let second = Duration::from_secs(1);
        let limiter = Limiter::builder().rate(rate, second).burst(burst).clock(timer.clone()).build().unwrap();
        limiter.try_acquire(burst).unwrap();
        let mut line: Vec<_> = (0..1000).map(|_| Box::pin(limiter.acquire(1))).collect();
        for one in &mut line {
            assert!(poll_once(one).is_pending());
        }
        timer.to(2_000_000_000); // Nobody looked for two seconds.
        assert_eq!(limiter.waiters(), 1000 - kept, "{rate}/s: what comes in the allowance, and the one at its end");
        timer.to(2_000_000_000 + 1_000_000_000 / rate);
        assert_eq!(limiter.waiters(), 1000 - kept - 1, "{rate}/s: then at the rate again");
        drop(line);
        timer.to(4_000_000_000);
        assert!(limiter.try_acquire(burst).is_ok());
        assert!(limiter.try_acquire(1).is_err(), "{rate}/s: at rest the burst is what it was");
    }
}

#[test]
fn wakers_that_poll_at_once_find_no_lock_held() {
    struct Polls(Limiter);
    impl Wake for Polls {
        fn wake(self: Arc<Self>) {
            let mut next = Box::pin(self.0.acquire(1));
            let _ = poll_once(&mut next);
            drop(next);
            let _ = self.0.available();
        }
    }
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(1, Duration::from_secs(1)).burst(1).clock(timer.clone()).build().unwrap();
    limiter.try_acquire(1).unwrap();
    let waker = Waker::from(Arc::new(Polls(limiter.clone())));
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(timer.to_next());
    assert!(poll_once(&mut waiter).is_ready());
}

#[test]
fn a_panicking_waker_does_not_stop_other_wake_ups() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(1000, ms(1000)).burst(3).clock(timer.clone()).build().unwrap();
    limiter.try_acquire(3).unwrap();
    let (bad, count) = (Waker::from(Arc::new(Panicking)), Arc::new(Count::default()));
    let good = Waker::from(count.clone());
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(limiter.acquire(1))).collect();
    for (one, waker) in line.iter_mut().zip([&bad, &good, &bad, &good]) {
        assert!(one.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    timer.set(3_000_000);
    assert_eq!(limiter.waiters(), 1, "the panic ends in the waker");
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    timer.to(4_000_000);
    assert_eq!(count.0.load(Ordering::SeqCst), 2, "and the alarm was set again");
}

/// A timer that fails on the first alarm, as foreign code may.
#[derive(Default)]
struct PanicsOnce(FakeTimer, AtomicUsize);

impl throttle_limits::clock::Clock for PanicsOnce {
    fn now(&self) -> Duration {
        throttle_limits::clock::Clock::now(&self.0)
    }

    fn wake_at(&self, time: Duration, waker: &Waker) {
        if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        throttle_limits::clock::Clock::wake_at(&self.0, time, waker);
    }
}

#[test]
fn a_timer_that_panics_is_called_again() {
    let timer = Arc::new(PanicsOnce::default());
    let limiter = Limiter::builder().rate(10, ms(1000)).burst(1).clock(timer.clone()).build().unwrap();
    limiter.try_acquire(1).unwrap();
    let mut first = Box::pin(limiter.acquire(1));
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut first))).is_err(), "it is not swallowed");
    drop(first);
    assert_eq!(limiter.waiters(), 0, "and left no waiter");
    let mut second = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut second).is_pending());
    assert!(timer.0.to_next());
    assert!(poll_once(&mut second).is_ready());
}

/// With `panic = "abort"`, the panic that tokio raises for such a poll would end the process.
#[test]
fn dropping_a_runtime_while_its_waiter_is_due_causes_no_panic() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.to_string().contains("shutdown") {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        hook(info);
    }));
    for number in 0..1500 {
        let limiter = Limiter::new(2000, 1).unwrap();
        limiter.try_acquire(1).unwrap();
        let gone = Builder::new_current_thread().enable_all().build().unwrap();
        let mut waiter = Box::pin(async {
            for _ in 0..4 {
                limiter.acquire(1).await.unwrap();
            }
        });
        gone.block_on(async { assert!(poll_once(&mut waiter).is_pending()) });
        std::thread::sleep(Duration::from_micros(number % 700));
        drop(gone);
        if number % 100 == 0 {
            runtime().block_on(waiter);
        }
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[test]
fn a_future_waits_in_the_context_of_a_runtime_that_has_ended() {
    let gone = runtime();
    let handle = gone.handle().clone();
    drop(gone);
    let _context = handle.enter();
    // A runtime may take a while to end, so the unit is taken after that.
    let limiter = Limiter::new(2, 1).unwrap();
    limiter.try_acquire(1).unwrap();
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    until(|| poll_once(&mut waiter).is_ready());
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn threads_of_a_runtime_and_other_threads_share_one_queue() {
    let limiter = Limiter::new(20_000, 1).unwrap();
    let start = Instant::now();
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..500 {
                    limiter.acquire(1).block().unwrap();
                }
            });
        }
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..1000 {
                let limiter = limiter.clone();
                tasks.spawn(async move {
                    // Every third waiter cancels.
                    let patience = if number % 3 == 0 { ms(3) } else { Duration::from_secs(60) };
                    tokio::time::timeout(patience, limiter.acquire(1)).await.is_ok()
                });
            }
            assert!(tasks.join_all().await.iter().filter(|granted| **granted).count() >= 666);
        });
    });
    assert!(start.elapsed() >= ms(82), "{:?}", start.elapsed());
    assert_eq!(limiter.waiters(), 0);
}
