//! Fills in the defaults of limits: the limit that paces, the windows, and the size of each burst.

mod resolved;

use crate::clock::{MILLISECOND, Nanos};
use crate::rate::{Amount, Limit, ParseError, Rate, nanos};
pub(crate) use resolved::Resolved;
use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

/// The default burst is the number of units that the rate admits in this time, in nanoseconds, but at least 1.
const DEFAULT_BURST: u64 = 10 * MILLISECOND;

/// The longest default slack of a window.
const MAX_DEFAULT_SLACK: Nanos = 250 * MILLISECOND;

/// The policies without any limit, as text: for units, and for bytes.
const UNLIMITED: [&str; 2] = ["unlimited", "unlimited,bytes"];

/// The text between a limit and its cost.
const COST: &str = ",cost=";

/// The prefixes of the lines of a policy that are not limits.
const PER: &str = "per=";
const JOBS: &str = "jobs=";
const FAILS: &str = "fails=";

/// Limits with every default filled in. The default has no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shared", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "shared", serde(into = "String", try_from = "String"))]
pub struct Policy {
    limits: Vec<Resolved>,
    counts_bytes: bool,
    /// The cost of a unit in the limits at these indexes, as text in the program's syntax. The other limits count
    /// units.
    costs: BTreeMap<usize, String>,
    keys: Option<Box<OfKeys>>,
    jobs: Option<NonZeroU32>,
    /// Whether the policy says that there is no limit. Otherwise a policy without limits is not known yet.
    is_unlimited: bool,
}

/// The limits of each single key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfKeys {
    /// The selector of the key of a unit, as text in the program's syntax.
    pub per: String,
    /// The limits of each key.
    pub each: Policy,
    /// The most commands of one key that run at once.
    pub jobs: Option<NonZeroU32>,
    /// After this many failed commands of a key in a row, its other units are not tried.
    pub fails: Option<NonZeroU32>,
}

/// Limits that contradict each other. It is a text for people: the variants are hidden, and any release may change them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The list of limits is empty.
    #[doc(hidden)]
    None,
    /// `unlimited` was given together with another limit or a burst.
    #[doc(hidden)]
    UnlimitedAlone,
    /// Limits in bytes and in units were given together: a pipe counts only one of them.
    #[doc(hidden)]
    BytesBesideUnits {
        /// The limit in bytes.
        bytes: String,
        /// The limit in units.
        units: String,
    },
    /// A separate burst was given, but the pacing limit already has one.
    #[doc(hidden)]
    BurstTwice(String),
    /// A separate burst was given, but the pacing limit is a window.
    #[doc(hidden)]
    BurstOnWindow(String),
    /// A burst of 0.
    #[doc(hidden)]
    ZeroBurst,
    /// The burst is in bytes, but the rate is in units.
    #[doc(hidden)]
    BurstInBytes(String),
    /// The slack is longer than the period of its window.
    #[doc(hidden)]
    SlackAbovePeriod(String),
    /// More units of a window would be free at the start than its count.
    #[doc(hidden)]
    InitialAboveCount {
        /// The units that should be free at the start.
        initial: u64,
        /// The count.
        count: u64,
    },
    /// The bucket would hold more at the start than its burst.
    #[doc(hidden)]
    InitialAboveBurst {
        /// The units that it should hold at the start.
        initial: u64,
        /// The most units that it can hold.
        burst: u64,
    },
}

messages! {
    PolicyError {
        PolicyError::None => ("no limit; write for example 5/s, or unlimited"),
        PolicyError::UnlimitedAlone => ("unlimited cannot be combined with a burst or another limit"),
        PolicyError::BytesBesideUnits { bytes, units } => (
            "'{bytes}' counts bytes and '{units}' counts units; write limits of one kind"
        ),
        PolicyError::BurstTwice(text) => ("the pacing limit '{text}' already has a burst; write it once"),
        PolicyError::BurstOnWindow(text) => (
            "the pacing limit '{text}' is a window, which has no burst; write it without ,window"
        ),
        PolicyError::ZeroBurst => ("a burst of 0 would let nothing through; the least is 1"),
        PolicyError::BurstInBytes(text) => (
            "a burst of '{text}' is in bytes, but the limit counts units; write a number without a unit"
        ),
        PolicyError::SlackAbovePeriod(text) => ("the slack of '{text}' is more than its period; write a shorter one"),
        PolicyError::InitialAboveCount { initial, count } => (
            "initial={initial} is more than the window allows; write at most initial={count}"
        ),
        PolicyError::InitialAboveBurst { initial, burst } => (
            "initial={initial} is more than the burst of {burst}, which is all the bucket holds; write burst={initial},initial={initial}"
        ),
    }
}

