//! Bytes held for later: in memory while there is room for all commands together, then in a file without a name.

use super::is_shortage;
use super::temporary::Temporary;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory that all spools share.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Budget { left: Arc::new(AtomicUsize::new(bytes)) }
    }

    fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes in the order they were added.
#[derive(Debug)]
pub(super) struct Spool {
    memory: Vec<u8>,
    file: Option<Temporary>,
    length: u64,
    /// Something did not fit: what follows would stand in the wrong place.
    is_cut: bool,
    budget: Budget,
}

impl Spool {
    pub(super) fn new(budget: &Budget) -> Self {
        Spool { memory: Vec::new(), file: None, length: 0, is_cut: false, budget: budget.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The bytes, where they are all in memory.
    pub(super) fn in_memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.memory)
    }

    /// On an error nothing is added. Where it was no shortage, which passes, nothing more is, either, without a word.
    pub(super) fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_cut {
            return Ok(());
        }
        let added = self.try_add(bytes);
        self.is_cut = added.as_ref().is_err_and(|error| !is_shortage(error));
        added
    }

    fn try_add(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(bytes)?,
            None if self.budget.take(bytes.len()) => self.memory.extend_from_slice(bytes),
            None => self.move_to_file()?.write_all(bytes)?,
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// A file of all the bytes, from its beginning. They are its own then; on an error they stay here.
    pub(super) fn take_file(&mut self) -> io::Result<File> {
        self.move_to_file()?;
        let file = self.file.take().ok_or(io::ErrorKind::NotFound)?;
        self.length = 0;
        file.into_file()
    }

    pub(super) fn copy_to(&mut self, to: &mut impl Write) -> io::Result<()> {
        match &mut self.file {
            None => to.write_all(&self.memory),
            Some(file) => {
                file.seek(SeekFrom::Start(0))?;
                io::copy(&mut file.take(self.length), to).map(drop)
            }
        }
    }

    fn move_to_file(&mut self) -> io::Result<&mut Temporary> {
        if self.file.is_none() {
            let mut file = Temporary::new()?;
            file.write_all(&self.memory)?;
            self.file = Some(file);
            self.free_memory();
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn free_memory(&mut self) {
        self.budget.give_back(self.memory.len());
        self.memory = Vec::new();
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.free_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_shared_memory_a_file_takes_over_and_nothing_is_lost() {
        let budget = Budget::new(10);
        let (mut a, mut b) = (Spool::new(&budget), Spool::new(&budget));
        for bytes in [&b"hello"[..], b" ", b"world"] {
            a.add(bytes).unwrap();
        }
        b.add(b"0123456789").unwrap();
        assert!(a.in_memory().is_none() && b.in_memory().is_some(), "the file gave its memory back");
        let mut copy = Vec::new();
        a.copy_to(&mut copy).unwrap();
        assert_eq!((&copy[..], a.length()), (&b"hello world"[..], 11));
        drop(b);
        assert!(budget.take(10), "a dropped spool gives its memory back");
    }
}
