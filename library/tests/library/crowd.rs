//! A crowd waits for shared limits as [`throttle_limits::store::wait_for`] lets each wait: it looks every second. Some leave, some
//! die. The ledger must have each of them where the model has it, and the laws must hold.

use crate::line_model::{LOOK, LineModel};
use crate::model::{self, Costs, Limit, Model};
use crate::subjects::{Both, any_costs, any_slow_limits};
use proptest::prelude::*;
use proptest::sample::Index;
use std::time::Duration;
use throttle_limits::clock::{MILLISECOND, NanoClock, SECOND};
use throttle_limits::limits::Grant;
use throttle_limits::store::Store;

/// Who uses its grant does so less than this after its time.
const LATE: u64 = SECOND / 2;

#[derive(Clone, Debug)]
enum Act {
    /// Asks for so many, with a longest wait if given.
    Ask(Costs, Option<u64>),
    /// One leaves: it waits, or its time has come and it has not used it yet.
    Leave(Index),
    /// One that waits is killed. It is noticed so many milliseconds later.
    Die(Index, u64),
    /// Units, burst and whether the limit is made anew, for each.
    Set(Vec<(u64, u64, bool)>),
    Hold(u64),
    Clear,
}

fn any_act(limits: usize) -> impl Strategy<Value = Act> {
    let costs = any_costs().prop_filter("free", |costs| costs.0[0] > 0);
    let ask = (costs, prop::option::weighted(0.2, 0..30_000_u64)).prop_map(|(costs, wait)| Act::Ask(costs, wait));
    let die = (any::<Index>(), 0..20_000_u64).prop_map(|(one, later)| Act::Die(one, later));
    let set = prop::collection::vec((1..=12_u64, 1..=5_u64, prop::bool::weighted(0.2)), limits).prop_map(Act::Set);
    prop_oneof![
        12 => ask,
        5 => any::<Index>().prop_map(Act::Leave),
        3 => die,
        1 => set,
        1 => (0..40_000_u64).prop_map(Act::Hold),
        1 => Just(Act::Clear),
    ]
}

/// One that asked, at the same place as in [`Both::held`].
#[derive(Clone, Copy, Debug)]
struct One {
    id: u64,
    asked: u64,
    /// When it looks next, or is noticed to be dead.
    next: Option<u64>,
    is_dead: bool,
}

struct Crowd {
    both: Both,
    model: LineModel,
    ones: Vec<One>,
    /// Times and costs of those who left at their time.
    left: Vec<(u64, Costs)>,
    /// Limits of the bucket may have let more through, or those who waited have lost their place.
    is_changed: bool,
    /// Times, requests and costs of those whose time has come, used or not, and of those whose wait was short.
    due: Vec<(u64, u64, Costs)>,
    held_until: u64,
}

impl Crowd {
    fn new(limits: Vec<Limit>) -> Self {
        let both = Both::new(limits, MILLISECOND);
        let model = LineModel::new(&both.limits, 0);
        Crowd { both, model, ones: Vec::new(), left: Vec::new(), is_changed: false, due: Vec::new(), held_until: 0 }
    }

    fn now(&self) -> u64 {
        self.both.clock.now()
    }

    /// Time goes on. Each looks when it is time for that, and leaves when its time has come.
    fn go_on_until(&mut self, time: u64) {
        while let Some((next, place)) =
            (0..self.ones.len()).filter_map(|place| Some((self.ones[place].next?, place))).min()
        {
            if next > time {
                break;
            }
            self.both.clock.advance(Duration::from_nanos(next - self.now()));
            if self.ones[place].is_dead {
                self.ones[place].next = None;
                // It may have moved up to a time that has come.
                if self.model.look(next, self.ones[place].id).is_some_and(|at| at > next) {
                    self.leave(place);
                }
            } else {
                let told = self.both.held[place].0.at;
                self.both.look(place);
                let found = self.both.held[place].0.at;
                assert!(found <= told, "later than told");
                assert_eq!(Some(found), self.model.look(next, self.ones[place].id), "{:?}", self.both.limits);
                self.ones[place].next = next_look(next, found);
            }
            self.depart(next);
            self.compare();
        }
        self.both.clock.advance(Duration::from_nanos(time - self.now()));
        self.depart(time);
    }

