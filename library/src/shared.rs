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
//! Requests of all processes are granted in the order in which the bucket receives them. A request that waits longer
//! than a second polls the bucket once a second for an earlier time. A future that is dropped gives its units back,
//! even if it is dropped because its runtime ends. A killed process is noticed within 15 seconds.
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
//! is reached, other requests poll 200 times a second, on a server four times. So with `jobs=` the requests of a
//! `Shared` are not granted in the order of their arrival.

use crate::clock::sync::unpoisoned;
use crate::clock::{MILLISECOND, NanoClock, Nanos};
use crate::limiter::{AcquireError, Acquiring, Costs, IntoCosts, PolicyError, Units, UnitsError};
use crate::limits::{CostList, OfKey, Policy, Refusal, Said, SaidCost, Take};
use crate::rate::{Limit, nanos};
use crate::store::{File, LATE, Named, Patience, Redis, RedisError, Store, StoreError, folder_of_buckets};
use std::ffi::OsStr;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

mod acquire;
mod handle;

pub use crate::store::BucketError;
pub use acquire::AcquireShared;
use acquire::OfBucket;
use handle::{AnyStore, Job, Stage};
pub use handle::{Granted, Shared};

/// The time between two operations that report this process to a server that counts running jobs.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// The time between two polls for a free job: first for a file, then for a server.
const FREE_JOB_POLL_INTERVALS: [Nanos; 2] = [5 * MILLISECOND, 250 * MILLISECOND];

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
        let (jobs, received) = mpsc::channel::<Job>();
        let bucket = Arc::clone(&store);
        let serve = move || serve(&*bucket, &received);
        std::thread::Builder::new().name("throttle-shared".to_owned()).spawn(serve).map_err(OpenError::Thread)?;
        Ok(Shared { store, jobs, settled: Arc::default(), key: None })
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
    /// - [`AcquireError::TooLong`] if too many requests of the key wait or too many keys are kept.
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
    /// Retry-After. At the end of the pause the buckets are empty and begin to fill. A request that already waits for a
    /// time within the pause keeps that time. All others wait until after the pause; no request moves up into it. A
    /// shorter pause does not end a longer pause that began earlier. Even [for a key](Self::for_key) this pauses the
    /// whole bucket.
    ///
    /// The pause is sent at once; the future returns when it has arrived. If the future is dropped, the pause still
    /// takes effect.
    ///
    /// # Errors
    /// The future returns an error if the bucket cannot be used; nothing is paused then.
    pub fn pause_for(&self, time: Duration) -> impl Future<Output = Result<(), BucketError>> + Send + use<> {
        let until = self.store.clock().now().saturating_add(nanos(time));
        let paused = self.job(move |store| store.hold_until(until));
        async move { Ok(paused.await?) }
    }

    /// The whole units that could be taken now by the overall limits. The limits of a [key](Self::for_key) are not
    /// included.
    ///
    /// # Errors
    /// The future returns an error if the bucket cannot be used.
    pub fn available(&self) -> impl Future<Output = Result<u64, BucketError>> + Send + use<> {
        let available = self.job(|store| store.view().map(|view| view.available));
        async move { Ok(available.await?) }
    }

    /// The bucket itself. Its calls block until the bucket has answered. Semantic versions do not cover it.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Sends a request and waits for its time. `remaining` returns the rest of the timeout by the clock of this
    /// machine, because the estimate of a server's clock improves with each answer.
    async fn request(
        &self,
        costs: &Costs,
        remaining: impl Fn() -> Nanos + Send,
        is_open: bool,
    ) -> Result<Result<Granted, UnitsError>, StoreError> {
        let clock = self.store.clock();
        let latest = clock.now().saturating_add(remaining());
        let mut was_busy = false;
        loop {
            let answer = self.send(costs, latest, is_open, was_busy).await;
            was_busy = matches!(answer, Err(StoreError::Refused(Refusal::Busy))) && remaining() > 0;
            if was_busy {
                let room = FREE_JOB_POLL_INTERVALS[usize::from(self.store.is_remote())].min(remaining());
                sleep_until(clock, clock.now().saturating_add(room)).await;
                continue;
            }
            let mut taken = match answer? {
                Ok(taken) => taken,
                wrong @ Err(_) => return Ok(wrong),
            };
            taken.wait().await;
            if clock.now().saturating_sub(taken.grant.at) > LATE {
                // If the future is dropped meanwhile, a grant that is not too late is given back.
                let check = move |store: &AnyStore| {
                    if store.is_too_late(&taken.grant, &taken.take) {
                        taken.stage = Stage::Settled; // The bucket has recorded that it was not used.
                    }
                    Ok(taken)
                };
                taken = self.job(check).await?;
            }
            if taken.stage == Stage::Waits {
                taken.stage = if is_open { Stage::Open } else { Stage::Settled };
                return Ok(Ok(taken));
            }
        }
    }

    /// The same bucket for one key, if it keeps limits for each key (`--set -r 1/s,per=host`). Costs are then given for
    /// each overall limit, followed by each limit of the key; or one cost is given for all limits. If the bucket keeps
    /// no keys, the key has no effect. This sends nothing to the bucket.
    #[must_use]
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Self {
        Shared { key: Some(key.as_ref().into()), ..self.clone() }
    }

    /// Sends a request for these costs. If nobody receives the grant, it is given back. If the job limit `was_busy`,
    /// the request is sent only if a place has become free.
    fn send(&self, costs: &Costs, latest: Nanos, is_open: bool, was_busy: bool) -> Answer<Result<Granted, UnitsError>> {
        let (shared, costs) = (self.clone(), costs.clone());
        self.job(move |store| {
            // The policy is behind a lock, which another request may hold while it waits for the server.
            let costs = match acquire::in_units(&store.policy(), shared.key.is_some(), costs) {
                Ok(costs) => costs,
                Err(error) => return Ok(Err(error)),
            };
            let open = is_open.then(|| store.learns());
            let take = Take { latest, open, ..request(store, shared.key.clone(), &costs) };
            if was_busy {
                store.sync()?;
                if store.is_busy(shared.key.as_deref().unwrap_or_default(), [0; 2]) {
                    return Err(Refusal::Busy.into());
                }
            }
            let (grant, _) = store.take_as(take.clone())?;
            Ok(Ok(Granted { shared, grant, take, stage: Stage::Waits }))
        })
    }

    /// Runs `act` with the bucket, after all earlier jobs. The job is sent even if nobody waits for its result.
    fn job<T: Send + 'static>(
        &self,
        act: impl FnOnce(&AnyStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Answer<T> {
        let (answer, received) = oneshot::channel();
        let job = move |store: Result<&AnyStore, RedisError>| {
            let done = store.map_err(StoreError::Redis).and_then(act);
            let away = match &done {
                Err(StoreError::Redis(error)) if error.may_pass() => Some(error.clone()),
                _ => None,
            };
            let _ = answer.send(done);
            away
        };
        // The thread lives at least as long as `self`.
        let _ = self.jobs.send((Instant::now(), Box::new(job)));
        Box::pin(async { received.await.unwrap_or(Err(StoreError::Stopped)) })
    }
}

