//! Limits: their policy, the state of each limit, and the times of grants.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program.

mod agree;
pub mod bucket;
#[cfg(feature = "shared")]
mod bytes;
mod costs;
mod each;
mod fixed;
mod grant;
mod hash;
mod keys;
mod pace;
mod policy;
mod reflection;
mod state;
mod terms;
mod together;
mod waiting;
mod window;

pub use agree::{Cost as SaidCost, Disagreement, Said};
#[cfg(feature = "shared")]
pub(crate) use bytes::{from_bytes, to_bytes};
pub(crate) use costs::Cost;
pub use costs::CostList;
pub use each::{Charged, Each, Thin};
pub use grant::{Grant, Refusal};
pub(crate) use hash::Hashes;
pub use keys::{AsKey, KeyId, Keys};
pub use pace::{Pace, Served, Start};
pub use policy::{OfKeys, Policy, PolicyError};
pub(crate) use state::Gaining;
pub use together::Limits;

/// The key of units that have no key.
pub const NO_KEY: &[u8] = b"(none)";
