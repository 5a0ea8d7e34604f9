//! A supply: grants for a stream of units, from a shared bucket. The pump draws from it.
//!
//! A supply requests leases from a store: consecutive reservations in one step, for units that were read. It
//! hands them out one by one. From a remote store it requests the next lease while one is in use, so that a slow
//! network costs no rate.

use super::lease::{Lease, Rules};
use super::{Store, StoreError, with_ledger};
use crate::clock::sync::unpoisoned;
use crate::clock::{NanoClock, Nanos, SECOND};
use crate::limits::{Ask, GiveBack, Grant, Ledger, Operation, Pace, Refusal, Reply, Served, Start, Take};
use std::sync::atomic::Ordering;
use std::thread;

mod ahead;
mod requested;
mod state;

pub use ahead::{Claim, Refused, When};
pub use state::Supply;
use state::{ASSUMED_SHARING_TIME, Leased};
pub(super) use state::{RETURN_TIMEOUT, lock_soon};

/// The most units that a stream without rivals reserves in advance for the same time.
const MAX_UNITS_OF_ONE_TIME: u64 = 8;

/// A span in nanoseconds in which all grants have the same time, because a server counts in microseconds.
const SAME_TIME_SPAN: Nanos = 1_000;

impl Supply {
    /// The store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Sets whether later grants to single units will be settled. Then shared limits are as if such a unit had cost its
    /// real cost from the start.
    pub fn settles(&self, settles: bool) {
        self.settles.store(settles, Ordering::Relaxed);
    }

    /// See [`Take::open`].
    fn open_for(&self) -> Option<Nanos> {
        self.settles.load(Ordering::Relaxed).then(|| self.store.learns())
    }

    /// The clock of all grant times.
    #[must_use]
    pub fn clock(&self) -> &dyn NanoClock {
        self.store.clock()
    }

    /// Sleeps until `time`, the time of a grant, or until the time to which that grant has moved up. `clock` must show
    /// the same time as [`clock`](Self::clock). At most one thread may sleep here.
    ///
    /// Returns false as soon as `is_over` is true; `is_over` is called whenever another thread unparks this one. Also
    /// returns false if it is [too late](Store::is_too_late) for that grant.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] as soon as the supply has [retired](Self::retire): the grant must not be used.
    pub fn sleep_unless(
        &self,
        clock: &dyn NanoClock,
        time: Nanos,
        is_over: &dyn Fn() -> bool,
    ) -> Result<bool, StoreError> {
        *unpoisoned(self.sleeper.lock()) = Some(thread::current());
        let is_retired = || self.is_retired.load(Ordering::SeqCst);
        let (handed, mut settled) = {
            let leased = self.leased();
            (leased.handed.clone().filter(|(run, _)| run.at == time), leased.settled)
        };
        let mut handed = handed.map(|(run, take)| (run, take.unwrap_or_else(|| Take::of(&[run.units]))));
        let number = handed.as_ref().map_or(u64::MAX, |(run, _)| run.number());
        let moved_to = |moved: &Grant| self.leased().handed.iter_mut().for_each(|(grant, _)| *grant = *moved);
        let has_come = loop {
            let has_settled = || self.settled.load(Ordering::SeqCst) != settled;
            let is_over = || is_retired() || is_over();
            let sleep =
                |time, _| !self.knows_outdated(number) && clock.sleep_unless(time, &|| is_over() || has_settled());
            let has_come = match &mut handed {
                Some((run, take)) => wait_for(&*self.store, *run, take, sleep, |moved| {
                    *run = *moved;
                    moved_to(moved);
                }),
                None => sleep(time, time),
            };
            let Some((run, take)) = handed.as_mut().filter(|_| !has_come && has_settled()) else { break has_come };
            if is_over() || self.knows_outdated(number) {
                break false;
            }
            settled = self.settled.load(Ordering::SeqCst);
            // Settlements by this process may have moved the grant up. If the store does not answer, the known time is
            // still good.
            if let Ok(found) = self.store.look_again(run, take) {
                *run = found;
                moved_to(run);
            }
        };
        if is_retired() {
            return Err(StoreError::Stopped);
        }
        let is_lost = |(run, take): (Grant, Take)| self.store.is_too_late(&run, &take);
        Ok(!self.is_outdated()? && has_come && !handed.is_some_and(is_lost))
    }

