//! What callers pass in and get back: rates, amounts, builder errors, owned acquires, clocks.

use crate::limiters::{FakeTimer, ms, poll_once};
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use throttle_limits::clock::{FakeClock, NanoClock, SECOND, SystemClock};
use throttle_limits::leaky_bucket::RateLimiter;
use throttle_limits::limiter::{AcquireError, AcquireOwned, BuildError, Keyed, Limiter, OnFull, Refill};
use throttle_limits::semaphore::Semaphore;

/// `rate(1, 7 days / 11)` was refused with internal numbers.
#[test]
fn a_rate_of_any_count_in_any_period_is_kept_to_the_nanosecond() {
    for (units, period) in [(1, ms(7 * 86_400_000) / 11), (1_500_000_000, Duration::from_secs(1) / 3)] {
        let timer = Arc::new(FakeTimer::default());
        let limiter = Limiter::builder().rate(units, period).clock(timer.clone()).build().unwrap();
        limiter.try_acquire(units).unwrap();
        assert_eq!(limiter.time_until(units), Ok(period));
        timer.set(u64::try_from(period.as_nanos()).unwrap() - 1);
        assert!(limiter.try_acquire(units).is_err());
        timer.set(u64::try_from(period.as_nanos()).unwrap());
        assert_eq!(limiter.try_acquire(units), Ok(()));
    }
}

/// Options for a bucket that does not exist used to be ignored silently.
#[test]
fn burst_initial_and_refill_need_a_rate_beside_written_limits() {
    let limits = || Limiter::builder().limit("5/s".parse().unwrap());
    for (builder, setting) in
        [(limits().burst(3), "burst"), (limits().initial(0), "initial"), (limits().refill(Refill::Grid), "refill")]
    {
        let error = builder.clone().build().unwrap_err();
        assert!(matches!(error, BuildError::WithoutRate(name) if name == setting), "{error}");
        assert!(error.to_string().starts_with(setting), "{error}");
        assert!(builder.rate(5, ms(1000)).build().is_ok());
    }
    assert!(limits().refill(Refill::Continuous).build().is_ok(), "that is how limits fill");
    let without = Limiter::builder().burst(3).build();
    assert_eq!(without.unwrap_err(), BuildError::NoLimit, "it silently granted ten a second");
}

#[test]
fn reservations_count_neither_as_waiters_nor_to_their_bound() {
    let timer = Arc::new(FakeTimer::default());
    let builder =
        Limiter::builder().rate(1, ms(1000)).max_waiters(NonZeroUsize::new(2), OnFull::Fail).clock(timer.clone());
    let limiter = builder.build().unwrap();
    limiter.try_acquire(1).unwrap();
    let mut first = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut first).is_pending());
    let reserved: Vec<_> = (0..5).map(|_| limiter.reserve(1).unwrap()).collect();
    assert_eq!(limiter.waiters(), 1);
    let mut second = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut second).is_pending(), "reservations do not fill the queue");
    assert_eq!(limiter.waiters(), 2);
    assert_eq!(poll_once(&mut Box::pin(limiter.acquire(1))), Poll::Ready(Err(AcquireError::Full)));
    let more = limiter.reserve(1).unwrap();
    let seconds = [&reserved[4], &more].map(|reservation| reservation.at().as_secs());
    assert_eq!((limiter.waiters(), seconds), (2, [6, 8]), "a full queue does not refuse them");
    drop(first);
    assert_eq!(limiter.waiters(), 1);
}

fn is_static<T: Send + Sync + Unpin + 'static>(value: T) -> T {
    value
}

#[tokio::test(start_paused = true)]
async fn an_owned_acquire_outlives_borrows_in_the_same_queue() {
    let limiter = Arc::new(Limiter::new(1, 1).unwrap());
    let mut line: Vec<AcquireOwned> = (0..3).map(|_| is_static(limiter.acquire_owned(1))).collect();
    assert_eq!(limiter.available(), 1, "a future never polled takes nothing");
    let mut borrowed = limiter.acquire(1);
    let start = tokio::time::Instant::now();
    assert_eq!((&mut line[0]).await, Ok(()));
    assert!(poll_once(&mut Box::pin(&mut line[1])).is_pending());
    assert!(poll_once(&mut Box::pin(&mut borrowed)).is_pending());
    assert!(poll_once(&mut Box::pin(&mut line[2])).is_pending());
    drop(line.remove(1));
    assert_eq!((limiter.waiters(), borrowed.await, start.elapsed()), (2, Ok(()), ms(1000)));
    drop(limiter);
    let last = line.remove(1);
    assert_eq!((tokio::spawn(last).await.unwrap(), start.elapsed()), (Ok(()), ms(2000)));
}

