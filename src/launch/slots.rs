//! Which commands run, and whether more may start. The pump, the commands' tasks and the signal thread share this state.

use super::target::{Member, Target, stopped_starts};
use super::temporary::is_shortage;
use crate::flow::unpoisoned;
use rustix::process::Signal;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// Commands that start at once. A start takes as long as the system needs to load the command, half a millisecond or more,
/// for which the starting thread is blocked (`CLONE_VFORK`, clone(2)): one thread alone would not keep two cores busy.
pub(super) const STARTERS: usize = 2;

/// Enough jobs handed over and not started yet to keep the starters at work.
const MOST_STARTING: usize = 2 * STARTERS;

/// How often a start is tried without room for it while no command runs: half a second.
const TRIES: u32 = 50;

/// How long a suspend waits for a start that is under way.
const LONGEST_START: Duration = Duration::from_secs(1);

/// A start that takes longer than this may itself have been stopped.
const USUAL_START: Duration = Duration::from_millis(5);

/// The commands that run, each in a slot.
#[derive(Debug)]
pub struct Slots {
    state: Mutex<State>,
    begun: Instant,
    changed: Condvar,
    /// Closed when the running commands were killed.
    not_killed: Semaphore,
    /// 0: no cap.
    jobs: u32,
    /// Jobs that are handed over and not started yet may start all at once after a delay. So they are at most two bursts: law 3
    /// allows a burst and what comes in the allowance at one instant, and the allowance is at most the time that fills a bucket.
    most_starting: usize,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: it is starting.
    running: BTreeMap<u64, Option<Target>>,
    starting: usize,
    /// Slots given back, the lowest first. If there is none, all slots below the number of running commands are taken.
    free: BinaryHeap<Reverse<u32>>,
    stopping: bool,
    /// Set while all commands are stopped, or about to be. Nothing starts, and a command that is just starting is stopped.
    suspended: Option<Suspension>,
    /// How long everything was stopped before.
    suspended_before: Duration,
    /// The last signal passed on, also for a command that starts at that moment.
    passed_on: Option<Signal>,
    /// The processes of commands in our own group, as found when a signal was passed on.
    members: Vec<Member>,
}

/// The processes that were stopped. A command may have ended when its other processes are resumed.
#[derive(Debug)]
struct Suspension {
    since: Instant,
    commands: Vec<Target>,
    members: Vec<Member>,
}

impl Suspension {
    fn stop(&mut self, target: Target) {
        target.signal(Signal::STOP);
        self.commands.push(target);
        self.members.extend(target.members());
    }

    fn resume(&self) {
        self.commands.iter().for_each(|target| target.signal(Signal::CONT));
        self.members.iter().filter(|member| member.is_alive()).for_each(|member| member.signal(Signal::CONT));
    }
}

impl Slots {
    pub(super) fn new(jobs: u32, burst: u64) -> Self {
        let most_starting = usize::try_from(burst).unwrap_or(usize::MAX).saturating_mul(2).clamp(1, MOST_STARTING);
        Slots {
            state: Mutex::default(),
            begun: Instant::now(),
            changed: Condvar::new(),
            not_killed: Semaphore::new(0),
            jobs,
            most_starting,
        }
    }

    /// Waits for a free slot and says how many there are. Once nothing is to start any more, never returns.
    pub(super) fn wait(&self) -> u64 {
        self.room(&self.wait_while(|state| self.room(state) == 0))
    }

    /// How many slots are free.
    pub(super) fn free(&self) -> u64 {
        self.free_in(&self.lock())
    }

    fn free_in(&self, state: &State) -> u64 {
        match self.jobs {
            0 => u64::MAX,
            jobs => u64::from(jobs).saturating_sub(state.running.len() as u64),
        }
    }

    fn room(&self, state: &State) -> u64 {
        let starters = self.most_starting.saturating_sub(state.starting) as u64;
        if state.stopping { 0 } else { self.free_in(state).min(starters) }
    }

