//! Framing: cuts a stream of bytes into units and stores them until they are released.

use memchr::{memchr_iter, memrchr, memrchr_iter};
use std::io;

/// The longest unit that is stored as a whole, in bytes, with its delimiter.
pub const LARGEST: usize = (64 << 20) + 1;

/// How the input is cut into units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Every byte is a unit.
    Bytes,
    /// A unit ends with this byte, which is part of it. The last unit may lack it.
    EndedBy(u8),
}

/// A unit without its delimiter.
pub fn trimmed(unit: &[u8], delimiter: Option<u8>) -> &[u8] {
    match unit {
        [text @ .., last] if Some(*last) == delimiter => text,
        text => text,
    }
}

/// The least room for a read, in bytes. With less, the buffer moves its contents to the front.
const MIN_READ_BYTES: usize = 64 * 1024;

/// Input that was read and not yet released, and the number of complete units in it.
///
/// Its size is fixed, unless it [grows](Self::growing) for a long unit. A unit larger than the buffer is never stored
/// complete: see [`outgrown`](Self::outgrown).
#[derive(Debug)]
pub struct Buffer {
    framing: Framing,
    data: Vec<u8>,
    /// The usual size, and the largest size.
    size: usize,
    most: usize,
    start: usize,
    end: usize,
    /// The end of the last complete unit.
    whole: usize,
    waiting: u64,
    input_ended: bool,
}

impl Buffer {
    /// A buffer of `size` bytes, at least one.
    pub fn new(framing: Framing, size: usize) -> Self {
        let size = size.max(1);
        Buffer {
            framing,
            data: vec![0; size],
            size,
            most: size,
            start: 0,
            end: 0,
            whole: 0,
            waiting: 0,
            input_ended: false,
        }
    }

    /// This buffer, but it grows up to `most` bytes while it holds the beginning of a long unit.
    #[must_use]
    pub fn growing(self, most: usize) -> Self {
        Buffer { most: most.max(self.size), ..self }
    }

    /// Grows, if the buffer is full and may grow.
    ///
    /// # Errors
    /// The system has no memory left.
    pub fn make_room(&mut self) -> io::Result<()> {
        if self.held() == self.data.len() && self.data.len() < self.most {
            let length = (self.data.len() + self.size).min(self.most);
            self.data.try_reserve(length - self.data.len())?;
            self.data.resize(length, 0);
        }
        Ok(())
    }

    /// The room for more input; empty only if the buffer is full.
    pub fn space(&mut self) -> &mut [u8] {
        if self.data.len() - self.end < MIN_READ_BYTES {
            self.data.copy_within(self.start..self.end, 0);
            (self.end, self.whole) = (self.end - self.start, self.whole - self.start);
            self.start = 0;
        }
        // Little is read after the end of a long unit, so that the unit can be taken out without a copy.
        let room = if self.is_large() { self.size } else { usize::MAX };
        let end = self.data.len().min(self.end.saturating_add(room));
        &mut self.data[self.end..end]
    }

    /// Marks the first `bytes` of [`space`](Self::space) as input.
    pub fn filled(&mut self, bytes: usize) {
        let new = self.end..self.end + bytes;
        self.end = new.end;
        match self.framing {
            Framing::Bytes => {
                self.whole = self.end;
                self.waiting = self.held() as u64;
            }
            Framing::EndedBy(byte) => {
                self.waiting += memchr_iter(byte, &self.data[new.clone()]).count() as u64;
                if let Some(last) = memrchr(byte, &self.data[new.clone()]) {
                    self.whole = new.start + last + 1;
                }
            }
        }
    }

    /// Marks the end of the input. The rest of the input is a unit.
    pub fn input_ended(&mut self) {
        self.input_ended = true;
        if self.whole < self.end {
            self.whole = self.end;
            self.waiting += 1;
        }
    }

    /// The number of complete units in the buffer.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The number of units in the buffer, including a unit that was read in part.
    pub fn units(&self) -> u64 {
        self.waiting + u64::from(self.whole.max(self.start) < self.end)
    }

    /// Whether the buffer is full and holds no complete unit.
    pub fn outgrown(&self) -> bool {
        self.waiting == 0 && self.held() == self.most
    }

    /// The first unit without its delimiter; `None` if it is not complete.
    pub fn first(&self) -> Option<&[u8]> {
        (self.waiting > 0).then(|| trimmed(self.run(1), self.delimiter()))
    }

    /// The first unit as far as it was read, without its delimiter.
    pub fn beginning(&self) -> &[u8] {
        trimmed(self.piece().0, self.delimiter())
    }

    /// Whether the buffer is empty and no more input will come.
    pub fn is_finished(&self) -> bool {
        self.input_ended && self.start == self.end
    }

    /// Whether the buffer has room for more input and more may come. Units that were taken out still hold `taken` bytes
    /// of the memory that the buffer may grow to.
    pub fn wants_more(&self, taken: usize) -> bool {
        let may_grow = self.waiting == 0 && self.data.len() < self.most.saturating_sub(taken);
        let has_room = self.held() < self.data.len() && !(self.is_large() && self.waiting > 0);
        !self.input_ended && (has_room || may_grow)
    }

