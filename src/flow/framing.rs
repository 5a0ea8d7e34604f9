//! Framing: cuts a stream of bytes into units and keeps them until they are released.

use memchr::{memchr_iter, memrchr, memrchr_iter};

/// Where a unit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Every byte is a unit.
    Bytes,
    /// A unit ends with this byte, which is part of it. The last unit may lack it.
    EndedBy(u8),
}

/// A unit without its delimiter.
#[must_use]
pub fn trimmed(unit: &[u8], delimiter: Option<u8>) -> &[u8] {
    match unit {
        [text @ .., last] if Some(*last) == delimiter => text,
        text => text,
    }
}

/// If less room than this is left, the buffer moves its contents to the front.
const LEAST_READ: usize = 64 * 1024;

/// Input that was read and not yet released, and the number of complete units in it.
///
/// Its size is fixed. A unit larger than the buffer is never held complete: see [`outgrown`](Self::outgrown).
#[derive(Debug)]
pub struct Buffer {
    framing: Framing,
    data: Box<[u8]>,
    start: usize,
    end: usize,
    /// The end of the last complete unit.
    whole: usize,
    waiting: u64,
    input_ended: bool,
}

impl Buffer {
    /// A buffer of `size` bytes, at least one.
    #[must_use]
    pub fn new(framing: Framing, size: usize) -> Self {
        let data = vec![0; size.max(1)].into_boxed_slice();
        Buffer { framing, data, start: 0, end: 0, whole: 0, waiting: 0, input_ended: false }
    }

    /// The room for more input; empty only if the buffer is full.
    pub fn space(&mut self) -> &mut [u8] {
        if self.data.len() - self.end < LEAST_READ {
            self.data.copy_within(self.start..self.end, 0);
            (self.end, self.whole) = (self.end - self.start, self.whole - self.start);
            self.start = 0;
        }
        &mut self.data[self.end..]
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

    /// Marks the end of the input: what is left is a unit, too.
    pub fn input_ended(&mut self) {
        self.input_ended = true;
        if self.whole < self.end {
            self.whole = self.end;
            self.waiting += 1;
        }
    }

    /// The number of complete units in the buffer.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The number of units in the buffer, with one of which only the beginning was read.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.waiting + u64::from(self.whole.max(self.start) < self.end)
    }

    /// Whether the buffer is full and holds no complete unit.
    #[must_use]
    pub fn outgrown(&self) -> bool {
        self.waiting == 0 && self.held() == self.data.len()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.data.len()
    }

    /// The first unit without its delimiter; `None` if it is not there as a whole.
    #[must_use]
    pub fn first(&self) -> Option<&[u8]> {
        (self.waiting > 0).then(|| trimmed(self.run(1), self.delimiter()))
    }

    /// Whether the buffer is empty and no more input will come.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.input_ended && self.start == self.end
    }

    /// Whether there is room for more input and more may come.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        !self.input_ended && self.held() < self.data.len()
    }

    /// The bytes of the first `units` units, at most those that wait.
    #[must_use]
    pub fn run(&self, units: u64) -> &[u8] {
        &self.data[self.start..self.end_of(units)]
    }

    /// How many units end within the first `bytes` bytes of the buffer.
    #[must_use]
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

    /// Drops the first `units` units, which are known to be `bytes` long, so their ends need not be searched again.
    pub fn release_run(&mut self, units: u64, bytes: usize) {
        self.start += bytes;
        self.waiting -= units.min(self.waiting);
        self.rewind();
    }

    /// All bytes of a unit that is passed in pieces, and whether they include its end.
    #[must_use]
    pub fn piece(&self) -> (&[u8], bool) {
        if self.waiting > 0 { (self.run(1), true) } else { (&self.data[self.start..self.end], false) }
    }

    /// Drops the piece that [`piece`](Self::piece) returned.
    pub fn release_piece(&mut self) {
        if self.waiting > 0 {
            return self.release(1);
        }
        (self.start, self.whole) = (self.end, self.end);
        self.rewind();
    }

    /// The delimiter, if there is one.
    #[must_use]
    pub fn delimiter(&self) -> Option<u8> {
        match self.framing {
            Framing::Bytes => None,
            Framing::EndedBy(byte) => Some(byte),
        }
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
                let left = self.waiting - units;
                let end = if units <= left {
                    memchr_iter(byte, held).nth(place(last))
                } else {
                    // The last unit may lack its end; then there is one delimiter less.
                    let ends_behind = if held.last() == Some(&byte) { left } else { left - 1 };
                    memrchr_iter(byte, held).nth(place(ends_behind))
                };
                end.map_or(self.whole, |end| self.start + end + 1)
            }
        }
    }

    /// An empty buffer is filled from the front again, which is still in the CPU cache.
    fn rewind(&mut self) {
        if self.start == self.end {
            (self.start, self.end, self.whole) = (0, 0, 0);
        }
    }
}

/// A position in a buffer; one beyond any buffer stays beyond.
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
