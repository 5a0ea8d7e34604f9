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
        let _ = match self {
            Target::Group(pid) => rustix::process::kill_process_group(pid, signal),
            Target::Process(pid) => rustix::process::kill_process(pid, signal),
        };
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
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let mut known = 0;
    let mut processes =
        processes.flatten().filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    let found = processes.any(|stat| {
        known += 1;
        // `PID (NAME) STATE PARENT GROUP …`, and the name may hold anything: proc(5).
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, group_of) = (fields.next(), fields.nth(1));
        group_of.and_then(|text| text.parse().ok()) == Some(group.as_raw_nonzero().get())
            && !matches!(state, Some("Z" | "X"))
    });
    found || known == 0
}
