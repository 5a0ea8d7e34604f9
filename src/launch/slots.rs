//! Which commands run, and whether more may start. The pump, the commands' tasks and the signal thread share this state.

use super::target::{Relative, Target, stopped_starts};
use super::temporary::is_shortage;
use rustix::process::Signal;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, RwLock};
use tokio::time::{Instant, sleep};

/// Commands that start at once. A start takes as long as the system needs to load the command, half a millisecond or more,
/// for which the starting thread is blocked (`CLONE_VFORK`, clone(2)): one thread alone would not keep two cores busy.
pub(super) const STARTERS: usize = 2;

/// Enough jobs handed over and not started yet to keep the starters at work.
const MOST_STARTING: usize = 2 * STARTERS;

/// How long a suspend waits for a start that is under way.
const LONGEST_START: Duration = Duration::from_secs(1);

/// A start that takes longer than this may itself have been stopped.
const USUAL_START: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    begun: Instant,
    changed: Condvar,
    room_in_the_system: Notify,
    /// Held for writing by a start that must try alone.
    alone: RwLock<()>,
    killed: Notify,
    /// 0: no cap.
    jobs: u32,
    /// Jobs that are handed over and not started yet may after a delay start all at once: so they are no more than two
    /// bursts, which is what law 3 allows at one instant, a full bucket being the lag allowance.
    most_starting: usize,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: it is starting.
    running: BTreeMap<u64, Option<Target>>,
    starting: usize,
    /// Slots given back, the lowest first; those from `next` on were never given.
    free: BinaryHeap<Reverse<u32>>,
    next: u32,
    stopping: bool,
    /// Everything is stopped, or about to be. Nothing starts, and a command that starts at that moment is stopped, too.
    suspended: Option<Suspension>,
    /// How long everything was stopped before.
    suspended_before: Duration,
    /// The last signal passed on, also for a command that starts at that moment.
    passed_on: Option<Signal>,
    /// Who belongs to a command in our own group, as seen when a signal was passed on.
    relatives: Vec<Relative>,
    /// Output that waits for its turn is more than should be held.
    full: bool,
    /// Commands that have ended.
    ended: u64,
    /// Starts for which the system had no room: no other starts until they have.
    short: usize,
}

/// A start for which the system has no room, until this is dropped.
struct Short<'a>(&'a Slots);

impl<'a> Short<'a> {
    fn count(slots: &'a Slots) -> Self {
        slots.lock().short += 1;
        Short(slots)
    }
}

impl Drop for Short<'_> {
    fn drop(&mut self) {
        self.0.lock().short -= 1;
        self.0.changed.notify_all();
    }
}

#[derive(Debug)]
struct Suspension {
    since: Instant,
    /// Who was stopped. The command that leads to them may be gone when they are to go on.
    stopped: Vec<Stopped>,
}

#[derive(Debug)]
enum Stopped {
    Group(Target),
    Relative(Relative),
}

impl Suspension {
    fn stop(&mut self, target: Target) {
        target.signal(Signal::STOP);
        self.stopped.push(Stopped::Group(target));
        self.stopped.extend(target.relatives().into_iter().map(Stopped::Relative));
    }

    fn resume(&self) {
        for stopped in &self.stopped {
            match stopped {
                Stopped::Group(target) => target.signal(Signal::CONT),
                Stopped::Relative(relative) if relative.is_alive() => relative.signal(Signal::CONT),
                Stopped::Relative(_) => {}
            }
        }
    }
}

impl Slots {
    pub(super) fn new(jobs: u32, burst: u64) -> Self {
        let most_starting = usize::try_from(burst).unwrap_or(usize::MAX).saturating_mul(2).clamp(1, MOST_STARTING);
        Slots {
            state: Mutex::default(),
            begun: Instant::now(),
            changed: Condvar::new(),
            room_in_the_system: Notify::new(),
            alone: RwLock::new(()),
            killed: Notify::new(),
            jobs,
            most_starting,
        }
    }

