//! Questions about a shared ledger, which change nothing.

use super::state::Replica;
use crate::clock::{Nanos, SECOND};
use crate::ledger::operation::{self, Ask, Outcome, Owner, PLAIN};
use crate::ledger::requests::Ticket;
use crate::ledger::state::Ledger;
use crate::limits::{KeyId, Levels, Limits, Pace, Policy};

/// The most grants that are computed in advance, for one question. Beyond that there is no answer.
const MAX_AHEAD: usize = 100_000;

impl Replica {
    /// The end of the pause of all, if there is one.
    pub fn paused_until(&self) -> Option<Nanos> {
        self.ledger.held_until()
    }

    /// Whether all units, or those of this key, are held now.
    pub(crate) fn is_held(&self, key: Option<&[u8]>) -> bool {
        let of_key = key.filter(|_| self.policy.of_keys().is_some()).and_then(|key| self.ledger.find(Some(key)));
        let flow = of_key.and_then(|key| self.ledger.keys.flow(key));
        self.paused_until().is_some() || flow.is_some_and(|id| self.ledger.flows[id].hold.until > self.ledger.now)
    }

    /// Units that conform to the limits of all at `now`.
    pub fn available(&self, now: Nanos) -> u64 {
        if self.paused_until().is_some_and(|until| until > now) {
            return 0;
        }
        let (each, levels) = self.held_limits();
        each.available(&levels, now.max(self.ledger.turns.last()), &[1])
    }

    /// About as many units as the limits of all allow from `now` on and within this time.
    pub fn available_within(&self, now: Nanos, time: Nanos) -> u64 {
        let later = time.checked_div(self.policy.interval());
        later.map_or(u64::MAX, |later| later.saturating_add(self.available(now)))
    }

    /// The limits of all, with their state at the end of a pause, or now.
    pub(super) fn held_limits(&self) -> (&Limits, std::borrow::Cow<'_, Levels>) {
        (&self.ledger.all, self.ledger.hold.state_after(&self.ledger.all, &self.ledger.levels))
    }

    /// The time by which these further costs will have been granted to all keys together if requests never pause: by the
    /// limits, and by the learned pace for the first of the costs. `None` beyond the end of the clock.
    pub fn schedule(&self, now: Nanos, costs: &[u64]) -> Option<Nanos> {
        let (each, levels) = self.held_limits();
        let by_limits = each.schedule(&levels, now, costs)?.max(self.ledger.hold.until);
        let units = costs.first().copied().unwrap_or(0).saturating_sub(1);
        let paced = self.learned().map_or(0, |interval| now.saturating_add(interval.saturating_mul(units)));
        Some(by_limits.max(paced))
    }

    /// The learned time between two units of all, if a server allows less than the limits.
    pub fn learned(&self) -> Option<Nanos> {
        self.ledger.learned.as_ref().and_then(|learned| learned.pace.learned())
    }

    /// The learned pace of a key, or of all. A pace before any start if none is known.
    pub fn pace(&self, key: Option<&[u8]>) -> Pace {
        let known = match key.and_then(|key| self.ledger.find(Some(key))) {
            Some(key) if self.policy.of_keys().is_some() => self.ledger.pace_of(key).cloned(),
            _ => self.ledger.learned.as_ref().map(|learned| learned.pace.clone()),
        };
        known.unwrap_or_else(|| Pace::new(self.ledger.paces.asked.unwrap_or(0)))
    }

    /// The plain units of an owner that wait.
    pub fn wanted(&self, owner: Owner) -> u64 {
        self.asked.get(&(owner, PLAIN)).map_or(0, |ticket| self.ledger.requests.get(ticket.slot).units)
    }

    /// The number of units that run, if the bucket counts them.
    pub fn running(&self) -> usize {
        self.ledger.running as usize
    }

    /// Whether the real costs of a request of another owner than this will be reported.
    pub(crate) fn has_requests_that_settle(&self, owner: Owner) -> bool {
        let settles = |ticket: &Ticket| self.ledger.requests.get(ticket.slot).terms.settles;
        self.asked.iter().any(|((of, _), ticket)| *of != owner && settles(ticket))
    }

    /// Whether another owner than this will report the real costs of a grant.
    pub(crate) fn may_be_settled_by_others(&self, owner: Owner) -> bool {
        self.grants.values().any(|one| one.settles && one.owner != owner)
    }

    /// The fewest plain units that are worth a wake-up.
    pub fn quantum(&self) -> u64 {
        self.ledger.settings.quantum
    }

    /// The index of the limit of all for which the next request waits. `None` if it waits for none.
    pub fn bound_by(&mut self) -> Option<usize> {
        self.ledger.bound_by()
    }

    /// The number of the latest grant.
    pub fn latest(&self) -> u64 {
        self.ledger.granted
    }

    /// The keys whose state differs from a new key's, or that have requests or units that run.
    pub(super) fn keys(&self) -> Vec<(&[u8], KeyId)> {
        if self.policy.of_keys().is_none() {
            return Vec::new();
        }
        let ledger = &self.ledger;
        let is_used = |(_, key): &(&[u8], KeyId)| {
            let (each, levels) = ledger.keys.state(*key);
            ledger.keys.flow(*key).is_some_and(|id| !ledger.is_forgotten(id)) || !each.is_fresh(levels, ledger.now)
        };
        let mut keys: Vec<_> = ledger.keys.all().filter(is_used).collect();
        keys.sort_unstable();
        keys
    }

