//! Compares limits that a user writes with the limits of a bucket. Only the parts that the user writes are compared, and
//! their order does not matter.

use super::policy::{OfKeys, Policy, Resolved, pacing};
use crate::rate::{Amount, Limit, Rate, nanos};

/// A limit that a user writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The limit.
    pub limit: Limit,
    /// The cost of a unit.
    pub cost: Cost,
}

/// The cost that a user writes with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// None. The limit may be one with a cost, but a limit that counts units is preferred.
    Unnamed,
    /// The cost of this call. The bucket does not store it, and a limit with a cost is preferred.
    OfCall,
    /// The cost of a unit, as text in the program's syntax.
    Named(String),
}

/// The user's limits differ from the limits of the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The limits that the user wrote.
    pub said: String,
    /// The limits of the bucket.
    pub known: String,
    /// Whether the one counts bytes, and the other units.
    pub is_other_kind: bool,
}

messages! {
    Disagreement {
        Disagreement { said, known, .. } => ("the limits are {known}, not {said}"),
    }
}

impl Policy {
    /// The indexes of the limits in `given` among these limits. Their order may differ, but limits and costs must
    /// agree. `burst` is the burst of the pacing limit, if it is given separately. Only the written parts are compared.
    ///
    /// # Errors
    /// [`Disagreement`] with both texts.
    pub fn places_of(&self, given: &[Said], burst: Option<Amount>) -> Result<Vec<usize>, Disagreement> {
        let disagree = || Err(self.disagreement(given, burst));
        if given.iter().any(|said| said.limit == Limit::Unlimited) {
            return if self.limits().is_empty() && given.len() == 1 { Ok(Vec::new()) } else { disagree() };
        }
        if given.len() != self.len() {
            return disagree();
        }
        let rates: Vec<Rate> = given.iter().filter_map(|said| said.limit.rate()).collect();
        let burst_of = |one: usize| burst.filter(|_| one == pacing(&rates)).map(|burst| burst.value());
        let may_be = |one: usize, place: usize| {
            let (Some(said), Some(limit)) = (given.get(one), self.limits().get(place)) else { return false };
            limit.is(&said.limit, burst_of(one)) && self.costs_as(place, &said.cost)
        };
        let is_likely = |one: usize, place: usize| {
            let has_cost = given.get(one).is_some_and(|said| said.cost != Cost::Unnamed);
            has_cost == self.cost(place).is_some() && may_be(one, place)
        };
        // The most possible limits get a likely place. The others get any place where they may be.
        let mut pairs = Pairs::new(self.len());
        for one in 0..given.len() {
            pairs.find_place(one, &is_likely);
        }
        for one in 0..given.len() {
            if !pairs.has_place(one) && !pairs.find_place(one, &may_be) {
                return disagree();
            }
        }
        Ok((0..given.len()).filter_map(|one| pairs.place_of(one)).collect())
    }

    /// Whether the cost of a unit in the limit at `place` may be `given`. The default cost, after `,else=`, may be left
    /// out.
    fn costs_as(&self, place: usize, given: &Cost) -> bool {
        let Cost::Named(given) = given else { return true };
        let rest = self.cost(place).and_then(|known| known.strip_prefix(&**given));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(",else="))
    }

    fn disagreement(&self, given: &[Said], burst: Option<Amount>) -> Disagreement {
        let is_bytes = |said: &Said| said.limit.rate().map(|rate| rate.is_bytes());
        let is_other_kind = given.iter().find_map(is_bytes).is_some_and(|is_bytes| is_bytes != self.counts_bytes());
        let given = given.iter().map(|said| match &said.cost {
            Cost::Named(cost) => format!("{},cost={cost}", said.limit),
            Cost::Unnamed | Cost::OfCall => said.limit.to_string(),
        });
        let given: Vec<String> = given.collect();
        let burst = burst.map(|burst| format!(" with a burst of {}", burst.value())).unwrap_or_default();
        Disagreement { said: format!("{}{burst}", given.join(" and ")), known: self.to_string(), is_other_kind }
    }

    /// This policy with its limits in the order of `old`, so that a bucket with the limits of `old` keeps the state of
    /// each limit that is in both. Also the new index of each limit; the limits of keys follow the limits of all.
    pub fn ordered_like(&self, old: &Policy) -> (Self, Vec<usize>) {
        let all = self.order_like(old);
        let (of_keys, old_keys) = (self.of_keys(), old.of_keys());
        let each = of_keys.map(|keys| old_keys.map_or_else(Vec::new, |old| keys.each.order_like(&old.each)));
        let mut ordered = self.in_order(&all);
        let mut places = all;
        if let (Some(keys), Some(each)) = (of_keys, each) {
            let each = if each.is_empty() { (0..keys.each.len()).collect() } else { each };
            ordered = ordered.with_keys(OfKeys { each: keys.each.in_order(&each), ..keys.clone() });
            places.extend(each.into_iter().map(|place| self.len() + place));
        }
        (ordered, places)
    }

    /// The indexes of these limits in the order of `old`: equal limits have the same index as there. A limit of the same
    /// kind and cost takes the index of a limit that was changed.
    fn order_like(&self, old: &Policy) -> Vec<usize> {
        let mut order: Vec<Option<usize>> = vec![None; self.len()];
        let mut is_free = vec![true; self.len()];
        for fits in [Resolved::is_same_limit as fn(&Resolved, &Resolved) -> bool, Resolved::is_same_kind] {
            for (place, limit) in old.limits().iter().enumerate().take(self.len()) {
                let is_wanted = |(own, own_limit): &(usize, &Resolved)| {
                    is_free[*own] && fits(own_limit, limit) && self.cost(*own) == old.cost(place)
                };
                if order[place].is_none()
                    && let Some((own, _)) = self.limits().iter().enumerate().find(is_wanted)
                {
                    (order[place], is_free[own]) = (Some(own), false);
                }
            }
        }
        let mut rest = (0..self.len()).filter(|own| is_free[*own]);
        order.into_iter().filter_map(|own| own.or_else(|| rest.next())).collect()
    }
}

