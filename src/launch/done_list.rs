//! The records of a done list: the units that earlier runs have done.

use super::identity::Identity;
use crate::flow::BYTE_ORDER_MARK;
use sha2::{Digest, Sha256};

/// The records of a file, added piece by piece.
#[derive(Debug, Default)]
pub struct DoneList {
    known: Vec<Identity>,
    first: First,
    /// Whether a record ends with CR.
    has_cr: bool,
    /// The hash of the incomplete record.
    hash: Sha256,
    /// The number of bytes in all complete records, with their delimiters.
    ended: u64,
    /// The number of bytes in the incomplete record.
    open: u64,
    last: u8,
    /// The NUL bytes of the incomplete record.
    nuls: Nuls,
    /// Whether a complete record has a NUL byte.
    has_nul: bool,
    empty: EmptyEnd,
}

/// The first record. An editor may have put a byte-order mark before it.
#[derive(Debug, Default)]
struct First {
    is_unmarked: bool,
    /// The hash of the record without the mark.
    hash: Sha256,
    identity: Option<Identity>,
}

/// The NUL bytes of a record: their number, and the places of the first and the last.
#[derive(Clone, Copy, Debug, Default)]
struct Nuls {
    count: u64,
    first: u64,
    last: u64,
}

/// The empty records after the last record with bytes. Only the first of equal units is recorded, so a list of whole
/// records never has two empty records together.
#[derive(Debug, Default)]
struct EmptyEnd {
    count: u64,
    /// The start of the last record with bytes, and the number of records before it. If two empty records precede that
    /// record, it is as doubtful as they are, and an earlier record counts.
    since: (u64, usize),
}

/// The units of a file, and its end.
#[derive(Debug, PartialEq, Eq)]
pub struct DoneUnits {
    /// The units, sorted.
    pub units: Vec<Identity>,
    /// The first unit without its byte-order mark, if it has one.
    pub without_mark: Option<Identity>,
    /// Whether any unit ends with CR.
    pub has_cr: bool,
    /// The number of bytes before the damaged end.
    pub whole: u64,
    /// The damaged end; `None` if every record is whole.
    pub torn: Option<Torn>,
}

/// The end of a file that a crash has damaged: an incomplete record, NUL bytes that the file system left in place of
/// records, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The number of bytes, with the NUL bytes.
    pub bytes: u64,
    /// The number of NUL bytes in place of records.
    pub nuls: u64,
}

impl DoneList {
    /// Adds the next bytes of the file.
    pub fn add(&mut self, mut bytes: &[u8], delimiter: u8) {
        while let Some(end) = memchr::memchr(delimiter, bytes) {
            // The CR may be the last byte of the previous piece.
            let before = if end > 0 { bytes[end - 1] } else { self.last };
            self.has_cr |= before == b'\r' && self.open + end as u64 > 0;
            self.feed(&bytes[..end]);
            self.end_record();
            self.last = delimiter;
            bytes = &bytes[end + 1..];
        }
        self.last = bytes.last().copied().unwrap_or(self.last);
        self.feed(bytes);
    }

    /// Adds bytes to the incomplete record.
    fn feed(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        if self.ended == 0 {
            self.first.feed(self.open, bytes);
        }
        for place in memchr::memchr_iter(0, bytes) {
            let place = self.open + place as u64;
            let first = if self.nuls.count == 0 { place } else { self.nuls.first };
            self.nuls = Nuls { count: self.nuls.count + 1, first, last: place };
        }
        self.open += bytes.len() as u64;
    }

    fn end_record(&mut self) {
        if self.ended == 0 {
            self.first.end(self.open);
        }
        self.empty.count += 1;
        if self.open > 0 {
            if self.empty.count <= 2 {
                self.empty.since = (self.ended, self.known.len());
            }
            self.empty.count = 0;
        }
        self.known.push(std::mem::take(&mut self.hash).into());
        self.has_nul |= self.nuls.count > 0;
        self.ended += self.open + 1;
        (self.open, self.nuls) = (0, Nuls::default());
    }

    /// The units of the whole records.
    ///
    /// # Errors
    /// The end of the file cannot come from a crash; the text is the reason. Only an end that a crash has damaged is
    /// cut off.
    pub fn finish(mut self, delimiter: u8) -> Result<DoneUnits, &'static str> {
        let torn = self.torn(delimiter)?;
        let whole = self.ended + self.open - torn.map_or(0, |torn| torn.bytes);
        if whole < self.ended {
            // A record before NUL bytes may be incomplete as well.
            self.known.truncate(self.empty.since.1);
        }
        let without_mark = self.first.identity.filter(|_| !self.known.is_empty());
        self.known.sort_unstable();
        self.known.dedup();
        self.known.shrink_to_fit();
        Ok(DoneUnits { units: self.known, without_mark, has_cr: self.has_cr, whole, torn })
    }

    /// The damaged end.
    ///
    /// # Errors
    /// The end cannot come from a crash. A single NUL proves that the records are not lines. A newline proves less,
    /// because many NUL-terminated records have newlines.
    fn torn(&self, delimiter: u8) -> Result<Option<Torn>, &'static str> {
        let Nuls { count, first, last } = self.nuls;
        if delimiter == 0 && self.empty.count >= 2 {
            let bytes = self.ended + self.open - self.empty.since.0;
            return Ok(Some(Torn { bytes, nuls: self.empty.count }));
        }
        // File systems leave NUL bytes in place of data that a power cut has kept from the disk.
        let is_filled = count >= 2 && last - first + 1 == count && !self.has_nul;
        let torn = Ok(Some(Torn { bytes: self.open, nuls: count }));
        match (self.last, delimiter) {
            _ if self.open == 0 => Ok(None),
            (..) if is_filled && (self.ended > 0 || count == self.open) => torn,
            (0, _) if !is_filled => Err("its records end with NUL: add -0"),
            (b'\n', 0) if self.ended > 0 => torn,
            (b'\n', 0) => Err("its records end with newline: leave out -0"),
            (b'\n', _) => Err("its records end with newline: leave out -d"),
            _ if count > 0 && self.ended > 0 => Err("its end has NUL bytes: it is not a list of done units"),
            _ if self.ended > 0 => torn,
            _ => Err("no record in it has an end: it is not a list of done units, or has another delimiter (-0, -d)"),
        }
    }
}

