//! Servers that count each request in a window when it arrives, and a client for each unit.
//!
//! A window is counted from the start of a client, but a server counts arrivals, which come some milliseconds later, one
//! more than another. On a machine that has other things to do a request may be delayed for longer than the slack: so a try
//! counts only if this process itself was not delayed meanwhile, and the best of some counts.

use crate::rounds::rounds;
use crate::support::redis::free_port;
use crate::support::{Running, find, found, logged_attempts, skipped, throttle, wait_until};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// How often a test tries again before it is skipped, since this machine had no time for it.
fn tries() -> u32 {
    rounds(5).max(2)
}

/// A server that answers everything with 200 and notes when it came, in seconds.
struct Log {
    port: u16,
    times: Arc<Mutex<Vec<f64>>>,
}

impl Log {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (port, times) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
        let (noted, begun) = (Arc::clone(&times), Instant::now());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                noted.lock().unwrap().push(begun.elapsed().as_secs_f64());
                thread::spawn(move || answer(stream));
            }
        });
        Log { port, times }
    }

    fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.times.lock().unwrap())
    }
}

fn answer(mut stream: TcpStream) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(read) if read > 0 => request.extend(&buffer[..read]),
            _ => return,
        }
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

/// Calls the server once for each of `units`, and gives the statuses.
fn call(port: u16, units: usize, args: &[&str]) -> Vec<String> {
    let url = format!("http://127.0.0.1:{port}/");
    let curl = ["curl", "-q", "-s", "-o", "/dev/null", "-w", "%{http_code}\\n", &url];
    let mut command = throttle([args, &["-q", "-n", "1", "--repeat", &units.to_string()], &curl].concat());
    command.env("no_proxy", "*").stdin(Stdio::null());
    let output = Running::start(command).finish();
    assert!(output.status.success(), "{}", output.err);
    output.text().lines().map(str::to_owned).collect()
}

/// Does `act`. Returns whether a thread that sleeps for a millisecond at a time always woke up in time.
pub(crate) fn undisturbed<T>(act: impl FnOnce() -> T) -> (T, bool) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let latest = scope.spawn(|| {
            let mut latest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                sleep(Duration::from_millis(1));
                latest = latest.max(begun.elapsed());
            }
            latest
        });
        let result = act();
        done.store(true, Ordering::Relaxed);
        (result, latest.join().unwrap() < Duration::from_millis(20))
    })
}

/// The tries that counted had refusals.
fn skip_or_fail(refusals: &[String]) {
    if refusals.len() < 2 {
        skipped("no machine with time for this");
    } else {
        panic!("{refusals:?}");
    }
}

/// Requests that a strict log of 40 in a second would refuse.
fn refused_by_a_log(times: &[f64]) -> usize {
    times.windows(41).filter(|some| some[40] - some[0] < 1.0).count()
}

/// Refusals by the moving and by the fixed window of the Python package `limits`, for arrivals at these times, whatever
/// part of a second the fixed windows begin at.
const LIMITS: &str = "
import sys, time
now = [0.0]
time.time = lambda: now[0]
from limits import parse, storage, strategies
times = [1e9 + float(word) for word in sys.stdin.read().split()]
limit = parse('40/second')
refused = 0
for kind in (strategies.MovingWindowRateLimiter, strategies.FixedWindowRateLimiter):
    for offset in (0.0, 0.25, 0.5, 0.75):
        judge = kind(storage.MemoryStorage())
        for at in times:
            now[0] = at + offset
            refused += not judge.hit(limit, str(offset))
print(refused)
";

