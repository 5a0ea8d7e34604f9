//! One call of `--once`: what it asks of limits, without a unit that could be looked into.

use crate::program::args::{Grouped, LimitFlags, look};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use throttle::flow::cost::{Cost, CostError};
use throttle::flow::selector::Selector;
use throttle::flow::{Look, Sorting, short};
use throttle_limits::limits::{Policy, Take};

/// What is wrong if a key is named, and none has limits.
pub(crate) const NO_KEYS: &str = "--key: there are no limits for each key; leave it out";

/// What one call asks of limits.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) named: Option<Grouped>,
    /// What the call costs each limit that was named, if a number says so.
    numbers: Vec<Option<u64>>,
    /// The key that it is for.
    key: Option<Vec<u8>>,
    /// Whether a command runs.
    runs: bool,
}

impl Call {
    /// A call under limits that `flags` name, for this key.
    ///
    /// # Errors
    /// What is wrong with the limits, in words.
    pub(super) fn new(flags: &LimitFlags, key: Option<OsString>, runs: bool) -> Result<Self, String> {
        let mut named = Grouped::for_bucket(&flags.rate, flags.burst)?;
        let numbers = named.as_mut().map(Grouped::take_numbers).unwrap_or_default();
        let call = Call { named, numbers, key: key.map(OsStringExt::into_vec), runs };
        call.named.as_ref().map_or(Ok(()), |named| call.take(&named.kept()).map(drop))?;
        Ok(call)
    }

    /// What the call asks of a bucket that keeps `policy`: of each limit the number that was named, or else the cost of a unit
    /// that cannot be read (`else=`), since no unit is read.
    ///
    /// # Errors
    /// A number or the key is missing, or one cannot be taken under these limits.
    pub(crate) fn take(&self, policy: &Policy) -> Result<Take, String> {
        if policy.counts_bytes() {
            return Err("--once: the limit counts bytes, and a call is a unit; write for example -r 5/s".to_owned());
        }
        if policy.counts_jobs() && !self.runs {
            return Err("--once: the bucket counts commands that run; write --once COMMAND".to_owned());
        }
        let key = match (&self.key, policy.of_keys()) {
            (Some(key), Some(_)) => short(key),
            // Nothing is known of a bucket on a server before it has answered.
            (Some(key), None) if policy.is_empty() => return Ok(Sorting::price(0, key, &[])),
            (None, Some(keys)) => {
                let per = &keys.per;
                return Err(format!(
                    "--once: the limits are those of one key each (per={per}); name it: --key a.example"
                ));
            }
            (Some(_), None) => return Err(NO_KEYS.to_owned()),
            (None, None) => return Ok(Take { key: None, ..Sorting::price(policy.len(), &[], &self.costs(policy)?) }),
        };
        Ok(Sorting::price(policy.len(), &key, &self.costs(policy)?))
    }

    /// What the call costs each limit: those of all, then those of each key.
    pub(super) fn costs(&self, policy: &Policy) -> Result<Box<[u64]>, String> {
        let places = self.named.as_ref().and_then(|named| named.places_in(policy).ok()).unwrap_or_default();
        let number = |place| self.numbers[places.iter().position(|known| *known == place)?];
        let costs = look(policy)?.costs;
        let count = costs.len();
        let unread = |place| costs.get(place).and_then(Option::as_ref).map_or(Some(1), Cost::unread);
        let cost = |place| number(place).or_else(|| unread(place)).ok_or(place);
        let all: Result<_, usize> = (0..count).map(cost).collect();
        all.map_err(|place| {
            let limits = (0..count).map(|place| format!(" -r {}", with_number(policy, place)));
            let (limit, right) = (described(policy, place), limits.collect::<String>());
            format!("--once: no unit is read, so the limit {limit} has no cost; write what the call costs:{right}")
        })
    }

    /// `look`, for a unit that stands for the call: it has its key and its costs, whatever its bytes are.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn look(&self, policy: &Policy, mut look: Look) -> Result<Look, String> {
        let costs = self.costs(policy)?;
        if !look.costs.is_empty() || costs.iter().any(|cost| *cost != 1) {
            let fixed = costs.iter().map(|cost| cost.to_string().parse().map(Some));
            look.costs = fixed.collect::<Result<_, CostError>>().map_err(|error| error.to_string())?;
        }
        look.per = self.key.as_deref().filter(|_| policy.of_keys().is_some()).map(Selector::always);
        Ok(look)
    }
}

/// The limit at this place, those of each key behind those of all.
fn described(policy: &Policy, place: usize) -> String {
    match (policy.of_keys(), place.checked_sub(policy.len())) {
        (Some(keys), Some(place)) => keys.describe(place),
        _ => policy.describe(place),
    }
}

/// The same with a number for a cost that it counts.
fn with_number(policy: &Policy, place: usize) -> String {
    let (of, limit, per) = match (policy.of_keys(), place.checked_sub(policy.len())) {
        (Some(keys), Some(place)) => (&keys.each, place, format!(",per={}", keys.per)),
        _ => (policy, place, String::new()),
    };
    let cost = if of.cost(limit).is_some() { ",cost=800" } else { "" };
    format!("{}{cost}{per}", of.without_costs().describe(limit))
}
