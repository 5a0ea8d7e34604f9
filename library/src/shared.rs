//! Buckets that a service shares with other processes and machines, also with scripts that use the program `throttle`.
//!
//! A [`Shared`] is the limiter over a bucket: it waits as futures and as threads. A service and its cron jobs keep one quota:
//!
//! ```
//! use std::time::Duration;
//! use throttle_limits::shared::Shared;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let name = std::env::temp_dir().join(format!("bucket of docs {}", std::process::id()));
//! # let name = name.to_str().ok_or("a path")?;
//! // A name as for `throttle --bucket`, a path with a slash, or redis://host/NAME. If there is none yet, it is made.
//! let quota = Shared::with_limits(name, &["100/s,burst=10".parse()?, "5000/min,window".parse()?])?;
//! quota.take(&[1]).await?;
//! let taken = quota.take_to_settle(&[5]).await?; // an estimate
//! taken.settle(&[2]).await?; // what it cost
//! quota.pause_for(Duration::ZERO).await?;
//! // In a shell: throttle --bucket NAME --once ./report
//! # std::fs::remove_file(name)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! Costs are whole units, for each limit of the bucket in its order, or one for all limits: a limit beyond them costs
//! what the last of them says. Requests are granted in the order in which the bucket gets them, whichever process they
//! come from. Whoever waits longer than a second looks once a second whether it has moved up. A future that is dropped
//! gives back what it held. So does the end of a runtime; a process that is killed is noticed within 15 seconds.
//!
//! A file takes some microseconds for each request, a server one round trip. Requests of one `Shared` reach the bucket one
//! after another, on a thread of its own, `throttle-shared`, so no executor is blocked. The thread ends with the last clone.
//!
//! A grant for which the process woke too late is not used: then the request takes another.
//! If the server is away, a request fails after three seconds with an error that [may pass](StoreError::may_pass), and with it
//! all that were sent until then.
//!
//! If the bucket keeps `jobs=`, a request counts as running until what it [took](Taken) is dropped. While as many run as may, others
//! ask again 200 times a second, on a server four times: so here they are not granted in the order in which they came.

use crate::clock::sync::unpoisoned;
use crate::clock::{Clock, MILLISECOND, Nanos, Unpark};
use crate::limits::{CostList, Grant, OfKey, Policy, Take};
use crate::rate::{Limit, nanos};
use crate::store::{File, LATE, Named, Patience, Redis, Store, folder_of_buckets};
use std::ffi::OsStr;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub use crate::limits::{Disagreement, PolicyError, Refusal};
pub use crate::store::{FileError, RedisError, StoreError};

type AnyStore = dyn Store + Send + Sync;

/// What the thread does with the bucket, or says if the server is away, and when it was sent. Returns how the server is away, if it
/// is.
type Job = (Instant, Box<dyn FnOnce(Result<&AnyStore, RedisError>) -> Option<RedisError> + Send>);

/// A server that counts what runs hears of us about so often.
const HERE: Duration = Duration::from_secs(2);

/// How often it is asked whether another may run: of a file, and of a server.
const ROOM: [Nanos; 2] = [5 * MILLISECOND, 250 * MILLISECOND];

/// A bucket that other processes use, too. Clones share one connection. See the [module](self).
#[derive(Clone)]
pub struct Shared {
    store: Arc<AnyStore>,
    jobs: mpsc::Sender<Job>,
    /// The key that it takes for.
    key: Option<Box<[u8]>>,
}

/// Units that were taken and will be settled, see [`Shared::take_to_settle`]. Dropping it settles nothing: they cost what was
/// taken.
#[must_use = "dropping it settles nothing; take takes units for good"]
pub struct Taken {
    shared: Shared,
    grant: Grant,
    take: Take,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its time has not come: if it is dropped, it is given back.
    Waits,
    /// The bucket keeps it open until it is settled.
    Open,
    Settled,
}

/// Why a bucket cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// What is wrong with its name.
    Name(String),
    /// Limits that contradict each other.
    Limits(PolicyError),
    /// The bucket cannot be used, or has other limits.
    Store(StoreError),
    /// The thread that asks it cannot be started.
    Thread(std::io::Error),
}

messages! {
    OpenError {
        OpenError::Name(error) => ("{error}"),
        OpenError::Limits(error) => ("{error}"),
        OpenError::Store(error) => ("{error}"),
        OpenError::Thread(error) => ("the thread that asks the bucket cannot be started: {error}"),
    }
}

