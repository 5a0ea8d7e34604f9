//! The format of a bucket's file.
//!
//! The file begins with 64 bytes that never change: a line of text with the version, so that `head -1` shows what the
//! file is. Then comes a record of the policy, which is synced whenever it changes, and two slots (the file is sparse).
//!
//! A slot holds a snapshot of the ledger, with its number and a checksum over everything, and then the log of later
//! operations. When the log has grown, the next snapshot goes into the *older* slot, with an empty log.
//!
//! A process that is killed while it writes loses only that write. The prefix of a slot is zeros until its snapshot is
//! complete, and zeros follow the last record of a log. Any other checksum error is damage: the bucket then goes on as
//! if everything that may have been used was used.
//!
//! Slots are not synced. A power cut may leave both slots incomplete, and then only the policy survives. All numbers
//! are little-endian.

use crate::clock::Nanos;
use crate::ledger::operation::Record;
use crate::ledger::{MAX_RETURNABLE, Replica};
use crate::limits::{Policy, from_bytes, to_bytes};
use serde::{Deserialize, Serialize};

/// The version of the format. Raise it whenever the same ledger is encoded differently, or the same operations lead to
/// another ledger.
pub(super) const VERSION: u64 = 18;

/// The length of the head in bytes.
pub(super) const HEAD: usize = 64;

/// The offset of the slot for the state of this number.
pub(super) fn place(number: u64) -> u64 {
    4096 + (number % 2) * SLOT
}

/// The size of a slot: the largest snapshot and its log fit.
pub(super) const SLOT: u64 = 1 << 24;

/// The most bytes of a log before it is folded into the next snapshot. After a long snapshot the log may be longer: see
/// `SNAPSHOT_PER_LOG`.
pub(super) const LOG: usize = 1 << 12;
const SNAPSHOT_PER_LOG: usize = 8;

/// The most bytes of the log after a snapshot of this length.
pub(super) fn longest_log(snapshot: usize) -> usize {
    LOG.max(snapshot / SNAPSHOT_PER_LOG)
}

/// The offset of the record of the policy, which is synced whenever it changes.
pub(super) const POLICY: u64 = HEAD as u64;

/// The most bytes of that record.
pub(super) const POLICY_SIZE: usize = 4088 - HEAD;

/// The offset of the time of the last sweep, in 8 bytes: it ends before the first slot.
pub(super) const SWEPT: u64 = 4088;

/// The most bytes of a window's log: 1025 entries.
const WINDOW: usize = 1025 * 10;

/// The most bytes of a grant that can be given back, with its flow.
const GRANT: usize = 160;

/// The bytes on disk that each slot occupies from the start: the most that a state of this policy can need, but for
/// requests, keys and commands that run.
pub(super) fn room(policy: &Policy) -> usize {
    let snapshot = 4096 + policy.windows() * WINDOW + MAX_RETURNABLE * GRANT;
    snapshot + longest_log(snapshot)
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

/// The version in a head; `None` if the bytes are not a head.
pub(super) fn version(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?.strip_prefix(MAGIC)?;
    text.split('\n').next()?.parse().ok()
}

/// Everything in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The boot of the machine for which `ahead` holds.
    pub(super) boot: u128,
    /// How far the bucket's clock is ahead of the boot clock.
    pub(super) ahead: i64,
    /// When this was saved, on the bucket's clock.
    pub(super) at: Nanos,
    /// The same moment on the wall clock, in nanoseconds since 1970. Used only after a restart.
    pub(super) wall: u64,
    pub(super) ledger: Replica,
}

/// The number of bytes before a snapshot: the snapshot's number and length, and a checksum over both and the snapshot.
pub(super) const PREFIX: usize = 24;

/// The most bytes of a snapshot: its log fits behind it.
pub(super) const MAX_SNAPSHOT_BYTES: u64 = SLOT / 16 * 13;

/// The number of bytes before a record of the log: the record's length, and a checksum. See [`sum_of_record`].
pub(super) const RECORD: usize = 12;

/// The bytes after the last record of a log.
pub(super) const END: [u8; RECORD] = [0; RECORD];

/// The record of a policy: its checksum, its length in bytes, and its text. Empty if it is too long.
pub(super) fn encode_policy(policy: &Policy) -> Vec<u8> {
    let text = to_bytes(policy);
    let bytes = [&sum(&[], &text).to_le_bytes()[..], &text].concat();
    if bytes.len() > POLICY_SIZE { Vec::new() } else { bytes }
}

