//! `throttle-cost:` in a reply settles what a command was charged.

use crate::support::redis::{Redis as Server, bucket_at, lossy_network};
use crate::support::retries::attempts;
use crate::support::{Ended, run};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use throttle_limits::clock::{FakeClock, MILLISECOND, NanoClock, Nanos, SECOND};
use throttle_limits::limits::{Grant, Policy, Take};
use throttle_limits::store::{File, Machine, Place, Redis, Store};

/// Commands that tell this cost, one at a time, after other options.
fn run_with_real_cost(cost: &str, units: usize, options: &[&str]) -> (Ended, Duration) {
    let script = format!("echo throttle-cost: {cost} >> $THROTTLE_REPLY; : $1");
    let begun = Instant::now();
    let args = [options, &["-j", "1", "-c", &script]].concat();
    (run(&args, "x\n".repeat(units).as_bytes()), begun.elapsed())
}

/// Charged alone they would take hours.
#[test]
fn overcharged_commands_do_not_delay_later_ones() {
    let (output, elapsed) = run_with_real_cost("1", 20, &["-r", "100/h,burst=100,cost=80"]);
    assert_eq!((output.code(), &*output.err), (Some(0), ""));
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
}

/// What comes in while they run is as much as they were charged, and they were not the only ones. With what only that
/// leaves of their credit, this would take 27 s.
#[test]
fn parallel_commands_of_a_key_give_back_all_unused_units() {
    let script = "sleep 0.3; echo throttle-cost: 1 >> $THROTTLE_REPLY; : $1";
    let limits = ["-r", "1000/s,burst=6000,per=f1,cost=300", "-r", "1000/s,burst=6000,cost=300"];
    let begun = Instant::now();
    let output = run([&limits[..], &["-j", "20", "-c", script]].concat(), "x\n".repeat(110).as_bytes());
    assert_eq!((output.code(), &*output.err), (Some(0), ""));
    assert!(begun.elapsed() < Duration::from_secs(18), "{:?}", begun.elapsed());
}

/// The next command was charged before its time, so what the one before it gave back did not move it up: 39 s. With one job at
/// a time it took 5 s.
#[test]
#[ignore = "slow: 14 s"]
fn more_jobs_are_not_slower_when_commands_cost_less() {
    let script = "echo throttle-cost: 120 >> $THROTTLE_REPLY; : $1";
    for jobs in ["2", "16", "64"] {
        let begun = Instant::now();
        let args = ["-r", "1000/s,burst=1000,cost=1000", "-j", jobs, "-c", script];
        let output = run(args, "x\n".repeat(40).as_bytes());
        assert_eq!((output.code(), &*output.err), (Some(0), ""), "{jobs}");
        let elapsed = begun.elapsed();
        assert!(elapsed >= Duration::from_millis(3800) && elapsed < Duration::from_secs(15), "{jobs}: {elapsed:?}");
    }
}

#[test]
fn a_pause_holds_all_units_of_a_limit_with_costs() {
    let folder = tempfile::tempdir().unwrap();
    let script = "[ -e told ] && exec date +%s%N; : > told; echo retry-after: 1 >> $THROTTLE_REPLY; exit 75; : $1";
    let retries = attempts(1).rate("1000/s,burst=1000,cost=10").jobs(1).options(&["-q"]);
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let output = retries.script(script).inside(&folder).run("1\n2\n3\n");
    assert_eq!((output.code(), &*output.err), (Some(0), ""));
    let started: Vec<u128> = output.text().lines().map(|line| line.parse().unwrap()).collect();
    assert!(started.len() == 3 && started.iter().all(|at| *at >= begun + 1_000_000_000), "{started:?} from {begun}");
}

