//! Our standard input, passed on to the one command of a run, at each of its attempts.
//!
//! A file is read again from where it stood. What a pipe brings is kept for further attempts. A command may read nothing,
//! and then the rest belongs to whatever else reads our standard input, such as the loop of a shell. So on Linux the
//! pipe's content is first duplicated for the command, tee(2), and only what the command has read is taken out of the
//! pipe. Nothing tells that a pipe was read, so its content is looked at again and again, from 1 ms to 20 ms apart.

use super::spool::Spool;
use crate::flow::{poll, start_thread, unpoisoned};
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

/// The most that is kept of a pipe.
const MOST: u64 = 64 << 20;

/// Bytes that are passed on at once.
const PIECE: usize = 64 * 1024;

/// How often it is looked at whether the command has read, or has ended.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(20);

/// Our standard input. Its clones are the same.
#[derive(Clone, Debug)]
pub struct PassedInput(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// The command has it as it is: a terminal, a device, or nothing is ever tried again.
    Same,
    /// A file, which was at this position.
    File(u64),
    /// A pipe or a socket.
    Stream(Arc<Mutex<Kept>>),
}

/// What a pipe has brought so far.
#[derive(Debug, Default)]
struct Kept {
    bytes: Spool,
    /// More came than is kept.
    is_cut: bool,
}

impl PassedInput {
    /// Our standard input, for a command that `may_repeat`.
    pub fn new(may_repeat: bool) -> Self {
        let kind = rustix::fs::fstat(stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        PassedInput(match (kind, rustix::fs::tell(stdin())) {
            (Ok(FileType::RegularFile), Ok(position)) if may_repeat => Kind::File(position),
            (Ok(FileType::Fifo | FileType::Socket), _) if may_repeat => Kind::Stream(Arc::default()),
            _ => Kind::Same,
        })
    }

    /// The standard input of the next attempt, and what feeds it until it is dropped.
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

    /// Whether more was read than is kept, so that no other attempt can get it.
    pub(super) fn is_cut(&self) -> bool {
        matches!(&self.0, Kind::Stream(kept) if lock(kept).is_cut)
    }
}

/// A thread that feeds a command. Dropping this ends it, and takes out of our standard input what the command has read.
#[derive(Debug)]
pub(super) struct Feed {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    fn start(pipe: OwnedFd, kept: Arc<Mutex<Kept>>) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let feeder = Feeder { pipe, kept, is_over: Arc::clone(&is_over), wait: SHORTEST };
        // An error is the end of the input for the command, as it would be if it read by itself.
        let thread = start_thread("feeder", move || drop(feeder.run()))?;
        Ok(Feed { is_over, thread: Some(thread) })
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // It cannot panic, and ends within a moment.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Feeder {
    /// The writing end of the command's standard input.
    pipe: OwnedFd,
    kept: Arc<Mutex<Kept>>,
    is_over: Arc<AtomicBool>,
    /// How long the next look is away.
    wait: Duration,
}

impl Feeder {
    fn run(mut self) -> io::Result<()> {
        let kept = Arc::clone(&self.kept);
        lock(&kept).bytes.copy_to(&mut self)?;
        loop {
            let output = (Some(self.pipe.as_fd()), PollFlags::empty());
            let [input, output] = poll([(Some(stdin()), PollFlags::IN), output], Some(LONGEST))?;
            if self.is_over.load(Ordering::SeqCst) || output.contains(PollFlags::ERR) {
                return Ok(());
            }
            if !input.is_empty() && !self.pass_on()? {
                return Ok(());
            }
        }
    }

    /// Passes on what there is. Returns false at the end of the input, or of the command.
    fn pass_on(&mut self) -> io::Result<bool> {
        match duplicate(&self.pipe, PIECE) {
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
            // No pipe, or another system: what the command does not read is lost for others.
            Err(_) => {
                let mut bytes = vec![0; PIECE];
                let Some(taken) = take(&mut bytes)? else { return Ok(false) };
                self.keep(&bytes[..taken])?;
                self.write_all(&bytes[..taken])?;
                Ok(true)
            }
        }
    }

    /// How many of the `length` bytes in its pipe the command has read, once that is all or the command has ended.
    fn read_by_command(&mut self, length: usize) -> io::Result<usize> {
        loop {
            // In this order: nothing is read after the end.
            let is_over = self.is_over.load(Ordering::SeqCst);
            let left = usize::try_from(ioctl_fionread(&self.pipe)?).unwrap_or(length).min(length);
            if left == 0 || is_over {
                self.wait = SHORTEST;
                return Ok(length - left);
            }
            thread::sleep(self.wait);
            self.wait = (self.wait * 2).min(LONGEST);
        }
    }

    fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        let mut kept = lock(&self.kept);
        kept.is_cut |= kept.bytes.length() + bytes.len() as u64 > MOST;
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

/// Writes to the command, which may read slowly. An error once it has ended.
impl Write for Feeder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.pipe, bytes) {
                Err(Errno::AGAIN) if self.is_over.load(Ordering::SeqCst) => return Err(ErrorKind::BrokenPipe.into()),
                Err(Errno::AGAIN) => drop(poll([(Some(self.pipe.as_fd()), PollFlags::OUT)], Some(LONGEST))),
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

/// Puts what our standard input holds into `pipe`, at most `length` bytes, and leaves it there, too.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn duplicate(pipe: &OwnedFd, length: usize) -> Result<usize, Errno> {
    rustix::pipe::tee(stdin(), pipe, length, rustix::pipe::SpliceFlags::NONBLOCK)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn duplicate(_: &OwnedFd, _: usize) -> Result<usize, Errno> {
    Err(Errno::NOTSUP)
}
