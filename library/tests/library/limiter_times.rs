//! The times a limiter announces, and keeps: those of `reserve`, of `time_until`, and of a deadline that cannot be met;
//! with several limits, windows and reservations in the queue. The codes A9, A13 and A14 are those of
//! `library/docs/requirements.md`.

use crate::limiters::{FakeTimer, ms, poll_once};
use proptest::prelude::*;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use throttle_limits::clock::NanoClock;
use throttle_limits::limiter::{Acquire, AcquireError, Builder, Limiter, Oversize, Refill, Reservation};

const SECOND: u64 = 1_000_000_000;
const YEAR: u64 = 365 * 86_400;

fn one_a_second(burst: u64) -> Builder {
    Limiter::builder().rate(1, ms(1000)).burst(burst)
}

fn written(limits: &[&str]) -> Builder {
    limits.iter().fold(Limiter::builder(), |builder, limit| builder.limit(limit.parse().unwrap()))
}

fn timed(builder: Builder) -> (Limiter, Arc<FakeTimer>) {
    let timer = Arc::new(FakeTimer::default());
    (builder.clock(timer.clone()).build().unwrap(), timer)
}

fn pass(timers: &[&FakeTimer], millis: u64) {
    for timer in timers {
        timer.to(timer.now() + millis * 1_000_000);
    }
}

/// Adds a waiter to the queue.
fn wait(limiter: &Limiter, cost: u64) -> Pin<Box<Acquire<'_>>> {
    let mut acquire = Box::pin(limiter.acquire(cost));
    assert!(poll_once(&mut acquire).is_pending());
    acquire
}

/// When `acquire` is granted if every wake-up is on time.
fn granted_at(acquire: &mut Pin<Box<Acquire<'_>>>, timer: &FakeTimer) -> Result<u64, AcquireError> {
    loop {
        match poll_once(acquire) {
            std::task::Poll::Ready(result) => return result.map(|()| timer.now()),
            std::task::Poll::Pending => assert!(timer.to_next(), "nothing is due"),
        }
    }
}

fn wait_refused(result: Result<u64, AcquireError>) -> Duration {
    match result {
        Err(AcquireError::TooLong { wait, .. }) => wait.duration(),
        other => panic!("expected a refusal with a wait, got {other:?}"),
    }
}

/// The announced wait is exact: a shorter deadline is refused at once, and the same deadline is granted at the last
/// moment.
fn assert_announced_wait(limiter: &Limiter, timer: &FakeTimer, cost: u64, expected: Duration) {
    assert_eq!(limiter.time_until(cost), Ok(expected));
    let start = timer.now();
    let mut early = Box::pin(limiter.acquire(cost).timeout(expected.checked_sub(Duration::from_nanos(1)).unwrap()));
    assert_eq!(wait_refused(granted_at(&mut early, timer)), expected);
    assert_eq!(timer.now(), start, "refused at once");
    let mut just = Box::pin(limiter.acquire(cost).timeout(expected));
    assert_eq!(granted_at(&mut just, timer), Ok(start + u64::try_from(expected.as_nanos()).unwrap()));
}

#[test]
fn a14_the_announced_wait_is_exact_with_several_limits() {
    let grid = Limiter::builder().rate(9, ms(1000)).burst(5).refill(Refill::Grid).initial(0);
    for (builder, cost, waiters, expected) in [
        // Two of 3 do not fit into a window of 5, though 9 units do into two of them.
        (written(&["5/s,window"]), 3, 3, 3000),
        // The two limits bind in turn: 0 and 1 s, 10 and 11 s.
        (one_a_second(1).limit("2/10s".parse().unwrap()), 1, 3, 11_000),
        (written(&["2/s,burst=2", "30/min,burst=4"]), 1, 5, 4000),
        // A refill of 9 pays all four, though only 5 are kept if nobody waits.
        (grid, 2, 3, 1000),
        (one_a_second(5), 3, 3, 7000),
    ] {
        let name = format!("{builder:?}");
        let (limiter, timer) = timed(builder);
        let mut line: Vec<_> = (0..waiters).map(|_| Box::pin(limiter.acquire(cost))).collect();
        for waiter in &mut line {
            let _ = poll_once(waiter);
        }
        println!("{name}");
        assert_announced_wait(&limiter, &timer, cost, ms(expected));
    }
}