#[test]
fn a_bucket_gives_back_what_a_command_did_not_use() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start(&[]));
    let buckets = |name: &str| {
        let file = folder.path().join(name).to_str().unwrap().to_owned();
        server.as_ref().map(|server| server.bucket(name)).into_iter().chain([file])
    };
    for (name, limit) in [("bucket", "100/h,burst=100,cost=80"), ("window", "100/h,window,cost=80")] {
        for bucket in buckets(name) {
            let (output, elapsed) = run_with_real_cost("1", 20, &["--bucket", &bucket, "-r", limit]);
            assert_eq!((output.code(), &*output.err), (Some(0), ""), "{bucket}");
            assert!(elapsed < Duration::from_secs(60), "{bucket}: {elapsed:?}");
        }
    }
}

#[test]
#[ignore = "slow: 3 s"]
fn commands_owe_a_server_what_they_cost_beyond_the_charge() {
    let Some(server) = Server::start(&[]) else { return };
    for (name, limit, cost) in [("bucket", "1000/s,burst=100,cost=10", 300), ("window", "100/s,window,cost=10", 100)] {
        let (output, elapsed) =
            run_with_real_cost(&cost.to_string(), 3, &["--bucket", &server.bucket(name), "-r", limit]);
        assert_eq!(output.code(), Some(0));
        assert!(elapsed >= Duration::from_millis(500), "{name}: {elapsed:?}");
    }
}

/// Runs `check` on a bucket in a file and on one on a server, each on a clock of its own.
fn on_shared_stores(limits: &[&str], check: impl Fn(&dyn Store, &FakeClock)) {
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    let policy = Policy::new(&limits, None).unwrap();
    let (folder, clock) = (tempfile::tempdir().unwrap(), FakeClock::at(Duration::from_secs(1)));
    let place = Place { path: folder.path().join("bucket"), own_folder: false, group: None };
    check(&File::open_until(Machine::fake(&clock, 1, 0), place, Some(&policy), None).unwrap(), &clock);
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_secs(1));
    let address = server.bucket("bucket").parse().unwrap();
    check(&Redis::open_on_fake(address, Some(&policy), clock.clone()).unwrap(), &clock);
}

fn take(store: &dyn Store, costs: &[u64]) -> Grant {
    store.take(costs, Nanos::MAX).unwrap().0
}

#[test]
fn unused_units_are_given_back_less_what_came_in_since() {
    on_shared_stores(&["10/s,burst=20", "30/min,window"], |store, clock| {
        let grant = take(store, &[15, 12]);
        clock.advance(Duration::from_millis(300));
        store.settle(&grant, &Take::of(&[15, 12]), &[2, 7]).unwrap();
        let place = store.place();
        assert_eq!(store.view().unwrap().left, [18, 23], "5 and 3 were left, 13 less 3 are back: {place}");
        clock.advance(Duration::from_millis(59_700));
        assert_eq!(store.view().unwrap().left, [20, 30], "{place}");
    });
}

/// The server has settled it. To ask once more would credit it twice.
#[test]
fn an_operation_with_a_lost_answer_is_resent_and_counts_once() {
    let Some(server) = Server::start(&[]) else { return };
    let (clock, policy) =
        (FakeClock::at(Duration::from_secs(1)), Policy::new(&["1/h,burst=100".parse().unwrap()], None).unwrap());
    let open = |port| {
        let address = bucket_at(port, "lossy").parse().unwrap();
        Redis::open_on_fake(address, Some(&policy), clock.clone()).unwrap()
    };
    // The answer is lost of a request by a client that has seen so many operations: one to make the bucket, then a take
    // and a settlement each time. First that is the settlement, then the next take would be at 3, its settlement at 4.
    for (seen, left) in [("$1\r\n2\r\n", 60), ("$1\r\n4\r\n", 20)] {
        let (near, far) = (open(server.port), open(lossy_network(server.port, seen)));
        let grant = take(&far, &[60]);
        far.settle(&grant, &Take::of(&[60]), &[40]).unwrap();
        assert_eq!((near.view().unwrap().left, far.view().unwrap().left), (vec![left], vec![left]), "{seen:?}");
    }
}

