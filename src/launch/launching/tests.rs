use super::*;
use crate::flow::framing::{Buffer, Framing};
use crate::flow::{Look, Next, Sorting};
use crate::launch::attempt::Running;
use crate::launch::job::{Job, Outcome};
use crate::launch::reply::Reply;
use crate::launch::{
    Backoff, Events, Numbers, Options, Output, Place, Reading, RetryPolicy, Screen, Settling, Shape, Template, Verdict,
};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::time::Instant;
use throttle_limits::clock::{MILLISECOND, SECOND};

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
    let fails = NonZeroU32::new(1);
    launching(units, Sorting { look, ahead: 100, fails, has_keys: true, ..Sorting::default() }, None)
}

/// How units without keys are sorted.
fn unsorted() -> Sorting {
    Sorting { ahead: 100, ..Sorting::default() }
}

fn launching(units: u64, sorting: Sorting, again: Option<RetryPolicy>) -> Launching<Numbers> {
    let reading = Reading { replace: None, max_args: 1, place: Place::Arguments, columns: None };
    let template = Template::new(&["true".into()], &reading).unwrap();
    let sorting = Sorting { jobs: Some(NonZeroU32::MAX), ..sorting };
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
        per: sorting.look.per.clone(),
        fails: sorting.fails,
        ahead: sorting.ahead,
        ignore_sigpipe: false,
        second: Duration::from_secs(1),
    };
    let grants = Arc::new(Grants::new(sorting.begin(SystemClock.now()), Arc::new(SystemClock), None, sorting.has_keys));
    let launcher = Launcher::new(options, Arc::new(NoScreen), None, grants, Events::default()).unwrap();
    let shape = Shape { max_args: 1, to_stdin: false, skip_blank: true, keep: false };
    let buffer = Buffer::new(Framing::EndedBy(b'\n'), 4096);
    let look = sorting.look.clone();
    Launching::new(Batches::new(Numbers::to(Some(units)), buffer, shape, &template, None, look), launcher)
}

/// The next event of this flow.
fn next(grants: &Grants<Attempt>) -> Next<Attempt> {
    grants.poll(1).unwrap()
}

/// Starts the next attempt.
fn start_next(flow: &mut Launching<Numbers>, passed: &mut Passed) {
    let grants = Arc::clone(&flow.queue().grants);
    flow.fill(&grants).unwrap();
    let Next::Go(granted, attempt) = next(&grants) else { panic!("no attempt may start") };
    flow.go(&grants, granted, attempt, passed).unwrap();
}

/// A run on a bucket with keys ended with units left: the pump called without a wait and got the end.
#[test]
fn the_end_is_told_only_when_no_unit_waits() {
    let mut flow = with_keys(3);
    let grants = Arc::clone(&flow.queue().grants);
    for _ in 0..9 {
        flow.fill(&grants).unwrap();
        assert!(!flow.is_over(&grants).unwrap(), "three units wait");
    }
    assert!(flow.queue().is_all_read.load(Ordering::SeqCst));
    let mut passed = Passed::default();
    for waiting in [2, 1, 0] {
        start_next(&mut flow, &mut passed);
        assert_eq!(flow.state(&grants).ahead, Passed { units: waiting, bytes: 2 * waiting });
        assert_eq!(flow.is_over(&grants).unwrap(), waiting == 0);
    }
    assert_eq!(passed.units, 3);
}

/// Output that must be stored delays the jobs that are ready. When the delay is over, the pump may call before it
/// counts these jobs again. It must neither get the end nor sleep.
#[test]
fn the_end_is_not_told_while_jobs_are_ready_that_were_held_up() {
    let mut flow = launching(3, unsorted(), None);
    let (grants, launcher) = (Arc::clone(&flow.queue().grants), Arc::clone(&flow.launcher));
    let mut passed = Passed::default();
    start_next(&mut flow, &mut passed);
    launcher.is_held_up.store(true, Ordering::SeqCst);
    for _ in 0..9 {
        flow.fill(&grants).unwrap();
    }
    assert!(grants.is_empty() && !flow.is_over(&grants).unwrap());
    launcher.is_held_up.store(false, Ordering::SeqCst);
    let begun = Instant::now();
    flow.wait(&grants, None).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20) && !flow.is_over(&grants).unwrap());
    (0..2).for_each(|_| start_next(&mut flow, &mut passed));
    flow.fill(&grants).unwrap();
    assert_eq!((flow.is_over(&grants).unwrap(), passed.units), (true, 3));
}

