//! Buckets on a real Redis server, through the real program.

use crate::support::redis::{Redis, bucket_at, counted_network, free_port, slow_network};
use crate::support::{Ended, Lines, Running, THROTTLE, assert_fails, can, feed, is_right_once, throttle, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Runs the program with a bucket and `args` to its end.
pub(crate) fn run(bucket: &str, args: &[&str]) -> Ended {
    feed(throttle([&["--bucket", bucket], args].concat()), b"")
}

#[track_caller]
pub(crate) fn runs(bucket: &str, args: &[&str]) -> String {
    let output = run(bucket, args);
    assert_eq!((output.code(), &*output.err), (Some(0), ""), "{args:?}");
    output.into_text()
}

#[track_caller]
fn shown(bucket: &str) -> Value {
    serde_json::from_str(&runs(bucket, &["--show", "json"])).unwrap()
}

/// A pipe with endless input on a bucket.
fn pipe(bucket: &str, args: &[&str]) -> Running {
    let mut running = Running::start(throttle([&["--bucket", bucket], args].concat()));
    let mut stdin = running.stdin();
    thread::spawn(move || while stdin.write_all(&b"a line\n".repeat(1000)).is_ok() {});
    running
}

/// When the lines of some pipes arrived, in seconds from the first, until `time` is over.
fn arrivals(pipes: Vec<Running>, time: Duration, meanwhile: impl FnOnce()) -> Vec<f64> {
    let mut pipes = pipes;
    let lines: Vec<Lines> = pipes.iter_mut().map(|pipe| Lines::of(pipe.stdout())).collect();
    let begun = Instant::now();
    meanwhile();
    thread::sleep(time.saturating_sub(begun.elapsed()));
    for pipe in &mut pipes {
        pipe.signal(Signal::KILL);
        pipe.end();
    }
    let mut times: Vec<Instant> = lines.into_iter().flat_map(Lines::times).collect();
    times.sort();
    times.iter().map(|time| time.duration_since(times[0]).as_secs_f64()).collect()
}

/// The most lines in any interval beyond what `rate` pays for in it.
fn most_above(times: &[f64], rate: f64) -> f64 {
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for (place, time) in (0_u32..).zip(times) {
        let ahead = f64::from(place) - rate * time;
        least = least.min(ahead);
        most = most.max(ahead - least + 1.0);
    }
    most
}

fn count(times: &[f64]) -> f64 {
    f64::from(u32::try_from(times.len()).unwrap())
}

mod limits {
    use super::*;

    /// Allowance for late processes and readers on two cores.
    const NOISE: f64 = 0.1;

    #[test]
    #[ignore = "slow: 5 s"]
    fn eight_processes_together_keep_one_limit_and_use_it_up() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("eight");
        let measure = || {
            // All of them may be 200 ms late without loss.
            let pipes = (0..8).map(|_| pipe(&bucket, &["-r", "500/s", "-b", "100"])).collect();
            let times = arrivals(pipes, Duration::from_secs(5), || {});
            (most_above(&times, 500.0), count(&times), *times.last().unwrap())
        };
        is_right_once(measure, |(above, count, last)| {
            *above <= 100.0 + 8.0 + 500.0 * NOISE && count - 100.0 >= 0.9 * 500.0 * last && *last > 4.0
        });
    }

    /// Its requests were granted until the others noticed its end, 12 s later.
    #[test]
    #[ignore = "slow: 6 s"]
    fn a_killed_stream_leaves_the_rate_to_the_others() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("killed");
        let survivor = || {
            let [mut one, other] = [(), ()].map(|()| pipe(&bucket, &["-r", "100/s", "-b", "5"]));
            thread::sleep(Duration::from_secs(1));
            one.signal(Signal::KILL);
            one.end();
            let times = arrivals(vec![other], Duration::from_secs(5), || {});
            count(&times) / times.last().unwrap()
        };
        is_right_once(survivor, |rate| *rate >= 85.0);
    }

    #[test]
    #[ignore = "slow: 4 s"]
    fn two_pipes_together_meet_the_limit() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("two");
        let measure = || {
            let pipes = (0..2).map(|_| pipe(&bucket, &["-r", "1000/s", "-b", "100"])).collect();
            let times = arrivals(pipes, Duration::from_secs(4), || {});
            (most_above(&times, 1000.0), count(&times), *times.last().unwrap())
        };
        is_right_once(measure, |(above, count, last)| {
            *above <= 102.0 + 1000.0 * NOISE && count - 100.0 >= 0.9 * 1000.0 * last
        });
    }

    /// Grants are committed a round trip before their times. A busy processor costs rate, and this test then reads late
    /// what seems to come at once, so the best of some tries counts.
    #[test]
    #[ignore = "slow: 8 s"]
    fn a_slow_network_costs_no_rate() {
        let Some(redis) = Redis::start(&[]) else { return };
        let most = 51.0 + 1000.0 * NOISE;
        for way in [10, 60] {
            let (mut best, mut above) = (0.0, f64::INFINITY);
            for round in 0..5 {
                let name = format!("far{way}.{round}");
                let bucket = bucket_at(slow_network(redis.port, Duration::from_millis(way)), &name);
                let times = arrivals(vec![pipe(&bucket, &["-r", "1000/s", "-b", "50"])], Duration::from_secs(4), || {});
                above = f64::min(above, most_above(&times, 1000.0));
                best = f64::max(best, (count(&times) - 50.0) / times.last().unwrap());
                if best >= 900.0 && above <= most {
                    break;
                }
            }
            assert!(above <= most, "{above} above the rate, {way} ms away");
            assert!(best >= 900.0, "{best} a second, {way} ms away");
        }
    }

    /// One slow answer must not make new requests wait long from then on.
    #[test]
    #[ignore = "slow: 4 s"]
    fn after_one_delay_new_requests_wait_as_before() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("hiccup");
        let pipes = (0..4).map(|_| pipe(&bucket, &["-r", "500/s", "-b", "10"])).collect();
        arrivals(pipes, Duration::from_secs(4), || {
            thread::sleep(Duration::from_secs(1));
            let () = redis.tell(&["CLIENT", "PAUSE", "600", "ALL"]);
            thread::sleep(Duration::from_secs(2));
            let wait = (0..5).map(|_| shown(&bucket)["wait_ns"].as_u64().unwrap()).min().unwrap();
            assert!(wait < 300_000_000, "a new request waits {wait} ns");
        });
    }

    /// A slow reader is late for most of its grants; in a window all of them would count for an hour.
    #[test]
    #[ignore = "slow: 6 s"]
    fn a_slow_reader_loses_no_room_in_a_window() {
        let Some(redis) = Redis::start(&[]) else { return };
        let folder = tempfile::tempdir().unwrap();
        for bucket in [redis.bucket("slow"), folder.path().join("slow").to_str().unwrap().to_owned()] {
            let mut pipe = Running::start(throttle(["--bucket", &bucket, "-r", "1000/s", "-r", "2000/h"]));
            let (mut stdin, mut stdout) = (pipe.stdin(), pipe.stdout());
            let line = [&[b'x'; 899][..], b"\n"].concat();
            thread::spawn(move || while stdin.write_all(&line).is_ok() {});
            let (mut bytes, begun, mut space) = (0, Instant::now(), vec![0; 8192]);
            while begun.elapsed() < Duration::from_secs(3) {
                bytes += stdout.read(&mut space).unwrap();
                thread::sleep(Duration::from_millis(50));
            }
            pipe.signal(Signal::KILL);
            bytes += stdout.read_to_end(&mut Vec::new()).unwrap();
            let (passed, left) = (bytes / 900, shown(&bucket)["limits"][1]["left"].as_u64().unwrap());
            assert!(passed as u64 + left > 1900, "{passed} have passed, {left} are left");
        }
    }

    #[test]
    fn launch_mode_requests_ahead_too() {
        let Some(redis) = Redis::start(&[]) else { return };
        let (port, turns) = counted_network(redis.port);
        let bucket = bucket_at(slow_network(port, Duration::from_millis(20)), "far");
        let round_trips = || {
            let (before, begun) = (turns.load(Ordering::SeqCst), Instant::now());
            runs(&bucket, &["-q", "-r", "100/s", "--repeat", "100", "true"]);
            assert!(begun.elapsed() >= Duration::from_millis(990));
            turns.load(Ordering::SeqCst) - before
        };
        // With one command per round trip this would take four seconds. A busy machine may use its grants too late, and has
        // to request them again.
        is_right_once(round_trips, |turns| *turns < 90);
    }
}