/// Pairs of limits that a user writes and limits of a bucket, each at most once: a matching of a bipartite graph, found
/// by augmenting paths.
struct Pairs(Vec<Option<usize>>);

impl Pairs {
    fn new(places: usize) -> Self {
        Pairs(vec![None; places])
    }

    fn place_of(&self, one: usize) -> Option<usize> {
        self.0.iter().position(|paired| *paired == Some(one))
    }

    fn has_place(&self, one: usize) -> bool {
        self.place_of(one).is_some()
    }

    /// Finds a place for `one`. Others move to other places if they must.
    fn find_place(&mut self, one: usize, may_be: &impl Fn(usize, usize) -> bool) -> bool {
        let mut tried = vec![false; self.0.len()];
        self.augment(one, may_be, &mut tried)
    }

    fn augment(&mut self, one: usize, may_be: &impl Fn(usize, usize) -> bool, tried: &mut [bool]) -> bool {
        for place in 0..self.0.len() {
            if tried[place] || !may_be(one, place) {
                continue;
            }
            tried[place] = true;
            if self.0[place].is_none_or(|other| self.augment(other, may_be, tried)) {
                self.0[place] = Some(one);
                return true;
            }
        }
        false
    }
}

impl Resolved {
    /// Whether `given` is this limit. Only its written parts are compared.
    fn is(&self, given: &Limit, option: Option<u64>) -> bool {
        // Rates compare by their ratio alone, so bytes and units are compared separately.
        if given.rate().is_some_and(|rate| rate.is_bytes() != self.rate().is_bytes()) {
            return false;
        }
        match (*self, *given) {
            (Resolved::Bucket { rate, burst, initial }, Limit::Bucket { rate: r, burst: b, initial: i }) => {
                let burst_given = b.map(|b| b.value()).or(option);
                rate == r && burst_given.is_none_or(|b| b == burst.get()) && i.is_none_or(|i| i.value() == initial)
            }
            (Resolved::Window { rate, .. }, Limit::Bucket { rate: given, burst: None, initial: None }) => {
                rate.window() == given.window() && option.is_none()
            }
            (Resolved::Window { rate, used, slack }, Limit::Window { rate: given, initial, slack: named }) => {
                rate.window() == given.window()
                    && initial.is_none_or(|initial| rate.window().0.get().checked_sub(initial.value()) == Some(used))
                    && named.is_none_or(|named| nanos(named) == slack)
            }
            _ => false,
        }
    }

    /// Whether both are the same limit, with any number of units at the start.
    fn is_same_limit(&self, other: &Resolved) -> bool {
        match (*self, *other) {
            (Resolved::Bucket { rate, burst, .. }, Resolved::Bucket { rate: other, burst: size, .. }) => {
                rate == other && burst == size
            }
            (Resolved::Window { rate, slack, .. }, Resolved::Window { rate: other, slack: time, .. }) => {
                rate.window() == other.window() && slack == time
            }
            _ => false,
        }
    }

