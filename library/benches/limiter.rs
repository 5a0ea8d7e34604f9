//! The library's speed compared with governor and leaky-bucket: `cargo bench --bench limiter`.
//!
//! The targets, on the same clock: `try_acquire`, granted or refused, takes at most 1.2 times as long as governor's `check`,
//! and 1.5 times on two threads; with 1 and 1000 keys as long as `check_key`, with a million keys 0.7 times; with default
//! clocks 1.5 times. An uncontended `acquire` takes at most 0.9 times as long as leaky-bucket's fair `acquire_one`.
//! `time_until`, and a timeout, behind 20 000 waiters: 50 µs. 1000 tasks at 1000 per second finish within 1.002 s;
//! 10 000 per second are kept within 1 %.

use criterion::{Criterion, criterion_group, criterion_main};
use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use throttle_limits::clock::{Clock, FakeClock, MILLISECOND, Nanos};
use throttle_limits::limiter::{Acquire, Keyed, Limiter, Units};
use tokio::runtime::{Builder, Runtime};

/// So fast that every call is granted, with so large a bucket that it need not be full.
const RATE: u32 = 1_000_000_000;
const BURST: u32 = 1_000_000_000;

fn ours() -> Limiter {
    Limiter::new(RATE, BURST).expect("a valid rate")
}

/// As many are granted, but the bucket is never full again: the case that the fast path is for.
fn ours_from_the_store() -> Limiter {
    Limiter::new(1_000, BURST).expect("a valid rate")
}

/// The processor's counter, as governor reads it.
struct Counter(quanta::Clock);

impl Clock for Counter {
    fn now(&self) -> Nanos {
        self.0.delta_as_nanos(0, self.0.raw())
    }
}

fn ours_on_the_counter(rate: impl Into<Units>, burst: u32) -> Limiter {
    let builder = Limiter::builder().rate(rate, Duration::from_secs(1)).burst(burst);
    builder.timer(Arc::new(Counter(quanta::Clock::new()))).build().expect("a valid rate")
}

fn governors() -> governor::DefaultDirectRateLimiter {
    let (rate, burst) = (NonZeroU32::new(RATE), NonZeroU32::new(BURST));
    let quota = governor::Quota::per_second(rate.expect("not 0")).allow_burst(burst.expect("not 0"));
    governor::RateLimiter::direct(quota)
}

/// By default governor reads the processor's counter. This measures it on the clock that this library uses by default.
fn governors_on_our_clock() -> impl Fn() -> bool {
    let quota = governor::Quota::per_second(NonZeroU32::new(RATE).expect("not 0"));
    let clock = governor::clock::MonotonicClock;
    let limiter = governor::RateLimiter::<_, _, _, governor::middleware::NoOpMiddleware<Instant>>::direct_with_clock(
        quota, clock,
    );
    move || limiter.check().is_ok()
}

