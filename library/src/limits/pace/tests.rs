use super::*;
use crate::clock::{MILLISECOND, SECOND};

/// Calls that start every 100 ms, and are answered at once.
struct Run {
    pace: Pace,
    now: Nanos,
}

impl Run {
    fn new() -> Self {
        let mut run = Run { pace: Pace::new(100 * MILLISECOND), now: 0 };
        run.served(10, false);
        run
    }

    fn start(&mut self) -> Start {
        self.now += 100 * MILLISECOND;
        self.pace.started(self.now, 1);
        self.pace.start(self.now)
    }

    fn served(&mut self, count: u32, was_refused: bool) {
        for _ in 0..count {
            let start = self.start();
            self.pace.succeeded(start.succeeded(was_refused), self.now);
        }
    }

    /// The call after three that are served is refused.
    fn refused(&mut self) {
        self.served(3, false);
        let start = self.start();
        self.pace.refused(start, self.now, self.now + 50 * MILLISECOND);
    }
}

#[test]
fn a_pace_is_held_only_if_a_unit_that_was_refused_is_served() {
    for was_refused in [false, true] {
        let mut run = Run::new();
        run.refused();
        run.refused();
        assert!(run.pace.learned() > Some(120 * MILLISECOND));
        run.served(1, was_refused);
        run.served(40, false);
        assert_eq!(run.pace.learned().is_some(), was_refused, "{:?}", run.pace);
    }
}

#[test]
fn a_unit_that_was_refused_and_started_before_the_latest_refusal_shows_nothing() {
    for starts_first in [true, false] {
        let mut run = Run::new();
        let first = run.start();
        run.refused();
        let second = run.start();
        run.refused();
        let start = if starts_first { first } else { second };
        run.pace.succeeded(start.succeeded(true), run.now);
        run.served(40, false);
        assert_eq!(run.pace.learned(), None, "{:?}", run.pace);
    }
}

#[test]
fn successes_that_are_told_together_show_what_each_of_them_shows() {
    for is_last in [true, false] {
        let mut run = Run::new();
        run.refused();
        run.refused();
        let served = [run.start().succeeded(!is_last), run.start().succeeded(is_last)];
        run.pace.succeeded(served[0].and(served[1]), run.now);
        run.served(39, false);
        assert!(run.pace.learned().is_some(), "{:?}", run.pace);
    }
}

#[test]
fn a_refusal_that_did_not_depend_on_the_pace_is_taken_back() {
    let mut run = Run::new();
    run.refused();
    let slowed = run.pace.learned();
    run.refused();
    assert!(run.pace.learned() > slowed);
    let one = Served::default().but_one();
    run.pace.succeeded(one, run.now);
    assert!(run.pace.learned().is_some() && run.pace.learned() <= slowed);
    run.pace.succeeded(one.and(one), run.now);
    assert_eq!(run.pace.learned(), None, "one more changes nothing");
}

/// So many in a row are taken for ones that depend on the pace, and a trial begins. The first that is taken back ends it.
#[test]
fn a_trial_ends_if_a_refusal_did_not_depend_on_the_pace() {
    let mut run = Run::new();
    (0..DOUBTED).for_each(|_| run.refused());
    let in_trial = run.pace.learned();
    run.pace.succeeded(Served::default().but_one(), run.now);
    assert!(run.pace.learned() < in_trial, "{:?}", run.pace);
    run.pace.succeeded((1..DOUBTED).fold(Served::default(), |served, _| served.but_one()), run.now);
    assert_eq!(run.pace.learned(), None, "{:?}", run.pace);
}

#[test]
fn refusals_that_are_far_apart_do_not_add_up() {
    let mut run = Run::new();
    for _ in 0..2 * DOUBTED {
        run.served(2 * CLOSE, false);
        run.refused();
        assert!(run.pace.trial.is_none(), "{:?}", run.pace);
    }
}

