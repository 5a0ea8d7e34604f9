//! Where the units come from, and a word to the user where that is unlikely to be what was meant.

use anyhow::{Context, Result, bail, ensure};
use rustix::fd::AsFd;
use rustix::fs::{FileType, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

/// An open input and what it is called in messages.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) fd: OwnedFd,
    pub(crate) name: String,
    /// What is left of a regular file, in bytes.
    pub(crate) size: Option<u64>,
}

/// Opens `file`, or standard input where there is none.
///
/// # Errors
/// What cannot be opened or read, and why.
pub(crate) fn open(file: Option<&Path>) -> Result<Input> {
    let (fd, name) = if let Some(path) = file {
        let file = File::open(path).with_context(|| format!("--arg-file: cannot open {}", path.display()))?;
        (OwnedFd::from(file), path.display().to_string())
    } else {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
        (stdin, "standard input".to_owned())
    };
    let stat = rustix::fs::fstat(&fd).with_context(|| name.clone())?;
    ensure_open_for("reading", OFlags::WRONLY, &fd, &name)?;
    let size = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => bail!("{name} is a directory; name a file: throttle -a FILE, or throttle < FILE"),
        FileType::RegularFile => u64::try_from(stat.st_size).ok().zip(rustix::fs::tell(&fd).ok()),
        _ => None,
    };
    Ok(Input { fd, name, size: size.map(|(size, offset)| size.saturating_sub(offset)) })
}

/// Refuses a descriptor that can only do the `opposite`: poll(2) would wait for it forever.
///
/// # Errors
/// Which one cannot do what.
pub(crate) fn ensure_open_for(what: &str, opposite: OFlags, fd: impl AsFd, name: &str) -> Result<()> {
    let mode = rustix::fs::fcntl_getfl(fd).with_context(|| name.to_owned())? & OFlags::RWMODE;
    ensure!(mode != opposite, "{name} is not open for {what}");
    Ok(())
}

/// What to tell about an input on a character device, if anything.
pub(crate) fn remark(fd: impl AsFd, unit: &str, act: &str) -> Option<String> {
    if rustix::termios::isatty(&fd) {
        return Some(format!("reading {unit} from the terminal; Ctrl-D ends"));
    }
    let ours = rustix::fs::fstat(fd).ok()?;
    let null = rustix::fs::stat("/dev/null").ok()?;
    let is_null = FileType::from_raw_mode(ours.st_mode) == FileType::CharacterDevice && ours.st_rdev == null.st_rdev;
    is_null.then(|| format!("stdin is /dev/null: nothing to {act}"))
}

/// Reads the value of `--delimiter`: one byte, or an escape as xargs has them.
///
/// # Errors
/// What it should look like.
pub(crate) fn delimiter(text: &OsStr) -> Result<u8, String> {
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(text);
    match bytes {
        [byte] => Ok(*byte),
        [b'\\', escape @ ..] if !escape.is_empty() => escaped(escape).ok_or_else(|| {
            format!("'{}' is no escape; use \\n \\t \\r \\0 \\\\ \\a \\b \\f \\v, \\xHH or octal \\OOO", text.display())
        }),
        [] => Err("it is empty; give one byte, like -d , or -d '\\t'; for NUL use -0".to_owned()),
        _ => Err(format!("'{}' is more than one byte; give one, like -d , or -d '\\t'", text.display())),
    }
}

/// What follows the backslash.
fn escaped(escape: &[u8]) -> Option<u8> {
    Some(match escape {
        b"a" => 0x07,
        b"b" => 0x08,
        b"f" => 0x0c,
        b"n" => b'\n',
        b"r" => b'\r',
        b"t" => b'\t',
        b"v" => 0x0b,
        b"\\" => b'\\',
        [b'x', hex @ ..] if hex.len() <= 2 => number(hex, 16)?,
        octal if octal.len() <= 4 => number(octal, 8)?,
        _ => return None,
    })
}

fn number(digits: &[u8], radix: u32) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.chars().all(|c| c.is_digit(radix)))?;
    u8::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_one_byte_or_an_xargs_escape() {
        for (text, byte) in [
            (",", b','),
            ("\\n", b'\n'),
            ("\\t", b'\t'),
            ("\\0", 0),
            ("\\\\", b'\\'),
            ("\\x1e", 0x1e),
            ("\\037", 0o37),
            ("\\", b'\\'),
        ] {
            assert_eq!(delimiter(text.as_ref()), Ok(byte), "{text}");
        }
        for text in ["", "ab", "\\q", "\\x", "\\xzz", "\\999", "\\777", "é"] {
            assert!(delimiter(text.as_ref()).is_err(), "{text}");
        }
    }
}
