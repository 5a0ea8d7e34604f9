//! Other libraries' tables, in `conformance.json`, compared with the limiter as its callers see it.
//!
//! Like Go, this limiter refuses reservations above the burst by default, so those rows agree here. Differences on
//! purpose are listed in [`DIFFERENCES`] with their reasons; a listed difference that does not occur fails.

use crate::limiters::FakeTimer;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use throttle_limits::limiter::{AcquireError, Limiter, Oversize, Refill, Reservation};

const BACK: &str = "law 7: a request at an earlier time than the last is one at the time of the last; Go moves its bucket \
    back and lets it fill a second time on the way";
const PROMISED: &str = "law 5: a reservation is a promise: nothing is given back while a time given to another lies ahead, \
    unless it was the last given, and no later take is granted before the latest time given, whatever the rate then is";

/// Group, row, when it acts here in nanoseconds (`None` if refused), and why.
const DIFFERENCES: [(&str, usize, Option<u64>, &str); 10] = [
    ("go.JumpBackwards", 5, None, BACK),
    ("go.ReserveJumpBack", 1, Some(200_000_000), BACK),
    ("go.ReserveJumpBack", 2, Some(400_000_000), BACK),
    ("go.ReserveJumpBack", 4, Some(500_000_000), BACK),
    ("go.ReserveJumpBack", 6, Some(600_000_000), BACK),
    ("go.ReserveJumpBackCancel", 4, Some(600_000_000), PROMISED),
    ("go.Cancel1Token", 4, Some(500_000_000), PROMISED),
    ("go.CancelMulti", 6, Some(700_000_000), PROMISED),
    ("go.ReserveSetLimit", 3, Some(500_000_000), PROMISED),
    ("go.ReserveSetBurst", 3, Some(1_200_000_000), PROMISED),
];

fn groups() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/conformance.json");
    let tables: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    tables["groups"].as_array().unwrap().clone()
}

fn limiter(rate: u64, burst: u64) -> (Limiter, Arc<FakeTimer>) {
    let timer = Arc::new(FakeTimer::default());
    let builder = Limiter::builder().rate(rate, Duration::from_secs(1)).burst(burst);
    (builder.clock(timer.clone()).build().unwrap(), timer)
}

/// The answers given here, and how many differ on purpose.
#[derive(Default)]
struct Checked {
    rows: usize,
    different: BTreeSet<(String, usize)>,
}

