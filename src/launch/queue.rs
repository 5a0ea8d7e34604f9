//! Which attempt is made next, and when. All attempts that wait are in one line: those that wait for the limits of their
//! keys, and those that are made again, which wait for their time first. The pump's thread and the commands' tasks share
//! this.

use super::attempt::{Attempt, Granted, Running};
use super::job::{Job, Key, Outcome};
use super::options::{NEVER, Options};
use super::reply::Reply;
use super::retries::{Judged, Retries, Verdict};
use super::wakes::Wakes;
use crate::flow::{Answers, Passed, Price, Sorting, Told, short, unpoisoned};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use throttle_limits::clock::{Clock, Nanos, SystemClock, in_nanos};
use throttle_limits::limits::{Pace, Start};
use throttle_limits::line::{Crowd, KeyId, Line, NO_KEY, Next, Unit};

/// Attempts that wait.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wakes: Wakes,
    /// The same moment on both clocks.
    begun: (Instant, Nanos),
    /// Most units that wait while more are read.
    ahead: usize,
    is_keyed: bool,
    /// Whether keys have limits of their own.
    has_keys: bool,
    /// Whether no unit is left that is not in the queue.
    is_all_read: AtomicBool,
    /// Whether replies may tell what a command really cost.
    settles: bool,
    /// See [`Sorting::shared`].
    shared: Option<usize>,
}

#[derive(Debug)]
struct State {
    line: Line<Attempt>,
    /// Which attempts are made again; `None`: none.
    retries: Option<Retries>,
    /// Keys of which no unit is tried any more: they were sent away for too long, or so many commands failed.
    gone: BTreeMap<Key, Option<NonZeroU32>>,
    /// How many commands of a key have failed in a row, and how many end it.
    failed: BTreeMap<Key, u32>,
    fails: Option<NonZeroU32>,
    /// Attempts that can never be made.
    refused: VecDeque<(Attempt, Outcome)>,
    /// The attempt that is made next. It waits for its grant, or for a slot.
    chosen: Option<Chosen>,
    /// The attempts that a shared bucket is asked for, by their numbers, and the latest of these.
    asked: BTreeMap<u64, (Attempt, Granted)>,
    ticket: u64,
    /// The units that wait for their first attempt.
    new: Passed,
    /// What servers have told of each key, or of all, if the bucket has to know.
    told: BTreeMap<Key, Told>,
    /// Until when a server asked all to wait last, if no key has limits of its own.
    paused_until: Option<Nanos>,
}

