//! The running commands, and whether more may start. The pump, the commands' tasks and the signal thread share this
//! state.

use super::attempt::most_files;
use super::target::{Member, Target, stopped_starts};
use super::temporary::is_shortage;
use crate::flow::unpoisoned;
use rustix::process::Signal;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{RwLock, Semaphore};
use tokio::time::{Instant, sleep};

/// The threads that start commands. A start blocks its thread until the system has loaded the command, for half a
/// millisecond or more (`CLONE_VFORK`, clone(2)). A single thread would not keep two cores busy.
pub(super) const STARTERS: usize = 2;

/// The most jobs that were handed over and have not started: enough to keep the starters busy.
const MAX_STARTING: usize = 2 * STARTERS;

/// The most tries of a start for which the system has no room, while no command runs. The tries are about 10 ms apart,
/// and so take two seconds in all. Other programs may give something back in that time.
const MAX_TRIES: u32 = 200;

/// The longest time for which [`Slots::suspend`] waits for commands that are starting.
const MAX_START: Duration = Duration::from_secs(1);

/// A starting process that takes longer than this may have been stopped together with us.
const USUAL_START: Duration = Duration::from_millis(5);

/// The running commands, each in a slot.
#[derive(Debug)]
pub struct Slots {
    state: Mutex<State>,
    begun: Instant,
    changed: Condvar,
    /// Closed when the running commands were killed.
    not_killed: Semaphore,
    /// Held while a start takes files and a process.
    starts: RwLock<()>,
    /// 0: no maximum.
    jobs: u32,
    /// The most jobs that were handed over and have not started. After a delay they may all start at one instant. At
    /// one instant, the limits allow at most two bursts (law 3): the full bucket, and the units of the lag allowance.
    /// The allowance is at most the time that fills the bucket.
    max_starting: usize,
}

#[derive(Debug, Default)]
struct State {
    /// The processes of each running job, by job number; `None`: the job is starting.
    running: BTreeMap<u64, Option<Target>>,
    starting: usize,
    /// The running commands whose output waits for an open file.
    waiting_for_file: usize,
    /// Freed slots, the lowest first. If empty, every slot below the number of running commands is taken.
    free: BinaryHeap<Reverse<u32>>,
    stopping: bool,
    /// Set while all commands are stopped or being stopped. Nothing starts, and a command that is just starting is
    /// stopped.
    suspended: Option<Suspension>,
    /// How long all commands were stopped in earlier suspensions.
    suspended_before: Duration,
    /// The latest signal that was sent to end all commands. A command that is still starting gets it once it has
    /// started.
    passed_on: Option<Signal>,
    /// Whether another process has sent every command a signal to end: the terminal, after Ctrl-C.
    ended_by_others: bool,
    /// Signals that do not end commands, each with the number of a job that was starting when the signal came.
    for_starting: Vec<(u64, Signal)>,
    /// The processes of commands in our own group that were found when a signal was passed on.
    members: Vec<Member>,
}

