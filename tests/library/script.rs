//! Runs the script of the Redis store inside the test process, on the same Lua as Redis, with a stand-in for the
//! server.
//!
//! The script counts in whole numbers of a small unit of time. Here that is the core's unit, so both must compute the
//! same numbers.

use crate::model::{EXACT, Limit};
use std::cell::Cell;
use throttle::limits::Ask;

use mlua::{Function, Lua, Table, Value, Variadic};

/// The script computes numbers below this exactly.
pub(crate) const BOUND: u64 = 1 << 51;

const SCRIPT: &str = include_str!("../../src/store/redis/bucket.lua");

/// The script adds this to the index of the limit if the grant is an entry in the line.
const ENTRY: usize = 32;

/// Here the script counts in nanoseconds.
const MICROSECONDS: &str = "local SECOND = 1000000\n";
const NANOSECONDS: &str = "local SECOND = 1000000000\n";

/// A bucket on a server of its own.
pub(crate) struct Script {
    ask: Function,
    step: Function,
    /// Its limits as text, which identifies them, and as numbers.
    terms: [String; 2],
    /// The bucket, as the client knows it.
    id: Cell<u64>,
    lua: Lua,
}

/// A grant's time, the index of the limit that bound, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) at: u64,
    pub(crate) units: u64,
    pub(crate) bound_by: Option<usize>,
    pub(crate) number: u64,
    /// Whether it waits in the line.
    pub(crate) is_entry: bool,
}

impl Granted {
    pub(crate) fn outcome(&self) -> (u64, u64, Option<usize>) {
        (self.at, self.units, self.bound_by)
    }
}

/// Why it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Never,
    TooLong(u64),
}

impl Script {
    /// A bucket made at `now`. `None` if the limits are too large for the script. Those who do not look are not thought
    /// gone, as in one process.
    pub(crate) fn new(limits: &[Limit], quantum: u64, now: u64) -> Option<Self> {
        Script::of(&SCRIPT.replace("9 * SECOND", "MOST"), limits, quantum, now)
    }

    /// How many fields the bucket's key has.
    pub(crate) fn fields(&self) -> usize {
        self.lua.globals().get::<Function>("fields").unwrap().call(()).unwrap()
    }

    /// The same, and who does not look for long is gone.
    pub(crate) fn watchful(limits: &[Limit], now: u64) -> Self {
        Script::of(SCRIPT, limits, 1, now).unwrap()
    }

    fn of(script: &str, limits: &[Limit], quantum: u64, now: u64) -> Option<Self> {
        let terms = terms(limits, quantum)?;
        let lua = Lua::new();
        lua.load(include_str!("redis.lua")).exec().unwrap();
        let (ask, step) = (
            lua.globals().get("ask").unwrap(),
            lua.load(script.replace(MICROSECONDS, NANOSECONDS)).into_function().unwrap(),
        );
        let script = Script { ask, step, terms, id: Cell::new(0), lua };
        (now < BOUND).then(|| script.look(now))?;
        Some(script)
    }

    fn reply(&self, now: u64, expected: u64, what: &str, with: &[i64]) -> Vec<Value> {
        let [text, numbers] = &self.terms;
        let id = self.id.get();
        let head = [what.to_owned(), id.to_string(), expected.to_string(), text.clone(), numbers.clone()];
        let words: Variadic<String> = head.into_iter().chain(with.iter().map(ToString::to_string)).collect();
        let reply: Table = self.ask.call((self.step.clone(), now, words)).unwrap();
        reply.sequence_values().map(Result::unwrap).collect()
    }

    fn ask(&self, now: u64, what: &str, with: &[i64]) -> Result<(u64, Vec<i64>), Refused> {
        self.ask_expecting(now, 0, what, with)
    }

