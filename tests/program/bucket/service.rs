//! A bucket that a Rust service shares with the program, on a file and on a server.

use crate::support::redis::Redis;
use crate::support::{feed, throttle, wait_until};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use throttle_limits::limiter::{AcquireError, Costs, UnitsError};
use throttle_limits::shared::{AcquireShared, OpenError, Shared};

/// Tries something with a bucket in a file, and with one on a server.
fn on_each(limit: &str, check: impl Fn(&str, &Shared)) {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start(&[]);
    let file = folder.path().join("b").to_str().unwrap().to_owned();
    for bucket in [Some(file), redis.as_ref().map(|redis| redis.bucket("b"))].into_iter().flatten() {
        assert!(feed(throttle(["--bucket", &bucket, "--set", "-r", limit]), b"").status.success());
        check(&bucket, &Shared::open(&bucket).unwrap());
    }
}

/// The exit code of `--once --max-wait 0`: 0 if the bucket grants a unit.
fn once(bucket: &str) -> Option<i32> {
    feed(throttle(["--bucket", bucket, "--once", "--max-wait", "0"]), b"").code()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

#[test]
fn a_service_and_the_program_take_from_one_bucket() {
    on_each("3/h,burst=3", |bucket, shared| {
        shared.acquire(1).block().unwrap();
        assert_eq!((once(bucket), block_on(shared.available()).unwrap()), (Some(0), 1));
        block_on(shared.acquire(1)).unwrap();
        assert_eq!(once(bucket), Some(75));
        let refused = shared.acquire(1).timeout(Duration::from_secs(60)).block().unwrap_err();
        assert!(refused.retry_after().is_some_and(|wait| wait > Duration::from_secs(1000)), "{refused}");
    });
}

/// Costs beyond the last were taken as the last.
#[test]
fn a_service_gives_one_cost_or_one_for_each_limit() {
    on_each("3/h,burst=3", |_, shared| {
        let refused = |costs: &[f64]| shared.try_acquire(Costs::from_slice(costs)).block().unwrap_err();
        assert_eq!(refused(&[1.0, 1.0]), AcquireError::Units(UnitsError::WrongCount { given: 2, kinds: 1 }));
        assert_eq!(refused(&[0.5]), AcquireError::Units(UnitsError::NotWhole));
        assert!(matches!(refused(&[4.0]), AcquireError::TooLong { .. }));
        assert_eq!(block_on(shared.available()).unwrap(), 3);
        let granted = shared.acquire_to_settle(3).block().unwrap();
        assert!(block_on(granted.settle([1, 1])).is_err());
        assert_eq!(block_on(shared.available()).unwrap(), 0, "it cost what was acquired");
    });
}

mod of_the_guide {
    include!("../../../library/docs/shared_bucket.rs");

    pub(super) fn run(bucket: &str) -> u64 {
        super::block_on(call(bucket)).unwrap()
    }
}

/// The same limits for both, and the program takes what the service left.
#[test]
fn the_program_of_the_guide_shares_its_bucket_with_scripts() {
    let (guide, program) =
        (include_str!("../../../library/docs/guide.md"), include_str!("../../../library/docs/shared_bucket.rs"));
    assert!(guide.contains(program), "the guide shows another program");
    on_each("10/h,burst=10", |bucket, _| {
        assert_eq!(of_the_guide::run(bucket), 7);
        let grants = std::iter::repeat_with(|| once(bucket)).take_while(|status| *status == Some(0));
        assert_eq!(grants.count(), 7, "{bucket}");
        assert_eq!(once(bucket), Some(75));
    });
}

#[test]
fn what_a_service_settles_counts_for_the_program() {
    on_each("3/h,burst=3", |bucket, shared| {
        let taken = shared.acquire_to_settle(3).block().unwrap();
        assert_eq!((once(bucket), format!("{:?}", taken.costs())), (Some(75), "Units(3)".to_owned()));
        block_on(taken.settle(2)).unwrap();
        assert_eq!([once(bucket), once(bucket)], [Some(0), Some(75)]);
    });
}

/// It waited for the hundred seconds that the first one was charged for.
#[test]
#[ignore = "slow: 2 s"]
fn what_a_service_settles_moves_up_its_next_request() {
    on_each("1/s,burst=100", |_, shared| {
        let begun = Instant::now();
        let taken = shared.acquire_to_settle(100).block().unwrap();
        let next = block_on(async {
            let next = tokio::spawn(shared.acquire_to_settle(100));
            tokio::task::yield_now().await; // It is sent.
            taken.settle(1).await.unwrap();
            next.await.unwrap().unwrap()
        });
        let elapsed = begun.elapsed();
        assert!(elapsed >= Duration::from_secs(1) && elapsed < Duration::from_secs(20), "{elapsed:?}");
        block_on(next.settle(0)).unwrap();
    });
}

#[test]
fn a_pause_by_either_holds_for_both() {
    on_each("1000/s,burst=1000", |bucket, shared| {
        assert!(feed(throttle(["--bucket", bucket, "--pause", "1h"]), b"").status.success());
        assert!(shared.acquire(1).timeout(Duration::from_secs(1)).block().is_err());
        assert!(feed(throttle(["--bucket", bucket, "--pause", "0"]), b"").status.success());
        shared.acquire(1).block().unwrap();
        block_on(shared.pause_for(Duration::from_secs(3600))).unwrap();
        assert_eq!(once(bucket), Some(75));
    });
}

#[test]
fn tasks_of_a_service_wait_for_a_bucket_each_at_its_time() {
    on_each("20/s,burst=1", |_, shared| {
        let begun = Instant::now();
        let takes: Vec<_> = (0..5).map(|_| shared.acquire(1)).collect();
        block_on(async {
            for take in takes.into_iter().map(tokio::spawn).collect::<Vec<_>>() {
                take.await.unwrap().unwrap();
            }
        });
        assert!(begun.elapsed() >= Duration::from_millis(200));
    });
}

#[test]
fn a_request_of_a_service_that_is_dropped_gives_back_its_turn() {
    on_each("2/h,burst=2", |bucket, shared| {
        shared.acquire(2).block().unwrap();
        let waiting = |shared: &Shared| shared.store().view().unwrap().line.len();
        let mut waits = Box::pin(shared.acquire(1));
        let never_polled = shared.acquire(1); // is not sent
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        block_on(shared.available()).unwrap(); // all before this has reached the bucket
        assert_eq!(waiting(shared), 1);
        drop((waits, never_polled));
        block_on(shared.available()).unwrap();
        assert_eq!((waiting(shared), once(bucket)), (0, Some(75)));
    });
}

#[test]
fn a_service_and_the_program_keep_the_limits_of_a_key_together() {
    on_each("100/h,burst=100,per=host,cost=f2,else=10", |bucket, shared| {
        let left = || shared.store().view().unwrap().keys[0].left[0];
        let once = |key: &str| {
            feed(throttle(["--bucket", bucket, "--once", "--max-wait", "0", "--key", key, "true"]), b"").code()
        };
        let a = shared.for_key("a");
        let taken = a.acquire_to_settle(80).block().unwrap();
        assert_eq!(once("a"), Some(0));
        assert!((9..=10).contains(&left()), "{bucket}: {}", left());
        block_on(taken.settle(20)).unwrap();
        // A server is asked at cost 1 first, since nothing is known of it: what came in until that is given back is lost.
        assert!((69..=70).contains(&left()), "{bucket}: {}", left());
        drop(a.acquire_to_settle(55).block().unwrap());
        block_on(shared.available()).unwrap();
        assert_eq!((once("a"), once("a"), once("b")), (Some(0), Some(75), Some(0)));
        let refused = shared.acquire(1).block().unwrap_err();
        assert!(matches!(refused, AcquireError::Never { .. }), "{refused}");
    });
}

#[test]
fn what_a_service_holds_counts_as_running() {
    on_each("1000/s,burst=1000,jobs=1", |bucket, shared| {
        let held = shared.acquire_to_settle(1).block().unwrap();
        let run = || feed(throttle(["--bucket", bucket, "--once", "--max-wait", "0", "true"]), b"").code();
        assert_eq!(run(), Some(75));
        drop(held);
        block_on(shared.available()).unwrap();
        assert_eq!(run(), Some(0));
    });
}

#[test]
fn a_request_waits_until_another_may_run() {
    on_each("1000/s,burst=1000,jobs=1", |bucket, shared| {
        let held = shared.acquire_to_settle(1).block().unwrap();
        let refused = |limit| shared.acquire(1).timeout(Duration::from_millis(limit)).block().unwrap_err();
        for limit in [0, 300] {
            let begun = Instant::now();
            assert!(matches!(refused(limit), AcquireError::NoPlace), "{bucket}");
            assert!(begun.elapsed() >= Duration::from_millis(limit));
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| shared.acquire(1).block());
            std::thread::sleep(Duration::from_millis(300));
            assert!(!waits.is_finished(), "{bucket}");
            drop(held);
            waits.join().unwrap().unwrap();
        });
    });
}

