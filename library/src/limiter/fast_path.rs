//! The fast path: the whole state of one bucket in one atomic word, from which callers take without a lock.
//!
//! It is open only while there are no waiters, no reservation is in the future, and the only limit is one bucket. Then
//! the state is a single number: the time at which the bucket will be full, measured in credits gained since a base
//! time. A grant adds its cost to that number. The arithmetic is as exact as the queue's, so both give the same
//! answers.
//!
//! A caller that takes the lock first closes the fast path: that copies its state into the queue's bucket. Before the
//! lock is released, the fast path is opened again if it may be open. The meaning of the number is stored beside the
//! word and changes only while the fast path is closed. Eight bits of the word change with every opening, so that
//! nobody uses an old meaning.
//!
//! The free places of a semaphore are a second word, which is open and closed together with the first one. A request
//! first takes its places, then its tokens; if there are no tokens, it gives the places back, under the lock if the
//! word was closed meanwhile.
//!
//! A bucket may hold, or may miss, more credits than the number can express. Then some credits are set aside until the
//! next opening, and the queue serves the requests that need them.

use super::wait_time::WaitTime;
use crate::clock::Nanos;
use crate::clock::sync::{AtomicU64, Ordering};
use crate::limits::{Account, Gaining};

const CLOSED: u64 = u64::MAX;
const NUMBER: u64 = (1 << 56) - 1;
/// If the number would be above this, the queue serves the request. The next opening then has a new base.
const HIGHEST: u64 = NUMBER / 2;
/// Credits above this, held or missing, are set aside.
const MOST: u64 = HIGHEST / 4;

/// The fields that every take reads are in one cache line. The fields that few takes write are in the next line. Processors
/// fetch lines in pairs, so no other data is in this pair: two threads took four times as long if it was.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct FastPath {
    /// Eight bits that change with every opening, then the number.
    word: AtomicU64,
    /// A [`Meaning`].
    meaning: [AtomicU64; 7],
    /// The latest reading of the clock, or nearly. A smaller reading arrived out of order.
    latest: AtomicU64,
    /// How often the fast path was opened.
    openings: AtomicU64,
    /// The word at the latest opening. If it has not changed, nothing was taken.
    opened: AtomicU64,
    /// The free places of a semaphore, while the fast path is open.
    places: AtomicU64,
}

/// The meaning of the number in the word.
#[derive(Debug)]
struct Meaning {
    /// The time from which the number counts.
    base: Nanos,
    /// Credits gained at the end of each interval.
    gain: u64,
    /// In nanoseconds.
    interval: Nanos,
    /// Credits that one unit costs.
    price: u64,
    /// Credits in a full bucket, except those set aside.
    full: u64,
    /// Missing credits that are set aside. The number leaves them out: a bucket that is full by the number still misses
    /// these credits.
    missing_aside: u64,
    /// 1 if credits that the bucket holds are set aside. The number leaves them out: a bucket that is empty by the
    /// number still holds these credits.
    held_aside: u64,
}

/// The word before a reading of the clock. No grant in it is later than the reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

/// The answer of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    Granted,
    /// Nothing was taken: the request would have to wait this long.
    TooLong(WaitTime),
    /// The queue must answer.
    Closed,
}

impl Meaning {
    #[inline]
    fn load(from: &[AtomicU64; 7], ordering: Ordering) -> Self {
        let part = |place: usize| from[place].load(ordering);
        let (base, gain, interval, price) = (part(0), part(1), part(2), part(3));
        Meaning { base, gain, interval, price, full: part(4), missing_aside: part(5), held_aside: part(6) }
    }

    fn store(self, to: &[AtomicU64; 7]) {
        let Meaning { base, gain, interval, price, full, missing_aside, held_aside } = self;
        for (part, value) in to.iter().zip([base, gain, interval, price, full, missing_aside, held_aside]) {
            // A thread that reads the new value also sees that the fast path was closed before. Most openings change no
            // value.
            if part.load(Ordering::Relaxed) != value {
                part.store(value, Ordering::Release);
            }
        }
    }