#[test]
fn a14_the_announced_wait_is_not_before_an_earlier_reservation() {
    let (limiter, timer) = timed(one_a_second(10).initial(0));
    let first = wait(&limiter, 1);
    let large = wait(&limiter, 8);
    let promise = limiter.reserve(1).unwrap();
    assert_eq!(promise.at(), ms(10_000));
    assert_eq!(limiter.time_until(1), Ok(ms(11_000)));
    drop(large);
    // What the large cost leaves fills the bucket until the reservation's time; nobody can take it before.
    assert_announced_wait(&limiter, &timer, 1, ms(10_000));
    drop(first);
}

#[test]
fn a14_a_deadline_behind_a_grant_beyond_the_clock_fails() {
    let (limiter, timer) = timed(Limiter::builder().rate(1, Duration::from_secs(400 * YEAR)).burst(1));
    limiter.try_acquire(1).unwrap();
    let first = wait(&limiter, 1);
    let mut late = Box::pin(limiter.acquire(1).timeout(ms(3_600_000)));
    assert!(matches!(granted_at(&mut late, &timer), Err(AcquireError::Never { .. })), "800 years");
    assert!(matches!(limiter.time_until(1), Err(AcquireError::Never { .. })));
    // Without a deadline a request may wait: earlier waiters may leave, and the rate may change.
    let mut second = wait(&limiter, 1);
    limiter.set_rate(1, ms(1000)).unwrap();
    drop(first);
    assert_eq!(granted_at(&mut second, &timer), Ok(SECOND));
}

#[test]
fn a13_a_cost_due_beyond_the_clock_waits_for_a_faster_rate() {
    let slow = || Limiter::builder().rate(1, Duration::from_secs(400 * YEAR)).burst(1).initial(0);
    let (limiter, timer) = timed(slow().oversize(Oversize::Wait));
    let mut waiter = wait(&limiter, 2);
    assert_eq!(timer.next(), None, "there is nothing to wake up for");
    limiter.set_rate(2, ms(1000)).unwrap();
    assert_eq!(granted_at(&mut waiter, &timer), Ok(SECOND));
    let (limiter, _) = timed(slow().burst(2));
    assert!(matches!(granted_at(&mut Box::pin(limiter.acquire(2)), &timer), Err(AcquireError::Never { .. })));
}

/// A thread refused on joining was once taken for the one that keeps time, and the next thread slept for ever.
#[test]
fn a14_a_thread_that_is_refused_at_once_leaves_nothing_behind() {
    let limiter = Limiter::builder().rate(1, Duration::from_secs(400 * YEAR)).burst(1).build().unwrap();
    limiter.try_acquire(1).unwrap();
    let blocked = |limiter: &Limiter| {
        let (limiter, (sender, receiver)) = (limiter.clone(), mpsc::channel());
        std::thread::spawn(move || sender.send(limiter.acquire(1).block()));
        receiver
    };
    let first = blocked(&limiter);
    while limiter.waiters() == 0 {
        std::thread::yield_now();
    }
    for limit in [Duration::ZERO, ms(3_600_000)] {
        assert!(matches!(limiter.acquire(1).timeout(limit).block(), Err(AcquireError::Never { .. })));
    }
    limiter.set_rate(100, ms(1000)).unwrap();
    assert_eq!(first.recv_timeout(ms(10_000)), Ok(Ok(())));
    assert_eq!(blocked(&limiter).recv_timeout(ms(10_000)), Ok(Ok(())), "it sleeps for ever");
}

