//! Rates and limits as users write them: `5/s`, `100/min`, `1.5GB/s`, `5000/h,window`, `10/s,burst=20,initial=0`.
//!
//! Values are validated once, here, and exact from then on: a [`Rate`] is a ratio of two integers. It prints as it was
//! written, and compares by its ratio.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

mod error;
mod meant;
mod number;
mod parse;

pub use error::ParseError;
pub use number::Amount;
pub(crate) use number::gcd;

use meant::Kind;

/// Nanoseconds in 100 years of 365 days: the longest time that one unit may take.
const MAX_NANOS_PER_UNIT: u128 = 100 * 365 * 86_400 * 1_000_000_000;

/// Units per period: an exact ratio of two 64-bit integers, units and nanoseconds.
///
/// As text it is `COUNT/TIME`, as in `5/s` or `3/15s`, or `COUNT` for a second. A count has up to 18 decimals. It may
/// end with `k`, `M`, `G`, or with a unit of bytes, from `B` to `TB` and from `KiB` to `TiB`. A time is one of `ns`,
/// `us`, `ms`, `s`, `min`, `h` or `d`, with a whole number before it unless that is 1. Text must mean at least one unit
/// in 100 years; [`Rate::per`] has no such bound.
///
/// ```
/// use throttle_limits::rate::Rate;
/// let rate: Rate = "0.5/s".parse()?;
/// assert_eq!(rate, "30/min".parse()?);
/// assert_eq!(rate.to_string(), "0.5/s");
/// # Ok::<(), throttle_limits::rate::ParseError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Rate {
    /// In lowest terms.
    units: u64,
    period: u64,
    /// The count and period as written, for a window of this rate.
    window: (NonZeroU64, NonZeroU64),
    /// The spelling; `None` if the rate was made from numbers.
    form: Option<Form>,
}

/// The spelling of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    count: Amount,
    per: Option<Per>,
}

/// The period after the slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Per {
    /// `15` in `3/15s`; `None` if there is no number.
    times: Option<NonZeroU64>,
    /// The unit of time, and its nanoseconds.
    name: &'static str,
    nanos: u64,
}

const SECOND: u64 = 1_000_000_000;

/// The units of time: the nanoseconds of each, and its names.
const TIME_UNITS: [(u64, &[&str]); 7] = [
    (1, &["ns"]),
    (SECOND / 1_000_000, &["us", "µs", "μs"]),
    (SECOND / 1_000, &["ms"]),
    (SECOND, &["s", "sec", "second", "seconds"]),
    (60 * SECOND, &["m", "min", "minute", "minutes"]),
    (3_600 * SECOND, &["h", "hr", "hour", "hours"]),
    (86_400 * SECOND, &["d", "day", "days"]),
];

