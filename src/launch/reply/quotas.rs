//! The fields about quotas in a response: what remains, and when the quota is renewed.

use super::wait::{Unit, number, parts};
use std::time::Duration;

/// The rest of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    Nothing,
    Some,
    /// The response does not report it.
    Unknown,
}

/// The time at which a quota is renewed.
#[derive(Debug)]
pub(super) struct Reset<'a> {
    /// The name of its field.
    pub(super) name: String,
    pub(super) value: &'a str,
    pub(super) unit: Unit,
    pub(super) remaining: Remaining,
}

/// Fields in their order: the name in lower case, with `ratelimit` for `rate-limit`, and the value.
pub(super) type Fields<'a> = [(String, &'a str)];

/// Suffixes that describe the value of a reset. `x-ratelimit-reset-after` belongs to `x-ratelimit-remaining`.
const SUFFIXES: [&str; 9] =
    ["-after", "-at", "-in", "-time", "-timestamp", "-seconds", "-milliseconds", "-ms", "-epoch"];

/// The resets in these fields.
pub(super) fn resets<'a>(fields: &Fields<'a>) -> Vec<Reset<'a>> {
    let mut found: Vec<Reset<'a>> = Vec::new();
    for (place, (name, value)) in fields.iter().enumerate() {
        if name == "ratelimit" {
            found.extend(items(value));
        } else if name.contains("ratelimit") && name.contains("reset") && !is_superseded(name, fields) {
            let is_same = |(other, _): &&(String, &str)| other == name;
            let [before, all] = [&fields[..place], fields].map(|fields| fields.iter().filter(is_same).count());
            let counts = counts(fields, &related(name, "reset"));
            // Repeated fields are pairs if both are repeated equally often.
            let remaining = if counts.len() == all { counts[before] } else { least(&counts) };
            found.push(Reset { name: name.clone(), value, unit: unit(name), remaining });
        }
    }
    found
}

/// Whether more than nothing remains of the quota of this field, whose name contains `word`.
pub(super) fn has_rest(name: &str, word: &str, fields: &Fields<'_>) -> bool {
    least(&counts(fields, &related(name, word))) == Remaining::Some
}

/// Whether more than nothing remains of any quota.
pub(super) fn has_any_rest(fields: &Fields<'_>) -> bool {
    let of_items = |value: &str| items(value).into_iter().any(|reset| reset.remaining == Remaining::Some);
    let has_rest = |(name, value): &(String, &str)| match &**name {
        "ratelimit" => of_items(value),
        name => name.contains("ratelimit") && name.contains("remaining") && remaining(value) == Remaining::Some,
    };
    fields.iter().any(has_rest)
}

/// The unit of a small number in the field `name`.
pub(super) fn unit(name: &str) -> Unit {
    if name.ends_with("-ms") || name.ends_with("-milliseconds") { Unit::Milliseconds } else { Unit::Seconds }
}

/// A field with a time from now counts instead of one with a date: it does not depend on a clock.
fn is_superseded(name: &str, fields: &Fields<'_>) -> bool {
    !name.contains("reset-after") && {
        let after = name.replacen("reset", "reset-after", 1);
        fields.iter().any(|(other, _)| *other == after)
    }
}

/// The names of fields that may report what remains: `x-ratelimit-reset-tokens` belongs to
/// `x-ratelimit-remaining-tokens`.
fn related(name: &str, word: &str) -> [String; 2] {
    let mut base = name;
    while let Some(shorter) = SUFFIXES.iter().find_map(|suffix| base.strip_suffix(suffix)).filter(|s| s.contains(word))
    {
        base = shorter;
    }
    [name, base].map(|name| name.replacen(word, "remaining", 1))
}

/// The reports of the fields with the first of these names that a response has, in their order.
fn counts(fields: &Fields<'_>, names: &[String]) -> Vec<Remaining> {
    let of_name = |wanted: &String| -> Vec<Remaining> {
        fields.iter().filter(|(name, _)| name == wanted).map(|(_, value)| remaining(value)).collect()
    };
    names.iter().map(of_name).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The least of these rests.
fn least(counts: &[Remaining]) -> Remaining {
    let has = |wanted: Remaining| counts.contains(&wanted);
    match () {
        () if has(Remaining::Nothing) => Remaining::Nothing,
        () if has(Remaining::Some) => Remaining::Some,
        () => Remaining::Unknown,
    }
}

/// Parses `0`, `12;w=60`, or a list.
fn remaining(value: &str) -> Remaining {
    let of_item = |item: &str| match number(parts(item, ';').next().unwrap_or_default().trim()) {
        Some(Duration::ZERO) => Remaining::Nothing,
        Some(_) => Remaining::Some,
        None => Remaining::Unknown,
    };
    least(&parts(value, ',').map(of_item).collect::<Vec<_>>())
}

/// The items of `ratelimit`, the field of draft-ietf-httpapi-ratelimit-headers: `"hour";r=0;t=1800, "day";r=9;t=3600`.
/// Before version 8 of the draft it was `limit=100, remaining=0, reset=30`.
fn items(value: &str) -> Vec<Reset<'_>> {
    let mut found: Vec<Item<'_>> = Vec::new();
    for member in parts(value, ',') {
        for (place, part) in parts(member, ';').map(str::trim).enumerate() {
            let (name, value) = match part.split_once('=').filter(|_| !part.starts_with('"')) {
                Some((name, value)) => (name, Some(value)),
                None => ("", None),
            };
            let field = |item: &mut Item<'_>| match name {
                "r" | "remaining" => item.remaining.is_some(),
                "t" | "reset" => item.reset.is_some(),
                _ => false,
            };
            // A name begins an item, and so does a part of a dictionary that the current item has already.
            if found.last_mut().is_none_or(|item| place == 0 && (value.is_none() || field(item))) {
                found.push(Item::default());
            }
            let Some(item) = found.last_mut() else { continue };
            match name {
                "r" | "remaining" => item.remaining = value,
                "t" | "reset" => item.reset = value,
                _ => {}
            }
        }
    }
    found.into_iter().filter_map(Item::reset).collect()
}

/// An item of `ratelimit`.
#[derive(Debug, Default)]
struct Item<'a> {
    remaining: Option<&'a str>,
    reset: Option<&'a str>,
}

impl<'a> Item<'a> {
    fn reset(self) -> Option<Reset<'a>> {
        let remaining = self.remaining.map_or(Remaining::Unknown, remaining);
        let (name, unit) = ("ratelimit".to_owned(), Unit::Seconds);
        Some(Reset { name, value: self.reset?, unit, remaining })
    }
}
