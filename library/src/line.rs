//! Units that wait for a [`Ledger`]. Each is stored until its request is granted.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program.

#![allow(clippy::must_use_candidate, reason = "this is no public interface")]

use crate::clock::Nanos;
use crate::ledger::{self, Ledger, Request, Taken, Ticket};
pub use crate::ledger::{Costs, NamedKey, Refusal, Rules, Run};
pub use crate::limits::{Charged, KeyId, NO_KEY};
use std::ops::{Deref, DerefMut};

/// The most bytes of memory for waiting units.
pub const MEMORY: usize = 64 << 20;

/// Waiting units, by key, and the ledger with their requests.
#[derive(Debug)]
pub struct Line<T> {
    ledger: Ledger,
    /// Each unit and its size in bytes, by the slot of its ticket.
    units: Vec<Option<(usize, T)>>,
    /// The bytes of all units.
    memory: usize,
    /// Whether memory for more units is short.
    is_short: bool,
}

/// A waiting unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit<T> {
    /// The age of the unit. It is unique, and the oldest unit has the least.
    pub age: u64,
    /// One cost of each kind.
    pub costs: Costs,
    /// Its size in bytes.
    pub size: usize,
    /// When it begins to wait. If that is in the future, as for a command that will be run again, other units of its
    /// key may leave before that time.
    pub arrived: Nanos,
    /// Whether the costs may change after the grant: see [`Request::settles`].
    pub settles: bool,
    /// The unit itself.
    pub content: T,
}

/// A summary of the waiting units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// The number of units.
    pub units: usize,
    /// The number of their keys.
    pub keys: u64,
    /// The key with the most units.
    pub most: Box<[u8]>,
    /// The most keys that can be stored, if there is no memory for more keys. Otherwise `None`.
    pub most_in_memory: Option<u64>,
}

/// The next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// These plain units may leave now.
    Run(Run),
    /// This unit may leave now.
    Go(KeyId, Unit<T>, Charged),
    /// This unit never leaves.
    Refused(KeyId, Unit<T>, Refusal),
    /// Nothing happens before this time.
    At(Nanos),
    /// Nothing happens until a unit ends or is added. Either no unit waits, or each waiting key has no room or already
    /// runs its most units.
    Nothing,
}

impl<T> Deref for Line<T> {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.ledger
    }
}

impl<T> DerefMut for Line<T> {
    fn deref_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
}

impl<T> From<Ledger> for Line<T> {
    /// A line without units. The ledger must have no requests.
    fn from(ledger: Ledger) -> Self {
        Line { ledger, units: Vec::new(), memory: 0, is_short: false }
    }
}

impl<T> Line<T> {
    /// A line without units. New keys have buckets made at `now`.
    pub fn new(rules: &Rules<'_>, now: Nanos) -> Self {
        Ledger::new(rules, now).into()
    }

    /// Adds a unit behind the older units of its key.
    ///
    /// # Errors
    /// Returns the unit if it can never be granted, because one of its costs is above a window's count.
    pub fn add(&mut self, now: Nanos, key: Option<&[u8]>, unit: Unit<T>) -> Result<KeyId, Unit<T>> {
        self.add_suspect(now, key, unit, 0)
    }

    /// Like [`add`](Self::add). With a weight, the unit is a suspect: see [`Request::weight`].
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_suspect(
        &mut self,
        now: Nanos,
        key: Option<&[u8]>,
        unit: Unit<T>,
        weight: u32,
    ) -> Result<KeyId, Unit<T>> {
        match self.ledger.ask(now, key, &Request { weight, ..unit.request() }) {
            Some(ticket) => Ok(self.keep(ticket, unit)),
            None => Err(unit),
        }
    }

    /// Returns the unit that leaves next, already charged, if it conforms now. Otherwise returns the time of the next
    /// call. The sink accepts at most `room` units. See [`Ledger::poll`].
    pub fn poll(&mut self, now: Nanos, room: u64) -> Next<T> {
        match self.ledger.poll(now, room) {
            ledger::Next::Run(run) => Next::Run(run),
            ledger::Next::Granted(taken, charged) => {
                let key = taken.key;
                self.unit(taken).map_or(Next::Nothing, |unit| Next::Go(key, unit, charged))
            }
            ledger::Next::Refused(taken, why) => {
                let key = taken.key;
                self.unit(taken).map_or(Next::Nothing, |unit| Next::Refused(key, unit, why))
            }
            ledger::Next::At(time) => Next::At(time),
            ledger::Next::Nothing => Next::Nothing,
        }
    }

    /// The size of all waiting units, in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Whether no more units should be added: at most `ahead` units may wait, and their memory is limited.
    pub fn is_full(&self, ahead: usize) -> bool {
        self.len() >= ahead || self.memory >= MEMORY || (self.is_short || self.ledger.is_short()) && !self.is_empty()
    }

    /// A summary of the waiting units.
    pub fn crowd(&self) -> Crowd {
        let (keys, most) = self.busiest();
        let most = most.map(|key| self.name(key).into()).unwrap_or_default();
        Crowd { units: self.len(), keys: keys as u64, most, most_in_memory: self.max_keys_in_memory() }
    }

    /// The waiting units of one key.
    pub fn units_of(&self, key: KeyId) -> impl Iterator<Item = &T> {
        let unit = |slot: usize| self.units.get(slot)?.as_ref().map(|(_, content)| content);
        self.waiting_of(key).filter_map(move |ticket| unit(ticket.slot()))
    }

    /// Takes out all waiting units of one key, the oldest first.
    pub fn drain_key(&mut self, key: KeyId) -> Vec<Unit<T>> {
        let tickets: Vec<_> = self.waiting_of(key).collect();
        self.take_out(tickets)
    }

    /// Takes out all waiting units, the oldest first.
    pub fn drain(&mut self) -> Vec<Unit<T>> {
        let tickets: Vec<_> = self.tickets().collect();
        self.take_out(tickets)
    }

    fn take_out(&mut self, tickets: Vec<Ticket>) -> Vec<Unit<T>> {
        let taken = |ticket| self.ledger.cancel(ticket).and_then(|taken| self.unit(taken));
        let mut units: Vec<_> = tickets.into_iter().filter_map(taken).collect();
        units.sort_unstable_by_key(|unit| unit.age);
        units
    }

    fn keep(&mut self, ticket: Ticket, unit: Unit<T>) -> KeyId {
        let slot = ticket.slot();
        if self.units.len() <= slot {
            self.units.resize_with(slot + 1, || None);
        }
        self.memory = self.memory.saturating_add(unit.size);
        self.units[slot] = Some((unit.size, unit.content));
        self.is_short = self.units.try_reserve(1).is_err();
        self.ledger.key_of(ticket)
    }

    /// The unit of a request that was taken out of the ledger.
    fn unit(&mut self, taken: Taken) -> Option<Unit<T>> {
        let (size, content) = self.units.get_mut(taken.ticket.slot())?.take()?;
        self.memory = self.memory.saturating_sub(size);
        let Taken { age, costs, arrived, settles, .. } = taken;
        Some(Unit { age, costs, size, arrived, settles, content })
    }
}

impl<T> Unit<T> {
    fn request(&self) -> Request<'_> {
        Request { age: self.age, costs: &self.costs, arrived: self.arrived, weight: 0, settles: self.settles }
    }
}
