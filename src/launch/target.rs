//! A running command, as signals reach it, and whether anything of it is left.
//!
//! A group is found by its number also when its leader is gone. Of a command in our own group those whom it has started are
//! only found while it is there, so who wants to know of them later remembers them as [`Relative`]s.

use rustix::process::{Pid, Signal};

/// A running command, as signals reach it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// It leads a process group of its own.
    Group(Pid),
    /// It belongs to our group.
    Process(Pid),
}

impl Target {
    pub(super) fn pid(self) -> Pid {
        match self {
            Target::Group(pid) | Target::Process(pid) => pid,
        }
    }

    /// Whoever is already gone needs no signal.
    pub(super) fn signal(self, signal: Signal) {
        match self {
            Target::Group(pid) => drop(rustix::process::kill_process_group(pid, signal)),
            // Our group is not ours to end: others in it are not our children.
            // The command first: otherwise it might go on where a child of its has ended.
            Target::Process(pid) => family(pid).iter().for_each(|relative| relative.signal(signal)),
        }
    }

    /// The command and those whom it has started, where they are in our own group.
    pub(super) fn relatives(self) -> Vec<Relative> {
        match self {
            Target::Group(_) => Vec::new(),
            Target::Process(pid) => family(pid),
        }
    }

    /// Whether anything of a group is left, once its leader was waited for.
    pub(super) fn survives(self) -> bool {
        match self {
            Target::Group(pid) => rustix::process::test_kill_process_group(pid).is_ok() && has_living(pid),
            Target::Process(_) => false,
        }
    }
}

/// A process that belongs to a command in our own group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Relative {
    pid: Pid,
    /// As proc(5) counts; 0 where there is no /proc to ask. Another process may get the number later, but not the time.
    started: u64,
}

impl Relative {
    pub(super) fn signal(self, signal: Signal) {
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Whether it is still there and does not merely wait to be waited for.
    pub(super) fn is_alive(self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).unwrap_or_default();
        Process::from_stat(&stat).is_some_and(|process| process.started == self.started && !process.is_dead)
    }
}

/// Our children that were stopped on their way to become commands, but for those `known` to have started: they run what
/// we run. None, where there is no /proc to ask; where starts go without it, no thread is blocked by them either.
pub(super) fn stopped_starts(known: &[Pid]) -> Vec<Relative> {
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
    starts.map(|process| Relative { pid: process.pid, started: process.started }).collect()
}

/// Whether anybody in the group does not merely wait to be waited for: in a container the first process, to whom orphans
/// go, often waits for nobody. Yes, where there is no /proc to ask.
fn has_living(group: Pid) -> bool {
    let processes = processes();
    let is_living = |process: &Process| process.group == group.as_raw_nonzero().get() && !process.is_dead;
    processes.is_empty() || processes.iter().any(is_living)
}

/// `ancestor`, then those whom it has started, then whom they have; it alone, where there is no /proc to ask.
fn family(ancestor: Pid) -> Vec<Relative> {
    let processes = processes();
    let started = processes.iter().find(|process| process.pid == ancestor).map_or(0, |process| process.started);
    let mut found = vec![Relative { pid: ancestor, started }];
    let mut asked = 0;
    while let Some(parent) = found.get(asked).map(|relative| relative.pid.as_raw_nonzero().get()) {
        let children = processes.iter().filter(|process| process.parent == parent);
        found.extend(children.map(|process| Relative { pid: process.pid, started: process.started }));
        asked += 1;
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
    /// `PID (NAME) STATE PARENT GROUP …`, and the name may hold anything; the 22nd is when it was started: proc(5).
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
    fn a_name_may_look_like_what_follows_it() {
        let rest = "5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 77 0";
        let process = Process::from_stat(&format!("12 (a) Z 9 9) S 3 4 {rest}")).unwrap();
        assert_eq!((process.pid.as_raw_nonzero().get(), process.parent, process.group), (12, 3, 4));
        assert_eq!((process.started, process.is_dead), (77, false));
        assert!(Process::from_stat(&format!("12 (sh) Z 3 4 {rest}")).unwrap().is_dead);
        assert!(Process::from_stat("").is_none() && Process::from_stat("1 (x) S").is_none());
    }
}
