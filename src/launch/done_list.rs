//! The records of a done list: the units that earlier runs have done.

use super::identity::Identity;
use sha2::{Digest, Sha256};

/// The records of a file, added piece by piece.
#[derive(Debug, Default)]
pub struct DoneList {
    known: Vec<Identity>,
    /// Whether a record ends with CR.
    has_cr: bool,
    /// The hash of the incomplete record.
    hash: Sha256,
    /// The number of bytes in all complete records, with their delimiters.
    ended: u64,
    /// The number of bytes in the incomplete record.
    open: u64,
    last: u8,
    /// Whether the incomplete record has a NUL.
    has_nul: bool,
}

impl DoneList {
    /// Adds the next bytes of the file.
    pub fn add(&mut self, mut bytes: &[u8], delimiter: u8) {
        while let Some(end) = memchr::memchr(delimiter, bytes) {
            // The CR may be the last byte of the previous piece.
            let before = if end > 0 { bytes[end - 1] } else { self.last };
            self.has_cr |= before == b'\r' && self.open + end as u64 > 0;
            self.hash.update(&bytes[..end]);
            self.known.push(std::mem::take(&mut self.hash).into());
            self.ended += self.open + end as u64 + 1;
            (self.open, self.has_nul, self.last) = (0, false, delimiter);
            bytes = &bytes[end + 1..];
        }
        self.last = bytes.last().copied().unwrap_or(self.last);
        self.has_nul |= memchr::memchr(0, bytes).is_some();
        self.hash.update(bytes);
        self.open += bytes.len() as u64;
    }

    /// The units, sorted, and whether any of them ends with CR.
    pub fn into_units(mut self) -> (Vec<Identity>, bool) {
        self.known.sort_unstable();
        self.known.dedup();
        self.known.shrink_to_fit();
        (self.known, self.has_cr)
    }

    /// The number of bytes in all complete records, and in the incomplete record after them.
    pub fn lengths(&self) -> (u64, u64) {
        (self.ended, self.open)
    }

    /// Returns why the incomplete last record cannot come from a crash; `None` if it can. Only a record that a crash
    /// has torn is cut off. A NUL proves that the records are not lines. A newline proves less, because many
    /// NUL-terminated records have newlines.
    pub fn fault(&self, delimiter: u8) -> Option<&'static str> {
        match (self.last, delimiter) {
            _ if self.open == 0 => None,
            (0, _) => Some("its records end with NUL: add -0"),
            (b'\n', 0) if self.ended > 0 => None,
            (b'\n', 0) => Some("its records end with newline: leave out -0"),
            (b'\n', _) => Some("its records end with newline: leave out -d"),
            _ if self.has_nul => Some("its end has NUL bytes: it is not a list of done units"),
            _ if self.ended > 0 => None,
            _ => Some("no record in it has an end: it is not a list of done units, or has another delimiter (-0, -d)"),
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
            list.into_units().1
        };
        assert!(has_cr(&[b"a\r", b"\n"]) && has_cr(&[b"a\nb", b"\r", b"", b"\n"]));
        assert!(!has_cr(&[b"a\r", b"b\n"]) && !has_cr(&[b"a", b"\n"]) && !has_cr(&[b"", b"\n"]));
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_a_list_with_all_its_records_or_none(file in "([ab]|\\r|\\n|\\x00|\\PC){0,40}") {
            crate::fuzzing::done_list(file.as_bytes());
        }
    }
}
