//! The flows: the requests and jobs of each key, and the facts about their turns.

use super::heap::{Heap, Item};
use super::requests::{List, NONE, Requests};
use super::rules::Rules;
use super::turns::Tag;
use crate::clock::Nanos;
use crate::limits::{KeyId, Levels, Limits, Pace, Start};
use std::borrow::Cow;
use std::collections::TryReserveError;
use std::ops::{Index, IndexMut};

/// The most finish tags of idle flows that are kept. Beyond that the virtual time moves on. So endless new keys take no
/// memory and block no old key.
const MAX_TAGS: usize = 10_000;

/// A hold of all keys or of one key: nothing is granted for a time before its end. It charges nothing. When it ends by
/// itself, the buckets are emptied as of that time. Debts are paid meanwhile, and windows do not change. A hold that is
/// lifted leaves the levels as if it had not been.
///
/// Invariant: the buckets are still to be emptied until the end of the hold is by now, or until a grant is for a time
/// after its end. Meanwhile, decisions use the state as it will be at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) until: Nanos,
    /// Whether the buckets are still to be emptied.
    empties: bool,
}

impl Hold {
    /// Extends the hold. Returns whether anything has changed.
    pub(super) fn extend(&mut self, now: Nanos, until: Nanos) -> bool {
        let is_longer = until > now.max(self.until);
        if is_longer {
            (self.until, self.empties) = (until, true);
        }
        is_longer
    }

    /// Lifts the hold. Returns whether it was pending.
    pub(super) fn lift(&mut self) -> bool {
        let was_pending = self.is_pending();
        if was_pending {
            (self.until, self.empties) = (0, false);
        }
        was_pending
    }

    /// The hold as it is saved: 0 if it was over at `first`.
    pub(super) fn saved(self, first: Nanos) -> (Nanos, bool) {
        if self.empties || self.until > first { (self.until, self.empties) } else { (0, false) }
    }

    pub(super) fn restored((until, empties): (Nanos, bool)) -> Hold {
        Hold { until, empties }
    }

    /// Whether the buckets are still to be emptied.
    pub(super) fn is_pending(&self) -> bool {
        self.empties
    }

    /// Ends the hold: empties the buckets, unless that was done before.
    pub(super) fn end(&mut self, each: &Limits, levels: &mut Levels) {
        if std::mem::take(&mut self.empties) {
            each.empty(levels, self.until);
        }
    }

    /// The state of limits at the end of the hold and later, if nothing is charged before.
    #[inline]
    pub(super) fn state_after<'a>(&self, each: &Limits, levels: &'a Levels) -> Cow<'a, Levels> {
        if !self.empties {
            return Cow::Borrowed(levels);
        }
        let mut emptied = levels.clone();
        each.empty(&mut emptied, self.until);
        Cow::Owned(emptied)
    }
}

/// The wait of a flow's suspects, as the length of the usual requests that are granted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Debt {
    /// The length that is still to be granted for the suspects that were granted.
    served: Tag,
    /// The length of all usual requests that were granted.
    pub(super) usual: Tag,
    /// `usual` reaches this before the turn of the first suspect: each suspect waits for its own first turn, too.
    pays_at: Tag,
}

impl Debt {
    fn is_paid(self) -> bool {
        self.served == 0 && self.pays_at <= self.usual
    }

    /// The length that is still to be granted to usual requests.
    pub(super) fn served(self) -> Tag {
        self.served
    }

    pub(super) fn restore(&mut self, served: Tag) {
        *self = Debt { served, ..Debt::default() };
    }

    /// A request of this length and weight is granted.
    pub(super) fn granted(&mut self, length: Tag, weight: u32) {
        match weight {
            0 => {
                self.served = self.served.saturating_sub(length);
                self.usual = self.usual.saturating_add(length);
            }
            // If debt is left here, no usual request waited, and the suspect took none of their turns. So its own debt
            // is not added to the earlier one.
            _ => self.served = self.served.max(length.saturating_mul(weight.into())),
        }
    }
}

/// How the ledger learns paces.
#[derive(Clone, Debug, Default)]
pub(super) struct Paces {
    /// The time between two starts that the limits require. `None` if no pace is learned.
    pub(super) asked: Option<Nanos>,
    /// Whether a learned pace slows starts.
    pub(super) slows: bool,
    /// The number of flows with a pace, and when those that do not matter were last forgotten.
    pub(super) known: usize,
    pub(super) swept: Nanos,
}

