//! The units of one command, and the most bytes that they may take.

use rustix::process::{Resource, getrlimit};
use std::os::unix::ffi::OsStrExt;

/// The longest unit as an argument: a little below the longest argument on Linux (`MAX_ARG_STRLEN`, execve(2)).
pub(super) const LONGEST_UNIT: usize = 128 * 1024 - 1;

/// The most bytes of all units of one command. The system accepts more, but during a start each short word takes six
/// times its size of our memory.
const MAX_BATCH_BYTES: usize = 128 * 1024;

/// The least and the most bytes that Linux allows for all arguments and the environment, depending on the stack limit:
/// execve(2).
const MIN_ARGUMENTS_BYTES: u64 = 128 * 1024;
const MAX_ARGUMENTS_BYTES: u64 = 6 << 20;

/// Bytes reserved for other strings that the system counts: the path of the program, the interpreter of a script, and
/// the variables that we add.
const RESERVE: usize = 4096;

/// The size of a word with its final NUL and its pointer, as execve(2) counts it.
pub(super) fn size_of_word(length: usize) -> usize {
    length + 1 + size_of::<usize>()
}

/// The bytes for units if the other words take `fixed` bytes.
pub(super) fn room_for_units(fixed: usize) -> usize {
    room_for_words().saturating_sub(fixed).min(MAX_BATCH_BYTES)
}

/// The bytes that the system accepts as arguments, without the environment. Each word counts with its final NUL and its
/// pointer.
pub fn room_for_words() -> usize {
    let quarter = getrlimit(Resource::Stack).current.map_or(MAX_ARGUMENTS_BYTES, |stack| stack / 4);
    let all = quarter.clamp(MIN_ARGUMENTS_BYTES, MAX_ARGUMENTS_BYTES);
    usize::try_from(all).unwrap_or(usize::MAX).saturating_sub(size_of_environment() + RESERVE)
}

fn size_of_environment() -> usize {
    let size = |name: &[u8], value: &[u8]| size_of_word(name.len() + 1 + value.len());
    std::env::vars_os().map(|(name, value)| size(name.as_bytes(), value.as_bytes())).sum()
}

/// Units in one allocation: an allocation for each would take many times the memory of a short unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    bytes: Vec<u8>,
    /// The end of each unit. 32 bits are enough, because there is little room for all units.
    ends: Vec<u32>,
}

impl Units {
    pub(super) fn push(&mut self, unit: &[u8]) {
        self.bytes.extend_from_slice(unit);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// The units in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let ends = self.ends.iter().map(|end| *end as usize);
        std::iter::once(0).chain(ends.clone()).zip(ends).map(|(start, end)| &self.bytes[start..end])
    }

    /// The first unit.
    pub fn first(&self) -> Option<&[u8]> {
        self.iter().next()
    }

    pub(super) fn has_nul(&self) -> bool {
        memchr::memchr(0, &self.bytes).is_some()
    }

    /// The memory of the units, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Units {
    fn from_iter<I: IntoIterator<Item = T>>(units: I) -> Self {
        let mut found = Units::default();
        units.into_iter().for_each(|unit| found.push(unit.as_ref()));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_stay_apart_also_empty_ones() {
        let units: Units = ["a", "", "bc"].into_iter().collect();
        assert_eq!(units.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"bc"]);
        assert_eq!(units.first(), Some(&b"a"[..]));
        assert_eq!((Units::default().iter().next(), units.has_nul()), (None, false));
    }
}
