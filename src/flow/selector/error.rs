//! What is wrong with a selector, or with a unit that it looks into.

use crate::flow::framing::LARGEST;
use thiserror::Error;

/// The deepest JSON Pointer. The parser can descend 127 levels.
pub(super) const MOST_DEEP: usize = 100;

/// A unit that is too large for a selector or a cost.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("'{by}' looks into units of at most {} MiB; {advice}", LARGEST >> 20)]
pub struct TooLarge {
    /// What looks into it, as it was written.
    pub(crate) by: String,
    pub(crate) advice: String,
}

/// Why a text is no selector. The message shows how to write it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages are the documentation")]
#[non_exhaustive]
pub enum SelectorError {
    #[error("of what? write host, f2, /user/id or re:REGEX")]
    Empty,
    #[error("field {0} is f{0}")]
    NumberAlone(u64),
    #[error("fields count from 1; the first is f1")]
    FieldZero,
    #[error("a field has a number after the f, like f2")]
    NoFieldNumber,
    #[error("a field ends at exactly one byte, like f2:; or at a tab, f2:\\t; without a colon at blanks, f2")]
    NotOneByte,
    #[error("fields end at the comma itself here, so another one comes before what follows: f{0}:,,jobs=2")]
    CommaMissing(usize),
    #[error("JSON: {0}")]
    Json(String),
    #[error("in a JSON Pointer ~0 is a ~ and ~1 is a /: write {0}")]
    Tilde(String),
    #[error("a JSON Pointer may be {MOST_DEEP} names long at most, like /user/id")]
    TooDeep,
    #[error("a pattern is missing; write for example re:^[a-z]+")]
    NoPattern,
    #[error("the pattern is no regular expression: {0}; write for example re:^[a-z]+")]
    Pattern(String),
    #[error("the pattern is too large: it takes more than 1 MiB; write a shorter one, like re:^[a-z]+")]
    PatternTooLarge,
    #[error("what follows the selector is no part of it: '{0}'; a comma in a JSON Pointer is \\,")]
    More(String),
    #[error("write {0}")]
    Meant(&'static str),
    #[error("no selector is called '{word}'; JSON: {pointer}; else write host, f2 or re:REGEX")]
    Unknown { word: String, pointer: String },
}
