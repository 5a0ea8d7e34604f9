//! What every kind of limiter can do: deadlines, owned futures, changes at run time, limits of all keys, panics of others.

use crate::limiters::{FakeTimer, Panicking, ms, poll_once};
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use throttle_limits::clock::{FakeClock, SECOND};
use throttle_limits::limiter::{
    AcquireError, BuildError, Builder, Granted, Keyed, Limiter, OnFull, Oversize, Reservation,
};
use throttle_limits::semaphore::{Permit, Semaphore};

fn fake() -> (FakeClock, Arc<FakeClock>) {
    let clock = FakeClock::default();
    (clock.clone(), Arc::new(clock))
}

fn written(limits: &[&str]) -> Builder {
    limits.iter().fold(Limiter::builder(), |builder, limit| builder.limit(limit.parse().unwrap()))
}

#[test]
fn limiters_may_be_used_after_a_panic_was_caught() {
    fn is_safe<T: UnwindSafe + RefUnwindSafe + Send + Sync>() {}
    is_safe::<Limiter>();
    is_safe::<Keyed<String>>();
    is_safe::<Semaphore>();
    is_safe::<Permit>();
    is_safe::<Granted>();
    is_safe::<Reservation>();
    is_safe::<Builder>();
    is_safe::<throttle_limits::leaky_bucket::RateLimiter>();
}

type Boxed<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

/// Takes what there is, lets a waiter with a panicking waker wait, and serves it in the call of another task.
fn is_served_quietly<'a>(timer: &FakeTimer, mut wait: impl FnMut() -> Boxed<'a>, other: impl FnOnce()) {
    assert!(poll_once(&mut wait()).is_ready());
    let (waker, mut bad) = (Waker::from(Arc::new(Panicking)), wait());
    assert!(bad.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    timer.set(10_000_000_000);
    other();
    assert_eq!(poll_once(&mut bad), Poll::Ready(true), "it was granted all the same");
}

#[test]
fn a_panicking_waker_does_not_panic_in_the_call_of_another_task() {
    let timer = Arc::new(FakeTimer::default());
    let limiter = Limiter::builder().rate(1, ms(1000)).clock(timer.clone()).build().unwrap();
    let wait = || -> Boxed<'_> { Box::pin(async { limiter.acquire(1).await.is_ok() }) };
    is_served_quietly(&timer, wait, || assert_eq!(limiter.waiters(), 0));

    let timer = Arc::new(FakeTimer::default());
    let keyed: Keyed<String> = Limiter::builder().rate(1, ms(1000)).clock(timer.clone()).keyed().unwrap();
    let wait = || -> Boxed<'_> { Box::pin(async { keyed.acquire("key", 1).await.is_ok() }) };
    is_served_quietly(&timer, wait, || _ = keyed.try_acquire("key", 1));

    let timer = Arc::new(FakeTimer::default());
    let semaphore = Semaphore::builder(1, 1, ms(1000)).clock(timer.clone()).build().unwrap();
    let wait = || -> Boxed<'_> { Box::pin(async { semaphore.acquire().await.is_ok() }) };
    is_served_quietly(&timer, wait, || assert_eq!(semaphore.waiters(), 0));
}

#[test]
fn a_rate_that_is_no_decimal_is_refused_with_an_example() {
    let error = Limiter::new(1.0 / 3.0, 1).unwrap_err();
    assert_eq!(error, BuildError::FineRate);
    assert!(error.to_string().contains("rate(1, Duration::from_secs(3))") && error.to_string().contains("1/3s"));
    let third = Limiter::builder().rate(1, Duration::from_secs(3)).build().unwrap();
    let written = written(&["1/3s"]).build().unwrap();
    for limiter in [third, written] {
        limiter.try_acquire(1).unwrap();
        assert!(limiter.time_until(1).is_ok_and(|wait| wait > ms(2000)));
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_waits_until_an_instant_of_either_clock() {
    let (tokio_now, soon) = (tokio::time::Instant::now(), ms(100));
    let now: Instant = tokio_now.into_std();
    let (limiter, keyed) = (Limiter::new(1, 1).unwrap(), Keyed::<String>::new(1, 1).unwrap());
    let semaphore = Semaphore::new(1, 1).unwrap();
    assert_eq!(limiter.acquire(1).by(now).await, Ok(()), "what is there is granted after any deadline");
    assert_eq!(keyed.acquire("key", 1).by(tokio_now).await, Ok(()));
    let _permit = semaphore.acquire().by(tokio_now).await.unwrap();
    let too_long = |result: Result<(), AcquireError>| matches!(result, Err(AcquireError::TooLong { .. }));
    assert!(too_long(limiter.acquire(1).by(tokio_now + soon).await));
    assert!(too_long(limiter.acquire_owned(1).by(now + soon).await));
    assert!(too_long(limiter.acquire_owned(1).timeout(soon).await));
    assert!(too_long(limiter.acquire_to_settle(1).by(now + soon).await.map(drop)));
    assert!(too_long(limiter.acquire_to_settle(1).timeout(soon).await.map(drop)));
    assert!(too_long(limiter.acquire(1).by(now + soon).block()));
    assert!(too_long(limiter.acquire_owned(1).timeout(soon).block()));
    assert!(too_long(keyed.acquire("key", 1).by(now + soon).await));
    assert!(too_long(keyed.acquire("key", 1).by(now + soon).block()));
    let waited = semaphore.acquire().by(now + soon).await.map(drop);
    assert!(matches!(waited, Err(AcquireError::TimedOut { after, .. }) if after == soon), "{waited:?}");
    let waited = semaphore.acquire_many(1).timeout(soon).await.map(drop);
    assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
    assert_eq!(limiter.acquire(1).by(now + ms(1000)).await, Ok(()));
    assert_eq!(limiter.reserve(1).unwrap().instant(), now + ms(2000));
}

#[tokio::test(start_paused = true)]
async fn futures_of_a_keyed_limiter_can_be_spawned() {
    let keyed: Keyed<String> = Keyed::new(1, 1).unwrap();
    let begun = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(keyed.acquire_owned("key".to_owned(), 1))).collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Ok(()));
    }
    assert_eq!(begun.elapsed(), ms(2000));
}

