//! One bucket at a glance: its whole state in one word, taken from without a lock.
//!
//! While nobody waits, no time given lies ahead and there is one bucket and nothing else, the state is a single number:
//! the time at which the bucket will be full, in credits (see `bucket`) since a base. A grant moves it by its cost. That
//! is the same exact arithmetic, so whoever takes by it and whoever takes under the queue's lock agree.
//!
//! The lock's holder closes it first, which carries its state into the queue's bucket, and opens it again when
//! the conditions hold. What the number means is kept beside it and changes only while it is closed; eight bits of the
//! word change with every opening, so that nobody takes by a meaning that is out of date.

use super::sync::{AtomicU64, Ordering};
use super::time::Time;
use crate::clock::{MILLISECOND, Nanos};
use crate::limits::Limits;

const CLOSED: u64 = u64::MAX;
const NUMBER: u64 = (1 << 56) - 1;
/// A number above this is left to the queue, which starts from a new base.
const HIGHEST: u64 = NUMBER / 2;

/// No tick is longer, by far: it is one of 100 to 1000 a second.
const LONGEST_TICK: Nanos = 200 * MILLISECOND;

#[derive(Debug)]
pub(crate) struct FastPath {
    /// Eight bits that tell one opening from the next, then the number.
    word: AtomicU64,
    /// Where the number counts from.
    base: AtomicU64,
    /// Credits in a nanosecond.
    units: AtomicU64,
    /// Credits for a unit.
    period: AtomicU64,
    /// Credits in a full bucket.
    full: AtomicU64,
    /// The latest time at which something was granted, or nearly: who reads less has read it out of order.
    latest: AtomicU64,
    /// The tick (see [`Time::tick`](super::time::Time::tick)) in which the clock was last read, and the time at which that
    /// is certainly over.
    tick: AtomicU64,
    tick_ends: AtomicU64,
    /// Openings so far.
    openings: AtomicU64,
    /// The word at the last opening: where it is still that, nothing was taken.
    opened: AtomicU64,
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    Granted,
    /// Nothing was taken: it would have to wait this long.
    TooLong(Nanos),
    /// The queue must answer.
    Closed,
}

