//! Stores: where the state of the limits of a shared bucket is kept, and on which clock.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program. `shared` is for other
//! programs.
//!
//! With the feature `shared`, `File` and `Redis` are buckets that many processes and machines share, including scripts
//! that use the program `throttle`. The caller requests a time and sleeps until then:
//!
//! ```
//! # #[cfg(feature = "shared")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use throttle_limits::clock::Nanos;
//! use throttle_limits::limits::{Policy, Take};
//! use throttle_limits::store::{File, Place, Store, wait_for};
//!
//! let path = std::env::temp_dir().join(format!("bucket of {}", std::process::id()));
//! let place = Place { path, own_folder: false, group: None };
//! let bucket = File::open(place.clone(), Some(&Policy::new(&["20/s,burst=1".parse()?], None)?))?;
//! for _ in 0..3 {
//!     let (grant, _) = bucket.take(&[1], Nanos::MAX)?;
//!     let sleep = |time, _| {
//!         bucket.clock().sleep_until(time);
//!         true
//!     };
//!     wait_for(&bucket, grant, &Take::of(&[1]), sleep, |_| ());
//!     // … what the limit is for …
//! }
//! # File::remove(&place)?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "shared"))]
//! # fn main() {}
//! ```

use crate::clock::{MILLISECOND, NanoClock, Nanos};
use crate::limits::{
    Counts, Disagreement, GiveBack, Grant, KeyView, Ledger, Operation, Policy, Refusal, Reply, Served, Take, Thin,
    Waiting,
};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};

#[cfg(feature = "shared")]
mod file;
mod lease;
#[cfg(feature = "shared")]
mod named;
#[cfg(feature = "shared")]
mod redis;
#[cfg(feature = "shared")]
mod round_trip;
#[doc(hidden)]
mod simulated;
mod supply;

#[cfg(feature = "shared")]
pub use file::{File, FileError, Machine, Place, bucket_file};
pub(crate) use lease::LATE;
use lease::Rules;
#[cfg(feature = "shared")]
pub use named::{Named, folder_of_buckets};
#[cfg(feature = "shared")]
pub use redis::{Address, AddressError, Patience, Redis, RedisError, Trouble, redis_answer};
#[doc(hidden)]
pub use simulated::Simulated;
pub use supply::{Claim, Refused, Supply, When, wait_for};

/// Keeps the [`Ledger`] of a bucket, together with other processes that read the same log. A caller sleeps
/// outside of the store, so it does not delay the answers to others.
///
/// Times are on the store's own [clock](Self::clock). The caller sleeps until the time of its grant. A stream of units
/// draws from a [`Supply`], which takes leases.
pub trait Store: Debug {
    /// The clock of all grant times.
    fn clock(&self) -> &dyn NanoClock;

    /// The place of the limits, for messages.
    fn place(&self) -> String;

    /// Applies an operation after all earlier operations. Also returns its time.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn apply(&self, operation: Operation) -> Result<(Reply, Nanos), StoreError>;

    /// Reads the operations of other processes since the last request.
    ///
    /// # Errors
    /// [`StoreError`]
    fn sync(&self) -> Result<(), StoreError>;

    /// Passes the ledger, as last read, to `look`.
    fn see(&self, look: &mut dyn FnMut(&Ledger));

    /// The time that a lease covers, in nanoseconds. 0 means that a lease is one run.
    fn span(&self) -> Nanos;

    /// Whether it is now too late to use this grant without a burst, because the process was held back, for example by
    /// SIGSTOP. Then the unused grant is reported to the bucket, and the caller requests another. If the report fails,
    /// windows count the grant.
    fn is_too_late(&self, grant: &Grant, take: &Take) -> bool {
        let is_late = self.is_late(grant);
        if is_late {
            let _ = self.late(vec![take.unused(grant)]);
        }
        is_late
    }

    /// Whether it is too late to use this grant, without a report to the bucket.
    fn is_late(&self, grant: &Grant) -> bool {
        let late = self.clock().now().saturating_sub(grant.at);
        let round_trip = || 2 * self.one_way();
        late > lease::LATE && Rules::of_new(&self.policy()).is_too_late(late, round_trip)
    }