impl Policy {
    /// Fills in the defaults of `limits`. The limit with the shortest period paces; among equal periods it is the
    /// slowest limit. The pacing limit is a bucket of `burst` units, unless it has its own burst. Every other limit
    /// without a burst is a window.
    ///
    /// ```
    /// use throttle_limits::limits::Policy;
    /// let policy = Policy::new(&["5/s".parse()?, "5000/h".parse()?], None)?;
    /// assert_eq!(policy.to_string(), "5/s,burst=1 and 5000/h,window,slack=0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PolicyError`] names the contradiction.
    pub fn new(limits: &[Limit], burst: Option<Amount>) -> Result<Self, PolicyError> {
        Policy::filled_in(limits, burst, |_| 0)
    }

    /// Like [`new`](Self::new), for units that travel to a server before it counts them. The default slack of a window
    /// is a twentieth of its period, at most 250 ms. A limit that is a window only because another limit paces has less
    /// slack if it would otherwise be slower than the pacing limit, although its rate is not.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_slack(limits: &[Limit], burst: Option<Amount>) -> Result<Self, PolicyError> {
        Policy::filled_in(limits, burst, |rate| (rate.window().1.get() / 20).min(MAX_DEFAULT_SLACK))
    }

    fn filled_in(
        limits: &[Limit],
        burst: Option<Amount>,
        default_slack: fn(&Rate) -> Nanos,
    ) -> Result<Self, PolicyError> {
        match limits {
            [] => return Err(PolicyError::None),
            [Limit::Unlimited] if burst.is_none() => return Ok(Policy::unlimited(false)),
            _ => {}
        }
        let rates: Option<Vec<Rate>> = limits.iter().map(Limit::rate).collect();
        let rates = rates.ok_or(PolicyError::UnlimitedAlone)?;
        one_kind(&rates)?;
        let pacing = pacing(&rates);
        let paced = rates[pacing];
        let is_bucket = matches!(limits[pacing], Limit::Bucket { .. });
        let slack = |limit: &Limit, rate: &Rate| {
            let is_implied = is_bucket && matches!(limit, Limit::Bucket { .. });
            let spare = if is_implied { spare_time(rate, &paced) } else { None };
            default_slack(rate).min(spare.unwrap_or(Nanos::MAX))
        };
        let limits = limits.iter().enumerate();
        let limits = limits.map(|(place, limit)| resolve(limit, place == pacing, burst, slack));
        let limits = limits.collect::<Result<_, _>>()?;
        Ok(Policy { limits, counts_bytes: rates[0].is_bytes(), ..Policy::default() })
    }

    /// No limit at all, for bytes or for units.
    pub fn unlimited(counts_bytes: bool) -> Self {
        Policy { counts_bytes, is_unlimited: true, ..Policy::default() }
    }

    /// Whether the policy says that there is no limit.
    pub fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    /// This policy with limits for each single key.
    #[must_use]
    pub fn with_keys(self, keys: OfKeys) -> Self {
        Policy { keys: Some(Box::new(keys)), ..self }
    }

    /// The limits of each single key, if there are any.
    pub fn of_keys(&self) -> Option<&OfKeys> {
        self.keys.as_deref()
    }

    /// This policy with a limit on the number of running commands.
    #[must_use]
    pub fn with_jobs(self, jobs: Option<NonZeroU32>) -> Self {
        Policy { jobs, ..self }
    }

    /// Whether running commands are counted.
    pub fn counts_jobs(&self) -> bool {
        self.jobs.is_some() || self.keys.as_ref().is_some_and(|keys| keys.jobs.is_some())
    }

    /// The most running commands of all keys together.
    pub fn jobs(&self) -> Option<NonZeroU32> {
        self.jobs
    }

    /// The limits of all `policies`, in their order.
    pub fn of_all<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Self {
        policies.into_iter().fold(Policy::default(), |mut joined, policy| {
            let first = joined.len();
            joined.limits.extend(&policy.limits);
            joined.costs.extend(policy.costs.iter().map(|(place, cost)| (first + place, cost.clone())));
            joined.counts_bytes |= policy.counts_bytes;
            joined.is_unlimited |= policy.is_unlimited;
            joined
        })
    }

    /// This policy with `cost` as the cost of a unit in each limit. The text is stored and compared here, but only the
    /// program parses it.
    #[must_use]
    pub fn counting(mut self, cost: &str) -> Self {
        self.costs = (0..self.len()).map(|place| (place, cost.to_owned())).collect();
        self
    }

    /// The cost of a unit in the limit at `place`; `None` if the limit counts each unit as 1.
    pub fn cost(&self, place: usize) -> Option<&str> {
        self.costs.get(&place).map(String::as_str)
    }

    /// Whether some limit has a cost other than 1 for each unit.
    pub fn has_costs(&self) -> bool {
        !self.costs.is_empty()
    }

    /// Whether units that were priced under `other` can be granted under this policy: they count the same, or nothing
    /// limits them now.
    pub(crate) fn counts_like(&self, other: &Policy) -> bool {
        if self.is_unlimited && other.keys.is_none() && other.jobs.is_none() {
            return self.counts_bytes == other.counts_bytes;
        }
        let is_same_kind = self.counts_bytes == other.counts_bytes && self.costs == other.costs;
        let have_same_keys = match (&self.keys, &other.keys) {
            (Some(keys), Some(others)) => keys.per == others.per && keys.each.counts_like(&others.each),
            (None, None) => true,
            _ => false,
        };
        // A unit has costs in the overall limits, followed by costs in the limits of its key.
        let has_costs = self.has_costs() || self.keys.as_ref().is_some_and(|keys| keys.each.has_costs());
        is_same_kind
            && have_same_keys
            && self.counts_jobs() == other.counts_jobs()
            && (!has_costs || self.len() == other.len())
    }

    /// The same limits with a cost of 1 for each unit.
    #[must_use]
    pub fn without_costs(&self) -> Self {
        Policy { costs: BTreeMap::new(), ..self.clone() }
    }

    /// The limits that count each unit as 1.
    #[must_use]
    pub fn of_units(&self) -> Self {
        self.without(&self.costs.keys().copied().collect::<Vec<_>>())
    }

    /// Whether the rates were written in bytes.
    pub fn counts_bytes(&self) -> bool {
        self.counts_bytes
    }

    /// The number of limits; 0 if unlimited.
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Whether nothing is known about the limits: there is none overall, for each key, or on running commands, and the
    /// policy is not [unlimited](Self::unlimited) either.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.keys.is_none() && self.jobs.is_none() && !self.is_unlimited
    }

    /// The limit at `place` and its cost, as a user would write it, with its defaults.
    pub fn describe(&self, place: usize) -> String {
        let cost = self.cost(place).map_or_else(String::new, |cost| format!("{COST}{cost}"));
        self.limits.get(place).map_or_else(String::new, |limit| format!("{limit}{cost}"))
    }

    /// Whether a limit was written in binary units of bytes, such as `MiB`.
    #[doc(hidden)]
    pub fn is_binary(&self) -> bool {
        self.limits.iter().any(|limit| limit.rate().is_binary())
    }

    /// Whether the limit at `place` has a burst: it is a bucket, not a window.
    #[doc(hidden)]
    pub fn has_burst(&self, place: usize) -> bool {
        matches!(self.limits.get(place), Some(Resolved::Bucket { .. }))
    }

    /// The rate of the limit that paces; `None` if unlimited.
    pub fn pace(&self) -> Option<Rate> {
        let rates: Vec<Rate> = self.limits.iter().map(Resolved::rate).collect();
        rates.get(pacing(&rates)).copied()
    }

    /// The smallest run that is worth a wake-up: 1 ms' worth of the slowest rate, and at most the smallest burst or
    /// window.
    pub fn quantum(&self) -> u64 {
        let of = |limit: &Resolved| limit.rate().units_in(MILLISECOND).get().min(limit.at_once());
        self.limits.iter().map(of).min().unwrap_or(u64::MAX)
    }

    /// The time between two units at the rate that paces, in nanoseconds; 0 if nothing limits them.
    pub(crate) fn interval(&self) -> Nanos {
        self.of_units().pace().map_or(0, |rate| rate.period().div_ceil(rate.units()))
    }

    /// The most units that may be granted at one instant.
    pub fn at_once(&self) -> u64 {
        self.limits.iter().map(Resolved::at_once).min().unwrap_or(u64::MAX)
    }

    /// The limits that never bind, because another limit is always stricter, with the slack of windows included. Each
    /// item is the index of such a limit, and the index of the stricter limit.
    pub fn never_bind(&self) -> impl Iterator<Item = (usize, usize)> {
        // If two limits are equal, the later one never binds.
        let is_idle = |idle: usize, other: usize| {
            let (idle_limit, other_limit) = (&self.limits[idle], &self.limits[other]);
            self.cost(idle) == self.cost(other)
                && idle_limit.allows_all_of(other_limit)
                && (idle > other || !other_limit.allows_all_of(idle_limit))
        };
        let stricter = move |idle: usize| (0..self.len()).find(|other| *other != idle && is_idle(idle, *other));
        (0..self.len()).filter_map(move |idle| Some((idle, stricter(idle)?)))
    }

    /// This policy without the limits at these indexes.
    #[must_use]
    pub fn without(&self, places: &[usize]) -> Self {
        let kept: Vec<usize> = (0..self.len()).filter(|place| !places.contains(place)).collect();
        let cost = |(place, kept)| Some((place, self.cost(kept)?.to_owned()));
        Policy {
            limits: kept.iter().map(|place| self.limits[*place]).collect(),
            counts_bytes: self.counts_bytes,
            costs: kept.iter().copied().enumerate().filter_map(cost).collect(),
            ..Policy::default()
        }
    }

    /// This policy with its limits in the order of these indexes, each of which is given once.
    pub(super) fn in_order(&self, places: &[usize]) -> Self {
        let cost = |(place, from)| Some((place, self.cost(from)?.to_owned()));
        Policy {
            limits: places.iter().filter_map(|place| self.limits.get(*place).copied()).collect(),
            costs: places.iter().copied().enumerate().filter_map(cost).collect(),
            ..self.clone()
        }
    }

    /// The most units that the limit at `place` admits in one of its periods, and that period in nanoseconds.
    ///
    /// (0, 0) if there is no such limit.
    pub fn most_in_its_period(&self, place: usize) -> (u128, u64) {
        self.limits.get(place).map_or((0, 0), |limit| {
            let period = limit.rate().window().1.get();
            (limit.most_in(period), period)
        })
    }

    /// The most units in a single grant of the limit at `place`: a window's count.
    pub fn most_ever(&self, place: usize) -> u64 {
        if let Some(Resolved::Window { rate, .. }) = self.limits.get(place) { rate.window().0.get() } else { u64::MAX }
    }

    /// The units that the limit at `place` admits in `time` nanoseconds, at least 1.
    pub fn lets_through(&self, place: usize, time: Nanos) -> u64 {
        self.limits.get(place).map_or(u64::MAX, |limit| limit.rate().units_in(time).get())
    }

    /// The same limits, if every unit counts as `parts`.
    pub(super) fn in_parts(&self, parts: NonZeroU64) -> Result<Self, ParseError> {
        let in_parts = |limit: &Resolved| limit.in_parts(parts).ok_or_else(|| ParseError::TooLarge(limit.to_string()));
        let limits = self.limits.iter().map(in_parts).collect::<Result<_, _>>()?;
        Ok(Policy { limits, ..self.clone() })
    }

    pub(crate) fn limits(&self) -> &[Resolved] {
        &self.limits
    }

    /// The limits as a user would write them, with their defaults, one per line. The limits of each key follow a line
    /// with the selector of keys.
    pub(crate) fn to_lines(&self) -> String {
        let mut lines: Vec<String> = (0..self.len()).map(|place| self.describe(place)).collect();
        lines.extend(self.shown_unlimited().map(str::to_owned));
        lines.extend(self.jobs.map(|jobs| format!("{JOBS}{jobs}")));
        if let Some(OfKeys { per, each, jobs, fails }) = self.of_keys() {
            lines.push(format!("{PER}{per}"));
            lines.extend(jobs.map(|jobs| format!("{JOBS}{jobs}")));
            lines.extend(fails.map(|fails| format!("{FAILS}{fails}")));
            lines.extend((0..each.len()).map(|place| each.describe(place)));
        }
        lines.join("\n")
    }

    /// All limits as a user would write them, with their defaults.
    fn described(&self) -> Vec<String> {
        let mut all: Vec<String> = (0..self.len()).map(|place| self.describe(place)).collect();
        all.extend(self.shown_unlimited().map(str::to_owned));
        all.extend(self.jobs.map(|jobs| format!("unlimited,{JOBS}{jobs}")));
        if let Some(keys) = self.of_keys() {
            let of_key = |place| keys.describe(place);
            all.extend((0..keys.each.len().max(1)).map(of_key));
        }
        all
    }

    fn shown_unlimited(&self) -> Option<&'static str> {
        self.is_unlimited.then(|| UNLIMITED[usize::from(self.counts_bytes)])
    }

    /// The number of limits that are windows.
    pub(crate) fn windows(&self) -> usize {
        self.limits.iter().filter(|limit| matches!(limit, Resolved::Window { .. })).count()
    }

    /// Parses the result of [`to_lines`](Self::to_lines); `None` for any other text.
    pub(crate) fn from_lines(lines: &str) -> Option<Self> {
        if let Some(kind) = UNLIMITED.iter().position(|text| *text == lines) {
            return Some(Policy::unlimited(kind == 1));
        }
        let (mut policy, mut lines) = (Policy::default(), lines.split('\n').peekable());
        let mut limits = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with(PER)) {
            match line.strip_prefix(JOBS) {
                Some(jobs) => policy.jobs = Some(jobs.parse().ok()?),
                None => limits.push(line),
            }
        }
        let policy = Policy { jobs: policy.jobs, ..Policy::of_lines(&limits)? };
        let Some(per) = lines.next() else { return Some(policy).filter(|policy| !policy.is_empty()) };
        let per = per[PER.len()..].to_owned();
        let jobs = lines.next_if(|line| line.starts_with(JOBS)).map(|line| line[JOBS.len()..].parse());
        let fails = lines.next_if(|line| line.starts_with(FAILS)).map(|line| line[FAILS.len()..].parse());
        let each = Policy::of_lines(&lines.collect::<Vec<_>>())?;
        Some(policy.with_keys(OfKeys { per, each, jobs: jobs.transpose().ok()?, fails: fails.transpose().ok()? }))
    }

    /// Parses limits, one per line.
    fn of_lines(lines: &[&str]) -> Option<Self> {
        if lines.is_empty() {
            return Some(Policy::default());
        }
        let parts = || {
            lines.iter().map(|line| line.split_once(COST).map_or((*line, None), |(limit, cost)| (limit, Some(cost))))
        };
        let limits: Result<Vec<Limit>, _> = parts().map(|(limit, _)| limit.parse()).collect();
        let costs = parts().enumerate().filter_map(|(place, (_, cost))| Some((place, cost?.to_owned())));
        Some(Policy { costs: costs.collect(), ..Policy::new(&limits.ok()?, None).ok()? })
    }
}

