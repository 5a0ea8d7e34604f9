//! Those who wait for shared limits stand in a line: who leaves costs nobody anything.

use crate::model::{Costs, Limit};
use crate::script::{Granted, Script};
use crate::subjects::{Both, Step};
use throttle::clock::{MILLISECOND, SECOND};
use throttle::limits::Ask;
use throttle::store::Store;

const MINUTE: u64 = 60 * SECOND;
const LOOK: u64 = 5 * SECOND;

const A_MINUTE: Limit = Limit::Bucket { units: 1, period: MINUTE, burst: 1, initial: 0 };

#[test]
fn a_window_counts_all_those_who_wait() {
    let script = Script::new(&[Limit::Window { count: 3, period: MINUTE, slack: 0 }], 1, 0).unwrap();
    for third in 0..3 {
        assert_eq!(script.take(third * 20 * SECOND, 1, None).unwrap().at, third * 20 * SECOND);
    }
    for (now, at) in [(40, 60), (59, 80), (59, 100), (60, 120), (79, 140)] {
        let runs = script.lease(now * SECOND, &Ask { waiting: 9, span: SECOND / 100, from: 0 }).unwrap();
        assert_eq!(runs.iter().map(|run| run.at / SECOND).collect::<Vec<_>>(), [at], "at {now}");
    }
}

/// Twenty wait for a minute each, and end: a newcomer waits as if they had never been.
#[test]
fn those_who_left_cost_a_newcomer_nothing() {
    let script = Script::new(&[A_MINUTE], 1, 0).unwrap();
    let waiters: Vec<_> = (0..20).map(|_| script.take(0, 1, None).unwrap()).collect();
    assert_eq!(waiters[19].at, 20 * MINUTE);
    for waiter in &waiters {
        script.give_back(SECOND, waiter);
    }
    assert_eq!(script.take(SECOND, 1, None).unwrap().at, MINUTE);
}

/// Nobody says that they were killed. Who still waits looks; the others are gone after 15 s.
#[test]
fn those_who_do_not_look_are_gone_after_15_seconds() {
    let script = Script::watchful(&[A_MINUTE], 0);
    for _ in 0..20 {
        let _ = script.take(0, 1, None).unwrap();
    }
    let mut alive = script.take(0, 1, None).unwrap();
    assert_eq!(alive.at, 21 * MINUTE);
    for now in [5, 10, 15, 20] {
        alive = script.stay(now * SECOND, &alive);
    }
    assert_eq!(alive.at, MINUTE);
    assert_eq!(script.take(21 * SECOND, 1, None).unwrap().at, 2 * MINUTE);
}

/// The server's clock goes forward by ten seconds, in which nothing was earned.
#[test]
fn a_forward_step_of_the_servers_clock_credits_nothing_to_those_connected() {
    let limit = Limit::Window { count: 50, period: SECOND, slack: 0 };
    for (step, expected) in [(10 * SECOND, 0), (4 * SECOND, 50)] {
        let script = Script::new(&[limit], 1, 1).unwrap();
        assert_eq!(script.take(1, 50, None).unwrap().at, 1);
        let look = script.expecting(1 + step, SECOND / 2);
        assert_eq!(look[1], expected, "{step}");
    }
}

/// The server has lost everything. Those who waited enter again, in any order: their order is as before, and nobody
/// leaves later than was told.
#[test]
fn those_who_wait_keep_their_order_when_the_state_is_lost() {
    let mut script = Script::new(&[A_MINUTE], 1, 0).unwrap();
    let waiters: Vec<_> = (0..20).map(|_| script.take(0, 1, None).unwrap()).collect();
    script.lose(SECOND);
    // Their numbers are those of the state before.
    let enter = |place: usize| (place, script.stay(SECOND, &Granted { number: 0, ..waiters[place] }));
    let mut again: Vec<_> = (0..20).map(|place| enter((place * 7) % 20)).collect();
    again.sort_by_key(|(place, _)| *place);
    for (place, waiter) in again {
        let found = script.stay(2 * SECOND, &waiter);
        let told = waiters[place].at;
        assert!(found.at <= told + SECOND && found.at + 5 * SECOND >= told, "{place}: {} {told}", found.at);
    }
}

