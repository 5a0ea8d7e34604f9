//! Stores: where the state of the limits of a shared bucket is kept, and on which clock.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program. `shared` is for other
//! programs.
//!
//! `File` and `Redis` are buckets that many processes and machines share, including scripts that use the program
//! `throttle`. A [`Client`] requests units, and returns the time until which the caller sleeps:
//!
//! ```
//! use std::sync::Arc;
//! use throttle_limits::clock::Nanos;
//! use throttle_limits::ledger::operation::Ask;
//! use throttle_limits::limits::Policy;
//! use throttle_limits::store::{Client, File, Next, Place};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::env::temp_dir().join(format!("bucket of {}", std::process::id()));
//! let place = Place { path, own_folder: false, group: None };
//! let bucket = File::open(place.clone(), Some(&Policy::new(&["20/s,burst=1".parse()?], None)?))?;
//! let mut client = Client::new(Arc::new(bucket));
//! for _ in 0..3 {
//!     client.ask(Ask { costs: [1].into(), latest: Nanos::MAX, ..Ask::default() });
//!     loop {
//!         match client.poll(1)? {
//!             Next::Go(_) => break, // … and do what the limit is for …
//!             Next::At(time) => client.store().clock().sleep_until(time),
//!             Next::Refused(_, why) => return Err(format!("{why:?}").into()),
//!             Next::Nothing => return Err("no request waits".into()),
//!         }
//!     }
//! }
//! # File::remove(&place)?;
//! # Ok(())
//! # }
//! ```

#![allow(clippy::must_use_candidate, reason = "this is no public interface")]

use crate::clock::{MILLISECOND, NanoClock, Nanos};
use crate::ledger::Replica;
use crate::ledger::operation::{Operation, Owner};
use crate::limits::{Disagreement, Policy, Refusal};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};

mod client;
mod file;
mod named;
mod redis;
mod round_trip;

pub use crate::ledger::{KeyView, View, Waiting};
pub use client::{AnyStore, Client, Next};
pub use file::{File, FileError, Machine, Place, bucket_file};
pub use named::{Named, folder_of_buckets};
pub use redis::{Address, AddressError, Patience, Redis, RedisError, Trouble, redis_answer};

/// Where the log of a bucket lives. All who read the same log have the same [`Replica`]. A caller sleeps outside of the
/// store, so it does not delay others.
///
/// Times are on the store's own [clock](Self::clock).
pub trait Store: Debug {
    /// The clock of all grant times.
    fn clock(&self) -> &dyn NanoClock;

    /// The place of the limits, for messages.
    fn place(&self) -> String;

    /// The owner of the operations that this process sends.
    fn owner(&self) -> Owner;

    /// Appends operations after all earlier ones, and reads the log up to now. Returns the time.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn send(&self, operations: Vec<Operation>) -> Result<Nanos, StoreError>;

    /// Like [`send`](Self::send), but does not wait for the answer of a server that is far away. Returns when
    /// [`collect`](Self::collect) is to be called. `None`: nothing was sent.
    fn post(&self, _operations: &[Operation]) -> Option<Nanos> {
        None
    }

    /// Waits for the answer to what was posted. Returns the time of the ledger.
    ///
    /// # Errors
    /// [`StoreError`]. The next call sends the same operations again.
    fn collect(&self) -> Result<Nanos, StoreError> {
        self.sync()
    }

    /// Reads the log up to now. Returns the time.
    ///
    /// # Errors
    /// [`StoreError`]
    fn sync(&self) -> Result<Nanos, StoreError> {
        self.send(Vec::new())
    }

    /// Passes the ledger, as last read, to `look`.
    fn see(&self, look: &mut dyn FnMut(&mut Replica));

    /// How long an operation takes until its answer is here, in nanoseconds. 0 for a store on this machine, unless it is
    /// slow.
    fn round_trip(&self) -> Nanos;

    /// How long it takes at least, however busy this machine is.
    fn least_round_trip(&self) -> Nanos {
        self.round_trip()
    }