    /// Waits for a free slot and says how many there are. Once nothing is to start any more, never returns.
    pub(super) fn wait(&self) -> u64 {
        let mut state = self.lock();
        loop {
            let room = self.room(&state);
            if room > 0 {
                return room;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Slots that nobody has.
    pub(super) fn free(&self) -> u64 {
        match self.jobs {
            0 => u64::MAX,
            jobs => u64::from(jobs).saturating_sub(self.lock().running.len() as u64),
        }
    }

    fn room(&self, state: &State) -> u64 {
        let running = state.running.len() as u64;
        let starters = self.most_starting.saturating_sub(state.starting) as u64;
        match self.jobs {
            _ if state.stopping || state.full || state.short > 0 => 0,
            0 => starters,
            jobs => u64::from(jobs).saturating_sub(running).min(starters),
        }
    }

    /// Takes a slot for the job `seq`. Once nothing is to start any more, never returns.
    pub(super) fn take(&self, seq: u64) -> u32 {
        let mut state = self.lock();
        while state.stopping || state.suspended.is_some() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.running.insert(seq, None);
        state.starting += 1;
        if let Some(Reverse(slot)) = state.free.pop() {
            return slot;
        }
        state.next += 1;
        state.next - 1
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

    fn one_less_is_starting(&self, state: &mut State) {
        state.starting -= 1;
        if state.suspended.is_some() || state.starting + 1 == self.most_starting {
            self.changed.notify_all();
        }
    }

    pub(super) fn release(&self, seq: u64, slot: u32) {
        let mut state = self.lock();
        if let Some(None) = state.running.remove(&seq) {
            self.one_less_is_starting(&mut state);
        }
        state.free.push(Reverse(slot));
        state.ended += 1;
        self.room_in_the_system.notify_waiters();
        drop(state);
        self.changed.notify_all();
    }

    /// Runs `act`, which takes files or processes, as soon as the system has them. After a shortage it is tried again each
    /// time a command ends, one start at a time, so that starts do not take them from each other.
    pub(super) async fn once_there_is_room<T>(&self, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let tried = self.alone.try_read().ok().map(|_together| act());
        match tried {
            Some(Err(error)) if is_shortage(&error) => {}
            Some(done) => return done,
            None => {}
        }
        let _short = Short::count(self);
        let _alone = self.alone.write().await;
        loop {
            let ended = self.lock().ended;
            match act() {
                Err(error) if is_shortage(&error) && self.another_ends(ended).await => {}
                done => return done,
            }
        }
    }

    /// Returns when more commands have ended than `before`; `false` if none has started that could.
    async fn another_ends(&self, before: u64) -> bool {
        let mut room = std::pin::pin!(self.room_in_the_system.notified());
        room.as_mut().enable();
        let (has_ended, may_end) = self.look_for_ends(before);
        if !has_ended && may_end {
            room.await;
        }
        has_ended || may_end
    }

    /// Whether more commands have ended than `before`, and whether any has started that may end.
    fn look_for_ends(&self, before: u64) -> (bool, bool) {
        let state = self.lock();
        (state.ended > before, state.running.values().any(Option::is_some))
    }

    /// Returns when another command has ended; `false` if none runs.
    pub(super) fn wait_for_an_end(&self) -> bool {
        let state = self.lock();
        let before = state.ended;
        let runs = !state.running.is_empty();
        drop(self.changed.wait_while(state, |state| !state.running.is_empty() && state.ended == before));
        runs
    }

    pub(super) fn set_full(&self, full: bool) {
        let mut state = self.lock();
        if state.full != full {
            state.full = full;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Nothing starts any more; whether that is news.
    pub(super) fn stop(&self) -> bool {
        !std::mem::replace(&mut self.lock().stopping, true)
    }

    /// Whether what runs was told to end.
    pub(super) fn is_ending(&self) -> bool {
        self.lock().passed_on.is_some()
    }

    /// Whether what runs was killed.
    pub(super) fn is_killing(&self) -> bool {
        self.lock().passed_on == Some(Signal::KILL)
    }

    /// Returns when what runs was killed.
    pub(super) async fn killed(&self) {
        let mut killed = std::pin::pin!(self.killed.notified());
        killed.as_mut().enable();
        if !self.is_killing() {
            killed.await;
        }
    }

    /// Sends `signal` to everything that runs, and, if it is to last, to what is starting.
    pub(super) fn signal(&self, signal: Signal, lasting: bool) {
        let mut state = self.lock();
        let strays = state.remember_relatives();
        if lasting {
            state.passed_on = Some(signal);
        }
        state.running.values().flatten().for_each(|target| target.signal(signal));
        strays.iter().filter(|stray| stray.is_alive()).for_each(|stray| stray.signal(signal));
        if state.passed_on == Some(Signal::KILL) {
            self.killed.notify_waiters();
        }
    }

    /// Notes who belongs to the commands: somebody else has sent them a signal.
    pub(super) fn remember_relatives(&self) {
        let _ = self.lock().remember_relatives();
    }

    /// Whether anything of a command is left, once it was waited for.
    pub(super) fn survives(&self, target: Target) -> bool {
        target.survives() || self.lock().relatives.iter().any(|relative| relative.is_alive())
    }

    /// Stops everything that runs, and returns when also what was just starting is stopped.
    ///
    /// Who starts belongs to our group at first, with all signals held back. A stop signal to our group then reaches it
    /// before the command runs, while the thread that starts it is blocked and cannot stop: neither could we (`CLONE_VFORK`,
    /// clone(2)). So it goes on until it has started, and is stopped then.
    pub(super) fn suspend(&self) {
        let mut state = self.lock();
        let mut suspension = Suspension { since: Instant::now(), stopped: Vec::new() };
        state.running.values().flatten().for_each(|target| suspension.stop(*target));
        let since = state.suspended.get_or_insert(suspension).since;
        // A start may hang, on a file system that does not answer for example.
        while state.is_starting() && since.elapsed() < LONGEST_START {
            let waited = self.changed.wait_timeout_while(state, USUAL_START, |state| state.is_starting());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.release_stopped_starts();
        }
    }

    /// Has those go on that were stopped with us while they were starting.
    pub(super) fn release_stopped_starts(&self) {
        self.lock().release_stopped_starts();
    }

    /// Lets everything go on.
    pub(super) fn resume(&self) {
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

    pub(super) fn count(&self) -> u64 {
        self.lock().running.len() as u64
    }

    /// Returns when nothing runs.
    pub(super) fn drain(&self) {
        let mut state = self.lock();
        while !state.running.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether nothing runs, after `time` at the latest.
    pub(super) fn drains_within(&self, time: Duration) -> bool {
        let runs = |state: &mut State| !state.running.is_empty();
        let waited = self.changed.wait_timeout_while(self.lock(), time, runs);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_starting(&self) -> bool {
        self.starting > self.short
    }

    fn release_stopped_starts(&self) {
        if self.is_starting() {
            let known: Vec<_> = self.running.values().flatten().map(|target| target.pid()).collect();
            for start in stopped_starts(&known) {
                start.signal(Signal::CONT);
            }
        }
    }

    /// Gives those whom no command leads to any more, as those between have ended.
    fn remember_relatives(&mut self) -> Vec<Relative> {
        let now: Vec<Relative> = self.running.values().flatten().flat_map(|target| target.relatives()).collect();
        self.relatives.retain(|relative| !now.contains(relative));
        let strays = self.relatives.clone();
        self.relatives.extend(now);
        strays
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::thread;

    fn sleeper() -> (Child, Target) {
        let child = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let target = Target::Group(Pid::from_child(&child));
        (child, target)
    }

    /// Waits until somebody has it stopped.
    fn is_stopped(target: Target) -> bool {
        let status = waitid(WaitId::Pid(target.pid()), WaitIdOptions::STOPPED | WaitIdOptions::EXITED).unwrap();
        status.is_some_and(|status| status.stopped())
    }

    #[test]
    fn who_starts_while_everything_is_stopped_is_stopped_and_nobody_starts_after_that() {
        let slots = Slots::new(0, 9);
        assert_eq!((slots.take(1), slots.take(2)), (0, 1));
        let ((mut running, first), (mut starting, second)) = (sleeper(), sleeper());
        slots.started(1, first);
        thread::scope(|scope| {
            let suspending = scope.spawn(|| {
                slots.suspend();
                slots.lock().starting
            });
            assert!(is_stopped(first));
            slots.started(2, second);
            assert!(is_stopped(second));
            assert_eq!(suspending.join().unwrap(), 0, "it has waited for the one that was starting");
            let next = scope.spawn(|| slots.take(3));
            thread::sleep(Duration::from_millis(50));
            assert!(!next.is_finished());
            slots.resume();
            assert_eq!(next.join().unwrap(), 2);
        });
        for child in [&mut running, &mut starting] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_is_left_of_a_command_that_was_released_meanwhile_goes_on_too() {
        let slots = Slots::new(0, 9);
        let slot = slots.take(1);
        let (mut child, target) = sleeper();
        slots.started(1, target);
        slots.suspend();
        assert!(is_stopped(target));
        slots.release(1, slot);
        let ran = slots.ran();
        thread::sleep(Duration::from_millis(20));
        assert_eq!(slots.ran(), ran, "no time goes by");
        slots.resume();
        let status = waitid(WaitId::Pid(target.pid()), WaitIdOptions::CONTINUED | WaitIdOptions::EXITED).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(status.is_some_and(|status| status.continued()));
    }
}
