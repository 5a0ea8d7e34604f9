//! The format of a bucket's file.
//!
//! The file begins with 64 bytes that never change: a line of text with the version, so that `head -1` shows what the
//! file is. Then comes a record of the policy, which is synced whenever it changes, and two slots, each large enough for
//! any state (the file is sparse). Every new state goes into the
//! slot of the *older* one, with its number and a checksum over everything. A process that is killed while it writes
//! loses only the state it was writing; the other slot is complete. States are not synced: a power cut may leave both
//! slots incomplete, and then the policy goes on with everything used up that may have been used. All numbers are little-endian words of 64 bits.

use crate::clock::Nanos;
use crate::limits::{Line, Policy};

/// The version of the format. Raise it whenever [`encode`] writes the same state in another way. 1 stood for several.
pub(super) const VERSION: u64 = 2;

/// The most limits of one bucket: so many windows always fit in a slot.
pub(super) const MOST_LIMITS: usize = 16;

/// The length of the head in bytes.
pub(super) const HEAD: usize = 64;

/// The offset of the slot for the state of this number.
pub(super) fn place(number: u64) -> u64 {
    4096 + (number % 2) * SLOT
}

/// The size of a slot: 16 windows with two logs of 1025 entries each fill half of it.
pub(super) const SLOT: u64 = 1 << 20;

/// The offset of the record of the policy, which is synced whenever it changes.
pub(super) const POLICY: u64 = HEAD as u64;

/// The most bytes of that record: it ends before the first slot.
pub(super) const POLICY_SIZE: usize = 4096 - HEAD;

/// The most bytes of a window's log: 1025 entries.
const WINDOW: usize = 1025 * 16;

/// The room in bytes that each slot has on the disk from the start: as much as a state of this policy can need.
pub(super) fn room(policy: &Policy) -> usize {
    4096 + policy.windows() * WINDOW
}

const MAGIC: &str = "throttle bucket ";

/// The head of a new file.
pub(super) fn head() -> [u8; HEAD] {
    let mut head = [b' '; HEAD];
    let text = format!("{MAGIC}{VERSION}\n");
    head[..text.len()].copy_from_slice(text.as_bytes());
    head[HEAD - 1] = b'\n';
    head
}

/// The version that a head names; `None` if it is not a head.
pub(super) fn version(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?.strip_prefix(MAGIC)?;
    text.split('\n').next()?.parse().ok()
}

/// Everything that is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The boot of the machine that `ahead` belongs to.
    pub(super) boot: u128,
    /// How far the bucket's clock is ahead of the boot clock.
    pub(super) ahead: i64,
    /// When this was saved, on the bucket's clock.
    pub(super) at: Nanos,
    /// The same moment on the wall clock, in nanoseconds since 1970. Used only after a restart.
    pub(super) wall: u64,
    pub(super) policy: Policy,
    pub(super) line: Line,
}

/// Bytes before a slot's state: its number, its length in words, and a checksum over both and the state.
pub(super) const PREFIX: usize = 24;

/// The record of a policy: its checksum, its length in bytes, and its text. Empty if it is too long.
pub(super) fn encode_policy(policy: &Policy) -> Vec<u8> {
    let mut words = vec![0];
    push_text(&policy.to_lines(), &mut words);
    words[0] = sum(&words);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if bytes.len() > POLICY_SIZE { Vec::new() } else { bytes }
}

/// The policy in its record; `None` if that is not complete.
pub(super) fn decode_policy(bytes: &[u8]) -> Option<Policy> {
    let mut all: Vec<u64> = words(bytes).collect();
    let text = take_text(&mut all.get(1..)?.iter().copied(), bytes.len())?;
    all.truncate(2 + text.len().div_ceil(8));
    let claimed = std::mem::replace(&mut all[0], 0);
    if sum(&all) == claimed { Policy::from_lines(&text) } else { None }
}

fn push_text(text: &str, words: &mut Vec<u64>) {
    words.push(text.len() as u64);
    words.extend(text.as_bytes().chunks(8).map(word));
}

/// The text that `words` begin with, of fewer than `most` bytes.
fn take_text(words: &mut impl Iterator<Item = u64>, most: usize) -> Option<String> {
    let length = usize::try_from(words.next()?).ok().filter(|length| *length < most)?;
    let mut text: Vec<u8> = words.take(length.div_ceil(8)).flat_map(u64::to_le_bytes).collect();
    text.truncate(length);
    String::from_utf8(text).ok()
}

/// The words before a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) number: u64,
    words: u64,
    sum: u64,
}

impl Prefix {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut words = words(bytes);
        let mut next = || words.next().unwrap_or(0);
        Prefix { number: next(), words: next(), sum: next() }
    }

    /// The length of the state in bytes; `None` if no state can be that long.
    pub(super) fn length(&self) -> Option<usize> {
        let bytes = self.words.checked_mul(8)?;
        (bytes > 0 && bytes <= SLOT - PREFIX as u64).then_some(usize::try_from(bytes).ok()?)
    }
}

/// Encodes a slot.
pub(super) fn encode(number: u64, kept: &Kept, words: &mut Vec<u64>, bytes: &mut Vec<u8>) {
    words.clear();
    words.extend([number, 0, 0]);
    words.extend([low(kept.boot), low(kept.boot >> 64), kept.ahead.cast_unsigned(), kept.at, kept.wall]);
    push_text(&kept.policy.to_lines(), words);
    kept.line.save(words);
    words[1] = (words.len() - 3) as u64;
    words[2] = sum(words);
    bytes.clear();
    bytes.resize(words.len() * 8, 0);
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
}

