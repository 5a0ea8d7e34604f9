//! The hashes of keys.

use std::hash::{BuildHasher, Hasher, RandomState};

/// SipHash-1-3 with random keys, so nobody can choose keys that collide; by J.-P. Aumasson and D. J. Bernstein. The
/// implementation in std collects bytes into words, which takes longer than the hash of a number. This one begins a
/// word with each value.
#[derive(Clone, Copy)]
pub(crate) struct Hashes([u64; 2]);

pub(crate) struct Words {
    state: [u64; 4],
    words: u64,
}

impl Hashes {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        Hashes([0, 1].map(|number: u64| random.hash_one(number)))
    }
}

impl BuildHasher for Hashes {
    type Hasher = Words;

    #[inline]
    fn build_hasher(&self) -> Words {
        let Hashes([one, two]) = *self;
        let initial = [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
        let [a, b, c, d] = initial;
        Words { state: [a ^ one, b ^ two, c ^ one, d ^ two], words: 0 }
    }
}

#[inline]
fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[inline]
fn with_word([a, b, c, d]: [u64; 4], word: u64) -> [u64; 4] {
    let [a, b, c, d] = round([a, b, c, d ^ word]);
    [a ^ word, b, c, d]
}

impl Hasher for Words {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.write_u64(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
        // The last word also contains the number of text bytes in it, so no two texts give the same words.
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        last[7] = u8::try_from(words.remainder().len()).unwrap_or(7);
        self.write_u64(u64::from_le_bytes(last));
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.state = with_word(self.state, value);
        self.words += 1;
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let [a, b, c, d] = with_word(self.state, self.words << 59);
        let [a, b, c, d] = round(round(round([a, b, c ^ 0xff, d])));
        a ^ b ^ c ^ d
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{DefaultHasher, Hash};

    /// The hasher of std, made like this, has the keys 0 and 0.
    #[test]
    fn the_hash_of_a_number_is_that_of_std() {
        for number in [0, 1, 4711, u64::MAX] {
            let mut std = DefaultHasher::new();
            number.hash(&mut std);
            assert_eq!(Hashes([0; 2]).hash_one(number), std.finish());
            let mut std = DefaultHasher::new();
            (number, 7_u64, number).hash(&mut std);
            assert_eq!(Hashes([0; 2]).hash_one((number, 7_u64, number)), std.finish());
        }
        assert_eq!(Hashes([0; 2]).hash_one(4711_usize), Hashes([0; 2]).hash_one(4711_u64));
    }

    /// The test vectors of the reference implementation: keys and texts are the bytes 0, 1, 2 and so on.
    #[test]
    fn the_hash_with_keys_is_that_of_the_reference() {
        let hasher = || Hashes([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]).build_hasher();
        assert_eq!(hasher().finish(), 0xabac_0158_050f_c4dc);
        let mut eight = hasher();
        eight.write_u64(0x0706_0504_0302_0100);
        assert_eq!(eight.finish(), 0x3690_9511_8d29_9a8e);
    }

    #[test]
    fn texts_that_differ_have_other_hashes_and_also_with_other_keys() {
        let texts = (0..40).flat_map(|length| [0, b'a', 255].map(|byte| vec![byte; length]));
        let mut hashes = HashSet::new();
        for (text, keys) in texts.flat_map(|text| [(text.clone(), [1, 2]), (text, [1, 3])]) {
            hashes.insert(Hashes(keys).hash_one(&text[..]));
        }
        assert_eq!(hashes.len(), 2 * (1 + 39 * 3));
        assert_ne!(Hashes::new().hash_one("a"), Hashes::new().hash_one("a"));
        assert_ne!(Hashes([1, 2]).hash_one(("a", "bc")), Hashes([1, 2]).hash_one(("ab", "c")));
    }
}
