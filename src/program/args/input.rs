//! The source of the units, and their delimiter.

use super::values::{from_text, parsed};
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use throttle::flow::framing::Framing;
use throttle_limits::limits::Policy;
use throttle_limits::rate::Amount;

/// The most units read ahead by default.
const DEFAULT_AHEAD: usize = 10_000;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Input")]
#[group(skip)]
pub(crate) struct InputFlags {
    /// Units end with a NUL byte instead of a newline, as find -print0 writes them.
    #[arg(short = '0', long, help = "Units end with NUL instead of a newline", long_help)]
    pub(crate) null: bool,

    /// Units end with the byte C instead of a newline: a character, or an escape as in xargs: \n \t \r \0 \\ \xHH \OOO.
    #[arg(short, long, value_name = "C", value_parser = delimiter(), help = "Units end with the byte C", long_help)]
    pub(crate) delimiter: Option<u8>,

    /// Count bytes, not lines: every byte is a unit. A rate in bytes, like -r 10MiB/s, implies it.
    #[arg(long, help = "Every byte is a unit (implied by a rate in bytes)", long_help)]
    pub(crate) bytes: bool,

    /// Read FILE instead of standard input; - is standard input. In both cases, the standard input of commands is
    /// /dev/null.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    #[arg(help = "Read FILE instead of standard input", long_help)]
    pub(crate) arg_file: Option<PathBuf>,

    /// Do not read input: the units are the numbers 1 to N, or have no end. Nothing is appended to COMMAND; {} is the
    /// number, and in a script "$1".
    #[arg(long, value_name = "N|inf", allow_negative_numbers = true, value_parser = from_text(repeat))]
    #[arg(help = "Read no input: the units are 1 to N, or have no end", long_help)]
    pub(crate) repeat: Option<Repeat>,

    /// With limits for each key (per=), units are read while others wait. With --attempts, some units wait for another
    /// attempt. Read no more while N units, or 64 MiB, wait. N may end with k, M or G, for thousands, millions or
    /// billions.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_text(ahead))]
    #[arg(help = "Most units read while others wait [default: 10000]", long_help)]
    pub(crate) ahead: Option<NonZeroUsize>,
}

/// The last unit of `--repeat`, whose units are the numbers from 1 on. `None` means that they have no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeat(pub(crate) Option<u64>);

impl InputFlags {
    /// The file to read; `None` is standard input.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.arg_file.as_deref().filter(|file| *file != Path::new("-"))
    }

    /// Whether units are read from standard input.
    pub(crate) fn is_stdin(&self) -> bool {
        self.repeat.is_none() && self.file().is_none()
    }

    /// Whether no flag sets another framing than lines. Then commands skip blank lines.
    pub(crate) fn is_default(&self) -> bool {
        !self.null && self.delimiter.is_none() && !self.bytes
    }

    /// The most units that are read ahead while other units wait.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead.map_or(DEFAULT_AHEAD, NonZeroUsize::get)
    }

    /// How to split the input into units under these limits.
    ///
    /// # Errors
    /// A flag splits the input into records, but the rate counts bytes.
    pub(crate) fn framing(&self, policy: &Policy) -> Result<Framing, String> {
        let (byte, flag) = if self.null { (Some(0), "-0") } else { (self.delimiter, "-d") };
        match byte {
            Some(_) if policy.counts_bytes() => Err(format!(
                "{flag}: the rate counts bytes, but {flag} cuts records; for records a second write -r 100/s \
                 {flag}, for bytes leave {flag} out"
            )),
            Some(byte) => Ok(Framing::EndedBy(byte)),
            None if self.bytes || policy.counts_bytes() => Ok(Framing::Bytes),
            None => Ok(Framing::EndedBy(b'\n')),
        }
    }
}

fn repeat(text: &str) -> Result<Repeat, String> {
    match text {
        "inf" => Ok(Repeat(None)),
        _ => {
            parsed(text, "write a number, like --repeat 100, or --repeat inf for no end").map(|last| Repeat(Some(last)))
        }
    }
}

/// Reads a number of units, such as `10000` or `10M`.
fn ahead(text: &str) -> Result<NonZeroUsize, String> {
    let units = text.parse::<Amount>().ok().filter(|amount| !amount.is_bytes());
    let units = units.and_then(|amount| NonZeroUsize::new(usize::try_from(amount.value()).ok()?));
    units.ok_or_else(|| "write a number of units, like --ahead 10000 or --ahead 10M".to_owned())
}

fn delimiter() -> impl TypedValueParser<Value = u8> {
    OsStringValueParser::new().try_map(|text| parse_delimiter(&text))
}

/// Reads a delimiter: one byte, or an escape as in xargs.
pub(super) fn parse_delimiter(text: &OsStr) -> Result<u8, String> {
    let bytes = text.as_bytes();
    match bytes {
        [byte] => Ok(*byte),
        [b'\\', escape @ ..] if !escape.is_empty() => escaped(escape).ok_or_else(|| {
            format!(
                "'{}' is not an escape; use \\n \\t \\r \\0 \\\\ \\a \\b \\f \\v, \\xHH or octal \\OOO",
                text.display()
            )
        }),
        [] => Err("the delimiter is empty; give one byte, like -d , or -d '\\t'; for NUL use -0".to_owned()),
        _ => Err(format!("'{}' is more than one byte; give one, like -d , or -d '\\t'", text.display())),
    }
}

/// The byte of an escape, given without its backslash.
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
    fn the_most_units_read_ahead_may_be_written_short() {
        for (text, units) in [("1", 1), ("10000", 10_000), ("10M", 10_000_000), ("2.5k", 2500)] {
            assert_eq!(ahead(text).map(NonZeroUsize::get), Ok(units), "{text}");
        }
        for text in ["0", "", "-1", "x", "10MB", "1.5", "10 M"] {
            assert!(ahead(text).is_err(), "{text}");
        }
    }

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
}