#[test]
fn a13_reservations_cancelled_in_reverse_give_back_everything() {
    let ahead = |builder: Builder, units: u64, count: u64| {
        let (limiter, timer) = timed(builder);
        let reservations: Vec<_> = (0..count).map(|_| limiter.reserve(units).unwrap()).collect();
        let announced: Vec<_> = reservations.iter().map(Reservation::at).collect();
        timer.to(SECOND / 2);
        reservations.into_iter().rev().for_each(Reservation::cancel);
        // As if nothing had ever been reserved.
        let again: Vec<_> = (0..count).map(|_| limiter.reserve(units).unwrap().at()).collect();
        assert_eq!(again, announced);
    };
    ahead(one_a_second(1).initial(0), 1, 2);
    ahead(one_a_second(10).initial(0), 2, 5);
    ahead(one_a_second(10).initial(0).refill(Refill::Grid), 2, 5);
    ahead(one_a_second(1).initial(0).limit("2/10s".parse().unwrap()), 1, 7);
}

/// This takes minutes if each looks at all others.
#[test]
fn a13_many_reservations_are_made_kept_and_cancelled() {
    let (limiter, timer) = timed(one_a_second(1).limit("70/min".parse().unwrap()));
    for round in 0..3 {
        let all: Vec<_> = (0..1000).map(|_| limiter.reserve(1).unwrap()).collect();
        let (last, first) = (all.last().unwrap().at(), all[0].at());
        assert_eq!(last, first + Duration::from_secs(999), "round {round}");
        if round == 1 {
            all.into_iter().rev().for_each(Reservation::cancel);
        } else {
            timer.to(timer.now() + u64::try_from(all.last().unwrap().wait().as_nanos()).unwrap());
            assert_eq!(limiter.time_until(1), Ok(ms(1000)));
        }
    }
}

#[test]
fn a_late_waiter_does_not_take_the_room_of_a_reservation() {
    let (limiter, timer) = timed(written(&["1/10s,window"]));
    limiter.try_acquire(1).unwrap();
    let mut late = wait(&limiter, 1);
    timer.to(10 * SECOND);
    assert_eq!(limiter.reserve(1).unwrap().at(), ms(20_000));
    timer.to(25 * SECOND);
    assert_eq!(granted_at(&mut late, &timer), Ok(30 * SECOND), "a unit left at 20 s");
}

#[test]
fn a_waiter_that_waits_again_leaves_room_for_reservations() {
    let (limiter, timer) = timed(written(&["1/10s,window"]));
    limiter.try_acquire(1).unwrap();
    let mut late = wait(&limiter, 1);
    timer.to(10 * SECOND);
    let promised = [limiter.reserve(1).unwrap(), limiter.reserve(1).unwrap()];
    assert_eq!(promised.each_ref().map(Reservation::at), [ms(20_000), ms(30_000)]);
    timer.to(25 * SECOND);
    assert_eq!(limiter.available(), 0);
    assert_eq!(granted_at(&mut late, &timer), Ok(40 * SECOND), "units leave at 20 s and 30 s");
}

/// A timer served the waiter before the reservation, which was charged a period late then.
#[test]
fn a_waiter_that_waits_again_costs_those_behind_it_no_period() {
    let (limiter, timer) = timed(written(&["1/10s,window"]));
    limiter.try_acquire(1).unwrap();
    let mut late = wait(&limiter, 1);
    timer.to(10 * SECOND);
    timer.to(20 * SECOND);
    limiter.try_acquire(1).unwrap();
    assert_eq!(limiter.reserve(1).unwrap().at(), ms(30_000));
    timer.to(25 * SECOND);
    assert!(poll_once(&mut late).is_pending());
    assert_eq!(limiter.reserve(1).unwrap().at().as_secs(), 50, "it is behind the waiter");
    while timer.now() < 40 * SECOND {
        assert!(timer.to_next());
    }
    assert!(poll_once(&mut late).is_ready(), "later reservations do not go first");
    assert_eq!(limiter.time_until(1).unwrap().as_secs(), 20, "behind 50 s");
}