    /// `grant`, the latest grant, at its present time: it may have moved up during the [sleep](Self::sleep_unless).
    pub fn moved(&self, grant: Grant) -> Grant {
        let handed = self.leased().handed.as_ref().map(|(handed, _)| *handed);
        handed.filter(|handed| handed.number() == grant.number()).unwrap_or(grant)
    }

    /// Whether a server has refused a unit of another process since the latest grant was made. Then that grant is given
    /// back: its unit would leave in the pause, or too close to other units.
    ///
    /// # Errors
    /// [`StoreError`]; the grant must not be used then.
    pub fn is_outdated(&self) -> Result<bool, StoreError> {
        if !with_ledger(&*self.store, Ledger::was_refused) {
            return Ok(false);
        }
        let (mut leased, now) = (self.leased(), self.clock().now());
        let Some(number) = leased.handed.as_ref().map(|(run, _)| run.number()) else { return Ok(false) };
        if now > leased.requested_at.saturating_add(self.store.span()) {
            // If the store does not answer, the known state is still good.
            let _ = self.store.sync();
        }
        let is_outdated = self.knows_outdated(number);
        if is_outdated {
            self.return_all(&mut leased)?;
        }
        Ok(is_outdated)
    }

    /// Grants nothing before `until`: to any caller, or with a key, to units of that key. Without a key, gives back the
    /// reservations that have not left. A server refused the units started at `refused`; these refusals slow down later
    /// starts.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is held then.
    pub fn hold(&self, key: Option<&[u8]>, until: Nanos, refused: Vec<Start>) -> Result<(), StoreError> {
        // Nothing is reserved until the store has the pause.
        let mut leased = key.is_none().then(|| self.leased());
        if let Some(leased) = leased.as_mut().filter(|_| until > self.clock().now()) {
            self.return_all(leased)?;
        }
        self.store.apply(Operation::Hold { until, refused, key: key.map(Box::from) }).map(drop)
    }

    /// Reports successes. The bucket receives them with the next request, of the same key if there is one.
    pub fn served(&self, key: Option<&[u8]>, served: Served) {
        let mut leased = self.leased();
        let before = match key {
            Some(key) => leased.ahead.served.entry(key.into()).or_default(),
            None => &mut leased.served,
        };
        *before = before.and(served);
    }

    /// The learned pace, of one key or of all, and the start of a unit now.
    #[must_use]
    pub fn pace(&self, key: Option<&[u8]>) -> (Pace, Start) {
        let now = self.clock().now();
        let pace = with_ledger(&*self.store, |ledger| match key {
            Some(key) => ledger.pace_of(key, now),
            None => ledger.pace_at(now),
        });
        let start = pace.start(now);
        (pace, start)
    }

    /// Commands of this key have succeeded, or `failed` commands have failed since the last success. After too many
    /// failures the key gets no grants.
    ///
    /// # Errors
    /// [`StoreError`]; the report is lost then.
    pub fn tried(&self, key: &[u8], succeeded: bool, failed: u32) -> Result<(), StoreError> {
        if failed == 0 && with_ledger(&*self.store, |ledger| ledger.failed(key)) == 0 {
            return Ok(());
        }
        self.store.apply(Operation::Tried { key: key.into(), succeeded, failed }).map(drop)
    }

    /// The time of the next granted unit with a key, or else of the latest grant. The grant may have moved up since.
    #[must_use]
    pub fn waits_until(&self) -> Nanos {
        let leased = self.leased();
        leased.ahead.next_at().or(leased.handed.as_ref().map(|(grant, _)| grant.at)).unwrap_or(0)
    }

