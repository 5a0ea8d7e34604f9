//! Stores: where the state of the limits is kept, and on which clock.
//!
//! Not covered by [semantic versions](crate#what-stays): it is the engine of the program. `shared` is for others.
//!
//! [`Memory`] is of one process. With the feature `shared`, `File` and `Redis` are buckets that many processes and machines
//! share, also with scripts that use the program `throttle`. The caller asks for a time and sleeps until then:
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

use crate::clock::{Clock, Nanos};
use crate::limits::{
    Ask, Counts, Disagreement, GiveBack, Grant, KeyView, Ledger, Operation, Policy, Refusal, Reply, Served, Take, Thin,
    Waiting,
};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};

#[cfg(feature = "shared")]
mod file;
mod lease;
mod memory;
#[cfg(feature = "shared")]
mod named;
#[cfg(feature = "shared")]
mod redis;
mod supply;

#[cfg(feature = "shared")]
pub use file::{File, FileError, Machine, Place};
pub(crate) use lease::LATE;
pub use lease::Lease;
use lease::Rules;
pub use memory::Memory;
#[cfg(feature = "shared")]
pub use named::{Named, folder_of_buckets};
#[cfg(feature = "shared")]
pub use redis::{Address, AddressError, Patience, Redis, RedisError, Trouble};
pub use supply::{Claim, Refused, Supply, When, wait_for};

/// Keeps the [`Ledger`] of a bucket: alone, or with others who read the same log. No caller sleeps while others wait for an
/// answer.
///
/// Times are of the store's own [clock](Self::clock). The caller sleeps until the time of its grant. A stream of units
/// draws from a [`Supply`], which takes leases.
pub trait Store: Debug {
    /// The clock of all grant times.
    fn clock(&self) -> &dyn Clock;

    /// Where the limits are, for messages.
    fn place(&self) -> String;

    /// Applies an operation, after all that came before it. Also returns its time.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn apply(&self, operation: Operation) -> Result<(Reply, Nanos), StoreError>;

    /// Learns what others did.
    ///
    /// # Errors
    /// [`StoreError`]
    fn sync(&self) -> Result<(), StoreError>;

    /// Shows the ledger as last seen.
    fn see(&self, look: &mut dyn FnMut(&Ledger));

    /// Changes the ledger at this time, if it is of this process alone.
    fn own(&self, _act: &mut dyn FnMut(&mut Ledger, Nanos)) {}

    /// The time that a lease covers, in nanoseconds. 0 means one run: a store of this process alone can be asked again
    /// at any time.
    fn span(&self) -> Nanos;

    /// Whether other processes use the limits, so that waiters have to [look](Self::look).
    fn is_shared(&self) -> bool {
        true
    }

    /// Whether it is now so late that using the grant of these costs would make a burst: the process was held back, as by
    /// SIGSTOP. Then the bucket learns that it is not used, and the caller takes another. If it cannot be told, windows count
    /// the grant.
    fn is_too_late(&self, grant: &Grant, take: &Take) -> bool {
        let is_late = self.is_late(grant);
        if is_late {
            let _ = self.late(vec![take.unused(grant)]);
        }
        is_late
    }

    /// The same, but the bucket does not learn of it.
    fn is_late(&self, grant: &Grant) -> bool {
        let late = self.clock().now().saturating_sub(grant.at);
        self.is_shared() && late > lease::LATE && Rules::of_new(&self.policy()).is_too_late(late)
    }

    /// Reports what was granted and not used because this process woke too late.
    ///
    /// # Errors
    /// [`StoreError`]; windows count it then.
    fn late(&self, late: Vec<GiveBack>) -> Result<(), StoreError> {
        let is_none = late.iter().all(|late| late.unused.is_empty());
        if is_none { Ok(()) } else { self.apply(Operation::Late(late)).map(drop) }
    }

    /// Whether requests take so long that the next lease should be requested while the current one is in use.
    fn is_remote(&self) -> bool {
        false
    }

    /// How long a request takes to get there, in nanoseconds.
    fn one_way(&self) -> Nanos {
        0
    }

    /// Requests an operation without waiting for it. `false` if that was not possible.
    fn send(&self, _operation: Operation) -> bool {
        false
    }

    /// Waits for the reply to the operation that was sent. `None` if it does not arrive.
    fn receive(&self) -> Option<Reply> {
        None
    }

    /// The process is about to end: later requests wait for other processes at most a second. Returns whether they can be made:
    /// another thread may keep on waiting.
    fn leave(&self) -> bool {
        true
    }

    /// The policy, as last seen.
    fn policy(&self) -> Policy {
        seen(self, |ledger| ledger.policy().clone())
    }

    /// Reserves units, if they are granted by `latest` or without a wait. `costs` are one for each limit, or one for all
    /// limits; they are granted together. Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is charged then.
    fn take(&self, costs: &[u64], latest: Nanos) -> Result<(Grant, Nanos), StoreError> {
        self.take_as(Take { costs: costs.into(), latest, ..Take::default() })
    }

