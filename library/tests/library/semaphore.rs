//! The semaphore. The codes C1 to C9 are those of `library/docs/requirements.md`.

use crate::limiters::{Count, FakeTimer, Panicking, ms, poll_once};
use proptest::prelude::*;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use throttle_limits::limiter::{AcquireError, BuildError};
use throttle_limits::semaphore::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Starts `tasks` tasks that each work for `work`; returns when each began.
async fn starts(semaphore: &Semaphore, tasks: usize, work: Duration) -> Vec<Duration> {
    let start = Instant::now();
    let mut set = JoinSet::new();
    for number in 0..tasks {
        let semaphore = semaphore.clone();
        set.spawn(async move {
            let _permit = semaphore.acquire().await.unwrap();
            let began = start.elapsed();
            tokio::time::sleep(work).await;
            (number, began)
        });
        tokio::task::yield_now().await;
    }
    let mut starts = set.join_all().await;
    starts.sort_unstable();
    starts.into_iter().map(|(_, began)| began).collect()
}

#[tokio::test(start_paused = true)]
async fn c1_a_permit_needs_a_place_and_a_token() {
    let semaphore = Semaphore::new(2, 1).unwrap();
    // If work takes longer than the tokens, places decide; and the other way round.
    assert_eq!(starts(&semaphore, 4, ms(5000)).await, [ms(0), ms(0), ms(5000), ms(5000)]);
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(starts(&semaphore, 4, ms(1)).await, [ms(0), ms(0), ms(1000), ms(2000)]);
    assert_eq!(Semaphore::new(2, 0).unwrap_err(), BuildError::ZeroRate);
}

#[tokio::test(start_paused = true)]
async fn c2_dropping_a_permit_frees_exactly_its_place() {
    let semaphore = Semaphore::new(3, 1000).unwrap();
    let first = semaphore.acquire().await.unwrap();
    let second = semaphore.try_acquire().unwrap();
    assert_eq!(semaphore.available(), 1);
    drop(first);
    assert_eq!(semaphore.available(), 2);
    let elsewhere = tokio::spawn(async move { drop(second) });
    elsewhere.await.unwrap();
    assert_eq!(semaphore.available(), 3);
    semaphore.acquire().await.unwrap().forget();
    assert_eq!(semaphore.available(), 2, "a forgotten place is gone");
}

#[tokio::test(start_paused = true)]
async fn c2_an_acquire_polled_after_its_end_gives_no_second_permit() {
    let semaphore = Semaphore::new(1, 1000).unwrap();
    let mut at_once = Box::pin(semaphore.acquire());
    let permit = at_once.as_mut().await.unwrap();
    tokio::time::sleep(ms(1)).await;
    let mut in_line = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut in_line).is_pending());
    for _ in 0..2 {
        assert_eq!(at_once.as_mut().await.unwrap_err(), AcquireError::Finished);
        assert_eq!(semaphore.available(), 0, "the place is held");
    }
    drop(permit);
    let permit = in_line.as_mut().await.unwrap();
    assert_eq!(in_line.as_mut().await.unwrap_err(), AcquireError::Finished);
    drop((at_once, in_line));
    assert!(semaphore.is_locked(), "the permit outlives its future");
    drop(permit);
    assert_eq!(semaphore.available(), 1);
}

#[tokio::test(start_paused = true)]
async fn c2_a_refused_acquire_polled_again_stays_refused() {
    let semaphore = Semaphore::new(1, 1000).unwrap();
    let _held = semaphore.acquire().await.unwrap();
    let mut waiter = Box::pin(semaphore.acquire().timeout(ms(10)));
    for _ in 0..3 {
        assert!(matches!(waiter.as_mut().await, Err(AcquireError::TimedOut { after, .. }) if after == ms(10)));
    }
}

