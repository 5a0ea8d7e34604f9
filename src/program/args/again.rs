//! The values of the options about further attempts.

use super::values::{duration, refuse_month};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;
use throttle::launch::{Backoff, Failure};

/// A value of one option; clap would take a `Vec` for several.
pub(crate) type Failures = Vec<Failure>;

/// How many failed units end a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxFail {
    /// So many.
    Units(NonZeroU64),
    /// So many of a hundred.
    Percent(u8),
}

pub(super) fn attempts(text: &str) -> Result<NonZeroU32, String> {
    text.parse()
        .map_err(|_| "write how often a unit is run at most, like --attempts 5; the first attempt counts".to_owned())
}

pub(super) fn ahead(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "write a number of units, like --ahead 10000".to_owned())
}

pub(super) fn max_fail(text: &str) -> Result<MaxFail, String> {
    let parsed = match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(MaxFail::Percent),
        None => text.parse().ok().map(MaxFail::Units),
    };
    parsed.ok_or_else(|| "write a number of units or a share, like --max-fail 10 or --max-fail 5%".to_owned())
}

/// `1s..60s`, or one time for all waits.
pub(super) fn backoff(text: &str) -> Result<Backoff, String> {
    let (first, longest) = text.split_once("..").unwrap_or((text, text));
    let time = |text: &str| -> Result<Duration, String> {
        refuse_month(text.trim())?;
        duration(text.trim()).map_err(|_| "write the first and the longest wait, like --backoff 1s..60s".to_owned())
    };
    let (first, longest) = (time(first)?, time(longest)?);
    if first > longest {
        return Err(format!("the first wait is longer than the longest; write --backoff {longest:?}..{first:?}"));
    }
    Ok(Backoff { first, longest })
}

/// `6,7,28,timeout,signal`
pub(super) fn retry_on(text: &str) -> Result<Failures, String> {
    text.split(',').map(|word| failure(word.trim())).collect()
}

fn failure(word: &str) -> Result<Failure, String> {
    match (word, word.parse()) {
        ("timeout", _) => Ok(Failure::Timeout),
        ("signal", _) => Ok(Failure::Signal),
        (_, Ok(0)) => Err("an exit of 0 is a success; write codes of failures, like --retry-on 6,7,28".to_owned()),
        (_, Ok(code @ (126 | 127 | 255))) => {
            Err(format!("a command that exits {code} is never run again; write other codes, like --retry-on 6,7,28"))
        }
        (_, Ok(code)) => Ok(Failure::Exit(code)),
        (_, Err(_)) => Err("write exit codes, timeout or signal, like --retry-on 6,7,28,timeout".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_read_or_refused_with_a_right_spelling() {
        let second = Duration::from_secs(1);
        assert_eq!(backoff("1s..60s"), Ok(Backoff { first: second, longest: 60 * second }));
        assert_eq!(backoff("5m..1h"), Ok(Backoff { first: 300 * second, longest: 3600 * second }));
        assert_eq!(backoff("2"), Ok(Backoff { first: 2 * second, longest: 2 * second }));
        for wrong in ["", "..", "1s..", "60s..1s", "0..1s", "soon"] {
            let error = backoff(wrong).unwrap_err();
            let spelling = error.rsplit(' ').next().unwrap();
            assert!(backoff(spelling).is_ok(), "{wrong}: {error}");
        }
        assert_eq!(retry_on("6, 28,timeout,signal").map(|found| found.len()), Ok(4));
        for wrong in ["", "0", "255", "126", "256", "-1", "6,", "no"] {
            let error = retry_on(wrong).unwrap_err();
            assert!(retry_on(error.rsplit(' ').next().unwrap()).is_ok(), "{wrong}: {error}");
        }
        assert_eq!(max_fail("5%"), Ok(MaxFail::Percent(5)));
        assert!(["0", "0%", "101%", "x", "%"].into_iter().all(|wrong| max_fail(wrong).is_err()));
        assert!(attempts("0").is_err() && ahead("0").is_err() && attempts("5").is_ok());
    }
}
