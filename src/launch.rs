//! The sink that runs one command per unit. A unit's way through it:
//!
//! 1. `job` cuts the input into jobs, one command's worth of units each.
//! 2. `commands`, on the pump's thread, waits for a free slot (`slots`), takes a grant, fills the template
//!    (`template`) and hands the command over. No granted start waits for a slot.
//! 3. `child`, in a task on another thread, starts the command, reads its output, and watches its time and its end. Then
//!    `shared` decides what follows.
//! 4. `output` prints that, in the order asked for.
//! 5. `event` tells the receiver what happened.
//!
//! Whatever ends the run (a signal, a reader that is gone, an exit of 255) stops the slots: then nothing more starts,
//! wherever the pump is.

mod attempt;
mod child;
mod commands;
mod event;
mod identity;
mod job;
mod launching;
mod names;
mod options;
mod output;
mod preview;
mod printer;
mod queue;
mod reply;
mod reply_file;
mod retries;
mod settling;
mod shared;
mod slots;
mod spool;
mod target;
mod template;
mod temporary;
mod units;
mod wakes;

pub use attempt::{Ended, Ledger};
pub use commands::{Launcher, Waiting, command};
pub use event::{Event, Events, Sent, Success, Told};
pub use identity::Identity;
pub use job::{Batches, Before, Job, Key, Known, Numbers, Outcome, Shape};
pub use launching::Launching;
pub use names::Names;
pub use options::{Options, Output};
pub use preview::Preview;
pub use reply::Reply;
pub use retries::{Backoff, Failure, Later, RetryPolicy, Verdict};
pub use settling::Settling;
pub use shared::Screen;
pub use slots::Slots;
pub use template::{Place, Reading, Template, Unused, printable, quote, quoted, steers_terminal};
pub use units::{Units, room_for_words};