/// Law 2. The units of the reservation leave at 30 s.
#[test]
fn a_late_grant_does_not_take_room_that_is_promised() {
    let (limiter, timer) = timed(written(&["2/10s,window"]));
    limiter.try_acquire(2).unwrap();
    let mut late = wait(&limiter, 1);
    timer.to(10 * SECOND);
    timer.to(20 * SECOND);
    limiter.try_acquire(1).unwrap();
    assert_eq!(limiter.reserve(2).unwrap().at(), ms(30_000));
    timer.to(25 * SECOND);
    assert_eq!(granted_at(&mut late, &timer), Ok(40 * SECOND));
}

#[test]
fn estimates_go_in_the_order_of_grants_behind_a_late_one() {
    let (limiter, timer) = timed(written(&["3/10s,window"]));
    limiter.try_acquire(3).unwrap();
    let mut late = wait(&limiter, 3);
    timer.to(10 * SECOND);
    timer.to(20 * SECOND);
    limiter.try_acquire(3).unwrap();
    assert_eq!(limiter.reserve(1).unwrap().at(), ms(30_000));
    timer.to(25 * SECOND);
    assert!(poll_once(&mut late).is_pending());
    let told = 25 * SECOND + u64::try_from(limiter.time_until(2).unwrap().as_nanos()).unwrap();
    let mut next = wait(&limiter, 2);
    assert_eq!((granted_at(&mut late, &timer), granted_at(&mut next, &timer)), (Ok(40 * SECOND), Ok(told)));
}

#[test]
fn dropping_a_granted_waiter_behind_a_reservation_is_free() {
    let (limiter, timer) = timed(one_a_second(1).initial(0));
    let granted = wait(&limiter, 1);
    timer.to(SECOND);
    assert_eq!(limiter.reserve(1).unwrap().at(), ms(2000));
    timer.to(4 * SECOND);
    drop(granted);
    limiter.try_acquire(1).unwrap();
}

#[test]
fn a_reservation_of_nothing_holds_up_nobody() {
    let (limiter, _timer) = timed(one_a_second(5).initial(1));
    let first = wait(&limiter, 3);
    let _nothing = limiter.reserve(0).unwrap();
    drop(first);
    limiter.try_acquire(1).unwrap();
    let (limiter, timer) = timed(one_a_second(1).initial(0));
    let one = limiter.reserve(1).unwrap();
    let _nothing = limiter.reserve(0).unwrap();
    one.cancel();
    assert_eq!(limiter.time_until(1), Ok(ms(1000)));
    let _ = limiter.reserve(1).unwrap();
    timer.to(5 * SECOND);
    assert_eq!(limiter.last_grant(), ms(1000), "its time has come");
}

#[test]
fn a13_cancelling_an_earlier_reservation_does_not_move_the_last() {
    let (limiter, timer) = timed(one_a_second(1).initial(0));
    let [first, second, third] = [(); 3].map(|()| limiter.reserve(1).unwrap());
    first.cancel();
    assert_eq!(limiter.time_until(1), Ok(ms(4000)), "another reservation is in the future");
    third.cancel();
    assert_eq!(limiter.time_until(1), Ok(ms(3000)));
    timer.to(2 * SECOND);
    second.cancel(); // Its time has come: it was used.
    assert_eq!(limiter.time_until(1), Ok(ms(1000)));
}