    /// Gives back all grants that have not left, because the process is about to end; see
    /// [`Limits::give_back`](crate::limits::Limits::give_back). Wakes the thread that sleeps until a grant. That thread
    /// and all later requests get [`StoreError::Stopped`]: nothing leaves after this call.
    ///
    /// Takes about a second at most. If giving back fails, at most one lease is lost, as when the process is killed.
    pub fn retire(&self) {
        if self.is_retired.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(sleeper) = &*unpoisoned(self.sleeper.lock()) {
            sleeper.unpark();
        }
        let Some(mut leased) = lock_soon(&self.leased) else { return };
        // A sleeper checks `is_retired` after its time has come. So a run whose time lies ahead has not left.
        if self.store.leave() {
            let _ = self.return_all(&mut leased);
        }
    }

    /// Gives back all reservations that have not left.
    fn return_all(&self, leased: &mut Leased) -> Result<(), StoreError> {
        let now = self.clock().now();
        match leased.handed.take().filter(|(grant, _)| grant.at > now) {
            Some((grant, Some(take))) => self.store.give_back(&grant, &take)?,
            Some((run, None)) => leased.lease.put_back(run),
            None => {}
        }
        self.receive(leased);
        self.return_ahead(leased)?;
        self.give_back(leased.lease.take_rest())
    }

    /// Gives back unused grants. If nothing was granted since, the result is as if they had not been requested.
    fn give_back(&self, unused: Vec<GiveBack>) -> Result<(), StoreError> {
        if unused.is_empty() { Ok(()) } else { self.store.apply(Operation::GiveBack(unused)).map(drop) }
    }

    /// The smallest run that is worth a wake-up; see [`Limits::quantum`](crate::limits::Limits::quantum).
    #[must_use]
    pub fn quantum(&self) -> u64 {
        with_ledger(&*self.store, |ledger| ledger.limits().quantum())
    }

    /// Units that may leave now or that are reserved, according to the ledger as last read.
    #[must_use]
    pub fn available(&self) -> u64 {
        match self.leased().lease.units() {
            0 => self.store.available(),
            units => units,
        }
    }

    /// The time by which `units` more will have been granted, according to the ledger as last read. Units with their
    /// own costs are expected to have the mean cost of the earlier units.
    #[must_use]
    pub fn schedule(&self, units: u64) -> Option<Nanos> {
        let (charged, count) = self.leased().charged.clone();
        let mean = |sum: &u64| {
            let all = u128::from(*sum) * u128::from(units);
            u64::try_from(all.checked_div(count.into()).unwrap_or(0)).unwrap_or(u64::MAX)
        };
        let costs: Vec<u64> = if count == 0 { vec![units] } else { charged.iter().map(mean).collect() };
        let (by_limits, now) = (self.store.schedule(&costs)?, self.clock().now());
        Some(with_ledger(&*self.store, |ledger| by_limits.max(ledger.limits().spaced(now, units))))
    }

    /// Grants one unit of these costs: one for each limit, or one for all. Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is granted then.
    pub fn take(&self, costs: &[u64]) -> Result<(Grant, Nanos), StoreError> {
        let mut leased = self.serving()?;
        let take = Take { open: self.open_for(), served: std::mem::take(&mut leased.served), ..Take::of(costs) };
        leased.settled = self.settled.load(Ordering::SeqCst);
        let (grant, requested_at) = self.store.take_as(take.clone()).map_err(|error| self.explained(error))?;
        leased.requested_at = requested_at;
        if let Err(error) = self.check_policy() {
            self.store.give_back(&grant, &take)?;
            return Err(error);
        }
        leased.count(&take.costs);
        leased.handed = Some((grant, Some(take)));
        Ok((grant, requested_at))
    }

    /// Grants a run of the `waiting` units, which must all have been read: the units that conform now, or at least a
    /// [quantum](Self::quantum). Also returns the time of the request.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is granted then.
    pub fn next_run(&self, waiting: u64) -> Result<(Grant, Nanos), StoreError> {
        let mut leased = self.serving()?;
        if let Some(run) = self.next_held(&mut leased, waiting)? {
            return Ok(run);
        }
        if self.receive(&mut leased)
            && let Some(run) = self.next_held(&mut leased, waiting)?
        {
            return Ok(run);
        }
        let ask = self.ask(&mut leased, waiting);
        let (reply, requested_at) = self.store.apply(Operation::Lease(ask))?;
        self.add(reply, &mut leased.lease)?;
        leased.detect_others();
        leased.requested_at = requested_at;
        self.check_policy()?;
        leased.next(waiting).map(|run| (run, requested_at)).ok_or(Refusal::Never.into())
    }

