//! What is kept of attempts that have ended: the list of units that are done, and the log.

use super::task::Again;
use anyhow::Result;
use std::io;
use throttle::flow::framing::Framing;
use throttle::launch::{Ended, Ledger};

/// The files in which it is kept.
#[derive(Debug)]
pub(super) struct Records {}

impl Records {
    /// Opens the files; `None` if there are none.
    ///
    /// # Errors
    /// What cannot be opened, and why.
    pub(super) fn open(_again: &Again, _framing: Framing, _quiet: bool) -> Result<Option<Self>> {
        Ok(None)
    }

    /// Writes all that was recorded to the disk.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(&self) -> Result<()> {
        Ok(())
    }
}

impl Ledger for Records {
    fn record(&self, _ended: &Ended) -> io::Result<()> {
        Ok(())
    }

    fn may_block(&self) -> bool {
        false
    }
}