    /// Asks as a client by whose clock it can be `expected` at most.
    fn ask_expecting(&self, now: u64, expected: u64, what: &str, with: &[i64]) -> Result<(u64, Vec<i64>), Refused> {
        let reply = self.reply(now, expected, what, with);
        // Rounds down, as a server does.
        let number = |value: &Value| match value {
            Value::Integer(number) => *number,
            Value::Number(number) if number.fract() == 0.0 => number.to_string().parse().unwrap(),
            other => panic!("{other:?} in {reply:?}"),
        };
        match reply[0].as_string().map(mlua::LuaString::to_string_lossy).as_deref() {
            Some("ok") => {
                self.id.set(positive(number(&reply[2])));
                Ok((positive(number(&reply[4])), reply[5..].iter().map(number).collect()))
            }
            Some("late") => Err(Refused::TooLong(positive(number(&reply[1])))),
            Some("never") => Err(Refused::Never),
            _ => panic!("{reply:?}"),
        }
    }

    /// Like [`throttle::limits::Limits::take_within`]; without a bound, any wait is accepted.
    pub(crate) fn take(&self, now: u64, cost: u64, max_wait: Option<u64>) -> Result<Granted, Refused> {
        self.take_costs(now, &[cost], max_wait)
    }

    /// The same for one cost for each limit.
    pub(crate) fn take_costs(&self, now: u64, costs: &[u64], max_wait: Option<u64>) -> Result<Granted, Refused> {
        let (number, reply) = self.ask(now, "take", &costing(&[max_wait.map_or(-1, whole)], costs))?;
        Ok(granted(&reply, number))
    }

    pub(crate) fn lease(&self, now: u64, ask: &Ask) -> Result<Vec<Granted>, Refused> {
        let (number, reply) = self.ask(now, "lease", &[ask.waiting, ask.span, ask.from].map(whole))?;
        Ok(reply.chunks(3).map(|run| granted(run, number)).collect())
    }

    /// Where an entry is in the line now.
    pub(crate) fn stay(&self, now: u64, grant: &Granted) -> Granted {
        self.stay_costs(now, grant, &[grant.units])
    }

    pub(crate) fn stay_costs(&self, now: u64, grant: &Granted, costs: &[u64]) -> Granted {
        let left = grant.at.saturating_sub(now);
        // The id of a bucket is when it was made.
        let with = costing(&[whole(grant.number), whole(left)], costs);
        let (_, found) = self.ask(now, "stay", &with).unwrap();
        Granted { at: positive(found[0]), number: positive(found[1]), is_entry: found[1] > 0, ..*grant }
    }

    /// What a client sees by whose clock it can be `expected` at most.
    pub(crate) fn expecting(&self, now: u64, expected: u64) -> Vec<i64> {
        self.ask_expecting(now, expected, "look", &[]).unwrap().1
    }

    /// The server loses everything.
    pub(crate) fn lose(&mut self, now: u64) {
        self.lua.load("redis.call('DEL')").exec().unwrap();
        assert!(now > 0);
    }

    pub(crate) fn clear(&self, now: u64, anew: bool) {
        self.ask(now, "clear", &[i64::from(anew)]).unwrap();
    }

    /// Returns a lease: `spent` units were used, and the runs in `rest` were not.
    pub(crate) fn return_lease(&self, now: u64, spent: u64, rest: &[Granted]) {
        if rest[0].is_entry {
            return self.give_back(now, &rest[0]);
        }
        let mut with = vec![whole(rest[0].number), whole(spent), 0];
        with.extend(rest.iter().flat_map(|run| [whole(run.at), whole(run.units)]));
        // In tests the time is the last argument.
        self.ask(now, "unlease", &with).unwrap();
    }

    pub(crate) fn give_back(&self, now: u64, grant: &Granted) {
        self.give_back_costs(now, grant, &[grant.units]);
    }

    pub(crate) fn give_back_costs(&self, now: u64, grant: &Granted, costs: &[u64]) {
        self.ask(now, "give", &costing(&[grant.number, grant.at].map(whole), costs)).unwrap();
    }

    pub(crate) fn hold_until(&self, now: u64, until: u64) {
        self.ask(now, "hold", &[whole(until)]).unwrap();
    }

