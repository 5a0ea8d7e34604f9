//! The output of `--show` and `--list` about a bucket.

use super::args::Kind;
use super::names::shown;
use super::time_of_day;
use super::unit_name::{allowed, counted, per_second};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use throttle_limits::clock;
use throttle_limits::store::KeyView;
use throttle_limits::store::{Place, View};

/// The bucket as text, for `--show`.
pub(super) fn text(bucket: &Kind, view: &View) -> String {
    let rest = |units: i128| if units < 0 { format!("{} owed", -units) } else { format!("{units} left") };
    let lines = rest_of(view).enumerate();
    let lines = lines.map(|(place, units)| format!("  {}: {}\n", view.policy.describe(place), rest(units)));
    let unlimited = view.policy.is_unlimited().then(|| format!("  {}\n", view.policy));
    let lines: String = lines.chain(unlimited).collect();
    let next = match view.wait {
        None => "never".to_owned(),
        Some(0) => "now".to_owned(),
        Some(wait) => format!("in {}", clock::shown_wait(wait)),
    };
    let (_, place) = whereabouts(bucket);
    let line = match view.line.last() {
        None => String::new(),
        Some(last) => format!("  {} waiting, the last for {}\n", view.line.len(), clock::shown_wait(last.wait)),
    };
    let jobs = view.policy.jobs().map_or_else(String::new, |most| format!("  jobs={most}: {} running\n", view.running));
    let (pause, slowed, counts) = (shown_pause(view), shown_learned(view), shown_counts(view));
    let keys = key_lines(view);
    let next =
        if view.policy.of_keys().is_some() { "next unit of a new key" } else { "next unit" }.to_owned() + ": " + &next;
    format!("bucket {} in {place}\n{lines}{jobs}{keys}{counts}{line}{pause}{slowed}  {next}\n", name(bucket))
}

/// The units that are left of each limit. A negative number means that units are owed. During a pause no limit owes
/// units, because the units that its rate adds until the end of the pause are lost.
fn rest_of(view: &View) -> impl Iterator<Item = i128> {
    let is_paused = view.paused_until.is_some();
    view.left.iter().map(move |rest| if is_paused { (*rest).max(0) } else { *rest })
}

/// `paused until 14:05 (3m 20s)`
fn shown_pause(view: &View) -> String {
    view.paused_until.map_or_else(String::new, |until| {
        let wait = until.saturating_sub(view.now);
        format!("  paused {} ({})\n", time_of_day::until_text(wait), clock::shown_wait(wait))
    })
}

/// `slowed down: the server allows about 38/s`
fn shown_learned(view: &View) -> String {
    let line = |interval| format!("  slowed down: {}\n", allowed(interval));
    view.learned.map_or_else(String::new, line)
}

/// `since 14:05 (2h 3m): 120 granted, 3 denied, 4 given back; waited 3m 20s in all`. Settling a grant at its real cost
/// changes no count, and a bucket with costs says so.
fn shown_counts(view: &View) -> String {
    let (counts, wall) = (&view.counts, SystemTime::now());
    let age = view.now.saturating_sub(counts.since);
    let since = time_of_day::local(wall - Duration::from_nanos(age), wall);
    let (age, waited) = (clock::shown(age), clock::shown(counts.waited));
    let has_costs = view.policy.has_costs() || view.policy.of_keys().is_some_and(|keys| keys.each.has_costs());
    let unsettled = if has_costs { " (settled costs not included)" } else { "" };
    format!(
        "  since {since} ({age}): {} granted, {} denied, {} given back{unsettled}; waited {waited} in all\n",
        counts.granted, counts.refused, counts.given_back
    )
}

/// The bucket as JSON. Times of the bucket's clock are converted to seconds since 1970.
pub(super) fn json(bucket: &Kind, view: &View) -> Value {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let paused = view.paused_until.map_or(0, |until| until.saturating_sub(view.now));
    let until = view.paused_until.map(|_| (wall + Duration::from_nanos(paused)).as_secs());
    let age = Duration::from_nanos(view.now.saturating_sub(view.counts.since));
    let limits = rest_of(view).enumerate().map(|(place, units)| limit_json(view.policy.describe(place), units));
    let (kind, place) = whereabouts(bucket);
    json!({
        "bucket": name(bucket),
        kind: place,
        "limits": limits.collect::<Vec<_>>(),
        "available": view.available,
        "wait_ns": view.wait,
        "paused_ns": paused,
        "paused_until": until,
        "learned": view.learned.map(per_second),
        "jobs": view.policy.jobs(),
        "running": view.running,
        "per": view.policy.of_keys().map(|keys| &keys.per),
        "keys": keys_json(view),
        "counts": {
            "since": wall.saturating_sub(age).as_secs(),
            "granted": view.counts.granted,
            "denied": view.counts.refused,
            "given_back": view.counts.given_back,
            "waited_ns": view.counts.waited,
        },
        "line": view.line.iter().map(|one| json!({ "cost": one.cost, "wait_ns": one.wait })).collect::<Vec<_>>(),
    })
}

