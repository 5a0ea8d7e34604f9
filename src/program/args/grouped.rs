//! The limits of the command line, grouped by cost.

use super::rule::Rule;
use crate::program::lookup::quoted;
use std::num::NonZeroU32;
use std::path::Path;
use throttle_limits::limits::{Disagreement, OfKeys, Policy, PolicyError, Said, SaidCost};
use throttle_limits::line::NamedKey;
use throttle_limits::rate::{Amount, Limit};

/// The most commands that a bucket counts. Its state has an entry for each.
const MAX_BUCKET_JOBS: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

/// Limits given with `--rate` and `--burst`, sorted by scope (all units, or each key) and by cost.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    /// The rules as the user wrote them.
    pub(crate) rules: Vec<Rule>,
    pub(crate) burst: Option<Amount>,
    /// The policy of the rules, as a bucket stores it.
    pub(crate) policy: Policy,
    /// The limits as the user wrote them: the limits of all units, and the limits of each key.
    pub(crate) said: [Vec<Said>; 2],
    /// For each of these limits the cost of the call, if it is a number and the rules are for one call.
    pub(crate) prices: Vec<Option<u64>>,
    /// Keys with limits of their own.
    pub(crate) named: Vec<NamedKey>,
    /// Limits that can never bind and were left out, each with the stricter limit.
    pub(super) idle: Vec<Idle>,
}

/// A limit that can never bind, and the limit that is always stricter.
pub(crate) type Idle = (String, String);

/// The limits of `policy` that can never bind.
pub(super) fn idle_in(policy: &Policy) -> impl Iterator<Item = Idle> {
    policy.never_bind().map(|(idle, other)| (policy.describe(idle), policy.describe(other)))
}

impl Grouped {
    /// Sorts the rules into groups. Returns `None` without `--rate`. `of_call`: a number is the cost of one call, which
    /// the policy does not have.
    ///
    /// # Errors
    /// The rules or the burst contradict each other.
    pub(crate) fn new(rules: &[Rule], burst: Option<Amount>, of_call: bool) -> Result<Option<Self>, String> {
        if rules.is_empty() {
            return Ok(None);
        }
        check(rules)?;
        let limits = [false, true].map(|is_each| limits(rules, is_each));
        match (burst, limits.iter().flat_map(|limits| by_cost(limits)).count()) {
            (Some(_), 0) => return Err(in_limits(&PolicyError::UnlimitedAlone)),
            (Some(burst), 2..) => return Err(burst_of_several(rules, burst)),
            _ => {}
        }
        let jobs = |is_of_key| rules.iter().filter(|rule| rule.per.is_some() == is_of_key).find_map(|rule| rule.jobs);
        let [all, each] = &limits;
        let (policy, each) = (policy_of(all, burst, of_call)?, policy_of(each, burst, of_call)?);
        let keys = rules.iter().find_map(|rule| rule.per.as_ref()).map(|per| OfKeys {
            per: per.to_string(),
            each,
            jobs: jobs(true),
            fails: rules.iter().find_map(|rule| rule.fails),
        });
        let policy = keys.into_iter().fold(policy.with_jobs(jobs(false)), Policy::with_keys);
        let prices = limits.iter().flatten().map(|rule| price(rule).filter(|_| of_call)).collect();
        let said = |rule: &&Rule| Said { limit: rule.limit, cost: said_cost(rule, of_call) };
        let said = limits.map(|limits| limits.iter().map(said).collect());
        let (rules, named, idle) = (rules.to_vec(), Vec::new(), Vec::new());
        Ok(Some(Grouped { rules, burst, policy, said, prices, named, idle }))
    }

    /// The message if a private run has `jobs=` without a key. Such a run limits the number of all its commands with
    /// -j.
    pub(super) fn jobs_without_keys(&self) -> Option<String> {
        let jobs = self.policy.jobs()?;
        Some(format!("--rate: jobs={jobs} needs a key; add per=host, or use -j {jobs}"))
    }

