//! JSON Pointers (RFC 6901). Only the value at the end of one is kept; all else is skipped as it is read.

use super::error::{MOST_DEEP, SelectorError};
use serde_core::Deserialize;
use serde_core::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A JSON Pointer of at least one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer(Box<[Box<str>]>);

impl Pointer {
    /// Reads the pointer at the beginning of `text`, up to one of these `ends` without a backslash before it.
    pub(super) fn read<'a>(text: &'a str, ends: &[char]) -> Result<(Self, &'a str), SelectorError> {
        let mut ends = text.match_indices(ends).map(|(place, _)| place);
        let end = ends.find(|place| !text[..*place].ends_with('\\')).unwrap_or(text.len());
        let (pointer, rest) = text.split_at(end);
        let names: Option<Box<[Box<str>]>> = pointer
            .replace("\\,", ",")
            .replace("\\+", "+")
            .split('/')
            .skip(1)
            .map(|name| unescaped(name).map(String::into))
            .collect();
        let names = names.ok_or_else(|| SelectorError::Tilde(tildes_escaped(pointer)))?;
        if names.len() > MOST_DEEP { Err(SelectorError::TooDeep) } else { Ok((Pointer(names), rest)) }
    }

    /// The value in `unit` that it points at: a string decoded, a number or a truth as it is written.
    pub(super) fn of<'a>(&self, unit: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let mut json = serde_json::Deserializer::from_slice(unit);
        let value = Rest(&self.0).deserialize(&mut json).ok()?;
        json.end().ok()?;
        let value = value.get();
        match value.as_bytes() {
            [b'{' | b'[' | b'n', ..] => None,
            [b'"', text @ .., b'"'] if memchr::memchr(b'\\', text).is_none() => Some(text.into()),
            [b'"', ..] => serde_json::from_str::<String>(value).ok().map(|text| text.into_bytes().into()),
            written => Some(written.into()),
        }
    }
}

/// `~0` is `~`, and `~1` is `/`.
fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('~');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.try_fold(first, |name, part| match part.split_at_checked(1)? {
        ("0", rest) => Some(name + "~" + rest),
        ("1", rest) => Some(name + "/" + rest),
        _ => None,
    })
}

/// A name as it is written in a pointer, in a list or a sum.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1").replace(',', "\\,").replace('+', "\\+")
}

/// The same pointer with each ~ that escapes nothing escaped.
fn tildes_escaped(pointer: &str) -> String {
    let escaped = pointer.replace('~', "~0");
    escaped.replace("~00", "~0").replace("~01", "~1")
}

/// What is left of a pointer, on its way to the value.
struct Rest<'p>(&'p [Box<str>]);

impl<'de> DeserializeSeed<'de> for Rest<'_> {
    type Value = &'de RawValue;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() { Deserialize::deserialize(json) } else { json.deserialize_any(self) }
    }
}

impl<'de> Visitor<'de> for Rest<'_> {
    type Value = &'de RawValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_next) = map.next_key_seed(Name(&self.0[0]))? {
            if is_next {
                found = Some(map.next_value_seed(Rest(&self.0[1..]))?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        found.ok_or_else(|| Error::custom("no such name"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let missing = || Error::custom("no such place");
        for _ in 0..place(&self.0[0]).ok_or_else(missing)? {
            list.next_element::<IgnoredAny>()?.ok_or_else(missing)?;
        }
        let found = list.next_element_seed(Rest(&self.0[1..]))?.ok_or_else(missing)?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// Digits without zeros in front.
fn place(name: &str) -> Option<usize> {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    name.parse().ok().filter(|_| is_number)
}

/// Whether a name in an object is this one. As bytes: other names may be no text, like half a pair of surrogates.
struct Name<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_bytes<E: Error>(self, name: &[u8]) -> Result<bool, E> {
        Ok(name == self.0.as_bytes())
    }
}

/// As it is written in a list.
impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|name| write!(f, "/{}", escaped(name)))
    }
}
