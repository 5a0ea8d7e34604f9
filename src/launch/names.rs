//! Which units a command was given, to name them once it has ended.

use super::units::Units;
use std::ops::RangeInclusive;

/// How much of a unit is kept.
const LENGTH: usize = 200;

/// The memory for the names of one command's units; of the other units only the numbers are kept.
const MEMORY: usize = 16 * 1024;

/// The units of one command, by their number in the input, from 1, and their beginning.
#[derive(Debug, Default)]
pub struct Names {
    numbers: Vec<u64>,
    beginnings: Units,
    rest: Option<(u64, u64)>,
}

impl Names {
    /// Adds nothing if the last one has the same number: then this is another piece of it, or another attempt to hold it.
    pub fn push(&mut self, number: u64, unit: &[u8]) {
        if self.last() == Some(number) {
            return;
        }
        if self.rest.is_some() || self.memory() > MEMORY {
            self.rest = Some((self.rest.map_or(number, |(first, _)| first), number));
        } else {
            self.numbers.push(number);
            self.beginnings.push(&unit[..unit.len().min(LENGTH)]);
        }
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.rest.map(|(_, last)| last).or(self.numbers.last().copied())
    }

    /// The number and the beginning of each, but for the [`rest`](Self::rest).
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.numbers.iter().copied().zip(self.beginnings.iter())
    }

    /// The numbers of those that are too many to be known by name; blank units, which were left out, may be among them.
    pub fn rest(&self) -> Option<RangeInclusive<u64>> {
        self.rest.map(|(first, last)| first..=last)
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
        assert!((50..100).contains(&known) && names.memory() < 3 * MEMORY, "{known} in {}", names.memory());
        assert!(names.iter().all(|(_, name)| name == &long[..LENGTH]));
        assert_eq!(names.rest(), Some(known + 1..=10_000));
    }
}
