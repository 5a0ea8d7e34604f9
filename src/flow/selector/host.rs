//! The host in a unit. Plain names are read here; all others by the crate `url`, with which both agree.

use memchr::{memchr_iter, memrchr};
use std::borrow::Cow;
use url::Host;

/// Schemes before whose host any number of slashes may stand: the special ones of the URL Standard, without `file`.
const SPECIAL: [&[u8]; 5] = [b"http", b"https", b"ftp", b"ws", b"wss"];

/// No host is longer: 253 bytes of a name, each percent-encoded.
const LONGEST: usize = 3 * 253;

/// The host of the first URL that has one, or else of the first `name@host`.
pub(super) fn of(unit: &[u8]) -> Option<Cow<'_, [u8]>> {
    of_url(unit).or_else(|| of_address(unit))
}

fn of_url(unit: &[u8]) -> Option<Cow<'_, [u8]>> {
    memchr_iter(b':', unit).find_map(|colon| {
        let rest = &unit[colon + 1..];
        // In JSON a slash may be escaped.
        let rest = rest.strip_prefix(b"//").or_else(|| rest.strip_prefix(br"\/\/"))?;
        let scheme = scheme(&unit[..colon])?;
        let is_special = SPECIAL.iter().any(|special| special.eq_ignore_ascii_case(scheme));
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
        // A name may have an @ of its own.
        if host.get(end) == Some(&b'@') { None } else { read(&host[..end]) }
    })
}

/// `http` of `see http`.
fn scheme(before: &[u8]) -> Option<&[u8]> {
    let is_in_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let start = before.iter().rposition(|byte| !is_in_scheme(byte)).map_or(0, |last| last + 1);
    let first_letter = before[start..].iter().position(u8::is_ascii_alphabetic)?;
    Some(&before[start + first_letter..])
}

/// The bytes before the first one that is an end.
fn until(bytes: &[u8], is_end: impl Fn(u8) -> bool) -> &[u8] {
    &bytes[..bytes.iter().position(|&byte| is_end(byte)).unwrap_or(bytes.len())]
}

/// What follows the authority of a URL, or surrounds a URL in a text (RFC 3986, appendix C).
fn ends_authority(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, b'/' | b'?' | b'#' | b'\\' | b'"' | b'<' | b'>' | b'`' | 0x7f)
}

/// What may follow a URL in a text, and is in no name of a host.
fn ends_host(byte: u8) -> bool {
    b"'(),;{}|^!$&*+=[]".contains(&byte)
}

/// The host in its usual form. Final dots name the same host, and end sentences.
fn read(host: &[u8]) -> Option<Cow<'_, [u8]>> {
    if is_plain(host) {
        return Some(if host.iter().any(u8::is_ascii_uppercase) {
            host.to_ascii_lowercase().into()
        } else {
            host.into()
        });
    }
    let host = std::str::from_utf8(host).ok().filter(|host| host.len() <= LONGEST)?;
    let host = Host::parse(host).ok()?.to_string();
    Some(host.trim_end_matches('.').as_bytes().to_vec().into()).filter(|host: &Cow<'_, [u8]>| !host.is_empty())
}

/// Whether only its case may have to be changed: it is neither an address, nor has it other than ASCII letters, nor stands
/// for a name that has.
fn is_plain(host: &[u8]) -> bool {
    let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let last = memrchr(b'.', host).map_or(host, |dot| &host[dot + 1..]);
    let is_encoded = |label: &[u8]| label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"xn--"));
    last.first().is_some_and(u8::is_ascii_alphabetic)
        && host.iter().all(is_plain)
        && !host.split(|&byte| byte == b'.').any(is_encoded)
}
