//! Test tables of other libraries' token buckets: Go's x/time/rate, Java's bucket4j and Rust's governor. They are in
//! `conformance.json` (its first entry says how to read each group); this core must give the same answers.
//!
//! If this core differs on purpose, the difference is listed in [`DIFFERENCES`] with its reason. A listed difference
//! that does not occur fails, too.
//!
//! One group is left out: `bucket4j.intervally` refills whole buckets on a grid of times, which is not a token bucket.
//! The library has such refills; this core does not.

use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use throttle_limits::bucket::Bucket;
use throttle_limits::clock::{MILLISECOND, SECOND};
use throttle_limits::limits::{Account, Grant, Policy, Refusal};
use throttle_limits::rate::{Amount, Limit, Rate};

// ---------------------------------------------------------------------------------------------------------------------
// The differences

/// The answer of this core to one row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// `allow`: tokens before, and whether it was granted.
    Allowed(i64, bool),
    /// `reserve`: the time to act.
    At(u64),
    /// `reserve`: not within the time allowed.
    Refused,
    /// `reserve`: refused there at any time; here it would be granted then.
    RefusedThereButHere(u64),
}

const TENTH: u64 = SECOND / 10;

const BACK: &str = "law 7: time does not go back. A request at an earlier time than the last is one at the time of the last; \
    Go moves its bucket back and lets it fill a second time on the way";
const RESERVED: &str = "law 5: a reservation is a promise that nobody behind it may spoil and nobody is moved by: nothing is \
    given back while a time given to another lies ahead, unless it was the last given. Go gives back at once what was not \
    reserved after, so that whoever comes next goes earlier";
const PROMISED: &str = "law 5: changing a rate or a burst re-times waiters, not reservations: the latest time given stays, and \
    no later take is granted before it; Go reckons from the tokens now, as if none had been given";
const ABOVE_BURST: &str = "law 2: a cost above the burst waits until the rate has paid the excess; Go and governor refuse it \
    whatever the time";

/// Group, row, what happens here, and why.
const DIFFERENCES: [(&str, usize, Answer, &str); 17] = [
    ("go.JumpBackwards", 5, Answer::Allowed(0, false), BACK),
    ("go.ReserveJumpBack", 1, Answer::At(2 * TENTH), BACK),
    ("go.ReserveJumpBack", 2, Answer::At(4 * TENTH), BACK),
    ("go.ReserveJumpBack", 3, Answer::RefusedThereButHere(7 * TENTH), ABOVE_BURST),
    ("go.ReserveJumpBack", 4, Answer::At(5 * TENTH), BACK),
    ("go.ReserveJumpBack", 6, Answer::At(6 * TENTH), BACK),
    // Go gives back only one of the two: otherwise the last would act at 500 ms.
    ("go.ReserveJumpBackCancel", 4, Answer::At(6 * TENTH), RESERVED),
    ("go.Cancel1Token", 4, Answer::At(5 * TENTH), RESERVED),
    // C is the latest grant and is undone. A is not, so 400 ms stays reserved.
    ("go.CancelMulti", 6, Answer::At(7 * TENTH), RESERVED),
    ("go.ReserveSetLimit", 3, Answer::At(5 * TENTH), PROMISED),
    ("go.ReserveSetBurst", 3, Answer::At(12 * TENTH), PROMISED),
    ("go.Mix", 0, Answer::RefusedThereButHere(TENTH), ABOVE_BURST),
    ("go.CancelInvalid", 1, Answer::RefusedThereButHere(3 * TENTH), ABOVE_BURST),
    ("governor.rejects_too_many_all", 0, Answer::RefusedThereButHere(2 * SECOND), ABOVE_BURST),
    ("governor.rejects_too_many_all", 1, Answer::RefusedThereButHere(5 * SECOND), ABOVE_BURST),
    ("governor.rejects_too_many_all", 2, Answer::RefusedThereButHere(34 * TENTH), ABOVE_BURST),
    ("governor.rejects_too_many_all", 3, Answer::RefusedThereButHere(32 * TENTH), ABOVE_BURST),
];

