//! State that outlives the process: limits as words, and as they become when someone sets others in their place.

use super::{Limits, Plan, State, quantum};
use crate::clock::Nanos;
use crate::rate::Limit;

impl Plan {
    /// The limits as one would write them with their defaults spelled out, one a line.
    pub(crate) fn to_lines(&self) -> String {
        let lines: Vec<String> = self.limits().iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    /// What [`to_lines`](Self::to_lines) wrote; `None` if it did not.
    pub(crate) fn from_lines(lines: &str) -> Option<Self> {
        let limits: Result<Vec<Limit>, _> = lines.split('\n').map(str::parse).collect();
        Plan::new(&limits.ok()?, None).ok()
    }
}

impl Limits {
    /// Appends the state as words; the limits themselves stand in the plan.
    pub(crate) fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.asked, self.at, self.before, self.grants]);
        for state in &self.states {
            match state {
                State::Bucket(bucket) => bucket.save(words),
                State::Window(window) => window.save(words),
                // No plan has one.
                State::Grid(_) => {}
            }
        }
    }

    /// The limits of `plan` in the state that [`save`](Self::save) wrote; `None` if those words are of no such limits.
    pub(crate) fn load(plan: &Plan, words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let mut limits = Limits::new(plan, 0);
        for word in [&mut limits.asked, &mut limits.at, &mut limits.before, &mut limits.grants] {
            *word = words.next()?;
        }
        limits.last = limits.grants;
        for state in &mut limits.states {
            match state {
                State::Bucket(bucket) => bucket.load(words)?,
                State::Window(window) => window.load(words)?,
                State::Grid(_) => return None,
            }
        }
        Some(limits)
    }

    /// The limits of `plan` from `now` on. What stands in the same place and is of the same kind keeps what it has saved
    /// or counted, but for the places in `fresh`, which begin anew. A time given stays.
    pub(crate) fn set(&mut self, now: Nanos, plan: &Plan, fresh: &[bool]) {
        let now = self.in_order(now);
        let mut states: Vec<State> = plan.limits().iter().map(|limit| State::new(limit, now)).collect();
        for (place, state) in states.iter_mut().enumerate() {
            if !fresh.get(place).copied().unwrap_or(false)
                && let Some(old) = self.states.get(place)
            {
                state.inherit(old, now, plan.limits()[place].rate());
            }
        }
        let quanta = states.iter().zip(plan.limits()).map(|(state, limit)| quantum(state, limit.rate()));
        self.quantum = quanta.min().unwrap_or(u64::MAX);
        // No grant has this number: what was given before cannot be undone in limits that never charged it.
        (self.states, self.asked, self.grants) = (states, now, self.grants + 1);
        self.last = self.grants;
    }

    /// Whole units that the limit at `place` would let through at `now`; less than nothing where more are owed. A window
    /// lets nothing through while a time given lies ahead.
    #[must_use]
    pub fn left(&self, now: Nanos, place: usize) -> Option<i128> {
        let now = self.in_order(now);
        self.states.get(place).map(|state| match state {
            State::Bucket(bucket) => bucket.balance(now),
            State::Window(_) if now < self.at => 0,
            State::Window(window) => window.available(now).into(),
            State::Grid(grid) => grid.available(now).into(),
        })
    }

    /// A time by which every limit is at rest, if nothing more is taken: full, or empty of grants that count.
    #[must_use]
    pub(crate) fn rested_at(&self) -> Nanos {
        let rests = self.states.iter().map(|state| match state {
            State::Bucket(bucket) => bucket.fill_time(),
            State::Window(window) => window.period(),
            State::Grid(grid) => grid.fill_time(),
        });
        self.at.saturating_add(rests.max().unwrap_or(0))
    }
}

impl State {
    /// Takes over what `old` has saved or counted, where it is of the same kind.
    fn inherit(&mut self, old: &State, now: Nanos, rate: crate::rate::Rate) {
        match (self, old) {
            (State::Bucket(new), State::Bucket(old)) => {
                let (burst, mut kept) = (new.size(), old.clone());
                kept.set_rate(now, rate);
                kept.set_burst(now, burst);
                *new = kept;
            }
            (State::Window(new), State::Window(old)) => new.inherit(old),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    fn plan(limits: &[&str]) -> Plan {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Plan::new(&limits, None).unwrap()
    }

    fn saved(limits: &Limits) -> Vec<u64> {
        let mut words = Vec::new();
        limits.save(&mut words);
        words
    }

    #[test]
    fn what_is_saved_is_loaded_and_goes_on_as_before() {
        let plan = plan(&["1000003/s,burst=3", "700/min", "5000/h,window"]);
        let mut limits = Limits::new(&plan, 17);
        for step in 0..3000 {
            let mut loaded = Limits::load(&plan, &mut saved(&limits).into_iter()).unwrap();
            assert_eq!(loaded, limits);
            let grant = limits.take(step * 1_000_000, 1 + step % 2).unwrap();
            assert_eq!(loaded.take(step * 1_000_000, 1 + step % 2), Ok(grant));
            if step % 7 == 0 {
                limits.give_back(step * 1_000_000, &grant);
            }
        }
    }

    #[test]
    fn words_that_are_missing_or_make_no_sense_are_not_loaded() {
        let plan = plan(&["5/s", "100/min"]);
        let mut limits = Limits::new(&plan, 0);
        for _ in 0..3 {
            let _ = limits.take(0, 1).unwrap();
        }
        let words = saved(&limits);
        for length in 0..words.len() {
            assert_eq!(Limits::load(&plan, &mut words[..length].iter().copied()), None, "{length} words");
        }
        // Four words, six of the bucket, and the latest time of the window come before the length of its log.
        let mut endless = words.clone();
        endless[11] = u64::MAX;
        assert_eq!(Limits::load(&plan, &mut endless.into_iter()), None);
    }

    #[test]
    fn setting_limits_keeps_what_was_counted_unless_told_to_begin_anew() {
        let mut limits = Limits::new(&plan(&["10/s,burst=10", "20/min"]), 0);
        let _ = limits.take(0, 8).unwrap();
        limits.set(0, &plan(&["1/s,burst=5", "9/min"]), &[false, false]);
        assert_eq!(limits.available(0), 1, "8 of the 9 are counted");
        limits.set(0, &plan(&["1/s,burst=5", "20/min"]), &[false, false]);
        assert_eq!(limits.available(0), 2, "what was left of the first bucket");
        limits.set(0, &plan(&["1/s,burst=5", "20/min"]), &[true, false]);
        assert_eq!(limits.available(0), 5);
        limits.set(0, &plan(&["1/s,burst=5", "3/min"]), &[false, false]);
        assert_eq!(limits.available(0), 0, "more are counted than may be");
        assert_eq!(limits.take(0, 1).unwrap().at, 60 * SECOND);
    }

    #[test]
    fn a_time_given_stays_when_limits_are_set() {
        let mut limits = Limits::new(&plan(&["1/s"]), 0);
        let _ = limits.take(0, 1).unwrap();
        let last = limits.take(0, 1).unwrap();
        limits.set(0, &plan(&["1000/s"]), &[true]);
        limits.give_back(0, &last);
        assert!(limits.take(0, 1).unwrap().at >= last.at);
    }
}
