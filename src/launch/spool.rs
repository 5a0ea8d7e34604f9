//! Bytes held for later: a little in memory, more in a file without a name.

use super::temporary::{Temporary, is_shortage};
use std::fs::File;
use std::io::{self, Write};

/// The most bytes of one spool in memory: 16 commands with two outputs each take up to 1 MiB.
const MEMORY: usize = 32 * 1024;

/// The same while the system has no room for another open file.
const MEMORY_WITHOUT_FILES: usize = 8 * MEMORY;

/// Bytes in the order they were added.
#[derive(Debug, Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    /// All of the bytes, once they are too many for memory.
    file: Option<Temporary>,
    /// Something did not fit: what follows would be in the wrong place.
    is_cut: bool,
}

impl Spool {
    pub(super) fn is_empty(&self) -> bool {
        self.length() == 0
    }

    pub(super) fn length(&self) -> u64 {
        self.file.as_ref().map_or(self.memory.len() as u64, |file| file.length)
    }

    /// The bytes, unless they are in a file.
    pub(super) fn in_memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.memory)
    }

    /// On an error nothing is added. Unless that was a shortage, which is transient, later bytes are dropped silently.
    pub(super) fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_cut {
            return Ok(());
        }
        let length = self.memory.len() + bytes.len();
        if self.file.is_none() && length <= MEMORY {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let added = match self.move_to_file() {
            Err(error) if is_shortage(&error) && length <= MEMORY_WITHOUT_FILES => {
                self.memory.extend_from_slice(bytes);
                return Ok(());
            }
            file => file.and_then(|file| file.write_all(bytes)),
        };
        self.is_cut = added.as_ref().is_err_and(|error| !is_shortage(error));
        added
    }

    /// A file of all the bytes, from its beginning. The spool is empty then; on an error it keeps the bytes.
    pub(super) fn take_file(&mut self) -> io::Result<File> {
        self.move_to_file()?;
        self.file.take().map(|temporary| temporary.file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn copy_to(&self, to: &mut impl Write) -> io::Result<()> {
        match &self.file {
            None => to.write_all(&self.memory),
            Some(file) => file.copy(0..file.length, to),
        }
    }

    /// Another spool with the same bytes.
    pub(super) fn duplicate(&self) -> io::Result<Self> {
        let mut copy = Spool::default();
        self.copy_to(&mut Adding(&mut copy))?;
        Ok(copy)
    }

    fn move_to_file(&mut self) -> io::Result<&mut Temporary> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let mut file = Temporary::new()?;
                file.write_all(&self.memory)?;
                self.memory = Vec::new();
                Ok(none.insert(file))
            }
        }
    }
}

struct Adding<'a>(&'a mut Spool);

impl Write for Adding<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.add(bytes).map(|()| bytes.len())
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
        for piece in [vec![b'1'; MEMORY], b"2".to_vec(), vec![b'3'; 3 * MEMORY]] {
            assert_eq!(spool.in_memory().is_some(), expected.len() <= MEMORY);
            spool.add(&piece).unwrap();
            expected.extend(piece);
        }
        assert_eq!(spool.memory.capacity(), 0, "the file has replaced the memory");
        let mut copy = Vec::new();
        spool.copy_to(&mut copy).unwrap();
        assert!(copy == expected && spool.length() == expected.len() as u64);
        let file = std::io::read_to_string(spool.take_file().unwrap()).unwrap();
        assert!(file.into_bytes() == expected && spool.is_empty(), "it is read from its beginning");
    }
}
