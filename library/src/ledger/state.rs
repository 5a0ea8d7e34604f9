//! The data of a ledger, and the events that it returns.

use super::flows::{Flow, Flows, Hold, Learned, Paces};
use super::heap::Heap;
use super::keys::{Name, Table};
use super::requests::{Costs, NONE, Requests, Ticket};
use super::rules::{NamedKey, Rules};
use super::turns::{FRACTION_BITS, Tag, Turns};
use crate::clock::Nanos;
use crate::limits::{Charged, KeyId, Levels, Limits, Start};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::num::NonZeroU32;

/// The most keys that are stored.
const MAX_KEYS: usize = 1_000_000;

/// A request for one unit.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The age of the request. It is unique, and the oldest request has the least.
    pub age: u64,
    /// One cost of each kind.
    pub costs: &'a [u64],
    /// When the request begins to wait: at this time, or now if that is later. Until then other requests of its key may
    /// be granted first.
    pub arrived: Nanos,
    /// 0 for a usual request. A request with a weight is a suspect: its unit was refused again and again. The suspects
    /// of a key get one turn for `weight` turns of its usual requests, and all turns while no usual request waits.
    pub weight: u32,
    /// Whether the costs may change after the grant. Then [`Ledger::settle`] reports the real costs, or
    /// [`Ledger::ended`] makes the charged costs final.
    pub settles: bool,
}

/// A request that was taken out of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its name while it waited.
    pub ticket: Ticket,
    /// Its key.
    pub key: KeyId,
    /// Its age.
    pub age: u64,
    /// Its costs.
    pub costs: Costs,
    /// When it began to wait.
    pub arrived: Nanos,
    /// Whether its costs may change after the grant.
    pub settles: bool,
}

/// Plain units that are granted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their number.
    pub units: u64,
    /// The name of their request.
    pub ticket: Ticket,
    /// Whether they had to wait for the limits.
    pub has_waited: bool,
    /// When they were charged.
    pub charged: Charged,
    pub(super) key: KeyId,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has reached the longest wait.
    TooLate,
    /// Its key is given up: after this number of failures in a row, or by [`Ledger::give_up`].
    GivenUp(Option<NonZeroU32>),
}

/// The next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This request is granted and charged.
    Granted(Taken, Charged),
    /// These [plain units](Ledger::want) are granted and charged.
    Run(Run),
    /// This request is not granted any more.
    Refused(Taken, Refusal),
    /// Nothing happens before this time.
    At(Nanos),
    /// Nothing happens until a unit ends or a request is added. Either no request waits, or no waiting key may run
    /// another unit.
    Nothing,
}

/// A grant that may still change.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) key: KeyId,
    pub(super) costs: Costs,
    pub(super) charged: Charged,
    /// Its start, if a pace is learned.
    pub(super) start: Option<Start>,
    /// Whether it takes a job of its key until it ends.
    pub(super) runs: bool,
    /// Whether its real costs are still to be reported.
    pub(super) settles: bool,
}