#[test]
fn windows_are_changed_at_run_time_and_keep_their_counts() {
    let (clock, timer) = fake();
    let limiter = written(&["3/min,window", "10/s,burst=5"]).clock(timer).build().unwrap();
    limiter.try_acquire(3).unwrap();
    let mut waiter = Box::pin(limiter.acquire(1));
    assert!(poll_once(&mut waiter).is_pending());
    limiter.set_limits(&written(&["4/min,window", "10/s,burst=5"])).unwrap();
    assert_eq!(poll_once(&mut waiter), Poll::Ready(Ok(())), "waiters get new times");
    assert_eq!(limiter.time_until(1), Ok(ms(60_000)));
    limiter.set_rate(1, ms(60_000)).unwrap();
    clock.set(Duration::from_secs(60));
    assert_eq!(limiter.available(), 2, "the rate of the bucket is the one that can be changed");
    limiter.set_limits(&Limiter::builder().rate(7, ms(1000))).unwrap();
    assert_eq!(limiter.available(), 7, "a limit of another kind starts anew");
    let ten = || Limiter::builder().rate(10, ms(1000));
    let joint = Limiter::joint([ten(), ten()]).unwrap();
    assert_eq!(joint.set_limits(&ten()), Err(BuildError::Joint));
}

/// A pause empties the bucket, so the waiter would wait for another second.
#[test]
fn a_hold_keeps_the_units_and_the_places_of_waiters() {
    let (clock, timer) = fake();
    let limiter = Limiter::builder().rate(1, ms(1000)).burst(5).initial(2).clock(timer).build().unwrap();
    limiter.hold_for(ms(2000));
    let mut waiters = [3, 1].map(|cost| Box::pin(limiter.acquire(cost)));
    assert!(waiters.iter_mut().all(|waiter| poll_once(waiter).is_pending()));
    clock.advance(Duration::from_nanos(2 * SECOND - 1));
    assert!(waiters.iter_mut().all(|waiter| poll_once(waiter).is_pending()), "the hold lasts");
    clock.advance(Duration::from_nanos(1));
    assert!(waiters.iter_mut().all(|waiter| poll_once(waiter) == Poll::Ready(Ok(()))), "four units are there");
    assert_eq!(limiter.available(), 0);
}

