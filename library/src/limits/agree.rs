//! Compares limits that a user writes with the limits of a bucket. Only the parts that the user writes are compared.

use super::policy::{Policy, Resolved};
use crate::rate::{Amount, Limit, nanos};

/// A limit that a user writes, and its cost, if that is written.
pub type Said = (Limit, Option<String>);

/// The user's limits differ from the limits of the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The limits that the user wrote.
    pub said: String,
    /// The limits of the bucket.
    pub known: String,
}

messages! {
    Disagreement {
        Disagreement { said, known } => ("the limits are {known}, not {said}"),
    }
}

impl Policy {
    /// The indexes of the limits in `given` among these limits. Their order may differ, but limits and costs must
    /// agree. `burst` is the burst of the pacing limit, if it is given separately. Only the written parts are compared.
    ///
    /// # Errors
    /// [`Disagreement`] with both texts.
    pub fn places_of(&self, given: &[Said], burst: Option<Amount>) -> Result<Vec<usize>, Disagreement> {
        let pacing = given.iter().filter_map(|(limit, _)| limit.rate()).max();
        let (mut free, mut places): (Vec<usize>, _) = ((0..self.len()).collect(), Vec::new());
        for (limit, cost) in given {
            let burst = burst.filter(|_| limit.rate() == pacing).map(|burst| burst.value());
            let is_this =
                |place: &usize| self.limits()[*place].is(limit, burst) && self.costs_as(*place, cost.as_deref());
            match free.iter().position(is_this) {
                Some(place) => places.push(free.remove(place)),
                None => return Err(self.disagreement(given, burst)),
            }
        }
        if free.is_empty() { Ok(places) } else { Err(self.disagreement(given, None)) }
    }

    /// Whether the cost of a unit in the limit at `place` is `given`. The default cost, after `,else=`, may be left
    /// out.
    fn costs_as(&self, place: usize, given: Option<&str>) -> bool {
        let Some(given) = given else { return true };
        let rest = self.cost(place).and_then(|known| known.strip_prefix(given));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(",else="))
    }

    fn disagreement(&self, given: &[Said], burst: Option<u64>) -> Disagreement {
        let cost = |cost: &String| format!(",cost={cost}");
        let given =
            given.iter().map(|(limit, given)| format!("{limit}{}", given.as_ref().map_or_else(String::new, cost)));
        let given: Vec<String> = given.collect();
        let burst = burst.map(|burst| format!(" with a burst of {burst}")).unwrap_or_default();
        Disagreement { said: format!("{}{burst}", given.join(" and ")), known: self.to_string() }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits, some with a cost.
    fn said(limits: &[&str]) -> Vec<Said> {
        let parts = limits.iter().map(|limit| limit.split_once(",cost=").map_or((*limit, None), |(a, b)| (a, Some(b))));
        parts.map(|(limit, cost)| (limit.parse().unwrap(), cost.map(str::to_owned))).collect()
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
            "the limits are 5/s,window,slack=0 and 9/s,burst=1,cost=f3,else=4, not 5/s and 9/s,cost=f2"
        );
    }
}