    fn is_same_kind(&self, other: &Resolved) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits, some with a cost.
    fn said(limits: &[&str]) -> Vec<Said> {
        let one = |limit: &&str| match limit.split_once(",cost=") {
            Some((limit, "call")) => Said { limit: limit.parse().unwrap(), cost: Cost::OfCall },
            Some((limit, cost)) => Said { limit: limit.parse().unwrap(), cost: Cost::Named(cost.to_owned()) },
            None => Said { limit: limit.parse().unwrap(), cost: Cost::Unnamed },
        };
        limits.iter().map(one).collect()
    }

    #[test]
    fn what_is_named_must_agree_and_the_rest_may_differ() {
        for (known, said, burst, agrees) in [
            (&["5/s,burst=10"][..], &["5/s"][..], None, true),
            (&["5/s,burst=10"], &["300/min"], None, true),
            (&["5/s,burst=10"], &["5/s"], Some("10"), true),
            (&["5/s,burst=10"], &["5/s"], Some("9"), false),
            (&["5/s,burst=10"], &["5/s,burst=1"], None, false),
            (&["5/s,burst=10"], &["6/s"], None, false),
            (&["5/s,burst=10"], &["5/s,window"], None, false),
            (&["5/s,burst=10"], &["5/s,initial=10"], None, true),
            (&["5/s,burst=10"], &["5/s,initial=3"], None, false),
            (&["5000/h,window"], &["5000/h"], None, true),
            (&["5000/h,window"], &["5000/h"], Some("5"), false),
            (&["5000/h,window"], &["5000/h,window"], None, true),
            (&["5000/h,window"], &["6000/h,window"], None, false),
            (&["5000/h,window"], &["5000/h,window,initial=5000"], None, true),
            (&["5000/h,window"], &["5000/h,window,initial=4"], None, false),
            (&["5000/h,window,slack=2s"], &["5000/h,window"], None, true),
            (&["5000/h,window,slack=2s"], &["5000/h,window,slack=2000ms"], None, true),
            (&["5000/h,window,slack=2s"], &["5000/h,window,slack=0"], None, false),
            (&["9/h,window,initial=4"], &["9/h,window,initial=4"], None, true),
            (&["9/h,window,initial=4"], &["9/h,window"], None, true),
            (&["9/h,window,initial=4"], &["9/h,window,initial=5"], None, false),
            (&["5/s", "5000/h"], &["5000/h", "5/s"], None, true),
            (&["5/s", "5000/h"], &["5/s"], None, false),
            (&["5/s"], &["5/s", "5000/h"], None, false),
            (&["5/s", "5000/h"], &["5/s", "5/s"], None, false),
            (&["1kB/s"], &["1000B/s"], None, true),
            (&["1kB/s"], &["1000/s"], None, false),
            (&["1000/s"], &["1kB/s"], None, false),
            (&["5/s"], &["5B/s"], None, false),
            (&["5kB/h,window"], &["5000/h,window"], None, false),
            (&["5kB/h,window"], &["5000/h"], None, false),
            (&["9/s,cost=f2,else=3", "5/s"], &["5/s", "9/s"], None, true),
            (&["9/s,cost=f2,else=3", "5/s"], &["5/s", "9/s,cost=f2"], None, true),
            (&["9/s,cost=f2,else=3", "5/s"], &["5/s", "9/s,cost=f2,else=3"], None, true),
            (&["9/s,cost=f2,else=3", "5/s"], &["5/s", "9/s,cost=f2,else=4"], None, false),
            (&["9/s,cost=f2", "5/s"], &["5/s", "9/s,cost=f2,else=4"], None, false),
            (&["9/s,cost=f22", "5/s"], &["5/s", "9/s,cost=f2"], None, false),
            (&["9/s,cost=f2", "5/s"], &["5/s,cost=f2", "9/s"], None, false),
            (&["9/s,cost=1", "9/s,cost=2"], &["9/s,cost=2", "9/s,cost=1"], None, true),
        ] {
            let policy = Policy::from_lines(&known.join("\n")).unwrap();
            let burst = burst.map(|burst: &str| burst.parse().unwrap());
            assert_eq!(policy.places_of(&self::said(said), burst).is_ok(), agrees, "{known:?} {said:?} {burst:?}");
        }
    }

