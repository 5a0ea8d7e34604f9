//! How commands are run.

use super::passed_input::PassedInput;
use super::retries::RetryPolicy;
use super::settling::Settling;
use super::template::Template;
use crate::flow::Sorting;
use std::ffi::OsString;
use std::time::Duration;

/// Longer than any program runs.
pub(super) const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// Seconds from TERM to KILL, after a timeout.
pub(super) const GRACE: u32 = 5;

/// How commands are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is run.
    pub template: Template,
    /// The path of its file; it replaces the template's first word.
    pub program: Option<OsString>,
    /// How many run at once; 0 without a cap.
    pub jobs: u32,
    /// How many may start together: the most that the limits grant at once.
    pub burst: u64,
    /// How their output is printed.
    pub output: Output,
    /// Whether each line of output begins with the command's first unit.
    pub tag: bool,
    /// How long a command may run.
    pub timeout: Option<Duration>,
    /// Whether commands stay in our process group, and so may use the terminal.
    pub in_our_group: bool,
    /// Which attempts are made again; `None`: none.
    pub again: Option<RetryPolicy>,
    /// The standard input of the one command; `None`: commands get /dev/null, or their units.
    pub passed_input: Option<PassedInput>,
    /// What replies tell about costs.
    pub settling: Settling,
    /// How units are sorted, if limits are kept for each key.
    pub by_key: Option<Sorting>,
    /// Whether commands ignore SIGPIPE.
    pub ignore_sigpipe: bool,
    /// One second; shorter in tests. The longest wait for: a process that holds an ended command's output open, the rest of
    /// a command's group after KILL, and a reader that does not read after that.
    pub second: Duration,
}

/// How the output of commands is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Each command's output whole, in the order of their ends.
    Whole,
    /// Each command's output whole, in input order.
    InOrder,
    /// Each line as soon as it is whole.
    Lines,
    /// Commands write to our standard output and error themselves.
    Direct,
}
