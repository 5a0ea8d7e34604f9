//! The limits of a run: `--rate`, `--burst` and `--drop`.

use super::bucket::{Bucket, Environment, SharedFlags};
use super::foreign_flags;
use super::grouped::{Grouped, Idle, idle_in};
use super::launch::LaunchFlags;
use super::rule::Rule;
use super::values::from_text;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::collections::HashSet;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use throttle::flow::cost::Cost;
use throttle::flow::{Look, Sorting};
use throttle_limits::clock::in_nanos;
use throttle_limits::limits::Policy;
use throttle_limits::rate::{Amount, ParseError, Rate};
use throttle_limits::store::Address;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limit")]
#[group(skip)]
pub(crate) struct LimitFlags {
    /// Pass on at most this. Repeat the option for several limits: each limit holds.
    ///
    /// RATE is units or bytes for a time: 5/s, 100/min, 3/15s, 5k/h, 10MiB/s, or unlimited. Parts may follow after
    /// commas:
    ///
    /// -r 5/s -r 5000/h: up to 5 a second, and at most 5000 in any hour.
    ///
    /// 5/s,burst=10: up to 10 at once after a pause, then 5 a second.
    ///
    /// 100/min,window: at most 100 in any minute.
    ///
    /// 1/s,per=host,jobs=2: for each host at most one a second, and two commands at once.
    ///
    /// 200k/min,cost=bytes/4+300: each unit takes its cost.
    ///
    /// unlimited,per=host,fails=3: give up a host after three failures in a row.
    ///
    /// All parts, and limits for known servers: throttle --help limits, LIMITS in the manual.
    #[arg(short, long, value_name = "LIMIT", allow_hyphen_values = true, value_parser = rule())]
    #[arg(help = "The limit: 5/s, 100/min, 10MiB/s; repeat for several", long_help)]
    pub(crate) rate: Vec<Rule>,

    /// The most units that may go at once after a pause, for the limit that sets the pace. With -r 5/s -b 10, ten units
    /// go at once, then one every 200 ms. After a pause of a second, five units may go at once again.
    ///
    /// The default is 10 ms' worth of the rate, at least 1.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = from_text(str::parse::<Amount>))]
    #[arg(help = "Units at once after a pause [default: 10 ms of rate]", long_help)]
    pub(crate) burst: Option<Amount>,

    /// Drop every unit that would wait longer than --max-wait (default 0), so that a fast writer never waits: tail -F
    /// app.log | throttle -r 10/s,burst=50,per=/service --drop.
    ///
    /// A unit is dropped as soon as it cannot leave in time, even when --ahead units wait or the reader of the output
    /// stalls. The number of dropped units is reported at most every 10 s and at the end. --summary=json counts them by
    /// key.
    #[arg(long, help = "Drop units that would wait, instead of passing them on late", long_help)]
    pub(crate) drop: bool,
}

fn rule() -> impl TypedValueParser<Value = Rule> {
    OsStringValueParser::new().try_map(|text| {
        // A regular expression may look like an address.
        if Address::is_meant(before_pattern(text.as_bytes())) {
            return Err("this is a bucket, not a limit; write --bucket before it, and a limit like -r 5/s".to_owned());
        }
        match (foreign_flags::in_place_of_limit(&text), text.to_str()) {
            (Some(mistake), _) => Err(mistake),
            (None, Some(text)) => text.parse(),
            (None, None) => Err(ParseError::NotText(text.to_string_lossy().into_owned()).to_string()),
        }
    })
}

/// The part of a limit before the regular expression of `per=re:`, if it has one.
pub(super) fn before_pattern(limit: &[u8]) -> &[u8] {
    let pattern = memchr::memmem::find(limit, b",per=re:");
    pattern.map_or(limit, |place| &limit[..place])
}

/// The limits of a run, and the place that stores them.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// The bucket that stores the limits. Limits on the command line must agree with it. `None`: this run alone stores
    /// the limits of the command line.
    pub(crate) bucket: Option<Bucket>,
    /// The limits of the command line; `None` if only the bucket has limits, or if there are none.
    pub(crate) named: Option<Grouped>,
}