    pub(crate) fn set(&mut self, now: u64, limits: &[Limit], quantum: u64, fresh: &[bool]) {
        self.terms = terms(limits, quantum).unwrap();
        let fresh: Vec<i64> = fresh.iter().map(|fresh| i64::from(*fresh)).collect();
        self.ask(now, "set", &fresh).unwrap();
    }

    /// What each limit has left, what all have, and how long a unit would wait (-1: for ever).
    pub(crate) fn look(&self, now: u64) -> Vec<i64> {
        self.ask(now, "look", &[]).unwrap().1
    }
}

/// These arguments, how many costs, and the costs.
fn costing(with: &[i64], costs: &[u64]) -> Vec<i64> {
    with.iter()
        .copied()
        .chain([i64::try_from(costs.len()).unwrap()])
        .chain(costs.iter().map(|cost| whole(*cost)))
        .collect()
}

fn granted(run: &[i64], number: u64) -> Granted {
    let place = usize::try_from(run[2]).unwrap();
    let (is_entry, bound_by) = (place >= ENTRY, (place % ENTRY).checked_sub(1));
    Granted { at: positive(run[0]), units: positive(run[1]), bound_by, number, is_entry }
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap()
}

fn whole(number: u64) -> i64 {
    i64::try_from(number.min(BOUND)).unwrap()
}

/// The limits as the store passes them to the script, but in the core's unit of time.
fn terms(limits: &[Limit], quantum: u64) -> Option<[String; 2]> {
    let numbers: Option<Vec<String>> = limits.iter().map(numbers).collect();
    Some([format!("{limits:?}"), format!("{} {}", quantum.min(BOUND), numbers?.join(" "))])
}

