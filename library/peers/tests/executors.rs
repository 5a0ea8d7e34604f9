//! Waits on executors other than tokio's. The times are lower bounds: none is woken early.

use std::future::Future;
use std::time::{Duration, Instant};
use throttle_limits::limiter::{AcquireError, Keyed, Limiter};
use throttle_limits::semaphore::Semaphore;

/// Runs a future to its end on an executor.
type BlockOn = fn(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);

const EXECUTORS: [(&str, BlockOn); 3] = [
    ("smol", |future| smol::block_on(future)),
    ("async-std", |future| async_std::task::block_on(future)),
    ("futures", |future| futures_executor::block_on(future)),
];

fn on_each(run: fn() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>, least: Duration) {
    for (name, block_on) in EXECUTORS {
        let begun = Instant::now();
        block_on(run());
        assert!(begun.elapsed() >= least, "{name}: {:?}", begun.elapsed());
    }
}

#[test]
fn requests_wait_for_their_turn() {
    let five_at_100 = || -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async {
            let limiter = Limiter::new(100, 1).unwrap();
            for _ in 0..6 {
                limiter.acquire(1).await.unwrap();
            }
        })
    };
    on_each(five_at_100, Duration::from_millis(50));
}

#[test]
fn a_timeout_ends_a_wait_for_a_place() {
    let no_place = || -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async {
            let workers = Semaphore::new(1, 1000).unwrap();
            let _held = workers.acquire().await.unwrap();
            let refused = workers.acquire().timeout(Duration::from_millis(20)).await.map(drop);
            assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
        })
    };
    on_each(no_place, Duration::from_millis(20));
}

#[test]
fn keys_wait_and_dropped_waiters_take_nothing() {
    let keys = || -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async {
            let hosts: Keyed<String> = Keyed::new(50, 1).unwrap();
            hosts.acquire("a", 1).await.unwrap();
            drop(hosts.acquire("a", 1));
            hosts.acquire("b", 1).await.unwrap();
            hosts.acquire_owned("a".to_owned(), 1).await.unwrap();
        })
    };
    on_each(keys, Duration::from_millis(20));
}

/// Tasks on all threads of smol's executor.
#[test]
fn spawned_tasks_share_one_limit() {
    let begun = Instant::now();
    smol::block_on(async {
        let limiter = Limiter::new(100, 1).unwrap();
        let tasks: Vec<_> = (0..6).map(|_| smol::spawn(limiter.acquire_owned(1))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert!(begun.elapsed() >= Duration::from_millis(50));
}
