//! The decision after each end of an attempt, without a run.

use super::*;

/// Attempts that start and end one after the other, unless they are given times.
struct Judge {
    retries: Paced,
    now: Nanos,
    /// Whether no other unit waits.
    is_at_end: bool,
    /// How long the latest end holds all units.
    hold: Option<Nanos>,
}

impl Judge {
    fn new(policy: RetryPolicy) -> Self {
        Judge { retries: Paced::new(policy), now: SECOND, is_at_end: false, hold: None }
    }

    fn start(&mut self, unit: &mut History) {
        self.retries.started(self.now, unit);
    }

    /// Ends an attempt that began at `started`.
    fn end(&mut self, unit: &mut History, started: Nanos, (_, outcome, reply): Life) -> Verdict {
        let (judged, is_at_end) = (Judged { started, at: self.now }, self.is_at_end);
        let (verdict, hold) = self.retries.judge((judged, unit), (&outcome, &reply), is_at_end);
        self.hold = hold;
        verdict
    }

    fn run(&mut self, unit: &mut History, life: Life) -> Verdict {
        let started = self.now;
        self.start(unit);
        self.now += life.0;
        self.end(unit, started, life)
    }

    /// Waits until the pause is over. Returns its rest in milliseconds.
    fn pause(&mut self) -> u64 {
        let rest = rest(&self.retries, &None, self.now);
        self.now += rest;
        rest / MILLISECOND
    }

    /// Runs new units of this life. Returns the pause after each.
    fn pauses(&mut self, count: usize, life: impl Fn() -> Life) -> Vec<u64> {
        let one = |_| {
            self.run(&mut History::default(), life());
            self.pause()
        };
        (0..count).map(one).collect()
    }

    fn serve(&mut self, count: usize) {
        self.pauses(count, ok);
    }

    fn learned(&self) -> Nanos {
        self.retries.pace.learned().unwrap_or(0)
    }
}

fn refused() -> Life {
    failed(75)
}

#[test]
fn the_longer_refusals_last_the_more_units_are_tried() {
    let mut never = Judge::new(policy(1));
    let expected = [&[50, 100, 0, 200, 0, 0, 0, 400][..], &[0; 7], &[800], &[0; 7], &[1600]].concat();
    assert_eq!(never.pauses(expected.len(), refused), expected, "nothing was ever served");
    let mut once = Judge::new(policy(1));
    once.serve(1);
    let expected = [50, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 0, 51_200, 0, 0, 60_000];
    assert_eq!(once.pauses(expected.len(), refused), expected, "one unit was served");
}

/// The running attempt may be served, so its end is awaited: twice the time of the latest success.
#[test]
fn a_running_attempt_is_awaited_once_before_a_long_pause() {
    for (interval, pauses) in [(10, [20, 0, 40_000]), (0, [100, 0, 200])] {
        let mut judge = Judge::new(RetryPolicy { interval: Duration::from_secs(interval), ..policy(1) });
        judge.serve(1);
        judge.pauses(2, refused);
        let (mut first, mut second) = (History::default(), History::default());
        let started = judge.now;
        judge.start(&mut first);
        judge.start(&mut second);
        judge.now += MILLISECOND;
        judge.end(&mut first, started, refused());
        let mut found = vec![judge.pause()];
        judge.end(&mut second, started, refused());
        found.push(judge.pause());
        found.extend(judge.pauses(1, refused));
        assert_eq!(found, pauses, "{interval}");
    }
}

/// Calls without an answer count as allowed.
#[test]
fn refusals_after_calls_without_an_answer_are_one_incident() {
    for (calls, life, is_one_unit, expected) in [
        (0, refused as fn() -> Life, false, [50, 100, 0]),
        (2, refused, false, [50, 50, 100]),
        (0, || later(0), false, [0, 0, 0]),
        (0, || later(1), true, [1000, 1000, 1000]),
        // The named time is too short.
        (0, || later(0), true, [0, 100, 200]),
        (1, || later(0), true, [0, 0, 100]),
    ] {
        let mut judge = Judge::new(policy(1));
        for _ in 0..calls {
            judge.start(&mut History::default());
        }
        let mut unit = History::default();
        let one = |_| {
            let mut new = History::default();
            judge.run(if is_one_unit { &mut unit } else { &mut new }, life());
            judge.pause()
        };
        assert_eq!((0..3).map(one).collect::<Vec<_>>(), expected, "{calls} {is_one_unit}");
    }
}

#[test]
fn a_suspect_waits_until_other_units_have_ended() {
    let mut judge = Judge::new(policy(3));
    judge.run(&mut History::default(), (10 * SECOND, Outcome::Ok, Reply::default()));
    let mut unit = History::default();
    for (wait, weight) in [(50 * MILLISECOND, 0), (20 * SECOND, 8)] {
        let verdict = judge.run(&mut unit, refused());
        assert_eq!((verdict, unit.weight()), (Verdict::Later(judge.now + wait), weight));
        judge.pause();
    }
    // A unit that fails was not refused.
    judge.pauses(3, refused);
    let mut failing = History::default();
    assert!(matches!(judge.run(&mut failing, failed(1)), Verdict::Again(_)) && failing.weight() == 0);
}

