//! JSON Pointers (RFC 6901). Only the value at the end of the pointer is stored; the other values are skipped while
//! reading.

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The most names of a JSON Pointer. The parser can descend 127 levels.
const MAX_POINTER_NAMES: usize = 100;

/// A JSON Pointer of at least one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer(Box<[Box<str>]>);

impl Pointer {
    /// Parses the pointer at the beginning of `text`. The pointer ends before the first character of `ends` that has no
    /// backslash before it.
    pub(super) fn read<'a>(text: &'a str, ends: &[char]) -> Result<(Self, &'a str), String> {
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
        let tilde = || format!("in a JSON Pointer ~0 is a ~ and ~1 is a /; write {}", tildes_escaped(pointer));
        let names = names.ok_or_else(tilde)?;
        if names.len() > MAX_POINTER_NAMES {
            return Err(format!("a JSON Pointer has at most {MAX_POINTER_NAMES} names, like /user/id"));
        }
        Ok((Pointer(names), rest))
    }

    /// The value in `unit` at this pointer: a decoded string, or a number or boolean as written.
    pub(super) fn of<'a>(&self, unit: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let mut json = serde_json::Deserializer::from_slice(unit);
        let value = Rest(&self.0).deserialize(&mut json).ok()?;
        json.end().ok()?;
        let value = value?.get();
        match value.as_bytes() {
            [b'{' | b'[' | b'n', ..] => None,
            [b'"', text @ .., b'"'] if memchr::memchr(b'\\', text).is_none() => Some(text.into()),
            [b'"', ..] => serde_json::from_str::<String>(value).ok().map(|text| text.into_bytes().into()),
            written => Some(written.into()),
        }
    }
}

/// Decodes `~0` to `~`, and `~1` to `/`.
fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('~');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.try_fold(first, |name, part| match part.split_at_checked(1)? {
        ("0", rest) => Some(name + "~" + rest),
        ("1", rest) => Some(name + "/" + rest),
        _ => None,
    })
}

/// Encodes a name for a pointer in a list or a sum.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1").replace(',', "\\,").replace('+', "\\+")
}

/// Escapes each `~` of a pointer that does not begin `~0` or `~1`.
fn tildes_escaped(pointer: &str) -> String {
    let escaped = pointer.replace('~', "~0");
    escaped.replace("~00", "~0").replace("~01", "~1")
}

/// The rest of a pointer's names on the way to its value. A missing name gives no value, but no error: an object may
/// have equal names, and the last one counts.
struct Rest<'p>(&'p [Box<str>]);

impl<'de> DeserializeSeed<'de> for Rest<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() { Deserialize::deserialize(json).map(Some) } else { json.deserialize_any(self) }
    }
}

impl<'de> Visitor<'de> for Rest<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_next) = map.next_key_seed(Name(&self.0[0]))? {
            if is_next {
                found = map.next_value_seed(Rest(&self.0[1..]))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let place = place(&self.0[0]);
        for _ in 0..place.unwrap_or(0) {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = if place.is_some() { list.next_element_seed(Rest(&self.0[1..]))?.flatten() } else { None };
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Parses an index of a list: digits without leading zeros.
fn place(name: &str) -> Option<usize> {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    name.parse().ok().filter(|_| is_number)
}

/// Compares a name in an object with this name, as bytes: other names in the object may be invalid text, such as half
/// of a surrogate pair.
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

/// Writes the pointer as in a list, with escaped commas and plus signs.
impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|name| write!(f, "/{}", escaped(name)))
    }
}
