//! The same arithmetic in two places: the core, and the library with its fast path. They must come to the same times.

use crate::laws::written;
use crate::limiters::FakeTimer;
use crate::model::{EXACT, Limit};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use throttle_limits::limiter::{AcquireError, Limiter, Oversize};
use throttle_limits::limits::{Account, Grant, Policy};

/// The library next to the core, as long as its numbers suffice.
pub(crate) struct Beside {
    library: Option<Library>,
    limits: Vec<Limit>,
    /// The latest time of a request. The core clamps an earlier one.
    seen: u64,
}

struct Library {
    timer: Arc<FakeTimer>,
    limiter: Limiter,
}

impl Beside {
    pub(crate) fn new(limits: &[Limit], now: u64) -> Self {
        Beside { library: Library::new(limits, now), limits: limits.to_vec(), seen: now }
    }

    /// They must grant or refuse what the core granted or refused.
    pub(crate) fn take(&mut self, now: u64, cost: u64, expected: Option<&Grant>) {
        let in_order = now >= self.seen;
        self.seen = self.seen.max(now);
        self.library = self.library.take().filter(|_| in_order && cost < 1 << 40);
        if let Some(library) = &self.library {
            library.take(now, cost, expected, &self.limits);
        }
    }
}

impl Library {
    /// `None` if the limits are too large for the library, which counts millionths of a unit.
    fn new(limits: &[Limit], now: u64) -> Option<Self> {
        let is_large = |limit: &Limit| match *limit {
            Limit::Bucket { units, burst, .. } => units >= 1 << 40 || burst >= 1 << 40,
            Limit::Window { count, .. } => count > EXACT,
        };
        if limits.iter().any(is_large) {
            return None;
        }
        let timer = Arc::new(FakeTimer::default());
        timer.set(now);
        let builder = Limiter::builder().clock(timer.clone()).oversize(Oversize::Wait);
        let limiter =
            limits.iter().map(written).fold(builder, throttle_limits::limiter::Builder::limit).build().ok()?;
        Some(Library { timer, limiter })
    }

    /// Tries, by the fast path if possible; otherwise reserves.
    fn take(&self, now: u64, cost: u64, expected: Option<&Grant>, limits: &[Limit]) {
        self.timer.set(now);
        let what = format!("the library: {cost} at {now} by {limits:?}");
        match (self.limiter.try_acquire(cost), expected) {
            (Ok(()), Some(grant)) => assert!(cost == 0 || grant.at == now, "{what}: granted, not at {}", grant.at),
            (Err(AcquireError::TooLong { wait, .. }), Some(grant)) => {
                assert_eq!(wait, Duration::from_nanos(grant.at - now), "{what}");
                assert_eq!(self.limiter.reserve(cost).unwrap().at(), Duration::from_nanos(grant.at), "{what}");
            }
            (Err(AcquireError::Never { .. }), None) => {}
            (answer, expected) => panic!("{what}: {answer:?}, but {expected:?}"),
        }
    }
}

/// Units, the period, and the burst or the slack.
pub(crate) fn any_size() -> impl Strategy<Value = (u64, u64, u64)> + Clone {
    let period = prop_oneof![prop::sample::select(vec![500, 1_000, 2_000, 12_000]), 1..5_000_u64, 1..1_u64 << 30];
    (prop_oneof![1..=20_u64, 1..=2_000_u64], period, prop_oneof![1..=5_u64, 1..=3_000_u64])
}

fn limit(is_window: bool, (units, period, burst): (u64, u64, u64), initial: u64) -> Limit {
    if is_window {
        // As much slack as the period is the most.
        Limit::Window { count: units, period, slack: if burst > 3 { burst % (period + 1) } else { 0 } }
    } else {
        Limit::Bucket { units, period, burst, initial: initial.min(burst) }
    }
}

fn any_limits() -> impl Strategy<Value = Vec<Limit>> + Clone {
    let any = (any::<bool>(), any_size(), prop_oneof![Just(u64::MAX), 0..5_u64]);
    prop::collection::vec(any.prop_map(|(window, size, initial)| limit(window, size, initial)), 1..=3)
}

fn policy(limits: &[Limit]) -> Policy {
    Policy::new(&limits.iter().map(written).collect::<Vec<_>>(), None).unwrap()
}

proptest! {
    #[test]
    fn core_and_library_grant_at_the_same_times(
        limits in any_limits(), steps in prop::collection::vec((0..3_000_u64, 0..=6_u64), 1..60)
    ) {
        let mut core = Account::new(&policy(&limits), 0);
        let mut beside = Beside::new(&limits, 0);
        let mut now = 0;
        for (later, cost) in steps {
            // As many at once, and when it was granted.
            now = match later % 3 { 0 => now, 1 => core.latest().max(now), _ => now + later };
            let grant = core.take(now, cost).ok();
            beside.take(now, cost, grant.as_ref());
        }
        let is_large = |limit: &Limit| matches!(limit, Limit::Window { count, .. } if *count > EXACT);
        prop_assert!(beside.library.is_some() || limits.iter().any(is_large), "{limits:?} do not fit");
    }
}
