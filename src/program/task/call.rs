//! One call of `--once`: its key and its costs. No unit is read, so the key comes from `--key`, and each cost is a
//! number of the command line or of `else=`.

use crate::program::args::{Grouped, LimitFlags, look};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use throttle::flow::cost::Cost;
use throttle::flow::selector::Selector;
use throttle::flow::{Look, once_if_equal, short};
use throttle_limits::ledger::operation::Ask;
use throttle_limits::limits::Policy;

/// The message if a key is given, but there are no limits for each key.
pub(crate) const NO_KEYS: &str = "--key needs limits for each key, but there are none; leave --key out";

/// The advice if the limits of a bucket are in bytes, but units are needed.
pub(super) const BUCKET_OF_UNITS: &str = "name a bucket that counts units, like --bucket NAME";

/// One call, and the limits on the command line.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) named: Option<Grouped>,
    /// The key of the call.
    key: Option<Vec<u8>>,
    /// Whether a command runs.
    runs: bool,
}

impl Call {
    /// A call under the limits in `flags`, for this key.
    ///
    /// # Errors
    /// The limits are wrong, or do not fit the call.
    pub(super) fn new(flags: &LimitFlags, key: Option<OsString>, runs: bool) -> Result<Self, String> {
        let named = Grouped::for_bucket(&flags.rate, flags.burst, true)?;
        let call = Call { named, key: key.map(OsStringExt::into_vec), runs };
        call.named.as_ref().map_or(Ok(()), |named| call.ask(&named.policy).map(drop))?;
        Ok(call)
    }

    /// The request of the call to a bucket with `policy`. The cost for each limit is the number on the command line.
    /// Without a number, it is the cost of a unit that cannot be parsed (`else=`), because no unit is read.
    ///
    /// # Errors
    /// A number or the key is missing, or does not fit these limits.
    pub(crate) fn ask(&self, policy: &Policy) -> Result<Ask, String> {
        if policy.counts_bytes() {
            let is_own = self.named.as_ref().is_some_and(|named| named.policy.counts_bytes());
            let right = if is_own { "write for example -r 5/s" } else { BUCKET_OF_UNITS };
            return Err(format!("--once takes one unit, so it cannot use a limit in bytes; {right}"));
        }
        if policy.counts_jobs() && !self.runs {
            return Err(
                "--once: the bucket counts running commands, but no COMMAND was given; write --once COMMAND".to_owned()
            );
        }
        let key = match (&self.key, policy.of_keys()) {
            (Some(key), Some(_)) => Some(short(key)),
            // The policy of a bucket on a server is unknown before the first answer.
            (Some(key), None) if policy.is_empty() => {
                return Ok(Ask { key: Some(short(key)), costs: [1].into(), ..Ask::default() });
            }
            (None, Some(keys)) => {
                let per = &keys.per;
                return Err(format!("--once: each key has its own limits (per={per}); name the key: --key a.example"));
            }
            (Some(_), None) => return Err(NO_KEYS.to_owned()),
            (None, None) => None,
        };
        let costs = self.costs(policy)?;
        if let Some(why) = too_much(policy, &costs)? {
            return Err(why);
        }
        Ok(Ask { key, costs: once_if_equal(&costs).into(), settles: policy.counts_jobs(), ..Ask::default() })
    }

    /// The cost of the call for each limit: first the limits of all units, then the limits of each key.
    pub(super) fn costs(&self, policy: &Policy) -> Result<Box<[u64]>, String> {
        let (prices, costs) = (self.prices(policy), look(policy)?.costs);
        let count = costs.len();
        let unread = |cost: &Option<Cost>| cost.as_ref().map_or(Some(1), Cost::unread);
        let all = costs.iter().enumerate();
        let all = all.map(|(place, cost)| prices.get(&place).copied().or_else(|| unread(cost)).ok_or(place));
        let all: Result<_, usize> = all.collect();
        all.map_err(|place| {
            let limits = (0..count).map(|place| format!(" -r {}", with_number(policy, place)));
            let (limit, right) = (described(policy, place), limits.collect::<String>());
            format!("--once: no unit is read, so the limit {limit} has no cost; write the cost of the call:{right}")
        })
    }

    /// The costs on the command line, by the index of the limit.
    fn prices(&self, policy: &Policy) -> BTreeMap<usize, u64> {
        let named = self.named.iter();
        let priced = named.flat_map(|named| named.places_in(policy).into_iter().flatten().zip(&named.prices));
        priced.filter_map(|(place, price)| Some((place, (*price)?))).collect()
    }

    /// For each limit the cost that a reply settles: the cost of a unit, or the cost on the command line.
    ///
    /// # Errors
    /// A cost of `policy` cannot be parsed.
    pub(crate) fn settled(&self, policy: &Policy) -> Result<Vec<Option<Cost>>, String> {
        let prices = self.prices(policy);
        let price = |place| prices.get(&place).and_then(|price| price.to_string().parse().ok());
        let costs = look(policy)?.costs.into_iter().enumerate();
        Ok(costs.map(|(place, cost)| cost.or_else(|| price(place))).collect())
    }

    /// Changes `look` for the unit that represents the call. It then finds the key and the costs of the call, whatever
    /// the bytes of the unit are.
    ///
    /// # Errors
    /// The errors of [`ask`](Self::ask).
    pub(crate) fn look(&self, policy: &Policy, mut look: Look) -> Result<Look, String> {
        let costs = self.costs(policy)?;
        if !look.costs.is_empty() || costs.iter().any(|cost| *cost != 1) {
            let fixed = costs.iter().map(|cost| cost.to_string().parse().map(Some));
            look.costs = fixed.collect::<Result<_, String>>()?;
        }
        look.per = self.key.as_deref().filter(|_| policy.of_keys().is_some()).map(Selector::always);
        Ok(look)
    }
}

/// The message if a call of these costs gets more than a window ever grants.
fn too_much(policy: &Policy, costs: &[u64]) -> Result<Option<String>, String> {
    let limits = look(policy)?.limits;
    let above = costs.iter().zip(&limits).find(|(cost, (_, most))| *cost > most);
    Ok(above.map(|(cost, (limit, most))| {
        format!(
            "--once: the call costs {cost}, but the limit {limit} never grants more than {most}; write a lower cost, like \
             cost={most}"
        )
    }))
}

/// The limit at this place. The limits of each key come after the limits of all units.
fn described(policy: &Policy, place: usize) -> String {
    match (policy.of_keys(), place.checked_sub(policy.len())) {
        (Some(keys), Some(place)) => keys.describe(place),
        _ => policy.describe(place),
    }
}

/// The limit at this place, with a number if it has a cost.
fn with_number(policy: &Policy, place: usize) -> String {
    let (of, limit, per) = match (policy.of_keys(), place.checked_sub(policy.len())) {
        (Some(keys), Some(place)) => (&keys.each, place, format!(",per={}", keys.per)),
        _ => (policy, place, String::new()),
    };
    let cost = if of.cost(limit).is_some() { ",cost=800" } else { "" };
    format!("{}{cost}{per}", of.without_costs().describe(limit))
}
