//! A bucket on a server: lost states, clocks that are set back, scripts and snapshots, round trips, and ends.

use super::{Duration, FakeClock, NanoClock, Nanos, Operation, Process, Redis, SECOND, START, Store, policy};
use crate::support::redis::Redis as Server;
use std::sync::Arc;
use throttle_limits::store::Patience;

fn store(server: &Server, clock: &FakeClock, limits: &[&str]) -> Redis {
    Redis::open_on_fake(server.bucket("bucket").parse().unwrap(), Some(&policy(limits)), clock.clone()).unwrap()
}

fn open(server: &Server, clock: &FakeClock, limits: &[&str]) -> Process {
    Process::new(Arc::new(store(server, clock, limits)))
}

/// Requests a unit that is granted at once, and returns its time. It does not compare that with its own clock, which may
/// differ from the bucket's.
fn granted(process: &mut Process) -> Nanos {
    let ticket = process.ask(&[1]);
    assert!(!process.client.waits(ticket));
    process.client.estimate(ticket).unwrap()
}

/// Nothing is credited, and nobody waits until the clock has caught up.
#[test]
fn a_clock_that_is_set_back_credits_nothing_and_stalls_nothing() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_secs(3600));
    let mut process = open(&server, &clock, &["10/s,burst=2"]);
    let first = process.take(&[2]).at;
    clock.set(Duration::from_micros(5));
    assert_eq!(process.would_be_granted_at(&[1]), Some(first + 100_000_000), "as if no time had passed");
    clock.advance(Duration::from_millis(150));
    assert_eq!(granted(&mut process), first + 150_000_000, "the one that came in after 100 ms");
    assert_eq!(process.would_be_granted_at(&[1]), Some(first + 200_000_000));
    clock.advance(Duration::from_millis(50));
    assert_eq!(granted(&mut process), first + 200_000_000, "it goes on from there");
}

/// This holds even for clients that only view or are refused, which store nothing else.
#[test]
fn after_a_clock_was_set_back_time_goes_on_despite_refusals() {
    let Some(server) = Server::start(&[]) else { return };
    for limits in [&["1/10s,burst=1"][..], &["1/10s,window"]] {
        let () = server.tell(&["FLUSHALL"]);
        let clock = FakeClock::at(Duration::from_secs(3600));
        let mut process = open(&server, &clock, limits);
        let first = granted(&mut process);
        clock.set(Duration::from_micros(5));
        assert_eq!(process.view().wait, Some(10 * SECOND), "as if no time had passed");
        clock.advance(Duration::from_secs(4));
        assert_eq!(process.view().wait, Some(6 * SECOND));
        clock.set(Duration::from_micros(6));
        for second in 0..6 {
            let at = process.would_be_granted_at(&[1]);
            assert_eq!(at, Some(first + 10 * SECOND), "{limits:?}: {second} s after another step back");
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(granted(&mut process), first + 10 * SECOND, "{limits:?}");
    }
}

#[test]
fn a_replica_whose_clock_is_behind_can_be_looked_at() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_secs(3600));
    let mut process = open(&server, &clock, &["1/10s,burst=1"]);
    process.take(&[1]);
    let () = server.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    clock.set(Duration::from_micros(5));
    assert_eq!(process.view().wait, Some(10 * SECOND));
    process.client.ask(super::ask(&[1]));
    assert!(process.client.exchange().unwrap_err().to_string().contains("READONLY"));
}

