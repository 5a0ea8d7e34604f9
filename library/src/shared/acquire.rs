//! The future that acquires units of a bucket, and its errors.

use super::handle::{Granted, Shared};
use super::order::Order;
use crate::clock::{Nanos, Unpark};
use crate::ledger::operation::{Ask, Grant, Operation};
use crate::limiter::{AcquireError, Acquiring, Costs, PARTS, Request, UnitsError, WaitTime};
use crate::limits::{Policy, Refusal};
use crate::store::{BucketError, StoreError};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

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

/// A request on its way: the answer, and its costs.
struct Wait {
    answer: oneshot::Receiver<Result<Grant, BucketError>>,
    costs: Box<[u64]>,
}

impl<T> OfBucket<T> {
    pub(super) fn new(shared: &Shared, costs: Costs, is_open: bool, finish: fn(Granted) -> T) -> Self {
        OfBucket { shared: shared.clone(), costs, deadline: None, is_open, finish, wait: None, is_finished: false }
    }

    /// Sends the request, with the age of an earlier grant or 0.
    fn begin(&self, age: u64) -> Result<Wait, AcquireError> {
        let (policy, key) = (self.shared.store.policy(), self.shared.key.clone());
        let costs = in_units(&policy, key.is_some(), self.costs.clone())?;
        if policy.of_keys().is_some() && key.is_none() {
            return Err(AcquireError::Never { cost: self.costs.of(0) });
        }
        let settles = self.is_open || policy.counts_jobs();
        let ask = Ask { key, costs: costs.clone(), latest: Nanos::MAX, age, settles, ..Ask::default() };
        let (sender, answer) = oneshot::channel();
        self.shared.order(Order::Ask(ask, self.deadline, sender));
        Ok(Wait { answer, costs })
    }

    fn granted(&self, number: u64, costs: Box<[u64]>) -> T {
        let is_open = self.is_open || self.shared.store.policy().counts_jobs();
        (self.finish)(Granted { shared: self.shared.clone(), number, costs, is_open })
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
        loop {
            let mut wait = match self.wait.take() {
                Some(wait) => wait,
                None => match self.begin(0) {
                    Ok(wait) => wait,
                    Err(error) => {
                        self.is_finished = true;
                        return Poll::Ready(Err(error));
                    }
                },
            };
            let Poll::Ready(answer) = Pin::new(&mut wait.answer).poll(context) else {
                self.wait = Some(wait);
                return Poll::Pending;
            };
            let answer = answer.unwrap_or_else(|_| Err(StoreError::Stopped.into()));
            match answer {
                // This task was polled too late: it takes another grant.
                Ok(grant) if self.shared.store.is_late(grant.at) => {
                    self.shared.order(Order::Report(Operation::Unused(vec![grant.number]), None));
                    self.wait = self.begin(grant.age).ok();
                }
                answer => {
                    self.is_finished = true;
                    let granted = answer.map(|grant| self.granted(grant.number, wait.costs));
                    return Poll::Ready(granted.map_err(|error| refused(error, &self.costs)));
                }
            }
        }
    }
}

impl<T> Drop for OfBucket<T> {
    fn drop(&mut self) {
        let Some(mut wait) = self.wait.take() else { return };
        // Otherwise a grant could arrive after this look.
        wait.answer.close();
        match wait.answer.try_recv() {
            Ok(Ok(grant)) => self.shared.order(Order::Report(Operation::Unused(vec![grant.number]), None)),
            Ok(Err(_)) => {}
            Err(_) => self.shared.order(Order::Cancel),
        }
    }
}

impl<T> fmt::Debug for OfBucket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireShared").field("costs", &self.costs).finish_non_exhaustive()
    }
}

/// Converts an error of the bucket to an error of a limiter.
fn refused(error: BucketError, costs: &Costs) -> AcquireError {
    let cost = costs.of(0);
    match error.refusal() {
        Some(Refusal::TooLong { wait }) => {
            AcquireError::TooLong { cost, wait: WaitTime::from(Duration::from_nanos(wait)) }
        }
        Some(Refusal::Busy) => AcquireError::NoPlace,
        Some(Refusal::Never) => AcquireError::Never { cost },
        _ => AcquireError::Bucket(error),
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