    /// Grants up to `units` units of the current lease that may leave now. The units must have been read.
    #[must_use]
    pub fn take_available(&self, units: u64) -> u64 {
        let (mut leased, now) = (self.leased(), self.clock().now());
        if leased.lease.is_stale(now, || 2 * self.store.one_way()) { 0 } else { leased.lease.due(now, units) }
    }

    /// Reports that this many units beyond the last run were read and wait for the limits. Requests the next lease from
    /// a remote store if the rest of the current lease will not last until the next one arrives.
    pub fn foresee(&self, units: impl FnOnce() -> u64) {
        if !self.store.is_remote() {
            return;
        }
        let units = units();
        let mut leased = self.leased();
        if leased.lease.rules().only_windows.is_some() {
            return; // Windows grant many units at once, or long after.
        }
        let left = leased.lease.latest().saturating_sub(self.clock().now());
        let more = units.saturating_sub(leased.lease.units());
        if more > 0 && !leased.is_sent_for && left <= self.store.span() / 4 * 3 {
            // If no answer arrives, the lease is requested again when it is needed.
            let ask = self.ask(&mut leased, more);
            leased.is_sent_for = self.store.send(Operation::Lease(ask));
            if !leased.is_sent_for {
                leased.served = ask.served;
            }
        }
    }

    /// Settles a grant, requested by `take`, at its real costs; see [`Store::settle`]. Wakes the sleeper: waiting grants
    /// of this process may move up at once.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is settled then.
    pub fn settle(&self, grant: &Grant, take: &Take, real: &[u64]) -> Result<(), StoreError> {
        self.store.settle(grant, take, real)?;
        self.settled.fetch_add(1, Ordering::SeqCst);
        if let Some(sleeper) = &*unpoisoned(self.sleeper.lock()) {
            sleeper.unpark();
        }
        Ok(())
    }

    /// Reports that the units of the latest grant have left now, even if the clock goes back to a time before the grant.
    pub fn handed_over(&self) {
        self.leased().handed = None;
    }

    /// Waits for the requested lease, if there is one. If it does not arrive, it is requested again when it is needed.
    fn receive(&self, leased: &mut Leased) -> bool {
        let is_sent_for = std::mem::take(&mut leased.is_sent_for);
        if is_sent_for && let Some(reply) = self.store.receive() {
            let _ = self.add(reply, &mut leased.lease);
        }
        is_sent_for
    }

    /// Adds the runs of a reply to `lease`.
    fn add(&self, reply: Reply, lease: &mut Lease) -> Result<(), StoreError> {
        match reply {
            Reply::Refused(refusal) => return Err(self.explained(refusal.into())),
            Reply::Granted(runs) => {
                lease.add(with_ledger(&*self.store, |ledger| Rules::of(ledger.policy(), ledger.limits())), runs);
            }
            Reply::Done | Reply::Each(_) => {}
        }
        Ok(())
    }

    /// The next reserved run, unless it is late.
    fn next_held(&self, leased: &mut Leased, waiting: u64) -> Result<Option<(Grant, Nanos)>, StoreError> {
        if leased.lease.is_empty() {
            return Ok(None);
        }
        let mut now = self.clock().now();
        while let Some(late) = leased.lease.drop_late(now, || 2 * self.store.one_way()) {
            // If this fails, the next request reports why. It may take a while.
            let _ = self.store.late(vec![late]);
            now = self.clock().now();
        }
        self.check_policy()?;
        Ok(leased.next(waiting).map(|run| (run, now)))
    }

