//! The limits of a run: `--rate`, `--burst` and `--drop`.

use super::bucket::{Bucket, Environment, SharedFlags};
use super::foreign_flags;
use super::grouped::{Group, Grouped};
use super::rule::Rule;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use throttle::flow::cost::Cost;
use throttle::flow::{Look, Sorting};
use throttle_limits::limits::Policy;
use throttle_limits::rate::{Amount, ParseError, Rate};
use throttle_limits::store::Address;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limit")]
#[group(skip)]
pub(crate) struct LimitFlags {
    /// Let through at most this; repeat it for several limits at once.
    ///
    /// LIMIT is RATE[,burst=N][,initial=N] or RATE,window[,slack=TIME]; then [,per=SEL][,cost=COST][,else=N][,jobs=N][,fails=N]
    /// [,rates=FILE].
    ///
    /// RATE is COUNT[/[N]UNIT]: 5/s 100/min 3/15s 0.5/s 5k/h 2/500ms 1MiB/s 1.5GB/s, or unlimited.
    ///
    /// After the slash: ms, s, min (m), h, d, with or without a whole number before it. Before it: k, M, G for a
    /// thousand, million, billion, or bytes: B kB MB GB TB, KiB MiB GiB TiB. A bare number, or a bare amount of bytes,
    /// is per second.
    ///
    /// burst=N: most units that may go at once after a pause (see --burst). initial=N: how many of them may go at the
    /// start; the default is all.
    ///
    /// window: never more than COUNT in any PERIOD, as strict servers count. The first COUNT may go at once. A unit
    /// counts from the time it leaves; in a shared bucket, from the time it was granted. It counts for the PERIOD and
    /// slack, because units that leave together do not arrive together: PERIOD/20, at most 250ms; slack=0 is exact.
    ///
    /// Which limit fits which server: a log or a fixed window takes RATE,window. A token bucket (limit_req of nginx
    /// with burst=B) takes its rate, and -b one or two less than it lets through at once. A counter that estimates
    /// (HAProxy, sliding counters) takes 1 % less, without window: 99/10s for 100 in 10 s.
    ///
    /// Of several limits the fastest sets the pace; each other one that names no burst is a window. So -r 5/s -r 5000/h
    /// is up to 5 a second and never more than 5000 in any hour. Limits that differ in per or cost do not count as
    /// several: of each kind the fastest sets the pace.
    ///
    /// per=SEL: the limit holds for each value of SEL by itself. -r 1/s,per=host -r 50/s is at most one a second for
    /// each host, and 50 a second for all together. A run has one SEL. Units without it share one limit. Units of one
    /// value keep their order. Values that wait for the limits of all take turns, so that each gets an equal share: of
    /// tokens, if a limit of all counts those with cost=.
    ///
    /// SEL host is that of the first URL in the unit, in lower case, without user and port; without a URL it is b.org
    /// of a@b.org.
    ///
    /// SEL f2 is the second field; blanks separate fields, as in awk.
    ///
    /// SEL f2:X is the same, but each byte X separates fields: f2:; or f2:, or, for a tab, f2:\t.
    ///
    /// SEL /user/id is a value in a unit of JSON, a JSON Pointer (RFC 6901); a comma in it is \,.
    ///
    /// SEL re:REGEX is the first group of a regular expression that matches, or else the match; it comes last, since it
    /// takes all that follows.
    ///
    /// jobs=N beside per=SEL: at most N commands for one value at once. unlimited,per=host,jobs=2 limits nothing else. In a
    /// bucket these are the commands of all who use it, and without per=SEL, N is for all values together.
    ///
    /// fails=N beside per=SEL: after N commands for one value have failed in a row, its other units are not tried, and fail
    /// as such: unlimited,per=host,fails=3 does not wait 90 times for a host that is gone. All who use a bucket count
    /// together, and try the value again an hour after the last failure, or after --clear --key.
    ///
    /// rates=FILE beside per=SEL: lines of KEY LIMIT name values that have another limit than this one; blank lines, and
    /// lines that begin with #, count for nothing. The file is read once, before anything else.
    ///
    /// cost=COST: how much of the limit a unit takes, instead of 1: a number, 800; a field with a whole number in it,
    /// f3 or f3:X; a value in JSON, /max_tokens; bytes[/N], its bytes divided by N and rounded up; or a sum of these,
    /// /max_tokens+bytes/4+300 (a plus in a name of JSON is \+). 0 passes free. else=N is the cost of a unit whose own
    /// cannot be read; without it such a unit fails, and ends a pipe. -r 500/min
    /// -r 200k/min,burst=200k,cost=bytes/4+300 is for an API that counts requests and tokens.
    ///
    /// A unit that is looked into, for SEL or COST, may be 64 MiB long. bytes counts units of any length: a pipe passes
    /// one that outgrows its buffer at once, and those behind it wait until all of it is paid.
    #[arg(short, long, value_name = "LIMIT", allow_hyphen_values = true, value_parser = rule())]
    #[arg(help = "At most this: 5/s, 100/min, 10MiB/s; repeat for several", long_help)]
    pub(crate) rate: Vec<Rule>,