impl Rate {
    /// `units` in every `period` nanoseconds. Every such ratio is a rate, and can be a constant.
    ///
    /// It prints in the usual spelling, or as a fraction if it has none; both can be parsed.
    ///
    /// ```
    /// use std::num::NonZeroU64;
    /// use throttle_limits::rate::Rate;
    /// const API: Rate = Rate::new(NonZeroU64::new(5000).unwrap(), NonZeroU64::new(3_600_000_000_000).unwrap());
    /// assert_eq!(API.to_string(), "5000/h");
    /// let eleven_a_week = Rate::new(NonZeroU64::MIN, NonZeroU64::new(54_981_818_181_818).unwrap());
    /// assert_eq!(eleven_a_week.to_string(), "1/54981818181818ns");
    /// ```
    #[doc(hidden)]
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "it divides both")]
    pub const fn new(units: NonZeroU64, period: NonZeroU64) -> Self {
        let divisor = gcd(units.get() as u128, period.get() as u128) as u64;
        Rate { units: units.get() / divisor, period: period.get() / divisor, window: (units, period), form: None }
    }

    /// `units` in every `period`. `None` if one of them is zero, or the period is longer than 584 years.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_limits::rate::Rate;
    /// const API: Rate = Rate::per(5, Duration::from_secs(1)).unwrap();
    /// assert_eq!(API, "5/s".parse()?);
    /// # Ok::<(), throttle_limits::rate::ParseError>(())
    /// ```
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "checked before; try_from is not const")]
    pub const fn per(units: u64, period: Duration) -> Option<Self> {
        let nanos = period.as_nanos();
        if nanos > u64::MAX as u128 {
            return None;
        }
        match (NonZeroU64::new(units), NonZeroU64::new(nanos as u64)) {
            (Some(units), Some(nanos)) => Some(Rate::new(units, nanos)),
            _ => None,
        }
    }

    /// The units in every [`period`](Self::period), in lowest terms.
    #[doc(hidden)]
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The period in nanoseconds, in lowest terms.
    #[doc(hidden)]
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period
    }

    /// The count, and the period in nanoseconds, as written but in whole numbers, for a window of this rate. `0.5/s` is
    /// 1 in two seconds, and `30/min` stays 30 in a minute.
    #[doc(hidden)]
    #[must_use]
    pub fn window(&self) -> (NonZeroU64, NonZeroU64) {
        self.window
    }

    /// Whether the count was written in bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn is_bytes(&self) -> bool {
        self.form.is_some_and(|form| form.count.is_bytes())
    }

    /// Whether the count was written in binary units of bytes, such as `MiB`.
    #[doc(hidden)]
    #[must_use]
    pub fn is_binary(&self) -> bool {
        self.form.is_some_and(|form| form.count.is_binary())
    }

    /// Whole units in `nanos` nanoseconds at this rate, rounded down, at least one.
    #[doc(hidden)]
    #[must_use]
    pub fn units_in(&self, nanos: u64) -> NonZeroU64 {
        let units = u128::from(self.units) * u128::from(nanos) / u128::from(self.period);
        NonZeroU64::new(u64::try_from(units).unwrap_or(u64::MAX)).unwrap_or(NonZeroU64::MIN)
    }

    /// Makes a rate from its spelling. `text` is the rate as written, for the error.
    fn from_form(form: Form, text: &str) -> Result<Self, ParseError> {
        let (units, parts) = form.count.ratio();
        let too_slow = || ParseError::TooSlow(text.to_owned());
        let nanos = |per: Per| u128::from(per.times.map_or(1, NonZeroU64::get)) * u128::from(per.nanos);
        let period = form.per.map_or(SECOND.into(), nanos).checked_mul(parts.into());
        let period = period.filter(|period| period / units <= MAX_NANOS_PER_UNIT).ok_or_else(too_slow)?;
        let whole = |value: u128| u64::try_from(value).ok().and_then(NonZeroU64::new);
        let units = whole(units).ok_or_else(|| ParseError::TooLarge(text.to_owned()))?;
        Ok(Rate { form: Some(form), ..Rate::new(units, whole(period).ok_or_else(too_slow)?) })
    }

    /// The spelling of this count in this period, with the largest unit that gives a whole number. `None` if that text
    /// is not a rate.
    fn spelling(&self) -> Option<Form> {
        let (units, period) = (self.window.0.get(), self.window.1.get());
        let unit = largest_unit(period)?;
        let times = NonZeroU64::new(period / unit.nanos).filter(|times| times.get() > 1);
        let is_rate = u128::from(period / units) <= MAX_NANOS_PER_UNIT;
        is_rate.then(|| Form { count: Amount::plain(units), per: Some(Per { times, ..unit }) })
    }

    /// Parses a rate that has no other spelling: `1/54981818181818ns`.
    fn from_fraction(text: &str) -> Option<Self> {
        let (units, period) = text.strip_suffix("ns")?.split_once('/')?;
        let number = |text: &str| text.parse().ok().filter(|_| !text.starts_with('+'));
        Some(Rate::new(number(units)?, number(period)?))
    }
}

/// One period of the unit of time with this name.
fn time_unit_named(text: &str) -> Option<Per> {
    TIME_UNITS.into_iter().find_map(|(nanos, names)| {
        let name = names.iter().find(|name| **name == text)?;
        Some(Per { times: None, name, nanos })
    })
}

/// The largest unit of `d h min s ms` in which a time is a whole number.
fn largest_unit(nanos: u64) -> Option<Per> {
    let mut time_units = ["d", "h", "min", "s", "ms"].into_iter().filter_map(time_unit_named);
    time_units.find(|unit| nanos.is_multiple_of(unit.nanos))
}

/// A duration in nanoseconds, at most 584 years.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(SECOND).saturating_add(duration.subsec_nanos().into())
}

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rate {}

