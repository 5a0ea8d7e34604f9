//! The limits of a run: `--rate`, `--burst` and `--drop`.

use super::bucket::{Bucket, Environment, SharedFlags};
use super::foreign_flags;
use super::grouped::{Grouped, Idle, idle_in};
use super::launch::LaunchFlags;
use super::rule::Rule;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
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
    /// Let through at most this; repeat it for several limits at once.
    ///
    /// LIMIT is RATE[,burst=N][,initial=N] or RATE,window[,initial=N][,slack=TIME]; then [,per=SEL][,cost=COST][,else=N][,jobs=N][,fails=N]
    /// [,rates=FILE].
    ///
    /// RATE is COUNT[/[N]UNIT]: 5/s 100/min 3/15s 0.5/s 5k/h 2/500ms 1MiB/s 1.5GB/s, or unlimited.
    ///
    /// After the slash: ns, us, ms, s, min (m), h, d, with or without a whole number before it. Before it: k, M, G for a
    /// thousand, million, billion, or bytes: B kB MB GB TB, KiB MiB GiB TiB. A bare number, or a bare amount of bytes,
    /// is per second.
    ///
    /// burst=N: most units that may go at once after a pause (see --burst). initial=N: how many of them may go at the
    /// start; the default is all.
    ///
    /// window: never more than COUNT in any PERIOD, as strict servers count. The first COUNT may go at once; with
    /// initial=N only N, as if the others had just gone. A unit counts from the time it leaves; in a shared bucket, from the time it was granted. It counts for the PERIOD and
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
        // A regular expression may look like an address.
        if Address::is_meant(before_pattern(text.as_bytes())) {
            return Err("a bucket is named with --bucket, a limit is like 5/s".to_owned());
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
        launch: &LaunchFlags,
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
        let mut named = Grouped::new(&flags.rate, flags.burst)?.ok_or_else(|| without_rate(command, launch))?;
        named.jobs_without_keys().map_or(Ok(()), Err)?;
        named.leave_out_idle();
        Ok(Limits::Own(named))
    }

    /// No limits, for one call that needs none.
    ///
    /// # Errors
    /// Flags are about limits or a bucket.
    pub(crate) fn none(flags: &LimitFlags, shared: &SharedFlags) -> Result<Self, String> {
        let is_given = [
            (!flags.rate.is_empty(), "--rate"),
            (flags.burst.is_some(), "--burst"),
            (shared.key.is_some(), "--key"),
            (shared.on_store_error.is_some(), "--on-store-error"),
        ];
        if let Some((_, flag)) = is_given.into_iter().find(|(is_given, _)| *is_given) {
            return Err(format!("{flag}: one call by itself has no limits; name a bucket, like --bucket NAME --once"));
        }
        let unlimited = "unlimited".parse::<Rule>()?;
        Grouped::new(&[unlimited], None)?.map(Limits::Own).ok_or_else(String::new)
    }

    /// The same, to add what a file says.
    pub(crate) fn named_mut(&mut self) -> Option<&mut Grouped> {
        match self {
            Limits::Own(named) => Some(named),
            Limits::Shared(_, named) => named.as_mut(),
        }
    }

    /// The limits that were named; `None` if only the bucket knows them.
    pub(crate) fn named(&self) -> Option<&Grouped> {
        match self {
            Limits::Own(named) => Some(named),
            Limits::Shared(_, named) => named.as_ref(),
        }
    }

    /// The limits that can never bind. `policy` is in force.
    pub(crate) fn idle(&self, policy: &Policy) -> Vec<Idle> {
        match self {
            Limits::Own(named) => named.idle.clone(),
            Limits::Shared(..) => idle_in(policy).collect(),
        }
    }

    /// How units are sorted under `policy`, which is in force: if it keeps limits for each key, or counts commands that run,
    /// if units are dropped, or if commands may tell what they cost.
    ///
    /// # Errors
    /// What it keeps cannot be read.
    pub(crate) fn sorting(&self, policy: &Policy, stream: Stream) -> Result<Option<Sorting>, String> {
        let (keys, Stream { ahead, runs, settles, drop_after }) = (policy.of_keys(), stream);
        let is_shared = matches!(self, Limits::Shared(..));
        let settles = settles && policy.has_costs() && !is_shared;
        if keys.is_none() && !policy.counts_jobs() && drop_after.is_none() && !settles {
            return Ok(None);
        }
        let (mut look, first) = (look(policy)?, policy.len());
        let named = self.named().map(|named| named.named.clone()).unwrap_or_default();
        for (granted, kind) in named.iter().flat_map(|named| &named.each) {
            let granted = (0..granted.len()).map(|place| granted.most_ever(place)).min().unwrap_or(u64::MAX);
            let limits = look.costs.iter().zip(&mut look.limits).skip(first);
            let counted = limits.filter(|(cost, _)| look.costs.get(*kind) == Some(cost));
            counted.for_each(|(_, (_, most))| *most = granted.max(*most));
        }
        // A bucket counts the commands of a key itself. What it is asked for keeps its key.
        let jobs = keys.and_then(|keys| keys.jobs).filter(|_| !is_shared).unwrap_or(NonZeroU32::MAX);
        Ok(Some(Sorting {
            look,
            each: keys.map(|keys| alone(&keys.each, first)).unwrap_or_default(),
            all: alone(policy, 0),
            named,
            jobs: (runs || is_shared).then_some(jobs),
            fails: keys.and_then(|keys| keys.fails),
            max_wait: drop_after.map(in_nanos),
            ahead,
            shared: is_shared.then_some(first),
            counts_jobs: is_shared && policy.counts_jobs(),
            found: None,
        }))
    }

    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match self {
            Limits::Own(_) => None,
            Limits::Shared(bucket, _) => Some(bucket),
        }
    }

    /// The limits as a list of texts: those that the user wrote, or those of `policy`, which the bucket keeps.
    pub(crate) fn list(&self, policy: &Policy) -> Vec<String> {
        let Some(named) = self.named() else {
            let keys = policy.of_keys().into_iter();
            let each = keys.flat_map(|keys| (0..keys.each.len()).map(|place| keys.describe(place)));
            return (0..policy.len()).map(|place| policy.describe(place)).chain(each).collect();
        };
        let burst = named.burst.map(|burst| format!("-b {burst}"));
        named.rules.iter().map(ToString::to_string).chain(burst).collect()
    }

    /// The limits as the user wrote them, or `policy`, which the bucket keeps.
    pub(crate) fn written(&self, policy: &Policy) -> String {
        let join = |named: &Grouped| named.rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        self.named().map_or_else(|| policy.to_string(), join)
    }
}