impl First {
    /// Adds bytes that are at `place` of the record.
    fn feed(&mut self, place: u64, bytes: &[u8]) {
        let place = usize::try_from(place).unwrap_or(usize::MAX).min(BYTE_ORDER_MARK.len());
        let expected = &BYTE_ORDER_MARK[place..];
        let (mark, rest) = bytes.split_at(expected.len().min(bytes.len()));
        self.is_unmarked |= !expected.starts_with(mark);
        if !self.is_unmarked {
            self.hash.update(rest);
        }
    }

    /// Ends the record, which has this number of bytes.
    fn end(&mut self, bytes: u64) {
        if !self.is_unmarked && bytes > BYTE_ORDER_MARK.len() as u64 {
            self.identity = Some(std::mem::take(&mut self.hash).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cr_at_the_end_of_a_piece_is_the_end_of_a_record() {
        let has_cr = |pieces: &[&[u8]]| {
            let mut list = DoneList::default();
            for piece in pieces {
                list.add(piece, b'\n');
            }
            list.finish(b'\n').unwrap().has_cr
        };
        assert!(has_cr(&[b"a\r", b"\n"]) && has_cr(&[b"a\nb", b"\r", b"", b"\n"]));
        assert!(!has_cr(&[b"a\r", b"b\n"]) && !has_cr(&[b"a", b"\n"]) && !has_cr(&[b"", b"\n"]));
    }

    fn read(file: &[u8], delimiter: u8) -> Result<DoneUnits, &'static str> {
        let mut list = DoneList::default();
        list.add(file, delimiter);
        list.finish(delimiter)
    }

    #[test]
    fn nul_bytes_after_a_power_cut_are_the_damaged_end() {
        for (file, delimiter, whole, torn) in [
            ("a\nb\n\0\0\0", b'\n', 4, Some((3, 3))),
            ("a\nb\0\0\0", b'\n', 2, Some((4, 3))),
            ("a\n\0\0\0b", b'\n', 2, Some((4, 3))),
            ("\0\0\0", b'\n', 0, Some((3, 3))),
            ("a,b\0\0", b',', 2, Some((3, 2))),
            // The record before the NUL bytes may be incomplete.
            ("a\0b\0\0\0", 0, 2, Some((4, 2))),
            ("a\0\0\0\0b\0\0\0", 0, 0, Some((9, 2))),
            ("\0\0", 0, 0, Some((2, 2))),
            ("a\0b\0\0", 0, 5, None),
            ("a\0\0\0b\0", 0, 6, None),
        ] {
            let found = read(file.as_bytes(), delimiter).unwrap();
            assert_eq!((found.whole, found.torn.map(|torn| (torn.bytes, torn.nuls))), (whole, torn), "{file:?}");
        }
    }

    #[test]
    fn nul_bytes_of_another_file_are_no_damage() {
        for (file, words) in [
            ("a\0b\0", "add -0"),
            ("\0", "add -0"),
            ("a\nb\0", "add -0"),
            ("a\nb\0c\0\0", "add -0"),
            ("header\0\0text\nmore\n\0\0\0", "add -0"),
            ("a\0\0", "no record in it has an end"),
            ("a\n\0b", "its end has NUL bytes"),
        ] {
            let found = read(file.as_bytes(), b'\n');
            assert!(found.as_ref().is_err_and(|why| why.contains(words)), "{file:?}: {found:?}");
        }
    }

    #[test]
    fn the_first_unit_is_known_without_its_byte_order_mark() {
        for (file, expected) in [
            ("\u{feff}a\nb\n", Some("a")),
            ("\u{feff}\nb\n", None),
            ("a\n\u{feff}b\n", None),
            ("\u{fefe}a\n", None),
            ("\u{feff}a", None),
        ] {
            let mut list = DoneList::default();
            file.bytes().for_each(|byte| list.add(&[byte], b'\n'));
            let found = list.finish(b'\n').ok().and_then(|found| found.without_mark);
            assert_eq!(found, expected.map(|unit| Identity::of(unit.as_bytes())), "{file:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_a_list_with_all_its_records_or_none(file in "([ab]|\\r|\\n|\\x00|\\PC){0,40}") {
            crate::fuzzing::done_list(file.as_bytes());
        }
    }
}
