//! One suite for all stores: the same requests get the same integers, wherever the limits are kept.

use crate::rounds::rounds;
use crate::support::stores::{
    Bucket, HORIZON, Process, START, ask, is_plain, next_of, on_every_store, on_every_store_with, place, policy,
};
use crate::support::wait_until;
use std::time::Duration;
use throttle_limits::clock::{FakeClock, MILLISECOND, NanoClock, Nanos, SECOND};
use throttle_limits::ledger::operation::{Ask, Grant, Operation, Refusal};
use throttle_limits::limits::{OfKeys, Policy};
use throttle_limits::store::{File, Machine, Next, Redis, Store, with_replica};

mod a_file;
mod a_server;
mod alike;

const MINUTE: Nanos = 60 * SECOND;
const HOUR: Nanos = 60 * MINUTE;

/// The exact time at which `paid_for` of `units` per `period` after the start are paid.
fn after(paid_for: u64, period: Nanos, units: u64) -> Nanos {
    let exact = u128::from(START) + (u128::from(paid_for) * u128::from(period)).div_ceil(units.into());
    u64::try_from(exact).unwrap()
}

/// The length of an exact schedule. A grant takes several system calls in a file, and a round trip on a server.
fn many(bucket: &Bucket) -> u64 {
    rounds(match bucket.name {
        "simulated" => 1_000_000,
        "file" => 300_000,
        _ => 10_000,
    })
    .into()
}

/// The grants of this many plain units that are wanted at once: the time of each grant, and the number of units that
/// have left after it.
fn leave(process: &mut Process, units: u64) -> Vec<(Nanos, u64)> {
    process.client.want(units);
    let (mut left, mut grants) = (0, Vec::new());
    while left < units {
        let grant = process.next();
        assert!(is_plain(&grant));
        left += grant.units;
        grants.push((grant.at, left));
    }
    grants
}

/// The burst leaves at once. Each later unit leaves exactly when the rate has paid for it.
fn assert_exact(limit: &str, burst: u64, units: u64, period: Nanos) {
    on_every_store(&[limit], |bucket| {
        for (at, left) in leave(&mut bucket.process(), many(bucket)) {
            let expected = after(left.saturating_sub(burst), period, units);
            assert_eq!(at, expected, "{} {limit}: {left}", bucket.name);
        }
    });
}

// Three tests, because they take seconds and can run in parallel.

#[test]
fn a_fast_schedule_is_exact_to_the_last_nanosecond() {
    assert_exact("1000003/s,burst=1", 1, 1_000_003, SECOND);
}

#[test]
fn a_schedule_per_minute_is_exact() {
    assert_exact("700/min,burst=7", 7, 700, MINUTE);
}

#[test]
fn a_slow_schedule_is_exact() {
    assert_exact("3/s,burst=1", 1, 3, SECOND);
}

/// 10 per second, and 25 in any 10 s: 25 units leave at that pace, and the next 25 leave 10 s after each.
#[test]
fn two_limits_are_both_kept() {
    on_every_store(&["10/s,burst=1", "25/10s"], |bucket| {
        let units = u64::from(rounds(10_000).max(2000));
        for (at, left) in leave(&mut bucket.process(), units) {
            let (round, rest) = ((left - 1) / 25, (left - 1) % 25);
            assert_eq!(at, after(round * 100 + rest, SECOND, 10), "{}: {left}", bucket.name);
        }
    });
}

/// The first units leave at thirds of a second. Each later unit leaves exactly one period after the unit whose place it
/// takes.
#[test]
fn a_window_is_exact() {
    on_every_store(&["3/10s,window"], |bucket| {
        let mut process = bucket.process();
        let mut times = Vec::new();
        for third in 0..3 {
            bucket.set(third * 333_333_000);
            times.extend(leave(&mut process, 1));
        }
        times.extend(leave(&mut process, rounds(10_000).max(1000).into()));
        for (place, (at, _)) in (0..).zip(times) {
            let expected = START + place / 3 * 10 * SECOND + place % 3 * 333_333_000;
            assert_eq!(at, expected, "{}: {place}", bucket.name);
        }
    });
}

