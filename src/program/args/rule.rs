//! The value of `--rate`: a limit, the cost of a unit, and the selector of its key.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use throttle::flow::cost::Cost;
use throttle::flow::selector::Selector;
use throttle_limits::rate::Limit;

/// `LIMIT[,per=SEL][,cost=COST][,else=N][,jobs=N][,fails=N][,rates=FILE]`, or `unlimited,bytes`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) limit: Limit,
    /// Whether `unlimited` counts bytes.
    pub(crate) bytes: bool,
    /// The selector of the key. Each key has the limit separately.
    pub(crate) per: Option<Selector>,
    /// The cost of a unit; `None` is 1.
    pub(crate) cost: Option<Cost>,
    /// The most commands of one key that run at once.
    pub(crate) jobs: Option<NonZeroU32>,
    /// The number of consecutive failed commands of a key after which no more of its units start.
    pub(crate) fails: Option<NonZeroU32>,
    /// The file with the limits of some keys.
    pub(crate) rates: Option<PathBuf>,
}

/// The items of a rule, collected while they are read.
#[derive(Default)]
struct Items<'a> {
    /// The items of the limit itself.
    limit: Vec<&'a str>,
    bytes: bool,
    per: Option<Selector>,
    cost: Option<Cost>,
    otherwise: Option<u64>,
    jobs: Option<NonZeroU32>,
    fails: Option<NonZeroU32>,
    rates: Option<PathBuf>,
}

