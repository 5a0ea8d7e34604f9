use super::*;
use crate::clock::MILLISECOND;

const ASKED: Nanos = 100 * MILLISECOND;

/// Calls that start as the pace allows, and are answered at once.
struct Run {
    pace: Pace,
    now: Nanos,
}

impl Run {
    fn new() -> Self {
        Run { pace: Pace::new(ASKED), now: 0 }
    }

    fn start(&mut self) -> Start {
        self.now += self.pace.learned().unwrap_or(ASKED);
        self.pace.started(self.now, 1);
        self.pace.start(self.now)
    }

    fn served(&mut self, count: u32) {
        for _ in 0..count {
            let start = self.start();
            self.pace.succeeded(start.succeeded(false), self.now);
        }
    }

    /// The call after so many that are served is refused.
    fn refused_after(&mut self, count: u32) -> Option<Nanos> {
        self.served(count);
        let start = self.start();
        self.pace.refused(start, self.now);
        self.pace.learned()
    }

    /// A refused unit has been served, so cuts are not gentle.
    fn confirmed() -> Self {
        let mut run = Run::new();
        run.pace.succeeded(Start::default().succeeded(true), 0);
        run
    }
}

/// Ten calls have started since the cut before; `times` are those for each start in the latest cycle and in the one before it, in
/// milliseconds. The pace that was reached is 100 ms.
#[test]
fn a_limit_is_the_mean_of_what_was_reached_and_served() {
    let table = [
        ([100, 100], 100),
        ([144, 400], 120),
        ([400, 400], 200),
        // At least half of the reached pace.
        ([9000, 9000], 200),
        // The faster one of two cycles counts: an outage of 90 s changes nothing.
        ([9000, 121], 110),
        // A burst is not faster than what was reached.
        ([30, 400], 100),
    ];
    for (times, limit) in table {
        let times = times.map(|time| time * MILLISECOND);
        let mut pace = Pace { limit: ASKED, grown: RETURN, hold: 10, served: times[1], at: 1, ..Pace::new(ASKED) };
        let start = Start { index: 10, at: 1 + 10 * times[0], ..Start::default() };
        assert!(pace.refused(start, start.at));
        assert_eq!(pace.limit / MILLISECOND, limit, "{times:?}");
    }
}

#[test]
fn a_pace_returns_to_the_limit_is_held_and_then_grows() {
    let pace = Pace { limit: 1000, hold: 10, ..Pace::new(1) };
    for (grown, interval) in [(0, 1111), (5, 1012), (9, 1000), (10, 1000), (20, 1000), (21, 995), (30, 851), (40, 476)]
    {
        assert_eq!(pace.interval(grown), interval, "after {grown}");
    }
    let tested = Pace { early: DOUBTED, ..pace };
    assert!([0, 13].iter().all(|grown| tested.interval(*grown) == 2000));
}

/// `grown`: so many have succeeded since the cut before.
#[test]
fn a_limit_that_is_confirmed_is_held_for_longer() {
    let table = [
        (20, 100_000, 10, 20),
        (20, 100_000, 80, 80),
        (20, 400_000, 80, 10),
        (9, 100_000, 40, 10),
        // The limit has changed by a little less than a quarter, or by a quarter.
        (20, 156_249, 80, 80),
        (20, 156_250, 80, 10),
    ];
    for (grown, served, hold, longer) in table {
        let mut pace = Pace { limit: ASKED, grown, hold, at: 1, ..Pace::new(ASKED) };
        let start = Start { index: 20, at: 1 + 20 * served * MILLISECOND / 1000, ..Start::default() };
        pace.refused(start, start.at);
        assert_eq!((pace.hold, pace.grown), (longer, 0), "{grown}, {served}, {hold}");
    }
}

#[test]
fn after_a_long_pause_the_limit_is_held_for_a_while() {
    for (later, is_held) in [(10 * SECOND - 1, true), (10 * SECOND, false)] {
        let mut pace =
            Pace { limit: 2 * ASKED, grown: 20, hold: 10, at: SECOND, resumes: 60 * SECOND, ..Pace::new(ASKED) };
        pace.succeeded(Served { count: 5, ..Served::default() }, 60 * SECOND + later);
        assert_eq!(pace.grown, if is_held { 20 } else { 25 });
    }
}