#[test]
fn a_window_frees_units_after_one_period() {
    on_every_store(&["3/min,window"], |bucket| {
        let mut process = bucket.process();
        let mut times = Vec::new();
        for second in [0, 4, 8] {
            bucket.set(second * SECOND);
            process.client.want(2);
            while let Next::Go(grant) = process.poll() {
                times.push(grant.at);
            }
        }
        times.extend((0..3).map(|_| process.next().at));
        let seconds: Vec<u64> = times.into_iter().map(|at| (at - START) / SECOND).collect();
        assert_eq!(seconds, [0, 0, 4, 60, 60, 64], "{}", bucket.name);
    });
}

/// Each request waits for the limit that is slowest for its costs. It does not wait for a limit that it costs nothing.
#[test]
fn costs_of_several_kinds_are_granted_together() {
    on_every_store(&["2/s,burst=1", "60/min,burst=10"], |bucket| {
        let (mut process, name) = (bucket.process(), bucket.name);
        let costs: [&[u64]; 5] = [&[1, 10], &[1, 0], &[1, 5], &[0, 12], &[3, 1]];
        let tickets = costs.map(|costs| process.ask(costs));
        let tenths =
            |process: &mut Process| tickets.map(|ticket| process.estimate(ticket).map(|at| (at - START) * 10 / SECOND));
        assert_eq!(tenths(&mut process), [0, 5, 50, 170, 180].map(Some), "{name}");
        process.client.cancel(tickets[2]);
        let moved = [Some(0), Some(5), None, Some(120), Some(130)];
        assert_eq!(tenths(&mut process), moved, "{name}: as if the third request had never been made");
        for ticket in tickets {
            process.client.cancel(ticket);
        }
        process.client.exchange().unwrap();
        assert_eq!(process.view().left, [1, 10], "{name}: the grant of the first one is not used");
        assert_eq!(process.take_now(&[1, 11]).map(|grant| grant.at), None, "{name}");
        assert_eq!(process.view().left, [1, 10], "{name}: a refusal charges none");
    });
}

/// Units that wait are not charged. So all that has come in is there for others when they are no longer wanted.
#[test]
fn waiting_plain_units_are_not_charged() {
    on_every_store(&["1000/s,burst=100,initial=4"], |bucket| {
        let (mut process, mut other, name) = (bucket.process(), bucket.process(), bucket.name);
        process.client.want(100);
        let times: Vec<Nanos> = (0..6).map(|_| process.next().at - START).collect();
        assert_eq!(times, [0, 0, 0, 0, 1_000_000, 2_000_000], "{name}");
        bucket.set(12 * MILLISECOND);
        assert_eq!(process.client.want_nothing(), 94, "{name}");
        assert_eq!(process.poll(), Next::Nothing, "{name}");
        assert_eq!(other.view().left, [10], "{name}: 16 have come in, and 6 were used");
        // No grant is before a committed one.
        let at = other.take(&[10]).at;
        assert!((START + 12 * MILLISECOND..=START + 12 * MILLISECOND + HORIZON).contains(&at), "{name}: {at}");
    });
}

#[test]
fn a_process_that_withdraws_leaves_no_trace() {
    for limits in [&["10/s,burst=2"][..], &["10/s,burst=2", "15/s,window"], &["6/s,window"], &["1000/s,burst=2"]] {
        on_every_store(limits, |bucket| {
            let (mut process, mut other) = (bucket.process(), bucket.process());
            process.client.want(12);
            let used: Vec<Nanos> = (0..3).map(|_| process.next().at).collect();
            for cost in 1..4 {
                process.ask(&[cost]);
            }
            // Further units are committed before the bucket receives that they are not wanted.
            bucket.clock.advance(Duration::from_millis(3));
            process.withdraw().unwrap();
            // No grant is before a committed one.
            bucket.clock.advance(Duration::from_nanos(HORIZON));
            let mut expected = throttle_limits::limits::Account::new(&policy(limits), START);
            for at in used {
                assert_eq!(expected.take(START, 1).unwrap().at, at, "{} {limits:?}", bucket.name);
            }
            let next = expected.take(bucket.clock.now(), 1).unwrap().at;
            assert_eq!(other.would_be_granted_at(&[1]), Some(next), "{} {limits:?}", bucket.name);
            assert_eq!(other.take(&[1]).at, next, "{} {limits:?}", bucket.name);
        });
    }
}