fn numbers(limit: &Limit) -> Option<String> {
    let fits = |number: u64| (number < BOUND).then_some(number);
    match *limit {
        Limit::Bucket { units, period, burst, initial } => {
            let divisor = gcd(units, period);
            let (units, period) = (fits(units / divisor)?, fits(period / divisor)?);
            let full = burst.checked_mul(period).and_then(fits)?;
            Some(format!("0 {units} {period} {full} {}", initial * period))
        }
        Limit::Window { count, period, slack } => {
            Some(format!("1 {} {} {}", fits(period + slack)?, fits(count)?, count.div_ceil(EXACT)))
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn a_state_that_makes_no_sense_grants_nothing() {
    let bucket = Limit::Bucket { units: 1, period: 200_000, burst: 5, initial: 5 };
    let window = Limit::Window { count: 9, period: 1_000_000, slack: 0 };
    let script = Script::new(&[bucket, window], 1, 1_000).unwrap();
    script.take(2_000, 1, None).unwrap();
    let overwrite: Function = script.lua.globals().get("overwrite").unwrap();
    let state: String = overwrite.call(("state", "")).unwrap();
    let words: Vec<&str> = state.split(' ').collect();
    let mut forged: Vec<String> = (0..words.len()).map(|place| words[..place].join(" ")).collect();
    for place in 0..words.len() {
        for wrong in ["nan", "-nan", "inf", "-1e300", "1e300", "0.5", "x"] {
            let mut words = words.clone();
            words[place] = wrong;
            forged.push(words.join(" "));
        }
    }
    for (place, wrong) in
        [(4, "0"), (9, "0"), (10, "0"), (11, "1"), (12, "2000000"), (17, "0"), (20, "9"), (21, "100000000")]
    {
        let mut words = words.clone();
        words[place] = wrong;
        forged.push(words.join(" "));
    }
    let chunk: String = overwrite.call(("w2:0", "")).unwrap();
    for forged in ["", "1 2", &chunk[1..], &chunk.replace('0', "x")] {
        let _: Value = overwrite.call(("w2:0", forged)).unwrap();
        assert_eq!(first(&script.reply(3_000, 0, "take", &[-1, 1, 1])), "damaged", "{forged}");
    }
    let _: Value = overwrite.call(("w2:0", chunk)).unwrap();
    for forged in forged {
        let _: Value = overwrite.call(("state", forged.as_str())).unwrap();
        assert_eq!(first(&script.reply(3_000, 0, "take", &[-1, 1, 1])), "damaged", "{forged}");
    }
}

fn first(reply: &[Value]) -> String {
    reply[0].as_string().unwrap().to_string_lossy()
}

/// Each command, and each run of a lease, blocks the server for about a microsecond or more.
#[test]
fn a_full_log_that_has_left_its_period_costs_few_commands() {
    let script = Script::new(&[Limit::Window { count: 1000, period: 1_000_000, slack: 0 }], 1, 0).unwrap();
    for time in 1..=1000 {
        script.take(time, 1, None).unwrap();
    }
    let commands = |act: &dyn Fn()| {
        let calls = || script.lua.globals().get::<u64>("calls").unwrap();
        let before = calls();
        act();
        calls() - before
    };
    assert!(commands(&|| drop(script.look(5_000_000))) < 100);
    assert!(commands(&|| assert!(script.take(1_500, 1000, None).is_ok())) < 100);
    assert!(commands(&|| assert!(script.take(5_000_000, 1, None).is_ok())) < 100);
    assert!(script.lease(5_000_000, &Ask { waiting: 100_000, span: 1_000_000_000, from: 0 }).unwrap().len() <= 64);
}

/// The server is blocked for as long as it takes to read and write the entries that a step needs.
#[test]
fn one_who_joins_or_looks_reads_a_small_part_of_a_long_line() {
    let script =
        Script::new(&[Limit::Bucket { units: 1, period: 60_000_000_000, burst: 1, initial: 0 }], 1, 0).unwrap();
    let waiters: Vec<_> = (0..320).map(|_| script.take(0, 1, None).unwrap()).collect();
    let bytes = |act: &dyn Fn()| {
        let bytes = || script.lua.globals().get::<u64>("bytes").unwrap();
        let before = bytes();
        act();
        bytes() - before
    };
    let line = bytes(&|| drop(script.look(1)));
    assert!(line > 320 * 48, "{line}");
    let joins = bytes(&|| assert!(script.take(2, 1, None).is_ok()));
    assert!(joins * 2 < line, "{joins} of {line}");
    let looks = bytes(&|| assert!(script.stay(3, &waiters[5]).is_entry));
    assert!(looks * 2 < line, "{looks} of {line}");
}

#[test]
fn a_damaged_line_grants_nothing() {
    let script =
        Script::new(&[Limit::Bucket { units: 1, period: 60_000_000_000, burst: 1, initial: 0 }], 1, 0).unwrap();
    for _ in 0..40 {
        script.take(0, 1, None).unwrap();
    }
    let overwrite: Function = script.lua.globals().get("overwrite").unwrap();
    let [line, chunk] = ["line", "l1"].map(|field| overwrite.call::<mlua::LuaString>((field, "")).unwrap());
    let chunk_bytes = chunk.as_bytes().to_vec();
    let of_line = ["", "0 0 40", "0 0 x 0", "nan 0 40 0", "0 0 0 0", "0 0 39 0", "0 0 1e8 0", "0 0 -1 0"];
    let of_chunk = [Vec::new(), chunk_bytes[1..].to_vec(), vec![0xff; chunk_bytes.len()]];
    let damaged = |field: &str, forged: &[u8], good: &mlua::LuaString| {
        let _: Value = overwrite.call((field, script.lua.create_string(forged).unwrap())).unwrap();
        assert_eq!(first(&script.reply(3_000, 0, "look", &[])), "damaged", "{field}: {forged:?}");
        let _: Value = overwrite.call((field, good.clone())).unwrap();
    };
    let _: Value = overwrite.call(("l1", chunk.clone())).unwrap();
    for forged in of_line {
        damaged("line", forged.as_bytes(), &line);
    }
    let _: Value = overwrite.call(("line", line.clone())).unwrap();
    for forged in of_chunk {
        damaged("l1", &forged, &chunk);
    }
}
