//! The events of a launch: one enum, sent to one receiver.
//!
//! Sending never blocks. Starts and successes are received in batches, after a short delay: a wake-up for each event
//! would lower the number of launches per second. Every other event wakes the receiver at once. A sender that must not
//! continue before its event was reported waits until the receiver drops the event's [`Reported`]. That bounds the
//! number of waiting events.

use super::attempt::Ended;
use super::job::{Job, Outcome};
use super::retries::Overlong;
use crate::flow::{News, unpoisoned};
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long an event that is not urgent may wait to be received.
const DELAY: Duration = Duration::from_millis(20);

/// The number of waiting events at which the receiver stops waiting for more.
const BATCH: usize = 256;

/// An event of a launch.
#[derive(Debug)]
pub enum Event {
    /// A job was read and waits for its grant and a slot.
    Next {
        /// The number of its first unit in the input, and the first bytes of that unit.
        first: Option<(u64, Vec<u8>)>,
        /// The number of blank units skipped until now.
        skipped: u64,
        /// The number of units skipped until now because an earlier run has done them.
        done_before: u64,
    },
    /// A command starts.
    Started {
        /// The job that the command runs for.
        job: Arc<Job>,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The time of the start.
        at: Instant,
    },
    /// A command has ended, or could not start.
    Ended(Arc<Ended>),
    /// The units of a job are done: its command has succeeded, and the output was written.
    Done(Success),
    /// The pause of all units is longer than allowed.
    SentAway(Overlong),
    /// The pause of a key is longer than allowed, so the key is abandoned.
    KeySentAway {
        /// That pause.
        pause: Overlong,
        /// The refused unit's job, and then the waiting jobs of the key.
        jobs: Vec<Arc<Job>>,
    },
    /// The end of a command cannot be recorded; the text is the reason.
    CannotRecord(String),
    /// A command has ended, but a process that it started still holds its output open. The rest of that output is not
    /// read.
    LeftBehind(Arc<Job>),
    /// The reader of our standard output is gone.
    ReaderGone,
    /// Our standard output cannot be written; the text is the reason.
    CannotPrint(String),
    /// Output that waits for its turn cannot be stored; the text is the reason.
    CannotHold(String),
    /// Too much output waits for the output of earlier jobs, so launching pauses. Sent once.
    HeldUp,
    /// Commands wait for other commands to end, because the system has no free files or processes. Sent once with the
    /// system's error.
    Shortage(io::Error),
    /// The queue of units that wait for another attempt is full, so no new unit starts. Sent once.
    QueueFull,
    /// An event that the flow [`Sorted`](crate::flow::Sorted) reports as well. Each kind is sent once.
    News(News),
    /// Why a reply is not used as written, and what to write instead. Each remark is sent once.
    BadReply(String),
    /// A server has answered 403 although calls remain. Sent once.
    Forbidden,
    /// A reply has a cost, but no limit counts one; the text is for a user at a terminal. Sent once.
    UncountedCost(String),
    /// Why a command could not open its reply file, and what to write instead. Sent once.
    UnopenedReply(String),
    /// Why a command gets no further attempt, although it should: its input is too long to be stored.
    NotKept(&'static str),
    /// No news: the sender waits until all earlier events were reported.
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

    /// The text that tells this event apart from others of its kind. It has no digits: a remark about another number is
    /// the same remark.
    fn topic(&self) -> String {
        let text = match self {
            Event::BadReply(text) | Event::UnopenedReply(text) => text.clone(),
            Event::NotKept(text) => (*text).to_owned(),
            Event::Shortage(error) => error.to_string(),
            _ => String::new(),
        };
        text.chars().filter(|character| !character.is_ascii_digit()).collect()
    }
}

/// The most texts of one kind of event that are sent once each. A server may send any text.
const MAX_TOPICS: usize = 8;

/// A command that has succeeded.
#[derive(Debug)]
pub struct Success {
    /// The job that the command ran for.
    pub job: Arc<Job>,
    /// The number of the successful attempt, from 1.
    pub attempt: u32,
}

/// Dropped by the receiver once the event was reported to the user.
pub type Reported = oneshot::Sender<()>;

/// An event, and the value that the receiver drops once the event was reported.
pub type Sent = (Event, Option<Reported>);

/// A queue of events. All clones share it.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Sent>,
    is_urgent: bool,
    /// The texts of the events that were sent with [`Events::send_once`], by kind.
    once: HashMap<Discriminant<Event>, HashSet<String>>,
}

impl Events {
    pub(super) fn send(&self, event: Event) {
        self.push(event, None);
    }

    /// Sends the event, unless this function has sent an event of this kind with the same text before.
    pub(super) fn send_once(&self, event: Event) {
        let mut state = self.lock();
        let sent = state.once.entry(discriminant(&event)).or_default();
        let is_first = sent.len() < MAX_TOPICS && sent.insert(event.topic());
        drop(state);
        if is_first {
            self.send(event);
        }
    }

    /// Sends `event`. The result is ready once the event was reported.
    pub(super) fn send_and_wait(&self, event: Event) -> oneshot::Receiver<()> {
        let (reported, waits) = oneshot::channel();
        self.push(event, Some(reported));
        waits
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.0.0.lock())
    }

    fn push(&self, event: Event, reported: Option<Reported>) {
        let is_urgent = event.is_urgent();
        let mut state = self.lock();
        state.is_urgent |= is_urgent;
        state.waiting.push((event, reported));
        let count = state.waiting.len();
        drop(state);
        if is_urgent || count == 1 || count == BATCH {
            self.0.1.notify_one();
        }
    }

    /// Returns the events sent since the last call, in order. Waits for the first event, and then for up to 20 ms more,
    /// unless an event is urgent. There is one receiver.
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

    /// A bad `retry-after` hid the remark that a pipe above 64 MiB had ended the attempts.
    #[test]
    fn remarks_sent_once_are_told_apart_by_their_text() {
        let events = Events::default();
        let bad = |field: &str| Event::BadReply(format!("a reply has '{field}'"));
        let all = [bad("retry-after: 5x"), bad("retry-after: 7x"), bad("throttle-cost: x"), Event::NotKept("long")];
        for event in all {
            events.send_once(event);
        }
        events.send_once(Event::NotKept("long"));
        let sent: Vec<String> = events.receive().iter().map(|(event, _)| event.topic()).collect();
        assert_eq!(sent, ["a reply has 'retry-after: x'", "a reply has 'throttle-cost: x'", "long"]);
        (0..100).for_each(|number| events.send_once(bad(&"x".repeat(number))));
        assert_eq!(events.receive().len(), MAX_TOPICS - 2, "a server cannot flood the run with remarks");
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
