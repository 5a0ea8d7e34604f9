//! The rates of named keys: `rates=FILE`, lines of `KEY LIMIT`.

use super::names::shown;
use super::task::Task;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use throttle::flow::without_mark;
use throttle_limits::line::NamedKey;
use throttle_limits::rate::Limit;

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
    let Some(named) = limits.named_mut() else { return Ok(()) };
    let Some(path) = named.rates().map(Path::to_owned) else { return Ok(()) };
    let about = |what: &str| format!("--rate: rates={}: {what}", path.display());
    let text = contents(&path).map_err(|what| about(&what))?;
    let mut lines = HashMap::new();
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
            let each = named.each_with(limit)?;
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
fn key_and_limit(line: &[u8]) -> Result<(&[u8], Limit), String> {
    let Some(blank) = line.iter().rposition(u8::is_ascii_whitespace) else {
        return Err(format!("'{}' has no limit; write KEY LIMIT, like a.example 1/10s", shown(line)));
    };
    let (key, limit) = line.split_at(blank);
    let limit = String::from_utf8_lossy(limit.trim_ascii());
    Ok((key.trim_ascii(), limit.parse().map_err(|error| format!("{error}"))?))
}
