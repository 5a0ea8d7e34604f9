//! The limits of a run, as the user asks for them.

use super::again;
use super::bucket::{Bucket, Environment};
use crate::program::args::{Args, Rule, in_limits};
use crate::program::lookup::quoted;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use throttle::flow::cost::Cost;
use throttle::flow::selector::Selector;
use throttle::flow::{Look, Sorting};
use throttle_limits::clock::in_nanos;
use throttle_limits::limits::{Disagreement, Policy, PolicyError, Said};
use throttle_limits::rate::{Amount, Limit, Rate};

/// Limits named with `--rate` and `--burst`, sorted by what they hold for and what they count.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    /// Those of all units together.
    pub(crate) all: Vec<Group>,
    /// Those of each key by itself.
    pub(crate) each: Vec<Group>,
    pub(crate) per: Option<Selector>,
    /// The most commands of one key at once.
    pub(crate) jobs: Option<NonZeroU32>,
    pub(crate) burst: Option<Amount>,
    /// As the user wrote them.
    rules: Vec<Rule>,
}

/// Limits that count the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    /// In a run of its own, without those that can never bind.
    pub(crate) policy: Policy,
    /// `None`: each unit takes 1.
    pub(crate) cost: Option<Cost>,
    /// Those of `policy`.
    pub(crate) written: Vec<Limit>,
    /// Also those that can never bind.
    all: Policy,
}

impl Group {
    fn leave_out_idle(&mut self) {
        let idle: Vec<usize> = self.all.never_bind().map(|(idle, _)| idle).collect();
        self.policy = self.all.without(&idle);
        let written = self.written.iter().enumerate().filter(|(place, _)| !idle.contains(place));
        self.written = written.map(|(_, limit)| *limit).collect();
    }
}

/// Who keeps the limits of a run.
#[derive(Clone, Debug)]
pub(crate) enum Limits {
    /// The run has them for itself.
    Own(Grouped),
    /// A bucket keeps them. Those that were named must agree with it.
    Shared(Bucket, Option<Grouped>),
}

