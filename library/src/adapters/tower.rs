//! A limit for a service of [tower](https://docs.rs/tower).
//!
//! ```
//! use throttle_limits::adapters::tower::LimitLayer;
//! use throttle_limits::limiter::{Keyed, Limiter};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! struct Request {
//!     user: u64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let all = Limiter::builder().limit("100/s,burst=10".parse()?);
//! let users: Keyed<u64> = Limiter::builder().limit("2/s,burst=2".parse()?).keyed_within(&all)?;
//! let service = ServiceBuilder::new()
//!     .layer(LimitLayer::per_key(&users, |request: &Request| request.user).shed())
//!     .service(service_fn(|request: Request| async move { Ok::<_, std::io::Error>(request.user) }));
//! assert_eq!(service.oneshot(Request { user: 7 }).await?, 7);
//! # Ok(())
//! # }
//! ```

use crate::limiter::{self, AcquireError, Acquiring, IntoCosts, Keyed, Limiter};
use crate::limits::AsKey;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// The error of a service behind a limit: an [`AcquireError`] if the request was refused, otherwise the service's
/// error.
pub type BoxError = Box<dyn Error + Send + Sync>;

type Waits = Pin<Box<dyn Future<Output = Result<(), AcquireError>> + Send>>;

/// Begins the wait for the grant of a request, with an optional timeout.
type Begin<Request> = dyn Fn(&Request, Option<Duration>) -> Waits + Send + Sync;

/// Limits the requests to a service. Each request waits for its grant, first in, first out, and is then passed on. To
/// refuse instead of waiting: [`shed`](Self::shed). If the future of a call is dropped before the grant, nothing is
/// taken.
///
/// The service is always ready. The grant is taken in `call`, because the request may determine a key or a cost, and a
/// request that is not sent takes nothing. So any number of requests may wait; bound them with
/// [`max_waiters`](crate::limiter::Builder::max_waiters).
///
/// Only after its grant does a request wait until the inner service is ready. So a request that waits for its key takes
/// no place of an inner `ConcurrencyLimit` from others. Such an inner layer may delay requests after their grants; to
/// keep to the rate exactly, put it before this layer.
pub struct LimitLayer<Request> {
    begin: Arc<Begin<Request>>,
    most_wait: Option<Duration>,
}

/// A service behind a limit, see [`LimitLayer`].
pub struct Limited<S, Request> {
    inner: S,
    layer: LimitLayer<Request>,
}

impl<Request> LimitLayer<Request> {
    /// Each request costs 1. It may be refused with the errors of [`Limiter::acquire`].
    #[must_use]
    pub fn new(limiter: &Limiter) -> Self {
        LimitLayer::with_costs(limiter, |_| 1)
    }

    /// Each request costs the result of `costs`, for example its tokens. It may be refused as for [`new`](Self::new).
    pub fn with_costs<C: IntoCosts>(limiter: &Limiter, costs: impl Fn(&Request) -> C + Send + Sync + 'static) -> Self {
        let limiter = limiter.clone();
        LimitLayer::of(move |request| limiter.acquire_owned(costs(request)))
    }

    /// Each request takes one unit of its key, which is, for example, a user or a host. It may be refused with the
    /// errors of [`Keyed::acquire`].
    pub fn per_key<K: AsKey<K> + Hash + Send + Sync + 'static>(
        keyed: &Keyed<K>,
        key: impl Fn(&Request) -> K + Send + Sync + 'static,
    ) -> Self {
        let keyed = keyed.clone();
        LimitLayer::of(move |request| keyed.acquire_owned(key(request), 1))
    }

    fn of<R: limiter::Request<Grant = ()> + Send + 'static>(
        acquire: impl Fn(&Request) -> Acquiring<R> + Send + Sync + 'static,
    ) -> Self {
        let begin = move |request: &Request, most_wait: Option<Duration>| -> Waits {
            let acquire = acquire(request);
            Box::pin(match most_wait {
                Some(limit) => acquire.timeout(limit),
                None => acquire,
            })
        };
        LimitLayer { begin: Arc::new(begin), most_wait: None }
    }

    /// Refuses each request that would have to wait, like [`timeout`](Self::timeout) with a limit of 0.
    #[must_use]
    pub fn shed(self) -> Self {
        self.timeout(Duration::ZERO)
    }

    /// Refuses each request that would have to wait for its grant for longer than `limit`, with
    /// [`AcquireError::TooLong`] or [`AcquireError::TimedOut`]. The service itself may take any time after that.
    #[must_use]
    pub fn timeout(self, limit: Duration) -> Self {
        LimitLayer { most_wait: Some(limit), ..self }
    }
}

impl<S, Request> Layer<S> for LimitLayer<Request> {
    type Service = Limited<S, Request>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited { inner, layer: self.clone() }
    }
}

impl<S, Request> Service<Request> for Limited<S, Request>
where
    S: Service<Request, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let waits = (self.layer.begin)(&request, self.layer.most_wait);
        let mut inner = self.inner.clone();
        Box::pin(async move {
            waits.await?;
            poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
            inner.call(request).await.map_err(Into::into)
        })
    }
}

impl<Request> Clone for LimitLayer<Request> {
    fn clone(&self) -> Self {
        LimitLayer { begin: Arc::clone(&self.begin), most_wait: self.most_wait }
    }
}

impl<S: Clone, Request> Clone for Limited<S, Request> {
    fn clone(&self) -> Self {
        Limited { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<Request> fmt::Debug for LimitLayer<Request> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").field("most_wait", &self.most_wait).finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, Request> fmt::Debug for Limited<S, Request> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}
