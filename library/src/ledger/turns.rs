//! Start-time fair queueing between flows (Goyal, Vin and Cheng, 1996), for the first request of each flow.
//!
//! A flow is ready once its own limits conform. Then it has a start tag: the finish tag of the flow's latest grant, but
//! at least the virtual time. The ready flow with the least start tag is granted next. That start tag is the new
//! virtual time. The start tag plus the length of the request is the flow's new finish tag. So flows get equal shares,
//! and an idle flow saves up nothing.
//!
//! The length of a request is the longest time that an overall limit needs for its costs. A finish tag is kept until
//! the virtual time has passed it, even when the flow is idle. Otherwise a user who sends each large unit just after
//! the grant of the previous one would get nearly all of the limit. A unit that passes at once needs no tag. Above a
//! limit of 10 000 idle flows with tags, the virtual time moves on to the least of their tags. So endless new keys take
//! no memory and block no old key.
//!
//! The virtual time is reset once the overall limits have had time to pay for the latest grant, if no flow became ready
//! until then. From then on no flow is ahead of another.

use super::heap::{Heap, Item};
use crate::clock::Nanos;
use std::collections::TryReserveError;

/// A virtual time, in 1/256 ns: the unit of lengths.
pub(super) type Tag = u64;

/// The number of bits of a length that are a fraction of a nanosecond.
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
    /// Flows whose own limits conform at the time `front`, by start tag.
    ready: Heap,
    /// Flows whose limits do not conform yet, sorted by the time at which the limits conform.
    later: Heap,
    /// Nothing is granted before this time: the time of the latest grant, or a time until which nothing could leave.
    front: Nanos,
    virtual_time: Tag,
    last_finish: Tag,
    /// When the overall limits have paid for the latest grant.
    busy_until: Nanos,
    /// The number of granted requests that wait for their time in a shared bucket. While there are any, the limits may
    /// be busy.
    pub(super) pending: usize,
    /// The latest decision, if nothing has changed since.
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

    /// Adds a flow with a waiting first request. The flow's own limits conform at `at`, and `finish` is its finish tag.
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

    /// Removes a flow whose first request stops waiting.
    pub(super) fn leave(&mut self, flow: u32) {
        if self.ready.remove(flow).or_else(|| self.later.remove(flow)).is_some() {
            self.changed();
        }
    }

    /// Whether at most one flow waits for its turn.
    pub(super) fn is_alone(&self) -> bool {
        self.ready.len() + self.later.len() <= 1
    }

    /// Drops the latest decision, because something that affects it has changed, such as the overall limits.
    pub(super) fn changed(&mut self) {
        (self.decided, self.is_decided) = (None, false);
    }

    /// Whether the limits are idle at `time`: no flow is ready, no granted request waits in a shared bucket, and the
    /// overall limits have paid for the latest grant before `time`.
    fn is_idle_until(&self, time: Nanos) -> bool {
        self.pending == 0 && self.ready.is_empty() && time > self.busy_until
    }

    /// The virtual time when the next flow becomes ready.
    fn next_virtual_time(&self) -> Tag {
        let is_idle = self.later.first().is_some_and(|next| self.is_idle_until(next.at));
        if is_idle { self.last_finish } else { self.virtual_time }
    }

    /// Whether a request that arrives at `time` has to wait, whatever the limits allow. Either nothing may be granted
    /// before a later time, or another request waits whose own limits conform by then.
    pub(super) fn waits_at(&self, time: Nanos) -> bool {
        self.front > time || !self.ready.is_empty() || self.later.first().is_some_and(|head| head.at <= time)
    }

    /// The flow that is granted next, and the time. `conforms_at` returns the time at which the first request of a flow
    /// conforms to the overall limits; `finish` returns the finish tag of a flow.
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
        // A flow that becomes ready before the time of `best` may have a lesser tag.
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

    /// From now on, grants nothing before `time`. `finish` returns the finish tag of a flow.
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

    /// The state that the next grant will change.
    pub(super) fn tags(&self) -> Tags {
        Tags(self.virtual_time, self.last_finish, self.busy_until)
    }

    /// Takes back the latest grant. `tags` are the [tags](Self::tags) from just before it.
    pub(super) fn restore(&mut self, tags: Tags) {
        let Tags(virtual_time, last_finish, busy_until) = tags;
        (self.virtual_time, self.last_finish, self.busy_until) = (virtual_time, last_finish, busy_until);
        self.changed();
    }

    /// Grants the request of the decision. The front must have reached the time of the decision. Returns the new finish
    /// tag of the flow.
    pub(super) fn grant(&mut self, decision: Decision, length: Tag) -> Tag {
        let start = decision.order.0;
        let finish = start.saturating_add(length);
        self.virtual_time = self.virtual_time.max(start);
        self.last_finish = self.last_finish.max(finish);
        self.busy_until = decision.at.saturating_add(length >> FRACTION_BITS);
        self.leave(decision.flow);
        finish
    }

    /// Records a request that is granted at once, while no other request is ready. It takes no turn. As in
    /// [`close`](Self::close), the virtual time is reset only if time has gone by.
    pub(super) fn grant_at_once(&mut self, now: Nanos) {
        self.changed();
        if now > self.front {
            self.front = now;
            self.rest();
        }
    }

    /// Raises the virtual time to at least `time`.
    pub(super) fn pass_time(&mut self, time: Tag) {
        if time > self.virtual_time {
            self.virtual_time = time;
            self.changed();
        }
    }
}