    /// Takes a slot for the job that `next` returns with its number, if there is one; that is seen together. Once nothing is
    /// to start any more, never returns.
    pub(super) fn take<T>(&self, next: impl FnOnce() -> Option<(u64, T)>) -> Option<(u32, T)> {
        let mut state = self.wait_while(|state| state.stopping || state.suspended.is_some());
        let (seq, job) = next()?;
        let free = state.free.pop().map(|Reverse(slot)| slot);
        let slot = free.unwrap_or_else(|| u32::try_from(state.running.len()).unwrap_or(u32::MAX));
        state.running.insert(seq, None);
        state.starting += 1;
        Some((slot, job))
    }

    /// The job `seq` has started. A signal that was passed on meanwhile is passed on to it, too.
    pub(super) fn started(&self, seq: u64, target: Target) {
        let mut state = self.lock();
        state.running.insert(seq, Some(target));
        if let Some(signal) = state.passed_on {
            target.signal(signal);
        }
        if let Some(suspension) = &mut state.suspended {
            suspension.stop(target);
        }
        self.one_less_is_starting(&mut state);
    }

    /// The command of the job `seq` was waited for: from now on another process may get its number.
    pub(super) fn waited_for(&self, seq: u64, target: Target) -> Target {
        let (rest, mut state) = (Target::Rest(target.pid()), self.lock());
        let stopped = state.suspended.iter_mut().flat_map(|suspension| &mut suspension.commands);
        stopped.filter(|stopped| stopped.pid() == target.pid()).for_each(|stopped| *stopped = rest);
        state.running.insert(seq, Some(rest));
        rest
    }

    fn one_less_is_starting(&self, state: &mut State) {
        state.starting -= 1;
        if state.suspended.is_some() || state.starting + 1 == self.most_starting {
            self.changed.notify_all();
        }
    }

    /// Frees the slot of the job `seq`. What `then` does is seen together with that: the job may run again.
    pub(super) fn release(&self, seq: u64, slot: u32, then: impl FnOnce()) {
        let mut state = self.lock();
        if let Some(None) = state.running.remove(&seq) {
            self.one_less_is_starting(&mut state);
        }
        state.free.push(Reverse(slot));
        then();
        drop(state);
        self.changed.notify_all();
    }

    /// Runs `act`, which takes files or processes. If the system has no more of them, calls `wait` with the error and tries
    /// again: as long as a command runs, which may free some, and a few times more, since two starts may take them from each
    /// other.
    pub(super) async fn once_there_is_room<T>(
        &self,
        mut act: impl FnMut() -> io::Result<T>,
        wait: impl Fn(&io::Error),
    ) -> io::Result<T> {
        let mut tries = 0;
        loop {
            match act() {
                Err(error) if is_shortage(&error) && tries < TRIES => wait(&error),
                done => return done,
            }
            sleep(Duration::from_millis(fastrand::u64(1..20))).await;
            tries = if self.lock().running.values().any(Option::is_some) { 0 } else { tries + 1 };
        }
    }

    /// Nothing starts any more; whether that is news.
    #[must_use = "only the first caller may end it"]
    pub fn stop(&self) -> bool {
        !std::mem::replace(&mut self.lock().stopping, true)
    }

    /// Whether the running commands were told to end.
    pub(super) fn is_ending(&self) -> bool {
        self.lock().passed_on.is_some()
    }

    /// Whether the running commands were killed.
    pub(super) fn is_killing(&self) -> bool {
        self.not_killed.is_closed()
    }

    /// Returns when the running commands were killed.
    pub(super) async fn killed(&self) {
        // It never has a permit.
        let _ = self.not_killed.acquire().await;
    }

    /// Sends a signal to every command, and to those that are just starting.
    pub fn end_with(&self, signal: Signal) {
        let mut state = self.lock();
        let orphans = state.remember_members();
        state.passed_on = Some(signal);
        for signal in [signal, Signal::CONT] {
            state.running.values().flatten().for_each(|target| target.signal(signal));
            orphans.iter().filter(|orphan| orphan.is_alive()).for_each(|orphan| orphan.signal(signal));
        }
        if signal == Signal::KILL {
            self.not_killed.close();
        }
    }