#[tokio::test(start_paused = true)]
async fn c2_a_forgotten_place_also_removes_its_share_of_the_tokens() {
    let semaphore = Semaphore::new(4, 1).unwrap();
    for _ in 0..3 {
        semaphore.acquire().await.unwrap().forget();
    }
    tokio::time::sleep(ms(100_000)).await;
    drop(semaphore.try_acquire().expect("one place, one token"));
    let refused = semaphore.try_acquire().map(drop);
    assert!(matches!(refused, Err(AcquireError::TooLong { wait, .. }) if wait == ms(1000)), "{refused:?}");
    semaphore.acquire().await.unwrap().forget();
    assert_eq!((semaphore.available(), semaphore.is_locked()), (0, true));
}

#[tokio::test(start_paused = true)]
async fn c3_releasing_never_sleeps_and_nothing_waits_at_the_end() {
    let semaphore = Semaphore::new(2, 0.001).unwrap();
    let start = Instant::now();
    assert_eq!(starts(&semaphore, 2, ms(10)).await, [ms(0), ms(0)]);
    assert_eq!(start.elapsed(), ms(10));
    // Nor does the thread.
    let (semaphore, start) = (Semaphore::new(1, 0.001).unwrap(), std::time::Instant::now());
    drop(semaphore.try_acquire().unwrap());
    assert!(start.elapsed() < ms(2000), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c4_waiters_start_a_slot_apart_and_after_a_release() {
    let semaphore = Semaphore::new(3, 2).unwrap();
    let expected = [0, 0, 0, 500, 1000, 1500, 2000].map(ms);
    assert_eq!(starts(&semaphore, 7, ms(100)).await, expected);
    tokio::time::sleep(ms(10_000)).await;
    let expected = [0, 0, 0, 1600, 1600, 1600, 3200].map(ms);
    assert_eq!(starts(&semaphore, 7, ms(1600)).await, expected, "tokens gathered while places were held");
}

#[tokio::test(start_paused = true)]
async fn c4_after_a_long_hold_no_two_start_on_one_slot() {
    let semaphore = Semaphore::new(1, 1).unwrap();
    let held = semaphore.acquire().await.unwrap();
    let start = Instant::now();
    let mut line: Vec<_> = (0..3).map(|_| Box::pin(semaphore.acquire())).collect();
    for waiter in &mut line {
        assert!(poll_once(waiter).is_pending());
    }
    tokio::time::sleep(ms(10_000)).await;
    drop(held);
    for (number, waiter) in line.into_iter().enumerate() {
        drop(waiter.await.unwrap());
        assert_eq!(start.elapsed(), ms(10_000 + 1000 * number as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn c5_a_slow_period_after_a_burst_allows_no_larger_burst() {
    let semaphore = Semaphore::new(3, 2).unwrap();
    starts(&semaphore, 6, ms(1)).await;
    for _ in 0..20 {
        tokio::time::sleep(ms(900)).await;
        drop(semaphore.acquire().await.unwrap());
    }
    tokio::time::sleep(ms(60_000)).await;
    assert_eq!(starts(&semaphore, 5, ms(1)).await, [0, 0, 0, 500, 1000].map(ms));
}

#[tokio::test(start_paused = true)]
async fn c6_first_in_first_out_and_a_cancelled_waiters_slot_is_used() {
    let semaphore = Semaphore::new(1, 1).unwrap();
    drop(semaphore.acquire().await.unwrap());
    let start = Instant::now();
    let mut cancelled = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut cancelled).is_pending());
    let mut timed = Box::pin(tokio::time::timeout(ms(10), semaphore.acquire()));
    assert!(poll_once(&mut timed).is_pending());
    let mut next = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut next).is_pending());
    drop(cancelled);
    assert!(timed.await.is_err());
    let mut last = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut last).is_pending());
    tokio::time::sleep(ms(980)).await;
    assert!(poll_once(&mut next).is_pending());
    tokio::time::sleep(ms(10)).await;
    assert_eq!(start.elapsed(), ms(1000));
    let std::task::Poll::Ready(Ok(permit)) = poll_once(&mut next) else { panic!("the next uses the slot") };
    assert!(poll_once(&mut last).is_pending());
    drop(permit);
    drop(last.await.unwrap());
    assert_eq!(start.elapsed(), ms(2000));
    assert_eq!(semaphore.available(), 1);
}

