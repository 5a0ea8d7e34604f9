//! Reads the state of a bucket's file, and detects damage.

use super::error::{FileError, failed};
use super::machine::Machine;
use super::place::Place;
use super::slots::{self, Kept, LOG, PREFIX, Prefix, RECORD};
use crate::clock::{MILLISECOND, Nanos};
use crate::ledger::Replica;
use crate::ledger::operation::{Operation, Record};
use crate::limits::Policy;
use crate::store::{MAX_LIMITS, random};
use std::fs::File;

/// A grant is committed when it is due by now and this time.
const HORIZON: Nanos = 10 * MILLISECOND;

/// The newest complete snapshot with its log folded, the prefix in the other slot, and the end of the log.
pub(super) struct Newest {
    /// `None` if `kept` is not the state in the file.
    pub(super) known: Option<Prefix>,
    pub(super) other: Prefix,
    pub(super) kept: Kept,
    pub(super) end: u64,
    /// The message about damage in the file, if there is any.
    pub(super) lost: Option<String>,
}

/// The message about the lost part of a file. The grants in that part are unknown, so everything that the limits allow
/// counts as used.
fn lost_part(what: &str) -> String {
    format!("{what}; its limits count as used up, because its grants are unknown")
}

pub(super) fn newest(place: &Place, file: &File, machine: &Machine) -> Result<Newest, FileError> {
    let both = [prefix(place, file, 0)?, prefix(place, file, 1)?];
    // After the highest number comes 0.
    let newer = usize::from(both[1].number.wrapping_sub(both[0].number).cast_signed() > 0);
    for slot in [newer, 1 - newer] {
        let (known, other) = (both[slot], both[1 - slot]);
        let Some(mut kept) = read_snapshot(place, file, slot, known)? else { continue };
        let mut end = slots::log_of(&known);
        let mut lost = read_log(place, file, known, &mut end, &mut kept)?;
        if other != Prefix::default() && other.number.wrapping_add(1) != known.number {
            lost = Some(lost_part("the newer of its snapshots is lost, and the older one is used"));
        }
        if lost.is_none() {
            return Ok(Newest { known: Some(known), other, kept, end, lost });
        }
        use_up(place, file, machine, &mut kept)?;
        return Ok(Newest { known: None, other: known, kept, end, lost });
    }
    recover(place, file, machine)
}

/// The state if neither slot is complete, for example after a power cut while both were written. The result is a bucket
/// with the recorded policy, in which everything that may have been used counts as used.
fn recover(place: &Place, file: &File, machine: &Machine) -> Result<Newest, FileError> {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    // In every complete file, at least the start of the second slot is written.
    if length <= slots::place(1) {
        return Err(FileError::Damaged(place.path.clone(), Some(length)));
    }
    let policy = recorded(place, file)?.ok_or_else(|| FileError::Damaged(place.path.clone(), None))?;
    let mut kept = first(machine, &policy);
    kept.ledger.use_up(kept.at, random());
    let lost = lost_part("both its snapshots are lost, and only its limits are left");
    Ok(Newest { known: None, other: Prefix::default(), kept, end: 0, lost: Some(lost) })
}

/// The first state of a bucket.
pub(super) fn first(machine: &Machine, policy: &Policy) -> Kept {
    let (now, wall) = (machine.clock.now(), machine.wall());
    Kept { boot: machine.boot, ahead: 0, at: now, wall, ledger: Replica::new(policy, now, random(), HORIZON) }
}

/// Treats everything as used that may have been used between the time of `kept` and now.
pub(super) fn use_up(place: &Place, file: &File, machine: &Machine, kept: &mut Kept) -> Result<(), FileError> {
    let policy = recorded(place, file)?.filter(|policy| policy != kept.ledger.policy());
    if let Some(policy) = policy {
        let operations = vec![Operation::Set(policy, vec![true; MAX_LIMITS])];
        kept.ledger.apply(&Record { time: kept.at, owner: [0; 2], sequence: 0, operations });
    }
    let is_same_boot = kept.boot == machine.boot;
    let now = is_same_boot.then(|| machine.clock.now().saturating_add_signed(kept.ahead));
    kept.ledger.use_up(now.unwrap_or(0).max(kept.at), random());
    Ok(())
}