mod trouble {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    /// A signal interrupts a read with a timeout.
    #[test]
    fn the_end_of_a_command_does_not_disturb_a_request() {
        let Some(redis) = Redis::start(&[]) else { return };
        let args = ["-q", "-r", "200/s", "--repeat", "200", "--on-store-error", "fail", "true"];
        runs(&redis.bucket("b"), &args);
    }

    /// A demoted master refuses all writes for ever; its name now leads to another server. A stream that only reads finds
    /// out when it reports that it is alive, after 4 s.
    #[test]
    #[ignore = "slow: 8 s"]
    fn a_demoted_master_is_left() {
        let (Some(old), Some(new)) = (Redis::start(&[]), Redis::start(&[])) else { return };
        let port = Arc::new(AtomicU16::new(old.port));
        let bucket = bucket_at(crate::support::redis::network(Arc::clone(&port), Duration::ZERO), "b");
        let mut after = None;
        let times = arrivals(vec![pipe(&bucket, &["-r", "50/s"])], Duration::from_secs(8), || {
            thread::sleep(Duration::from_secs(1));
            port.store(new.port, Ordering::SeqCst);
            let () = old.tell(&["REPLICAOF", "127.0.0.1", "1"]);
            after = Some(Instant::now());
        });
        let seconds = times.last().unwrap();
        assert!(*seconds > 6.5, "the last line came after {seconds} s");
        assert_eq!(new.tell::<i64>(&["EXISTS", "throttle:b"]), 1);
    }

    /// A server's message must not control the terminal.
    #[test]
    fn a_servers_message_is_escaped() {
        let port = answering(b"-ERR \x1b[31mred\x07\r\n");
        let output = run(&bucket_at(port, "b"), &["-r", "5/s"]);
        assert_fails(&output, 1, &["refuses: ERR", "red"]);
        assert!(!output.err.chars().any(|c| c < ' ' && c != '\n'), "{:?}", output.err);
    }