#[test]
fn refusals_of_units_that_are_never_served_do_not_slow_a_run_down_without_end() {
    let mut run = Run::new();
    (0..DOUBTED).for_each(|_| run.refused());
    assert!(run.pace.trial.is_some(), "{:?}", run.pace);
    run.refused();
    run.refused();
    let slowed = run.pace.learned();
    assert!(slowed < Some(200 * MILLISECOND));
    run.refused();
    assert!(run.pace.learned() < slowed, "successes count, refusals do not: {:?}", run.pace);
}

/// Pauses of 5 s make it look as if the server served one call in 2 s.
#[test]
fn a_trial_begins_at_half_of_the_pace_and_goes_on_at_what_was_served() {
    let mut run = Run::new();
    (0..DOUBTED).for_each(|_| {
        run.now += 5 * SECOND;
        run.refused();
    });
    let half = run.pace.learned().unwrap();
    assert_eq!(half, slower(2 * slower(run.pace.refused, 10, 9), 5, 4), "{:?}", run.pace);
    run.refused();
    assert_eq!(run.pace.learned(), Some(half), "one may have come too late");
    run.refused();
    assert!(run.pace.learned() > Some(2 * half), "{:?}", run.pace);
    run.refused();
    run.refused();
    assert!(run.pace.trial.is_none() && run.pace.learned() < Some(half), "{:?}", run.pace);
}

#[test]
fn a_long_time_in_which_nothing_starts_is_not_taken_for_the_pace() {
    let mut run = Run::new();
    run.now += 10 * SECOND;
    run.refused();
    let slowed = run.pace.learned().unwrap();
    assert!(slowed < 140 * MILLISECOND, "{:?}", run.pace);
}

/// The trial after a pause of 30 s used to begin at the mean of that time, too: a call in more than a second, 20 times. Pauses of
/// 5 s after each refusal are as a window closes, and count.
#[test]
fn one_outage_says_nothing_about_the_pace() {
    let served = |pauses: &[Nanos]| {
        let mut run = Run::new();
        for pause in pauses {
            run.served(3, false);
            let start = run.start();
            run.pace.refused(start, run.now, run.now + pause);
            run.now += pause;
        }
        run.pace.trial.as_ref().expect("a trial").served
    };
    let with_outage = |place: usize| {
        let mut pauses = [50 * MILLISECOND; DOUBTED as usize];
        pauses[place] = 30 * SECOND;
        served(&pauses)
    };
    assert!((0..DOUBTED as usize).all(|place| with_outage(place) < SECOND / 4));
    assert!(served(&[5 * SECOND; DOUBTED as usize]) > SECOND);
}

/// Twenty calls took minutes at the pace that was found after an outage.
#[test]
fn after_thirty_seconds_half_of_a_trial_is_enough() {
    for (early, is_over) in [(TRIAL / 2 - 1, true), (TRIAL / 2 - 2, false)] {
        let mut run = Run::new();
        (0..DOUBTED).for_each(|_| run.refused());
        run.served(early, false);
        assert!(run.pace.trial.is_some(), "{:?}", run.pace);
        run.now += TRIAL_TIME;
        run.served(1, false);
        assert_eq!(run.pace.trial.is_none(), is_over, "{:?}", run.pace);
        assert!(run.pace.learned().is_some(), "{:?}", run.pace);
    }
}

/// The second refusal in a trial shows that a slower pace does not help. That of an outage did, and that after it: learning was
/// given up.
#[test]
fn the_refusals_of_an_outage_do_not_end_a_trial() {
    let trial = || {
        let mut run = Run::new();
        (0..DOUBTED).for_each(|_| run.refused());
        run.refused();
        assert!(run.pace.trial.as_ref().is_some_and(|trial| trial.is_second));
        run
    };
    let mut run = trial();
    run.refused();
    assert_eq!(run.pace.immune, IMMUNE);
    let mut run = trial();
    run.pace.paused = 30 * SECOND;
    run.refused();
    assert!(run.pace.trial.is_some() && run.pace.immune == 0, "after an outage: {:?}", run.pace);
    let mut run = trial();
    let _unanswered = run.start();
    let start = run.start();
    run.pace.refused(start, run.now, run.now + SECOND);
    assert!(run.pace.trial.is_some() && run.pace.immune == 0, "nothing was served: {:?}", run.pace);
}
