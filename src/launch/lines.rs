//! What a command writes, cut into lines: for a tag before each, or to let each out by itself.

use super::spool::{Budget, Spool};
use super::template::steers_terminal;
use std::io;

/// What stands before each line of a command's output: its first unit, so that a terminal can show it, and a tab.
pub(super) fn tag(unit: &[u8], on_terminal: bool) -> Vec<u8> {
    let unit = unit.strip_suffix(b"\n").unwrap_or(unit);
    let mut tag = if on_terminal { printable(&String::from_utf8_lossy(unit)).into_bytes() } else { unit.to_vec() };
    tag.push(b'\t');
    tag
}

/// `text` as a terminal can show it: what steers the terminal is escaped, and nothing else is changed.
#[must_use]
pub fn printable(text: &str) -> String {
    let escaped = |c: char| if steers_terminal(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

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

/// Holds the line that has not ended yet, however long it is.
#[derive(Debug)]
pub(super) struct Partial {
    held: Spool,
}

impl Partial {
    pub(super) fn new(budget: &Budget) -> Self {
        Partial { held: Spool::new(budget) }
    }

    /// Adds `bytes`, and gives the lines that have now ended, if there are any.
    pub(super) fn take_whole(&mut self, bytes: &[u8], budget: &Budget) -> io::Result<Option<Spool>> {
        let Some(last) = memchr::memrchr(b'\n', bytes) else {
            self.held.add(bytes)?;
            return Ok(None);
        };
        let (ended, begun) = bytes.split_at(last + 1);
        let mut lines = std::mem::replace(&mut self.held, Spool::new(budget));
        lines.add(ended)?;
        self.held.add(begun)?;
        Ok(Some(lines))
    }

    /// What is left at the end, with the end it lacks; nothing, if all lines have ended.
    pub(super) fn rest(&mut self, budget: &Budget) -> io::Result<Spool> {
        let mut rest = std::mem::replace(&mut self.held, Spool::new(budget));
        if !rest.is_empty() {
            rest.add(b"\n")?;
        }
        Ok(rest)
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

    fn text(lines: Option<Spool>) -> Option<Vec<u8>> {
        lines.map(|mut lines| {
            let mut text = Vec::new();
            lines.copy_to(&mut text).unwrap();
            text
        })
    }

    #[test]
    fn lines_are_let_out_whole() {
        let budget = Budget::new(100);
        let mut partial = Partial::new(&budget);
        let mut pass = |bytes| text(partial.take_whole(bytes, &budget).unwrap());
        assert_eq!([pass(b"a"), pass(b"b\nc\nd"), pass(b"e")], [None, Some(b"ab\nc\n".to_vec()), None]);
        assert_eq!(text(partial.rest(&budget).ok()), Some(b"de\n".to_vec()));
        assert_eq!(text(partial.rest(&budget).ok()), Some(Vec::new()), "nothing is left");
    }

    #[test]
    fn a_line_longer_than_memory_allows_is_let_out_whole_too() {
        let budget = Budget::new(100);
        let (mut partial, long) = (Partial::new(&budget), b"x".repeat(999));
        assert!(partial.take_whole(&long, &budget).unwrap().is_none());
        let lines = text(partial.take_whole(b"\ny", &budget).unwrap()).unwrap();
        assert_eq!((lines.len(), lines.last()), (1000, Some(&b'\n')));
        assert_eq!(text(partial.rest(&budget).ok()), Some(b"y\n".to_vec()));
    }
}