/// One that waits, and when it looks next.
struct Waiter {
    grant: Granted,
    look: u64,
}

impl Waiter {
    /// Looks, if it waits for long; otherwise it leaves at its time, which is returned.
    fn next(&mut self, script: &Script) -> Option<u64> {
        if self.grant.at <= self.look {
            return Some(self.grant.at);
        }
        self.grant = script.stay(self.look, &self.grant);
        self.look += LOOK;
        None
    }
}

/// When each leaves, in order.
fn leave(script: &Script, mut waiters: Vec<Waiter>) -> Vec<u64> {
    let mut times = Vec::new();
    while let Some(next) = (0..waiters.len()).min_by_key(|one| waiters[*one].look.min(waiters[*one].grant.at)) {
        if let Some(time) = waiters[next].next(script) {
            times.push(time);
            waiters.swap_remove(next);
        }
    }
    times
}

/// The worst case: everybody has just looked when the server loses everything, as many newcomers ask at once, and those
/// who waited come back one after the other, as late as they can. One burst goes twice, and what comes due within one
/// look, which nobody can know of.
#[test]
fn a_lost_state_costs_one_burst_and_what_comes_due_within_one_look() {
    for burst in [1, 5] {
        for lag in [1, 2 * SECOND, LOOK - 1] {
            let limit = Limit::Bucket { units: 1, period: SECOND, burst, initial: 0 };
            let mut script = Script::new(&[limit], 1, 0).unwrap();
            let take = |script: &Script, now| script.take(now, 1, None).unwrap();
            let grants: Vec<Granted> = (0..30).map(|_| take(&script, 0)).collect();
            let lost = 10 * SECOND;
            script.lose(lost);
            // A newcomer knows nothing, and the bucket is full for it.
            let full = Limit::Bucket { units: 1, period: SECOND, burst, initial: burst };
            script = Script::new(&[full], 1, lost).unwrap();
            let enter = |grant: Granted, look| Waiter { grant: Granted { number: 0, ..grant }, look };
            let old = grants.into_iter().filter(|grant| grant.at > lost).rev().enumerate();
            let mut waiters: Vec<Waiter> = old.map(|(place, grant)| enter(grant, lost + lag + place as u64)).collect();
            for _ in 0..20 {
                waiters.push(Waiter { grant: take(&script, lost), look: lost + LOOK });
            }
            let times = leave(&script, waiters);
            assert_eq!(times.len(), 40);
            for (left, time) in (1..).zip(times) {
                let due = burst + (time - lost) / SECOND;
                assert!(left <= due + 5, "{burst}, {lag}: {left} have left by {}", time - lost);
            }
        }
    }
}

/// The core and the script, with one unit in so many seconds, and so many who wait.
fn waiting(limit: Limit, waiters: usize) -> Both {
    let mut both = Both::new(vec![limit], MILLISECOND);
    for _ in 0..waiters {
        both.step(&Step::Take(Costs::from(1), None));
    }
    both
}

/// In seconds.
fn times(both: &Both) -> Vec<u64> {
    both.held.iter().map(|(grant, ..)| grant.at / SECOND).collect()
}

fn slow(units: u64, period: u64) -> Limit {
    Limit::Bucket { units, period, burst: 5, initial: 0 }
}

#[test]
fn nobody_moves_into_a_pause_when_someone_ahead_leaves() {
    let mut both = waiting(slow(1, 60_000), 5);
    assert_eq!(times(&both), [60, 120, 180, 240, 300]);
    both.step(&Step::Hold(150_000));
    both.give_back(2);
    both.give_back(0);
    both.look_alike();
    (0..3).for_each(|place| both.look(place));
    let mut found = times(&both);
    found.sort_unstable();
    // Who had a time in the pause keeps that. The others wait for the rate from the end of the pause on.
    assert_eq!(found, [120, 210, 270]);
    // Another pause that ends earlier changes nothing.
    both.step(&Step::Hold(100_000));
    both.look_alike();
    assert_eq!(both.core.view().unwrap().wait, Some(330 * SECOND));
}

