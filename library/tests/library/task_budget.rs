//! Requests of a tokio task that has used up its cooperative budget. A request that can be granted at its first poll was
//! refused with "would have to wait 0ns", because the task's turn to yield came before the grant.

use crate::limiters::ms;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use throttle_limits::Semaphore;
use throttle_limits::limiter::{Keyed, Limiter};

const NOW: Duration = Duration::ZERO;

/// Uses up the budget of the current task.
async fn use_up_budget() {
    for _ in 0..128 {
        tokio::task::coop::consume_budget().await;
    }
}

/// Runs the future in a task of its own, on the system's clock.
fn in_task(task: impl Future<Output = ()> + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(task).await.unwrap() });
}

fn large() -> Limiter {
    Limiter::new(1000, 1000).unwrap()
}

#[test]
fn what_is_there_is_granted_whatever_the_budget_says() {
    in_task(async {
        let limiter = large();
        let joint =
            Limiter::joint([Limiter::builder().rate(5, ms(1000)), Limiter::builder().rate(5, ms(1000))]).unwrap();
        let window = Limiter::builder().rate(5, ms(1000)).limit("50/h,window".parse().unwrap()).build().unwrap();
        let unfair = Limiter::builder().rate(5, ms(1000)).fair(false).build().unwrap();
        let semaphore = Semaphore::new(3, 1000).unwrap();
        let keyed: Keyed<u64> = Keyed::new(1, 5).unwrap();
        let within: Keyed<u64> =
            Limiter::builder().rate(1, ms(1000)).burst(5).keyed_within(&Limiter::builder().rate(9, ms(1000))).unwrap();
        for _ in 0..3 {
            use_up_budget().await;
            limiter.acquire(1).timeout(NOW).await.unwrap();
            limiter.acquire_owned(1).timeout(NOW).await.unwrap();
            let _ = limiter.acquire_to_settle(1).timeout(NOW).await.unwrap();
            limiter.acquire(0).timeout(NOW).await.unwrap();
            use_up_budget().await;
            joint.acquire([1, 1]).timeout(NOW).await.unwrap();
            use_up_budget().await;
            window.acquire(1).timeout(NOW).await.unwrap();
            use_up_budget().await;
            unfair.acquire(1).timeout(NOW).await.unwrap();
            use_up_budget().await;
            let permit = semaphore.acquire().timeout(NOW).await.unwrap();
            use_up_budget().await;
            keyed.acquire(&7, 1).timeout(NOW).await.unwrap();
            use_up_budget().await;
            within.acquire(&7, 1).timeout(NOW).await.unwrap();
            use_up_budget().await;
            let _ = within.acquire_to_settle(&8, 1).timeout(NOW).await.unwrap();
            use_up_budget().await;
            within.acquire(&8, 0).timeout(NOW).await.unwrap();
            drop(permit);
        }
        assert!(keyed.acquire(&7, 3).timeout(NOW).await.is_err(), "it holds 2 units");
    });
}

#[test]
fn many_joined_requests_are_granted_within_their_timeout() {
    in_task(async {
        let limiter = large();
        let all = (0..1000).map(|_| limiter.acquire(1).timeout(ms(1)));
        let granted = futures_util::future::join_all(all).await;
        assert_eq!(granted.iter().filter(|granted| granted.is_err()).count(), 0);
    });
}

/// The units are taken at the first poll, and are given back if there is no second one.
#[test]
fn a_grant_that_nobody_fetches_is_given_back() {
    in_task(async {
        let limiter = Limiter::new(1, 5).unwrap();
        let all = Limiter::builder().rate(1, ms(1000)).burst(5);
        let within: Keyed<u64> = all.clone().keyed_within(&all).unwrap();
        let semaphore = Semaphore::new(2, 1000).unwrap();
        use_up_budget().await;
        std::future::poll_fn(|context| {
            assert!(pin!(limiter.acquire(2)).poll(context).is_pending());
            assert!(pin!(limiter.acquire_to_settle(2)).poll(context).is_pending());
            assert!(pin!(within.acquire(&3, 2)).poll(context).is_pending());
            assert!(pin!(semaphore.acquire()).poll(context).is_pending());
            let mut holds = pin!((limiter.acquire(2), semaphore.acquire()));
            assert!(pin!(&mut holds.0).poll(context).is_pending() && pin!(&mut holds.1).poll(context).is_pending());
            assert_eq!((limiter.available(), semaphore.available(), within.available(&3)), (3, 1, 5));
            Poll::Ready(())
        })
        .await;
        assert_eq!((limiter.available(), semaphore.available()), (5, 2));
        within.try_acquire(&3, 5).unwrap();
    });
}

/// A drop used to deduct what the rate had brought since the grant, as if the bucket had been full then. So a grant that
/// was dropped beside another one gave back one unit too little.
#[test]
fn grants_that_nobody_fetches_give_back_all_beside_others() {
    in_task(async {
        let limiter = Limiter::new(1, 5).unwrap();
        let request = |settles: bool| -> Pin<Box<dyn Future<Output = bool> + Send>> {
            let (plain, open) = (limiter.acquire(2), limiter.acquire_to_settle(2));
            if settles { Box::pin(async { open.await.is_ok() }) } else { Box::pin(async { plain.await.is_ok() }) }
        };
        for (settles, is_last_first) in [[false; 2], [false, true], [true, false], [true; 2]]
            .into_iter()
            .flat_map(|both| [(both, false), (both, true)])
        {
            use_up_budget().await;
            std::future::poll_fn(|context| {
                let mut both = settles.map(request);
                for one in &mut both {
                    assert!(one.as_mut().poll(context).is_pending());
                }
                if is_last_first {
                    both.reverse();
                }
                for one in both {
                    std::thread::sleep(ms(2));
                    drop(one);
                }
                assert_eq!(limiter.available(), 5, "{settles:?} {is_last_first}");
                Poll::Ready(())
            })
            .await;
        }
    });
}

/// Other tasks run, even if a task has a deadline for each of its requests.
#[test]
fn a_loop_of_requests_with_deadlines_yields() {
    in_task(async {
        let limiter = Limiter::new(1_000_000_000, 1_000_000_000).unwrap();
        let keyed: Keyed<u64> = Keyed::new(1_000_000_000, 1_000_000_000).unwrap();
        let all = Limiter::builder().rate(1_000_000_000, ms(1000));
        let within: Keyed<u64> = all.clone().keyed_within(&all).unwrap();
        for kind in 0..3 {
            let turns = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let other = tokio::spawn({
                let turns = turns.clone();
                async move {
                    loop {
                        turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        tokio::task::yield_now().await;
                    }
                }
            });
            for _ in 0..10_000 {
                match kind {
                    0 => limiter.acquire(1).timeout(ms(1000)).await.unwrap(),
                    1 => keyed.acquire(&1, 1).timeout(ms(1000)).await.unwrap(),
                    _ => within.acquire(&1, 1).timeout(ms(1000)).await.unwrap(),
                }
            }
            other.abort();
            let turns = turns.load(std::sync::atomic::Ordering::SeqCst);
            assert!(turns >= 50, "kind {kind}: the other task had {turns} turns");
        }
    });
}