    /// The bytes of the first `units` units, at most all complete units.
    pub fn run(&self, units: u64) -> &[u8] {
        &self.data[self.start..self.end_of(units)]
    }

    /// Takes out the first unit, without a copy if it is long.
    pub fn take_first(&mut self) -> Vec<u8> {
        let unit = self.start..self.end_of(1);
        if unit.len() <= self.size {
            let taken = self.data[unit.clone()].to_vec();
            self.release_run(1, unit.len());
            return taken;
        }
        (self.start, self.waiting) = (unit.end, self.waiting - 1);
        let mut taken = self.shrink();
        taken.truncate(unit.end);
        taken.drain(..unit.start);
        taken
    }

    /// The number of units that end within the first `bytes` bytes of the buffer.
    pub fn units_within(&self, bytes: usize) -> u64 {
        match self.framing {
            Framing::Bytes => bytes as u64,
            Framing::EndedBy(byte) => memchr_iter(byte, &self.data[self.start..self.start + bytes]).count() as u64,
        }
    }

    /// Drops the first `units` units.
    pub fn release(&mut self, units: u64) {
        self.release_run(units, self.end_of(units) - self.start);
    }

    /// Drops the first `units` units, which are `bytes` long. Their ends are not searched again.
    pub fn release_run(&mut self, units: u64, bytes: usize) {
        self.start += bytes;
        self.waiting -= units.min(self.waiting);
        if bytes > self.size {
            self.shrink();
        }
        self.rewind();
    }

    /// The bytes of a unit that is passed in pieces, and whether they include its end.
    pub fn piece(&self) -> (&[u8], bool) {
        if self.waiting > 0 { (self.run(1), true) } else { (&self.data[self.start..self.end], false) }
    }

    /// Drops the piece that [`piece`](Self::piece) returned.
    pub fn release_piece(&mut self) {
        if self.waiting > 0 {
            return self.release(1);
        }
        (self.start, self.whole) = (self.end, self.end);
        if self.is_large() {
            self.shrink();
        }
        self.rewind();
    }

    /// The delimiter, if there is one.
    pub fn delimiter(&self) -> Option<u8> {
        match self.framing {
            Framing::Bytes => None,
            Framing::EndedBy(byte) => Some(byte),
        }
    }

    /// Whether the buffer has grown.
    fn is_large(&self) -> bool {
        self.data.len() > self.size
    }

    fn held(&self) -> usize {
        self.end - self.start
    }

    fn end_of(&self, units: u64) -> usize {
        let Some(last) = units.checked_sub(1) else { return self.start };
        if units >= self.waiting {
            return self.whole;
        }
        match self.framing {
            Framing::Bytes => self.start + place(units),
            Framing::EndedBy(byte) => {
                let held = &self.data[self.start..self.whole];
                let remaining = self.waiting - units;
                let end = if units <= remaining {
                    memchr_iter(byte, held).nth(place(last))
                } else {
                    // The last unit may lack its delimiter; then there is one delimiter less.
                    let ends_behind = if held.last() == Some(&byte) { remaining } else { remaining - 1 };
                    memrchr_iter(byte, held).nth(place(ends_behind))
                };
                end.map_or(self.whole, |end| self.start + end + 1)
            }
        }
    }

    /// If the buffer is empty, lets it fill from its front again, because the front is still in the CPU cache.
    fn rewind(&mut self) {
        if self.start == self.end {
            (self.start, self.end, self.whole) = (0, 0, 0);
        }
    }

    /// Replaces the memory by memory of the usual size, which must have room for the contents. Returns the old memory.
    fn shrink(&mut self) -> Vec<u8> {
        let (held, mut data) = (self.held(), vec![0; self.size]);
        data[..held].copy_from_slice(&self.data[self.start..self.end]);
        (self.start, self.end, self.whole) = (0, held, self.whole.saturating_sub(self.start));
        std::mem::replace(&mut self.data, data)
    }
}

