//! Why units cannot be moved.

use std::io;
use thiserror::Error;

/// Why units cannot be moved.
#[derive(Debug, Error)]
pub enum FlowError {
    /// The source could not be read.
    #[error("read")]
    Read(#[source] io::Error),
    /// Units could not be stored until they may leave.
    #[error("hold")]
    Hold(#[source] io::Error),
    /// A unit can never leave: its number in the input, its first bytes, and the reason.
    #[error("unit {0}: {2}")]
    Refused(u64, Box<[u8]>, String),
    /// The sink could not be written.
    #[error("write")]
    Write(#[source] io::Error),
}
