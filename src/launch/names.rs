//! The units of a command, to name them after its end.

use super::units::Units;
use std::ops::RangeInclusive;

/// The most bytes of a unit that are stored.
const MAX_NAME_BYTES: usize = 200;

/// The memory in bytes for the names of one command's units. Beyond it, only the numbers of units are stored.
const MAX_NAMES_BYTES: usize = 16 * 1024;

/// The units of one command: their numbers in the input, from 1, and their first bytes.
#[derive(Debug, Default)]
pub struct Names {
    numbers: Vec<u64>,
    beginnings: Units,
    rest: Option<(u64, u64)>,
}

impl Names {
    /// Adds a unit, unless the last one has the same number. In that case `unit` is another piece of that unit, or
    /// another try to store it.
    pub fn push(&mut self, number: u64, unit: &[u8]) {
        if self.last() == Some(number) {
            return;
        }
        if self.rest.is_some() || self.memory() > MAX_NAMES_BYTES {
            self.rest = Some((self.rest.map_or(number, |(first, _)| first), number));
        } else {
            self.numbers.push(number);
            self.beginnings.push(&unit[..unit.len().min(MAX_NAME_BYTES)]);
        }
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.rest.map(|(_, last)| last).or(self.numbers.last().copied())
    }

    /// The number and the first bytes of each unit before the [`rest`](Self::rest).
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.numbers.iter().copied().zip(self.beginnings.iter())
    }

    /// The numbers of the units that are stored without their bytes. May include blank units, which were skipped.
    pub fn rest(&self) -> Option<RangeInclusive<u64>> {
        self.rest.map(|(first, last)| first..=last)
    }

    /// The number of units. May include blank units, which were skipped.
    pub(super) fn count(&self) -> u64 {
        let rest = self.rest.map_or(0, |(first, last)| (last - first).saturating_add(1));
        (self.numbers.len() as u64).saturating_add(rest)
    }

    pub(super) fn memory(&self) -> usize {
        self.beginnings.memory() + self.numbers.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_many_units_are_known_by_number_only() {
        let mut names = Names::default();
        let long = [b'x'; 1000];
        for number in 1..=10_000 {
            names.push(number, &long);
            names.push(number, b"piece");
        }
        let known = names.iter().count() as u64;
        assert!((50..100).contains(&known) && names.memory() < 3 * MAX_NAMES_BYTES, "{known} in {}", names.memory());
        assert!(names.iter().all(|(_, name)| name == &long[..MAX_NAME_BYTES]));
        assert_eq!(names.rest(), Some(known + 1..=10_000));
    }
}