    /// The requests that wait, in the order of their grants: the cost and the time of each, if nothing changes. Of the
    /// plain units of an owner, only the first ones count. A request that waits for the end of a unit has no time, and is
    /// left out.
    pub(super) fn waiting(&self) -> Vec<(u64, Nanos)> {
        let mut left = self.asked.clone();
        if left.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let always = |_: &Replica| true;
        self.clone().run_ahead(None, always, |owner, outcome| {
            if let Outcome::Granted(grant) = outcome
                && let Some(waiting) = left.remove(&(owner, grant.ticket))
            {
                let costs = &self.ledger.requests.get(waiting.slot).costs;
                found.push((costs.iter().copied().max().unwrap_or(1), grant.at));
            }
            !left.is_empty()
        });
        found
    }

    /// When a request would be granted if nothing else happened. `None` if it does not wait, if it would be refused, or
    /// if a unit has to end before.
    pub fn estimate(&self, owner: Owner, ticket: u64) -> Option<Nanos> {
        self.asked.get(&(owner, ticket))?;
        self.clone().run_until_granted(owner, ticket)
    }

    /// When a request would be granted if it was made at `now`, and nothing else happened. If there is no room for it,
    /// the earliest time at which there may be room.
    pub fn estimate_new(&self, now: Nanos, ask: &Ask) -> Option<Nanos> {
        let (mut copy, nobody) = (self.clone(), [u64::MAX; 2]);
        copy.advance(now);
        copy.listen(nobody);
        copy.ask(copy.ledger.now, nobody, ask);
        match copy.outcomes.back() {
            Some((_, Outcome::Refused(_, operation::Refusal::NoRoom(until)))) => Some(*until),
            _ => copy.run_until_granted(nobody, ask.ticket),
        }
    }

    fn run_until_granted(self, owner: Owner, ticket: u64) -> Option<Nanos> {
        let mut found = None;
        let may_be_granted = |replica: &Replica| {
            let waiting = replica.asked.get(&(owner, ticket));
            waiting.is_some_and(|waiting| !replica.ledger.needs_an_end(*waiting))
        };
        self.run_ahead(Some(owner), may_be_granted, |_, outcome| match outcome {
            Outcome::Granted(grant) if grant.ticket == ticket => {
                found = Some(grant.at);
                false
            }
            Outcome::Refused(of, _) => of != ticket,
            Outcome::Granted(_) => true,
        });
        found
    }

    /// Goes on without limits of time, while `goes_on` and `look` return `true`. Nothing else happens meanwhile. `look` gets
    /// the outcomes for `listener`; for everybody if that is `None`.
    fn run_ahead(
        mut self,
        listener: Option<Owner>,
        goes_on: impl Fn(&Replica) -> bool,
        mut look: impl FnMut(Owner, Outcome) -> bool,
    ) {
        self.outcomes.clear();
        self.listener = listener;
        self.reports.clear();
        self.least = Nanos::MAX;
        self.ledger.horizon = Nanos::MAX;
        for _ in 0..MAX_AHEAD {
            if !goes_on(&self) {
                return;
            }
            // One after the other, because others may want units without end.
            let has_committed = self.commit_one(self.ledger.now);
            while let Some((owner, outcome)) = self.take() {
                if !look(owner, outcome) {
                    return;
                }
            }
            if !has_committed {
                // Nothing is due before the next request joins its flow or expires.
                let Some(timer) = self.ledger.timers.first() else { return };
                self.ledger.tick(timer.at);
            }
        }
    }

    /// A time by which all limits are at rest if nothing more is granted. The debts of keys are not included.
    pub fn rested_at(&self) -> Nanos {
        let latest = self.ledger.turns.last().max(self.ledger.now).max(self.ledger.hold.until);
        let each = self.ledger.keys.each().rest_time();
        let rested = latest.saturating_add(self.ledger.all.rest_time().max(each));
        rested.max(self.ledger.all.fresh_at(&self.ledger.levels))
    }

    /// Continues as if everything that the limits of all and of each key allow had been taken at `now`. All requests are
    /// lost. New grants get numbers after `number`, because some earlier grants are not known here.
    pub(crate) fn use_up(&mut self, now: Nanos, number: u64) {
        let policy: Policy = self.policy.clone();
        let held = self.ledger.hold.until;
        *self = Replica { age: self.age, listener: self.listener, ..Replica::new(&policy, now, number, self.least) };
        self.ledger.now = now;
        let Ledger { all, levels, .. } = &mut self.ledger;
        all.use_up(levels, now);
        // What keys have used is not known, so all wait until each is as new.
        let of_keys = self.ledger.keys.each().rest_time();
        let until = if of_keys == 0 { held } else { held.max(now.saturating_add(of_keys)) };
        self.ledger.hold_all_until(now, until);
    }
}

/// How long an owner that sends nothing counts as alive, at least.
pub(crate) const PRESENCE_TTL: Nanos = 12 * SECOND;
