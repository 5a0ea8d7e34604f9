//! The keyed runs of a shared bucket. There the bucket applies the limits, and this ledger decides only which request
//! is sent to it next. All of this goes when a shared bucket schedules requests itself. Until then nothing else needs
//! it: a private ledger has no [`Away`].

use super::requests::Ticket;
use super::state::{Away, Ledger, Request};
use super::turns::{FRACTION_BITS, Tag, Tags};
use crate::clock::Nanos;
use crate::limits::KeyId;

impl Away {
    /// Whether the limits of the shared bucket are at rest at `time`, as far as is known here.
    pub(super) fn is_at_rest(&self, time: Nanos) -> bool {
        self.pending == 0 && time > self.busy_until
    }

    /// Records a grant at `at`. `tags` is the state of the turns before it.
    pub(super) fn granted(&mut self, (key, age): (KeyId, u64), at: Nanos, length: Tag, tags: Tags) {
        self.latest = Some((key, age, (tags, self.busy_until)));
        self.busy_until = at.saturating_add(length >> FRACTION_BITS);
    }
}

impl Ledger {
    /// Sets the number of granted requests that wait for the answer of a shared bucket, or for their time. Turns depend
    /// on which keys are ready when the units leave, not on which keys were ready when the bucket received the
    /// requests.
    pub fn set_away(&mut self, now: Nanos, units: usize) {
        let now = self.tick(now);
        if self.away.as_ref().is_some_and(|away| units < away.pending) {
            self.close(now, true);
        }
        if let Some(away) = &mut self.away {
            away.pending = units;
            self.turns.changed();
        }
    }

    /// Puts back the request of this grant, which is not used. It waits again, and nothing of its key is granted before
    /// `until`. This ledger does not credit the charge.
    ///
    /// `None` as for [`ask`](Self::ask).
    pub fn put_back(&mut self, now: Nanos, number: u64, request: &Request<'_>, until: Nanos) -> Option<Ticket> {
        let now = self.tick(now);
        let key = self.grants.get(&number)?.key;
        let latest = self.away.as_mut().and_then(|away| away.latest.take());
        if let Some((.., (tags, busy_until))) = latest.filter(|(latest, age, _)| (*latest, *age) == (key, request.age))
        {
            self.turns.restore(tags);
            self.away.iter_mut().for_each(|away| away.busy_until = busy_until);
        }
        let length = self.length(request.costs);
        let id = self.flow(key);
        let finish = &mut self.flows[id].finish;
        *finish = finish.saturating_sub(length);
        let name: Box<[u8]> = self.name(key).into();
        let ticket = self.add(now, &name, request, self.terms(request.arrived, request.settles));
        self.not_before(now, key, until);
        self.ended(now, number);
        ticket
    }
}
