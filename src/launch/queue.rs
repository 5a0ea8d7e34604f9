//! The waiting attempts, and the decision after the end of an attempt. All waiting attempts are in the line of the
//! grants, which decides which attempt is next, and when. First attempts wait for the limits. Repeated attempts wait
//! until they are due, and then for the limits. The pump's thread and the commands' tasks share this queue.

use super::attempt::{Attempt, Running};
use super::job::{Job, Key, Outcome};
use super::options::{NEVER, Options};
use super::reply::Reply;
use super::retries::{Judged, Judgement, Overlong, Paused, Retries, Verdict};
use super::wakes::Wakes;
use crate::flow::{Bucket, Granted, Grants, Passed, Refusal, ServerReport, unpoisoned};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use throttle_limits::clock::{NanoClock, Nanos, SystemClock, in_nanos};
use throttle_limits::limits::Pace;
use throttle_limits::line::Unit;

/// The queue of waiting attempts.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Where the attempts wait.
    pub(super) grants: Arc<Grants<Attempt>>,
    pub(super) wakes: Wakes,
    /// The same moment on both clocks, to convert an `Instant` to nanoseconds.
    begun: (Instant, Nanos),
    options: Arc<Options>,
    /// Whether every unit of the input has entered the queue.
    pub(super) is_all_read: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// The rules for further attempts; `None`: each unit is tried once.
    retries: Option<Retries>,
    /// The attempt that has left the line, and takes a slot next.
    chosen: Option<Chosen>,
    /// The units that wait for their first attempt.
    new: Passed,
}

/// An attempt that leaves the line, with its grant, or with the reason why it never starts.
type Chosen = (Attempt, Result<Granted, Outcome>);

impl Queue {
    /// # Errors
    /// The system has no room for the files that wake the pump.
    pub(super) fn new(options: Arc<Options>, grants: Arc<Grants<Attempt>>) -> io::Result<Self> {
        let state = State { retries: options.again.clone().map(Retries::new), chosen: None, new: Passed::default() };
        Ok(Queue {
            state: Mutex::new(state),
            wakes: Wakes::new()?,
            begun: (Instant::now(), SystemClock.now()),
            options,
            is_all_read: AtomicBool::new(false),
            grants,
        })
    }

    /// Whether the pump has to wait for the end of all commands: they may be tried again, or it passes their ends, real
    /// costs or failures on to the bucket.
    pub(super) fn needs_ends(&self) -> bool {
        let is_reported = |bucket: &Bucket<Attempt>| {
            self.options.settling.is_any() || self.options.fails.is_some() || bucket.counts_jobs()
        };
        self.lock().retries.is_some() || self.grants.shared().is_some_and(is_reported)
    }

    /// Adds the first attempt at a job. It waits from now on.
    pub(super) fn add(&self, job: Job) {
        self.add_attempt(Attempt::first(job), 0);
    }

    /// Adds an attempt that waits from `arrived` on, or from now on if that is later.
    fn add_attempt(&self, mut attempt: Attempt, arrived: Nanos) {
        let (job, now, is_first) = (Arc::clone(&attempt.job), SystemClock.now(), attempt.number == 1);
        {
            let mut state = self.lock();
            if let Some(retries) = state.retries.as_mut().filter(|_| is_first && job.is_left_over) {
                attempt.history = retries.left_over(&job.key, now);
            }
            if is_first {
                state.new.units += 1;
                state.new.bytes += job.length;
            }
        }
        if self.grants.is_shared() && self.grants.has_keys() && job.refused().is_some() {
            // No request to the bucket for a command that cannot run.
            return self.grants.refuse(attempt, Refusal::Unread);
        }
        let (size, weight) = (attempt.size(), attempt.history.weight());
        let (costs, arrived, settles) = (job.costs(), arrived.max(now), self.options.settling.is_any());
        let unit = Unit { age: job.seq, costs, size, arrived, settles, content: attempt };
        self.grants.ask(job.key.as_deref(), unit, weight);
    }

    /// Makes this attempt the next one to start.
    pub(super) fn choose(&self, attempt: Attempt, granted: Granted) {
        self.lock().chosen = Some((attempt, Ok(granted)));
    }

    /// Makes this attempt the next one. It fails without a start.
    pub(super) fn choose_refused(&self, attempt: Attempt, why: &Refusal) {
        let outcome = outcome(&attempt, why);
        self.lock().chosen = Some((attempt, Err(outcome)));
    }

    /// The job of the next attempt.
    pub(super) fn chosen(&self) -> Option<Arc<Job>> {
        self.lock().chosen.as_ref().map(|(attempt, _)| Arc::clone(&attempt.job))
    }

