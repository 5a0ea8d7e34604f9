//! The limiters for other crates, each behind its own feature: `tower` for the module `tower`, and `stream` for the
//! module `stream`.
//!
//! Two more features change no names. With `serde`, a [`Rate`](crate::Rate) and a [`Limit`](crate::Limit) are read and
//! written as text, as in `"5/s,burst=10"`. With `tracing`, each wait that begins or ends and each refusal is an event
//! of level `DEBUG` and target `throttle_limits`.

#[cfg(feature = "serde")]
mod as_text;
#[cfg(feature = "stream")]
pub mod stream;
#[cfg(feature = "tower")]
pub mod tower;