    /// Sorts the rules into groups for a bucket, which must be able to store them.
    ///
    /// # Errors
    /// The rules or the burst contradict each other, or the bucket cannot store them.
    pub(crate) fn for_bucket(rules: &[Rule], burst: Option<Amount>, of_call: bool) -> Result<Option<Self>, String> {
        rules.iter().find_map(not_kept).map_or(Ok(()), Err)?;
        if rules.is_empty() && burst.is_some() {
            return Err("--burst needs a rate; write for example -r 5/s -b 10".to_owned());
        }
        let named = Grouped::new(rules, burst, of_call)?;
        if let Some(named) = &named {
            throttle_limits::store::check(&named.policy).map_err(|error| format!("--rate: {error}"))?;
        }
        Ok(named)
    }

    /// The rules as the user wrote them.
    pub(super) fn written(&self) -> String {
        self.rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    }

    /// Leaves out limits that can never bind. A bucket stores such limits, because they matter once other limits
    /// change. Only a private run leaves them out, and it has no `jobs=` of all keys.
    pub(super) fn leave_out_idle(&mut self) {
        let mut without_idle = |policy: &Policy| {
            self.idle.extend(idle_in(policy));
            policy.without(&policy.never_bind().map(|(idle, _)| idle).collect::<Vec<_>>())
        };
        let all = without_idle(&self.policy);
        let keys = self.policy.of_keys().map(|keys| OfKeys { each: without_idle(&keys.each), ..keys.clone() });
        self.policy = keys.into_iter().fold(all, Policy::with_keys);
    }

    /// The file with the limits of some keys.
    pub(crate) fn rates(&self) -> Option<&Path> {
        self.rules.iter().find_map(|rule| rule.rates.as_deref())
    }

    /// The index of each written limit among the limits of a bucket: first the limits of all units, then the limits of
    /// each key.
    ///
    /// # Errors
    /// The written limits disagree with the limits of the bucket.
    pub(crate) fn places_in(&self, policy: &Policy) -> Result<Vec<usize>, Disagreement> {
        let [all, each] = &self.said;
        let is_other_kind = self.policy.counts_bytes() != policy.counts_bytes();
        let disagrees = || Disagreement { said: self.written(), known: policy.to_string(), is_other_kind };
        let is_none_or_same = |own: Option<NonZeroU32>, known| own.is_none() || own == known;
        let mut places = policy.places_of(all, self.burst).map_err(|found| match policy.of_keys() {
            Some(_) => disagrees(),
            None => found,
        })?;
        if self.policy.counts_bytes() && !policy.counts_bytes() || !is_none_or_same(self.policy.jobs(), policy.jobs()) {
            return Err(disagrees());
        }
        match (self.policy.of_keys(), policy.of_keys()) {
            (None, None) => {}
            (Some(own), Some(keys))
                if own.per == keys.per
                    && is_none_or_same(own.jobs, keys.jobs)
                    && is_none_or_same(own.fails, keys.fails) =>
            {
                let of_each = keys.each.places_of(each, self.burst).map_err(|_| disagrees())?;
                places.extend(of_each.into_iter().map(|place| policy.len() + place));
            }
            _ => return Err(disagrees()),
        }
        Ok(places)
    }

    /// The message if a limit counts the commands of a key, but no command is run.
    pub(crate) fn jobs_without_commands(&self) -> Option<String> {
        let counts = |rule: &Rule| {
            let jobs = rule.jobs.map(|jobs| format!("jobs={jobs}"));
            jobs.or(rule.fails.map(|fails| format!("fails={fails}")))
        };
        let (rule, counts) = self.rules.iter().find_map(|rule| Some((rule, counts(rule)?)))?;
        let rule = word(rule);
        Some(format!("--rate: {counts} counts commands, but no COMMAND was given; write -r {rule} COMMAND"))
    }
}

/// The most bytes of a cost or a selector in a bucket. All limits of a bucket fit into one record.
const MAX_TEXT_BYTES: usize = 100;