/// The futures of a key have the same timeouts as the futures of a limiter.
#[test]
fn a_wait_to_settle_a_key_ends_in_time_and_gives_one_grant() {
    let (clock, timer) = fake();
    let keyed: Keyed<u64> = Limiter::builder().rate(1, ms(1000)).burst(1).clock(timer).keyed().unwrap();
    let mut granted = Box::pin(keyed.acquire_to_settle(&1, 1).timeout(ms(0)));
    assert!(matches!(poll_once(&mut granted), Poll::Ready(Ok(_))));
    assert!(matches!(poll_once(&mut granted), Poll::Ready(Err(AcquireError::Finished))), "it has one grant");
    let late = keyed.acquire_to_settle(&1, 1).timeout(ms(999)).block().map(drop);
    assert!(matches!(late, Err(AcquireError::TooLong { .. })), "{late:?}");
    drop(granted);
    clock.advance(Duration::from_secs(1));
    keyed.forget_idle();
    assert!(keyed.is_empty(), "no future holds the key");
}

#[test]
fn the_limits_of_all_keys_are_changed_at_run_time() {
    let (clock, timer) = fake();
    let keyed: Keyed<u64> = Limiter::builder().rate(1, ms(1000)).burst(4).clock(timer).keyed().unwrap();
    keyed.try_acquire(&1, 4).unwrap();
    keyed.try_acquire(&2, 4).unwrap();
    let own = keyed.limiter(&3).unwrap();
    own.set_rate(100, ms(1000)).unwrap();
    own.try_acquire(4).unwrap();
    let mut waits = Box::pin(keyed.acquire(&2, 1));
    assert!(poll_once(&mut waits).is_pending());
    keyed.set_rate(2, ms(1000)).unwrap();
    let after = |key: u64| keyed.time_until(&key, 1).unwrap();
    assert_eq!([1, 2, 3, 4].map(after), [ms(500), ms(1000), ms(10), ms(0)]);
    clock.advance(Duration::from_nanos(SECOND / 2));
    assert_eq!(poll_once(&mut waits), Poll::Ready(Ok(())));
    keyed.set_burst(6).unwrap();
    assert_eq!([1, 4].map(|key| keyed.available(&key)), [1, 4], "a larger bucket is not filled by that");
    clock.advance(Duration::from_secs(10));
    assert_eq!([1, 4].map(|key| keyed.available(&key)), [6, 6]);
    keyed.set_limits(&written(&["3/min,window"])).unwrap();
    assert_eq!([1, 5].map(|key| keyed.available(&key)), [3, 3]);
    assert_eq!(keyed.set_rate(1, ms(1000)), Err(BuildError::NoBucket));
    drop(own);
}

#[test]
fn keys_are_listed_and_removed_and_all_are_closed() {
    let (_, timer) = fake();
    let keyed: Keyed<String> = Limiter::builder().rate(1, ms(1000)).clock(timer).keyed().unwrap();
    assert!(["a", "b", "c"].iter().all(|key| keyed.try_acquire(*key, 1).is_ok()));
    let mut keys = keyed.keys();
    keys.sort();
    assert_eq!(keys, ["a", "b", "c"]);
    let mut waits = Box::pin(keyed.acquire("a", 1));
    assert!(poll_once(&mut waits).is_pending());
    assert_eq!(["a", "b", "d"].map(|key| keyed.remove(key)), [false, true, false], "somebody waits for the first");
    assert_eq!((keyed.available("b"), keyed.available("c"), keyed.len()), (1, 0, 2));
    drop(waits);
    assert!(keyed.remove("a") && !keyed.is_closed());
    let mut waits = Box::pin(keyed.acquire("c", 1));
    assert!(poll_once(&mut waits).is_pending());
    keyed.close();
    assert!(["a", "c", "e"].iter().all(|key| keyed.try_acquire(*key, 1) == Err(AcquireError::Closed)));
    assert!(poll_once(&mut waits).is_pending() && keyed.is_closed(), "who waits is still served");
    drop(waits);
    assert_eq!(poll_once(&mut Box::pin(keyed.acquire("e", 1))), Poll::Ready(Err(AcquireError::Closed)));
}