#[test]
fn later_grants_owe_what_an_earlier_one_cost_too_much() {
    on_shared_stores(&["10/s,burst=10", "30/min,window"], |store, clock| {
        let grant = take(store, &[5, 5]);
        clock.advance(Duration::from_millis(100));
        store.settle(&grant, &Take::of(&[5, 5]), &[31, 9]).unwrap();
        let next = take(store, &[1, 1]);
        assert_eq!(next.at - clock.now(), 2100 * MILLISECOND, "of 26 there were 6: {}", store.place());
    });
}

#[test]
fn commands_owe_what_they_cost_beyond_the_charge() {
    let (output, elapsed) = run_with_real_cost("300", 3, &["-r", "1000/s,burst=100,cost=10"]);
    assert_eq!(output.code(), Some(0));
    assert!(elapsed >= Duration::from_millis(500), "{elapsed:?}");
}

#[test]
#[ignore = "slow: 2 s"]
fn a_cost_without_a_kind_settles_nothing_if_kinds_differ() {
    let limits = ["-r", "10000/s,burst=1000,cost=100", "-r", "100/s,burst=10,cost=10"];
    let hint = "throttle: hint: a reply has 'throttle-cost: 2', but the limits count several costs; write for example \
                throttle-cost: 30 100\n";
    for per_key in [&[][..], &["-r", "1000/s,per=f1"]] {
        let (output, elapsed) = run_with_real_cost("2", 6, &[&limits[..], per_key].concat());
        assert_eq!((output.code(), &*output.err), (Some(0), hint));
        assert!(elapsed >= Duration::from_millis(400), "{elapsed:?}");
    }
    // The first limit alone would take 500 ms, the second one an hour.
    let limits = ["-r", "100/s,burst=10,cost=10", "-r", "10/h,burst=10,cost=9"];
    for per_key in [&[][..], &["-r", "1000/s,per=f1"]] {
        let (output, elapsed) = run_with_real_cost("0 9", 6, &[&limits[..], per_key].concat());
        assert_eq!((output.code(), &*output.err), (Some(0), ""));
        assert!((Duration::from_millis(400)..Duration::from_secs(60)).contains(&elapsed), "{elapsed:?}");
    }
}

/// Such a field may come from a server, which has something else in mind.
#[test]
#[ignore = "slow: 12 s"]
fn a_cost_in_a_reply_delays_nobody_beyond_max_pause() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let limit = ["-r", "1/s,burst=1,cost=1"];
    for limits in
        [&limit[..], &["-r", "1/s,burst=1,cost=1,per=f1"], &["--bucket", bucket.to_str().unwrap(), "-r", limit[1]]]
    {
        let (output, elapsed) =
            run_with_real_cost("1000000", 3, &[limits, &["--attempts", "1", "--max-pause", "1s"]].concat());
        let hint = "throttle: hint: a reply has 'throttle-cost: 1000000', cut to 2: a higher cost would delay other units longer than \
                    --max-pause\n";
        assert_eq!((output.code(), &*output.err), (Some(0), hint), "{limits:?}");
        assert!(elapsed < Duration::from_secs(60), "{limits:?}: {elapsed:?}");
    }
}

#[test]
fn a_senseless_cost_is_answered_with_a_right_spelling() {
    for (limits, right) in
        [(&["-r", "9/s,cost=1"][..], "30"), (&["-r", "9/s,cost=1", "-r", "9/s,cost=f1,else=2"], "30 1")]
    {
        let (output, _) = run_with_real_cost("much", 1, limits);
        let words = "throttle: hint: a reply has 'throttle-cost: much', which is not valid; write for example";
        assert_eq!(output.err, format!("{words} throttle-cost: {right}\n"));
    }
}

