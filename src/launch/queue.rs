//! Chooses the next attempt and its time. All waiting attempts are in one line. First attempts wait for the limits of
//! their keys. Repeated attempts wait until they are due, and then for the limits. The pump's thread and the commands'
//! tasks share this queue.

use super::attempt::{Attempt, Granted, Running};
use super::job::{Job, Key, Outcome};
use super::options::{NEVER, Options};
use super::reply::Reply;
use super::retries::{Judged, Overlong, Retries, Verdict};
use super::wakes::Wakes;
use crate::flow::{Answers, Passed, Price, ServerReport, Sorting, short, unpoisoned};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use throttle_limits::clock::{NanoClock, Nanos, SystemClock, in_nanos};
use throttle_limits::limits::{Pace, Start};
use throttle_limits::line::{Crowd, KeyId, Line, NO_KEY, Next, Unit};

/// The queue of waiting attempts.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    pub(super) wakes: Wakes,
    /// The same moment on both clocks, to convert an `Instant` to nanoseconds.
    begun: (Instant, Nanos),
    /// The most waiting units before reading stops.
    ahead: usize,
    /// Whether units wait in this queue for limits. If not, the pump gets their grants from the supply.
    pub(super) is_keyed: bool,
    /// Whether keys have limits of their own.
    pub(super) has_keys: bool,
    /// Whether every unit of the input has entered the queue.
    is_all_read: AtomicBool,
    /// Whether real costs from replies are settled in this queue, and not in a bucket.
    settles: bool,
    /// See [`Sorting::shared`].
    shared: Option<usize>,
}

#[derive(Debug)]
struct State {
    line: Line<Attempt>,
    /// The rules for further attempts; `None`: each unit is tried once.
    retries: Option<Retries>,
    /// Abandoned keys: their pause exceeds `--max-pause` (`None`), or this many consecutive commands failed.
    gone: BTreeMap<Key, Option<NonZeroU32>>,
    /// The number of consecutive failures of each key.
    failed: BTreeMap<Key, u32>,
    /// The number of consecutive failures after which a key is abandoned.
    fails: Option<NonZeroU32>,
    /// Attempts that will never start.
    refused: VecDeque<(Attempt, Outcome)>,
    /// The next attempt. It waits for its grant, or for a slot.
    chosen: Option<Chosen>,
    /// The attempts with a request at a shared bucket, by ticket.
    requested: BTreeMap<u64, (Attempt, Granted)>,
    /// The latest ticket: the number of a request at a shared bucket.
    ticket: u64,
    /// The units that wait for their first attempt.
    new: Passed,
    /// Reports of servers for the bucket: one for each key, or one for all units.
    reports: BTreeMap<Key, ServerReport>,
    /// The end of the latest pause of all units, if no key has limits of its own.
    paused_until: Option<Nanos>,
}

/// An attempt that leaves the line, with its grant, or with the reason why it never starts.
type Chosen = (Attempt, Result<Granted, Outcome>);

impl Queue {
    /// # Errors
    /// The system has no room for the files that wake the pump.
    pub(super) fn new(options: &Options) -> io::Result<Self> {
        let ahead = options.again.as_ref().map_or(usize::MAX, |again| again.ahead);
        let unkeyed = || Sorting { jobs: Some(NonZeroU32::MAX), ahead, ..Sorting::default() };
        let sorting = options.by_key.clone().unwrap_or_else(unkeyed);
        let begun = (Instant::now(), SystemClock.now());
        let state = State {
            line: sorting.begin(begun.1),
            retries: options.again.clone().map(Retries::new),
            gone: BTreeMap::new(),
            failed: BTreeMap::new(),
            fails: sorting.fails,
            refused: VecDeque::new(),
            chosen: None,
            requested: BTreeMap::new(),
            ticket: 0,
            new: Passed::default(),
            reports: BTreeMap::new(),
            paused_until: None,
        };
        Ok(Queue {
            state: Mutex::new(state),
            wakes: Wakes::new()?,
            begun,
            ahead: sorting.ahead,
            is_keyed: options.by_key.is_some(),
            has_keys: sorting.has_keys(),
            is_all_read: AtomicBool::new(false),
            settles: options.settling.is_any() && options.by_key.is_some() && sorting.shared.is_none(),
            shared: sorting.shared,
        })
    }

    /// Whether a shared bucket keeps the limits of each key.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Records that every unit of the input has entered the queue.
    pub(super) fn has_all(&self) {
        self.is_all_read.store(true, Ordering::SeqCst);
    }

