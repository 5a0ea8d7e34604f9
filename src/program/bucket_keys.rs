//! The keys of a bucket, as `--show` writes them.

use super::names::shown;
use serde_json::{Value, json};
use std::fmt::Write;
use throttle_limits::clock;
use throttle_limits::limits::KeyView;
use throttle_limits::store::View;

/// So many keys are shown as text: those with the longest waits.
const SHOWN: usize = 10;

/// How many keys there are, and a line for each of those that wait longest.
pub(super) fn lines(view: &View) -> String {
    let Some(of_keys) = view.policy.of_keys() else { return String::new() };
    let mut text = String::new();
    for (place, limit) in (0..of_keys.each.len().max(1)).map(|place| (place, of_keys.describe(place))) {
        let _ = writeln!(text, "  {limit}{}", if place == 0 { counted(view) } else { String::new() });
    }
    let mut keys: Vec<&KeyView> = view.keys.iter().collect();
    keys.sort_by_key(|key| std::cmp::Reverse((wait(view, key), key.waiting, key.running)));
    for key in keys.iter().take(SHOWN).filter(|key| wait(view, key) > 0 || key.waiting + key.running > 0) {
        let _ = writeln!(text, "    {}", line(view, key));
    }
    text
}

/// `: 214 keys in use`
fn counted(view: &View) -> String {
    match view.keys.len() {
        0 => ": no key is in use".to_owned(),
        1 => ": 1 key in use".to_owned(),
        keys => format!(": {keys} keys in use"),
    }
}

/// When the next unit of a key would go.
fn wait(view: &View, key: &KeyView) -> u64 {
    let paused = key.paused_until.unwrap_or(0).saturating_sub(view.now);
    key.wait.unwrap_or(u64::MAX).max(paused)
}

/// `'a.example': next in 3 s, 2 wait, 1 runs, paused`
fn line(view: &View, key: &KeyView) -> String {
    let jobs = view.policy.of_keys().and_then(|keys| keys.jobs);
    let has_place = jobs.is_none_or(|most| (key.running as u64) < u64::from(most.get()));
    let next = match wait(view, key) {
        0 if !has_place => "when a place is free".to_owned(),
        0 => "now".to_owned(),
        u64::MAX => "never".to_owned(),
        wait => format!("in {}", clock::shown_wait(wait)),
    };
    let mut line = format!("'{}': next {next}", shown(&key.name));
    let mut add = |count: usize, what: &str| {
        if count > 0 {
            let _ = write!(line, ", {count} {what}");
        }
    };
    add(key.waiting, "waiting");
    add(key.running, "running");
    if key.paused_until.is_some() {
        line += ", paused";
    }
    line
}

/// All keys.
pub(super) fn json(view: &View) -> Value {
    let each = view.policy.of_keys();
    let limit = |(place, left): (usize, &i128)| {
        let left = i64::try_from(*left).unwrap_or(i64::MAX);
        json!({ "limit": each.map(|each| each.describe(place)), "left": left })
    };
    let key = |key: &KeyView| {
        json!({
            "key": String::from_utf8_lossy(&key.name),
            "limits": key.left.iter().enumerate().map(limit).collect::<Vec<_>>(),
            "wait_ns": key.wait,
            "paused_ns": key.paused_until.map_or(0, |until| until.saturating_sub(view.now)),
            "waiting": key.waiting,
            "running": key.running,
        })
    };
    view.keys.iter().map(key).collect()
}
