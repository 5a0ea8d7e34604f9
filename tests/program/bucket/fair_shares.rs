//! The shares of streams that use one bucket, in a file and on a server.

use crate::support::redis::{Redis, bucket_at, slow_network};
use crate::support::stores::{Bucket, Process, START, is_plain, next_of, on_every_store};
use crate::support::{Lines, Running, feed, is_right_once, shell, throttle};
use rustix::process::Signal;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};
use throttle_limits::clock::{MILLISECOND, NanoClock, Nanos, SECOND};
use throttle_limits::store::{Client, Next};

/// Runs `test` with the name of a bucket in a file, and with one on a server if there is one.
fn on_both_stores(limit: &str, test: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start(&[]);
    let file = folder.path().join("b").to_str().unwrap().to_owned();
    for bucket in std::iter::once(file).chain(redis.iter().map(|redis| redis.bucket("b"))) {
        assert!(feed(with(&bucket, &["--set", "-r", limit]), b"").status.success());
        test(&bucket);
    }
}

fn with(bucket: &str, args: &[&str]) -> std::process::Command {
    throttle([&["-q", "--bucket", bucket], args].concat())
}

/// A pipe with endless input, and when its lines came.
fn pipe(bucket: &str) -> (Running, Lines) {
    let mut running = Running::start(with(bucket, &[]));
    let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
    thread::spawn(move || while stdin.write_all(&b"line\n".repeat(1000)).is_ok() {});
    (running, lines)
}

/// How many lines each of `pipes` passes in `time` once all have begun; `meanwhile` is done after half of it.
fn counts(bucket: &str, pipes: usize, time: Duration, meanwhile: impl FnOnce()) -> Vec<usize> {
    counts_of(&vec![bucket; pipes], time, meanwhile)
}

/// The same of a pipe for each of these names of a bucket.
fn counts_of(buckets: &[&str], time: Duration, meanwhile: impl FnOnce()) -> Vec<usize> {
    let mut all: Vec<_> = buckets.iter().map(|bucket| pipe(bucket)).collect();
    for (_, lines) in &all {
        let _ = lines.next();
    }
    let begun = Instant::now();
    thread::sleep(time / 2);
    meanwhile();
    thread::sleep(time.saturating_sub(begun.elapsed()));
    for (pipe, _) in &mut all {
        pipe.signal(Signal::KILL);
        pipe.end();
    }
    all.into_iter()
        .map(|(_, lines)| lines.times().iter().filter(|at| (begun..begun + time).contains(at)).count())
        .collect()
}

/// How long a newcomer to the bucket would wait, in nanoseconds.
fn newcomer(bucket: &str) -> u64 {
    let shown = feed(with(bucket, &["--show", "json"]), b"").out;
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    shown["wait_ns"].as_u64().unwrap()
}

/// The first request after a window has opened does not get most of it. A newcomer waits for one period.
#[test]
#[ignore = "slow: 10 s"]
fn pipes_share_a_window_and_a_newcomer_waits_for_one_period() {
    on_both_stores("40/500ms,window,slack=0", |bucket| {
        let waits = || {
            let wait = newcomer(bucket);
            assert!(wait <= 500 * MILLISECOND, "{bucket}: a newcomer waits {wait} ns");
        };
        // Eight windows. On a busy machine one of the pipes may start late into each.
        let fair = 320 / 4;
        let measure = || (bucket, counts(bucket, 4, Duration::from_secs(4), waits));
        is_right_once(measure, |(_, counts)| {
            let near = fair * 7 / 10..=fair * 13 / 10;
            counts.iter().sum::<usize>() >= 200 && counts.iter().all(|count| near.contains(count))
        });
    });
}

/// A stream whose round trip is as long as several periods takes no more of each window than the others.
#[test]
#[ignore = "slow: 6 s"]
fn a_newcomer_waits_one_period_also_on_a_slow_network() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (near, far) = (redis.bucket("b"), bucket_at(slow_network(redis.port, Duration::from_millis(100)), "b"));
    assert!(feed(with(&near, &["--set", "-r", "40/500ms,window,slack=0"]), b"").status.success());
    let measure = || {
        let mut waits = Vec::new();
        let counts = counts(&far, 4, Duration::from_secs(4), || {
            waits.extend((0..20).map(|_| {
                thread::sleep(Duration::from_millis(50));
                newcomer(&near) / MILLISECOND
            }));
        });
        (waits, counts)
    };
    // A period, and for how long a stream holds back others. On a busy machine the network is slower still. Of 320.
    is_right_once(measure, |(waits, counts)| {
        waits.iter().all(|wait| *wait <= 750) && counts.iter().sum::<usize>() >= 200
    });
}