impl Paces {
    pub(super) fn new(rules: &Rules<'_>) -> Self {
        Paces { asked: rules.paced, slows: !rules.only_observes, known: 0, swept: 0 }
    }
}

/// A learned pace.
#[derive(Clone, Debug)]
pub(super) struct Learned {
    pub(super) pace: Pace,
    /// Nothing starts before this time.
    pub(super) next: Nanos,
    /// It is forgotten at this time if nothing starts before.
    pub(super) until: Nanos,
}

impl Learned {
    /// A pace before any start.
    pub(super) fn new(asked: Nanos) -> Self {
        Learned { pace: Pace::new(asked), next: 0, until: Nanos::MAX }
    }

    /// Units start at `at`. The next start follows after the learned interval of each. Lateness of up to a tenth of that
    /// interval is made up for.
    pub(super) fn started(&mut self, at: Nanos, units: u64, slows: bool) -> Start {
        self.pace.started(at, units);
        let from = |interval: Nanos| {
            self.next.max(at.saturating_sub(interval / 10)).saturating_add(interval.saturating_mul(units))
        };
        self.next = self.pace.learned().filter(|_| slows).map_or(0, from);
        self.pace.start(at)
    }

    /// Whether the pace slows starts now or later.
    pub(super) fn matters(&self, now: Nanos) -> bool {
        self.next > now || self.pace.learned().is_some()
    }
}

/// The requests and jobs of one key.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) key: KeyId,
    /// The requests that have joined the flow: the usual ones by age, and the suspects in the order of their arrival.
    pub(super) usual: List,
    pub(super) suspects: List,
    pub(super) debt: Debt,
    /// The number of requests in the two lists.
    pub(super) waiting: usize,
    /// The number of requests that join the flow later.
    pub(super) later: usize,
    /// The number of grants that are stored because they may still change, and the number of them that run.
    pub(super) open: u32,
    pub(super) running: u32,
    /// Nothing is granted before this time, because all its jobs were running until then, or because there was no room
    /// for it until then.
    pub(super) since: Nanos,
    pub(super) hold: Hold,
    pub(super) learned: Option<Box<Learned>>,
    pub(super) finish: Tag,
    /// Whether the table of keys still has no room for this key.
    pub(super) is_outside: bool,
}

impl Flow {
    pub(super) fn new(key: KeyId) -> Flow {
        Flow {
            key,
            usual: List::EMPTY,
            suspects: List::EMPTY,
            debt: Debt::default(),
            waiting: 0,
            later: 0,
            open: 0,
            running: 0,
            since: 0,
            hold: Hold::default(),
            learned: None,
            finish: 0,
            is_outside: false,
        }
    }

    /// The next request to be granted, or [`NONE`].
    #[inline]
    pub(super) fn first(&self) -> u32 {
        let is_suspect = self.usual.first == NONE || self.debt.is_paid() && self.suspects.first != NONE;
        if is_suspect { self.suspects.first } else { self.usual.first }
    }

    /// Notes that another suspect may be the first one now.
    pub(super) fn note_first_suspect(&mut self, requests: &Requests) {
        let first = self.suspects.first;
        self.debt.pays_at = if first == NONE { 0 } else { requests.get(first).pays_at };
    }

    pub(super) fn list(&mut self, weight: u32) -> &mut List {
        if weight == 0 { &mut self.usual } else { &mut self.suspects }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.later == 0 && self.open == 0
    }

    /// Nothing is granted before this time.
    #[inline]
    pub(super) fn ready_from(&self) -> Nanos {
        self.since.max(self.hold.until).max(self.learned.as_ref().map_or(0, |learned| learned.next))
    }

    /// Whether a request that arrives now would be its first, and may be granted if the limits allow it, and jobs are
    /// not counted.
    pub(super) fn is_free(&self, now: Nanos) -> bool {
        self.waiting == 0 && self.ready_from() <= now && !self.is_outside
    }
}

