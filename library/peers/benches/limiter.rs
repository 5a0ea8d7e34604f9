//! The library beside governor and leaky-bucket: `cargo bench -p throttle-peers` prints one table.
//!
//! The two of a row take turns, so that what else the machine does slows both. Times are medians of the turns, and the
//! ratio is the median of their ratios.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use throttle_limits::Semaphore;
use throttle_limits::clock::{FakeClock, MILLISECOND};
use throttle_limits::leaky_bucket as same_names;
use throttle_limits::limiter::{Acquire, Builder, Keyed, Limiter, Units};
use tokio::runtime::{self, Runtime};

const TURNS: usize = 11;
const TURN: Duration = Duration::from_millis(40);

/// Calls in a turn of a row without another beside it.
const MANY: u32 = 100_000;
const FEW: u32 = 100;

/// So fast that every call is granted, with so large a bucket that it need not be full.
const RATE: u32 = 1_000_000_000;
const BURST: u32 = 1_000_000_000;

fn main() {
    println!("| work | throttle-limits | compared with | result | at most | |\n|---|---|---|---|---|---|");
    trying();
    refusals();
    keyed();
    acquiring();
    queues();
    behind_waiters();
    precision();
}

/// Runs of so many calls; how long they took.
type Calls<'a> = &'a mut dyn FnMut(u32) -> Duration;

/// A row of two that do the same. The first call of each is not measured.
fn row(work: &str, (who, beside): (&str, Calls<'_>), ours: Calls<'_>, at_most: Option<f64>) {
    let (n, m) = (calls_in_a_turn(ours), calls_in_a_turn(beside));
    let turns: Vec<(f64, f64)> = (0..TURNS).map(|_| (per_call(ours, n), per_call(beside, m))).collect();
    let ratio = median(turns.iter().map(|(ours, theirs)| ours / theirs));
    let (ours, theirs) = (median(turns.iter().map(|turn| turn.0)), median(turns.iter().map(|turn| turn.1)));
    let (most, met) = at_most.map_or_else(Default::default, |most| (format!("{most}×"), met(ratio <= most)));
    println!("| {work} | {} | {who} {} | {ratio:.2}× | {most} | {met} |", time(ours), time(theirs));
}

/// A row without another beside it, whose bound is in seconds.
fn alone(work: &str, calls: Calls<'_>, n: u32, at_most: Option<f64>) {
    let took = median((0..TURNS).map(|_| per_call(calls, n)));
    let (most, met) = at_most.map_or_else(Default::default, |most| (time(most), met(took <= most)));
    println!("| {work} | {} | | | {most} | {met} |", time(took));
}

fn calls_in_a_turn(calls: Calls<'_>) -> u32 {
    let mut n = 1;
    while calls(n) < TURN / 2 && n < 1 << 24 {
        n *= 2;
    }
    n
}

fn per_call(calls: Calls<'_>, n: u32) -> f64 {
    calls(n).as_secs_f64() / f64::from(n)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn met(met: bool) -> &'static str {
    if met { "met" } else { "**missed**" }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.2} µs", s * 1e6),
        s if s < 0.5 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.4} s"),
    }
}

fn limiter(rate: impl Into<Units>, burst: u32) -> Builder {
    Limiter::builder().rate(rate, Duration::from_secs(1)).burst(burst)
}

/// Every call is granted, but the bucket is never full again: the case that the fast path is for.
fn granting() -> Builder {
    limiter(1_000, BURST)
}

fn quota() -> governor::Quota {
    let (rate, burst) = (NonZeroU32::new(RATE), NonZeroU32::new(BURST));
    governor::Quota::per_second(rate.expect("not 0")).allow_burst(burst.expect("not 0"))
}