    #[test]
    #[ignore = "slow: 5 s"]
    fn a_restarted_server_is_waited_for_and_its_state_restored() {
        // One burst may be granted twice, and a busy machine may be late.
        is_right_once(most_above_when_restarted, |above| above.is_none_or(|above| above <= 20.0 + 20.0 + 4.0 + 20.0));
    }

    /// The most units above the rate in any time.
    fn most_above_when_restarted() -> Option<f64> {
        let mut redis = Redis::start(&[])?;
        let bucket = redis.bucket("again");
        let mut pipes: Vec<Running> = (0..4).map(|_| pipe(&bucket, &["-r", "200/s", "-b", "20"])).collect();
        let words: Vec<Lines> = pipes.iter_mut().map(|pipe| Lines::of(pipe.stderr())).collect();
        let mut away = (0.0, 0.0);
        let begun = Instant::now();
        // A busy machine may take its time to start the server and to find it again.
        let times = arrivals(pipes, Duration::ZERO, || {
            thread::sleep(Duration::from_secs(2));
            redis.kill();
            away.0 = begun.elapsed().as_secs_f64();
            thread::sleep(Duration::from_secs(1));
            redis.start_again();
            away.1 = begun.elapsed().as_secs_f64();
            for said in &words {
                let said = [said.next(), said.next()];
                assert!(said[0].contains("cannot reach the bucket") && said[0].contains("waiting for it"), "{said:?}");
                assert!(said[1].starts_with("throttle: the bucket is back after "), "{said:?}");
            }
            thread::sleep(Duration::from_secs(2));
        });
        // Units granted before still leave, on a busy machine late. The rate would give 140 here.
        let during = times.iter().filter(|time| **time > away.0 + 0.3 && **time < away.1).count();
        assert!(during < 70, "{during} passed while it was away");
        let after = times.iter().filter(|time| **time > away.1).count();
        assert!(after > 100, "{after} after it was back");
        Some(most_above(&times, 200.0))
    }

    /// Its unit waits uncharged, so none leaves while the server is away.
    #[test]
    #[ignore = "slow: 5 s"]
    fn a_stream_whose_unit_waits_goes_on_when_the_server_is_back() {
        let Some(mut redis) = Redis::start(&[]) else { return };
        let mut running = pipe(&redis.bucket("b"), &["-r", "1/2s"]);
        let lines = Lines::of(running.stdout());
        assert_eq!(lines.next(), "a line");
        thread::sleep(Duration::from_millis(500));
        redis.kill();
        thread::sleep(Duration::from_millis(2500));
        redis.start_again();
        assert_eq!(lines.next(), "a line");
        assert_eq!(lines.next(), "a line");
        running.signal(Signal::KILL);
        running.end();
    }