proptest! {
    /// Law 5: reservations cancelled in reverse order leave no trace, whatever was reserved in between.
    #[test]
    fn a13_reservations_cancelled_in_reverse_order_leave_no_trace(
        limits in 0_usize..4,
        before in prop::collection::vec((1_u64..4, 0_u64..2500), 0..6),
        undone in prop::collection::vec((1_u64..4, 0_u64..300), 1..8),
        change in 0_u8..4, pause in 0_u64..3000,
    ) {
        let build = || timed(match limits {
            0 => one_a_second(3),
            1 => one_a_second(3).limit("5/10s".parse().unwrap()),
            2 => written(&["4/3s,window"]),
            _ => written(&["3/2s,burst=3", "20/min,burst=5"]),
        });
        let ((limiter, timer), (twin, its_timer)) = (build(), build());
        for &(units, millis) in &before {
            prop_assert_eq!(limiter.reserve(units).unwrap().at(), twin.reserve(units).unwrap().at());
            pass(&[&timer, &its_timer], millis);
        }
        let mut reserved = Vec::new();
        for &(units, millis) in &undone {
            reserved.push(limiter.reserve(units).unwrap());
            pass(&[&timer, &its_timer], millis);
        }
        // Changes in between apply to what is given back, too.
        for limiter in [&limiter, &twin].into_iter().filter(|_| limits == 0) {
            match change {
                0 => limiter.set_rate(2, ms(1000)).unwrap(),
                1 => limiter.set_burst(4).unwrap(),
                2 => limiter.reconcile(2, 1).unwrap(),
                _ => {}
            }
        }
        let all_ahead = reserved.iter().all(|reservation| !reservation.wait().is_zero());
        reserved.into_iter().rev().for_each(Reservation::cancel);
        pass(&[&timer, &its_timer], pause);
        if all_ahead {
            for units in [1, 3, 2, 1, 3] {
                prop_assert_eq!(limiter.reserve(units).unwrap().at(), twin.reserve(units).unwrap().at());
            }
        }
    }

    /// Behind any queue, whoever has left it, a new request is granted at the announced time if all others stay.
    #[test]
    fn a14_the_announced_wait_is_exact_behind_any_queue(
        limits in 0_usize..6,
        steps in prop::collection::vec((0_u8..5, 1_u64..4, 0_u64..900, any::<prop::sample::Index>()), 1..25),
        cost in 1_u64..4,
    ) {
        let (limiter, timer) = timed(match limits {
            0 => one_a_second(3),
            1 => one_a_second(3).limit("5/10s".parse().unwrap()),
            2 => written(&["4/3s,window"]),
            3 => written(&["3/2s,burst=3", "20/min,burst=5"]),
            4 => Limiter::builder().rate(7, ms(1000)).burst(3).refill(Refill::Grid),
            _ => Limiter::builder().rate(2, ms(1000)).burst(2).oversize(Oversize::Wait),
        });
        let mut line = Vec::new();
        let mut promised = Vec::new();
        for (step, units, millis, index) in steps {
            match step {
                0 | 1 => line.push(Box::pin(limiter.acquire(units))),
                2 => promised.push(limiter.reserve(units).unwrap()),
                3 if !line.is_empty() => drop(line.remove(index.index(line.len()))),
                _ => {
                    let end = timer.now() + millis * 1_000_000;
                    while timer.next().is_some_and(|next| next <= end) {
                        timer.to_next();
                    }
                    timer.to(end);
                }
            }
            line.retain_mut(|waiter| poll_once(waiter).is_pending());
        }
        let announced = timer.now() + u64::try_from(limiter.time_until(cost).unwrap().as_nanos()).unwrap();
        let mut last = Box::pin(limiter.acquire(cost).timeout(Duration::from_nanos(announced - timer.now())));
        prop_assert_eq!(granted_at(&mut last, &timer), Ok(announced));
    }
}

#[test]
fn a9_an_unfair_request_does_not_take_reserved_units() {
    let (limiter, timer) = timed(one_a_second(5).initial(4).fair(false));
    let mut first = wait(&limiter, 5);
    let promise = limiter.reserve(5).unwrap();
    assert_eq!(promise.at(), ms(6000));
    let refused = limiter.try_acquire(4).map(|()| 0);
    assert_eq!(wait_refused(refused), ms(10_000), "behind both");
    assert_eq!(granted_at(&mut first, &timer), Ok(SECOND), "or ten units leave within a second");
    // Once no reservation is in the queue, a new request takes what is available.
    timer.to(9 * SECOND);
    let large = wait(&limiter, 5);
    assert_eq!((limiter.time_until(3), limiter.try_acquire(3)), (Ok(ms(0)), Ok(())));
    drop(large);
}

