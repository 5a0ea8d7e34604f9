//! The units of one command, and how much of them one command can take.

use rustix::process::{Resource, getrlimit};
use std::os::unix::ffi::OsStrExt;

/// A little under the longest argument on Linux (`MAX_ARG_STRLEN`, execve(2)).
pub(super) const LONGEST_UNIT: usize = 128 * 1024 - 1;

/// The most that all units of one command take. The system would take more, but while a command starts, each short word
/// takes six times its size of our memory.
const LARGEST_BATCH: usize = 128 * 1024;

/// The least and the most that Linux takes for all arguments and the environment, depending on the stack: execve(2).
const LEAST_FOR_ALL: u64 = 128 * 1024;
const MOST_FOR_ALL: u64 = 6 << 20;

/// For other strings that count: the path of the program, the interpreter of a script, what we add to the environment.
const RESERVE: usize = 4096;

/// With its end and the pointer to it, as execve(2) counts.
pub(super) fn size_of_word(length: usize) -> usize {
    length + 1 + size_of::<usize>()
}

/// The room for units if the other words take `fixed` bytes in all.
pub(super) fn room_for_units(fixed: usize) -> usize {
    room_for_words().saturating_sub(fixed).min(LARGEST_BATCH)
}

/// What the system takes as arguments, without the environment: bytes, each word with its end and the pointer to it.
pub fn room_for_words() -> usize {
    let quarter = getrlimit(Resource::Stack).current.map_or(MOST_FOR_ALL, |stack| stack / 4);
    let all = quarter.clamp(LEAST_FOR_ALL, MOST_FOR_ALL);
    usize::try_from(all).unwrap_or(usize::MAX).saturating_sub(size_of_environment() + RESERVE)
}

fn size_of_environment() -> usize {
    let size = |name: &[u8], value: &[u8]| size_of_word(name.len() + 1 + value.len());
    std::env::vars_os().map(|(name, value)| size(name.as_bytes(), value.as_bytes())).sum()
}

/// Units end to end: an allocation for each would take many times the memory of a short one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    bytes: Vec<u8>,
    /// Where each ends; 32 bits are enough, as there is little room for all of them.
    ends: Vec<u32>,
}

impl Units {
    pub(super) fn push(&mut self, unit: &[u8]) {
        self.bytes.extend_from_slice(unit);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let ends = self.ends.iter().map(|end| *end as usize);
        std::iter::once(0).chain(ends.clone()).zip(ends).map(|(start, end)| &self.bytes[start..end])
    }

    /// The first of them.
    pub fn first(&self) -> Option<&[u8]> {
        self.iter().next()
    }

    pub(super) fn has_nul(&self) -> bool {
        memchr::memchr(0, &self.bytes).is_some()
    }

    /// The memory they take.
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