holds! {
    OpenError {
        Limits(PolicyError),
        Store(StoreError),
    }
}

impl Shared {
    /// The bucket of this name, path or address, which must exist: for example made by `throttle --bucket NAME --set -r LIMIT`.
    ///
    /// This blocks the thread until the bucket has answered: until nobody else keeps its file locked, or for up to
    /// three seconds if a server is away. It starts the thread `throttle-shared`.
    ///
    /// # Errors
    /// [`OpenError::Name`], [`OpenError::Store`], [`OpenError::Thread`].
    pub fn open(bucket: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        Shared::open_with(bucket.as_ref(), None)
    }

    /// Like [`open`](Self::open), but makes the bucket with these limits if there is none. If there is one, its limits
    /// must be these, in any order; only what is named here is compared.
    ///
    /// A limit that names none of `burst`, `initial` and `window` is a window, unless it is the fastest: then it is a
    /// bucket. A bucket that names no `burst` holds what comes in within 10 ms, at least one unit. A window that names
    /// no `slack` has a twentieth of its period, at most 250 ms.
    ///
    /// # Errors
    /// As for [`open`](Self::open); [`OpenError::Limits`] if there are none, or they contradict each other. In
    /// [`OpenError::Store`]: [`StoreError::Disagrees`] if the bucket has other limits, [`StoreError::Limits`] if these
    /// are more than 16, or `unlimited`.
    pub fn with_limits(bucket: impl AsRef<OsStr>, limits: &[Limit]) -> Result<Self, OpenError> {
        let shared = Shared::open_with(bucket.as_ref(), Some(&Policy::with_slack(limits, None)?))?;
        let said: Vec<_> = limits.iter().map(|limit| (*limit, None)).collect();
        let agrees = shared.store.policy().places_of(&said, None);
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
        Ok(Shared { store, jobs, key: None })
    }

