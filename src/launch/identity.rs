//! Identifies units by their bytes.

use sha2::{Digest, Sha256};
use std::fmt::{Display, Formatter, Result};

/// The identity of a unit: the first 128 bits of the SHA-256 of its bytes, without its delimiter.
///
/// A weaker hash is not safe. Units may come from strangers, such as file names in their folders or addresses on a
/// page. A stranger could craft two units with the same weak hash; the second would be mistaken for the first and
/// silently never run. A keyed hash would differ in the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(pub u128);

impl Identity {
    /// The identity of one unit.
    pub fn of(unit: &[u8]) -> Self {
        Sha256::new_with_prefix(unit).into()
    }

    /// The identity of a command's units. A single unit has its own identity. Several units are hashed together: for
    /// each, its length (64 bits, big-endian) and its bytes.
    pub fn of_all<'a>(units: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut hash = Sha256::new();
        let are_many = units.clone().nth(1).is_some();
        for unit in units {
            if are_many {
                hash.update((unit.len() as u64).to_be_bytes());
            }
            hash.update(unit);
        }
        hash.into()
    }
}

/// Converts a hash that was fed a unit's bytes.
impl From<Sha256> for Identity {
    fn from(hash: Sha256) -> Self {
        Identity(hash.finalize().iter().take(16).fold(0, |all, byte| all << 8 | u128::from(*byte)))
    }
}

/// Writes 32 hexadecimal digits, the output of `printf %s UNIT | sha256sum | head -c 32`.
impl Display for Identity {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(units: &[&str]) -> Identity {
        Identity::of_all(units.iter().map(|unit| unit.as_bytes()))
    }

    /// The first vector is from FIPS 180-4, the second from `printf '' | sha256sum`.
    #[test]
    fn an_identity_is_the_beginning_of_the_sha256_in_hexadecimal() {
        assert_eq!(Identity::of(b"abc").to_string(), "ba7816bf8f01cfea414140de5dae2223");
        assert_eq!(Identity::of(b"").to_string(), "e3b0c44298fc1c149afbf4c8996fb924");
        assert_eq!(Identity(7).to_string(), format!("{:0>32}", 7));
    }

    #[test]
    fn a_unit_in_pieces_is_the_same_unit() {
        let unit: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut hash = Sha256::new();
        unit.chunks(7).for_each(|piece| hash.update(piece));
        assert_eq!(Identity::from(hash), Identity::of(&unit));
    }

    #[test]
    fn several_units_are_not_taken_for_others_with_the_same_bytes() {
        assert_eq!(all(&["abc"]), Identity::of(b"abc"));
        let others = [all(&["abc"]), all(&["a", "bc"]), all(&["ab", "c"]), all(&["abc", ""]), all(&["", "abc"])];
        for (place, one) in others.iter().enumerate() {
            assert!(!others[..place].contains(one), "{others:?}");
        }
    }
}