/// The processes that were stopped. A command may have ended before its other processes are resumed.
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
        // Each job that was handed over may have its input in an open file.
        let max_starting = MAX_STARTING.min(most_files());
        let max_starting = usize::try_from(burst).unwrap_or(usize::MAX).saturating_mul(2).clamp(1, max_starting);
        Slots {
            state: Mutex::default(),
            begun: Instant::now(),
            changed: Condvar::new(),
            not_killed: Semaphore::new(0),
            starts: RwLock::default(),
            jobs,
            max_starting,
        }
    }

    /// Waits for a free slot, and returns the number of free slots. Never returns after [`stop`](Self::stop).
    pub(super) fn wait(&self) -> u64 {
        self.room(&self.wait_while(|state| self.room(state) == 0))
    }

    /// The number of free slots.
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
        let starters = self.max_starting.saturating_sub(state.starting) as u64;
        if state.stopping { 0 } else { self.free_in(state).min(starters) }
    }

    /// Takes a slot for the job that `next` returns together with its number, if it returns a job. The call and the
    /// taking happen under one lock. Never returns after [`stop`](Self::stop).
    pub(super) fn take<T>(&self, next: impl FnOnce() -> Option<(u64, T)>) -> Option<(u32, T)> {
        let mut state = self.wait_while(|state| state.stopping || state.suspended.is_some());
        let (seq, job) = next()?;
        let free = state.free.pop().map(|Reverse(slot)| slot);
        let slot = free.unwrap_or_else(|| u32::try_from(state.running.len()).unwrap_or(u32::MAX));
        state.running.insert(seq, None);
        state.starting += 1;
        Some((slot, job))
    }

    /// Records that the job `seq` has started. Sends its command a signal that was passed on meanwhile.
    pub(super) fn started(&self, seq: u64, target: Target) {
        let mut state = self.lock();
        state.running.insert(seq, Some(target));
        if let Some(signal) = state.passed_on {
            target.signal(signal);
        }
        state.for_starting.extract_if(.., |(job, _)| *job == seq).for_each(|(_, signal)| target.signal(signal));
        if let Some(suspension) = &mut state.suspended {
            suspension.stop(target);
        }
        self.one_less_is_starting(&mut state);
    }

    /// Records that the command of the job `seq` was reaped. From now on another process may get its process id.
    /// Returns the rest of the command's process group.
    pub(super) fn waited_for(&self, seq: u64, target: Target) -> Target {
        let (rest, mut state) = (Target::Rest(target.pid()), self.lock());
        let stopped = state.suspended.iter_mut().flat_map(|suspension| &mut suspension.commands);
        stopped.filter(|stopped| stopped.pid() == target.pid()).for_each(|stopped| *stopped = rest);
        state.running.insert(seq, Some(rest));
        rest
    }

    fn one_less_is_starting(&self, state: &mut State) {
        state.starting -= 1;
        if state.suspended.is_some() || state.starting + 1 == self.max_starting {
            self.changed.notify_all();
        }
    }

    /// Frees the slot of the job `seq`, and calls `then` under the same lock: the job may run again.
    pub(super) fn release(&self, seq: u64, slot: u32, then: impl FnOnce()) {
        let mut state = self.lock();
        if let Some(None) = state.running.remove(&seq) {
            state.for_starting.retain(|(job, _)| *job != seq);
            self.one_less_is_starting(&mut state);
        }
        state.free.push(Reverse(slot));
        then();
        drop(state);
        self.changed.notify_all();
    }

    /// Calls `act`, which starts a command and records that with [`started`](Self::started), or gives back all files and
    /// processes that it took. If the system has none left, calls `wait` with the error and tries again, as long as any
    /// command runs: its end may free some. When no command runs, tries a few times more.
    ///
    /// Two starts may take from each other what would be enough for one. So each further try is alone: meanwhile no other
    /// start holds anything, and no command begins to run.
    pub(super) async fn once_there_is_room<T>(
        &self,
        mut act: impl FnMut() -> io::Result<T>,
        wait: impl Fn(&io::Error),
    ) -> io::Result<T> {
        let beside_others = self.starts.read().await;
        let mut done = act();
        drop(beside_others);
        let mut tries = 0;
        while let Some(error) = done.as_ref().err().filter(|error| is_shortage(error) && tries < MAX_TRIES) {
            wait(error);
            sleep(Duration::from_millis(fastrand::u64(1..20))).await;
            let _alone = self.starts.write().await;
            // Found out before the try: a command that ends during the try gives its files back.
            tries = if self.lock().running.values().any(Option::is_some) { 0 } else { tries + 1 };
            done = act();
        }
        done
    }

    /// Waits a moment for an open file, which the end of another command may give back. Returns `false` at once if no
    /// command would: the output of all other running commands waits in this way, or they were killed.
    pub(super) async fn wait_for_file(&self) -> bool {
        {
            let mut state = self.lock();
            let running = state.running.values().flatten().count();
            if state.waiting_for_file + 1 >= running || self.is_killing() {
                return false;
            }
            state.waiting_for_file += 1;
        }
        sleep(Duration::from_millis(10)).await;
        self.lock().waiting_for_file -= 1;
        true
    }

    /// Forbids all further starts. Returns whether starts were allowed before.
    #[must_use = "only the first caller may end it"]
    pub fn stop(&self) -> bool {
        !std::mem::replace(&mut self.lock().stopping, true)
    }

    /// Whether the running commands got a signal to end.
    pub(super) fn is_ending(&self) -> bool {
        self.lock().passed_on.is_some()
    }

    /// Whether the running commands got a signal to end, from us or from the terminal. The end of such a command is not
    /// a failure.
    pub(super) fn are_ended(&self) -> bool {
        let state = self.lock();
        state.passed_on.is_some() || state.ended_by_others
    }

    /// Whether the running commands were killed.
    pub(super) fn is_killing(&self) -> bool {
        self.not_killed.is_closed()
    }

    /// Returns when the running commands were killed.
    pub(super) async fn killed(&self) {
        // The semaphore never has a permit.
        let _ = self.not_killed.acquire().await;
    }

    /// Sends a signal to every command, including commands that are just starting.
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

    /// Sends a signal that does not end commands to every running command. A starting command gets the signal once it
    /// has started.
    pub fn pass_on(&self, signal: Signal) {
        let state = &mut *self.lock();
        for (seq, target) in &state.running {
            match target {
                Some(target) => target.signal(signal),
                None => state.for_starting.push((*seq, signal)),
            }
        }
    }

    /// Records that another process has sent a signal to every command. The run then waits for the commands' processes
    /// that survive the signal.
    pub fn others_end_them(&self) {
        let mut state = self.lock();
        state.ended_by_others = true;
        let _ = state.remember_members();
    }

    /// Whether any process of a command survives after the command was reaped.
    pub(super) fn survives(&self, target: Target) -> bool {
        target.survives() || self.lock().members.iter().any(|member| member.is_alive())
    }

    /// Stops every command. Returns when starting commands are stopped as well.
    ///
    /// A starting process first belongs to our group, with all signals blocked. A stop signal to our group stops it
    /// before the command runs. Until that process continues, the thread that starts it is blocked and cannot stop, so
    /// our own process cannot stop (`CLONE_VFORK`, clone(2)). Therefore the starting process is resumed until it has
    /// started, and is stopped then.
    pub fn suspend(&self) {
        let mut state = self.lock();
        let mut suspension = Suspension { since: Instant::now(), commands: Vec::new(), members: Vec::new() };
        state.running.values().flatten().for_each(|target| suspension.stop(*target));
        let since = state.suspended.get_or_insert(suspension).since;
        // A start may hang, for example on a file system that does not answer.
        while state.is_starting() && since.elapsed() < MAX_START {
            let waited = self.changed.wait_timeout_while(state, USUAL_START, |state| state.is_starting());
            state = unpoisoned(waited).0;
            state.release_stopped_starts();
        }
    }

    /// Resumes starts that were stopped together with us. Until then the threads that start them are blocked.
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

    /// How long commands could run since the start, without the time in which we had stopped all commands.
    pub(super) fn ran(&self) -> Duration {
        let state = self.lock();
        let now = state.suspended.as_ref().map_or_else(Instant::now, |suspension| suspension.since);
        now.saturating_duration_since(self.begun).saturating_sub(state.suspended_before)
    }

    /// Returns once commands could run for `time`. Time in which all commands were stopped does not count.
    pub(super) async fn sleep(&self, time: Duration) {
        let until = self.ran() + time;
        let mut remaining = time;
        while !remaining.is_zero() {
            sleep(remaining).await;
            remaining = until.saturating_sub(self.ran());
        }
    }

    pub(super) fn running(&self) -> Vec<(u64, Target)> {
        let state = self.lock();
        state.running.iter().filter_map(|(seq, target)| Some((*seq, (*target)?))).collect()
    }

    /// The number of running commands.
    pub fn count(&self) -> u64 {
        self.lock().running.len() as u64
    }

    /// Returns when no command runs.
    pub fn drain(&self) {
        drop(self.wait_while(|state| !state.running.is_empty()));
    }

    /// Waits until no command runs, for at most `time`. Returns whether no command runs.
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

    /// Stores the processes of all running commands. Returns the processes that were stored before and have lost their
    /// parent since, so that they no longer belong to a running command's tree.
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