    /// Sends a signal to every command that runs. It does not end them.
    pub fn pass_on(&self, signal: Signal) {
        self.lock().running.values().flatten().for_each(|target| target.signal(signal));
    }

    /// Another process has sent every command a signal. Processes that commands have started are waited for if they survive.
    pub fn others_end_them(&self) {
        let _ = self.lock().remember_members();
    }

    /// Whether anything of a command is left, once it was waited for.
    pub(super) fn survives(&self, target: Target) -> bool {
        target.survives() || self.lock().members.iter().any(|member| member.is_alive())
    }

    /// Stops every command. Returns when those that were starting are stopped, too.
    ///
    /// A starting process belongs to our group at first, with all signals blocked. A stop signal to our group then reaches
    /// it before the command runs, while the thread that starts it is blocked and cannot stop: neither could we
    /// (`CLONE_VFORK`, clone(2)). So it is resumed until it has started, and stopped then.
    pub fn suspend(&self) {
        let mut state = self.lock();
        let mut suspension = Suspension { since: Instant::now(), commands: Vec::new(), members: Vec::new() };
        state.running.values().flatten().for_each(|target| suspension.stop(*target));
        let since = state.suspended.get_or_insert(suspension).since;
        // A start may hang, on a file system that does not answer for example.
        while state.is_starting() && since.elapsed() < LONGEST_START {
            let waited = self.changed.wait_timeout_while(state, USUAL_START, |state| state.is_starting());
            state = unpoisoned(waited).0;
            state.release_stopped_starts();
        }
    }

    /// Resumes starts that were stopped together with us: until then the threads that start them are blocked.
    pub fn release_stopped_starts(&self) {
        self.lock().release_stopped_starts();
    }

    /// Resumes every command.
    pub fn resume(&self) {
        let mut state = self.lock();
        if let Some(suspension) = state.suspended.take() {
            state.suspended_before += suspension.since.elapsed();
            suspension.resume();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// For how long commands could run so far: time in which we had everything stopped does not count.
    pub(super) fn ran(&self) -> Duration {
        let state = self.lock();
        let now = state.suspended.as_ref().map_or_else(Instant::now, |suspension| suspension.since);
        now.saturating_duration_since(self.begun).saturating_sub(state.suspended_before)
    }

    /// Returns when commands could run for `time`.
    pub(super) async fn sleep(&self, time: Duration) {
        let until = self.ran() + time;
        let mut left = time;
        while !left.is_zero() {
            sleep(left).await;
            left = until.saturating_sub(self.ran());
        }
    }

    pub(super) fn running(&self) -> Vec<(u64, Target)> {
        let state = self.lock();
        state.running.iter().filter_map(|(seq, target)| Some((*seq, (*target)?))).collect()
    }

    /// Commands that run now.
    pub fn count(&self) -> u64 {
        self.lock().running.len() as u64
    }

    /// Returns when no command runs.
    pub fn drain(&self) {
        drop(self.wait_while(|state| !state.running.is_empty()));
    }

    /// Whether no command runs, after `time` at the latest.
    pub fn drains_within(&self, time: Duration) -> bool {
        let runs = |state: &mut State| !state.running.is_empty();
        let waited = self.changed.wait_timeout_while(self.lock(), time, runs);
        !unpoisoned(waited).1.timed_out()
    }

    fn wait_while(&self, condition: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        unpoisoned(self.changed.wait_while(self.lock(), condition))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}

impl State {
    fn is_starting(&self) -> bool {
        self.starting > 0
    }

    fn release_stopped_starts(&self) {
        if self.is_starting() {
            let known: Vec<_> = self.running.values().flatten().map(|target| target.pid()).collect();
            for start in stopped_starts(&known) {
                start.signal(Signal::CONT);
            }
        }
    }

    /// Returns the processes that were found before and have lost their parent since: no command leads to them any more.
    fn remember_members(&mut self) -> Vec<Member> {
        let now: Vec<Member> = self.running.values().flatten().flat_map(|target| target.members()).collect();
        self.members.retain(|member| !now.contains(member));
        let orphans = self.members.clone();
        self.members.extend(now);
        orphans
    }
}

#[cfg(test)]
mod tests;
