//! A write that waits for no reader, in any mode of the pipe and beside any other writer.

use super::contract::FlowError;
use super::copy::Descriptor;
use super::copy::write_all;
use rustix::fd::AsFd;
use rustix::fs::FileType;
use std::io;

/// A pipe takes so much as a whole or not at all (`PIPE_BUF`, pipe(7)).
const WHOLE: usize = 4096;

/// Writes all of `bytes` to `fd`, if nobody has to read for that. Otherwise writes none and gives `None`. That it is ready
/// for writing would not be enough to know: somebody else may write to the same pipe first, and a terminal may take less.
pub fn write_at_once(fd: impl AsFd, bytes: &[u8]) -> Option<io::Result<()>> {
    let mode = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_mode);
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Some(write_all(&mut Descriptor(fd), bytes, &mut 0).map_err(|error| match error {
            FlowError::Read(error) | FlowError::Hold(error) | FlowError::Write(error) => error,
        })),
        // A socket may take a part.
        FileType::Fifo | FileType::CharacterDevice if bytes.len() <= WHOLE => whole_or_nothing(fd, bytes),
        _ => None,
    }
}

/// Linux 6.4 and later know this flag for pipes, none does for terminals.
#[cfg(target_os = "linux")]
fn whole_or_nothing(fd: impl AsFd, bytes: &[u8]) -> Option<io::Result<()>> {
    use rustix::io::{Errno, ReadWriteFlags, pwritev2};
    // The offset stands for none; see pwritev2(2).
    match pwritev2(&fd, &[io::IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Ok(written) if written == bytes.len() => Some(Ok(())),
        Ok(_) => Some(Err(io::ErrorKind::WriteZero.into())),
        Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// There is no such write here.
#[cfg(not(target_os = "linux"))]
fn whole_or_nothing(_fd: impl AsFd, _bytes: &[u8]) -> Option<io::Result<()>> {
    None
}
