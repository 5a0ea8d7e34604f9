//! Numbers, lists and texts as bytes: LEB128, as in the DWARF standard, seven bits a byte.

use crate::clock::Nanos;

/// What is said once of a format, and serves both ways: each method writes the value that it is given and returns it, or
/// reads one in its place and returns that. `None` if the bytes are anything else; writing never fails.
pub(crate) trait Format: Sized {
    fn wide(&mut self, number: u128) -> Option<u128>;

    fn text(&mut self, text: &str) -> Option<String>;

    /// How many of something follow. Each takes a byte or more, so there are not more than bytes.
    fn length(&mut self, length: usize) -> Option<usize>;

    fn number(&mut self, number: u64) -> Option<u64> {
        u64::try_from(self.wide(number.into())?).ok()
    }

    fn numbers<const N: usize>(&mut self, mut numbers: [u64; N]) -> Option<[u64; N]> {
        for number in &mut numbers {
            *number = self.number(*number)?;
        }
        Some(numbers)
    }

    fn flag(&mut self, flag: bool) -> Option<bool> {
        Some(self.number(flag.into())? == 1)
    }

    /// A small number takes few bytes, whatever its sign: see `sint64` in the Protocol Buffers encoding.
    fn signed(&mut self, number: i128) -> Option<i128> {
        let number = self.wide((number << 1 ^ number >> 127).cast_unsigned())?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Several items. What is read takes the place of `blank`.
    fn each<'a, T: 'a, C: FromIterator<T>>(
        &mut self,
        items: impl IntoIterator<Item = &'a T, IntoIter: ExactSizeIterator>,
        blank: &'a T,
        mut item: impl FnMut(&mut Self, &T) -> Option<T>,
    ) -> Option<C> {
        let mut items = items.into_iter();
        let length = self.length(items.len())?;
        (0..length).map(|_| item(self, items.next().unwrap_or(blank))).collect()
    }

    fn list(&mut self, list: &[u64]) -> Option<Box<[u64]>> {
        self.each(list, &0, |format, number| format.number(*number))
    }

    /// A time not before `last`, which it becomes.
    fn time_after(&mut self, last: &mut Nanos, time: Nanos) -> Option<Nanos> {
        *last = last.checked_add(self.number(time.saturating_sub(*last))?)?;
        Some(*last)
    }
}

/// Appends values as bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

/// Reads what a [`Writer`] wrote.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl Format for Writer {
    #[allow(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    fn wide(&mut self, number: u128) -> Option<u128> {
        let mut rest = number;
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
        Some(number)
    }

    fn text(&mut self, text: &str) -> Option<String> {
        self.length(text.len())?;
        self.bytes.extend(text.as_bytes());
        Some(text.to_owned())
    }

    fn length(&mut self, length: usize) -> Option<usize> {
        self.number(length as u64)?;
        Some(length)
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

    pub(crate) fn next(&mut self) -> Option<u64> {
        self.number(0)
    }
}

impl Format for Reader<'_> {
    fn wide(&mut self, _: u128) -> Option<u128> {
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

    fn text(&mut self, _: &str) -> Option<String> {
        let length = self.length(0)?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn length(&mut self, _: usize) -> Option<usize> {
        usize::try_from(self.next()?).ok().filter(|length| *length <= self.rest.len())
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
            let read = (from.wide(0), from.signed(0), from.list(&[]).map(Vec::from), from.text(""));
            prop_assert_eq!(read, (Some(wide), Some(signed), Some(list), Some(text)));
            prop_assert!(from.rest().is_empty());
            for length in 0..to.bytes.len() {
                let mut from = Reader::new(&to.bytes[..length]);
                let read = || -> Option<String> {
                    from.wide(0)?;
                    from.signed(0)?;
                    from.list(&[])?;
                    from.text("")
                };
                prop_assert_eq!({ let mut read = read; read() }, None);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            let mut from = Reader::new(&bytes);
            let _ = (from.wide(0), from.list(&[]), from.signed(0), from.text(""), from.length(0));
        }
    }
}
