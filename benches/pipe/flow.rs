//! Runs a tool between a producer and a reader that are the same for all tools.

use crate::tool::Tool;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The size of a read and of a write.
const PIECE: usize = 128 * 1024;

/// The input of a tool.
#[derive(Clone, Debug)]
pub(crate) enum Feed {
    File(PathBuf),
    /// So many bytes through a pipe: the pattern, repeated.
    Pipe(Arc<[u8]>, u64),
    /// The same, with so many bytes at each of these times after the start.
    Script(Arc<[u8]>, Vec<(Duration, u64)>),
}

impl Feed {
    fn len(&self) -> Result<u64> {
        match self {
            Feed::File(path) => Ok(fs::metadata(path)?.len()),
            Feed::Pipe(_, bytes) => Ok(*bytes),
            Feed::Script(_, parts) => Ok(parts.iter().map(|(_, bytes)| bytes).sum()),
        }
    }
}

/// Lines of `length` bytes, enough of them that a write ends anywhere in a line.
pub(crate) fn lines(length: usize) -> Arc<[u8]> {
    let mut line: Vec<u8> = (b'a'..=b'z').cycle().take(length - 1).collect();
    line.push(b'\n');
    line.repeat(PIECE).into()
}

/// Bytes without a newline.
pub(crate) fn bytes() -> Arc<[u8]> {
    (b'a'..=b'z').cycle().take(PIECE).collect()
}

/// A running tool.
pub(crate) struct Running {
    child: Child,
    started: Instant,
    expected: u64,
    producer: Option<JoinHandle<std::io::Result<Option<ChildStdin>>>>,
}

/// Starts `tool`. With `hold` a pipe to it stays open until [`Running::end`], so that the tool can be examined when
/// everything is read. But some tools keep the last of their input back until it ends.
pub(crate) fn start(tool: Tool, feed: &Feed, hold: bool) -> Result<Running> {
    let mut command = tool.command();
    command.stdout(Stdio::piped());
    match feed {
        Feed::File(path) => command.stdin(File::open(path)?),
        Feed::Pipe(..) | Feed::Script(..) => command.stdin(Stdio::piped()),
    };
    let expected = feed.len()?;
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| tool.to_string())?;
    let (pattern, parts) = match feed {
        Feed::File(_) => return Ok(Running { child, started, expected, producer: None }),
        Feed::Pipe(pattern, bytes) => (pattern, vec![(Duration::ZERO, *bytes)]),
        Feed::Script(pattern, parts) => (pattern, parts.clone()),
    };
    let (pattern, mut to) = (Arc::clone(pattern), child.stdin.take().context("no pipe")?);
    let produce_all = move || {
        for (at, bytes) in parts {
            std::thread::sleep(at.saturating_sub(started.elapsed()));
            produce(&mut to, &pattern, bytes)?;
        }
        Ok(hold.then_some(to))
    };
    let producer = Some(std::thread::spawn(produce_all));
    Ok(Running { child, started, expected, producer })
}

fn produce(to: &mut ChildStdin, pattern: &[u8], bytes: u64) -> std::io::Result<()> {
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut pieces = pattern.chunks(PIECE).cycle();
    while left > 0 {
        let Some(piece) = pieces.next() else { break };
        let piece = &piece[..piece.len().min(left)];
        to.write_all(piece)?;
        left -= piece.len();
    }
    Ok(())
}

impl Running {
    /// Reads all output, and passes each piece to `seen`.
    pub(crate) fn read(&mut self, mut seen: impl FnMut(&[u8])) -> Result<()> {
        let mut out = self.child.stdout.take().context("no pipe")?;
        let mut buffer = vec![0; PIECE];
        let mut left = self.expected;
        while left > 0 {
            let read = out.read(&mut buffer)?;
            ensure!(read > 0, "output ended {left} bytes early");
            seen(&buffer[..read]);
            left = left.saturating_sub(read as u64);
        }
        self.child.stdout = Some(out);
        Ok(())
    }

    /// The peak of resident memory, in KiB.
    pub(crate) fn peak(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM: it has ended")?;
        Ok(peak.trim().trim_end_matches(" kB").parse()?)
    }

    /// Closes the input and waits for the end. Returns the time since the start, and the CPU time.
    pub(crate) fn end(mut self) -> Result<(Duration, Duration)> {
        if let Some(producer) = self.producer.take() {
            drop(producer.join().ok().context("the producer panicked")??);
        }
        let rest = self.child.stdout.take().context("no pipe")?.read(&mut [0; 1])?;
        let elapsed = self.started.elapsed();
        let cpu = self.cpu_when_ended()?;
        ensure!(self.child.wait()?.success() && rest == 0, "the tool failed");
        Ok((elapsed, cpu))
    }

    /// User and system time of a child that has ended and was not yet waited for: fields 14 and 15 of `stat`, in ticks
    /// (`proc_pid_stat(5)`).
    fn cpu_when_ended(&self) -> Result<Duration> {
        let pid = Pid::from_child(&self.child);
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("stat")?;
        let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
    }
}

/// The time from the start of `tool` to the end of its output, and its CPU time.
pub(crate) fn time(tool: Tool, feed: &Feed) -> Result<(Duration, Duration)> {
    let mut running = start(tool, feed, false)?;
    running.read(|_| ()).and_then(|()| running.end()).with_context(|| tool.to_string())
}

/// The time from start to end without input.
pub(crate) fn start_up(tool: Tool, empty: &File) -> Result<Duration> {
    let mut command = tool.command();
    command.stdin(empty.try_clone()?).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status()?;
    let elapsed = started.elapsed();
    ensure!(status.success(), "{tool} failed");
    Ok(elapsed)
}
