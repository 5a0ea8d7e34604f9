//! How often tests repeat themselves.

/// A tenth of `all`, which keeps `cargo test` quick. The variable `TEST_ROUNDS` sets another percentage: `.ci/run`
/// sets 100, and a search for rare faults sets more.
pub(crate) fn rounds(all: u32) -> u32 {
    let percent = std::env::var("TEST_ROUNDS").ok().and_then(|percent| percent.parse().ok());
    let rounds = u64::from(all) * percent.unwrap_or(10_u64) / 100;
    u32::try_from(rounds).unwrap_or(u32::MAX).max(1)
}