fn leaky_buckets() -> leaky_bucket::RateLimiter {
    leaky_bucket::RateLimiter::builder().max(usize::MAX / 2).initial(usize::MAX / 4).refill(1_000_000).build()
}

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn each<R>(call: impl Fn() -> R) -> impl FnMut(u32) -> Duration {
    move |n| timed(|| (0..n).for_each(|_| drop(black_box(call()))))
}

/// `n` calls on each of so many threads at once; `call` gets its own number.
fn on_threads(threads: u64, call: impl Fn(u64) + Sync) -> impl FnMut(u32) -> Duration {
    move |n| {
        let run = |thread| (0..u64::from(n)).for_each(|k| call(threads * k + thread));
        timed(|| {
            std::thread::scope(|scope| {
                (1..threads).for_each(|thread| drop(scope.spawn(move || run(thread))));
                run(0);
            });
        })
    }
}

fn trying() {
    let ours = granting().build().expect("a valid rate");
    let governors = governor::RateLimiter::direct(quota());
    let on_our_clock =
        governor::RateLimiter::<_, _, _, governor::middleware::NoOpMiddleware<Instant>>::direct_with_clock(
            quota(),
            governor::clock::MonotonicClock,
        );
    let ours = || ours.try_acquire(1).is_ok();
    let (governors, on_our_clock) = (|| governors.check().is_ok(), || on_our_clock.check().is_ok());
    let check = "governor's `check`";
    row(
        "`try_acquire`, granted, both on the system's clock",
        (check, &mut each(on_our_clock)),
        &mut each(ours),
        Some(1.2),
    );
    row("`try_acquire`, granted, each on its default clock", (check, &mut each(governors)), &mut each(ours), Some(1.5));
    let mut threads = (on_threads(2, |_| _ = black_box(ours())), on_threads(2, |_| _ = black_box(governors())));
    row("`try_acquire`, granted, two threads at once", (check, &mut threads.1), &mut threads.0, Some(1.5));
    let (runtime, leaky) = (runtime(), leaky_buckets());
    let _context = runtime.enter();
    let mut leaky = each(|| leaky.try_acquire(1));
    row("`try_acquire`, system's clock", ("leaky-bucket's", &mut leaky), &mut each(ours), None);
}

