//! The measurements.

use crate::Size;
use crate::arrivals::{Arrivals, above_least, median, percentile, seconds};
use crate::flow::{self, Feed};
use crate::table::{Row, Table};
use crate::tool::Tool;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use throttle_limits::clock::{MILLISECOND, NanoClock, SystemClock, sharpen_this_thread};

/// Bytes in a line, as in a web server's log.
const LINE: usize = 85;

/// Time from start to end of output, compared with each other tool and its target.
pub(crate) fn speed(size: &Size, table: &mut Table) -> Result<()> {
    const BYTES: Tool = Tool("throttle -r 1TB/s");
    const LINES: Tool = Tool("throttle -r 1G/s");
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("input");
    let mut file = File::create(&path)?;
    let pattern = flow::bytes();
    for _ in 0..size.bytes / pattern.len() as u64 {
        file.write_all(&pattern)?;
    }
    file.sync_all()?;

    let amount = |bytes: u64| {
        if bytes >= 1 << 30 { format!("{} GiB", bytes >> 30) } else { format!("{} MB", bytes / 1_000_000) }
    };
    let (bytes, lines) = (amount(size.bytes), amount(size.lines * LINE as u64));
    let pv = (Tool("pv -q -L 100G"), Some(0.75));
    race(&format!("{bytes}, file → pipe"), BYTES, &[pv, (Tool("cat"), None)], &Feed::File(path), size.rounds, table)?;
    let others = [
        (Tool("pv -q -L 100G"), Some(1.0)),
        (Tool("cat"), Some(1.0)),
        (Tool("mbuffer -q -s 128k -m 1M"), None),
        (Tool("cstream -b 128k"), None),
    ];
    race(&format!("{bytes}, pipe → pipe"), BYTES, &others, &Feed::Pipe(pattern, size.bytes), size.rounds, table)?;
    let others = [(Tool("pv -q -l -L 1000000000"), Some(0.8)), (Tool("cat"), Some(1.1))];
    let work = format!("{lines} in lines of {LINE} bytes, pipe → pipe");
    race(&work, LINES, &others, &Feed::Pipe(flow::lines(LINE), size.lines * LINE as u64), size.rounds, table)
}

/// Lets all tools take turns, and compares the medians of their times.
fn race(
    work: &str,
    ours: Tool,
    others: &[(Tool, Option<f64>)],
    feed: &Feed,
    rounds: usize,
    table: &mut Table,
) -> Result<()> {
    let others: Vec<_> = others.iter().filter(|(tool, _)| tool.is_there()).collect();
    let mut tools = vec![ours];
    tools.extend(others.iter().map(|(tool, _)| *tool));
    let times = in_turn(&tools, rounds, |tool| Ok(flow::time(tool, feed)?.0.as_secs_f64()))?;
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    for ((tool, bar), time) in others.into_iter().zip(&medians[1..]) {
        let ratio = medians[0] / time;
        table.add(Row {
            work: work.to_owned(),
            ours: format!("{ours} {:.3} s", medians[0]),
            others: format!("{tool} {time:.3} s"),
            result: format!("{ratio:.2}×"),
            bar: bar.map(|bar| (format!("{bar}×"), ratio <= bar)),
        });
    }
    Ok(())
}

/// Measures each tool once per round, and drops the first round.
fn in_turn<T>(tools: &[Tool], rounds: usize, measure: impl Fn(Tool) -> Result<T>) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = tools.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (tool, results) in tools.iter().zip(&mut results) {
            let result = measure(*tool)?;
            if round > 0 {
                results.push(result);
            }
        }
    }
    Ok(results)
}

/// CPU time for one million lines per second.
pub(crate) fn cpu(size: &Size, table: &mut Table) -> Result<()> {
    let tools = [Tool("throttle -r 1M/s"), Tool("pv -q -l -L 1000000")];
    let tools: Vec<Tool> = tools.into_iter().filter(|tool| tool.is_there()).collect();
    let feed = Feed::Pipe(flow::lines(LINE), size.seconds * 1_000_000 * LINE as u64);
    let shares = in_turn(&tools, 3, |tool| {
        let (elapsed, cpu) = flow::time(tool, &feed)?;
        Ok((elapsed.as_secs_f64(), cpu.as_secs_f64() / elapsed.as_secs_f64()))
    })?;
    let share = |runs: &[(f64, f64)]| 100.0 * median(runs.iter().map(|run| run.1).collect());
    let cell = |(tool, runs): (&Tool, &Vec<_>)| {
        let elapsed = median(runs.iter().map(|run: &(f64, f64)| run.0).collect());
        format!("{tool} {:.1} % of a core in {elapsed:.2} s", share(runs))
    };
    let cells: Vec<String> = tools.iter().zip(&shares).map(cell).collect();
    let ours = share(&shares[0]);
    table.add(Row {
        work: format!("1 M lines/s for {} s: CPU time", size.seconds),
        ours: cells[0].clone(),
        others: cells[1..].join(", "),
        result: format!("{ours:.1} %"),
        bar: Some(("5 %".to_owned(), ours <= 5.0)),
    });
    Ok(())
}

