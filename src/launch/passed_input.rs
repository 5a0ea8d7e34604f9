//! Passes our standard input on to the single command of a run, at each of its attempts.
//!
//! A file is read again from its first position. The content of a pipe is stored for further attempts.
//!
//! A command may read nothing. The rest then belongs to other readers of our standard input, such as the loop of a
//! shell. So on Linux the pipe's content is first duplicated for the command, tee(2). Only the bytes that the command
//! has read are taken out of the pipe. No event reports that a pipe was read, so the pipe is polled every 1 to 20 ms.

use super::spool::Spool;
use crate::flow::{poll_without_timer, start_thread, unpoisoned};
use rustix::event::PollFlags;
use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::{Errno, ioctl_fionread};
use rustix::stdio::stdin;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The most bytes of a pipe that are stored.
const MAX_STORED_BYTES: u64 = 64 << 20;

/// The most bytes that are passed on at once.
const MAX_PIECE_BYTES: usize = 64 * 1024;

/// The shortest and the longest time between two polls of the command's pipe.
const MIN_POLL: Duration = Duration::from_millis(1);
const MAX_POLL: Duration = Duration::from_millis(20);

/// Our standard input. All clones share it.
#[derive(Clone, Debug)]
pub struct PassedInput(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// The command inherits our standard input. It is a terminal or a device, or the command gets no further attempts.
    Same,
    /// A file, with its first position.
    File(u64),
    /// A pipe or a socket.
    Stream(Arc<Mutex<Kept>>),
}

/// The bytes that were read from a pipe.
#[derive(Debug, Default)]
struct Kept {
    bytes: Spool,
    /// Whether the content is longer than the most that is stored.
    is_cut: bool,
}

impl PassedInput {
    /// Our standard input. `may_repeat`: the command may get further attempts.
    pub fn new(may_repeat: bool) -> Self {
        let kind = rustix::fs::fstat(stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        PassedInput(match (kind, rustix::fs::tell(stdin())) {
            (Ok(FileType::RegularFile), Ok(position)) if may_repeat => Kind::File(position),
            (Ok(FileType::Fifo | FileType::Socket), _) if may_repeat => Kind::Stream(Arc::default()),
            _ => Kind::Same,
        })
    }

    /// The standard input of the next attempt, and the thread that feeds this input until the [`Feed`] is dropped.
    ///
    /// # Errors
    /// The system has no room for a pipe or a thread, or the file cannot be read again.
    pub(super) fn attach(&self) -> io::Result<(Stdio, Option<Feed>)> {
        match &self.0 {
            Kind::Same => {}
            Kind::File(position) => drop(rustix::fs::seek(stdin(), SeekFrom::Start(*position))?),
            Kind::Stream(kept) => {
                let (read, write) = io::pipe()?;
                rustix::fs::fcntl_setfl(&write, OFlags::NONBLOCK)?;
                return Ok((read.into(), Some(Feed::start(write.into(), Arc::clone(kept))?)));
            }
        }
        Ok((Stdio::inherit(), None))
    }

    /// Whether more was read than is stored, so that no other attempt can get the whole input.
    pub(super) fn is_cut(&self) -> bool {
        matches!(&self.0, Kind::Stream(kept) if lock(kept).is_cut)
    }
}

/// A thread that feeds a command. Dropping this value ends the thread, and takes the bytes that the command has read
/// out of our standard input.
#[derive(Debug)]
pub(super) struct Feed {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    fn start(pipe: OwnedFd, kept: Arc<Mutex<Kept>>) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let feeder = Feeder { pipe, kept, is_over: Arc::clone(&is_over), wait: MIN_POLL };
        // On an error, the command's input ends, as it would if the command read our input directly.
        let thread = start_thread("feeder", move || drop(feeder.run()))?;
        Ok(Feed { is_over, thread: Some(thread) })
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The thread cannot panic, and ends within a moment.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Feeder {
    /// The writing end of the command's standard input.
    pipe: OwnedFd,
    kept: Arc<Mutex<Kept>>,
    is_over: Arc<AtomicBool>,
    /// The time until the next poll.
    wait: Duration,
}

impl Feeder {
    fn run(mut self) -> io::Result<()> {
        let kept = Arc::clone(&self.kept);
        lock(&kept).bytes.copy_to(&mut self)?;
        loop {
            let output = (Some(self.pipe.as_fd()), PollFlags::empty());
            let [input, output] = poll_without_timer([(Some(stdin()), PollFlags::IN), output], Some(MAX_POLL))?;
            if self.is_over.load(Ordering::SeqCst) || output.contains(PollFlags::ERR) {
                return Ok(());
            }
            if !input.is_empty() && !self.pass_on()? {
                return Ok(());
            }
        }
    }