/// It requests more units at once than the streams nearby.
#[test]
#[ignore = "slow: 3 s"]
fn a_stream_that_is_far_away_gets_only_its_share() {
    let Some(redis) = Redis::start(&[]) else { return };
    let (near, far) = (redis.bucket("b"), bucket_at(slow_network(redis.port, Duration::from_millis(25)), "b"));
    assert!(feed(with(&near, &["--set", "-r", "200/s,burst=1"]), b"").status.success());
    let measure = || counts_of(&[&near, &near, &near, &far], Duration::from_secs(3), || ());
    is_right_once(measure, |counts| {
        let share = counts.iter().sum::<usize>() / 4;
        share >= 130 && counts.iter().all(|count| (share * 7 / 10..=share * 13 / 10).contains(count))
    });
}

/// A loop starts a process before each request, and here it also sleeps.
#[test]
#[ignore = "slow: 17 s"]
fn a_loop_of_once_gets_its_share_beside_pipes() {
    // Slow enough that a process starts within its share of the time, also on a busy machine.
    for (limit, [least, of]) in [("40/500ms,window,slack=0", [1, 8]), ("20/s,burst=1", [2, 3])] {
        on_both_stores(limit, |bucket| {
            let measure = || {
                let mut command = shell(r#"while "$0" -q --bucket "$1" --once echo one; do sleep 0.05; done"#);
                command.arg(bucket);
                let mut shell = Running::start(command);
                let ones = Lines::of(shell.stdout());
                let pipes = counts(bucket, 3, Duration::from_secs(4), || ());
                shell.signal(Signal::KILL);
                shell.end();
                (bucket, ones.times().len(), pipes)
            };
            is_right_once(measure, |(_, ones, pipes)| {
                let fair = (pipes.iter().sum::<usize>() + ones) / 4;
                (fair * least / of..=fair * 3 / 2).contains(ones)
            });
        });
    }
}

/// Four streams with endless input.
fn four_streams(bucket: &Bucket) -> [Process; 4] {
    [(); 4].map(|()| {
        let mut stream = bucket.process();
        stream.client.want(10_000);
        stream
    })
}

/// The units of each of these processes that leave from now until `end`.
fn units_until(processes: &mut [Process], end: Nanos) -> Vec<u64> {
    let mut units = vec![0; processes.len()];
    loop {
        let (who, grant) = next_of(processes);
        if grant.at >= START + end {
            return units;
        }
        units[who] += grant.units;
    }
}

/// The first of four streams is alone when it begins. It gets nothing of the second window before the others.
#[test]
fn a_window_that_opens_is_shared_by_all_who_waited() {
    on_every_store(&["100/2s,window,slack=0"], |bucket| {
        let mut streams = four_streams(bucket);
        assert_eq!(units_until(&mut streams, SECOND).iter().sum::<u64>(), 100, "{}", bucket.name);
        let second = units_until(&mut streams, 3 * SECOND);
        assert!(second.iter().all(|units| (24..=26).contains(units)), "{}: {second:?}", bucket.name);
    });
}

/// A loop requests its next unit only some time after its unit has left.
#[test]
fn all_get_the_same_however_long_a_loop_needs_to_ask_again() {
    on_every_store(&["40/s"], |bucket| {
        for pause in [1, 3, 6, 10, 15] {
            let units = shares(bucket, pause * MILLISECOND);
            assert!(units.iter().all(|units| (199..=201).contains(units)), "{}, {pause} ms: {units:?}", bucket.name);
        }
    });
}

/// A window keeps no room for a request that does not exist yet. A loop requests its next unit after the last one has left,
/// so it gets one unit of each period.
#[test]
fn a_loop_beside_streams_gets_a_unit_whenever_a_window_opens() {
    on_every_store(&["40/s,window,slack=0"], |bucket| {
        let [of_loop, of_streams @ ..] = shares(bucket, 5 * MILLISECOND);
        assert!(of_loop >= 19, "{}: {of_loop}", bucket.name);
        // The first stream is alone in the first period.
        assert_eq!(of_loop + of_streams.iter().sum::<u64>(), 800, "{}", bucket.name);
        assert!(of_streams[1..].iter().all(|units| (240..=255).contains(units)), "{}: {of_streams:?}", bucket.name);
    });
}

/// The units of a loop and of three streams in 20 s. The loop needs this long to request its next unit.
fn shares(bucket: &Bucket, pause: Nanos) -> [u64; 4] {
    let mut processes = four_streams(bucket);
    processes[0].client.want_nothing();
    let end = bucket.clock.now() + 20 * SECOND;
    let (mut units, mut asks_at) = ([0; 4], Some(bucket.clock.now()));
    while bucket.clock.now() < end {
        if asks_at.is_some_and(|at| at <= bucket.clock.now()) {
            processes[0].ask(&[1]);
            asks_at = None;
        }
        let mut next = asks_at.unwrap_or(Nanos::MAX);
        for (place, process) in processes.iter_mut().enumerate() {
            loop {
                match process.poll() {
                    Next::Go(grant) => {
                        units[place] += grant.units;
                        if !is_plain(&grant) {
                            asks_at = Some(bucket.clock.now() + pause);
                            next = next.min(bucket.clock.now() + pause);
                        }
                    }
                    Next::At(at) => break next = next.min(at),
                    Next::Nothing => break,
                    Next::Refused(..) => panic!("{}", bucket.name),
                }
            }
        }
        bucket.clock.sleep_until(next);
    }
    for process in &mut processes {
        process.withdraw().unwrap();
    }
    units
}

/// Units that are granted for commands that cannot start yet are not lost.
#[test]
#[ignore = "slow: 7 s"]
fn launches_with_many_slots_use_a_shared_window() {
    let limit = "50/s,window,slack=0";
    let run = |bucket: &str| {
        let begun = Instant::now();
        let launches: Vec<_> = (0..4).map(|_| Running::start(with(bucket, &["-j", "64", "true"]))).collect();
        for mut launch in launches {
            launch.write(&b"x\n".repeat(50));
            let output = launch.finish();
            assert!(output.status.success(), "{}", output.err);
        }
        begun.elapsed()
    };
    on_both_stores(limit, |bucket| {
        let measure = || {
            assert!(feed(with(bucket, &["--clear", "--set", "-r", "1M/s"]), b"").status.success());
            let unlimited = run(bucket);
            assert!(feed(with(bucket, &["--clear", "--set", "-r", limit]), b"").status.success());
            (bucket, run(bucket), unlimited)
        };
        // Fifty at once, then fifty a second: three seconds, and the time to start and end. What is lost costs a second.
        is_right_once(measure, |(_, took, unlimited)| {
            assert!(*took >= Duration::from_millis(2990), "{bucket}: {took:?}");
            *took <= Duration::from_millis(3900) + *unlimited
        });
    });
}

/// A stream alone takes what conforms at once, and loses no room later.
#[test]
#[ignore = "slow: 5 s"]
fn a_pipe_alone_uses_a_shared_window() {
    let limit = "100/500ms,window,slack=0";
    on_both_stores(limit, |bucket| {
        // Of 500. A busy machine may wake it late.
        let measure = || {
            assert!(feed(with(bucket, &["--clear", "--set", "-r", limit]), b"").status.success());
            let (mut pipe, lines) = pipe(bucket);
            thread::sleep(Duration::from_millis(2700));
            pipe.signal(Signal::KILL);
            pipe.end();
            // From when the first line was seen: five windows, the last of them after two seconds.
            let times = lines.times();
            let end = times[0] + Duration::from_millis(2300);
            (bucket, times.iter().filter(|at| **at < end).count())
        };
        is_right_once(measure, |(_, count)| {
            assert!(*count <= 500, "{bucket}: {count}");
            *count >= 450
        });
    });
}

#[test]
fn the_first_stream_of_an_unused_window_gets_all_of_it_at_once() {
    on_every_store(&["9/300ms,window", "6/400ms,window"], |bucket| {
        let at_once = |client: &mut Client| {
            client.want(100);
            let grants = std::iter::from_fn(|| match client.poll(u64::MAX).unwrap() {
                Next::Go(grant) => Some(grant.units),
                _ => None,
            });
            grants.sum::<u64>()
        };
        let [mut first, mut second] = [bucket.process(), bucket.process()];
        assert_eq!((at_once(&mut first.client), at_once(&mut second.client)), (6, 0), "{}", bucket.name);
    });
}
