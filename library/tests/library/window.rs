//! A single window, whose grants are told apart from when they count.

use std::num::NonZeroU64;
use std::time::Duration;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Each, Policy, Thin};
use throttle_limits::rate::{Limit, Rate};

/// At most `count` units in any `period` nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    limit: Each,
    state: Thin,
    latest: Nanos,
}

impl Window {
    pub(crate) fn new(count: NonZeroU64, period: NonZeroU64, now: Nanos) -> Self {
        let limit = Limit::Window { rate: Rate::new(count, period), slack: Some(Duration::ZERO) };
        let limit = Each::new(&[(&Policy::new(&[limit], None).unwrap(), 0)], now);
        Window { state: limit.fresh(), limit, latest: now }
    }

    pub(crate) fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        self.limit.conforms_at(&self.state, now, &[cost]).map(|(at, _)| at)
    }

    pub(crate) fn charge(&mut self, grant: Nanos, cost: u64) {
        self.limit.charge(&mut self.state, [self.latest, grant, grant, grant], &[cost]);
        self.latest = self.latest.max(grant);
    }

    #[allow(dead_code, reason = "one of those who include this file asks it")]
    pub(crate) fn available(&self, now: Nanos) -> u64 {
        self.limit.available(&self.state, now, &[1])
    }
}