    #[test]
    #[ignore = "slow: 4 s"]
    fn a_flush_in_the_middle_lets_through_at_most_one_burst_more() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("flushed");
        let pipes = (0..8).map(|_| pipe(&bucket, &["-r", "500/s", "-b", "100"])).collect();
        let times = arrivals(pipes, Duration::from_secs(4), || {
            thread::sleep(Duration::from_secs(2));
            let () = redis.tell(&["FLUSHALL"]);
            let () = redis.tell(&["SCRIPT", "FLUSH"]);
        });
        let above = most_above(&times, 500.0);
        assert!(above <= 200.0 + 8.0 + 50.0, "{above} above the rate");
        let last = times.last().unwrap();
        assert!(count(&times) >= 0.95 * 500.0 * last && *last > 3.0, "{} in {last} s", times.len());
    }

    #[test]
    #[ignore = "slow: 4 s"]
    fn a_server_that_pauses_is_waited_for() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("paused");
        let measure = || {
            let () = redis.tell(&["FLUSHALL"]);
            let pipes = vec![pipe(&bucket, &["-r", "500/s", "-b", "50"])];
            // A busy machine may start it late.
            let times = arrivals(pipes, Duration::ZERO, || {
                wait_until("it makes the bucket", || redis.tell::<u64>(&["DBSIZE"]) > 0);
                thread::sleep(Duration::from_secs(1));
                let () = redis.tell(&["CLIENT", "PAUSE", "1500"]);
                thread::sleep(Duration::from_secs(3));
            });
            let (gap, end) = times
                .windows(2)
                .map(|pair| (pair[1] - pair[0], pair[1]))
                .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
            (most_above(&times, 500.0), gap, times.last().unwrap() - end)
        };
        // Nothing comes for more than a second, and then it goes on.
        is_right_once(measure, |(above, gap, then)| *above <= 51.0 + 50.0 && *gap > 1.0 && *then > 1.0);
    }

    #[test]
    fn an_absent_server_ends_the_program_if_so_configured() {
        let nobody = bucket_at(free_port(), "nobody");
        let args = ["-r", "5/s", "--on-store-error", "fail"];
        assert_fails(&run(&nobody, &args), 1, &["cannot reach the bucket redis://127.0.0.1:", "refused"]);
        assert_fails(&run(&nobody, &args[2..]), 1, &["cannot reach the bucket"]);
        assert_fails(&run(&nobody, &[&args[..], &["--once", "true"]].concat()), 125, &["cannot reach"]);
        assert_fails(&run(&nobody, &["--show", "--on-store-error", "fail"]), 125, &["cannot reach"]);
        assert_fails(&run(&nobody, &[&args[..], &["--set"]].concat()), 1, &["cannot reach"]);
    }

    #[test]
    fn an_absent_server_is_waited_for_no_longer_than_max_wait() {
        let nobody = bucket_at(free_port(), "nobody");
        for args in [&["--once", "--max-wait", "300ms", "-r", "5/s"][..], &["--once", "--max-wait", "300ms"]] {
            let begun = Instant::now();
            let output = run(&nobody, args);
            assert_eq!(output.code(), Some(75), "{}", output.err);
            assert!(begun.elapsed() >= Duration::from_millis(300));
        }
        let output = run(&nobody, &["--once", "--max-wait", "0", "-r", "5/s"]);
        assert_fails(&output, 75, &["cannot reach the bucket"]);
    }

    /// Questions, and changes; and how they end if the server is away.
    const VERBS: [(&[&str], i32); 6] = [
        (&["--show"], 125),
        (&["--list"], 125),
        (&["--remove"], 1),
        (&["--clear"], 1),
        (&["--pause", "1s"], 1),
        (&["--set", "-r", "5/s"], 1),
    ];

    /// Otherwise they wait for ever.
    fn are_answered_soon(commands: impl IntoIterator<Item = (Command, i32)>) {
        let running: Vec<_> = commands.into_iter().map(|(command, code)| (Running::start(command), code)).collect();
        for (running, code) in running {
            assert_fails(&running.finish(), code, &["cannot reach"]);
        }
    }

    #[test]
    #[ignore = "slow: 3 s"]
    fn verbs_end_soon_if_the_server_is_absent() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let silent = bucket_at(silent.local_addr().unwrap().port(), "b");
        let buckets = [bucket_at(free_port(), "nobody"), silent];
        let of = |bucket: &String| VERBS.map(|(args, code)| (throttle([&["--bucket", bucket], args].concat()), code));
        are_answered_soon(buckets.iter().flat_map(of));
    }

    /// The system looks for a host in /etc/hosts first. Here that is a pipe into which nobody writes.
    #[test]
    #[ignore = "slow: 3 s"]
    fn verbs_end_soon_if_the_host_has_no_address() {
        let elsewhere =
            ["-rm", "sh", "-c", "mount --bind \"$1\" /etc/hosts || exit 9; shift; exec \"$0\" \"$@\"", THROTTLE];
        if !can(&["unshare", "-rm"]) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("hosts");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let once: (&[&str], i32) = (&["--once", "--on-store-error", "fail"], 125);
        are_answered_soon(VERBS.into_iter().chain([once]).map(|(args, code)| {
            let mut command = Command::new("unshare");
            command.args(elsewhere).arg(&pipe).args(["--bucket", "redis://db.example/b"]).args(args);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            (command, code)
        }));
    }

    /// A client without retries still waits for a healthy server that is far away.
    #[test]
    #[ignore = "slow: 2 s"]
    fn a_slow_network_is_not_an_absent_server() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = bucket_at(slow_network(redis.port, Duration::from_millis(75)), "far");
        runs(&bucket, &["-r", "9/h,window", "--on-store-error", "fail", "--set"]);
        runs(&bucket, &["--once", "--on-store-error", "fail"]);
        for max_wait in ["0", "50ms"] {
            runs(&bucket, &["--once", "--max-wait", max_wait]);
            runs(&bucket, &["--once", "--max-wait", max_wait, "-r", "9/h,window"]);
        }
        assert_eq!(shown(&bucket)["available"], 4);
        runs(&bucket, &["--set", "-r", "1/h,burst=1,initial=1"]);
        runs(&bucket, &["--once", "--max-wait", "0"]);
        assert_fails(&run(&bucket, &["--once", "--max-wait", "0"]), 75, &["would have to wait"]);
    }

    #[test]
    #[ignore = "slow: 6 s"]
    fn a_server_that_does_not_answer_is_given_three_seconds() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let bucket = bucket_at(silent.local_addr().unwrap().port(), "b");
        for (args, code) in [(["--max-wait", "0"], 75), (["--on-store-error", "fail"], 125)] {
            let begun = Instant::now();
            assert_fails(
                &run(&bucket, &[&["--once", "-r", "5/s"], &args[..]].concat()),
                code,
                &["no answer within 3 s"],
            );
            let took = begun.elapsed();
            assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(90), "{took:?}");
        }
    }

    #[test]
    fn a_host_that_has_no_address_is_named() {
        let output = run("redis://no-such-host.invalid/b", &["-r", "5/s", "--on-store-error", "fail"]);
        assert_fails(&output, 1, &["cannot reach the bucket redis://no-such-host.invalid:6379/b"]);
    }

    /// As a server says it that does not know the command, and others that repeat what they were asked.
    #[test]
    fn a_password_is_not_shown_if_the_server_repeats_it() {
        for answer in ["-ERR unknown command 'auth', with args beginning with: 's3cret' ''\r\n", "-OOPS s3cret\r\n"] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = thread::spawn(move || {
                let (mut client, _) = listener.accept().unwrap();
                let _ = client.read(&mut [0; 4096]).unwrap();
                client.write_all(answer.as_bytes()).unwrap();
                let _ = client.read_to_end(&mut Vec::new());
            });
            let bucket = format!("redis://:s3cret@127.0.0.1:{port}/b");
            let output = run(&bucket, &["--once", "-r", "5/s", "--on-store-error", "fail"]);
            let said = &output.err;
            assert!(!said.contains("s3cret") && said.contains(&port.to_string()), "{said}");
            assert_fails(&output, 125, &[]);
            server.join().unwrap();
        }
    }

    #[test]
    fn an_answer_without_end_is_not_read_to_its_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let written = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let (mut written, piece) = (0, vec![b'x'; 1 << 16]);
            client.write_all(b"$2000000000\r\n").unwrap();
            while let Ok(length @ 1..) = client.write(&piece) {
                written += length;
            }
            written
        });
        let output = run(&bucket_at(port, "b"), &["-r", "5/s"]);
        assert_fails(&output, 1, &["is not a Redis server; check host and port"]);
        // Some of it waits in the sockets.
        assert!(written.join().unwrap() < 100_000_000);
    }

    /// Whatever answers, in any way.
    #[test]
    fn a_server_that_is_not_redis_is_recognised() {
        for answer in
            [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-x\r\n", b"220 mail\r\n", b"\x00\x01\x02", b"+PONG\r\n"]
        {
            let port = answering(answer);
            let output = run(&bucket_at(port, "b"), &["-r", "5/s"]);
            assert_fails(&output, 1, &["is not a Redis server; check host and port"]);
        }
    }

    /// The port of a server that says `answer` to everything.
    fn answering(answer: &'static [u8]) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let _ = client.read(&mut [0; 1024]);
                let _ = client.write_all(answer);
                let _ = client.read(&mut [0; 1024]);
            }
        });
        port
    }

    #[test]
    fn other_data_at_the_key_is_not_overwritten() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("mine");
        let () = redis.tell(&["SET", "throttle:mine", "treasure"]);
        assert_fails(
            &run(&bucket, &["-r", "5/s"]),
            1,
            &["is not a bucket: the key 'throttle:mine' holds something else"],
        );
        assert_eq!(redis.tell::<String>(&["GET", "throttle:mine"]), "treasure");
        let () = redis.tell(&["DEL", "throttle:mine"]);
        let () = redis.tell(&["HSET", "throttle:mine", "treasure", "1"]);
        assert_fails(&run(&bucket, &["-r", "5/s"]), 1, &["is not a bucket: the key"]);
        for version in ["17", "19"] {
            let () = redis.tell(&["HSET", "throttle:mine", "v", version]);
            let words = [
                &format!("has format {version}, but this throttle reads format 18")[..],
                "redis-cli DEL 'throttle:mine'",
            ];
            assert_fails(&run(&bucket, &["-r", "5/s"]), 1, &words);
        }
        for damage in [&["v", "18"][..], &["18", "x"], &["18", &"nonsense".repeat(7)]] {
            let () = redis.tell(&[&["HSET", "throttle:mine"], damage].concat());
            assert_fails(&run(&bucket, &["-r", "5/s"]), 1, &["damaged", "redis-cli DEL 'throttle:mine'"]);
        }
    }

    #[test]
    fn a_server_that_cannot_write_is_waited_for() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("full");
        let () = redis.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        let output = run(&bucket, &["-r", "5/s", "--once", "--on-store-error", "fail"]);
        assert_fails(&output, 125, &["the server of the bucket ", " answers: OOM ", "raise its maxmemory"]);
        let () = redis.tell(&["CONFIG", "SET", "maxmemory", "0"]);
        runs(&bucket, &["-r", "9/h,window", "--once"]);
        let () = redis.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_fails(&run(&bucket, &["--once", "--on-store-error", "fail"]), 125, &[" answers: OOM "]);
        assert_eq!(shown(&bucket)["available"], 8, "it may still be looked at");
    }

    /// Before, the message was that the bucket could not be reached.
    #[test]
    fn a_server_that_answers_no_is_not_called_unreachable() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("b");
        runs(&bucket, &["-r", "9/h,window", "--once"]);
        let () = redis.tell(&["REPLICAOF", "127.0.0.1", "1"]);
        let output = run(&bucket, &["--once", "--on-store-error", "fail"]);
        assert_fails(
            &output,
            125,
            &["the server of the bucket ", " answers: READONLY ", "; it is a replica: name the primary"],
        );
        let output = run(&bucket, &["--once", "--max-wait", "100ms"]);
        let said = &output.err;
        assert_eq!(output.code(), Some(75), "it may become a primary: {said}");
        assert!(said.contains(" answers: READONLY ") && !said.contains("cannot reach"), "{said}");
    }
}

