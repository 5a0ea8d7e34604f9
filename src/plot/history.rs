//! What is kept of the lines: 32 bytes an attempt, and little of everything else.

use super::entry::{Attempt, Entry, RunLine, Verdict, parse};
use super::keys::Keys;
use memchr::{memchr, memchr_iter, memrchr};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::thread;

/// Microseconds since 1970.
pub(super) type Micros = i64;

pub(super) const SECOND: Micros = 1_000_000;

/// A longer line belongs to another program. The units of one command take at most 4 MiB, and six times that in JSON.
const LONGEST_LINE: usize = 25 << 20;

/// How much is read at once, in bytes.
const CHUNK: u64 = 1 << 20;

/// How many failed units are named.
pub(super) const NAMED: usize = 200;

/// How many characters of a unit are shown.
const SHOWN: usize = 200;

/// How many pauses are kept, at least, before those that overlap become one.
const PAUSES: usize = 4096;

/// Runs beyond these count as one.
const RUNS: usize = 10_000;

/// A clock that jumps farther was wrong before, or is now.
const JUMP: Micros = 7 * 24 * 3600 * SECOND;

/// A clock that jumps more often is not followed.
const SPANS: usize = 100;

/// Lines of commands that end at the same moment may be swapped, and on a busy machine a line may be late.
const SWAPPED: Micros = 10 * SECOND;

/// An attempt, as it is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) start: Micros,
    /// How long it ran, in microseconds: at most 12 days. The rest of it is in `ran_high`.
    ran_low: u32,
    /// 0: none, or that of a key.
    pub(super) pace: f32,
    pub(super) key: u32,
    pub(super) seq: u32,
    /// 0: none.
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

/// A run, by its lines.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Its id as JSON; empty if the log has none.
    id: String,
    pub(super) line: RunLine,
    pub(super) has_ended: bool,
    pub(super) counts: Counts,
    /// When it ran. There are several if the clock jumped.
    pub(super) spans: Vec<(Micros, Micros)>,
    /// When the last attempt ended.
    last: Micros,
    /// The last learned pace, if there are no keys.
    pub(super) pace: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) units: u64,
    /// Attempts by verdict.
    pub(super) ends: [u64; Verdict::ALL.len()],
}

impl Counts {
    pub(super) fn attempts(&self) -> u64 {
        self.ends.iter().sum()
    }

    pub(super) fn of(&self, verdict: Verdict) -> u64 {
        self.ends[verdict as usize]
    }

    /// All units. First attempts may be missing, in a log that begins later than its run.
    pub(super) fn all_units(&self) -> u64 {
        let ended = [Verdict::Ok, Verdict::Failed, Verdict::Stopped].map(|verdict| self.of(verdict));
        self.units.max(ended.iter().sum())
    }

    pub(super) fn add(&mut self, other: &Counts) {
        self.units += other.units;
        self.ends.iter_mut().zip(other.ends).for_each(|(sum, more)| *sum += more);
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
    /// Whether a later run had it succeed.
    pub(super) is_ok_later: bool,
}

/// Where the first line is that no log has, and how many there are.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) name: String,
    pub(super) line: u64,
    pub(super) count: u64,
}

/// All that was read.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) attempts: Vec<Kept>,
    pub(super) runs: Vec<Run>,
    /// The places of runs, by hashes of their ids.
    by_id: HashMap<u64, u32>,
    pub(super) keys: Keys,
    pub(super) failures: Vec<Failure>,
    /// The places of failures, by their units.
    failed: HashMap<u64, u32>,
    hasher: RandomState,
    pub(super) pauses: Vec<(Micros, Micros)>,
    /// How many pauses there may be before those that overlap become one.
    pauses_joined_at: usize,
    /// How often attempts ended in which way, and with which status.
    pub(super) ends: Ends,
    pub(super) foreign: Option<Foreign>,
    /// Inputs whose last line is not complete.
    pub(super) cut: Vec<String>,
    pub(super) steps_back: u64,
    /// The run of lines of this input that name none, and the run of the last line.
    unnamed: Option<u16>,
    recent: Option<u16>,
}

