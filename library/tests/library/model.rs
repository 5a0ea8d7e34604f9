//! The model that the core is compared with: the limits as defined on paper, in rational numbers and complete logs.
//!
//! It is slow, and simple enough to check by reading. It shares no code with the core and takes plain integers only.
//! Times are whole nanoseconds since the origin of a clock, as in the core; everything else is a [`BigRational`].

use num_bigint::BigInt;
use num_rational::BigRational;

/// The core keeps windows of more units than this in groups: those are late by up to a group, which the model does not
/// cover.
pub(crate) const EXACT: u64 = 1024;

/// One limit, in plain numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// `units` in every `period` nanoseconds, saved up to `burst`; `initial` at the start.
    Bucket { units: u64, period: u64, burst: u64, initial: u64 },
    /// Never more than `count` in any `period + slack` nanoseconds.
    Window { count: u64, period: u64, slack: u64 },
}

/// What a request costs each of at most three limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Costs(pub(crate) [u64; 3]);

impl From<u64> for Costs {
    fn from(cost: u64) -> Self {
        Costs([cost; 3])
    }
}

impl Costs {
    /// If all limits cost the same, there may be more.
    pub(crate) fn of(&self, limit: usize) -> u64 {
        self.0[limit.min(2)]
    }

    pub(crate) fn largest(&self, limits: usize) -> u64 {
        (0..limits).map(|limit| self.of(limit)).max().unwrap_or(0)
    }
}

/// Limits that grant together.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    states: Vec<State>,
    /// The latest granted request or change. An earlier clock reading is clamped to it.
    asked: u64,
    /// The latest grant.
    at: u64,
}

#[derive(Clone, Debug)]
enum State {
    Bucket {
        rate: BigRational,
        burst: BigRational,
        level: BigRational,
        /// The time of that level: of the latest grant, or of later limits.
        since: u64,
    },
    Window {
        count: u64,
        period: u64,
        /// Every grant: its time and its cost.
        grants: Vec<(u64, u64)>,
    },
}

/// A grant: its time, and the index of the first limit that caused the wait, if there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) at: u64,
    pub(crate) bound_by: Option<usize>,
}

impl Model {
    pub(crate) fn new(limits: &[Limit], now: u64) -> Self {
        Model { states: limits.iter().map(|limit| State::new(limit, now)).collect(), asked: now, at: now }
    }

    /// When a request for `cost` at `now` would be granted; `None` if never, or later than 64 bits of nanoseconds.
    pub(crate) fn ask(&self, now: u64, cost: impl Into<Costs>) -> Option<Granted> {
        let (start, cost) = (self.start(now), cost.into());
        if cost.largest(self.states.len()) == 0 {
            return Some(Granted { at: start, bound_by: None });
        }
        let times: Option<Vec<u64>> = (0..)
            .zip(&self.states)
            .map(|(place, state)| match cost.of(place) {
                0 => Some(start),
                cost => state.least(start, cost),
            })
            .collect();
        let times = times?;
        let at = times.iter().copied().fold(start, u64::max);
        Some(Granted { at, bound_by: times.iter().position(|&time| time == at && at > start) })
    }

    /// Grants `cost` requested at `now` when all limits conform, and charges all of them then.
    pub(crate) fn take(&mut self, now: u64, cost: impl Into<Costs>) -> Option<Granted> {
        let cost = cost.into();
        let granted = self.ask(now, cost)?;
        if cost.largest(self.states.len()) > 0 {
            self.charge(now, granted.at, cost);
        }
        Some(granted)
    }

    /// Charges `cost` requested at `asked` at a given time, whether it conforms then or not. Charges stay in order.
    pub(crate) fn charge(&mut self, asked: u64, at: u64, cost: impl Into<Costs>) {
        let (start, at, cost) = (self.start(asked), at.max(self.at), cost.into());
        (0..).zip(&mut self.states).for_each(|(place, state)| state.charge(start, at, cost.of(place)));
        (self.asked, self.at) = (asked.max(self.asked), at);
    }

    /// The earliest time of a grant that is requested at `now`.
    fn start(&self, now: u64) -> u64 {
        now.max(self.asked).max(self.at)
    }

    /// Whole units that could go at `now`; 0 before the latest grant.
    pub(crate) fn available(&self, now: u64) -> BigInt {
        let now = now.max(self.asked);
        if now < self.at {
            return BigInt::from(0);
        }
        let of_each = self.states.iter().map(|state| match state {
            State::Bucket { .. } => state.level_at(now).floor().to_integer(),
            State::Window { count, .. } => BigInt::from(*count) - BigInt::from(state.held(now)),
        });
        of_each.min().unwrap_or_else(|| BigInt::from(u64::MAX))
    }
}

