//! The state of the limits of one key, where many keys have the same limits and few have a [`Limits`] of their own.
//!
//! The state of one bucket is a single number: the time at which the bucket will be full, measured in credits gained
//! since the clock's origin. A bucket that is full has a number in the past, whatever it is. A grant adds its price to
//! the number, or to the present if the bucket is full. This is as exact as the bucket itself. Only what a bucket holds
//! above its size cannot be expressed.

use super::grant::Refusal;
use super::settling::Settling;
use super::state::{Gaining, State};
use super::terms::Terms;
use super::together::Limits;
use crate::clock::Nanos;

impl Gaining {
    /// The number of this state.
    pub(crate) fn number(&self) -> u128 {
        self.clock(self.at).saturating_add(self.missing)
    }

    /// Credits missing to a full bucket.
    pub(crate) fn missing(&self, number: u128, now: Nanos) -> u128 {
        number.saturating_sub(self.clock(now))
    }

    /// Whether from `now` on a bucket with this number is like this one.
    pub(crate) fn is_like(&self, number: u128, now: Nanos) -> bool {
        let clock = self.clock(now);
        number.max(clock) == self.number().max(clock)
    }

    /// Whether the other bucket has the same size and rate.
    pub(crate) fn has_terms_of(&self, other: &Gaining) -> bool {
        let Gaining { missing, at, .. } = *self;
        Gaining { missing, at, ..*other } == *self
    }

    /// Takes `cost` now, or nothing. Now is some time between these two.
    ///
    /// Returns `None` if the answer is not the same at all times between them.
    #[inline]
    pub(crate) fn take(&self, number: &mut u128, [from, until]: [Nanos; 2], cost: u64) -> Option<Result<(), Refusal>> {
        let first = self.clock(from);
        let last = if until == from { first } else { self.clock(until) };
        if first != last && *number < last {
            return None;
        }
        let next = (*number).max(first).saturating_add(u128::from(cost) * u128::from(self.price));
        if next - first <= self.full {
            *number = next;
            return Some(Ok(()));
        }
        (next - last > self.full).then(|| Err(self.wait(from, next - self.full)))
    }

    /// How long it takes from `now` until the clock reaches `number`, which is in the future.
    fn wait(&self, now: Nanos, number: u128) -> Refusal {
        let intervals = u64::try_from(number.div_ceil(self.gain.into())).ok();
        let at = intervals.and_then(|count| count.checked_mul(self.interval)?.checked_add(self.start));
        at.map_or(Refusal::Never, |at| Refusal::TooLong { wait: at.saturating_sub(now) })
    }

    /// The number of a bucket that becomes full at `now`.
    #[inline]
    fn clock(&self, now: Nanos) -> u128 {
        let since = now.saturating_sub(self.start);
        let intervals = if self.interval == 1 { since } else { since / self.interval };
        u128::from(intervals) * u128::from(self.gain)
    }
}

impl Limits {
    /// The state of each limit.
    pub(crate) fn states(&self) -> Box<[State]> {
        self.states.as_slice().into()
    }

    /// Goes on with the states of another key. Nothing of them is in the future at `now`.
    pub(crate) fn set_states(&mut self, states: Box<[State]>, now: Nanos) {
        self.states = states.into_vec();
        (self.asked, self.at) = (now, now);
    }

    /// Takes `cost` from `states` at `now`, or nothing. Nothing of them is in the future.
    pub(crate) fn take_from(&self, states: &mut [State], now: Nanos, cost: u64) -> Result<(), Refusal> {
        let (at, _) = self.fixed.conforms_at(states, now, |_| now, cost).ok_or(Refusal::Never)?;
        match at - now {
            0 => {
                self.fixed.charge(states, &mut Settling::default(), [now; 4], cost, |_| true);
                Ok(())
            }
            wait => Err(Refusal::TooLong { wait }),
        }
    }

    /// Whether from `now` on limits with these states are like these.
    pub(crate) fn are_like(&self, states: &[State], now: Nanos) -> bool {
        self.each().zip(states).all(|((_, terms, own), state)| match terms {
            Terms::Bucket(bucket) => bucket.amount_at(own.level, now) == bucket.amount_at(state.level, now),
            Terms::Window(window) => window.is_empty(state, now),
        })
    }

    /// Whether the other limits are the same ones, in whatever state.
    pub(crate) fn have_terms_of(&self, other: &Limits) -> bool {
        self.fixed == other.fixed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the time in a tick is: it is the time of the answer, and leaves the same number.
        #[test]
        fn a_tick_answers_as_any_time_in_it(
            [gain, price, full] in prop::array::uniform3(1_u64..40),
            (interval, start) in prop::sample::select(vec![(1, 0), (1, 7), (9, 3)]),
            (from, tick, at) in (10_u64..400, 0_u64..30, any::<prop::sample::Index>()),
            (number, cost) in (0_u128..4000, 1_u64..9),
        ) {
            let bucket = Gaining { gain, interval, start, price, full: full.into(), missing: 0, at: 0 };
            let now = from + u64::try_from(at.index(usize::try_from(tick).unwrap() + 1)).unwrap();
            let (mut by_tick, mut by_time) = (number, number);
            let exact = bucket.take(&mut by_time, [now; 2], cost);
            prop_assert!(exact.is_some());
            let Some(taken) = bucket.take(&mut by_tick, [from, from + tick], cost) else { return Ok(()) };
            match (taken, exact) {
                (Err(Refusal::TooLong { wait }), Some(Err(Refusal::TooLong { wait: exact }))) => {
                    prop_assert_eq!(wait, exact + (now - from));
                }
                (taken, exact) => prop_assert_eq!(Some(taken), exact),
            }
            prop_assert_eq!(by_tick, by_time);
        }
    }
}