/// A process that waits for long reads the bucket again and again. That must not change its turn.
#[test]
fn a_stream_that_waits_long_keeps_its_place() {
    on_every_store(&["8/min,burst=1"], |bucket| {
        let mut process = bucket.process();
        let times: Vec<Nanos> = (0..4).map(|_| leave(&mut process, 1)[0].0).collect();
        assert_eq!(times, [0, 1, 2, 3].map(|units| after(units, MINUTE, 8)), "{}", bucket.name);
    });
}

#[test]
fn an_impossible_request_is_refused_and_costs_nothing() {
    on_every_store(&["3/min,window"], |bucket| {
        let (mut process, name) = (bucket.process(), bucket.name);
        let available = |process: &Process| {
            let now = process.store().clock().now();
            with_replica(process.store(), |replica| replica.available(now))
        };
        let schedule = |process: &Process| {
            let now = process.store().clock().now();
            with_replica(process.store(), |replica| replica.schedule(now, &[4]))
        };
        let ticket = process.ask(&[4]);
        assert_eq!(process.event(), Err((ticket, Refusal::Never)), "{name}");
        assert_eq!((available(&process), process.view().left), (3, vec![3]), "{name}");
        assert_eq!(schedule(&process), Some(START + MINUTE), "{name}: one by one");
        assert_eq!(available(&process), 3, "{name}");
    });
}

#[test]
fn a_request_is_refused_at_its_latest_time_and_costs_nothing() {
    on_every_store(&["1/s,burst=2"], |bucket| {
        let (mut process, name) = (bucket.process(), bucket.name);
        process.take(&[2]);
        let latest = START + 1500 * MILLISECOND;
        let late = process.request(Ask { latest, ..ask(&[2]) });
        let next = process.ask(&[2]);
        assert_eq!((process.event(), bucket.clock.now()), (Err((late, Refusal::TooLate)), latest), "{name}");
        let grant = process.next();
        assert_eq!((grant.ticket, grant.at), (next, START + 2 * SECOND), "{name}");
    });
}

#[test]
fn what_one_process_takes_the_others_lack() {
    on_every_store(&["1/s,burst=4"], |bucket| {
        let mut all = [(); 4].map(|()| bucket.process());
        for process in &mut all {
            assert_eq!(process.take(&[1]).at, START, "{}", bucket.name);
        }
        for process in &mut all {
            process.ask(&[1]);
        }
        let mut left: Vec<(usize, Nanos)> =
            (0..4).map(|_| next_of(&mut all)).map(|(who, grant)| (who, (grant.at - START) / SECOND)).collect();
        let times: Vec<Nanos> = left.iter().map(|(_, at)| *at).collect();
        left.sort_unstable();
        let who: Vec<usize> = left.into_iter().map(|(who, _)| who).collect();
        assert_eq!((times, who), (vec![1, 2, 3, 4], vec![0, 1, 2, 3]), "{}", bucket.name);
    });
}

/// The requests behind it are granted earlier.
#[test]
fn a_grant_that_is_not_used_is_given_back() {
    on_every_store(&["1/h,burst=1"], |bucket| {
        let (mut mine, mut theirs, name) = (bucket.process(), bucket.process(), bucket.name);
        let grant = mine.take(&[1]);
        let waits = theirs.ask(&[1]);
        assert_eq!(theirs.estimate(waits), Some(START + HOUR), "{name}");
        mine.give_back(&grant);
        assert_eq!(theirs.next().at, START, "{name}");
        mine.give_back(&grant);
        assert_eq!(mine.view().left, [0], "{name}: not twice");
    });
}