    /// Whether every unit of the input has entered the queue.
    pub(super) fn is_all_read(&self) -> bool {
        self.is_all_read.load(Ordering::SeqCst)
    }

    /// Whether the pump has to wait for the end of all commands: they may be tried again, or the bucket counts their
    /// failures.
    pub(super) fn needs_ends(&self) -> bool {
        let state = self.lock();
        state.retries.is_some() || self.is_shared() && state.fails.is_some()
    }

    /// Adds the first attempt at a job. It waits from now on.
    pub(super) fn add(&self, job: Job) {
        self.lock().add(Attempt::first(job), 0);
    }

    /// Chooses the next attempt, if one may start now, and returns its job.
    pub(super) fn choose(&self) -> Option<Arc<Job>> {
        let mut state = self.lock();
        state.choose(self.settles);
        state.chosen.as_ref().map(|(attempt, _)| Arc::clone(&attempt.job))
    }

    /// The price of the next attempt.
    pub(super) fn price(&self) -> Price {
        let mut state = self.lock();
        state.choose(self.settles);
        match (state.chosen.take(), self.shared) {
            (None, _) => Price::Nothing,
            (Some((attempt, Ok(granted))), Some(of_all)) if attempt.job.refused().is_none() => {
                let key = attempt.job.key.as_deref().unwrap_or(NO_KEY);
                let mut take = Sorting::price(of_all, key, &granted.costs);
                let learns = state.retries.as_ref().is_some_and(Retries::learns);
                take.key.iter_mut().for_each(|of| of.learns = learns);
                let waited = SystemClock.now().saturating_sub(granted.arrived);
                state.ticket += 1;
                let ticket = state.ticket;
                state.requested.insert(ticket, (attempt, granted));
                state.note_away();
                Price::OfKey { ticket, take, waited }
            }
            (Some(chosen), shared) => {
                let price = if shared.is_some() { Price::Unknown } else { chosen.0.job.price() };
                state.chosen = Some(chosen);
                state.note_away();
                price
            }
        }
    }

    /// Chooses the attempt with this ticket as the next one, because the shared bucket has answered. If the bucket has
    /// refused it or its key is abandoned, the attempt will never start.
    pub(super) fn granted(&self, ticket: u64, refused: Option<Outcome>) {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let Some((attempt, granted)) = state.requested.remove(&ticket) else { return };
        state.note_away();
        if let Some(Outcome::KeyFailed(most)) = refused {
            state.end_key(&attempt.job.key, granted.key, most);
        }
        let refused = refused.or_else(|| state.gone_outcome(&attempt.job.key));
        if refused.is_some() {
            state.line.ended(now, granted.key);
        }
        state.chosen = Some((attempt, refused.map_or(Ok(granted), Err)));
    }

    /// Returns the attempt with this ticket to the line, because the shared bucket does not grant it yet. No attempt of
    /// its key starts for `wait` nanoseconds.
    pub(super) fn put_back(&self, ticket: u64, wait: Nanos) {
        let (mut state, now) = (self.lock(), SystemClock.now());
        if let Some((attempt, granted)) = state.requested.remove(&ticket) {
            state.note_away();
            state.put_back(now, attempt, granted, now.saturating_add(wait));
        }
    }

    /// Takes out the chosen attempt, which has a slot and starts now. `pace` returns the learned pace that the bucket
    /// stores for a key or for all units, and the start as that pace records it.
    pub(super) fn take_chosen(&self, pace: impl FnOnce(Option<&[u8]>) -> (Pace, Start)) -> Option<Chosen> {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let (mut attempt, mut granted) = state.chosen.take()?;
        state.has_left(&attempt);
        if let Ok(granted) = &mut granted {
            let State { line, retries, .. } = &mut *state;
            granted.charged = line.handed_over(now, granted.key, granted.charged, &granted.costs);
            if let Some(retries) = retries {
                let key = &attempt.job.key;
                let learned = (self.has_bucket() && retries.learns()).then(|| pace(self.name(key).as_deref()));
                let next = retries.started(key, now, &mut attempt.history, learned);
                line.not_before(now, granted.key, next);
            }
        }
        Some((attempt, granted))
    }

    /// Records that no slot was free until now.
    pub(super) fn has_room_now(&self) {
        self.lock().line.ready_since(SystemClock.now());
    }

    /// The number of attempts that may start now, without regard to the limits of single keys; 0: none.
    pub(super) fn ready(&self) -> u64 {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let may_leave = state.line.ready_at(now).is_some_and(|at| at <= now);
        let arrived = if may_leave { state.line.arrived(now) } else { 0 };
        (arrived + state.refused.len() + usize::from(state.chosen.is_some())) as u64
    }

