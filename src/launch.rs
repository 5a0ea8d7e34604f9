//! The sink that runs one command per unit. A unit's way through it is described in docs/architecture.md.
//!
//! Whatever ends the run (a signal, a reader that is gone, an exit of 255) stops the slots: then nothing more starts,
//! wherever the pump is.

mod attempt;
mod child;
mod columns;
mod commands;
mod event;
mod identity;
mod job;
mod launching;
mod names;
mod options;
mod output;
mod passed_input;
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

pub use attempt::{Ended, Ledger, Paused};
pub use columns::Separator;
pub use commands::{Launcher, Waiting, command};
pub use event::{Event, Events, Sent, Success, Told};
pub use identity::Identity;
pub use job::{Batches, Before, Job, Key, Known, Numbers, One, Outcome, Shape};
pub use launching::Launching;
pub use names::Names;
pub use options::{Options, Output};
pub use passed_input::PassedInput;
pub use preview::Preview;
pub use reply::Reply;
pub use retries::{Backoff, Failure, Later, RetryPolicy, Verdict};
pub use settling::Settling;
pub use shared::Screen;
pub use slots::Slots;
pub use template::{Place, Reading, Template, Unused, printable, quote, quoted, steers_terminal};
pub use units::{Units, room_for_words};