/// Both have a first request with the same number.
#[test]
fn two_users_of_a_bucket_in_one_process_do_not_interfere() {
    on_every_store(&["1/s,burst=1"], |bucket| {
        let mut users = [bucket.process(), bucket.process()];
        assert_eq!(users[0].take(&[1]).at, START, "{}", bucket.name);
        users[0].ask(&[1]);
        users[1].ask(&[1]);
        let left: Vec<_> = (0..2).map(|_| next_of(&mut users)).map(|(user, grant)| (user, grant.at - START)).collect();
        assert_eq!(left, [(1, SECOND), (0, 2 * SECOND)], "{}: the one that had a unit is second", bucket.name);
    });
}

/// A bucket that was made again counts its grants from a random number, which may be lower than before.
#[test]
fn a_process_goes_on_in_a_bucket_that_was_made_again() {
    on_every_store(&["1/s,burst=1"], |bucket| {
        let mut process = bucket.process();
        for _ in 0..8 {
            process.take(&[1]);
            process.ask(&[1]);
            process.store().clear(None, Some(&policy(&["1/s,burst=1"]))).unwrap();
            process.client.exchange().unwrap();
            let (now, grant) = (bucket.clock.now(), process.next());
            assert_eq!(grant.at, now, "{}", bucket.name);
            assert_eq!(process.view().counts.granted, 1, "{}", bucket.name);
        }
    });
}

/// The bucket had granted a run before it received that the units are no longer wanted.
#[test]
fn plain_units_beyond_what_a_process_wants_are_given_back() {
    on_every_store(&["100000/s,burst=9999,initial=0"], |bucket| {
        let mut process = bucket.process();
        process.client.want(10_000);
        let first = process.next();
        assert!(is_plain(&first));
        process.client.want_nothing();
        process.client.want(1);
        bucket.clock.advance(Duration::from_millis(20));
        let mut units = 0;
        loop {
            match process.poll() {
                Next::Go(grant) => units += grant.units,
                Next::At(time) => bucket.clock.set(Duration::from_nanos(time)),
                Next::Nothing => break,
                Next::Refused(..) => panic!("{}", bucket.name),
            }
        }
        let gained = (bucket.clock.now() - START) / 10_000;
        let left = vec![i128::from(gained - first.units - 1)];
        assert_eq!((units, process.view().left), (1, left), "{}", bucket.name);
    });
}

/// A sink with little room takes a part of a run. The rest waits again.
#[test]
fn plain_units_without_room_wait_again() {
    on_every_store(&["100000/s,burst=9999"], |bucket| {
        let mut process = bucket.process();
        process.client.want(250);
        let mut rooms = Vec::new();
        while let Next::Go(grant) = process.client.poll(70).unwrap() {
            rooms.push(grant.units);
        }
        assert_eq!((rooms.iter().sum::<u64>(), process.view().left), (250, vec![9749]), "{}", bucket.name);
        assert!(rooms.iter().all(|units| *units <= 70), "{}: {rooms:?}", bucket.name);
    });
}

/// The units that were committed for times that have passed are requested again. They keep to the rate from then on.
#[test]
fn a_delayed_stream_does_not_leave_as_a_burst() {
    on_every_store(&["1000/s,burst=1"], |bucket| {
        let mut process = bucket.process();
        process.client.want(100);
        assert_eq!(process.next().at, START, "{}", bucket.name);
        bucket.set(SECOND);
        let times: Vec<Nanos> = (0..3).map(|_| (process.next().at - START) / MILLISECOND).collect();
        assert_eq!(times, [1000, 1001, 1002], "{}", bucket.name);
    });
}

/// A grant that is given back moves up a request of a process that sleeps. That grant came too late and was given back,
/// which moved up the request of the other process that slept, and so on without end.
#[test]
fn two_processes_that_sleep_do_not_hold_each_other_up() {
    on_every_store(&["1/10s,window,slack=0"], |bucket| {
        let (mut gone, mut both) = (bucket.process(), [bucket.process(), bucket.process()]);
        let grant = gone.take(&[1]);
        for (process, after) in both.iter_mut().zip([1, 2]) {
            bucket.set(after * 100 * MILLISECOND);
            process.ask(&[1]);
            process.ask(&[1]);
        }
        bucket.set(500 * MILLISECOND);
        gone.give_back(&grant);
        let times: Vec<Nanos> = (0..4).map(|_| next_of(&mut both).1.at - START).collect();
        assert!(times[0] < 4 * SECOND, "{}: {times:?}", bucket.name);
        let are_spaced = times.windows(2).all(|two| two[1] - two[0] == 10 * SECOND);
        assert!(are_spaced, "{}: {times:?}", bucket.name);
    });
}

