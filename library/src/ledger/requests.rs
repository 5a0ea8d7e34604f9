//! The requests of a ledger, in a slab. The requests of each flow form a linked list, the oldest first.

use crate::clock::Nanos;
use std::collections::TryReserveError;

/// No request, or no flow.
pub(super) const NONE: u32 = u32::MAX;

/// One cost of each kind. Two fit without an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Costs {
    /// One kind.
    One(u64),
    /// Two kinds.
    Two([u64; 2]),
    /// Any other number of kinds.
    Many(Box<[u64]>),
}

impl From<&[u64]> for Costs {
    #[inline]
    fn from(costs: &[u64]) -> Self {
        match *costs {
            [cost] => Costs::One(cost),
            [first, second] => Costs::Two([first, second]),
            _ => Costs::Many(costs.into()),
        }
    }
}

impl<const N: usize> From<[u64; N]> for Costs {
    fn from(costs: [u64; N]) -> Self {
        costs[..].into()
    }
}

impl std::ops::Deref for Costs {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        match self {
            Costs::One(cost) => std::slice::from_ref(cost),
            Costs::Two(costs) => costs,
            Costs::Many(costs) => costs,
        }
    }
}

/// Names a waiting request. After its request was granted, refused or cancelled, a ticket is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) slot: u32,
    pub(super) serial: u32,
}

impl Ticket {
    /// A small number, unique among waiting requests.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// The terms of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// It is refused if it is not granted before this time.
    pub(super) latest: Nanos,
    /// Whether its costs may change after the grant.
    pub(super) settles: bool,
    /// Whether servers report on its unit, so that a pace is learned.
    pub(super) learns: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) age: u64,
    /// When it begins to wait; this may be in the future.
    pub(super) arrived: Nanos,
    pub(super) costs: Costs,
    /// The number of units with these costs. It is above 1 only for plain units.
    pub(super) units: u64,
    /// Whether it is for plain units.
    pub(super) is_plain: bool,
    pub(super) terms: Terms,
    pub(super) flow: u32,
    /// 0 for a usual request. Otherwise it is a suspect, which gets one turn for `weight` turns of the usual requests
    /// of its flow.
    pub(super) weight: u32,
    /// For a suspect: the length of all usual requests of its flow that are granted before its first turn.
    pub(super) pays_at: u64,
    /// Counts the requests of this slot.
    serial: u32,
    /// Whether it has arrived, and is in the list of its flow.
    pub(super) is_linked: bool,
    pub(super) next: u32,
    pub(super) before: u32,
}

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: List = List { first: NONE, last: NONE };
}

#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Request>,
    free: Vec<u32>,
    /// The number of requests.
    pub(super) len: usize,
}

impl Requests {
    /// Stores a request, which is in no list yet.
    pub(super) fn add(&mut self, age: u64, arrived: Nanos, costs: &[u64], flow: u32, weight: u32) -> Ticket {
        self.len += 1;
        let request = |serial| Request {
            age,
            arrived,
            costs: costs.into(),
            units: 1,
            is_plain: false,
            terms: Terms { latest: Nanos::MAX, settles: false, learns: false },
            flow,
            weight,
            pays_at: 0,
            serial,
            is_linked: false,
            next: NONE,
            before: NONE,
        };
        if let Some(slot) = self.free.pop() {
            let serial = self.slots[slot as usize].serial.wrapping_add(1);
            self.slots[slot as usize] = request(serial);
            return Ticket { slot, serial };
        }
        self.slots.push(request(0));
        Ticket { slot: u32::try_from(self.slots.len() - 1).unwrap_or(NONE), serial: 0 }
    }

    pub(super) fn ticket(&self, slot: u32) -> Ticket {
        Ticket { slot, serial: self.slots[slot as usize].serial }
    }

    /// Makes room for one more request. Returns the highest number that it may get.
    pub(super) fn try_reserve(&mut self) -> Result<usize, TryReserveError> {
        self.slots.try_reserve(1)?;
        self.free.try_reserve((self.slots.len() + 1).saturating_sub(self.free.len()))?;
        Ok(self.slots.len())
    }

    /// Whether the request still waits.
    pub(super) fn has(&self, ticket: Ticket) -> bool {
        let request = self.slots.get(ticket.slot as usize);
        request.is_some_and(|request| request.serial == ticket.serial && request.flow != NONE)
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Request {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Request {
        &mut self.slots[slot as usize]
    }

    /// Removes a request, which must be in no list.
    pub(super) fn free(&mut self, slot: u32) -> Request {
        self.len -= 1;
        self.free.push(slot);
        let request = &mut self.slots[slot as usize];
        // The ticket is invalid from now on.
        let gone = Request { costs: std::mem::replace(&mut request.costs, Costs::One(0)), ..*request };
        request.serial = request.serial.wrapping_add(1);
        request.flow = NONE;
        gone
    }

    /// All requests, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.slots).filter(|(_, request)| request.flow != NONE).map(|(slot, _)| slot)
    }

    /// The ages of all requests, in no order.
    pub(super) fn all_ages(&self) -> impl Iterator<Item = u64> {
        self.all().map(|slot| self.get(slot).age)
    }

    /// The requests of a list, in order.
    pub(super) fn of(&self, list: List) -> impl Iterator<Item = u32> {
        let at = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(at(list.first), move |slot| at(self.get(*slot).next))
    }

    /// Inserts a request behind the older ones of its list.
    pub(super) fn link(&mut self, list: &mut List, slot: u32) {
        let age = self.get(slot).age;
        // Both cases are quick: a new request is the youngest, and a request that is made again is near the beginning.
        let before = if list.last == NONE || self.get(list.last).age <= age {
            list.last
        } else {
            let no_younger = self.of(*list).take_while(|other| self.get(*other).age <= age);
            no_younger.last().unwrap_or(NONE)
        };
        self.insert(list, before, slot);
    }

    /// Adds a request at the end of a list.
    pub(super) fn append(&mut self, list: &mut List, slot: u32) {
        let before = list.last;
        self.insert(list, before, slot);
    }

    /// Inserts a request behind `before`, or at the beginning.
    fn insert(&mut self, list: &mut List, before: u32, slot: u32) {
        let next = if before == NONE { list.first } else { self.get(before).next };
        let request = self.get_mut(slot);
        (request.is_linked, request.before, request.next) = (true, before, next);
        self.join(list, before, slot);
        self.join(list, slot, next);
    }

    /// Takes a request out of its list.
    pub(super) fn unlink(&mut self, list: &mut List, slot: u32) {
        let Request { before, next, .. } = *self.get(slot);
        self.get_mut(slot).is_linked = false;
        self.join(list, before, next);
    }

    /// Links two requests, or a request and an end of the list.
    fn join(&mut self, list: &mut List, before: u32, next: u32) {
        match before {
            NONE => list.first = next,
            _ => self.get_mut(before).next = next,
        }
        match next {
            NONE => list.last = before,
            _ => self.get_mut(next).before = before,
        }
    }
}
