//! A set of identities that takes little memory: at most 32 B for each, and 64 KiB.
//!
//! A table of the standard library doubles: it takes up to 39 B, and 58 B while it grows. This one is in parts, which grow
//! one at a time, by half. An identity is a hash already, and says its place itself (linear probing).

use throttle::launch::Identity;

const PARTS: usize = 256;

/// The least size of a part that holds something.
const LEAST: usize = 16;

#[derive(Debug)]
pub(super) struct Identities(Vec<Part>);

/// An identity of 0 marks an empty place. No unit with this identity is known; it would not be found, and would run again.
#[derive(Clone, Debug, Default)]
struct Part {
    places: Vec<u128>,
    taken: usize,
}

impl Default for Identities {
    fn default() -> Self {
        Identities(vec![Part::default(); PARTS])
    }
}

impl Identities {
    pub(super) fn contains(&self, Identity(hash): Identity) -> bool {
        let part = &self.0[part(hash)];
        !part.places.is_empty() && part.places[part.find(hash)] == hash && hash != 0
    }

    /// Returns whether it is new.
    pub(super) fn insert(&mut self, Identity(hash): Identity) -> bool {
        self.0[part(hash)].insert(hash)
    }

    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|part| part.taken as u64).sum()
    }
}

/// The first byte.
fn part(hash: u128) -> usize {
    (hash >> 120) as usize
}

impl Part {
    fn insert(&mut self, hash: u128) -> bool {
        // Between a bit more than a half and four fifths of the places are taken: 20 to 30 B for each.
        if self.taken * 5 >= self.places.len() * 4 {
            let larger = vec![0; LEAST.max(self.places.len() / 2 * 3)];
            for old in std::mem::replace(&mut self.places, larger) {
                let place = self.find(old);
                self.places[place] = old;
            }
        }
        let place = self.find(hash);
        let is_new = self.places[place] == 0;
        self.taken += usize::from(is_new);
        self.places[place] = hash;
        is_new
    }

    /// The place of `hash`, or an empty place for it. There always is one.
    fn find(&self, hash: u128) -> usize {
        let size = self.places.len();
        let place = ((hash & u128::from(u64::MAX)) * size as u128) >> 64;
        let first = usize::try_from(place).unwrap_or(0);
        let is_here = |place: &usize| [0, hash].contains(&self.places[*place]);
        (first..size).chain(0..first).find(is_here).unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_finds_what_was_added_and_nothing_else_in_at_most_32_bytes_each() {
        let mut set = Identities::default();
        let identity = |number: u64| Identity::of(&number.to_ne_bytes());
        let count = 50_000;
        for number in 0..count {
            assert!(!set.contains(identity(number)));
            set.insert(identity(number));
            set.insert(identity(number / 2));
            if number % 1000 == 999 {
                assert_eq!(set.len(), number + 1, "no unit counts twice");
                let places: usize = set.0.iter().map(|part| part.places.capacity()).sum();
                assert!(places as u64 * 16 <= set.len() * 32 + 64 * 1024, "{places} places for {}", set.len());
            }
        }
        assert!((0..count).all(|number| set.contains(identity(number))));
        assert!(!(count..2 * count).any(|number| set.contains(identity(number))));
    }

    #[test]
    fn identities_with_the_same_place_stay_apart_also_at_the_end_of_a_part() {
        let (mut set, last) = (Identities::default(), u128::from(u64::MAX));
        let (known, unknown): (Vec<u128>, Vec<u128>) =
            (1..60).map(|number| number << 64 | last).partition(|n| n >> 64 < 50);
        for hash in &known {
            set.insert(Identity(*hash));
        }
        assert!(known.iter().all(|hash| set.contains(Identity(*hash))));
        assert!(!unknown.iter().any(|hash| set.contains(Identity(*hash))));
        set.insert(Identity(0));
        assert!(!set.contains(Identity(0)), "rather run twice than never");
    }
}