#[test]
fn the_first_call_after_a_pause_is_a_probe() {
    let mut run = Run::confirmed();
    for _ in 0..100 {
        assert_eq!(run.refused_after(0), None);
        run.now += 60 * SECOND;
    }
    assert!(!run.pace.has_allowed());
    assert!(run.refused_after(1).is_some());
    assert!(run.pace.has_allowed());
}

#[test]
fn successes_of_an_episode_add_up_and_the_latest_counts() {
    let served = |episode, count, again, alone| Served { episode, count, again, alone };
    let (old, new, newer) = (served(1, 5, true, 1), served(2, 7, false, 2), served(2, 4, false, 0));
    for (one, other, both) in [(old, new, served(2, 7, true, 3)), (new, newer, served(2, 11, false, 2))] {
        assert_eq!([one.and(other), other.and(one)], [both; 2]);
    }
}

#[test]
fn until_a_refused_unit_is_served_cuts_are_gentle() {
    let mut run = Run::new();
    run.served(EARLY);
    for limit in [111, 133, 159, 190, 200, 200] {
        run.now += 10 * SECOND;
        run.refused_after(1);
        assert_eq!(run.pace.limit / MILLISECOND, limit, "{:?}", run.pace);
    }
    assert!(run.pace.limit <= 2 * ASKED && run.pace.hold == 0);
    run.pace.succeeded(Start::default().succeeded(true), run.now);
    run.now += 10 * SECOND;
    run.refused_after(1);
    assert!(run.pace.limit > 3 * ASKED, "{:?}", run.pace);
}

#[test]
fn a_refusal_that_did_not_depend_on_the_pace_is_taken_back() {
    let mut run = Run::confirmed();
    run.refused_after(3);
    run.refused_after(3);
    let (limit, one) = (run.pace.limit, Served::default().but_one());
    run.pace.succeeded(one, run.now);
    assert_eq!(run.pace.limit, mean(limit, ASKED));
    run.pace.succeeded((0..9).fold(one, |all, _| all.and(one)), run.now);
    assert!(run.pace.early == 0 && run.pace.limit < ASKED * 102 / 100, "{:?}", run.pace);
}

/// Refusals after three calls each, whatever the pace.
fn in_a_test() -> Run {
    let mut run = Run::confirmed();
    run.refused_after(EARLY);
    while run.pace.early < DOUBTED {
        assert!(run.refused_after(3) < Some(4 * ASKED), "{:?}", run.pace);
    }
    assert_eq!(run.pace.learned(), Some(2 * run.pace.limit));
    run
}

#[test]
fn if_a_slower_pace_helps_the_limit_stays() {
    let mut run = in_a_test();
    let limit = run.pace.limit;
    run.served(TEST - 1);
    assert_eq!(run.pace.learned(), Some(2 * limit));
    run.served(1);
    assert_eq!((run.pace.learned(), run.pace.early), (Some(limit), 0));
    // However long the pause was.
    let mut pace = Pace { early: DOUBTED, grown: TEST - 1, at: 1, resumes: SECOND, ..Pace::new(ASKED) };
    pace.succeeded(Served { count: 1, ..Served::default() }, SECOND);
    assert_eq!((pace.early, pace.grown), (0, RETURN));
}

#[test]
fn if_a_slower_pace_does_not_help_nothing_is_cut_for_a_while() {
    let mut run = in_a_test();
    assert!(run.refused_after(0) > Some(2 * ASKED), "a probe decides nothing");
    assert_eq!(run.refused_after(3), None, "{:?}", run.pace);
    while run.pace.grown + 3 <= IMMUNE {
        assert_eq!(run.refused_after(3), None, "{:?}", run.pace);
    }
    run.served(3);
    assert_eq!(run.pace.early, DOUBTED - 1);
    assert!(run.refused_after(3) >= Some(2 * ASKED), "one more is enough for a test: {:?}", run.pace);
}

