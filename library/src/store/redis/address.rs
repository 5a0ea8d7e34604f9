//! The address of a bucket on a server: `redis://[USER:PASSWORD@]HOST[:PORT][/DB]/NAME[?password-file=PATH]` or
//! `unix:/SOCKET/NAME[?password-file=PATH]`.

use super::error::RedisError;
use percent_encoding::percent_decode_str;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;
use url::Url;

/// The address of a bucket on a server. `Display` and `Debug` do not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(super) tls: bool,
    pub(super) node: Node,
    pub(super) database: i64,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    password_file: Option<PathBuf>,
    name: String,
}

/// The address at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// The error in an address, with the right form. It never repeats the address, which may contain a password.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct AddressError(&'static str);

const FORM: AddressError = AddressError(
    "an address begins with redis://, rediss://, valkey:// or valkeys://, like redis://host:6379/2/NAME, or with unix:/, \
     like unix:/run/redis.sock/NAME; a path with : and @ in it begins with / or ./",
);
const HOST: AddressError =
    AddressError("the host is missing or not valid; write for example redis://:PASSWORD@host:6379/2/NAME");
const PORT: AddressError = AddressError("a port is a number from 1 to 65535; write for example redis://host:6379/NAME");
const SOCKET: AddressError = AddressError(
    "the last part is the bucket's name and all before it the server's socket; write for example \
     unix:/run/redis.sock/NAME",
);
const DATABASE: AddressError = AddressError(
    "the part before the bucket's name must be the number of a database; write for example redis://host/2/NAME",
);
const TAIL: AddressError = AddressError(
    "an address ends with the bucket's name, or with ?password-file=PATH; remove any other ? or # and what follows",
);

impl Address {
    /// Whether `word` is probably an address, right or wrong. This includes words like `redis//:PASSWORD@host/NAME`,
    /// unless they are spelled as a path.
    pub fn is_meant(word: &[u8]) -> bool {
        let is_path = word.starts_with(b"/") || word.starts_with(b".");
        word.windows(3).any(|part| part == b"://")
            || SCHEMES.iter().any(|scheme| begins_with(word, scheme) && word.get(scheme.len()) == Some(&b':'))
            || !is_path && may_hold_password(word)
    }

    /// The part of `word`, the name of a bucket or a file, that a message may show. If the word may contain a password,
    /// this is only its scheme. A web address without a user has no password.
    pub fn redacted(word: &OsStr) -> String {
        let bytes = word.as_bytes();
        let is_of_web = bytes.starts_with(b"http://") || bytes.starts_with(b"https://");
        if !may_hold_password(bytes) && (is_of_web || !Address::is_meant(bytes)) {
            return word.to_string_lossy().into_owned();
        }
        let scheme = SCHEMES.iter().rev().find(|scheme| begins_with(bytes, scheme));
        scheme.map_or_else(|| "…".to_owned(), |scheme| format!("{scheme}…"))
    }

    /// Parses an address that may lack the name of a bucket.
    ///
    /// # Errors
    /// [`AddressError`], as for an address with a name.
    pub fn of_server(text: &str) -> Result<Self, AddressError> {
        let (text, file) = match text.split_once(PASSWORD_FILE) {
            Some((_, "")) => {
                return Err(AddressError(
                    "the path is missing; write for example redis://host/NAME?password-file=/run/redis-password",
                ));
            }
            Some((text, path)) => (text, Some(PathBuf::from(path))),
            None => (text, None),
        };
        let address = match text.get(..5) {
            Some(scheme) if scheme.eq_ignore_ascii_case("unix:") => at_socket(&text[5..])?,
            _ => at_host(text)?,
        };
        if file.is_some() && address.password.is_some() {
            return Err(AddressError(
                "the password is given in the address and in a file; write for example \
                 redis://host/NAME?password-file=PATH",
            ));
        }
        Ok(Address { password_file: file, ..address })
    }

    /// The address of the bucket at `key` on the same server; `None` if no bucket has that key.
    pub(super) fn of_key(&self, key: &[u8]) -> Option<Self> {
        let name = checked_name(std::str::from_utf8(key).ok()?.strip_prefix(KEYS)?).ok()?;
        (!name.is_empty()).then(|| Address { name, ..self.clone() })
    }

