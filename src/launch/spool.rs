//! Bytes held for later: in memory while there is room for all commands together, then in a file without a name.

use super::temporary::{Temporary, is_shortage};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all commands' output together may take in memory.
pub(super) const MEMORY: usize = 1 << 20;

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

/// Memory is taken in pieces, small enough for the allocator to use again for anything else. The first begins smaller.
const PIECE: usize = 32 * 1024;
const LEAST_PIECE: usize = 64;

/// Bytes in the order they were added.
#[derive(Debug)]
pub(super) struct Spool {
    /// Their capacity is granted by the budget; all but the last are full.
    memory: Vec<Vec<u8>>,
    granted: usize,
    file: Option<Temporary>,
    length: u64,
    /// Something did not fit: what follows would stand in the wrong place.
    is_cut: bool,
    budget: Budget,
}

impl Spool {
    pub(super) fn new(budget: &Budget) -> Self {
        Spool { memory: Vec::new(), granted: 0, file: None, length: 0, is_cut: false, budget: budget.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The bytes, if they are all in memory and in one piece.
    pub(super) fn in_memory(&self) -> Option<&[u8]> {
        match &self.memory[..] {
            [] if !self.is_in_file() => Some(&[]),
            [bytes] => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn is_in_file(&self) -> bool {
        self.file.is_some()
    }

    /// On an error nothing is added. Unless that was a shortage, which is transient, later bytes are dropped silently.
    pub(super) fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_cut {
            return Ok(());
        }
        let added = self.try_add(bytes);
        self.is_cut = added.as_ref().is_err_and(|error| !is_shortage(error));
        added
    }

    fn try_add(&mut self, bytes: &[u8]) -> io::Result<()> {
        let rest = self.add_to_memory(bytes);
        if !rest.is_empty() {
            let added = self.move_to_file().and_then(|file| file.write_all(rest));
            added.inspect_err(|_| self.forget_what_was_not_added())?;
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Adds what there is room for, and gives back the rest.
    fn add_to_memory<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() && !self.is_in_file() {
            let Some(piece) = self.piece_with_room(bytes.len()) else { break };
            let (now, later) = bytes.split_at(bytes.len().min(piece.capacity() - piece.len()));
            piece.extend_from_slice(now);
            bytes = later;
        }
        bytes
    }

    /// The piece that the next of `bytes` more belong to, grown for as many of them as it may hold; `None` where the budget
    /// does not grant that.
    fn piece_with_room(&mut self, bytes: usize) -> Option<&mut Vec<u8>> {
        if self.memory.last().is_none_or(|piece| piece.len() == PIECE) {
            self.memory.push(Vec::new());
        }
        let is_first = self.memory.len() == 1;
        let piece = self.memory.last_mut()?;
        let least = if is_first { LEAST_PIECE } else { PIECE };
        let wanted = (piece.len() + bytes).next_power_of_two().clamp(least, PIECE);
        let more = wanted.saturating_sub(piece.capacity());
        if more > 0 {
            self.granted += self.budget.take(more).then_some(more)?;
            piece.reserve_exact(wanted - piece.len());
        }
        Some(piece)
    }

    fn forget_what_was_not_added(&mut self) {
        let mut left = usize::try_from(self.length).unwrap_or(usize::MAX);
        for piece in &mut self.memory {
            piece.truncate(left);
            left -= piece.len();
        }
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
            None => self.memory.iter().try_for_each(|piece| to.write_all(piece)),
            Some(file) => {
                file.seek(SeekFrom::Start(0))?;
                io::copy(&mut file.take(self.length), to).map(drop)
            }
        }
    }

    fn move_to_file(&mut self) -> io::Result<&mut Temporary> {
        if self.file.is_none() {
            let mut file = Temporary::new()?;
            self.memory.iter().try_for_each(|piece| file.write_all(piece))?;
            self.file = Some(file);
            self.free_memory();
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn free_memory(&mut self) {
        self.memory = Vec::new();
        self.budget.give_back(std::mem::take(&mut self.granted));
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
        let budget = Budget::new(LEAST_PIECE);
        let (mut a, mut b) = (Spool::new(&budget), Spool::new(&budget));
        for bytes in [&[b'1'; 50][..], &[b'2'; 14], &[b'3'; 1]] {
            a.add(bytes).unwrap();
        }
        b.add(b"0123456789").unwrap();
        assert!(a.in_memory().is_none() && b.in_memory().is_some(), "the file gave its memory back");
        let mut copy = Vec::new();
        a.copy_to(&mut copy).unwrap();
        assert_eq!((copy, a.length()), ([[b'1'; 50].to_vec(), [b'2'; 14].to_vec(), b"3".to_vec()].concat(), 65));
        drop(b);
        assert!(budget.take(LEAST_PIECE), "a dropped spool gives its memory back");
    }

    #[test]
    fn memory_is_counted_as_it_is_taken_not_as_it_is_used() {
        let budget = Budget::new(3 * PIECE);
        let mut spool = Spool::new(&budget);
        let bytes: Vec<u8> = (0..=250).cycle().take(PIECE + 1000).collect();
        bytes.chunks(777).for_each(|chunk| spool.add(chunk).unwrap());
        let taken: usize = spool.memory.iter().map(Vec::capacity).sum();
        assert_eq!((taken, spool.granted, spool.in_memory()), (2 * PIECE, 2 * PIECE, None));
        let mut copy = Vec::new();
        spool.copy_to(&mut copy).unwrap();
        assert!(copy == bytes && budget.take(PIECE) && !budget.take(1));
    }

    #[test]
    fn what_was_added_in_part_is_forgotten_before_it_is_added_again() {
        let mut spool = Spool::new(&Budget::new(LEAST_PIECE));
        spool.add(b"whole ").unwrap();
        assert_eq!(spool.add_to_memory(&[b'x'; 100]), &[b'x'; 100], "it takes all of a small piece or nothing");
        spool.memory[0].extend_from_slice(b"part");
        spool.forget_what_was_not_added();
        assert_eq!(spool.in_memory(), Some(&b"whole "[..]));
    }
}