    /// The earliest time at which an attempt may start, on the system's clock. `None` if no attempt waits for the
    /// limits of its key.
    pub(super) fn limited_until(&self) -> Option<Nanos> {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let waits = self.is_keyed && state.line.arrived(now) > 0;
        state.line.ready_at(now).filter(|_| waits)
    }

    /// The end of the latest pause of all units.
    pub(super) fn paused_until(&self) -> Option<Nanos> {
        self.lock().paused_until
    }

    /// The number of keys with waiting attempts, and the number of all keys.
    pub(super) fn keys(&self) -> [u64; 2] {
        let line = &self.lock().line;
        if self.has_keys { [line.keys_waiting() as u64, line.keys() as u64] } else { [0, 0] }
    }

    /// Decides what follows from the end of an attempt. Passes a pause of all units to the pump at once.
    pub(super) fn judge(&self, running: &mut Running, at: Instant, outcome: &Outcome, reply: &Reply) -> Verdict {
        let verdict = self.verdict(running, at, outcome, reply);
        if let (Some(granted), Verdict::Ok | Verdict::Failed) = (&running.granted, verdict) {
            let (key, has_failed) = (&running.attempt.job.key, matches!(verdict, Verdict::Failed));
            let mut state = self.lock();
            if self.is_shared() && state.fails.is_some() {
                state.reports.entry(key.clone()).or_default().tried(!has_failed, u32::from(has_failed));
            } else {
                state.note_end(key, granted, has_failed);
            }
        }
        verdict
    }

    fn verdict(&self, running: &mut Running, at: Instant, outcome: &Outcome, reply: &Reply) -> Verdict {
        let mut guard = self.lock();
        let State { retries, line, chosen, requested, .. } = &mut *guard;
        let chosen = chosen.iter().map(|(attempt, _)| attempt).chain(requested.values().map(|(attempt, _)| attempt));
        let Some(retries) = retries else {
            return if matches!(outcome, Outcome::Ok) { Verdict::Ok } else { Verdict::Failed };
        };
        let judged = Judged { started: self.at(running.started), at: self.at(at) };
        let (key, history) = (&running.attempt.job.key, &mut running.attempt.history);
        let no_others_wait = || {
            let mut waiting = running.granted.iter().flat_map(|granted| line.units_of(granted.key)).chain(chosen);
            self.is_all_read() && waiting.all(|attempt| attempt.history.was_refused())
        };
        let chance = |most| fastrand::u64(..=most);
        let verdict = retries.judge(key, (judged, history), (outcome, reply), no_others_wait, chance);
        if !matches!(verdict, Verdict::Later(_)) {
            return verdict;
        }
        let now = SystemClock.now();
        if !self.is_keyed {
            drop(guard);
            self.wake_pump();
        } else if let (Some(granted), Some(time)) = (&running.granted, retries.take_hold(key, now)) {
            let until = now.saturating_add(time);
            if self.has_keys {
                line.hold_until(now, granted.key, until);
            } else {
                line.hold_all_until(now, until);
                guard.paused_until = Some(until);
            }
            if self.is_shared() {
                guard.reports.entry(key.clone()).or_default().hold = Some(time);
            }
            drop(guard);
            self.wake_pump();
        }
        verdict
    }

    /// The time from `at` until `due`.
    pub(super) fn due_in(&self, due: Nanos, at: Instant) -> Duration {
        Duration::from_nanos(due.saturating_sub(self.at(at))).min(NEVER)
    }

    /// Records the end of the command with this grant, and settles its `real` costs. `next` is the job's next attempt,
    /// if there is one.
    pub(super) fn ended(&self, granted: Option<Granted>, real: &[u64], next: Option<Attempt>) {
        let (now, mut state) = (SystemClock.now(), self.lock());
        if let Some(Granted { key, charged, costs, .. }) = granted {
            if self.settles {
                state.line.settle(now, key, charged, [&costs, real]);
            }
            state.line.ended(now, key);
        }
        if let Some(next) = next {
            let arrived = self.at(next.ready);
            state.add(next, arrived);
        }
    }

    /// Wakes the pump after everything about an attempt's end was recorded.
    pub(super) fn wake_pump(&self) {
        self.wakes.wake();
        if self.has_news() {
            self.wakes.unpark();
        }
    }

