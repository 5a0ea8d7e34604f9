//! What a token bucket and a bucket with whole refills have in common: an amount that fills up to a size.

use super::state::Level;
use crate::clock::Nanos;

/// A bucket whose level fills with time. Amounts are in its own credits: see the kinds of buckets.
pub(super) trait Fill {
    /// Time in which an empty bucket fills, in nanoseconds, rounded up.
    fn fill_time(&self) -> Nanos;

    /// The amount in a full bucket.
    fn full(&self) -> i128;

    /// What `units` cost.
    fn price(&self, units: u64) -> i128;

    /// What comes in from `from` to `to`, which is not before `from`.
    fn gained(&self, from: Nanos, to: Nanos) -> i128;

    /// The amount at `time`, which is not before the last grant. The level may hold more than the size: what a
    /// nanosecond above 1 GHz, or a refill, left over for requests at that time. Later the excess is lost.
    fn amount_at(&self, level: Level, time: Nanos) -> i128 {
        if time == level.at {
            return level.amount;
        }
        level.amount.saturating_add(self.gained(level.at, time)).min(self.full())
    }

    /// Brings a state from the past up to `now`.
    fn settle(&self, level: &mut Level, now: Nanos) {
        if now > level.at {
            *level = Level { amount: self.amount_at(*level, now), at: now };
        }
    }

    /// Brings the state up to `now` for a waiter that asked at `asked` and needs `cost` units.
    fn gather(&self, level: &mut Level, now: Nanos, asked: Nanos, cost: u64) {
        let start = asked.max(level.at);
        if now > start {
            let gathered = self.amount_at(*level, start).saturating_add(self.gained(start, now));
            *level = Level { amount: gathered.min(self.full().max(self.price(cost))), at: now };
        }
    }

    /// No waiter needs more than a full bucket any more: at `now`, the excess is lost.
    fn spill(&self, level: &mut Level, now: Nanos) {
        self.settle(level, now);
        level.amount = level.amount.min(self.full());
    }

    /// Adds `units` at `now`, up to the size.
    fn credit(&self, level: &mut Level, now: Nanos, units: u64) {
        self.add(level, now, self.price(units));
    }

    /// Credits `units` that were granted at `grant` and not used, less what came in since, because the bucket could have
    /// been full.
    fn give_back(&self, level: &mut Level, now: Nanos, grant: Nanos, units: u64) {
        let refund = self.price(units).saturating_sub(self.gained(grant, now.max(grant)));
        self.add(level, now, refund.max(0));
    }

    fn add(&self, level: &mut Level, now: Nanos, amount: i128) {
        self.settle(level, now);
        level.amount = level.amount.saturating_add(amount).min(self.full()).max(level.amount);
    }

    /// Takes `units` at `now`. Missing units become a debt that is paid before the next grant.
    fn pay(&self, level: &mut Level, now: Nanos, units: u64) {
        self.settle(level, now);
        level.amount = level.amount.saturating_sub(self.price(units));
    }

    /// Empties the bucket at `time`; it fills from then on. Debt stays, and so does a grant after `time`.
    fn empty(&self, level: &mut Level, time: Nanos) {
        self.settle(level, time);
        if level.at <= time {
            level.amount = level.amount.min(0);
        }
    }

    /// Whether the bucket is full at `time`, or at the last grant if that is later.
    fn is_full(&self, level: Level, time: Nanos) -> bool {
        self.amount_at(level, time.max(level.at)) >= self.full()
    }

    /// The state at `at` in which `missing` credits are missing to a full bucket.
    fn resume(&self, missing: u128, at: Nanos) -> Level {
        Level { amount: self.full().saturating_sub_unsigned(missing), at }
    }
}
