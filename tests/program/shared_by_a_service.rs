//! A bucket that a Rust service shares with the program, on a file and on a server.

use crate::common::{feed, throttle, wait_until};
use crate::support::redis::Redis;
use std::future::Future;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use throttle_limits::limits::Refusal;
use throttle_limits::shared::{OpenError, Shared};
use throttle_limits::store::StoreError;

/// Tries something with a bucket in a file, and with one on a server.
fn on_each(limit: &str, check: impl Fn(&str, &Shared)) {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start(&[]);
    let file = folder.path().join("b").to_str().unwrap().to_owned();
    for bucket in [Some(file), redis.as_ref().map(|redis| redis.bucket("b"))].into_iter().flatten() {
        assert!(feed(throttle(&["--bucket", &bucket, "--set", "-r", limit]), b"").status.success());
        check(&bucket, &Shared::open(&bucket).unwrap());
    }
}

/// What `--once --max-wait 0` exits with: 0 if the bucket grants one.
fn once(bucket: &str) -> Option<i32> {
    feed(throttle(&["--bucket", bucket, "--once", "--max-wait", "0"]), b"").status.code()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn a_service_and_the_program_take_from_one_bucket() {
    on_each("3/h,burst=3", |bucket, shared| {
        shared.blocking_take(&[1]).unwrap();
        assert_eq!((once(bucket), block_on(shared.available()).unwrap()), (Some(0), 1));
        block_on(shared.take(&[1])).unwrap();
        assert_eq!(once(bucket), Some(75));
        let refused = shared.blocking_take_timeout(&[1], Duration::from_secs(60)).unwrap_err();
        assert!(
            matches!(refused, StoreError::Refused(Refusal::TooLong { wait }) if wait > 1_000_000_000_000),
            "{refused}"
        );
    });
}

#[test]
fn what_a_service_settles_counts_for_the_program() {
    on_each("3/h,burst=3", |bucket, shared| {
        let taken = shared.blocking_take_to_settle(&[3]).unwrap();
        assert_eq!((once(bucket), taken.costs()), (Some(75), &[3][..]));
        block_on(taken.settle(&[2])).unwrap();
        assert_eq!([once(bucket), once(bucket)], [Some(0), Some(75)]);
    });
}

#[test]
fn a_pause_by_either_holds_for_both() {
    on_each("1000/s,burst=1000", |bucket, shared| {
        assert!(feed(throttle(&["--bucket", bucket, "--pause", "1h"]), b"").status.success());
        assert!(shared.blocking_take_timeout(&[1], Duration::from_secs(1)).is_err());
        assert!(feed(throttle(&["--bucket", bucket, "--pause", "0"]), b"").status.success());
        shared.blocking_take(&[1]).unwrap();
        block_on(shared.pause_for(Duration::from_secs(3600))).unwrap();
        assert_eq!(once(bucket), Some(75));
    });
}

#[test]
fn tasks_of_a_service_wait_for_a_bucket_each_at_its_time() {
    on_each("20/s,burst=1", |_, shared| {
        let begun = Instant::now();
        let takes: Vec<_> = (0..5).map(|_| shared.take(&[1])).collect();
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
        shared.blocking_take(&[2]).unwrap();
        let waiting = |shared: &Shared| shared.store().view().unwrap().line.len();
        let mut waits = Box::pin(shared.take(&[1]));
        let never_polled = shared.take(&[1]);
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        block_on(shared.available()).unwrap(); // all before this has reached the bucket
        assert_eq!(waiting(shared), 2);
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
            feed(throttle(&["--bucket", bucket, "--once", "--max-wait", "0", "--key", key, "true"]), b"").status.code()
        };
        let a = shared.for_key("a");
        let taken = a.blocking_take_to_settle(&[80]).unwrap();
        assert_eq!(once("a"), Some(0));
        assert!((9..=10).contains(&left()), "{bucket}: {}", left());
        block_on(taken.settle(&[20])).unwrap();
        // A server is asked at cost 1 first, since nothing is known of it: what came in until that is given back is lost.
        assert!((69..=70).contains(&left()), "{bucket}: {}", left());
        drop(a.blocking_take_to_settle(&[55]).unwrap());
        block_on(shared.available()).unwrap();
        assert_eq!((once("a"), once("a"), once("b")), (Some(0), Some(75), Some(0)));
        let refused = shared.blocking_take(&[1]).unwrap_err();
        assert!(matches!(refused, StoreError::Refused(Refusal::Never)), "{refused}");
    });
}

