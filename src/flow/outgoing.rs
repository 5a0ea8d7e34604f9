//! Units that leave together.

use super::contract::{FlowError, Passed};
use super::copy::Sink;
use std::io;

/// The output of one turn is written when it has so many bytes. A longer unit is not copied.
const TURN: usize = 128 * 1024;

/// What leaves in one turn.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// A long unit, which is the last.
    long: Vec<u8>,
    /// The length of both.
    taken: usize,
    /// How much of both is written.
    written: usize,
    /// How many units they are.
    units: u64,
    /// The reader did not take all of it at once.
    pub(super) is_stalled: bool,
    /// The reader has stalled, and takes more by now.
    pub(super) can_write: bool,
}

impl Outgoing {
    /// Whether more units may leave in this turn.
    pub(super) fn has_room(&self) -> bool {
        self.taken < TURN
    }

    /// Whether a unit of this length is not copied.
    pub(super) fn is_long(length: usize) -> bool {
        length > TURN
    }

    /// Adds a unit.
    #[inline]
    pub(super) fn add(&mut self, unit: &[u8]) {
        (self.units, self.taken) = (self.units + 1, self.taken + unit.len());
        self.bytes.extend_from_slice(unit);
    }

    /// Adds a unit, the last one if it is long.
    pub(super) fn take(&mut self, unit: Vec<u8>) {
        (self.units, self.taken) = (self.units + 1, self.taken + unit.len());
        if Outgoing::is_long(unit.len()) {
            self.long = unit;
        } else {
            self.bytes.extend_from_slice(&unit);
        }
    }

    /// How many units there are.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// Writes all of it; or, if it is `at_once`, what the reader takes without a wait.
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
