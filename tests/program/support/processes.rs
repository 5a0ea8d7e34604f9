//! Processes as /proc shows them, files and streams that they use, and input for them.

use super::program::{run, wait_until};
use super::tools::skipped;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal};
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

/// `command` with a PATH whose folders everybody may search. After su, PATH may be root's: execvp(3) reports folders that it
/// may not search as forbidden.
pub(crate) fn with_public_path(mut command: Command) -> Command {
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command
}

/// Whether `wrapper`, such as `unshare` or `setpriv`, may run a command on this machine. If not, the test is skipped.
pub(crate) fn can(wrapper: &[&str]) -> bool {
    let tried = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").stderr(Stdio::null()).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        skipped(format!("cannot run {}", wrapper.join(" ")));
    }
    can
}

/// The number in a file, once it is there.
pub(crate) fn number_in(file: &Path) -> u32 {
    let mut number = None;
    wait_until(&format!("a number in {}", file.display()), || {
        number = fs::read_to_string(file).ok().and_then(|text| text.strip_suffix('\n')?.trim().parse().ok());
        number.is_some()
    });
    number.unwrap()
}

/// A field of `/proc/PID/status`, such as `VmHWM:`; `None` once the process has ended.
fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
}

/// The most memory that was resident so far, in KiB; `None` once the process has ended.
pub(crate) fn peak_memory(pid: u32) -> Option<u64> {
    status_field(pid, "VmHWM:")?.strip_suffix(" kB")?.parse().ok()
}

/// The union of the sets of signals in fields such as `SigCgt:`.
pub(crate) fn signal_masks(pid: u32, names: &[&str]) -> u64 {
    let masks = names.iter().filter_map(|name| status_field(pid, name));
    masks.fold(0, |union, mask| union | u64::from_str_radix(&mask, 16).unwrap())
}

/// The letter for the state of a process (proc(5)); `None` once it has ended.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// The processor time that a process has used, in hundredths of a second.
pub(crate) fn cpu_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

pub(crate) fn is_asleep(pid: u32) -> bool {
    state_of(pid) == Some('S')
}

/// Whether it runs, sleeps or is stopped, and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    state_of(pid).is_some_and(|state| !"ZX".contains(state))
}

/// Sends `signal`, without kill(1), which is not on every machine.
pub(crate) fn kill(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Sends SIGTERM twice, and returns the signal that ended it.
pub(crate) fn end_with_two(child: &mut Child) -> Option<i32> {
    for _ in 0..2 {
        kill(child.id(), Signal::TERM);
        thread::sleep(Duration::from_millis(300));
    }
    let mut status = None;
    wait_until("it to end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.signal())
}

/// The most memory that a run may have resident, in KiB: 4 MiB more than a run of one short command, most of which is the
/// program's own code. The benches measure that.
pub(crate) fn most_memory() -> u64 {
    static SHORT_RUN: OnceLock<u64> = OnceLock::new();
    let short_run = || run(["-q", "-r", "unlimited", "-c", "sleep 0.2"], "a\n").peak;
    SHORT_RUN.get_or_init(short_run) + 4 * 1024
}

/// Checks that any two of `starts` are as far apart as the rate demands: `gap` for each start after the first of them, less
/// two gaps (for the burst and the lag allowance) and less `noise`.
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

/// The numbers 1 to `last`, a line each.
pub(crate) fn numbers(last: u32) -> String {
    (1..=last).flat_map(|number| [number.to_string(), "\n".to_owned()]).collect()
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

/// Compares long outputs without printing them.
#[track_caller]
pub(crate) fn assert_same(out: &[u8], input: &[u8], what: &str) {
    assert_eq!(out.len(), input.len(), "{what}: as many bytes must come out as went in");
    let differs = out.iter().zip(input).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

/// Puts a descriptor, and every other descriptor of its open file, into non-blocking mode.
pub(crate) fn make_non_blocking(fd: impl Into<OwnedFd>) -> OwnedFd {
    let fd = fd.into();
    set_flags(&fd, |flags| flags | OFlags::NONBLOCK);
    fd
}

fn set_flags(fd: impl AsFd, change: impl Fn(OFlags) -> OFlags) {
    let flags = fcntl_getfl(&fd).unwrap();
    fcntl_setfl(&fd, change(flags)).unwrap();
}

/// A full pipe that nobody reads.
pub(crate) fn stuck_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    set_flags(&writer, |flags| flags | OFlags::NONBLOCK);
    while writer.write(&[0; 4096]).is_ok() {}
    set_flags(&writer, |flags| flags - OFlags::NONBLOCK);
    (reader, writer)
}

/// Copies a program so that it can be run at once. A child writes the file: another test may start a process while this one
/// holds the file open for writing, and a program that some process holds open so cannot be run (ETXTBSY in execve(2)).
pub(crate) fn copy_program(from: &str, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}