impl<'a> Items<'a> {
    /// Reads the first item of `list`, and returns the rest, which is empty or begins with a comma.
    fn read_first(&mut self, list: &'a str) -> Result<&'a str, String> {
        let (item, rest) = list.split_at(list.find(',').unwrap_or(list.len()));
        let about = |error: &dyn fmt::Display| format!("{item}: {error}");
        let Some((key, value)) = list.split_once('=').filter(|(key, _)| !key.contains(',')) else {
            match (&self.limit[..], item) {
                (["unlimited"], "bytes") if !self.bytes => self.bytes = true,
                ([], _) => {
                    refuse_time_of_day(item)?;
                    self.limit.push(item);
                }
                _ => {
                    self.refuse_unknown_key(item, item)?;
                    self.limit.push(item);
                }
            }
            return Ok(rest);
        };
        match key {
            "per" => {
                refuse_keys_in_pattern(value, &self.limit)?;
                let (selector, rest) = Selector::read(value).map_err(|error| about(&error))?;
                set_once(&mut self.per, selector, "per=host").map(|()| rest)
            }
            "cost" => {
                let (cost, rest) = Cost::read(value).map_err(|error| about(&error))?;
                set_once(&mut self.cost, cost, "cost=f3").map(|()| rest)
            }
            _ => self.read_plain(key, item).map(|()| rest),
        }
    }

    /// Reads an item whose value has no comma.
    fn read_plain(&mut self, key: &str, item: &'a str) -> Result<(), String> {
        let value = &item[key.len() + 1..];
        let about = |error: &dyn fmt::Display| format!("{item}: {error}");
        match key {
            "else" => {
                let otherwise = Cost::read_else(value).map_err(|error| about(&error))?;
                set_once(&mut self.otherwise, otherwise, "cost=f3,else=100")
            }
            "jobs" => {
                let why = "at least one command of a key must run; write for example per=host,jobs=2";
                set_once(&mut self.jobs, value.parse().map_err(|_| about(&why))?, "per=host,jobs=2")
            }
            "fails" => {
                let why = "the number of failures is at least 1; write for example per=host,fails=3";
                set_once(&mut self.fails, value.parse().map_err(|_| about(&why))?, "per=host,fails=3")
            }
            "rates" if value.is_empty() => Err(about(&"the name of the file is missing; write per=host,rates=FILE")),
            "rates" => set_once(&mut self.rates, value.into(), "per=host,rates=FILE"),
            _ => {
                self.refuse_unknown_key(key, item)?;
                self.limit.push(item);
                Ok(())
            }
        }
    }

    /// Calls [`refuse_unknown_key`] with the rate that was read before the key.
    fn refuse_unknown_key(&self, key: &str, item: &str) -> Result<(), String> {
        let rate = self.limit.first().copied().filter(|rate| rate.parse::<Limit>().is_ok());
        if TIME_OF_DAY_KEYS.contains(&key.to_lowercase().as_str()) {
            return Err(no_time_of_day(&format!("{},{item}", rate.unwrap_or("3/d")), rate.unwrap_or_default()));
        }
        refuse_unknown_key(key, item, rate.unwrap_or("5/s"))
    }

    fn into_rule(self, text: &str) -> Result<Rule, String> {
        let Items { limit, bytes, per, cost, otherwise, jobs, fails, rates } = self;
        if let (None, Some(fails)) = (&per, fails) {
            return Err(format!("fails={fails} needs a key; add per=host, or use --max-fail {fails}"));
        }
        if let (None, Some(rates)) = (&per, &rates) {
            return Err(format!("rates={} needs a key; add per=host", rates.display()));
        }
        let cost = match (cost, otherwise) {
            (None, Some(_)) => return Err("else= needs a cost; write for example cost=f3,else=100".to_owned()),
            (Some(cost), Some(otherwise)) => Some(cost.or_else(otherwise)?),
            (cost, None) => cost,
        };
        if limit.is_empty() && !text.is_empty() {
            return Err(format!("the rate is missing; write it first, like 5/s,{text}"));
        }
        let limit: Limit =
            limit.join(",").parse().map_err(|error: throttle_limits::rate::ParseError| error.to_string())?;
        let rule = Rule { limit, bytes, per, cost, jobs, fails, rates };
        rule.contradiction().map_or(Ok(rule), Err)
    }
}

impl Rule {
    /// The message if two parts of the rule contradict each other.
    fn contradiction(&self) -> Option<String> {
        let is_bytes = self.limit.rate().is_some_and(|rate| rate.is_bytes());
        let Rule { limit, bytes, per, cost, jobs, fails, rates } = self;
        match (limit, per, cost) {
            _ if *bytes && (per.is_some() || cost.is_some() || jobs.is_some()) => {
                Some("unlimited,bytes has no other parts; leave them out, or leave bytes out".to_owned())
            }
            (_, Some(per), _) if is_bytes => Some(format!(
                "'{limit}' counts bytes, but per= needs a limit in units; write for example 5/s,per={per}"
            )),
            (_, _, Some(_)) if is_bytes => Some(format!(
                "'{limit}' counts bytes, but cost= needs a limit in units; to count the bytes of units write \
                 10M/s,cost=bytes"
            )),
            (Limit::Unlimited, _, Some(_)) => {
                Some("unlimited takes no cost; write a rate, like 500/min,cost=f3".to_owned())
            }
            (Limit::Unlimited, ..) if rates.is_some() => Some(
                "rates= needs a rate for the keys that FILE does not name; write for example 1k/s,per=host,rates=FILE"
                    .to_owned(),
            ),
            (Limit::Unlimited, Some(per), None) if jobs.is_none() && fails.is_none() => {
                Some(format!("unlimited,per={per} limits nothing; write 1/s,per={per} or unlimited,jobs=2,per={per}"))
            }
            _ => None,
        }
    }
}

fn set_once<T>(slot: &mut Option<T>, value: T, example: &str) -> Result<(), String> {
    let key = example.rsplit(',').next().unwrap_or(example);
    let key = key.split('=').next().unwrap_or(key);
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} is given twice in one limit; write it once, like 5/s,{example}")),
    }
}

/// Keys with which other tools begin a period at a time of day.
const TIME_OF_DAY_KEYS: [&str; 9] =
    ["reset", "resets", "at", "align", "aligned", "calendar", "midnight", "start", "since"];

/// Refuses a rate with a time of day, such as `3/d@midnight`.
fn refuse_time_of_day(item: &str) -> Result<(), String> {
    let meant = item.split_once('@').filter(|(rate, _)| rate.starts_with(|first: char| first.is_ascii_digit()));
    meant.map_or(Ok(()), |(rate, _)| Err(no_time_of_day(item, rate)))
}

