//! For tests of shared buckets. It goes with the old scheduler, the [`Supply`](super::Supply).

use super::{Store, StoreError};
use crate::clock::sync::unpoisoned;
use crate::clock::{NanoClock, Nanos};
use crate::limits::{Ledger, Operation, Policy, Record, Reply};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};

/// A bucket in the memory of a test, on the clock of that test. Its clones are the same bucket, as several processes
/// would open it.
#[derive(Clone, Debug)]
pub struct Simulated<C> {
    ledger: Arc<Mutex<Ledger>>,
    clock: C,
    span: Nanos,
}

impl<C: NanoClock> Simulated<C> {
    /// The limits of `policy` in their initial state, from now on. A lease is one run.
    pub fn new(policy: &Policy, clock: C) -> Self {
        let ledger = Arc::new(Mutex::new(Ledger::new(policy, clock.now(), 0)));
        Simulated { ledger, clock, span: 0 }
    }

    /// The same bucket, whose leases cover this time.
    #[must_use]
    pub fn with_span(self, span: Nanos) -> Self {
        Simulated { span, ..self }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        unpoisoned(self.ledger.lock())
    }
}

impl<C: NanoClock + Debug> Store for Simulated<C> {
    fn clock(&self) -> &dyn NanoClock {
        &self.clock
    }

    fn place(&self) -> String {
        "this test".to_owned()
    }

    fn apply(&self, operation: Operation) -> Result<(Reply, Nanos), StoreError> {
        let mut ledger = self.ledger();
        let time = self.clock.now();
        Ok((ledger.apply(&Record { time, owner: [0; 2], sequence: 0, operation }), time))
    }

    fn sync(&self) -> Result<(), StoreError> {
        let time = self.clock.now();
        self.ledger().pass(time);
        Ok(())
    }

    fn see(&self, look: &mut dyn FnMut(&Ledger)) {
        look(&self.ledger());
    }

    fn span(&self) -> Nanos {
        self.span
    }
}