/// If a server loses its state, the first of its clients makes the bucket again, and there is no second burst. All who
/// waited request their units again.
#[test]
fn clients_restore_what_a_server_has_lost() {
    let Some(server) = Server::start(&[]) else { return };
    // New grants count from a random number.
    for _ in 0..8 {
        let clock = FakeClock::at(Duration::from_secs(1));
        let limits = ["10/s,burst=5"];
        let (mut mine, mut other) = (open(&server, &clock, &limits), open(&server, &clock, &limits));
        let times: Vec<Nanos> = (0..10).map(|_| mine.take(&[1]).at).collect();
        assert_eq!(times[9], 1_500_000_000);
        let waits = other.ask(&[1]);
        assert_eq!(other.estimate(waits), Some(1_600_000_000));
        let () = server.tell(&["FLUSHALL"]);
        clock.advance(Duration::from_millis(50));
        assert_eq!(mine.would_be_granted_at(&[1]), Some(1_650_000_000), "it begins empty");
        other.client.exchange().unwrap();
        let grant = other.next();
        assert_eq!((grant.ticket, grant.at), (waits, 1_650_000_000));
        assert_eq!(mine.take(&[1]).at, 1_750_000_000);
        assert_eq!(open(&server, &clock, &limits).take(&[1]).at, 1_850_000_000);
        let () = server.tell(&["FLUSHALL"]);
    }
}

#[test]
fn a_grant_from_before_a_lost_state_is_not_given_back() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_nanos(START));
    let mut mine = open(&server, &clock, &["1/h,burst=1"]);
    let grant = mine.take(&[1]);
    let () = server.tell(&["DEL", "throttle:bucket"]);
    clock.advance(Duration::from_millis(1));
    let mut stranger = open(&server, &clock, &["1/h,burst=1"]);
    stranger.take(&[1]);
    for _ in 0..2 {
        mine.give_back(&grant);
        mine.settle(&grant, &[0]);
        assert_eq!(mine.view().left, [0]);
    }
    assert_eq!(stranger.view().left, [0]);
}

/// A restart empties the script cache, and the state may be gone as well.
#[test]
fn a_script_that_was_forgotten_is_sent_again() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_nanos(START));
    let mut process = open(&server, &clock, &["10/s,burst=1"]);
    for place in 0..3 {
        let () = server.tell(&["SCRIPT", "FLUSH"]);
        assert_eq!(process.take(&[1]).at, START + place * 100_000_000);
    }
}

/// A request that is granted at once is one. A request that waits is another one, shortly before its time.
#[test]
fn a_grant_is_one_round_trip_and_a_wait_is_one_more() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_nanos(START));
    let mut process = open(&server, &clock, &["10/s,burst=20", "100/min"]);
    for round_trips in [1, 2] {
        let before = questions(&server);
        for place in 1..=20 {
            assert_eq!(process.take(&[1]).at, START + place * (round_trips - 1) * 100_000_000);
        }
        assert_eq!(u64::from(questions(&server) - before), 20 * round_trips);
    }
}

/// The number of requests to the server so far.
fn questions(server: &Server) -> u32 {
    let counts: String = server.tell(&["INFO", "commandstats"]);
    let calls = |name| {
        let counted = counts.split(name).nth(1).and_then(|rest| rest.strip_prefix(":calls=")?.split(',').next());
        counted.map_or(0, |calls| calls.parse().unwrap())
    };
    calls("cmdstat_evalsha") + calls("cmdstat_eval")
}

/// A client that stays connected falls behind the snapshot. A client that connects reads the snapshot and the log.
#[test]
fn who_was_away_goes_on_from_the_snapshot() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_nanos(START));
    for name in ["bucket", "2/bucket"] {
        let begun = clock.now();
        let address = || server.bucket(name).parse().unwrap();
        let made = Redis::open_on_fake(address(), Some(&policy(&["10/s,burst=1"])), clock.clone()).unwrap();
        let mut stays = Process::new(Arc::new(made));
        for place in 0..240 {
            let open = || Process::new(Arc::new(Redis::open_on_fake(address(), None, clock.clone()).unwrap()));
            let mut newcomer = (place % 80 > 0).then(open);
            let at = newcomer.as_mut().unwrap_or(&mut stays).take(&[1]).at;
            assert_eq!(at, begun + place * 100_000_000, "{name}");
        }
    }
    // Without a snapshot, the client repeated its request, and reported in the end that the server was away.
    for damage in [&["HSET", "throttle:bucket", "s", "nonsense"][..], &["HDEL", "throttle:bucket", "s"]] {
        let () = server.tell(damage);
        let open = Redis::open_on_fake(server.bucket("bucket").parse().unwrap(), None, clock.clone());
        let damaged = open.unwrap_err().to_string();
        assert!(damaged.contains("damaged"), "{damaged}");
    }
}

