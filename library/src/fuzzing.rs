//! Checks of what strangers send: each takes any bytes, and panics if the code that reads them is wrong. The property tests and
//! the targets in `fuzz/` call them.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a check fails")]

use crate::clock::Nanos;
use crate::limits::{Account, Policy};
use crate::rate::{Amount, Limit, Rate};

#[cfg(feature = "shared")]
pub use crate::store::{bucket_file, redis_answer};

/// The text of a limit: a limit and a rate print as they parse, and a limit can be used at any time.
pub fn limit_text(data: &[u8]) {
    match Limit::from_bytes(data) {
        Ok(limit) => {
            assert_eq!(limit.to_string().parse(), Ok(limit));
            Policy::new(&[limit], None).iter().for_each(used);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(rate) = text.parse::<Rate>() {
        let read = rate.to_string().parse::<Rate>();
        assert_eq!(read.map(|read| (read, read.window())), Ok((rate, rate.window())));
    }
    // Nothing but a size is a size.
    let _ = text.parse::<Amount>();
}

/// Takes units from the limits from the beginning to the end of time.
fn used(policy: &Policy) {
    let mut limits = Account::new(policy, 0);
    for time in [0, 1, 1_000_000_000, Nanos::MAX / 2, Nanos::MAX] {
        for cost in [1, 1_000_000_000, u64::MAX] {
            let _ = limits.take(time, cost);
            let _ = limits.available(time);
        }
    }
}
