//! A real nginx that refuses requests above its rate, and a client for each unit.
//!
//! nginx counts arrivals, we count starts. Its bucket lets eleven requests through at once (the first and `burst=10`
//! more) and then one every 20 ms, in whole milliseconds; ours starts ten and then one every 20 ms. So it has room for one
//! more, which is 20 ms: a request is refused only if the first to arrive took 20 ms longer from its start to its arrival
//! than a later one, or the second 40 ms longer, and so on to the tenth and all behind it: 200 ms.
//!
//! A client alone takes 4 ms for that. Ten that share two cores with each other and the server take 20 to 35 ms, whatever
//! starts them, since the system runs each for a short time in turn. That is not caused by our starts. So, if it is allowed
//! (root may), clients are scheduled first in, first out, and the server before all others, as if each had a core of its
//! own. The test is repeated only if a request still came late or the whole took too long.

use crate::launch::strict_windows::undisturbed;
use crate::rounds::rounds;
use crate::support::nginx::{Nginx, REST};
use crate::support::{THROTTLE, found, skipped};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

const ATTEMPTS: usize = 5;

/// How late the last answer may come. A machine that has other things to do may need a second try for it.
const LATE: Duration = Duration::from_millis(196);

struct Run {
    answers: Vec<String>,
    elapsed: Duration,
    requests: Vec<Request>,
    /// How late starts were handed over, median and 99th percentile, in milliseconds.
    handed_over: [f64; 2],
}

/// One request, as the server saw it.
struct Request {
    unit: usize,
    refused: bool,
    /// From its time in the schedule to its arrival, in seconds; the schedule begins when the program is started.
    delay: f64,
}

impl Run {
    /// Whether a request was so late that the server may refuse another, less late one.
    fn used_up_the_room(&self) -> bool {
        let rooms = (1..=10).chain(std::iter::repeat(10));
        self.requests.iter().zip(rooms).any(|(request, room)| request.delay > 0.02 * f64::from(room))
    }

    /// Which units were refused, and what of the first ten came late.
    fn report(&self) -> String {
        let delay = |request: &Request| format!("{} by {:.0} ms", request.unit, request.delay * 1e3);
        let refused: Vec<String> = self.requests.iter().filter(|request| request.refused).map(delay).collect();
        let first: Vec<String> = self.requests.iter().take(10).map(delay).collect();
        let [median, p99] = self.handed_over;
        format!(
            "refused, though behind their time: {refused:?}; the first to arrive: {first:?}; \
             handed over late by {median:.3} ms (median), {p99:.3} ms (p99)"
        )
    }
}

#[test]
#[ignore = "slow: 2 s"]
fn a_server_that_counts_strictly_refuses_nothing() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    let nginx = Nginx::start(|| first_come_first_served(2, &program)).unwrap();
    // From the disk, the first clients would take longer than all others.
    let warm =
        Command::new("curl").args(["-q", "-s", "-o", "/dev/null"]).arg(nginx.url()).env("no_proxy", "*").status();
    assert!(warm.unwrap().success());
    let calls = rounds(500).max(100);
    // Ten at once, then the others at fifty a second.
    let ideal = Duration::from_millis(20) * (calls - 10);
    let mut had_time = false;
    for attempt in 1..=ATTEMPTS {
        sleep(REST);
        let (run, is_undisturbed) = undisturbed(|| run(&nginx, calls));
        had_time |= is_undisturbed;
        let refused = run.answers.iter().filter(|answer| *answer != "200").count();
        let ratio = run.elapsed.as_secs_f64() / ideal.as_secs_f64();
        println!("attempt {attempt}: {refused} of {calls} refused, {:?}, {ratio:.3} × the ideal", run.elapsed);
        assert_eq!(run.answers.len(), calls as usize, "every call has an answer");
        assert!(run.elapsed >= ideal, "the last start came before its time in the schedule: {:?}", run.elapsed);
        assert!(ratio < 2.0 || !is_undisturbed, "{:?} for {ideal:?} of schedule", run.elapsed);
        if refused == 0 && run.elapsed <= ideal + LATE {
            return;
        }
        assert!(refused == 0 || run.used_up_the_room(), "the clients were quick enough: {}", run.report());
        println!("{}; once more", run.report());
    }
    assert!(!had_time, "in each of {ATTEMPTS} attempts something was refused, or it took too long");
    skipped("no machine with time for a strict server");
}

/// A program that, with all it starts, is scheduled as `SCHED_FIFO` of sched(7), if that is allowed.
fn first_come_first_served(priority: u8, program: &Path) -> Command {
    let mut command = Command::new("chrt");
    command.args(["-f", &priority.to_string()]);
    let may = Command::new("chrt").args(["-f", "1", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    command.arg(program);
    command
}

fn run(nginx: &Nginx, calls: u32) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("units"), folder.path().join("answers"));
    let units: Vec<String> = (1..=calls).map(|unit| unit.to_string()).collect();
    std::fs::write(&input, units.join("\n")).unwrap();
    nginx.arrivals();
    let (begun, clock) = (Instant::now(), SystemTime::now());
    let throttle = start(nginx, folder.path(), &input, &output);
    assert!(ended(throttle, Duration::from_secs(60)), "not ended after a minute");
    let elapsed = begun.elapsed();
    let begun = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let requests = nginx.arrivals().into_iter().map(|(time, status, unit)| Request {
        delay: time - begun - 0.02 * f64::from(u32::try_from(unit.saturating_sub(10)).unwrap()),
        refused: status != 200,
        unit,
    });
    let answers = std::fs::read_to_string(&output).unwrap().lines().map(str::to_owned).collect();
    let lateness = lateness(&folder.path().join("summary"));
    Run { answers, elapsed, requests: requests.collect(), handed_over: lateness }
}

/// Fields of the program's own summary.
fn lateness(summary: &Path) -> [f64; 2] {
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    ["lateness_p50_ns", "lateness_p99_ns"].map(|field| summary[field].as_f64().unwrap() / 1e6)
}

fn start(nginx: &Nginx, folder: &Path, input: &Path, output: &Path) -> Child {
    first_come_first_served(1, Path::new(THROTTLE))
        .args(["-q", "-r", "50/s", "-b", "10", "--summary=json:summary", "--"])
        .args(["curl", "-q", "-s", "-o", "/dev/null", "-w", "%{http_code}\\n"])
        .arg(nginx.url() + "{}")
        .env("no_proxy", "*")
        .current_dir(folder)
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
