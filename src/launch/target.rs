//! A running command, as signals reach it, and whether anything of it is left.

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
            Target::Process(pid) => {
                for process in descendants(pid).into_iter().chain([pid]) {
                    let _ = rustix::process::kill_process(process, signal);
                }
            }
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

/// Whether anybody in the group does not merely wait to be waited for: in a container the first process, to whom orphans
/// go, often waits for nobody. Yes, where there is no /proc to ask.
fn has_living(group: Pid) -> bool {
    let processes = processes();
    let is_living = |process: &Process| process.group == group.as_raw_nonzero().get() && !process.is_dead;
    processes.is_empty() || processes.iter().any(is_living)
}

/// Those whom `ancestor` has started, and whom they have; nobody, where there is no /proc to ask.
fn descendants(ancestor: Pid) -> Vec<Pid> {
    let processes = processes();
    let mut found = vec![ancestor.as_raw_nonzero().get()];
    let mut asked = 0;
    while let Some(parent) = found.get(asked).copied() {
        found.extend(processes.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        asked += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

#[derive(Debug)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    is_dead: bool,
}

impl Process {
    /// `PID (NAME) STATE PARENT GROUP …`, and the name may hold anything: proc(5).
    fn from_stat(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(' ')?;
        let mut fields = rest.rsplit_once(") ")?.1.split(' ');
        let is_dead = matches!(fields.next()?, "Z" | "X");
        let mut number = || fields.next()?.parse().ok();
        Some(Process { pid: pid.parse().ok()?, parent: number()?, group: number()?, is_dead })
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
        let process = Process::from_stat("12 (a) Z 9 9) S 3 4 5 6").unwrap();
        assert_eq!((process.pid, process.parent, process.group, process.is_dead), (12, 3, 4, false));
        assert!(Process::from_stat("12 (sh) Z 3 4 5").unwrap().is_dead);
        assert!(Process::from_stat("").is_none() && Process::from_stat("1 (x) S").is_none());
    }
}