impl FastPath {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        FastPath {
            word: AtomicU64::new(CLOSED),
            base: zero(),
            units: zero(),
            period: zero(),
            full: zero(),
            latest: zero(),
            tick: zero(),
            tick_ends: zero(),
            openings: zero(),
            opened: zero(),
        }
    }

    /// Time read before something was granted by it, but used after that, is as good as that grant's.
    #[inline]
    pub(crate) fn in_order(&self, now: Nanos) -> Nanos {
        now.max(self.latest.load(Ordering::Relaxed))
    }

    /// Takes `cost` now, or nothing. The clock, which is most of what this takes, is read only while it is open, and only
    /// where the time matters.
    #[inline]
    pub(crate) fn take(&self, time: &Time, cost: u64) -> Take {
        self.take_on(|| time.now(), || time.tick(), cost)
    }

    #[inline]
    fn take_on(&self, now: impl Fn() -> Nanos, tick: impl FnOnce() -> Option<u64>, cost: u64) -> Take {
        let word = self.word.load(Ordering::Acquire);
        if word == CLOSED {
            return Take::Closed;
        }
        let Some(next) = self.at_any_time(word & NUMBER, cost) else { return self.take_by(now, cost) };
        let tick = tick();
        if tick == Some(self.tick.load(Ordering::Acquire)) {
            let next = (word & !NUMBER) | next;
            if self.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Take::Granted;
            }
        }
        let now = || {
            let now = now();
            if let Some(tick) = tick {
                // Whoever finds this tick finds its end, or that of a later one.
                self.tick_ends.fetch_max(now.saturating_add(LONGEST_TICK), Ordering::Relaxed);
                self.tick.store(tick, Ordering::Release);
            }
            now
        };
        self.take_by(now, cost)
    }

    /// The number after `cost` is taken, where that is granted, and the same, at whatever time of the tick: the bucket
    /// held enough when the clock was last read, and is not full before the tick's end.
    #[inline]
    fn at_any_time(&self, number: u64, cost: u64) -> Option<u64> {
        let (base, units) = (self.base.load(Ordering::Acquire), self.units.load(Ordering::Acquire));
        let clock = |time: Nanos| time.saturating_sub(base).checked_mul(units);
        let next = number.checked_add(cost.checked_mul(self.period.load(Ordering::Acquire))?)?;
        let most = clock(self.latest.load(Ordering::Relaxed))?.checked_add(self.full.load(Ordering::Acquire))?;
        let stays = number >= clock(self.tick_ends.load(Ordering::Relaxed))?;
        (stays && next <= most && next <= HIGHEST).then_some(next)
    }

    #[inline]
    pub(super) fn take_by(&self, now: impl FnOnce() -> Nanos, cost: u64) -> Take {
        let latest = self.latest.load(Ordering::Relaxed);
        let now = now().max(latest);
        let answer = self.take_at(now, cost);
        if now > latest && answer == Take::Granted {
            self.latest.store(now, Ordering::Relaxed);
        }
        answer
    }

    #[inline]
    fn take_at(&self, now: Nanos, cost: u64) -> Take {
        let mut word = self.word.load(Ordering::Acquire);
        while word != CLOSED {
            let Some((answer, number)) = self.reckon(word & NUMBER, now, cost) else { return Take::Closed };
            if answer != Take::Granted {
                // It must be of this opening: what was read belongs to it where the word is still the same.
                let seen = self.word.load(Ordering::Acquire);
                if seen == word {
                    return answer;
                }
                word = seen;
                continue;
            }
            let next = (word & !NUMBER) | number;
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return answer,
                Err(changed) => word = changed,
            }
        }
        Take::Closed
    }

    /// The answer and the number after it; `None` where this is beyond what it can hold.
    #[inline]
    fn reckon(&self, number: u64, now: Nanos, cost: u64) -> Option<(Take, u64)> {
        // Nothing is there at any time, also at a reading of the clock that is older than the latest grant.
        if cost == 0 {
            return Some((Take::Granted, number));
        }
        let units = self.units.load(Ordering::Acquire);
        let full = self.full.load(Ordering::Acquire);
        let clock = now.saturating_sub(self.base.load(Ordering::Acquire)).checked_mul(units)?;
        let price = cost.checked_mul(self.period.load(Ordering::Acquire))?;
        let next = number.max(clock).checked_add(price)?;
        if next > HIGHEST || price > full {
            return None;
        }
        match (next - clock).checked_sub(full) {
            None | Some(0) => Some((Take::Granted, next)),
            Some(missing) => Some((Take::TooLong(missing.div_ceil(units.max(1))), number)),
        }
    }

    /// From here on the queue decides. Carries the state into its bucket. The caller holds the queue's lock.
    pub(crate) fn close(&self, limits: &mut Limits, now: Nanos) {
        // Only who holds the lock opens it, so closed stays closed.
        if self.word.load(Ordering::Relaxed) == CLOSED {
            return;
        }
        let word = self.word.swap(CLOSED, Ordering::AcqRel);
        if word == self.opened.load(Ordering::Relaxed) {
            return;
        }
        let [units, base] = [&self.units, &self.base].map(|part| part.load(Ordering::Relaxed));
        let now = self.in_order(now).max(base);
        let clock = u128::from(now - base) * u128::from(units);
        let missing = u128::from(word & NUMBER).saturating_sub(clock);
        // More than all is missing where something is owed, and at a reading of the clock older than the latest grant's.
        limits.resume(missing, now);
    }

    /// From here on takers need no lock. Stays closed where the state does not fit. The caller holds the queue's lock,
    /// and has seen that nobody waits and no time given lies ahead.
    pub(crate) fn open(&self, limits: &Limits) {
        let Some((units, period, full, missing, at)) = limits.fast_path() else {
            return;
        };
        let fits = |value: u128| u64::try_from(value).ok().filter(|value| *value <= HIGHEST / 4);
        let (Some(full), Some(missing)) = (fits(full), fits(missing)) else { return };
        let base = self.base.load(Ordering::Relaxed).min(at);
        let since = u128::from(at - base) * u128::from(units);
        let (base, since) = fits(since).map_or((at, 0), |since| (base, since));
        for (part, value) in [(&self.base, base), (&self.units, units), (&self.period, period), (&self.full, full)] {
            // Who reads this finds that it was closed before.
            part.store(value, Ordering::Release);
        }
        let opening = self.openings.load(Ordering::Relaxed).wrapping_add(1);
        self.openings.store(opening, Ordering::Relaxed);
        // 255 is left out, so that no opening looks closed.
        let word = ((opening % 255) << 56) | (since + missing);
        self.opened.store(word, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::bucket::Bucket;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::num::NonZeroU64;

    fn opened(rate: &str, burst: u64) -> FastPath {
        let bucket = Bucket::new(rate.parse().unwrap(), NonZeroU64::new(burst).unwrap(), burst, 0);
        let path = FastPath::new();
        path.open(&Limits::none(0).with_bucket(bucket));
        path
    }

    proptest! {
        /// Whether the clock is read or only its tick, each answer is the same, and so is what is left.
        #[test]
        fn what_is_taken_within_a_tick_is_what_would_be_taken_at_its_time(
            rate in prop::sample::select(&["3/s", "1000/s", "7/min", "1000003/s"][..]), burst in 1_u64..2000,
            steps in prop::collection::vec((0_u64..3_000_000, 0_u64..20, 0_u8..20), 1..300),
        ) {
            let (path, exact) = (opened(rate, burst), opened(rate, burst));
            let (mut time, reads) = (0, Cell::new(0));
            for (nanos, cost, idle) in steps {
                // Now and then much later, so that the bucket is full again.
                time += if idle == 0 { nanos * 100_000 } else { nanos };
                let now = || {
                    reads.set(reads.get() + 1);
                    time
                };
                let taken = path.take_on(now, || Some(1 + time / (4 * MILLISECOND)), cost);
                prop_assert_eq!(taken, exact.take_by(|| time, cost));
                prop_assert_eq!(path.word.load(Ordering::Relaxed), exact.word.load(Ordering::Relaxed));
            }
        }
    }

    #[test]
    fn the_clock_is_read_once_in_a_tick() {
        let (path, reads) = (opened("1000/s", 1_000_000), Cell::new(0));
        let now = || {
            reads.set(reads.get() + 1);
            5
        };
        assert_eq!(path.take_on(now, || Some(1), 1000), Take::Granted);
        for _ in 0..100 {
            assert_eq!(path.take_on(now, || Some(1), 1), Take::Granted);
        }
        assert!(reads.get() <= 2, "{} reads", reads.get());
        assert_eq!(path.take_on(now, || Some(2), 1), Take::Granted);
        assert!(reads.get() <= 3);
    }
}