#[test]
fn who_left_after_the_line_was_emptied_gives_nothing_back_that_was_not_charged() {
    for anew in [false, true] {
        let mut both = waiting(slow(1, 1_000), 3);
        both.limits = vec![Limit::Bucket { units: 1, period: SECOND, burst: 5, initial: 0 }];
        both.step(&Step::Clear(anew));
        both.clock.advance(SECOND);
        both.give_back(0);
        both.look_alike();
        assert_eq!(both.core.view().unwrap().available, 1, "{anew}");
    }
}

/// As often as others look, whenever that is.
#[test]
fn the_dead_are_gone_within_15_seconds_and_a_slow_one_is_not() {
    for phase in 1..10 {
        let script = Script::watchful(&[A_MINUTE], 0);
        let slow = script.take(0, 1, None).unwrap();
        let _dead: Vec<_> = (0..5).map(|_| script.take(0, 1, None).unwrap()).collect();
        let start = phase * SECOND / 2;
        let mut alive = script.take(start, 1, None).unwrap();
        let slow_look = || assert_eq!(script.stay(8 * SECOND, &slow).number, slow.number);
        if start > 3 * SECOND {
            slow_look();
        }
        alive = script.stay(start + 5 * SECOND, &alive);
        if start <= 3 * SECOND {
            slow_look();
        }
        alive = script.stay(start + 10 * SECOND, &alive);
        assert_eq!(alive.at, 2 * MINUTE, "{phase}");
    }
}

/// Somebody always waits. What has left the window is forgotten all the same.
#[test]
fn a_line_that_never_empties_keeps_the_log_of_a_window_short() {
    let script = Script::new(&[Limit::Window { count: 2, period: SECOND, slack: 0 }], 1, 0).unwrap();
    let mut now = 0;
    for _ in 0..8 {
        let _ = script.take(now, 1, None).unwrap();
    }
    for _ in 0..600 {
        let grant = script.take(now, 1, None).unwrap();
        assert!(grant.is_entry);
        now = grant.at - 4 * SECOND;
    }
    assert!(script.fields() < 20, "{} fields", script.fields());
}

/// What a window has let go before the latest grant but one is not counted again.
#[test]
fn a_longer_window_counts_the_same_after_those_who_waited_moved_up() {
    let mut both = waiting(Limit::Window { count: 1, period: 1_000, slack: 0 }, 5);
    both.give_back(4);
    both.clock.advance(10 * SECOND);
    both.step(&Step::Set(vec![(5, 60_000, 0)], vec![false]));
    both.look_alike();
}

/// The line has room for 1024. Who comes then has a reservation, which nobody moves.
#[test]
fn those_beyond_the_longest_line_keep_their_times() {
    let mut both = waiting(slow(1, 1_000), 1030);
    both.give_back(0);
    both.look_alike();
    let line = both.core.view().unwrap().line;
    assert_eq!(line.len(), 1024);
    assert_eq!((line[1023].cost, line[1023].wait), (6, 1030 * SECOND));
    assert_eq!((line[1022].cost, line[1022].wait), (1, 1023 * SECOND));
    let before = times(&both);
    let beyond = before.iter().position(|at| *at == 1027).unwrap();
    both.look(beyond);
    assert_eq!(times(&both), before);
}

/// The same for costs that differ; those beyond are one reservation of each kind.
#[test]
fn those_beyond_the_longest_line_keep_each_of_their_costs() {
    let mut both = Both::new(vec![slow(1, 1_000), slow(9, 1_000)], MILLISECOND);
    for _ in 0..1030 {
        both.step(&Step::Take(Costs([1, 3, 0]), None));
    }
    both.give_back(0);
    both.look_alike();
    let line = both.core.view().unwrap().line;
    assert_eq!((line.len(), line[1023].cost, line[1022].cost), (1024, 18, 3));
    let last = times(&both).iter().position(|at| *at == 1024).unwrap();
    both.look(last);
    both.step(&Step::Clear(false));
    both.look_alike();
}

/// Nobody knows them. They enter again in the order of their times, whoever looks first.
#[test]
fn those_of_an_emptied_line_enter_again_in_their_order() {
    let mut both = waiting(slow(1, 60_000), 20);
    both.step(&Step::Clear(false));
    for _ in 0..2 {
        (0..20).for_each(|place| both.look(place * 7 % 20));
    }
    both.look_alike();
    assert!(times(&both).is_sorted(), "{:?}", times(&both));
}
