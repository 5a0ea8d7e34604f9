//! A shared ledger as bytes: all that cannot be computed from the rest, in an order that does not depend on how it is
//! stored. So two ledgers with the same bytes behave alike.

use super::seen::Seen;
use super::state::{Committed, RETURN_TIME, Replica};
use crate::clock::Nanos;
use crate::ledger::flows::{Hold, Learned};
use crate::ledger::heap::Item;
use crate::ledger::operation::Refusal;
use crate::ledger::operation::{Counts, Owner, PLAIN};
use crate::ledger::requests::{Costs, NONE, Terms};
use crate::ledger::state::{self, Open};
use crate::ledger::turns::Tag;
use crate::limits::{Charged, KeyId, Levels, Pace, Policy, from_bytes, to_bytes};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::num::NonZeroU32;

/// The bytes are not a saved ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the saved state of the bucket makes no sense")
    }
}

/// The highest times and numbers: they have room to grow.
const MAX_NUMBER: u64 = u64::MAX / 2;

type Name = Box<[u8]>;

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    policy: Policy,
    least: Nanos,
    reports: VecDeque<(Nanos, Nanos)>,
    refusals: VecDeque<((Owner, u64), Refusal)>,
    seen: Seen,
    counts: Counts,
    /// The creation time of new keys, the latest reading, the age of the youngest request, and the number of the latest
    /// grant.
    numbers: [u64; 4],
    levels: Levels,
    hold: SavedHold,
    learned: Option<SavedPace>,
    front: Nanos,
    tags: [u64; 3],
    /// Keys that are not as new, or have a flow.
    keys: Vec<(Name, Levels)>,
    flows: Vec<SavedFlow>,
    grants: Vec<SavedGrant>,
    failed: Vec<(Name, (u32, Nanos))>,
    given_up: Vec<(Name, (NonZeroU32, Nanos))>,
}

/// The end of a hold, and whether the buckets are still to be emptied.
type SavedHold = (Nanos, bool);

