//! What a command writes, cut into lines: for a tag before each, or to let each out by itself.

use std::io;

/// A line longer than this is let out in pieces.
const LONGEST: usize = 64 * 1024;

/// Takes bytes and gives them back, tagged.
#[derive(Debug)]
pub(super) struct Lines {
    tag: Option<Vec<u8>>,
    at_start: bool,
}

impl Lines {
    pub(super) fn new(tag: Option<&[u8]>) -> Self {
        Lines { tag: tag.map(<[u8]>::to_vec), at_start: true }
    }

    /// `bytes` with the tag before each line that begins in them.
    pub(super) fn tagged<'a>(&mut self, bytes: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
        let Some(tag) = &self.tag else { return bytes.into() };
        let mut text = Vec::with_capacity(bytes.len() + tag.len());
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.at_start {
                text.extend_from_slice(tag);
            }
            text.extend_from_slice(line);
            self.at_start = line.ends_with(b"\n");
        }
        text.into()
    }

    /// Whether a line was begun and not ended.
    pub(super) fn is_open(&self) -> bool {
        self.tag.is_some() && !self.at_start
    }
}

/// Holds the line that has not ended yet.
#[derive(Debug, Default)]
pub(super) struct Partial {
    held: Vec<u8>,
    /// Whether a piece of it was let out already.
    begun: bool,
}

impl Partial {
    /// Gives `bytes` to `write` as far as they end a line.
    pub(super) fn pass(&mut self, bytes: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let end = memchr::memrchr(b'\n', bytes).map_or(0, |last| last + 1);
        if end > 0 {
            self.held.extend_from_slice(&bytes[..end]);
            write(&self.held)?;
            self.held.clear();
            self.begun = false;
        }
        self.held.extend_from_slice(&bytes[end..]);
        if self.held.len() > LONGEST {
            write(&self.held)?;
            self.held.clear();
            self.begun = true;
        }
        Ok(())
    }

    /// What is left at the end, with the end it lacks; nothing, if all lines have ended.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.held);
        if std::mem::take(&mut self.begun) || !rest.is_empty() {
            rest.push(b'\n');
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_tagged_once_wherever_it_is_cut() {
        let mut lines = Lines::new(Some(b"u\t"));
        let mut text = Vec::new();
        for bytes in [&b"a\nb"[..], b"c", b"\n\nd"] {
            text.extend_from_slice(&lines.tagged(bytes));
        }
        assert_eq!(text, b"u\ta\nu\tbc\nu\t\nu\td");
        assert!(lines.is_open());
    }

    #[test]
    fn lines_are_let_out_whole() {
        let (mut partial, mut writes) = (Partial::default(), Vec::new());
        for bytes in [&b"a"[..], b"b\nc\nd", b"e"] {
            partial
                .pass(bytes, |line| {
                    writes.push(line.to_vec());
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!((writes, partial.rest()), (vec![b"ab\nc\n".to_vec()], b"de\n".to_vec()));
    }

    #[test]
    fn a_line_that_was_let_out_in_pieces_is_ended_also_where_nothing_is_left() {
        let (mut partial, mut written) = (Partial::default(), 0);
        for (length, rest) in [(LONGEST + 1, &b"\n"[..]), (0, b"")] {
            partial
                .pass(&b"x".repeat(length), |piece| {
                    written += piece.len();
                    Ok(())
                })
                .unwrap();
            assert_eq!((written, &partial.rest()[..]), (LONGEST + 1, rest));
        }
    }
}