fn recorded(place: &Place, file: &File) -> Result<Option<Policy>, FileError> {
    let mut bytes = [0; slots::POLICY_SIZE];
    let length = read(place, file, &mut bytes, slots::POLICY)?;
    Ok(slots::decode_policy(&bytes[..length]))
}

/// The prefix of the state in a slot.
pub(super) fn prefix(place: &Place, file: &File, slot: u64) -> Result<Prefix, FileError> {
    let mut bytes = [0; PREFIX];
    let length = read(place, file, &mut bytes, slots::place(slot))?;
    Ok(Prefix::read(&bytes[..length]))
}

fn read_snapshot(place: &Place, file: &File, slot: usize, prefix: Prefix) -> Result<Option<Kept>, FileError> {
    let is_here = slots::place(prefix.number) == slots::place(slot as u64);
    let Some(length) = prefix.length().filter(|_| is_here) else { return Ok(None) };
    let mut bytes = vec![0; PREFIX + length];
    let length = read(place, file, &mut bytes, slots::place(prefix.number))?;
    Ok(slots::decode(&bytes[..length]))
}

/// Folds the complete records from `end` on: mostly few, at most a whole log. Returns the message if a record is damaged.
/// Later records are applied only if they concern pauses and limits.
pub(super) fn read_log(
    place: &Place,
    file: &File,
    known: Prefix,
    end: &mut u64,
    kept: &mut Kept,
) -> Result<Option<String>, FileError> {
    let number = known.number;
    for size in [1_000, slots::longest_log(known.length().unwrap_or(0)) + LOG + RECORD] {
        let mut bytes = vec![0; size];
        let length = read(place, file, &mut bytes, *end)?;
        let mut rest = &bytes[..length];
        while let Some((record, wall, length)) = slots::decode_record(number, *end, rest) {
            kept.ledger.apply(&record);
            (kept.at, kept.wall) = (record.time, wall);
            *end += length as u64;
            rest = &rest[length..];
        }
        let is_at_end = rest.len() >= RECORD && rest.starts_with(&slots::END);
        if is_at_end {
            return Ok(None);
        }
        if size > 1_000 || length < size {
            return Ok(behind_damage(number, *end, rest, kept));
        }
    }
    Ok(None)
}

/// The message if complete records follow `rest`, which begins with an incomplete one. A process that was killed while it
/// wrote a record leaves part of it, but nothing behind it.
fn behind_damage(number: u64, end: u64, mut rest: &[u8], kept: &mut Kept) -> Option<String> {
    use Operation::{Clear, Hold, Resume, Set};
    let (mut count, mut place) = (0, end);
    while let Some(after) = rest.get(1..) {
        let found = slots::decode_record(number, place, rest);
        let length = found.as_ref().map_or(1, |(_, _, length)| *length);
        if let Some((record, wall, _)) = found {
            count += 1;
            (kept.at, kept.wall) = (record.time, wall);
            let is_kept = |operation: &Operation| matches!(operation, Hold { .. } | Resume(_) | Set(..) | Clear { .. });
            let operations = record.operations.into_iter().filter(is_kept).collect();
            kept.ledger.apply(&Record { operations, ..record });
        }
        (rest, place) = (rest.get(length..).unwrap_or(after), place + length as u64);
    }
    // The incomplete record is lost as well.
    let what = || format!("{} operations of its log are lost, and the newer of its snapshots is used", count + 1);
    (count > 0).then(|| lost_part(&what()))
}

/// Reads at an offset, up to the length of `into` or the end of the file.
pub(super) fn read(place: &Place, file: &File, into: &mut [u8], offset: u64) -> Result<usize, FileError> {
    rustix::io::pread(file, into, offset).map_err(|error| failed("read the bucket", &place.path, error))
}
