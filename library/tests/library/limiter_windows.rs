//! Windows count a unit when it is handed over, not when it was due: a server sees at most COUNT in any PERIOD.

use crate::limiters::{Count, FakeTimer, ms, poll_once};
use crate::rounds::rounds;
use proptest::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;
use throttle_limits::clock::NanoClock;
use throttle_limits::limiter::{Acquire, Limiter};

const MS: u64 = 1_000_000;

fn limiter(limits: &[&str]) -> (Limiter, Arc<FakeTimer>) {
    let timer = Arc::new(FakeTimer::default());
    let limits = limits.iter().map(|limit| limit.parse().unwrap());
    let builder = limits.fold(Limiter::builder(), throttle_limits::limiter::Builder::limit);
    (builder.clock(timer.clone()).build().unwrap(), timer)
}

fn line(limiter: &Limiter, length: usize) -> Vec<Pin<Box<Acquire<'_>>>> {
    let mut line: Vec<_> = (0..length).map(|_| Box::pin(limiter.acquire(1))).collect();
    line.retain_mut(|one| poll_once(one).is_pending());
    line
}

/// Fetches what was granted and records the time.
fn fetch(line: &mut Vec<Pin<Box<Acquire<'_>>>>, timer: &FakeTimer, handed: &mut Vec<u64>) {
    line.retain_mut(|one| {
        let ready = poll_once(one).is_ready();
        handed.extend(ready.then(|| timer.now()));
        !ready
    });
}

fn most_in(handed: &[u64], period: u64) -> usize {
    let within = |first: usize| handed[first..].iter().take_while(|time| **time < handed[first] + period).count();
    (0..handed.len()).map(within).max().unwrap_or(0)
}

#[test]
fn late_timers_put_no_more_units_into_a_period() {
    let (limiter, timer) = limiter(&["10/100ms,window"]);
    let mut line = line(&limiter, 310);
    assert_eq!(line.len(), 300);
    let (mut handed, mut late) = (vec![0; 10], 0);
    while !line.is_empty() {
        late = (late + 7) % 12;
        timer.to(timer.next().unwrap().max(timer.now()) + late * MS / 10);
        fetch(&mut line, &timer, &mut handed);
    }
    assert_eq!((handed.len(), most_in(&handed, 100 * MS)), (310, 10));
    assert!(timer.now() <= 31 * 102 * MS, "and it is late by no more than its timers: {}", timer.now());
}

/// The rest of its count is as if it had been granted at the start.
#[test]
fn a_window_may_start_with_a_part_of_its_count() {
    for (limit, free) in [("5/s,window,initial=0", 0), ("5/s,window,initial=2", 2), ("5/s,window,initial=5", 5)] {
        let (limiter, timer) = limiter(&[limit]);
        assert_eq!(limiter.available(), free, "{limit}");
        let mut line = line(&limiter, 12);
        let mut handed = vec![0; usize::try_from(free).unwrap()];
        while !line.is_empty() {
            timer.to(timer.next().unwrap());
            fetch(&mut line, &timer, &mut handed);
        }
        assert_eq!(handed.iter().filter(|at| **at == 0).count() as u64, free, "{limit}");
        assert_eq!(handed.iter().filter(|at| **at == 1000 * MS).count(), 5, "{limit}");
        assert_eq!(most_in(&handed, 1000 * MS), 5, "{limit}");
    }
}

#[test]
fn a_runtime_that_was_blocked_makes_no_window_overflow() {
    let (limiter, timer) = limiter(&["100/s,burst=1", "100/1s,window"]);
    let mut line = line(&limiter, 500);
    let mut handed = vec![0];
    while !line.is_empty() {
        let next = timer.next().unwrap().max(timer.now());
        // Nobody polls from 0.95 s to 1.85 s.
        timer.to(if next > 950 * MS && next < 1850 * MS { 1850 * MS } else { next });
        fetch(&mut line, &timer, &mut handed);
    }
    assert_eq!(most_in(&handed, 1000 * MS), 100);
    assert!(timer.now() <= 6000 * MS, "{}", timer.now());
}