    /// The command with this grant runs as the process `pid`, if the bucket counts those: on one machine it keeps its place
    /// even if this process is killed.
    ///
    /// # Errors
    /// [`StoreError`]; the place is free as soon as this process has ended.
    fn started(&self, _grant: &Grant, _pid: u32) -> Result<(), StoreError> {
        Ok(())
    }

    /// The command with this grant has ended, if the bucket counts those.
    ///
    /// # Errors
    /// [`StoreError`]; the bucket learns of it when the process is gone.
    fn ended(&self, grant: &Grant) -> Result<(), StoreError> {
        let counts = self.policy().counts_jobs();
        if counts { self.apply(Operation::End { number: grant.number() }).map(drop) } else { Ok(()) }
    }

    /// Whether as many commands run as may, of this key or in all, with so many more of the key, and in all; as far as is known
    /// without asking the store.
    fn is_busy(&self, key: &[u8], with: [usize; 2]) -> bool {
        seen(self, |ledger| ledger.is_busy(key, with))
    }

    /// Whether a grant of this key was taken back since, because a server refused something: it must not be used.
    fn is_taken_back(&self, grant: &Grant, key: &[u8]) -> bool {
        seen(self, |ledger| ledger.is_outdated_of_key(key, grant.number(), grant.at))
    }

    /// Like [`take`](Self::take), with all that can be said of it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn take_as(&self, take: Take) -> Result<(Grant, Nanos), StoreError> {
        match self.apply(Operation::Take(take))? {
            (Reply::Granted(grants), asked) if grants.len() == 1 => Ok((grants[0], asked)),
            (Reply::Refused(refusal), _) => Err(refusal.into()),
            _ => Err(Refusal::Never.into()),
        }
    }

    /// A grant with a long wait is an entry, and can move up. Returns the grant with its time now, which may be earlier
    /// than before: call this every second, as [`wait_for`] does. If the store has lost the entry, it is added again, as it
    /// was asked for with `take`.
    ///
    /// # Errors
    /// [`StoreError`]; the grant stays as it is then.
    fn look(&self, grant: &Grant, take: &Take) -> Result<Grant, StoreError> {
        self.sync()?;
        self.look_again(grant, take)
    }

    /// The same, as far as is known here.
    ///
    /// # Errors
    /// As for [`look`](Self::look).
    fn look_again(&self, grant: &Grant, take: &Take) -> Result<Grant, StoreError> {
        match seen(self, |ledger| ledger.time_of(grant.number())) {
            Some(at) => return Ok(grant.moved_to(at)),
            None if !grant.is_entry() => return Ok(*grant),
            None => {}
        }
        let from = seen(self, |ledger| ledger.again_from(grant));
        let again = Take { latest: Nanos::MAX, from, served: Served::default(), ..take.clone() };
        Ok(self.take_as(again)?.0)
    }

    /// Gives back a grant that was not used. If it was an entry, the entries behind it move up.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is given back then.
    fn give_back(&self, grant: &Grant, take: &Take) -> Result<(), StoreError> {
        if grant.number() == 0 {
            return Ok(());
        }
        self.apply(Operation::GiveBack(vec![take.unused(grant)])).map(drop)
    }

    /// Settles a grant for what was taken at its real costs: those of the limits of all, then those of its key if it has one.
    /// The limits are as if it had cost that from the start, if it is open: see [`Supply::open`]. Otherwise what it cost less
    /// is given back as for a grant that was not used, and what it cost more is owed by those behind.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is settled then.
    fn settle(&self, grant: &Grant, take: &Take, real: &[u64]) -> Result<(), StoreError> {
        let own = if take.key.is_none() { real.len() } else { self.policy().len().min(real.len()) };
        let (all, of_key) = if real.len() > 1 { real.split_at(own) } else { (real, real) };
        let key = take.key.clone().map(|key| (key, of_key.into()));
        let (number, charged, real) = (grant.number(), take.costs.clone(), all.into());
        self.apply(Operation::Settle { number, at: grant.at, charged, real, key }).map(drop)
    }

    /// Grants nothing before `time`, to any caller.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is held then.
    fn hold_until(&self, time: Nanos) -> Result<(), StoreError> {
        self.apply(Operation::Hold { until: time, refused: Vec::new(), key: None }).map(drop)
    }

    /// Changes the limits for everyone, from their next request on. A limit at the same index and of the same kind
    /// keeps its credit or count, unless `fresh` is true at its index: then it starts anew. Waiters move up if the new
    /// limits allow.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is changed then.
    fn set(&self, policy: &Policy, fresh: &[bool]) -> Result<(), StoreError> {
        self.apply(Operation::Set { policy: policy.clone(), fresh: fresh.to_vec() }).map(drop)
    }

    /// Removes all who wait. Those who still do are added again when they next call [`look`](Self::look).
    /// With a policy, the limits also start anew with that policy. With a key, only those who wait for that are removed, and its
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
        Ok(seen(self, |ledger| View::of(ledger, now)))
    }

    /// Until when nothing is granted to newcomers, if the bucket is paused, as far as is known without asking the store.
    fn paused_until(&self) -> Option<Nanos> {
        seen(self, Ledger::paused_until)
    }

    /// Units that conform now, as far as is known without asking the store.
    fn available(&self) -> u64 {
        let now = self.clock().now();
        seen(self, |ledger| ledger.limits().available(now))
    }

    /// The time by which these costs more will have been granted if requests never pause, as far as is known without
    /// asking the store; see [`Limits::schedule`](crate::limits::Limits::schedule).
    fn schedule(&self, costs: &[u64]) -> Option<Nanos> {
        let now = self.clock().now();
        seen(self, |ledger| ledger.limits().schedule(now, costs))
    }

    /// Adds a lease to `lease`: consecutive reservations, each with its own time. Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is charged then.
    fn lease(&self, ask: &Ask, lease: &mut Lease) -> Result<Nanos, StoreError> {
        let (reply, asked) = self.apply(Operation::Lease(*ask))?;
        self.add(reply, lease)?;
        Ok(asked)
    }

    /// Adds the runs of a reply to `lease`.
    ///
    /// # Errors
    /// [`StoreError::Refused`]
    fn add(&self, reply: Reply, lease: &mut Lease) -> Result<(), StoreError> {
        match reply {
            Reply::Refused(refusal) => return Err(refusal.into()),
            Reply::Granted(runs) => lease.add(seen(self, |ledger| Rules::of(ledger.policy(), ledger.limits())), runs),
            Reply::Done | Reply::Each(_) => {}
        }
        Ok(())
    }

    /// Gives back what is left in `lease`. If nothing was granted since, the result is as if only the used units had been
    /// requested.
    ///
    /// # Errors
    /// [`StoreError`]; the rest is not given back then.
    fn return_lease(&self, lease: &mut Lease) -> Result<(), StoreError> {
        let rest: Vec<GiveBack> = lease.take_rest().into_iter().collect();
        if rest.is_empty() { Ok(()) } else { self.apply(Operation::GiveBack(rest)).map(drop) }
    }
}