/// The work, its rate per second, and the targets: relative error of the mean rate, and units beyond the bucket.
struct Pace {
    work: &'static str,
    unit: &'static str,
    per_second: u32,
    ours: Tool,
    burst: u32,
    rounds: usize,
    others: &'static [Tool],
    bar: Option<(f64, f64)>,
}

const PACES: [Pace; 3] = [
    Pace {
        work: "10 k lines/s",
        unit: "lines",
        per_second: 10_000,
        ours: Tool("throttle -r 10k/s -b 1"),
        burst: 1,
        rounds: 3,
        others: &[Tool("pv -q -l -L 10000")],
        bar: Some((0.005, 2.0)),
    },
    Pace {
        work: "10 MB/s",
        unit: "bytes",
        per_second: 10_000_000,
        ours: Tool("throttle -r 10MB/s"),
        burst: 100_000,
        rounds: 1,
        others: &[Tool("pv -q -L 10000000"), Tool("cstream -t 10000000"), Tool("mbuffer -q -s 10k -m 1M -R 10000000b")],
        bar: None,
    },
    Pace {
        work: "100 lines/s",
        unit: "lines",
        per_second: 100,
        ours: Tool("throttle -r 100/s"),
        burst: 1,
        rounds: 1,
        others: &[Tool("pv -q -l -L 100"), Tool("parallel --delay 0.01 echo")],
        bar: None,
    },
];

/// Mean rate and bursts, as the reader sees them.
pub(crate) fn exact(size: &Size, table: &mut Table) -> Result<()> {
    PACES.iter().try_for_each(|pace| pace.measure(size, table))
}

impl Pace {
    fn measure(&self, size: &Size, table: &mut Table) -> Result<()> {
        let mut tools = vec![self.ours];
        tools.extend(self.others.iter().filter(|tool| tool.is_there()));
        let runs = in_turn(&tools, self.rounds, |tool| self.run(tool, size))?;
        let medians: Vec<(f64, f64)> = runs
            .into_iter()
            .map(|runs| {
                (median(runs.iter().map(|run| run.0).collect()), median(runs.iter().map(|run| run.1).collect()))
            })
            .collect();
        let others = tools.iter().zip(&medians).skip(1);
        let others: Vec<String> =
            others.map(|(tool, &(off, over))| format!("{tool} {}", self.say(off, over))).collect();
        let (off, over) = medians[0];
        table.add(Row {
            work: format!("{} for {} s: mean rate off by, {} over the bucket", self.work, size.seconds, self.unit),
            ours: self.ours.to_string(),
            others: others.join("; "),
            result: self.say(off, over),
            bar: self.bar.map(|bar| (format!("{} %, {}", bar.0 * 100.0, bar.1), off <= bar.0 && over <= bar.1)),
        });
        Ok(())
    }

    /// The error of the mean rate, and the most units beyond the bucket.
    fn run(&self, tool: Tool, size: &Size) -> Result<(f64, f64)> {
        let units = u64::from(self.per_second) * size.seconds;
        let arrivals = if self.unit == "bytes" {
            Arrivals::of_bytes(tool, &Feed::Pipe(flow::bytes(), units))
        } else {
            Arrivals::of_lines(tool, &Feed::Pipe(flow::lines(LINE), units * LINE as u64))
        };
        let arrivals = arrivals.with_context(|| tool.to_string())?;
        let rate = f64::from(self.per_second);
        Ok((arrivals.off(rate), arrivals.most_over(rate, self.burst.into())))
    }

    fn say(&self, off: f64, over: f64) -> String {
        let decimals = usize::from(self.unit != "bytes");
        format!("{:.2} %, {:.decimals$}", off * 100.0, over.max(0.0))
    }
}