impl OfKeys {
    /// The limit at `place`, as a user would write it, with its defaults. The first limit also shows the settings that
    /// are not limits.
    pub fn describe(&self, place: usize) -> String {
        let OfKeys { per, each, jobs, fails } = self;
        let first = |text: &str, number: &Option<NonZeroU32>| {
            number.filter(|_| place == 0).map_or_else(String::new, |number| format!(",{text}{number}"))
        };
        let limit = if each.is_empty() { "unlimited".to_owned() } else { each.describe(place) };
        format!("{limit}{}{},{PER}{per}", first(JOBS, jobs), first(FAILS, fails))
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> Self {
        policy.to_lines()
    }
}

impl TryFrom<String> for Policy {
    type Error = &'static str;

    fn try_from(lines: String) -> Result<Self, Self::Error> {
        Policy::from_lines(&lines).ok_or("this is not a policy")
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&if self.is_empty() { "unlimited".to_owned() } else { self.described().join(" and ") })
    }
}

fn one_kind(rates: &[Rate]) -> Result<(), PolicyError> {
    let written = |is_bytes| rates.iter().find(|rate| rate.is_bytes() == is_bytes).map(Rate::to_string);
    match (written(true), written(false)) {
        (Some(bytes), Some(units)) => Err(PolicyError::BytesBesideUnits { bytes, units }),
        _ => Ok(()),
    }
}

