//! One attempt at a job, and what is told of it once it has ended.

use super::job::{Job, Outcome};
use super::passed_input::Feed;
use super::reply::Reply;
use super::reply_file::ReplyFile;
use super::retries::{History, Verdict};
use rustix::process::{Resource, getrlimit};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle_limits::clock::Nanos;
use throttle_limits::limits::{Grant, Take};
use throttle_limits::line::{Charged, Costs, KeyId, MEMORY};

/// A job that is about to be tried.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) job: Arc<Job>,
    /// Counted from 1.
    pub(super) number: u32,
    /// What those before it have come to.
    pub(super) history: History,
    /// When it could have started, but for the limits and the slots.
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

    /// What it counts as while it waits, in bytes: so many open files may wait as if all of them took [`MEMORY`].
    pub(super) fn size(&self) -> usize {
        let file = if self.job.is_in_file() { MEMORY / most_files() } else { 0 };
        self.job.memory() + size_of::<Attempt>() + file
    }

    /// The attempt after this one.
    pub(super) fn next(&self, ready: Instant) -> Self {
        Attempt { job: Arc::clone(&self.job), number: self.number.saturating_add(1), ready, ..*self }
    }
}

/// How many files attempts may hold that wait: a quarter of those that this process may open.
fn most_files() -> usize {
    let open_files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    (open_files / 4).clamp(1, MEMORY)
}

/// The grant of an attempt.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) key: KeyId,
    pub(super) charged: Charged,
    pub(super) costs: Costs,
    /// Its age in the line, and since when it waited there.
    pub(super) age: u64,
    pub(super) arrived: Nanos,
}

/// An attempt that has a slot.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) attempt: Attempt,
    pub(super) slot: u32,
    pub(super) started: Instant,
    /// Where its command may tell of the answer it got.
    pub(super) reply: Option<ReplyFile>,
    /// Its grant, also if no limits are kept for each key; `None`: it never runs.
    pub(super) granted: Option<Granted>,
    /// What its real cost settles.
    pub(super) charge: Option<Charge>,
    /// What feeds our standard input to it.
    pub(super) feed: Option<Feed>,
}

/// What an attempt was charged, where limits count a cost of their own, or others share those of its key.
#[derive(Clone, Debug)]
pub(super) struct Charge {
    pub(super) grant: Grant,
    /// What was asked for.
    pub(super) take: Take,
}

impl Running {
    pub(super) fn seq(&self) -> u64 {
        self.attempt.job.seq
    }
}

/// A pause of all commands, or of those of one key, that a server asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// How long nothing starts from now on.
    pub left: Duration,
    /// Whether the pause is longer than allowed. Then [`SentAway`](super::Event::SentAway) or
    /// [`KeySentAway`](super::Event::KeySentAway) reports it.
    pub is_overlong: bool,
}

/// An attempt that has ended, or could not start.
#[derive(Debug)]
pub struct Ended {
    /// What it was made for.
    pub job: Arc<Job>,
    /// Which attempt it was, from 1.
    pub number: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What follows from that.
    pub verdict: Verdict,
    /// If it is to be tried again: how long until then.
    pub due_in: Option<Duration>,
    /// The pause that a server asked for.
    pub pause: Paused,
    /// The time from one command of its key to the next, or of all if there are no keys, if the server allows less than the
    /// limits.
    pub pace: Option<Duration>,
    /// What the command told about the answer it got.
    pub reply: Reply,
    /// What it really cost the first limit that counts a cost, if the command told that.
    pub cost: Option<u64>,
    /// How long it waited for the limits and a slot.
    pub waited: Duration,
    /// When it started.
    pub started: Instant,
    /// When it ended.
    pub at: Instant,
    /// The slot it had.
    pub slot: u32,
}

/// Keeps a record of attempts that have ended. A slot is free only after that, so that a crash loses no more records than
/// there are slots, and results that wait for their turn.
pub trait Ledger: Debug + Send + Sync {
    /// Records it.
    ///
    /// # Errors
    /// It could not be recorded: nothing should be launched any more.
    fn record(&self, ended: &Ended) -> io::Result<()>;

    /// Records that the units of this job are done: its command has succeeded, and its output was written.
    ///
    /// # Errors
    /// As of [`record`](Self::record).
    fn record_done(&self, job: &Job) -> io::Result<()>;

    /// Whether [`record`](Self::record) may have to wait for a reader.
    fn may_block(&self) -> bool;
}