mod passwords {
    use super::*;

    fn address(redis: &Redis, credentials: &str) -> String {
        format!("redis://{credentials}@127.0.0.1:{}/b", redis.port)
    }

    #[test]
    fn a_password_opens_it_and_is_never_shown() {
        let Some(redis) = Redis::start(&["--requirepass", "s3cret!"]) else { return };
        let right = address(&redis, ":s3cret!");
        let said =
            runs(&right, &["-r", "5/s", "--set"]) + &runs(&right, &["--show"]) + &runs(&right, &["--show", "json"]);
        assert!(said.contains("redis://127.0.0.1:") && !said.contains("s3cret"), "{said}");
        let wrong = address(&redis, ":s3cretly");
        let output = run(&wrong, &["-r", "5/s"]);
        assert_fails(&output, 1, &["refuses: wrong user or password"]);
        assert!(!output.err.contains("s3cret"));
        let disagrees = run(&right, &["-r", "6/s"]);
        assert_fails(&disagrees, 1, &["has the limits 5/s,burst=1, not 6/s"]);
        assert!(!disagrees.err.contains("s3cret"));
    }

    #[test]
    fn a_missing_or_needless_password_is_reported() {
        let Some(redis) = Redis::start(&["--requirepass", "s3cret!"]) else { return };
        for (args, code) in [(&["-r", "5/s"][..], 1), (&["--once", "-r", "5/s"], 125)] {
            let words = ["it needs a password; write ?password-file=PATH"];
            assert_fails(&run(&redis.bucket("b"), args), code, &words);
        }
        let Some(open) = Redis::start(&[]) else { return };
        let output = run(&address(&open, ":s3cret!"), &["-r", "5/s"]);
        assert_fails(&output, 1, &["if the server has none, leave them out of the address"]);
    }