/// The most limits of one bucket: so many windows always fit in a file.
pub(crate) const MOST_LIMITS: usize = 16;

/// Whether a bucket can keep these limits. None is opened.
///
/// # Errors
/// [`StoreError::Limits`].
pub fn check(policy: &Policy) -> Result<(), StoreError> {
    let of_keys = policy.of_keys().map_or(0, |keys| keys.each.len());
    if policy.is_empty() || policy.len() + of_keys > MOST_LIMITS { Err(StoreError::Limits) } else { Ok(()) }
}

/// A number that nobody else has, less than 2^62.
fn random() -> u64 {
    // Each state has its own seed.
    RandomState::new().build_hasher().finish() >> 2
}

/// What `look` finds in the ledger as last seen.
fn seen<T>(store: &(impl Store + ?Sized), look: impl FnOnce(&Ledger) -> T) -> T {
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
    /// Whole units that each limit would let through; negative if units are owed.
    pub left: Vec<i128>,
    /// Whole units that all limits together would let through.
    pub available: u64,
    /// How long the next unit would wait, that of a new key if there are limits for each; in nanoseconds. `None` if it is never
    /// granted.
    pub wait: Option<Nanos>,
    /// The waiters, in order.
    pub line: Vec<Waiting>,
    /// Nothing is granted to newcomers before this time, if the bucket is paused.
    pub paused_until: Option<Nanos>,
    /// The time between two calls, in nanoseconds, if a server allows less than the limits.
    pub learned: Option<Nanos>,
    /// How many commands run, if the bucket counts them.
    pub running: usize,
    /// The keys that are not as new as the bucket, by name.
    pub keys: Vec<KeyView>,
    /// When the other keys were made; 0 if there are no limits for each key.
    pub made: Nanos,
    /// What happened since the bucket was made.
    pub counts: Counts,
    /// The time of all this, on the bucket's clock.
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
    /// The limits named are not those of the bucket at this place.
    Disagrees(Disagreement, String),
    /// The limits of this bucket were changed from these to these, and count another kind than the input now: bytes, units, or
    /// costs of units.
    OtherKind(String, String, String, &'static str),
}

messages! {
    StoreError {
        StoreError::Stopped => ("stopped"),
        StoreError::Refused(error) => ("{error}"),
        StoreError::Limits => ("a bucket keeps 1 to {MOST_LIMITS} limits, and not 'unlimited'"),
        #[cfg(feature = "shared")]
        StoreError::File(error) => ("{error}"),
        #[cfg(feature = "shared")]
        StoreError::Redis(error) => ("{error}"),
        StoreError::Disagrees(error, bucket) => ("{error}, in the bucket {bucket}"),
        StoreError::OtherKind(bucket, from, to, kinds) => (
            "the bucket {bucket} was changed from {from} to {to}: {kinds}; start again, counting the same"
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