impl Grouped {
    /// `None` without `--rate`.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub(super) fn new(args: &Args) -> Result<Option<Self>, String> {
        let rules = &args.rate;
        if rules.is_empty() {
            return Ok(None);
        }
        check(args)?;
        let of = |is_each: bool| groups(rules.iter().filter(|rule| rule.per.is_some() == is_each));
        let (mut all, mut each) = (of(false), of(true));
        let burst = match (args.burst, all.len() + each.len()) {
            (Some(burst), 2..) => return Err(burst_of_several(rules, burst)),
            (burst, _) => burst,
        };
        for group in all.iter_mut().chain(&mut each) {
            let policy = Policy::with_slack(&group.written, burst).map_err(|error| in_limits(&error))?;
            group.policy = group.cost.as_ref().map_or(policy.clone(), |cost| policy.counting(&cost.to_string()));
            group.all = group.policy.clone();
        }
        if let (Some(_), []) = (burst, &all[..])
            && each.is_empty()
        {
            return Err(in_limits(&PolicyError::UnlimitedAlone));
        }
        let per = rules.iter().find_map(|rule| rule.per.clone());
        let jobs = rules.iter().find_map(|rule| rule.jobs);
        Ok(Some(Grouped { all, each, per, jobs, burst, rules: rules.clone() }))
    }

    /// The same for a bucket, which must be able to keep them.
    ///
    /// # Errors
    /// As [`new`](Self::new), and why the bucket cannot.
    pub(super) fn for_bucket(args: &Args) -> Result<Option<Self>, String> {
        if let Some(rule) = args.rate.iter().find(|rule| rule.per.is_some()) {
            return Err(of_each_key_in_bucket(rule));
        }
        if args.rate.iter().any(|rule| rule.limit == Limit::Unlimited) {
            return Err("--rate: 'unlimited' is no limit that a bucket could keep; write for example -r 5/s".to_owned());
        }
        if let Some(rule) = args.rate.iter().find(|rule| rule.cost.as_ref().is_some_and(|cost| !can_be_kept(cost))) {
            return Err(format!(
                "--rate: '{rule}': a bucket keeps a cost of at most {LONGEST_COST} characters, without control characters, like \
                 cost=/max_tokens"
            ));
        }
        if args.rate.is_empty() && args.burst.is_some() {
            return Err("--burst belongs to a rate; write for example -r 5/s -b 10".to_owned());
        }
        let named = Grouped::new(args)?;
        if let Some(named) = &named {
            throttle_limits::store::check(&named.policy()).map_err(|error| format!("--rate: {error}"))?;
        }
        Ok(named)
    }

    /// The limits of all units together, group after group.
    pub(crate) fn policy(&self) -> Policy {
        Policy::of_all(self.all.iter().map(|group| &group.policy))
    }

    /// The same as they were written.
    pub(crate) fn written(&self) -> Vec<Limit> {
        self.all.iter().flat_map(|group| group.written.iter().copied()).collect()
    }

    /// The costs that limits count, other than 1 for each unit.
    pub(crate) fn costs(&self) -> impl Iterator<Item = &Cost> {
        self.all.iter().chain(&self.each).filter_map(|group| group.cost.as_ref())
    }

    /// How units are sorted, if limits are kept for each key, or units are dropped. `runs`: commands run for them.
    pub(super) fn sorting(&self, args: &Args, runs: bool) -> Option<Sorting> {
        if self.per.is_none() && !args.drop {
            return None;
        }
        let kinds = || self.all.iter().chain(&self.each);
        let policies = |groups: &[Group], first: usize| {
            groups.iter().enumerate().map(|(place, group)| (group.policy.clone(), first + place)).collect()
        };
        let longest = args.max_wait.map_or(0, in_nanos);
        Some(Sorting {
            look: Look {
                per: self.per.clone(),
                costs: kinds().map(|group| group.cost.clone()).collect(),
                limits: kinds().map(|group| name_and_most(&group.policy)).collect(),
            },
            each: policies(&self.each, self.all.len()),
            all: policies(&self.all, 0),
            jobs: runs.then(|| self.jobs.unwrap_or(NonZeroU32::MAX)),
            max_wait: args.drop.then_some(longest),
            ahead: again::ahead(args),
        })
    }

    /// Where the limits that were written are among those of a bucket, which must agree with them.
    ///
    /// # Errors
    /// They do not agree.
    pub(crate) fn places_in(&self, policy: &Policy) -> Result<Vec<usize>, Disagreement> {
        let said = |group: &Group| -> Vec<Said> {
            let cost = group.cost.as_ref().map(ToString::to_string);
            group.written.iter().map(|limit| (*limit, cost.clone())).collect()
        };
        policy.places_of(&self.all.iter().flat_map(said).collect::<Vec<_>>(), self.burst)
    }

    /// Takes the numbers out that `--once` says its call costs, one for each limit written: a bucket does not keep them.
    pub(super) fn take_numbers(&mut self) -> Vec<Option<u64>> {
        let mut numbers = Vec::new();
        for group in &mut self.all {
            let number = group.cost.as_ref().and_then(|cost| cost.kind().unread());
            numbers.extend(group.written.iter().map(|_| number));
            if number.is_some() {
                (group.cost, group.policy) = (None, group.policy.without_costs());
            }
        }
        numbers
    }

    /// What to say if commands of a key are counted, but none is run.
    pub(super) fn jobs_without_commands(&self) -> Option<String> {
        let rule = self.rules.iter().find(|rule| rule.jobs.is_some())?;
        let jobs = rule.jobs?;
        let rule = word(rule);
        Some(format!("--rate: jobs={jobs} counts commands, and none is run; write -r {rule} COMMAND"))
    }
}