#[test]
fn what_a_service_holds_counts_as_running() {
    on_each("1000/s,burst=1000,jobs=1", |bucket, shared| {
        let held = shared.blocking_take_to_settle(&[1]).unwrap();
        let run = || feed(throttle(&["--bucket", bucket, "--once", "--max-wait", "0", "true"]), b"").status.code();
        assert_eq!(run(), Some(75));
        drop(held);
        block_on(shared.available()).unwrap();
        assert_eq!(run(), Some(0));
    });
}

#[test]
fn a_request_waits_until_another_may_run() {
    on_each("1000/s,burst=1000,jobs=1", |bucket, shared| {
        let held = shared.blocking_take_to_settle(&[1]).unwrap();
        let refused = |limit| shared.blocking_take_timeout(&[1], Duration::from_millis(limit)).unwrap_err();
        for limit in [0, 300] {
            let begun = Instant::now();
            assert!(matches!(refused(limit), StoreError::Refused(Refusal::Busy)), "{bucket}");
            assert!(begun.elapsed() >= Duration::from_millis(limit));
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| shared.blocking_take(&[1]));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!waits.is_finished(), "{bucket}");
            drop(held);
            waits.join().unwrap().unwrap();
        });
    });
}

#[test]
fn each_request_to_a_silent_server_fails_within_its_own_patience() {
    let Some(redis) = Redis::start(&[]) else { return };
    let shared = Shared::with_limits(redis.bucket("b"), &["1000/s,burst=1000".parse().unwrap()]).unwrap();
    shared.blocking_take(&[1]).unwrap();
    redis.tell::<()>(&["CLIENT", "PAUSE", "60000", "ALL"]);
    let begun = Instant::now();
    let requests: Vec<_> = (0..5).map(|_| shared.take(&[1])).collect();
    for request in requests {
        let failed = block_on(request).unwrap_err();
        assert!(failed.may_pass() && failed.to_string().contains("no answer within 3 s"), "{failed}");
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(3) && took < Duration::from_millis(4500), "{took:?}");
    // What is sent after that is a try of its own.
    assert!(shared.blocking_take(&[1]).is_err());
    assert!(begun.elapsed() >= took + Duration::from_secs(3));
}

#[test]
fn a_service_says_what_is_wrong_with_its_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("b");
    let open = |limit: &str| Shared::with_limits(&bucket, &[limit.parse().unwrap()]);
    assert!(matches!(Shared::open("a b"), Err(OpenError::Name(_))));
    assert!(matches!(Shared::open(&bucket), Err(OpenError::Store(_))), "there is none");
    open("5/s,burst=3").unwrap().blocking_take(&[1]).unwrap();
    assert!(matches!(open("6/s,burst=3"), Err(OpenError::Store(StoreError::Disagrees(..)))));
    assert!(open("5/s").is_ok(), "only what is named is compared");
}

/// A server forgets what runs of a process that it does not hear of.
#[test]
fn a_service_keeps_its_place_however_long_it_asks_nothing() {
    on_each("1000/s,burst=1000,jobs=1", |bucket, shared| {
        let once = |bucket: &str| {
            feed(throttle(&["--bucket", bucket, "--once", "--max-wait", "0", "true"]), b"").status.code()
        };
        let taken = shared.blocking_take_to_settle(&[1]).unwrap();
        assert_eq!(once(bucket), Some(75));
        std::thread::sleep(Duration::from_millis(if bucket.starts_with("redis") { 14_000 } else { 0 }));
        assert_eq!(once(bucket), Some(75));
        drop(taken);
        wait_until("the place is free", || once(bucket) == Some(0));
    });
}
