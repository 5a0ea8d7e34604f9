//! The limits of the command line, grouped by cost.

use super::rule::Rule;
use crate::program::lookup::quoted;
use std::num::NonZeroU32;
use std::path::Path;
use throttle::flow::cost::Cost;
use throttle::flow::selector::Selector;
use throttle_limits::limits::{Disagreement, OfKeys, Policy, PolicyError, Said, SaidCost};
use throttle_limits::line::NamedKey;
use throttle_limits::rate::{Amount, Limit};

/// The most commands that a bucket counts. Its state has an entry for each.
const MAX_BUCKET_JOBS: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

/// Limits given with `--rate` and `--burst`, sorted by scope (all units, or each key) and by cost.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    /// Limits of all units together.
    pub(crate) all: Vec<Group>,
    /// Limits that each key has separately.
    pub(crate) each: Vec<Group>,
    pub(crate) per: Option<Selector>,
    /// The most commands of one key that run at once.
    pub(crate) jobs: Option<NonZeroU32>,
    /// The most commands that run at once, counted over all processes that share a bucket.
    pub(crate) jobs_of_all: Option<NonZeroU32>,
    /// The number of consecutive failures that ends a key.
    pub(crate) fails: Option<NonZeroU32>,
    pub(crate) burst: Option<Amount>,
    /// Keys with limits of their own.
    pub(crate) named: Vec<NamedKey>,
    /// Limits that can never bind and were left out, each with the stricter limit.
    pub(super) idle: Vec<Idle>,
    /// The rules as the user wrote them.
    pub(crate) rules: Vec<Rule>,
}

/// A limit that can never bind, and the limit that is always stricter.
pub(crate) type Idle = (String, String);

/// The limits of `policy` that can never bind.
pub(super) fn idle_in(policy: &Policy) -> impl Iterator<Item = Idle> {
    policy.never_bind().map(|(idle, other)| (policy.describe(idle), policy.describe(other)))
}

/// Limits with the same cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) policy: Policy,
    /// The cost of a unit; `None` is 1.
    pub(crate) cost: Option<Cost>,
    /// The limits of `policy` as the user wrote them.
    pub(crate) written: Vec<Limit>,
    /// Whether the user wrote the cost of a call, which a bucket does not store.
    is_priced_by_call: bool,
    /// Whether the group is `unlimited,bytes`.
    pub(crate) counts_bytes: bool,
}

impl Grouped {
    /// Sorts the rules into groups. Returns `None` without `--rate`.
    ///
    /// # Errors
    /// The rules or the burst contradict each other.
    pub(crate) fn new(rules: &[Rule], burst: Option<Amount>) -> Result<Option<Self>, String> {
        if rules.is_empty() {
            return Ok(None);
        }
        check(rules)?;
        let of = |is_each: bool| groups(rules.iter().filter(|rule| rule.per.is_some() == is_each));
        let (mut all, mut each) = (of(false), of(true));
        let burst = match (burst, all.len() + each.len()) {
            (Some(burst), 2..) => return Err(burst_of_several(rules, burst)),
            (burst, _) => burst,
        };
        for group in all.iter_mut().chain(&mut each) {
            let policy = Policy::with_slack(&group.written, burst).map_err(|error| in_limits(&error))?;
            let policy = if group.counts_bytes { Policy::unlimited(true) } else { policy };
            group.policy = group.cost.as_ref().map_or(policy.clone(), |cost| policy.counting(&cost.to_string()));
        }
        if burst.is_some() && all.is_empty() && each.is_empty() {
            return Err(in_limits(&PolicyError::UnlimitedAlone));
        }
        let per = rules.iter().find_map(|rule| rule.per.clone());
        let jobs = |is_of_key| {
            let mut jobs = rules.iter().filter(|rule| rule.per.is_some() == is_of_key).filter_map(|rule| rule.jobs);
            jobs.next()
        };
        let (jobs, jobs_of_all) = (jobs(true), jobs(false));
        let fails = rules.iter().find_map(|rule| rule.fails);
        let (named, idle, rules) = (Vec::new(), Vec::new(), rules.to_vec());
        Ok(Some(Grouped { all, each, per, jobs, jobs_of_all, fails, burst, named, idle, rules }))
    }

    /// The message if a private run has `jobs=` without a key. Such a run limits the number of all its commands with
    /// -j.
    pub(super) fn jobs_without_keys(&self) -> Option<String> {
        let jobs = self.jobs_of_all?;
        Some(format!("--rate: jobs={jobs} needs a key; add per=host, or use -j {jobs}"))
    }

    /// Sorts the rules into groups for a bucket, which must be able to store them.
    ///
    /// # Errors
    /// The rules or the burst contradict each other, or the bucket cannot store them.
    pub(crate) fn for_bucket(rules: &[Rule], burst: Option<Amount>) -> Result<Option<Self>, String> {
        rules.iter().find_map(not_kept).map_or(Ok(()), Err)?;
        if rules.is_empty() && burst.is_some() {
            return Err("--burst needs a rate; write for example -r 5/s -b 10".to_owned());
        }
        let named = Grouped::new(rules, burst)?;
        if let Some(named) = &named {
            throttle_limits::store::check(&named.kept()).map_err(|error| format!("--rate: {error}"))?;
        }
        Ok(named)
    }

