//! The limits of keys with a rate of their own (`rates=FILE`).
//!
//! A file may have a million keys. So the rules of the command line are grouped once, not for each key.

use super::grouped::{Group, Grouped, in_limits};
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
    each: Each,
    replaced: Replaced,
    burst: Option<Amount>,
    /// The latest limits by their own limit, which keys share.
    made: BTreeMap<String, Each>,
    /// The limits of a key whose own limit is `unlimited`.
    unlimited: Result<Each, String>,
}

/// The limit that is replaced.
#[derive(Debug, Default)]
struct Replaced {
    /// The place of its policy.
    policy: usize,
    /// The limits of that policy as the user wrote them, and the place of the limit among them.
    written: Vec<Limit>,
    place: usize,
    cost: Option<String>,
}

impl OwnRates {
    /// # Errors
    /// The rules contradict each other.
    pub(crate) fn new(named: &Grouped) -> Result<Self, String> {
        // Limits that never bind beside the usual rate may bind beside another rate, so all rules are grouped here.
        let groups = Grouped::new(&named.rules, named.burst)?.map_or_else(Vec::new, |all| all.each);
        let unlimited = || {
            let mut rules = named.rules.clone();
            rules.iter_mut().filter(|rule| rule.rates.is_some()).for_each(|rule| rule.limit = Limit::Unlimited);
            let groups = Grouped::new(&rules, named.burst)?.map_or_else(Vec::new, |all| all.each);
            Ok(with_kinds(named, &groups))
        };
        let (each, unlimited) = (with_kinds(named, &groups), unlimited());
        Ok(OwnRates {
            each,
            replaced: Replaced::find(named, groups),
            burst: named.burst,
            made: BTreeMap::new(),
            unlimited,
        })
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
        if limit == Limit::Unlimited {
            return self.unlimited.clone();
        }
        let Replaced { policy, written, place, cost } = &self.replaced;
        let (mut written, mut each) = (written.clone(), self.each.to_vec());
        written.get_mut(*place).into_iter().for_each(|replaced| *replaced = limit);
        let made = Policy::with_slack(&written, self.burst).map_err(|error| in_limits(&error))?;
        let made = cost.as_ref().map_or(made.clone(), |cost| made.counting(cost));
        each.get_mut(*policy).into_iter().for_each(|(old, _)| *old = made.clone());
        Ok(each.into())
    }
}

impl Replaced {
    /// Finds the limit of the rule with `rates=` in the groups of the limits of each key.
    fn find(named: &Grouped, mut groups: Vec<Group>) -> Self {
        let limits = || named.rules.iter().filter(|rule| rule.per.is_some() && rule.limit != Limit::Unlimited);
        let Some(rule) = limits().find(|rule| rule.rates.is_some()) else { return Replaced::default() };
        let Some(policy) = groups.iter().position(|group| group.cost == rule.cost) else { return Replaced::default() };
        let place = limits().filter(|other| other.cost == rule.cost).position(|other| other.rates.is_some());
        let written = std::mem::take(&mut groups[policy].written);
        let cost = rule.cost.as_ref().map(ToString::to_string);
        Replaced { policy, written, place: place.unwrap_or_default(), cost }
    }
}

/// The policies of `groups`, each with the index of its cost among the costs of all limits.
fn with_kinds(named: &Grouped, groups: &[Group]) -> Each {
    let kept = named.kept();
    let each = kept.of_keys().map(|keys| &keys.each);
    let kind = |group: &Group| {
        let is_same = |place: &usize| each.is_some_and(|each| each.cost(*place) == group.policy.cost(0));
        Some(kept.len() + (0..each?.len()).find(is_same)?)
    };
    groups.iter().filter_map(|group| Some((group.policy.clone(), kind(group)?))).collect()
}