#[test]
fn a_semaphore_is_paused_and_its_rate_changed() {
    let (clock, timer) = fake();
    let semaphore = Semaphore::builder(4, 1, ms(1000)).burst(1).clock(timer).build().unwrap();
    let first = semaphore.try_acquire().unwrap();
    assert_eq!(semaphore.time_until(), Ok(ms(1000)));
    semaphore.set_rate(10, ms(1000)).unwrap();
    assert_eq!(semaphore.time_until(), Ok(ms(100)));
    semaphore.pause_for(ms(5000));
    assert_eq!(semaphore.time_until(), Ok(ms(5100)));
    clock.advance(Duration::from_secs(5));
    assert!(semaphore.try_acquire().is_err());
    clock.advance(Duration::from_nanos(SECOND / 10));
    let second = semaphore.try_acquire().unwrap();
    semaphore.set_capacity(2);
    assert_eq!(semaphore.time_until(), Err(AcquireError::NoPlace));
    drop((first, second));
    semaphore.close();
    assert!(semaphore.is_closed() && semaphore.time_until() == Err(AcquireError::Closed));
}

fn within(all: &Builder, timer: &Arc<FakeClock>) -> Keyed<u64> {
    Limiter::builder().rate(1, ms(1000)).burst(2).clock(timer.clone()).keyed_within(all).unwrap()
}

/// Law 6.
#[test]
fn a_refusal_by_the_limits_of_all_charges_no_key() {
    let (clock, timer) = fake();
    let keyed = within(&Limiter::builder().rate(1, ms(1000)).burst(3), &timer);
    assert!([1, 1, 2].iter().all(|key| keyed.try_acquire(key, 1).is_ok()));
    assert!(keyed.try_acquire(&1, 1).is_err() && keyed.try_acquire(&2, 1).is_err());
    assert!(keyed.acquire(&2, 1).timeout(ms(10)).block().is_err());
    let all = keyed.of_all().unwrap();
    assert_eq!((all.available(), keyed.available(&2)), (0, 0));
    assert_eq!(keyed.reserve(&3, 1).unwrap_err(), AcquireError::OfAll);
    all.set_limits(&Limiter::builder().rate(1_000_000, ms(1000)).burst(100).initial(100)).unwrap();
    clock.advance(Duration::from_micros(100));
    assert_eq!([1, 2, 3].map(|key| keyed.available(&key)), [0, 1, 2]);
    keyed.forget_idle();
    assert_eq!(keyed.len(), 2, "a key that took nothing is like one never seen");
}

/// Law 2: the key is charged when its request leaves, not when its own limits would have let it go.
#[test]
fn a_key_that_waited_for_all_makes_no_burst_afterwards() {
    let (clock, timer) = fake();
    let keyed = within(&Limiter::builder().rate(100, ms(1000)), &timer);
    keyed.try_acquire(&1, 2).unwrap();
    keyed.of_all().unwrap().pause_for(ms(10_000));
    let mut waits: Vec<_> = (0..4).map(|_| Box::pin(keyed.acquire(&1, 1))).collect();
    let mut granted = Vec::new();
    for tenths in 0..140 {
        clock.set(Duration::from_nanos(tenths * SECOND / 10));
        // Whoever is woken polls; here everybody does.
        let before = waits.len();
        waits.retain_mut(|wait| poll_once(wait).is_pending());
        granted.extend((waits.len()..before).map(|_| tenths));
    }
    assert_eq!(granted.len(), 4);
    assert!((100..=102).contains(&granted[0]) && granted[1] <= 104, "{granted:?}");
    assert!(granted[2] >= granted[1] + 8 && granted[3] >= granted[2] + 9, "{granted:?}: more than a burst of 2");
}

