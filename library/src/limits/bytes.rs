//! Numbers, lists and texts as bytes: LEB128, as in the DWARF standard, seven bits a byte.

use crate::clock::Nanos;

/// Writes numbers as bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

/// Reads what a [`Writer`] wrote. Every reading is `None` if the bytes are anything else.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl Writer {
    pub(crate) fn number(&mut self, number: u64) {
        self.wide(number.into());
    }

    pub(crate) fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.number(*number);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    pub(crate) fn wide(&mut self, mut number: u128) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// A small number takes few bytes, whatever its sign: see `sint64` in the Protocol Buffers encoding.
    pub(crate) fn signed(&mut self, number: i128) {
        self.wide((number << 1 ^ number >> 127).cast_unsigned());
    }

    pub(crate) fn list(&mut self, list: &[u64]) {
        self.number(list.len() as u64);
        self.numbers(list);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    /// A time not before `last`, which it becomes.
    pub(crate) fn time_after(&mut self, last: &mut Nanos, time: Nanos) {
        self.number(time.saturating_sub(*last));
        *last = time;
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// What was not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        u64::try_from(self.wide()?).ok()
    }

    pub(crate) fn wide(&mut self) -> Option<u128> {
        let mut number = 0;
        for place in 0..19 {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            let bits = u128::from(byte & 0x7f);
            number |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return (number >> (7 * place) == bits).then_some(number);
            }
        }
        None
    }

    pub(crate) fn signed(&mut self) -> Option<i128> {
        let number = self.wide()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub(crate) fn list(&mut self) -> Option<Box<[u64]>> {
        let length = self.length()?;
        (0..length).map(|_| self.number()).collect()
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.length()?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    pub(crate) fn time_after(&mut self, last: &mut Nanos) -> Option<Nanos> {
        *last = last.checked_add(self.number()?)?;
        Some(*last)
    }

    /// How many of something follow. Each takes a byte or more, so there are not more than bytes.
    pub(crate) fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|length| *length <= self.rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(wide: u128, signed: i128, list: Vec<u64>, text: String) {
            let mut to = Writer::default();
            to.wide(wide);
            to.signed(signed);
            to.list(&list);
            to.text(&text);
            let mut from = Reader::new(&to.bytes);
            let read = (from.wide(), from.signed(), from.list().map(Vec::from), from.text());
            prop_assert_eq!(read, (Some(wide), Some(signed), Some(list), Some(text)));
            prop_assert!(from.is_at_end());
            for length in 0..to.bytes.len() {
                let mut from = Reader::new(&to.bytes[..length]);
                let read = || -> Option<String> {
                    from.wide()?;
                    from.signed()?;
                    from.list()?;
                    from.text()
                };
                prop_assert_eq!({ let mut read = read; read() }, None);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            let mut from = Reader::new(&bytes);
            let _ = (from.wide(), from.list(), from.signed(), from.text(), from.length());
        }
    }
}