    /// Every order of the written limits, and of the limits of the bucket, gives the same pairs.
    #[test]
    fn the_order_of_limits_does_not_matter() {
        for (known, given, expected) in [
            (["60/min,burst=1,cost=f2", "60/min,burst=1"], ["60/min", "60/min,cost=f2"], [1, 0]),
            (["60/min,burst=1,cost=f2", "60/min,burst=1"], ["60/min", "60/min,cost=call"], [1, 0]),
            (["9/s,burst=1,cost=f2", "9/s,burst=1,cost=f3"], ["9/s", "9/s,cost=f2"], [1, 0]),
            (["5/s,burst=1", "300/min,window"], ["5/s", "300/min"], [0, 1]),
            (["5/s,burst=2", "5/s,burst=3"], ["5/s", "5/s,burst=2"], [1, 0]),
            (["60/min,window,slack=1s", "60/min,window,slack=0"], ["60/min,window", "60/min,window,slack=1s"], [1, 0]),
        ] {
            let [first, second] = known;
            for (lines, expected) in [([first, second], expected), ([second, first], expected.map(|place| 1 - place))] {
                let policy = Policy::from_lines(&lines.join("\n")).unwrap();
                let places = |given: [&str; 2]| policy.places_of(&said(&given), None).unwrap();
                let [a, b] = given;
                assert_eq!(places([a, b]), expected, "{lines:?} {given:?}");
                assert_eq!(places([b, a]), [expected[1], expected[0]], "{lines:?} {given:?}");
            }
        }
    }

    #[test]
    fn new_limits_keep_the_order_of_the_old_ones() {
        for (old, new, expected) in [
            ("1/s,burst=1,cost=f2\n1/s,burst=1", "1/s,burst=1\n1/s,burst=1,cost=f2", &[1, 0][..]),
            ("5/s,burst=1\n100/min,window", "100/min,window\n5/s,burst=1", &[1, 0]),
            ("5/s,burst=1\n100/min,window", "200/min,window\n5/s,burst=1", &[1, 0]),
            ("5/s,burst=1\n100/min,window", "100/min,window\n6/s,burst=1", &[1, 0]),
            ("5/s,burst=1", "7/min,burst=1\n5/s,burst=1,initial=0", &[1, 0]),
            ("5/s,burst=1\n7/min,burst=1\n9/h,window", "9/h,window\n7/min,burst=1", &[0, 1]),
            ("5/s,burst=1", "6/s,burst=1\n7/min,burst=1", &[0, 1]),
            ("unlimited", "6/s,burst=1\n7/min,burst=1", &[0, 1]),
            (
                "9/s,burst=1\nper=f1\n1/s,burst=1,cost=f2\n1/s,burst=1",
                "9/s,burst=1\nper=f1\n1/s,burst=1\n1/s,burst=1,cost=f2",
                &[0, 2, 1],
            ),
            ("9/s,burst=1", "9/s,burst=1\nper=f1\n1/s,burst=1\n1/s,burst=1,cost=f2", &[0, 1, 2]),
        ] {
            let [old, new] = [old, new].map(|lines| Policy::from_lines(lines).unwrap());
            let (ordered, places) = new.ordered_like(&old);
            assert_eq!(places, expected, "{old} to {new}");
            assert_eq!(ordered.ordered_like(&new).0, new, "{old} to {new}");
        }
    }

    #[test]
    fn unlimited_agrees_only_with_a_bucket_without_limits() {
        let agrees = |lines: &str, given: &[&str]| {
            Policy::from_lines(lines).unwrap().places_of(&said(given), None).is_ok_and(|places| places.is_empty())
        };
        assert!(agrees("unlimited", &["unlimited"]) && agrees("unlimited,bytes", &["unlimited"]));
        assert!(!agrees("5/s", &["unlimited"]) && !agrees("unlimited", &["5/s"]));
    }

    #[test]
    fn a_disagreement_names_both() {
        let policy = Policy::from_lines("5/s\n5000/h").unwrap();
        assert_eq!(
            policy.places_of(&said(&["6/s"]), Some("9".parse().unwrap())).unwrap_err().to_string(),
            "the limits are 5/s,burst=1 and 5000/h,window,slack=0, not 6/s with a burst of 9"
        );
        let policy = Policy::from_lines("5/s\n9/s,cost=f3,else=4").unwrap();
        assert_eq!(
            policy.places_of(&said(&["5/s", "9/s,cost=f2"]), None).unwrap_err().to_string(),
            "the limits are 5/s,burst=1 and 9/s,window,slack=0,cost=f3,else=4, not 5/s and 9/s,cost=f2"
        );
    }
}