    /// The key of the bucket's state.
    pub fn key(&self) -> String {
        format!("{KEYS}{}", self.name)
    }

    /// The bucket's name on its server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the socket and the bucket's name, for messages: the user may have left out either.
    pub(super) fn parts(&self) -> String {
        match &self.node {
            Node::Unix(path) => format!(" (the socket is {}, the bucket's name {})", path.display(), self.name),
            Node::Tcp(..) => String::new(),
        }
    }

    /// The same address with the password from its password file, if it has one.
    pub(super) fn with_password(mut self) -> Result<Self, RedisError> {
        if let Some(path) = &self.password_file {
            let failed = |reason| RedisError::PasswordFile(path.display().to_string(), reason);
            self.password = Some(first_line(path).map_err(|error| failed(error.to_string()))?);
        }
        Ok(self)
    }
}

/// The first line of a file that others may not read, without its end and without a byte-order mark.
fn first_line(path: &PathBuf) -> io::Result<String> {
    const MAX_LINE_BYTES: u64 = 1 << 16;
    // Opening a pipe would wait for a writer.
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if file.metadata()?.permissions().mode() & 0o004 != 0 {
        return Err(io::Error::other("everyone may read it; run chmod 600 on it"));
    }
    let soon = Timespec { tv_sec: 3, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&soon))? == 0 {
        return Err(io::Error::other("it is a pipe, and no password came within 3 s; name a file"));
    }
    let mut line = String::new();
    BufReader::new(file.take(MAX_LINE_BYTES)).read_line(&mut line)?;
    match line.trim_start_matches('\u{feff}').trim_end_matches(['\r', '\n']) {
        "" => Err(io::Error::other("its first line is empty; write the password there")),
        password => Ok(password.to_owned()),
    }
}

const SCHEMES: [&str; 5] = ["redis", "rediss", "valkey", "valkeys", "unix"];

/// The prefix of all bucket keys.
pub(super) const KEYS: &str = "throttle:";

const PASSWORD_FILE: &str = "?password-file=";

fn begins_with(word: &[u8], scheme: &str) -> bool {
    word.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
}

fn may_hold_password(word: &[u8]) -> bool {
    word.contains(&b':') && word.contains(&b'@')
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let address = Address::of_server(text)?;
        if address.name.is_empty() {
            Err(AddressError(
                "the bucket's name is missing; write for example redis://host/NAME, or --list to list the buckets",
            ))
        } else {
            Ok(address)
        }
    }
}

/// Parses `/SOCKET/NAME`, the text after the scheme.
fn at_socket(path: &str) -> Result<Address, AddressError> {
    let (socket, name) = path.rsplit_once('/').ok_or(SOCKET)?;
    if path.contains(['?', '#']) {
        return Err(TAIL);
    }
    if !socket.starts_with('/') {
        return Err(SOCKET);
    }
    let (node, name) = (Node::Unix(socket.into()), checked_name(name)?);
    Ok(Address { tls: false, node, database: 0, user: None, password: None, password_file: None, name })
}

/// Parses everything except the password file.
fn at_host(text: &str) -> Result<Address, AddressError> {
    let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err(FORM),
    };
    if rest.split_once(['/', '?', '#']).is_some_and(|(_, behind)| behind.contains('@')) {
        return Err(AddressError("in user and password write / ? # @ and % as %2F %3F %23 %40 and %25"));
    }
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::InvalidPort => PORT,
        _ => HOST,
    })?;
    let host = match url.host().ok_or(HOST)? {
        url::Host::Ipv6(address) => address.to_string(),
        host => host.to_string(),
    };
    if url.query().is_some() || url.fragment().is_some() {
        return Err(TAIL);
    }
    let (database, name) = path(url.path())?;
    let decoded = |text: &str| match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok((!text.is_empty()).then(|| text.into_owned())),
        Err(_) => Err(AddressError("user and password must be UTF-8; write other characters as %20")),
    };
    let (user, password) = (decoded(url.username())?, decoded(url.password().unwrap_or_default())?);
    let port = url.port().unwrap_or(6379);
    if port == 0 {
        return Err(PORT);
    }
    let node = Node::Tcp(host, port);
    Ok(Address { tls, node, database, user, password, password_file: None, name })
}