#[test]
fn a_unit_left_over_counts_as_refused_when_it_is_read() {
    let mut judge = Judge::new(policy(3));
    judge.pauses(1, refused);
    judge.now += SECOND;
    let mut unit = judge.retries.left_over(&None, judge.now);
    assert_eq!(unit.weight(), 32);
    judge.now += SECOND;
    judge.serve(1);
    judge.run(&mut unit, refused());
    assert_eq!((judge.pause(), unit.weight()), (0, 8), "another unit was served since then");
    // Only a success since then shows that the server serves others.
    let mut judge = Judge::new(policy(3));
    judge.serve(1);
    let mut unit = judge.retries.left_over(&None, judge.now);
    judge.is_at_end = true;
    for _ in 0..20 {
        assert!(matches!(judge.run(&mut unit, refused()), Verdict::Later(_)));
        assert!(judge.pause() > 0);
    }
}

#[test]
fn once_a_unit_is_certainly_refused_alone_it_uses_up_attempts() {
    let mut judge = Judge::new(policy(4));
    let mut unit = History::default();
    assert!(matches!(judge.run(&mut unit, refused()), Verdict::Later(_)));
    judge.pause();
    judge.serve(8);
    for (life, seconds) in [(refused(), 1), (refused(), 2), (later(9), 9)] {
        let verdict = judge.run(&mut unit, life);
        assert_eq!((verdict, judge.pause()), (Verdict::Again(judge.now + seconds * SECOND), 0));
    }
    assert_eq!(judge.run(&mut unit, refused()), Verdict::Failed);
    unit.used = 0;
    assert_eq!(judge.run(&mut unit, later(3601)), Verdict::Failed, "longer than --max-pause");
}

#[test]
fn a_pause_is_passed_on_once_and_only_while_it_lasts() {
    let mut judge = Judge::new(policy(1));
    let [mut first, mut second] = [History::default(); 2];
    let started = judge.now;
    judge.start(&mut second);
    judge.run(&mut first, later(2));
    assert_eq!(judge.hold, Some(2 * SECOND));
    judge.end(&mut second, started, later(2));
    assert_eq!(judge.hold, None, "the same pause");
    judge.pause();
    judge.run(&mut History::default(), later(0));
    assert_eq!(judge.hold, None, "no pause");
}

/// An exit of 1 after an answer of 200 is the command's failure. An exit of 127 shows nothing about the server.
#[test]
fn only_an_answer_of_a_failed_call_shows_that_the_server_serves() {
    let answered = |code| (MILLISECOND, Outcome::Exited(code), status(200));
    let mut judge = Judge::new(policy(3));
    assert_eq!(judge.pauses(2, refused), [50, 100]);
    assert!(matches!(judge.run(&mut History::default(), answered(1)), Verdict::Again(_)));
    assert_eq!(judge.run(&mut History::default(), failed(127)), Verdict::Failed);
    assert_eq!(judge.retries.pauses[&None].incidents, 2);
    assert_eq!(judge.run(&mut History::default(), answered(127)), Verdict::Failed);
    assert_eq!(judge.retries.pauses[&None].incidents, 0);
}

fn learning() -> Judge {
    Judge::new(RetryPolicy { learns: true, interval: Duration::from_millis(100), ..policy(u32::MAX) })
}

/// The unit is refused this many times, with pauses. Then others are served, and the unit is refused again and again.
/// Returns how often that made the learned interval shorter.
fn taken_back(refusals: usize) -> usize {
    let (mut judge, mut unit) = (learning(), History::default());
    judge.pauses(9, || (200 * MILLISECOND, Outcome::Ok, Reply::default()));
    for _ in 0..refusals {
        judge.run(&mut unit, refused());
        assert!(judge.pause() > 0 && judge.learned() > 0);
    }
    judge.serve(8);
    let one = |_: &usize| {
        let before = judge.learned();
        judge.run(&mut unit, refused());
        judge.learned() < before
    };
    (0..3).filter(one).count()
}

#[test]
fn a_slowdown_is_taken_back_once_for_a_unit_refused_twice() {
    assert_eq!([1, 2, 3].map(taken_back), [0, 1, 1]);
}

#[test]
fn a_wait_is_between_half_and_all_of_the_doubled_time() {
    let backoff = policy(1).backoff;
    assert_eq!([backoff.wait(3, &mut |_| 0), backoff.wait(3, &mut |most| most)], [4, 2].map(|wait| wait * SECOND));
}
