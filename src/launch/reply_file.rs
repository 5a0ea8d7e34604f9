//! The file that a command writes its reply to.

use super::reply::MAX_REPLY_BYTES;
use super::temporary::{explained, is_shortage};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// A new, empty file for one command. Dropping it removes the file. A file without a name disappears even if this
/// process ends by kill -9.
#[derive(Debug)]
pub(super) struct ReplyFile {
    file: File,
    path: PathBuf,
    /// Removes the file on drop, if it has a name.
    _name: Option<TempPath>,
}

impl ReplyFile {
    /// Makes a file, which takes one file descriptor of this process.
    ///
    /// # Errors
    /// The file cannot be made. `is_shortage` recognizes a lack of open files.
    pub(super) fn new() -> io::Result<Self> {
        match in_memory() {
            Ok((file, path)) => Ok(ReplyFile { file, path, _name: None }),
            // A file with a name would need a descriptor as well, and would remain after kill -9.
            Err(error) if is_shortage(&error) => Err(error),
            Err(_) => ReplyFile::named(),
        }
    }

    fn named() -> io::Result<Self> {
        let (file, name) = tempfile::Builder::new().prefix("throttle-").tempfile().map_err(explained)?.into_parts();
        Ok(ReplyFile { file, path: name.to_path_buf(), _name: Some(name) })
    }

    /// The value of `THROTTLE_REPLY`. The command and its children can open this path while this value exists.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the first 64 KiB of the reply.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let (mut file, mut bytes) = (&self.file, Vec::new());
        file.rewind()?;
        file.take(MAX_REPLY_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Programs that run a command where it may be unable to open the file: as another user, in another PID namespace, or
/// on another machine.
const REMOTE_RUNNERS: [&str; 15] = [
    "sudo", "doas", "su", "runuser", "setpriv", "docker", "podman", "kubectl", "ssh", "chroot", "unshare", "nsenter",
    "bwrap", "flatpak", "lxc",
];

/// Why a failed command could not open its reply at `path`, for a hint; `None` if there is no sign of that. `words` are
/// its words, and `errors` is its standard error.
pub(super) fn unopened(path: &Path, words: &str, errors: &[u8]) -> Option<String> {
    let (errors, path) = (String::from_utf8_lossy(errors), path.to_string_lossy());
    let is_error = |line: &str| ["ermission denied", "o such file", "nonexistent"].iter().any(|why| line.contains(why));
    let is_reported = errors.lines().any(|line| line.contains(&*path) && is_error(line));
    let runs_elsewhere =
        || words.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| REMOTE_RUNNERS.contains(&word));
    (is_reported || (words.contains("THROTTLE_REPLY") && runs_elsewhere())).then(|| {
        "a command failed without a reply: under sudo -u, in a container or over ssh it cannot open $THROTTLE_REPLY; have the \
         shell open it: sudo -u USER curl -D - -o FILE URL >> \"$THROTTLE_REPLY\"; or exit with 75 to request a pause"
            .to_owned()
    })
}

/// Makes a file in memory (see `memfd_create(2)`). Its path below `/proc` works in all children, which do not inherit
/// the file.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn in_memory() -> io::Result<(File, PathBuf)> {
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    let create = |flags| memfd_create("throttle-reply", MemfdFlags::CLOEXEC | flags);
    // Kernels before 6.3 do not know the flag; later kernels may require it.
    let file = apart(File::from(create(MemfdFlags::NOEXEC_SEAL).or_else(|_| create(MemfdFlags::empty()))?));
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    // /proc may not be mounted, or may belong to another PID namespace.
    let (ours, found) = (file.metadata()?, path.metadata()?);
    let is_ours = (ours.dev(), ours.ino()) == (found.dev(), found.ino());
    is_ours.then_some((file, path)).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Moves the file to a descriptor number that none of our other files gets, and that is reused only after many others.
/// A process that a command left behind may still write to the path.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn apart(file: File) -> File {
    use rustix::process::{Resource, getrlimit};
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(1024) / 2;
    let number = first + NEXT.fetch_add(1, Ordering::Relaxed) % (first / 2).max(1);
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    rustix::io::fcntl_dupfd_cloexec(&file, number).map_or(file, File::from)
}

/// Prepares the table of open files. Must be called while this process has only one thread. When descriptor numbers
/// outgrow the table, the kernel allocates a larger one. With several threads that takes some milliseconds, and the
/// first commands would start late.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn expect_replies() {
    // Best effort.
    drop(File::open("/dev/null").map(apart));
}

/// Does nothing: files have names on this system.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn expect_replies() {}