    /// Takes out the chosen attempt, which has a slot and starts now.
    pub(super) fn take_chosen(&self) -> Option<Chosen> {
        let (mut state, now) = (self.lock(), SystemClock.now());
        let (mut attempt, granted) = state.chosen.take()?;
        state.has_left(&attempt);
        if let Ok(granted) = &granted {
            // Now, because the end of a quick command is reported soon.
            self.grants.unit_has_left(granted);
        }
        if let (Ok(granted), Some(retries)) = (&granted, &mut state.retries) {
            let key = &attempt.job.key;
            let start = match self.grants.shared() {
                Some(_) => granted.charge.and_then(|charge| charge.start).unwrap_or_default(),
                None => self.grants.line().start_of(granted.charged.number).unwrap_or_default(),
            };
            retries.started(key, now, &mut attempt.history, start);
        }
        Some((attempt, granted))
    }

    /// Decides what follows from the end of an attempt. A pause holds its key, or all keys, from now on.
    pub(super) fn judge(&self, running: &mut Running, at: Instant, outcome: &Outcome, reply: &Reply) -> Verdict {
        let verdict = self.verdict(running, at, outcome, reply);
        if let (Some(granted), Verdict::Ok | Verdict::Failed) = (&running.granted, verdict) {
            let (key, has_failed) = (&running.attempt.job.key, matches!(verdict, Verdict::Failed));
            match self.grants.shared() {
                None => self.grants.line().tried(SystemClock.now(), granted.key, !has_failed),
                Some(bucket) if self.options.fails.is_some() => {
                    if bucket.tried(key.as_deref(), !has_failed) {
                        self.wake_pump();
                    }
                }
                Some(_) => {}
            }
        }
        verdict
    }

    fn verdict(&self, running: &mut Running, at: Instant, outcome: &Outcome, reply: &Reply) -> Verdict {
        let mut guard = self.lock();
        let State { retries, chosen, .. } = &mut *guard;
        let Some(retries) = retries else {
            return if matches!(outcome, Outcome::Ok) { Verdict::Ok } else { Verdict::Failed };
        };
        let judged = Judged { started: self.at(running.started), at: self.at(at) };
        let (key, history) = (&running.attempt.job.key, &mut running.attempt.history);
        let no_others_wait = || {
            let mut are_refused = self.is_all_read.load(Ordering::SeqCst);
            let mut note = |attempt: &Attempt| are_refused &= attempt.history.was_refused();
            {
                let line = self.grants.line();
                let waiting = running.granted.iter().flat_map(|granted| line.units_of(granted.key));
                waiting.chain(chosen.iter().map(|(attempt, _)| attempt)).for_each(&mut note);
            }
            // The line is not locked while the bucket is.
            self.grants.shared().into_iter().for_each(|bucket| bucket.each_unit(&mut note));
            are_refused
        };
        let chance = |most| fastrand::u64(..=most);
        let pace = self.pace(key);
        let Judgement { verdict, mut report, until } =
            retries.judge(key, (judged, history), (outcome, reply, &pace), no_others_wait, chance);
        drop(guard);
        let now = SystemClock.now();
        // A part of the hold is over.
        let rest = |hold| judged.at.saturating_add(hold).saturating_sub(now);
        report.hold = report.hold.map(rest).filter(|hold| *hold > 0);
        if let (Some(granted), Some(time)) = (&running.granted, report.hold) {
            let until = now.saturating_add(time);
            match self.grants.has_keys() {
                true => self.grants.line().hold_until(now, granted.key, until),
                false if self.grants.is_shared() => {}
                false => self.grants.line().hold_all_until(now, until),
            }
        }
        self.report(key, report, until.max(now));
        verdict
    }

    /// Reports to the learned paces, and wakes the pump if something was held. Nothing of the key starts before `until`.
    fn report(&self, key: &Key, report: ServerReport, until: Nanos) {
        let mut is_urgent = report.hold.is_some();
        if let Some(bucket) = self.grants.shared() {
            is_urgent |= bucket.report(key.as_deref(), report);
        } else {
            let (mut line, now) = (self.grants.line(), SystemClock.now());
            if let Some(id) = line.find(key.as_deref()) {
                line.served(now, Some(id), report.served);
                report.refused.into_iter().for_each(|start| line.refused(now, Some(id), start, until));
            }
        }
        if is_urgent {
            self.wake_pump();
        }
    }

    /// The learned pace of this key.
    fn pace(&self, key: &Key) -> Pace {
        if let Some(bucket) = self.grants.shared() {
            return bucket.pace(key.as_deref());
        }
        let line = self.grants.line();
        let pace = line.find(key.as_deref()).and_then(|key| line.pace_of(key)).cloned();
        pace.unwrap_or_else(|| Pace::new(0))
    }

    /// The time from `at` until `due`.
    pub(super) fn due_in(&self, due: Nanos, at: Instant) -> Duration {
        Duration::from_nanos(due.saturating_sub(self.at(at))).min(NEVER)
    }

    /// Records the end of the command with this grant. `next` is the job's next attempt, if there is one.
    pub(super) fn ended(&self, granted: Option<&Granted>, next: Option<Attempt>) {
        if let Some(granted) = granted {
            self.grants.ended(granted);
        }
        if let Some(next) = next {
            let arrived = self.at(next.ready);
            self.add_attempt(next, arrived);
        }
    }

