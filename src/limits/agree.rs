//! Whether limits that the user names agree with the limits of a bucket. Only what the user names is compared.

use super::policy::{Policy, Resolved};
use crate::rate::{Amount, Limit, nanos};
use thiserror::Error;

/// The limits that the user named are not those of the bucket.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{said} was asked for, but the limit kept there is {known}")]
pub struct Disagreement {
    /// The limits named.
    pub said: String,
    /// The limits of the bucket.
    pub known: String,
}

impl Policy {
    /// Whether `said` names these limits, in any order. `burst` is that of the pacing limit, if it is given apart. Only
    /// what is named is compared.
    ///
    /// # Errors
    /// [`Disagreement`] names both.
    pub fn agrees_with(&self, said: &[Limit], burst: Option<Amount>) -> Result<(), Disagreement> {
        self.places_of(said, burst).map(drop)
    }

    /// The same; also where the limits that `said` names are among these.
    ///
    /// # Errors
    /// [`Disagreement`] names both.
    pub fn places_of(&self, said: &[Limit], burst: Option<Amount>) -> Result<Vec<usize>, Disagreement> {
        let pacing = said.iter().filter_map(Limit::rate).max();
        let (mut free, mut places): (Vec<usize>, _) = ((0..self.len()).collect(), Vec::new());
        for limit in said {
            let burst = burst.filter(|_| limit.rate() == pacing).map(|burst| burst.value());
            match free.iter().position(|place| self.limits()[*place].is(limit, burst)) {
                Some(place) => places.push(free.remove(place)),
                None => return Err(self.disagreement(said, burst)),
            }
        }
        if free.is_empty() { Ok(places) } else { Err(self.disagreement(said, None)) }
    }

    fn disagreement(&self, said: &[Limit], burst: Option<u64>) -> Disagreement {
        let said: Vec<String> = said.iter().map(ToString::to_string).collect();
        let burst = burst.map(|burst| format!(" with a burst of {burst}")).unwrap_or_default();
        Disagreement { said: format!("{}{burst}", said.join(" and ")), known: self.to_string() }
    }
}

impl Resolved {
    /// Whether `said` is this limit. Only what it names is compared.
    fn is(&self, said: &Limit, option: Option<u64>) -> bool {
        // Rates compare by their ratio alone, so compare bytes and units apart.
        if said.rate().is_some_and(|rate| rate.is_bytes() != self.rate().is_bytes()) {
            return false;
        }
        match (*self, *said) {
            (Resolved::Bucket { rate, burst, initial }, Limit::Bucket { rate: r, burst: b, initial: i }) => {
                let burst_said = b.map(|b| b.value()).or(option);
                rate == r && burst_said.is_none_or(|b| b == burst.get()) && i.is_none_or(|i| i.value() == initial)
            }
            (Resolved::Window { rate, .. }, Limit::Bucket { rate: said, burst: None, initial: None }) => {
                rate.window() == said.window() && option.is_none()
            }
            (Resolved::Window { rate, slack }, Limit::Window { rate: said, slack: named }) => {
                rate.window() == said.window() && named.is_none_or(|named| nanos(named) == slack)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(limits: &[&str]) -> Vec<Limit> {
        limits.iter().map(|limit| limit.parse().unwrap()).collect()
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
            (&["5000/h,window,slack=2s"], &["5000/h,window"], None, true),
            (&["5000/h,window,slack=2s"], &["5000/h,window,slack=2000ms"], None, true),
            (&["5000/h,window,slack=2s"], &["5000/h,window,slack=0"], None, false),
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
        ] {
            let policy = Policy::new(&limits(known), None).unwrap();
            let burst = burst.map(|burst: &str| burst.parse().unwrap());
            assert_eq!(policy.agrees_with(&limits(said), burst).is_ok(), agrees, "{known:?} {said:?} {burst:?}");
        }
    }

    #[test]
    fn a_disagreement_names_both() {
        let policy = Policy::new(&limits(&["5/s", "5000/h"]), None).unwrap();
        assert_eq!(
            policy.agrees_with(&limits(&["6/s"]), Some("9".parse().unwrap())).unwrap_err().to_string(),
            "6/s with a burst of 9 was asked for, but the limit kept there is 5/s,burst=1 and 5000/h,window,slack=0"
        );
    }
}