    #[test]
    #[ignore = "slow: 3 s"]
    fn a_pipe_without_a_writer_is_no_password_file() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap().success());
        let bucket = format!("{}?password-file={}", bucket_at(free_port(), "b"), pipe.display());
        assert_fails(&run(&bucket, &["-r", "5/s"]), 1, &["cannot read the password in", "no password came"]);
    }

    #[test]
    fn a_user_needs_permission_to_run_the_script() {
        let Some(redis) = Redis::start(&[]) else { return };
        let () = redis.tell(&["ACL", "SETUSER", "me", "on", ">s3cret", "~throttle:*", "+@all"]);
        let () = redis.tell(&["ACL", "SETUSER", "guest", "on", ">s3cret", "~throttle:*", "+get"]);
        let page =
            include_str!("../../../docs/sharing.md").split('`').find(|words| words.starts_with("EVALSHA ")).unwrap();
        let least: Vec<String> = page.split(' ').map(|command| format!("+{}", command.to_lowercase())).collect();
        let mut least: Vec<&str> = least.iter().map(String::as_str).collect();
        least.splice(0..0, ["ACL", "SETUSER", "least", "on", ">s3cret", "~throttle:*", "-@all", "+scan"]);
        let () = redis.tell(&least);
        for limit in ["50/s,burst=1", "9/100ms,window"] {
            let bucket = address(&redis, "least:s3cret");
            runs(&bucket, &["-r", limit, "--set"]);
            runs(&bucket, &["-q", "--repeat", "30", "true"]);
            runs(&bucket, &["--once"]);
            runs(&bucket, &["--show"]);
            assert!(runs(&bucket, &["--list"]).starts_with("b: "));
            runs(&bucket, &["--remove"]);
            runs(&bucket, &["-r", limit, "--set"]);
        }
        runs(&address(&redis, "me:s3cret"), &["--once"]);
        assert_fails(&run(&address(&redis, "guest:s3cret"), &["-r", "5/s"]), 1, &["refuses", "evalsha"]);
    }

    /// A key without an expiry would stay for ever, and a window without its entries would never empty.
    #[test]
    fn a_user_without_all_permissions_changes_nothing() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = address(&redis, "me:s3cret");
        for forbidden in ["pexpire", "hset"] {
            let without = format!("-{forbidden}");
            let () = redis.tell(&["ACL", "SETUSER", "me", "on", ">s3cret", "~throttle:*", "+@all", &without]);
            assert_fails(&run(&bucket, &["-r", "5/s"]), 1, &["refuses"]);
            assert_eq!(redis.tell::<i64>(&["EXISTS", "throttle:b"]), 0, "without {forbidden}");
        }
        for forbidden in ["pexpire", "hset"] {
            let without = format!("-{forbidden}");
            let open = redis.bucket("b");
            runs(&open, &["--set", "-r", "1/5ms,window"]);
            runs(&open, &["-q", "--repeat", "33", "true"]);
            thread::sleep(Duration::from_millis(20));
            let kept = || redis.tell::<std::collections::BTreeMap<String, Vec<u8>>>(&["HGETALL", "throttle:b"]);
            let before = kept();
            let () = redis.tell(&["ACL", "SETUSER", "me", "on", ">s3cret", "~throttle:*", "+@all", &without]);
            assert_fails(&run(&bucket, &["--once"]), 125, &["refuses"]);
            assert_eq!(kept(), before, "without {forbidden}");
            let () = redis.tell(&["DEL", "throttle:b"]);
        }
    }

    #[test]
    fn the_environment_keeps_it_from_the_command_line() {
        let Some(redis) = Redis::start(&["--requirepass", "s3cret!"]) else { return };
        let mut command = throttle(["-r", "5/s", "--once", "sh", "-c", "echo $THROTTLE_BUCKET"]);
        command.env("THROTTLE_BUCKET", address(&redis, ":s3cret!"));
        let output = feed(command, b"");
        assert!(output.status.success(), "{}", output.err);
        assert_eq!(output.text().trim(), address(&redis, ":s3cret!"), "the command may use the bucket, too");
    }
}