/// `None` if the package is not installed.
fn refused_by_limits(times: &[f64]) -> Option<usize> {
    let mut python = Command::new("python3");
    python.args(["-c", LIMITS]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(python);
    let words: Vec<String> = times.iter().map(f64::to_string).collect();
    running.write(words.join(" ").as_bytes()).join().unwrap();
    running.finish().into_text().trim().parse().ok()
}

/// Without slack a strict log refused one in ten.
#[test]
#[ignore = "slow: 4 s"]
fn strict_windows_refuse_nothing_and_nearly_all_of_them_is_used() {
    if found("curl").is_none() {
        return;
    }
    let log = Log::start();
    let can_ask = find("python3").is_some() && refused_by_limits(&[0.0]).is_some();
    if !can_ask {
        skipped("no Python package limits here");
    }
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..tries() {
        let starts = folder.path().join("starts");
        let args = ["-r", "40/s,window", "-j", "16", "--log", starts.to_str().unwrap()];
        call(log.port, 160, &args);
        assert!(keep_the_slack(&starts), "41 clients were started in less than a second and the slack");
        let mut times = log.take();
        times.sort_by(f64::total_cmp);
        assert_eq!(times.len(), 160);
        // The first 40 come at once. The last window is open since its first arrival.
        let used = 120.0 / 40.0 / (times[120] - times[0]);
        let refused = refused_by_a_log(&times) + if can_ask { refused_by_limits(&times).unwrap() } else { 0 };
        if refused == 0 && used >= 0.94 {
            return;
        }
    }
    // The starts were right each time: the clients took more than the slack longer in one window than in another.
    skipped("clients do not arrive in time here");
}

/// Whether never more than 40 clients were started within 1.05 s, by the log of the attempts; a millisecond is for the time
/// from the grant to the start.
fn keep_the_slack(log: &Path) -> bool {
    let lines = std::fs::read_to_string(log).unwrap();
    std::fs::remove_file(log).unwrap();
    let mut starts: Vec<f64> = logged_attempts(&lines).iter().map(|line| line["start"].as_f64().unwrap()).collect();
    starts.sort_by(f64::total_cmp);
    assert_eq!(starts.len(), 160);
    starts.windows(41).all(|some| some[40] - some[0] > 1.049)
}

/// By how many seconds one client took longer than another.
fn spread_of_runs(log: &Path) -> f64 {
    let lines = std::fs::read_to_string(log).unwrap();
    std::fs::remove_file(log).unwrap();
    let attempts = logged_attempts(&lines);
    let ran = attempts.iter().map(|line| line["ran"].as_f64().unwrap());
    let (least, most) = ran.fold((f64::MAX, 0.0_f64), |(least, most), ran| (least.min(ran), most.max(ran)));
    most - least
}

/// A running `HAProxy` that lets 100 requests in two seconds through, as it estimates them.
struct Haproxy(Child, u16, #[allow(dead_code, reason = "holds its file")] tempfile::TempDir);

impl Haproxy {
    fn start() -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = folder.path().join("haproxy.cfg");
        let text = format!(
            "defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n\
             frontend judge\n bind 127.0.0.1:{port}\n stick-table type ip size 1k expire 10s store http_req_rate(2s)\n \
             http-request track-sc0 src\n http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 100 }}\n \
             http-request return status 200\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(find("haproxy").unwrap());
        command.arg("-f").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        wait_until("HAProxy answers", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        Haproxy(process, port, folder)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It estimates: what came in the period before counts in part. One in a hundred less, paced, is never too much for it.
#[test]
#[ignore = "slow: 5 s"]
fn an_estimating_counter_refuses_nothing_at_99_percent() {
    if found("curl").is_none() || found("haproxy").is_none() {
        return;
    }
    let (haproxy, folder) = (Haproxy::start(), tempfile::tempdir().unwrap());
    let mut refusals = Vec::new();
    for _ in 0..tries() {
        let log = folder.path().join("log");
        let args = ["-r", "99/2s", "-j", "16", "--log", log.to_str().unwrap()];
        let (answers, is_undisturbed) = undisturbed(|| call(haproxy.1, 220, &args));
        // A client that takes longer than another by an interval arrives with the next one.
        let counts = is_undisturbed && spread_of_runs(&log) < 0.02;
        let refused = answers.iter().filter(|answer| *answer != "200").count();
        assert_eq!(answers.len(), 220);
        if refused == 0 {
            return;
        }
        if counts {
            refusals.push(format!("{refused} refused by HAProxy"));
        }
        sleep(Duration::from_secs(4));
    }
    skip_or_fail(&refusals);
}