    /// The limits of all units together, group by group.
    pub(crate) fn policy(&self) -> Policy {
        Policy::of_all(self.all.iter().map(|group| &group.policy))
    }

    /// The whole policy, as a bucket stores it.
    pub(crate) fn kept(&self) -> Policy {
        let policy = self.policy().with_jobs(self.jobs_of_all);
        let Some(per) = &self.per else { return policy };
        let each = Policy::of_all(self.each.iter().map(|group| &group.policy));
        policy.with_keys(OfKeys { per: per.to_string(), each, jobs: self.jobs, fails: self.fails })
    }

    /// All limits as the user wrote them: first the limits of all units, then the limits of each key.
    pub(crate) fn written_all(&self) -> impl Iterator<Item = Limit> {
        self.all.iter().chain(&self.each).flat_map(|group| group.written.iter().copied())
    }

    /// Leaves out limits that can never bind. A bucket stores such limits, because they matter once other limits
    /// change.
    pub(super) fn leave_out_idle(&mut self) {
        for group in self.all.iter_mut().chain(&mut self.each) {
            self.idle.extend(idle_in(&group.policy));
            let idle: Vec<usize> = group.policy.never_bind().map(|(idle, _)| idle).collect();
            group.policy = group.policy.without(&idle);
            let written = group.written.iter().enumerate().filter(|(place, _)| !idle.contains(place));
            group.written = written.map(|(_, limit)| *limit).collect();
        }
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
        let one_group = |group: &Group| -> Vec<Said> {
            let cost = match &group.cost {
                _ if group.is_priced_by_call => SaidCost::OfCall,
                Some(cost) => SaidCost::Named(cost.to_string()),
                None => SaidCost::Unnamed,
            };
            group.written.iter().map(|limit| Said { limit: *limit, cost: cost.clone() }).collect()
        };
        let limits = |groups: &[Group]| groups.iter().flat_map(one_group).collect::<Vec<_>>();
        let written = || self.rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let is_other_kind = self.kept().counts_bytes() != policy.counts_bytes();
        let disagrees = || Disagreement { said: written(), known: policy.to_string(), is_other_kind };
        let is_none_or_same = |own: Option<NonZeroU32>, known| own.is_none() || own == known;
        let mut places = policy.places_of(&limits(&self.all), self.burst).map_err(|found| match policy.of_keys() {
            Some(_) => disagrees(),
            None => found,
        })?;
        if self.all.iter().any(|group| group.counts_bytes) && !policy.counts_bytes() {
            return Err(disagrees());
        }
        let jobs = is_none_or_same(self.jobs_of_all, policy.jobs());
        match (&self.per, policy.of_keys()) {
            (None, None) if jobs => {}
            (Some(per), Some(keys)) if jobs && keys.per == per.to_string() => {
                if !is_none_or_same(self.jobs, keys.jobs) || !is_none_or_same(self.fails, keys.fails) {
                    return Err(disagrees());
                }
                let of_each = keys.each.places_of(&limits(&self.each), self.burst).map_err(|_| disagrees())?;
                places.extend(of_each.into_iter().map(|place| policy.len() + place));
            }
            _ => return Err(disagrees()),
        }
        Ok(places)
    }

    /// Removes the costs that are numbers. Returns an entry for each written limit: its cost, if that is a number. With
    /// `--once` these numbers are the costs of the call, which a bucket does not store.
    pub(crate) fn take_numbers(&mut self) -> Vec<Option<u64>> {
        let mut numbers = Vec::new();
        for group in self.all.iter_mut().chain(&mut self.each) {
            let number = group.cost.as_ref().and_then(|cost| cost.kind().unread());
            numbers.extend(group.written.iter().map(|_| number));
            if number.is_some() {
                (group.cost, group.policy) = (None, group.policy.without_costs());
                group.is_priced_by_call = true;
            }
        }
        numbers
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

/// Groups the rules by cost. The policies of the groups are still empty.
fn groups<'a>(rules: impl Iterator<Item = &'a Rule> + Clone) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    // `unlimited` with jobs= or per= only counts commands; it is not a limit.
    let is_limit = |rule: &&Rule| rule.limit != Limit::Unlimited || rule.per.is_none() && rule.jobs.is_none();
    for Rule { limit, cost, bytes, .. } in rules.filter(is_limit) {
        if let Some(group) = groups.iter_mut().find(|group| group.cost == *cost) {
            group.written.push(*limit);
        } else {
            let (cost, written) = (cost.clone(), vec![*limit]);
            groups.push(Group { cost, written, counts_bytes: *bytes, ..Group::default() });
        }
    }
    groups
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
pub(super) fn in_limits(error: &PolicyError) -> String {
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