impl Checked {
    /// `expected` and `got`: when it acts; `None` if refused.
    fn row(&mut self, group: &str, row: usize, expected: Option<u64>, got: Option<u64>) {
        self.rows += 1;
        match DIFFERENCES.iter().find(|(name, number, ..)| (*name, *number) == (group, row)) {
            Some((.., ours, why)) => {
                assert_eq!(got, *ours, "{group} row {row}: {why}");
                assert_ne!(got, expected, "{group} row {row} is no difference");
                self.different.insert((group.to_owned(), row));
            }
            None => assert_eq!(got, expected, "{group} row {row}"),
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The tokens before, according to the table; negative counts as 0.
fn tokens_before(limiter: &Limiter, value: &Value) {
    assert_eq!(limiter.available(), value.as_u64().unwrap_or(0));
}

fn allow(checked: &mut Checked, name: &str, place: usize, limiter: &Limiter, timer: &FakeTimer, row: &[Value]) {
    let [time, before, units, granted] = row else { panic!("{name} row {place}") };
    timer.to(number(time));
    if !DIFFERENCES.iter().any(|(group, number, ..)| (*group, *number) == (name, place)) {
        tokens_before(limiter, before);
    }
    let time = number(time);
    let got = limiter.try_acquire(number(units)).is_ok().then_some(time);
    checked.row(name, place, (granted == 1).then_some(time), got);
}

#[test]
fn go_allow_and_reserve() {
    let mut checked = Checked::default();
    for group in groups() {
        let Some(name) = group["id"].as_str().filter(|id| id.starts_with("go.")) else { continue };
        let (limiter, timer) = limiter(number(&group["rate"]), number(&group["burst"]));
        for (place, row) in group["allow"].as_array().into_iter().flatten().enumerate() {
            allow(&mut checked, name, place, &limiter, &timer, row.as_array().unwrap());
        }
        let mut reserved: HashMap<String, Result<Reservation, AcquireError>> = HashMap::new();
        for (place, op) in group["ops"].as_array().into_iter().flatten().enumerate() {
            let op = op.as_array().unwrap();
            timer.to(number(&op[1]));
            match op[0].as_str().unwrap() {
                "a" => allow(&mut checked, name, place, &limiter, &timer, &op[1..]),
                "c" => {
                    if let Ok(reservation) = reserved.remove(op[2].as_str().unwrap()).unwrap() {
                        reservation.cancel();
                    }
                }
                "rate" => limiter.set_rate(number(&op[2]), Duration::from_secs(1)).unwrap(),
                "burst" => limiter.set_burst(number(&op[2])).unwrap(),
                kind => {
                    let most = if kind == "rm" { Duration::from_nanos(number(&op[5])) } else { Duration::MAX };
                    let reservation = limiter.reserve_within(number(&op[2]), most);
                    let got = reservation
                        .as_ref()
                        .ok()
                        .map(|reservation| u64::try_from(reservation.at().as_nanos()).unwrap());
                    let expected = (op[4] == 1).then(|| number(&op[3]));
                    checked.row(name, place, expected, got);
                    if let (Some(name), "r") = (op.get(5).and_then(Value::as_str), kind) {
                        reserved.insert(name.to_owned(), reservation);
                    }
                }
            }
        }
    }
    assert!(checked.rows > 60, "{}", checked.rows);
    assert_eq!(checked.different.len(), DIFFERENCES.len(), "a difference was never met");
}

#[test]
fn governor_direct() {
    let mut rows = 0;
    for group in groups().iter().filter(|group| group["id"] == "governor.direct") {
        for table in group["tables"].as_array().unwrap() {
            let rate = number(&table["per_second"]);
            let (limiter, timer) = limiter(rate, rate);
            for row in table["rows"].as_array().unwrap() {
                timer.to(number(&row[0]) * 1_000_000);
                let granted = limiter.try_acquire(number(&row[1]));
                match row[2].as_u64() {
                    Some(expected) => assert_eq!(granted.is_ok(), expected == 1, "{} {row}", table["name"]),
                    None => assert!(matches!(granted, Err(AcquireError::AboveBurst { .. })), "{row}"),
                }
                rows += 1;
            }
        }
    }
    assert!(rows > 40, "{rows}");
}

/// Units in a bucket of `[initial, capacity, refill, period in ns]`.
fn bucket(initial: u64, capacity: u64, refill: u64, period: u64, kind: Refill) -> (Limiter, Arc<FakeTimer>) {
    let timer = Arc::new(FakeTimer::default());
    let builder = Limiter::builder().rate(refill, Duration::from_nanos(period)).burst(capacity).initial(initial);
    let builder = builder.refill(kind).oversize(Oversize::Wait).clock(timer.clone());
    (builder.build().unwrap(), timer)
}

#[test]
fn bucket4j_refill_delay_and_intervals() {
    let mut rows = 0;
    for group in groups() {
        let empty = Vec::new();
        for row in group["rows"].as_array().unwrap_or(&empty) {
            rows += 1;
            match group["id"].as_str().unwrap() {
                "bucket4j.refill" => {
                    let [initial, capacity, refill, period] = [0, 1, 2, 3].map(|at| number(&row[at]));
                    let (limiter, timer) = bucket(initial, capacity, refill, period, Refill::Continuous);
                    // A time that goes back, as in one row, counts as a time that stands still.
                    timer.to(row[4].as_u64().unwrap_or(0));
                    assert_eq!(limiter.available(), number(&row[5]), "{row}");
                }
                "bucket4j.delay" => {
                    let waits = row[2].as_array().unwrap().iter().map(|of| {
                        let [initial, capacity, refill, period] = [0, 1, 2, 3].map(|at| number(&of[at]));
                        let (limiter, _) = bucket(initial, capacity, refill, period, Refill::Continuous);
                        limiter.time_until(number(&row[0])).unwrap()
                    });
                    assert_eq!(waits.max(), Some(Duration::from_nanos(number(&row[1]))), "{row}");
                }
                _ => intervals(row),
            }
        }
    }
    assert_eq!(rows, 14 + 7 + 2);
}

fn intervals(row: &Value) {
    let each = row["bw"].as_array().unwrap().iter().map(|of| {
        let [capacity, refill, period, initial] = [0, 1, 2, 3].map(|at| number(&of[at]));
        bucket(initial, capacity, refill, period, Refill::Grid)
    });
    let limiters: Vec<_> = each.collect();
    for at in row["times"].as_array().unwrap() {
        let available = limiters.iter().map(|(limiter, timer)| {
            timer.to(number(&at[0]));
            limiter.available()
        });
        assert_eq!(available.min(), Some(number(&at[1])), "{at}");
    }
}