    /// The meaning and the number of a state; `None` if they do not fit.
    fn of(state: &Gaining) -> Option<(Self, u64)> {
        let most = u128::from(MOST);
        let held = state.full.checked_sub(state.missing);
        let missing = if held.is_some() { state.missing.min(most) } else { state.missing };
        let full = held.map_or(state.full, |held| missing + held.min(most));
        let fits = |value: u128| u64::try_from(value).ok().filter(|value| *value <= 2 * MOST);
        let intervals = (state.at - state.start.min(state.at)) / state.interval;
        let since_start = fits(u128::from(intervals) * u128::from(state.gain)).filter(|since| *since <= MOST);
        let base = if since_start.is_some() { state.start } else { state.start + intervals * state.interval };
        let meaning = Meaning {
            base,
            gain: state.gain,
            interval: state.interval,
            price: state.price,
            full: fits(full)?,
            missing_aside: u64::try_from(state.missing - missing).ok()?,
            held_aside: held.is_some_and(|held| held > most).into(),
        };
        Some((meaning, since_start.unwrap_or(0) + fits(missing)?))
    }

    /// Intervals that have ended at `now`.
    #[inline]
    fn intervals(&self, now: Nanos) -> u64 {
        let since = now.saturating_sub(self.base);
        if self.interval == 1 { since } else { since / self.interval.max(1) }
    }

    /// The number at which the bucket is full at `now`.
    #[inline]
    fn clock(&self, now: Nanos) -> Option<u64> {
        self.intervals(now).checked_mul(self.gain)
    }

    /// The time from `now` until the clock reaches `number`, which is in the future.
    #[inline]
    fn wait(&self, now: Nanos, number: u64) -> Option<WaitTime> {
        let passed = now.saturating_sub(self.base);
        if self.interval == 1 {
            return Some(WaitTime::until(number, self.gain, passed));
        }
        let at = number.div_ceil(self.gain.max(1)).checked_mul(self.interval)?;
        Some(WaitTime::from_nanos(at.saturating_sub(passed)))
    }

    /// The number that a grant of `cost` at `now` makes of `number`, and the number of a bucket that is full at `now`.
    /// `None` if the queue must answer.
    #[inline]
    fn after(&self, number: u64, now: Nanos, cost: u64) -> Option<(u64, u64)> {
        let clock = self.clock(now)?;
        let next = number.max(clock).checked_add(cost.checked_mul(self.price)?)?;
        (next <= HIGHEST && (self.missing_aside == 0 || number >= clock)).then_some((next, clock))
    }

    /// The wait for a cost whose grant would leave the number `next`; `None` if the queue must answer.
    #[inline]
    fn refusal(&self, next: u64, now: Nanos, cost: u64) -> Option<WaitTime> {
        let is_possible = self.held_aside == 0 && cost.checked_mul(self.price)? <= self.full;
        self.wait(now, next - self.full).filter(|_| is_possible)
    }
}

