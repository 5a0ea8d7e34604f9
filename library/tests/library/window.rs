//! A single window, whose grants are told apart from when they count.

use std::num::NonZeroU64;
use std::time::Duration;
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Levels, Limits, Policy};
use throttle_limits::rate::{Limit, Rate};

/// At most `count` units in any `period` nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    limit: Limits,
    state: Levels,
}

impl Window {
    pub(crate) fn new(count: NonZeroU64, period: NonZeroU64, now: Nanos) -> Self {
        let limit = Limit::Window { rate: Rate::new(count, period), initial: None, slack: Some(Duration::ZERO) };
        let limit = Limits::new(&[(&Policy::new(&[limit], None).unwrap(), 0)], now);
        Window { state: limit.fresh(), limit }
    }

    #[allow(dead_code, reason = "one of those who include this file asks it")]
    pub(crate) fn conforms_at(&self, now: Nanos, cost: u64) -> Option<Nanos> {
        self.limit.conforms_at(&self.state, now, &[cost]).map(|(at, _)| at)
    }

    #[allow(dead_code, reason = "one of those who include this file asks it")]
    pub(crate) fn has_room_at(&self, asked: Nanos, cost: u64) -> Option<Nanos> {
        self.limit.has_room_at(&self.state, [asked; 2], &[cost]).map(|(at, _)| at)
    }

    /// All its units are kept.
    pub(crate) fn charge(&mut self, grant: Nanos, cost: u64) {
        self.limit.charge(&mut self.state, [0, grant, grant, grant], &[cost]);
    }

    #[allow(dead_code, reason = "one of those who include this file asks it")]
    pub(crate) fn available(&self, now: Nanos) -> u64 {
        self.limit.available(&self.state, now, &[1])
    }
}
