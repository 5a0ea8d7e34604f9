//! The bucket on the server as last seen, and how an answer updates it.

use super::MICROSECOND;
use super::error::RedisError;
use super::link::Answer;
use super::terms::Terms;
use crate::clock::Nanos;
use crate::limits::{Grant, Limits, Policy, Waiting};
use crate::store::View;
use crate::store::lease::Rules;

/// The bucket as last seen.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// 0 if it was never seen.
    pub(super) id: i64,
    pub(super) policy: Option<Policy>,
    pub(super) terms: Terms,
    pub(super) quantum: u64,
    pub(super) rules: Rules,
    /// Our latest grant.
    pub(super) latest: Nanos,
    /// The bucket's time in the last answer, in microseconds, and when that was requested, on our clock.
    pub(super) seen: (u64, Nanos),
}

impl Known {
    pub(super) fn new(policy: Option<&Policy>) -> Result<Self, RedisError> {
        let mut known = Known {
            id: 0,
            policy: None,
            terms: Terms { text: String::new(), numbers: String::new() },
            quantum: 1,
            rules: Rules::default(),
            latest: 0,
            seen: (0, 0),
        };
        if let Some(policy) = policy {
            known.set_policy(policy)?;
        }
        Ok(known)
    }

    /// Identifies it among buckets that were lost before.
    pub(super) fn generation(&self) -> u64 {
        self.id.unsigned_abs()
    }

    pub(super) fn set_policy(&mut self, policy: &Policy) -> Result<(), RedisError> {
        self.terms = Terms::of(policy)?;
        let limits = Limits::new(policy, 0);
        (self.quantum, self.rules) = (limits.quantum(), Rules::of(policy, &limits));
        self.policy = Some(policy.clone());
        Ok(())
    }
}

/// No limit on a server reaches beyond what the script computes exactly.
pub(super) fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX).min(1 << 51)
}

/// These arguments of the script, how many costs, and the costs.
pub(super) fn costing(with: &[u64], costs: &[u64]) -> Vec<i64> {
    with.iter().chain([&(costs.len() as u64)]).chain(costs).map(|number| whole(*number)).collect()
}

/// What the script answers to a look: what is left of each limit and of all, the wait, and cost and wait of each waiter.
pub(super) fn view(policy: Policy, mut numbers: Vec<i64>) -> View {
    let nanos = |wait: i64| u64::try_from(wait).ok().map(|wait| wait.saturating_mul(MICROSECOND));
    let line = numbers.split_off(numbers.len().min(policy.len() + 2));
    let (wait, available) = (numbers.pop(), numbers.pop());
    View {
        policy,
        left: numbers.into_iter().map(i128::from).collect(),
        available: available.and_then(|units| u64::try_from(units).ok()).unwrap_or(0),
        wait: wait.and_then(nanos),
        line: line
            .as_chunks()
            .0
            .iter()
            .filter_map(|[cost, wait]| Some(Waiting { cost: u64::try_from(*cost).ok()?, wait: nanos(*wait)? }))
            .collect(),
    }
}

/// The script adds this to the index of the limit if the grant is an entry in the line.
const ENTRY: usize = 32;

/// Each grant has a time, units, and the limit that bound, counted from 1. Together they cover some of the requested
/// units, in order.
pub(super) fn grants(answer: &Answer, asked: u64) -> Option<Vec<Grant>> {
    let number = |number: i64| u64::try_from(number).ok();
    let (mut left, mut latest) = (asked, 0);
    let grant = |&[at, units, place]: &[i64; 3]| {
        let (at, units, place) = (number(at)?, number(units)?, usize::try_from(place).ok()?);
        let is_in_order = std::mem::replace(&mut latest, at) <= at;
        left = left.checked_sub(units)?;
        let makes_sense = is_in_order && at < 1 << 52 && (units > 0 || asked == 0);
        let (is_entry, place) = (place >= ENTRY, (place % ENTRY).checked_sub(1));
        makes_sense
            .then(|| Grant::computed(at.saturating_mul(MICROSECOND), units, place, answer.number).entry(is_entry))
    };
    match answer.numbers.as_chunks() {
        (runs @ [_, ..], []) => runs.iter().map(grant).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_that_make_no_sense_are_refused() {
        let parsed = |numbers: &[i64]| {
            let answer = Answer { numbers: numbers.to_vec(), number: 7, ..Answer::default() };
            grants(&answer, 5).map(|grants| grants.iter().map(|grant| (grant.at, grant.units)).collect::<Vec<_>>())
        };
        assert_eq!(parsed(&[1, 2, 0, 1, 3, 1]), Some(vec![(1_000, 2), (1_000, 3)]));
        for wrong in [
            &[][..],
            &[1, 2],
            &[1, 0, 0],
            &[1, 6, 0],
            &[1, i64::MAX, 0, 1, i64::MAX, 0, 1, i64::MAX, 0],
            &[1, -1, 0],
            &[-1, 1, 0],
            &[i64::MAX, 1, 0],
            &[2, 1, 0, 1, 1, 0],
            &[1, 1, -1],
        ] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }
}
