//! The sink that runs one command per unit. A unit's way through it:
//!
//! 1. `job` cuts the input into jobs, one command's worth of units each.
//! 2. `commands`, on the pump's thread, waits for a free slot (`slots`), takes a grant, fills the template
//!    (`template`) and hands the command over. A start is never later than its grant for want of a slot.
//! 3. `child`, in a task on another thread, starts the command, reads its output, and watches its time and its end.
//! 4. `output` prints that, in the order asked for.
//! 5. `event` tells the receiver what happened.
//!
//! Whatever ends the run (a signal, a reader that is gone, an exit of 255) stops the slots: then nothing more starts,
//! wherever the pump is.

mod child;
mod commands;
mod event;
mod job;
mod lines;
mod loads;
mod names;
mod options;
mod outcome;
mod output;
mod printer;
mod showing;
mod slots;
mod spool;
mod target;
mod template;
mod temporary;
mod times;
mod units;

pub use commands::{IGNORING_SIGPIPE, Launcher, Launching};
pub use event::{Event, Receiver, Sender, Sent, Told, events};
pub use job::{Job, Numbers, Shape};
pub use lines::printable;
pub use names::Names;
pub use options::{Options, Output};
pub use outcome::Outcome;
pub use output::Screen;
pub use showing::Showing;
pub use template::{
    Place, Reading, Template, TemplateError, Words, quote_for_terminal, quoted, quoted_for_terminal, steers_terminal,
};
pub use times::Times;
pub use units::{Units, room_for_words};
