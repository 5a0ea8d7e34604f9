//! The byte-order mark that some editors and spreadsheets write at the beginning of a text in UTF-8.

/// U+FEFF in UTF-8.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The text without the byte-order mark at its beginning, if it has one.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}
