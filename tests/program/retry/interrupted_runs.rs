//! A long run in small, against a server that changes its limit, restarts, hangs, and requests waits in many ways. Some units
//! always fail. One signal after another interrupts the run, and the same command starts it again.

use crate::support::{Ended, HANGS, Running, numbers, throttle, wait_until};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const JOBS: usize = 8;

/// The number of outages: hangs and restarts in turn.
const OUTAGES: usize = 4;

/// The signals that interrupt the runs, in turn.
const SIGNALS: [Signal; 4] = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::KILL];

#[derive(Clone, Copy)]
struct Scenario {
    units: u32,
    /// Units per second that the server allows. It serves the second third of the units at half of this rate.
    rate: u32,
    interruptions: usize,
    outage: Duration,
    /// Further options of the command line.
    options: &'static [&'static str],
}

/// The status that each unit gets in the end. Of three bad units of 300, one always gets 503, and two get 404.
fn final_status(unit: u32) -> u16 {
    match unit % 300 {
        50 => 503,
        120 | 220 => 404,
        _ => 200,
    }
}

impl Scenario {
    /// The time in which the server would serve all units if no call were refused.
    fn ideal(self) -> Duration {
        let outages = self.outage * u32::try_from(OUTAGES).unwrap();
        Duration::from_secs(1) * self.units * 4 / (3 * self.rate) + outages
    }

    /// The time between two calls after `served` units.
    fn interval(self, served: usize) -> Duration {
        let third = served * 3 / self.units as usize;
        Duration::from_secs(if third == 1 { 2 } else { 1 }) / self.rate
    }

    /// Whether the server has this outage by now.
    fn has_outage(self, number: usize, served: usize) -> bool {
        number < OUTAGES && served >= self.units as usize * (number + 1) / (OUTAGES + 1)
    }
}

/// A call: in which run it was made, and for which unit.
type Call = (usize, u32);

/// A server that lives as long as the test's process.
struct Site {
    scenario: Scenario,
    state: Mutex<State>,
}

struct State {
    calls: Vec<Call>,
    served: Vec<Call>,
    refused: usize,
    /// Calls for bad units that were not refused.
    bad: usize,
    outages: usize,
    silent_until: Instant,
    /// Its limit is a token bucket of 5: when it will be full (the generic cell rate algorithm).
    full_at: Instant,
}

