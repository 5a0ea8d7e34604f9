//! Units with keys of a shared bucket: several are asked for at once, also while others that were granted wait for their
//! time. A slow network costs no rate then, and those who share the bucket get equal shares.

use super::state::{Leased, Supply};
use crate::clock::{MILLISECOND, Nanos};
use crate::limits::{GiveBack, Grant, LOOK, Ledger, OfKey, Operation, Refusal, Reply, SEVERAL, Take, sums};
use crate::store::{StoreError, seen};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;

/// While others wait for the limits of all, a process takes so much of their time at once.
const TURN: Nanos = 25 * MILLISECOND;

/// A unit is asked for before the limits of its key conform: at a random time within this, so that all who share a bucket
/// have the same chance. On a server it is longer than the answers take of those far away. But who asks first is also granted
/// first at the limits of all, so a process that is alone asks late: its units keep their order.
const SOON: Nanos = 5 * MILLISECOND;
const SOON_REMOTE: Nanos = 250 * MILLISECOND;
const SOON_ALONE: Nanos = MILLISECOND;

/// When a unit is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now, if the limits of its key conform by this time.
    Now(Nanos),
    /// After so many nanoseconds.
    After(Nanos),
    /// After so many nanoseconds, and no other before.
    NoneBefore(Nanos),
}

/// A unit whose time has come.
#[derive(Debug)]
pub struct Claim {
    /// The caller's number.
    pub ticket: u64,
    /// Its grant, and what was asked for. `None` if the grant is void: it has to be asked for again.
    pub granted: Option<(Grant, Take)>,
}

/// Those that got no grant, and why. If the wait is 0, others of its process go first.
pub type Refused = Vec<(u64, Refusal)>;

