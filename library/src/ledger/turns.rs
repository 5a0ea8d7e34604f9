//! Start-time fair queueing between flows (Goyal, Vin and Cheng, 1996), for the first request of each flow.
//!
//! A flow is ready once its own limits conform. Then it has a start tag: the finish tag of the flow's latest grant, but
//! at least the virtual time. The ready flow with the least start tag is granted next. That start tag is the new
//! virtual time. The start tag plus the length of the request is the flow's new finish tag. So flows get equal shares,
//! and an idle flow saves up nothing.
//!
//! The length of a request is the longest time that an overall limit needs for its costs. A finish tag is kept until
//! the virtual time has passed it, even when the flow is idle. Otherwise a user who sends each large unit just after
//! the grant of the previous one would get nearly all of the limit. A unit that passes at once needs no tag.
//!
//! The virtual time is reset once the overall limits are at rest. From then on no flow is ahead of another.
//!
//! Invariants:
//! - A tag depends on the time at which the flow became ready, not on the time at which that was noticed. Between two
//!   grants the virtual time is a function of time alone: [`Turns::virtual_time`].
//! - A flow that becomes ready exactly at the time of a grant comes after it.
//! - `ready` contains the flows that are ready at `front`, and `later` the others, by the time at which they will be.
//! - No tag in `ready` is below the virtual time, and no finish tag is above `last_finish`.

use super::heap::{Heap, Item};
use crate::clock::Nanos;
use std::collections::TryReserveError;

/// A virtual time, in 1/256 ns: the unit of lengths.
pub(super) type Tag = u64;

/// The number of bits of a length that are a fraction of a nanosecond.
pub(super) const FRACTION_BITS: u32 = 8;

/// The flow whose request is granted next, and the time, if nothing changes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) at: Nanos,
    pub(super) flow: u32,
    /// The start tag and the age of the request.
    order: (Tag, u64),
    /// When the flow is ready.
    own: Nanos,
}

/// The state that a grant changes.
#[derive(Clone, Copy, Debug, Default)]
struct Tags {
    virtual_time: Tag,
    last_finish: Tag,
    /// The time of the latest grant.
    last: Nanos,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// Flows whose own limits conform at the time `front`, by start tag.
    ready: Heap,
    /// Flows whose limits do not conform yet, sorted by the time at which the limits conform.
    later: Heap,
    /// Nothing is granted for a time before this one.
    front: Nanos,
    tags: Tags,
    /// The latest decision, if nothing has changed since.
    decided: Option<Decision>,
    is_decided: bool,
    /// Memory for [`Heap::visit`].
    open: Vec<usize>,
}

impl Turns {
    /// Makes room for flows with all numbers up to `flow`.
    pub(super) fn try_reserve(&mut self, flow: usize) -> Result<(), TryReserveError> {
        self.ready.try_reserve(flow)?;
        self.later.try_reserve(flow)
    }

    /// Drops the latest decision, because something that affects it has changed, such as the overall limits.
    pub(super) fn changed(&mut self) {
        (self.decided, self.is_decided) = (None, false);
    }

    /// Whether at most one flow waits for its turn.
    pub(super) fn is_alone(&self) -> bool {
        self.ready.len() + self.later.len() <= 1
    }

    /// Whether a request that arrives at `time` has to wait, whatever the limits allow. Either nothing may be granted
    /// before a later time, or another request waits whose own limits conform by then.
    pub(super) fn waits_at(&self, time: Nanos) -> bool {
        self.front > time || !self.ready.is_empty() || self.later.first().is_some_and(|head| head.at <= time)
    }

    /// The time of the latest grant.
    pub(super) fn last(&self) -> Nanos {
        self.tags.last
    }

    /// The virtual time at `time`, if nothing is granted until then. It is reset once the overall limits are at rest.
    #[inline]
    pub(super) fn virtual_time(&self, time: Nanos, is_at_rest: impl Fn(Nanos) -> bool) -> Tag {
        let Tags { virtual_time, last_finish, last } = self.tags;
        let is_reset = virtual_time < last_finish && is_at_rest(time.max(last));
        if is_reset { last_finish } else { virtual_time }
    }

    /// The least start tag that any flow may get from now on, if the next request joins its flow at `next` or later.
    pub(super) fn least_tag(&self, next: Nanos, is_at_rest: impl Fn(Nanos) -> bool) -> Tag {
        let time = self.front.min(next);
        if self.ready.is_empty() { self.virtual_time(time, is_at_rest) } else { self.tags.virtual_time }
    }

    /// Adds a flow with a waiting first request. The flow's own limits conform at `own`, and `tag` is its start tag
    /// then.
    pub(super) fn enter(&mut self, flow: u32, own: Nanos, tag: Tag, age: u64) {
        let is_behind = |best: Decision| {
            if own <= self.front {
                return best.own <= self.front && (tag, age) > best.order;
            }
            // Flows that are ready at one time come by age, as in `decide`.
            own > best.at || own == best.at && (best.own < own || best.order.1 < age)
        };
        if !self.decided.is_some_and(is_behind) {
            self.changed();
        }
        if own <= self.front {
            self.ready.push(Item { at: tag, age, id: flow });
        } else {
            self.later.push(Item { at: own, age, id: flow });
        }
    }