impl Limits {
    /// The limits of a stream. With -r and without --bucket, the stream has private limits. Then `THROTTLE_BUCKET` is
    /// ignored: it may be set for other scripts, and must not change the meaning of this one.
    ///
    /// # Errors
    /// The limits or the bucket are wrong, or there is no limit.
    pub(crate) fn of_stream(
        flags: &LimitFlags,
        shared: &SharedFlags,
        command: &[OsString],
        launch: &LaunchFlags,
        environment: &Environment,
    ) -> Result<Self, String> {
        let is_private = shared.bucket.is_none() && !flags.rate.is_empty();
        let bucket = if is_private { None } else { Bucket::named(shared, environment)? };
        if bucket.is_some() {
            return Ok(Limits { bucket, named: Grouped::for_bucket(&flags.rate, flags.burst, false)? });
        }
        if shared.on_store_error.is_some() {
            let or = if is_private { " (with -r, THROTTLE_BUCKET is not used)" } else { ", or THROTTLE_BUCKET=NAME" };
            return Err(format!("--on-store-error needs a bucket on a server; name the bucket: --bucket NAME{or}"));
        }
        let mut named = Grouped::new(&flags.rate, flags.burst, false)?.ok_or_else(|| without_rate(command, launch))?;
        named.jobs_without_keys().map_or(Ok(()), Err)?;
        named.leave_out_idle();
        Ok(Limits { bucket, named: Some(named) })
    }

    /// Checks that there are no limits, for one call without a bucket.
    ///
    /// # Errors
    /// A flag is about limits or a bucket.
    pub(crate) fn ensure_none(flags: &LimitFlags, shared: &SharedFlags) -> Result<(), String> {
        let is_given = [
            (!flags.rate.is_empty(), "--rate"),
            (flags.burst.is_some(), "--burst"),
            (shared.key.is_some(), "--key"),
            (shared.on_store_error.is_some(), "--on-store-error"),
        ];
        let given = is_given.into_iter().find(|(is_given, _)| *is_given);
        given.map_or(Ok(()), |(_, flag)| {
            Err(format!("{flag}: one call without a bucket has no limits; name a bucket, like --bucket NAME --once"))
        })
    }

    /// The policy of the command line.
    pub(crate) fn policy(&self) -> Policy {
        self.named.as_ref().map_or_else(|| Policy::unlimited(false), |named| named.policy.clone())
    }

    /// The limits that can never bind, whether they were left out or are in `policy`, the policy in force.
    pub(crate) fn idle(&self, policy: &Policy) -> impl Iterator<Item = Idle> {
        self.named.iter().flat_map(|named| named.idle.iter().cloned()).chain(idle_in(policy))
    }

    /// How to sort units under `policy`, the policy in force.
    ///
    /// # Errors
    /// A selector or a cost of `policy` cannot be parsed.
    pub(crate) fn sorting(&self, policy: &Policy, stream: Stream) -> Result<Sorting, String> {
        let (keys, Stream { ahead, runs, drop_after }) = (policy.of_keys(), stream);
        let is_shared = self.bucket.is_some();
        let is_sorted = keys.is_some() || policy.counts_jobs() || drop_after.is_some();
        // Units that all cost 1 need not be looked at.
        let look = if is_sorted || policy.has_costs() { look(policy) } else { Ok(Look::default()) };
        let (mut look, first) = (look?, policy.len());
        let named = self.named.as_ref().map(|named| named.named.clone()).unwrap_or_default();
        // Many keys share equal limits.
        let mut seen = HashSet::new();
        let named_limits = named.iter().map(|named| &named.each).filter(|each| seen.insert(Arc::as_ptr(each)));
        for (granted, kind) in named_limits.flat_map(|each| each.iter()) {
            let granted = (0..granted.len()).map(|place| granted.most_ever(place)).min().unwrap_or(u64::MAX);
            let limits = look.costs.iter().zip(&mut look.limits).skip(first);
            let counted = limits.filter(|(cost, _)| look.costs.get(*kind) == Some(cost));
            counted.for_each(|(_, (_, most))| *most = granted.max(*most));
        }
        // A bucket counts the commands of a key itself. A request to the bucket keeps its key.
        let jobs = keys.and_then(|keys| keys.jobs).filter(|_| !is_shared).unwrap_or(NonZeroU32::MAX);
        Ok(Sorting {
            look,
            each: keys.map(|keys| alone(&keys.each, first)).unwrap_or_default(),
            all: alone(policy, 0),
            named,
            jobs: (runs || is_shared).then_some(jobs),
            fails: keys.and_then(|keys| keys.fails),
            pace: None,
            max_wait: drop_after.map(in_nanos),
            ahead,
            has_keys: keys.is_some() || is_shared && policy.counts_jobs(),
            is_sorted,
            is_shared,
            found: None,
        })
    }

