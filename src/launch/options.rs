//! Options for running commands.

use super::passed_input::PassedInput;
use super::retries::RetryPolicy;
use super::settling::Settling;
use super::template::Template;
use crate::flow::selector::Selector;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A time longer than any run.
pub(super) const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// Seconds from TERM to KILL, after a timeout.
pub(super) const GRACE: u32 = 5;

/// Options for running commands.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command with its placeholders.
    pub template: Template,
    /// The path of the program. It replaces the first word of the template.
    pub program: Option<OsString>,
    /// The most commands that run at once; 0: no maximum.
    pub jobs: u32,
    /// The most commands that may start together: what the limits grant at once.
    pub burst: u64,
    /// How the output of commands is printed.
    pub output: Output,
    /// Whether each line of output begins with the command's first unit.
    pub tag: bool,
    /// The longest run time of a command.
    pub timeout: Option<Duration>,
    /// Whether commands stay in our process group, and so may use the terminal.
    pub in_our_group: bool,
    /// Set by a signal handler when a signal to end the run arrives, before the run reacts to it. Commands in our process
    /// group may get the same signal from the terminal, and may end first.
    pub is_signalled: Arc<AtomicBool>,
    /// The rules for further attempts; `None`: each job is tried once.
    pub again: Option<RetryPolicy>,
    /// The standard input of the one command; `None`: commands get /dev/null, or their units.
    pub passed_input: Option<PassedInput>,
    /// The limits whose costs replies settle.
    pub settling: Settling,
    /// Finds the key of a unit, if limits are kept per key.
    pub per: Option<Selector>,
    /// The number of consecutive failures of a key after which its other units are not tried.
    pub fails: Option<NonZeroU32>,
    /// The most waiting units before reading stops.
    pub ahead: usize,
    /// Whether commands ignore SIGPIPE.
    pub ignore_sigpipe: bool,
    /// One second; shorter in tests. It is the longest wait in three cases: for a process that holds an ended command's
    /// output open, for the rest of a command's group after KILL, and for a reader after KILL.
    pub second: Duration,
}

/// How the output of commands is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Each command's output in one piece, in the order in which commands end.
    Whole,
    /// Each command's output in one piece, in input order.
    InOrder,
    /// Each line as soon as it is complete.
    Lines,
    /// Commands write to our standard output and error themselves.
    Direct,
}