    /// Whether the bucket is on a server. Then it must be told that this process is alive.
    fn is_remote(&self) -> bool {
        false
    }

    /// Whether a server counts grants or requests of this process, so that it must hear of it.
    fn is_counted(&self) -> bool {
        let is_ours = |replica: &mut Replica| replica.owners().any(|(owner, _)| owner == self.owner());
        self.is_remote() && with_replica(self, is_ours)
    }

    /// The process with this id, as an owner. `None` if this store knows only this process.
    fn owner_of(&self, _pid: u32) -> Option<Owner> {
        None
    }

    /// Closes what this process does not need while it waits for long: any number of processes can wait for a server.
    fn rest(&self) {}

    /// Announces that the process is about to end: later requests wait for other processes at most a second. Returns
    /// whether requests are still possible. They are not while another thread waits and keeps the store locked.
    fn leave(&self) -> bool {
        true
    }

    /// The policy, as last read.
    fn policy(&self) -> Policy {
        with_replica(self, |replica| replica.policy().clone())
    }

    /// Whether it is too late to use a grant for this time without a burst, because the process was held back, for example
    /// by SIGSTOP.
    fn is_late(&self, at: Nanos) -> bool {
        let late = self.clock().now().saturating_sub(at);
        late > MIN_LATE && {
            let (usual, least) = (self.round_trip(), self.least_round_trip());
            late > with_replica(self, |replica| replica.allowance(usual, least))
        }
    }

    /// Changes the limits for everyone. A limit at the same index and of the same kind keeps its credit or count. If
    /// `fresh` is true at its index, it is reset instead.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn set(&self, policy: &Policy, fresh: &[bool]) -> Result<(), StoreError> {
        self.send(vec![Operation::Set(policy.clone(), fresh.to_vec())]).map(drop)
    }

    /// Refuses all waiters, which may request again, and lifts pauses. With a policy, the limits are also reset to that
    /// policy. With a key, only that key is concerned.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn clear(&self, key: Option<&[u8]>, anew: Option<&Policy>) -> Result<(), StoreError> {
        let (key, anew) = (key.map(Box::from), anew.cloned());
        self.send(vec![Operation::Clear { anew, is_empty: false, number: random(), key }]).map(drop)
    }

    /// The policy and the state of the limits now.
    ///
    /// # Errors
    /// [`StoreError`].
    fn view(&self) -> Result<View, StoreError> {
        let now = self.sync()?;
        Ok(with_replica(self, |replica| replica.view(now)))
    }
}

/// A grant is not late by less than this.
const MIN_LATE: Nanos = 10 * MILLISECOND;

/// The most limits of one bucket: this many windows always fit in a file.
pub(crate) const MAX_LIMITS: usize = 16;

/// Whether a bucket can keep these limits. Opens no bucket.
///
/// # Errors
/// [`StoreError::Limits`].
pub fn check(policy: &Policy) -> Result<(), StoreError> {
    let of_keys = policy.of_keys().map_or(0, |keys| keys.each.len());
    if policy.is_empty() || policy.len() + of_keys > MAX_LIMITS { Err(StoreError::Limits) } else { Ok(()) }
}

/// A random number below 2^62, unlike any other process's.
fn random() -> u64 {
    // Each `RandomState` has its own random seed.
    RandomState::new().build_hasher().finish() >> 2
}

/// Returns the result of `look` for the ledger as last read.
///
/// # Panics
/// If a store does not pass its ledger to `look`, as [`Store::see`] requires.
pub fn with_replica<T>(store: &(impl Store + ?Sized), look: impl FnOnce(&mut Replica) -> T) -> T {
    let (mut look, mut found) = (Some(look), None);
    store.see(&mut |replica| found = look.take().map(|look| look(replica)));
    found.expect("a store shows its ledger")
}