/// Buckets are still charged on the schedule, so a window next to one costs no rate.
#[tokio::test(start_paused = true)]
async fn a_window_beside_a_bucket_costs_no_rate_under_late_timers() {
    let limiter = Limiter::builder().rate(10_000, ms(1000)).burst(1).limit("1000000/1h,window".parse().unwrap());
    let limiter = limiter.build().unwrap();
    let start = tokio::time::Instant::now();
    for _ in 0..10_000 {
        limiter.acquire(1).await.unwrap();
    }
    assert!(start.elapsed() >= ms(999) && start.elapsed() <= ms(1002), "{:?}", start.elapsed());
}

#[test]
fn a_grant_fetched_late_counts_from_then_or_waits_again() {
    let (limiter, timer) = limiter(&["2/100ms,window"]);
    let mut line = line(&limiter, 6);
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    for one in &mut line {
        assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    timer.to(100 * MS); // two are granted
    timer.to(190 * MS);
    assert!(poll_once(&mut line[0]).is_ready(), "one is fetched only now");
    timer.to(200 * MS); // the other's room is free, and is given to the third
    timer.to(210 * MS);
    assert!(poll_once(&mut line[2]).is_ready());
    assert!(poll_once(&mut line[1]).is_pending(), "it could go at 100, and two went at 190 and 210");
    assert_eq!(limiter.waiters(), 2, "it waits once more, before the others");
    let waiting = limiter.time_until(1).unwrap();
    timer.to(290 * MS);
    assert!(poll_once(&mut line[3]).is_pending() && poll_once(&mut line[1]).is_ready());
    timer.to(310 * MS);
    assert!(poll_once(&mut line[3]).is_ready());
    assert_eq!((waiting, count.0.load(Ordering::SeqCst)), (ms(180), 3));
}

#[test]
fn a_dropped_waiter_that_waits_again_gives_back_its_payment() {
    let (limiter, timer) = limiter(&["2/10s,burst=2", "1/100ms,window"]);
    let mut line = line(&limiter, 3);
    timer.to(100 * MS); // granted to the first
    assert_eq!(limiter.waiters(), 1);
    timer.to(200 * MS);
    line.pop();
    assert_eq!(limiter.waiters(), 0);
    limiter.set_rate(1, Duration::from_secs(3600)).unwrap();
    assert!(limiter.try_acquire(1).is_err(), "the burst is gone");
    let mut late = line.remove(0);
    assert!(poll_once(&mut late).is_ready());
}

#[test]
fn a_window_gets_back_a_cancelled_reservation() {
    type Since = fn(&Limiter, &FakeTimer);
    let since: [(&str, u64, Since); 5] = [
        ("nothing", 500, |_, _| {}),
        ("a cost that was right", 500, |limiter, _| limiter.reconcile(1, 1).unwrap()),
        ("units that cost more", 490, |limiter, _| limiter.reconcile(11, 1).unwrap()),
        ("units that cost less", 500, |limiter, _| limiter.reconcile(1, 11).unwrap()),
        ("time", 500, |_, timer| timer.to(300_000 * MS)),
    ];
    for (what, left, since) in since {
        let (limiter, timer) = limiter(&["1/s,burst=500", "1000/h,window"]);
        limiter.try_acquire(500).unwrap();
        let reserved = limiter.reserve(400).unwrap();
        since(&limiter, &timer);
        reserved.cancel();
        timer.to(1_000_000 * MS);
        assert_eq!(limiter.available(), left, "{what}");
    }
}

#[test]
fn a_window_gets_back_a_reservation_behind_a_served_waiter() {
    let (limiter, timer) = limiter(&["1/s,burst=500", "1000/h,window"]);
    limiter.try_acquire(500).unwrap();
    let mut waiter = Box::pin(limiter.acquire(100));
    assert!(poll_once(&mut waiter).is_pending());
    let reserved = limiter.reserve(300).unwrap();
    timer.to(100_000 * MS);
    assert!(poll_once(&mut waiter).is_ready());
    reserved.cancel();
    timer.to(1_000_000 * MS);
    assert_eq!(limiter.available(), 400);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(300)))]

    /// Law 5: settlements, reconciliations and other cancelled reservations take nothing away.
    #[test]
    fn law5_a_cancelled_reservation_leaves_no_trace_in_a_window(
        taken in 1_u64..40, reserved in prop::collection::vec(1_u64..40, 1..4),
        steps in prop::collection::vec((0_u8..3, 0_u64..9, 0_u64..40), 0..6),
    ) {
        let both = [true, false].map(|reserves| {
            let (limiter, timer) = limiter(&["1000/s,burst=100", "100/10s,window", "500/h,window"]);
            let mut open = vec![limiter.try_acquire_to_settle(taken).unwrap(), limiter.try_acquire_to_settle(60).unwrap()];
            timer.to(9_900 * MS);
            // They have to wait until the first units no longer count, or a little.
            let mut held: Vec<_> = if reserves {
                reserved.iter().map(|units| limiter.reserve(100 - units / 2).unwrap()).collect()
            } else {
                Vec::new()
            };
            for &(step, millis, units) in &steps {
                timer.to(timer.now() + millis * MS);
                match step {
                    0 => limiter.reconcile(units, 20).unwrap(),
                    1 => open.pop().map_or(Ok(()), |open| open.settle(units)).unwrap(),
                    _ if held.len() > 1 => held.pop().unwrap().cancel(),
                    _ => {}
                }
            }
            held.into_iter().rev().for_each(throttle_limits::limiter::Reservation::cancel);
            [9_960, 10_000, 15_000, 19_910, 30_000].map(|time| {
                timer.to(time * MS);
                limiter.available()
            })
        });
        prop_assert_eq!(both[0], both[1]);
    }

    /// Whatever is fetched, given back or cancelled: no period sees more than the count, and no waiter is forgotten.
    #[test]
    fn law2_no_period_sees_more_than_the_count(
        count in 1_usize..5, with_bucket in any::<bool>(),
        steps in prop::collection::vec((0_u8..6, 0_u64..250, any::<prop::sample::Index>()), 1..60),
    ) {
        let window = format!("{count}/100ms,window");
        let limits = if with_bucket { vec!["30/s,burst=3", window.as_str()] } else { vec![window.as_str()] };
        let (limiter, timer) = limiter(&limits);
        let (mut line, mut handed) = (Vec::new(), Vec::new());
        for (step, millis, index) in steps {
            match step {
                0 | 1 => line.push(Box::pin(limiter.acquire(1))),
                2 if limiter.try_acquire(1).is_ok() => handed.push(timer.now()),
                3 if !line.is_empty() => drop(line.remove(index.index(line.len()))),
                4 if !line.is_empty() => {
                    let place = index.index(line.len());
                    if poll_once(&mut line[place]).is_ready() {
                        handed.push(timer.now());
                        drop(line.remove(place));
                    }
                }
                _ => timer.to(timer.now() + millis * MS / 2),
            }
        }
        for _ in 0..10_000 {
            fetch(&mut line, &timer, &mut handed);
            if line.is_empty() || !timer.to_next() { break }
        }
        fetch(&mut line, &timer, &mut handed);
        prop_assert!(line.is_empty(), "{} are left behind", line.len());
        prop_assert!(most_in(&handed, 100 * MS) <= count, "{handed:?}");
        timer.to(timer.now() + 10_000 * MS);
        prop_assert_eq!(limiter.available(), if with_bucket { count.min(3) as u64 } else { count as u64 }, "nothing is leaked");
    }
}