/// The policy in its record; `None` if the record is incomplete.
pub(super) fn decode_policy(bytes: &[u8]) -> Option<Policy> {
    let (claimed, rest) = bytes.split_first_chunk()?;
    let (policy, behind) = from_bytes(rest)?;
    let is_whole = sum(&[], &rest[..rest.len() - behind.len()]) == u64::from_le_bytes(*claimed);
    is_whole.then_some(policy)
}

/// The numbers before a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) number: u64,
    length: u64,
    sum: u64,
}

impl Prefix {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut words = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut next = || words.next().unwrap_or(0);
        Prefix { number: next(), length: next(), sum: next() }
    }

    /// The prefix of this snapshot.
    pub(super) fn of(number: u64, state: &[u8]) -> Self {
        let length = state.len() as u64;
        Prefix { number, length, sum: sum(&[number, length], state) }
    }

    pub(super) fn bytes(&self) -> [u8; PREFIX] {
        let mut bytes = [0; PREFIX];
        bytes.as_chunks_mut().0.copy_from_slice(&[self.number, self.length, self.sum].map(u64::to_le_bytes));
        bytes
    }

    /// The length of the snapshot in bytes; `None` if that length is impossible.
    pub(super) fn length(&self) -> Option<usize> {
        let is_possible = self.length > 0 && self.length <= MAX_SNAPSHOT_BYTES;
        is_possible.then_some(usize::try_from(self.length).ok()?)
    }
}

/// The bytes of a slot with a snapshot and an empty log, but without `END`.
pub(super) fn encode(number: u64, kept: &Kept) -> Vec<u8> {
    let state = to_bytes(kept);
    [&Prefix::of(number, &state).bytes()[..], &state].concat()
}

/// The snapshot in a slot; `None` if it is incomplete.
pub(super) fn decode(slot: &[u8]) -> Option<Kept> {
    let prefix = Prefix::read(slot);
    let state = slot.get(PREFIX..PREFIX + prefix.length()?)?;
    let is_whole = Prefix::of(prefix.number, state) == prefix;
    is_whole.then(|| from_bytes(state)).flatten().map(|(kept, _)| kept)
}

/// Where the log after this snapshot begins in the file.
pub(super) fn log_of(snapshot: &Prefix) -> u64 {
    place(snapshot.number) + (PREFIX as u64) + snapshot.length
}

/// A record for the log of the slot with this snapshot, at this offset of the file.
pub(super) fn encode_record(number: u64, offset: u64, wall: u64, record: &Record) -> Vec<u8> {
    let record = to_bytes(&(wall, record));
    let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
    let sum = sum_of_record(number, offset, &record);
    [&length.to_le_bytes()[..], &sum.to_le_bytes(), &record].concat()
}

/// The first record in `bytes`, its time on the wall clock, and its length; `None` if it is incomplete.
pub(super) fn decode_record(number: u64, offset: u64, bytes: &[u8]) -> Option<(Record, u64, usize)> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (claimed, rest) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    let record = rest.get(..usize::try_from(length).ok()?).filter(|record| !record.is_empty())?;
    if sum_of_record(number, offset, record) != u64::from_le_bytes(*claimed) {
        return None;
    }
    let ((wall, read), _) = from_bytes(record)?;
    Some((read, wall, RECORD + record.len()))
}

/// The checksum of a record at this offset, in the log of the snapshot with this number.
pub(super) fn sum_of_record(number: u64, offset: u64, record: &[u8]) -> u64 {
    sum(&[number, offset, record.len() as u64], record)
}

