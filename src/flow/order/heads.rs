//! Start-time fair queueing between keys (Goyal, Vin and Cheng, 1996), for the first waiting unit of each key.
//!
//! A unit whose own limits conform has a start tag: the finish tag of the unit of its key that left before it, but at least
//! the virtual time. The unit with the least start tag is served next. The virtual time is then its start tag, and its finish tag
//! is that plus its length. So each key gets an equal share, and keys that were idle have saved up nothing.

use super::keyed::KeyId;
use std::collections::BTreeSet;
use throttle_limits::clock::{MILLISECOND, Nanos};

/// A virtual time, in nanoseconds.
pub(super) type Tag = Nanos;

/// A window counts a unit from when it was handed over. That takes a moment, which must not decide whether another is ready.
const SOON: Nanos = 5 * MILLISECOND;

/// So many units are looked at that are ready soon: this is asked for each unit, and thousands may be.
const LOOKED_AT: usize = 16;

/// The first units of all keys that wait for a time and for nothing else.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Nothing is granted before this time: it is that of the latest grant, or nothing could leave until then.
    frontier: Nanos,
    /// Units whose own limits conform at the frontier: the start tag, the age, the key. All others are `later`, by time.
    ready: BTreeSet<(Tag, u64, KeyId)>,
    later: BTreeSet<Head>,
    /// The virtual time.
    time: Tag,
    /// The greatest finish tag.
    last: Tag,
}

/// Where the first unit of a key is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    /// When the limits of its key conform.
    pub(super) at: Nanos,
    /// Its start tag; until it is ready, the finish tag of the unit before it.
    pub(super) tag: Tag,
    pub(super) age: u64,
    pub(super) key: KeyId,
}

impl Heads {
    /// The virtual time. Finish tags that are not later need not be kept.
    pub(super) fn time(&self) -> Tag {
        self.time
    }

    /// The virtual time is not before this one any more.
    pub(super) fn pass_time(&mut self, time: Tag) {
        self.time = self.time.max(time);
    }

    /// Adds a unit. Returns where it is found.
    pub(super) fn add(&mut self, mut head: Head) -> Head {
        if head.at > self.frontier {
            self.later.insert(head);
        } else {
            head.tag = head.tag.max(self.time);
            self.ready.insert((head.tag, head.age, head.key));
        }
        head
    }

    pub(super) fn remove(&mut self, head: Head) {
        if head.at > self.frontier {
            self.later.remove(&head);
        } else {
            self.ready.remove(&(head.tag, head.age, head.key));
        }
    }

    /// If no unit is ready, nor very soon, nothing that left before matters any more: no key is ahead of another. `came` says
    /// when the first unit of a key did: one that was not there at the latest grant does not count.
    pub(super) fn rest(&mut self, came: impl Fn(KeyId) -> Nanos) {
        let soon = self.later.iter().take_while(|head| head.at <= self.frontier.saturating_add(SOON));
        if self.ready.is_empty() && soon.take(LOOKED_AT).all(|head| came(head.key) > self.frontier) {
            self.time = self.last;
        }
    }

    /// Whether the own limits of a unit conform at `time`.
    pub(super) fn waits_at(&self, time: Nanos) -> bool {
        !self.ready.is_empty() || self.later.first().is_some_and(|head| head.at <= time)
    }

    /// When a unit is ready, if none is yet: nothing is granted before. Otherwise 0.
    pub(super) fn ready_at(&self) -> Nanos {
        self.later.first().filter(|_| self.ready.is_empty()).map_or(0, |head| head.at)
    }

    /// The earliest time at which the unit with the least start tag conforms to the limits of all keys together; it may be
    /// later if another unit becomes ready just then. `conforms_at` says from when on the first unit of a key does.
    pub(super) fn earliest(&self, conforms_at: impl Fn(KeyId) -> Option<Nanos>) -> Option<Nanos> {
        let time_of = |key, own: Nanos| conforms_at(key).map_or(Nanos::MAX, |time| time.max(own));
        let mut next = self.ready.first().copied();
        let mut time = next.map_or(Nanos::MAX, |(.., key)| time_of(key, self.frontier));
        // Units whose own limits conform before that may have a lesser tag.
        for head in &self.later {
            if next.is_some() && head.at >= time {
                break;
            }
            let other = (head.tag.max(self.time), head.age, head.key);
            if next.is_none_or(|next| other < next) {
                (next, time) = (Some(other), time_of(head.key, head.at));
            }
        }
        next.map(|_| time)
    }

    /// Nothing is granted before `time` any more.
    pub(super) fn close(&mut self, time: Nanos) {
        self.frontier = self.frontier.max(time);
    }

    /// A unit that has become ready, and where it is found from now on.
    pub(super) fn pop_due(&mut self) -> Option<Head> {
        let head = *self.later.first().filter(|head| head.at <= self.frontier)?;
        self.later.pop_first();
        Some(self.add(head))
    }

    /// The start tag, the age and the key of the unit that is served next.
    pub(super) fn first(&self) -> Option<(Tag, u64, KeyId)> {
        self.ready.first().copied()
    }

    /// What changes if a unit is served.
    pub(super) fn tags(&self) -> [Tag; 2] {
        [self.time, self.last]
    }

    /// The unit for which these were the [tags](Self::tags) was not served.
    pub(super) fn restore(&mut self, [time, last]: [Tag; 2]) {
        (self.time, self.last) = (time, last);
    }

    /// A unit with this start tag and this length is served. Returns its finish tag.
    pub(super) fn go(&mut self, start: Tag, length: Tag) -> Tag {
        let finish = start.saturating_add(length);
        self.pass_time(start);
        self.last = self.last.max(finish);
        finish
    }
}