/// The answer of the thread to a job.
type Answer<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// A request for these costs, with the key if there is one.
fn request(store: &AnyStore, key: Option<Box<[u8]>>, costs: &[u64]) -> Take {
    let Some(name) = key else { return Take::of(costs) };
    let of_all = store.policy().len();
    let (all, each) = if costs.len() > of_all { costs.split_at(of_all) } else { (costs, costs) };
    Take { key: Some(OfKey { costs: each.into(), ..OfKey::of(name) }), ..Take::of(all) }
}

/// The costs that were charged for a request: for each overall limit, then for each limit of its key.
fn charged(store: &AnyStore, take: &Take) -> Box<[u64]> {
    let policy = store.policy();
    let of_key = policy.of_keys().map_or(0, |keys| keys.each.len());
    let key = take.key.iter().flat_map(|of| (0..of_key).map(|place| (&*of.costs).of(place)));
    (0..policy.len()).map(|place| (&*take.costs).of(place)).chain(key).collect()
}

impl Granted {
    /// The costs that were charged to the overall limits.
    #[must_use]
    pub fn costs(&self) -> Costs {
        Costs::from_slice(&self.take.costs.iter().map(|units| Units::whole(*units)).collect::<Vec<_>>())
    }

    /// Settles the grant at its real costs: from now on the bucket is as if they had been acquired from the start. They
    /// are sent at once; the future returns when they have arrived. If the future is dropped, the grant is still
    /// settled.
    ///
    /// # Errors
    /// The future returns them; the grant then keeps the acquired costs. [`AcquireError::Units`], or
    /// [`AcquireError::Bucket`] if the bucket cannot be used.
    pub fn settle<C: IntoCosts>(mut self, real: C) -> impl Future<Output = Result<(), AcquireError>> + Send + use<C> {
        let settled = self.settle_at(Some(real.into_costs()));
        async move { Ok(settled.await.map_err(|error| AcquireError::Bucket(error.into()))??) }
    }