/// Multiplies and rotates, as fast hashes do, on four words in parallel. It detects incomplete writes, not forgeries.
fn sum(numbers: &[u64], bytes: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut sums = [numbers.iter().fold(bytes.len() as u64, |sum, number| mix(sum, *number)); 4];
    let (words, rest) = bytes.as_chunks();
    let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    for four in words.chunks(4) {
        sums.iter_mut().zip(four).for_each(|(sum, word)| *sum = mix(*sum, u64::from_le_bytes(*word)));
    }
    sums.iter().fold(rest, |sum, word| mix(sum, *word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::operation::{Ask, Operation};
    use crate::store::MAX_LIMITS;

    fn kept(limits: &[&str]) -> Kept {
        let limits: Vec<_> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let policy = Policy::new(&limits, None).unwrap();
        let mut ledger = Replica::new(&policy, 5, 0, 10);
        ledger.apply(&record(7));
        Kept { boot: u128::MAX - 5, ahead: -3, at: 7, wall: 11, ledger }
    }

    fn record(time: Nanos) -> Record {
        let ask = Ask { ticket: time, costs: [1].into(), latest: Nanos::MAX, ..Ask::default() };
        Record { time, owner: [1, 2], sequence: 0, operations: vec![Operation::Ask(vec![ask])] }
    }

    #[test]
    fn a_written_snapshot_is_read_back() {
        for limits in
            [&["5/s"][..], &["1.5GiB/s,burst=3MiB,initial=7"], &["5/s", "5000/h"], &["1000003/s", "0.5/min,window"]]
        {
            let kept = kept(limits);
            let bytes = encode(9, &kept);
            let prefix = Prefix::read(&bytes);
            assert_eq!((prefix.number, prefix.length()), (9, Some(bytes.len() - PREFIX)));
            assert_eq!(decode(&bytes).map(|kept| encode(9, &kept)), Some(bytes));
        }
    }

    /// If the writer is killed at any point, or any bit flips, the slot is not complete.
    #[test]
    fn an_incomplete_snapshot_is_not_read() {
        let (kept, other) = (kept(&["5/s", "5000/h"]), kept(&["7/s"]));
        let (bytes, old) = (encode(9, &kept), encode(7, &other));
        for length in 1..bytes.len() {
            let mut torn = bytes[..length].to_vec();
            torn.extend(old.iter().skip(length));
            torn.resize(bytes.len(), 0);
            assert!(torn == bytes || decode(&torn).is_none(), "{length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn an_incomplete_record_is_not_there() {
        let bytes = encode_record(9, 500, 11, &record(7));
        assert_eq!(decode_record(9, 500, &bytes), Some((record(7), 11, bytes.len())));
        assert_eq!(decode_record(8, 500, &bytes), None, "from an earlier use of the slot");
        assert_eq!(decode_record(9, 501, &bytes), None, "at another place");
        for length in 0..bytes.len() {
            let torn = [&bytes[..length], &vec![0; bytes.len() - length]].concat();
            assert!(torn == bytes || decode_record(9, 500, &torn).is_none(), "{length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_record(9, 500, &flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn the_largest_snapshot_fits_a_slot() {
        let policy = Policy::new(&vec!["1024/h,window".parse().unwrap(); MAX_LIMITS], None).unwrap();
        let mut ledger = Replica::new(&policy, 0, 0, 10);
        let hour = 3_600_000_000_000;
        for grant in 0..4000 {
            ledger.apply(&record(grant * hour / 1024));
        }
        let bytes = encode(1, &Kept { boot: 0, ahead: 0, at: 0, wall: 0, ledger });
        assert!((bytes.len() as u64) < SLOT - 2 * LOG as u64, "{} bytes", bytes.len());
    }

    #[test]
    fn a_head_tells_its_version() {
        assert_eq!(version(&head()), Some(VERSION));
        assert_eq!(version(b"throttle bucket 27\n   "), Some(27));
        assert_eq!((version(b""), version(b"#!/bin/sh\n"), version(&[0xff; 64])), (None, None, None));
    }

    /// Both kinds of stores hold the same ledger, and their messages show the same format number.
    #[test]
    fn files_and_servers_have_one_format() {
        let (script, error) = (include_str!("../redis/log.lua"), include_str!("../redis/error.rs"));
        assert!(script.contains(&format!("key = '{VERSION}'")) && error.contains(&format!("reads format {VERSION};")));
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_a_bucket_or_none(
            flags: u8, start in proptest::collection::vec(proptest::num::u8::ANY, 0..200), one: Vec<u8>, two: Vec<u8>,
        ) {
            let data = |start: &[u8], one: &[u8]| {
                let lengths = [start, one].map(|part| u16::try_from(part.len()).unwrap().to_le_bytes());
                [&[flags], lengths.as_flattened(), start, one, &two].concat()
            };
            crate::fuzzing::bucket_file(&data(&start, &one));
            // The same bytes behind a complete head and policy, for both kinds of limits.
            for limit in ["5/s", "5000/h,window"] {
                let state = [to_bytes(&(1_u128, 0_i64, 7_u64, 11_u64, limit)), one.clone()].concat();
                let slot = [&Prefix::of(8, &state).bytes()[..], &state].concat();
                crate::fuzzing::bucket_file(&data(&start, &slot));
            }
        }
    }
}
