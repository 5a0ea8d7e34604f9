//! A store in this process, for tests: clones share one log.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use throttle_limits::clock::{NanoClock, Nanos};
use throttle_limits::ledger::Replica;
use throttle_limits::ledger::operation::{Operation, Owner, Record};
use throttle_limits::limits::Policy;
use throttle_limits::store::{Store, StoreError};

/// A bucket in memory. It is as near as a file. As in a file, each process folds the log by itself.
#[derive(Debug)]
pub(crate) struct Simulated<C> {
    log: Arc<Mutex<Log>>,
    folded: Mutex<Folded>,
    clock: C,
    owner: Owner,
}

#[derive(Debug, Default)]
struct Log {
    records: Vec<Record>,
    /// The latest time that was returned. No later record has an earlier time.
    latest: Nanos,
}

/// The ledger of one process, and the number of records in it.
#[derive(Clone, Debug)]
struct Folded {
    replica: Replica,
    next: usize,
}

impl<C: NanoClock> Simulated<C> {
    /// A bucket with this policy, whose grants are committed when they are due by now and `horizon`.
    pub(crate) fn new(policy: &Policy, clock: C, horizon: Nanos) -> Self {
        let replica = Replica::new(policy, clock.now(), 0, horizon);
        Simulated { log: Arc::default(), folded: Mutex::new(Folded { replica, next: 0 }), clock, owner: [0; 2] }
    }

    /// The same bucket, for another process.
    pub(crate) fn owned_by(self, owner: Owner) -> Self {
        Simulated { owner, ..self }
    }
}

impl<C: Clone> Clone for Simulated<C> {
    fn clone(&self) -> Self {
        let folded = Mutex::new(self.folded.lock().unwrap().clone());
        Simulated { log: Arc::clone(&self.log), folded, clock: self.clock.clone(), owner: self.owner }
    }
}

impl<C: NanoClock + Debug> Store for Simulated<C> {
    fn clock(&self) -> &dyn NanoClock {
        &self.clock
    }

    fn place(&self) -> String {
        "this test".to_owned()
    }

    fn owner(&self) -> Owner {
        self.owner
    }

    fn send(&self, operations: Vec<Operation>) -> Result<Nanos, StoreError> {
        let (mut log, mut folded) = (self.log.lock().unwrap(), self.folded.lock().unwrap());
        let time = self.clock.now().max(log.latest);
        log.latest = time;
        if !operations.is_empty() {
            log.records.push(Record { time, owner: self.owner, sequence: 0, operations });
        }
        let Folded { replica, next } = &mut *folded;
        log.records[*next..].iter().for_each(|record| replica.apply(record));
        *next = log.records.len();
        replica.advance(time);
        Ok(time)
    }

    fn see(&self, look: &mut dyn FnMut(&mut Replica)) {
        look(&mut self.folded.lock().unwrap().replica);
    }

    fn round_trip(&self) -> Nanos {
        0
    }
}
