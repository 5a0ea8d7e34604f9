//! What happens to commands: one enum, sent to one receiver.
//!
//! Sending never blocks. A receiver that woke for each start and each success would cost launches per second, so those
//! wait a moment and are received together; every other event wakes the receiver at once. A sender that must not continue
//! before the event was told to the user waits for its [`Told`] to be dropped. So the number of events that wait is bounded.

use super::attempt::Ended;
use super::job::{Job, Outcome};
use crate::flow::{News, unpoisoned};
use std::collections::HashSet;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long an ordinary event may wait to be received.
const DELAY: Duration = Duration::from_millis(20);

/// So many waiting events are received at once, ordinary or not.
const BATCH: usize = 256;

/// What happens to commands.
#[derive(Debug)]
pub enum Event {
    /// This job was read and waits for its grant and a slot.
    Next {
        /// The number of its first unit in the input, and the unit's beginning.
        first: Option<(u64, Vec<u8>)>,
        /// Blank units left out so far.
        skipped: u64,
        /// Units left out so far since an earlier run has done them.
        done_before: u64,
    },
    /// The command starts.
    Started {
        /// What it is run for.
        job: Arc<Job>,
        /// Which attempt this is, from 1.
        attempt: u32,
        /// When.
        at: Instant,
    },
    /// The command has ended, or could not start.
    Ended(Arc<Ended>),
    /// Its units are done: it has succeeded, and its output was written.
    Done(Success),
    /// The server asked to wait for longer than is allowed: how long.
    SentAway(Duration),
    /// A server asked to wait for longer than is allowed, and no unit of its key is tried any more.
    KeySentAway {
        /// How long it asked to wait from now on.
        left: Duration,
        /// The units that waited; the first was sent away.
        jobs: Vec<Arc<Job>>,
    },
    /// What has ended cannot be recorded: why.
    CannotRecord(String),
    /// The command has ended, but a process it started still holds its output open. That process's output is not waited for.
    LeftBehind(Arc<Job>),
    /// The reader of our standard output is gone.
    ReaderGone,
    /// Our standard output cannot be written: why.
    CannotPrint(String),
    /// Output that came before its turn cannot be held: why.
    CannotHold(String),
    /// So much output waits for its turn that launching waits. Sent once.
    HeldUp,
    /// Commands wait for others to end, since the system has no more files or processes: its error. Sent once.
    Shortage(io::Error),
    /// So many units wait for another attempt that nothing new starts. Sent once.
    QueueFull,
    /// What a pipe with keys tells, too. Each kind is sent once.
    News(News),
    /// Why a reply does not hold as it stands, and what to write. Sent once.
    BadReply(String),
    /// Why a command could not open the file of its reply, and what to write. Sent once.
    UnopenedReply(String),
    /// Nothing happened: the sender wants to know that all earlier events were reported.
    Flush,
}

impl Event {
    pub(super) fn is_urgent(&self) -> bool {
        match self {
            Event::Next { .. } | Event::Started { .. } | Event::Done(_) => false,
            Event::Ended(ended) => !matches!(ended.outcome, Outcome::Ok) && !ended.verdict.is_repeated(),
            _ => true,
        }
    }
}

/// A command that has succeeded.
#[derive(Debug)]
pub struct Success {
    /// What it was run for.
    pub job: Arc<Job>,
    /// At which attempt, from 1.
    pub attempt: u32,
}

/// Dropped once the event was reported to the user: the sender waits for that.
pub type Told = oneshot::Sender<()>;

/// An event, and what is dropped once it was reported.
pub type Sent = (Event, Option<Told>);

/// A queue of events. Its clones are the same queue.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Sent>,
    is_urgent: bool,
    /// The events that are sent once, and were.
    once: HashSet<Discriminant<Event>>,
}

impl Events {
    pub(super) fn send(&self, event: Event) {
        self.push(event, None);
    }

    /// Sends the first event of its kind.
    pub(super) fn send_once(&self, event: Event) {
        let is_first = self.lock().once.insert(discriminant(&event));
        if is_first {
            self.send(event);
        }
    }

    /// Sends `event`; the result is ready once it was reported.
    pub(super) fn send_and_wait(&self, event: Event) -> oneshot::Receiver<()> {
        let (told, waits) = oneshot::channel();
        self.push(event, Some(told));
        waits
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.0.0.lock())
    }

    fn push(&self, event: Event, told: Option<Told>) {
        let is_urgent = event.is_urgent();
        let mut state = self.lock();
        state.is_urgent |= is_urgent;
        state.waiting.push((event, told));
        let count = state.waiting.len();
        drop(state);
        if is_urgent || count == 1 || count == BATCH {
            self.0.1.notify_one();
        }
    }

    /// The events sent since the last call, in order. Waits until there is one, and for ordinary ones a moment longer.
    /// There is one receiver.
    pub fn receive(&self) -> Vec<Sent> {
        let nothing = |state: &mut State| state.waiting.is_empty();
        let state = unpoisoned(self.0.1.wait_while(self.lock(), nothing));
        let may_wait = |state: &mut State| !state.is_urgent && state.waiting.len() < BATCH;
        let waited = self.0.1.wait_timeout_while(state, DELAY, may_wait);
        let mut state = unpoisoned(waited).0;
        state.is_urgent = false;
        std::mem::take(&mut state.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(skipped: u64) -> Event {
        Event::Next { first: None, skipped, done_before: 0 }
    }

    #[test]
    fn ordinary_events_are_delayed_until_an_urgent_one_comes() {
        let events = Events::default();
        events.send(next(1));
        let sent = Instant::now();
        assert_eq!(events.receive().len(), 1);
        assert!(sent.elapsed() >= DELAY);
        events.send(next(2));
        events.send(Event::ReaderGone);
        let batch = events.receive();
        assert!(matches!(batch[..], [(Event::Next { skipped: 2, .. }, None), (Event::ReaderGone, None)]));
    }

    #[test]
    fn a_sender_waits_until_its_event_was_reported() {
        let events = Events::default();
        let mut waits = events.send_and_wait(Event::Flush);
        let batch = events.receive();
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(batch);
        assert_eq!(waits.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