/// An attempt that leaves the line, and its grant, or why it is never made.
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
            asked: BTreeMap::new(),
            ticket: 0,
            new: Passed::default(),
            told: BTreeMap::new(),
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
            settles: options.settling.is_any() && sorting.shared.is_none(),
            shared: sorting.shared,
        })
    }

    /// The thread that calls this is the pump's.
    pub(super) fn is_used_by_pump(&self) {
        self.wakes.is_used_by_pump();
    }

    /// Whether a bucket that others use keeps the limits of each key.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether units wait here for the limits. If not, grants come from elsewhere.
    pub(super) fn is_keyed(&self) -> bool {
        self.is_keyed
    }

    /// Whether keys have limits of their own.
    pub(super) fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// No unit is left that is not in the queue.
    pub(super) fn has_all(&self) {
        self.is_all_read.store(true, Ordering::SeqCst);
    }

    /// Whether no unit is left that is not in the queue.
    pub(super) fn is_all_read(&self) -> bool {
        self.is_all_read.load(Ordering::SeqCst)
    }

    /// Whether the pump has to wait for the end of all commands: they may be tried again, or the bucket has to know what came
    /// of them.
    pub(super) fn needs_ends(&self) -> bool {
        let state = self.lock();
        state.retries.is_some() || self.is_shared() && state.fails.is_some()
    }

    /// Adds the first attempt for a job, which waits from now on.
    pub(super) fn add(&self, job: Job) {
        self.lock().add(Attempt::first(job), 0);
    }

    /// Chooses the attempt that is made next, if one may be made now.
    pub(super) fn choose(&self) -> Option<Arc<Job>> {
        let mut state = self.lock();
        state.choose(self.settles);
        state.chosen.as_ref().map(|(attempt, _)| Arc::clone(&attempt.job))
    }

    /// What the attempt costs that is made next.
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
                state.asked.insert(ticket, (attempt, granted));
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

    /// An attempt that a shared bucket was asked for is made next: it has its grant. Or it never is, if the bucket refused it, or
    /// its key is not tried any more.
    pub(super) fn granted(&self, ticket: u64, refused: Option<Outcome>) {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let Some((attempt, granted)) = state.asked.remove(&ticket) else { return };
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

    /// An attempt that a shared bucket was asked for waits again, and nothing of its key starts for so many nanoseconds.
    pub(super) fn put_back(&self, ticket: u64, wait: Nanos) {
        let (mut state, now) = (self.lock(), SystemClock.now());
        if let Some((attempt, granted)) = state.asked.remove(&ticket) {
            state.note_away();
            state.put_back(now, attempt, granted, now.saturating_add(wait));
        }
    }

    /// Takes out the attempt that was chosen: it has a slot, and its command starts now. `pace` is what the bucket learned of a key,
    /// or of all, and the start.
    pub(super) fn take_chosen(&self, pace: impl FnOnce(Option<&[u8]>) -> (Pace, Start)) -> Option<Chosen> {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let (mut attempt, granted) = state.chosen.take()?;
        state.has_left(&attempt);
        if let Ok(granted) = &granted {
            let State { line, retries, .. } = &mut *state;
            line.handed_over(now, granted.key, granted.charged, &granted.costs);
            if let Some(retries) = retries {
                let key = &attempt.job.key;
                let learned = (self.has_bucket() && retries.learns()).then(|| pace(self.name(key).as_deref()));
                let next = retries.started(key, now, &mut attempt.history, learned);
                line.not_before(now, granted.key, next);
            }
        }
        Some((attempt, granted))
    }

    /// There was no room for another command until now.
    pub(super) fn has_room_now(&self) {
        self.lock().line.ready_since(SystemClock.now());
    }

    /// How many attempts may be made now, as far as the limits of keys do not hold some of them back; 0: none.
    pub(super) fn ready(&self) -> u64 {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let may_leave = state.line.ready_at(now).is_some_and(|at| at <= now);
        let arrived = if may_leave { state.line.arrived(now) } else { 0 };
        (arrived + state.refused.len() + usize::from(state.chosen.is_some())) as u64
    }

    /// When an attempt may be made, on the system's clock, if one waits for the limits of its key.
    pub(super) fn limited_until(&self) -> Option<Nanos> {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let waits = self.is_keyed && state.line.arrived(now) > 0;
        state.line.ready_at(now).filter(|_| waits)
    }

    /// Until when a server asked all to wait last.
    pub(super) fn paused_until(&self) -> Option<Nanos> {
        self.lock().paused_until
    }

    /// How many keys have attempts that wait, and how many keys there are.
    pub(super) fn keys(&self) -> [u64; 2] {
        let line = &self.lock().line;
        if self.has_keys { [line.keys_waiting() as u64, line.keys() as u64] } else { [0, 0] }
    }

    /// Decides what follows from the end of an attempt. The pump learns of a pause of all units at once.
    pub(super) fn judge(&self, running: &mut Running, at: Instant, outcome: &Outcome, reply: &Reply) -> Verdict {
        let verdict = self.verdict(running, at, outcome, reply);
        if let (Some(granted), Verdict::Ok | Verdict::Failed) = (&running.granted, verdict) {
            let (key, has_failed) = (&running.attempt.job.key, matches!(verdict, Verdict::Failed));
            let mut state = self.lock();
            if self.is_shared() && state.fails.is_some() {
                state.told.entry(key.clone()).or_default().tried(!has_failed, u32::from(has_failed));
            } else {
                state.note_end(key, granted, has_failed);
            }
        }
        verdict
    }

    fn verdict(&self, running: &mut Running, at: Instant, outcome: &Outcome, reply: &Reply) -> Verdict {
        let mut guard = self.lock();
        let State { retries, line, chosen, asked, .. } = &mut *guard;
        let chosen = chosen.iter().map(|(attempt, _)| attempt).chain(asked.values().map(|(attempt, _)| attempt));
        let Some(retries) = retries else {
            return if matches!(outcome, Outcome::Ok) { Verdict::Ok } else { Verdict::Failed };
        };
        let judged = Judged { started: self.at(running.started), at: self.at(at) };
        let (key, history) = (&running.attempt.job.key, &mut running.attempt.history);
        let no_others_wait = || {
            let mut waiting = running.granted.iter().flat_map(|granted| line.units_of(granted.key)).chain(chosen);
            self.is_all_read() && waiting.all(|attempt| attempt.history.was_told())
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
                guard.told.entry(key.clone()).or_default().hold = Some(time);
            }
            drop(guard);
            self.wake_pump();
        }
        verdict
    }

    /// How long after `at` an attempt is due.
    pub(super) fn due_in(&self, due: Nanos, at: Instant) -> Duration {
        Duration::from_nanos(due.saturating_sub(self.at(at))).min(NEVER)
    }

    /// The command with this grant has ended, and really cost so much of each kind. `next` is tried after it.
    pub(super) fn ended(&self, granted: Option<Granted>, real: &[u64], next: Option<Attempt>) {
        let (now, mut state) = (SystemClock.now(), self.lock());
        if let Some(Granted { key, charged, costs, .. }) = granted {
            if self.settles && self.is_keyed {
                state.line.settle(now, key, charged, [&costs, real]);
            }
            state.line.ended(now, key);
        }
        if let Some(next) = next {
            let arrived = self.at(next.ready);
            state.add(next, arrived);
        }
    }

    /// An attempt has ended, and all that follows from it was noted.
    pub(super) fn wake_pump(&self) {
        self.wakes.wake();
        if self.has_news() {
            self.wakes.unpark();
        }
    }

    /// What the bucket has to be told: nothing, if this run keeps the limits of each key.
    pub(super) fn take_answers(&self) -> Answers {
        let mut guard = self.lock();
        let State { told, retries, .. } = &mut *guard;
        let mut all = std::mem::take(told);
        for retries in retries.iter_mut().filter(|_| self.has_bucket()) {
            for (key, told) in retries.take_told(SystemClock.now()) {
                all.entry(key).or_default().add(told);
            }
        }
        all.into_iter().map(|(key, told)| (self.name(&key), told)).collect()
    }

    /// Whether there is something to tell the bucket that cannot wait.
    pub(super) fn has_news(&self) -> bool {
        let state = self.lock();
        let has_hold = !self.is_keyed && state.retries.as_ref().is_some_and(Retries::has_hold);
        has_hold || state.told.values().any(Told::is_urgent)
    }

    /// Whether grants come from a bucket, and what servers tell has to be known there.
    fn has_bucket(&self) -> bool {
        !self.is_keyed || self.is_shared()
    }

    /// What the bucket calls this key; `None` if it has none.
    fn name(&self, key: &Key) -> Option<Box<[u8]>> {
        self.is_shared().then(|| short(key.as_deref().unwrap_or(NO_KEY)))
    }

    /// What servers said of `key`: the time from one attempt to the next, if they allow less than the limits, and how long
    /// after `at` nothing of it starts.
    pub(super) fn told(&self, key: &Key, at: Instant) -> (Option<Duration>, Duration) {
        let at = self.at(at);
        let told = |retries: &Retries| {
            let paused = Duration::from_nanos(retries.pause_left(key, at));
            (retries.learned(key).map(Duration::from_nanos), paused)
        };
        self.lock().retries.as_ref().map(told).unwrap_or_default()
    }

    /// How long the pause of `key` still lasts, if it is longer than allowed.
    pub(super) fn overlong_pause(&self, key: &Key) -> Option<Nanos> {
        self.lock().retries.as_ref()?.overlong_pause(key, SystemClock.now())
    }

    /// The key is not tried any more. Returns the attempts that wait.
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
        let asked = std::mem::take(&mut state.asked).into_values().map(|(attempt, _)| attempt);
        let refused = std::mem::take(&mut state.refused).into_iter().map(|(attempt, _)| attempt);
        let waiting = state.line.drain().into_iter().map(|unit| unit.content);
        chosen.into_iter().chain(asked).chain(refused).chain(waiting).collect()
    }

    /// Whether so many wait that no more are read.
    pub(super) fn is_full(&self) -> bool {
        self.lock().line.is_full(self.ahead)
    }

    /// The bytes that the attempts take which wait.
    pub(super) fn memory(&self) -> usize {
        self.lock().line.memory()
    }

    /// Whether no attempt waits.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.line.is_empty() && state.refused.is_empty() && state.chosen.is_none() && state.asked.is_empty()
    }

    /// Whether all attempts that wait are those of suspects. Then others should be read that get their turns before them.
    pub(super) fn has_only_suspects(&self) -> bool {
        self.lock().line.has_only_suspects()
    }

    /// The units that wait for their first attempt, and their bytes in the input.
    pub(super) fn new_units(&self) -> Passed {
        self.lock().new
    }

    /// The attempts that wait.
    pub(super) fn crowd(&self) -> Crowd {
        self.lock().line.crowd()
    }

    /// Returns when `source` can be read, an attempt may be made, the pump was woken, or after so many nanoseconds; at once if
    /// `is_news`.
    pub(super) fn wait(
        &self,
        source: Option<BorrowedFd<'_>>,
        most: Nanos,
        is_news: impl Fn() -> bool,
    ) -> io::Result<()> {
        self.wakes.wait(source, || {
            let time = self.lock().line.ready_at(SystemClock.now());
            let left = time.map(|time| time.saturating_sub(SystemClock.now()));
            let waits = self.ready() == 0 && !self.has_news() && !is_news();
            waits.then(|| Duration::from_nanos(left.unwrap_or(most).min(most)).min(NEVER))
        })
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
    /// Adds an attempt that waits from `arrived` on, but not before now.
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

    /// Why nothing of this key is tried any more, if that is so.
    fn gone_outcome(&self, key: &Key) -> Option<Outcome> {
        self.gone.get(key).map(|failed| failed.map_or(Outcome::SentAway, Outcome::KeyFailed))
    }

    /// Tells the line how many wait for an answer of a shared bucket.
    fn note_away(&mut self) {
        self.line.set_away(SystemClock.now(), self.asked.len());
    }

    /// An attempt that was chosen waits again, and nothing of its key starts before `until`.
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

    /// A command of this key has ended. If too many of them have failed in a row, none of the others is tried.
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

    /// So many commands of this key have failed in a row: none of the others is tried.
    fn end_key(&mut self, key: &Key, id: KeyId, most: NonZeroU32) {
        self.gone.insert(key.clone(), Some(most));
        let waiting = self.line.drain_key(id).into_iter();
        self.refused.extend(waiting.map(|unit| (unit.content, Outcome::KeyFailed(most))));
    }

    /// An attempt does not wait any more.
    fn has_left(&mut self, attempt: &Attempt) {
        if attempt.number == 1 {
            self.new.units -= 1;
            self.new.bytes -= attempt.job.length;
        }
    }

    /// The attempt to be made now. It is charged.
    /// Chooses the attempt that is made next, if none is chosen.
    fn choose(&mut self, settles: bool) {
        if self.chosen.is_none() {
            self.chosen = self.next(settles);
        }
    }

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
