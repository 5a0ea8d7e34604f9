//! One limit, and the units that it admits.

use crate::clock::Nanos;
use crate::rate::{Rate, written_time};
use std::fmt;
use std::num::NonZeroU64;

/// One limit with its defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    Bucket {
        rate: Rate,
        burst: NonZeroU64,
        initial: u64,
    },
    /// A unit counts for the period and `slack` nanoseconds. At the start, `used` units count.
    Window {
        rate: Rate,
        used: u64,
        slack: Nanos,
    },
}

impl Resolved {
    pub(crate) fn rate(&self) -> Rate {
        match *self {
            Resolved::Bucket { rate, .. } | Resolved::Window { rate, .. } => rate,
        }
    }

    pub(super) fn in_parts(&self, parts: NonZeroU64) -> Option<Self> {
        let (count, period) = self.rate().window();
        let rate = Rate::new(count.checked_mul(parts)?, period);
        Some(match *self {
            Resolved::Bucket { burst, initial, .. } => {
                Resolved::Bucket { rate, burst: burst.checked_mul(parts)?, initial: initial.checked_mul(parts.get())? }
            }
            Resolved::Window { used, slack, .. } => {
                Resolved::Window { rate, used: used.checked_mul(parts.get())?, slack }
            }
        })
    }

    /// Whether all grants of `other` conform to this limit, if both are new.
    pub(super) fn allows_all_of(&self, other: &Resolved) -> bool {
        match (*self, *other) {
            // A bucket that does not start full binds at the start.
            (Resolved::Bucket { rate, burst, initial }, _) => {
                rate >= other.rate() && burst.get() >= other.at_once() && initial >= other.at_once().min(burst.get())
            }
            // A window with used units at the start may refuse grants of `other`.
            (Resolved::Window { used, .. }, _) if used > 0 => false,
            (Resolved::Window { rate, slack, .. }, _) => {
                let (count, period) = rate.window();
                other.most_in(period.get().saturating_add(slack)) <= u128::from(count.get())
            }
        }
    }

    /// The most units at one instant.
    pub(super) fn at_once(&self) -> u64 {
        match *self {
            Resolved::Bucket { burst, .. } => burst.get(),
            Resolved::Window { rate, .. } => rate.window().0.get(),
        }
    }

    /// The most units in any half-open interval of `nanos`.
    pub(super) fn most_in(&self, nanos: u64) -> u128 {
        let rate = self.rate();
        match *self {
            Resolved::Bucket { burst, .. } => {
                let gained = u128::from(rate.units()) * u128::from(nanos);
                u128::from(burst.get()) + gained.div_ceil(rate.period().into()) - 1
            }
            Resolved::Window { slack, .. } => {
                let (count, period) = rate.window();
                u128::from(count.get()) * u128::from(nanos).div_ceil(u128::from(period.get()) + u128::from(slack))
            }
        }
    }
}

impl fmt::Display for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resolved::Window { rate, used, slack } => {
                write!(f, "{rate},window")?;
                if *used > 0 {
                    write!(f, ",initial={}", rate.window().0.get() - used)?;
                }
                write!(f, ",slack={}", written_time(*slack))
            }
            Resolved::Bucket { rate, burst, initial } if *initial == burst.get() => write!(f, "{rate},burst={burst}"),
            Resolved::Bucket { rate, burst, initial } => write!(f, "{rate},burst={burst},initial={initial}"),
        }
    }
}