/// Why a bucket cannot store a rule.
fn not_kept(rule: &Rule) -> Option<String> {
    let is_long = |text: &dyn ToString| {
        let text = text.to_string();
        text.len() > MAX_TEXT_BYTES || text.contains(char::is_control)
    };
    let short = |what: &str, example: &str| {
        format!(
            "the {what} has control characters or more than {MAX_TEXT_BYTES} bytes, so a bucket cannot store it; \
             write for example {example}"
        )
    };
    let why = match rule {
        Rule { rates: Some(_), .. } => {
            let right = word(&Rule { rates: None, ..rule.clone() });
            format!("a bucket cannot store a file of rates; write -r {right}")
        }
        Rule { jobs: Some(jobs), .. } if *jobs > MAX_BUCKET_JOBS => {
            let right = word(&Rule { jobs: Some(MAX_BUCKET_JOBS), ..rule.clone() });
            format!("a bucket counts at most {MAX_BUCKET_JOBS} commands; write -r {right}")
        }
        Rule { per: Some(per), .. } if is_long(per) => short("selector", "per=host"),
        Rule { cost: Some(cost), .. } if is_long(cost) => short("cost", "cost=/max_tokens"),
        _ => return None,
    };
    Some(format!("--rate: '{rule}': {why}"))
}

/// The rules with limits of all units, or of each key. Limits of one cost are together.
pub(super) fn limits(rules: &[Rule], is_each: bool) -> Vec<&Rule> {
    // `unlimited` with jobs= or per= only counts commands; it is not a limit.
    let is_limit = |rule: &&Rule| rule.limit != Limit::Unlimited || rule.per.is_none() && rule.jobs.is_none();
    let limits: Vec<&Rule> = rules.iter().filter(|rule| rule.per.is_some() == is_each).filter(is_limit).collect();
    let mut sorted = limits.clone();
    sorted.sort_by_key(|rule| limits.iter().position(|first| first.cost == rule.cost));
    sorted
}

/// The groups of limits with the same cost.
pub(super) fn by_cost<'a, 'b>(limits: &'a [&'b Rule]) -> impl Iterator<Item = &'a [&'b Rule]> {
    limits.chunk_by(|one, next| one.cost == next.cost)
}

/// The policy of limits. In each group of limits with the same cost, one limit paces.
pub(super) fn policy_of(limits: &[&Rule], burst: Option<Amount>, of_call: bool) -> Result<Policy, String> {
    let of_group = |group: &[&Rule]| {
        let limits: Vec<Limit> = group.iter().map(|rule| rule.limit).collect();
        let policy = Policy::with_slack(&limits, burst).map_err(|error| in_limits(&error))?;
        let policy = if group[0].bytes { Policy::unlimited(true) } else { policy };
        Ok(match said_cost(group[0], of_call) {
            SaidCost::Named(cost) => policy.counting(&cost),
            SaidCost::OfCall | SaidCost::Unnamed => policy,
        })
    };
    let policies = by_cost(limits).map(of_group).collect::<Result<Vec<_>, String>>()?;
    Ok(Policy::of_all(&policies))
}

/// The cost of the rule, if it is a number.
fn price(rule: &Rule) -> Option<u64> {
    rule.cost.as_ref().and_then(|cost| cost.kind().unread())
}

/// The cost of the rule for a bucket. `of_call`: a number is the cost of one call.
fn said_cost(rule: &Rule, of_call: bool) -> SaidCost {
    match &rule.cost {
        Some(_) if of_call && price(rule).is_some() => SaidCost::OfCall,
        Some(cost) => SaidCost::Named(cost.to_string()),
        None => SaidCost::Unnamed,
    }
}

