//! Shared buckets in stores of every kind, on a fake clock, and processes that use them.

use super::simulated::Simulated;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use throttle_limits::clock::{FakeClock, Nanos};
use throttle_limits::ledger::operation::{Ask, Grant, Operation, PLAIN, Refusal};
use throttle_limits::limits::Policy;
use throttle_limits::store::{AnyStore, Client, File, Machine, Next, Place, Redis, StoreError, View};

/// The first time of every bucket's clock: a whole number of microseconds, as a server counts.
pub(crate) const START: Nanos = 5_000;

/// How long before its time a grant is committed at these buckets.
pub(crate) const HORIZON: Nanos = 10_000_000;

/// A bucket on a clock that the test sets.
pub(crate) struct Bucket {
    pub(crate) name: &'static str,
    pub(crate) clock: FakeClock,
    policy: Policy,
    home: Home,
}

/// It is removed together with the bucket.
enum Home {
    Memory(Box<Simulated<FakeClock>>, AtomicU64),
    Folder(tempfile::TempDir),
    Server(super::redis::Redis),
}

pub(crate) fn policy(limits: &[&str]) -> Policy {
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Policy::new(&limits, None).unwrap()
}

pub(crate) fn place(path: &Path) -> Place {
    Place { path: path.to_owned(), own_folder: false, group: None }
}

/// A request with these costs.
pub(crate) fn ask(costs: &[u64]) -> Ask {
    Ask { costs: costs.into(), latest: Nanos::MAX, ..Ask::default() }
}

/// Runs `check` with a bucket of these limits in a store of every kind, in parallel.
pub(crate) fn on_every_store(limits: &[&str], check: impl Fn(&Bucket) + Sync) {
    on_every_store_with(&policy(limits), check);
}

pub(crate) fn on_every_store_with(policy: &Policy, check: impl Fn(&Bucket) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for open in [Bucket::in_memory, Bucket::in_file, Bucket::on_server] {
            scope.spawn(move || open(policy).iter().for_each(check));
        }
    });
}

impl Bucket {
    fn new(name: &'static str, policy: &Policy, home: impl FnOnce(&FakeClock) -> Option<Home>) -> Option<Bucket> {
        let clock = FakeClock::at(Duration::from_nanos(START));
        let home = home(&clock)?;
        Some(Bucket { name, clock, policy: policy.clone(), home })
    }

    pub(crate) fn in_memory(policy: &Policy) -> Option<Bucket> {
        let home = |clock: &FakeClock| {
            Some(Home::Memory(Box::new(Simulated::new(policy, clock.clone(), HORIZON)), AtomicU64::default()))
        };
        Bucket::new("simulated", policy, home)
    }

    pub(crate) fn in_file(policy: &Policy) -> Option<Bucket> {
        Bucket::new("file", policy, |_| Some(Home::Folder(tempfile::tempdir().unwrap())))
    }

    /// `None` if no server is installed.
    pub(crate) fn on_server(policy: &Policy) -> Option<Bucket> {
        Bucket::new("redis", policy, |_| super::redis::Redis::start(&[]).map(Home::Server))
    }

    /// The bucket, as a further process opens it.
    pub(crate) fn store(&self) -> Arc<AnyStore> {
        let (policy, clock) = (Some(&self.policy), &self.clock);
        match &self.home {
            Home::Memory(store, count) => {
                Arc::new(Simulated::clone(store).owned_by([count.fetch_add(1, Ordering::Relaxed) + 1, 0]))
            }
            Home::Folder(folder) => {
                let place = place(&folder.path().join("bucket"));
                Arc::new(File::open_until(Machine::fake(clock, 1, 0), place, policy, None).unwrap())
            }
            Home::Server(server) => {
                let address = server.bucket("bucket").parse().unwrap();
                Arc::new(Redis::open_on_fake(address, policy, clock.clone()).unwrap())
            }
        }
    }

    /// A further process that uses the bucket.
    pub(crate) fn process(&self) -> Process {
        Process::new(self.store())
    }

    /// Sets the clock to this time after its start.
    pub(crate) fn set(&self, after: Nanos) {
        self.clock.set(Duration::from_nanos(START + after));
    }
}