/// Converts a number of units to a position. A number beyond any buffer becomes a position beyond any buffer.
fn place(units: u64) -> usize {
    usize::try_from(units).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `input` in pieces of the given sizes and releases `take` units at a time.
    fn through(input: &[u8], framing: Framing, size: usize, cuts: &[usize], take: u64) -> Vec<Vec<u8>> {
        let mut buffer = Buffer::new(framing, size);
        let (mut units, mut rest) = (Vec::<Vec<u8>>::new(), input);
        let mut cuts = cuts.iter().cycle();
        let mut open = false;
        loop {
            let space = buffer.space();
            let length = space.len().min(rest.len()).min(*cuts.next().unwrap());
            space[..length].copy_from_slice(&rest[..length]);
            buffer.filled(length);
            rest = &rest[length..];
            if rest.is_empty() && !buffer.input_ended {
                buffer.input_ended();
            }
            while buffer.outgrown() || (open && buffer.held() > 0) {
                let (piece, last) = buffer.piece();
                if open {
                    units.last_mut().unwrap().extend(piece);
                } else {
                    units.push(piece.to_vec());
                }
                open = !last;
                buffer.release_piece();
            }
            while buffer.waiting() > 0 {
                for _ in 0..take.min(buffer.waiting()) {
                    units.push(buffer.run(1).to_vec());
                    buffer.release(1);
                }
            }
            if buffer.is_finished() {
                return units;
            }
        }
    }

    /// Feeds `input` in pieces of the given sizes to a buffer that grows, and takes out one unit after the other.
    fn taken(input: &[u8], byte: u8, size: usize, cuts: &[usize]) -> Vec<Vec<u8>> {
        let mut buffer = Buffer::new(Framing::EndedBy(byte), size).growing(LARGEST);
        let (mut units, mut rest, mut cuts) = (Vec::new(), input, cuts.iter().cycle());
        while !buffer.is_finished() {
            if buffer.wants_more(0) {
                buffer.make_room().unwrap();
                let space = buffer.space();
                let length = space.len().min(rest.len()).min(*cuts.next().unwrap());
                space[..length].copy_from_slice(&rest[..length]);
                buffer.filled(length);
                rest = &rest[length..];
            }
            if rest.is_empty() {
                buffer.input_ended();
            }
            if buffer.waiting() % 3 == 1 {
                let unit = buffer.run(1).to_vec();
                assert_eq!(buffer.take_first(), unit);
                units.push(unit);
            } else if buffer.waiting() > 0 {
                units.push(buffer.run(1).to_vec());
                buffer.release(1);
            }
            assert!(buffer.data.len() <= size.max(buffer.held() + size), "it is as large as it needs to be");
        }
        units
    }

    fn split(input: &[u8], byte: u8) -> Vec<Vec<u8>> {
        input.split_inclusive(|&b| b == byte).map(<[u8]>::to_vec).collect()
    }

    proptest! {
        #[test]
        fn units_do_not_depend_on_how_the_input_is_cut(
            input in prop::collection::vec(prop::sample::select(vec![b'\n', b'\r', 0, b'a', 0xff]), 0..400),
            cuts in prop::collection::vec(1_usize..50, 1..20),
            size in 1_usize..80,
            byte in prop::sample::select(vec![b'\n', 0, b'a']),
        ) {
            let units = through(&input, Framing::EndedBy(byte), size, &cuts, 3);
            prop_assert_eq!(units, split(&input, byte));
            prop_assert_eq!(taken(&input, byte, size, &cuts), split(&input, byte));
        }

        #[test]
        fn a_run_is_its_units_end_to_end(input in prop::collection::vec(any::<u8>(), 1..400), units in 1_u64..10) {
            let mut buffer = Buffer::new(Framing::EndedBy(b'\n'), 1000);
            buffer.space()[..input.len()].copy_from_slice(&input);
            buffer.filled(input.len());
            buffer.input_ended();
            let expected: Vec<u8> = split(&input, b'\n').into_iter().take(usize::try_from(units).unwrap()).flatten().collect();
            prop_assert_eq!(buffer.run(units), &expected[..]);
        }
    }

    #[test]
    fn reading_waits_until_a_long_unit_has_free_memory() {
        let mut buffer = Buffer::new(Framing::EndedBy(b'\n'), 4).growing(20);
        for (input, wants_more) in [(&b"abcd"[..], true), (b"efgh", true), (b"ij\nk", false)] {
            assert!(buffer.wants_more(0) && buffer.wants_more(20) == (buffer.held() < 4));
            buffer.make_room().unwrap();
            let space = buffer.space();
            assert_eq!(space.len(), 4);
            space.copy_from_slice(input);
            buffer.filled(4);
            assert_eq!(buffer.wants_more(0), wants_more);
        }
        assert_eq!((buffer.take_first(), buffer.data.len()), (b"abcdefghij\n".to_vec(), 4));
        assert!(buffer.wants_more(20) && buffer.units() == 1);
    }

    #[test]
    fn every_byte_is_a_unit() {
        let mut buffer = Buffer::new(Framing::Bytes, 10);
        buffer.space()[..4].copy_from_slice(b"a\n\nb");
        buffer.filled(4);
        assert_eq!((buffer.waiting(), buffer.run(3)), (4, &b"a\n\n"[..]));
        buffer.release(3);
        assert_eq!((buffer.waiting(), buffer.run(9)), (1, &b"b"[..]));
    }

    #[test]
    fn blank_units_count_and_the_last_needs_no_end() {
        assert_eq!(through(b"\n\nx", Framing::EndedBy(b'\n'), 10, &[10], 1), split(b"\n\nx", b'\n'));
        assert_eq!(through(b"", Framing::EndedBy(b'\n'), 10, &[10], 1), Vec::<Vec<u8>>::new());
    }
}
