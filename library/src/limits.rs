//! Limits: their policy, the state of each limit, and the times of grants.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program.

#![allow(clippy::must_use_candidate, reason = "this is no public interface")]

mod account;
mod agree;
pub mod bucket;
#[cfg(feature = "shared")]
mod bytes;
mod costs;
mod grant;
mod joint;
mod keys;
mod levels;
mod pace;
mod policy;
mod reflection;
mod state;
mod terms;
mod window;

pub use account::Account;
pub(crate) use account::MIN_ALLOWANCE;
pub use agree::{Cost as SaidCost, Disagreement, Said};
#[cfg(feature = "shared")]
pub(crate) use bytes::{from_bytes, to_bytes};
pub(crate) use costs::Cost;
pub use costs::CostList;
pub use grant::{Charged, Grant, Refusal};
pub use joint::Limits;
pub(crate) use keys::Hashes;
pub use keys::{AsKey, KeyId, Keys};
pub use levels::Levels;
pub use pace::{Pace, Served, Start};
pub use policy::{OfKeys, Policy, PolicyError};
pub(crate) use state::Gaining;

/// The key of units that have no key.
pub const NO_KEY: &[u8] = b"(none)";