/// Its estimate had passed, and was still believed. So it read the bucket every 2.5 ms until the pause was over.
#[test]
fn a_pause_makes_nobody_who_waits_read_without_end() {
    on_every_store(&["1/s,burst=1"], |bucket| {
        let mut all = [bucket.process(), bucket.process(), bucket.process()];
        all[0].take(&[1]);
        for process in &mut all {
            process.ask(&[1]);
        }
        let until = START + 600 * SECOND;
        all[0].send(Operation::Hold { key: None, until, refused: Vec::new() });
        let mut reads = 0;
        while all[2].now() < START + 60 * SECOND {
            let Next::At(time) = all[2].poll() else { panic!("{}: the bucket is paused", bucket.name) };
            bucket.clock.set(Duration::from_nanos(time));
            reads += 1;
        }
        assert!(reads < 200, "{}: {reads} reads in a minute", bucket.name);
    });
}

/// Units that are not late themselves do not leave before late units of their key.
#[test]
fn units_of_a_key_are_requested_again_together_if_late() {
    let each = OfKeys { per: "f1".to_owned(), each: policy(&["1000/s,burst=1"]), jobs: None, fails: None };
    on_every_store_with(&policy(&["1M/s,burst=1"]).with_keys(each), |bucket| {
        let mut process = bucket.process();
        let of_key = |name: &[u8]| Ask { key: Some(name.into()), ..ask(&[1]) };
        let other = process.request(of_key(b"b"));
        let mut tickets = (0..6).map(|_| process.request(of_key(b"a"))).collect::<Vec<_>>();
        assert_eq!(process.next().ticket, other);
        // The first two of six are too late.
        bucket.set(12 * MILLISECOND);
        tickets.push(process.request(of_key(b"a")));
        let left: Vec<Grant> = (0..7).map(|_| process.next()).collect();
        assert_eq!(left.iter().map(|grant| grant.ticket).collect::<Vec<_>>(), tickets, "{}", bucket.name);
        let expected: Vec<Nanos> = (12..19).map(|at| START + at * MILLISECOND).collect();
        assert_eq!(left.iter().map(|grant| grant.at).collect::<Vec<_>>(), expected, "{}", bucket.name);
    });
}

/// The fraction of a unit survives a change of limits, so frequent changes slow nobody down.
#[test]
fn setting_limits_keeps_the_fraction_of_a_unit() {
    on_every_store(&["1/2s,burst=10,initial=0"], |bucket| {
        let (mut process, name) = (bucket.process(), bucket.name);
        for _ in 0..7 {
            bucket.clock.advance(Duration::from_millis(1200));
            process.store().set(&policy(&["1/2s,burst=10,initial=0"]), &[false]).unwrap();
        }
        assert_eq!(process.view().available, 4, "{name}: 8.4 s");
        process.store().set(&policy(&["1/3s,burst=10"]), &[false]).unwrap();
        let now = bucket.clock.now();
        assert_eq!(process.would_be_granted_at(&[5]), Some(now + 2400 * MILLISECOND), "{name}");
    });
}

#[test]
fn new_limits_apply_to_all_who_wait() {
    on_every_store(&["1/h,burst=1"], |bucket| {
        let (mut one, other, name) = (bucket.process(), bucket.process(), bucket.name);
        one.take(&[1]);
        let waits = one.ask(&[1]);
        assert_eq!(one.estimate(waits), Some(START + HOUR), "{name}");
        other.store().set(&policy(&["60/h,burst=1"]), &[false]).unwrap();
        assert_eq!(one.estimate(waits), Some(START + MINUTE), "{name}");
        assert_eq!(one.store().policy().to_string(), "60/h,burst=1", "{name}");
        other.store().set(&policy(&["60/h,burst=7,initial=7"]), &[true]).unwrap();
        one.client.exchange().unwrap();
        assert_eq!((one.next().at, one.view().left), (START, vec![6]), "{name}");
    });
}

