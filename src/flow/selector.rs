//! Selectors: find the key of a unit, such as its host or its second field.

mod host;
mod part;
mod pointer;

#[cfg(test)]
mod tests;

pub(super) use part::{Part, meant_as_json, number_alone, too_large};
pub(super) use pointer::escaped;

use super::mark::without_mark;
use part::FIELD_ZERO;
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
/// # Ok::<(), String>(())
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
    pub fn read(text: &str) -> Result<(Self, &str), String> {
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
fn matching(pattern: &str) -> Result<Regex, String> {
    if pattern.is_empty() {
        return Err("a pattern is missing; write for example re:^[a-z]+".to_owned());
    }
    let compiled = RegexBuilder::new(pattern).unicode(false).size_limit(MAX_REGEX_BYTES).build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            "the pattern is too large: it takes more than 1 MiB; write a shorter one, like re:^[a-z]+".to_owned()
        }
        // The last line has the reason; earlier lines show the place.
        error => {
            let text = error.to_string();
            let why = text.lines().next_back().unwrap_or_default();
            let why = why.trim_start_matches("error: ");
            format!("the pattern is not a regular expression: {why}; write for example re:^[a-z]+")
        }
    })
}

/// The message about a word that is not a selector, with a guess at its meaning.
fn unknown(word: &str) -> String {
    let number = word.trim_start_matches(['$', '{', '-', 'F']).trim_end_matches('}');
    match (number.parse::<u64>(), word.to_lowercase().as_str()) {
        (_, "") => "the selector is missing; write host, f2, /user/id or re:REGEX".to_owned(),
        (Ok(0), _) => FIELD_ZERO.to_owned(),
        (Ok(number), _) => number_alone(number),
        (
            _,
            "host" | "hosts" | "hostname" | "domains" | "urls" | "hostnames" | "servers" | "sites" | "domain" | "site"
            | "url" | "server" | "{host}",
        ) => "write host".to_owned(),
        (_, small) if small == "re" || small.starts_with("regex") => "write re:REGEX, like re:^[a-z]+".to_owned(),
        _ => meant_as_json(word).unwrap_or_else(|| {
            let pointer = escaped(word);
            format!("unknown selector '{word}'; write /{pointer} for JSON, otherwise host, f2 or re:REGEX")
        }),
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match Selector::read(text)? {
            (selector, "") => Ok(selector),
            (_, rest) => Err(format!("unexpected text after the selector: '{rest}'; a comma in a JSON Pointer is \\,")),
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
