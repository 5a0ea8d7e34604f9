//! Who is running, and whether anybody else may start: the one place where the pump, the children's tasks and the signal
//! thread meet.

use super::target::Target;
use rustix::process::Signal;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    changed: Condvar,
    /// 0: no cap.
    jobs: u32,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<u64, Option<Target>>,
    /// Slots given back, the lowest first; those from `next` on were never given.
    free: BinaryHeap<Reverse<u32>>,
    next: u32,
    stopping: bool,
    /// The last signal passed on, for who starts in the same moment.
    passed_on: Option<Signal>,
    /// Output that waits for its turn is more than should be held.
    full: bool,
    /// The system had no room for another process: none starts until one ends.
    short: bool,
}

impl Slots {
    pub(super) fn new(jobs: u32) -> Self {
        Slots { state: Mutex::default(), changed: Condvar::new(), jobs }
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

    fn room(&self, state: &State) -> u64 {
        let running = state.running.len() as u64;
        match self.jobs {
            _ if state.stopping || state.full || (state.short && running > 0) => 0,
            0 => u64::MAX,
            jobs => u64::from(jobs).saturating_sub(running),
        }
    }

    /// Takes a slot for the job `seq`. Once nothing is to start any more, never returns.
    pub(super) fn take(&self, seq: u64) -> u32 {
        let mut state = self.lock();
        while state.stopping {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.running.insert(seq, None);
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
    }

    pub(super) fn release(&self, seq: u64, slot: u32) {
        let mut state = self.lock();
        state.running.remove(&seq);
        state.free.push(Reverse(slot));
        state.short = false;
        drop(state);
        self.changed.notify_all();
    }

    /// The system has no room for another process; whether waiting for one to end may help.
    pub(super) fn wait_for_room_in_the_system(&self) -> bool {
        let mut state = self.lock();
        // The one that could not start is counted, too.
        if state.running.len() <= 1 {
            return false;
        }
        state.short = true;
        while state.short && state.running.len() > 1 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        true
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

    /// Sends `signal` to everything that runs, and, if it is to last, to what is starting.
    pub(super) fn signal(&self, signal: Signal, lasting: bool) {
        let mut state = self.lock();
        if lasting {
            state.passed_on = Some(signal);
        }
        state.running.values().flatten().for_each(|target| target.signal(signal));
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