/// The state in a slot; `None` if it is not complete. `before` saves parsing limits that have not changed.
pub(super) fn decode(slot: &[u8], before: Option<&Kept>) -> Option<Kept> {
    let mut all: Vec<u64> = words(slot).collect();
    let claimed = std::mem::replace(all.get_mut(2)?, 0);
    if sum(&all) != claimed {
        return None;
    }
    let mut words = all[3..].iter().copied();
    let boot = u128::from(words.next()?) | u128::from(words.next()?) << 64;
    let (ahead, at, wall) = (words.next()?.cast_signed(), words.next()?, words.next()?);
    let text = take_text(&mut words, slot.len())?;
    let policy = match before {
        Some(before) if before.policy.to_lines() == text => before.policy.clone(),
        _ => Policy::from_lines(&text)?,
    };
    let line = Line::load(&policy, &mut words)?;
    Some(Kept { boot, ahead, at, wall, policy, line })
}

/// Multiplies and rotates, as fast hashes do, four words side by side. It detects half-written states, not forged ones.
fn sum(words: &[u64]) -> u64 {
    let mix = |sum: u64, word: &u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut sums = [words.len() as u64; 4];
    for four in words.chunks(4) {
        sums.iter_mut().zip(four).for_each(|(sum, word)| *sum = mix(*sum, word));
    }
    sums.iter().fold(0, mix)
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
fn low(value: u128) -> u64 {
    value as u64
}

/// Up to eight bytes, filled up with zeros.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    fn kept(limits: &[&str]) -> Kept {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let policy = Policy::new(&limits, None).unwrap();
        let mut limits = Limits::new(&policy, 5);
        let _ = limits.take(7, 1).unwrap();
        Kept { boot: u128::MAX - 5, ahead: -3, at: 7, wall: 11, policy, line: limits.into() }
    }

    fn slot(number: u64, kept: &Kept) -> Vec<u8> {
        let (mut words, mut bytes) = (Vec::new(), Vec::new());
        encode(number, kept, &mut words, &mut bytes);
        bytes
    }

    #[test]
    fn a_written_state_is_read_back() {
        for limits in
            [&["5/s"][..], &["1.5GiB/s,burst=3MiB,initial=7"], &["5/s", "5000/h"], &["1000003/s", "0.5/min,window"]]
        {
            let kept = kept(limits);
            let bytes = slot(9, &kept);
            let prefix = Prefix::read(&bytes);
            assert_eq!((prefix.number, prefix.length()), (9, Some(bytes.len() - PREFIX)));
            assert_eq!(decode(&bytes, None).as_ref(), Some(&kept));
            assert_eq!(decode(&bytes, Some(&kept)).as_ref(), Some(&kept));
        }
    }

    /// If the writer is killed at any point, or any bit flips, the slot is not complete.
    #[test]
    fn an_incomplete_slot_is_not_read() {
        let (kept, other) = (kept(&["5/s", "5000/h"]), kept(&["7/s"]));
        let (bytes, old) = (slot(9, &kept), slot(7, &other));
        for length in 0..bytes.len() {
            let mut torn = bytes[..length].to_vec();
            torn.extend(old.iter().skip(length));
            torn.resize(bytes.len(), 0);
            assert!(torn == bytes || decode(&torn, None).is_none(), "{length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped, None), None, "bit {bit}");
        }
    }

    #[test]
    fn the_largest_state_fits_a_slot() {
        let policy = Policy::new(&vec!["1024/h,window".parse().unwrap(); MOST_LIMITS], None).unwrap();
        let mut limits = Limits::new(&policy, 0);
        let hour = 3_600_000_000_000;
        for grant in 0..4000 {
            let _ = limits.take(grant * hour / 1024, 1).unwrap();
        }
        let bytes = slot(1, &Kept { boot: 0, ahead: 0, at: 0, wall: 0, policy, line: limits.into() });
        assert!((bytes.len() as u64) < SLOT, "{} bytes", bytes.len());
    }

    /// If this fails, a file of the version before would be called damaged: raise [`VERSION`], then change this number.
    #[test]
    fn another_way_to_write_a_state_has_another_version() {
        let mut kept = kept(&["5/s,burst=2", "3000/h,window"]);
        for units in [3, 2, 1] {
            let _ = kept.line.take_within(9, &[units, 1], Nanos::MAX, || [4, 5]).unwrap();
        }
        let all = [encode_policy(&kept.policy), slot(9, &kept)].concat();
        assert_eq!((VERSION, sum(&words(&all).collect::<Vec<_>>())), (2, 15_049_908_619_863_135_909));
    }

    #[test]
    fn a_head_tells_its_version() {
        assert_eq!(version(&head()), Some(VERSION));
        assert_eq!(version(b"throttle bucket 27\n   "), Some(27));
        assert_eq!((version(b""), version(b"#!/bin/sh\n"), version(&[0xff; 64])), (None, None, None));
    }
    /// With the checksum of a whole state in front of them.
    fn forged(words: &[u64]) -> Vec<u8> {
        let mut words = [&[9, words.len() as u64, 0], words].concat();
        words[2] = sum(&words);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_state_or_none(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
            words in proptest::collection::vec(proptest::prop_oneof![0_u64..4, proptest::prelude::any::<u64>()], 0..40),
        ) {
            let _ = (version(&bytes), decode_policy(&bytes), decode(&bytes, None), Prefix::read(&bytes).length());
            let _ = decode(&forged(&words), None);
            // The same words behind a head and a policy that are whole, each of a kind of its own.
            for limit in ["5/s", "5000/h,window"] {
                let mut state = vec![1, 0, 0, 7, 11];
                push_text(&format!("{limit}\n"), &mut state);
                state.extend(&words);
                if let Some(kept) = decode(&forged(&state), None) {
                    proptest::prop_assert_eq!(decode(&slot(9, &kept), None), Some(kept));
                }
            }
        }
    }
}
