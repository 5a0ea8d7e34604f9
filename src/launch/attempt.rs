//! One attempt at a job, and the facts about it after its end.

use super::job::{Job, Outcome};
use super::passed_input::Feed;
use super::reply::Reply;
use super::reply_file::ReplyFile;
use super::retries::{History, Paused, Verdict};
use crate::flow::Granted;
use rustix::process::{Resource, getrlimit};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle_limits::line::MEMORY;

/// A job that waits for an attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub(super) job: Arc<Job>,
    /// The number of the attempt, from 1.
    pub(super) number: u32,
    /// The results of earlier attempts.
    pub(super) history: History,
    /// When the attempt could have started without limits and slots.
    pub(super) ready: Instant,
}

impl Attempt {
    pub(super) fn first(job: Job) -> Self {
        Attempt {
            ready: job.read.unwrap_or_else(Instant::now),
            job: Arc::new(job),
            number: 1,
            history: History::default(),
        }
    }

    /// The size in bytes of a waiting attempt. An input in an open file also counts: the files of [`most_files`]
    /// attempts together count as [`MEMORY`].
    pub(super) fn size(&self) -> usize {
        let file = if self.job.is_in_file() { MEMORY / most_files() } else { 0 };
        self.job.memory() + size_of::<Attempt>() + file
    }

    /// The attempt after this one.
    pub(super) fn next(&self, ready: Instant) -> Self {
        Attempt { job: Arc::clone(&self.job), number: self.number.saturating_add(1), ready, ..*self }
    }
}

/// The files of a run with commands, and of one command that starts: its input, its reply, and its pipes.
const FILES_IN_USE: usize = 20;

/// The most open files of waiting attempts: a quarter of the other files that this process may open.
pub(super) fn most_files() -> usize {
    let open_files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    (open_files.saturating_sub(FILES_IN_USE) / 4).clamp(1, MEMORY)
}

/// An attempt that has a slot.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) attempt: Attempt,
    pub(super) slot: u32,
    pub(super) started: Instant,
    /// The file for the command's reply.
    pub(super) reply: Option<ReplyFile>,
    /// Its grant. `None`: the attempt never runs.
    pub(super) granted: Option<Granted>,
    /// The thread that feeds our standard input to the command.
    pub(super) feed: Option<Feed>,
}

impl Running {
    pub(super) fn seq(&self) -> u64 {
        self.attempt.job.seq
    }
}

/// An attempt that has ended, or could not start.
#[derive(Debug)]
pub struct Ended {
    /// The job of the attempt.
    pub job: Arc<Job>,
    /// The number of the attempt, from 1.
    pub number: u32,
    /// How the attempt ended.
    pub outcome: Outcome,
    /// The decision about the job.
    pub verdict: Verdict,
    /// The time until the next attempt, if there is one.
    pub due_in: Option<Duration>,
    /// The requested pause.
    pub pause: Paused,
    /// The learned time between two commands, if the server allows less than the limits. It applies to the job's key,
    /// or to all commands if no limits are kept per key.
    pub pace: Option<Duration>,
    /// The command's reply.
    pub reply: Reply,
    /// The real cost for the log: the first cost that the reply settled. If no limit counts a cost, it is the first
    /// cost in the reply.
    pub cost: Option<u64>,
    /// How long the attempt waited for the limits and a slot.
    pub waited: Duration,
    /// When it started.
    pub started: Instant,
    /// When it ended.
    pub at: Instant,
    /// The number of its slot.
    pub slot: u32,
}

/// Records attempts that have ended. The slot of an attempt is freed only after its record is written. So a crash loses
/// at most one record for each slot, and the results whose output waits for earlier jobs.
pub trait Ledger: Debug + Send + Sync {
    /// Records the end of an attempt.
    ///
    /// # Errors
    /// The record cannot be written: nothing more should start.
    fn record(&self, ended: &Ended) -> io::Result<()>;

    /// Records that the units of this job are done: its command has succeeded, and its output was written.
    ///
    /// # Errors
    /// The errors of [`record`](Self::record).
    fn record_done(&self, job: &Job) -> io::Result<()>;

    /// Whether [`record`](Self::record) may have to wait for a reader.
    fn may_block(&self) -> bool;
}