impl FastPath {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        FastPath {
            word: AtomicU64::new(CLOSED),
            meaning: std::array::from_fn(|_| zero()),
            latest: zero(),
            openings: zero(),
            opened: zero(),
            places: AtomicU64::new(CLOSED),
        }
    }

    /// Clamps clock readings that arrive out of order.
    #[inline]
    pub(crate) fn in_order(&self, now: Nanos) -> Nanos {
        now.max(self.latest.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Relaxed) == CLOSED
    }

    /// The present state, to be read before the clock.
    #[inline]
    pub(crate) fn seen(&self) -> Seen {
        Seen(self.word.load(Ordering::Acquire))
    }

    /// Takes `cost` now, or nothing.
    #[inline]
    pub(crate) fn take(&self, now: impl Fn() -> Nanos, cost: u64) -> Take {
        loop {
            let seen = self.seen();
            // If the fast path is closed, the clock is not read here: the queue reads it, and a reading takes longer
            // than all the rest.
            if seen.0 == CLOSED {
                return Take::Closed;
            }
            if let Some(take) = self.take_since(seen, now(), cost) {
                return take;
            }
        }
    }

    /// Takes `cost` at `now`, or nothing. `None` if only a new reading of the clock can tell: this thread was held up
    /// after its reading, and the state that refuses has grants of later readings.
    #[inline]
    pub(crate) fn take_since(&self, seen: Seen, now: Nanos, cost: u64) -> Option<Take> {
        let latest = self.latest.load(Ordering::Relaxed);
        let now = now.max(latest);
        let (take, word) = self.take_at(now, cost, seen);
        if now > latest {
            self.latest.store(now, Ordering::Relaxed);
        }
        let is_current = word == seen.0 || !matches!(take, Take::TooLong(_));
        is_current.then_some(take)
    }

    /// The answer, and the word that gave it.
    #[inline]
    fn take_at(&self, now: Nanos, cost: u64, Seen(mut word): Seen) -> (Take, u64) {
        while word != CLOSED {
            // The meaning was stored while the fast path was closed. It belongs to this word if the word is unchanged
            // below.
            let meaning = Meaning::load(&self.meaning, Ordering::Acquire);
            let Some((next, clock)) = meaning.after(word & NUMBER, now, cost) else { break };
            // A cost of 0 is always granted, even if the clock reading is older than the latest grant.
            let found = if next - clock <= meaning.full || cost == 0 {
                let next = (word & !NUMBER) | if cost == 0 { word & NUMBER } else { next };
                match self.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return (Take::Granted, word),
                    Err(found) => found,
                }
            } else {
                let found = self.word.load(Ordering::Acquire);
                if found == word {
                    return (meaning.refusal(next, now, cost).map_or(Take::Closed, Take::TooLong), word);
                }
                found
            };
            word = found;
        }
        (Take::Closed, word)
    }

    /// Closes the fast path and copies its state into the queue's bucket. Returns false, and does nothing, if the state
    /// has changed since `seen`: then `now`, which was read after it, may be older than a grant. The caller holds the
    /// queue's lock.
    pub(crate) fn close(&self, seen: Seen, account: &mut Account, now: Nanos) -> bool {
        // Only the holder of the lock opens it, so it stays closed.
        if seen.0 == CLOSED {
            return self.is_closed();
        }
        if self.word.compare_exchange(seen.0, CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        if seen.0 == self.opened.load(Ordering::Relaxed) {
            return true;
        }
        let meaning = Meaning::load(&self.meaning, Ordering::Relaxed);
        let now = self.in_order(now).max(meaning.base);
        let clock = u128::from(meaning.intervals(now)) * u128::from(meaning.gain);
        let missing = (u128::from(seen.0 & NUMBER) + u128::from(meaning.missing_aside)).saturating_sub(clock);
        // More than a full bucket may be missing: if there is a debt, or if clock readings arrive out of order.
        account.resume(missing, now);
        true
    }

    /// Takes places of a semaphore. Returns false, and takes none, if the queue must answer.
    #[inline]
    pub(crate) fn hold_places(&self, places: u64) -> bool {
        let mut free = self.places.load(Ordering::Acquire);
        while free != CLOSED && free >= places {
            match self.places.compare_exchange(free, free - places, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(found) => free = found,
            }
        }
        false
    }

    /// Gives places back. Returns false, and does nothing, if the fast path is closed: perhaps a waiter needs them.
    #[inline]
    pub(crate) fn free_places(&self, places: u64) -> bool {
        let mut free = self.places.load(Ordering::Acquire);
        while free != CLOSED {
            match self.places.compare_exchange(free, free + places, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(found) => free = found,
            }
        }
        false
    }

    /// Closes the places and returns the number of free places, if they were open. The caller holds the queue's lock.
    pub(crate) fn close_places(&self) -> Option<u64> {
        Some(self.places.swap(CLOSED, Ordering::AcqRel)).filter(|free| *free != CLOSED)
    }

    /// Opens the places. The caller holds the queue's lock and has [opened](Self::open) the fast path.
    pub(crate) fn open_places(&self, free: u64) {
        self.places.store(free, Ordering::Release);
    }

    /// Opens the fast path and returns true. Returns false, and leaves it closed, if the state does not fit. `now` is the
    /// latest reading of the clock. The caller holds the queue's lock, and has checked that there are no waiters and no
    /// reservation is in the future.
    pub(crate) fn open(&self, account: &Account, now: Nanos) -> bool {
        let Some((meaning, number)) = account.fast_path().and_then(|state| Meaning::of(&state)) else { return false };
        meaning.store(&self.meaning);
        self.latest.store(self.in_order(now), Ordering::Relaxed);
        let opening = self.openings.load(Ordering::Relaxed).wrapping_add(1);
        self.openings.store(opening, Ordering::Relaxed);
        // 255 is not used, so that no opening looks closed.
        let word = ((opening % 255) << 56) | number;
        self.opened.store(word, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MILLISECOND;
    use crate::limits::bucket::Bucket;
    use crate::limits::{Limits, Refusal};
    use proptest::prelude::*;
    use std::num::NonZeroU64;

    fn of(bucket: Bucket) -> Account {
        Account::of(Limits::none().with_bucket(bucket), 0)
    }

    fn bucket(rate: &str, burst: u64) -> Account {
        of(Bucket::new(rate.parse().unwrap(), NonZeroU64::new(burst).unwrap(), burst, 0))
    }

    fn grid(refill: u64, interval: u64, max: u64, initial: u64) -> Account {
        let whole = |value| NonZeroU64::new(value).unwrap();
        of(Bucket::on_grid(whole(refill), whole(interval), max, initial, 3))
    }

    fn opened(limits: &Account) -> FastPath {
        let path = FastPath::new();
        path.open(limits, 0);
        path
    }

    /// Slow and fast limits, small ones, and ones too large for one number.
    fn all_kinds() -> Vec<Account> {
        let (huge, usual) = (u64::MAX / 2, MILLISECOND);
        let mut kinds: Vec<_> = ["3/s", "1000/s", "7/min", "1000003/s"].map(|rate| bucket(rate, 1000)).into();
        kinds.extend([bucket("3/s", 1), bucket("1000/s", huge), grid(7, usual, 20, 3), grid(1, 100 * usual, 5, 5)]);
        kinds.extend([
            grid(1, 100 * usual, huge, huge / 2),
            grid(1_000_000, usual, huge, 0),
            grid(huge, usual, huge, 9),
        ]);
        kinds.extend([grid(1 << 51, usual, huge, huge), grid(3, 1, 10, 0), grid(1, usual, 0, 0)]);
        kinds
    }

    proptest! {
        /// The fast path is opened and closed at random.
        #[test]
        fn the_fast_path_answers_as_the_limits_do(
            kind in prop::sample::select(all_kinds()),
            steps in prop::collection::vec((0_u64..3_000_000, 0_u32..63, 0_u8..20), 1..300),
        ) {
            let (mut limits, mut exact, path) = (kind.clone(), kind, FastPath::new());
            let mut time = 0;
            for (nanos, size, step) in steps {
                time += if step == 0 { nanos * 100_000 } else { nanos };
                let cost = if size < 50 { u64::from(size / 5) } else { (1 << size) - 1 };
                if step % 4 == 1 {
                    assert!(path.close(path.seen(), &mut limits, time));
                    path.open(&limits, time);
                }
                let taken = match path.take(|| time, cost) {
                    Take::Granted => Ok(()),
                    Take::TooLong(wait) => Err(Refusal::TooLong { wait: wait.nanos() }),
                    Take::Closed => {
                        assert!(path.close(path.seen(), &mut limits, time));
                        let taken = limits.take_within(time, cost, 0);
                        path.open(&limits, time);
                        taken.map(drop)
                    }
                };
                prop_assert_eq!(taken, exact.take_within(time, cost, 0).map(drop));
            }
        }
    }

    /// Another thread takes units after this thread has read the clock, and has not stored its own reading yet.
    #[test]
    fn an_old_reading_of_the_clock_refuses_nothing() {
        let path = opened(&bucket("1000000000/s", 500));
        let readings = std::cell::Cell::new(0);
        let now = || {
            if readings.replace(readings.get() + 1) > 0 {
                return MILLISECOND;
            }
            assert_eq!(path.take(|| MILLISECOND, 400), Take::Granted);
            path.latest.store(0, Ordering::Relaxed);
            0
        };
        assert_eq!((path.take(now, 100), readings.get()), (Take::Granted, 2));
        let (seen, mut limits) = (path.seen(), bucket("1000000000/s", 500));
        assert_eq!(path.take(|| 2 * MILLISECOND, 400), Take::Granted);
        assert!(!path.close(seen, &mut limits, MILLISECOND), "the state is newer than the reading");
    }

    #[test]
    fn a_limit_with_whole_refills_of_any_size_has_a_fast_path() {
        let most = u64::MAX / 2;
        let path = opened(&grid(1, 100 * MILLISECOND, most, most / 2));
        for _ in 0..100 {
            assert_eq!(path.take(|| 5, 1), Take::Granted);
        }
        let path = opened(&grid(1, 100, 2, 0));
        assert_eq!(path.take(|| 102, 1), Take::TooLong(WaitTime::from_nanos(1)));
        assert_eq!([103, 203].map(|now| path.take(|| now, 1)), [Take::Granted; 2]);
    }
}
