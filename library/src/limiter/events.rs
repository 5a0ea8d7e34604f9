//! Events for the crate tracing. Without the feature `tracing` these functions do nothing. A subscriber is foreign
//! code, so no lock is held during an event.

use std::fmt::Display;

/// Reports that a request begins or stops to wait.
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
