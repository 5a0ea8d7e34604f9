//! Values as bytes, in the format of the crate postcard: a small number takes few bytes. The same value has the same
//! bytes on every machine.

use serde::{Deserialize, Serialize};

pub(crate) fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a vector grows")
}

/// The value at the start of `bytes`, and the rest; `None` if there is no such value.
pub(crate) fn from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes).ok()
}