    fn depart(&mut self, now: u64) {
        for place in (0..self.ones.len()).rev() {
            let (grant, costs) = self.both.held[place];
            if grant.at + LATE <= now {
                let one = self.ones.swap_remove(place);
                let at = self.time_of(&one, &grant);
                self.due.push((at, one.asked, costs));
                let _ = self.both.held.swap_remove(place);
                if !one.is_dead {
                    self.left.push((grant.at, costs));
                }
            }
        }
    }

    /// Its time, which a dead one does not learn of.
    fn time_of(&mut self, one: &One, grant: &Grant) -> u64 {
        self.model.look(self.now(), one.id).unwrap_or(grant.at)
    }

    fn leave(&mut self, place: usize) {
        let one = self.ones.swap_remove(place);
        let (grant, costs) = self.both.held[place];
        // Law 5 gives back nothing of these while others wait, and no more than what was not earned since.
        if self.time_of(&one, &grant) <= self.now() || !grant.is_entry() {
            let at = self.time_of(&one, &grant);
            self.due.push((at, one.asked, costs));
        }
        // A dead one gives nothing back at its time.
        if one.is_dead && self.model.look(self.now(), one.id).is_none_or(|at| at <= self.now()) {
            let _ = self.both.held.swap_remove(place);
            return;
        }
        self.both.give_back(place);
        self.model.leave(self.now(), one.id);
    }

    fn ask(&mut self, cost: Costs, wait: Option<u64>) {
        let (now, before) = (self.now(), self.both.held.len());
        self.both.take(cost, wait);
        let taken = self.model.take(now, cost, wait.map(|wait| wait * MILLISECOND));
        let Some(&(grant, ..)) = self.both.held.get(before) else {
            return assert!(!matches!(taken, Some(Ok(_))), "{taken:?} {:?}", self.both.limits);
        };
        let (at, id) = taken.unwrap().unwrap();
        assert_eq!(grant.at, at, "{cost:?} at {now} {:?}", self.both.limits);
        let line = self.both.core.view().unwrap().line;
        assert!(line.iter().all(|one| now + one.wait <= at), "it overtakes one that waits");
        self.ones.push(One { id, asked: now, next: next_look(now, at).filter(|_| at >= now + SECOND), is_dead: false });
    }

    fn act(&mut self, act: &Act) {
        let now = self.now();
        match act {
            Act::Ask(cost, wait) => self.ask(*cost, *wait),
            Act::Leave(_) | Act::Die(..) if self.ones.is_empty() => {}
            Act::Leave(one) => self.leave(one.index(self.ones.len())),
            Act::Die(one, later) => {
                let one = one.index(self.ones.len());
                self.ones[one].is_dead = true;
                self.ones[one].next = Some(now + later * MILLISECOND);
            }
            Act::Set(sizes) => self.set(sizes),
            Act::Hold(wait) => {
                self.both.hold(*wait);
                self.held_until = self.held_until.max(now + wait * MILLISECOND);
                self.model.hold_until(now, now + wait * MILLISECOND);
            }
            Act::Clear => {
                // Who waits leaves without a word: what it would be told when it looks is free within bounds.
                self.both.clear(false);
                self.model.clear(now);
                self.is_changed = true;
                self.ones.clear();
                self.both.held.clear();
            }
        }
    }

    fn set(&mut self, sizes: &[(u64, u64, bool)]) {
        // Whether a fresh limit gains in a pause is free.
        let fresh: Vec<bool> = sizes.iter().map(|(.., fresh)| *fresh && self.now() >= self.held_until).collect();
        // Whether a fresh limit counts short waits from before is free: they are over then.
        self.go_on_until(self.now() + if fresh.contains(&true) { SECOND } else { 0 });
        let now = self.now();
        self.is_changed = true;
        let new = self.both.limits.iter().zip(sizes).map(|(limit, (units, burst, _))| match *limit {
            Limit::Bucket { period, .. } => Limit::Bucket { units: *units, period, burst: *burst, initial: *burst },
            // Rule: what a shorter window has let go, a longer one need not count again.
            Limit::Window { period, slack, .. } => Limit::Window { count: *units, period, slack },
        });
        self.both.set(new.collect(), &fresh);
        self.model.set(now, &self.both.limits, &fresh);
    }

