//! `--log FILE`: one line of JSON for each attempt that has ended, and one at the beginning and at the end of a run.

use super::append::append;
use super::failure;
use super::time_of_day::utc_offset;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::str::{Utf8Error, from_utf8};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};
use throttle::flow::unpoisoned;
use throttle::launch::{Ended, Job, Outcome, Verdict};

/// The most bytes logged of a unit that goes to standard input.
const MAX_UNIT_BYTES: usize = 4096;

/// A file of any kind, to which lines are appended.
#[derive(Debug)]
pub(super) struct Log {
    file: Mutex<Writer>,
    path: PathBuf,
    is_regular: bool,
    /// The id of this run in its lines.
    run: String,
}

#[derive(Debug)]
struct Writer {
    file: File,
    totals: Totals,
    /// The first line of the run; empty once it was written.
    first: String,
    /// Whether lines could not be written. The error was reported.
    is_lost: bool,
}

impl Writer {
    fn append(&mut self, line: &str) -> io::Result<()> {
        let lines = std::mem::take(&mut self.first) + line;
        let written = append(&self.file, lines.as_bytes());
        self.is_lost |= written.is_err();
        written
    }
}

/// The counts for the last line of a run: attempts and refused attempts, and units.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    attempts: u64,
    units: u64,
    ok: u64,
    refused: u64,
    failed: u64,
    stopped: u64,
}

impl Totals {
    fn count(&mut self, ended: &Ended) {
        let units = ended.job.unit_count();
        self.attempts += 1;
        self.units += if ended.number == 1 { units } else { 0 };
        match ended.verdict {
            Verdict::Ok => self.ok += units,
            Verdict::Again(_) => {}
            Verdict::Later(_) => self.refused += 1,
            Verdict::Failed => self.failed += units,
            Verdict::Stopped => self.stopped += units,
        }
    }
}

/// The content of the first line of a run.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) limits: Vec<String>,
    /// The most commands at once; 0 is no cap.
    pub(super) jobs: u32,
    /// The command line as a user would type it, without passwords.
    pub(super) command: String,
}

/// A line about an attempt that has ended. A field without a value is `null`. The fields:
/// - `seq`: the number of the command, from 1; its later attempts have the same number.
/// - `unit`, or `unit_base64` if the unit is not UTF-8. If the command has several units: `units` or `units_base64`, a
///   list.
/// - `cut`: whether only the beginning is logged. It is 4096 bytes of a unit that goes to standard input. If a unit was
///   too long to be stored, it is 200 bytes of each unit.
/// - `key`: the value of the `per=` selector in the unit.
/// - `try`: the number of the attempt, from 1.
/// - `start`: its start, in seconds since 1970.
/// - `waited`: the wait before its start, in seconds. The wait begins when the unit is read or when the attempt is due.
/// - `ran`: seconds from its start to its end.
/// - `exit`: the exit code, if the command exited.
/// - `signal`: the number of the signal that killed the command, if there was one.
/// - `timed_out`: whether the command was ended because it took too long.
/// - `http`: the status of the reply.
/// - `verdict`: the consequence of the outcome.
/// - `pace`: the units that may start in a second, if the server allows less than the limits. With limits for each key,
///   it counts the units of its key.
/// - `until`: the time of the next attempt, in seconds since 1970.
/// - `charged`: the cost charged to the limits. If several limits have costs, it is the cost for the first of them.
/// - `cost`: the cost in the reply.
/// - `slot`: its slot, from 0, as in `THROTTLE_SLOT`.
/// - `error`: why the command could not start, or why its output was lost.
/// - `run`: the id in the first line of the run.
fn line(ended: &Ended, start: SystemTime, until: Option<SystemTime>, run: &str) -> String {
    let Ended { job, outcome, reply, .. } = ended;
    let (units, cut) = units(job);
    let (name, units) = written(&units);
    let key = job.key.as_deref().map(String::from_utf8_lossy);
    let ran = ended.at.saturating_duration_since(ended.started);
    let (exit, signal) = match outcome {
        Outcome::Ok => (Some(0), None),
        Outcome::Exited(code) => (Some(*code), None),
        Outcome::Killed(signal) => (None, Some(*signal)),
        _ => (None, None),
    };
    let is_free =
        matches!(outcome, Outcome::Unreadable(_) | Outcome::TooCostly | Outcome::SentAway | Outcome::KeyFailed(_));
    let http = reply.status(matches!(ended.verdict, Verdict::Later(_)));
    let fields = [
        ("seq", job.seq.to_string()),
        (name, units),
        ("cut", cut.to_string()),
        ("key", Value::from(key).to_string()),
        ("try", ended.number.to_string()),
        ("start", epoch(start)),
        ("waited", seconds(ended.waited)),
        ("ran", seconds(ran)),
        ("exit", Value::from(exit).to_string()),
        ("signal", Value::from(signal).to_string()),
        ("timed_out", matches!(outcome, Outcome::TimedOut).to_string()),
        ("http", Value::from(http).to_string()),
        ("verdict", Value::from(verdict_name(ended.verdict)).to_string()),
        ("pace", Value::from(ended.pace.map(|pace| 1.0 / pace.as_secs_f64())).to_string()),
        ("until", until.map_or_else(|| Value::Null.to_string(), epoch)),
        ("charged", if is_free { 0 } else { job.charged }.to_string()),
        ("cost", Value::from(ended.cost).to_string()),
        ("slot", ended.slot.to_string()),
        ("error", Value::from(failure::error(outcome)).to_string()),
        ("run", Value::from(run).to_string()),
    ];
    format!("{{{}}}\n", fields.map(|(name, value)| format!("\"{name}\":{value}")).join(","))
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Again(_) => "again",
        Verdict::Later(_) => "later",
        Verdict::Failed => "failed",
        Verdict::Stopped => "stopped",
    }
}

