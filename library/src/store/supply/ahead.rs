//! Units with keys of a shared bucket. Several are requested at once, even while earlier grants wait for their time. So
//! a slow network costs no rate, and the processes that share the bucket get equal shares.

use super::state::{Leased, Supply};
use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{Grant, LOOK, Ledger, OfKey, Operation, Refusal, Reply, SEVERAL, Take, between_looks, sums};
use crate::store::{StoreError, with_ledger};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;

/// While other processes wait for the overall limits, one operation reserves at most this much of their time.
const MAX_TURN: Nanos = 25 * MILLISECOND;

/// A unit is requested before the limits of its key conform, at a random time within this span. So all processes that
/// share the bucket have the same chance. For a server the span is longer than the round trip of distant clients.
///
/// The overall limits also grant the earliest request first. So a process that is alone requests each unit late, within
/// the short span `MAX_LEAD_ALONE`: then its units keep their order.
const MAX_LEAD: Nanos = 5 * MILLISECOND;
const MAX_LEAD_REMOTE: Nanos = 250 * MILLISECOND;
const MAX_LEAD_ALONE: Nanos = MILLISECOND;

/// When a unit is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now, if the limits of its key conform by this time.
    Now(Nanos),
    /// After this many nanoseconds.
    After(Nanos),
    /// After this many nanoseconds; no other unit is requested before that.
    NoneBefore(Nanos),
}

/// A unit whose time has come.
#[derive(Debug)]
pub struct Claim {
    /// The caller's number.
    pub ticket: u64,
    /// Its grant and its request. `None` if the grant is void: then the unit must be requested again.
    pub granted: Option<(Grant, Take)>,
}

/// The refused units and the reasons. A wait of 0 means that other units of the process go first.
pub type Refused = Vec<(u64, Refusal)>;