    /// Reports grants that were not used because this process woke too late.
    ///
    /// # Errors
    /// [`StoreError`]; windows count the grants then.
    fn late(&self, late: Vec<GiveBack>) -> Result<(), StoreError> {
        let is_none = late.iter().all(|late| late.unused.is_empty());
        if is_none { Ok(()) } else { self.apply(Operation::Late(late)).map(drop) }
    }

    /// Whether requests are slow, so that the next lease should be requested while the current one is in use.
    fn is_remote(&self) -> bool {
        false
    }

    /// How long a request takes to arrive at the store, in nanoseconds.
    fn one_way(&self) -> Nanos {
        0
    }

    /// Sends an operation without waiting for the reply. `false` if that was not possible.
    fn send(&self, _operation: Operation) -> bool {
        false
    }

    /// Waits for the reply to the operation that was sent. `None` if it does not arrive.
    fn receive(&self) -> Option<Reply> {
        None
    }

    /// Announces that the process is about to end: later requests wait for other processes at most a second. Returns
    /// whether requests are still possible. They are not while another thread waits and keeps the store locked.
    fn leave(&self) -> bool {
        true
    }

    /// The policy, as last read.
    fn policy(&self) -> Policy {
        with_ledger(self, |ledger| ledger.policy().clone())
    }

    /// Reserves units if they are granted by `latest` or without a wait. `costs` holds one cost for each limit, or one
    /// for all limits; all limits are charged together. Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is charged then.
    fn take(&self, costs: &[u64], latest: Nanos) -> Result<(Grant, Nanos), StoreError> {
        self.take_as(Take { costs: costs.into(), latest, ..Take::default() })
    }

    /// Reports that the command with this grant runs as the process `pid`, if the bucket counts running commands. On
    /// one machine the command then keeps its job slot even if this process is killed.
    ///
    /// # Errors
    /// [`StoreError`]; then the slot becomes free when this process ends.
    fn started(&self, _grant: &Grant, _pid: u32) -> Result<(), StoreError> {
        Ok(())
    }

    /// Reports that the command with this grant has ended, if the bucket counts running commands.
    ///
    /// # Errors
    /// [`StoreError`]; then the slot becomes free when the process is gone.
    fn ended(&self, grant: &Grant) -> Result<(), StoreError> {
        let counts = self.policy().counts_jobs();
        if counts { self.apply(Operation::End { number: grant.number() }).map(drop) } else { Ok(()) }
    }

    /// Whether the job limit of this key or the overall job limit is reached, according to the ledger as last read.
    /// `with` is the number of commands to count in addition: of the key, and overall.
    fn is_busy(&self, key: &[u8], with: [usize; 2]) -> bool {
        with_ledger(self, |ledger| ledger.is_busy(key, with))
    }