    /// Passes on available input. Returns false at the end of the input or of the command.
    fn pass_on(&mut self) -> io::Result<bool> {
        match duplicate(&self.pipe, MAX_PIECE_BYTES) {
            Ok(0) => Ok(false),
            Ok(length) => {
                let read = self.read_by_command(length)?;
                let mut bytes = vec![0; read];
                let mut taken = 0;
                while taken < read {
                    taken += take(&mut bytes[taken..])?.ok_or(ErrorKind::UnexpectedEof)?;
                }
                self.keep(&bytes)?;
                Ok(read == length)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            // Our standard input is not a pipe, or this system has no tee(2). Then the bytes that the command does not
            // read are lost for other readers.
            Err(_) => {
                let mut bytes = vec![0; MAX_PIECE_BYTES];
                let Some(taken) = take(&mut bytes)? else { return Ok(false) };
                self.keep(&bytes[..taken])?;
                self.write_all(&bytes[..taken])?;
                Ok(true)
            }
        }
    }

    /// Waits until the command has read the `length` bytes in its pipe, or has ended. Returns the number of bytes that
    /// it has read.
    fn read_by_command(&mut self, length: usize) -> io::Result<usize> {
        loop {
            // `is_over` is read before the unread bytes are counted: after its end the command reads nothing, so the
            // count is final.
            let is_over = self.is_over.load(Ordering::SeqCst);
            let unread = usize::try_from(ioctl_fionread(&self.pipe)?).unwrap_or(length).min(length);
            if unread == 0 || is_over {
                self.wait = MIN_POLL;
                return Ok(length - unread);
            }
            thread::sleep(self.wait);
            self.wait = (self.wait * 2).min(MAX_POLL);
        }
    }

    fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        let mut kept = lock(&self.kept);
        kept.is_cut |= kept.bytes.length() + bytes.len() as u64 > MAX_STORED_BYTES;
        if kept.is_cut {
            kept.bytes = Spool::default();
            return Ok(());
        }
        kept.bytes.write_all(bytes)
    }
}

/// Takes bytes out of our standard input; `None` at its end.
fn take(space: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(stdin(), &mut *space) {
            Ok(0) => return Ok(None),
            Ok(length) => return Ok(Some(length)),
            Err(Errno::AGAIN) => return Ok(Some(0)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes to the command, which may read slowly. Fails once the command has ended.
impl Write for Feeder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.pipe, bytes) {
                Err(Errno::AGAIN) if self.is_over.load(Ordering::SeqCst) => return Err(ErrorKind::BrokenPipe.into()),
                Err(Errno::AGAIN) => {
                    let output = (Some(self.pipe.as_fd()), PollFlags::OUT);
                    let _ = poll_without_timer([output], Some(MAX_POLL));
                }
                Err(Errno::INTR) => {}
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    unpoisoned(kept.lock())
}

/// Copies at most `length` bytes of our standard input into `pipe`, without taking them out.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn duplicate(pipe: &OwnedFd, length: usize) -> Result<usize, Errno> {
    rustix::pipe::tee(stdin(), pipe, length, rustix::pipe::SpliceFlags::NONBLOCK)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn duplicate(_: &OwnedFd, _: usize) -> Result<usize, Errno> {
    Err(Errno::NOTSUP)
}
