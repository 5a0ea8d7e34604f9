//! One limiter and many runtimes that end while others wait: no waiter suffers, nothing is printed, and there are no
//! useless wake-ups.

use crate::limiters::{Count, ms, poll_once};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use throttle_limits::limiter::Limiter;
use tokio::runtime::{Builder, Runtime};

fn runtime(paused: bool) -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(paused).build().unwrap()
}

/// Counts the panics of tokio, and of limiters, in this process.
fn count_panics() -> &'static AtomicUsize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Other tests of this process panic on purpose. Their threads are named after them, as ours is.
        let is_others =
            std::thread::current().name().is_some_and(|name| name.contains("::") && !name.starts_with("runtime_ends"));
        if !is_others && info.location().is_none_or(|place| !place.file().contains("tests/")) {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        hook(info);
    }));
    &PANICS
}

/// A runtime whose tasks wait, and that ends at some moment of the wait.
fn live_and_end(limiter: &Limiter, number: u64) {
    // Paused clocks are not waited for in real time, so none of these delays the others.
    let runtime = runtime(number % 8 == 7);
    for _ in 0..3 {
        let limiter = limiter.clone();
        runtime.spawn(async move { drop(limiter.acquire(1).timeout(ms(5)).await) });
    }
    runtime.block_on(async {
        let mut waiter = Box::pin(limiter.acquire(1));
        for _ in 0..=number % 3 {
            let _ = poll_once(&mut waiter);
            tokio::task::yield_now().await;
        }
    });
    if number.is_multiple_of(5) {
        std::thread::sleep(Duration::from_micros(number % 130));
    }
}

/// Keeps waiting, in one runtime after another, and returns how often it was granted.
fn acquire_until(limiter: &Limiter, over: &AtomicBool) -> u32 {
    let mut granted = 0;
    while !over.load(Ordering::SeqCst) {
        runtime(false).block_on(async {
            for _ in 0..50 {
                limiter.acquire(1).await.unwrap();
                granted += 1;
            }
        });
    }
    granted
}

#[test]
fn ten_thousand_runtimes_end_without_a_lost_wake_up() {
    let panics = count_panics();
    let limiter = Limiter::new(20_000, 1).unwrap();
    let over = AtomicBool::new(false);
    let granted = std::thread::scope(|scope| {
        let (limiter, over) = (&limiter, &over);
        let end = move |thread| (0..2500).for_each(|number| live_and_end(limiter, thread + number));
        let ends: Vec<_> = (0..4_u64).map(|thread| scope.spawn(move || end(thread))).collect();
        let waiters = [(); 2].map(|()| scope.spawn(move || acquire_until(limiter, over)));
        for end in ends {
            end.join().unwrap();
        }
        over.store(true, Ordering::SeqCst);
        waiters.map(|waiter| waiter.join().unwrap())
    });
    assert_eq!(panics.load(Ordering::SeqCst), 0);
    assert!(granted.iter().all(|granted| *granted >= 50), "{granted:?}");
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn the_end_of_a_runtime_wakes_no_other_waiter() {
    let limiter = Limiter::new(0.001, 1).unwrap();
    limiter.try_acquire(1).unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let here = runtime(false);
    let mut line: Vec<_> = (0..100).map(|_| Box::pin(limiter.acquire(1))).collect();
    here.block_on(async {
        for waiter in &mut line {
            assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    });
    for _ in 0..100 {
        let other = runtime(false);
        let mut waiter = Box::pin(limiter.acquire(1));
        other.block_on(async { assert!(poll_once(&mut waiter).is_pending()) });
        drop(other);
    }
    drop(here);
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    assert_eq!(limiter.waiters(), 100);
}

/// A blocked runtime, which notices nothing, delays only its own tasks.
#[test]
fn a_blocked_runtime_delays_no_other_runtime() {
    let start = Instant::now();
    let limiter = Limiter::new(100, 1).unwrap();
    limiter.try_acquire(1).unwrap();
    let blocked = runtime(false);
    let mut head = Box::pin(limiter.acquire(1));
    blocked.block_on(async { assert!(poll_once(&mut head).is_pending()) });
    runtime(false).block_on(limiter.acquire(1)).unwrap();
    assert!(start.elapsed() >= ms(18), "{:?}", start.elapsed());
    assert!(poll_once(&mut head).is_ready());
}

/// A static limiter used by tests with paused clocks.
#[test]
fn runtimes_with_paused_clocks_share_a_limiter() {
    let limiter = Limiter::new(1, 1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    runtime(true).block_on(async {
                        for _ in 0..5 {
                            limiter.acquire(1).await.unwrap();
                        }
                    });
                }
            });
        }
    });
    assert_eq!(limiter.waiters(), 0);
}