/// The state of the bucket was locked while a request was under way, so a task that looked at it waited for the server.
#[test]
fn a_silent_server_blocks_no_executor() {
    let Some(redis) = Redis::start(&[]) else { return };
    let shared = Shared::with_limits(redis.bucket("b"), &["1000/s,burst=1000".parse().unwrap()]).unwrap();
    shared.acquire(1).block().unwrap();
    redis.tell::<()>(&["CLIENT", "PAUSE", "60000", "ALL"]);
    let poll = |request: &mut AcquireShared<()>| Pin::new(request).poll(&mut Context::from_waker(Waker::noop()));
    let mut first = shared.acquire(1);
    assert!(poll(&mut first).is_pending());
    std::thread::sleep(Duration::from_millis(100)); // It is sent.
    let begun = Instant::now();
    assert!(poll(&mut shared.acquire(1)).is_pending());
    assert!(begun.elapsed() < Duration::from_secs(2), "the request is answered or fails after 3 s");
}

#[test]
#[ignore = "slow: 6 s"]
fn each_request_to_a_silent_server_fails_at_its_deadline() {
    let Some(redis) = Redis::start(&[]) else { return };
    let shared = Shared::with_limits(redis.bucket("b"), &["1000/s,burst=1000".parse().unwrap()]).unwrap();
    shared.acquire(1).block().unwrap();
    redis.tell::<()>(&["CLIENT", "PAUSE", "60000", "ALL"]);
    let begun = Instant::now();
    let requests: Vec<_> = (0..5).map(|_| shared.acquire(1)).collect();
    let failed = block_on(async {
        let mut sent = Vec::new();
        for request in requests {
            sent.push(tokio::spawn(request));
            // The server is being asked for the first one when the others come. They were asked for again, for 3 s.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let mut failed = Vec::new();
        for request in sent {
            failed.push(request.await.unwrap().unwrap_err());
        }
        failed
    });
    for failed in failed {
        let AcquireError::Bucket(failed) = failed else { panic!("{failed}") };
        assert!(failed.may_pass() && failed.to_string().contains("no answer within 3 s"), "{failed}");
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(3) && took < Duration::from_millis(4500), "{took:?}");
    // What is sent after that is a try of its own.
    assert!(shared.acquire(1).block().is_err());
    assert!(begun.elapsed() >= took + Duration::from_secs(3));
}

#[test]
fn a_service_says_what_is_wrong_with_its_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("b");
    let open = |limit: &str| Shared::with_limits(&bucket, &[limit.parse().unwrap()]);
    assert!(matches!(Shared::open("a b"), Err(OpenError::Name(_))));
    assert!(matches!(Shared::open(&bucket), Err(OpenError::Bucket(_))), "there is none");
    open("5/s,burst=3").unwrap().acquire(1).block().unwrap();
    let Err(OpenError::Bucket(other)) = open("6/s,burst=3") else { panic!("it has other limits") };
    assert!(other.to_string().contains("6/s") && !other.may_pass(), "{other}");
    assert!(open("5/s").is_ok(), "only what is named is compared");
}

/// A server forgets what runs of a process that it does not hear of.
#[test]
#[ignore = "slow: 14 s"]
fn a_service_keeps_its_place_however_long_it_asks_nothing() {
    on_each("1000/s,burst=1000,jobs=1", |bucket, shared| {
        let once = |bucket: &str| feed(throttle(["--bucket", bucket, "--once", "--max-wait", "0", "true"]), b"").code();
        let taken = shared.acquire_to_settle(1).block().unwrap();
        assert_eq!(once(bucket), Some(75));
        std::thread::sleep(Duration::from_millis(if bucket.starts_with("redis") { 14_000 } else { 0 }));
        assert_eq!(once(bucket), Some(75));
        drop(taken);
        wait_until("the place is free", || once(bucket) == Some(0));
    });
}
