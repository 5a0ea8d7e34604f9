//! Stores the contents of logs: 32 bytes for each attempt, and little else.

use super::entry::{Attempt, Entry, RunLine, Verdict, parse};
use super::keys::Keys;
use memchr::{memchr, memchr_iter, memrchr};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::thread;

/// Microseconds since 1970.
pub(super) type Micros = i64;

pub(super) const SECOND: Micros = 1_000_000;

/// The longest line of a log, in bytes; a longer line belongs to another program. The units of one command take at most
/// 4 MiB, and six times that in JSON.
const MAX_LINE_BYTES: usize = 25 << 20;

/// The bytes that are read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// The most failed units that are named.
pub(super) const MAX_NAMED_FAILURES: usize = 200;

/// The most characters of a unit that are shown.
const MAX_SHOWN_CHARS: usize = 200;

/// The least number of stored pauses before overlapping pauses are joined.
const MIN_JOINED_PAUSES: usize = 4096;

/// The most runs. Further runs are counted as one run.
const MAX_RUNS: usize = 10_000;

/// The longest plausible jump of the clock. A clock that jumps farther was wrong before the jump, or is wrong after it.
const MAX_JUMP: Micros = 7 * 24 * 3600 * SECOND;

/// The most spans of a run: a clock that jumps more often is not followed.
const MAX_SPANS: usize = 100;

/// The longest time by which a line may be out of order. Lines of commands that end at the same moment may be swapped,
/// and on a busy machine a line may be late.
const MAX_DISORDER: Micros = 10 * SECOND;

/// A stored attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) start: Micros,
    /// The lower 32 bits of its run time in microseconds. `ran_high` has the upper 8 bits. Together they hold at most
    /// 12 days.
    ran_low: u32,
    /// The learned pace in calls per second. It is 0 if there is no pace, or if the pace belongs to a key.
    pub(super) pace: f32,
    pub(super) key: u32,
    pub(super) seq: u32,
    /// The HTTP status; 0: none.
    pub(super) http: u16,
    pub(super) run: u16,
    pub(super) number: u16,
    ran_high: u8,
    pub(super) verdict: Verdict,
}

impl Kept {
    fn new(attempt: &Attempt<'_>, key: u32, run: u16) -> Self {
        let ran = u64::try_from(micros(attempt.ran)).unwrap_or_default().min((1 << 40) - 1);
        #[allow(clippy::cast_possible_truncation, reason = "both halves are kept; the pace is rounded")]
        let (ran_low, ran_high, pace) =
            (ran as u32, (ran >> 32) as u8, attempt.pace.filter(|_| attempt.key.is_none()).unwrap_or_default() as f32);
        Kept {
            start: micros(attempt.start),
            ran_low,
            pace,
            key,
            seq: attempt.seq.try_into().unwrap_or(u32::MAX),
            http: attempt.http.and_then(|http| http.try_into().ok()).unwrap_or_default(),
            run,
            number: attempt.number.try_into().unwrap_or(u16::MAX),
            ran_high,
            verdict: attempt.verdict,
        }
    }

    pub(super) fn ran(&self) -> Micros {
        Micros::from(self.ran_high) << 32 | Micros::from(self.ran_low)
    }

    pub(super) fn end(&self) -> Micros {
        self.start + self.ran()
    }
}

/// A run, from its lines.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Its id as JSON; empty if the log has none.
    id: String,
    pub(super) line: RunLine,
    pub(super) has_ended: bool,
    pub(super) counts: Counts,
    /// When it ran. Has several spans if the clock jumped.
    pub(super) spans: Vec<(Micros, Micros)>,
    /// When the last attempt ended.
    last: Micros,
    /// The last learned pace, if the run has no keys.
    pub(super) pace: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) units: u64,
    /// The number of attempts with each verdict.
    pub(super) ends: [u64; Verdict::ALL.len()],
    /// The number of units of these attempts.
    ended_units: [u64; Verdict::ALL.len()],
}

impl Counts {
    pub(super) fn attempts(&self) -> u64 {
        self.ends.iter().sum()
    }

    pub(super) fn of(&self, verdict: Verdict) -> u64 {
        self.ends[verdict as usize]
    }

