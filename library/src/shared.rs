//! Buckets that a service shares with other processes and machines, including scripts that use the program `throttle`.
//!
//! A [`Shared`] is the limiter of a bucket. Futures and threads can wait for it. So a service and its cron jobs keep
//! one quota:
//!
//! ```
//! use std::time::Duration;
//! use throttle_limits::shared::Shared;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let name = std::env::temp_dir().join(format!("bucket of docs {}", std::process::id()));
//! # let name = name.to_str().ok_or("a path")?;
//! // A name as for `throttle --bucket`, a path with a slash, or redis://host/NAME. A missing bucket is created.
//! let quota = Shared::with_limits(name, &["100/s,burst=10".parse()?, "5000/min,window".parse()?])?;
//! quota.acquire(1).await?;
//! let granted = quota.acquire_to_settle(5).await?; // an estimate
//! granted.settle(2).await?; // what it cost
//! quota.pause_for(Duration::ZERO).await?;
//! // In a shell: throttle --bucket NAME --once ./report
//! # std::fs::remove_file(name)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Behaviour
//!
//! The requests of one process, or of one key if keys have limits, are granted in the order in which the bucket receives
//! them. Processes that use all they can get have equal shares. A request that waits has taken nothing, and its time may
//! change: it is granted earlier or later after a pause, other limits, or a real cost. Such a change takes effect within a
//! second. A future that is dropped gives its units back, even if it is dropped because its runtime ends; a grant that
//! its task has not polled for two seconds is lost. A killed process is noticed within 15 seconds.
//!
//! A file takes some microseconds for each request, a server one round trip. The requests of one `Shared` reach the
//! bucket one after another. They are sent by a separate thread, `throttle-shared`, so no executor is blocked. The
//! thread ends with the last clone.
//!
//! A grant for which the process woke too late is not used: the request then takes another grant. If the server does
//! not answer, a request fails after three seconds with an error that [may pass](BucketError::may_pass). All requests
//! that were sent until then fail with the same error.
//!
//! If the bucket keeps `jobs=`, a request counts as running until its [grant](Granted) is dropped. While the job limit
//! is reached, a process with requests reads the bucket 100 times a second. On a server that is far away, or with more
//! than 16 such processes, it reads less often.

use crate::ledger::operation::Operation;
use crate::limiter::{AcquireError, Acquiring, Costs, IntoCosts, PolicyError, Units};
use crate::limits::{Policy, Said, SaidCost};
use crate::rate::{Limit, nanos};
use crate::store::{AnyStore, File, Named, Patience, Redis, Store, StoreError, folder_of_buckets};
use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

mod acquire;
mod desk;
mod handle;
mod order;

pub use crate::store::BucketError;
pub use acquire::AcquireShared;
use acquire::OfBucket;
use desk::Desk;
pub use handle::{Granted, Shared};
use order::Order;

/// Why a bucket cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is not valid.
    Name(String),
    /// Limits that contradict each other.
    Limits(PolicyError),
    /// The bucket cannot be used, or has other limits.
    Bucket(BucketError),
    /// The thread that sends the requests cannot be started.
    Thread(std::io::Error),
}

messages! {
    OpenError {
        OpenError::Name(error) => ("{error}"),
        OpenError::Limits(error) => ("{error}"),
        OpenError::Bucket(error) => ("{error}"),
        OpenError::Thread(error) => ("the thread that sends requests to the bucket cannot be started: {error}"),
    }
}

holds! {
    OpenError {
        Limits(PolicyError),
        Bucket(BucketError),
    }
}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        OpenError::Bucket(error.into())
    }
}

impl Shared {
    /// Opens the bucket of this name, path or address. It must exist; `throttle --bucket NAME --set -r LIMIT` creates
    /// one.
    ///
    /// This blocks the thread until the bucket has answered. With a file it waits while another process keeps the file
    /// locked; with a server that is away it waits up to three seconds. It starts the thread `throttle-shared`.
    ///
    /// # Errors
    /// [`OpenError::Name`], [`OpenError::Bucket`], [`OpenError::Thread`].
    pub fn open(bucket: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        Shared::open_with(bucket.as_ref(), None)
    }