/// This library's refusal says how long the wait would be. Governor calculates that when it is asked, on another reading.
fn refusals() {
    let ours = limiter(0.001, 1).build().expect("a valid rate");
    let period = governor::Quota::with_period(Duration::from_secs(1000)).expect("not 0");
    let (governors, clock) = (governor::RateLimiter::direct(period), governor::clock::DefaultClock::default());
    let ours = || ours.try_acquire(1).is_ok();
    let wait = || governors.check().map_err(|refused| refused.wait_time_from(governor::clock::Clock::now(&clock)));
    let check = ("governor's `check`", &mut each(|| governors.check().is_ok()) as Calls<'_>);
    row("`try_acquire`, refused", check, &mut each(ours), Some(1.2));
    row(
        "`try_acquire`, refused",
        ("`check` and its waiting time", &mut each(|| wait().is_ok())),
        &mut each(ours),
        None,
    );
}

/// Keys in an order without pattern, the same for all.
fn key(call: u64, keys: u64) -> u64 {
    ((call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * keys) >> 32
}

/// At 1000 a second a key is as new again after a millisecond, so most of a million are forgotten before they come again.
/// At 1 a second all are kept. Governor keeps all.
fn keyed() {
    for (keys, rate, what) in [
        (1, 1, "1 key"),
        (1000, 1, "1000 keys"),
        (1_000_000, 1, "1 M keys, all kept"),
        (1_000_000, 1000, "1 M keys, forgotten before they return"),
    ] {
        let ours: Keyed<u64> = limiter(rate, BURST).keyed().expect("a valid rate");
        let governors = governor::DefaultKeyedRateLimiter::<u64>::keyed(quota());
        let ours = |k| drop(black_box(ours.try_acquire(&key(k, keys), 1)));
        let governors = |k| drop(black_box(governors.check_key(&key(k, keys))));
        (0..4 * keys).for_each(|k| (ours(k), governors(k)).1);
        for (threads, at_once) in [(1, ""), (2, ", two threads at once")] {
            let most = match (threads, keys) {
                (2, _) => 1.5,
                (_, 1_000_000) => 0.7,
                _ => 1.0,
            };
            let beside = ("`check_key`", &mut on_threads(threads, governors) as Calls<'_>);
            row(&format!("{what}{at_once}"), beside, &mut on_threads(threads, ours), Some(most));
        }
    }
}

/// Calls that are awaited one after another.
fn awaited<F: Future>(runtime: &Runtime, call: impl Fn() -> F) -> impl FnMut(u32) -> Duration {
    move |n| {
        timed(|| {
            runtime.block_on(async {
                for _ in 0..n {
                    let _ = black_box(call().await);
                }
            });
        })
    }
}

fn acquiring() {
    let (runtime, leaky) = (runtime(), leaky_buckets());
    let ours = granting().build().expect("a valid rate");
    let named = same_names::RateLimiter::builder().max(usize::MAX / 2).initial(usize::MAX / 4).build();
    let mut fair = awaited(&runtime, || leaky.acquire_one());
    let who = "leaky-bucket's fair `acquire_one`";
    row("`acquire` that need not wait", (who, &mut fair), &mut awaited(&runtime, || ours.acquire(1)), Some(1.0));
    row("`acquire_one` of the same name", (who, &mut fair), &mut awaited(&runtime, || named.acquire_one()), None);
    let (ours, theirs) = (Semaphore::new(16, RATE).expect("a valid rate"), tokio::sync::Semaphore::new(16));
    let mut theirs = awaited(&runtime, || theirs.acquire());
    row("`Semaphore::acquire`", ("tokio's", &mut theirs), &mut awaited(&runtime, || ours.acquire()), None);
    let limits = ["1000/s,burst=1000000000", "60000/min,burst=1000000000"].map(|limit| limit.parse().expect("a limit"));
    let two = limits.into_iter().fold(Limiter::builder(), Builder::limit).build().expect("two limits");
    alone("two limits, `try_acquire`", &mut each(|| two.try_acquire(1)), MANY, Some(60e-9));
    let (within, calls) = (granting().keyed_within::<u64>(&granting()).expect("valid rates"), Cell::new(0));
    let of_next_key = || within.try_acquire(&key(calls.replace(calls.get() + 1), 1000), 1);
    alone("1000 keys within overall limits", &mut each(of_next_key), MANY, None);
    let ours = granting().build().expect("a valid rate");
    let settled = || async { ours.acquire_to_settle(10).await.map(|granted| granted.settle(3)) };
    alone("`acquire_to_settle`, settled", &mut awaited(&runtime, settled), MANY, Some(100e-9));
}

/// `n` waiters in the queue.
fn line(limiter: &Limiter, n: u32) -> Vec<Option<Pin<Box<Acquire<'_>>>>> {
    let mut line: Vec<_> = (0..n).map(|_| Some(Box::pin(limiter.acquire(1)))).collect();
    for waiter in line.iter_mut().flatten() {
        let _ = waiter.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    line
}

/// What a waiter costs, among few and among many.
fn queues() {
    let runtime = runtime();
    let _context = runtime.enter();
    for n in [1000, 100_000] {
        for (what, took) in [("leaves", cancelled(n)), ("is granted", runtime.block_on(drained(n)))] {
            println!("| one of {n} waiters {what} | {} | | | | |", time(took.as_secs_f64() / f64::from(n)));
        }
    }
}

fn cancelled(n: u32) -> Duration {
    let limiter = Limiter::new(0.001, 1).expect("a valid rate");
    let _ = limiter.try_acquire(1);
    let mut line = line(&limiter, n);
    // 61 803 has no common factor with the number, so each waiter is visited once.
    let n = line.len();
    timed(|| (0..n).for_each(|k| drop(line[k * 61_803 % n].take())))
}

async fn drained(n: u32) -> Duration {
    let n = u64::from(n);
    let limiter = Limiter::new(1, n).expect("a valid rate");
    let _ = limiter.try_acquire(n);
    let line = line(&limiter, u32::try_from(n).unwrap_or(u32::MAX));
    limiter.reconcile(0, n - 1).expect("amounts");
    limiter.set_rate(RATE, Duration::from_secs(1)).expect("a valid rate");
    let start = Instant::now();
    for waiter in line.into_iter().flatten() {
        waiter.await.expect("granted");
    }
    start.elapsed()
}

/// What is asked behind 20 000 waiters: again, and after each grant, when another waiter has joined.
fn behind_waiters() {
    for (limits, what) in [
        ("1000/s,burst=1", "a bucket"),
        ("1000/s,burst=1 50000/min,burst=50000", "two buckets"),
        ("1000/s,burst=1 15000/min,window", "a bucket and a window that holds up the last ones"),
    ] {
        let clock = FakeClock::default();
        let builder = Limiter::builder().clock(Arc::new(clock.clone()));
        let builder = limits.split(' ').fold(builder, |all, limit| all.limit(limit.parse().expect("a limit")));
        let limiter = builder.build().expect("valid limits");
        let mut line = VecDeque::from(line(&limiter, 20_000));
        let ask = || limiter.time_until(1).is_ok();
        let refused = || refused_at_once(limiter.acquire(1).timeout(Duration::from_millis(1)));
        let ask_after_a_grant = |_| {
            // Nobody wakes at once.
            clock.advance(Duration::from_nanos(MILLISECOND / 50));
            let mut head = line.pop_front().flatten().expect("a waiter");
            let polled = head.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if polled.is_pending() {
                line.push_front(Some(head)); // The window is full.
            } else {
                line.extend(self::line(&limiter, 1));
            }
            clock.advance(Duration::from_nanos(MILLISECOND - MILLISECOND / 50));
            timed(|| _ = black_box(ask()))
        };
        // A single bucket needs the sum of the costs; anything else is a pass over the queue.
        let (calls, most) = if limits.contains(' ') { (FEW, Some(5e-3)) } else { (MANY, Some(50e-6)) };
        alone(&format!("`time_until` behind 20 000 waiters, {what}"), &mut each(ask), calls, most);
        alone("a timeout there, refused", &mut each(refused), calls, most);
        let mut ask_after_a_grant = ask_after_a_grant;
        // So few that the window does not fill up meanwhile.
        alone("`time_until` after each grant", &mut |n| (0..n).map(&mut ask_after_a_grant).sum(), FEW, most);
    }
}

fn refused_at_once(mut acquire: Acquire<'_>) {
    let polled = Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(_))));
}

/// Real time. A current-thread runtime needs 3 ms of it to create 10 000 tasks, before the first grant.
fn precision() {
    let many = runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime");
    for (rate, most, runtime) in [(1000, 1.002, runtime()), (10_000, 1.01, runtime()), (10_000, 1.01, many)] {
        let took = median((0..3).map(|_| timed(|| runtime.block_on(one_second_of_tasks(rate))).as_secs_f64()));
        let threads = runtime.metrics().num_workers();
        let work = format!("{rate} tasks at {rate} a second, {threads} threads");
        println!("| {work} | {} | | | {} | {} |", time(took), time(most), met(took <= most));
    }
}

async fn one_second_of_tasks(rate: u32) {
    let limiter = Limiter::new(rate, 1).expect("a valid rate");
    let acquire = |limiter: Limiter| tokio::spawn(async move { limiter.acquire(1).await });
    let tasks: Vec<_> = (0..rate).map(|_| acquire(limiter.clone())).collect();
    for task in tasks {
        task.await.expect("no panic").expect("granted");
    }
}