fn attempts() -> RetryPolicy {
    RetryPolicy {
        attempts: NonZeroU32::MAX,
        backoff: Backoff { first: Duration::from_millis(1), longest: Duration::from_millis(1) },
        retry_on: None,
        later_on: Vec::new(),
        max_pause: Duration::from_secs(60),
        interval: Duration::ZERO,
        learns: false,
        is_once: false,
    }
}

/// The next job of this flow.
fn read(flow: &mut Launching<Numbers>) -> Job {
    while flow.batches.waiting() == 0 {
        flow.batches.fill(false, 0).unwrap();
    }
    flow.batches.next().unwrap()
}

/// Takes the next attempt, as if its command had started now.
fn started(queue: &Queue) -> Running {
    let (granted, attempt) = loop {
        match next(&queue.grants) {
            Next::Go(granted, attempt) => break (granted, attempt),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    };
    queue.choose(attempt, granted);
    let (attempt, granted) = queue.take_chosen().unwrap();
    let granted = Some(granted.unwrap());
    Running { attempt, slot: 0, started: Instant::now(), reply: None, granted, feed: None }
}

/// Ends it with this exit code, and returns its next attempt to the queue.
fn ended(queue: &Queue, mut running: Running, code: i32) -> Verdict {
    let verdict = queue.judge(&mut running, Instant::now(), &Outcome::Exited(code), &Reply::default());
    // Due long ago, so that it has arrived by now on the clock of the queue.
    let due = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    let next = verdict.due().map(|_| running.attempt.next(due));
    queue.ended(running.granted.as_ref(), next);
    verdict
}

#[test]
fn a_pause_holds_all_units_or_those_of_a_key() {
    let look = Look { per: Some("f1".parse().unwrap()), ..Look::default() };
    for sorting in [unsorted(), Sorting { look, has_keys: true, ..unsorted() }] {
        let has_keys = sorting.has_keys;
        let mut flow = launching(3, sorting, Some(attempts()));
        let jobs = [read(&mut flow), read(&mut flow)];
        let [one, other] = jobs;
        let queue = flow.queue();
        queue.add(one);
        assert!(matches!(ended(queue, started(queue), 75), Verdict::Later(_)));
        queue.add(other);
        assert_eq!(queue.grants.line().held_until().is_some(), !has_keys);
        assert_eq!(matches!(next(&queue.grants), Next::Go(..)), has_keys, "a unit of another key");
    }
}

#[test]
fn the_queue_waits_until_a_time_unless_there_is_news() {
    let flow = launching(1, unsorted(), None);
    let took = |wait, is_news| {
        let begun = Instant::now();
        flow.queue().wait(None, Some(SystemClock.now() + wait), || is_news).unwrap();
        begun.elapsed()
    };
    assert!(took(20 * MILLISECOND, false) >= Duration::from_millis(20));
    assert!(took(20 * SECOND, true) < Duration::from_secs(20));
    flow.queue().wake_pump();
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
            let refused = next(&queue.grants);
            assert!(matches!(refused, Next::Refused(_, Refusal::KeyFailed(_))), "{refused:?}");
        }
    }
}

#[test]
fn while_only_suspects_wait_one_other_unit_is_read() {
    let mut flow = launching(9, unsorted(), Some(attempts()));
    let job = read(&mut flow);
    flow.queue().add(job);
    for read in [0, 1] {
        ended(flow.queue(), started(flow.queue()), 75);
        flow.sort();
        assert_eq!(flow.queue().new_units().units, read);
    }
}