    /// Like [`open`](Self::open), but creates the bucket with these limits if it does not exist. An existing bucket
    /// must have these limits, in any order; only the settings named here are compared.
    ///
    /// A limit with none of `burst`, `initial` and `window` is a window, unless it has the shortest period: then it is a
    /// bucket. A bucket without `burst` holds 10 ms' worth of the rate, at least one unit. A window without `slack` has
    /// a slack of a twentieth of its period, at most 250 ms.
    ///
    /// # Errors
    /// As for [`open`](Self::open). [`OpenError::Limits`] if there are no limits, or if they contradict each other.
    /// [`OpenError::Bucket`] if the bucket has other limits, or if `limits` has more than 16.
    pub fn with_limits(bucket: impl AsRef<OsStr>, limits: &[Limit]) -> Result<Self, OpenError> {
        let shared = Shared::open_with(bucket.as_ref(), Some(&Policy::with_slack(limits, None)?))?;
        let given: Vec<_> = limits.iter().map(|limit| Said { limit: *limit, cost: SaidCost::Unnamed }).collect();
        let agrees = shared.store.policy().places_of(&given, None);
        agrees.map_err(|error| StoreError::Disagrees(error, shared.store.place()))?;
        Ok(shared)
    }

    fn open_with(name: &OsStr, policy: Option<&Policy>) -> Result<Self, OpenError> {
        let folder = folder_of_buckets(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
        let store: Arc<AnyStore> = match Named::new(name, folder.as_deref(), str::parse).map_err(OpenError::Name)? {
            Named::File(place) => Arc::new(File::open(place, policy)?),
            Named::Server(address) => Arc::new(Redis::open(address, policy, Patience::none())?),
        };
        let orders = Desk::open(Arc::clone(&store)).map_err(OpenError::Thread)?;
        Ok(Shared { store, orders, key: None })
    }

    /// Waits until these costs are granted. The request is sent when the future is first polled. If the future is
    /// dropped before it ends, the bucket gets everything back.
    ///
    /// Costs are whole units: one for all limits of the bucket, or one for each limit, in the order of the bucket's
    /// limits. With a [key](Self::for_key), the costs for the limits of the key may follow. A cost above the burst of a
    /// bucket waits until enough units have been gained.
    ///
    /// # Errors
    /// The future returns them; nothing is taken then.
    ///
    /// - [`AcquireError::Units`] for a cost that is not valid.
    /// - [`AcquireError::Never`] for a cost above the count of a window, or if the bucket keeps limits for each key and
    ///   [no key](Self::for_key) is given.
    /// - [`AcquireError::Bucket`] if the bucket cannot be used, or its runs have given up the key.
    pub fn acquire(&self, costs: impl IntoCosts) -> AcquireShared<()> {
        Acquiring(OfBucket::new(self, costs.into_costs(), false, drop))
    }

    /// Takes these costs now, or nothing: [`acquire`](Self::acquire) with a [timeout](Acquiring::timeout) of 0.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire) and its [`timeout`](Acquiring::timeout).
    pub fn try_acquire(&self, costs: impl IntoCosts) -> AcquireShared<()> {
        self.acquire(costs).timeout(Duration::ZERO)
    }

    /// Like [`acquire`](Self::acquire), for costs that are not known yet. These costs are an estimate, and
    /// [`settle`](Granted::settle) corrects them.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_to_settle(&self, costs: impl IntoCosts) -> AcquireShared<Granted> {
        Acquiring(OfBucket::new(self, costs.into_costs(), true, |granted| granted))
    }

    /// Grants nothing new for `time` from now to any user of the bucket, for example after a server answered with
    /// Retry-After. At the end of the pause the buckets are empty and begin to fill. All requests that wait are granted
    /// after the pause. Only grants that were final before it stay: those of the next 10 ms, on a server of at most 250 ms.
    /// A shorter pause does not end a longer pause that began earlier. Even [for a key](Self::for_key) this pauses the
    /// whole bucket.
    ///
    /// The pause is sent at once; the future returns when it has arrived. If the future is dropped, the pause still
    /// takes effect.
    ///
    /// # Errors
    /// The future returns an error if the bucket cannot be used; nothing is paused then.
    pub fn pause_for(&self, time: Duration) -> impl Future<Output = Result<(), BucketError>> + Send + use<> {
        let until = self.store.clock().now().saturating_add(nanos(time));
        self.report(Operation::Hold { key: None, until, refused: Vec::new() })
    }

