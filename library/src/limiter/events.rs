//! Events for the crate tracing. Without the feature `tracing` they are nothing. Whoever gets them is code of others, so no
//! lock is held meanwhile.

use std::fmt::Display;

/// A request waits, from now on or no longer.
#[inline]
pub(super) fn waits(begins: bool) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "throttle_limits", "{}", if begins { "a wait begins" } else { "a wait ends" });
    let _ = begins;
}

#[inline]
pub(super) fn refused(error: &dyn Display) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "throttle_limits", %error, "refused");
    let _ = error;
}
