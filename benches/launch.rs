//! Launch mode beside xargs, xe, rust-parallel and GNU parallel: `cargo bench --bench launch` prints one table.
//!
//! Every row is the median of alternating runs, so that other load affects all tools alike. A missing tool is left out
//! and named below the table. `RUNS=3` makes fewer runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Nginx, REST};
use tempfile::TempDir;
use tools::find;

#[path = "../tests/program/support/nginx.rs"]
#[allow(dead_code, reason = "the test asks more of it")]
mod support;
#[path = "../tests/program/support/tools.rs"]
#[allow(dead_code, reason = "the tests ask more of it")]
mod tools;

const THROTTLE: &str = env!("CARGO_BIN_EXE_throttle");
const LAUNCHES: usize = 4000;
const STARTS: usize = 2000;
const CALLS: usize = 500;
const LINES: u64 = 2_000_000;
const RECORDED: &str = "throttle --attempts 2 --done --log";
const WRITE_OUT: &str = "curl -s -o /dev/null -w '%{http_code}\\n'";

fn main() {
    let bench = Bench { folder: tempfile::tempdir().unwrap(), runs: runs() };
    println!("load before: {}; {} cores\n", load(), std::thread::available_parallelism().map_or(0, usize::from));
    println!("| work | who | result | ratio |\n|---|---|---|---|");
    let mut missing = bench.launches();
    missing.extend(bench.rate());
    bench.memory();
    missing.extend(bench.nginx());
    bench.lines_by_key();
    bench.hosts();
    println!("\nload after: {}", load());
    missing.sort_unstable();
    missing.dedup();
    for tool in missing {
        println!("not installed, left out: {tool}");
    }
}

fn runs() -> usize {
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(5)
}

/// The load of the machine: runnable processes, averaged over the last minute.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

struct Bench {
    folder: TempDir,
    runs: usize,
}

/// A tool and the shell command that does the work with it.
type Contender<'a> = (&'a str, String);