/// Requests are not tokens: only limits with a cost are settled.
#[test]
fn limits_without_a_cost_are_not_settled() {
    let (output, elapsed) = run_with_real_cost("0", 3, &["-r", "4/s,burst=1", "-r", "100/h,burst=100,cost=80"]);
    assert_eq!(output.code(), Some(0));
    assert!((Duration::from_millis(500)..Duration::from_secs(60)).contains(&elapsed), "{elapsed:?}");
}

#[test]
fn a_cost_that_no_limit_counts_gets_one_hint_at_a_terminal() {
    let hint = "throttle: hint: a reply has 'throttle-cost: 0', but no limit has a cost, so nothing is settled; write for \
         example -r 5/s,cost=1\n";
    let said = |options: &[&str]| run_with_real_cost("0", 3, &[options, &["--attempts", "2"]].concat()).0.err;
    let shown = said(&["--summary", "-r", "1000/s"]);
    assert_eq!(shown.matches(hint).count(), 1, "{shown}");
    assert_eq!(said(&["-r", "1000/s"]), "");
    assert!(!said(&["--summary", "-r", "5/s,cost=1"]).contains("hint"), "as the hint shows");
}

#[test]
fn what_is_settled_is_no_part_of_what_was_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("b");
    let (bucket, limits) = (["--bucket", bucket.to_str().unwrap()], ["-r", "1/s,burst=9,cost=3"]);
    let (output, _) = run_with_real_cost("1", 2, &[&bucket[..], &limits].concat());
    assert_eq!((output.code(), &*output.err), (Some(0), ""));
    let shown = run([&bucket[..], &["--show"]].concat(), "");
    assert!(
        shown.text().contains("): 6 granted, 0 denied, 0 given back (settled costs not included); "),
        "{}",
        shown.text()
    );
}

#[test]
fn costs_far_from_what_was_charged_are_worth_a_hint() {
    for (cost, charged, hint) in [
        (
            5,
            "50",
            "throttle: hint: commands cost 5 on average, but 50 was charged; cost=5 lets more of them run at once\n",
        ),
        (
            50,
            "5",
            "throttle: hint: commands cost 50 on average, but 5 was charged; cost=50 keeps them within the limit\n",
        ),
    ] {
        let limit = |cost: &str| format!("100000/s,burst=1000,cost={cost}");
        let (output, _) = run_with_real_cost(&cost.to_string(), 12, &["--summary", "-r", &limit(charged)]);
        assert!(output.err.starts_with(hint), "{}", output.err);
        let (output, _) = run_with_real_cost(&cost.to_string(), 12, &["--summary", "-r", &limit(&cost.to_string())]);
        assert!(!output.err.contains("hint"), "what it shows parses, and settles it");
    }
}

/// As those who wait are not seen for 9 s. In a window it counts from the time of the grant.
#[test]
fn what_is_owed_stays_owed_until_it_is_paid() {
    on_shared_stores(&["10/s,burst=10", "1000/min,window"], |store, clock| {
        let (first, place) = (take(store, &[5, 5]), store.place());
        store.settle(&first, &Take::of(&[5, 5]), &[905, 705]).unwrap();
        assert_eq!((store.view().unwrap().left, store.view().unwrap().available), (vec![-895, 295], 0), "{place}");
        clock.advance(Duration::from_secs(20));
        let waits = take(store, &[1, 300]);
        assert_eq!(waits.at - clock.now(), 69_600 * MILLISECOND, "{place}");
        store.give_back(&waits, &Take::of(&[1, 300])).unwrap();
        assert_eq!(store.view().unwrap().left, [-695, 295], "{place}");
        clock.advance(Duration::from_secs(40));
        assert_eq!(store.view().unwrap().left, [-295, 1000], "{place}");
        clock.advance(Duration::from_secs(30));
        assert_eq!(store.view().unwrap().left, [5, 1000], "{place}");
    });
}

