//! The limits of keys with a rate of their own (`rates=FILE`).
//!
//! A file may have a million keys. So only the rules with the cost of the replaced limit are grouped for each key.

use super::grouped::{Grouped, by_cost, limits, policy_of};
use super::rule::Rule;
use std::collections::BTreeMap;
use std::sync::Arc;
use throttle_limits::limits::Policy;
use throttle_limits::rate::{Amount, Limit, ParseError};

/// The limits of one key, each with the index of its cost among the costs of all limits.
pub(crate) type Each = Arc<[(Policy, usize)]>;

/// The most different limits that are stored to be shared.
const MAX_MADE: usize = 10_000;

/// Makes the limits of a key from its own limit, which replaces the limit of the rule with `rates=`.
#[derive(Debug)]
pub(crate) struct OwnRates {
    /// The limits of each key that has no rate of its own, by cost.
    each: Vec<(Policy, usize)>,
    /// The place of the policy with the limit that is replaced, and the rules of that policy.
    place: usize,
    rules: Vec<Rule>,
    burst: Option<Amount>,
    /// The latest limits by their own limit, which keys share.
    made: BTreeMap<String, Each>,
}

impl OwnRates {
    /// # Errors
    /// The rules contradict each other.
    pub(crate) fn new(named: &Grouped) -> Result<Self, String> {
        // Limits that never bind beside the usual rate may bind beside another rate, so the limits of all rules are here.
        let (limits, burst) = (limits(&named.rules, true), named.burst);
        let kept = named.policy.of_keys().map(|keys| keys.each.clone()).unwrap_or_default();
        let of_group = |group: &[&Rule]| {
            let policy = policy_of(group, burst, false)?;
            let kind = (0..kept.len()).find(|kind| kept.cost(*kind) == policy.cost(0)).unwrap_or_default();
            Ok((policy, named.policy.len() + kind))
        };
        let each = by_cost(&limits).map(of_group).collect::<Result<_, String>>()?;
        let is_replaced = |group: &[&Rule]| group.iter().any(|rule| rule.rates.is_some());
        let place = by_cost(&limits).position(is_replaced).unwrap_or_default();
        let rules = by_cost(&limits).nth(place).into_iter().flatten().map(|rule| Rule::clone(rule)).collect();
        Ok(OwnRates { each, place, rules, burst, made: BTreeMap::new() })
    }

    /// The limits of a key whose own limit is `text`.
    ///
    /// # Errors
    /// `text` is no limit, or it contradicts the other limits.
    pub(crate) fn with(&mut self, text: &str) -> Result<Each, String> {
        if let Some(made) = self.made.get(text) {
            return Ok(Arc::clone(made));
        }
        let made = self.make(text.parse().map_err(|error: ParseError| error.to_string())?)?;
        if self.made.len() < MAX_MADE {
            self.made.insert(text.to_owned(), Arc::clone(&made));
        }
        Ok(made)
    }

    fn make(&self, limit: Limit) -> Result<Each, String> {
        if limit.rate().is_some_and(|rate| rate.is_bytes()) {
            return Err(format!("'{limit}' counts bytes, but per= needs a limit in units; write for example 5/s"));
        }
        let (mut rules, mut each) = (self.rules.clone(), self.each.clone());
        rules.iter_mut().filter(|rule| rule.rates.is_some()).for_each(|rule| rule.limit = limit);
        let made = Grouped::new(&rules, self.burst, false)?;
        match made.as_ref().and_then(|made| made.policy.of_keys()).filter(|keys| !keys.each.is_empty()) {
            Some(keys) => each[self.place].0 = keys.each.clone(),
            None => drop(each.remove(self.place)),
        }
        Ok(each.into())
    }
}
