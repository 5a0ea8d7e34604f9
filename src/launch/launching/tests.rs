use super::*;
use crate::flow::framing::{Buffer, Framing};
use crate::flow::{Look, Sorting};
use crate::launch::{Events, Numbers, Options, Output, Place, Reading, Screen, Settling, Shape, Template};
use std::borrow::Cow;
use std::ffi::OsStr;
use throttle_limits::clock::SystemClock;
use throttle_limits::limits::Policy;
use throttle_limits::store::{Memory, Supply};

struct NoScreen;

impl Screen for NoScreen {
    fn beside(&self, print: &mut dyn FnMut() -> bool) {
        print();
    }

    fn trace(&self, _: &mut dyn Iterator<Item = Cow<'_, OsStr>>) {}
}

/// So many units whose limit is kept for each key.
fn with_keys(units: u64) -> Launching<Numbers> {
    let look = Look { per: Some("f1".parse().unwrap()), ..Look::default() };
    launching(units, Some(Sorting { look, ahead: 100, ..Sorting::default() }))
}

fn launching(units: u64, by_key: Option<Sorting>) -> Launching<Numbers> {
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
        again: None,
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

/// A run on a bucket with keys ended with units left: the pump asked what is there now, and was told of the end.
#[test]
fn the_end_is_told_only_when_no_unit_waits() {
    let mut flow = with_keys(3);
    for wait in [0, 1] {
        while flow.fill(wait).unwrap() == Filled::Some {}
        assert_eq!(flow.fill(wait).unwrap(), Filled::Nothing, "three units wait");
    }
    let mut passed = Passed::default();
    for left in [2, 1, 0] {
        flow.pass(Turn::Usual(1), &mut passed).unwrap();
        let expected = if left > 0 { Filled::Nothing } else { Filled::End };
        assert_eq!((flow.fill(0).unwrap(), flow.waiting()), (expected, left));
    }
    assert_eq!(passed.units, 3);
}

/// Output that must be kept holds up the jobs that are ready. When it no longer does, the pump may ask before it looks at them
/// again: it must not be told of the end, and not sleep.
#[test]
fn the_end_is_not_told_while_jobs_are_ready_that_were_held_up() {
    let mut flow = launching(3, None);
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