impl Limits {
    /// The limits of a stream. If it names limits, and no bucket, it has them for itself: `THROTTLE_BUCKET`, which is set
    /// for other scripts, does not change what a script does.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub(super) fn of_stream(args: &Args, environment: &Environment) -> Result<Self, String> {
        let is_private = args.bucket.is_none() && !args.rate.is_empty();
        let bucket = match &args.bucket {
            None if is_private => None,
            word => Bucket::named(word.as_deref(), args.on_store_error, environment)?,
        };
        if let Some(bucket) = bucket {
            let named = Grouped::for_bucket(args)?;
            return Ok(Limits::Shared(bucket, named));
        }
        if args.on_store_error.is_some() {
            let or = if is_private { " (with -r, THROTTLE_BUCKET is not used)" } else { ", or THROTTLE_BUCKET=NAME" };
            return Err(format!("--on-store-error is about a bucket on a server; name it: --bucket NAME{or}"));
        }
        let mut named = Grouped::new(args)?.ok_or_else(|| without_rate(&args.command).to_owned())?;
        // A bucket keeps what was set: the count of a limit matters once others change.
        named.all.iter_mut().chain(&mut named.each).for_each(Group::leave_out_idle);
        Ok(Limits::Own(named))
    }

    /// The limits that were named; `None` if only the bucket knows them.
    pub(crate) fn named(&self) -> Option<&Grouped> {
        match self {
            Limits::Own(named) => Some(named),
            Limits::Shared(_, named) => named.as_ref(),
        }
    }

    /// Whether a unit costs some limit something of its own. `policy` is in force.
    pub(crate) fn have_costs(&self, policy: &Policy) -> bool {
        policy.has_costs() || self.named().is_some_and(|named| named.costs().next().is_some())
    }

    /// The limits of `policy`, which is in force, that count each unit as 1.
    pub(crate) fn of_units(&self, policy: &Policy) -> Policy {
        match self.named() {
            // What sorts units keeps their limits.
            Some(named) if policy.is_empty() && self.have_costs(policy) => named.policy().of_units(),
            _ => policy.of_units(),
        }
    }

    /// How long a pause is if the server names no time: two intervals of the pace that units of one key may have.
    pub(crate) fn first_pause(&self, policy: &Policy) -> Duration {
        let of_units = |groups: &[Group]| Policy::of_all(groups.iter().map(|group| &group.policy)).of_units().fastest();
        let paces = match self {
            Limits::Own(named) => [&named.all, &named.each].map(|groups| of_units(groups)),
            Limits::Shared(..) => [policy.of_units().fastest(), None],
        };
        let two_intervals = |pace: Rate| Duration::from_nanos(pace.period().saturating_mul(2).div_ceil(pace.units()));
        paces.into_iter().flatten().map(two_intervals).fold(again::SHORTEST_PAUSE, Duration::max)
    }

    /// The limits that were named, in groups that count the same, or those of `policy`, which a bucket keeps. Also those that
    /// can never bind.
    pub(crate) fn kinds(&self, policy: &Policy) -> Vec<Policy> {
        match self {
            Limits::Own(named) => named.all.iter().chain(&named.each).map(|group| group.all.clone()).collect(),
            Limits::Shared(..) => vec![policy.clone()],
        }
    }

    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match self {
            Limits::Own(_) => None,
            Limits::Shared(bucket, _) => Some(bucket),
        }
    }

    /// The limits as the user wrote them, or `policy`, which the bucket keeps.
    pub(crate) fn written(&self, policy: &Policy) -> String {
        let join = |named: &Grouped| named.rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        self.named().map_or_else(|| policy.to_string(), join)
    }
}

/// The costs of the limits of `policy`, which a run or a bucket keeps. None if every limit counts units.
///
/// # Errors
/// Which cannot be read.
pub(crate) fn look(policy: &Policy) -> Result<Look, String> {
    if !policy.has_costs() {
        return Ok(Look::default());
    }
    let parsed = |cost: &str| cost.parse::<Cost>().map_err(|error| format!("cost={cost} cannot be read: {error}"));
    let costs = (0..policy.len()).map(|place| policy.cost(place).map(parsed).transpose()).collect::<Result<_, _>>()?;
    let limits = (0..policy.len()).map(|place| (policy.describe(place), policy.most_ever(place))).collect();
    Ok(Look { per: None, costs, limits })
}

/// The most characters of a cost in a bucket: all its limits fit into one record.
const LONGEST_COST: usize = 100;

fn can_be_kept(cost: &Cost) -> bool {
    let text = cost.to_string();
    text.len() <= LONGEST_COST && !text.contains(char::is_control)
}

/// The rules sorted by what they count. Their policies are not filled in yet.
fn groups<'a>(rules: impl Iterator<Item = &'a Rule> + Clone) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    // Beside a number of jobs, `unlimited` stands for no limit.
    for Rule { limit, cost, .. } in rules.filter(|rule| rule.per.is_none() || rule.limit != Limit::Unlimited) {
        match groups.iter_mut().find(|group| group.cost == *cost) {
            Some(group) => group.written.push(*limit),
            None => groups.push(Group { cost: cost.clone(), written: vec![*limit], ..Group::default() }),
        }
    }
    groups
}

