//! What a request and its grant cost, and what `--once` adds to a command: `cargo bench --bench store` prints one table.
//!
//! Every row is the median of alternating runs, so that other load affects all alike. A missing tool is left out and
//! named below the table. `RUNS=3` makes fewer runs.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use throttle_limits::clock::{NanoClock, SystemClock};
use throttle_limits::ledger::operation::{Ask, Operation};
use throttle_limits::limits::Policy;
use throttle_limits::line::{Line, Rules};
use throttle_limits::store::{File, Patience, Place, Redis, Store};
use tools::find;

#[path = "../tests/program/support/redis.rs"]
mod server;
#[path = "../tests/program/support/tools.rs"]
#[allow(dead_code, reason = "the tests ask more of it")]
mod tools;

const THROTTLE: &str = env!("CARGO_BIN_EXE_throttle");

/// Requests per measurement.
const MANY: u32 = 100_000;

/// Processes that contend.
const PROCESSES: u32 = 8;

/// Commands that run one after another for one measurement.
const STARTS: u32 = 100;

/// The task of this program if it is started by itself.
const CHILD: &str = "THROTTLE_BENCH_BUCKET";

/// One that never makes anybody wait, and one with the longest possible line of those who wait.
const LIMITS: [&str; 2] = ["1G/s", "1000/s"];

/// Limits, how many units are taken before the measurement, and the most that the server may take: a bucket, a full window
/// with a group for each unit, and a bucket with as many that wait as can.
const SERVED: [(&str, u32, &str); 3] = [("1G/s", 0, "15 µs"), ("800/h,window", 800, "30 µs"), ("1/h", 1025, "30 µs")];