/// Nothing is granted before this time.
fn hold(until: Nanos) -> Operation {
    Operation::Hold { key: None, until, refused: Vec::new() }
}

/// A waiter is not lost: it requests its unit again.
#[test]
fn a_cleared_bucket_begins_anew_for_all_who_wait() {
    on_every_store(&["1/h,burst=1"], |bucket| {
        let (mut one, other, name) = (bucket.process(), bucket.process(), bucket.name);
        one.take(&[1]);
        let waits = one.ask(&[1]);
        other.send(hold(START + 9 * HOUR));
        other.store().clear(None, None).unwrap();
        one.client.exchange().unwrap();
        assert_eq!(one.estimate(waits), Some(START + HOUR), "{name}: the pause is lifted, the unit stays charged");
        other.store().clear(None, Some(&policy(&["2/h,burst=2"]))).unwrap();
        one.client.exchange().unwrap();
        let grant = one.next();
        assert_eq!((grant.ticket, grant.at, one.view().left), (waits, START, vec![1]), "{name}");
    });
}

/// A pause moves every request that is not committed.
#[test]
fn a_held_store_grants_nothing_until_its_time_and_is_empty_then() {
    on_every_store(&["1/s,burst=5", "100/h"], |bucket| {
        let (mut process, name) = (bucket.process(), bucket.name);
        let hold = |process: &Process, second| process.send(hold(START + second * SECOND));
        hold(&process, 10);
        hold(&process, 4);
        assert_eq!((process.view().available, process.take_now(&[1])), (0, None), "{name}");
        let tickets = [1, 2].map(|cost| process.ask(&[cost]));
        let seconds = |process: &mut Process| tickets.map(|ticket| process.estimate(ticket).map(|at| at / SECOND));
        assert_eq!(seconds(&mut process), [11, 13].map(Some), "{name}: a pause is never cut short");
        hold(&process, 20);
        assert_eq!(seconds(&mut process), [21, 23].map(Some), "{name}");
        process.client.cancel(tickets[0]);
        assert_eq!(seconds(&mut process), [None, Some(22)], "{name}: that does not end the pause");
        process.client.cancel(tickets[1]);
        process.client.exchange().unwrap();
        bucket.set(40 * SECOND);
        hold(&process, 39);
        assert_eq!(process.view().available, 5, "{name}: that has passed");
    });
}

#[test]
fn a_lifted_pause_leaves_the_limits_as_if_it_had_not_been() {
    on_every_store(&["1/s,burst=5"], |bucket| {
        let (mut process, other, name) = (bucket.process(), bucket.process(), bucket.name);
        process.take(&[5]);
        other.send(hold(START + 100 * SECOND));
        let waits = process.ask(&[4]);
        assert_eq!(process.estimate(waits), Some(START + 104 * SECOND), "{name}");
        bucket.set(3 * SECOND);
        other.send(Operation::Resume(None));
        assert_eq!(process.estimate(waits), Some(START + 4 * SECOND), "{name}");
        assert_eq!((process.next().at, process.view().paused_until), (START + 4 * SECOND, None), "{name}");
    });
}

/// A client gives its unused grants back when a server asks it to wait.
#[test]
fn a_grant_put_back_at_a_pause_waits_at_its_place() {
    on_every_store(&["100/s,burst=1"], |bucket| {
        let (mut process, name) = (bucket.process(), bucket.name);
        process.take(&[1]);
        let tickets = [process.ask(&[1]), process.ask(&[1])];
        bucket.set(5 * MILLISECOND);
        process.client.exchange().unwrap();
        assert!(!process.client.waits(tickets[0]), "{name}: it is committed");
        process.client.report(hold(START + SECOND));
        process.client.put_back();
        let left = [process.next(), process.next()].map(|grant| (grant.ticket, (grant.at - START) / MILLISECOND));
        assert_eq!(left, [(tickets[0], 1010), (tickets[1], 1020)], "{name}");
    });
}