/// A process at a bucket. It sleeps on the bucket's clock.
pub(crate) struct Process {
    pub(crate) client: Client,
}

impl Process {
    pub(crate) fn new(store: Arc<AnyStore>) -> Process {
        Process { client: Client::new(store) }
    }

    pub(crate) fn store(&self) -> &AnyStore {
        &**self.client.store()
    }

    /// The time of the bucket's clock.
    pub(crate) fn now(&self) -> Nanos {
        self.store().clock().now()
    }

    pub(crate) fn view(&self) -> View {
        self.store().view().unwrap()
    }

    pub(crate) fn send(&self, operation: Operation) {
        self.store().send(vec![operation]).unwrap();
    }

    /// Requests a unit, and returns the ticket of the request.
    pub(crate) fn ask(&mut self, costs: &[u64]) -> u64 {
        self.request(ask(costs))
    }

    pub(crate) fn request(&mut self, ask: Ask) -> u64 {
        let ticket = self.client.ask(ask);
        self.client.exchange().unwrap();
        ticket
    }

    /// When a request is granted if nothing changes.
    pub(crate) fn estimate(&mut self, ticket: u64) -> Option<Nanos> {
        self.client.exchange().unwrap();
        self.client.estimate(ticket)
    }

    /// The next event, without a sleep.
    pub(crate) fn poll(&mut self) -> Next {
        self.client.poll(u64::MAX).unwrap()
    }

    /// Sleeps until a unit may leave, or until a request is refused.
    pub(crate) fn event(&mut self) -> Result<Grant, (u64, Refusal)> {
        loop {
            match self.poll() {
                Next::Go(grant) => return Ok(grant),
                Next::Refused(ticket, why) => return Err((ticket, why)),
                Next::At(time) => self.store().clock().sleep_until(time),
                Next::Nothing => panic!("nothing happens"),
            }
        }
    }

    /// Sleeps until a unit may leave.
    pub(crate) fn next(&mut self) -> Grant {
        self.event().unwrap()
    }

    /// Requests a unit, and sleeps until it may leave.
    pub(crate) fn take(&mut self, costs: &[u64]) -> Grant {
        let ticket = self.ask(costs);
        let grant = self.next();
        assert_eq!(grant.ticket, ticket);
        grant
    }

    /// Requests a unit that must leave now.
    pub(crate) fn take_now(&mut self, costs: &[u64]) -> Option<Grant> {
        let ticket = self.ask(costs);
        if self.client.estimate(ticket).is_none_or(|at| at > self.now()) {
            self.client.cancel(ticket);
            self.client.exchange().unwrap();
            return None;
        }
        Some(self.next())
    }

    /// The time of a request that is made now, if nothing changes. It leaves no trace.
    pub(crate) fn would_be_granted_at(&mut self, costs: &[u64]) -> Option<Nanos> {
        let ticket = self.ask(costs);
        let at = self.client.estimate(ticket);
        self.client.cancel(ticket);
        self.client.exchange().unwrap();
        at
    }

    pub(crate) fn settle(&mut self, grant: &Grant, real: &[u64]) {
        self.send(Operation::Settle { number: grant.number, real: real.into() });
    }

    /// Reports a grant that is not used.
    pub(crate) fn give_back(&mut self, grant: &Grant) {
        self.send(Operation::Unused(vec![grant.number]));
    }

    /// Ends the process in an orderly way.
    pub(crate) fn withdraw(&mut self) -> Result<(), StoreError> {
        self.client.withdraw()
    }
}

/// Sleeps until the next unit of any of these processes may leave, and returns the process.
pub(crate) fn next_of(processes: &mut [Process]) -> (usize, Grant) {
    loop {
        let mut next = None;
        for (place, process) in processes.iter_mut().enumerate() {
            match process.poll() {
                Next::Go(grant) => return (place, grant),
                Next::Refused(ticket, why) => panic!("{ticket}: {why:?}"),
                Next::At(time) => next = Some(next.map_or(time, |next: Nanos| next.min(time))),
                Next::Nothing => {}
            }
        }
        processes[0].store().clock().sleep_until(next.expect("something happens"));
    }
}

/// Whether a grant is one of plain units.
pub(crate) fn is_plain(grant: &Grant) -> bool {
    grant.ticket == PLAIN
}