/// How late lines arrive at one line per millisecond, compared with a plain sleep on this machine.
pub(crate) fn late(size: &Size, table: &mut Table) -> Result<()> {
    const RATE: u32 = 1000;
    let lines = u64::from(RATE) * size.seconds;
    let feed = Feed::Pipe(flow::lines(LINE), lines * LINE as u64);
    let quantiles = |late: &[f64]| (percentile(late, 50) * 1e6, percentile(late, 99) * 1e6);
    let of =
        |tool: Tool| Ok::<_, anyhow::Error>(quantiles(&Arrivals::of_lines(tool, &feed)?.lateness(RATE.into(), 10)));
    let say = |(median, p99): (f64, f64)| format!("{median:.0} µs / {p99:.0} µs");
    let floor = quantiles(&sleeps(lines)?);
    let ours = of(Tool("throttle -r 1000/s"))?;
    let pv = Tool("pv -q -l -L 1000");
    let mut others = format!("a loop of `park_timeout` alone {}", say(floor));
    if pv.is_there() {
        others = format!("{others}; {pv} {}", say(of(pv)?));
    }
    table.add(Row {
        work: format!("1 k lines/s for {} s: lateness, median / 99 %", size.seconds),
        ours: "`throttle -r 1000/s`".to_owned(),
        others,
        result: say(ours),
        bar: Some(("50 µs / 1000 µs".to_owned(), ours.0 <= 50.0 && ours.1 <= 1000.0)),
    });
    Ok(())
}

/// How late this machine wakes a thread that sleeps until each millisecond, in seconds, sorted.
fn sleeps(times: u64) -> Result<Vec<f64>> {
    let sleeper = std::thread::spawn(move || {
        sharpen_this_thread();
        let start = SystemClock.now() + MILLISECOND;
        let late = |k: u64| {
            let at = start + k * MILLISECOND;
            SystemClock.sleep_until(at);
            seconds(SystemClock.now() - at)
        };
        (0..times).map(late).collect::<Vec<f64>>()
    });
    Ok(above_least(sleeper.join().ok().context("the sleeper panicked")?))
}

/// From start to end with empty input.
pub(crate) fn start(size: &Size, table: &mut Table) -> Result<()> {
    let empty = tempfile::tempfile()?;
    let tools = [Tool("throttle -r 5/s"), Tool("cat")];
    let times = in_turn(&tools, size.starts, |tool| Ok(flow::start_up(tool, &empty)?.as_secs_f64() * 1e3))?;
    let [ours, cat] = [0, 1].map(|tool| median(times[tool].clone()));
    table.add(Row {
        work: "start to end, empty input".to_owned(),
        ours: format!("{} {ours:.2} ms", tools[0]),
        others: format!("{} {cat:.2} ms", tools[1]),
        result: format!("+{:.2} ms", ours - cat),
        bar: Some(("+2.5 ms".to_owned(), ours - cat <= 2.5)),
    });
    Ok(())
}

/// The peak of resident memory, over several kinds of input.
pub(crate) fn memory(size: &Size, table: &mut Table) -> Result<()> {
    let (lines, bytes) = (flow::lines(LINE), flow::bytes());
    let one_line: Arc<[u8]> = bytes.iter().copied().take(1 << 17).collect();
    let works = [
        ("bytes", Tool("throttle -r 1TB/s"), Feed::Pipe(bytes, size.bytes)),
        ("lines", Tool("throttle -r 1G/s"), Feed::Pipe(lines.clone(), size.lines * LINE as u64)),
        ("one line without an end", Tool("throttle -r 1G/s"), Feed::Pipe(one_line, size.bytes)),
        ("a window, slow", Tool("throttle -r 10k/s -r 1M/h"), Feed::Pipe(lines, 10_000 * size.seconds * LINE as u64)),
    ];
    let mut peaks = Vec::new();
    for (name, tool, feed) in &works {
        let peak = peak(*tool, feed).with_context(|| tool.to_string())?;
        peaks.push((peak, format!("{name} ({tool}) {peak} KiB")));
    }
    let most = peaks.iter().map(|(peak, _)| *peak).max().unwrap_or(u64::MAX);
    let cells: Vec<String> = peaks.into_iter().map(|(_, cell)| cell).collect();
    table.add(Row {
        work: "most resident memory".to_owned(),
        ours: cells.join(", "),
        others: format!("`cat` {} KiB", peak(Tool("cat"), &works[0].2)?),
        result: format!("{:.1} MiB", most as f64 / 1024.0),
        bar: Some(("8 MiB".to_owned(), most <= 8192)),
    });
    Ok(())
}

fn peak(tool: Tool, feed: &Feed) -> Result<u64> {
    let mut running = flow::start(tool, feed, true)?;
    running.read(|_| ())?;
    let peak = running.peak()?;
    running.end()?;
    Ok(peak)
}
