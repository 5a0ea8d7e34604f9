//! A running command as the target of signals, and whether any of its processes survive.
//!
//! A process group is found by its number even after its leader has ended. The descendants of a command in our own
//! group are found only while the command exists, so they are stored as [`Member`]s.

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// A running command as the target of signals.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// It leads a process group of its own.
    Group(Pid),
    /// It belongs to our group.
    Process(Pid),
    /// It was reaped; other processes of its group may remain. While they exist, no process gets its number.
    Rest(Pid),
}

impl Target {
    pub(super) fn pid(self) -> Pid {
        match self {
            Target::Group(pid) | Target::Process(pid) | Target::Rest(pid) => pid,
        }
    }

    /// Sends a signal. Does nothing if the process has ended.
    pub(super) fn signal(self, signal: Signal) {
        match self {
            Target::Rest(pid) if is_reused(pid) => {}
            Target::Group(pid) | Target::Rest(pid) => drop(rustix::process::kill_process_group(pid, signal)),
            // Our group as a whole gets no signal, because it has processes that are not our children. The command gets
            // the signal before its descendants. Otherwise it might continue when one child ends.
            Target::Process(pid) => process_tree(pid).iter().for_each(|member| member.signal(signal)),
        }
    }

    /// The command and its descendants, if it is in our own group.
    pub(super) fn members(self) -> Vec<Member> {
        match self {
            Target::Group(_) | Target::Rest(_) => Vec::new(),
            Target::Process(pid) => process_tree(pid),
        }
    }

    /// Whether any process of a group survives after its leader was reaped.
    pub(super) fn survives(self) -> bool {
        match self {
            Target::Rest(pid) if is_reused(pid) => false,
            Target::Group(pid) | Target::Rest(pid) => {
                rustix::process::test_kill_process_group(pid).is_ok() && has_living(pid)
            }
            Target::Process(_) => false,
        }
    }
}

/// Whether another process has the number of a reaped process.
fn is_reused(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(Errno::SRCH)
}

/// A process that belongs to a command in our own group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pid: Pid,
    /// The start time as in proc(5); 0 without /proc. Another process may get the same number later, but not the same
    /// start time.
    started: u64,
}

impl Member {
    pub(super) fn signal(self, signal: Signal) {
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Whether the process still exists and is not a zombie.
    pub(super) fn is_alive(self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).unwrap_or_default();
        Process::from_stat(&stat).is_some_and(|process| process.started == self.started && !process.is_dead)
    }
}

/// Our children that were stopped before they became commands: they still run our own program, and are not among the
/// `known` started commands. Empty without /proc; systems without it start commands without blocking a thread.
pub(super) fn stopped_starts(known: &[Pid]) -> Vec<Member> {
    let program = |pid: Pid| std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()));
    let own = rustix::process::getpid();
    let Ok(ours) = program(own) else { return Vec::new() };
    let is_start = |process: &Process| {
        process.parent == own.as_raw_nonzero().get()
            && process.is_stopped
            && !known.contains(&process.pid)
            && program(process.pid).is_ok_and(|theirs| theirs == ours)
    };
    let starts = processes().into_iter().filter(is_start);
    starts.map(|process| Member { pid: process.pid, started: process.started }).collect()
}

/// Whether any process of the group is not a zombie. In a container, the first process adopts orphans but often does
/// not reap them. True without /proc.
fn has_living(group: Pid) -> bool {
    let processes = processes();
    let is_living = |process: &Process| process.group == group.as_raw_nonzero().get() && !process.is_dead;
    processes.is_empty() || processes.iter().any(is_living)
}

/// `ancestor`, its children, and then their descendants. Only `ancestor` without /proc.
fn process_tree(ancestor: Pid) -> Vec<Member> {
    let processes = processes();
    let started = processes.iter().find(|process| process.pid == ancestor).map_or(0, |process| process.started);
    let mut found = vec![Member { pid: ancestor, started }];
    let mut place = 0;
    while let Some(parent) = found.get(place).map(|member| member.pid.as_raw_nonzero().get()) {
        let children = processes.iter().filter(|process| process.parent == parent);
        found.extend(children.map(|process| Member { pid: process.pid, started: process.started }));
        place += 1;
    }
    found
}

#[derive(Debug)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    started: u64,
    is_dead: bool,
    is_stopped: bool,
}

impl Process {
    /// Parses `PID (NAME) STATE PARENT GROUP …`, where the name may contain any text. The 22nd field is the start time:
    /// proc(5).
    fn from_stat(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(' ')?;
        let mut fields = rest.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let (is_dead, is_stopped) = (matches!(state, "Z" | "X"), state == "T");
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let started = fields.nth(16)?.parse().ok()?;
        Some(Process { pid: Pid::from_raw(pid.parse().ok()?)?, parent, group, started, is_dead, is_stopped })
    }
}

fn processes() -> Vec<Process> {
    let Ok(folders) = std::fs::read_dir("/proc") else { return Vec::new() };
    let stats = folders.flatten().filter_map(|folder| std::fs::read_to_string(folder.path().join("stat")).ok());
    stats.filter_map(|stat| Process::from_stat(&stat)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_look_like_the_fields_after_it() {
        let rest = "5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 77 0";
        let process = Process::from_stat(&format!("12 (a) Z 9 9) S 3 4 {rest}")).unwrap();
        assert_eq!((process.pid.as_raw_nonzero().get(), process.parent, process.group), (12, 3, 4));
        assert_eq!((process.started, process.is_dead), (77, false));
        assert!(Process::from_stat(&format!("12 (sh) Z 3 4 {rest}")).unwrap().is_dead);
        assert!(Process::from_stat("").is_none() && Process::from_stat("1 (x) S").is_none());
    }
}