/// A waiter that reads nothing while others write snapshots finds its grant in a snapshot.
#[test]
fn a_grant_is_found_in_a_snapshot() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_nanos(START));
    let mut waits = open(&server, &clock, &["10/s,burst=1"]);
    let mut others = open(&server, &clock, &["10/s,burst=1"]);
    others.take(&[1]);
    let ticket = waits.ask(&[1]);
    clock.advance(Duration::from_millis(100));
    for _ in 0..100 {
        let ticket = others.ask(&[1]);
        others.client.cancel(ticket);
    }
    let grant = waits.next();
    assert_eq!((grant.ticket, grant.at, clock.now()), (ticket, START + 100_000_000, START + 100_000_000));
    assert_eq!(waits.view().counts.granted, 2);
}

/// The ledgers of clients that were answered a time are at that time. An operation before it would lead to another
/// ledger.
#[test]
fn no_operation_is_before_a_time_that_was_announced() {
    let Some(server) = Server::start(&[]) else { return };
    let [later, earlier] = [10 * SECOND, 0].map(|after| FakeClock::at(Duration::from_nanos(START + after)));
    let mut other = open(&server, &earlier, &["10/s,burst=1"]);
    open(&server, &later, &["10/s,burst=1"]).view();
    assert_eq!(granted(&mut other), later.now());
}

/// Its patience has no end: the server never comes back.
#[test]
fn a_process_that_ends_does_not_wait_for_a_server_that_is_away() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("redis://127.0.0.1:{}/b", silent.local_addr().unwrap().port());
    drop(silent);
    let (away, is_away) = std::sync::mpsc::channel();
    let patience = Patience::new(None, move |_| away.send(()).unwrap());
    let store = Redis::unasked(address.parse().unwrap(), Some(&policy(&["5/s"])), patience).unwrap();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| store.sync());
        is_away.recv().unwrap();
        assert!(store.leave());
        assert!(asks.join().unwrap().is_err());
    });
}

/// Other clients cancel what a process that sends nothing for 12 s waits for. A client that was only asleep goes on.
#[test]
fn a_silent_process_counts_as_ended_and_may_come_back() {
    let Some(server) = Server::start(&[]) else { return };
    let clock = FakeClock::at(Duration::from_nanos(START));
    let [mut silent, mut other] = [(); 2].map(|()| open(&server, &clock, &["1/min,burst=1"]));
    other.take(&[1]);
    let waits = silent.ask(&[1]);
    clock.advance(Duration::from_secs(11));
    assert_eq!(other.would_be_granted_at(&[1]), Some(START + 120 * SECOND));
    clock.advance(Duration::from_secs(1));
    assert_eq!(other.would_be_granted_at(&[1]), Some(START + 60 * SECOND));
    let grant = silent.next();
    assert_eq!((grant.ticket, grant.at), (waits, START + 60 * SECOND));
}

#[test]
fn debug_output_shows_no_password() {
    let Some(server) = Server::start(&["--requirepass", "s3cret"]) else { return };
    let address = format!("redis://:s3cret@127.0.0.1:{}/b", server.port).parse().unwrap();
    let store = Redis::open(address, Some(&policy(&["5/s"])), Patience::none()).unwrap();
    assert!(!format!("{store:?}").contains("s3cret"), "{store:?}");
    store.send(vec![Operation::Want(1)]).unwrap();
    assert!(!format!("{store:?}").contains("s3cret"), "{store:?}");
}