/// The message for a limit whose period begins at a time of day, with the way to get one: a job that refills a window.
fn no_time_of_day(text: &str, rate: &str) -> String {
    let right = match rate.parse::<Limit>() {
        Ok(limit @ Limit::Bucket { rate, burst: None, initial: None }) if !rate.is_bytes() => {
            format!("{limit},window,initial={}", rate.window().0)
        }
        _ => "3/d,window,initial=3".to_owned(),
    };
    format!(
        "'{text}': no period begins at a time of day; let a job of cron refill a bucket then, for example at midnight: \
         0 0 * * * throttle --bucket NAME --set -r {right}"
    )
}

/// Refuses keys after `per=re:`, because the pattern extends to the end of the rule. `before` has the items before
/// `per=`.
fn refuse_keys_in_pattern(selector: &str, before: &[&str]) -> Result<(), String> {
    const KEYS: [&str; 10] =
        ["per=", "cost=", "else=", "jobs=", "fails=", "rates=", "burst=", "initial=", "slack=", "window"];
    let is_key = |item: &str| KEYS.iter().any(|key| item.starts_with(key));
    let mut pattern = selector;
    while let Some(comma) = pattern.rfind(',').filter(|&comma| is_key(&pattern[comma + 1..])) {
        pattern = &pattern[..comma];
    }
    let keys = &selector[pattern.len()..];
    if keys.is_empty() || !pattern.starts_with("re:") {
        return Ok(());
    }
    Err(format!(
        "re: extends to the end of the limit, so it must be the last part; write {}{keys},per={pattern}",
        before.join(",")
    ))
}

/// Refuses an unknown key. The message names the key that was probably meant, or lists all keys. Keys that the limit
/// itself parses are accepted.
fn refuse_unknown_key(key: &str, item: &str, rate: &str) -> Result<(), String> {
    let meant = match key.to_lowercase().as_str() {
        "pre" | "per" | "key" | "by" | "each" | "for" | "group" | "host" => "per=host",
        "cost" | "costs" | "weight" | "tokens" | "cots" => "cost=800",
        "jobs" | "job" | "j" | "jbos" | "procs" | "parallel" | "concurrency" | "slots" => "per=host,jobs=2",
        "fail" | "failures" | "max-fail" | "errors" => "per=host,fails=3",
        "rate" | "file" | "tiers" => "per=host,rates=FILE",
        "else" | "default" | "otherwise" => "cost=f3,else=100",
        // The limit itself parses these, or reports the mistake: burst, initial, window, slack, and numbers.
        other if other.starts_with(|first: char| "biws".contains(first) || !first.is_alphabetic()) => return Ok(()),
        _ => {
            return Err(format!(
                "no key '{item}' in a limit; use burst=N, initial=N, window, slack=TIME, per=SEL, jobs=N, fails=N, rates=FILE, cost=COST \
                 or else=N, \
                 like 5/s,burst=10; a second limit is a second --rate"
            ));
        }
    };
    Err(format!("no key '{item}' in a limit; did you mean {rate},{meant}?"))
}

/// Quotation marks that may be pasted with a limit.
const QUOTES: [char; 8] = ['\'', '"', '`', '\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{201e}'];

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (mut items, mut rest) = (Items::default(), Some(text));
            while let Some(list) = rest {
                rest = items.read_first(list)?.strip_prefix(',');
            }
            items.into_rule(text)
        };
        read().map_err(|error| {
            let plain = text.trim_matches(QUOTES);
            if plain != text && plain.parse::<Rule>().is_ok() {
                return format!("'{text}' has quotation marks in it; write {plain}");
            }
            let with = |separator| text.split_whitespace().collect::<Vec<_>>().join(separator);
            let has_space = text.contains(char::is_whitespace);
            let meant = ["", ","].map(with).into_iter().find(|meant| has_space && meant.parse::<Rule>().is_ok());
            meant.map_or(error, |meant| format!("'{text}' has a space in it; write {meant}"))
        })
    }
}