    /// Waits until these costs are granted. The request is sent now, and not when the future is first polled. If the future is
    /// dropped before it ends, everything is given back.
    ///
    /// A cost above the burst of a bucket waits until so much has come in.
    ///
    /// # Errors
    /// The future's; nothing is taken then. [`StoreError::Refused`] with [`Refusal::Never`] for a cost above a window's
    /// count, and if the bucket keeps limits for each key and [no key](Self::for_key) is given. With a key also
    /// [`Refusal::GivenUp`], and [`Refusal::TooLong`] if too many wait or are kept. [`StoreError::File`],
    /// [`StoreError::Redis`], [`StoreError::Stopped`].
    pub fn take(&self, costs: &[u64]) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let taken = self.request(costs, None, false);
        async move { taken.await.map(drop) }
    }

    /// Like [`take`](Self::take), but if it would have to wait for longer than `limit`, it is refused at once. A limit
    /// of 0 does not wait at all. The answer of the bucket itself may take longer.
    ///
    /// # Errors
    /// As for [`take`](Self::take). In [`StoreError::Refused`] also [`Refusal::TooLong`] with the wait that would be
    /// needed, or [`Refusal::Busy`] if until then as many commands run as may.
    pub fn take_timeout(
        &self,
        costs: &[u64],
        limit: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let taken = self.request(costs, Some(limit), false);
        async move { taken.await.map(drop) }
    }

    /// Like [`take`](Self::take), for costs that are not known yet: these are an estimate, and [`settle`](Taken::settle)
    /// corrects them. For a timeout, drop the future.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn take_to_settle(&self, costs: &[u64]) -> impl Future<Output = Result<Taken, StoreError>> + Send + use<> {
        self.request(costs, None, true)
    }

    /// Like [`take`](Self::take), but blocks the thread.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn blocking_take(&self, costs: &[u64]) -> Result<(), StoreError> {
        block(self.take(costs))
    }

    /// Like [`take_timeout`](Self::take_timeout), but blocks the thread.
    ///
    /// # Errors
    /// As for [`take_timeout`](Self::take_timeout).
    pub fn blocking_take_timeout(&self, costs: &[u64], limit: Duration) -> Result<(), StoreError> {
        block(self.take_timeout(costs, limit))
    }

    /// Like [`take_to_settle`](Self::take_to_settle), but blocks the thread.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn blocking_take_to_settle(&self, costs: &[u64]) -> Result<Taken, StoreError> {
        block(self.take_to_settle(costs))
    }

    /// Grants nothing new for `time` from now to any user of the bucket, for example after a server answered with
    /// Retry-After. At the end of the pause the buckets are empty and begin to fill. A request that already waits for a
    /// time within the pause keeps that time; the others wait, and none moves up into the pause. A later pause that is
    /// shorter does not end a longer one. Also [for a key](Self::for_key) this pauses the whole bucket.
    ///
    /// It is sent now; the future tells whether it has arrived. If that is dropped, the pause holds all the same.
    ///
    /// # Errors
    /// The future's: [`StoreError::File`], [`StoreError::Redis`], or [`StoreError::Stopped`]; nothing is paused then.
    pub fn pause_for(&self, time: Duration) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let until = self.store.clock().now().saturating_add(nanos(time));
        self.job(move |store| store.hold_until(until))
    }

    /// Whole units that could be taken now, as far as the limits of all go; those of a [key](Self::for_key) are not
    /// looked at.
    ///
    /// # Errors
    /// The future's: [`StoreError::File`], [`StoreError::Redis`], or [`StoreError::Stopped`].
    pub fn available(&self) -> impl Future<Output = Result<u64, StoreError>> + Send + use<> {
        self.job(|store| store.view().map(|view| view.available))
    }

    /// The bucket itself. Its calls block until the bucket has answered. Not covered by semantic versions.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Sends a request, and waits for its time.
    fn request(
        &self,
        costs: &[u64],
        limit: Option<Duration>,
        is_open: bool,
    ) -> impl Future<Output = Result<Taken, StoreError>> + Send + use<> {
        let (begun, now) = (Instant::now(), self.store.clock().now());
        let latest = limit.map_or(Nanos::MAX, |limit| now.saturating_add(nanos(limit)));
        // By this machine's clock: what is known of a server's changes with each answer.
        let left = move || limit.map_or(Nanos::MAX, |limit| nanos(limit.saturating_sub(begun.elapsed())));
        let (shared, costs) = (self.clone(), Box::<[u64]>::from(costs));
        let mut sent = shared.send(&costs, latest, is_open, false);
        async move {
            let clock = shared.store.clock();
            loop {
                let answer = sent.await;
                let is_busy = matches!(answer, Err(StoreError::Refused(Refusal::Busy))) && left() > 0;
                if is_busy {
                    let room = ROOM[usize::from(shared.store.is_remote())].min(left());
                    sleep_until(clock, clock.now().saturating_add(room)).await;
                } else {
                    let mut taken = answer?;
                    taken.wait().await;
                    let (grant, asked) = (taken.grant, taken.take.clone());
                    let may_be_late = clock.now().saturating_sub(grant.at) > LATE;
                    // If this is dropped meanwhile, the bucket may have learned already that it was not used.
                    taken.stage = if may_be_late { Stage::Settled } else { Stage::Waits };
                    if !may_be_late || !shared.job(move |store| Ok(store.is_too_late(&grant, &asked))).await? {
                        taken.stage = if is_open { Stage::Open } else { Stage::Settled };
                        return Ok(taken);
                    }
                    taken.stage = Stage::Settled; // The bucket knows that it was not used.
                }
                sent = shared.send(&costs, latest, is_open, is_busy);
            }
        }
    }

    /// The same bucket, for one key, if it keeps limits for each key (`--set -r 1/s,per=host`). Costs are then given
    /// for each limit of all and behind them for each limit of the key, or once for all limits. If it keeps none, the
    /// key has no effect. This does not ask the bucket.
    #[must_use]
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Self {
        Shared { key: Some(key.as_ref().into()), ..self.clone() }
    }

    /// Has the bucket grant these costs. If nobody receives the grant, it is given back. If it `was_busy`, it is asked only if
    /// another may run meanwhile.
    fn send(&self, costs: &[u64], latest: Nanos, is_open: bool, was_busy: bool) -> Answer<Taken> {
        let (shared, costs) = (self.clone(), Box::<[u64]>::from(costs));
        self.job(move |store| {
            let take = Take { latest, is_open, ..asked(store, shared.key.clone(), &costs) };
            if was_busy {
                store.sync()?;
                if store.is_busy(shared.key.as_deref().unwrap_or_default(), [0; 2]) {
                    return Err(Refusal::Busy.into());
                }
            }
            let (grant, _) = store.take_as(take.clone())?;
            Ok(Taken { shared, grant, take, stage: Stage::Waits })
        })
    }

    /// Does something with the bucket, after all that was sent before.
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
        // The thread lives as long as this does.
        let _ = self.jobs.send((Instant::now(), Box::new(job)));
        Answer(received)
    }
}

