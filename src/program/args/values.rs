//! The values of options, and how they are read.

use super::foreign_flags;
use super::rule::Rule;
use clap::ValueEnum;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;
use throttle_limits::rate::ParseError;
use throttle_limits::store::Address;

/// The last of the units that are made instead of read; `None`: they have no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeat(pub(crate) Option<u64>);

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    /// On a terminal, if it disturbs nothing, once the work has lasted a second
    Auto,
    /// Always; without a terminal a plain line every 10 s
    Always,
    /// Never
    Never,
}

/// What to do while the server of a bucket is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnStoreError {
    /// Go on trying
    Wait,
    /// End
    Fail,
}

/// How and where the summary is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) format: Format,
    /// `None`: to standard error.
    pub(crate) file: Option<PathBuf>,
}

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

pub(super) fn jobs(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a number of commands, like -j 8, or -j 0 for no cap".to_owned())
}

pub(super) fn max_args(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a number of units, like -n 10".to_owned())
}

pub(super) fn repeat(text: &str) -> Result<Repeat, String> {
    match text {
        "inf" => Ok(Repeat(None)),
        _ => text
            .parse()
            .map(|last| Repeat(Some(last)))
            .map_err(|_| "write a number, like --repeat 100, or --repeat inf for no end".to_owned()),
    }
}

pub(super) fn format(text: &str) -> Result<Format, String> {
    match text {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err("the format is text or json, like --show json; a bucket is named with --bucket".to_owned()),
    }
}

/// Refuses an M: to humantime it is a month, and most people who write one mean minutes.
pub(super) fn refuse_month(text: &str) -> Result<(), String> {
    let minutes = text.replace('M', "min");
    if minutes != text && humantime::parse_duration(&minutes).is_ok() {
        return Err(format!("M could be minutes or months; minutes are min or m: write {minutes}"));
    }
    Ok(())
}

/// `30s`, `1m 30s`; a bare number is seconds, as for timeout(1).
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    refuse_month(text)?;
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = text.parse().ok().filter(|_| is_number);
    let bare = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = bare.or_else(|| humantime::parse_duration(text).ok()).ok_or("write for example 30s, 500ms or 2min")?;
    if time.is_zero() { Err("it must be longer than nothing; write for example 30s".to_owned()) } else { Ok(time) }
}

/// Like other durations, but it may be 0.
pub(super) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let is_nothing = text.trim_start_matches('0').trim_start_matches(|c: char| c.is_ascii_alphabetic()).is_empty();
    if text.starts_with('0') && is_nothing { Ok(Duration::ZERO) } else { duration(text) }
}

pub(super) fn rule() -> impl TypedValueParser<Value = Rule> {
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

/// A file that is written, whose name may be any bytes. Many programs take - for standard output, where units are.
pub(super) fn record() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| match text.as_bytes() {
        b"-" => Err("- is no file; for standard error write /dev/stderr, for a file of that name ./-"),
        _ => Ok(PathBuf::from(text)),
    })
}

pub(super) fn summary() -> impl TypedValueParser<Value = Summary> {
    OsStringValueParser::new().try_map(|text| parse_summary(text.as_bytes()))
}

fn parse_summary(text: &[u8]) -> Result<Summary, String> {
    let (format, file) = match text.iter().position(|&byte| byte == b':') {
        Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
        None => (text, None),
    };
    let format = match format {
        b"text" | b"" => Format::Text,
        b"json" => Format::Json,
        _ => return Err("write --summary, --summary=json, --summary=text:FILE or --summary=json:FILE".to_owned()),
    };
    match file {
        Some([]) => Err("a file name is missing after the colon; write --summary=json:FILE".to_owned()),
        Some(b"-") => Err("- is no file; for standard error write --summary=json, else --summary=json:./-".to_owned()),
        _ => Ok(Summary { format, file: file.map(|file| OsString::from_vec(file.to_vec()).into()) }),
    }
}

pub(super) fn delimiter() -> impl TypedValueParser<Value = u8> {
    OsStringValueParser::new().try_map(|text| parse_delimiter(&text))
}

/// One byte, or an escape as in xargs.
fn parse_delimiter(text: &OsStr) -> Result<u8, String> {
    let bytes = text.as_bytes();
    match bytes {
        [byte] => Ok(*byte),
        [b'\\', escape @ ..] if !escape.is_empty() => escaped(escape).ok_or_else(|| {
            format!("'{}' is no escape; use \\n \\t \\r \\0 \\\\ \\a \\b \\f \\v, \\xHH or octal \\OOO", text.display())
        }),
        [] => Err("it is empty; give one byte, like -d , or -d '\\t'; for NUL use -0".to_owned()),
        _ => Err(format!("'{}' is more than one byte; give one, like -d , or -d '\\t'", text.display())),
    }
}

/// What follows the backslash.
fn escaped(escape: &[u8]) -> Option<u8> {
    Some(match escape {
        b"a" => 0x07,
        b"b" => 0x08,
        b"f" => 0x0c,
        b"n" => b'\n',
        b"r" => b'\r',
        b"t" => b'\t',
        b"v" => 0x0b,
        b"\\" => b'\\',
        [b'x', hex @ ..] if hex.len() <= 2 => number(hex, 16)?,
        octal if octal.len() <= 4 => number(octal, 8)?,
        _ => return None,
    })
}

fn number(digits: &[u8], radix: u32) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.chars().all(|c| c.is_digit(radix)))?;
    u8::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_one_byte_or_an_xargs_escape() {
        for (text, byte) in [
            (",", b','),
            ("\\n", b'\n'),
            ("\\t", b'\t'),
            ("\\0", 0),
            ("\\\\", b'\\'),
            ("\\x1e", 0x1e),
            ("\\037", 0o37),
            ("\\", b'\\'),
        ] {
            assert_eq!(parse_delimiter(text.as_ref()), Ok(byte), "{text}");
        }
        for text in ["", "ab", "\\q", "\\x", "\\xzz", "\\999", "\\777", "é"] {
            assert!(parse_delimiter(text.as_ref()).is_err(), "{text}");
        }
    }

    #[test]
    fn summaries_go_to_standard_error_or_the_file_named() {
        let parsed = |text: &str| parse_summary(text.as_bytes()).map(|s| (s.format, s.file));
        assert_eq!(parsed("text"), Ok((Format::Text, None)));
        assert_eq!(parsed("json:a:b"), Ok((Format::Json, Some("a:b".into()))));
        assert_eq!(parsed(":x"), Ok((Format::Text, Some("x".into()))));
        assert!(parsed("xml").is_err() && parsed("json:").is_err());
    }

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