    /// Wakes the pump after everything about an attempt's end was recorded.
    pub(super) fn wake_pump(&self) {
        self.wakes.wake();
    }

    /// The learned time between two attempts of `key`, if the server allows less than the limits. Also returns the key's
    /// pause at `at`, and what is left of it now if it is longer than allowed.
    pub(super) fn standing(&self, key: &Key, at: Instant) -> (Option<Duration>, Paused, Option<Overlong>) {
        let known = |retries: &Retries| retries.standing(key, self.at(at), SystemClock.now());
        let (paused, overlong) = self.lock().retries.as_ref().map(known).unwrap_or_default();
        // The bucket may be locked while its server is away.
        let learns = self.options.again.as_ref().is_some_and(|again| again.learns);
        let learned = if learns { self.pace(key).learned() } else { None };
        (learned.map(Duration::from_nanos), paused, overlong)
    }

    /// Abandons a key. Returns its waiting attempts.
    pub(super) fn give_up(&self, granted: &Granted) -> Vec<Attempt> {
        let (mut state, mut line) = (self.lock(), self.grants.line());
        let waiting: Vec<_> = line.drain_key(granted.key).into_iter().map(|unit| unit.content).collect();
        line.give_up(SystemClock.now(), granted.key, None);
        if let Some(bucket) = self.grants.shared() {
            bucket.abandon(granted.key);
            self.wake_pump();
        }
        for attempt in &waiting {
            state.has_left(attempt);
        }
        waiting
    }

    /// Takes out all attempts.
    pub(super) fn drain(&self) -> Vec<Attempt> {
        let chosen = self.lock().chosen.take().map(|(attempt, _)| attempt);
        let away = self.grants.shared().map(Bucket::drain).unwrap_or_default();
        let waiting = self.grants.line().drain().into_iter().map(|unit| unit.content);
        chosen.into_iter().chain(away).chain(self.grants.take_refused()).chain(waiting).collect()
    }

    /// Whether the queue is full, so that reading stops.
    pub(super) fn is_full(&self) -> bool {
        let line = self.grants.line();
        // Without keys, one new unit waits in the line. It may need another attempt, so a place is kept for it.
        let (ahead, has_keys) = (self.options.ahead, self.grants.has_keys());
        line.is_full(if has_keys { ahead } else { ahead.saturating_sub(1) }) && (has_keys || !line.is_empty())
    }

    /// The memory of the waiting attempts, in bytes. The line is free again afterwards: reading may take long.
    pub(super) fn memory(&self) -> usize {
        self.grants.line().memory()
    }

    /// Whether no attempt waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().chosen.is_none() && self.grants.is_empty()
    }

    /// Without keys: whether enough attempts wait that are no suspects. One is enough, unless a shared bucket is asked
    /// for several together.
    pub(super) fn has_enough(&self) -> bool {
        // The line is not locked while the bucket is.
        let places = self.grants.shared().map_or(1, Bucket::places);
        self.grants.line().usual() >= places
    }

    /// The oldest unit that waits for its first attempt, if units wait for the requests of a shared bucket.
    pub(super) fn oldest_new(&self) -> Option<Arc<Job>> {
        let bucket = self.grants.shared()?;
        let mut oldest: Option<Arc<Job>> = None;
        let mut note = |attempt: &Attempt| {
            if attempt.number == 1 && oldest.as_ref().is_none_or(|job| attempt.job.seq < job.seq) {
                oldest = Some(Arc::clone(&attempt.job));
            }
        };
        {
            let line = self.grants.line();
            line.find(None).into_iter().flat_map(|key| line.units_of(key)).for_each(&mut note);
        }
        bucket.each_unit(note);
        oldest
    }

    /// The units that wait for their first attempt, and their bytes in the input.
    pub(super) fn new_units(&self) -> Passed {
        self.lock().new
    }

    /// Returns when `source` can be read, when the pump was woken, or at `until`. Returns at once if `is_news` returns
    /// true.
    pub(super) fn wait(
        &self,
        source: Option<BorrowedFd<'_>>,
        until: Option<Nanos>,
        is_news: impl Fn() -> bool,
    ) -> io::Result<()> {
        if is_news() {
            return Ok(());
        }
        let wait = until.map_or(NEVER, |until| Duration::from_nanos(until.saturating_sub(SystemClock.now())));
        self.wakes.wait(source, wait.min(NEVER))
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
    /// Records that an attempt has left the queue.
    fn has_left(&mut self, attempt: &Attempt) {
        if attempt.number == 1 {
            self.new.units -= 1;
            self.new.bytes -= attempt.job.length;
        }
    }
}

/// How a refused attempt ends.
fn outcome(attempt: &Attempt, why: &Refusal) -> Outcome {
    match why {
        Refusal::KeyFailed(most) => Outcome::KeyFailed(*most),
        Refusal::SentAway => Outcome::SentAway,
        Refusal::Unread | Refusal::TooMuch | Refusal::TooLate => attempt.job.refused().unwrap_or(Outcome::TooCostly),
    }
}