/// A slab of flows, and the idle ones among them that are still needed. A flow is idle if it has no requests and no
/// grants that may still change.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    slots: Vec<Flow>,
    free: Vec<u32>,
    /// Idle flows, until a time before which nothing may be granted to them.
    resting: Heap,
    /// Idle flows whose finish tags are above the virtual time, by tag. Each keeps its tag, so that a key gains nothing
    /// from being idle for a moment.
    ahead: Heap,
    /// Flows whose holds are still to empty the buckets of their keys, by the end of the hold.
    pub(super) holds: Heap,
}

impl Index<u32> for Flows {
    type Output = Flow;

    #[inline]
    fn index(&self, id: u32) -> &Flow {
        &self.slots[id as usize]
    }
}

impl IndexMut<u32> for Flows {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Flow {
        &mut self.slots[id as usize]
    }
}

impl Flows {
    pub(super) fn add(&mut self, key: KeyId) -> u32 {
        let new = Flow::new(key);
        if let Some(id) = self.free.pop() {
            self[id] = new;
            return id;
        }
        self.slots.push(new);
        u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
    }

    /// Makes room for one more flow. Returns the highest number that it may get.
    pub(super) fn try_reserve(&mut self) -> Result<usize, TryReserveError> {
        let id = self.slots.len();
        self.slots.try_reserve(1)?;
        self.free.try_reserve((id + 1).saturating_sub(self.free.len()))?;
        for heap in [&mut self.resting, &mut self.ahead, &mut self.holds] {
            heap.try_reserve(id)?;
        }
        Ok(id)
    }

    /// All flows, and entries that are free.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.slots.iter()
    }

    /// The numbers of all flows, and of entries that are free.
    pub(super) fn ids(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.slots.len()).unwrap_or(NONE)
    }

    /// The numbers of all flows that are not free.
    pub(super) fn in_use(&self) -> Vec<u32> {
        let free: std::collections::BTreeSet<u32> = self.free.iter().copied().collect();
        self.ids().filter(|id| !free.contains(id)).collect()
    }

    /// The keys of the flows whose holds are still to empty the buckets of their keys.
    pub(super) fn held(&self) -> Vec<KeyId> {
        self.holds.iter().map(|hold| self[hold.id].key).collect()
    }

    /// An idle flow is used again.
    #[inline]
    pub(super) fn wake(&mut self, id: u32) {
        if !self.resting.is_empty() {
            self.resting.remove(id);
        }
        if !self.ahead.is_empty() {
            self.ahead.remove(id);
        }
    }

    /// Stores an idle flow for as long as it is needed. Returns whether it is not needed, and is free now. `least` is
    /// the least start tag that any flow may get from now on.
    pub(super) fn rest(&mut self, id: u32, least: Tag, now: Nanos) -> bool {
        self.wake(id);
        let flow = &self[id];
        let (from, finish) = (flow.ready_from(), flow.finish);
        // A key that is outside is forgotten only later, because its name is still needed.
        if from > now || flow.is_outside {
            self.resting.push(Item { at: from, age: 0, id });
        } else if finish > least {
            self.ahead.push(Item { at: finish, age: 0, id });
        } else if let Some(learned) = &self[id].learned {
            let at = learned.until;
            self.resting.push(Item { at, age: 0, id });
        } else {
            self.free(id);
            return true;
        }
        false
    }

    pub(super) fn free(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Takes an idle flow that rests no longer.
    #[inline]
    pub(super) fn pop_rested(&mut self, now: Nanos) -> Option<u32> {
        self.resting.first().filter(|first| first.at <= now)?;
        self.resting.pop().map(|first| first.id)
    }

    /// Whether finish tags of idle flows are kept.
    #[inline]
    pub(super) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Takes an idle flow whose tag is at most `least`.
    pub(super) fn pop_passed(&mut self, least: Tag) -> Option<u32> {
        self.ahead.first().filter(|first| first.at <= least)?;
        self.ahead.pop().map(|first| first.id)
    }

    /// Whether too many tags are kept.
    pub(super) fn has_too_many(&self) -> bool {
        self.ahead.len() > MAX_TAGS
    }

    /// If too many tags are kept: the least of them.
    pub(super) fn least_of_too_many(&self) -> Option<Tag> {
        self.ahead.first().filter(|_| self.has_too_many()).map(|first| first.at)
    }
}