/// What a run asks of the order of its units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// The most units that are read while others wait.
    pub(crate) ahead: usize,
    /// Whether commands run for them.
    pub(crate) runs: bool,
    /// Whether commands may tell what they really cost. Then those that wait for a limit with costs wait uncharged.
    pub(crate) settles: bool,
    /// Units that would wait longer are dropped.
    pub(crate) drop_after: Option<Duration>,
}

/// What the limits of `policy` want to know of each unit: its key, and what it costs each limit of all, then each limit of its
/// key.
///
/// # Errors
/// What cannot be read.
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

/// Each limit of `policy`, and its place behind `first` others.
fn alone(policy: &Policy, first: usize) -> Vec<(Policy, usize)> {
    let others = |place| (0..policy.len()).filter(|other| *other != place).collect::<Vec<_>>();
    (0..policy.len()).map(|place| (policy.without(&others(place)), first + place)).collect()
}

/// The time between two units of one key under `policy`; 0 if nothing limits it.
pub(crate) fn interval(policy: &Policy) -> Duration {
    let paces = [Some(policy), policy.of_keys().map(|keys| &keys.each)].into_iter().flatten();
    let interval = |pace: Rate| Duration::from_nanos(pace.period().div_ceil(pace.units()));
    paces.filter_map(|policy| policy.of_units().fastest()).map(interval).max().unwrap_or_default()
}

/// What is wrong with --bytes beside limits that need whole units.
pub(crate) fn refuse_bytes(flags: &LimitFlags) -> Result<(), String> {
    match flags.rate.iter().find(|rule| rule.per.is_some() || rule.cost.is_some()) {
        Some(rule) => Err(format!("--bytes: '{rule}' needs whole units, not single bytes; leave --bytes out")),
        None => Ok(()),
    }
}

/// What is wrong if no limit is named. `command` and `launch` are what is to be run.
fn without_rate(command: &[OsString], launch: &LaunchFlags) -> String {
    let is_rate = |word: &OsString| word.as_bytes().starts_with(b"-r") || word.as_bytes().starts_with(b"--rate");
    let what = if launch.shell.is_some() { "-c SCRIPT" } else { "COMMAND" };
    let how_fast = if command.iter().any(is_rate) {
        "options after the command are the command's; put -r before it, like -r 5/s COMMAND"
    } else if let Some(jobs) = launch.jobs {
        return format!("--rate: how fast? for no limit but the number of jobs write -r unlimited -j {jobs} {what}");
    } else if command.is_empty() && launch.shell.is_none() {
        "write for example -r 5/s, -r 100/min or -r 10MiB/s; throttle -h shows more"
    } else {
        "write for example -r 5/s or -r 100/min, or -r unlimited for no limit; throttle -h shows more"
    };
    format!("--rate: how fast? {how_fast}")
}