/// Waiting requests, and the limits that they wait for.
///
/// A [`KeyId`] is valid while requests of its key wait or run. After that it is valid until the next call that may add
/// a key: [`ask`](Self::ask), [`pass`](Self::pass) or [`poll`](Self::poll).
#[derive(Clone, Debug)]
pub struct Ledger<N = Name> {
    pub(super) keys: Table<N>,
    pub(super) all: Limits,
    pub(super) levels: Levels,
    pub(super) settings: Settings,
    /// The latest clock reading.
    pub(super) now: Nanos,
    /// A request is granted if its time is by now and this horizon; 0 for a ledger of one process.
    pub(super) horizon: Nanos,
    pub(super) flows: Flows,
    pub(super) requests: Requests,
    pub(super) turns: Turns,
    /// The requests that join their flow later, and those that expire, by that time.
    pub(super) timers: Heap,
    /// Flows of new keys that have no room in the table of keys yet, by the age of their first request. These flows are
    /// *outside*.
    pub(super) outside: Heap,
    /// The number of flows outside, including flows without a request.
    pub(super) outsiders: usize,
    /// The hold of all keys.
    pub(super) hold: Hold,
    /// The learned pace of all keys together, in the ledger of a shared bucket.
    pub(super) learned: Option<Box<Learned>>,
    /// The number of units of all keys that run.
    pub(super) running: u32,
    /// The number of requests that join their flow later.
    pub(super) later: usize,
    /// The number of flows with requests that have joined them.
    pub(super) waiting: usize,
    /// The number of usual requests that have joined their flow.
    pub(super) usual: usize,
    /// The number of grants so far, which is the number of the latest one.
    pub(super) granted: u64,
    /// The grants that may still change, by number.
    pub(super) grants: BTreeMap<u64, Open>,
    pub(super) paces: Paces,
    pub(super) failures: Failures,
    /// The refused requests that were not returned yet.
    pub(super) refusals: VecDeque<(Ticket, Refusal)>,
    /// The request for plain units, if there is one.
    pub(super) plain: u32,
    /// Whether the caller had no room for a grant at its latest call.
    pub(super) is_blocked: bool,
    /// Whether memory for more requests is short.
    pub(super) is_short: bool,
    /// If a shared bucket applies the limits: when they have paid for the latest grant.
    pub(super) busy_until: Option<Nanos>,
}

/// The facts of a ledger that follow from its [`Rules`], or from the policy of a shared bucket.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// For each overall limit: the index of the kind of cost that it counts, and the length of a request of cost 1. A
    /// length is the time that the limit needs for a cost.
    pub(super) lengths: Vec<(usize, Tag)>,
    /// The number of bits by which these lengths are finer than a [`Tag`].
    pub(super) finer: u32,
    pub(super) has_windows: bool,
    /// How far a grant may lie in the past when its unit leaves.
    pub(super) allowance: Nanos,
    /// The fewest plain units that are worth a wake-up: 1 ms' worth of the slowest limit of all.
    pub(super) quantum: u64,
    /// The most units of one key that may run; `None` if nothing runs.
    pub(super) jobs: Option<u32>,
    /// The most units of all keys that may run.
    pub(super) jobs_of_all: Option<u32>,
    /// Whether this is the ledger of a shared bucket. Then each grant is stored, because it may not be used, and the
    /// number of plain units that leave together depends on no reader.
    pub(super) is_shared: bool,
    pub(super) max_wait: Option<Nanos>,
    /// Whether a request that is due before it expires is granted even if that is noticed only later.
    pub(super) grants_due: bool,
}

/// The failures of keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    /// After this many failures in a row a key is given up.
    pub(super) most: Option<NonZeroU32>,
    /// The number of failures in a row of keys whose latest unit has failed, and until when they count.
    pub(super) in_a_row: HashMap<Box<[u8]>, (u32, Nanos)>,
    /// The keys that are given up, and until when.
    pub(super) given_up: HashMap<Box<[u8]>, (Refusal, Nanos)>,
    /// Whether failures count for an hour, as in a shared bucket. Otherwise they count for the whole run.
    pub(super) are_shared: bool,
}

impl Settings {
    /// The facts that follow from the limits alone. The lengths are finer than a [`Tag`] by this number of bits.
    pub(super) fn new<'a>(all: &'a Limits, each: impl Iterator<Item = &'a Limits> + Clone, finer: u32) -> Self {
        let both = each.chain([all]);
        Settings {
            lengths: all.lengths(FRACTION_BITS + finer),
            finer,
            has_windows: both.clone().any(Limits::has_windows),
            allowance: both.clone().filter_map(Limits::allowance).min().unwrap_or(0),
            quantum: u64::MAX,
            jobs: None,
            jobs_of_all: None,
            is_shared: false,
            max_wait: None,
            grants_due: false,
        }
    }
}

