//! What the tests of launch mode share: the real program, fed, watched and measured.

#![allow(dead_code, reason = "each test file uses some of it")]

use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// So long at most is waited for what should come at once, however loaded the machine.
pub(crate) const LONG: Duration = Duration::from_secs(150);

/// The program with `args`, its three streams connected to us.
pub(crate) fn throttle<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throttle"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `command` with a PATH of which everybody may search every folder. After su it may be root's: execvp(3) says that what it
/// may not look for is forbidden.
pub(crate) fn with_a_path_of_all(mut command: Command) -> Command {
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command
}

/// How a run ended, and what it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
    /// The most memory that was resident, in KiB, as last seen.
    pub(crate) peak: u64,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// The lines of standard output, sorted.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.text().lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// Runs the program on `input` to its end.
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: impl AsRef<[u8]>) -> Ended {
    finish(throttle(args), input)
}

/// Runs `command` on `input` to its end.
pub(crate) fn finish(mut command: Command, input: impl AsRef<[u8]>) -> Ended {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.as_ref().to_vec();
    // It may end before it has read everything.
    let feeder = thread::spawn(move || drop(stdin.write_all(&input)));
    let ended = Started::new(child).end();
    feeder.join().unwrap();
    ended
}

/// A run under way, whose output is being collected.
pub(crate) struct Started {
    pub(crate) child: Child,
    out: JoinHandle<Vec<u8>>,
    err: JoinHandle<Vec<u8>>,
}

impl Started {
    pub(crate) fn new(mut child: Child) -> Self {
        let out = collect(child.stdout.take());
        let err = collect(child.stderr.take());
        Started { child, out, err }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn end(mut self) -> Ended {
        let mut peak = 0;
        let begun = Instant::now();
        let status = loop {
            peak = peak_of(self.child.id()).max(peak);
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > 2 * LONG {
                rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
                thread::sleep(Duration::from_secs(1));
                let _ = self.child.kill();
                panic!("it did not end");
            }
            thread::sleep(Duration::from_millis(3));
        };
        let (out, err) = (self.out.join().unwrap(), self.err.join().unwrap());
        Ended { status, out, err: String::from_utf8_lossy(&err).into_owned(), peak }
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        bytes
    })
}

/// The most memory that was resident so far, in KiB; 0 once it has ended.
fn peak_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

/// Waits until `met`.
pub(crate) fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !met() {
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The number in a file, once it is there.
pub(crate) fn number_in(file: &Path) -> u32 {
    let mut number = None;
    wait_until(&format!("{} holds a number", file.display()), || {
        number = fs::read_to_string(file).ok().and_then(|text| text.strip_suffix('\n')?.trim().parse().ok());
        number.is_some()
    });
    number.unwrap()
}

/// The letter for the state of a process (proc(5)); `None` once it is gone.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether it runs, is stopped or sleeps, and is not just waiting to be waited for.
pub(crate) fn is_alive(pid: u32) -> bool {
    state_of(pid).is_some_and(|state| !"ZX".contains(state))
}

/// Not by kill(1), which is not on every machine.
pub(crate) fn kill(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// The numbers 1 to `last`, a line each.
pub(crate) fn numbers(last: u32) -> String {
    (1..=last).flat_map(|number| [number.to_string(), "\n".to_owned()]).collect()
}

/// Whether any two of `starts` are as far apart as `gap` for each unit between them demands, but for the one of the burst,
/// the one of the lag allowance, and `noise`.
pub(crate) fn assert_spaced(starts: &[u64], gap: Duration, noise: Duration) {
    let mut starts = starts.to_vec();
    starts.sort_unstable();
    let gap = gap.as_nanos();
    for (i, first) in starts.iter().enumerate() {
        for (j, last) in starts.iter().enumerate().skip(i + 3) {
            let least = (gap * (j - i - 2) as u128).saturating_sub(noise.as_nanos());
            assert!(u128::from(last - first) >= least, "{} starts in {} ns", j - i + 1, last - first);
        }
    }
}

/// The most memory that a run may have resident, in KiB: 4 MiB more than a run of one short command, most of which is the
/// program's own code. The benches measure that.
pub(crate) fn most_memory() -> u64 {
    static SHORT_RUN: OnceLock<u64> = OnceLock::new();
    let short_run = || run(["-q", "-r", "unlimited", "-c", "sleep 0.2"], "a\n").peak;
    SHORT_RUN.get_or_init(short_run) + 4 * 1024
}

/// A pipe that takes nothing more, and that nobody reads.
pub(crate) fn stuck_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// Signals it until it ends, not more often than it needs, and says of what it died.
pub(crate) fn end_with_two(child: &mut Child) -> Option<i32> {
    for _ in 0..2 {
        rustix::process::kill_process(Pid::from_child(child), Signal::TERM).unwrap();
        thread::sleep(Duration::from_millis(300));
    }
    let mut status = None;
    wait_until("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.signal())
}

/// Both ends of a terminal; what is written to the second must be read from the first.
pub(crate) fn terminal() -> (OwnedFd, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).and_then(|()| unlockpt(&master)).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (master, fs::OpenOptions::new().read(true).write(true).open(name).unwrap())
}