    /// All have left. A newcomer waits no longer than if only those had ever come whose time came or who could not move.
    fn leaves_no_ghosts(&mut self) {
        if self.is_changed || self.held_until > 0 {
            return;
        }
        self.due.sort_unstable();
        let mut alone = Model::new(&self.both.limits, 0);
        for (at, asked, cost) in &self.due {
            alone.charge(*asked, *at, *cost);
        }
        let (now, wait) = (self.now(), self.both.core.view().unwrap().wait);
        let least = alone.ask(now, 1).map(|granted| granted.at - now);
        assert!(wait <= least, "{wait:?} instead of {least:?} at {now} by {:?}", self.both.limits);
    }

    fn compare(&self) {
        let (now, view) = (self.now(), self.both.core.view().unwrap());
        let line: Vec<(u64, u64)> = view.line.iter().map(|one| (one.cost, one.wait)).collect();
        assert_eq!(line, self.model.waiting(now), "who waits at {now} by {:?}", self.both.limits);
        assert_eq!(view.wait, self.model.wait(now), "a newcomer at {now} by {:?}", self.both.limits);
    }
}

fn next_look(now: u64, at: u64) -> Option<u64> {
    (at > now + LOOK).then_some(now + LOOK)
}

/// So many ask, for one unit each. Some leave at once, and one dies without notice.
fn waiting(limit: Limit, waiters: usize, leave: usize, dies: usize) -> Crowd {
    let mut crowd = Crowd::new(vec![limit]);
    (0..waiters).for_each(|_| crowd.ask(1.into(), None));
    (crowd.ones[dies].is_dead, crowd.ones[dies].next) = (true, None);
    (0..leave).rev().for_each(|place| crowd.leave(place));
    crowd
}

/// In seconds.
fn waits(crowd: &Crowd) -> Vec<u64> {
    crowd.compare();
    crowd.both.core.view().unwrap().line.iter().map(|one| one.wait / SECOND).collect()
}

/// One has moved up from 20 s to 10 s, one from 30 s to 20 s, and neither looks. The hold is between them.
#[test]
fn the_same_limits_once_more_move_nobody() {
    let mut crowd = waiting(Limit::Window { count: 1, period: 10_000, slack: 0 }, 4, 0, 2);
    crowd.leave(1);
    crowd.ones.iter_mut().for_each(|one| (one.is_dead, one.next) = (true, None));
    crowd.act(&Act::Hold(15_000));
    crowd.go_on_until(12 * SECOND);
    let before = waits(&crowd);
    assert_eq!(before, [8]);
    crowd.act(&Act::Set(vec![(1, 1, false)]));
    assert_eq!(waits(&crowd), before);
}

/// The dead one has moved up from 30 s to 10 s. The next one's time is 20 s, and it does not use it.
#[test]
fn whose_time_has_come_behind_a_dead_one_gives_nothing_back() {
    let mut crowd = waiting(Limit::Bucket { units: 1, period: 10_000, burst: 1, initial: 0 }, 5, 2, 2);
    crowd.go_on_until(20 * SECOND);
    let next = crowd.both.held.iter().position(|(grant, ..)| grant.at == 20 * SECOND).unwrap();
    crowd.leave(next);
    assert_eq!(waits(&crowd), [10]);
}

proptest! {
    #[test]
    fn a_crowd_waits_as_the_model_says(
        (limits, acts) in any_slow_limits().prop_flat_map(|limits| {
            let acts = prop::collection::vec((0..9_000_u64, any_act(limits.len())), 1..30);
            (Just(limits), acts)
        }),
        all_leave in any::<bool>(),
    ) {
        let mut crowd = Crowd::new(limits);
        for (later, act) in acts {
            let later = if later < 3_000 { 0 } else { (later - 3_000) * MILLISECOND };
            crowd.go_on_until(crowd.now() + later);
            crowd.act(&act);
            crowd.compare();
        }
        if all_leave {
            (0..crowd.ones.len()).rev().for_each(|place| crowd.leave(place));
            crowd.compare();
            crowd.leaves_no_ghosts();
        }
        let end = crowd.both.held.iter().map(|(grant, ..)| grant.at).max().unwrap_or(0).max(crowd.now());
        crowd.go_on_until(end + LATE);
        crowd.left.sort_unstable();
        if !crowd.is_changed {
            for (place, limit) in crowd.both.limits.iter().enumerate() {
                let left: Vec<_> = crowd.left.iter().map(|(at, costs)| (*at, costs.of(place))).collect();
                let excess = model::excess(limit, &left);
                prop_assert!(excess.is_none(), "{excess:?} by {limit:?} of {left:?}");
            }
        }
    }
}
