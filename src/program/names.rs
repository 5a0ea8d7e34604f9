//! Units and keys in messages: their names, a line for each unit that failed or was stopped, and news of keys.

use super::task::Commands;
use super::unit_name::{UnitName, counted};
use throttle::flow::{Dropped, FIRST_UNITS, News};
use throttle::launch::{Job, printable};
use throttle_limits::line::Crowd;

/// The most characters of a unit in a message.
const MAX_CHARACTERS: usize = 60;

/// The most units that are named one by one on a terminal. More would scroll everything else away.
pub(super) const MAX_NAMED_ON_TERMINAL: u64 = 20;

/// Names units in messages. If standard error is not a terminal, all units are named. It may be a file, from which a
/// user runs the units again.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The word for a unit, such as `line`.
    unit: &'static str,
    /// The most units of each [`End`] that are named.
    most: u64,
    /// Whether units are no longer named or counted.
    is_stopped: bool,
    /// The name of the single command, for which no unit is read.
    once: Option<String>,
    /// For each [`End`], the number of units that were named, and the number of units that were only counted.
    counts: [(u64, u64); 3],
}

/// Why a unit is named.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Failed,
    Stopped,
    /// The unit will not be tried again, because the run ends.
    GivenUp,
}

impl Names {
    pub(super) fn new(commands: &Commands, most: u64) -> Self {
        let is_made = commands.input.repeat.is_some();
        let unit = if is_made { "unit" } else { UnitName::of(commands.framing).singular() };
        Names { unit, most, once: commands.is_once.then(|| commands.name()), ..Names::default() }
    }

    /// Names no more units.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// `line 3 'https://…'`: the first unit of a command.
    pub(super) fn first(&self, job: &Job) -> String {
        let name = || job.names.iter().next().map_or_else(String::new, |(number, name)| one(self.unit, number, name));
        self.once.clone().unwrap_or_else(name)
    }

    /// `next line not started: 3 'https://…'`
    pub(super) fn next(&self, first: Option<(u64, &[u8])>) -> String {
        let name = first.map(|(number, name)| format!("{number} '{}'", shown(name)));
        format!("next {} not started: {}", self.unit, name.unwrap_or_default())
    }

    /// A line for each unit of a command.
    pub(super) fn each(&self, job: &Job, what: &str) -> Vec<String> {
        called(self.unit, job).map(|(_, name)| format!("{name}: {what}")).collect()
    }

    /// A line for each unit of a command that ended with `end`. Once `most` units were named, further units are only
    /// counted.
    pub(super) fn name(&mut self, end: End, job: &Job, what: &str) -> Vec<String> {
        if let Some(name) = &self.once {
            let is_named = matches!(end, End::Failed) && self.most > 0;
            let line = || if what.starts_with(&**name) { what.to_owned() } else { format!("{name}: {what}") };
            return is_named.then(line).into_iter().collect();
        }
        let (named, more) = &mut self.counts[end as usize];
        let mut lines = Vec::new();
        for (count, name) in called(self.unit, job).filter(|_| !self.is_stopped) {
            if *named < self.most {
                *named += count;
                lines.push(format!("{name}: {what}"));
            } else {
                *more += count;
            }
        }
        lines
    }

    /// `5 more lines failed, 3 stopped; 2> FILE names them all`
    pub(super) fn more(&self) -> Option<String> {
        let [failed, stopped, given_up] = self.counts.map(|(_, more)| more);
        let kinds = [(failed, "failed"), (stopped, "stopped"), (given_up, "not tried again")];
        let mut unit = format!(" more {}s", self.unit);
        let parts = kinds.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> =
            parts.map(|(count, what)| format!("{count}{} {what}", std::mem::take(&mut unit))).collect();
        (!parts.is_empty()).then(|| format!("{}; 2> FILE names them all", parts.join(", ")))
    }
}

/// The names of a job's units, each with the number of units that it names. Units whose names are not stored share one
/// name, such as `lines 3 to 9`.
fn called(unit: &'static str, job: &Job) -> impl Iterator<Item = (u64, String)> {
    let rest = job.names.rest().map(|rest| {
        let (first, last) = rest.into_inner();
        (last - first + 1, format!("{unit}s {first} to {last}"))
    });
    job.names.iter().map(move |(number, name)| (1, one(unit, number, name))).chain(rest)
}

/// `line 3 'https://…'`
pub(super) fn one(unit: &str, number: u64, name: &[u8]) -> String {
    format!("{unit} {number} '{}'", shown(name))
}

/// A unit in a message: its beginning, with control characters escaped.
pub(super) fn shown(unit: &[u8]) -> String {
    let text = String::from_utf8_lossy(unit);
    let text = text.trim_end_matches('\n');
    let mut chars = text.chars();
    let beginning: String = chars.by_ref().take(MAX_CHARACTERS).collect();
    let beginning = printable(&beginning);
    if chars.next().is_some() { format!("{beginning}…") } else { beginning }
}

/// The message about `news`.
pub(super) fn news_text(news: &News) -> String {
    match news {
        News::Full(Crowd { units, most_in_memory: Some(most), .. }) => {
            format!(
                "there is no memory for the limits of more than {most} keys, so {units} units wait; ulimit -v allows more"
            )
        }
        News::Full(Crowd { units, keys, most, .. }) => {
            let (keys, most) = (counted(*keys, "key"), shown(most));
            format!(
                "all {units} units read ahead wait for {keys}, most of them for '{most}'; shuffle the input \
                 (shuf) or raise --ahead"
            )
        }
        News::NoKeys(per) => {
            let host = if per.to_string() == "host" { "; for names without http:// write per=f1" } else { "" };
            format!("hint: per={per} finds no key in the first {FIRST_UNITS} units, so they share one limit{host}")
        }
        News::Dropped(Dropped { units, keys }) => {
            let units = counted(*units, "unit");
            match (keys.len(), keys.iter().max_by_key(|(_, units)| **units)) {
                (2.., Some((most, _))) => format!("dropped {units} ({} keys, most from '{}')", keys.len(), shown(most)),
                (_, Some((key, _))) => format!("dropped {units} (all of '{}')", shown(key)),
                (_, None) => format!("dropped {units}"),
            }
        }
    }
}
