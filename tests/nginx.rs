//! The real thing: a server that refuses what comes too fast, and a client for each unit.
//!
//! nginx counts arrivals, we count starts. Its bucket lets eleven requests through at once (the first and `burst=10`
//! more) and then one every 20 ms, in whole milliseconds; ours starts ten and then one every 20 ms. So it has room for one
//! more, which is 20 ms: a request is refused only if the very first one took 20 ms longer from its start to its arrival
//! than a later one. On a machine that is busy with other things that happens, and is no fault of the starts; then, and only
//! then, the whole is tried again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};
use support::{Nginx, REST, find};

#[path = "support/nginx.rs"]
mod support;

const CALLS: usize = 500;
const ATTEMPTS: usize = 5;
/// Ten at once, then 490 at fifty a second.
const IDEAL: Duration = Duration::from_millis(9800);

struct Run {
    answers: Vec<String>,
    elapsed: Duration,
    /// From our start to the first arrival, in seconds.
    first: f64,
}

#[test]
fn a_server_that_counts_strictly_refuses_nothing() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    let nginx = Nginx::start(&program).unwrap();
    for attempt in 1..=ATTEMPTS {
        let run = run(&nginx);
        let refused = run.answers.iter().filter(|answer| *answer != "200").count();
        let ratio = run.elapsed.as_secs_f64() / IDEAL.as_secs_f64();
        println!("attempt {attempt}: {refused} of {} refused, {:?}, {ratio:.3} × the ideal", CALLS, run.elapsed);
        assert_eq!(run.answers.len(), CALLS, "every call has an answer");
        assert!(run.elapsed >= IDEAL, "the last start is 490 intervals behind the first ten: {:?}", run.elapsed);
        assert!(ratio < 2.0, "{:?} for {IDEAL:?} of schedule", run.elapsed);
        if refused == 0 {
            return;
        }
        assert!(
            run.first > 0.02,
            "{refused} refused, though the first request came {:.3} s after our start",
            run.first
        );
        println!("the first request came {:.3} s after our start; once more", run.first);
        sleep(REST);
    }
    panic!("something was refused in each of {ATTEMPTS} attempts");
}

/// Where the program is; `None`, said visibly, means that there is nothing to test with. In CI there must be.
fn found(name: &str) -> Option<PathBuf> {
    let path = find(name);
    if path.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed, and CI must not skip this");
        // Past the test harness, which shows no output of what passes.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("SKIPPED: no {name} here\n").as_bytes());
    }
    path
}

fn run(nginx: &Nginx) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("units"), folder.path().join("answers"));
    let units: Vec<String> = (1..=CALLS).map(|unit| unit.to_string()).collect();
    std::fs::write(&input, units.join("\n")).unwrap();
    nginx.arrivals();
    let (begun, clock) = (Instant::now(), SystemTime::now());
    let throttle = start(nginx, &input, &output);
    assert!(ended(throttle, Duration::from_secs(60)), "not ended after a minute");
    let elapsed = begun.elapsed();
    let begun = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let first = nginx.arrivals().into_iter().fold(f64::INFINITY, f64::min) - begun;
    let answers = std::fs::read_to_string(&output).unwrap().lines().map(str::to_owned).collect();
    Run { answers, elapsed, first }
}

fn start(nginx: &Nginx, input: &Path, output: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_throttle"))
        .args(["-q", "-r", "50/s", "-b", "10", "--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}\\n"])
        .arg(nginx.url() + "{}")
        .env("no_proxy", "*")
        .stdin(File::open(input).unwrap())
        .stdout(File::create(output).unwrap())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Whether the program ended by itself in good time, and well.
fn ended(mut program: Child, at_most: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < at_most {
        if let Some(status) = program.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return true;
        }
        sleep(Duration::from_millis(5));
    }
    program.kill().unwrap();
    program.wait().unwrap();
    false
}
