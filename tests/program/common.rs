//! The program as a user meets it: a process with pipes, signals and a clock on the wall.

#![allow(dead_code, reason = "each file of tests uses some of this")]

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXCPU};
use signal_hook::flag::register_conditional_default;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The program under test.
pub(crate) const THROTTLE: &str = env!("CARGO_BIN_EXE_throttle");

/// Nothing here takes this long unless it hangs, however loaded the machine.
pub(crate) const HANGS: Duration = Duration::from_secs(300);

/// What a process ignores is ignored by what it starts, as by the program under a script's `&`. What it handles is not
/// (execve(2)). So these tests handle the signals that they send to others, as the system would.
#[ctor::ctor]
fn hand_no_ignored_signals_down() {
    for signal in [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXCPU] {
        register_conditional_default(signal, Arc::new(AtomicBool::new(true))).unwrap();
    }
}

/// The program with `args`, all its ends piped.
pub(crate) fn throttle(args: &[&str]) -> Command {
    piped(Command::new(THROTTLE), args)
}

/// A shell script in which `"$0"` is the program.
pub(crate) fn shell(script: &str) -> Command {
    piped(Command::new("sh"), &["-c", script, THROTTLE])
}

fn piped(mut command: Command, args: &[&str]) -> Command {
    command
        .env_remove("THROTTLE_BUCKET")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Feeds `input` to `command` and waits for its end.
pub(crate) fn feed(command: Command, input: &[u8]) -> Output {
    let mut running = Running::start(command);
    let writer = running.write(input);
    let output = running.finish();
    writer.join().unwrap();
    output
}

/// What comes out when `input` goes in; nothing else may be said.
#[track_caller]
pub(crate) fn passed(args: &[&str], input: &[u8]) -> Vec<u8> {
    let output = feed(throttle(args), input);
    assert_eq!(text(&output.stderr), "", "{args:?}");
    assert!(output.status.success(), "{args:?}: {}", output.status);
    output.stdout
}

/// The lines about attempts in a log, without those about runs.
pub(crate) fn attempts(log: &str) -> Vec<serde_json::Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    log.lines().map(parse).filter(|line: &serde_json::Value| line["run"].is_string()).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An error of ours: its code, one line, and these words in it.
#[track_caller]
pub(crate) fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(said.starts_with("throttle: ") && said.lines().count() == 1, "{said}");
}

/// Compares long outputs without printing them.
#[track_caller]
pub(crate) fn assert_same(out: &[u8], input: &[u8], what: &str) {
    assert_eq!(out.len(), input.len(), "{what}: as many bytes must come out as went in");
    let differs = out.iter().zip(input).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

/// `length` bytes in which a lost, doubled or moved piece shows.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

/// A process that does not outlive its test.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    /// Starts `command` and lets go of our copies of its ends.
    pub(crate) fn start(mut command: Command) -> Self {
        Running { child: command.spawn().unwrap() }
    }

    /// Writes all of `input` from another thread, then closes. A reader that leaves early is none of its business.
    pub(crate) fn write(&mut self, input: &[u8]) -> JoinHandle<()> {
        let (stdin, input) = (self.child.stdin.take(), input.to_vec());
        thread::spawn(move || drop(stdin.map(|mut stdin| stdin.write_all(&input))))
    }

    pub(crate) fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub(crate) fn stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub(crate) fn stderr(&mut self) -> std::process::ChildStderr {
        self.child.stderr.take().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end. What comes out of ends that were not taken is lost.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits for the end and everything that comes out of the ends that were not taken.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Output {
        let stdout = self.child.stdout.take().map(read_all);
        let stderr = self.child.stderr.take().map(read_all);
        let status = self.end();
        let out = |reader: Option<JoinHandle<Vec<u8>>>| reader.map_or(Vec::new(), |reader| reader.join().unwrap());
        Output { status, stdout: out(stdout), stderr: out(stderr) }
    }

    /// Waits until signals are attended to and the pump is blocked: asleep in some call, and still so a while later.
    #[track_caller]
    pub(crate) fn settle(&self) {
        wait_until("it to attend to signals", || {
            let seen = self.status_mask("SigCgt:") | self.status_mask("SigIgn:");
            seen & (1 << (Signal::USR1.as_raw() - 1)) != 0
        });
        let mut asleep = 0;
        wait_until("it to block", || {
            asleep = if self.proc("status").contains("State:\tS") { asleep + 1 } else { 0 };
            asleep == 10
        });
    }

    fn status_mask(&self, name: &str) -> u64 {
        let status = self.proc("status");
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    /// The most memory it ever had resident, in KiB, while it still runs.
    pub(crate) fn most_resident(&self) -> Option<u64> {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.pid())).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HANGS, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Measures what a busy machine can spoil, up to five times: one of them has to be right.
#[track_caller]
pub(crate) fn is_right_once<T: std::fmt::Debug>(mut measure: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) {
    let mut measured = Vec::new();
    while !measured.last().is_some_and(&is_right) {
        assert!(measured.len() < 5, "{measured:#?}");
        measured.push(measure());
    }
}

/// Reads to the end in another thread.
pub(crate) fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    })
}

/// The lines that come, each with the time it was read.
pub(crate) struct Lines(Receiver<(Instant, String)>);

impl Lines {
    pub(crate) fn of(from: impl Read + Send + 'static) -> Self {
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                if send.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Lines(receive)
    }

    /// The next line; fails if none comes.
    #[track_caller]
    pub(crate) fn next(&self) -> String {
        self.next_with_time().1
    }

    /// The next line and when it was read; fails if none comes.
    #[track_caller]
    pub(crate) fn next_with_time(&self) -> (Instant, String) {
        self.0.recv_timeout(HANGS).expect("another line")
    }

    /// All further lines, and when each was read.
    pub(crate) fn with_times(self) -> Vec<(Instant, String)> {
        self.0.into_iter().collect()
    }

    /// All further lines.
    pub(crate) fn rest(self) -> Vec<String> {
        self.0.into_iter().map(|(_, line)| line).collect()
    }

    /// The times of all lines to the end.
    #[track_caller]
    pub(crate) fn times(self) -> Vec<Instant> {
        self.0.into_iter().map(|(time, _)| time).collect()
    }
}

/// Puts a descriptor, and whatever shares its open file, into non-blocking mode.
pub(crate) fn make_non_blocking(fd: impl Into<OwnedFd>) -> OwnedFd {
    let fd = fd.into();
    let flags = rustix::fs::fcntl_getfl(&fd).unwrap();
    rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    fd
}

/// Copies a program so that it can be run at once. A child does the writing: a file that this process holds open for
/// writing is inherited by what another test starts at that moment, and cannot be run meanwhile (ETXTBSY in execve(2)).
pub(crate) fn copy_program(from: &str, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// A terminal, and what is written to it.
pub(crate) fn terminal() -> (std::fs::File, thread::JoinHandle<String>) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).and_then(|()| unlockpt(&master)).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
    let read = thread::spawn(move || {
        let (mut master, mut all, mut piece) = (std::fs::File::from(master), Vec::new(), [0; 4096]);
        // It fails once nobody has the other side open.
        while let Ok(length @ 1..) = master.read(&mut piece) {
            all.extend_from_slice(&piece[..length]);
        }
        text(&all).replace("\r\n", "\n")
    });
    (terminal.into(), read)
}
