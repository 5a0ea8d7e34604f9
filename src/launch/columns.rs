//! The columns of a unit: splits units, and finds the placeholders in a command.

use crate::flow::without_mark;
use csv_core::{ReadFieldResult, Reader};
use std::borrow::Cow;
use std::ops::Range;

/// The separator of a unit's columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Separator {
    /// Any number of blanks and tabs. Blanks and tabs around the unit are ignored.
    Blanks,
    /// This text.
    Text(Vec<u8>),
    /// Commas, with quotes as in RFC 4180.
    Csv,
}

/// The columns that a command uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) separator: Separator,
    /// The highest number of a `{N}` in the command; 0: it has none.
    pub(super) most: usize,
}

impl Columns {
    /// The error for a unit with too few columns.
    pub(super) fn lacking(&self, unit: &[u8]) -> Option<String> {
        let (count, most) = (self.split(unit).len(), self.most);
        let s = if count == 1 { "" } else { "s" };
        (count < most).then(|| format!("it has {count} column{s}, but the command uses {{{most}}}"))
    }

    /// The columns of `unit`, without a byte-order mark at its beginning.
    pub(super) fn split<'a>(&self, unit: &'a [u8]) -> Vec<Cow<'a, [u8]>> {
        let unit = without_mark(unit);
        match &self.separator {
            Separator::Blanks => {
                let columns = unit.split(|byte| b" \t\n".contains(byte)).filter(|column| !column.is_empty());
                columns.map(Cow::Borrowed).collect()
            }
            Separator::Text(_) if unit.is_empty() => Vec::new(),
            Separator::Text(text) => {
                let (mut columns, mut rest) = (Vec::new(), unit);
                while let Some(end) = rest.windows(text.len().max(1)).position(|window| window == text) {
                    columns.push(Cow::Borrowed(&rest[..end]));
                    rest = &rest[end + text.len()..];
                }
                columns.push(Cow::Borrowed(rest));
                columns
            }
            Separator::Csv => csv(unit),
        }
    }
}

/// The fields of the first record.
fn csv(unit: &[u8]) -> Vec<Cow<'static, [u8]>> {
    let (mut reader, mut rest, mut columns) = (Reader::new(), unit, Vec::new());
    let (mut field, mut length) = (vec![0; unit.len() + 1], 0);
    loop {
        let (result, read, written) = reader.read_field(rest, &mut field[length..]);
        (rest, length) = (&rest[read..], length + written);
        match result {
            // The next call, with empty input, ends the last field.
            ReadFieldResult::InputEmpty => {}
            ReadFieldResult::Field { record_end } => {
                columns.push(Cow::Owned(field[..length].to_vec()));
                length = 0;
                if record_end {
                    return columns;
                }
            }
            // No field is longer than the unit.
            ReadFieldResult::OutputFull | ReadFieldResult::End => return columns,
        }
    }
}

/// The places of `{1}`, `{2}` and so on in `word`, with their numbers. A number too large for any column is returned as
/// 0.
pub(super) fn placeholders(word: &[u8]) -> Vec<(Range<usize>, usize)> {
    let starts = (0..word.len()).filter(|place| word[*place] == b'{');
    let place = |start: usize| {
        let digits = word[start + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = start + 1 + digits;
        let number = std::str::from_utf8(&word[start + 1..end]).ok()?;
        (digits > 0 && word.get(end) == Some(&b'}')).then(|| (start..end + 1, number.parse().unwrap_or(0)))
    };
    starts.filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(separator: Separator, unit: &str) -> Vec<String> {
        let columns = Columns { separator, most: 0 };
        let split = columns.split(unit.as_bytes()).into_iter();
        split.map(|column| String::from_utf8(column.into_owned()).unwrap()).collect()
    }

    #[test]
    fn blanks_separate_columns_as_in_awk() {
        for (unit, expected) in [
            ("a b", &["a", "b"][..]),
            ("  a \t  b  ", &["a", "b"]),
            ("a", &["a"]),
            ("", &[]),
            (" \t", &[]),
            ("a\rb c", &["a\rb", "c"]),
        ] {
            assert_eq!(split(Separator::Blanks, unit), expected, "{unit:?}");
        }
    }

    #[test]
    fn a_character_separates_columns_that_may_be_empty() {
        let by = |text: &str, unit| split(Separator::Text(text.into()), unit);
        assert_eq!(by(",", "a,,b c,"), ["a", "", "b c", ""]);
        assert_eq!(by("\t", "a\tb"), ["a", "b"]);
        assert_eq!(by("é", "1é2"), ["1", "2"]);
        assert_eq!(by(",", "a"), ["a"]);
        assert_eq!(by(",", "").len(), 0);
    }

    #[test]
    fn csv_has_quotes_as_rfc_4180_says() {
        let by = |unit| split(Separator::Csv, unit);
        assert_eq!(by("a,\"b,c\",\"d \"\"e\"\"\",,f"), ["a", "b,c", "d \"e\"", "", "f"]);
        assert_eq!(by("a,b\r"), ["a", "b"]);
        assert_eq!(by("a,\"b\nc\""), ["a", "b\nc"]);
        assert_eq!(by("a,"), ["a", ""]);
        assert_eq!(by("\"open, a"), ["open, a"]);
        assert_eq!(by("").len(), 0);
    }

    #[test]
    fn the_numbers_in_braces_are_found_in_a_word() {
        let numbers = |word: &str| placeholders(word.as_bytes()).into_iter().map(|(_, n)| n).collect::<Vec<_>>();
        assert_eq!(numbers("{1}-{22}{3}"), [1, 22, 3]);
        assert_eq!(numbers("{0} {99999999999999999999999}"), [0, 0]);
        assert_eq!(numbers("{} {a} {1 {-1} 1} {{2}"), [2]);
    }
}