#[tokio::test(start_paused = true)]
async fn c7_available_and_locked_and_a_capacity_of_0() {
    let semaphore = Semaphore::new(0, 10).unwrap();
    assert!(semaphore.is_locked());
    assert_eq!(semaphore.available(), 0);
    assert_eq!(semaphore.try_acquire().unwrap_err(), AcquireError::NoPlace, "and not a wait of 0");
    let mut waiter = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut waiter).is_pending());
    tokio::time::sleep(ms(60_000)).await;
    assert!(poll_once(&mut waiter).is_pending());
    semaphore.set_capacity(3);
    let permit = tokio::time::timeout(ms(60_000), waiter).await.expect("a raised capacity").unwrap();
    assert_eq!((semaphore.available(), semaphore.is_locked()), (2, false));
    semaphore.set_capacity(1);
    let mut waiters: Vec<_> = (0..3).map(|_| Box::pin(semaphore.acquire())).collect();
    for waiter in &mut waiters {
        assert!(poll_once(waiter).is_pending());
    }
    assert_eq!((semaphore.available(), semaphore.waiters()), (0, 3), "not below 0");
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn c7_fewer_places_save_up_fewer_tokens() {
    let semaphore = Semaphore::new(5, 1).unwrap();
    semaphore.set_capacity(2);
    tokio::time::sleep(ms(100_000)).await;
    assert_eq!(starts(&semaphore, 4, ms(0)).await, [0, 0, 1000, 2000].map(ms));
    semaphore.set_capacity(4);
    tokio::time::sleep(ms(100_000)).await;
    assert_eq!(starts(&semaphore, 6, ms(0)).await, [0, 0, 0, 0, 1000, 2000].map(ms), "and more places more");
}

#[tokio::test(start_paused = true)]
async fn c6_closing_serves_waiters_and_refuses_later_requests() {
    let semaphore = Semaphore::new(1, 1000).unwrap();
    let held = semaphore.acquire().await.unwrap();
    let mut waiter = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut waiter).is_pending());
    semaphore.close();
    assert_eq!(semaphore.try_acquire().unwrap_err(), AcquireError::Closed);
    assert_eq!(semaphore.acquire().await.unwrap_err(), AcquireError::Closed);
    assert_eq!(semaphore.acquire().block().unwrap_err(), AcquireError::Closed);
    drop(held);
    assert!(waiter.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn c1_a_deadline_covers_the_wait_for_a_place_and_for_a_token() {
    let semaphore = Semaphore::new(1, 1).unwrap();
    let held = semaphore.acquire().await.unwrap();
    let start = Instant::now();
    let timed_out = tokio::time::timeout(ms(400), semaphore.acquire().timeout(ms(300))).await.expect("its own timeout");
    assert!(matches!(timed_out, Err(AcquireError::TimedOut { .. })), "no place");
    assert_eq!(start.elapsed(), ms(300));
    drop(held);
    let refused = semaphore.acquire().timeout(ms(699)).await.map(drop);
    assert!(matches!(refused, Err(AcquireError::TooLong { wait, .. }) if wait == ms(700)), "{refused:?}");
    assert!(semaphore.acquire().timeout(ms(700)).await.is_ok());
    assert_eq!(start.elapsed(), ms(1000));
}

#[test]
fn c1_a_deadline_of_a_thread_covers_place_and_token() {
    let semaphore = Semaphore::new(1, 0.1).unwrap();
    let held = semaphore.acquire().timeout(Duration::ZERO).block().unwrap();
    std::thread::scope(|scope| {
        let holder = scope.spawn(move || {
            std::thread::park_timeout(Duration::from_secs(5));
            drop(held);
        });
        let timed_out = semaphore.acquire().timeout(ms(20)).block().map(drop);
        // It joins the queue a moment after the limit began.
        assert!(matches!(timed_out, Err(AcquireError::TimedOut { after, .. }) if after <= ms(20)), "{timed_out:?}");
        holder.thread().unpark();
    });
    let refused = semaphore.acquire().timeout(ms(1000)).block().map(drop);
    assert!(matches!(refused, Err(AcquireError::TooLong { .. })), "{refused:?}");
    assert_eq!((semaphore.waiters(), semaphore.available()), (0, 1));
}

#[test]
fn c1_waiting_for_a_place_needs_no_timer() {
    let semaphore = Semaphore::new(1, 1_000_000).unwrap();
    let held = semaphore.try_acquire().unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut waiter = Box::pin(semaphore.acquire());
    assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    std::thread::sleep(ms(1)); // for the token
    drop(held);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(matches!(poll_once(&mut waiter), Poll::Ready(Ok(_))));
}

#[test]
fn c1_a_runtime_without_a_timer_is_enough_for_a_place() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let semaphore = Semaphore::new(1, 1_000_000).unwrap();
    let held = semaphore.try_acquire().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(ms(20));
            drop(held);
        });
        drop(runtime.block_on(semaphore.acquire()).unwrap());
    });
}