impl Supply {
    /// Whether the bucket keeps limits for each key, or counts running commands. Then units are
    /// [requested](Self::ask_for) by key.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.meant.of_keys().is_some() || self.meant.counts_jobs()
    }

    /// The number of units that were requested and have not left.
    #[must_use]
    pub fn reserved(&self) -> usize {
        let ahead = &self.leased().ahead;
        ahead.granted.len() + ahead.sent.len()
    }

    /// The number of units that may be requested now. If it is 0, the time is when more may be requested.
    #[must_use]
    pub fn wanted(&self) -> (usize, Nanos) {
        let (now, one_way, leased) = (self.clock().now(), self.store.one_way(), self.leased());
        let ahead = &leased.ahead;
        if !ahead.sent.is_empty() {
            return (0, ahead.back_at);
        }
        let of_all = with_ledger(&*self.store, |ledger| ledger.policy().len());
        // The next request arrives at the store when the last unit leaves here, and its answer arrives when that
        // departure is known. So all processes get their turns.
        let at = ahead.waits_for_all_until(of_all).saturating_sub(2 * one_way);
        let room = SEVERAL.saturating_sub(ahead.granted.len());
        match ahead.next_at() {
            Some(next) if room == 0 => (0, next),
            _ if at > now => (0, at),
            _ => (room, now),
        }
    }

    /// When [`claim`](Self::claim), [`answered`](Self::answered) or [`wanted`](Self::wanted) has news, if nothing else
    /// happens first.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        let leased = self.leased();
        let ahead = &leased.ahead;
        let back = (!ahead.sent.is_empty()).then_some(ahead.back_at);
        ahead.next_at().into_iter().chain(back).chain(ahead.next_look()).min()
    }

    /// When a unit with a key is requested together with the units of `with`, according to the ledger as last read.
    ///
    /// # Errors
    /// [`StoreError`], if it is time to sync with the store.
    pub fn when(&self, take: &Take, with: &[(u64, Take)]) -> Result<When, StoreError> {
        let Some(of) = &take.key else { return Ok(When::Now(Nanos::MAX)) };
        let now = self.clock().now();
        if let Some(when) = self.when_busy(of, with)? {
            return Ok(when);
        }
        let open = self.open_for();
        if let Some(learns) = open {
            self.sync_after(learns / 2)?;
        }
        let (mut all, mut own, mut is_first) = (take.costs.clone(), of.clone(), true);
        for (other, of) in with.iter().filter_map(|(_, take)| Some((take, take.key.as_ref()?))) {
            all = sums(&*all, &*other.costs);
            if of.name == own.name {
                (own.costs, is_first) = (sums(&*own.costs, &*of.costs), false);
            }
        }
        let span = MAX_TURN.max(self.store.span());
        let (at, has_room) = with_ledger(&*self.store, |ledger| {
            let until = |costs: &[u64]| ledger.limits().conforms_at(now, costs).map_or(Nanos::MAX, |(at, _)| at);
            let has_room = with.is_empty() || until(&all) <= until(&take.costs).max(now).saturating_add(span);
            (ledger.own_time(now, &own), has_room)
        });
        // The store refuses a unit that is never granted, if it is the first of its key. Behind other units of its key,
        // the unit waits, because those may go first.
        let at = match at {
            None if !is_first => return Ok(When::After(MILLISECOND)),
            at => at.unwrap_or(now).max(now),
        };
        let soon = self.lead(at, self.leased().ahead.others_until);
        Ok(match at - now {
            // Behind other units of its key the time is a guess; the answer to the earlier units decides.
            wait if wait > soon && !is_first => When::After(MILLISECOND),
            wait if wait > soon => When::After(between_looks(wait - soon, open)),
            _ if has_room => When::Now(at.saturating_add(soon)),
            _ => When::NoneBefore(0),
        })
    }

    /// Syncs, unless the store was read within `time`.
    fn sync_after(&self, time: Nanos) -> Result<(), StoreError> {
        let (now, mut leased) = (self.clock().now(), self.leased());
        if now < leased.requested_at.saturating_add(time) {
            return Ok(());
        }
        leased.requested_at = now;
        drop(leased);
        self.store.sync()
    }

    /// When a unit is requested while the job limit is reached.
    fn when_busy(&self, of: &OfKey, with: &[(u64, Take)]) -> Result<Option<When>, StoreError> {
        let is_same = |(_, take): &&(u64, Take)| take.key.as_ref().is_some_and(|other| other.name == of.name);
        let is_busy = || self.store.is_busy(&of.name, [with.iter().filter(is_same).count(), with.len()]);
        if !is_busy() {
            return Ok(None);
        }
        // Commands of this process that have ended are known without a request to a server.
        let soon = LOOK / 200;
        if with.is_empty() {
            self.sync_after(if self.store.is_remote() { LOOK / 4 } else { soon })?;
        }
        // No command has the empty key. So this checks the job limit of all keys.
        let of_all = || self.store.is_busy(&[], [0, with.len()]);
        let when = || if of_all() { When::NoneBefore(soon) } else { When::After(soon) };
        Ok(is_busy().then(when))
    }

    /// How long before its time a unit is requested: a random span, but always the same for the same time. It changes
    /// more slowly than the time itself. So of two units, the unit with the earlier time is requested first.
    /// `others_until`: until when other processes are expected to use the bucket.
    fn lead(&self, at: Nanos, others_until: Nanos) -> Nanos {
        let most = match self.store.is_remote() {
            _ if self.clock().now() >= others_until => MAX_LEAD_ALONE,
            true => MAX_LEAD_REMOTE,
            false => MAX_LEAD,
        };
        let (place, passed) = (at / most, at % most);
        let chance = |place: Nanos| self.chance.hash_one(place) % most;
        let chance = (chance(place) * (most - passed) + chance(place + 1) * passed) / most;
        // Three one-way times. The first is for the request. The second is there because the server's clock, as known
        // here, is behind by the way back. The third is, on average, for an answer that is under way.
        chance.saturating_add(3 * self.store.one_way())
    }

    /// Requests these units. The limits of each unit's key must conform by the time in its [`When::Now`]. Does not wait
    /// for the answer if the store is remote and earlier grants still wait for their time. Returns the refused units.
    ///
    /// # Errors
    /// [`StoreError`]; none of the units is granted then.
    pub fn ask_for(&self, mut takes: Vec<(u64, Take)>) -> Result<Refused, StoreError> {
        let mut leased = self.serving()?;
        let now = self.clock().now();
        let open = self.open_for();
        if leased.ahead.latest.is_none() {
            leased.ahead.latest = with_ledger(&*self.store, |ledger| ledger.latest_of_old(now));
        }
        // A grant whose time is earlier than the arrival of the answer would be late.
        let one_way = self.store.one_way();
        let from = if one_way > MILLISECOND { now.saturating_add(2 * one_way + one_way / 4) } else { 0 };
        for (_, take) in &mut takes {
            take.served = leased.ahead.served.remove(take.name()).unwrap_or_default();
            (take.open, take.from) = (open, from);
            take.key.iter_mut().for_each(|of| of.latest = of.latest.max(from));
            let before = leased.ahead.granted.iter().rev().find(|(_, (_, before))| before.name() == take.name());
            take.from = take.from.max(before.map_or(0, |((at, _), _)| *at));
        }
        let span = if now < leased.ahead.others_until { MAX_TURN } else { MAX_TURN.max(self.store.span()) };
        let operation = Operation::Several { takes: takes.iter().map(|(_, take)| take.clone()).collect(), span };
        if !leased.ahead.granted.is_empty() && self.store.is_remote() && self.store.send(operation.clone()) {
            leased.ahead.back_at = now.saturating_add(2 * self.store.one_way());
            leased.ahead.sent = takes;
            return Ok(Refused::new());
        }
        let (reply, requested_at) = self.store.apply(operation)?;
        leased.requested_at = requested_at;
        self.note(&mut leased, takes, Some(reply))
    }

    /// Receives the answer that is expected by now, if there is one, and updates the times of grants that have moved
    /// up. Returns the refused units.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn answered(&self) -> Result<Refused, StoreError> {
        let (now, mut leased) = (self.clock().now(), self.leased());
        if !leased.ahead.sent.is_empty() && leased.ahead.back_at <= now {
            leased.requested_at = now;
            return self.receive_sent(&mut leased);
        }
        let is_due = leased.ahead.next_look().is_some_and(|look| look <= now);
        // Settlements by this process may have moved grants up.
        let settled = self.settled.load(Ordering::SeqCst);
        if std::mem::replace(&mut leased.settled, settled) != settled || is_due {
            // If the store does not answer, the known times are still good.
            if is_due {
                leased.ahead.updated_at = now;
                if self.store.sync().is_err() {
                    return Ok(Refused::new());
                }
            }
            let granted = std::mem::take(&mut leased.ahead.granted);
            for ((_, ticket), (grant, take)) in granted {
                let grant = self.store.look_again(&grant, &take).unwrap_or(grant);
                leased.ahead.granted.insert((grant.at, ticket), (grant, take));
            }
        }
        Ok(Refused::new())
    }

    /// Waits for the answers that are under way, and stores them.
    fn receive_sent(&self, leased: &mut Leased) -> Result<Refused, StoreError> {
        let sent = std::mem::take(&mut leased.ahead.sent);
        if sent.is_empty() {
            return Ok(Refused::new());
        }
        let reply = self.store.receive();
        self.note(leased, sent, reply)
    }

    /// Stores the answers of the store. Units whose answers were lost must be requested again.
    fn note(&self, leased: &mut Leased, takes: Vec<(u64, Take)>, reply: Option<Reply>) -> Result<Refused, StoreError> {
        let answers = match reply {
            Some(Reply::Each(answers)) => answers,
            _ => Vec::new(),
        };
        let lost = std::iter::repeat(Err(Refusal::TooLong { wait: 0 }));
        let (mut refused, mut granted) = (Refused::new(), 0);
        for ((ticket, take), answer) in takes.into_iter().zip(answers.into_iter().chain(lost)) {
            match answer {
                Ok(grant) => {
                    granted += u64::from(grant.number() > 0);
                    leased.count(&take.costs);
                    leased.ahead.granted.insert((grant.at, ticket), (grant, take));
                }
                Err(refusal) => refused.push((ticket, self.until_asked(refusal, &take, leased.ahead.others_until))),
            }
        }
        leased.ahead.updated_at = leased.ahead.updated_at.max(leased.requested_at);
        let latest = with_ledger(&*self.store, Ledger::latest);
        leased.ahead.detect_others(leased.requested_at, latest, granted);
        if let Err(error) = self.check_policy() {
            self.return_ahead(leased)?;
            return Err(error);
        }
        Ok(refused)
    }

    /// A refusal whose wait lasts until the unit should be requested again.
    fn until_asked(&self, refusal: Refusal, take: &Take, others_until: Nanos) -> Refusal {
        let (Refusal::TooLong { wait: 1.. }, Some(of)) = (refusal, &take.key) else { return refusal };
        let now = self.clock().now();
        let at = with_ledger(&*self.store, |ledger| ledger.own_time(now, of)).unwrap_or(now);
        // If there is no room for another grant or key, the wait of the refusal itself is used.
        let soon = if at > now { self.lead(at, others_until) } else { return refusal };
        Refusal::TooLong { wait: (at - now).saturating_sub(soon).max(MILLISECOND) }
    }

    /// The next granted unit, if its time has come.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] as soon as the supply has [retired](Self::retire).
    pub fn claim(&self) -> Result<Option<Claim>, StoreError> {
        let now = self.clock().now();
        let mut leased = self.serving()?;
        let leased = &mut *leased;
        let is_void = |(grant, take): &(Grant, Take)| self.store.is_late(grant) || self.is_taken_back(grant, take);
        if leased.ahead.granted.values().next().is_some_and(is_void) {
            self.drop_void(leased)?;
        }
        let ahead = &mut leased.ahead;
        if let Some(ticket) = ahead.lost.pop() {
            return Ok(Some(Claim { ticket, granted: None }));
        }
        let Some(next) = ahead.granted.first_entry().filter(|next| next.key().0 <= now) else { return Ok(None) };
        let ((_, ticket), granted) = next.remove_entry();
        Ok(Some(Claim { ticket, granted: Some(granted) }))
    }

    /// Whether the grant was revoked because a server refused a unit of its key: then it must not be used.
    fn is_taken_back(&self, grant: &Grant, take: &Take) -> bool {
        let Some(of) = &take.key else { return false };
        with_ledger(&*self.store, |ledger| ledger.is_outdated_of_key(&of.name, grant.number(), grant.at))
    }

    /// Drops void grants: their time passed before this process woke, or the bucket took them back. Also drops later
    /// grants of the same keys, even if their answers are under way, because the units of a key leave in their order.
    fn drop_void(&self, leased: &mut Leased) -> Result<(), StoreError> {
        let refused = self.receive_sent(leased)?;
        leased.ahead.lost.extend(refused.into_iter().map(|(ticket, _)| ticket));
        let (lost, mut late, mut behind) = (&mut leased.ahead.lost, Vec::new(), Vec::new());
        let mut names = BTreeSet::<Box<[u8]>>::new();
        leased.ahead.granted.retain(|(_, ticket), (grant, take)| {
            let (is_late, is_taken_back) = (self.store.is_late(grant), self.is_taken_back(grant, take));
            let is_kept = !is_late && !is_taken_back && !names.contains(take.name());
            if !is_kept {
                names.insert(take.name().into());
                lost.push(*ticket);
            }
            if is_late {
                late.push(take.unused(grant));
            } else if !is_kept && !is_taken_back {
                behind.push(take.unused(grant));
            }
            is_kept
        });
        // If this fails, windows count the grants, and commands keep their job slots until this process ends.
        let _ = self.store.late(late);
        let _ = self.give_back(behind);
        Ok(())
    }

    /// Gives back the units that were requested and have not left.
    pub(super) fn return_ahead(&self, leased: &mut Leased) -> Result<(), StoreError> {
        // If this fails, `note` has given back all units.
        let _ = self.receive_sent(leased);
        let granted = std::mem::take(&mut leased.ahead.granted);
        self.give_back(granted.values().rev().map(|(grant, take)| take.unused(grant)).collect())
    }
}