    /// The number of units whose attempt had this verdict.
    pub(super) fn units_of(&self, verdict: Verdict) -> u64 {
        self.ended_units[verdict as usize]
    }

    /// The number of units: the number of units of first attempts, but at least the number of units that have ended. First
    /// attempts are missing in a log that begins later than its run.
    pub(super) fn all_units(&self) -> u64 {
        let ended = [Verdict::Ok, Verdict::Failed, Verdict::Stopped].map(|verdict| self.units_of(verdict));
        self.units.max(ended.iter().sum())
    }

    pub(super) fn add(&mut self, other: &Counts) {
        self.units += other.units;
        self.ends.iter_mut().zip(other.ends).for_each(|(sum, more)| *sum += more);
        self.ended_units.iter_mut().zip(other.ended_units).for_each(|(sum, more)| *sum += more);
    }
}

/// A unit that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) unit: String,
    pub(super) why: String,
    pub(super) attempts: u64,
    pub(super) http: Option<u64>,
    pub(super) at: Micros,
    run: u16,
    /// Whether the unit succeeded in a later run.
    pub(super) is_ok_later: bool,
}

/// The first line that is not a line of a log, and the number of such lines.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) name: String,
    pub(super) line: u64,
    pub(super) count: u64,
}

/// The contents of all logs.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) attempts: Vec<Kept>,
    pub(super) runs: Vec<Run>,
    /// The indexes of runs, by hashes of their ids.
    by_id: HashMap<u64, u32>,
    pub(super) keys: Keys,
    pub(super) failures: Vec<Failure>,
    /// The indexes of failures, by hashes of their units.
    failed: HashMap<u64, u32>,
    hasher: RandomState,
    pub(super) pauses: Vec<(Micros, Micros)>,
    /// The number of pauses at which overlapping pauses are joined.
    pauses_joined_at: usize,
    /// The number of attempts with each kind of end, and with each HTTP status.
    pub(super) ends: BTreeMap<End, u64>,
    pub(super) foreign: Option<Foreign>,
    /// The inputs whose last line is incomplete.
    pub(super) cut: Vec<String>,
    pub(super) steps_back: u64,
    /// The run for lines without a run id in the current input.
    unnamed: Option<u16>,
    /// The run of the last line.
    recent: Option<u16>,
}

impl History {
    /// Reads the lines of one input, which messages call `name`.
    ///
    /// # Errors
    /// The input cannot be read.
    pub(super) fn read(&mut self, name: &str, mut input: impl Read) -> io::Result<()> {
        let (mut held, mut is_too_long, mut number) = (Vec::new(), false, 0);
        (self.unnamed, self.recent) = (None, None);
        while input.by_ref().take(CHUNK_BYTES).read_to_end(&mut held)? > 0 {
            let first = if is_too_long { memchr(b'\n', &held).map_or(held.len(), |end| end + 1) } else { 0 };
            is_too_long &= first == held.len();
            let whole = memrchr(b'\n', &held).map_or(first, |last| last + 1).max(first);
            self.lines(&held[first..whole], name, &mut number);
            held.drain(..whole);
            if held.len() > MAX_LINE_BYTES {
                is_too_long = true;
                self.count_foreign(name, number + 1, 1);
                held = Vec::new();
            }
        }
        let is_cut = is_too_long || !held.is_empty() && !self.take(parse(&held));
        self.cut.extend(is_cut.then(|| name.to_owned()));
        Ok(())
    }

    /// Takes complete lines. Two threads parse one half each: parsing is most of the work.
    fn lines(&mut self, lines: &[u8], name: &str, number: &mut u64) {
        let middle = memrchr(b'\n', &lines[..lines.len() / 2]).map_or(0, |end| end + 1);
        let (one, two) = lines.split_at(middle);
        let parsed = thread::scope(|scope| {
            let other = thread::Builder::new().spawn_scoped(scope, || Lines::parse(one));
            let two = Lines::parse(two);
            // The system may refuse a thread.
            let one = other.ok().and_then(|other| other.join().ok()).unwrap_or_else(|| Lines::parse(one));
            [one, two]
        });
        for Lines { entries, count, foreign } in parsed {
            if let Some((first, count)) = foreign {
                self.count_foreign(name, *number + first, count);
            }
            *number += count;
            for entry in entries {
                self.take(Some(entry));
            }
        }
    }