/// Parses `/NAME`, `/DB/NAME`, `/` or `/DB/`.
fn path(path: &str) -> Result<(i64, String), AddressError> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (database, name) = match path.rsplit_once('/') {
        Some((database, name)) => (database.parse::<u32>().map_err(|_| DATABASE)?.into(), name),
        None => (0, path),
    };
    Ok((database, checked_name(name)?))
}

fn checked_name(name: &str) -> Result<String, AddressError> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-_".contains(&byte));
    if is_plain {
        Ok(name.to_owned())
    } else {
        Err(AddressError(
            "the bucket's name has characters other than letters, digits and .:-_; write for example redis://host/NAME",
        ))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Node::Unix(path) => write!(f, "unix:{}/", path.display())?,
            Node::Tcp(host, port) => {
                let scheme = if self.tls { "rediss" } else { "redis" };
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "{scheme}://{host}:{port}/")?;
            }
        }
        if self.database > 0 {
            write!(f, "{}/", self.database)?;
        }
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_server_database_and_bucket() {
        for (text, shown) in [
            ("redis://db/llm", "redis://db:6379/llm"),
            ("redis://db:7000/2/llm", "redis://db:7000/2/llm"),
            ("redis://db:/llm", "redis://db:6379/llm"),
            ("valkey://db/a.b-c_9:d", "redis://db:6379/a.b-c_9:d"),
            ("unix:/run/redis.sock/a:b", "unix:/run/redis.sock/a:b"),
            ("rediss://db/llm", "rediss://db:6379/llm"),
            ("valkeys://db/0/llm", "rediss://db:6379/llm"),
            ("redis://[::1]:7000/llm", "redis://[::1]:7000/llm"),
            ("redis://127.0.0.1/llm", "redis://127.0.0.1:6379/llm"),
            ("redis://db/llm?password-file=/a@b/c d?e#f", "redis://db:6379/llm"),
            ("unix:/run/redis.sock/llm", "unix:/run/redis.sock/llm"),
            ("UNIX:/a b:c@d/llm?password-file=secret", "unix:/a b:c@d/llm"),
        ] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_wrong_address_shows_a_right_one() {
        for (text, error) in [
            ("redis:", "an address begins with"),
            ("redis:llm", "an address begins with"),
            ("http://db/llm", "an address begins with"),
            ("redis://", "the host is missing"),
            ("redis:///llm", "the host is missing"),
            ("redis://:6379/llm", "the host is missing"),
            ("redis://:secret", "the host is missing"),
            ("redis://:secret@/llm", "the host is missing"),
            ("redis://a b/llm", "the host is missing"),
            ("redis://::1/llm", "the host is missing"),
            ("redis://[::1/llm", "the host is missing"),
            ("redis://:sec#ret@db/llm", "in user and password write"),
            ("redis://:sec/ret@db/llm", "in user and password write"),
            ("redis://:sec?ret@db/llm", "in user and password write"),
            ("redis://me:12/34@db/llm", "in user and password write"),
            ("redis://db:99999/llm", "a port is a number"),
            ("redis://db:0/llm", "a port is a number"),
            ("redis://db:6379x/llm", "a port is a number"),
            ("redis://db", "name is missing"),
            ("redis://db/", "name is missing"),
            ("redis://db/2/", "name is missing"),
            ("redis://db/a b", "has characters other than"),
            ("redis://db/two/llm", "the number of a database"),
            ("redis://db/-1/llm", "the number of a database"),
            ("redis://db/1/2/llm", "the number of a database"),
            ("redis://db/llm?db=2", "remove any other ?"),
            ("redis://db/llm#insecure", "remove any other ?"),
            ("redis://u:%ff@db/llm", "must be UTF-8"),
            ("redis://db/llm?password-file=", "the path is missing"),
            ("redis://:secret@db/llm?password-file=/run/secret", "in the address and in a file"),
            ("redis+unix:///run/redis.sock?db=1", "an address begins with"),
            ("unix:", "all before it the server"),
            ("unix:llm", "all before it the server"),
            ("unix:/llm", "all before it the server"),
            ("unix:run/redis.sock/llm", "all before it the server"),
            ("unix:/run/redis.sock/", "name is missing"),
            ("unix:/run/redis.sock/llm?db=1", "remove any other ?"),
        ] {
            let message = text.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(error), "{text}: {message}");
        }
    }

    #[test]
    fn an_address_of_a_server_may_leave_the_name_out() {
        for (text, shown) in [
            ("redis://db", "redis://db:6379/"),
            ("redis://:secret@db:7000/", "redis://db:7000/"),
            ("redis://db/2/", "redis://db:6379/2/"),
            ("redis://db/2/llm", "redis://db:6379/2/llm"),
            ("redis://db?password-file=/p", "redis://db:6379/"),
            ("unix:/run/redis.sock/", "unix:/run/redis.sock/"),
        ] {
            assert_eq!(Address::of_server(text).map(|address| address.to_string()), Ok(shown.to_owned()), "{text}");
        }
        for text in ["redis://", "redis://db/a b", "redis://db/two/", "unix:/", "redis://db/?db=1"] {
            assert_eq!(Address::of_server(text).err(), text.parse::<Address>().err(), "{text}");
        }
    }

    #[test]
    fn credentials_are_read_and_never_shown() {
        let address: Address = "redis://me:s%20cret@db:7000/2/llm".parse().unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("me"), Some("s cret")));
        assert_eq!(format!("{address} {address:?}"), "redis://db:7000/2/llm Address(redis://db:7000/2/llm)");
        let address: Address = "redis://:secret@db/llm".parse().unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (None, Some("secret")));
        let address: Address = "redis://:%2F%3F%23%40%25%3A@db/llm".parse().unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (None, Some("/?#@%:")));
    }

    #[test]
    fn a_password_file_is_read_only_when_the_bucket_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass word");
        let address: Address = format!("redis://me@db/llm?password-file={}", path.display()).parse().unwrap();
        let password = || address.clone().with_password().map(|address| address.password);
        let write = |text: &[u8], mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        assert!(password().unwrap_err().to_string().contains("pass word': No such file"));
        for text in ["s cret", "s cret\n", "s cret\r\nmore\n", "\u{feff}s cret\n"] {
            write(text.as_bytes(), 0o640);
            assert_eq!(password().unwrap().as_deref(), Some("s cret"), "{text:?}");
        }
        for (text, mode, words) in [
            (&b""[..], 0o600, "its first line is empty; write the password there"),
            (b"\nsecret\n", 0o600, "its first line is empty"),
            (b"secret", 0o604, "everyone may read it; run chmod 600"),
            (b"\xff", 0o600, "UTF-8"),
        ] {
            write(text, mode);
            let error = password().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_may_be_a_password_is_not_shown() {
        let redacted = |word: &str| Address::redacted(OsStr::new(word));
        for (word, shown) in [
            ("redis://me:secret@host/a b", "redis…"),
            ("redis://me:sec@ret", "redis…"),
            ("redis://:secret", "redis…"),
            ("redis:secret", "redis…"),
            ("REDISS//me:secret@host", "rediss…"),
            ("redis//:secret@host/b", "redis…"),
            ("reddis://me:secret@host/b", "…"),
            (" redis://:secret@host/b", "…"),
            ("//:secret@host/b", "…"),
            ("secret@host:6379/b", "…"),
            ("./me:secret@host/b", "…"),
            ("https://me:secret@host/b", "…"),
            ("unix:/run/me:secret@sock/b", "unix…"),
        ] {
            assert_eq!(redacted(word), shown);
        }
        for word in ["a@b", "./a:b", "github", "/tmp/redis", "http://host/a", "https://host:443/a?b=c"] {
            assert_eq!(redacted(word), word);
        }
    }

    #[test]
    fn what_is_meant_to_be_an_address_is_told_from_a_name_or_path() {
        for word in [
            "redis:",
            "REDIS://db/llm",
            "rediss://x",
            "valkey:x",
            "reddis://db/llm",
            " redis://db/llm",
            "redis//:secret@db/llm",
            "a:b@c",
            "unix:/run/redis.sock/llm",
        ] {
            assert!(Address::is_meant(word.as_bytes()), "{word}");
        }
        for word in ["redis", "./redis:", "github", "", "/tmp/a:b@c/d", "./a:b@c"] {
            assert!(!Address::is_meant(word.as_bytes()), "{word}");
        }
    }
}