    /// Most units that may go at once after a pause, for the limit that sets the pace. With -r 5/s -b 10, ten units go
    /// at once, then one every 200 ms; after a pause of a second, five may go at once again.
    ///
    /// The default is 10 ms' worth of the rate, at least 1.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = |text: &str| text.parse::<Amount>())]
    #[arg(help = "Most at once after a pause [default: 10 ms of rate]", long_help)]
    pub(crate) burst: Option<Amount>,

    /// Pass on what conforms, and drop every unit that would wait longer than --max-wait (0 without it), so that a fast
    /// writer never waits for us: tail -F app.log | throttle -r 10/s,burst=50,per=/service --drop. A unit is dropped as
    /// soon as it is known that it cannot leave in time, also if --ahead units wait, or if the reader of the output
    /// stalls. How many units were dropped is said at most every 10 s and at the end; --summary=json counts them by key.
    #[arg(long, help = "Drop units that would wait, instead of passing them on late", long_help)]
    pub(crate) drop: bool,
}

fn rule() -> impl TypedValueParser<Value = Rule> {
    OsStringValueParser::new().try_map(|text| {
        if Address::is_meant(text.as_bytes()) {
            return Err("a bucket is named with --bucket, a limit is like 5/s".to_owned());
        }
        match (foreign_flags::in_place_of_limit(&text), text.to_str()) {
            (Some(mistake), _) => Err(mistake),
            (None, Some(text)) => text.parse(),
            (None, None) => Err(ParseError::NotText(text.to_string_lossy().into_owned()).to_string()),
        }
    })
}

/// Where the limits of a run are kept.
#[derive(Clone, Debug)]
pub(crate) enum Limits {
    /// In this run alone.
    Own(Grouped),
    /// In a bucket. Limits that were named must agree with it.
    Shared(Bucket, Option<Grouped>),
}

