use super::*;
use crate::flow::framing::{Buffer, Framing};
use crate::flow::{Look, Sorting};
use crate::launch::attempt::Running;
use crate::launch::reply::Reply;
use crate::launch::{
    Backoff, Events, Job, Numbers, Options, Output, Place, Reading, RetryPolicy, Screen, Settling, Shape, Template,
    Verdict,
};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::time::Instant;
use throttle_limits::clock::{MILLISECOND, SECOND, SystemClock};
use throttle_limits::limits::Policy;
use throttle_limits::store::{Memory, Supply};

struct NoScreen;

impl Screen for NoScreen {
    fn beside(&self, print: &mut dyn FnMut() -> bool) {
        print();
    }

    fn trace(&self, _: &mut dyn Iterator<Item = Cow<'_, OsStr>>) {}
}

/// This number of units, with limits kept per key.
fn with_keys(units: u64) -> Launching<Numbers> {
    let look = Look { per: Some("f1".parse().unwrap()), ..Look::default() };
    launching(units, Some(Sorting { look, ahead: 100, fails: NonZeroU32::new(1), ..Sorting::default() }), None)
}

fn launching(units: u64, by_key: Option<Sorting>, again: Option<RetryPolicy>) -> Launching<Numbers> {
    let reading = Reading { replace: None, max_args: 1, place: Place::Arguments, columns: None };
    let template = Template::new(&["true".into()], &reading).unwrap();
    let look = by_key.as_ref().map(|sorting| sorting.look.clone()).unwrap_or_default();
    let options = Options {
        template: template.clone(),
        program: None,
        jobs: 1,
        burst: 1,
        output: Output::Whole,
        tag: false,
        timeout: None,
        in_our_group: false,
        is_signalled: Arc::default(),
        again,
        passed_input: None,
        settling: Settling::default(),
        by_key,
        ignore_sigpipe: false,
        second: Duration::from_secs(1),
    };
    let store = Memory::new(&Policy::default(), SystemClock);
    let supply = Arc::new(Supply::new(Box::new(store)));
    let launcher = Launcher::new(options, Arc::new(NoScreen), None, supply, Events::default()).unwrap();
    let shape = Shape { max_args: 1, to_stdin: false, skip_blank: true, keep: false };
    let buffer = Buffer::new(Framing::EndedBy(b'\n'), 4096);
    Launching::new(Batches::new(Numbers::to(Some(units)), buffer, shape, &template, None, look), launcher)
}

/// A run on a bucket with keys ended with units left: the pump called without a wait and got the end.
#[test]
fn the_end_is_told_only_when_no_unit_waits() {
    let mut flow = with_keys(3);
    for wait in [0, 1] {
        while flow.fill(wait).unwrap() == Filled::Some {}
        assert_eq!(flow.fill(wait).unwrap(), Filled::Nothing, "three units wait");
    }
    assert!(flow.queue().is_all_read());
    let mut passed = Passed::default();
    for waiting in [2, 1, 0] {
        flow.pass(Turn::Usual(1), &mut passed).unwrap();
        assert_eq!(flow.state().ahead, Passed { units: waiting, bytes: 2 * waiting });
        let expected = if waiting > 0 { Filled::Nothing } else { Filled::End };
        assert_eq!((flow.fill(0).unwrap(), flow.waiting()), (expected, waiting));
    }
    assert_eq!(passed.units, 3);
}

/// Output that must be stored delays the jobs that are ready. When the delay is over, the pump may call before it
/// counts these jobs again. It must neither get the end nor sleep.
#[test]
fn the_end_is_not_told_while_jobs_are_ready_that_were_held_up() {
    let mut flow = launching(3, None, None);
    while flow.fill(0).unwrap() == Filled::Some {}
    let shared = Arc::clone(&flow.launcher.shared);
    shared.is_held_up.store(true, Ordering::SeqCst);
    assert_eq!((flow.waiting(), flow.fill(1).unwrap()), (0, Filled::Nothing));
    shared.is_held_up.store(false, Ordering::SeqCst);
    for wait in [0, Nanos::MAX] {
        assert_eq!((flow.fill(wait).unwrap(), flow.waiting()), (Filled::Nothing, 3));
    }
    let mut passed = Passed::default();
    flow.pass(Turn::Usual(3), &mut passed).unwrap();
    assert_eq!((flow.fill(0).unwrap(), passed.units), (Filled::End, 3));
}

fn attempts() -> RetryPolicy {
    RetryPolicy {
        attempts: NonZeroU32::MAX,
        backoff: Backoff { first: Duration::from_millis(1), longest: Duration::from_millis(1) },
        retry_on: None,
        later_on: Vec::new(),
        max_pause: Duration::from_secs(60),
        ahead: 100,
        interval: Duration::ZERO,
        learns: false,
        is_once: false,
    }
}

/// The next job of this flow.
fn read(flow: &mut Launching<Numbers>) -> Job {
    while flow.batches.waiting() == 0 {
        flow.batches.cut().unwrap();
        flow.batches.read(false, 0).unwrap();
    }
    flow.batches.next().unwrap()
}

/// Takes the next attempt, as if its command had started now.
fn started(queue: &Queue) -> Running {
    while queue.choose().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let (attempt, granted) = queue.take_chosen(|_| unreachable!()).unwrap();
    let granted = Some(granted.unwrap());
    Running { attempt, slot: 0, started: Instant::now(), reply: None, granted, charge: None, feed: None }
}

/// Ends it with this exit code, and returns its next attempt to the queue.
fn ended(queue: &Queue, mut running: Running, code: i32) -> Verdict {
    let verdict = queue.judge(&mut running, Instant::now(), &Outcome::Exited(code), &Reply::default());
    // Due long ago, so that it has arrived by now on the clock of the queue.
    let due = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    let next = verdict.due().map(|_| running.attempt.next(due));
    queue.ended(running.granted.as_ref(), &[], next);
    verdict
}

#[test]
fn only_a_pause_of_all_units_is_reported_at_once() {
    let look = Look { per: Some("f1".parse().unwrap()), ..Look::default() };
    for by_key in [None, Some(Sorting { look, ahead: 100, ..Sorting::default() })] {
        let mut flow = launching(2, by_key, Some(attempts()));
        let job = read(&mut flow);
        let queue = flow.queue();
        queue.add(job);
        assert!(!queue.has_news());
        assert!(matches!(ended(queue, started(queue), 75), Verdict::Later(_)));
        assert_eq!(queue.has_news(), !queue.is_keyed);
        queue.take_answers();
        assert!(!queue.has_news(), "it was reported");
    }
}

#[test]
fn the_queue_waits_only_while_no_attempt_may_start() {
    let mut flow = launching(1, None, None);
    let job = read(&mut flow);
    let took = |wait, is_news| {
        let begun = Instant::now();
        flow.queue().wait(None, wait, || is_news).unwrap();
        begun.elapsed()
    };
    assert!(took(20 * MILLISECOND, false) >= Duration::from_millis(20));
    assert!(took(20 * SECOND, true) < Duration::from_secs(20));
    flow.queue().add(job);
    flow.queue().choose().unwrap();
    assert!(took(20 * SECOND, false) < Duration::from_secs(20));
}

#[test]
fn units_of_a_key_that_is_given_up_never_start() {
    let mut flow = with_keys(2);
    for is_first in [true, false] {
        let mut job = read(&mut flow);
        job.key = Some(b"a"[..].into());
        let queue = flow.queue();
        queue.add(job);
        if is_first {
            assert_eq!(ended(queue, started(queue), 1), Verdict::Failed);
        } else {
            queue.choose().unwrap();
            let (_, granted) = queue.take_chosen(|_| unreachable!()).unwrap();
            assert!(matches!(granted, Err(Outcome::KeyFailed(_))), "{granted:?}");
        }
    }
}

#[test]
fn while_only_suspects_wait_one_other_unit_is_read() {
    let mut flow = launching(9, None, Some(attempts()));
    let job = read(&mut flow);
    flow.queue().add(job);
    for read in [0, 1] {
        ended(flow.queue(), started(flow.queue()), 75);
        flow.seek_others();
        assert_eq!(flow.queue().new_units().units, read);
    }
}

/// A unit of another key that arrives while a shared bucket decides on the first one is next: its key has had nothing.
#[test]
fn a_key_whose_unit_is_away_has_had_its_turn() {
    let sorting = Sorting {
        all: vec![(Policy::new(&["1000/s".parse().unwrap()], None).unwrap(), 0)],
        jobs: Some(NonZeroU32::MAX),
        ahead: 100,
        shared: Some(1),
        ..Sorting::default()
    };
    let mut flow = launching(3, Some(sorting), None);
    let shared = Arc::clone(&flow.launcher.shared);
    let mut add = |key: &[u8]| {
        let mut job = read(&mut flow);
        (job.key, job.costs) = (Some(key.into()), [1].into());
        shared.queue.add(job);
    };
    add(b"a");
    let next = || {
        let Price::OfKey { take, .. } = shared.queue.price() else { panic!("no unit") };
        take.key.unwrap().name
    };
    assert_eq!(*next(), *b"a");
    // The limit has had time to pay for the first unit.
    thread::sleep(Duration::from_millis(2));
    add(b"a");
    add(b"b");
    assert_eq!([next(), next()], [b"b".as_slice(), b"a"].map(Box::from));
}