/// The index of the rate that paces: the rate with the shortest period. Among equal periods, the slowest rate wins, then
/// the first.
pub(super) fn pacing(rates: &[Rate]) -> usize {
    let key = |place: &usize| (rates[*place].window().1, rates[*place], *place);
    (0..rates.len()).min_by_key(key).unwrap_or(0)
}

/// The longest slack with which a window of `rate` is still no slower than `paced`, in nanoseconds. `None` if it is
/// slower without any slack.
fn spare_time(rate: &Rate, paced: &Rate) -> Option<Nanos> {
    let (count, period) = rate.window();
    // The product of two 64-bit numbers fits.
    let time = u128::from(count.get()) * u128::from(paced.period()) / u128::from(paced.units());
    let spare = time.checked_sub(period.get().into())?;
    (rate >= paced).then(|| Nanos::try_from(spare).unwrap_or(Nanos::MAX))
}

fn resolve(
    limit: &Limit,
    paces: bool,
    option: Option<Amount>,
    default_slack: impl Fn(&Limit, &Rate) -> Nanos,
) -> Result<Resolved, PolicyError> {
    let (rate, burst, initial) = match *limit {
        Limit::Unlimited => return Err(PolicyError::UnlimitedAlone),
        Limit::Window { rate, .. } if paces && option.is_some() => {
            return Err(PolicyError::BurstOnWindow(rate.to_string()));
        }
        Limit::Window { rate, initial, slack } => {
            let slack = slack.map_or_else(|| default_slack(limit, &rate), nanos);
            if slack > rate.window().1.get() {
                return Err(PolicyError::SlackAbovePeriod(limit.to_string()));
            }
            let count = rate.window().0.get();
            let used = match initial.map_or(count, |initial| initial.value()) {
                initial if initial > count => return Err(PolicyError::InitialAboveCount { initial, count }),
                initial => count - initial,
            };
            return Ok(Resolved::Window { rate, used, slack });
        }
        Limit::Bucket { rate, burst, initial } => (rate, burst, initial),
    };
    let burst = match (burst, option) {
        (Some(_), Some(_)) if paces => return Err(PolicyError::BurstTwice(limit.to_string())),
        (None, Some(option)) if paces && option.is_bytes() && !rate.is_bytes() => {
            return Err(PolicyError::BurstInBytes(option.to_string()));
        }
        (None, Some(option)) if paces => NonZeroU64::new(option.value()).ok_or(PolicyError::ZeroBurst)?,
        (Some(burst), _) => NonZeroU64::new(burst.value()).ok_or(PolicyError::ZeroBurst)?,
        (None, _) if paces || initial.is_some() => rate.units_in(DEFAULT_BURST),
        (None, _) => return Ok(Resolved::Window { rate, used: 0, slack: default_slack(limit, &rate) }),
    };
    match initial.map_or(burst.get(), |initial| initial.value()) {
        initial if initial > burst.get() => Err(PolicyError::InitialAboveBurst { initial, burst: burst.get() }),
        initial => Ok(Resolved::Bucket { rate, burst, initial }),
    }
}

#[cfg(test)]
mod tests;
