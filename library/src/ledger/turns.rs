//! Start-time fair queueing between flows (Goyal, Vin and Cheng, 1996), for the first request of each flow.
//!
//! A flow is ready once its own limits conform. Then it has a start tag: the finish tag of the flow's latest grant, but at
//! least the virtual time. The ready flow with the least start tag is granted next. That start tag is the new virtual time,
//! and the start tag plus the length of the request is the flow's finish tag. So flows get equal shares, and a flow that was
//! idle has saved up nothing.
//!
//! The virtual time is reset when the limits of all have had time to pay for the latest grant and no flow has become ready
//! until then. From then on no flow is ahead of another.

use super::heap::{Heap, Item};
use crate::clock::Nanos;
use std::collections::TryReserveError;

/// A virtual time, in 1/256 ns: the unit of lengths.
pub(super) type Tag = u64;

/// How many bits of a length are a fraction of a nanosecond.
pub(super) const FRACTION_BITS: u32 = 8;

/// The flow whose request is granted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) at: Nanos,
    pub(super) flow: u32,
    /// The start tag and the age of the request.
    order: (Tag, u64),
    is_ready: bool,
}

#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Flows whose limits conform at the front, by start tag.
    ready: Heap,
    /// Flows whose limits do not conform yet, by the time at which they will.
    later: Heap,
    /// Nothing is granted before this time: the time of the latest grant, or a time until which nothing could leave.
    front: Nanos,
    virtual_time: Tag,
    last_finish: Tag,
    /// When the limits of all have paid for the latest grant.
    busy_until: Nanos,
    /// How many granted requests still wait for their time in another place. While there are any, nothing is known to be idle.
    pub(super) pending: usize,
    /// The latest decision, while it holds.
    decided: Option<Decision>,
    is_decided: bool,
    /// Memory for [`Heap::visit`].
    open: Vec<usize>,
}

/// The state that a grant changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags(Tag, Tag, Nanos);

impl Turns {
    /// Makes room for flows with all numbers up to `flow`.
    pub(super) fn try_reserve(&mut self, flow: usize) -> Result<(), TryReserveError> {
        self.ready.try_reserve(flow)?;
        self.later.try_reserve(flow)
    }

    pub(super) fn virtual_time(&self) -> Tag {
        self.virtual_time
    }

    /// The first request of a flow waits. The flow's own limits conform at `at`, and `finish` is its finish tag.
    pub(super) fn enter(&mut self, flow: u32, at: Nanos, finish: Tag, age: u64) {
        if at <= self.front {
            let order = (self.virtual_time.max(finish), age);
            if self.decided.is_none_or(|best| !best.is_ready || best.order >= order) {
                self.changed();
            }
            self.ready.push(Item { at: order.0, age, id: flow });
        } else {
            if self.decided.is_none_or(|best| at <= best.at) {
                self.changed();
            }
            self.later.push(Item { at, age, id: flow });
        }
    }

    /// The first request of a flow does not wait any more.
    pub(super) fn leave(&mut self, flow: u32) {
        if self.ready.remove(flow).or_else(|| self.later.remove(flow)).is_some() {
            self.changed();
        }
    }

    /// Something has changed that decides, such as the limits of all.
    pub(super) fn changed(&mut self) {
        (self.decided, self.is_decided) = (None, false);
    }

    /// Whether nothing was ready, or is known to become ready, from the end of the latest service until `time`.
    fn is_idle_until(&self, time: Nanos) -> bool {
        self.pending == 0 && self.ready.is_empty() && time > self.busy_until
    }

    /// The virtual time when the next flow becomes ready.
    fn next_virtual_time(&self) -> Tag {
        let is_idle = self.later.first().is_some_and(|next| self.is_idle_until(next.at));
        if is_idle { self.last_finish } else { self.virtual_time }
    }

    /// Whether a request that comes at `time` has to wait, whatever the limits say: nothing is granted yet, or another request
    /// waits whose own limits conform by then.
    pub(super) fn waits_at(&self, time: Nanos) -> bool {
        self.front > time || !self.ready.is_empty() || self.later.first().is_some_and(|head| head.at <= time)
    }

    /// The flow that is granted next, and when. `conforms_at` returns from when on the first request of a flow conforms to the
    /// limits of all; `finish` returns the finish tag of a flow.
    pub(super) fn decide(
        &mut self,
        conforms_at: impl Fn(u32) -> Option<Nanos>,
        finish: impl Fn(u32) -> Tag,
    ) -> Option<Decision> {
        if self.is_decided {
            return self.decided;
        }
        let time_of = |flow: u32, own: Nanos| conforms_at(flow).map_or(Nanos::MAX, |at| at.max(own));
        let virtual_time = self.next_virtual_time();
        let mut best = self.ready.first().map(|Item { at: tag, age, id }| Decision {
            at: time_of(id, self.front),
            flow: id,
            order: (tag, age),
            is_ready: true,
        });
        // A flow that becomes ready by then may have a lesser tag.
        let mut open = std::mem::take(&mut self.open);
        self.later.visit(&mut open, |Item { at, age, id }| {
            if best.is_some_and(|best| at > best.at) {
                return false;
            }
            let order = (virtual_time.max(finish(id)), age);
            if best.is_none_or(|best| order < best.order) {
                best = Some(Decision { at: time_of(id, at), flow: id, order, is_ready: false });
            }
            true
        });
        self.open = open;
        (self.decided, self.is_decided) = (best, true);
        best
    }

    /// Nothing is granted before `time` any more. `finish` returns the finish tag of a flow.
    pub(super) fn close(&mut self, time: Nanos, finish: impl Fn(u32) -> Tag) {
        if time <= self.front {
            return;
        }
        if self.later.first().is_some_and(|next| next.at <= time) {
            self.virtual_time = self.next_virtual_time();
            self.changed();
        } else if self.decided.is_some_and(|best| best.at < time) {
            self.changed();
        }
        self.front = time;
        while let Some(next) = self.later.first().filter(|next| next.at <= time) {
            self.later.pop();
            self.ready.push(Item { at: self.virtual_time.max(finish(next.id)), ..next });
        }
        self.rest();
    }

    fn rest(&mut self) {
        if self.is_idle_until(self.front) {
            self.virtual_time = self.last_finish;
        }
    }

    /// What the next grant changes.
    pub(super) fn tags(&self) -> Tags {
        Tags(self.virtual_time, self.last_finish, self.busy_until)
    }

    /// The grant before which these were the [tags](Self::tags) was taken back.
    pub(super) fn restore(&mut self, tags: Tags) {
        let Tags(virtual_time, last_finish, busy_until) = tags;
        (self.virtual_time, self.last_finish, self.busy_until) = (virtual_time, last_finish, busy_until);
        self.changed();
    }

    /// Grants the request that was decided on. The front must have reached its time. Returns the finish tag of its flow.
    pub(super) fn grant(&mut self, decision: Decision, length: Tag) -> Tag {
        let start = decision.order.0;
        let finish = start.saturating_add(length);
        self.virtual_time = self.virtual_time.max(start);
        self.last_finish = self.last_finish.max(finish);
        self.busy_until = decision.at.saturating_add(length >> FRACTION_BITS);
        self.leave(decision.flow);
        finish
    }

    /// A request is granted at once, while no other is ready. It takes no turn.
    pub(super) fn grant_at_once(&mut self, now: Nanos) {
        self.front = self.front.max(now);
        self.changed();
        self.rest();
    }

    /// The virtual time is at least this one.
    pub(super) fn pass_time(&mut self, time: Tag) {
        if time > self.virtual_time {
            self.virtual_time = time;
            self.changed();
        }
    }
}