impl Hash for Rate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.units, self.period).hash(state);
    }
}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A slower rate is less. Rates compare by their ratio, however they were written.
impl Ord for Rate {
    fn cmp(&self, other: &Self) -> Ordering {
        let (ours, theirs) = (u128::from(self.units), u128::from(other.units));
        (ours * u128::from(other.period)).cmp(&(theirs * u128::from(self.period)))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, period) = self.window;
        let Some(form) = self.form.or_else(|| self.spelling()) else { return write!(f, "{units}/{period}ns") };
        write!(f, "{}", form.count)?;
        let Some(Per { times, name, .. }) = form.per else { return Ok(()) };
        write!(f, "/{}{}", times.map_or_else(String::new, |times| times.to_string()), name)
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rate({self})")
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::Empty);
        }
        error::refuse_habits(Kind::Rate, text)?;
        if let Some(rate) = Rate::from_fraction(text) {
            return Ok(rate);
        }
        let (count, per) = text.split_once('/').map_or((text, None), |(count, per)| (count, Some(per)));
        let amount = parse::count(Kind::Rate, count, text)?;
        if amount.ratio().0 == 0 {
            return Err(ParseError::Zero(text.to_owned()));
        }
        let form = Form { count: amount, per: per.map(|per| parse_per(per, count, text)).transpose()? };
        if form.per.is_none() && form.count.is_ambiguous() {
            return Err(ParseError::LinesOrBytes(text.to_owned()));
        }
        Rate::from_form(form, text)
    }
}

/// The part after the slash: an integer or nothing, then a unit of time.
fn parse_per(per: &str, count: &str, whole: &str) -> Result<Per, ParseError> {
    let digits = per.len() - per.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (times, name) = per.split_at(digits);
    if name.starts_with(['.', ',']) {
        return Err(error::fractional_period(whole));
    }
    if !times.is_empty() && times.trim_start_matches('0').is_empty() {
        return Err(error::zero_period(whole, &error::instead(Kind::Rate, &format!("{count}/{name}"), "5/s")));
    }
    let unit = time_unit_named(name).ok_or_else(|| error::unknown_time_unit(whole, times, name))?;
    let too_slow = || ParseError::TooSlow(whole.to_owned());
    if times.starts_with('0') {
        return Err(error::leading_zero(Kind::Rate, whole).unwrap_or_else(too_slow));
    }
    let times = if times.is_empty() { None } else { Some(times.parse().map_err(|_| too_slow())?) };
    Ok(Per { times, ..unit })
}

/// One limit, as written after `--rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// A token bucket: `RATE[,burst=N][,initial=N]`.
    Bucket {
        /// The rate at which it fills.
        rate: Rate,
        /// Its size, if given. Without a size, the kind of this limit depends on the other limits: see
        /// [`Builder::limit`](crate::limiter::Builder::limit).
        burst: Option<Amount>,
        /// The units that it holds at the start; full if not given.
        initial: Option<Amount>,
    },
    /// Never more than the count in any period: `RATE,window[,initial=N][,slack=TIME]`.
    Window {
        /// Count and period, see [`Rate::window`].
        rate: Rate,
        /// The units of the count that are free at the start; all of them if not given. The rest counts as granted at
        /// the start.
        initial: Option<Amount>,
        /// How long a unit still counts after the period, if given; in text, at most the period.
        slack: Option<Duration>,
    },
    /// No limit at all.
    Unlimited,
}

impl Limit {
    /// The rate, unless unlimited.
    #[doc(hidden)]
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        match self {
            Limit::Bucket { rate, .. } | Limit::Window { rate, .. } => Some(*rate),
            Limit::Unlimited => None,
        }
    }

    /// Parses a limit from bytes, which may be invalid text.
    ///
    /// # Errors
    /// [`ParseError`] if the bytes are not UTF-8 or are not a limit. The second error shows a right spelling.
    #[doc(hidden)]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => text.parse(),
            Err(_) => Err(ParseError::NotText(String::from_utf8_lossy(bytes).into_owned())),
        }
    }
}

impl FromStr for Limit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "unlimited" {
            return Ok(Limit::Unlimited);
        }
        if text.starts_with("unlimited") {
            return Err(ParseError::UnlimitedAlone(text.to_owned()));
        }
        error::refuse_spaces_between_keys(text)?;
        error::refuse_commas_in_numbers(text)?;
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let keys: Vec<&str> = parts.collect();
        let rate: Rate = first.parse()?;
        parse_keys(rate, &keys)
    }
}

