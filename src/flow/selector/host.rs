//! Finds the host in a unit. Plain names are read here, other names by the crate `url`. Both give the same results.

use memchr::{memchr_iter, memrchr};
use std::borrow::Cow;
use url::Host;

/// Schemes that accept any number of slashes before the host: the special schemes of the URL Standard, without `file`.
const SPECIAL_SCHEMES: [&[u8]; 5] = [b"http", b"https", b"ftp", b"ws", b"wss"];

/// The longest host: a name of 253 bytes, each percent-encoded.
const MAX_HOST_BYTES: usize = 3 * 253;

/// The host of the first URL that has a host, or else of the first `name@host`.
pub(super) fn of(unit: &[u8]) -> Option<Cow<'_, [u8]>> {
    of_url(unit).or_else(|| of_address(unit))
}

fn of_url(unit: &[u8]) -> Option<Cow<'_, [u8]>> {
    memchr_iter(b':', unit).find_map(|colon| {
        let rest = &unit[colon + 1..];
        // In JSON a slash may be escaped.
        let rest = rest.strip_prefix(b"//").or_else(|| rest.strip_prefix(br"\/\/"))?;
        let scheme = scheme(&unit[..colon])?;
        let is_special = SPECIAL_SCHEMES.iter().any(|special| special.eq_ignore_ascii_case(scheme));
        let slashes = if is_special { until(rest, |byte| !matches!(byte, b'/' | b'\\')).len() } else { 0 };
        let authority = until(&rest[slashes..], ends_authority);
        let host = memrchr(b'@', authority).map_or(authority, |at| &authority[at + 1..]);
        read(match host {
            [b'[', ..] => until(host, |byte| byte == b']').len().checked_add(1).and_then(|end| host.get(..end))?,
            _ => until(host, |byte| byte == b':' || ends_host(byte)),
        })
    })
}

fn of_address(unit: &[u8]) -> Option<Cow<'_, [u8]>> {
    memchr_iter(b'@', unit).find_map(|at| {
        let (name, host) = (&unit[..at], &unit[at + 1..]);
        name.last().filter(|byte| !byte.is_ascii_whitespace())?;
        let end = until(host, |byte| byte == b'@' || byte == b':' || ends_authority(byte) || ends_host(byte)).len();
        // A name may contain an @.
        if host.get(end) == Some(&b'@') { None } else { read(&host[..end]) }
    })
}

/// Returns `http` for `see http`.
fn scheme(before: &[u8]) -> Option<&[u8]> {
    let is_in_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let start = before.iter().rposition(|byte| !is_in_scheme(byte)).map_or(0, |last| last + 1);
    let first_letter = before[start..].iter().position(u8::is_ascii_alphabetic)?;
    Some(&before[start + first_letter..])
}

/// The bytes before the first byte for which `is_end` returns true.
fn until(bytes: &[u8], is_end: impl Fn(u8) -> bool) -> &[u8] {
    &bytes[..bytes.iter().position(|&byte| is_end(byte)).unwrap_or(bytes.len())]
}

/// Whether the byte may follow the authority of a URL, or surround a URL in a text (RFC 3986, appendix C).
fn ends_authority(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, b'/' | b'?' | b'#' | b'\\' | b'"' | b'<' | b'>' | b'`' | 0x7f)
}

/// Whether the byte may follow a URL in a text and occurs in no host name.
fn ends_host(byte: u8) -> bool {
    b"'(),;{}|^!$&*+=[]".contains(&byte)
}

/// The host in its usual form, without final dots: they do not change the host, and may end a sentence.
fn read(host: &[u8]) -> Option<Cow<'_, [u8]>> {
    if is_plain(host) {
        return Some(if host.iter().any(u8::is_ascii_uppercase) {
            host.to_ascii_lowercase().into()
        } else {
            host.into()
        });
    }
    let host = std::str::from_utf8(host).ok().filter(|host| host.len() <= MAX_HOST_BYTES)?;
    let host = Host::parse(host).ok()?.to_string();
    Some(host.trim_end_matches('.').as_bytes().to_vec().into()).filter(|host: &Cow<'_, [u8]>| !host.is_empty())
}

/// Whether the host is in its usual form, except perhaps for letters in upper case. Such a host is not an IP address,
/// has only ASCII letters, and does not encode other letters.
fn is_plain(host: &[u8]) -> bool {
    let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let last = memrchr(b'.', host).map_or(host, |dot| &host[dot + 1..]);
    let is_encoded = |label: &[u8]| label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"xn--"));
    last.first().is_some_and(u8::is_ascii_alphabetic)
        && host.iter().all(is_plain)
        && !host.split(|&byte| byte == b'.').any(is_encoded)
}