impl State {
    fn new(limit: &Limit, since: u64) -> Self {
        match *limit {
            Limit::Bucket { units, period, burst, initial } => {
                State::Bucket { rate: ratio(units, period), burst: ratio(burst, 1), level: ratio(initial, 1), since }
            }
            Limit::Window { count, period, slack } => {
                State::Window { count, period: period + slack, grants: Vec::new() }
            }
        }
    }

    /// The earliest time from `start` on at which `cost` conforms to this limit alone.
    fn least(&self, start: u64, cost: u64) -> Option<u64> {
        match self {
            State::Bucket { rate, .. } => {
                let missing = ratio(cost, 1) - self.level_at(start);
                let wait = (missing / rate).ceil().to_integer().max(BigInt::from(0));
                u64::try_from(BigInt::from(start) + wait).ok()
            }
            State::Window { count, period, grants } => {
                // Room appears only when a grant becomes one period old.
                let freed = grants.iter().map(|(at, _)| u128::from(*at) + u128::from(*period));
                let mut times: Vec<u64> =
                    freed.filter_map(|time| u64::try_from(time).ok()).filter(|&time| time > start).collect();
                times.push(start);
                times.sort_unstable();
                times.into_iter().find(|&time| self.held(time) + u128::from(cost) <= u128::from(*count))
            }
        }
    }

    fn charge(&mut self, start: u64, grant: u64, cost: u64) {
        let least = self.least(start, cost);
        let at_start = self.level_at(start);
        match self {
            State::Bucket { rate, burst, level, since } => {
                *since = grant.max(start);
                // A waiter accrues credit beyond the size of the bucket.
                let gathered = at_start + &*rate * ratio(*since - start, 1);
                *level = if least == Some(*since) {
                    gathered - ratio(cost, 1)
                } else {
                    // It conformed before, and while other limits made it wait it filled up at most to the burst.
                    (gathered.min(burst.clone()) - ratio(cost, 1)).max(ratio(0, 1))
                };
            }
            State::Window { grants, .. } => grants.push((grant, cost)),
        }
    }

    /// What a bucket holds at `time`.
    fn level_at(&self, time: u64) -> BigRational {
        match self {
            // If a bucket is too small for the rest of a nanosecond, that rest serves only the same nanosecond.
            State::Bucket { level, since, .. } if time == *since => level.clone(),
            State::Bucket { rate, burst, level, since } => {
                (level + rate * ratio(time.checked_sub(*since).expect("time goes on"), 1)).min(burst.clone())
            }
            State::Window { .. } => ratio(0, 1),
        }
    }

    /// What counts in a window at `time`: the costs of the grants in (time − period, time].
    fn held(&self, time: u64) -> u128 {
        match self {
            State::Bucket { .. } => 0,
            State::Window { period, grants, .. } => {
                let live = |at: u64| at <= time && time - at < *period;
                grants.iter().filter(|(at, _)| live(*at)).map(|(_, cost)| u128::from(*cost)).sum()
            }
        }
    }
}

fn ratio(numerator: u64, denominator: u64) -> BigRational {
    BigRational::new(BigInt::from(numerator), BigInt::from(denominator))
}

/// Law 2: the first interval in which more was granted than `limit` allows, if there is one. `grants` are times in
/// order, with costs.
///
/// A grant's time is rounded up to a nanosecond: units granted from `s` to `e`, both included, may have been earned in
/// slightly less than e − s + 1 ns.
pub(crate) fn excess(limit: &Limit, grants: &[(u64, u64)]) -> Option<(u64, u64)> {
    (0..grants.len()).find_map(|first| {
        let (mut sum, mut largest) = (BigInt::from(0), 0);
        grants[first..].iter().find_map(|&(end, cost)| {
            let start = grants[first].0;
            sum += cost;
            largest = largest.max(cost);
            let over = match *limit {
                Limit::Bucket { units, period, burst, .. } => {
                    let earned = BigInt::from(units) * (BigInt::from(end - start) + 1);
                    &sum * period > BigInt::from(burst.max(largest)) * period + earned
                }
                Limit::Window { count, period, slack } => end - start < period + slack && sum > BigInt::from(count),
            };
            over.then_some((start, end))
        })
    })
}