#[test]
fn c1_a_waiter_for_place_and_token_needs_no_runtime() {
    let semaphore = Semaphore::new(1, 50).unwrap();
    let held = semaphore.try_acquire().unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut waiter = Box::pin(semaphore.acquire());
    assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(held);
    while count.0.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(ms(1));
    }
    assert!(matches!(poll_once(&mut waiter), Poll::Ready(Ok(_))));
    assert_eq!((semaphore.waiters(), semaphore.available()), (0, 1));
}

/// Each waiter finds out by itself: another waiter's runtime may not be running.
#[test]
fn c1_a_waiter_for_a_place_uses_the_timer_of_its_own_runtime() {
    let semaphore = Semaphore::new(1, 5).unwrap();
    let permit = semaphore.try_acquire().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (idle, driven) = (runtime(), runtime());
    let mut head = Box::pin(semaphore.acquire());
    idle.block_on(async { assert!(poll_once(&mut head).is_pending()) });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(ms(5));
            drop(permit);
            // The first waiter is polled in a runtime that then stops running.
            idle.block_on(async { assert!(poll_once(&mut head).is_pending()) });
            std::thread::sleep(ms(300));
            drop(head);
        });
        drop(driven.block_on(semaphore.acquire()).unwrap());
    });
}

#[test]
fn c1_another_executor_with_a_timer_of_its_own() {
    let timer = Arc::new(FakeTimer::default());
    let semaphore = Semaphore::builder(2, 4, Duration::from_secs(1)).clock(timer.clone()).build().unwrap();
    drop((semaphore.try_acquire().unwrap(), semaphore.try_acquire().unwrap()));
    let mut waiter = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut waiter).is_pending());
    assert_eq!(timer.next(), Some(250_000_000));
    assert!(timer.to_next());
    assert!(matches!(poll_once(&mut waiter), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn c7_a_waiter_for_a_token_counts_against_the_free_places() {
    let semaphore = Semaphore::new(3, 0.001).unwrap();
    for _ in 0..3 {
        drop(semaphore.acquire().await.unwrap());
    }
    assert_eq!(semaphore.available(), 3);
    let mut waiter = Box::pin(semaphore.acquire());
    assert!(poll_once(&mut waiter).is_pending());
    assert_eq!((semaphore.available(), semaphore.is_locked()), (2, false));
    drop(waiter);
    assert_eq!(semaphore.available(), 3);
}

#[tokio::test(start_paused = true)]
async fn c8_forty_places_two_a_second_forty_four_tasks() {
    let semaphore = Semaphore::new(40, 2).unwrap();
    let start = Instant::now();
    let starts = starts(&semaphore, 44, ms(100)).await;
    assert!(starts[..40].iter().all(Duration::is_zero));
    assert_eq!(starts[40..], [500, 1000, 1500, 2000].map(ms));
    assert_eq!(start.elapsed(), ms(2100), "ends when the last work ends");
}

#[tokio::test(start_paused = true)]
async fn c9_a_panic_frees_the_place() {
    let semaphore = Semaphore::new(1, 1000).unwrap();
    let task = tokio::spawn({
        let semaphore = semaphore.clone();
        async move {
            let _permit = semaphore.acquire().await.unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    });
    assert!(task.await.is_err());
    assert_eq!(semaphore.available(), 1);
}

type Way<'a> = Box<dyn FnMut() + 'a>;

#[test]
fn c9_a_panicking_waker_loses_no_other_place() {
    let timer = Arc::new(FakeTimer::default());
    // A full bucket is within the allowance for lateness, so there are tokens for two who come late.
    let semaphore = Semaphore::builder(3, 1000, Duration::from_secs(1)).clock(timer.clone()).build().unwrap();
    let by_trying = || drop(semaphore.try_acquire());
    let by_joining = || drop(poll_once(&mut Box::pin(semaphore.acquire())));
    let by_thread = || drop(semaphore.acquire().block());
    let mut in_line = Box::pin(semaphore.acquire());
    let mut ways: [(&str, Way<'_>); 4] = [
        ("trying", Box::new(by_trying)),
        ("joining", Box::new(by_joining)),
        ("a thread", Box::new(by_thread)),
        ("in line", Box::new(|| drop(poll_once(&mut in_line)))),
    ];
    for (number, (way, act)) in (1..).zip(&mut ways) {
        while let Ok(permit) = semaphore.try_acquire() {
            drop(permit);
        }
        let waker = Waker::from(Arc::new(Panicking));
        let mut bad = Box::pin(semaphore.acquire());
        assert!(bad.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        if *way == "in line" {
            act();
        }
        timer.set(number * 1_000_000_000); // tokens for both, and nobody has looked
        act();
        assert_eq!(poll_once(&mut bad).map(|granted| granted.is_ok()), Poll::Ready(true), "after {way}");
    }
    drop(ways);
    drop(in_line);
    assert_eq!((semaphore.available(), semaphore.waiters()), (3, 0));
}

proptest! {
    /// Whatever is acquired, dropped or granted without a poll: never more than the capacity, and all places back at
    /// the end.
    #[test]
    fn c9_never_more_than_the_capacity_and_no_place_is_lost(
        capacity in 1_usize..5, steps in prop::collection::vec((0_u8..5, any::<prop::sample::Index>()), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let semaphore = Semaphore::new(capacity, 10).unwrap();
            let (mut waiting, mut held) = (Vec::new(), Vec::new());
            for (step, index) in steps {
                match step {
                    0 | 1 => waiting.push(Box::pin(semaphore.acquire())),
                    2 if !waiting.is_empty() => drop(waiting.swap_remove(index.index(waiting.len()))),
                    3 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    _ => tokio::time::sleep(ms(70)).await,
                }
                if step % 2 == 0 {
                    let mut still = Vec::new();
                    for mut waiter in waiting {
                        match poll_once(&mut waiter) {
                            std::task::Poll::Ready(permit) => held.push(permit.unwrap()),
                            std::task::Poll::Pending => still.push(waiter),
                        }
                    }
                    waiting = still;
                }
                assert!(held.len() <= capacity);
            }
            drop((waiting, held));
            assert_eq!(semaphore.available(), capacity);
        });
    }
}

#[test]
fn c9_threads_never_hold_more_than_the_capacity() {
    let semaphore = Semaphore::new(3, 100_000).unwrap();
    let (held, most) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let permit = semaphore.acquire().block().unwrap();
                    most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    held.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.into_inner() <= 3);
    assert_eq!(semaphore.available(), 3);
}

#[test]
fn the_largest_semaphore_loses_no_place() {
    let semaphore = Semaphore::builder(usize::MAX, 1, Duration::from_secs(1)).burst(9).build().unwrap();
    for _ in 0..3 {
        drop(semaphore.try_acquire().unwrap());
        assert_eq!(semaphore.available(), usize::MAX);
    }
}
