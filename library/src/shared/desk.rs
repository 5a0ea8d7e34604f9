//! The thread that sends the requests of a process to a bucket, and passes the grants on.

use super::order::Order;
use crate::clock::{Nanos, in_nanos};
use crate::ledger::operation::{Ask, Grant, Operation, Refusal};
use crate::limits;
use crate::store::{AnyStore, BucketError, Client, Next, StoreError, with_replica};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The time between two operations that report this process to a server that counts running jobs.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// The requests of a process.
pub(super) struct Desk {
    client: Client,
    /// Orders that have arrived and are not carried out yet.
    orders: VecDeque<Order>,
    /// Who waits, by ticket.
    waiting: HashMap<u64, oneshot::Sender<Result<Grant, BucketError>>>,
    /// Whether a request was dropped.
    has_dropped: bool,
    /// When requests are refused that are not granted by then. By the clock of this machine, because the estimate of a
    /// server's clock improves with each answer.
    deadlines: BTreeSet<(Instant, u64)>,
}

impl Desk {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn open(store: Arc<AnyStore>) -> io::Result<Sender<Order>> {
        let (orders, received) = mpsc::channel();
        let desk = Desk {
            client: Client::new(store),
            orders: VecDeque::new(),
            waiting: HashMap::new(),
            has_dropped: false,
            deadlines: BTreeSet::new(),
        };
        let serve = move || desk.serve(&received);
        std::thread::Builder::new().name("throttle-shared".to_owned()).spawn(serve)?;
        Ok(orders)
    }

    /// Serves until the last handle is dropped.
    fn serve(mut self, received: &Receiver<Order>) {
        loop {
            match received.recv_timeout(self.patience()) {
                Ok(order) => {
                    self.orders.push_back(order);
                    // The orders that have arrived share an operation.
                    self.orders.extend(received.try_iter());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let is_alone = self.client.is_empty();
                    if is_alone && self.is_kept_alive() {
                        // Best effort: if the server does not answer now, the next attempt may succeed.
                        let _ = self.client.exchange();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.client.withdraw();
                    return;
                }
            }
            if let Err(error) = self.carry_out().and_then(|()| self.pass_on()) {
                // An order that arrived while the bucket was asked is no reason to ask it again.
                self.orders.extend(received.try_iter());
                self.fail(&error);
            }
        }
    }

    fn is_kept_alive(&self) -> bool {
        self.client.store().is_counted() || self.client.has_outgoing()
    }

    /// The time until something happens without an order.
    fn patience(&self) -> Duration {
        let clock = self.client.store().clock();
        let due = self.client.next_event().map(|at| Duration::from_nanos(at.saturating_sub(clock.now())));
        let latest = self.deadlines.first().map(|(latest, _)| latest.saturating_duration_since(Instant::now()));
        let alive = self.is_kept_alive().then_some(KEEPALIVE_INTERVAL);
        [due, latest, alive].into_iter().flatten().min().unwrap_or(Duration::from_secs(3600))
    }

    /// Carries out the orders that have arrived.
    fn carry_out(&mut self) -> Result<(), BucketError> {
        while let Some(order) = self.orders.pop_front() {
            match order {
                Order::Ask(ask, latest, answer) => self.ask(ask, latest, answer)?,
                Order::Cancel => self.has_dropped = true,
                Order::Report(operation, answer) => {
                    self.cancel_dropped();
                    self.client.report(operation);
                    let done = self.client.exchange().map_err(BucketError::from);
                    if let Some(answer) = answer {
                        let _ = answer.send(done.clone());
                    }
                    done?;
                }
                Order::Look(answer) => {
                    self.cancel_dropped();
                    let read = self.client.exchange().and_then(|()| self.client.store().sync());
                    let read = read.map_err(BucketError::from);
                    let available = |now| with_replica(&**self.client.store(), |replica| replica.available(now));
                    let _ = answer.send(read.clone().map(available));
                    read?;
                }
            }
        }
        self.cancel_dropped();
        Ok(())
    }

    /// Cancels the requests that were dropped.
    fn cancel_dropped(&mut self) {
        if std::mem::take(&mut self.has_dropped) {
            let client = &mut self.client;
            self.waiting.retain(|ticket, answer| {
                let is_dropped = answer.is_closed();
                if is_dropped {
                    client.cancel(*ticket);
                }
                !is_dropped
            });
        }
    }

    fn ask(
        &mut self,
        ask: Ask,
        latest: Option<Instant>,
        answer: oneshot::Sender<Result<Grant, BucketError>>,
    ) -> Result<(), StoreError> {
        let ticket = self.client.ask(ask);
        self.waiting.insert(ticket, answer);
        let Some(latest) = latest else { return Ok(()) };
        self.deadlines.insert((latest, ticket));
        self.client.exchange()?;
        let remaining = in_nanos(latest.saturating_duration_since(Instant::now()));
        let is_late =
            self.client.estimate(ticket).map_or(remaining == 0, |at| at > self.now().saturating_add(remaining));
        if is_late && self.client.waits(ticket) {
            self.refuse_late(latest, ticket);
        }
        Ok(())
    }

    /// Refuses a request that is not granted by this time.
    fn refuse_late(&mut self, latest: Instant, ticket: u64) {
        self.deadlines.remove(&(latest, ticket));
        if !self.client.waits(ticket) {
            return;
        }
        let (now, at) = (self.now(), self.client.estimate(ticket));
        let why = at.map_or(limits::Refusal::Busy, |at| limits::Refusal::TooLong { wait: at.saturating_sub(now) });
        self.client.deny(ticket);
        self.answer(ticket, Err(StoreError::from(why).into()));
    }

    fn now(&self) -> Nanos {
        self.client.store().clock().now()
    }

    /// Passes on what is due.
    fn pass_on(&mut self) -> Result<(), BucketError> {
        let now = Instant::now();
        while let Some((latest, ticket)) = self.deadlines.first().copied().filter(|(latest, _)| *latest <= now) {
            self.refuse_late(latest, ticket);
        }
        loop {
            match self.client.poll(u64::MAX)? {
                Next::Go(grant) => {
                    if !self.answer(grant.ticket, Ok(grant)) {
                        self.client.report(Operation::Unused(vec![grant.number]));
                    }
                }
                Next::Refused(ticket, why) => {
                    let why = match why {
                        Refusal::GivenUp(failed) => limits::Refusal::GivenUp(failed),
                        _ => limits::Refusal::Never,
                    };
                    self.answer(ticket, Err(StoreError::from(why).into()));
                }
                Next::At(_) | Next::Nothing => return Ok(()),
            }
        }
    }

    /// Answers a request. Returns whether somebody has received the answer.
    fn answer(&mut self, ticket: u64, answer: Result<Grant, BucketError>) -> bool {
        self.waiting.remove(&ticket).is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    /// All requests that were made until now fail. Reports are sent with the next request.
    fn fail(&mut self, error: &BucketError) {
        for order in std::mem::take(&mut self.orders) {
            match order {
                Order::Ask(_, _, answer) => drop(answer.send(Err(error.clone()))),
                Order::Cancel => self.has_dropped = true,
                Order::Report(operation, answer) => {
                    self.client.report(operation);
                    drop(answer.map(|answer| answer.send(Err(error.clone()))));
                }
                Order::Look(answer) => drop(answer.send(Err(error.clone()))),
            }
        }
        self.cancel_dropped();
        for ticket in self.waiting.keys().copied().collect::<Vec<_>>() {
            self.client.cancel(ticket);
            self.answer(ticket, Err(error.clone()));
        }
        self.client.pause();
    }
}
