//! Several costs at once on several limits: requests and tokens.

use crate::limiters::{FakeTimer, ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use throttle_limits::clock::{FakeClock, NanoClock, SECOND};
use throttle_limits::limiter::{AcquireError, BuildError, Costs, Limiter, OnFull, Oversize, UnitsError};
use tokio::time::Instant;

/// Units of each kind that could be taken now.
fn left(model: &Limiter) -> [u64; 2] {
    [0, 1].map(|kind| model.available_of(kind))
}

/// 2 requests a second, 3 at once; 1000 tokens a second and at once.
fn model(timer: Option<Arc<FakeTimer>>) -> Limiter {
    let requests = Limiter::builder().rate(2, ms(1000)).burst(3);
    let tokens = Limiter::builder().rate(1000, ms(1000));
    match timer {
        Some(timer) => Limiter::joint([requests, tokens.clock(timer)]).unwrap(),
        None => Limiter::joint([requests, tokens]).unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_scarce_limit_sets_the_time_and_all_are_charged_then() {
    let model = model(None);
    let start = Instant::now();
    for (costs, millis, rest) in [
        ([1, 100], 0, [2, 900]),
        ([2, 100], 0, [0, 800]),
        ([1, 100], 500, [0, 900]), // a request is scarce
        ([1, 1000], 1000, [0, 0]), // tokens would be there at 600 ms
        ([1, 750], 1750, [0, 0]),  // now tokens are: the next half request is kept
        ([1, 10], 2000, [0, 240]),
        ([0, 241], 2001, [0, 0]),
        ([0, 0], 2001, [0, 0]),
    ] {
        model.acquire(costs).await.unwrap();
        assert_eq!((start.elapsed(), left(&model)), (ms(millis), rest), "{costs:?}");
    }
    assert_eq!(model.last_grant(), ms(2001));
}

/// Law 6.
#[test]
fn a_refusal_charges_none() {
    let timer = Arc::new(FakeTimer::default());
    let model = model(Some(timer.clone()));
    assert_eq!(model.try_acquire([1, 400]), Ok(()));
    let wait = |cost: u32, millis| Err(AcquireError::TooLong { cost: cost.into(), wait: ms(millis).into() });
    assert_eq!(model.try_acquire([1, 700]), wait(1, 100));
    assert_eq!(model.try_acquire([3, 100]), wait(3, 500));
    assert_eq!(left(&model), [2, 600]);
    let above = AcquireError::AboveBurst { cost: 1001.into(), burst: 1000.into() };
    assert_eq!(model.try_acquire([1, 1001]), Err(above.clone()));
    let mut acquire = Box::pin(model.acquire([1, 1001]));
    assert_eq!(
        [poll_once(&mut acquire), poll_once(&mut acquire)],
        [Poll::Ready(Err(above.clone())), Poll::Ready(Err(above))]
    );
    assert_eq!(model.try_acquire([1.0, -0.5]), Err(AcquireError::Units(UnitsError::Negative)));
    let late = poll_once(&mut Box::pin(model.acquire([1, 800]).timeout(ms(199))));
    assert_eq!(late, Poll::Ready(wait(1, 200)));
    assert_eq!((left(&model), model.waiters()), ([2, 600], 0));
    model.close();
    assert_eq!(model.try_acquire([1, 1]), Err(AcquireError::Closed));
}

/// Laws 4 and 5.
#[test]
fn waiters_are_served_in_order_and_cancelling_is_free() {
    let timer = Arc::new(FakeTimer::default());
    let model = model(Some(timer.clone()));
    assert_eq!(model.try_acquire([0, 1000]), Ok(()));
    let mut line: Vec<_> = [[1, 900], [1, 1], [3, 0]].map(|costs| Box::pin(model.acquire(costs))).into();
    assert!(line.iter_mut().all(|waiter| poll_once(waiter).is_pending()));
    assert_eq!((model.waiters(), left(&model)), (3, [0, 0]));
    assert_eq!(model.try_acquire([1, 0]), Err(AcquireError::OthersWait));
    timer.to(500_000_000);
    assert!(line.iter_mut().all(|waiter| poll_once(waiter).is_pending()), "smaller ones do not overtake");
    drop(line.remove(0));
    assert!(poll_once(&mut line[0]).is_ready(), "500 tokens are available and the waiter before has left");
    assert!(poll_once(&mut line[1]).is_pending());
    assert_eq!(timer.next(), Some(1_000_000_000), "two requests are there, and one comes in half a second");
    timer.to_next();
    drop(line.remove(1)); // granted and not seen: given back
    assert_eq!((model.waiters(), left(&model)), (0, [3, 999]));
}

#[tokio::test(start_paused = true)]
async fn a_window_counts_its_own_kind_and_never_grants_more() {
    let requests = Limiter::builder().limit("2/s,window".parse().unwrap()).limit("3/5s,window".parse().unwrap());
    let tokens = Limiter::builder().rate(100, ms(1000)).oversize(Oversize::Wait);
    let model = Limiter::joint([requests, tokens]).unwrap();
    let start = Instant::now();
    for (costs, millis) in [([1, 100], 0), ([1, 0], 0), ([1, 10], 1000), ([0, 490], 5000), ([1, 1], 5010)] {
        model.acquire(costs).await.unwrap();
        assert_eq!(start.elapsed(), ms(millis), "{costs:?}");
    }
    let above = AcquireError::AboveBurst { cost: 3.into(), burst: 2.into() };
    assert_eq!(model.try_acquire([3, 0]), Err(above));
    let waits = Limiter::builder().limit("2/s,window".parse().unwrap()).oversize(Oversize::Wait);
    let model = Limiter::joint([waits]).unwrap();
    assert_eq!(model.acquire([3]).await, Err(AcquireError::Never { cost: 3.into() }));
}

/// Law 2: a window counts its part when it is handed over, even if a list of costs is fetched late.
#[test]
fn a_window_of_one_kind_counts_what_is_fetched_late() {
    let timer = Arc::new(FakeTimer::default());
    let requests = Limiter::builder().limit("2/s,window".parse().unwrap()).clock(timer.clone());
    let model = Limiter::joint([requests, Limiter::builder().rate(1000, ms(1000))]).unwrap();
    assert_eq!(model.try_acquire([2, 500]), Ok(()));
    let mut line = [[1, 300], [1, 300]].map(|costs| Box::pin(model.acquire(costs)));
    assert!(line.iter_mut().all(|waiter| poll_once(waiter).is_pending()));
    timer.to(1_000_000_000);
    timer.to(1_900_000_000);
    assert!(line.iter_mut().all(|waiter| poll_once(waiter).is_ready()), "granted at 1 s, fetched at 1.9 s");
    timer.to(2_800_000_000);
    assert!(model.try_acquire([1, 0]).is_err(), "the server saw two at 1.9 s");
    assert_eq!(model.try_acquire([0, 1]), Ok(()), "tokens have no window");
    timer.to(2_900_000_000);
    let mut late = Box::pin(model.acquire([1, 300]));
    assert_eq!(model.try_acquire([2, 0]), Ok(()));
    assert!(poll_once(&mut late).is_pending());
    timer.to(3_900_000_000);
    timer.to(5_000_000_000);
    assert_eq!(model.try_acquire([2, 0]), Ok(()), "what was granted at 3.9 s has left its window");
    assert!(poll_once(&mut late).is_pending(), "and is fetched when the server has seen two within a second");
    assert_eq!(timer.next(), Some(6_000_000_000));
    assert!(timer.to_next() && poll_once(&mut late).is_ready());
    assert!(model.try_acquire([1, 701]).is_err(), "the tokens are paid when the request is granted again");
    assert_eq!(model.try_acquire([1, 700]), Ok(()), "and one of two requests is left");
}

/// B9: use beyond the estimate is owed, on the limit where it was used.
#[tokio::test(start_paused = true)]
async fn reconciling_settles_each_limit_by_itself() {
    let model = model(None);
    let start = Instant::now();
    model.acquire([1, 1000]).await.unwrap();
    model.reconcile([1, 200], [1, 1000]).unwrap();
    assert_eq!(left(&model), [2, 800]);
    model.reconcile([1, 1300], [2, 200]).unwrap();
    assert_eq!(left(&model), [3, 0]);
    model.acquire([1, 0]).await.unwrap();
    assert_eq!(start.elapsed(), ms(0), "no tokens are asked for");
    model.acquire([1, 100]).await.unwrap();
    assert_eq!(start.elapsed(), ms(400));
    model.pause_for(ms(600));
    assert_eq!(left(&model), [0, 0]);
    model.acquire([0, 1]).await.unwrap();
    assert_eq!(start.elapsed(), ms(1001), "the pause leaves the buckets empty");
}

#[test]
fn joint_refuses_an_unfair_or_badly_built_limiter() {
    let ten = || Limiter::builder().rate(10, ms(1000));
    let build = |builder| Limiter::joint([ten(), builder]).map(|_| ());
    assert_eq!(build(ten().fair(false)), Err(BuildError::JointIsFair));
    assert_eq!(build(Limiter::builder()), Err(BuildError::NoLimit));
    assert_eq!(Limiter::joint([]).unwrap_err(), BuildError::NoLimit, "it granted everything");
    assert_eq!(build(Limiter::builder().rate(0, ms(1))), Err(BuildError::ZeroRate));
    let limits_only = Limiter::builder().limit("5/s".parse().unwrap()).burst(2);
    assert_eq!(build(limits_only), Err(BuildError::WithoutRate("burst")));
    let bounded = ten().max_waiters(NonZeroUsize::new(1), OnFull::Fail).clock(Arc::new(FakeClock::default()));
    let model = Limiter::joint([ten(), bounded]).unwrap();
    model.try_acquire([10, 10]).unwrap();
    let mut line = [1, 1].map(|cost| Box::pin(model.acquire([cost, 0])));
    let polled = line.each_mut().map(poll_once);
    assert_eq!(polled, [Poll::Pending, Poll::Ready(Err(AcquireError::Full))]);
    assert_eq!(format!("{model:?}"), "Limiter { available: 0, waiters: 1, closed: false }");
    assert_eq!(format!("{:?}", model.acquire([1, 2])), "Acquire { units: [Units(1), Units(2)], .. }");
}

/// A limiter of one kind took the first of three costs. A joint limiter of two took one cost for both.
#[test]
fn another_number_of_costs_than_kinds_is_an_error() {
    let builder = |rate: u64| Limiter::builder().rate(rate, ms(1000)).clock(Arc::new(FakeClock::default()));
    let (one, two) = (builder(5).build().unwrap(), Limiter::joint([builder(5), builder(7)]).unwrap());
    let full = [5, 5, 7];
    let available = || [one.available_of(0), two.available_of(0), two.available_of(1)];
    let wrong = |given, kinds| UnitsError::WrongCount { given, kinds };
    for (limiter, costs, error) in [
        (&one, Costs::from_slice(&[1, 2, 30]), wrong(3, 1)),
        (&two, Costs::from_slice(&[1]), wrong(1, 2)),
        (&two, Costs::from_slice(&[1, 2, 3]), wrong(3, 2)),
        (&two, Costs::from_slice::<u64>(&[]), wrong(0, 2)),
    ] {
        let refused = || Err(AcquireError::Units(error));
        assert_eq!(limiter.try_acquire(costs.clone()), refused());
        assert_eq!(limiter.acquire(costs.clone()).block(), refused());
        assert_eq!(limiter.acquire_to_settle(costs.clone()).block().map(drop), refused());
        assert_eq!(limiter.reserve(costs.clone()).map(drop), refused());
        assert_eq!(limiter.time_until(costs.clone()).map(drop), refused());
        assert_eq!(limiter.capacity_info(costs.clone()).map(drop), Err(error));
        assert_eq!(limiter.reconcile(costs.clone(), costs.clone()), Err(error));
        assert_eq!(available(), full, "nothing is taken");
    }
    let granted = two.try_acquire_to_settle([3, 4]).unwrap();
    assert_eq!(granted.settle(2), Err(wrong(1, 2)));
    assert_eq!(available(), [5, 2, 3], "it cost what was acquired");
    let text = AcquireError::Units(wrong(1, 2)).to_string();
    assert_eq!(text, "the number of costs is 1, but this limiter has 2 kinds of limits; give one cost for each kind");
}

#[test]
fn threads_and_owned_futures_wait_in_the_same_queue() {
    let clock = FakeClock::default();
    let requests = Limiter::builder().rate(2, ms(1000)).burst(1).clock(Arc::new(clock.clone()));
    let model = Limiter::joint([requests, Limiter::builder().rate(1000, ms(1000))]).unwrap();
    model.acquire([1, 1]).block().unwrap();
    let owned = model.acquire_owned([1, 1]);
    let mut owned: std::pin::Pin<Box<dyn Future<Output = _> + Send + 'static>> = Box::pin(owned);
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(owned.as_mut().poll(context).is_pending());
    // The thread sleeps on the clock, which moves it.
    let thread = std::thread::spawn({
        let model = model.clone();
        move || model.acquire([1, 1]).block()
    });
    assert_eq!(thread.join().unwrap(), Ok(()));
    assert_eq!((owned.as_mut().poll(context), clock.now()), (Poll::Ready(Ok(())), SECOND));
    let timed_out = std::thread::spawn(move || model.acquire([1, 1]).timeout(ms(400)).block()).join().unwrap();
    assert!(matches!(timed_out, Err(AcquireError::TooLong { .. })), "{timed_out:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(200)))]

    /// Laws 1, 2 and 6: each grant comes at the earliest time at which both limits conform, as with two limiters that
    /// exchange their times.
    #[test]
    fn each_grant_comes_at_the_least_common_time(
        (burst, other) in (1_u64..5, 1_u64..5),
        steps in prop::collection::vec((0_u64..5, 0_u64..5, 0_u64..2000), 1..40),
    ) {
        let clock = FakeClock::default();
        let builder = |rate: u64, burst| {
            let builder = Limiter::builder().rate(rate, ms(1000)).burst(burst).oversize(Oversize::Wait);
            builder.clock(Arc::new(clock.clone()))
        };
        let joint = Limiter::joint([builder(1, burst), builder(2, other)]).unwrap();
        // In thousandths, once a millisecond.
        let (mut credit, rates, bursts, mut now) = ([burst * 1000, other * 1000], [1, 2], [burst * 1000, other * 1000], 0);
        for (one, two, pause) in steps {
            clock.advance(Duration::from_nanos(pause * 1_000_000));
            now += pause;
            for kind in 0..2 {
                credit[kind] = (credit[kind] + rates[kind] * pause).min(bursts[kind]);
            }
            let costs = [one, two];
            let mut acquire = Box::pin(joint.acquire(costs));
            let granted = poll_once(&mut acquire).is_ready();
            let conforms = |credit: &[u64; 2]| (0..2).all(|kind| credit[kind] >= costs[kind] * 1000);
            prop_assert_eq!(granted, conforms(&credit));
            while !conforms(&credit) {
                now += 1;
                for kind in 0..2 {
                    credit[kind] = (credit[kind] + rates[kind]).min(bursts[kind].max(costs[kind] * 1000));
                }
            }
            if granted {
                for kind in 0..2 {
                    credit[kind] -= costs[kind] * 1000;
                }
            } else {
                clock.advance(Duration::from_secs(100));
                prop_assert!(poll_once(&mut acquire).is_ready());
                prop_assert_eq!(joint.last_grant(), ms(now));
                // It rested long enough to be full again.
                credit = bursts;
                now = clock.now() / 1_000_000;
            }
        }
    }
}