    /// Takes the reports for the bucket. There are none if this run itself keeps the limits of each key.
    pub(super) fn take_answers(&self) -> Answers {
        let mut guard = self.lock();
        let State { reports, retries, .. } = &mut *guard;
        let mut all = std::mem::take(reports);
        for retries in retries.iter_mut().filter(|_| self.has_bucket()) {
            for (key, report) in retries.take_reports(SystemClock.now()) {
                all.entry(key).or_default().add(report);
            }
        }
        all.into_iter().map(|(key, report)| (self.name(&key), report)).collect()
    }

    /// Whether a report for the bucket must be sent at once.
    pub(super) fn has_news(&self) -> bool {
        let state = self.lock();
        let has_hold = !self.is_keyed && state.retries.as_ref().is_some_and(Retries::has_hold);
        has_hold || state.reports.values().any(ServerReport::is_urgent)
    }

    /// Whether grants come from a bucket, which then needs the reports of servers.
    fn has_bucket(&self) -> bool {
        !self.is_keyed || self.is_shared()
    }

    /// The name of this key in the bucket; `None` for a bucket without keys.
    fn name(&self, key: &Key) -> Option<Box<[u8]>> {
        self.is_shared().then(|| short(key.as_deref().unwrap_or(NO_KEY)))
    }

    /// The learned time between two attempts of `key`, if the server allows less than the limits. Also returns the rest
    /// of the key's pause at `at`.
    pub(super) fn pace_and_pause(&self, key: &Key, at: Instant) -> (Option<Duration>, Duration) {
        let at = self.at(at);
        let pace_and_pause = |retries: &Retries| {
            let paused = Duration::from_nanos(retries.pause_left(key, at));
            (retries.learned(key).map(Duration::from_nanos), paused)
        };
        self.lock().retries.as_ref().map(pace_and_pause).unwrap_or_default()
    }

    /// The rest of the pause of `key`, if the pause is longer than allowed.
    pub(super) fn overlong_pause(&self, key: &Key) -> Option<Overlong> {
        self.lock().retries.as_ref()?.overlong_pause(key, SystemClock.now())
    }

    /// Whether a server named the end of the pause of `key`.
    pub(super) fn has_named_pause(&self, key: &Key) -> bool {
        self.lock().retries.as_ref().is_some_and(|retries| retries.is_named(key))
    }

    /// Whether this HTTP status is a request to wait because `--later-on` names it.
    pub(super) fn names_status(&self, status: u16) -> bool {
        self.lock().retries.as_ref().is_some_and(|retries| retries.names_status(status))
    }

    /// Abandons a key. Returns its waiting attempts.
    pub(super) fn give_up(&self, key: &Key, granted: &Granted) -> Vec<Attempt> {
        let mut state = self.lock();
        state.gone.insert(key.clone(), None);
        let waiting = state.line.drain_key(granted.key).into_iter().map(|unit| unit.content);
        waiting.inspect(|attempt| state.has_left(attempt)).collect()
    }

    /// Takes out all attempts.
    pub(super) fn drain(&self) -> Vec<Attempt> {
        let mut state = self.lock();
        let chosen = state.chosen.take().map(|(attempt, _)| attempt);
        let requested = std::mem::take(&mut state.requested).into_values().map(|(attempt, _)| attempt);
        let refused = std::mem::take(&mut state.refused).into_iter().map(|(attempt, _)| attempt);
        let waiting = state.line.drain().into_iter().map(|unit| unit.content);
        chosen.into_iter().chain(requested).chain(refused).chain(waiting).collect()
    }

    /// Whether the queue is full, so that reading stops.
    pub(super) fn is_full(&self) -> bool {
        self.lock().line.is_full(self.ahead)
    }

