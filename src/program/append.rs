//! Appending records to a file.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};

/// Writes `bytes` to a file that was opened for appending. It is one write if the system accepts all bytes at once.
///
/// # Errors
/// A write failed, for example on a full disk. The bytes that were already written are cut off again, unless another
/// process has appended since.
pub(super) fn append(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return cut(file, bytes.len() - rest.len(), ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return cut(file, bytes.len() - rest.len(), error),
        }
    }
    Ok(())
}

fn cut(mut file: &File, written: usize, error: io::Error) -> io::Result<()> {
    if let (1.., Ok(end), Ok(found)) = (written, file.stream_position(), file.metadata())
        && found.is_file()
        && found.len() == end
    {
        // Best effort: the next process that opens the file detects an incomplete record.
        let _ = file.set_len(end - written as u64);
    }
    Err(error)
}
