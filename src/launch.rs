//! The sink that runs one command per unit. docs/architecture.md describes the way of a unit through it.
//!
//! When the run ends (after a signal, a lost reader or an exit of 255), [`Slots::stop`] is called. From then on no
//! command starts, whatever the pump's thread is doing.

mod attempt;
mod child;
mod columns;
mod commands;
mod done_list;
mod dry;
mod event;
mod identity;
mod job;
mod launcher;
mod launching;
mod names;
mod options;
mod output;
mod passed_input;
mod printer;
mod queue;
mod reply;
mod reply_file;
mod retries;
mod settling;
mod slots;
mod spool;
mod target;
mod template;
mod temporary;
mod units;
mod wakes;

pub use attempt::{Attempt, Ended, Ledger};
pub use columns::Separator;
pub use commands::{Waiting, command};
pub use done_list::{DoneList, DoneUnits, Torn};
pub use dry::DryRun;
pub use event::{Event, Events, Reported, Sent, Success};
pub use identity::Identity;
pub use job::{Batches, Before, Job, Key, Known, Numbers, Outcome, Shape};
pub use launcher::{Launcher, Screen};
pub use launching::Launching;
pub use names::Names;
pub use options::{Options, Output};
pub use passed_input::PassedInput;
pub use reply::{Answer, Reply};
pub use retries::{Backoff, Excess, Failure, Later, Overlong, Paused, RetryPolicy, Verdict};
pub use settling::Settling;
pub use slots::Slots;
pub use template::{Place, Reading, Template, Unused, printable, quote, quoted, steers_terminal};
pub use units::{Units, room_for_words};
