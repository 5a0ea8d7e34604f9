//! Records at the end of a file.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};

/// Writes `bytes` to a file that was opened to append: in one write, if the system takes all of them at once.
///
/// # Errors
/// A part of the bytes that a full disk had room for is cut off again, unless another process appended since.
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
        // Best effort: an incomplete record is found when the file is opened again.
        let _ = file.set_len(end - written as u64);
    }
    Err(error)
}