    fn count_foreign(&mut self, name: &str, line: u64, count: u64) {
        self.foreign.get_or_insert_with(|| Foreign { name: name.to_owned(), line, count: 0 }).count += count;
    }

    /// Takes a line. Returns whether it is a line of a log.
    fn take(&mut self, entry: Option<Entry<'_>>) -> bool {
        match entry {
            Some(Entry::Attempt(attempt)) => self.add(&attempt),
            Some(Entry::Run(line)) => self.note(line),
            None => return false,
        }
        true
    }

    /// Takes the line at the beginning or the end of a run.
    fn note(&mut self, line: RunLine) {
        let id = serde_json::Value::from(&*line.id).to_string();
        let run = self.run(Some(&id));
        let run = &mut self.runs[usize::from(run)];
        if let Some(end) = line.end {
            run.has_ended = true;
            run.extend(micros(end));
        } else {
            if let Some(start) = line.start {
                run.extend(micros(start));
            }
            run.line = line;
        }
    }

    fn run(&mut self, id: Option<&str>) -> u16 {
        let Some(id) = id else {
            let place = self.unnamed.unwrap_or_else(|| self.new_run(""));
            self.unnamed = Some(place);
            return place;
        };
        let recent = self.recent.filter(|recent| self.runs[usize::from(*recent)].id == id);
        let hash = self.hasher.hash_one(id);
        let known = recent.or_else(|| u16::try_from(*self.by_id.get(&hash)?).ok());
        let place = known.unwrap_or_else(|| {
            let place = self.new_run(id);
            self.by_id.insert(hash, place.into());
            place
        });
        self.recent = Some(place);
        place
    }

    fn new_run(&mut self, id: &str) -> u16 {
        if self.runs.len() < MAX_RUNS {
            self.runs.push(Run { id: id.to_owned(), ..Run::default() });
        }
        u16::try_from(self.runs.len() - 1).unwrap_or_default()
    }

    fn add(&mut self, attempt: &Attempt<'_>) {
        let run = self.run(attempt.run.map(RawValue::get));
        let key = attempt.key.map_or(Keys::NONE, |key| self.keys.count(key.get(), attempt));
        let kept = Kept::new(attempt, key, run);
        self.attempts.push(kept);
        let known = &mut self.runs[usize::from(run)];
        self.steps_back += u64::from(kept.end() < known.last - MAX_DISORDER);
        known.extend(kept.start);
        known.extend(kept.end());
        known.last = kept.end();
        let units = attempt.units();
        known.counts.units += if attempt.number == 1 { units } else { 0 };
        known.counts.ends[attempt.verdict as usize] += 1;
        known.counts.ended_units[attempt.verdict as usize] += units;
        known.pace = attempt.pace.filter(|_| attempt.key.is_none());
        let status = (1..1000).contains(&kept.http).then_some(End::Http(kept.http));
        for end in [End::of(attempt)].into_iter().chain(status) {
            *self.ends.entry(end).or_default() += 1;
        }
        if let (Verdict::Later, None, Some(until)) = (attempt.verdict, attempt.key, attempt.until) {
            self.pause(kept.end(), micros(until));
        }
        self.fail_or_mend(attempt, &kept);
    }

    fn pause(&mut self, from: Micros, until: Micros) {
        self.pauses.extend((until > from).then_some((from, until)));
        if self.pauses.len() >= self.pauses_joined_at.max(MIN_JOINED_PAUSES) {
            self.pauses = joined(std::mem::take(&mut self.pauses), 0);
            self.pauses_joined_at = self.pauses.len() * 2;
        }
    }

