//! What the ledger of a shared bucket needs beyond that of one process: limits that change, and one pace of all units.

use super::flows::{Learned, Paces};
use super::keys::Table;
use super::requests::Ticket;
use super::rules::Rules;
use super::state::{Ledger, Settings};
use crate::clock::Nanos;
use crate::limits::{Limits, Policy};
use std::num::NonZeroU32;

/// The most keys that are stored, and the most bytes that they take, approximately.
const MAX_KEYS: usize = 10_000;
const MAX_BYTES: usize = 15 << 19;

/// The approximate most bytes of the name of a key and of the facts that are known about it.
const MAX_BYTES_OF_KEY: usize = 336;

/// The open grants of a key for which a snapshot has room.
const USUAL_OPEN: usize = 8;

impl Ledger {
    /// A ledger with the limits of a shared bucket, in their initial state at `now`.
    pub(super) fn of_policy(policy: &Policy, now: Nanos) -> Self {
        let (all, each) = limits_of(policy, now);
        let settings = Settings::of(policy, &all, &each);
        let most = most_keys(&each);
        let keys = Table::new(each, most).shared();
        let mut ledger = Ledger::with_settings(settings, keys, all, now, &Rules::default());
        ledger.settle_for(policy);
        ledger
    }

    /// Sets what follows from a policy alone, beside its limits.
    fn settle_for(&mut self, policy: &Policy) {
        let asked = policy.of_keys().map_or(0, |keys| keys.each.interval()).max(policy.interval());
        let is_same = self.paces.asked == Some(asked) && self.learned.is_some() == policy.of_keys().is_none();
        if !is_same {
            self.paces = Paces { asked: Some(asked), slows: true, ..Paces::default() };
            self.forget_learned();
            self.learned = policy.of_keys().is_none().then(|| Box::new(Learned::new(asked)));
        }
        self.failures.most = policy.of_keys().and_then(|keys| keys.fails);
        self.failures.are_shared = true;
    }

    /// Forgets all learned paces, and all failures.
    pub(super) fn learn_anew(&mut self) {
        if let (Some(learned), Some(asked)) = (&mut self.learned, self.paces.asked) {
            **learned = Learned::new(asked);
        }
        self.forget_learned();
        self.failures.in_a_row.clear();
        self.failures.given_up.clear();
        self.reenter_all();
    }

    fn forget_learned(&mut self) {
        for id in self.flows.ids() {
            self.flows[id].learned = None;
        }
        self.paces.known = 0;
    }

    pub(super) fn forget_failures_of(&mut self, name: &[u8]) {
        self.failures.in_a_row.remove(name);
        self.failures.given_up.remove(name);
    }

    /// Continues with other limits. `aligned` converts the costs of a request. Returns the requests that are never
    /// granted now.
    pub(super) fn set(
        &mut self,
        now: Nanos,
        policy: &Policy,
        fresh: &[bool],
        aligned: impl Fn(&[u64]) -> Vec<u64>,
    ) -> Vec<u32> {
        let now = self.tick(now);
        let (all, each) = limits_of(policy, now);
        let most = most_keys(&each);
        self.settings = Settings::of(policy, &all, &each);
        self.all.continue_as(&all, &mut self.levels, now, fresh, None);
        self.all = all;
        self.keys.change(now, each, fresh.get(policy.len()..).unwrap_or(&[]), most);
        let waiting: Vec<u32> = self.requests.all().collect();
        for slot in &waiting {
            let costs = aligned(&self.requests.get(*slot).costs);
            self.requests.get_mut(*slot).costs = costs[..].into();
        }
        if !policy.counts_jobs() {
            self.running = 0;
            self.grants.values_mut().for_each(|open| open.runs = false);
            for id in self.flows.ids() {
                self.flows[id].running = 0;
            }
        }
        self.settle_for(policy);
        self.reenter_all();
        let never = |slot: &u32| {
            let request = self.requests.get(*slot);
            let each = self.keys.state(self.flows[request.flow].key).0;
            each.never_grants(&request.costs) || self.all.never_grants(&request.costs)
        };
        waiting.into_iter().filter(never).collect()
    }

    /// Whether a unit of the same key has to end before this request can be granted.
    pub(super) fn needs_an_end(&self, ticket: Ticket) -> bool {
        let flow = &self.flows[self.requests.get(ticket.slot).flow];
        self.settings.jobs.is_some_and(|jobs| flow.running >= jobs)
    }

    /// Whether a flow behaves as a new one.
    pub(super) fn is_forgotten(&self, id: u32) -> bool {
        let flow = &self.flows[id];
        flow.is_idle()
            && flow.ready_from() <= self.now
            && !flow.hold.is_pending()
            && flow.finish <= self.least_tag()
            && flow.learned.as_ref().is_none_or(|learned| learned.until <= self.now)
    }
}

impl Settings {
    fn of(policy: &Policy, all: &Limits, each: &Limits) -> Settings {
        let per_key = policy.of_keys().and_then(|keys| keys.jobs).map(NonZeroU32::get);
        Settings {
            quantum: if policy.counts_jobs() { 1 } else { policy.quantum().max(1) },
            jobs: per_key.or(policy.counts_jobs().then_some(u32::MAX)),
            jobs_of_all: policy.jobs().map(NonZeroU32::get),
            is_shared: true,
            ..Settings::new(all, [each].into_iter(), 0)
        }
    }
}

/// The most keys with these limits that are stored.
fn most_keys(each: &Limits) -> usize {
    (MAX_BYTES / (MAX_BYTES_OF_KEY + each.bytes_of_levels(USUAL_OPEN))).clamp(1, MAX_KEYS)
}

/// The limits of all keys, and those of each key.
fn limits_of(policy: &Policy, now: Nanos) -> (Limits, Limits) {
    let none = Policy::default();
    let each = policy.of_keys().map_or(&none, |keys| &keys.each);
    (Limits::counting(policy, 0, now), Limits::counting(each, policy.len(), now))
}