#[test]
fn a_request_that_leaves_gives_back_what_it_held_of_its_key() {
    let (clock, timer) = fake();
    let keyed = within(&Limiter::builder().rate(1, ms(1000)), &timer);
    let all = keyed.of_all().unwrap();
    let granted = poll_once(&mut Box::pin(keyed.acquire_to_settle(&1, 1)));
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(keyed.acquire(&2, 1))).collect();
    assert!(waits.iter_mut().all(|wait| poll_once(wait).is_pending()));
    assert_eq!(keyed.try_acquire(&2, 1), Err(AcquireError::OthersWait));
    drop(waits);
    let Poll::Ready(Ok(granted)) = granted else { panic!("granted at once") };
    granted.settle(0).unwrap();
    assert_eq!((keyed.available(&1), all.available()), (1, 1), "both are settled");
    let patient = keyed.acquire(&3, 1).timeout(ms(1500));
    keyed.try_acquire(&1, 1).unwrap();
    assert_eq!(keyed.time_until(&3, 1), Ok(ms(1000)));
    let mut patient = Box::pin(patient);
    assert!(poll_once(&mut patient).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(poll_once(&mut patient), Poll::Ready(Ok(())));
}

#[test]
fn threads_wait_for_a_key_and_the_limits_of_all_on_a_fake_clock() {
    let (clock, timer) = fake();
    let all = Limiter::builder().rate(1, ms(2000)).max_waiters(NonZeroUsize::new(1), OnFull::Fail);
    let keyed = within(&all, &timer);
    assert_eq!((0..4).try_for_each(|key| keyed.acquire(&(key % 2), 1).block()), Ok(()));
    assert_eq!(clock.advance(Duration::from_nanos(0)), ());
    assert_eq!(throttle_limits::clock::NanoClock::now(&clock), 6 * SECOND);
}

#[test]
fn no_try_is_refused_because_another_thread_just_takes() {
    let all = Limiter::builder().rate(1_000_000_000, ms(1000));
    let keyed: Keyed<u64> = Limiter::builder().rate(1, ms(3_600_000)).burst(40_000).keyed_within(&all).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10_000).for_each(|_| keyed.try_acquire(&1, 1).unwrap()));
        }
    });
    assert!(keyed.try_acquire(&1, 1).is_err(), "40 000 of 40 000");
}

/// Law 2: it leaves the bucket empty, not in debt.
#[test]
fn a_cost_above_the_burst_of_a_key_is_paid_once() {
    let (clock, timer) = fake();
    let all = Limiter::builder().rate(1000, ms(1));
    let keyed: Keyed<u64> = Limiter::builder()
        .rate(1, ms(1000))
        .burst(10)
        .oversize(Oversize::Wait)
        .clock(timer)
        .keyed_within(&all)
        .unwrap();
    keyed.acquire(&1, 100).block().unwrap();
    assert_eq!(throttle_limits::clock::NanoClock::now(&clock), 90 * SECOND);
    keyed.acquire(&1, 1).block().unwrap();
    assert_eq!(throttle_limits::clock::NanoClock::now(&clock), 91 * SECOND);
}

/// Law 1: each grant is computed from the one before, and not from when somebody woke.
#[test]
fn a_key_within_others_gets_all_of_its_rate() {
    let (clock, timer) = fake();
    let all = Limiter::builder().rate(1000, ms(1));
    let keyed: Keyed<u64> = Limiter::builder().rate(3, ms(1000)).burst(1).clock(timer).keyed_within(&all).unwrap();
    (0..=300).for_each(|_| keyed.acquire(&1, 1).block().unwrap());
    assert_eq!(throttle_limits::clock::NanoClock::now(&clock), 100 * SECOND);
}
