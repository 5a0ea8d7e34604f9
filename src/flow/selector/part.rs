//! A part of a unit: a field, or a value in JSON. Keys and costs are read from parts.

use super::pointer::{self, Pointer};
use crate::flow::framing::LARGEST;
use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroUsize;

/// The message about field 0.
pub(super) const FIELD_ZERO: &str = "fields count from 1; the first is f1";

const NOT_ONE_BYTE: &str =
    "the separator of fields is exactly one byte; write for example f2:; or, for a tab, f2:\\t, or f2 for blanks";

/// A part of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The field with this number. Fields end at this byte; `None`: at blanks, as in awk.
    Field(NonZeroUsize, Option<u8>),
    Json(Pointer),
}

impl Part {
    /// Parses the part at the beginning of `text`. Returns the rest, which is empty or begins with a character of
    /// `ends`. `None` if the text is not meant as a part.
    pub(crate) fn read<'a>(text: &'a str, ends: &[char]) -> Option<Result<(Self, &'a str), String>> {
        if text.starts_with('/') {
            return Some(Pointer::read(text, ends).map(|(pointer, rest)| (Part::Json(pointer), rest)));
        }
        let number = text.strip_prefix('f')?;
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        let (digits, rest) = number.split_at(end);
        match (digits, rest.chars().next()) {
            ("", None | Some(':' | ',' | '-')) => Some(Err("a field needs a number after the f, like f2".to_owned())),
            ("", _) => None,
            (_, next) if next.is_none_or(|next| next == ':' || ends.contains(&next)) => Some(field(digits, rest, ends)),
            // A JSON name that resembles a field: `f2.x`.
            _ => None,
        }
    }

    /// The bytes of this part of `unit`.
    pub(crate) fn of<'a>(&self, unit: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match self {
            Part::Field(number, Some(end)) => unit.split(|byte| byte == end).nth(number.get() - 1).map(Cow::Borrowed),
            Part::Field(number, None) => {
                let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n');
                let mut fields = unit.split(is_blank).filter(|field| !field.is_empty());
                fields.nth(number.get() - 1).map(Cow::Borrowed)
            }
            Part::Json(pointer) => pointer.of(unit),
        }
    }
}

/// Parses `rest`, which follows the digits: a colon and a byte, or text after the field.
fn field<'a>(digits: &str, rest: &'a str, ends: &[char]) -> Result<(Part, &'a str), String> {
    // A number that is too large names a field that no unit has.
    let number = NonZeroUsize::new(digits.parse().unwrap_or(usize::MAX)).ok_or(FIELD_ZERO)?;
    let Some(rest) = rest.strip_prefix(':') else { return Ok((Part::Field(number, None), rest)) };
    let (byte, rest) = match rest.as_bytes() {
        [b'\\', b't', ..] => (b'\t', &rest[2..]),
        [byte, ..] if byte.is_ascii() => (*byte, &rest[1..]),
        _ => return Err(NOT_ONE_BYTE.to_owned()),
    };
    match rest.chars().next() {
        next if next.is_none_or(|next| ends.contains(&next)) => Ok((Part::Field(number, Some(byte)), rest)),
        Some(_) if byte == b',' => Err(format!(
            "the comma is the separator of the fields; write a second comma before the next part, like f{number}:,,jobs=2"
        )),
        _ => Err(NOT_ONE_BYTE.to_owned()),
    }
}

/// The message about a number that stands for a field.
pub(crate) fn number_alone(number: u64) -> String {
    format!("field {number} is written f{number}")
}

/// The message, with the right spelling, about `x.y`, `.x.y` of jq, `$.x.y` of `JSONPath`, `x/y` and `#/x/y`.
pub(crate) fn meant_as_json(word: &str) -> Option<String> {
    let path = word.trim_start_matches(['$', '#', '@']);
    let is_marked = path.len() < word.len() || path.starts_with('.');
    let names: Vec<&str> = path.split(['.', '/', '[', ']', '"', '\'']).filter(|name| !name.is_empty()).collect();
    if names.is_empty() || (names.len() == 1 && !is_marked) {
        return None;
    }
    let names: Vec<String> = names.into_iter().map(pointer::escaped).collect();
    Some(format!("for a value in JSON write /{}", names.join("/")))
}

/// The message about a unit that is too large for a selector or a cost. `by` is the selector or the cost, as written.
pub(crate) fn too_large(by: &str, advice: &str) -> String {
    format!("'{by}' can read units of at most {} MiB; {advice}", LARGEST >> 20)
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Field(number, None) => write!(f, "f{number}"),
            Part::Field(number, Some(b'\t')) => write!(f, "f{number}:\\t"),
            Part::Field(number, Some(byte)) => write!(f, "f{number}:{}", char::from(*byte)),
            Part::Json(pointer) => pointer.fmt(f),
        }
    }
}