#[test]
fn refusals_that_are_far_apart_lead_to_no_test() {
    let mut run = Run::confirmed();
    for _ in 0..20 {
        run.refused_after(EARLY + 20);
        assert!(run.pace.early == 0 && run.pace.limit < ASKED * 12 / 10, "{:?}", run.pace);
    }
    // A cut is early after few successes that were about as quick as the pace of 100 ms.
    for (grown, served, early) in [(EARLY - 1, 149, 3), (EARLY - 1, 150, 2), (EARLY, 149, 0)] {
        let mut pace = Pace { limit: ASKED, grown, hold: 10, early: 2, at: 1, ..Pace::new(ASKED) };
        let start = Start { index: 10, at: 1 + 10 * served * MILLISECOND, ..Start::default() };
        pace.refused(start, start.at);
        assert_eq!(pace.early, early, "{grown} {served}");
    }
}

/// A server is far slower: each cut is large, and the pace is surely the reason.
#[test]
fn early_cuts_that_find_a_far_slower_server_lead_to_no_test() {
    let mut run = Run::confirmed();
    run.refused_after(EARLY);
    for _ in 0..8 {
        run.now += 100 * SECOND;
        run.refused_after(1);
        assert!(run.pace.early <= 1, "{:?}", run.pace);
    }
}

#[test]
fn without_a_limit_the_pace_is_what_was_measured() {
    let mut pace = Pace::new(0);
    pace.succeeded(Start::default().succeeded(true), 0);
    (1..=9).for_each(|call| pace.started(call * SECOND, 1));
    let start = pace.start(9 * SECOND);
    pace.refused(start, start.at);
    assert_eq!(pace.limit, SECOND);
}

/// A bucket that is damaged, or has odd clocks, can say anything.
#[test]
fn no_numbers_are_too_large() {
    let most = Start { episode: 0, index: u32::MAX, at: Nanos::MAX };
    for (limit, at, early) in [(0, 0, 0), (Nanos::MAX, Nanos::MAX, 4), (Nanos::MAX, 0, DOUBTED), (1, 1, u32::MAX)] {
        let odd = Pace { limit, before: limit, at, early, hold: u32::MAX, grown: u32::MAX, ..Pace::new(limit) };
        for start in [most, Start { index: 1, ..most }, Start { at: 0, ..most }] {
            let mut pace = odd.clone();
            pace.refused(start, Nanos::MAX);
            pace.started(Nanos::MAX, u64::MAX);
            pace.succeeded(Served { episode: 1, count: u32::MAX, again: true, alone: u32::MAX }, Nanos::MAX);
            assert!(pace.learned().is_none_or(|learned| learned >= limit));
        }
    }
}

/// A pace of 100 ms after starts with these gaps.
fn started_every(gaps: &[Nanos]) -> Pace {
    let mut pace = Pace { limit: ASKED, grown: 20, hold: 10, ..Pace::new(ASKED / 100) };
    let mut at = SECOND;
    pace.started(at, 1);
    for gap in gaps {
        at += gap;
        pace.started(at, 1);
    }
    pace
}

#[test]
fn a_pace_that_is_not_used_does_not_grow() {
    for (gap, grown) in [(ASKED, 25), (2 * ASKED, 25), (2 * ASKED + 1, 20)] {
        let mut pace = started_every(&[gap; 30]);
        pace.succeeded(Served { count: 5, ..Served::default() }, 60 * SECOND);
        assert_eq!(pace.grown, grown, "{gap}");
    }
}

#[test]
fn a_cut_begins_at_the_pace_of_the_starts() {
    // The reached pace is at least a quarter of the learned pace. The served one is 900 ms.
    for (gap, limit) in [(100, 100), (200, 141), (300, 300), (900, 600)] {
        let mut pace = started_every(&[gap * MILLISECOND; 30]);
        let start = pace.start(SECOND + 30 * gap * MILLISECOND);
        pace.refused(start, start.at);
        assert_eq!(pace.limit / MILLISECOND, limit, "{gap}: {pace:?}");
    }
}

#[test]
fn idle_time_is_soon_forgotten() {
    let mut gaps = vec![ASKED; 20];
    gaps.push(3600 * SECOND);
    gaps.extend([ASKED; 10]);
    let pace = started_every(&gaps);
    assert_eq!(pace.unused(ASKED), None, "{pace:?}");
}