fn parse_keys(rate: Rate, keys: &[&str]) -> Result<Limit, ParseError> {
    let (mut burst, mut initial, mut slack, mut window) = (None, None, None, false);
    for &key in keys {
        match key.split_once('=') {
            Some((name @ "burst", value)) => set_once(&mut burst, name, parse_size(name, value, &rate)?)?,
            Some((name @ "initial", value)) => set_once(&mut initial, name, parse_size(name, value, &rate)?)?,
            Some((name @ "slack", value)) => set_once(&mut slack, name, parse_slack(value, &rate)?)?,
            None if key == "window" && !window => window = true,
            _ => return Err(error::unknown_key(&rate, key)),
        }
    }
    match (window, burst, initial) {
        (true, Some(burst), _) => Err(ParseError::Key(format!(
            "a window has no burst: all its units may go at once; write {rate},window or {rate},burst={}",
            if burst.value() == 0 { "1".to_owned() } else { burst.to_string() }
        ))),
        (true, None, Some(initial)) if initial.value() > rate.window().0.get() => Err(ParseError::Key(format!(
            "initial={initial} is more than the window allows; write at most initial={}",
            rate.window().0
        ))),
        (true, None, initial) => Ok(Limit::Window { rate, initial, slack }),
        (false, ..) if slack.is_some() => {
            Err(ParseError::Key(format!("slack= needs a window; write {rate},window,slack=TIME")))
        }
        (false, Some(burst), _) if burst.value() == 0 => {
            Err(ParseError::Key("burst=0 would let nothing through; the least is burst=1".to_owned()))
        }
        (false, Some(burst), Some(initial)) if initial.value() > burst.value() => Err(ParseError::Key(format!(
            "initial={initial} is more than burst={burst}, which is all the bucket holds; \
                 write at most initial={burst}"
        ))),
        (false, burst, initial) => Ok(Limit::Bucket { rate, burst, initial }),
    }
}

fn set_once<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<(), ParseError> {
    let example = if key == "slack" { "window,slack=50ms".to_owned() } else { format!("{key}=10") };
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => {
            Err(ParseError::Key(format!("{key} is given twice in one limit; write it once, like 5/s,{example}")))
        }
    }
}

/// The value of `burst` or `initial`.
fn parse_size(key: &str, value: &str, rate: &Rate) -> Result<Amount, ParseError> {
    let amount: Amount = value.parse().map_err(|error| ParseError::Key(format!("{key}: {error}")))?;
    if amount.is_bytes() && !rate.is_bytes() {
        return Err(ParseError::Key(format!(
            "{key}={value} is in bytes, but '{rate}' counts units; write {key}=N without a unit, or a rate like 10MiB/s"
        )));
    }
    Ok(amount)
}

/// The value of `slack`: 0, or a whole number and a unit of time.
fn parse_slack(value: &str, rate: &Rate) -> Result<Duration, ParseError> {
    let (times, name) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
    let unit = match (times, name) {
        ("0", "") => Some(1),
        _ => time_unit_named(name).map(|unit| unit.nanos),
    };
    let nanos = times.parse::<u64>().ok().zip(unit).and_then(|(times, unit)| times.checked_mul(unit));
    let period = rate.window().1.get();
    match nanos {
        None => Err(ParseError::Key(format!(
            "slack={value} is not a time in whole numbers; \
             write for example {rate},window,slack=50ms, or slack=0 for none"
        ))),
        Some(nanos) if nanos > period => Err(ParseError::Key(format!(
            "slack={value} is more than the period; write at most slack={}",
            written_time(period)
        ))),
        Some(nanos) => Ok(Duration::from_nanos(nanos)),
    }
}

/// A time in a form that can be parsed: `250ms`, `2min`, `0`.
pub(crate) fn written_time(nanos: u64) -> String {
    match largest_unit(nanos) {
        _ if nanos == 0 => "0".to_owned(),
        Some(unit) => format!("{}{}", nanos / unit.nanos, unit.name),
        None => format!("{nanos}ns"),
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Unlimited => write!(f, "unlimited"),
            Limit::Window { rate, initial, slack } => {
                write!(f, "{rate},window")?;
                initial.map_or(Ok(()), |initial| write!(f, ",initial={initial}"))?;
                slack.map_or(Ok(()), |slack| write!(f, ",slack={}", written_time(nanos(slack))))
            }
            Limit::Bucket { rate, burst, initial } => {
                write!(f, "{rate}")?;
                burst.map_or(Ok(()), |burst| write!(f, ",burst={burst}"))?;
                initial.map_or(Ok(()), |initial| write!(f, ",initial={initial}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