    /// The whole units that could be taken now by the overall limits. The limits of a [key](Self::for_key) are not
    /// included.
    ///
    /// # Errors
    /// The future returns an error if the bucket cannot be used.
    pub fn available(&self) -> impl Future<Output = Result<u64, BucketError>> + Send + use<> {
        let (answer, found) = tokio::sync::oneshot::channel();
        self.order(Order::Look(answer));
        async move { found.await.unwrap_or_else(|_| Err(StoreError::Stopped.into())) }
    }

    /// The bucket itself. Its calls block until the bucket has answered. Semantic versions do not cover it.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The same bucket for one key, if it keeps limits for each key (`--set -r 1/s,per=host`). Costs are then given for
    /// each overall limit, followed by each limit of the key; or one cost is given for all limits. If the bucket keeps
    /// no keys, the key has no effect. This sends nothing to the bucket.
    #[must_use]
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Self {
        Shared { key: Some(key.as_ref().into()), ..self.clone() }
    }

    fn order(&self, order: Order) {
        // The thread lives at least as long as `self`.
        let _ = self.orders.send(order);
    }

    /// Sends an operation. Returns once it has arrived.
    fn report(&self, operation: Operation) -> impl Future<Output = Result<(), BucketError>> + Send + use<> {
        let (answer, done) = tokio::sync::oneshot::channel();
        self.order(Order::Report(operation, Some(answer)));
        async move { done.await.unwrap_or_else(|_| Err(StoreError::Stopped.into())) }
    }
}

impl Granted {
    /// The costs that were charged to the overall limits.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let of_all = self.shared.store.policy().len().max(1);
        let of_all = self.costs.get(..of_all).unwrap_or(&self.costs);
        Costs::from_slice(&of_all.iter().map(|units| Units::whole(*units)).collect::<Vec<_>>())
    }

    /// Settles the grant at its real costs: from now on the bucket is as if they had been acquired from the start. They
    /// are sent at once; the future returns when they have arrived. If the future is dropped, the grant is still
    /// settled.
    ///
    /// # Errors
    /// The future returns them; the grant then keeps the acquired costs. [`AcquireError::Units`], or
    /// [`AcquireError::Bucket`] if the bucket cannot be used.
    pub fn settle<C: IntoCosts>(self, real: C) -> impl Future<Output = Result<(), AcquireError>> + Send + use<C> {
        let real = acquire::in_units(&self.shared.store.policy(), self.shared.key.is_some(), real.into_costs());
        let settled = real.map(|real| self.shared.report(Operation::Settle { number: self.number, real }));
        async move { settled?.await.map_err(AcquireError::Bucket) }
    }
}

impl Drop for Granted {
    /// Reports that its costs are final, and that it no longer counts as running. Nothing waits for that.
    fn drop(&mut self) {
        if self.is_open {
            self.shared.order(Order::Report(Operation::Ended(vec![self.number]), None));
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("bucket", &self.store.place()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted").field("costs", &self.costs()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    fn open(limit: &str) -> (tempfile::TempDir, Shared) {
        let folder = tempfile::tempdir().unwrap();
        let shared = Shared::with_limits(folder.path().join("b"), &[limit.parse().unwrap()]).unwrap();
        (folder, shared)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Its units were lost.
    #[test]
    fn a_grant_that_nobody_has_seen_is_given_back() {
        let (_folder, shared) = open("10/s,burst=10");
        shared.acquire(10).block().unwrap();
        let available = || block_on(shared.available()).unwrap();
        let mut waits = Box::pin(shared.acquire(10));
        assert!(is_pending(&mut waits));
        std::thread::sleep(Duration::from_millis(1100));
        // It was granted, and nobody has polled its future.
        drop(waits);
        assert_eq!(available(), 10);
    }
}