mod bucket {
    use super::*;

    #[test]
    fn it_remembers_its_limits_and_changes_them_for_everyone() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("b");
        assert_fails(&run(&bucket, &["--once"]), 125, &["there is no bucket", "--set -r 5/s"]);
        runs(&bucket, &["--set", "-r", "1/min,burst=3", "-r", "5000/h,window"]);
        for left in [3, 2, 1] {
            assert_eq!(shown(&bucket)["available"], left);
            runs(&bucket, &["--once", "--max-wait", "0"]);
            runs(&bucket, &["--set", "-r", "1/h,burst=3", "-r", "5000/h,window"]);
        }
        let json = shown(&bucket);
        assert_eq!((&json["available"], &json["limits"][1]["left"]), (&0.into(), &4997.into()), "{json}");
        assert_eq!(json["limits"][0]["limit"], "1/h,burst=3");
        let output = run(&bucket, &["--once", "--max-wait", "5s"]);
        assert_fails(&output, 75, &["would have to wait"]);
        runs(&bucket, &["--set", "-r", "1/h,burst=3,initial=3", "-r", "5000/h,window"]);
        assert_eq!(shown(&bucket)["available"], 3);
        runs(&bucket, &["-r", "1/h", "-r", "5000/h,window", "--once"]);
        assert_fails(
            &run(&bucket, &["-r", "2/h", "-r", "5000/h,window", "--once"]),
            125,
            &["not 2/h and 5000/h,window;"],
        );
    }

    #[test]
    #[ignore = "slow: 6 s"]
    fn a_running_pipe_uses_new_limits_from_its_next_take() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("b");
        let pipes = vec![pipe(&bucket, &["-r", "20/s"])];
        // At the old limits there would be 122 lines.
        let times = arrivals(pipes, Duration::from_secs(6), || {
            thread::sleep(Duration::from_secs(1));
            runs(&bucket, &["--set", "-r", "500/s"]);
        });
        assert!(times.len() > 200, "{} lines", times.len());
    }

    #[test]
    fn a_pipe_that_counts_units_ends_if_the_bucket_now_counts_bytes() {
        let Some(redis) = Redis::start(&[]) else { return };
        for (before, after) in [("100/s", "1kB/s"), ("1kB/s", "100/s")] {
            let bucket = redis.bucket("b");
            runs(&bucket, &["--set", "-r", before]);
            let mut running = pipe(&bucket, &[]);
            let lines = Lines::of(running.stdout());
            assert_eq!(lines.next(), "a line");
            runs(&bucket, &["--clear", "--set", "-r", after]);
            let both =
                [&format!("was changed from {before},burst=1")[..], &format!(" to {after},burst="), "start again"];
            assert_fails(&running.finish(), 1, &both);
            assert_fails(&run(&bucket, &["-r", before]), 1, &[&format!(", not {before};"), after]);
            let left = shown(&bucket)["wait_ns"].as_u64().unwrap();
            assert!(left < 100_000_000, "what was not used is given back: {left}");
        }
    }

    #[test]
    fn it_lives_thirty_days_or_as_long_as_it_counts() {
        let Some(redis) = Redis::start(&[]) else { return };
        let day = 86_400_000;
        for (limit, days) in [("5/s", 30), ("5/40d,window", 40), ("1/d,burst=50", 50)] {
            let bucket = redis.bucket("b");
            runs(&bucket, &["-r", limit, "--once"]);
            let left: i64 = redis.tell(&["PTTL", "throttle:b"]);
            assert!(left > days * day - 60_000 && left <= days * day + 1_000, "{limit}: {left} ms");
            let () = redis.tell(&["DEL", "throttle:b"]);
        }
    }

    /// The process behind keeps its time, and the one that gave up its place leaves it to the next.
    #[test]
    fn an_interrupted_waiter_gives_its_place_back() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("b");
        runs(&bucket, &["-r", "1/h", "--once"]);
        let waiting = Running::start(throttle(["--bucket", &bucket, "--once"]));
        wait_until("it to take its place", || shown(&bucket)["line"].as_array().is_some_and(|line| line.len() == 1));
        thread::sleep(Duration::from_millis(300));
        waiting.signal(Signal::TERM);
        let output = waiting.finish();
        assert_eq!(output.signal(), Some(15), "{}", output.err);
        assert_eq!(shown(&bucket)["line"].as_array().map(Vec::len), Some(0));
        let wait = shown(&bucket)["wait_ns"].as_u64().unwrap();
        assert!(wait <= 3_600_000_000_000, "the next hour is free again: {wait}");
    }

    #[test]
    fn commands_share_it_too() {
        let Some(redis) = Redis::start(&[]) else { return };
        let bucket = redis.bucket("b");
        let begun = Instant::now();
        let launches: Vec<Running> = (0..2)
            .map(|_| Running::start(throttle(["--bucket", &bucket, "-r", "20/s", "--repeat", "20", "echo"])))
            .collect();
        for launch in launches {
            let output = launch.finish();
            assert_eq!(output.out, b"\n".repeat(20), "{}", output.err);
        }
        assert!(begun.elapsed() >= Duration::from_millis(39 * 50), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_database_has_its_own() {
        let Some(redis) = Redis::start(&[]) else { return };
        runs(&redis.bucket("2/b"), &["-r", "5/s", "--set"]);
        assert_fails(&run(&redis.bucket("b"), &["--show"]), 1, &["there is no bucket"]);
        assert!(runs(&redis.bucket("2/b"), &["--show"]).contains("/2/b"));
    }
}

mod cluster {
    use super::*;

    /// The bucket is one key, and every node can say where it is.
    #[test]
    #[ignore = "slow: 2 s"]
    fn a_bucket_is_found_from_every_node() {
        let node = || Redis::start(&["--cluster-enabled", "yes", "--cluster-port", "FREE"]);
        let (Some(a), Some(b)) = (node(), node()) else { return };
        let () = a.tell(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
        let () = b.tell(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
        let bus: Vec<String> = b.tell(&["CONFIG", "GET", "cluster-port"]);
        let () = a.tell(&["CLUSTER", "MEET", "127.0.0.1", &b.port.to_string(), &bus[1]]);
        for node in [&a, &b] {
            wait_until("the cluster", || node.tell::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
        }
        for name in ["one", "two", "three", "four"] {
            let buckets = [a.bucket(name), b.bucket(name)];
            runs(&buckets[0], &["-r", "1/h,burst=2", "--once"]);
            runs(&buckets[1], &["-r", "1/h,burst=2", "--once"]);
            for bucket in buckets {
                assert_eq!(shown(&bucket)["available"], 0, "{name}");
            }
        }
        for name in ["five", "six", "seven"] {
            runs(&a.bucket(name), &["-r", "1/h,burst=9", "--once"]);
            let key = format!("throttle:{name}");
            let slot = a.tell::<i64>(&["CLUSTER", "KEYSLOT", &key]).to_string();
            let (from, to) = if slot.parse::<u16>().unwrap() < 8192 { (&a, &b) } else { (&b, &a) };
            let [from_id, to_id] = [from, to].map(|node| node.tell::<String>(&["CLUSTER", "MYID"]));
            let () = to.tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
            let () = from.tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
            let () = from.tell(&["MIGRATE", "127.0.0.1", &to.port.to_string(), &key, "0", "5000"]);
            // While it moves, it is away.
            let waiting = Running::start(throttle(["--bucket", &from.bucket(name), "--once"]));
            assert_eq!(run(&to.bucket(name), &["--once", "--max-wait", "0"]).code(), Some(75));
            for node in [to, from] {
                let () = node.tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
            }
            assert!(waiting.finish().status.success());
            assert_eq!(shown(&from.bucket(name))["available"], 7, "and is found again");
        }
        let keys: Vec<i64> = [&a, &b].map(|node| node.tell(&["DBSIZE"])).to_vec();
        assert!(keys.iter().sum::<i64>() == 7 && !keys.contains(&0), "on both nodes: {keys:?}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn an_encrypted_address_needs_a_build_with_tls() {
    assert_fails(&run("rediss://localhost/b", &["-r", "5/s"]), 1, &["built without TLS", "--features tls"]);
}

#[cfg(feature = "tls")]
mod encrypted {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    fn openssl(folder: &Path, args: &str) {
        let words = args.split(' ');
        let output = Command::new("openssl").args(words).current_dir(folder).output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// A certificate authority for the test, and the server's certificate.
    fn certificates(folder: &Path) {
        let key = "-newkey rsa:2048 -nodes -days 2";
        openssl(folder, &format!("req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=ours"));
        openssl(folder, &format!("req {} -keyout key -out csr -subj /CN=localhost", key.trim_end_matches(" -days 2")));
        std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
        openssl(folder, "x509 -req -in csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out crt -extfile names");
    }

    #[test]
    fn a_server_must_have_a_valid_certificate() {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (crt, key, ca) = (file("crt"), file("key"), file("ca.crt"));
        let tls =
            ["--tls-cert-file", &crt, "--tls-key-file", &key, "--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"];
        let ports = ["--port", "0", "--tls-port", "PORT", "--requirepass", "s3cret"];
        let Some(redis) = Redis::start(&[&ports[..], &tls].concat()) else { return };
        let asked = |host: &str, trusted: bool| {
            let bucket = format!("rediss://:s3cret@{host}:{}/b", redis.port);
            let mut command = throttle(["--bucket", &bucket, "-r", "5/s", "--once", "--on-store-error", "fail"]);
            if trusted {
                command.env("SSL_CERT_FILE", &ca);
            }
            feed(command, b"")
        };
        let output = asked("localhost", true);
        assert!(output.status.success(), "{}", output.err);
        assert_fails(&asked("localhost", false), 125, &["refuses: invalid peer certificate"]);
        assert_fails(&asked("127.0.0.1", true), 125, &["refuses: invalid peer certificate", "not valid for name"]);
        let plain = run(&redis.bucket("b"), &["-r", "5/s", "--on-store-error", "fail"]);
        assert_fails(&plain, 1, &["the bucket redis://127.0.0.1:"]);
    }
}