/// Checks that the rules do not contradict each other.
fn check(rules: &[Rule]) -> Result<(), String> {
    if rules.len() > 1
        && rules.iter().any(|rule| rule.limit == Limit::Unlimited && rule.per.is_none() && rule.jobs.is_none())
    {
        return Err(in_limits(&PolicyError::UnlimitedAlone));
    }
    let mut selectors = rules.iter().filter_map(|rule| Some((rule, rule.per.as_ref()?)));
    if let Some((_, first)) = selectors.next()
        && let Some((rule, other)) = selectors.find(|(_, per)| *per != first)
    {
        let right = Rule { per: Some(first.clone()), ..rule.clone() };
        return Err(format!(
            "--rate: per={first} and per={other} are given, but a run has one selector; write -r {}",
            word(&right)
        ));
    }
    let without_jobs = |rule: &Rule| Rule { jobs: None, ..rule.clone() };
    // A bucket counts the commands of each key, and the commands of all keys together.
    for is_of_key in [true, false] {
        let is_given = |rule: &Rule| rule.jobs.is_some() && rule.per.is_some() == is_of_key;
        check_once(rules, "jobs", is_given, without_jobs)?;
    }
    check_once(rules, "fails", |rule| rule.fails.is_some(), |rule| Rule { fails: None, ..rule.clone() })?;
    check_once(rules, "rates", |rule| rule.rates.is_some(), |rule| Rule { rates: None, ..rule.clone() })?;
    let is_bytes = |rule: &&Rule| rule.limit.rate().is_some_and(|rate| rate.is_bytes());
    let units = rules.iter().find(|rule| rule.limit != Limit::Unlimited && !is_bytes(rule));
    if let (Some(bytes), Some(units)) = (rules.iter().find(is_bytes), units) {
        let [bytes, units] =
            [bytes, units].map(|rule| rule.limit.rate().map(|rate| rate.to_string()).unwrap_or_default());
        return Err(in_limits(&PolicyError::BytesBesideUnits { bytes, units }));
    }
    Ok(())
}

/// Checks that a setting of the whole run is given at most once. `without` removes it from a rule, for the message.
fn check_once(
    rules: &[Rule],
    name: &str,
    is_given: impl Fn(&Rule) -> bool,
    without: impl Fn(&Rule) -> Rule,
) -> Result<(), String> {
    let mut found = rules.iter().filter(|rule| is_given(rule));
    let (Some(first), Some(second)) = (found.next(), found.next()) else { return Ok(()) };
    let is_nothing_else = second.limit == Limit::Unlimited;
    let right = if is_nothing_else { first.clone() } else { without(second) };
    Err(format!("--rate: {name}= is given in '{first}' and '{second}'; write it once: -r {}", word(&right)))
}

/// The message for a burst with limits of different costs: the burst must be written in one of the limits.
fn burst_of_several(rules: &[Rule], burst: Amount) -> String {
    let burst = Amount::plain(burst.value().max(1));
    let with_burst = rules.iter().find_map(|rule| match rule.limit {
        Limit::Bucket { rate, burst: None, initial: None } => {
            Some(Rule { limit: Limit::Bucket { rate, burst: Some(burst), initial: None }, ..rule.clone() })
        }
        _ => None,
    });
    let example = with_burst.map_or_else(|| format!("5/s,burst={burst}"), |rule| word(&rule));
    format!("--burst: the limits count different things; write it in one of them, like -r {example}")
}

/// A rule as a user would type it in a shell.
fn word(rule: &Rule) -> String {
    let text = rule.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ",=/._:+-".contains(c);
    if text.chars().all(is_plain) { text } else { quoted(text) }
}

/// The message about wrong limits, with the names of the options.
fn in_limits(error: &PolicyError) -> String {
    match error {
        PolicyError::None | PolicyError::UnlimitedAlone | PolicyError::InitialAboveBurst { .. } => {
            format!("--rate: {error}")
        }
        PolicyError::BytesBesideUnits { .. } => {
            format!("--rate: {error}, or a pipe of two throttles, one for each kind")
        }
        PolicyError::BurstTwice(limit) => {
            format!("--burst: the limit '{limit}' already names its burst; leave one of them out, like -r 5/s -b 10")
        }
        PolicyError::BurstOnWindow(limit) => {
            format!(
                "--burst: the limit that sets the pace, '{limit},window', is a window, which has no burst; write -r \
                 {limit} -b N"
            )
        }
        _ => format!("--burst: {error}"),
    }
}
