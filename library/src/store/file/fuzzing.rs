//! A bucket's file with any content: see [`crate::fuzzing`].

use super::slots::{self, HEAD, PREFIX, Prefix, RECORD};
use super::{File, Machine, Place};
use crate::clock::Nanos;
use crate::clock::{FakeClock, SECOND};
use crate::ledger::operation::{Ask, Operation};
use crate::limits::{Policy, from_bytes, to_bytes};
use crate::store::Store;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A bucket's file: it is refused, or units can be taken from it, and then it reads back the same.
///
/// `data` is a byte of flags; the lengths of the start of the file and of its first slot, 16 bits each; and the bytes of the
/// start, of the first slot, and of the second slot. The flags name the parts whose version or checksums are corrected.
pub fn bucket_file(data: &[u8]) {
    thread_local!(static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder for buckets"));
    let Some((&[flags, a, b, c, d], rest)) = data.split_first_chunk() else { return };
    let [start, one] = [[a, b], [c, d]].map(|length| usize::from(u16::from_le_bytes(length)));
    let (start, rest) = rest.split_at(start.min(rest.len()));
    let (one, two) = rest.split_at(one.min(rest.len()));
    let [mut start, mut one, mut two] = [start, one, two].map(<[u8]>::to_vec);
    if flags & 1 > 0 {
        start.splice(..start.len().min(HEAD), slots::head());
        let policy = start.get(HEAD + 8..).and_then(from_bytes::<Policy>);
        if let Some((policy, _)) = policy {
            start.splice(HEAD.., slots::encode_policy(&policy));
        }
    }
    for (slot, bytes) in [(0, &mut one), (1, &mut two)] {
        if flags & (2 << slot) > 0 {
            correct(slot, bytes);
        }
    }
    let path = FOLDER.with(|folder| folder.path().join("bucket"));
    let file = fs::File::create(&path).expect("a file of this process");
    for (part, offset) in [(start, 0), (one, slots::place(0)), (two, slots::place(1))] {
        file.write_all_at(&part, offset).expect("room for a file");
    }
    used(&Place { path, own_folder: false, group: None });
}

/// Corrects the number, the length and the checksums of a snapshot and its log.
fn correct(slot: u64, bytes: &mut [u8]) {
    let Some((head, rest)) = bytes.split_first_chunk_mut::<PREFIX>() else { return };
    let prefix = Prefix::read(head);
    let length = prefix.length().unwrap_or(usize::MAX).min(rest.len());
    let (state, mut log) = rest.split_at_mut(length);
    let prefix = Prefix::of(prefix.number & !1 | slot, state);
    *head = prefix.bytes();
    let mut offset = slots::log_of(&prefix);
    while let Some((head, rest)) = log.split_first_chunk_mut::<RECORD>() {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let Some((record, behind)) = rest.split_at_mut_checked(length as usize).filter(|_| length > 0) else { return };
        head[4..].copy_from_slice(&slots::sum_of_record(prefix.number, offset, record).to_le_bytes());
        (offset, log) = (offset + (RECORD + record.len()) as u64, behind);
    }
}

fn used(place: &Place) {
    let (clock, is_damaged) = (FakeClock::at(Duration::from_secs(1000)), Arc::new(AtomicBool::new(false)));
    let reported = Arc::clone(&is_damaged);
    let machine = Machine::fake(&clock, 1, SECOND).telling(move |_| reported.store(true, Ordering::Relaxed));
    let open = || File::open_until(machine.clone(), place.clone(), None, None);
    let _ = File::look(machine.clone(), place.clone(), None);
    let Ok(store) = open() else { return };
    let of_key = Some(b"key"[..].into());
    for (ticket, key, costs) in [(1, None, &[1, 3][..]), (2, of_key, &[2, 1]), (3, None, &[u64::MAX])] {
        let ask = Ask { ticket, key, costs: costs.into(), latest: Nanos::MAX, settles: ticket == 1, ..Ask::default() };
        // Refused, or the state fits into no slot.
        let _ = store.send(vec![Operation::Ask(vec![ask])]);
        let _ = store.view();
        clock.advance(Duration::from_secs(100_000));
    }
    let Ok(_) = store.send(vec![Operation::Resume(None)]) else { return };
    is_damaged.store(false, Ordering::Relaxed);
    let again = open().expect("a bucket that was written can be opened");
    assert!(!is_damaged.load(Ordering::Relaxed), "a bucket that was written is damaged");
    assert_eq!(to_bytes(&again.handle().kept), to_bytes(&store.handle().kept), "it reads back the same");
}