impl History {
    /// Reads the lines of one input, which messages call `name`.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read(&mut self, name: &str, mut input: impl Read) -> io::Result<()> {
        let (mut held, mut is_too_long, mut number) = (Vec::new(), false, 0);
        (self.unnamed, self.recent) = (None, None);
        while input.by_ref().take(CHUNK).read_to_end(&mut held)? > 0 {
            let first = if is_too_long { memchr(b'\n', &held).map_or(held.len(), |end| end + 1) } else { 0 };
            is_too_long &= first == held.len();
            let whole = memrchr(b'\n', &held).map_or(first, |last| last + 1).max(first);
            self.lines(&held[first..whole], name, &mut number);
            held.drain(..whole);
            if held.len() > LONGEST_LINE {
                is_too_long = true;
                self.count_foreign(name, number + 1, 1);
                held = Vec::new();
            }
        }
        let is_cut = is_too_long || !held.is_empty() && !self.take(parse(&held));
        self.cut.extend(is_cut.then(|| name.to_owned()));
        Ok(())
    }

    /// Takes whole lines. Two threads parse a half of them each, which is most of the work.
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

    /// Takes a line; returns whether it is one of a log.
    fn take(&mut self, entry: Option<Entry<'_>>) -> bool {
        match entry {
            Some(Entry::Attempt(attempt)) => self.add(&attempt),
            Some(Entry::Run(line)) => self.note(line),
            None => return false,
        }
        true
    }

    /// The beginning or the end of a run.
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
        if self.runs.len() < RUNS {
            self.runs.push(Run { id: id.to_owned(), ..Run::default() });
        }
        u16::try_from(self.runs.len() - 1).unwrap_or_default()
    }

    fn add(&mut self, attempt: &Attempt<'_>) {
        let run = self.run(attempt.run);
        let key = attempt.key.map_or(Keys::NONE, |key| self.keys.count(key, attempt));
        let kept = Kept::new(attempt, key, run);
        self.attempts.push(kept);
        let known = &mut self.runs[usize::from(run)];
        self.steps_back += u64::from(kept.end() < known.last - SWAPPED);
        known.extend(kept.start);
        known.extend(kept.end());
        known.last = kept.end();
        known.counts.units += u64::from(attempt.number == 1);
        known.counts.ends[attempt.verdict as usize] += 1;
        known.pace = attempt.pace.filter(|_| attempt.key.is_none());
        self.ends.count(attempt);
        if let (Verdict::Later, None, Some(until)) = (attempt.verdict, attempt.key, attempt.until) {
            self.pause(kept.end(), micros(until));
        }
        self.fail_or_mend(attempt, &kept);
    }

    fn pause(&mut self, from: Micros, until: Micros) {
        self.pauses.extend((until > from).then_some((from, until)));
        if self.pauses.len() >= self.pauses_joined_at.max(PAUSES) {
            self.pauses = joined(std::mem::take(&mut self.pauses), 0);
            self.pauses_joined_at = self.pauses.len() * 2;
        }
    }

    /// Names a unit that failed, and notes that a later run had it succeed.
    fn fail_or_mend(&mut self, attempt: &Attempt<'_>, kept: &Kept) {
        let place = |history: &Self| history.failed.get(&history.hasher.hash_one(attempt.unit)).copied();
        if attempt.verdict == Verdict::Ok && !self.failed.is_empty() {
            let failure = place(self).and_then(|place| self.failures.get_mut(place as usize));
            failure
                .filter(|failure| failure.run != kept.run)
                .into_iter()
                .for_each(|failure| failure.is_ok_later = true);
        }
        if attempt.verdict == Verdict::Failed && self.failures.len() < NAMED {
            let place = u32::try_from(self.failures.len()).unwrap_or(u32::MAX);
            self.failed.insert(self.hasher.hash_one(attempt.unit), place);
            self.failures.push(Failure {
                unit: shown(attempt.unit),
                why: attempt.error.map_or_else(|| Ends::name(Ends::place(attempt)), shown),
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

/// Lines that were parsed.
#[derive(Debug, Default)]
struct Lines<'a> {
    entries: Vec<Entry<'a>>,
    count: u64,
    /// The number of the first line that no log has, from 1, and how many there are.
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
        if let Some(span) = self.spans.iter_mut().find(|span| to > span.0 - JUMP && to < span.1 + JUMP) {
            *span = (span.0.min(to), span.1.max(to));
        } else if self.spans.len() < SPANS {
            self.spans.push((to, to));
        }
    }
}

/// Spans that overlap, or are at most `apart` from each other, become one.
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

/// How often attempts ended in which way: places of exit codes, of signals, of other ends, and of statuses.
#[derive(Debug)]
pub(super) struct Ends(Vec<u64>);

impl Default for Ends {
    fn default() -> Self {
        Ends(vec![0; Self::STATUSES + 1000])
    }
}

impl Ends {
    /// Codes that no command has are one.
    const NO_CODE: usize = 256;
    const SIGNALS: usize = Self::NO_CODE + 1;
    const TIMED_OUT: usize = Self::SIGNALS + 256;
    const OTHER: usize = Self::TIMED_OUT + 1;
    const STATUSES: usize = Self::OTHER + 1;

    fn place(attempt: &Attempt<'_>) -> usize {
        match (attempt.timed_out, attempt.exit, attempt.signal) {
            (true, ..) => Self::TIMED_OUT,
            (_, Some(code), _) => u8::try_from(code).map_or(Self::NO_CODE, usize::from),
            (_, _, Some(signal)) => Self::SIGNALS + usize::from(u8::try_from(signal).unwrap_or(u8::MAX)),
            _ => Self::OTHER,
        }
    }

    fn count(&mut self, attempt: &Attempt<'_>) {
        self.0[Self::place(attempt)] += 1;
        let status = attempt
            .http
            .and_then(|status| u16::try_from(status).ok())
            .map(|status| Self::STATUSES + usize::from(status));
        status.and_then(|place| self.0.get_mut(place)).into_iter().for_each(|count| *count += 1);
    }

    fn name(place: usize) -> String {
        match place {
            0..=Self::NO_CODE => format!("exit {place}"),
            Self::TIMED_OUT => "timed out".to_owned(),
            Self::OTHER => "did not run to its end".to_owned(),
            Self::STATUSES.. => format!("HTTP {}", place - Self::STATUSES),
            _ => format!("signal {}", place - Self::SIGNALS),
        }
    }

    /// Each that there was, by its name.
    pub(super) fn all(&self) -> impl Iterator<Item = (String, u64)> {
        let all = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(place, count)| (Self::name(place), *count))
    }
}

/// The beginning of a JSON text, a list of texts, or what it is instead.
pub(super) fn shown(json: &str) -> String {
    let text = match serde_json::from_str(json) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Array(list)) => {
            let texts = list.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned));
            texts.collect::<Vec<_>>().join(" ")
        }
        _ => json.to_owned(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