impl Log {
    /// Opens or makes a file, to append to it. For a named pipe, waits until another process reads it.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let cannot =
            || format!("--log: cannot open {}; name a file that can be written: --log tries.jsonl", path.display());
        let file = File::options().append(true).create(true).open(path).with_context(cannot)?;
        let is_regular = file.metadata().with_context(cannot)?.is_file();
        if is_regular && is_torn(path) {
            append(&file, b"\n").with_context(cannot)?;
        }
        let run = format!("{:012x}", fastrand::u64(..1 << 48));
        let writer = Writer { file, totals: Totals::default(), first: String::new(), is_lost: false };
        Ok(Log { file: Mutex::new(writer), path: path.to_owned(), is_regular, run })
    }

    /// Writes the first line of a run: its id, its start, the seconds by which local time is ahead of UTC, and `begun`.
    /// A write to a pipe may wait for its reader. So a pipe gets this line together with the line of the first attempt.
    ///
    /// # Errors
    /// The line cannot be written.
    pub(super) fn begin(&self, begun: &Begun) -> io::Result<()> {
        let Begun { limits, jobs, command } = begun;
        let now = SystemTime::now();
        let offset = utc_offset(since_1970(now).as_secs().try_into().unwrap_or(i64::MAX));
        let (id, start, version) = (&self.run, epoch(now), env!("CARGO_PKG_VERSION"));
        let [limits, command] = [Value::from(limits.clone()), Value::from(command.as_str())];
        let mut writer = unpoisoned(self.file.lock());
        writer.first = format!(
            "{{\"run\":{{\"id\":\"{id}\",\"start\":{start},\"utc_offset\":{offset},\"version\":\"{version}\",\
             \"limits\":{limits},\"jobs\":{jobs},\"command\":{command}}}}}\n"
        );
        if self.is_regular { writer.append("") } else { Ok(()) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is a regular file, so that a write never waits for a reader.
    pub(super) fn is_regular(&self) -> bool {
        self.is_regular
    }

    /// Writes the line of an attempt in one write.
    ///
    /// # Errors
    /// The line cannot be written. Its beginning is cut off again if possible.
    pub(super) fn write(&self, ended: &Ended) -> io::Result<()> {
        let now = SystemTime::now();
        let start = now.checked_sub(ended.started.elapsed()).unwrap_or(now);
        let until = ended.due_in.and_then(|due| now.checked_add(due));
        let line = line(ended, start, until, &self.run);
        let mut writer = unpoisoned(self.file.lock());
        writer.totals.count(ended);
        writer.append(&line)
    }

    /// Writes the last line of the run, with the totals, and syncs a regular file to the disk.
    ///
    /// # Errors
    /// Lines may be lost.
    pub(super) fn finish(&self) -> io::Result<()> {
        let mut writer = unpoisoned(self.file.lock());
        if writer.is_lost || !writer.first.is_empty() {
            return Ok(());
        }
        let Totals { attempts, units, ok, refused, failed, stopped } = writer.totals;
        let (id, end) = (&self.run, epoch(SystemTime::now()));
        let line = format!(
            "{{\"run\":{{\"id\":\"{id}\",\"end\":{end},\"units\":{units},\"attempts\":{attempts},\"ok\":{ok},\
             \"failed\":{failed},\"stopped\":{stopped},\"refused\":{refused}}}}}\n"
        );
        match writer.append(&line) {
            // A reader may leave once it has read the lines of all attempts.
            Err(error) if !self.is_regular && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Ok(()) if self.is_regular => writer.file.sync_data(),
            written => written,
        }
    }
}

/// Whether the last line lacks its end, for example after a crash. Then the next line must not be appended to it. A
/// file that cannot be read is not torn.
fn is_torn(path: &Path) -> bool {
    let mut last = *b"\n";
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)
    });
    read.is_ok() && last != *b"\n"
}

