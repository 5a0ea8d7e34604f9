//! Errors of selectors, and of units that a selector cannot read.

use crate::flow::framing::LARGEST;
use thiserror::Error;

/// The most names of a JSON Pointer. The parser can descend 127 levels.
pub(super) const MAX_POINTER_NAMES: usize = 100;

/// The error for a unit that is too large for a selector or a cost. `by` is the selector or the cost, as written.
pub(crate) fn too_large(by: &str, advice: &str) -> String {
    format!("'{by}' can read units of at most {} MiB; {advice}", LARGEST >> 20)
}

/// Why a text is not a selector. The message shows a right spelling.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum SelectorError {
    #[error("the selector is missing; write host, f2, /user/id or re:REGEX")]
    Empty,
    #[error("field {0} is written f{0}")]
    NumberAlone(u64),
    #[error("fields count from 1; the first is f1")]
    FieldZero,
    #[error("a field needs a number after the f, like f2")]
    NoFieldNumber,
    #[error(
        "the separator of fields is exactly one byte; write for example f2:; or, for a tab, f2:\\t, or f2 for blanks"
    )]
    NotOneByte,
    #[error("the comma is the separator of the fields; write a second comma before the next part, like f{0}:,,jobs=2")]
    CommaMissing(usize),
    #[error("for a value in JSON write {0}")]
    Json(String),
    #[error("in a JSON Pointer ~0 is a ~ and ~1 is a /; write {0}")]
    Tilde(String),
    #[error("a JSON Pointer has at most {MAX_POINTER_NAMES} names, like /user/id")]
    TooDeep,
    #[error("a pattern is missing; write for example re:^[a-z]+")]
    NoPattern,
    #[error("the pattern is not a regular expression: {0}; write for example re:^[a-z]+")]
    Pattern(String),
    #[error("the pattern is too large: it takes more than 1 MiB; write a shorter one, like re:^[a-z]+")]
    PatternTooLarge,
    #[error("unexpected text after the selector: '{0}'; a comma in a JSON Pointer is \\,")]
    More(String),
    #[error("write {0}")]
    Meant(&'static str),
    #[error("unknown selector '{word}'; write {pointer} for JSON, otherwise host, f2 or re:REGEX")]
    Unknown { word: String, pointer: String },
}
