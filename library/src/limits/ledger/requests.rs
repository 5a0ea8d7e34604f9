//! The requests of a bucket: the place of a request among the earlier grants, and its time.

use super::core::{Ledger, MAX_ENTRIES, MAX_RUNS};
use super::entry::{Charge, Entry};
use super::keys::Keys;
use super::operation::{Ask, NO_KEY, OfKey, Owner, SEVERAL, Take};
use super::shares::{MAX_SHARES, Turn};
use crate::clock::{MILLISECOND, Nanos};
use crate::limits::costs::{CostList, sums};
use crate::limits::grant::{Grant, LOOK, Refusal};
use std::borrow::Cow;

impl Ledger {
    /// The same request. If running commands are counted without keys, all requests get one key.
    fn named<'a>(&self, take: &'a Take) -> Cow<'a, Take> {
        let is_named = take.key.is_some() || self.keys.is_none() || self.policy.of_keys().is_some();
        let named = || Take { key: Some(OfKey::of(NO_KEY.into())), ..take.clone() };
        if is_named { Cow::Borrowed(take) } else { Cow::Owned(named()) }
    }

    /// Grants these costs at the earliest time at which all limits conform, if that is not after `take.latest`.
    pub(crate) fn take(&mut self, now: Nanos, owner: Owner, take: &Take) -> Result<Grant, Refusal> {
        let take = &*self.named(take);
        let found = self.place_for(now, take).and_then(|(place, at, bound_by)| match at - now {
            wait if wait > 0 && at > take.latest => Err(Refusal::TooLong { wait }),
            _ => Ok((place, at, bound_by)),
        });
        // Some refusals are not counted, because the caller requests again. The caller is a stream that requested too
        // early, or it waits for the end of a command or for room for a new key.
        let asks_again = |refusal: &Refusal| match refusal {
            _ if take.key.as_ref().is_some_and(|of| of.latest < Nanos::MAX) => true,
            Refusal::Busy => take.latest > now,
            Refusal::TooLong { wait } => now.saturating_add(*wait) <= take.latest,
            Refusal::Never | Refusal::GivenUp(_) => false,
        };
        let (place, at, bound_by) = found.inspect_err(|refusal| self.counts.refuse(!asks_again(refusal)))?;
        let since = |keys: &Keys, of: &OfKey| OfKey { since: keys.since(now, of), ..of.clone() };
        let key = self.keys.as_ref().zip(take.key.as_ref()).map(|(keys, of)| since(keys, of));
        let of_key = key.as_ref().map_or(0, |of| (&of.costs).largest());
        if (&take.costs).largest().max(of_key) == 0 && !self.policy.counts_jobs() {
            return Ok(Grant::computed(at, 0, bound_by, 0));
        }
        let is_full = self.entries.len() >= MAX_ENTRIES;
        let moves = !is_full && (at - now >= LOOK || self.entries.iter().any(Entry::moves));
        let charge = Charge::One { costs: take.costs.clone(), open: take.open.filter(|_| !is_full), moves, key };
        let entry = self.new_entry(owner, now, at, charge);
        self.jobs.begin(&self.policy, take.name(), owner, entry.number, now);
        Ok(Grant { bound_by, ..self.add(now, place, entry) })
    }

    /// Grants these requests in order; see [`Operation::Several`](super::operation::Operation::Several). Grants of one
    /// key leave in their order.
    pub(super) fn several(
        &mut self,
        now: Nanos,
        owner: Owner,
        takes: &[Take],
        span: Nanos,
    ) -> Vec<Result<Grant, Refusal>> {
        let mut end = Nanos::MAX;
        let mut answers = Vec::<Result<Grant, Refusal>>::new();
        for take in takes.iter().take(SEVERAL) {
            let is_before = |before: &Take| before.name() == take.name();
            let mut of_key = takes.iter().zip(&answers).filter(|(before, _)| is_before(before));
            let answer = match of_key.rfind(|(_, answer)| **answer != Err(Refusal::Never)) {
                Some((_, Err(_))) => Err(Refusal::TooLong { wait: 0 }),
                Some((_, Ok(before))) => {
                    let behind = Take { from: before.at.max(take.from), ..take.clone() };
                    self.take_until(now, owner, &behind, end)
                }
                None => self.take_until(now, owner, take, end),
            };
            if let Ok(grant) = answer
                && self.waits_for_all(now, grant.at, grant.bound_by)
            {
                end = end.min(grant.at.saturating_add(span));
            }
            answers.push(answer);
        }
        answers
    }

    /// Like [`take`](Self::take), but refuses a grant that would wait for the overall limits until `end` or longer.
    fn take_until(&mut self, now: Nanos, owner: Owner, take: &Take, end: Nanos) -> Result<Grant, Refusal> {
        let take = &*self.named(take);
        if end < Nanos::MAX
            && let Ok((_, at, bound_by)) = self.place_for(now, take)
            && at >= end
            && self.waits_for_all(now, at, bound_by)
        {
            return Err(Refusal::TooLong { wait: 0 });
        }
        self.take(now, owner, take)
    }

    /// Whether a grant waits for the overall limits, and not only for the limits of its key.
    fn waits_for_all(&self, now: Nanos, at: Nanos, bound_by: Option<usize>) -> bool {
        at > now && bound_by.is_some_and(|limit| limit < self.policy.len())
    }

    /// The place among the entries for a grant of this request, its time, and the index of the limit that causes the
    /// wait. The place is behind all entries if the request has no key and no earliest time (`from`), or if the ledger
    /// is full. Otherwise it may be before later entries, if these keep their times.
    pub(super) fn place_for(&mut self, now: Nanos, take: &Take) -> Result<(usize, Nanos, Option<usize>), Refusal> {
        if self.keys.is_some() && take.key.is_none() {
            return Err(Refusal::Never);
        }
        if !self.jobs.has_room(&self.policy, take.name(), [0; 2]) {
            return Err(Refusal::Busy);
        }
        let (mut own, mut bound_by) = (now.max(take.from), None);
        if let (Some(keys), Some(of)) = (&mut self.keys, &take.key) {
            if let Some((failed, _)) = keys.given_up(now, &of.name) {
                return Err(Refusal::GivenUp(failed));
            }
            keys.make_room(now, &of.name)?;
            if self.entries.len() >= MAX_ENTRIES {
                let first = self.entries.front().map_or(now, |entry| entry.at);
                return Err(Refusal::TooLong { wait: first.saturating_sub(now).max(MILLISECOND) });
            }
            let limit;
            (own, limit) = keys.conforms_at(own, of)?;
            if own > of.latest.max(now) {
                return Err(Refusal::TooLong { wait: own - now });
            }
            bound_by = limit.map(|place| self.policy.len() + place);
        } else if own == now || self.entries.len() >= MAX_ENTRIES {
            let (at, bound_by) = self.all.conforms_at(own, &take.costs)?;
            return Ok((self.behind(at), at, bound_by));
        }
        let (place, at, limit) = self.gap(own, &take.costs)?;
        Ok((place, at, if at > own { limit } else { bound_by }))
    }

    /// The first place among the entries, and the earliest time from `from` on, at which these costs conform and later
    /// entries keep their times.
    pub(super) fn gap(&self, from: Nanos, costs: &[u64]) -> Result<(usize, Nanos, Option<usize>), Refusal> {
        let held = self.entries.iter().rposition(Entry::is_hold).map_or(0, |hold| hold + 1);
        let first = self.entries.partition_point(|entry| entry.at <= from).max(held);
        let mut before = if first == self.entries.len() { self.all.clone() } else { self.base.clone() };
        if first < self.entries.len() {
            self.entries.range(..first).for_each(|entry| entry.apply(&mut before));
        }
        for (place, next) in self.entries.iter().enumerate().skip(first) {
            let (at, bound_by) = before.conforms_at(from, costs)?;
            if at <= next.at {
                let mut with = before.clone();
                let _ = with.charge(from, [at; 2], costs);
                if self.entries.range(place..).all(|entry| entry.conforms(&mut with)) {
                    return Ok((place, at, bound_by));
                }
            }
            next.apply(&mut before);
        }
        let (at, bound_by) = before.conforms_at(from, costs)?;
        Ok((self.behind(at), at, bound_by))
    }

    /// The place behind all entries whose time is at most `at`. Only entries that cost the overall limits nothing can
    /// have a later time.
    pub(super) fn behind(&self, at: Nanos) -> usize {
        self.entries.partition_point(|entry| entry.at <= at)
    }

    /// Grants runs for the waiting units that leave within the span. Each run is the units that conform at one time, or
    /// at least a quantum. A run with a long wait is the only run of its lease, and can move up to an earlier time.
    pub(crate) fn lease(&mut self, now: Nanos, owner: Owner, lease: &Ask) -> Result<Vec<Grant>, Refusal> {
        let (mut remaining, mut runs, mut grants, mut end) = (lease.waiting, Vec::new(), Vec::new(), Nanos::MAX);
        let is_alone = !self.entries.iter().any(Entry::moves);
        let turn = self.shares.turn(now, owner);
        let span = lease.span / (1 + self.rivals(now, owner, turn)).max(1) as u64;
        let behind = if self.all.has_windows() { 0 } else { turn.behind };
        if remaining == 0 {
            return Ok(vec![Grant::computed(now.max(self.all.at), 0, None, 0)]);
        }
        if self.keys.is_some() {
            return Err(Refusal::Never);
        }
        while remaining > 0 && runs.len() < MAX_RUNS {
            let units = self.all.run(now, remaining);
            let (at, bound_by) = match self.all.conforms_at(now, units) {
                Ok((at, bound_by)) => (at.max(lease.from), bound_by),
                Err(refusal) if runs.is_empty() => {
                    self.counts.refuse(true);
                    return Err(refusal);
                }
                Err(_) => break,
            };
            if runs.is_empty() && (at - now >= LOOK || !is_alone) {
                return Ok(vec![self.take(now, owner, &Take::of(&[units]))?]);
            }
            if !runs.is_empty() && (at >= end || at - now >= LOOK) {
                break;
            }
            if lease.waiting - remaining + units >= behind {
                end = end.min(at.saturating_add(span.max(1)));
            }
            let _ = self.all.charge(now, [at; 2], units);
            grants.push(Grant::computed(at, units, bound_by, self.number.saturating_add(1)));
            runs.push((at, units));
            remaining -= units;
        }
        let has_waited = runs.first().is_some_and(|(at, _)| *at > now);
        let latest = runs.last().map(|(at, _)| *at).filter(|_| has_waited);
        self.shares.leased(owner, turn, lease.waiting - remaining, latest);
        if let Some((at, _)) = runs.last() {
            let entry = self.new_entry(owner, now, *at, Charge::Runs { runs });
            self.entries.insert(self.behind(entry.at), entry);
        }
        Ok(grants)
    }

    /// The number of rivals of a stream in its turn: other streams, and waiters for single grants.
    fn rivals(&self, now: Nanos, owner: Owner, turn: Turn) -> usize {
        let is_single = |entry: &&Entry| matches!(entry.charge, Charge::One { .. }) && entry.at > now;
        let singles = self.entries.iter().filter(is_single).filter(|entry| entry.owner != owner).take(MAX_SHARES);
        if self.all.has_windows() { 0 } else { turn.others + singles.count() }
    }

    pub(super) fn new_entry(&mut self, owner: Owner, now: Nanos, at: Nanos, charge: Charge) -> Entry {
        self.number = self.number.saturating_add(1);
        let entry = Entry { number: self.number, owner, requested: now, seen_after: 0, at, charge };
        self.counts.granted = self.counts.granted.saturating_add(entry.cost());
        // The wait of a single grant is counted when its time has come, because the grant may be given back or move up
        // before that.
        if matches!(entry.charge, Charge::Runs { .. }) {
            self.counts.waited = self.counts.waited.saturating_add(entry.waited());
        }
        entry
    }

    /// Charges an entry, which conforms at this place among the others.
    pub(super) fn add(&mut self, now: Nanos, place: usize, entry: Entry) -> Grant {
        let grant = entry.granted();
        if place < self.entries.len() {
            self.entries.insert(place, entry);
            self.recharge(self.all.asked, false);
            return grant;
        }
        entry.apply(&mut self.all);
        if self.entries.is_empty() && entry.at <= now {
            self.pass_entry(&entry);
        } else {
            self.keys.iter_mut().for_each(|keys| keys.charge_ahead(&entry));
            self.join_or_push(entry);
        }
        grant
    }

    /// Adds an entry at the end. If the ledger is full, an entry that cannot move is merged into the one before it, at
    /// the later time.
    pub(super) fn join_or_push(&mut self, entry: Entry) {
        let is_full = self.entries.len() >= MAX_ENTRIES;
        if let (true, Charge::One { costs, open: None, moves: false, key: None }) = (is_full, &entry.charge)
            && let Some(last) = self.entries.back_mut()
            && let Charge::One { costs: before, open: None, moves: false, key: None } = &mut last.charge
        {
            *before = sums(&**before, &**costs);
            (last.at, last.number) = (entry.at, entry.number);
            if !self.all.pays_steadily() || self.all.are_spaced() {
                // Charges all entries again, because a process that reads a snapshot does that as well. For a single
                // bucket this would change nothing.
                self.recharge(self.all.asked, false);
            }
            return;
        }
        self.entries.push_back(entry);
    }
}