    /// Like [`take`](Self::take), with all properties of a request.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn take_as(&self, take: Take) -> Result<(Grant, Nanos), StoreError> {
        match self.apply(Operation::Take(take))? {
            (Reply::Granted(grants), at) if grants.len() == 1 => Ok((grants[0], at)),
            (Reply::Refused(refusal), _) => Err(refusal.into()),
            _ => Err(Refusal::Never.into()),
        }
    }

    /// Reads the current time of a grant. A grant with a long wait is an entry of the ledger, and can move up to an
    /// earlier time. Call this every second, as [`wait_for`] does. If the store has lost the entry, it is added again
    /// as requested by `take`.
    ///
    /// # Errors
    /// [`StoreError`]; the grant is unchanged then.
    fn look(&self, grant: &Grant, take: &Take) -> Result<Grant, StoreError> {
        self.sync()?;
        self.look_again(grant, take)
    }

    /// Like [`look`](Self::look), but uses the ledger as last read.
    ///
    /// # Errors
    /// As for [`look`](Self::look).
    fn look_again(&self, grant: &Grant, take: &Take) -> Result<Grant, StoreError> {
        match with_ledger(self, |ledger| ledger.time_of(grant.number())) {
            Some(at) => return Ok(grant.moved_to(at)),
            None if !grant.is_entry() => return Ok(*grant),
            None => {}
        }
        let from = with_ledger(self, |ledger| ledger.again_from(grant));
        let again = Take { latest: Nanos::MAX, from, served: Served::default(), ..take.clone() };
        Ok(self.take_as(again)?.0)
    }

    /// A caller that will settle its grant reads within this time, in nanoseconds, that the grant has moved up.
    fn learns(&self) -> Nanos {
        MOVE_KNOWN_WITHIN.max(16 * self.one_way())
    }

    /// Gives back an unused grant. If it was an entry, the entries behind it move up.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is given back then.
    fn give_back(&self, grant: &Grant, take: &Take) -> Result<(), StoreError> {
        if grant.number() == 0 {
            return Ok(());
        }
        self.apply(Operation::GiveBack(vec![take.unused(grant)])).map(drop)
    }

    /// Settles a grant, requested by `take`, at its real costs. `real` has the costs in the overall limits, and then
    /// the costs in the limits of the key, if there is one.
    ///
    /// If the grant is open, the limits are as if it had cost its real costs from the start: see [`Take::open`].
    /// Otherwise a lower cost is given back as for an unused grant, and a higher cost is owed by later requests.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is settled then.
    fn settle(&self, grant: &Grant, take: &Take, real: &[u64]) -> Result<(), StoreError> {
        let own = if take.key.is_none() { real.len() } else { self.policy().len().min(real.len()) };
        let (all, of_key) = if real.len() > 1 { real.split_at(own) } else { (real, real) };
        let key = take.key.clone().map(|key| (key, of_key.into()));
        let (number, charged, real) = (grant.number(), take.costs.clone(), all.into());
        let round_trip = 2 * self.one_way();
        self.apply(Operation::Settle { number, at: grant.counted, charged, real, key, round_trip }).map(drop)
    }

    /// Grants nothing before `time`, to any caller.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is held then.
    fn hold_until(&self, time: Nanos) -> Result<(), StoreError> {
        self.apply(Operation::Hold { until: time, refused: Vec::new(), key: None }).map(drop)
    }

    /// Changes the limits for everyone, from their next request on. A limit at the same index and of the same kind
    /// keeps its credit or count. If `fresh` is true at its index, it is reset instead. Waiters move up if the new
    /// limits allow it.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn set(&self, policy: &Policy, fresh: &[bool]) -> Result<(), StoreError> {
        self.apply(Operation::Set { policy: policy.clone(), fresh: fresh.to_vec() }).map(drop)
    }

    /// Removes all waiters. Processes that still wait are added again when they next call [`look`](Self::look). With a
    /// policy, the limits are also reset to that policy. With a key, only the waiters of that key are removed, and its
    /// pause is lifted.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn clear(&self, key: Option<&[u8]>, anew: Option<&Policy>) -> Result<(), StoreError> {
        let (key, anew) = (key.map(Box::from), anew.cloned());
        self.apply(Operation::Clear { anew, is_empty: false, number: random(), key }).map(drop)
    }

    /// The policy and the state of the limits now.
    ///
    /// # Errors
    /// [`StoreError`].
    fn view(&self) -> Result<View, StoreError> {
        self.sync()?;
        let now = self.clock().now();
        Ok(with_ledger(self, |ledger| View::of(ledger, now)))
    }

    /// The end of the pause of the bucket, if it is paused, according to the ledger as last read. New requests are
    /// granted nothing before that time.
    fn paused_until(&self) -> Option<Nanos> {
        with_ledger(self, Ledger::paused_until)
    }

    /// Units that conform now, according to the ledger as last read.
    fn available(&self) -> u64 {
        let now = self.clock().now();
        with_ledger(self, |ledger| ledger.limits().available(now))
    }

    /// The time by which these further costs will have been granted if requests never pause, according to the ledger as
    /// last read; see [`Limits::schedule`](crate::limits::Limits::schedule).
    fn schedule(&self, costs: &[u64]) -> Option<Nanos> {
        let now = self.clock().now();
        with_ledger(self, |ledger| ledger.limits().schedule(now, costs))
    }
}