    /// The memory of the waiting attempts, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.lock().line.memory()
    }

    /// Whether no attempt waits.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.line.is_empty() && state.refused.is_empty() && state.chosen.is_none() && state.requested.is_empty()
    }

    /// Whether all waiting attempts are suspects: their units were refused again and again, or are left over from an
    /// earlier run. Then the pump should read other units, which get their turns first.
    pub(super) fn has_only_suspects(&self) -> bool {
        self.lock().line.has_only_suspects()
    }

    /// The units that wait for their first attempt, and their bytes in the input.
    pub(super) fn new_units(&self) -> Passed {
        self.lock().new
    }

    /// The size of the queue, for a message.
    pub(super) fn crowd(&self) -> Crowd {
        self.lock().line.crowd()
    }

    /// Returns when `source` can be read, when an attempt may start, when the pump was woken, or after `most`
    /// nanoseconds. Returns at once if `is_news` returns true.
    pub(super) fn wait(
        &self,
        source: Option<BorrowedFd<'_>>,
        most: Nanos,
        is_news: impl Fn() -> bool,
    ) -> io::Result<()> {
        let now = SystemClock.now();
        let wait = self.lock().line.ready_at(now).map_or(most, |time| time.saturating_sub(now).min(most));
        if self.ready() > 0 || self.has_news() || is_news() {
            return Ok(());
        }
        self.wakes.wait(source, Duration::from_nanos(wait).min(NEVER))
    }

    fn at(&self, time: Instant) -> Nanos {
        let (begun, nanos) = self.begun;
        nanos.saturating_add(in_nanos(time.saturating_duration_since(begun)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}

impl State {
    /// Adds an attempt that waits from `arrived` on, or from now on if that is later.
    fn add(&mut self, mut attempt: Attempt, arrived: Nanos) {
        let (job, now, is_first) = (Arc::clone(&attempt.job), SystemClock.now(), attempt.number == 1);
        if let Some(retries) = self.retries.as_mut().filter(|_| is_first && job.is_left_over) {
            attempt.history = retries.left_over(&job.key, now);
        }
        if is_first {
            self.new.units += 1;
            self.new.bytes += job.length;
        }
        if let Some(why) = self.gone_outcome(&job.key) {
            return self.refused.push_back((attempt, why));
        }
        let (size, weight) = (attempt.size(), attempt.history.weight());
        let unit =
            Unit { age: job.seq, costs: job.costs[..].into(), size, arrived: arrived.max(now), content: attempt };
        if let Err(unit) = self.line.add_suspect(now, job.key.as_deref(), unit, weight) {
            self.refused.push_back((unit.content, Outcome::TooCostly));
        }
    }

    /// Why no attempt of this key will start, if the key is abandoned.
    fn gone_outcome(&self, key: &Key) -> Option<Outcome> {
        self.gone.get(key).map(|failed| failed.map_or(Outcome::SentAway, Outcome::KeyFailed))
    }

    /// Updates the number of attempts that have left the line for a request at the shared bucket.
    fn note_away(&mut self) {
        self.line.set_away(SystemClock.now(), self.requested.len());
    }

    /// Returns a chosen attempt to the line. No attempt of its key starts before `until`.
    fn put_back(&mut self, now: Nanos, attempt: Attempt, granted: Granted, until: Nanos) {
        let (job, size) = (Arc::clone(&attempt.job), attempt.size());
        let Granted { key, age, costs, arrived, .. } = granted;
        if let Some(why) = self.gone_outcome(&job.key) {
            self.line.ended(now, key);
            return self.refused.push_back((attempt, why));
        }
        let unit = Unit { age, costs, size, arrived, content: attempt };
        if let Err(unit) = self.line.put_back(now, key, unit, until) {
            self.refused.push_back((unit.content, Outcome::TooCostly));
        }
    }

    /// Records the end of a command. Abandons its key after too many consecutive failures.
    fn note_end(&mut self, key: &Key, granted: &Granted, has_failed: bool) {
        let Some(most) = self.fails else { return };
        if !has_failed {
            self.failed.remove(key);
            return;
        }
        let failed = self.failed.entry(key.clone()).or_default();
        *failed += 1;
        if *failed == most.get() {
            self.end_key(key, granted.key, most);
        }
    }

    /// Abandons a key after `most` consecutive failures.
    fn end_key(&mut self, key: &Key, id: KeyId, most: NonZeroU32) {
        self.gone.insert(key.clone(), Some(most));
        let waiting = self.line.drain_key(id).into_iter();
        self.refused.extend(waiting.map(|unit| (unit.content, Outcome::KeyFailed(most))));
    }

    /// Records that an attempt has left the queue.
    fn has_left(&mut self, attempt: &Attempt) {
        if attempt.number == 1 {
            self.new.units -= 1;
            self.new.bytes -= attempt.job.length;
        }
    }

    /// Chooses the next attempt, if none is chosen.
    fn choose(&mut self, settles: bool) {
        if self.chosen.is_none() {
            self.chosen = self.next(settles);
        }
    }

    /// Takes the next attempt and its charge out of the line, if it may start now.
    fn next(&mut self, settles: bool) -> Option<Chosen> {
        if let Some((attempt, refused)) = self.refused.pop_front() {
            return Some((attempt, Err(refused)));
        }
        let Next::Go(key, unit, charged) = self.line.next(SystemClock.now()) else { return None };
        if settles {
            self.line.open(key, charged, &unit.costs);
        }
        Some((unit.content, Ok(Granted { key, charged, age: unit.age, costs: unit.costs, arrived: unit.arrived })))
    }
}