#[test]
fn a9_the_first_waiters_credit_is_its_own_even_if_unfair() {
    let (limiter, timer) = timed(one_a_second(5).initial(4).fair(false).oversize(Oversize::Wait));
    let mut large = wait(&limiter, 10);
    for tenth in 0..60 {
        timer.to(tenth * SECOND / 10);
        let announced = wait_refused(limiter.try_acquire(1).map(|()| 0));
        assert_eq!(announced, ms(7000 - tenth * 100));
    }
    assert_eq!(granted_at(&mut large, &timer), Ok(6 * SECOND));
}

/// Laws 2 and 5 contradict each other if the rate becomes slower while a waiter is before a reservation, next to a
/// window. The waiter is served later, but the reservation behind it is not moved. Then law 5 wins: the reservation is
/// kept, because its holder sleeps by itself. Later requests are charged for everything, and wait until they conform.
#[test]
fn a13_a_reservation_is_kept_though_an_earlier_waiter_is_late() {
    let (limiter, timer) = timed(one_a_second(1).limit("2/10s".parse().unwrap()));
    limiter.try_acquire(1).unwrap();
    let mut waiter = wait(&limiter, 1); // at 1 s
    let promises = [limiter.reserve(1).unwrap(), limiter.reserve(1).unwrap()];
    let announced = promises.each_ref().map(Reservation::at);
    // A reservation behind another leaves room for a fraction of a nanosecond.
    assert_eq!(announced, [ms(10_000), ms(11_000) + Duration::from_nanos(1)]);
    limiter.set_rate(1, ms(5000)).unwrap();
    assert_eq!(granted_at(&mut waiter, &timer), Ok(5 * SECOND), "the waiter is re-timed");
    assert_eq!(promises.each_ref().map(Reservation::at), announced, "three within 10 s, this once");
    let mut next = wait(&limiter, 1);
    let at = granted_at(&mut next, &timer).unwrap();
    assert!(at >= 20 * SECOND, "{at}: two of the last ten seconds are promised");
}

#[test]
fn a13_the_rate_and_the_burst_of_a_grid_change() {
    let (limiter, timer) = timed(Limiter::builder().rate(2, ms(1000)).burst(4).refill(Refill::Grid).initial(0));
    let mut waiter = wait(&limiter, 3);
    timer.to(SECOND);
    limiter.set_rate(1, ms(300)).unwrap();
    assert_eq!(granted_at(&mut waiter, &timer), Ok(1_300_000_000), "two came at 1 s, one on the new grid");
    timer.to(10 * SECOND);
    assert_eq!(limiter.available(), 4);
    limiter.set_burst(2).unwrap();
    assert_eq!(limiter.available(), 2, "a smaller one spills");
    limiter.set_burst(3).unwrap();
    timer.to(20 * SECOND);
    assert_eq!(limiter.available(), 3, "a larger one fills");
}

#[test]
fn a13_the_rate_that_changes_is_that_of_the_fastest_bucket() {
    for limits in [["60/min,burst=20", "5/s,burst=5"], ["5/s,burst=5", "60/min,burst=20"]] {
        let (limiter, timer) = timed(written(&limits));
        limiter.try_acquire(5).unwrap();
        assert_eq!(limiter.time_until(5), Ok(ms(1000)));
        limiter.set_rate(50, ms(1000)).unwrap();
        assert_eq!(limiter.time_until(5), Ok(ms(100)), "{limits:?}");
        limiter.set_burst(8).unwrap();
        timer.to(SECOND);
        assert_eq!(limiter.available(), 8, "{limits:?}");
        timer.to(2 * SECOND);
        limiter.try_acquire(8).unwrap();
        // 20 − 5 + 2 − 8 = 9 of the other bucket are left; it fills at one per second as before.
        assert_eq!(limiter.reserve(8).unwrap().wait(), ms(160));
        assert_eq!(limiter.reserve(8).unwrap().wait(), ms(7000));
    }
}
