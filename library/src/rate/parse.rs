//! Parses counts and sizes.

use super::error::{self, ParseError};
use super::meant::Kind;
use super::number::{Amount, SUFFIXES};
use std::str::FromStr;

impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::NoSize);
        }
        error::refuse_habits(Kind::Size, text)?;
        let amount = count(Kind::Size, text, text)?;
        let (units, parts) = amount.ratio();
        match (parts, u64::try_from(units)) {
            (1, Ok(_)) => Ok(amount),
            (1, Err(_)) => Err(ParseError::TooLarge(text.to_owned())),
            _ => Err(ParseError::NotWhole(text.to_owned())),
        }
    }
}

/// Parses a count: `whole`, or the part of it before the slash.
pub(super) fn count(kind: Kind, text: &str, whole: &str) -> Result<Amount, ParseError> {
    let (number, name) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    if number.is_empty() {
        return Err(error::no_count(kind, name, whole));
    }
    let (integer, decimals) = number.split_once('.').unwrap_or((number, ""));
    if integer.is_empty() || number.ends_with('.') || decimals.contains('.') {
        return Err(error::bad_number(kind, whole));
    }
    let suffix = SUFFIXES.into_iter().find(|suffix| *suffix == name);
    let suffix = suffix.ok_or_else(|| error::unknown_suffix(kind, name, whole))?;
    if integer.len() > 1
        && integer.starts_with('0')
        && let Some(error) = error::leading_zero(kind, whole)
    {
        return Err(error);
    }
    let places = u8::try_from(decimals.len()).ok().filter(|places| *places <= 18);
    let places = places.ok_or_else(|| ParseError::TooManyDecimals(whole.to_owned()))?;
    let digits = format!("{integer}{decimals}").parse().map_err(|_| ParseError::TooLarge(whole.to_owned()))?;
    Ok(Amount { digits, decimals: places, suffix })
}
