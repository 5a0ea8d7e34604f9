//! Selectors: find the key of a unit, such as its host or its second field.

mod error;
mod host;
mod part;
mod pointer;

#[cfg(test)]
mod tests;

pub use error::SelectorError;
pub(super) use error::too_large;
pub(super) use part::{Part, meant_as_json};
pub(super) use pointer::escaped;

use super::mark::without_mark;
use regex::bytes::{Regex, RegexBuilder};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The most memory for a compiled regular expression, in bytes.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Finds the key of a unit: `host`, `f2`, `f2:,`, `/user/id` or `re:REGEX`.
///
/// ```
/// use throttle::flow::selector::Selector;
/// let selector: Selector = "host".parse()?;
/// assert_eq!(selector.key(b"get https://user@Example.org:8080/a").as_deref(), Some(&b"example.org"[..]));
/// assert_eq!(selector.key(b"no address"), None);
/// # Ok::<(), throttle::flow::selector::SelectorError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Selector(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Host,
    Part(Part),
    /// A regular expression, with its original text.
    Match(Regex),
    /// The same key for every unit.
    Always(Box<[u8]>),
}

impl Selector {
    /// The key of `unit`, which has no delimiter; `None` if it has no key. A byte-order mark at the beginning of the
    /// unit is skipped.
    ///
    /// - `host`: the host of the first URL that has a host, as the crate `url` reads it. It is in lower case, without
    ///   user, port and final dots. Without a URL: the host of the first `name@host`
    /// - a field: its bytes, possibly none
    /// - a JSON Pointer: the decoded text of a string, or a number, `true` or `false` as written. The whole unit must
    ///   be one JSON value. The last of equal names counts, as in jq
    /// - a regular expression: its first group if that matched, or else the whole match
    pub fn key<'a>(&self, unit: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let unit = without_mark(unit);
        match &self.0 {
            Kind::Host => host::of(unit),
            Kind::Part(part) => part.of(unit),
            Kind::Always(key) => Some(key.to_vec().into()),
            Kind::Match(regex) if regex.captures_len() == 1 => regex.find(unit).map(|found| found.as_bytes().into()),
            Kind::Match(regex) => {
                let groups = regex.captures(unit)?;
                groups.get(1).or_else(|| groups.get(0)).map(|found| found.as_bytes().into())
            }
        }
    }

    /// A selector with this key for every unit.
    pub fn always(key: &[u8]) -> Self {
        Selector(Kind::Always(key.into()))
    }

    /// Parses the selector at the beginning of `text`. Returns the rest, which is empty or begins with a comma.
    ///
    /// # Errors
    /// The message shows a right spelling.
    pub fn read(text: &str) -> Result<(Self, &str), SelectorError> {
        if let Some(pattern) = text.strip_prefix("re:") {
            return matching(pattern).map(|regex| (Selector(Kind::Match(regex)), ""));
        }
        if let Some(part) = Part::read(text, &[',']) {
            return part.map(|(part, rest)| (Selector(Kind::Part(part)), rest));
        }
        match text.split_at(text.find(',').unwrap_or(text.len())) {
            ("host", rest) => Ok((Selector(Kind::Host), rest)),
            (word, _) => Err(unknown(word)),
        }
    }

    /// Whether the selector takes the rest of a list, so that nothing can follow it.
    pub fn is_last(&self) -> bool {
        matches!(self.0, Kind::Match(_))
    }

    /// The error for a unit that fits into no buffer, so that its key cannot be found.
    pub fn too_large(&self) -> String {
        too_large(&format!("per={self}"), "make the units shorter, or leave per= out")
    }
}

/// Compiles `pattern`, which matches bytes. Classes such as `\w`, and case, cover ASCII only.
fn matching(pattern: &str) -> Result<Regex, SelectorError> {
    if pattern.is_empty() {
        return Err(SelectorError::NoPattern);
    }
    let compiled = RegexBuilder::new(pattern).unicode(false).size_limit(MAX_REGEX_BYTES).build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => SelectorError::PatternTooLarge,
        // The last line has the reason; earlier lines show the place.
        error => {
            let text = error.to_string();
            let why = text.lines().next_back().unwrap_or_default();
            SelectorError::Pattern(why.trim_start_matches("error: ").to_owned())
        }
    })
}

/// The error for a word that is not a selector, with a guess at its meaning.
fn unknown(word: &str) -> SelectorError {
    let number = word.trim_start_matches(['$', '{', '-', 'F']).trim_end_matches('}');
    match (number.parse(), word.to_lowercase().as_str()) {
        (_, "") => SelectorError::Empty,
        (Ok(0), _) => SelectorError::FieldZero,
        (Ok(number), _) => SelectorError::NumberAlone(number),
        (
            _,
            "host" | "hosts" | "hostname" | "domains" | "urls" | "hostnames" | "servers" | "sites" | "domain" | "site"
            | "url" | "server" | "{host}",
        ) => SelectorError::Meant("host"),
        (_, "re" | "regex" | "regexp") => SelectorError::Meant("re:REGEX, like re:^[a-z]+"),
        (_, small) if small.starts_with("regex") => SelectorError::Meant("re:REGEX, like re:^[a-z]+"),
        _ => meant_as_json(word).unwrap_or_else(|| SelectorError::Unknown {
            word: word.to_owned(),
            pointer: format!("/{}", escaped(word)),
        }),
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        match Selector::read(text)? {
            (selector, "") => Ok(selector),
            (_, rest) => Err(SelectorError::More(rest.to_owned())),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Host => f.write_str("host"),
            Kind::Part(part) => part.fmt(f),
            Kind::Always(key) => f.write_str(&String::from_utf8_lossy(key)),
            Kind::Match(regex) => write!(f, "re:{regex}"),
        }
    }
}

/// Each selector has one text, which parses back to the same selector.
impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Selector {}