fn leaky_buckets() -> leaky_bucket::RateLimiter {
    leaky_bucket::RateLimiter::builder().max(usize::MAX / 2).initial(usize::MAX / 4).refill(1_000_000).build()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn trying(c: &mut Criterion) {
    let mut group = c.benchmark_group("try, granted");
    let (ours, stored, governors, leaky) = (ours(), ours_from_the_store(), governors(), leaky_buckets());
    group.bench_function("throttle", |b| b.iter(|| black_box(ours.try_acquire(1)).is_ok()));
    group.bench_function("throttle, bucket not full", |b| b.iter(|| black_box(stored.try_acquire(1)).is_ok()));
    let counted = ours_on_the_counter(RATE, BURST);
    group.bench_function("throttle, the counter", |b| b.iter(|| black_box(counted.try_acquire(1)).is_ok()));
    group.bench_function("governor, the counter", |b| b.iter(|| black_box(governors.check()).is_ok()));
    let on_our_clock = governors_on_our_clock();
    group.bench_function("governor, the system's clock", |b| b.iter(|| black_box(on_our_clock())));
    let runtime = runtime();
    let _context = runtime.enter();
    group.bench_function("leaky-bucket", |b| b.iter(|| black_box(leaky.try_acquire(1))));
    group.finish();
}

fn refusals(c: &mut Criterion) {
    let mut group = c.benchmark_group("try, refused");
    let ours = Limiter::new(0.001, 1).expect("a valid rate");
    let quota = governor::Quota::with_period(Duration::from_secs(1000)).expect("not 0");
    let governors = governor::RateLimiter::direct(quota);
    let counted = ours_on_the_counter(0.001, 1);
    group.bench_function("throttle", |b| b.iter(|| black_box(ours.try_acquire(1)).is_ok()));
    group.bench_function("throttle, the counter", |b| b.iter(|| black_box(counted.try_acquire(1)).is_ok()));
    group.bench_function("governor, the counter", |b| b.iter(|| black_box(governors.check()).is_ok()));
    // This library's refusal says how long the wait would be. Governor calculates that when it is asked, on another reading.
    let clock = governor::clock::DefaultClock::default();
    let wait = || governors.check().map_err(|refused| refused.wait_time_from(governor::clock::Clock::now(&clock)));
    group.bench_function("governor, the counter, and the wait", |b| b.iter(|| black_box(wait()).is_ok()));
    group.finish();
}

/// `iterations` of `call` on each of two threads at once.
fn on_two_threads(iterations: u64, call: impl Fn() + Sync) -> Duration {
    on_threads(2, iterations, |_| call())
}

/// Like [`on_two_threads`]; `call` gets its own number.
fn on_threads(threads: u64, iterations: u64, call: impl Fn(u64) + Sync) -> Duration {
    let run = |thread| (0..iterations).for_each(|k| call(threads * k + thread));
    let start = Instant::now();
    std::thread::scope(|scope| {
        (1..threads).for_each(|thread| drop(scope.spawn(move || run(thread))));
        run(0);
    });
    start.elapsed()
}

fn contended(c: &mut Criterion) {
    let mut group = c.benchmark_group("try, granted, two threads");
    let (ours, counted, governors) = (ours_from_the_store(), ours_on_the_counter(1_000, BURST), governors());
    group.bench_function("throttle", |b| b.iter_custom(|n| on_two_threads(n, || drop(black_box(ours.try_acquire(1))))));
    group.bench_function("throttle, the counter", |b| {
        b.iter_custom(|n| on_two_threads(n, || drop(black_box(counted.try_acquire(1)))));
    });
    group.bench_function("governor, the counter", |b| {
        b.iter_custom(|n| on_two_threads(n, || drop(black_box(governors.check()))));
    });
    group.finish();
}

/// Keys in an order without pattern, the same for all.
fn key(call: u64, keys: u64) -> u64 {
    ((call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * keys) >> 32
}

/// At 1000 a second a key is as new again after a millisecond, so most of a million are forgotten before they come again.
/// At 1 a second all are kept. Governor keeps all.
fn keyed(c: &mut Criterion) {
    for (keys, rate, kept) in [(1, 1, ""), (1000, 1, ""), (1_000_000, 1, " kept"), (1_000_000, 1000, " forgotten")] {
        let ours = Keyed::<u64>::new(rate, BURST).expect("a valid rate");
        let builder = Limiter::builder().rate(rate, Duration::from_secs(1)).burst(BURST);
        let counted: Keyed<u64> = builder.timer(Arc::new(Counter(quanta::Clock::new()))).keyed().expect("a valid rate");
        let quota = governor::Quota::per_second(NonZeroU32::new(RATE).expect("not 0"));
        let governors = governor::DefaultKeyedRateLimiter::<u64>::keyed(quota);
        let calls: [(&str, &(dyn Fn(u64) + Sync)); 3] = [
            ("throttle", &|k| drop(black_box(ours.try_acquire(&key(k, keys), 1)))),
            ("throttle, the counter", &|k| drop(black_box(counted.try_acquire(&key(k, keys), 1)))),
            ("governor, the counter", &|k| drop(black_box(governors.check_key(&key(k, keys))))),
        ];
        for threads in [1, 2] {
            let mut group = c.benchmark_group(format!("try, granted, {keys} keys{kept}, threads: {threads}"));
            for (name, call) in calls {
                (0..4 * keys).for_each(call);
                group.bench_function(name, |b| b.iter_custom(|n| on_threads(threads, n, call)));
            }
            group.finish();
        }
    }
}

fn acquiring(c: &mut Criterion) {
    let mut group = c.benchmark_group("acquire, uncontended");
    let runtime = runtime();
    let (ours, leaky) = (ours_from_the_store(), leaky_buckets());
    let same_names =
        throttle_limits::leaky_bucket::RateLimiter::builder().max(usize::MAX / 2).initial(usize::MAX / 4).build();
    group.bench_function("throttle", |b| {
        b.iter_custom(|n| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..n {
                    ours.acquire(1).await.expect("granted");
                }
                start.elapsed()
            })
        });
    });
    group.bench_function("throttle_limits::leaky_bucket", |b| {
        b.iter_custom(|n| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..n {
                    same_names.acquire_one().await;
                }
                start.elapsed()
            })
        });
    });
    group.bench_function("leaky-bucket, fair", |b| {
        b.iter_custom(|n| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..n {
                    leaky.acquire_one().await;
                }
                start.elapsed()
            })
        });
    });
    group.finish();
}

fn precision(c: &mut Criterion) {
    let mut group = c.benchmark_group("1000 tasks through 1000 a second");
    group.sample_size(10).measurement_time(Duration::from_secs(10)).warm_up_time(Duration::from_millis(1));
    let runtime = runtime();
    group.bench_function("throttle", |b| b.iter(|| runtime.block_on(one_second_of_tasks(1000))));
    group.finish();
    precision_of_many(c);
}