/// The name of the bucket.
pub(super) fn name(bucket: &Kind) -> String {
    match bucket {
        Kind::File(place) => place.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        Kind::Server(address) => address.name().to_owned(),
    }
}

/// `path` or `url`, and the absolute path or the URL.
pub(super) fn whereabouts(bucket: &Kind) -> (&'static str, String) {
    match bucket {
        Kind::File(Place { path, .. }) => {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            ("path", absolute.to_string_lossy().into_owned())
        }
        Kind::Server(address) => ("url", address.to_string()),
    }
}

/// The most keys that are shown as text; these keys have the longest waits.
const MAX_SHOWN_KEYS: usize = 10;

/// The number of keys, and a line for each of the keys that wait longest.
fn key_lines(view: &View) -> String {
    let Some(of_keys) = view.policy.of_keys() else { return String::new() };
    let mut text = String::new();
    for (place, limit) in (0..of_keys.each.len().max(1)).map(|place| (place, of_keys.describe(place))) {
        let in_use = match view.keys.len() {
            _ if place > 0 => String::new(),
            0 => ": no key is in use".to_owned(),
            keys => format!(": {} in use", counted(keys as u64, "key")),
        };
        let _ = writeln!(text, "  {limit}{in_use}");
    }
    let mut keys: Vec<&KeyView> = view.keys.iter().collect();
    keys.sort_by_key(|key| std::cmp::Reverse((wait(view, key), key.waiting, key.running)));
    let is_shown = |key: &&&KeyView| wait(view, key) > 0 || key.waiting + key.running > 0 || key.learned.is_some();
    for key in keys.iter().take(MAX_SHOWN_KEYS).filter(is_shown) {
        let _ = writeln!(text, "    {}", key_line(view, key));
    }
    text
}

/// The time until the next unit of a key would leave.
fn wait(view: &View, key: &KeyView) -> u64 {
    let paused = key.paused_until.max(key.given_up_until).unwrap_or(0).saturating_sub(view.now);
    key.wait.unwrap_or(u64::MAX).max(paused)
}

/// `'a.example': next in 3 s, 2 waiting, 1 running, paused`
fn key_line(view: &View, key: &KeyView) -> String {
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
    if key.given_up_until.is_some() {
        line += ", given up: too many commands have failed";
    }
    if let Some(learned) = key.learned {
        let _ = write!(line, ", {}", allowed(learned));
    }
    line
}

fn limit_json(limit: impl Into<Value>, units: i128) -> Value {
    let bound = if units < 0 { i64::MIN } else { i64::MAX };
    json!({ "limit": limit.into(), "left": i64::try_from(units).unwrap_or(bound) })
}

fn keys_json(view: &View) -> Value {
    let each = view.policy.of_keys();
    let limit = |(place, units): (usize, &i128)| limit_json(each.map(|each| each.describe(place)), *units);
    let key = |key: &KeyView| {
        json!({
            "key": String::from_utf8_lossy(&key.name),
            "limits": key.left.iter().enumerate().map(limit).collect::<Vec<_>>(),
            "wait_ns": key.wait,
            "paused_ns": key.paused_until.map_or(0, |until| until.saturating_sub(view.now)),
            "given_up_ns": key.given_up_until.map_or(0, |until| until.saturating_sub(view.now)),
            "learned": key.learned.map(per_second),
            "waiting": key.waiting,
            "running": key.running,
        })
    };
    view.keys.iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_of_any_size_is_no_credit() {
        let left = |left: i128| limit_json(Value::Null, left)["left"].as_i64();
        assert_eq!([-9, i128::MIN, i128::MAX].map(left), [Some(-9), Some(i64::MIN), Some(i64::MAX)]);
    }
}