#[test]
fn each_key_has_its_own_limits_pause_and_turn() {
    let each = OfKeys { per: "f1".to_owned(), each: policy(&["1/s,burst=1"]), jobs: None, fails: None };
    on_every_store_with(&policy(&["100/s,burst=10"]).with_keys(each), |bucket| {
        let mut processes = [bucket.process(), bucket.process()];
        for process in &mut processes {
            for key in [b"a", b"b", b"c"] {
                process.request(Ask { key: Some(key[..].into()), ..ask(&[1]) });
            }
        }
        let key = Some(b"c"[..].into());
        processes[0].send(Operation::Hold { key: key.clone(), until: START + 5 * SECOND, refused: Vec::new() });
        let mut left = Vec::new();
        while bucket.clock.now() < START + 4 * SECOND {
            let mut times = Vec::new();
            for process in &mut processes {
                while let Next::Go(grant) = process.poll() {
                    times.push((grant.ticket, (grant.at - START) / MILLISECOND));
                }
            }
            times.sort_unstable();
            left.extend(times);
            bucket.clock.advance(Duration::from_millis(500));
        }
        // The first unit of the key was committed before the pause.
        assert_eq!(left, [(1, 0), (2, 0), (3, 0), (1, 1000), (2, 1000)], "{}", bucket.name);
        processes[1].send(Operation::Resume(key));
        let (who, grant) = next_of(&mut processes);
        assert_eq!((who, grant.ticket, grant.at), (1, 3, START + 4 * SECOND), "{}: lifted", bucket.name);
        // A grant can be given back for 10 s.
        bucket.set(30 * SECOND);
        assert_eq!(processes[0].view().keys, [], "{}: they are as new", bucket.name);
    });
}

#[test]
fn a_unit_that_runs_takes_a_job_of_all_until_it_ends() {
    on_every_store_with(&policy(&["100/s,burst=10"]).with_jobs(Some(2.try_into().unwrap())), |bucket| {
        let (mut one, mut other, name) = (bucket.process(), bucket.process(), bucket.name);
        let running = [one.take(&[1]), one.take(&[1])];
        let waits = other.ask(&[1]);
        assert_eq!((other.estimate(waits), other.view().running), (None, 2), "{name}: not before a unit ends");
        // All are heard of meanwhile.
        for second in 1..20 {
            bucket.set(second * SECOND);
            assert!(matches!(other.poll(), Next::At(_)), "{name}");
            one.client.exchange().unwrap();
        }
        one.client.report(Operation::Ended(vec![running[0].number]));
        one.client.exchange().unwrap();
        other.client.exchange().unwrap();
        assert_eq!((other.next().at, other.view().running), (START + 19 * SECOND, 2), "{name}");
        one.send(Operation::Gone { owner: other.store().owner(), seen: Nanos::MAX });
        assert_eq!(one.view().running, 1, "{name}: a process that has ended runs nothing");
    });
}

#[test]
fn a_key_that_fails_too_often_is_given_up_for_all() {
    let fails = Some(3.try_into().unwrap());
    let each = OfKeys { per: "f1".to_owned(), each: policy(&["10/s,burst=1"]), jobs: None, fails };
    on_every_store_with(&Policy::default().with_keys(each), |bucket| {
        let (one, mut other, name) = (bucket.process(), bucket.process(), bucket.name);
        let of_key = |name: &[u8]| Ask { key: Some(name.into()), ..ask(&[1]) };
        let [_, waits] = [0, 1].map(|_| other.request(of_key(b"a")));
        other.next();
        (0..3).for_each(|_| one.send(Operation::Tried { key: b"a"[..].into(), has_succeeded: false }));
        other.client.exchange().unwrap();
        assert_eq!(other.event(), Err((waits, Refusal::GivenUp(3.try_into().unwrap()))), "{name}");
        let later = other.request(of_key(b"a"));
        assert!(matches!(other.event(), Err((ticket, Refusal::GivenUp(_))) if ticket == later), "{name}");
        other.request(of_key(b"b"));
        assert_eq!(other.next().at, START, "{name}: another key");
    });
}