    /// The request for the next lease. From windows it requests all units that may leave now, or the next unit that
    /// may. If few units wait, several of them are reserved for the same time. Otherwise a process that starts commands
    /// would request the rest too late, and lose a little of each period.
    ///
    /// When a window opens, the stream that requests first could take all of it. So while others use the window, time
    /// is cut into turns. A stream takes a small share in each turn, and reserves it in the turn before. Then all
    /// others get their shares in the same turn, even if they need time to request again, as a loop of commands does.
    fn ask(&self, leased: &mut Leased, waiting: u64) -> Ask {
        let (span, served) = (self.store.span(), std::mem::take(&mut leased.served));
        let Some(windows) = leased.lease.rules().only_windows else { return Ask { waiting, span, from: 0, served } };
        let at_once = |waiting: u64| Ask {
            waiting,
            span: if waiting <= MAX_UNITS_OF_ONE_TIME { SAME_TIME_SPAN } else { 0 },
            from: 0,
            served,
        };
        // The clock of a store with another span is not the real one.
        if !(2..=SECOND).contains(&span) {
            return at_once(waiting);
        }
        // A period of a few nanoseconds has no shorter turn.
        let (turn, now) = (windows.turn(span / 2).max(1), self.clock().now());
        let share = windows.share(turn);
        if leased.requested_at.saturating_add(turn) < now {
            // If the store does not answer, the lease request reports the error.
            let _ = self.store.sync();
        }
        let (latest, available) = with_ledger(&*self.store, |ledger| (ledger.latest(), ledger.limits().available(now)));
        match leased.number {
            None => {
                leased.began = now;
                leased.shared_until =
                    if windows.are_used(available) { now.saturating_add(ASSUMED_SHARING_TIME) } else { 0 };
            }
            Some(ours) if latest > ours => leased.shared_until = now.saturating_add(windows.longest),
            Some(_) => {}
        }
        if now < leased.shared_until {
            let next = (leased.lease.latest() / turn).saturating_add(1).saturating_mul(turn);
            let from = leased.number.map_or(0, |_| next);
            return Ask { waiting: waiting.min(share), span: SAME_TIME_SPAN, from, served };
        }
        // The window is used up for the first time: others may come before it opens.
        let is_new = now < leased.began.saturating_add(windows.longest);
        at_once(if is_new && available == 0 { waiting.min(share.max(MAX_UNITS_OF_ONE_TIME)) } else { waiting })
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        // A server that does not answer must not delay a caller that no longer needs it.
        self.store.leave();
        // If giving back fails, at most one lease is lost, as when the process is killed.
        let _ = self.return_all(&mut self.leased());
    }
}

/// Sleeps until the time of `grant`, which was requested by `take`. Returns whether the time has come.
///
/// `sleep` receives a time to sleep until and the time of the grant, and returns whether to go on. During a long wait
/// the store is polled for a new time of the grant, which is passed to `moved`.
pub fn wait_for(
    store: &dyn Store,
    mut grant: Grant,
    take: &Take,
    mut sleep: impl FnMut(Nanos, Nanos) -> bool,
    mut moved: impl FnMut(&Grant),
) -> bool {
    while let Some(time) = grant.next_look(store.clock().now(), take.open) {
        if !sleep(time, grant.at) {
            return false;
        }
        // If the store does not answer, the known time is still good.
        if let Ok(found) = store.look(&grant, take) {
            grant = found;
            moved(&grant);
        }
    }
    sleep(grant.at, grant.at)
}

#[cfg(test)]
mod tests {
    use super::super::Simulated;
    use super::*;
    use crate::clock::{FakeClock, MILLISECOND};
    use crate::limits::Policy;
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    /// A store that is far away, and cannot send a request without waiting for the answer.
    #[derive(Debug)]
    struct Remote {
        ledger: Simulated<FakeClock>,
        leases: Arc<Mutex<Vec<Ask>>>,
    }

    impl Store for Remote {
        fn clock(&self) -> &dyn NanoClock {
            self.ledger.clock()
        }

        fn place(&self) -> String {
            self.ledger.place()
        }

        fn apply(&self, operation: Operation) -> Result<(Reply, Nanos), StoreError> {
            if let Operation::Lease(ask) = &operation {
                self.leases.lock().unwrap().push(*ask);
            }
            self.ledger.apply(operation)
        }

        fn sync(&self) -> Result<(), StoreError> {
            self.ledger.sync()
        }

        fn see(&self, look: &mut dyn FnMut(&Ledger)) {
            self.ledger.see(look);
        }

        fn span(&self) -> Nanos {
            10 * MILLISECOND
        }