    /// The limits as a list of texts: the limits of the command line, or of `policy`, which the bucket stores.
    pub(crate) fn list(&self, policy: &Policy) -> Vec<String> {
        let Some(named) = &self.named else {
            if policy.is_unlimited() {
                return vec![policy.to_string()];
            }
            let keys = policy.of_keys().into_iter();
            let each = keys.flat_map(|keys| (0..keys.each.len()).map(|place| keys.describe(place)));
            return (0..policy.len()).map(|place| policy.describe(place)).chain(each).collect();
        };
        let burst = named.burst.map(|burst| format!("-b {burst}"));
        named.rules.iter().map(ToString::to_string).chain(burst).collect()
    }

    /// The limits as the user wrote them, or else `policy`, which the bucket stores.
    pub(crate) fn written(&self, policy: &Policy) -> String {
        self.named.as_ref().map_or_else(|| policy.to_string(), Grouped::written)
    }
}

/// The requirements of a run on the order of its units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// The most units that are read ahead while other units wait.
    pub(crate) ahead: usize,
    /// Whether a command runs for each unit.
    pub(crate) runs: bool,
    /// The longest wait of a unit. Units that would wait longer are dropped.
    pub(crate) drop_after: Option<Duration>,
}

/// Which parts of each unit the limits of `policy` need: its key, and its cost for each limit. The costs of limits for
/// all units come first, then the costs of limits for each key.
///
/// # Errors
/// A selector or a cost of `policy` cannot be parsed.
pub(crate) fn look(policy: &Policy) -> Result<Look, String> {
    let keys = policy.of_keys();
    let per = keys.map(|keys| keys.per.parse().map_err(|error| format!("per={} cannot be read: {error}", keys.per)));
    let policies = [policy].into_iter().chain(keys.map(|keys| &keys.each));
    let limits = policies.flat_map(|policy| (0..policy.len()).map(move |place| (policy, place)));
    let parsed = |cost: &str| cost.parse::<Cost>().map_err(|error| format!("cost={cost} cannot be read: {error}"));
    let costs = limits.clone().map(|(policy, place)| policy.cost(place).map(parsed).transpose());
    Ok(Look {
        per: per.transpose()?,
        costs: costs.collect::<Result<_, _>>()?,
        limits: limits.map(|(policy, place)| (policy.describe(place), policy.most_ever(place))).collect(),
    })
}

/// Each limit of `policy` as a policy of its own, and its index, counted from `first`.
fn alone(policy: &Policy, first: usize) -> Vec<(Policy, usize)> {
    let others = |place| (0..policy.len()).filter(|other| *other != place).collect::<Vec<_>>();
    (0..policy.len()).map(|place| (policy.without(&others(place)), first + place)).collect()
}

/// The time between two units of one key under `policy`; 0 if no limit applies.
pub(crate) fn interval(policy: &Policy) -> Duration {
    let paces = [Some(policy), policy.of_keys().map(|keys| &keys.each)].into_iter().flatten();
    let interval = |pace: Rate| Duration::from_nanos(pace.period().div_ceil(pace.units()));
    paces.filter_map(|policy| policy.of_units().pace()).map(interval).max().unwrap_or_default()
}

/// Refuses --bytes with a limit that needs whole units.
pub(crate) fn refuse_bytes(flags: &LimitFlags) -> Result<(), String> {
    match flags.rate.iter().find(|rule| rule.per.is_some() || rule.cost.is_some()) {
        Some(rule) => Err(format!("--bytes: '{rule}' needs whole units, not single bytes; leave --bytes out")),
        None => Ok(()),
    }
}

/// The message about a command line without a limit. `command` and `launch` describe the command.
fn without_rate(command: &[OsString], launch: &LaunchFlags) -> String {
    let is_rate = |word: &OsString| word.as_bytes().starts_with(b"-r") || word.as_bytes().starts_with(b"--rate");
    let what = if launch.shell.is_some() { "-c SCRIPT" } else { "COMMAND" };
    let how_fast = if command.iter().any(is_rate) {
        "options after the command are options of the command; write -r before it, like -r 5/s COMMAND"
    } else if let Some(jobs) = launch.jobs {
        return format!("--rate: how fast? to limit only the number of jobs, write -r unlimited -j {jobs} {what}");
    } else if command.is_empty() && launch.shell.is_none() {
        "write for example -r 5/s, -r 100/min or -r 10MiB/s; throttle -h shows more"
    } else {
        "write for example -r 5/s or -r 100/min, or -r unlimited for no limit; throttle -h shows more"
    };
    format!("--rate: how fast? {how_fast}")
}