impl Supply {
    /// Whether the bucket keeps limits for each key, or counts commands that run: then units are [asked for](Self::ask_for) by
    /// their keys.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.meant.of_keys().is_some() || self.meant.counts_jobs()
    }

    /// How many units were asked for and have not left.
    #[must_use]
    pub fn reserved(&self) -> usize {
        let ahead = &self.leased().ahead;
        ahead.granted.len() + ahead.sent.len()
    }

    /// How many units may be asked for now, and if none, when more may.
    #[must_use]
    pub fn wanted(&self) -> (usize, Nanos) {
        let (now, one_way, leased) = (self.clock().now(), self.store.one_way(), self.leased());
        let ahead = &leased.ahead;
        if !ahead.sent.is_empty() {
            return (0, ahead.back_at);
        }
        let of_all = seen(&*self.store, |ledger| ledger.policy().len());
        // What is asked for next arrives there when the last unit leaves, and the answer arrives here when that is known here. So
        // all have their turns.
        let at = ahead.waits_for_all_until(of_all).saturating_sub(2 * one_way);
        let room = SEVERAL.saturating_sub(ahead.granted.len());
        match ahead.next_at() {
            Some(next) if room == 0 => (0, next),
            _ if at > now => (0, at),
            _ => (room, now),
        }
    }

    /// When [`claim`](Self::claim), [`answered`](Self::answered) or [`wanted`](Self::wanted) has news, if nothing else
    /// happens before.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        let leased = self.leased();
        let ahead = &leased.ahead;
        let back = (!ahead.sent.is_empty()).then_some(ahead.back_at);
        let first = ahead.granted.values().next();
        let look = first.and_then(|(grant, _)| grant.next_look(ahead.looked));
        ahead.next_at().into_iter().chain(back).chain(look).min()
    }

    /// When a unit with a key is asked for, with those of `with`, as far as is known without asking the store.
    ///
    /// # Errors
    /// [`StoreError`], if it is time to ask the store what has ended.
    pub fn when(&self, take: &Take, with: &[(u64, Take)]) -> Result<When, StoreError> {
        let Some(of) = &take.key else { return Ok(When::Now(Nanos::MAX)) };
        let now = self.clock().now();
        if let Some(when) = self.when_busy(now, of, with)? {
            return Ok(when);
        }
        let (mut all, mut own, mut is_first) = (take.costs.clone(), of.clone(), true);
        for (other, of) in with.iter().filter_map(|(_, take)| Some((take, take.key.as_ref()?))) {
            all = sums(&*all, &*other.costs);
            if of.name == own.name {
                (own.costs, is_first) = (sums(&*own.costs, &*of.costs), false);
            }
        }
        let span = TURN.max(self.store.span());
        let (at, has_room) = seen(&*self.store, |ledger| {
            let until = |costs: &[u64]| ledger.limits().conforms_at(now, costs).map_or(Nanos::MAX, |(at, _)| at);
            let has_room = with.is_empty() || until(&all) <= until(&take.costs).max(now).saturating_add(span);
            (ledger.own_time(now, &own), has_room)
        });
        // The store says of one that it never goes. Of several, the others may go first.
        let at = match at {
            None if !is_first => return Ok(When::After(MILLISECOND)),
            at => at.unwrap_or(now).max(now),
        };
        let soon = self.soon(at, self.leased().ahead.others_until);
        Ok(match at - now {
            // Behind others of its key the time is a guess. Their answer tells.
            wait if wait > soon && !is_first => When::After(MILLISECOND),
            wait if wait > soon => When::After(wait - soon),
            _ if has_room => When::Now(at.saturating_add(soon)),
            _ => When::NoneBefore(0),
        })
    }

    /// When a unit is asked for if as many commands run as may.
    fn when_busy(&self, now: Nanos, of: &OfKey, with: &[(u64, Take)]) -> Result<Option<When>, StoreError> {
        let is_same = |(_, take): &&(u64, Take)| take.key.as_ref().is_some_and(|other| other.name == of.name);
        let is_busy = || self.store.is_busy(&of.name, [with.iter().filter(is_same).count(), with.len()]);
        if !is_busy() {
            return Ok(None);
        }
        // What has ended here is known without asking a server.
        let soon = LOOK / 200;
        let between = if self.store.is_remote() { LOOK / 4 } else { soon };
        let mut leased = self.leased();
        if with.is_empty() && now >= leased.asked.saturating_add(between) {
            leased.asked = now;
            drop(leased);
            self.store.sync()?;
        }
        // Of the key without a name nothing runs: then the places of all are taken.
        let of_all = || self.store.is_busy(&[], [0, with.len()]);
        let when = || if of_all() { When::NoneBefore(soon) } else { When::After(soon) };
        Ok(is_busy().then(when))
    }

    /// How long before its time a unit is asked for: by chance, the same whenever that is looked up. It changes more slowly than
    /// the time itself, so that of two units the one whose time comes first is asked for first.
    /// `others_until`: until when others are expected to use the bucket.
    fn soon(&self, at: Nanos, others_until: Nanos) -> Nanos {
        let most = match self.store.is_remote() {
            _ if self.clock().now() >= others_until => SOON_ALONE,
            true => SOON_REMOTE,
            false => SOON,
        };
        let (place, passed) = (at / most, at % most);
        let chance = |place: Nanos| self.chance.hash_one(place) % most;
        let chance = (chance(place) * (most - passed) + chance(place + 1) * passed) / most;
        // The way there, and as much because the server's clock as known here is behind by the way back, and on average again
        // as much for the answer under way.
        chance.saturating_add(3 * self.store.one_way())
    }

    /// Asks for these units, each until the time that [`When::Now`] has told. If others wait for their time meanwhile, and the
    /// store is far, the answer is not waited for. Returns those that were refused.
    ///
    /// # Errors
    /// [`StoreError`]; none of them is granted then.
    pub fn ask_for(&self, mut takes: Vec<(u64, Take)>) -> Result<Refused, StoreError> {
        let mut leased = self.serving()?;
        let now = self.clock().now();
        let is_open = self.settles.load(Ordering::Relaxed);
        if leased.ahead.latest.is_none() {
            leased.ahead.latest = seen(&*self.store, |ledger| ledger.latest_of_old(now));
        }
        // What is granted for a time before its answer arrives would be late.
        let one_way = self.store.one_way();
        let from = if one_way > MILLISECOND { now.saturating_add(2 * one_way + one_way / 4) } else { 0 };
        for (_, take) in &mut takes {
            take.served = leased.ahead.served.remove(take.name()).unwrap_or_default();
            (take.is_open, take.from) = (is_open, from);
            take.key.iter_mut().for_each(|of| of.latest = of.latest.max(from));
            let before = leased.ahead.granted.iter().rev().find(|(_, (_, before))| before.name() == take.name());
            take.from = take.from.max(before.map_or(0, |((at, _), _)| *at));
        }
        let span = if now < leased.ahead.others_until { TURN } else { TURN.max(self.store.span()) };
        let operation = Operation::Several { takes: takes.iter().map(|(_, take)| take.clone()).collect(), span };
        if !leased.ahead.granted.is_empty() && self.store.is_remote() && self.store.send(operation.clone()) {
            leased.ahead.back_at = now.saturating_add(2 * self.store.one_way());
            leased.ahead.sent = takes;
            return Ok(Refused::new());
        }
        let (reply, asked) = self.store.apply(operation)?;
        leased.asked = asked;
        self.note(&mut leased, takes, Some(reply))
    }

    /// Receives the answer that is expected by now, if there is one, and sees whether grants have moved up. Returns those that
    /// were refused.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn answered(&self) -> Result<Refused, StoreError> {
        let (now, mut leased) = (self.clock().now(), self.leased());
        if !leased.ahead.sent.is_empty() && leased.ahead.back_at <= now {
            let sent = std::mem::take(&mut leased.ahead.sent);
            let reply = self.store.receive();
            leased.asked = now;
            return self.note(&mut leased, sent, reply);
        }
        let first = leased.ahead.granted.values().next();
        if first.and_then(|(grant, _)| grant.next_look(leased.ahead.looked)).is_some_and(|look| look <= now) {
            leased.ahead.looked = now;
            // If the store does not answer, the times told before are still good.
            if self.store.sync().is_err() {
                return Ok(Refused::new());
            }
            let granted = std::mem::take(&mut leased.ahead.granted);
            for ((_, ticket), (grant, take)) in granted {
                let grant = self.store.look_again(&grant, &take).unwrap_or(grant);
                leased.ahead.granted.insert((grant.at, ticket), (grant, take));
            }
        }
        Ok(Refused::new())
    }

    /// Notes what the store has answered. What it lost has to be asked for again.
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
        leased.ahead.looked = leased.ahead.looked.max(leased.asked);
        let latest = seen(&*self.store, Ledger::latest);
        leased.ahead.look_for_others(leased.asked, latest, granted);
        if let Err(error) = self.check_policy(&self.store.policy()) {
            self.return_ahead(leased)?;
            return Err(error);
        }
        Ok(refused)
    }

    /// A refusal whose wait is that until the unit should be asked for again.
    fn until_asked(&self, refusal: Refusal, take: &Take, others_until: Nanos) -> Refusal {
        let (Refusal::TooLong { wait: 1.. }, Some(of)) = (refusal, &take.key) else { return refusal };
        let now = self.clock().now();
        let at = seen(&*self.store, |ledger| ledger.own_time(now, of)).unwrap_or(now);
        // If there is no room for another grant, or key, only the refusal tells.
        let soon = if at > now { self.soon(at, others_until) } else { return refusal };
        Refusal::TooLong { wait: (at - now).saturating_sub(soon).max(MILLISECOND) }
    }

    /// The next unit that was granted, if its time has come.
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

    fn is_taken_back(&self, grant: &Grant, take: &Take) -> bool {
        take.key.as_ref().is_some_and(|of| self.store.is_taken_back(grant, &of.name))
    }

    /// Those that woke too late are lost, those that the bucket took back, and those of the same keys behind them, also if their
    /// answers are on the way: those of one key leave in their order.
    fn drop_void(&self, leased: &mut Leased) -> Result<(), StoreError> {
        if !leased.ahead.sent.is_empty() {
            let (sent, reply) = (std::mem::take(&mut leased.ahead.sent), self.store.receive());
            let refused = self.note(leased, sent, reply)?;
            leased.ahead.lost.extend(refused.into_iter().map(|(ticket, _)| ticket));
        }
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
        // If this fails, windows count them, and those of commands keep their places until this process ends.
        let _ = self.store.late(late);
        if !behind.is_empty() {
            let _ = self.store.apply(Operation::GiveBack(behind));
        }
        Ok(())
    }

    /// Gives back what was asked for and has not left.
    pub(in crate::store) fn return_ahead(&self, leased: &mut Leased) -> Result<(), StoreError> {
        let (sent, mut granted) = (std::mem::take(&mut leased.ahead.sent), std::mem::take(&mut leased.ahead.granted));
        if let Some(Reply::Each(answers)) = (!sent.is_empty()).then(|| self.store.receive()).flatten() {
            let answered = sent.into_iter().zip(answers);
            let new = answered.filter_map(|((ticket, take), answer)| Some((ticket, (answer.ok()?, take))));
            granted.extend(new.map(|(ticket, (grant, take))| ((grant.at, ticket), (grant, take))));
        }
        let unused: Vec<GiveBack> = granted.values().rev().map(|(grant, take)| take.unused(grant)).collect();
        if unused.is_empty() { Ok(()) } else { self.store.apply(Operation::GiveBack(unused)).map(drop) }
    }
}