/// Prints the rule so that it can be parsed again: a pattern comes last.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = self.per.as_ref().map_or_else(String::new, |per| format!(",per={per}"));
        let is_last = self.per.as_ref().is_some_and(Selector::is_last);
        let (first, last) = if is_last { ("", per.as_str()) } else { (per.as_str(), "") };
        write!(f, "{}{}{first}", self.limit, if self.bytes { ",bytes" } else { "" })?;
        self.cost.as_ref().map_or(Ok(()), |cost| write!(f, ",cost={cost}"))?;
        self.jobs.map_or(Ok(()), |jobs| write!(f, ",jobs={jobs}"))?;
        self.fails.map_or(Ok(()), |fails| write!(f, ",fails={fails}"))?;
        self.rates.as_ref().map_or(Ok(()), |rates| write!(f, ",rates={}", rates.display()))?;
        f.write_str(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rule_is_a_limit_and_what_it_counts() {
        let rule: Rule = "200k/min,burst=5,per=f2:,,cost=/a\\,b,else=3,jobs=2".parse().unwrap();
        assert_eq!(rule.limit, "200k/min,burst=5".parse().unwrap());
        assert_eq!((rule.per, rule.cost), ("f2:,".parse().ok(), "/a\\,b,else=3".parse().ok()));
        assert_eq!(rule.jobs, NonZeroU32::new(2));
        assert_eq!(
            "5/s".parse(),
            Ok(Rule {
                limit: "5/s".parse().unwrap(),
                bytes: false,
                per: None,
                cost: None,
                jobs: None,
                fails: None,
                rates: None
            })
        );
        let rule: Rule = "unlimited,jobs=2,per=re:a{1,2},b".parse().unwrap();
        assert_eq!((rule.limit, rule.per), (Limit::Unlimited, "re:a{1,2},b".parse().ok()));
    }

    #[test]
    fn a_rule_prints_as_it_can_be_read_again() {
        for text in [
            "5/s",
            "unlimited",
            "unlimited,bytes",
            "5/s,burst=2,initial=0,per=host,cost=bytes/4+300,else=7,jobs=2",
            "5000/h,window,slack=0,per=/a\\,b,cost=f2:,,else=1",
            "1/s,per=f2:,,jobs=3",
            "unlimited,per=f1:\\t,jobs=2",
            "unlimited,per=host,fails=3",
            "1/s,jobs=2,fails=3,per=re:a",
            "1/s,rates=/etc/a b,per=re:a",
            "1/s,cost=800,jobs=2,per=re:a, b{1,2}",
        ] {
            assert_eq!(text.parse::<Rule>().map(|rule| rule.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_period_that_begins_at_a_time_of_day_names_the_recipe() {
        for (text, right) in [
            ("3/d@midnight", "3/d,window,initial=3"),
            ("3/day,reset=00:00", "3/day,window,initial=3"),
            ("0.5/d,at=6:00", "0.5/d,window,initial=1"),
            ("5k/d,midnight", "5k/d,window,initial=5000"),
            ("100@00:00", "100,window,initial=100"),
            ("3x@midnight", "3/d,window,initial=3"),
            ("1MB/d@midnight", "3/d,window,initial=3"),
            ("5/d,burst=3,resets=daily", "5/d,window,initial=5"),
            ("reset=daily,3/d", "3/d,window,initial=3"),
        ] {
            let said = text.parse::<Rule>().unwrap_err();
            assert!(said.contains(" at a time of day; ") && said.ends_with(&format!(" --set -r {right}")), "{said}");
            right.parse::<Rule>().unwrap();
        }
        assert!("5/s,per=re:a@b".parse::<Rule>().is_ok());
    }

    #[test]
    fn only_unlimited_names_bytes() {
        let rule: Rule = "unlimited,bytes".parse().unwrap();
        assert!(rule.bytes && rule.limit == Limit::Unlimited);
        for text in
            ["unlimited,bytes,bytes", "5/s,bytes", "bytes", "unlimited,bytes,per=f1,jobs=2", "unlimited,bytes,jobs=2"]
        {
            text.parse::<Rule>().unwrap_err();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(crate::rounds::rounds(20_000)))]

        #[test]
        fn any_text_is_read_or_refused(
            items in prop::collection::vec(
                prop::sample::select(vec![
                    "5/s", "1MB/s", "unlimited", "burst=5", "window", "per=", "host", "f2", ":", ",", "/a", "re:", "cost=", "bytes",
                    "else=", "jobs=", "fails=", "rates=", "reset=", "@", "2", " ", "\\\\", "é", "=",
                ]),
                0..9,
            ),
            separator in prop::sample::select(vec!["", ","]),
        ) {
            let text = items.join(separator);
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule), "{}", text);
            }
        }
    }
}