/// Seconds with six decimals. They are exact: a float would round.
fn seconds(time: Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

fn epoch(time: SystemTime) -> String {
    seconds(since_1970(time))
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The logged bytes of each unit, and whether some units are logged only in part.
fn units(job: &Job) -> (Vec<&[u8]>, bool) {
    if !job.is_whole() {
        return (job.names.iter().map(|(_, name)| whole_characters(name)).collect(), true);
    }
    let is_cut = |unit: &&[u8]| !job.shape.gives_arguments() && unit.len() > MAX_UNIT_BYTES;
    let beginning = |unit| if is_cut(&unit) { whole_characters(&unit[..MAX_UNIT_BYTES]) } else { unit };
    (job.units.iter().map(beginning).collect(), job.units.iter().any(|unit| is_cut(&unit)))
}

/// Removes an incomplete character from the end of `beginning`.
fn whole_characters(beginning: &[u8]) -> &[u8] {
    match from_utf8(beginning) {
        Err(error) if error.error_len().is_none() => &beginning[..error.valid_up_to()],
        _ => beginning,
    }
}

/// The name and the value of the field for `units`.
fn written(units: &[&[u8]]) -> (&'static str, String) {
    let texts: Result<Vec<&str>, Utf8Error> = units.iter().map(|unit| from_utf8(unit)).collect();
    match (texts, units) {
        (Ok(texts), [_]) => ("unit", Value::from(texts[0]).to_string()),
        (Ok(texts), _) => ("units", Value::from(texts).to_string()),
        (Err(_), [unit]) => ("unit_base64", Value::from(base64(unit)).to_string()),
        (Err(_), units) => {
            let units: Vec<String> = units.iter().map(|unit| base64(unit)).collect();
            ("units_base64", Value::from(units).to_string())
        }
    }
}

/// Base64 as in RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let byte = |place| u32::from(bytes.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |place: usize| char::from(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]);
        [0, 1, 2, 3].map(|place| if place <= bytes.len() { digit(place) } else { '=' })
    };
    bytes.chunks(3).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::Arc;
    use std::time::Instant;
    use throttle::launch::{Answer, Paused, Reply, Shape};

    fn job(units: &[&[u8]], to_stdin: bool) -> Job {
        let mut job = Job::default();
        (job.seq, job.charged) = (7, 1);
        (job.units, job.shape) = (units.iter().collect(), Shape { max_args: 1, to_stdin, ..Shape::default() });
        job
    }

    fn ended(job: Job) -> Ended {
        let now = Instant::now();
        Ended {
            job: Arc::new(job),
            number: 2,
            outcome: Outcome::Killed(9),
            verdict: Verdict::Again(0),
            due_in: None,
            pause: Paused::default(),
            pace: Some(Duration::from_millis(40)),
            reply: Reply::default(),
            cost: None,
            waited: Duration::from_nanos(1_500_000_999),
            started: now,
            at: now,
            slot: 3,
        }
    }

    fn line_of(ended: &Ended) -> String {
        line(ended, SystemTime::UNIX_EPOCH + Duration::from_micros(1_800_000_000_000_250), None, "1f")
    }

    fn parsed(job: Job) -> Value {
        let line = line_of(&ended(job));
        assert_eq!(line.find('\n'), Some(line.len() - 1), "one line");
        serde_json::from_str(&line).unwrap()
    }

    /// The vectors of RFC 4648, section 10, and the last two digits.
    #[test]
    fn base64_is_that_of_the_standard() {
        let vectors = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, text) in vectors.into_iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), text);
        }
        assert_eq!(base64(b"\xfb\xff\xbf"), "+/+/");
    }

    #[test]
    fn a_line_has_all_fields_in_order_and_exact_times() {
        assert_eq!(
            line_of(&ended(job(&[b"a \"b\""], false))),
            "{\"seq\":7,\"unit\":\"a \\\"b\\\"\",\"cut\":false,\"key\":null,\"try\":2,\"start\":1800000000.000250,\
             \"waited\":1.500000,\"ran\":0.000000,\"exit\":null,\"signal\":9,\"timed_out\":false,\"http\":null,\
             \"verdict\":\"again\",\"pace\":25.0,\"until\":null,\"charged\":1,\"cost\":null,\"slot\":3,\"error\":null,\"run\":\"1f\"}\n"
        );
        let (start, until) = (SystemTime::UNIX_EPOCH - Duration::from_secs(1), SystemTime::UNIX_EPOCH);
        let mut keyed = job(&[b"a"], false);
        keyed.key = Some(b"k\n"[..].into());
        let other = Ended {
            outcome: Outcome::CannotRun(io::Error::other("no \\ such")),
            verdict: Verdict::Later(0),
            reply: Answer { status: Some(429), ..Answer::default() }.into(),
            cost: Some(u64::MAX),
            ..ended(keyed)
        };
        let line: Value =
            serde_json::from_str(&line(&other, start, Some(until + Duration::from_secs(60)), "1f")).unwrap();
        let error = "cannot be run: no \\ such";
        assert_eq!((&line["key"], &line["http"], &line["error"]), (&"k\n".into(), &429.into(), &error.into()));
        assert_eq!((&line["until"], &line["cost"], &line["exit"]), (&60.0.into(), &u64::MAX.into(), &Value::Null));
    }

    #[test]
    fn every_unit_can_be_read_back_from_its_line() {
        let all: Vec<u8> = (0..=255).collect();
        let mut units: Vec<Vec<u8>> = all.iter().map(|byte| vec![*byte]).collect();
        // Halves of surrogate pairs in UTF-8, overlong and cut characters, line ends of Unicode, and long units.
        units.extend(
            [&b"\xed\xa0\x80"[..], b"\xed\xb0\x80", b"\xc0\xaf", b"\xe2\x82", b"\xe2\x80\xa8\xc2\x85", b""]
                .map(Vec::from),
        );
        units.extend([all, "\"\\\u{7}é".repeat(20_000).into_bytes(), vec![0xff; 100 << 10]]);
        for unit in units {
            let line = parsed(job(&[&unit], false));
            let found = match from_utf8(&unit) {
                Ok(text) => line["unit"] == text,
                Err(_) => line["unit_base64"] == base64(&unit),
            };
            assert!(found && line["cut"] == false, "{line}");
        }
    }

    #[test]
    fn several_units_are_a_list_and_long_units_are_cut() {
        assert_eq!(parsed(job(&[b"a", b"", b"b"], false))["units"], Value::from(["a", "", "b"].to_vec()));
        let line = parsed(job(&[b"a", b"\xff"], true));
        assert_eq!(line["units_base64"], Value::from(["YQ==", "/w=="].to_vec()));
        assert_eq!((line["cut"].as_bool(), line["units"].is_null()), (Some(false), true));
        // The limit lies inside a character.
        let long = format!("x{}", "é".repeat(MAX_UNIT_BYTES));
        let line = parsed(job(&[b"a", long.as_bytes()], true));
        assert_eq!((&line["units"][1], &line["cut"]), (&Value::from(&long[..MAX_UNIT_BYTES - 1]), &true.into()));
        let bytes = [0xff; MAX_UNIT_BYTES + 1];
        assert_eq!(parsed(job(&[&bytes], true))["unit_base64"], base64(&bytes[..MAX_UNIT_BYTES]));
        let exact = "x".repeat(MAX_UNIT_BYTES);
        assert_eq!(parsed(job(&[exact.as_bytes()], true))["cut"], false);
        let mut unknown = job(&[], true);
        unknown.too_long_to_keep = true;
        unknown.names.push(1, "é".as_bytes());
        let line = parsed(unknown);
        assert_eq!((&line["unit"], &line["cut"]), (&"é".into(), &true.into()));
    }

    #[test]
    fn lines_are_appended_and_never_to_a_torn_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let one = ended(job(&[b"a"], false));
        for (before, lines) in [(None, 1), (Some("{}\n"), 2), (Some("{}\n{\"se"), 3)] {
            if let Some(before) = before {
                fs::write(&path, before).unwrap();
            }
            let log = Log::open(&path).unwrap();
            log.write(&one).unwrap();
            log.finish().unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert!(log.is_regular() && text.ends_with("}\n") || before.is_none());
            // And the end of the run.
            assert_eq!(text.lines().count(), lines + 1);
        }
    }

    /// A device without storage cannot be synced.
    #[test]
    fn the_end_of_a_run_is_synced() {
        let log = Log { is_regular: true, ..Log::open(Path::new("/dev/null")).unwrap() };
        assert_eq!(log.finish().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