        fn is_remote(&self) -> bool {
            true
        }
    }

    fn remote(limit: &str) -> (Supply, FakeClock, Arc<Mutex<Vec<Ask>>>) {
        let (clock, leases) = (FakeClock::default(), Arc::<Mutex<Vec<Ask>>>::default());
        let policy = Policy::new(&[limit.parse().unwrap()], None).unwrap();
        let ledger = Simulated::new(&policy, clock.clone());
        (Supply::new(Box::new(Remote { ledger, leases: Arc::clone(&leases) })), clock, leases)
    }

    #[test]
    fn successes_are_reported_later_if_a_lease_cannot_be_sent() {
        let (supply, clock, leases) = remote("1000/s,burst=1");
        let _ = supply.next_run(1).unwrap();
        let served = Served::default().but_one();
        supply.served(None, served);
        supply.foresee(|| 100);
        clock.advance(Duration::from_secs(1));
        let _ = supply.next_run(1).unwrap();
        assert_eq!(leases.lock().unwrap().last().map(|ask| ask.served), Some(served));
    }

    #[test]
    fn streams_share_a_window_of_a_nanosecond() {
        let (supply, ..) = remote("1/1ns,window");
        for _ in 0..3 {
            let _ = supply.next_run(1).unwrap();
            let _ = supply.store().take(&[1], Nanos::MAX).unwrap(); // another stream
        }
    }

    fn supply(limit: &str) -> (Supply, FakeClock) {
        let clock = FakeClock::default();
        let policy = Policy::new(&[limit.parse().unwrap()], None).unwrap();
        (Supply::new(Box::new(Simulated::new(&policy, clock.clone()))), clock)
    }

    /// A settlement between a request and the sleep was noticed only at the old time.
    #[test]
    fn a_settlement_before_a_sleep_moves_up_the_sleep() {
        let (supply, clock) = supply("10/min,burst=10");
        supply.settles(true);
        let (first, _) = supply.take(&[10]).unwrap();
        supply.handed_over();
        let (waits, _) = supply.take(&[10]).unwrap();
        clock.advance(Duration::from_secs(20));
        supply.settle(&first, &Take::of(&[10]), &[4]).unwrap();
        assert!(supply.sleep_unless(&clock, waits.at, &|| false).unwrap());
        assert_eq!((clock.now(), supply.moved(waits).at), (24 * SECOND, 24 * SECOND));
    }

    /// The estimate of a server's clock can go back. Then a unit that had left was given back.
    #[test]
    fn a_unit_that_left_stays_charged_when_the_clock_goes_back() {
        let (supply, clock) = supply("10/h,window");
        clock.set(Duration::from_millis(100));
        let _ = supply.take(&[4]).unwrap();
        supply.handed_over();
        clock.set(Duration::from_millis(99));
        supply.hold(None, 150 * MILLISECOND, Vec::new()).unwrap();
        clock.set(Duration::from_millis(200));
        assert_eq!(supply.store().view().unwrap().left, [6]);
    }

    #[cfg(feature = "shared")]
    #[test]
    fn a_dropped_supply_gives_back_the_grant_that_waits() {
        use super::super::{File, Machine, Place};
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("b"), own_folder: false, group: None };
        let policy = Policy::new(&["1/h,burst=1".parse().unwrap()], None).unwrap();
        let supply = Supply::new(Box::new(File::open(place.clone(), Some(&policy)).unwrap()));
        let _ = supply.take(&[1]).unwrap();
        let _ = supply.take(&[1]).unwrap();
        let waiting = || File::look(Machine::this(), place.clone(), None).unwrap().line.len();
        assert_eq!(waiting(), 1);
        drop(supply);
        assert_eq!(waiting(), 0);
    }

    #[test]
    fn a_caller_that_foresees_units_may_use_the_supply() {
        let (ended, has_ended) = mpsc::channel();
        std::thread::spawn(move || {
            let (supply, ..) = remote("1000/s,burst=1");
            supply.foresee(|| supply.available());
            ended.send(()).unwrap();
        });
        assert_eq!(has_ended.recv_timeout(Duration::from_secs(10)), Ok(()));
    }
}
