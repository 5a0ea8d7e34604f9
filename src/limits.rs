//! Limits: what was asked for, the state of each limit, and when they grant.

mod agree;
pub mod bucket;
mod each;
mod fill;
mod grant;
mod history;
pub mod interval;
mod joint;
mod kinds;
mod leasing;
mod line;
mod number;
mod policy;
mod saved;
mod settling;
mod state;
mod terms;
mod together;
mod waiting;
pub mod window;

pub use agree::Disagreement;
pub use each::Charged;
pub(crate) use each::{Each, Thin};
pub use grant::{Grant, Refusal};
pub(crate) use joint::largest;
pub use leasing::Ask;
pub(crate) use leasing::Rest;
pub use line::Waiting;
pub(crate) use line::{Line, Owner, OwnerOf};
pub(crate) use policy::{OnlyWindows, Resolved};
pub use policy::{Policy, PolicyError};
#[doc(no_inline)]
pub use policy::{Policy as Plan, PolicyError as PlanError};
pub(crate) use state::{Gaining, State};
pub use together::Limits;