fn main() {
    if let Some(bucket) = std::env::var_os(CHILD) {
        return contend(bucket.to_str().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let redis = server::Redis::start(&[]);
    println!("load before: {}; {} cores\n", load(), std::thread::available_parallelism().map_or(0, usize::from));
    println!("| work | who | result | at most |\n|---|---|---|---|");
    for limit in LIMITS {
        let file = ("file", bucket(folder.path(), limit), MANY);
        let redis = redis.as_ref().map(|redis| ("redis", redis.bucket(&format!("b{}", limit.len())), MANY / 10));
        let buckets: Vec<Bucket> = [file].into_iter().chain(redis).collect();
        for (_, bucket, _) in &buckets {
            open(bucket, Some(&plan(limit)));
        }
        alone(limit, &buckets);
        together(limit, &buckets);
    }
    redis.iter().for_each(served);
    let missing = starts(folder.path());
    println!("\nload after: {}", load());
    for tool in missing {
        println!("not installed, left out: {tool}");
    }
}

/// A kind of store: its name, the bucket's name, and how many requests take about a second.
type Bucket = (&'static str, String, u32);

fn runs() -> usize {
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(5)
}

/// The load of the machine: runnable processes, averaged over the last minute.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

fn plan(limit: &str) -> Policy {
    Policy::new(&[limit.parse().unwrap()], None).unwrap()
}

/// A path for a new bucket in `folder`.
fn bucket(folder: &Path, limit: &str) -> String {
    let name: String = limit.chars().filter(char::is_ascii_alphanumeric).collect();
    folder.join(name).to_str().unwrap().to_owned()
}

fn open(bucket: &str, plan: Option<&Policy>) -> Box<dyn Store> {
    if bucket.starts_with("redis:") {
        return Box::new(Redis::open(bucket.parse().unwrap(), plan, Patience::none()).unwrap());
    }
    Box::new(File::open(Place { path: bucket.into(), own_folder: false, group: None }, plan).unwrap())
}

/// Requests a unit, and reads the log.
fn take(store: &dyn Store) {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    let ask = Ask { ticket, costs: [1].into(), latest: u64::MAX, ..Ask::default() };
    let _ = std::hint::black_box(store.send(vec![Operation::Ask(vec![ask])]).unwrap());
}

/// A line of this process alone.
fn line(limit: &str) -> Mutex<Line<()>> {
    Mutex::new(Line::new(&Rules { all: &[(&plan(limit), 0)], ..Rules::default() }, SystemClock.now()))
}

/// Requests a unit as the pump does. A line grants nothing for later: for a unit that has to wait, it returns the time
/// of the next grant.
fn ask_here(line: &Mutex<Line<()>>) {
    let mut line = line.lock().unwrap();
    line.want(SystemClock.now(), 1);
    let _ = std::hint::black_box(line.poll(SystemClock.now(), u64::MAX));
}

/// The name of a row that measures the line.
fn work_of_line(limit: &str) -> String {
    let what = if limit == LIMITS[0] { "a request" } else { "a unit that waits" };
    format!("{what} at {limit}")
}

/// One process makes one request after another.
fn alone(limit: &str, buckets: &[Bucket]) {
    let memory = line(limit);
    let shared: Vec<Box<dyn Store>> = buckets.iter().map(|(_, bucket, _)| open(bucket, None)).collect();
    let mut times = vec![Vec::new(); buckets.len() + 1];
    for _ in 0..runs() {
        times[0].push(time(|| (0..MANY).for_each(|_| ask_here(&memory))) / MANY);
        for ((store, (_, _, count)), times) in shared.iter().zip(buckets).zip(&mut times[1..]) {
            times.push(time(|| (0..*count).for_each(|_| take(&**store))) / *count);
        }
    }
    row(&format!("{}, alone", work_of_line(limit)), "memory", median(times.remove(0)), "");
    for ((name, ..), times) in buckets.iter().zip(times) {
        let at_most = if (*name, limit) == ("file", LIMITS[0]) { "5 µs" } else { "" };
        row(&format!("a request at {limit}, alone"), name, median(times), at_most);
    }
}

/// Eight processes at once, which start together. The result is the time from one request to the next, of any
/// process.
fn together(limit: &str, buckets: &[Bucket]) {
    let mut times = vec![Vec::new(); buckets.len() + 1];
    for _ in 0..runs() {
        times[0].push(threads(limit) / MANY);
        for ((_, bucket, count), times) in buckets.iter().zip(&mut times[1..]) {
            times.push(processes(bucket, *count) / *count);
        }
    }
    let line = format!("{}, {PROCESSES} threads at once", work_of_line(limit));
    row(&line, "memory", median(times.remove(0)), "");
    for ((name, ..), times) in buckets.iter().zip(times) {
        row(&format!("a request at {limit}, {PROCESSES} processes at once"), name, median(times), "");
    }
}

fn threads(limit: &str) -> Duration {
    let memory = line(limit);
    let share = || (0..MANY / PROCESSES).for_each(|_| ask_here(&memory));
    time(|| std::thread::scope(|scope| (0..PROCESSES).for_each(|_| drop(scope.spawn(share)))))
}

/// Starts this program several times. Each copy reports that it is ready, waits until its input ends, and does its
/// share.
fn processes(bucket: &str, count: u32) -> Duration {
    let this = std::env::current_exe().unwrap();
    let start = |_| {
        let mut command = Command::new(&this);
        command.env(CHILD, bucket).arg((count / PROCESSES).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
    for child in &mut children {
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }
    time(|| {
        for child in &mut children {
            drop(child.stdin.take());
        }
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
    })
}

fn contend(bucket: &str) {
    let count: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let store = open(bucket, None);
    println!();
    let _ = std::io::stdin().read(&mut [0]);
    (0..count).for_each(|_| take(&*store));
}

/// The server's own time for one request, in a tight loop: of a stream that stays connected, and of a process that takes
/// one and ends. The best of several, since anything else on the machine only adds to it.
fn served(redis: &server::Redis) {
    for (limit, units, at_most) in SERVED {
        let bucket = redis.bucket(&limit.replace(['/', ','], "-"));
        open(&bucket, Some(&plan(limit)));
        for _ in 0..units {
            take(&unasked(&bucket));
        }
        let stream = open(&bucket, None);
        let [mut steps, mut starts] = [Duration::MAX; 2];
        for _ in 0..8 * runs() {
            steps = steps.min(server_time(redis, || take(&*stream)));
            starts = starts.min(server_time(redis, || take(&unasked(&bucket))));
        }
        let work = |who| format!("the server's time for {who}, {limit} after {units} units");
        row(&work("an empty script"), "floor", bare(redis, "return {}"), "");
        row(&work("a script that reads the clock and the log, and writes the log"), "floor", bare(redis, BARE), "");
        row(&work("a stream's step"), "redis", steps, at_most);
        row(&work("a process that takes one"), "redis", starts, at_most);
    }
}

/// The least that a script can do that keeps a log, beside what is done without any.
const BARE: &str = "local time, log = redis.call('TIME'), redis.call('HGET', 'floor', 'log') or string.rep('x', 300) \
    redis.call('HSET', 'floor', 'log', log) return { time[1], log }";

fn bare(redis: &server::Redis, script: &str) -> Duration {
    let hash: String = redis.tell(&["SCRIPT", "LOAD", script]);
    let run = || drop(redis.tell::<redis::Value>(&["EVALSHA", &hash, "0"]));
    (0..8 * runs()).map(|_| server_time(redis, run)).min().unwrap_or_default()
}

fn unasked(bucket: &str) -> Redis {
    Redis::unasked(bucket.parse().unwrap(), None, Patience::none()).unwrap()
}

fn server_time(redis: &server::Redis, request: impl Fn()) -> Duration {
    const TIMES: u32 = 100;
    let () = redis.tell(&["CONFIG", "RESETSTAT"]);
    (0..TIMES).for_each(|_| request());
    let stats: String = redis.tell(&["INFO", "commandstats"]);
    let of = |command| {
        let line = stats.lines().find(|line| line.starts_with(command)).unwrap_or("usec=0,");
        line.split("usec=").nth(1).unwrap().split(',').next().unwrap().parse::<u64>().unwrap()
    };
    // What the script calls is part of its time; HGET is called beside it.
    Duration::from_micros(of("cmdstat_evalsha:") + of("cmdstat_hget:")) / TIMES
}

fn time(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

/// What precedes the command itself. The limit never makes it wait.
fn starts(folder: &Path) -> Vec<&'static str> {
    let (bucket, lock) = (bucket(folder, "1G/s"), folder.join("lock"));
    open(&bucket, Some(&plan("1G/s")));
    let all: [(&'static str, Vec<&str>); 4] = [
        ("true", vec!["true"]),
        ("throttle", vec![THROTTLE, "--bucket", &bucket, "--once", "true"]),
        ("flock", vec!["flock", lock.to_str().unwrap(), "true"]),
        ("sem", vec!["sem", "--fg", "true"]),
    ];
    let (there, missing): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(tool, _)| *tool == "throttle" || find(tool).is_some());
    let mut times = vec![Vec::new(); there.len()];
    for run in 0..runs() {
        for ((tool, words), times) in there.iter().zip(&mut times) {
            // A hundred times slower; once is enough.
            if *tool != "sem" || run == 0 {
                times.push(time_to_run(words, if *tool == "sem" { STARTS / 10 } else { STARTS }));
            }
        }
    }
    let medians: Vec<Duration> = times.into_iter().map(median).collect();
    for ((tool, words), time) in there.iter().zip(&medians) {
        let command = words.join(" ").replace(THROTTLE, "throttle").replace(&*folder.to_string_lossy(), "…");
        let over = time.as_secs_f64() - medians[0].as_secs_f64();
        let at_most = if *tool == "throttle" { "+3 ms" } else { "" };
        println!(
            "| `true`, start to end | `{command}` | {:.2} ms, {:+.2} ms | {at_most} |",
            time.as_secs_f64() * 1e3,
            over * 1e3
        );
    }
    missing.into_iter().map(|(tool, _)| tool).collect()
}

/// The time of one command, from start to end.
fn time_to_run(words: &[&str], times: u32) -> Duration {
    let run = || Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    time(|| (0..times).for_each(|_| assert!(run().unwrap().success(), "{words:?}"))) / times
}

fn row(work: &str, who: &str, time: Duration, at_most: &str) {
    let (micros, a_second) = (time.as_secs_f64() * 1e6, 1.0 / time.as_secs_f64());
    println!("| {work} | {who} | {micros:.2} µs, {a_second:.0}/s | {at_most} |");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
