//! Those who wait for shared limits: who moves up, who keeps its time, and what comes back.

use crate::model::{Costs, Limit};
use crate::subjects::Both;
use std::time::Duration;
use throttle_limits::clock::{MILLISECOND, SECOND};
use throttle_limits::store::Store;

/// So many who wait for one unit each.
fn waiting(limit: Limit, waiters: usize) -> Both {
    let mut both = Both::new(vec![limit], MILLISECOND);
    for _ in 0..waiters {
        both.take(Costs::from(1), None);
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
    both.hold(150_000);
    both.give_back(2);
    both.give_back(0);
    (0..3).for_each(|place| both.look(place));
    let mut found = times(&both);
    found.sort_unstable();
    // Who had a time in the pause keeps that. The others wait for the rate from the end of the pause on.
    assert_eq!(found, [120, 210, 270]);
    // Another pause that ends earlier changes nothing.
    both.hold(100_000);
    assert_eq!(both.core.view().unwrap().wait, Some(330 * SECOND));
}

#[test]
fn leaving_an_emptied_line_gives_nothing_back() {
    for anew in [false, true] {
        let mut both = waiting(slow(1, 1_000), 3);
        both.limits = vec![Limit::Bucket { units: 1, period: SECOND, burst: 5, initial: 0 }];
        both.clear(anew);
        both.clock.advance(Duration::from_secs(1));
        both.give_back(0);
        assert_eq!(both.core.view().unwrap().available, 1, "{anew}");
    }
}

/// What a window has let go before the latest grant but one is not counted again.
#[test]
fn a_longer_window_counts_the_same_after_waiters_moved_up() {
    let mut both = waiting(Limit::Window { count: 1, period: 1_000, slack: 0 }, 5);
    both.give_back(4);
    both.clock.advance(Duration::from_secs(10));
    both.set(vec![Limit::Window { count: 5, period: 60 * SECOND, slack: 0 }], &[false]);
}

/// The line has room for 1024. Who comes then has a reservation, which nobody moves.
#[test]
fn those_beyond_the_longest_line_keep_their_times() {
    let mut both = waiting(slow(1, 1_000), 1030);
    both.give_back(0);
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
        both.take(Costs([1, 3, 0]), None);
    }
    both.give_back(0);
    let line = both.core.view().unwrap().line;
    assert_eq!((line.len(), line[1023].cost, line[1022].cost), (1024, 18, 3));
    let last = times(&both).iter().position(|at| *at == 1024).unwrap();
    both.look(last);
    both.clear(false);
}

/// Nobody knows them. They enter again in the order of their times, whoever looks first.
#[test]
fn those_of_an_emptied_line_enter_again_in_their_order() {
    let mut both = waiting(slow(1, 60_000), 20);
    both.clear(false);
    for _ in 0..2 {
        (0..20).for_each(|place| both.look(place * 7 % 20));
    }
    assert!(times(&both).is_sorted(), "{:?}", times(&both));
}
