//! A write that never blocks, even if the descriptor is in blocking mode and other processes write to the same pipe.

use super::contract::FlowError;
use super::copy::Descriptor;
use super::copy::{WHOLE, write_all};
use rustix::fd::AsFd;
use rustix::fs::FileType;
use std::io;

/// Writes all of `bytes` to `fd` if that is possible without a wait for its reader. Otherwise writes nothing and returns
/// `None`. To poll for readiness first would not be enough: another process may write to the same pipe in between, and a
/// terminal may accept less.
pub fn write_at_once(fd: impl AsFd, bytes: &[u8]) -> Option<io::Result<()>> {
    let mode = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_mode);
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Some(write_all(&mut Descriptor(fd), bytes, &mut 0).map_err(|error| match error {
            FlowError::Read(error) | FlowError::Hold(error) | FlowError::Write(error) => error,
            refused @ FlowError::Refused(..) => io::Error::other(refused),
        })),
        // A socket may accept a part of it.
        FileType::Fifo | FileType::CharacterDevice if bytes.len() <= WHOLE => whole_or_nothing(fd, bytes),
        _ => None,
    }
}

/// Linux supports this flag for pipes since 6.4, and for terminals not at all.
#[cfg(target_os = "linux")]
fn whole_or_nothing(fd: impl AsFd, bytes: &[u8]) -> Option<io::Result<()>> {
    use rustix::io::{Errno, ReadWriteFlags, pwritev2};
    // This offset means the current one; see pwritev2(2).
    match pwritev2(&fd, &[io::IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Ok(written) if written == bytes.len() => Some(Ok(())),
        Ok(_) => Some(Err(io::ErrorKind::WriteZero.into())),
        Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Other systems have no such write.
#[cfg(not(target_os = "linux"))]
fn whole_or_nothing(_fd: impl AsFd, _bytes: &[u8]) -> Option<io::Result<()>> {
    None
}