/// How long the last operation of a process that ends may take.
pub(crate) const RETURN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// Checks whether the limits of a bucket still count what they counted at the start of a run, when they were `meant`.
///
/// # Errors
/// [`StoreError::OtherKind`]
pub fn check_kind(store: &AnyStore, meant: &Policy) -> Result<(), StoreError> {
    if with_replica(store, |replica| replica.policy().counts_like(meant)) {
        return Ok(());
    }
    let now = store.policy();
    let what = match (meant.counts_bytes(), now.counts_bytes()) {
        (false, true) => "it counts bytes now, no longer units",
        (true, false) => "it counts units now, no longer bytes",
        _ if !meant.counts_jobs() && now.counts_jobs() => "it counts commands now",
        _ if meant.counts_jobs() && !now.counts_jobs() => "it no longer counts commands",
        _ => match (meant.of_keys(), now.of_keys()) {
            (None, Some(_)) => "each key now has its own limits",
            (Some(_), None) => "keys no longer have their own limits",
            (Some(keys), Some(others)) if keys.per != others.per => "its per= selector changed",
            _ => "the costs of a unit changed",
        },
    };
    Err(StoreError::OtherKind(store.place(), meant.to_string(), now.to_string(), what))
}

/// Locks the mutex, unless another thread keeps it locked for a second.
pub fn lock_soon<T>(mutex: &std::sync::Mutex<T>) -> Option<std::sync::MutexGuard<'_, T>> {
    use std::sync::TryLockError;
    let begun = std::time::Instant::now();
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if begun.elapsed() >= RETURN_TIMEOUT => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

impl StoreError {
    /// Whether the same request may succeed later without any action by the user.
    pub fn may_pass(&self) -> bool {
        match self {
            StoreError::Redis(error) => error.may_pass(),
            StoreError::File(FileError::Locked(_)) => true,
            _ => false,
        }
    }
}

/// Why a store grants nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The process is about to end.
    Stopped,
    /// The limits refuse.
    Refused(Refusal),
    /// No limit, or too many.
    Limits,
    /// The bucket's file cannot be used.
    File(FileError),
    /// The bucket's server cannot be used.
    Redis(RedisError),
    /// The given limits differ from the limits of the bucket at this place.
    Disagrees(Disagreement, String),
    /// The limits of the bucket were changed and now count another kind than the input: bytes, units, or costs of
    /// units. The fields are the bucket, the limits before and now, and an explanation.
    OtherKind(String, String, String, &'static str),
}

messages! {
    StoreError {
        StoreError::Stopped => ("stopped"),
        StoreError::Refused(error) => ("{error}"),
        StoreError::Limits => ("a bucket stores 1 to {MAX_LIMITS} limits, or unlimited"),
        StoreError::File(error) => ("{error}"),
        StoreError::Redis(error) => ("{error}"),
        StoreError::Disagrees(error, bucket) => ("the bucket {bucket} has the limits {}, not {}", error.known, error.said),
        StoreError::OtherKind(bucket, from, to, kinds) => (
            "the bucket {bucket} was changed from {from} to {to}: {kinds}; start again with limits of the same kinds"
        ),
    }
}

holds! {
    StoreError {
        Refused(Refusal),
        File(FileError),
        Redis(RedisError),
    }
}

/// The reason why a bucket that processes share cannot be used.
///
/// The error is a text for people. Programs should call [`may_pass`](Self::may_pass).
#[derive(Clone)]
pub struct BucketError(std::sync::Arc<StoreError>);

impl BucketError {
    /// Whether the same request may succeed later without any action by the user; for example, a server does not
    /// answer.
    pub fn may_pass(&self) -> bool {
        self.0.may_pass()
    }
}

impl BucketError {
    /// Why the limits refuse, if they do.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        if let StoreError::Refused(refusal) = &*self.0 { Some(*refusal) } else { None }
    }
}

impl From<StoreError> for BucketError {
    fn from(error: StoreError) -> Self {
        BucketError(std::sync::Arc::new(error))
    }
}

/// Two errors are equal if their texts are equal.
impl PartialEq for BucketError {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for BucketError {}

impl std::fmt::Display for BucketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl Debug for BucketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

impl std::error::Error for BucketError {}