impl Ledger {
    /// A ledger without requests. New keys have buckets made at `now`.
    pub fn new(rules: &Rules<'_>, now: Nanos) -> Self {
        Ledger::with_max_keys(rules, now, MAX_KEYS)
    }

    /// Like [`new`](Self::new), but stores at most `most` keys.
    pub fn with_max_keys(rules: &Rules<'_>, now: Nanos, most: usize) -> Self {
        let lengths = Limits::new(rules.all, now).lengths(FRACTION_BITS);
        let all = Limits::new(if rules.is_shared { &[] } else { rules.all }, now);
        let each = Limits::new(if rules.is_shared { &[] } else { rules.each }, now);
        let keys = Table::new(each, most).with_named(&NamedKey::limits(rules.named, now));
        let settings = Settings {
            lengths,
            quantum: rules.all.iter().map(|(policy, _)| policy.quantum()).min().unwrap_or(u64::MAX),
            // The end of a unit of a shared bucket is reported.
            jobs: rules.jobs.map(NonZeroU32::get).or(rules.is_shared.then_some(u32::MAX)),
            max_wait: rules.max_wait,
            ..Settings::new(&all, keys.limits(), 0)
        };
        Ledger::with_settings(settings, keys, all, now, rules)
    }

    /// Continues with the state of a bucket that has the same limits, and with the states of these keys. For each key
    /// the iterator returns the name, the state, and the end of its pause.
    pub fn resume<'a>(
        &mut self,
        now: Nanos,
        all: &Levels,
        keys: impl IntoIterator<Item = (&'a [u8], &'a Levels, Option<Nanos>)>,
    ) {
        let now = self.tick(now);
        self.levels.clone_from(all);
        self.turns.changed();
        for (name, state, paused_until) in keys {
            let key = self.keys.find(name).unwrap_or_else(|| self.keys.add(name, now));
            self.keys.state_mut(key).1.clone_from(state);
            self.hold_until(now, key, paused_until.unwrap_or(0));
        }
    }
}

impl<N: Hash> Ledger<N> {
    pub(super) fn with_settings(
        settings: Settings,
        keys: Table<N>,
        all: Limits,
        now: Nanos,
        rules: &Rules<'_>,
    ) -> Self {
        Ledger {
            settings,
            keys,
            levels: all.fresh(),
            all,
            now,
            horizon: 0,
            flows: Flows::default(),
            requests: Requests::default(),
            turns: Turns::default(),
            timers: Heap::default(),
            outside: Heap::default(),
            outsiders: 0,
            hold: Hold::default(),
            learned: None,
            running: 0,
            later: 0,
            waiting: 0,
            usual: 0,
            granted: 0,
            grants: BTreeMap::new(),
            paces: Paces::new(rules),
            failures: Failures { most: rules.fails, ..Failures::default() },
            refusals: VecDeque::new(),
            plain: NONE,
            is_blocked: false,
            is_short: false,
            busy_until: rules.is_shared.then_some(0),
        }
    }

    /// The length of a request: the longest time that an overall limit needs for its costs.
    #[inline]
    pub(super) fn length(&self, costs: &[u64]) -> Tag {
        let of = |(kind, one): &(usize, Tag)| {
            let cost = costs.get(*kind).or(costs.last()).copied().unwrap_or(0);
            (u128::from(cost) * u128::from(*one)) >> self.settings.finer
        };
        let longest = self.settings.lengths.iter().map(of).max().unwrap_or(0);
        Tag::try_from(longest).unwrap_or(Tag::MAX).max(1)
    }

    /// Applies `act` to the flow of a key. This may change when its first request conforms.
    pub(super) fn change(&mut self, key: KeyId, act: impl FnOnce(&mut Flow)) {
        let id = self.flow(key);
        self.leave(id);
        act(&mut self.flows[id]);
        self.enter(id);
        self.release(id);
    }
}
