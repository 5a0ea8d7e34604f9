//! Stores bytes for later: a few in memory, more in a file without a name.

use super::temporary::{explained, is_shortage};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The most bytes of one spool in memory: 16 commands with two outputs each take up to 1 MiB.
const MAX_MEMORY: usize = 32 * 1024;

/// The most bytes in memory while the system has no room for another open file.
const MAX_MEMORY_WITHOUT_FILES: usize = 8 * MAX_MEMORY;

/// The same for a spool that cannot wait for a file.
const MUCH_MEMORY_WITHOUT_FILES: usize = 64 << 20;

/// Bytes copied at once.
const COPY_BYTES: u64 = 8 * 1024;

/// Bytes in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    /// The file with all bytes, once they do not fit into memory. The position of the file stays at its beginning, so
    /// that a command that gets the file reads all bytes.
    file: Option<File>,
    length: u64,
    uses_more_memory: bool,
}

impl Spool {
    /// From now on, up to 64 MiB stay in memory while the system has no room for another open file.
    pub(super) fn use_more_memory(&mut self) {
        self.uses_more_memory = true;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The bytes, unless they are in a file.
    pub(super) fn in_memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.memory)
    }

    /// Returns a file with the bytes, and empties the spool. The file is at its first position. On an error, the spool
    /// keeps the bytes.
    pub(super) fn take_file(&mut self) -> io::Result<File> {
        self.move_to_file()?;
        std::mem::take(self).file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn copy_to(&self, to: &mut impl Write) -> io::Result<()> {
        self.copy(0..self.length, to)
    }

    /// Writes the bytes in this range to `to`.
    pub(super) fn copy(&self, mut bytes: Range<u64>, to: &mut impl Write) -> io::Result<()> {
        let Some(file) = &self.file else {
            let [start, end] = [bytes.start, bytes.end].map(|place| usize::try_from(place).unwrap_or(usize::MAX));
            return to.write_all(self.memory.get(start..end).unwrap_or_default());
        };
        let mut buffer = Vec::new();
        while !bytes.is_empty() {
            let length = COPY_BYTES.min(bytes.end - bytes.start);
            buffer.resize(usize::try_from(length).unwrap_or_default(), 0);
            file.read_exact_at(&mut buffer, bytes.start).map_err(explained)?;
            to.write_all(&buffer)?;
            bytes.start += length;
        }
        Ok(())
    }

    /// A second spool with the same bytes.
    pub(super) fn duplicate(&self) -> io::Result<Self> {
        let mut copy = Spool::default();
        self.copy_to(&mut copy).map(|()| copy)
    }

    fn move_to_file(&mut self) -> io::Result<&File> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let file = tempfile::tempfile().and_then(|file| file.write_all_at(&self.memory, 0).map(|()| file));
                let file = none.insert(file.map_err(explained)?);
                self.memory = Vec::new();
                Ok(file)
            }
        }
    }
}

/// Adds all bytes, or none on an error.
impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (start, length) = (self.length, self.memory.len() + bytes.len());
        let without_files = if self.uses_more_memory { MUCH_MEMORY_WITHOUT_FILES } else { MAX_MEMORY_WITHOUT_FILES };
        let fits = |memory| self.file.is_none() && length <= memory;
        let (fits_now, fits_without_files) = (fits(MAX_MEMORY), fits(without_files));
        let file = if fits_now { None } else { Some(self.move_to_file()) };
        match file {
            Some(Err(error)) if !(fits_without_files && is_shortage(&error)) => return Err(error),
            Some(Ok(file)) => file.write_all_at(bytes, start).map_err(explained)?,
            _ => self.memory.extend_from_slice(bytes),
        }
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_memory_move_to_a_file_and_none_is_lost() {
        let (mut spool, mut expected) = (Spool::default(), Vec::new());
        for piece in [vec![b'1'; MAX_MEMORY], b"2".to_vec(), vec![b'3'; 3 * MAX_MEMORY]] {
            assert_eq!(spool.in_memory().is_some(), expected.len() <= MAX_MEMORY);
            spool.write_all(&piece).unwrap();
            expected.extend(piece);
            let (mut copy, mut end) = (Vec::new(), Vec::new());
            spool.copy_to(&mut copy).unwrap();
            spool.copy(spool.length() - 1..spool.length(), &mut end).unwrap();
            assert!(copy == expected && end == expected[expected.len() - 1..] && spool.length() == copy.len() as u64);
        }
        assert_eq!(spool.memory.capacity(), 0, "the file has replaced the memory");
        let file = std::io::read_to_string(spool.take_file().unwrap()).unwrap();
        assert!(file.into_bytes() == expected && spool.is_empty(), "it is read from its beginning");
    }
}