/// Real time. A current-thread runtime needs 3 ms of it to create the tasks, before the first grant.
fn precision_of_many(c: &mut Criterion) {
    let mut group = c.benchmark_group("10000 tasks through 10000 a second");
    group.sample_size(10).measurement_time(Duration::from_secs(10)).warm_up_time(Duration::from_millis(1));
    let threads = Builder::new_multi_thread().enable_time().build().expect("a runtime");
    for (name, runtime) in [("current_thread", runtime()), ("multi_thread", threads)] {
        group.bench_function(name, |b| b.iter(|| runtime.block_on(one_second_of_tasks(10_000))));
    }
    group.finish();
}

async fn one_second_of_tasks(rate: u32) {
    let limiter = Limiter::new(rate, 1).expect("a valid rate");
    let tasks: Vec<_> = (0..rate)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire(1).await })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic").expect("granted");
    }
}

/// `n` waiters in the queue.
fn line(limiter: &Limiter, n: usize) -> Vec<Option<Pin<Box<Acquire<'_>>>>> {
    let mut line: Vec<_> = (0..n).map(|_| Some(Box::pin(limiter.acquire(1)))).collect();
    for waiter in line.iter_mut().flatten() {
        let _ = waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    line
}

fn lines(c: &mut Criterion) {
    let mut group = c.benchmark_group("a queue of waiters");
    group.sample_size(10).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(100));
    let runtime = runtime();
    let _context = runtime.enter();
    for n in [1000, 100_000] {
        group.bench_function(format!("{n} cancelled in an order without pattern"), |b| {
            b.iter_custom(|iterations| (0..iterations).map(|_| cancelled(n)).sum());
        });
        group.bench_function(format!("{n} drained"), |b| {
            b.iter_custom(|iterations| (0..iterations).map(|_| runtime.block_on(drained(n))).sum());
        });
    }
    group.finish();
}

fn cancelled(n: usize) -> Duration {
    let limiter = Limiter::new(0.001, 1).expect("a valid rate");
    let _ = limiter.try_acquire(1);
    let mut line = line(&limiter, n);
    let start = Instant::now();
    // 61 803 has no common factor with the number, so each waiter is visited once.
    (0..n).for_each(|k| drop(line[k * 61_803 % n].take()));
    start.elapsed()
}

async fn drained(n: usize) -> Duration {
    let limiter = Limiter::new(1, n as u64).expect("a valid rate");
    let _ = limiter.try_acquire(n as u64);
    let line = line(&limiter, n);
    limiter.reconcile(0, n as u64 - 1).expect("amounts");
    limiter.set_rate(1_000_000_000, Duration::from_secs(1)).expect("a valid rate");
    let start = Instant::now();
    for waiter in line.into_iter().flatten() {
        waiter.await.expect("granted");
    }
    start.elapsed()
}

/// What is asked behind 20 000 waiters: again, and after each grant, when another waiter has joined.
fn behind_waiters(c: &mut Criterion) {
    let mut group = c.benchmark_group("behind 20000 waiters");
    for limits in ["1000/s,burst=1", "1000/s,burst=1 50000/min,burst=50000", "1000/s,burst=1 50000/min,window"] {
        let clock = FakeClock::default();
        let builder = Limiter::builder().timer(Arc::new(clock.clone()));
        let builder = limits.split(' ').fold(builder, |all, limit| all.limit(limit.parse().expect("a limit")));
        let limiter = builder.build().expect("valid limits");
        let mut line = VecDeque::from(line(&limiter, 20_000));
        let ask = || limiter.time_until(1).is_ok();
        group.bench_function(format!("{limits}: time_until"), |b| b.iter(|| black_box(ask())));
        group.bench_function(format!("{limits}: a timeout"), |b| {
            b.iter(|| refused_at_once(limiter.acquire_timeout(1, Duration::from_millis(1))));
        });
        group.bench_function(format!("{limits}: time_until after a grant"), |b| {
            b.iter_custom(|n| {
                let mut ask_after_a_grant = || {
                    // Nobody wakes at once.
                    clock.advance(MILLISECOND / 50);
                    let mut head = line.pop_front().flatten().expect("a waiter");
                    let polled = head.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    if polled.is_pending() {
                        line.push_front(Some(head)); // The window is full.
                    } else {
                        line.extend(self::line(&limiter, 1));
                    }
                    clock.advance(MILLISECOND - MILLISECOND / 50);
                    let start = Instant::now();
                    black_box(ask());
                    start.elapsed()
                };
                (0..n).map(|_| ask_after_a_grant()).sum()
            });
        });
    }
    group.finish();
}

fn refused_at_once(mut acquire: Acquire<'_>) {
    let polled = Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, std::task::Poll::Ready(Err(_))));
}

criterion_group!(benches, trying, refusals, contended, keyed, acquiring, precision, lines, behind_waiters);
criterion_main!(benches);