/// What limits that count the same are called, and the most that they ever grant; the strictest, if that is not all.
fn name_and_most(policy: &Policy) -> (String, u64) {
    let each = (0..policy.len()).map(|place| (policy.describe(place), policy.most_ever(place)));
    each.min_by_key(|(_, most)| *most).unwrap_or((policy.to_string(), u64::MAX))
}

/// What rules must not say together, or beside other options.
fn check(args: &Args) -> Result<(), String> {
    let rules = &args.rate;
    if rules.len() > 1 && rules.iter().any(|rule| rule.limit == Limit::Unlimited && rule.per.is_none()) {
        return Err(in_limits(&PolicyError::UnlimitedAlone));
    }
    let mut selectors = rules.iter().filter_map(|rule| Some((rule, rule.per.as_ref()?)));
    if let Some((_, first)) = selectors.next()
        && let Some((rule, other)) = selectors.find(|(_, per)| *per != first)
    {
        let right = Rule { per: Some(first.clone()), ..rule.clone() };
        return Err(format!(
            "--rate: per={first} beside per={other}: a run has one selector; write -r {}",
            word(&right)
        ));
    }
    let mut jobs = rules.iter().filter(|rule| rule.jobs.is_some());
    if let (Some(first), Some(second)) = (jobs.next(), jobs.next()) {
        let is_nothing_else = second.limit == Limit::Unlimited;
        let right = if is_nothing_else { first.clone() } else { Rule { jobs: None, ..second.clone() } };
        return Err(format!("--rate: jobs= stands in '{first}' and '{second}'; once is enough: -r {}", word(&right)));
    }
    let is_bytes = |rule: &&Rule| rule.limit.rate().is_some_and(|rate| rate.is_bytes());
    let units = rules.iter().find(|rule| rule.limit != Limit::Unlimited && !is_bytes(rule));
    if let (Some(bytes), Some(units)) = (rules.iter().find(is_bytes), units) {
        let [bytes, units] =
            [bytes, units].map(|rule| rule.limit.rate().map(|rate| rate.to_string()).unwrap_or_default());
        return Err(in_limits(&PolicyError::BytesBesideUnits { bytes, units }));
    }
    match rules.iter().find(|rule| args.bytes && (rule.per.is_some() || rule.cost.is_some())) {
        Some(rule) => Err(format!("--bytes: '{rule}' looks into units, not single bytes; leave --bytes out")),
        None => Ok(()),
    }
}

/// A burst beside limits that count different things belongs to one of them.
fn burst_of_several(rules: &[Rule], burst: Amount) -> String {
    let burst = Amount::plain(burst.value().max(1));
    let with_burst = rules.iter().find_map(|rule| match rule.limit {
        Limit::Bucket { rate, burst: None, initial: None } => {
            Some(Rule { limit: Limit::Bucket { rate, burst: Some(burst), initial: None }, ..rule.clone() })
        }
        _ => None,
    });
    let example = with_burst.map_or_else(|| format!("5/s,burst={burst}"), |rule| word(&rule));
    format!("--burst: of which limit? They count different things; write it in one of them, like -r {example}")
}

/// A rule as one would type it.
fn word(rule: &Rule) -> String {
    let text = rule.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ",=/._:+-".contains(c);
    if text.chars().all(is_plain) { text } else { quoted(text) }
}

/// A bucket keeps no limits of each key, but each key can have a bucket.
fn of_each_key_in_bucket(rule: &Rule) -> String {
    let per = rule.per.as_ref().map(ToString::to_string).unwrap_or_default();
    let limit = if rule.limit == Limit::Unlimited { "1/s".to_owned() } else { rule.limit.to_string() };
    format!(
        "--bucket: it keeps no limit of each key (per={per}); \
         a script can take from a bucket of each: --bucket \"web-$host\" --once -r {limit} COMMAND"
    )
}

/// What is wrong if no limit is named. `command` is what is to be run.
fn without_rate(command: &[OsString]) -> &'static str {
    let is_rate = |word: &OsString| word.as_bytes().starts_with(b"-r") || word.as_bytes().starts_with(b"--rate");
    if command.iter().any(is_rate) {
        "--rate: how fast? options after the command are the command's; put -r before it, like -r 5/s COMMAND"
    } else {
        "--rate: how fast? write for example -r 5/s, -r 100/min or -r 10MiB/s; throttle -h shows more"
    }
}