#[test]
fn debug_is_short_and_shows_no_internals() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(1, ms(1000)).burst(3).clock(timer.clone()).build().unwrap();
    assert_eq!(format!("{limiter:?}"), "Limiter { available: 3, waiters: 0, closed: false }");
    assert_eq!(format!("{:?}", limiter.acquire(0.25)), "Acquire { units: Units(0.25), .. }");
    assert_eq!(format!("{:?}", limiter.acquire_owned(2)), "Acquire { units: Units(2), .. }");
    assert_eq!(format!("{:?}", limiter.reserve(3).unwrap()), "Reservation { units: Units(3), at: 0ns, .. }");
    assert_eq!(format!("{:?}", limiter.reserve(2).unwrap()), "Reservation { units: Units(2), at: 2s, .. }");
    limiter.close();
    assert_eq!(format!("{limiter:?}"), "Limiter { available: 0, waiters: 0, closed: true }");
    let error = Limiter::new(1, 2).unwrap().try_acquire(3).unwrap_err();
    assert_eq!(format!("{error:?}"), "AboveBurst { cost: Units(3), burst: Units(2) }");
    assert!(format!("{:?}", RateLimiter::builder().build().acquire_one()).len() < 120);
}

/// Runs a future on this thread, as an executor without timers does.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(std::thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn with_the_systems_clock_futures_wait_on_any_executor() {
    let start = std::time::Instant::now();
    let limiter = Limiter::builder().rate(500, ms(1000)).burst(1).clock(Arc::new(SystemClock)).build().unwrap();
    let spawn = || {
        let acquire = limiter.acquire_owned(1);
        std::thread::spawn(move || block_on(acquire))
    };
    let tasks: Vec<_> = (0..4).map(|_| spawn()).collect();
    (0..7).for_each(|_| assert_eq!(block_on(limiter.acquire(1)), Ok(())));
    assert!(tasks.into_iter().all(|task| task.join().unwrap() == Ok(())));
    assert!(start.elapsed() >= ms(20));
}

#[test]
fn a_thread_that_blocks_on_a_fake_clock_moves_it() {
    let clock = FakeClock::default();
    let (sender, ended) = std::sync::mpsc::channel();
    let timer = Arc::new(clock.clone());
    std::thread::spawn(move || {
        let builder = || Limiter::builder().rate(1, ms(3_600_000)).clock(timer.clone());
        let limiter = builder().build().unwrap();
        assert_eq!((0..3).try_for_each(|_| limiter.acquire(1).block()), Ok(()));
        let keyed: Keyed<String> = builder().keyed().unwrap();
        assert_eq!((0..3).try_for_each(|_| keyed.acquire("key", 1).block()), Ok(()));
        let semaphore = Semaphore::builder(1, 1, ms(3_600_000)).clock(timer.clone()).build().unwrap();
        let _held = semaphore.try_acquire().unwrap();
        assert!(semaphore.acquire().timeout(ms(3_600_000)).block().is_err());
        sender.send(()).unwrap();
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(()), "it sleeps in real time");
    assert_eq!(clock.now(), 5 * 3600 * SECOND);
}

/// The threads that wait behind the first are woken when it is their turn.
#[test]
fn several_threads_block_on_a_fake_clock() {
    let clock = FakeClock::default();
    let limiter = Limiter::builder().rate(1, ms(3_600_000)).clock(Arc::new(clock.clone())).build().unwrap();
    let (sender, granted) = std::sync::mpsc::channel();
    for _ in 0..8 {
        let (limiter, sender) = (limiter.clone(), sender.clone());
        std::thread::spawn(move || sender.send(limiter.acquire(1).block()).unwrap());
    }
    drop(sender);
    let granted: Vec<_> = (0..8).map(|_| granted.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    assert_eq!((granted, clock.now()), (vec![Ok(()); 8], 7 * 3600 * SECOND));
}

#[test]
fn a_fake_clock_grants_futures_and_threads_as_it_moves() {
    let clock = FakeClock::default();
    let limiter = Limiter::builder().rate(2, ms(1000)).burst(1).clock(Arc::new(clock.clone())).build().unwrap();
    let mut line: Vec<_> = (0..100).map(|_| Box::pin(limiter.acquire(1))).collect();
    assert_eq!(line.iter_mut().map(poll_once).filter(Poll::is_ready).count(), 1);
    clock.advance(Duration::from_secs(10));
    assert_eq!(limiter.waiters(), 79, "each at its own time, none late");
    assert_eq!(limiter.last_grant(), ms(10_000));
    clock.set(Duration::from_secs(1000));
    // The allowance was the half of a second that fills the bucket, and is 50 ms now. With it another one was granted.
    assert_eq!(limiter.waiters(), 78, "after a jump one is granted, as of 50 ms before");
    drop(line);

    let thread = std::thread::spawn({
        let limiter = limiter.clone();
        move || limiter.acquire(1).block()
    });
    while !thread.is_finished() {
        clock.advance(Duration::from_nanos(SECOND / 10));
        std::thread::yield_now();
    }
    assert_eq!(thread.join().unwrap(), Ok(()));
}