#[test]
fn a_later_refund_or_a_higher_rate_shortens_a_debt() {
    on_shared_stores(&["10/s,burst=50"], |store, clock| {
        let [first, second] = [10, 40].map(|cost| take(store, &[cost]));
        store.settle(&first, &Take::of(&[10]), &[310]).unwrap();
        store.settle(&second, &Take::of(&[40]), &[20]).unwrap();
        assert_eq!(store.view().unwrap().left, [-280], "{}", store.place());
        let limits = ["100/s,burst=50"].map(|limit| limit.parse().unwrap());
        store.set(&Policy::new(&limits, None).unwrap(), &[false]).unwrap();
        clock.advance(Duration::from_secs(2));
        assert_eq!(store.view().unwrap().left, [-80], "{}", store.place());
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.view().unwrap().left, [20], "{}", store.place());
    });
}

/// They keep their announced times, and leave the bucket empty.
#[test]
fn what_is_settled_while_others_wait_is_charged_before_them() {
    on_shared_stores(&["1/s,burst=10"], |store, clock| {
        let ([less, more], waits) = ([4, 6].map(|cost| take(store, &[cost])), take(store, &[10]));
        assert_eq!(waits.at - clock.now(), 10 * SECOND, "{}", store.place());
        store.settle(&less, &Take::of(&[4]), &[0]).unwrap();
        let moved = store.look(&waits, &Take::of(&[10])).unwrap();
        assert_eq!(moved.at - clock.now(), 6 * SECOND, "{}", store.place());
        store.settle(&more, &Take::of(&[6]), &[13]).unwrap();
        assert_eq!(store.look(&moved, &Take::of(&[10])).unwrap().at, moved.at, "{}", store.place());
        let behind = take(store, &[1]);
        assert_eq!(behind.at - moved.at, SECOND, "{}", store.place());
    });
}

#[test]
fn the_largest_costs_leave_a_bucket_that_can_be_read() {
    on_shared_stores(&["1/d,burst=1000", "1000000000000000/d,window"], |store, clock| {
        for charged in [0, 1, 5, 0, 0, 7] {
            clock.advance(Duration::from_secs(1));
            let grant = take(store, &[0, charged]);
            store.settle(&grant, &Take::of(&[0, charged]), &[u64::MAX; 2]).unwrap();
            assert!(store.view().unwrap().left[0] < -10_000, "{}", store.place());
            assert_eq!(store.view().unwrap().left[1], 0, "{}", store.place());
            clock.advance(Duration::from_secs(90_000));
        }
    });
}

/// Runs that share a bucket, whose commands are charged 1000 and cost 120 each.
fn runs_that_cost_less(bucket: &str, limit: &str, runs: usize, units: usize) -> Duration {
    let script = "echo throttle-cost: 120 >> $THROTTLE_REPLY; : $1";
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..runs {
            scope.spawn(|| {
                let args = ["--bucket", bucket, "-r", limit, "-j", "16", "-c", script];
                let output = run(args, "x\n".repeat(units).as_bytes());
                assert_eq!((output.code(), &*output.err), (Some(0), ""), "{bucket} {limit}");
            });
        }
    });
    begun.elapsed()
}

/// At their charged costs, they took 19 s, and two runs 39 s.
#[test]
#[ignore = "slow: 14 s"]
fn in_a_bucket_what_costs_less_moves_up_all_that_wait() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start(&[]));
    for (name, limit, runs) in [
        ("plain", "1000/s,burst=1000,cost=1000", 1),
        ("keyed", "1000/s,burst=1000,cost=1000,per=f1", 1),
        ("two", "1000/s,burst=1000,cost=1000", 2),
    ] {
        let file = folder.path().join(name).to_str().unwrap().to_owned();
        for bucket in server.as_ref().map(|server| server.bucket(name)).into_iter().chain([file]) {
            let elapsed = runs_that_cost_less(&bucket, limit, runs, 20 / runs);
            let bounds = Duration::from_millis(1400)..Duration::from_secs(9);
            assert!(bounds.contains(&elapsed), "{bucket} {limit}: {elapsed:?}");
        }
    }
}
