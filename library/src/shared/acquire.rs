//! The future that acquires units of a bucket, and its errors.

use super::handle::{Granted, Shared};
use crate::clock::{Nanos, Unpark};
use crate::limiter::{AcquireError, Acquiring, Costs, PARTS, Request, UnitsError, WaitTime};
use crate::limits::{Policy, Refusal};
use crate::rate::nanos;
use crate::store::StoreError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Waits for units of a bucket, see [`Shared::acquire`] and [`Shared::acquire_to_settle`]. If the future is dropped
/// unfinished, the bucket gets everything back. If it is polled again after it returned, it fails with
/// [`AcquireError::Finished`].
pub type AcquireShared<T> = Acquiring<OfBucket<T>>;

/// A request for units of a bucket.
pub struct OfBucket<T> {
    shared: Shared,
    costs: Costs,
    deadline: Option<Instant>,
    /// Whether the grant is kept open until it is settled.
    is_open: bool,
    finish: fn(Granted) -> T,
    wait: Option<Wait>,
    is_finished: bool,
}

type Wait = Pin<Box<dyn Future<Output = Result<Granted, AcquireError>> + Send>>;

impl<T> OfBucket<T> {
    pub(super) fn new(shared: &Shared, costs: Costs, is_open: bool, finish: fn(Granted) -> T) -> Self {
        OfBucket { shared: shared.clone(), costs, deadline: None, is_open, finish, wait: None, is_finished: false }
    }

    fn begin(&self) -> Wait {
        let (shared, is_open, deadline) = (self.shared.clone(), self.is_open, self.deadline);
        let costs = self.costs.clone();
        Box::pin(async move {
            let remaining =
                move || deadline.map_or(Nanos::MAX, |end| nanos(end.saturating_duration_since(Instant::now())));
            let granted = shared.request(&costs, remaining, is_open).await;
            Ok(granted.map_err(|error| refused(error, &costs))??)
        })
    }
}

impl<T> Request for OfBucket<T> {
    type Grant = T;

    fn end_after(&mut self, limit: Duration) {
        if self.wait.is_none() {
            self.deadline = Instant::now().checked_add(limit);
        }
    }

    fn block(&mut self) -> Result<T, AcquireError> {
        block(poll_fn(|context| self.poll(context)))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, AcquireError>> {
        if self.is_finished {
            return Poll::Ready(Err(AcquireError::Finished));
        }
        let mut wait = self.wait.take().unwrap_or_else(|| self.begin());
        let granted = wait.as_mut().poll(context);
        if granted.is_pending() {
            self.wait = Some(wait);
        } else {
            self.is_finished = true;
        }
        granted.map_ok(self.finish)
    }
}

impl<T> fmt::Debug for OfBucket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireShared").field("costs", &self.costs).finish_non_exhaustive()
    }
}

/// Converts an error of the bucket to an error of a limiter.
fn refused(error: StoreError, costs: &Costs) -> AcquireError {
    let cost = costs.of(0);
    match error {
        StoreError::Refused(Refusal::TooLong { wait }) => {
            AcquireError::TooLong { cost, wait: WaitTime::from(Duration::from_nanos(wait)) }
        }
        StoreError::Refused(Refusal::Busy) => AcquireError::NoPlace,
        StoreError::Refused(Refusal::Never) => AcquireError::Never { cost },
        error => AcquireError::Bucket(error.into()),
    }
}

/// The costs in whole units: one for all limits, or one for each limit.
pub(super) fn in_units(policy: &Policy, has_key: bool, costs: Costs) -> Result<Box<[u64]>, UnitsError> {
    let parts = costs.parts()?;
    let of_all = policy.len();
    let of_key = if has_key { policy.of_keys().map_or(0, |keys| keys.each.len()) } else { 0 };
    let (given, kinds) = (parts.list().len(), of_all + of_key);
    if ![1, of_all, kinds].contains(&given) {
        return Err(UnitsError::WrongCount { given, kinds });
    }
    let whole = |&part: &u64| if part % PARTS == 0 { Ok(part / PARTS) } else { Err(UnitsError::NotWhole) };
    parts.list().iter().map(whole).collect()
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