/// The pace, the next start, and when it is forgotten.
type SavedPace = (Pace, Nanos, Nanos);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedFlow {
    name: Name,
    served: Tag,
    finish: Tag,
    since: Nanos,
    hold: SavedHold,
    learned: Option<SavedPace>,
    /// Its start tag, if it is ready.
    tag: Option<Tag>,
    /// Usual requests, suspects, and those that join later.
    requests: Vec<SavedRequest>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedRequest {
    name: (Owner, u64),
    age: u64,
    arrived: Nanos,
    latest: Nanos,
    costs: Vec<u64>,
    units: u64,
    weight: u32,
    settles: bool,
    learns: bool,
    pays_at: Tag,
    is_linked: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedGrant {
    committed: Committed,
    key: Name,
    costs: Vec<u64>,
    counted: Nanos,
    runs: bool,
    /// Whether its real costs are still to be reported.
    is_open: bool,
}

impl Serialize for Replica {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.saved().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Replica {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Saved::deserialize(deserializer)?.restored().ok_or_else(|| D::Error::custom(Damaged))
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Replica").field(&self.saved()).finish()
    }
}

/// Two ledgers are equal if they behave alike.
impl PartialEq for Replica {
    fn eq(&self, other: &Self) -> bool {
        self.save() == other.save()
    }
}

impl Eq for Replica {}

fn saved_pace(learned: &Learned) -> SavedPace {
    (learned.pace.clone(), learned.next, learned.until)
}

fn pace_of((pace, next, until): SavedPace) -> Learned {
    Learned { pace, next, until }
}

impl Replica {
    /// This ledger as bytes. Answers that were not taken are left out.
    pub fn save(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// The ledger of these bytes.
    ///
    /// # Errors
    /// [`Damaged`]. Not every damage is found: the caller adds a checksum.
    pub fn load(bytes: &[u8]) -> Result<Replica, Damaged> {
        from_bytes(bytes).filter(|(_, rest)| rest.is_empty()).map(|(replica, _)| replica).ok_or(Damaged)
    }

    fn saved(&self) -> Saved {
        let (ledger, now) = (&self.ledger, self.ledger.now);
        let flows = self.saved_flows();
        let used: HashSet<&[u8]> = flows.iter().map(|flow| &*flow.name).collect();
        let needed = |(name, key): (&[u8], KeyId)| {
            let (each, levels) = ledger.keys.state(key);
            let is_needed = used.contains(name) || !each.is_fresh(levels, now);
            // Full buckets have many forms, which differ only for a grant that may change, and for a request that gathers
            // credit above a full bucket.
            let since = ledger.keys.flow(key).map_or(now, |id| self.waits_since(id));
            is_needed.then(|| (name.into(), each.tidied(levels, since)))
        };
        let mut keys: Vec<(Name, Levels)> = ledger.keys.all().filter_map(needed).collect();
        keys.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let grants = self.grants.values().filter_map(|committed| self.saved_grant(committed)).collect();
        let mut failed: Vec<_> = ledger
            .failures
            .in_a_row
            .iter()
            .filter(|(_, of)| of.1 > now)
            .map(|(name, of)| (name.clone(), *of))
            .collect();
        failed.sort_unstable();
        let given_up = |(name, (why, until)): (&Name, &(state::Refusal, Nanos))| match why {
            state::Refusal::GivenUp(Some(failed)) if *until > now => Some((name.clone(), (*failed, *until))),
            _ => None,
        };
        let mut given_up: Vec<_> = ledger.failures.given_up.iter().filter_map(given_up).collect();
        given_up.sort_unstable();
        let (front, tags) = ledger.turns.saved();
        Saved {
            policy: self.policy.clone(),
            least: self.least,
            reports: self.reports.clone(),
            refusals: self.refusals.clone(),
            seen: self.seen.clone(),
            counts: self.counts,
            numbers: [self.made, now, self.age, ledger.granted],
            levels: ledger.levels.clone(),
            hold: ledger.hold.saved(0),
            learned: ledger.learned.as_deref().map(saved_pace),
            front,
            tags,
            keys,
            flows,
            grants,
            failed,
            given_up,
        }
    }

    fn saved_flows(&self) -> Vec<SavedFlow> {
        let ledger = &self.ledger;
        let mut later: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for slot in ledger.requests.all().filter(|slot| !ledger.requests.get(*slot).is_linked) {
            later.entry(ledger.requests.get(slot).flow).or_default().push(slot);
        }
        let flows = ledger.flows.in_use().into_iter().filter(|id| !ledger.is_forgotten(*id));
        let mut flows: Vec<SavedFlow> = flows.map(|id| self.saved_flow(id, later.remove(&id))).collect();
        flows.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        flows
    }

    /// Since when requests of a flow wait; now if none waits.
    fn waits_since(&self, id: u32) -> Nanos {
        let (ledger, flow) = (&self.ledger, &self.ledger.flows[id]);
        let waiting = ledger.requests.of(flow.usual).chain(ledger.requests.of(flow.suspects));
        waiting.map(|slot| ledger.requests.get(slot).arrived).min().unwrap_or(ledger.now).min(ledger.now)
    }

    fn saved_flow(&self, id: u32, later: Option<Vec<u32>>) -> SavedFlow {
        let (ledger, flow) = (&self.ledger, &self.ledger.flows[id]);
        let mut later = later.unwrap_or_default();
        later.sort_unstable_by_key(|slot| ledger.requests.get(*slot).age);
        let waiting = ledger.requests.of(flow.usual).chain(ledger.requests.of(flow.suspects));
        let request = |slot: u32| {
            let of = ledger.requests.get(slot);
            SavedRequest {
                name: self.names[slot as usize],
                age: of.age,
                arrived: of.arrived,
                latest: of.terms.latest,
                costs: of.costs.to_vec(),
                units: of.units,
                weight: of.weight,
                settles: of.terms.settles,
                learns: of.terms.learns,
                // What was granted to usual requests begins at 0 again.
                pays_at: of.pays_at.saturating_sub(flow.debt.usual),
                is_linked: of.is_linked,
            }
        };
        // A time that has passed matters only to requests that waited then.
        let first = self.waits_since(id);
        // Before the virtual time, a finish tag matters only if the cost of a grant can change.
        let is_past = flow.open == 0 && ledger.turns.is_past(flow.finish);
        SavedFlow {
            name: ledger.keys.name(flow.key).into(),
            served: flow.debt.served(),
            finish: if is_past { 0 } else { flow.finish },
            since: if flow.since > first { flow.since } else { 0 },
            hold: flow.hold.saved(first),
            learned: flow.learned.as_deref().map(saved_pace),
            tag: ledger.turns.tag(id),
            requests: waiting.chain(later).map(request).collect(),
        }
    }

    fn saved_grant(&self, committed: &Committed) -> Option<SavedGrant> {
        let open = self.ledger.grants.get(&committed.grant.number)?;
        Some(SavedGrant {
            committed: *committed,
            key: self.ledger.keys.name(open.key).into(),
            costs: open.costs.to_vec(),
            counted: open.charged.counted,
            runs: open.runs,
            is_open: open.settles,
        })
    }
}

impl Saved {
    /// The ledger; `None` if that makes no sense. Later no operation panics. Other damage is found by a checksum.
    fn restored(self) -> Option<Replica> {
        let [made, now, age, number] = self.numbers;
        self.numbers.iter().all(|number| *number <= MAX_NUMBER).then_some(())?;
        let ascend = |(one, other): (&(Nanos, Nanos), &(Nanos, Nanos))| one.0 <= other.0 && one.1 > other.1;
        self.reports.iter().zip(self.reports.iter().skip(1)).all(ascend).then_some(())?;
        let mut replica = Replica::new(&self.policy, made, number, self.least);
        (replica.reports, replica.refusals) = (self.reports, self.refusals);
        let horizon = replica.horizon();
        let ledger = &mut replica.ledger;
        (ledger.now, ledger.horizon) = (now, horizon);
        ledger.all.has_sense(&self.levels).then_some(())?;
        ledger.levels = self.levels;
        ledger.hold = Hold::restored(self.hold);
        (self.learned.is_some() == ledger.learned.is_some()).then_some(())?;
        ledger.learned = self.learned.map(pace_of).map(Box::new);
        ledger.turns.restore_saved(self.front, self.tags);
        self.keys.is_sorted_by(|one, other| one.0 < other.0).then_some(())?;
        for (name, levels) in self.keys {
            ledger.keys.each().has_sense(&levels).then_some(())?;
            ledger.keys.restore(&name, levels);
        }
        (replica.seen, replica.age, replica.counts) = (Seen::default(), age, self.counts);
        let mut flows = Vec::new();
        self.flows.is_sorted_by(|one, other| one.name < other.name).then_some(())?;
        for flow in self.flows {
            flows.push(replica.restore_flow(flow)?);
        }
        for grant in self.grants {
            replica.restore_grant(grant)?;
        }
        let of_seen: Vec<Owner> = self.seen.in_use().map(|(owner, _)| owner).collect();
        let used: Vec<Owner> = replica.seen.in_use().map(|(owner, _)| owner).collect();
        (of_seen == used && self.seen.has_uses_of(&replica.seen)).then_some(())?;
        replica.seen = self.seen;
        let failures = &mut replica.ledger.failures;
        failures.in_a_row.extend(self.failed);
        let given_up = self.given_up.into_iter();
        failures
            .given_up
            .extend(given_up.map(|(name, (failed, until))| (name, (state::Refusal::GivenUp(Some(failed)), until))));
        replica.restore_turns(flows)?;
        replica.is_loaded = true;
        Some(replica)
    }
}

impl Replica {
    /// Now that all requests and grants are there, the flows take their turns.
    fn restore_turns(&mut self, flows: Vec<(u32, Option<Tag>)>) -> Option<()> {
        let ledger = &mut self.ledger;
        for (id, tag) in flows {
            match tag {
                Some(tag) => {
                    let first = ledger.flows[id].first();
                    let is_full = ledger.settings.jobs.is_some_and(|jobs| ledger.flows[id].running >= jobs);
                    (first != NONE && !is_full).then_some(())?;
                    ledger.turns.enter_ready(id, tag, ledger.requests.get(first).age);
                }
                None => ledger.enter(id),
            }
            ledger.release(id);
        }
        Some(())
    }

    fn restore_flow(&mut self, flow: SavedFlow) -> Option<(u32, Option<Tag>)> {
        let ledger = &mut self.ledger;
        let key = ledger.keys.find(&*flow.name)?;
        let id = ledger.flow(key);
        {
            let of = &mut ledger.flows[id];
            of.debt.restore(flow.served);
            (of.finish, of.since, of.hold) = (flow.finish, flow.since, Hold::restored(flow.hold));
            of.learned = flow.learned.map(pace_of).map(Box::new);
            ledger.paces.known += usize::from(of.learned.is_some());
            if of.hold.is_pending() {
                let at = of.hold.until;
                ledger.flows.holds.push(Item { at, age: 0, id });
            }
        }
        // Usual requests by age, suspects, and those that join later by age.
        let part = |request: &SavedRequest| (!request.is_linked, request.is_linked && request.weight > 0);
        let is_in_order = |one: &SavedRequest, other: &SavedRequest| {
            let is_by_age = !one.is_linked || one.weight == 0;
            part(one) < part(other) || part(one) == part(other) && (!is_by_age || one.age < other.age)
        };
        flow.requests.is_sorted_by(is_in_order).then_some(())?;
        for request in &flow.requests {
            self.restore_request(id, request)?;
        }
        Some((id, flow.tag))
    }

    fn restore_request(&mut self, flow: u32, saved: &SavedRequest) -> Option<()> {
        let is_plain = saved.name.1 == PLAIN;
        let is_valid = saved.age <= self.age
            && saved.age > 0
            && saved.units > 0
            && (is_plain || saved.units == 1)
            && (!is_plain || saved.costs == [1])
            && !self.asked.contains_key(&saved.name);
        is_valid.then_some(())?;
        let ledger = &mut self.ledger;
        let ticket = ledger.requests.add(saved.age, saved.arrived, &saved.costs, flow, saved.weight);
        let slot = ticket.slot;
        let request = ledger.requests.get_mut(slot);
        (request.units, request.is_plain, request.pays_at) = (saved.units, is_plain, saved.pays_at);
        request.terms = Terms { latest: saved.latest, settles: saved.settles, learns: saved.learns };
        let at = if saved.is_linked {
            let of = &mut ledger.flows[flow];
            ledger.requests.append(of.list(saved.weight), slot);
            of.note_first_suspect(&ledger.requests);
            ledger.waiting += usize::from(of.waiting == 0);
            of.waiting += 1;
            ledger.usual += usize::from(saved.weight == 0);
            saved.latest
        } else {
            ledger.flows[flow].later += 1;
            ledger.later += 1;
            saved.arrived.min(saved.latest)
        };
        if at < Nanos::MAX {
            ledger.timers.push(Item { at, age: saved.age, id: slot });
        }
        let now = self.ledger.now;
        self.added(now, saved.name, ticket);
        Some(())
    }

    fn restore_grant(&mut self, saved: SavedGrant) -> Option<()> {
        let SavedGrant { committed, key, costs, counted, runs, is_open } = saved;
        let Committed { owner, grant, is_kept, .. } = committed;
        let follows = |last: &Committed| last.grant.number < grant.number && last.grant.at <= grant.at;
        let is_in_order = self.grants.values().next_back().is_none_or(follows) && grant.number <= self.ledger.granted;
        let key = self.ledger.keys.find(&*key)?;
        let id = self.ledger.keys.flow(key)?;
        (is_in_order && (is_kept || !runs)).then_some(())?;
        let charged = Charged { at: grant.at, counted, number: grant.number };
        let costs: Costs = costs[..].into();
        self.ledger
            .grants
            .insert(grant.number, Open { key, costs, charged, start: grant.start, runs, settles: is_open });
        let flow = &mut self.ledger.flows[id];
        (flow.open, flow.running) = (flow.open + 1, flow.running + u32::from(runs));
        self.ledger.running += u32::from(runs);
        self.grants.insert(grant.number, committed);
        if is_kept {
            self.seen.uses(owner, self.ledger.now);
        } else {
            self.returnable.push_back((grant.at.saturating_add(RETURN_TIME), grant.number));
        }
        Some(())
    }
}