    /// Stores a unit that failed, and records that a unit succeeded in a later run.
    fn fail_or_mend(&mut self, attempt: &Attempt<'_>, kept: &Kept) {
        let place = |history: &Self| history.failed.get(&history.hasher.hash_one(attempt.unit.get())).copied();
        if attempt.verdict == Verdict::Ok && !self.failed.is_empty() {
            let failure = place(self).and_then(|place| self.failures.get_mut(place as usize));
            failure
                .filter(|failure| failure.run != kept.run)
                .into_iter()
                .for_each(|failure| failure.is_ok_later = true);
        }
        if attempt.verdict == Verdict::Failed && self.failures.len() < MAX_NAMED_FAILURES {
            let place = u32::try_from(self.failures.len()).unwrap_or(u32::MAX);
            self.failed.insert(self.hasher.hash_one(attempt.unit.get()), place);
            self.failures.push(Failure {
                unit: shown(attempt.unit.get()),
                why: attempt.error.map_or_else(|| End::of(attempt).to_string(), |error| shown(error.get())),
                attempts: attempt.number,
                http: attempt.http,
                at: kept.end(),
                run: kept.run,
                is_ok_later: false,
            });
        }
    }

    /// Whether any attempt has a key.
    pub(super) fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }
}

/// Parsed lines.
#[derive(Debug, Default)]
struct Lines<'a> {
    entries: Vec<Entry<'a>>,
    count: u64,
    /// The number of the first line that is not a line of a log, from 1, and the number of such lines.
    foreign: Option<(u64, u64)>,
}

impl<'a> Lines<'a> {
    fn parse(lines: &'a [u8]) -> Self {
        let mut parsed = Lines::default();
        let mut start = 0;
        for end in memchr_iter(b'\n', lines) {
            let line = &lines[start..end];
            start = end + 1;
            parsed.count += 1;
            match parse(line) {
                Some(entry) => parsed.entries.push(entry),
                None if line.trim_ascii().is_empty() => {}
                None => parsed.foreign.get_or_insert((parsed.count, 0)).1 += 1,
            }
        }
        parsed
    }
}

impl Run {
    fn extend(&mut self, to: Micros) {
        if let Some(span) = self.spans.iter_mut().find(|span| to > span.0 - MAX_JUMP && to < span.1 + MAX_JUMP) {
            *span = (span.0.min(to), span.1.max(to));
        } else if self.spans.len() < MAX_SPANS {
            self.spans.push((to, to));
        }
    }
}

/// Joins spans that overlap, or are at most `apart` from each other.
pub(super) fn joined(mut spans: Vec<(Micros, Micros)>, apart: Micros) -> Vec<(Micros, Micros)> {
    spans.sort_unstable();
    let mut joined: Vec<(Micros, Micros)> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.0 <= last.1.saturating_add(apart) => last.1 = last.1.max(span.1),
            _ => joined.push(span),
        }
    }
    joined
}

#[allow(clippy::cast_possible_truncation, reason = "rounds; what is parsed is at most 1e11 s")]
fn micros(seconds: f64) -> Micros {
    (seconds * 1e6) as Micros
}

#[allow(clippy::cast_precision_loss, reason = "less than a page shows")]
pub(super) fn seconds(time: Micros) -> f64 {
    time as f64 / SECOND as f64
}

/// How an attempt ended, or its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// An exit with this code; 256 stands for all codes that no command can have.
    Exit(u16),
    Signal(u8),
    TimedOut,
    Other,
    Http(u16),
}

impl End {
    fn of(attempt: &Attempt<'_>) -> Self {
        match (attempt.timed_out, attempt.exit, attempt.signal) {
            (true, ..) => End::TimedOut,
            (_, Some(code), _) => End::Exit(u8::try_from(code).map_or(256, u16::from)),
            (_, _, Some(signal)) => End::Signal(u8::try_from(signal).unwrap_or(u8::MAX)),
            _ => End::Other,
        }
    }
}

impl Display for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            End::Exit(code) => write!(f, "exit {code}"),
            End::Signal(signal) => write!(f, "signal {signal}"),
            End::TimedOut => f.write_str("timed out"),
            End::Other => f.write_str("did not run to its end"),
            End::Http(status) => write!(f, "HTTP {status}"),
        }
    }
}

/// The first characters of a JSON text, of a list of texts, or of other JSON as it is.
pub(super) fn shown(json: &str) -> String {
    let text = match serde_json::from_str(json) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Array(list)) => {
            let texts = list.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned));
            texts.collect::<Vec<_>>().join(" ")
        }
        _ => json.to_owned(),
    };
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