/// A request for these costs, perhaps of a key.
fn asked(store: &AnyStore, key: Option<Box<[u8]>>, costs: &[u64]) -> Take {
    let Some(name) = key else { return Take::of(costs) };
    let of_all = store.policy().len();
    let (all, each) = if costs.len() > of_all { costs.split_at(of_all) } else { (costs, costs) };
    Take { key: Some(OfKey { costs: each.into(), ..OfKey::of(name) }), ..Take::of(all) }
}

/// What was charged for a request: for each limit of all, then for each of its key.
fn charged(store: &AnyStore, take: &Take) -> Box<[u64]> {
    let policy = store.policy();
    let of_key = policy.of_keys().map_or(0, |keys| keys.each.len());
    let key = take.key.iter().flat_map(|of| (0..of_key).map(|place| (&*of.costs).of(place)));
    (0..policy.len()).map(|place| (&*take.costs).of(place)).chain(key).collect()
}

/// What the thread will answer.
struct Answer<T>(oneshot::Receiver<Result<T, StoreError>>);

impl<T> Future for Answer<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(StoreError::Stopped)))
    }
}

impl Taken {
    /// What was taken, as it was given, without what stands there for the limits of a key.
    #[must_use]
    pub fn costs(&self) -> &[u64] {
        &self.take.costs
    }

    /// Settles it at its real costs: from now on the bucket is as if they had been taken in the first place. It is sent
    /// now; the future tells whether it has arrived. If that is dropped, it is settled all the same.
    ///
    /// # Errors
    /// The future's: [`StoreError::File`], [`StoreError::Redis`], or [`StoreError::Stopped`]; it is not settled then.
    pub fn settle(mut self, real: &[u64]) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        self.settle_at(Some(real.into()))
    }

    /// Settles it at what it really cost, or, without that, at what it was charged.
    fn settle_at(&mut self, real: Option<Box<[u64]>>) -> Answer<()> {
        let (grant, take) = (self.grant, self.take.clone());
        self.stage = Stage::Settled;
        self.shared.job(move |store| {
            let real = real.unwrap_or_else(|| charged(store, &take));
            store.settle(&grant, &take, &real)
        })
    }

    /// Waits for its time, which may move up.
    async fn wait(&mut self) {
        let clock = self.shared.store.clock();
        while let Some(look) = self.grant.next_look(clock.now()).filter(|_| self.shared.store.is_shared()) {
            sleep_until(clock, look).await;
            let (grant, take) = (self.grant, self.take.clone());
            // If the bucket does not answer, the time told before is still good.
            if let Ok(found) = self.shared.job(move |store| store.look(&grant, &take)).await {
                self.grant = found;
            }
        }
        sleep_until(clock, self.grant.at).await;
    }
}

impl Drop for Taken {
    /// It is sent; nobody waits for it.
    fn drop(&mut self) {
        let (grant, take) = (self.grant, self.take.clone());
        match self.stage {
            Stage::Waits => drop(self.shared.job(move |store| store.give_back(&grant, &take))),
            Stage::Open => drop(self.settle_at(None)),
            Stage::Settled => {}
        }
        // If the bucket counts what runs, this counted until now.
        drop(self.shared.job(move |store| store.ended(&grant)));
    }
}

/// Does the requests one after the other. What was sent before the server was found to be away fails with that: each request waits
/// once for a silent server. A server forgets what runs of a process that it has not heard of for 12 s, so it is told in between.
fn serve(bucket: &AnyStore, received: &Receiver<Job>) {
    let mut away: Option<(Instant, RedisError)> = None;
    loop {
        let job = if bucket.is_remote() && bucket.policy().counts_jobs() {
            received.recv_timeout(HERE)
        } else {
            received.recv().map_err(RecvTimeoutError::from)
        };
        match job {
            Ok((sent, job)) => match &away {
                Some((found, error)) if sent <= *found => drop(job(Err(error.clone()))),
                _ => away = job(Ok(bucket)).map(|error| (Instant::now(), error)),
            },
            // Best effort: if the server does not answer now, it may the next time.
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

async fn sleep_until(clock: &dyn Clock, time: Nanos) {
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

/// Runs a future on this thread.
fn block<T>(future: impl Future<Output = T>) -> T {
    let (mut future, waker) = (pin!(future), Unpark::this_thread());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("bucket", &self.store.place()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").field("costs", &self.take.costs).finish_non_exhaustive()
    }
}
