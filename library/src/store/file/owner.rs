//! Identifies the users of a bucket, and checks whether their processes still run.

use crate::ledger::operation::Owner;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bits of the start of a process: enough for thousands of years of ticks. The bits above count the users in one
/// process.
const START_BITS: u32 = 48;

/// A further user of buckets in this process. The first one has the name that other processes find with [`of`].
pub(super) fn next_user() -> Owner {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let [id, started] = this_process();
    [id, COUNT.fetch_add(1, Ordering::Relaxed) << START_BITS | started]
}

/// This process: its id in the lower half of a word, its namespace of ids in the upper one, and when it was started.
fn this_process() -> Owner {
    static OWNER: OnceLock<Owner> = OnceLock::new();
    *OWNER.get_or_init(|| {
        let pid = std::process::id();
        of(pid).unwrap_or([namespace() << 32 | u64::from(pid), 0])
    })
}

/// The process with this id; `None` if it has ended, or the system does not report its start.
pub(super) fn of(pid: u32) -> Option<Owner> {
    Some([namespace() << 32 | u64::from(pid), stat(pid)?.1])
}

/// Whether the process of a user has ended. `false` for a process in another container, because its state is not visible.
pub(super) fn is_gone([id, started]: Owner) -> bool {
    let Ok(pid) = i32::try_from(id & u64::from(u32::MAX)) else { return false };
    if id >> 32 != this_process()[0] >> 32 {
        return false;
    }
    let started = started & ((1 << START_BITS) - 1);
    match stat(pid.cast_unsigned()) {
        // A zombie has ended. A process with another start time got the id later.
        Some((state, since)) => since != started || "ZX".contains(&state),
        None => Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)),
    }
}

/// The namespace of process ids, see `pid_namespaces(7)`; 0 on systems without them.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino() & u64::from(u32::MAX))
}

/// The state of a process and its start, in ticks since the start of the machine; see `proc_pid_stat(5)`. `None` on
/// systems without that file.
fn stat(pid: u32) -> Option<(String, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in the earlier field may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.to_owned(), fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn an_owner_is_gone_once_its_process_has_ended() {
        let [id, started] = this_process();
        assert!(!is_gone([id, started]));
        let [one, other] = [next_user(), next_user()];
        assert!(one != other && !is_gone(one) && !is_gone(other), "both are users in this process");
        assert!(is_gone([id, started + 1]), "another process had this id");
        assert!(!is_gone([id ^ 1 << 32, started + 1]), "in another namespace");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let owner = [id >> 32 << 32 | u64::from(child.id()), stat(child.id()).unwrap().1];
        assert!(!is_gone(owner));
        drop(child.stdin.take());
        while stat(child.id()).unwrap().0 != "Z" {
            std::thread::yield_now();
        }
        assert!(is_gone(owner), "it has ended, although nobody has waited for it");
        child.wait().unwrap();
        assert!(is_gone(owner));
    }
}
