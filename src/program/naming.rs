//! Units in messages: what they are called, and a line for each that failed or was stopped.

use super::flags::Flags;
use super::report::UnitName;
use super::tally::shown;
use throttle::launch::Job;

/// Units that are named one by one on a terminal: more would push everything else out of sight.
const ON_TERMINAL: u64 = 20;

/// Names units. Elsewhere than on a terminal all are named: it may be a file from which they are run again.
#[derive(Debug)]
pub(super) struct Naming {
    /// `line`
    unit: &'static str,
    most: u64,
    failed: Named,
    stopped: Named,
}

#[derive(Debug, Default)]
struct Named {
    named: u64,
    more: u64,
}

impl Naming {
    pub(super) fn new(flags: &Flags, on_terminal: bool) -> Self {
        let unit = match flags.repeat() {
            Some(_) => "unit",
            None => UnitName::of(flags.framing()).singular(),
        };
        let most = if on_terminal { ON_TERMINAL } else { u64::MAX };
        Naming { unit, most, failed: Named::default(), stopped: Named::default() }
    }

    /// `line 3 'https://…'`: the first unit of a command.
    pub(super) fn first(&self, job: &Job) -> String {
        job.names.iter().next().map_or_else(String::new, |(number, name)| self.one(number, name))
    }

    /// `next line not started: 3 'https://…'`
    pub(super) fn next(&self, first: Option<(u64, &[u8])>) -> String {
        let name = first.map(|(number, name)| format!("{number} '{}'", shown(name)));
        format!("next {} not started: {}", self.unit, name.unwrap_or_default())
    }

    /// A line for each unit of a command.
    pub(super) fn each(&self, job: &Job, what: &str) -> Vec<String> {
        self.counted(job).map(|(_, name)| format!("{name}: {what}")).collect()
    }

    /// The same, of one that failed, as far as so many are named; the others are counted.
    pub(super) fn failed(&mut self, job: &Job, what: &str) -> Vec<String> {
        let mut failed = std::mem::take(&mut self.failed);
        let lines = failed.name(self.counted(job), what, self.most);
        self.failed = failed;
        lines
    }

    /// The same, of one that was ended before its time.
    pub(super) fn stopped(&mut self, job: &Job) -> Vec<String> {
        let mut stopped = std::mem::take(&mut self.stopped);
        let lines = stopped.name(self.counted(job), "stopped", self.most);
        self.stopped = stopped;
        lines
    }

    /// `5 more lines failed, 3 stopped; 2> FILE names them all`
    pub(super) fn more(&self) -> Option<String> {
        let kinds = [(self.failed.more, "failed"), (self.stopped.more, "stopped")];
        let mut unit = format!(" more {}s", self.unit);
        let told = kinds.into_iter().filter(|(count, _)| *count > 0);
        let told: Vec<String> =
            told.map(|(count, what)| format!("{count}{} {what}", std::mem::take(&mut unit))).collect();
        (!told.is_empty()).then(|| format!("{}; 2> FILE names them all", told.join(", ")))
    }

    /// How many units, and what they are called: one each, but for those that are too many to be known by name.
    fn counted(&self, job: &Job) -> impl Iterator<Item = (u64, String)> {
        let rest = job.names.rest().map(|rest| {
            let (first, last) = rest.into_inner();
            (last - first + 1, format!("{}s {first} to {last}", self.unit))
        });
        job.names.iter().map(|(number, name)| (1, self.one(number, name))).chain(rest)
    }

    fn one(&self, number: u64, name: &[u8]) -> String {
        format!("{} {number} '{}'", self.unit, shown(name))
    }
}

impl Named {
    fn name(&mut self, units: impl Iterator<Item = (u64, String)>, what: &str, most: u64) -> Vec<String> {
        let mut lines = Vec::new();
        for (count, name) in units {
            if self.named < most {
                self.named += count;
                lines.push(format!("{name}: {what}"));
            } else {
                self.more += count;
            }
        }
        lines
    }
}