impl Limits {
    /// The limits of a stream. If it names limits, and no bucket, it has them for itself: `THROTTLE_BUCKET`, which is set
    /// for other scripts, does not change what a script does.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub(crate) fn of_stream(
        flags: &LimitFlags,
        shared: &SharedFlags,
        command: &[OsString],
        environment: &Environment,
    ) -> Result<Self, String> {
        let is_private = shared.bucket.is_none() && !flags.rate.is_empty();
        let bucket = if is_private { None } else { Bucket::named(shared, environment)? };
        if let Some(bucket) = bucket {
            let named = Grouped::for_bucket(&flags.rate, flags.burst)?;
            return Ok(Limits::Shared(bucket, named));
        }
        if shared.on_store_error.is_some() {
            let or = if is_private { " (with -r, THROTTLE_BUCKET is not used)" } else { ", or THROTTLE_BUCKET=NAME" };
            return Err(format!("--on-store-error is about a bucket on a server; name it: --bucket NAME{or}"));
        }
        let mut named = Grouped::new(&flags.rate, flags.burst)?.ok_or_else(|| without_rate(command).to_owned())?;
        named.jobs_without_keys().map_or(Ok(()), Err)?;
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

    /// The time between two units of one key; 0 if nothing limits it.
    pub(crate) fn interval(&self, policy: &Policy) -> Duration {
        let of_units = |groups: &[Group]| Policy::of_all(groups.iter().map(|group| &group.policy)).of_units().fastest();
        let paces = match self {
            Limits::Own(named) => [&named.all, &named.each].map(|groups| of_units(groups)),
            Limits::Shared(..) => {
                [policy.of_units().fastest(), policy.of_keys().and_then(|keys| keys.each.of_units().fastest())]
            }
        };
        let interval = |pace: Rate| Duration::from_nanos(pace.period().div_ceil(pace.units()));
        paces.into_iter().flatten().map(interval).max().unwrap_or_default()
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
    let costs = costs_of(policy)?;
    let limits = (0..policy.len()).map(|place| (policy.describe(place), policy.most_ever(place))).collect();
    Ok(Look { per: None, costs, limits })
}

/// What a unit costs each limit of `policy`.
fn costs_of(policy: &Policy) -> Result<Vec<Option<Cost>>, String> {
    let parsed = |cost: &str| cost.parse::<Cost>().map_err(|error| format!("cost={cost} cannot be read: {error}"));
    (0..policy.len()).map(|place| policy.cost(place).map(parsed).transpose()).collect()
}

/// How units are sorted that draw from a bucket which keeps limits for each key, or counts commands that run; `None` if it
/// keeps no such limits. `ahead` as in [`Grouped::sorting`].
///
/// # Errors
/// What the bucket keeps cannot be read.
pub(crate) fn sorting_of(policy: &Policy, ahead: usize) -> Result<Option<Sorting>, String> {
    if policy.of_keys().is_none() && !policy.counts_jobs() {
        return Ok(None);
    }
    let unlimited = Policy::default();
    let keys = policy.of_keys();
    let each = keys.map_or(&unlimited, |keys| &keys.each);
    let per = keys.map(|keys| keys.per.parse().map_err(|error| format!("per={} cannot be read: {error}", keys.per)));
    let alone = |policy: &Policy, first: usize| -> Vec<(Policy, usize)> {
        let others = |place| (0..policy.len()).filter(|other| *other != place).collect::<Vec<_>>();
        (0..policy.len()).map(|place| (policy.without(&others(place)), first + place)).collect()
    };
    let name = |policy: &Policy| {
        (0..policy.len()).map(|place| (policy.describe(place), policy.most_ever(place))).collect::<Vec<_>>()
    };
    Ok(Some(Sorting {
        look: Look {
            per: per.transpose()?,
            costs: [costs_of(policy)?, costs_of(each)?].concat(),
            limits: [name(policy), name(each)].concat(),
        },
        each: alone(each, policy.len()),
        all: alone(policy, 0),
        named: Vec::new(),
        // What the bucket is asked for keeps its key.
        jobs: Some(NonZeroU32::MAX),
        fails: keys.and_then(|keys| keys.fails),
        max_wait: None,
        ahead,
        shared: Some(policy.len()),
        counts_jobs: policy.counts_jobs(),
        found: None,
    }))
}

/// What is wrong with --bytes beside limits that look into units.
pub(crate) fn refuse_bytes(flags: &LimitFlags) -> Result<(), String> {
    match flags.rate.iter().find(|rule| rule.per.is_some() || rule.cost.is_some()) {
        Some(rule) => Err(format!("--bytes: '{rule}' needs whole units, not single bytes; leave --bytes out")),
        None => Ok(()),
    }
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
