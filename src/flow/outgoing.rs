//! Collects units that leave together.

use super::contract::Passed;
use super::copy::Sink;
use super::error::FlowError;
use std::io;

/// The size in bytes at which no more units join the output of one turn. A unit longer than this is not copied.
const MAX_TURN_BYTES: usize = 128 * 1024;

/// The output of one turn: the units that leave together.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// A long unit. It leaves after `bytes`, and no unit follows it in this turn.
    long: Vec<u8>,
    /// The length of `bytes` and `long` together, in bytes.
    taken: usize,
    /// The number of these bytes that were written.
    written: usize,
    /// The number of units in `bytes` and `long`.
    units: u64,
    /// Whether the reader took only a part of the output at once.
    pub(super) is_stalled: bool,
    /// Whether the reader takes output again after a stall.
    pub(super) can_write: bool,
}

impl Outgoing {
    /// Whether more units may leave in this turn.
    pub(super) fn has_room(&self) -> bool {
        self.taken < MAX_TURN_BYTES
    }

    /// Whether a unit of this length is not copied.
    pub(super) fn is_long(length: usize) -> bool {
        length > MAX_TURN_BYTES
    }

    /// Adds a unit.
    #[inline]
    pub(super) fn add(&mut self, unit: &[u8]) {
        (self.units, self.taken) = (self.units + 1, self.taken + unit.len());
        self.bytes.extend_from_slice(unit);
    }

    /// Adds an owned unit. A long unit must be the last.
    pub(super) fn take(&mut self, unit: Vec<u8>) {
        (self.units, self.taken) = (self.units + 1, self.taken + unit.len());
        if Outgoing::is_long(unit.len()) {
            self.long = unit;
        } else {
            self.bytes.extend_from_slice(&unit);
        }
    }

    /// The number of units.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// Writes the whole output. With `at_once`, writes only the bytes that the reader takes without a wait.
    pub(super) fn write(&mut self, sink: &mut impl Sink, at_once: bool, passed: &mut Passed) -> Result<(), FlowError> {
        self.can_write = false;
        loop {
            let in_long = self.written.saturating_sub(self.bytes.len());
            let rest = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()).unwrap_or(&self.long[in_long..]);
            self.is_stalled = !rest.is_empty();
            if !self.is_stalled {
                passed.units += std::mem::take(&mut self.units);
                (self.long, self.taken, self.written) = (Vec::new(), 0, 0);
                self.bytes.clear();
                return Ok(());
            }
            let written = if at_once { sink.write_at_once(rest) } else { sink.write(rest).map(Some) };
            match written.map_err(FlowError::Write)? {
                None => return Ok(()),
                Some(0) => return Err(FlowError::Write(io::ErrorKind::WriteZero.into())),
                Some(more) => (self.written, passed.bytes) = (self.written + more, passed.bytes + more as u64),
            }
        }
    }
}
