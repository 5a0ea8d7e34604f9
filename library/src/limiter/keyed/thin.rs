//! The state of a key that nobody waits for, and the limits that all keys have.

use crate::clock::{MILLISECOND, Nanos};
use crate::limiter::time::Time;
use crate::limits::{Gaining, Limits, Refusal, State};

/// How long the clock is read without trying its tick first.
const PATIENCE: Nanos = 10 * MILLISECOND;

/// The state of a key.
#[derive(Clone, Debug)]
pub(super) enum Thin {
    /// The number of the only bucket, see [`Gaining`]: its high half, then its low one. One number of 128 bits would take
    /// 8 bytes more, because of its alignment.
    Number([u64; 2]),
    States(Box<[State]>),
}

/// What all keys share: their limits, as they are for a key that was never used, and the clock.
#[derive(Debug)]
pub(super) struct Common {
    limits: Limits,
    /// The limits, if they are a single bucket.
    bucket: Gaining,
    unused: Thin,
    /// The most that is granted at one instant.
    pub(super) burst: u64,
    /// The most that is granted after any wait.
    pub(super) largest_cost: u64,
    pub(super) time: Time,
}

/// What the keys of one shard know of the time.
#[derive(Debug, Default)]
pub(super) struct ShardClock {
    /// The latest reading of the clock. A smaller one arrived out of order.
    latest: Nanos,
    /// No tick is tried before this time, because the last tick could not decide.
    no_tick_before: Nanos,
}

/// The time as it was read before the lock was taken: it lies between these two.
pub(super) type Reading = [Nanos; 2];

impl Common {
    pub(super) fn new(limits: Limits, time: Time) -> Self {
        let bucket = limits.fast_path();
        let unused = bucket.map_or_else(|| Thin::States(limits.states()), |bucket| Thin::of(bucket.number()));
        let (burst, largest_cost) = limits.most(0);
        Common { bucket: bucket.unwrap_or_default(), unused, burst, largest_cost, limits, time }
    }

    /// The state of a key that was never used.
    pub(super) fn unused(&self) -> Thin {
        self.unused.clone()
    }

    /// The state of a key with these limits. `None` if they are not those of all keys, or cannot be expressed so.
    pub(super) fn state_of(&self, limits: &Limits) -> Option<Thin> {
        match self.unused {
            Thin::Number(_) => {
                let state = limits.fast_path().filter(|state| state.has_terms_of(&self.bucket));
                state.map(|state| Thin::of(state.number()))
            }
            Thin::States(_) => limits.have_terms_of(&self.limits).then(|| Thin::States(limits.states())),
        }
    }

    /// The limits of a key in that state.
    pub(super) fn limits_of(&self, thin: Thin, now: Nanos) -> Limits {
        let mut limits = self.limits.clone();
        match thin {
            Thin::Number(halves) => limits.resume(self.bucket.missing(joined(halves), now), now),
            Thin::States(states) => limits.set_states(states, now),
        }
        limits
    }

    /// Whether from `now` on the key is like one that was never used.
    pub(super) fn is_unused(&self, thin: &Thin, now: Nanos) -> bool {
        match thin {
            Thin::Number(halves) => self.bucket.is_like(joined(*halves), now),
            Thin::States(states) => self.limits.are_like(states, now),
        }
    }

    /// Reads the clock, or its tick. Reading the clock is much of the work; a tick is cheaper to read.
    #[inline]
    pub(super) fn read(&self, by_tick: bool) -> Reading {
        let tick = if by_tick { self.time.tick() } else { None };
        tick.map_or_else(|| [self.time.now(); 2], |tick| [tick.starts, tick.ends])
    }

    /// Takes `cost` now, or nothing. Reads the clock again if the tick cannot decide.
    #[inline]
    pub(super) fn take(
        &self,
        thin: &mut Thin,
        clock: &mut ShardClock,
        reading: Reading,
        cost: u64,
    ) -> Result<(), Refusal> {
        match thin {
            Thin::Number(halves) => {
                let mut number = joined(*halves);
                let taken = self.bucket.take(&mut number, clock.in_order(reading), cost).unwrap_or_else(|| {
                    let now = self.now(clock);
                    clock.no_tick_before = now.saturating_add(PATIENCE);
                    self.bucket.take(&mut number, [now; 2], cost).unwrap_or(Err(Refusal::Never))
                });
                if taken.is_ok() {
                    *thin = Thin::of(number);
                }
                taken
            }
            Thin::States(states) => {
                let [from, until] = clock.in_order(reading);
                let now = if from == until { from } else { self.now(clock) };
                self.limits.take_from(states, now, cost)
            }
        }
    }

    /// Whether the tick is worth a try.
    #[inline]
    pub(super) fn may_tick(&self, clock: &ShardClock) -> bool {
        self.time.has_ticks() && matches!(self.unused, Thin::Number(_)) && clock.latest >= clock.no_tick_before
    }

    /// The time now. Clamps clock readings that arrive out of order.
    pub(super) fn now(&self, clock: &mut ShardClock) -> Nanos {
        clock.in_order([self.time.now(); 2])[0]
    }
}

impl ShardClock {
    /// Clamps clock readings that arrive out of order.
    #[inline]
    fn in_order(&mut self, [from, until]: Reading) -> Reading {
        if from == until {
            self.saw(from);
        }
        [from.max(self.latest), until.max(self.latest)]
    }

    /// The clock of the shard is not behind this.
    pub(super) fn saw(&mut self, now: Nanos) {
        self.latest = self.latest.max(now);
    }
}

impl Thin {
    #[allow(clippy::cast_possible_truncation, reason = "the low half")]
    fn of(number: u128) -> Self {
        Thin::Number([(number >> 64) as u64, number as u64])
    }
}

fn joined([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_takes_24_bytes() {
        assert_eq!(size_of::<Thin>(), 24);
    }
}
