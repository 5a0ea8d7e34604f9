//! The rates of named keys: `rates=FILE`, lines of `KEY LIMIT`.

use super::args::OwnRates;
use super::names::shown;
use super::task::Task;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use throttle::flow::without_mark;
use throttle_limits::line::NamedKey;

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Reads the file of rates, if the task names one.
///
/// # Errors
/// The file cannot be read, or a line in it is wrong. The message shows how to write the line.
pub(super) fn read(task: &mut Task) -> Result<(), String> {
    let limits = match task {
        Task::Pipe(pipe) => &mut pipe.limits,
        Task::Launch(launch) => &mut launch.limits,
        _ => return Ok(()),
    };
    let Some(named) = &mut limits.named else { return Ok(()) };
    let Some(path) = named.rates().map(Path::to_owned) else { return Ok(()) };
    let about = |what: &str| format!("--rate: rates={}: {what}", path.display());
    let text = contents(&path).map_err(|what| about(&what))?;
    let (mut own, mut lines) = (OwnRates::new(named)?, HashMap::new());
    for (number, line) in (1_u64..).zip(without_mark(&text).split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let mut add = || {
            let (key, limit) = key_and_limit(line)?;
            if let Some(first) = lines.insert(key, number) {
                return Err(format!("'{}' is also named in line {first}; leave one of them out", shown(key)));
            }
            let each = own.with(&limit)?;
            named.named.push(NamedKey { key: key.into(), each });
            Ok(())
        };
        add().map_err(|what| about(&format!("line {number}: {what}")))?;
    }
    Ok(())
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let file = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut text));
    file.map_err(|error| format!("cannot read it: {error}"))?;
    if text.len() as u64 > MAX_BYTES {
        Err(format!("the file is larger than {} MiB", MAX_BYTES >> 20))
    } else {
        Ok(text)
    }
}

/// Splits a line at its last blank. The limit is the last word.
fn key_and_limit(line: &[u8]) -> Result<(&[u8], Cow<'_, str>), String> {
    let Some(blank) = line.iter().rposition(u8::is_ascii_whitespace) else {
        return Err(format!("'{}' has no limit; write KEY LIMIT, like a.example 1/10s", shown(line)));
    };
    let (key, limit) = line.split_at(blank);
    Ok((key.trim_ascii(), String::from_utf8_lossy(limit.trim_ascii())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::time::{Duration, Instant};
    use throttle_limits::rate::Rate;

    /// The keys of a file with this text, beside these rules, and how long reading took.
    fn read_beside(rules: &[&str], text: &str) -> (Vec<NamedKey>, Duration) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        let rates = format!("1k/s,per=f1,rates={}", file.path().display());
        let args: Vec<&str> = rules.iter().chain([&&*rates]).flat_map(|rule| ["-r", rule]).collect();
        let (mut task, begun) = (Task::from_words(&args).unwrap(), Instant::now());
        read(&mut task).unwrap();
        let Task::Pipe(pipe) = task else { panic!("{args:?}") };
        (pipe.limits.named.unwrap().named, begun.elapsed())
    }

    /// All rules were grouped and printed again for each line: 7 s for a million lines.
    #[test]
    fn many_rates_take_no_longer_beside_many_rules() {
        let text = (1..=5000).fold(String::new(), |mut text, key| {
            let _ = writeln!(text, "{key} {key}/h");
            text
        });
        let costs: Vec<String> = (2..20).map(|column| format!("9k/s,per=f1,cost=f{column}")).collect();
        let rules: Vec<&str> = costs.iter().map(String::as_str).collect();
        let (alone, beside) = (read_beside(&[], &text), read_beside(&rules, &text));
        assert_eq!((alone.0.len(), beside.0.len(), beside.0[0].each.len()), (5000, 5000, 19));
        assert!(beside.1 < alone.1 * 12 + Duration::from_millis(100), "{:?} {:?}", alone.1, beside.1);
    }

    #[test]
    fn a_rate_in_a_file_replaces_only_the_limit_with_rates() {
        let rules = ["2/s", "5/min,per=f1,cost=f2", "9/d,per=f1", "7/h,per=f1,cost=f2"];
        let (keys, _) = read_beside(&rules, "a 3/s\nb unlimited\nc 4/s,window\n");
        let limits = |key: &NamedKey| -> Vec<String> {
            key.each.iter().map(|(policy, kind)| format!("{kind}: {policy}")).collect()
        };
        let all: Vec<_> = keys.iter().map(limits).collect();
        let costly = "1: 5/min,burst=1,cost=f2 and 7/h,window,slack=250ms,cost=f2";
        assert_eq!(all.iter().map(|limits| &*limits[0]).collect::<Vec<_>>(), [costly; 3], "{all:#?}");
        let paces: Vec<Option<Rate>> = keys.iter().map(|key| key.each[1].0.pace()).collect();
        let expected = ["3/s", "9/d", "4/s"].map(|rate| rate.parse().ok());
        assert_eq!(paces, expected, "{all:#?}");
    }
}