    /// Settles the grant at its real costs, or without them at the charged costs.
    fn settle_at(&mut self, real: Option<Costs>) -> Answer<Result<(), UnitsError>> {
        let (grant, take, has_key) = (self.grant, self.take.clone(), self.shared.key.is_some());
        self.stage = Stage::Settled;
        let settled = Arc::clone(&self.shared.settled);
        self.shared.job(move |store| {
            let given = real.map(|real| acquire::in_units(&store.policy(), has_key, real)).transpose();
            let (real, answer) = match given {
                Ok(real) => (real.unwrap_or_else(|| charged(store, &take)), Ok(())),
                Err(error) => (charged(store, &take), Err(error)),
            };
            let done = store.settle(&grant, &take, &real);
            settled.notify_waiters();
            done.map(|()| answer)
        })
    }

    /// Waits for the time of the grant, which may move up.
    async fn wait(&mut self) {
        let clock = self.shared.store.clock();
        loop {
            let mut settled = pin!(self.shared.settled.notified());
            settled.as_mut().enable();
            let look = self.grant.next_look(clock.now(), self.take.open);
            let mut time = pin!(sleep_until(clock, look.unwrap_or(self.grant.at)));
            // If another grant was settled in this process, the time of this grant may have moved up.
            let has_come = poll_fn(|context| match settled.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending => time.as_mut().poll(context).map(|()| look.is_none()),
            });
            if has_come.await {
                return;
            }
            let (grant, take) = (self.grant, self.take.clone());
            // If the bucket does not answer, the last known time stays valid.
            if let Ok(found) = self.shared.job(move |store| store.look(&grant, &take)).await {
                self.grant = found;
            }
        }
    }
}

impl Drop for Granted {
    /// Sends the job without a wait for its result.
    fn drop(&mut self) {
        let (grant, take) = (self.grant, self.take.clone());
        match self.stage {
            Stage::Waits => drop(self.shared.job(move |store| store.give_back(&grant, &take))),
            Stage::Open => drop(self.settle_at(None)),
            Stage::Settled => {}
        }
        // If the bucket counts running jobs, this one counted until now.
        drop(self.shared.job(move |store| store.ended(&grant)));
    }
}

/// Runs the jobs one after another. If a server is found to be away, all jobs that were sent before that fail with the
/// same error. So each request waits only once for a silent server. A server forgets the running jobs of a process that
/// sent nothing for 12 s, so this thread also syncs in between.
fn serve(bucket: &AnyStore, received: &Receiver<Job>) {
    let mut away: Option<(Instant, RedisError)> = None;
    loop {
        let job = if bucket.is_remote() && bucket.policy().counts_jobs() {
            received.recv_timeout(KEEPALIVE_INTERVAL)
        } else {
            received.recv().map_err(RecvTimeoutError::from)
        };
        match job {
            Ok((sent, job)) => match &away {
                Some((found, error)) if sent <= *found => drop(job(Err(error.clone()))),
                _ => away = job(Ok(bucket)).map(|error| (Instant::now(), error)),
            },
            // Best effort: if the server does not answer now, the next attempt may succeed.
            Err(RecvTimeoutError::Timeout) => drop(bucket.sync()),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Wakes the task of one sleep. A clock wakes each waker once, and a task may sleep several times at once.
#[derive(Default)]
struct Sleeper(Mutex<Option<Waker>>);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        let waker = unpoisoned(self.0.lock()).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

async fn sleep_until(clock: &dyn NanoClock, time: Nanos) {
    let sleeper = Arc::new(Sleeper::default());
    poll_fn(|context| {
        if clock.now() >= time {
            return Poll::Ready(());
        }
        *unpoisoned(sleeper.0.lock()) = Some(context.waker().clone());
        clock.wake_at(time, &Waker::from(Arc::clone(&sleeper)));
        Poll::Pending
    })
    .await;
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
    use std::task::Context;

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
    fn a_request_dropped_while_it_may_be_late_is_given_back() {
        // Its grant may be late by a tenth of the time that fills the bucket: by 3 s.
        let (_folder, shared) = open("1/s,burst=30");
        shared.acquire(30).block().unwrap();
        let available = || block_on(shared.available()).unwrap();
        let mut waits = Box::pin(shared.acquire(1));
        assert!(is_pending(&mut waits));
        available(); // The bucket has received the request.
        assert!(is_pending(&mut waits));
        std::thread::sleep(Duration::from_millis(1300));
        let (proceed, proceeds) = mpsc::channel();
        drop(shared.job(move |_| Ok(proceeds.recv())));
        assert!(is_pending(&mut waits), "the thread has not checked yet whether the process woke too late");
        drop(waits);
        proceed.send(()).unwrap();
        available(); // The thread has checked, and sent the unused grant back to the bucket.
        assert_eq!(available(), 1);
    }
}