impl Bench {
    /// Many short commands, grouped output, eight at a time.
    fn launches(&self) -> Vec<String> {
        let units = self.numbers(LAUNCHES);
        let (contenders, missing) = installed(&[
            ("throttle", format!("{THROTTLE} -q -r unlimited -j 8 -- /bin/true")),
            (RECORDED, self.recorded()),
            ("xargs", "xargs -P8 -n1 /bin/true".to_owned()),
            ("rust-parallel", "rust-parallel -j8 /bin/true".to_owned()),
            ("xe", "xe -j8 -N1 /bin/true".to_owned()),
            ("parallel", "parallel -j8 /bin/true".to_owned()),
        ]);
        let mut times = vec![Vec::new(); contenders.len()];
        for _ in 0..self.runs {
            for (times, (tool, command)) in times.iter_mut().zip(&contenders) {
                // Ten times slower; once is enough.
                if *tool != "parallel" || times.is_empty() {
                    times.push(seconds(command, &units));
                }
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        for ((tool, _), time) in contenders.iter().zip(&medians) {
            let ratio = match *tool {
                RECORDED => format!("{:.2}× of it without, at most 1.1×", time / medians[0]),
                _ => format!("we take {:.2}×", medians[0] / time),
            };
            println!("| {LAUNCHES} × `/bin/true`, 8 at a time | {tool} | {time:.2} s | {ratio} |");
        }
        missing
    }

    /// The same with all that keeps records, into new files.
    fn recorded(&self) -> String {
        let folder = self.folder.path().display();
        let records = format!("--attempts 2 --done '{folder}/done' --log '{folder}/log'");
        format!("rm -f '{folder}/done' '{folder}/log'; {THROTTLE} -q -r unlimited -j 8 {records} -- /bin/true")
    }

    /// Starts as the children see them: each records its time.
    fn rate(&self) -> Vec<String> {
        let script = "date +%s.%N";
        let (contenders, missing) = installed(&[
            ("throttle", format!("{THROTTLE} -q -r 500/s -b 1 -j 0 -n 0 -- {script}")),
            ("parallel", format!("parallel -j64 --delay 0.002 -N0 {script}")),
        ]);
        let units = self.numbers(STARTS);
        for (tool, command) in contenders {
            // GNU parallel cannot start so many; fewer are enough to show its rate.
            let rates = (0..self.runs.min(3)).map(|_| mean_rate(&shell(&command, &units))).collect();
            let rate = median(rates);
            let off = (rate / 500.0 - 1.0) * 100.0;
            println!("| {STARTS} starts at 500/s, as the children see it | {tool} | {rate:.1}/s | {off:+.2} % |");
        }
        missing
    }

    /// The peak of resident memory, which does not depend on the input.
    fn memory(&self) {
        let rows = [
            ("1 M units, `-n 1000`", "seq 1000000", "-n 1000 -- /bin/true"),
            ("1 M units, `--dry-run`", "seq 1000000", "--dry-run -- /bin/true {}"),
            ("8 × 50 MB of output, `-k`", "seq 8", "-j 8 -k -- sh -c 'head -c 50000000 /dev/zero'"),
        ];
        for (work, source, arguments) in rows {
            let peak = self.peak(&format!("{source} | peak {THROTTLE} -q -r unlimited {arguments} > /dev/null"));
            println!("| {work}: memory | throttle | {:.1} MiB | |", f64::from(peak) / 1024.0);
        }
    }

    /// `VmHWM` in KiB: a background process reads it from /proc until the end.
    fn peak(&self, command: &str) -> u32 {
        let file = self.folder.path().join("peak");
        let peak = format!(
            "peak() {{ \"$@\" <&3 & while grep -s VmHWM /proc/$!/status; do sleep 0.02; done > '{}'; }}",
            file.display()
        );
        let command = format!("{peak}; {}", command.replacen("| peak", "| peak_of", 1));
        let command = format!("peak_of() {{ exec 3<&0; peak \"$@\"; }}; {command}");
        let _ = shell(&command, Path::new("/dev/null"));
        let text = fs::read_to_string(&file).unwrap_or_default();
        let sizes = text.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
        sizes.max().unwrap_or(0)
    }

    /// A server that refuses requests that come too fast.
    fn nginx(&self) -> Vec<String> {
        let Some(program) = find("nginx") else { return vec!["nginx".to_owned()] };
        let nginx = Nginx::start(|| Command::new(&program)).unwrap();
        let (url, units) = (nginx.url(), self.numbers(CALLS));
        let (contenders, mut missing) = installed(&[
            ("throttle", format!("{THROTTLE} -q -r 50/s -b 10 -- {WRITE_OUT} {url}{{}}")),
            ("xargs", format!("xargs -P8 -I{{}} {WRITE_OUT} {url}{{}}")),
            ("parallel", format!("parallel -j16 --delay 0.02 \"{WRITE_OUT} {url}{{}}\"")),
            ("sleep", format!("while read -r x; do {WRITE_OUT} {url}$x; sleep 0.02; done")),
        ]);
        for (tool, command) in contenders {
            let (mut refused, mut times) = (Vec::new(), Vec::new());
            for _ in 0..self.runs.min(3) {
                std::thread::sleep(REST);
                let begun = Instant::now();
                let answers = shell(&command, &units);
                times.push(begun.elapsed().as_secs_f64());
                refused.push(CALLS - answers.lines().filter(|answer| *answer == "200").count());
            }
            let time = median(times);
            println!(
                "| {CALLS} curls to nginx, 50/s and 10 at once | {tool} | refused {refused:?}, {time:.2} s | {:.3}× the ideal |",
                time / 9.8
            );
        }
        self.without_burst(&nginx);
        missing.extend(self.twenty_servers(&nginx));
        missing
    }

    /// At the very rate that a server allows without a burst: of two calls, the second arrives a little too soon now and then.
    fn without_burst(&self, nginx: &Nginx) {
        let (url, units) = (nginx.url(), self.numbers(300));
        let ask = format!("curl -fsS -D \"$THROTTLE_REPLY\" -o /dev/null {url}none/\"$1\"");
        for rate in [20, 40] {
            let command = format!("{THROTTLE} --summary=json -r {rate}/s -b 1 --attempts 5 -c '{ask}' 2>&1");
            for _ in 0..self.runs.min(3) {
                std::thread::sleep(REST);
                let begun = Instant::now();
                let summary = shell(&command, &units);
                let time = begun.elapsed().as_secs_f64();
                let field = |name: &str| {
                    Some(summary.split(&format!("\"{name}\":")).nth(1)?.split([',', '}']).next()?.to_owned())
                };
                println!(
                    "| 300 curls to nginx, 20/s and none at once, told {rate}/s | throttle | {} ok, {} refused, {time:.2} s | {:.3}× the ideal |",
                    field("ok").unwrap_or_default(),
                    field("told_to_wait").unwrap_or_default(),
                    time / 14.95
                );
            }
        }
    }

    /// Twenty server names, each of which answers five requests a second and five more at once.
    fn twenty_servers(&self, nginx: &Nginx) -> Vec<String> {
        let (url, file) = (nginx.url(), self.folder.path().join("urls"));
        let port = url.trim_end_matches('/').rsplit(':').next().unwrap_or_default();
        let mut units: Vec<u32> = (0..2000).collect();
        units.sort_unstable_by_key(|unit| unit.wrapping_mul(0x9E37_79B9));
        fs::write(&file, lines(units.iter().map(|unit| format!("http://h{}.test/{}", unit % 20, unit + 1)))).unwrap();
        let ask = format!("{WRITE_OUT} --connect-to ::127.0.0.1:{port}");
        let (contenders, missing) = installed(&[
            ("throttle", format!("{THROTTLE} -q -r 5/s,burst=2,per=host -j 64 -- {ask} {{}}")),
            ("xargs, 64 at once", format!("xargs -P64 -I{{}} {ask} {{}}")),
            // As many a second as all hosts together answer.
            ("parallel", format!("parallel -j64 --delay 0.01 \"{ask} {{}}\"")),
            // What is safe in any order.
            ("sleep, as for one host", format!("head -n 100 | while read -r x; do {ask} $x; sleep 0.2; done")),
        ]);
        for (tool, command) in contenders {
            let runs = if tool == "throttle" { self.runs.min(3) } else { 1 };
            for _ in 0..runs {
                std::thread::sleep(REST * 2);
                let begun = Instant::now();
                let answers = shell(&command, &file);
                let time = begun.elapsed().as_secs_f64();
                let all = answers.lines().count();
                let good = answers.lines().filter(|answer| *answer == "200").count();
                let share = f64::from(u32::try_from(good).unwrap_or(u32::MAX)) / 2000.0 * 19.6 / time;
                println!(
                    "| 2000 curls to 20 hosts on nginx, 5/s each, shuffled | {tool} | {} of {all} refused, {time:.2} s | {:.0} % of what all hosts allow |",
                    all - good,
                    share * 100.0
                );
            }
        }
        missing
    }

    /// Lines with one key, and with a million keys, beside a program that only counts them.
    fn lines_by_key(&self) {
        for (keys, most) in [(1, 1.0), (1_000_000, 1.5)] {
            let file = self.folder.path().join("lines");
            let line = |line: u64| format!("{} {line}", line.wrapping_mul(0x9E37_79B9) % keys);
            fs::write(&file, lines((0..LINES).map(line))).unwrap();
            let ours = format!("{THROTTLE} -q -r 1G/s,burst=1G,per=f1 > /dev/null");
            let commands = [ours.clone(), "awk '{n[$1]++}'".to_owned()];
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..self.runs {
                for (times, command) in times.iter_mut().zip(&commands) {
                    times.push(seconds(command, &file));
                }
            }
            let [ours_took, awk_took] = times.map(median);
            let memory = self.peak(&format!("cat {} | peak {ours}", file.display()));
            println!(
                "| {LINES} lines, {keys} keys | throttle {ours_took:.2} s, {:.1} MiB | awk {awk_took:.2} s | {:.2}×, at most {most}× |",
                f64::from(memory) / 1024.0,
                ours_took / awk_took
            );
        }
    }

    /// A thousand hosts in any order, in a pipe; and fast hosts beside a slow one that could take all slots.
    fn hosts(&self) {
        let units = (0..20_000_u32).map(|unit| (unit.wrapping_mul(0x9E37_79B9), unit % 1000));
        // Host 0 has 40 units, all others 19 or 20.
        let mut units: Vec<(u32, u32)> = units.chain((0..20).map(|unit| (unit << 27, 0))).collect();
        units.sort_unstable();
        let file = self.folder.path().join("hosts");
        fs::write(&file, lines(units.iter().map(|(_, host)| format!("http://h{host}.example/")))).unwrap();
        let took = seconds(&format!("{THROTTLE} -q -r 10/s,burst=1,per=host > /dev/null"), &file);
        println!(
            "| 1000 hosts at 10/s each, shuffled | throttle | {took:.2} s | {:.3}× the largest's, at most 1.05× |",
            took / 3.9
        );

        let fast: Vec<String> = (0..1980).map(|unit| format!("http://h{}.example/", unit % 99)).collect();
        let both: Vec<String> = fast
            .iter()
            .enumerate()
            .flat_map(|(place, unit)| {
                let slow = (place % 20 == 0).then(|| "http://slow.example/".to_owned());
                slow.into_iter().chain([unit.clone()])
            })
            .collect();
        let script = "case $1 in *slow*) sleep 2;; *) sleep 0.05; date +%s.%N;; esac";
        let mut times = Vec::new();
        for (units, limit) in [(&fast, ",jobs=2"), (&both, ",jobs=2"), (&both, "")] {
            let file = self.folder.path().join("hosts");
            fs::write(&file, units.join("\n") + "\n").unwrap();
            let command = format!("date +%s.%N; {THROTTLE} -q -r unlimited,per=host{limit} -j 16 -c '{script}'");
            let command = if limit.is_empty() { command.replace("unlimited,per=host", "unlimited") } else { command };
            let mut seen: Vec<f64> = shell(&command, &file).lines().filter_map(|time| time.parse().ok()).collect();
            seen.sort_unstable_by(f64::total_cmp);
            times.push(seen.last().copied().unwrap_or(f64::NAN) - seen.first().copied().unwrap_or(f64::NAN));
        }
        println!(
            "| 99 fast hosts and a slow one | `jobs=2`: the fast take {:.2} s | without the slow one {:.2} s; without `per=` {:.2} s | {:.2}×, at most 1.2× |",
            times[1],
            times[0],
            times[2],
            times[1] / times[0]
        );
    }

    fn numbers(&self, last: usize) -> PathBuf {
        let file = self.folder.path().join(last.to_string());
        let units: Vec<String> = (1..=last).map(|unit| unit.to_string()).collect();
        fs::write(&file, units.join("\n") + "\n").unwrap();
        file
    }
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

/// The tools that are installed, and those that are not.
fn installed<'a>(contenders: &[Contender<'a>]) -> (Vec<Contender<'a>>, Vec<String>) {
    let is_there = |tool: &str| {
        let program = tool.split([' ', ',']).next().unwrap_or(tool);
        program == "throttle" || program == "sleep" || find(program).is_some()
    };
    let (there, missing): (Vec<_>, Vec<_>) = contenders.iter().cloned().partition(|(tool, _)| is_there(tool));
    (there, missing.into_iter().map(|(tool, _)| tool.to_owned()).collect())
}

fn seconds(command: &str, input: &Path) -> f64 {
    let begun = Instant::now();
    let _ = shell(command, input);
    begun.elapsed().as_secs_f64()
}

/// What a command prints. GNU parallel's request for a citation on stderr is not shown.
fn shell(command: &str, input: &Path) -> String {
    let command = Command::new("bash")
        .args(["-c", command])
        .env("no_proxy", "*")
        .stdin(File::open(input).unwrap())
        .stderr(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&command.stdout).into_owned()
}

/// Starts per second, from the first to the last. The times come from `date`, so a delayed first or last start shows:
/// 20 ms are half a percent of four seconds.
fn mean_rate(times: &str) -> f64 {
    let mut times: Vec<f64> = times.lines().filter_map(|time| time.parse().ok()).collect();
    times.sort_unstable_by(f64::total_cmp);
    let span = times.last().zip(times.first()).map_or(Duration::ZERO.as_secs_f64(), |(last, first)| last - first);
    f64::from(u32::try_from(times.len().saturating_sub(1)).unwrap_or(u32::MAX)) / span
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