impl Site {
    fn start(scenario: Scenario) -> (Arc<Self>, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (calls, served, now) = (Vec::new(), Vec::new(), Instant::now());
        let state = State { calls, served, refused: 0, bad: 0, outages: 0, silent_until: now, full_at: now };
        let site = Arc::new(Site { scenario, state: Mutex::new(state) });
        let serving = Arc::clone(&site);
        thread::spawn(move || serving.listen(listener, port));
        (site, port)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Serves, and has outages: each second one is a restart, in which nothing listens.
    fn listen(self: &Arc<Self>, mut listener: TcpListener, port: u16) {
        loop {
            listener.set_nonblocking(true).unwrap();
            match listener.accept() {
                Ok((client, _)) => {
                    let site = Arc::clone(self);
                    thread::spawn(move || site.serve(&client));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
            let mut state = self.state();
            if self.scenario.has_outage(state.outages, state.served.len()) {
                state.outages += 1;
                state.silent_until = Instant::now() + self.scenario.outage;
                let restarts = state.outages.is_multiple_of(2);
                drop(state);
                if restarts {
                    drop(listener);
                    thread::sleep(self.scenario.outage);
                    listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
                }
            }
        }
    }

    /// While it hangs, it closes the connection after that without a word.
    fn serve(&self, mut client: &TcpStream) -> Option<()> {
        client.set_nonblocking(false).ok()?;
        let mut lines = BufReader::new(client).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut path = first.split(' ').nth(1)?.split('/').skip(1);
        let call = (path.next()?.parse().ok()?, path.next()?.parse().ok()?);
        lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
        let (answer, silent) = self.answer(call);
        thread::sleep(silent);
        if silent.is_zero() {
            thread::sleep(Duration::from_millis(u64::from(call.1 % 7) * 5));
            client.write_all(answer.as_bytes()).ok()?;
        }
        Some(())
    }

    /// The answer, and how long it hangs before that.
    fn answer(&self, call: Call) -> (String, Duration) {
        let (mut state, now) = (self.state(), Instant::now());
        state.calls.push(call);
        let silent = state.silent_until.saturating_duration_since(now);
        if !silent.is_zero() {
            return (String::new(), silent);
        }
        let interval = self.scenario.interval(state.served.len());
        let wait = state.full_at.saturating_duration_since(now + 4 * interval);
        let (status, head, body) = if wait.is_zero() {
            state.full_at = state.full_at.max(now) + interval;
            let status = final_status(call.1);
            if status == 200 {
                state.served.push(call);
            } else {
                state.bad += 1;
            }
            (status, String::new(), format!("begin {0}\nend {0}\n", call.1))
        } else {
            state.refused += 1;
            (if state.refused.is_multiple_of(2) { 429 } else { 503 }, asks_to_wait(state.refused, wait), String::new())
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n{head}\r\n");
        (head + &body, Duration::ZERO)
    }
}

/// The fields of the header, another kind each time.
fn asks_to_wait(number: usize, wait: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seconds = wait.as_secs() + 1;
    match number % 6 {
        0 => format!("Retry-After: {seconds}\r\n"),
        1 => format!("Retry-After-Ms: {}\r\n", wait.as_millis() + 1),
        2 => format!("Date: {}\r\nRetry-After: {}\r\n", date(now.as_secs()), date(now.as_secs() + seconds)),
        3 => format!("X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: {}\r\n", (now + wait).as_secs() + 1),
        4 => format!("RateLimit: \"default\";r=0;t={seconds}\r\n"),
        _ => String::new(),
    }
}

/// As HTTP writes it.
fn date(epoch: u64) -> String {
    let mut date = Command::new("date");
    date.args(["-u", "-d", &format!("@{epoch}"), "+%a, %d %b %Y %H:%M:%S GMT"]).env("LC_ALL", "C");
    String::from_utf8(date.output().unwrap().stdout).unwrap().trim().to_owned()
}

/// One run, and where it ended.
struct Run {
    ended: Ended,
    /// `None`: it ended by itself.
    signal: Option<Signal>,
    /// Where its lines in the log end.
    log: usize,
    done: usize,
}

/// Starts the run in `folder` and waits for its end. When the server has served its share of the units, the run gets a signal.
fn run(site: &Site, port: u16, folder: &Path, number: usize) -> Run {
    let append = |name: &str| File::options().append(true).create(true).open(folder.join(name)).unwrap();
    let rate = format!("{}/s", site.scenario.rate);
    let options = [
        "-r",
        &rate,
        "--attempts",
        "6",
        "--backoff",
        "50ms..2s",
        "--max-pause",
        "20s",
        "--timeout",
        "30s",
        "-j",
        &JOBS.to_string(),
    ];
    let script = "curl -q -fsS -D \"$THROTTLE_REPLY\" \"$URL/$1\"";
    let mut command = throttle(
        [site.scenario.options, &options, &["--done", "done", "--log", "log", "-a", "units", "-c", script]].concat(),
    );
    command.env("URL", format!("http://127.0.0.1:{port}/{number}")).env("no_proxy", "*").current_dir(folder);
    let mut started = Running::read(command.stdin(Stdio::null()).stdout(append("out")).spawn().unwrap());
    let signal = (number < site.scenario.interruptions).then(|| SIGNALS[number % SIGNALS.len()]);
    if let Some(signal) = signal {
        let enough = site.scenario.units as usize * (number + 1) / (site.scenario.interruptions + 1);
        let mut news = (0, Instant::now());
        while site.state().served.len() < enough && started.is_running() {
            let served = site.state().served.len();
            if served > news.0 {
                news = (served, Instant::now());
            }
            if news.1.elapsed() > HANGS {
                panic_with_state(started, folder, number);
            }
            thread::sleep(Duration::from_millis(2));
        }
        if started.is_running() {
            started.signal(signal);
        }
    }
    let ended = started.finish();
    let count = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default().lines().count();
    Run { ended, signal, log: count("log"), done: count("done") }
}

/// Nothing was served for long.
fn panic_with_state(run: Running, folder: &Path, number: usize) -> ! {
    run.signal(Signal::USR1);
    thread::sleep(Duration::from_secs(1));
    run.signal(Signal::TERM);
    let (ended, log) = (run.finish(), fs::read_to_string(folder.join("log")).unwrap());
    let log: Vec<&str> = log.lines().rev().take(40).collect();
    panic!("run {number} hangs: {}\n{}", ended.err, log.join("\n"));
}

/// How often each value occurs.
fn counts<T: Ord>(values: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}

/// Each run ends by its signal. A run that was stopped reports how to continue.
fn check_ends(runs: &[Run]) {
    for (number, Run { ended, signal, done, .. }) in runs.iter().enumerate() {
        let expected = match signal {
            None => (Some(123), None),
            Some(Signal::QUIT) => (Some(75), None),
            Some(signal) => (None, Some(signal.as_raw())),
        };
        assert_eq!((ended.code(), ended.signal()), expected, "run {number}: {}", ended.err);
        assert!(!ended.err.contains("panicked"), "run {number}: {}", ended.err);
        let (words, how) = ("stopped by QUIT (Ctrl-\\): ", format!("to continue ({done} unit"));
        let is_told = ended.err.contains(words) && ended.err.contains(&how);
        assert!(is_told || *signal != Some(Signal::QUIT), "run {number}: {how}: {}", ended.err);
    }
}

/// Each good unit was served once, and again only if its command ran when the run was ended. Returns how many were.
fn check_served(runs: &[Run], served: &[Call], good: &BTreeSet<u32>) -> usize {
    let mut of_unit: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (run, unit) in served {
        of_unit.entry(*unit).or_default().push(*run);
    }
    assert_eq!(&of_unit.keys().copied().collect::<BTreeSet<_>>(), good, "what was served");
    let mut lost = Vec::new();
    for (unit, runs) in &mut of_unit {
        runs.sort_unstable();
        runs.pop();
        assert_eq!(counts(runs.iter()).len(), runs.len(), "unit {unit} was served twice in one run: {runs:?}");
        lost.extend_from_slice(runs);
    }
    for (run, lost) in counts(lost.iter().copied()) {
        let signal = runs[run].signal;
        let most = if matches!(signal, None | Some(Signal::QUIT)) { 0 } else { JOBS };
        assert!(lost <= most, "run {run}, ended by {signal:?}: {lost} units were served and ran again");
    }
    lost.len()
}

/// Each good unit is in the done list once. Its output is whole, and there once, or again after a run that was killed.
fn check_written(runs: &[Run], folder: &Path, good: &BTreeSet<u32>) {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let done: Vec<u32> = read("done").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!((done.len(), &done.into_iter().collect::<BTreeSet<_>>()), (good.len(), good), "the done list");
    let out = read("out");
    let lines: Vec<&str> = out.lines().collect();
    let unit = |pair: &[&str]| {
        let unit = pair[0].strip_prefix("begin ").filter(|unit| pair.get(1) == Some(&&*format!("end {unit}")));
        unit.unwrap_or_else(|| panic!("torn output: {pair:?}")).parse::<u32>().unwrap()
    };
    let printed = counts(lines.chunks(2).map(unit));
    assert_eq!(&printed.keys().copied().collect::<BTreeSet<_>>(), good, "the output");
    let kills = runs.iter().filter(|run| run.signal == Some(Signal::KILL)).count();
    assert!(printed.values().sum::<usize>() <= good.len() + kills * JOBS, "output was written twice: {printed:?}");
}

/// The log has a line for each call that the server saw, but for those that were under way when a run was killed.
fn check_log(runs: &[Run], folder: &Path, calls: &[Call]) {
    let log = fs::read_to_string(folder.join("log")).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let mut begin = 0;
    for (number, run) in runs.iter().enumerate() {
        let unit = |line: &serde_json::Value| line["unit"].as_str().unwrap().parse::<u32>().unwrap();
        let attempts = lines[begin..run.log].iter().filter(|line| line["run"].is_string());
        let logged = counts(attempts.map(unit));
        begin = run.log;
        let called = counts(calls.iter().filter(|call| call.0 == number).map(|call| call.1));
        let missing = |(unit, count): (u32, usize)| count.saturating_sub(logged.get(&unit).copied().unwrap_or(0));
        let missing: usize = called.into_iter().map(missing).sum();
        let most = if run.signal == Some(Signal::KILL) { JOBS } else { 0 };
        assert!(missing <= most, "run {number}, ended by {:?}: {missing} calls are not in the log", run.signal);
    }
    assert_eq!(begin, lines.len());
}

/// Runs the scenario, and returns its time divided by the ideal time.
fn time_against_ideal(scenario: Scenario) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("units"), numbers(scenario.units)).unwrap();
    let (site, port) = Site::start(scenario);
    let begun = Instant::now();
    let runs: Vec<Run> = (0..=scenario.interruptions).map(|number| run(&site, port, folder.path(), number)).collect();
    let took = begun.elapsed();
    // A command of a run that was killed may still be on its way.
    let calls = || site.state().calls.len();
    let mut before = (calls(), Instant::now());
    wait_until("no call comes any more", || {
        if calls() > before.0 {
            before = (calls(), Instant::now());
        }
        before.1.elapsed() > Duration::from_millis(200)
    });
    let good: BTreeSet<u32> = (1..=scenario.units).filter(|unit| final_status(*unit) == 200).collect();
    let state = site.state();
    check_ends(&runs);
    let doubled = check_served(&runs, &state.served, &good);
    check_written(&runs, folder.path(), &good);
    check_log(&runs, folder.path(), &state.calls);
    let (ratio, refused) = (took.as_secs_f64() / scenario.ideal().as_secs_f64(), state.refused);
    println!(
        "{} of {} units done, {doubled} served twice, {refused} calls refused, {} for bad units; {} outages; {took:.1?}, {ratio:.2} × the ideal",
        good.len(),
        scenario.units,
        state.bad,
        state.outages
    );
    assert_eq!(state.outages, OUTAGES);
    ratio
}

#[test]
#[ignore = "slow: 15 s"]
fn a_run_interrupted_many_times_does_everything_once() {
    time_against_ideal(Scenario {
        units: 300,
        rate: 80,
        interruptions: 6,
        outage: Duration::from_millis(300),
        options: &[],
    });
}

/// `cargo test --release --test program by_hand_twenty_interruptions -- --ignored --nocapture`: two minutes, on a machine that does nothing else.
/// The bucket keeps the learned pace from one run to the next.
#[test]
#[ignore = "by hand: two minutes on an idle machine"]
fn by_hand_twenty_interruptions_cost_little_time() {
    let options = &["--bucket", "./bucket"];
    let ratio = time_against_ideal(Scenario {
        units: 5000,
        rate: 60,
        interruptions: 20,
        outage: Duration::from_secs(3),
        options,
    });
    assert!(ratio <= 1.3, "{ratio:.2} × the ideal");
}