/// The least value of [`Store::learns`]. The caller polls twice in that time. If it is far from the server, it polls
/// every eight one-way times.
const MOVE_KNOWN_WITHIN: Nanos = 50 * MILLISECOND;

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
fn with_ledger<T>(store: &(impl Store + ?Sized), look: impl FnOnce(&Ledger) -> T) -> T {
    let (mut look, mut found) = (Some(look), None);
    store.see(&mut |ledger| found = look.take().map(|look| look(ledger)));
    found.expect("a store shows its ledger")
}

/// The limits and their state at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The limits as they were set.
    pub policy: Policy,
    /// The state of the limits: see [`Each`](crate::limits::Each).
    pub state: Thin,
    /// Whole units that each limit would admit; negative if units are owed.
    pub left: Vec<i128>,
    /// Whole units that all limits together would admit.
    pub available: u64,
    /// The wait of the next unit, in nanoseconds. If there are limits for each key, the next unit is a unit of a new
    /// key. `None` if it is never granted.
    pub wait: Option<Nanos>,
    /// The waiters, in order.
    pub line: Vec<Waiting>,
    /// If the bucket is paused, nothing is granted to new requests before this time.
    pub paused_until: Option<Nanos>,
    /// The learned time between two starts, in nanoseconds, if a server allows less than the limits.
    pub learned: Option<Nanos>,
    /// The number of running commands, if the bucket counts them.
    pub running: usize,
    /// The keys whose state differs from a new key's, by name.
    pub keys: Vec<KeyView>,
    /// The time at which the buckets of new keys are made; 0 if there are no limits for each key.
    pub made: Nanos,
    /// Event counts since the bucket was made.
    pub counts: Counts,
    /// The time of this view, on the bucket's clock.
    pub now: Nanos,
}

impl View {
    fn of(ledger: &Ledger, now: Nanos) -> Self {
        let (limits, now) = (ledger.limits(), ledger.in_order(now));
        View {
            policy: ledger.policy().clone(),
            state: Thin::of_limits(limits),
            left: (0..ledger.policy().len()).filter_map(|place| limits.left(now, place)).collect(),
            available: limits.available(now),
            wait: ledger.next_time(now).map(|at| at.saturating_sub(now)),
            line: ledger.waiting(now),
            paused_until: ledger.paused_until().filter(|until| *until > now),
            learned: ledger.learned(),
            running: ledger.running(),
            keys: ledger.keys_at(now),
            made: ledger.keys_made(),
            counts: ledger.counts_at(now),
            now,
        }
    }
}

impl StoreError {
    /// Whether the same request may succeed later without any action by the user.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            #[cfg(feature = "shared")]
            StoreError::Redis(error) => error.may_pass(),
            #[cfg(feature = "shared")]
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
    #[cfg(feature = "shared")]
    File(FileError),
    /// The bucket's server cannot be used.
    #[cfg(feature = "shared")]
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
        #[cfg(feature = "shared")]
        StoreError::File(error) => ("{error}"),
        #[cfg(feature = "shared")]
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
        #[cfg(feature = "shared")]
        File(FileError),
        #[cfg(feature = "shared")]
        Redis(RedisError),
    }
}

#[cfg(feature = "shared")]
/// The reason why a bucket that processes share cannot be used.
///
/// The error is a text for people. Programs should call [`may_pass`](Self::may_pass).
#[derive(Clone)]
pub struct BucketError(std::sync::Arc<StoreError>);

#[cfg(feature = "shared")]
impl BucketError {
    /// Whether the same request may succeed later without any action by the user; for example, a server does not
    /// answer.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.0.may_pass()
    }
}

#[cfg(feature = "shared")]
impl From<StoreError> for BucketError {
    fn from(error: StoreError) -> Self {
        BucketError(std::sync::Arc::new(error))
    }
}

/// Two errors are equal if their texts are equal.
#[cfg(feature = "shared")]
impl PartialEq for BucketError {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

#[cfg(feature = "shared")]
impl Eq for BucketError {}

#[cfg(feature = "shared")]
impl std::fmt::Display for BucketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(feature = "shared")]
impl Debug for BucketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

#[cfg(feature = "shared")]
impl std::error::Error for BucketError {}
