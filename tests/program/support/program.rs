//! The program as a user meets it: a process with pipes, signals and a real clock.

use super::processes::{is_asleep, peak_memory, signal_masks};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXCPU};
use signal_hook::flag::register_conditional_default;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The program under test.
pub(crate) const THROTTLE: &str = env!("CARGO_BIN_EXE_throttle");

/// The time limit of every wait in these tests. Only a fault takes this long, however loaded the machine.
pub(crate) const HANGS: Duration = Duration::from_secs(300);

/// A child ignores the signals that its parent ignores, as a job in the background of a script does; it does not inherit
/// handlers (execve(2)). So this process handles the signals that its tests send to children, with their default action.
#[ctor::ctor]
fn let_children_receive_signals() {
    for signal in [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXCPU] {
        register_conditional_default(signal, Arc::new(AtomicBool::new(true))).unwrap();
    }
}

/// Variables such as `THROTTLE_BUCKET` change what the program does. If the environment has any, this process starts itself
/// again without them, so that no test's program inherits one, whatever starts it.
#[ctor::ctor]
fn leave_variables_of_the_program_out() {
    let is_ours = |name: &OsStr| name.as_bytes().starts_with(b"THROTTLE_");
    let ours: Vec<_> = std::env::vars_os().map(|(name, _)| name).filter(|name| is_ours(name)).collect();
    if !ours.is_empty() {
        let mut again = Command::new("/proc/self/exe");
        again.args(std::env::args_os().skip(1));
        for name in ours {
            again.env_remove(name);
        }
        panic!("cannot start the tests again without the variables THROTTLE_*: {}", again.exec());
    }
}

#[test]
fn no_variable_of_the_program_reaches_the_tests() {
    const AGAIN: &str = "TESTS_STARTED_AGAIN";
    if std::env::var_os(AGAIN).is_some() {
        assert_eq!(std::env::vars_os().find(|(name, _)| name.as_bytes().starts_with(b"THROTTLE_")), None);
        return;
    }
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["--exact", "support::program::no_variable_of_the_program_reaches_the_tests"]);
    tests.envs([(AGAIN, "1"), ("THROTTLE_BUCKET", "/nowhere/at/all"), ("THROTTLE_KEY", "a")]);
    let ended = feed(with_pipes(tests), "");
    assert!(ended.status.success() && ended.text().contains("1 passed"), "{}{}", ended.text(), ended.err);
}

/// The program with `args`; its three streams are pipes.
pub(crate) fn throttle<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(THROTTLE);
    command.args(args);
    with_pipes(command)
}

/// A shell script in which `"$0"` is the program; its three streams are pipes.
pub(crate) fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, THROTTLE]);
    with_pipes(command)
}

/// `command`, whose three streams are pipes.
pub(crate) fn with_pipes(mut command: Command) -> Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program with `args` on `input` to its end.
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: impl AsRef<[u8]>) -> Ended {
    feed(throttle(args), input)
}

/// Runs `command` on `input` to its end.
pub(crate) fn feed(command: Command, input: impl AsRef<[u8]>) -> Ended {
    let mut running = Running::start(command);
    let writer = running.write(input.as_ref());
    let ended = running.finish();
    writer.join().unwrap();
    ended
}

/// The output for `input`, of a run that succeeds and writes nothing to standard error.
#[track_caller]
pub(crate) fn passed(args: &[&str], input: &[u8]) -> Vec<u8> {
    let ended = run(args, input);
    assert_eq!(ended.err, "", "{args:?}");
    assert!(ended.status.success(), "{args:?}: {}", ended.status);
    ended.out
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

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Ended { status: output.status, out: output.stdout, err: text(&output.stderr), peak: 0 }
    }
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Standard output, which has to be text.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// [`text`](Self::text), owned.
    #[track_caller]
    pub(crate) fn into_text(self) -> String {
        String::from_utf8(self.out).unwrap()
    }

    /// The lines of standard output, sorted.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.text().lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// An error of the program itself: its exit code, and one line on standard error that has these words.
#[track_caller]
pub(crate) fn assert_fails(ended: &Ended, code: i32, words: &[&str]) {
    let error = &ended.err;
    assert_eq!(ended.code(), Some(code), "{error}");
    for word in words {
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }
    assert!(error.starts_with("throttle: ") && error.lines().count() == 1, "{error}");
}

/// The lines about attempts in a log, without those about runs.
pub(crate) fn logged_attempts(log: &str) -> Vec<serde_json::Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    log.lines().map(parse).filter(|line: &serde_json::Value| line["run"].is_string()).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process that does not outlive its test.
pub(crate) struct Running {
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    /// Starts `command` and closes this process's copies of its streams. Its output is read by [`finish`](Self::finish),
    /// unless the test takes it before.
    pub(crate) fn start(mut command: Command) -> Self {
        Running { child: command.spawn().unwrap(), out: None, err: None }
    }

    /// A process that was started; its output is read from now on.
    pub(crate) fn read(child: Child) -> Self {
        let mut running = Running { child, out: None, err: None };
        running.read_output();
        running
    }

    fn read_output(&mut self) {
        self.out = self.out.take().or_else(|| self.child.stdout.take().map(read_all));
        self.err = self.err.take().or_else(|| self.child.stderr.take().map(read_all));
    }

    /// Writes all of `input` from another thread, then closes. It is no error if the reader leaves before the end.
    pub(crate) fn write(&mut self, input: &[u8]) -> JoinHandle<()> {
        let (stdin, input) = (self.child.stdin.take(), input.to_vec());
        thread::spawn(move || drop(stdin.map(|mut stdin| stdin.write_all(&input))))
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal`, unless the process has ended and was waited for.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end. Output that was not taken is lost.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait_until("it to end", || !self.is_running());
        self.child.wait().unwrap()
    }

    /// Waits for the end, and for all output that was not taken.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Ended {
        self.read_output();
        let (mut peak, begun) = (0, Instant::now());
        while {
            peak = self.most_resident().unwrap_or(0).max(peak);
            self.is_running()
        } {
            assert!(begun.elapsed() < HANGS, "waited in vain for it to end");
            thread::sleep(Duration::from_millis(3));
        }
        let [out, err] =
            [self.out.take(), self.err.take()].map(|reader| reader.map_or(Vec::new(), |reader| reader.join().unwrap()));
        Ended { status: self.child.wait().unwrap(), out, err: text(&err), peak }
    }

    /// Waits until it handles signals and the pump sleeps in some call, and still does a while later.
    #[track_caller]
    pub(crate) fn settle(&self) {
        wait_until("it to handle signals", || {
            signal_masks(self.pid(), &["SigCgt:", "SigIgn:"]) & (1 << (Signal::USR1.as_raw() - 1)) != 0
        });
        let mut asleep = 0;
        wait_until("it to block", || {
            asleep = if is_asleep(self.pid()) { asleep + 1 } else { 0 };
            asleep == 10
        });
    }

    /// The most memory it ever had resident, in KiB, while it still runs.
    pub(crate) fn most_resident(&self) -> Option<u64> {
        peak_memory(self.pid())
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

/// Repeats a measurement that a busy machine can spoil, up to five times: one of them has to be right.
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

/// Lines of output, each with the time at which it was read.
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