/// Compares answers with a table, and the differences with the list.
struct Table {
    name: String,
    rows: usize,
    different: BTreeSet<usize>,
}

impl Table {
    fn new(name: &str) -> Self {
        Table { name: name.to_owned(), rows: 0, different: BTreeSet::new() }
    }

    /// `expected` is the answer in the table, `answer` the one given here.
    #[track_caller]
    fn row(&mut self, expected: Answer, answer: Answer) {
        let difference = DIFFERENCES.iter().find(|(name, row, ..)| *name == self.name && *row == self.rows);
        match difference {
            Some((_, _, ours, reason)) => {
                assert_eq!(answer, *ours, "{} row {}: differs, because of {reason}", self.name, self.rows);
                assert_ne!(answer, expected, "{} row {}: no difference", self.name, self.rows);
                self.different.insert(self.rows);
            }
            None => assert_eq!(answer, expected, "{} row {}", self.name, self.rows),
        }
        self.rows += 1;
    }

    /// All listed differences of this table must have occurred.
    fn end(self) {
        let stated = DIFFERENCES.iter().filter(|(name, ..)| *name == self.name).map(|(_, row, ..)| *row);
        assert_eq!(self.different, stated.collect::<BTreeSet<_>>(), "{}: a listed difference did not occur", self.name);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading the tables

fn groups() -> Vec<Value> {
    let tables: Value = serde_json::from_str(include_str!("conformance.json")).unwrap();
    tables["groups"].as_array().unwrap().clone()
}

fn groups_with(key: &str) -> Vec<Value> {
    let groups: Vec<Value> = groups().into_iter().filter(|group| group.get(key).is_some()).collect();
    assert!(!groups.is_empty(), "no group with {key}");
    groups
}

fn group(id: &str) -> Value {
    groups().into_iter().find(|group| group["id"] == id).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn positive(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

fn rate(units: u64, period: u64) -> Rate {
    Rate::new(positive(units), positive(period))
}

/// A bucket with `initial` tokens at `now`.
fn limits(rates: &[(Rate, u64, u64)], now: u64) -> Account {
    let limits = rates.iter().map(|&(rate, burst, initial)| Limit::Bucket {
        rate,
        burst: Some(Amount::plain(burst)),
        initial: Some(Amount::plain(initial)),
    });
    Account::new(&Policy::new(&limits.collect::<Vec<_>>(), None).unwrap(), now)
}

/// `rate` per second, and a full bucket at 0.
fn of_group(group: &Value) -> Account {
    let burst = number(&group["burst"]);
    limits(&[(rate(number(&group["rate"]), SECOND), burst, burst)], 0)
}

/// Tries `units` at `now`; a refusal must leave everything as it was.
fn allow(limits: &mut Account, now: u64, units: u64) -> bool {
    let untouched = limits.clone();
    match limits.take_within(now, units, 0) {
        Ok(grant) => grant.units == units,
        Err(Refusal::TooLong { .. }) if *limits == untouched => false,
        Err(refusal) => panic!("{refusal}"),
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Go: golang.org/x/time/rate, rate_test.go

#[test]
fn go_allow_and_the_limiter_agree_on_times_and_tokens() {
    for group in groups_with("allow") {
        let mut limits = of_group(&group);
        let mut table = Table::new(group["id"].as_str().unwrap());
        for row in list(&group["allow"]) {
            allow_row(&mut table, &mut limits, list(row));
        }
        table.end();
    }
}

/// `[time, tokens before, n, granted]`
fn allow_row(table: &mut Table, limits: &mut Account, row: &[Value]) {
    let (now, units) = (number(&row[0]), number(&row[2]));
    // Before the time of a grant, Go's tokens are negative; here there are 0 then.
    let expected = Answer::Allowed(row[1].as_i64().unwrap().max(0), number(&row[3]) == 1);
    let available = i64::try_from(limits.available(now)).unwrap();
    table.row(expected, Answer::Allowed(available, allow(limits, now, units)));
}

#[test]
fn go_reservations_act_at_the_same_times() {
    for group in groups_with("ops") {
        let mut limits = of_group(&group);
        let mut table = Table::new(group["id"].as_str().unwrap());
        let (mut burst, mut reserved) = (number(&group["burst"]), HashMap::new());
        for row in list(&group["ops"]) {
            let row = list(row);
            let now = || number(&row[1]);
            match row[0].as_str().unwrap() {
                "a" => allow_row(&mut table, &mut limits, &row[1..]),
                "c" => {
                    if let Some((grant, before)) = reserved.remove(&row[2]) {
                        cancel(&mut limits, now(), &grant, before);
                    }
                    table.rows += 1;
                }
                "rate" => {
                    let all = std::iter::once(&mut limits).chain(reserved.values_mut().map(|(_, before)| before));
                    all.for_each(|limits| limits.set_rate(now(), 0, rate(number(&row[2]), SECOND)));
                    table.rows += 1;
                }
                "burst" => {
                    burst = number(&row[2]);
                    let all = std::iter::once(&mut limits).chain(reserved.values_mut().map(|(_, before)| before));
                    all.for_each(|limits| limits.set_burst(now(), 0, positive(burst)));
                    table.rows += 1;
                }
                operation => {
                    let max_wait = if operation == "rm" { number(&row[5]) } else { u64::MAX };
                    let before: Account = limits.clone();
                    let (answer, grant) = reserve(&mut limits, burst, (now(), number(&row[2])), max_wait);
                    let act = row[3].as_u64().map_or(Answer::Refused, Answer::At);
                    assert_eq!(row[4] == 1, act != Answer::Refused, "{row:?}");
                    table.row(act, answer);
                    if let (Some(name), Some(grant)) = (row.get(5).filter(|name| name.is_string()), grant) {
                        reserved.insert(name.clone(), (grant, before));
                    }
                }
            }
        }
        table.end();
    }
}

/// Reserves `units`. More than the burst is reserved only on a copy, because Go refuses it.
fn reserve(limits: &mut Account, burst: u64, (now, units): (u64, u64), max_wait: u64) -> (Answer, Option<Grant>) {
    if units > burst {
        return (above_burst(limits, now, units), None);
    }
    let untouched = limits.clone();
    match limits.take_within(now, units, max_wait) {
        Ok(grant) => (Answer::At(grant.at), Some(grant)),
        Err(refusal) => {
            assert!(matches!(refusal, Refusal::TooLong { wait } if wait > max_wait));
            assert_eq!(*limits, untouched);
            (Answer::Refused, None)
        }
    }
}

/// Refused at once here as well; a waiter would get it.
fn above_burst(limits: &mut Account, now: u64, units: u64) -> Answer {
    assert!(!allow(limits, now, units));
    Answer::RefusedThereButHere(limits.clone().take(now, units).unwrap().at)
}

/// Cancels a reservation, if it is the last one and its time has not come: the limits are as before. After that its holder
/// may have acted, so nothing is cancelled (law 5, and Go's rule).
fn cancel(limits: &mut Account, now: u64, grant: &Grant, before: Account) {
    if now < grant.at && limits.latest() == grant.at {
        *limits = before;
    }
}

#[test]
fn go_tokens_are_negative_before_a_reservation() {
    let mix = group("go.Mix");
    let row = list(&mix["ops"]).iter().find(|row| row[2] == -1).unwrap();
    let mut bucket = Bucket::new(rate(10, SECOND), positive(2), 2, 0);
    bucket.charge(0, 0, 2);
    bucket.charge(TENTH, 2 * TENTH, 2);
    assert_eq!(Some(bucket.balance(number(&row[1]))), row[2].as_i64().map(i128::from));
}

// ---------------------------------------------------------------------------------------------------------------------
// bucket4j: BandwidthTest and BucketTest

/// `[initial, capacity, refill tokens, period_ns, elapsed_ns, tokens after, remainder]`
#[test]
fn bucket4j_and_the_limiter_keep_the_same_remainder() {
    const START: u64 = 1_000_000;
    for row in list(&group("bucket4j.refill")["rows"]) {
        let at = |place: usize| number(&row[place]);
        let (initial, capacity, refill, period, tokens) = (at(0), at(1), at(2), at(3), at(5));
        let bucket = Bucket::new(rate(refill, period), positive(capacity), initial, START);
        let now = START.checked_add_signed(row[4].as_i64().unwrap()).unwrap();
        // A time that goes back counts as the latest one (law 7).
        let clamped = now.max(START);
        assert_eq!(bucket.balance(clamped), i128::from(tokens), "{row}");
        assert_eq!(bucket.conforms_at(now, tokens), Some(clamped), "{row}");
        // The remainder, in parts of a token (`period` parts make one), shortens the wait for the next token.
        let wait = (period - number(&row[6])).div_ceil(refill);
        assert_eq!(bucket.conforms_at(now, tokens + 1), Some(clamped + wait), "{row}");
    }
}

/// `[tokens, wait_ns, [[initial, capacity, refill, period_ns] ...]]`
#[test]
fn bucket4j_waits_as_long_as_the_slowest_of_several_bandwidths() {
    for row in list(&group("bucket4j.delay")["rows"]) {
        let bandwidth = |of: &Value| (rate(number(&of[2]), number(&of[3])), number(&of[1]), number(&of[0]));
        let mut limits = limits(&list(&row[2]).iter().map(bandwidth).collect::<Vec<_>>(), SECOND);
        let (tokens, wait) = (number(&row[0]), number(&row[1]));
        if let Some(less) = wait.checked_sub(1) {
            assert_eq!(limits.take_within(SECOND, tokens, less), Err(Refusal::TooLong { wait }), "{row}");
        }
        assert_eq!(limits.take_within(SECOND, tokens, wait).map(|grant| grant.at), Ok(SECOND + wait), "{row}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// governor: tests/direct.rs

/// `[time_ms, units, granted]`; so many per second is the rate and the burst.
#[test]
fn governor_lets_the_same_units_through() {
    for rows in list(&group("governor.direct")["tables"]) {
        let per_second = number(&rows["per_second"]);
        let mut limits = limits(&[(rate(per_second, SECOND), per_second, per_second)], 0);
        let mut table = Table::new(&format!("governor.{}", rows["name"].as_str().unwrap()));
        for row in list(&rows["rows"]) {
            let (now, units) = (number(&row[0]) * MILLISECOND, number(&row[1]));
            if row[2].is_string() {
                table.row(Answer::Refused, above_burst(&mut limits, now, units));
            } else {
                let expected = if number(&row[2]) == 1 { Answer::At(now) } else { Answer::Refused };
                let answer = if allow(&mut limits, now, units) { Answer::At(now) } else { Answer::Refused };
                table.row(expected, answer);
            }
        }
        table.end();
    }
}

// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn every_group_but_one_is_compared_with_the_core() {
    let held = |group: &Value| {
        let of_its_own = ["bucket4j.refill", "bucket4j.delay", "governor.direct"];
        group.get("allow").is_some() || group.get("ops").is_some() || of_its_own.iter().any(|id| group["id"] == *id)
    };
    let left: Vec<Value> = groups().into_iter().filter(|group| !held(group)).map(|group| group["id"].clone()).collect();
    assert_eq!(left, ["bucket4j.intervally"]);
}

#[test]
fn every_difference_names_a_table() {
    let groups = groups();
    let governor = list(&group("governor.direct")["tables"]).to_vec();
    for (name, ..) in DIFFERENCES {
        let of_governor =
            name.strip_prefix("governor.").is_some_and(|name| governor.iter().any(|rows| rows["name"] == name));
        assert!(of_governor || groups.iter().any(|group| group["id"] == name), "{name}");
    }
}
