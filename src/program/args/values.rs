//! Values that several flags share.

use clap::builder::{OsStringValueParser, TypedValueParser};
use std::error::Error;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use std::time::Duration;

/// The error for a value that is not UTF-8 text: the value without the wrong bytes, if that is valid.
#[derive(Debug, thiserror::Error)]
#[error("it is not UTF-8 text")]
pub(super) struct NotText(pub(super) Option<String>);

/// A parser of values that are text.
pub(super) fn from_text<T, E>(
    parse: impl Fn(&str) -> Result<T, E> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    OsStringValueParser::new().try_map(move |value| {
        if let Some(text) = value.to_str() {
            return parse(text).map_err(Into::into);
        }
        let text: String = value.as_bytes().utf8_chunks().map(|chunk| chunk.valid()).collect();
        let is_valid = !text.is_empty() && parse(&text).is_ok();
        Err(NotText(is_valid.then_some(text)).into())
    })
}

/// An output format: for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

pub(super) fn format(text: &str) -> Result<Format, String> {
    match text {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err("the format is text or json, like --show json or --list json; name a bucket with --bucket".to_owned()),
    }
}

/// Parses a value. The error is `how`, which shows the right spelling.
pub(super) fn parsed<T: FromStr>(text: &str, how: &str) -> Result<T, String> {
    text.parse().map_err(|_| how.to_owned())
}

/// Refuses an M. For humantime it is a month, but most people who write it mean minutes.
pub(super) fn refuse_month(text: &str) -> Result<(), String> {
    let minutes = text.replace('M', "min");
    if minutes != text && humantime::parse_duration(&minutes).is_ok() {
        return Err(format!("M could be minutes or months; minutes are min or m: write {minutes}"));
    }
    Ok(())
}

/// Reads a time such as `30s` or `1m 30s`. A bare number is in seconds, as for timeout(1).
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    refuse_month(text)?;
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse().ok().filter(|_| is_number);
    let bare = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = bare.or_else(|| humantime::parse_duration(text).ok()).ok_or("write for example 30s, 500ms or 2min")?;
    if time.is_zero() { Err("the time must be above 0; write for example 30s".to_owned()) } else { Ok(time) }
}

/// Reads a time that may be 0.
pub(super) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let is_nothing = text.trim_start_matches('0').trim_start_matches(|c: char| c.is_ascii_alphabetic()).is_empty();
    if text.starts_with('0') && is_nothing { Ok(Duration::ZERO) } else { duration(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_wait_may_be_0() {
        assert_eq!(duration_or_zero("0"), Ok(Duration::ZERO));
        assert_eq!(duration_or_zero("0s"), Ok(Duration::ZERO));
        assert_eq!(duration_or_zero("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration_or_zero("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration_or_zero("2min"), Ok(Duration::from_secs(120)));
        assert!(duration_or_zero("soon").is_err());
    }

    #[test]
    fn a_bare_time_is_in_seconds_and_an_m_alone_is_no_month() {
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(
            (duration("5m"), duration("1h 5min")),
            (Ok(Duration::from_secs(300)), Ok(Duration::from_secs(3900)))
        );
        for (wrong, right) in [("1M", "1min"), ("90M", "90min"), ("1h30M", "1h30min")] {
            let error = duration(wrong).unwrap_err();
            assert!(error.ends_with(&format!("write {right}")) && duration(right).is_ok(), "{error}");
        }
        for wrong in ["", ".", "1.2.3", "0.0", "1e3", "-1", "inf", "1Ms"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