    /// Removes a flow whose first request stops waiting.
    pub(super) fn leave(&mut self, flow: u32) {
        if self.ready.remove(flow).or_else(|| self.later.remove(flow)).is_some() {
            self.changed();
        }
    }

    /// The flow that is granted next, and the time. `time_of(flow, own)` is the time, not before `own`, at which the
    /// first request of a flow conforms to the overall limits. `finish_of` returns the finish tag of a flow.
    pub(super) fn decide(
        &mut self,
        time_of: impl Fn(u32, Nanos) -> Nanos,
        finish_of: impl Fn(u32) -> Tag,
        is_at_rest: impl Fn(Nanos) -> bool,
    ) -> Option<Decision> {
        if self.is_decided {
            return self.decided;
        }
        let front = self.front;
        let mut best = self.ready.first().map(|Item { at: tag, age, id }| Decision {
            at: time_of(id, front),
            flow: id,
            order: (tag, age),
            own: front,
        });
        // A flow that becomes ready before the time of `best` may have a lesser tag.
        let mut open = std::mem::take(&mut self.open);
        self.later.visit(&mut open, |Item { at: own, age, id }| {
            if best.is_some_and(|best| own >= best.at) {
                return false;
            }
            let order = (self.virtual_time(own, &is_at_rest).max(finish_of(id)), age);
            if best.is_none_or(|best| order < best.order) {
                best = Some(Decision { at: time_of(id, own), flow: id, order, own });
            }
            true
        });
        self.open = open;
        (self.decided, self.is_decided) = (best, true);
        best
    }

    /// The next flow that is ready before `time`, or by that time, and is not among the ready ones yet.
    #[inline]
    pub(super) fn next_ready(&self, time: Nanos, is_inclusive: bool) -> Option<(u32, Nanos)> {
        let head = self.later.first()?;
        (head.at < time || is_inclusive && head.at == time).then_some((head.id, head.at))
    }

    /// Moves the flow that [`next_ready`](Self::next_ready) returned to the ready ones.
    pub(super) fn make_ready(&mut self, tag: Tag) {
        if let Some(head) = self.later.pop() {
            self.ready.push(Item { at: tag, ..head });
        }
    }

    /// From now on, nothing is granted for a time before `time`. All flows that are ready then must be among the ready
    /// ones.
    #[inline]
    pub(super) fn close(&mut self, time: Nanos) {
        if time > self.front {
            self.front = time;
            if self.decided.is_some_and(|best| best.at < time) {
                self.changed();
            }
        }
    }

    /// Grants the request of the decision at `at`. Returns the new finish tag of the flow.
    pub(super) fn serve(&mut self, decision: Decision, at: Nanos, length: Tag) -> Tag {
        self.leave(decision.flow);
        self.changed();
        let start = decision.order.0;
        let finish = start.saturating_add(length);
        self.tags.virtual_time = self.tags.virtual_time.max(start);
        self.tags.last_finish = self.tags.last_finish.max(finish);
        self.tags.last = at;
        finish
    }

    /// Records a request that is granted at once, while no other request is ready. It takes no turn. `virtual_time` is
    /// the [virtual time](Self::virtual_time) just before it.
    #[inline]
    pub(super) fn pass(&mut self, now: Nanos, virtual_time: Tag) {
        (self.tags.virtual_time, self.tags.last) = (virtual_time, now);
        self.front = now;
        if !self.later.is_empty() {
            self.changed();
        }
    }

    /// A flow has this finish tag now.
    pub(super) fn finished(&mut self, finish: Tag) {
        self.tags.last_finish = self.tags.last_finish.max(finish);
    }

    /// Whether the virtual time has passed this tag.
    pub(super) fn is_past(&self, tag: Tag) -> bool {
        tag <= self.tags.virtual_time
    }

    /// The start tag of a flow, if it is ready.
    pub(super) fn tag(&self, flow: u32) -> Option<Tag> {
        self.ready.find(flow).map(|item| item.at)
    }

    /// The front, and the virtual time, the last finish tag and the time of the latest grant.
    pub(super) fn saved(&self) -> (Nanos, [u64; 3]) {
        (self.front, [self.tags.virtual_time, self.tags.last_finish, self.tags.last])
    }

    pub(super) fn restore_saved(&mut self, front: Nanos, [virtual_time, last_finish, last]: [u64; 3]) {
        (self.front, self.tags) = (front, Tags { virtual_time, last_finish, last });
        self.changed();
    }

    /// Adds a flow that was ready when the ledger was saved.
    pub(super) fn enter_ready(&mut self, flow: u32, tag: Tag, age: u64) {
        self.changed();
        self.ready.push(Item { at: tag, age, id: flow });
    }

    /// Raises the virtual time to at least `time`.
    pub(super) fn raise(&mut self, time: Tag) {
        if time > self.tags.virtual_time {
            self.tags.virtual_time = time;
            self.changed();
        }
    }
}