/// Fails: this system has no files in memory.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn in_memory() -> io::Result<(File, PathBuf)> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
#[path = "../../tests/program/support/tools.rs"]
mod tools;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    /// One file of each kind.
    fn files() -> [ReplyFile; 2] {
        let files = [ReplyFile::new().unwrap(), ReplyFile::named().unwrap()];
        #[cfg(target_os = "linux")]
        assert!(files[0].path.starts_with("/proc") && files[1].path.starts_with(std::env::temp_dir()));
        files
    }

    /// The content of `file` after `script`. In the script, `$url` is a server that responds with 429.
    fn after(script: &str, file: &ReplyFile, url: &str) -> String {
        let mut command = Command::new("bash");
        command.args(["-euc", script]).stdin(Stdio::null()).env("THROTTLE_REPLY", file.path()).env("url", url);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(file.read().unwrap()).unwrap()
    }

    /// Responds to all requests with 429, until the test ends.
    fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 429 Later\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n");
            }
        });
        url
    }

    #[test]
    fn commands_and_their_children_write_to_it_in_any_way() {
        for file in files() {
            for (script, text) in [
                ("true", ""),
                ("echo a > \"$THROTTLE_REPLY\"; echo b >> \"$THROTTLE_REPLY\"", "a\nb\n"),
                ("echo c > \"$THROTTLE_REPLY\"", "c\n"),
                ("sh -c '(echo d >> \"$THROTTLE_REPLY\") & wait'", "c\nd\n"),
                ("for n in {3..255}; do eval \"exec $n>&-\"; done; echo e > \"$THROTTLE_REPLY\"", "e\n"),
                ("cd /; echo f | tee \"$THROTTLE_REPLY\" > /dev/null", "f\n"),
                ("exec 3> \"$THROTTLE_REPLY\"; echo g >&3; cp \"$THROTTLE_REPLY\" /dev/null; echo h >&3", "g\nh\n"),
                ("printf i | dd of=\"$THROTTLE_REPLY\" status=none", "i"),
                (": > \"$THROTTLE_REPLY\"", ""),
            ] {
                assert_eq!(after(script, &file, ""), text, "{script}");
            }
        }
    }

    #[test]
    fn curl_and_wget_write_the_fields_of_the_answer_to_it() {
        let url = server();
        for file in files() {
            for script in [
                "! curl -fsS -D \"$THROTTLE_REPLY\" \"$url\"",
                "! wget -qS --tries 1 -O /dev/null -o \"$THROTTLE_REPLY\" \"$url\"",
                "! wget -S --tries 1 -O /dev/null \"$url\" 2> \"$THROTTLE_REPLY\"",
            ] {
                if tools::found(script.split(' ').nth(1).unwrap()).is_none() {
                    continue;
                }
                let reply = super::super::Reply::parse(after(script, &file, &url).as_bytes(), 1, std::time::UNIX_EPOCH);
                assert_eq!(reply.last.status, Some(429), "{script}");
                assert_eq!(reply.last.retry_after, Some(Some(std::time::Duration::from_secs(30))), "{script}");
            }
        }
    }

    #[test]
    fn a_command_that_misuses_it_harms_no_other_command() {
        for file in files() {
            let written = after("echo a; head -c 9M /dev/zero > \"$THROTTLE_REPLY\"", &file, "");
            assert!(written.len() == MAX_REPLY_BYTES && written.capacity() <= 2 * MAX_REPLY_BYTES);
            assert_eq!(after("sleep 9 >> \"$THROTTLE_REPLY\" 2>&1 & echo b > \"$THROTTLE_REPLY\"", &file, ""), "b\n");
            after("rm -f \"$THROTTLE_REPLY\" || true", &file, "");
            assert_eq!(file.read().unwrap(), b"b\n");
        }
    }

    /// A process left behind must not write to another command's reply, or to a file of ours.
    #[test]
    #[cfg(target_os = "linux")]
    fn its_number_is_not_used_again_soon() {
        let first = ReplyFile::new().unwrap();
        let path = first.path().to_owned();
        drop(first);
        let others: Vec<_> = (0..50).flat_map(|_| [ReplyFile::new().unwrap(), ReplyFile::named().unwrap()]).collect();
        assert!(others.iter().all(|other| other.path() != path) && !path.exists());
    }

    #[test]
    fn nothing_is_left_of_it_and_no_child_inherits_it() {
        for file in files() {
            let held = after("held=$(readlink /proc/$$/fd/*) || true; echo \"$held\" > \"$THROTTLE_REPLY\"", &file, "");
            assert!(!held.contains("throttle-"), "{held}");
            let path = file.path().to_owned();
            drop(file);
            assert!(!path.exists(), "{}", path.display());
        }
    }
}
