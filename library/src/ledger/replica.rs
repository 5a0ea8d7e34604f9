//! The ledger of a shared bucket: the fold of a log of operations. All who read the same log have the same ledger.
//!
//! A grant is committed when its time is by now and the *horizon*, which covers the round trip of the farthest client. A
//! commit is final. Everything later waits uncharged, so a cancelled request leaves no trace, and a settlement, a pause
//! or another policy acts on all who wait. The state depends only on the operations, on their times, and on the time to
//! which the ledger was advanced. It does not depend on when or how often it was read.

mod changes;
mod commit;
mod saved;
mod seen;
mod shown;
mod state;
mod view;

pub use commit::MAX_HORIZON;
pub(crate) use commit::MAX_RETURNABLE;
pub use saved::Damaged;
pub use shown::{KeyView, View, Waiting};
pub use state::Replica;
pub(crate) use view::PRESENCE_TTL;
