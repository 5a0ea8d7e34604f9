//! Attends to one command: reads its output, enforces its timeout, and ends its process group with it.

use super::attempt::Running;
use super::event::Event;
use super::job::{Job, Outcome};
use super::launcher::Launcher;
use super::options::{GRACE, NEVER, Output};
use super::printer::Collected;
use super::spool::Spool;
use super::target::Target;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::process::Signal;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// The most bytes that a pipe usually holds. When a command has ended, up to this many bytes of its output may still be
/// unread.
const MAX_PIPE_BYTES: usize = 1 << 20;

/// Bytes read at once.
const READ_BYTES: usize = 8 * 1024;

/// Attends to the command until its end, prints its output, and sends the event of its end.
pub(super) async fn attend(launcher: Arc<Launcher>, running: Running, mut child: Child, target: Target) {
    let job = Arc::clone(&running.attempt.job);
    let mut out = Stream::new(&launcher, &job, child.stdout.take(), true);
    let mut err = Stream::new(&launcher, &job, child.stderr.take(), false);
    let outcome = watch(&launcher, &job, &mut child, target, [&mut out, &mut err]).await;
    // Frees a file descriptor before other code waits for one.
    drop(child);
    let closed: io::Result<()> = [out.close(&launcher).await, err.close(&launcher).await].into_iter().collect();
    let outcome = closed.map_or_else(Outcome::OutputLost, |()| outcome);
    launcher.finish(running, outcome, Collected { out: out.spool, err: err.spool }).await;
}

/// Reads output and watches the timeout concurrently. So the timeout is not delayed when the reader of our output does
/// not read.
async fn watch(
    launcher: &Arc<Launcher>,
    job: &Arc<Job>,
    child: &mut Child,
    target: Target,
    streams: [&mut Stream; 2],
) -> Outcome {
    let has_ended = Notify::new();
    let living = async {
        let end = live(launcher, child, target).await;
        let rest = launcher.slots.waited_for(job.seq, target);
        has_ended.notify_one();
        end_group(launcher, rest, end.kill_at).await;
        end
    };
    let (end, (lost, is_open)) = tokio::join!(living, listen(launcher, streams, &has_ended));
    if is_open && end.kill_at.is_none() && !launcher.slots.is_ending() {
        launcher.report(Event::LeftBehind(Arc::clone(job))).await;
    }
    outcome(end.status, end.kill_at.is_some(), lost)
}

/// The end of a command.
struct End {
    status: io::Result<ExitStatus>,
    /// After a timeout: the time at which the rest of the group is killed, as [`Slots::ran`](super::Slots::ran) counts
    /// time.
    kill_at: Option<Duration>,
}

/// Waits until the command ends. After the timeout, ends the command.
async fn live(launcher: &Arc<Launcher>, child: &mut Child, target: Target) -> End {
    let timeout = launcher.options.timeout.map_or(NEVER, |timeout| timeout.min(NEVER));
    if let Some(status) = ended_within(launcher, child, timeout).await {
        return End { status, kill_at: None };
    }
    let grace = GRACE * launcher.options.second;
    target.signal(Signal::TERM);
    target.signal(Signal::CONT);
    let kill_at = Some(launcher.slots.ran() + grace);
    if let Some(status) = ended_within(launcher, child, grace).await {
        return End { status, kill_at };
    }
    target.signal(Signal::KILL);
    End { status: child.wait().await, kill_at }
}

/// The exit status, if the command ended within `time`. If we were stopped meanwhile, the end and the timeout may both
/// have come; the end counts.
async fn ended_within(launcher: &Launcher, child: &mut Child, time: Duration) -> Option<io::Result<ExitStatus>> {
    tokio::select! {
        status = child.wait() => return Some(status),
        () = launcher.slots.sleep(time) => {}
    }
    child.try_wait().transpose()
}

/// Reads the output until no process holds it open, but at most until one second after the command's end. Returns the
/// error that lost output, if there was one, and whether a process still holds the output open.
async fn listen(
    launcher: &Arc<Launcher>,
    [out, err]: [&mut Stream; 2],
    has_ended: &Notify,
) -> (Option<io::Error>, bool) {
    let (mut out_buffer, mut err_buffer) = (Vec::new(), Vec::new());
    let is_open = |out: &Stream, err: &Stream| out.pipe.is_some() || err.pipe.is_some();
    let mut lost = None;
    let left_behind = async {
        has_ended.notified().await;
        launcher.slots.sleep(launcher.options.second).await;
    };
    tokio::pin!(left_behind);
    while is_open(out, err) {
        tokio::select! {
            read = read_some(&mut out.pipe, &mut out_buffer), if out.pipe.is_some() => {
                lost = lost.or(out.take(launcher, read, &mut out_buffer).await.err());
            }
            read = read_some(&mut err.pipe, &mut err_buffer), if err.pipe.is_some() => {
                lost = lost.or(err.take(launcher, read, &mut err_buffer).await.err());
            }
            () = &mut left_behind => {
                lost = lost.or(out.drain(launcher).await.err()).or(err.drain(launcher).await.err());
                return (lost, is_open(out, err));
            }
        }
    }
    (lost, false)
}

/// Waits for the rest of the group after a timeout or when the run ends. Kills the rest at `kill_at`, if that is given.
async fn end_group(launcher: &Arc<Launcher>, rest: Target, kill_at: Option<Duration>) {
    let mut killed_at = None;
    while (kill_at.is_some() || launcher.slots.is_ending()) && launcher.slots.survives(rest) {
        let now = Instant::now();
        let overdue = kill_at.is_some_and(|kill_at| launcher.slots.ran() >= kill_at);
        if overdue {
            rest.signal(Signal::KILL);
        }
        // A process that still seems to exist by then cannot be signalled, or is a zombie on a system without /proc.
        if (overdue || launcher.slots.is_killing()) && now >= *killed_at.get_or_insert(now) + launcher.options.second {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn outcome(status: io::Result<ExitStatus>, timed_out: bool, lost: Option<io::Error>) -> Outcome {
    let status = match status {
        Ok(status) => status,
        Err(error) => return Outcome::OutputLost(error),
    };
    match (timed_out, lost, status.code(), status.signal()) {
        (true, ..) => Outcome::TimedOut,
        (_, Some(error), ..) => Outcome::OutputLost(error),
        (_, _, Some(0), _) => Outcome::Ok,
        (_, _, Some(code), _) => Outcome::Exited(code),
        (_, _, None, signal) => Outcome::Killed(signal.unwrap_or(0)),
    }
}

/// The pipe that a command writes to.
trait Pipe: AsyncRead + AsFd + Send + Unpin {}

impl<P: AsyncRead + AsFd + Send + Unpin> Pipe for P {}

/// An output of a command.
struct Stream {
    /// `None` once it is closed.
    pipe: Option<Box<dyn Pipe>>,
    /// The output that was read. If each line is printed as soon as it is complete, only the incomplete last line.
    spool: Spool,
    tag: Option<Vec<u8>>,
    /// Whether the next byte begins a line.
    at_start: bool,
    is_stdout: bool,
    /// Whether some output could not be stored. The rest is then dropped, because it would be in the wrong place.
    is_cut: bool,
}

impl Stream {
    fn new(launcher: &Arc<Launcher>, job: &Job, pipe: Option<impl Pipe + 'static>, is_stdout: bool) -> Self {
        let pipe = pipe.map(|pipe| -> Box<dyn Pipe> { Box::new(pipe) });
        let tag = launcher.options.tag.then(|| launcher.tag(job, is_stdout));
        Stream { pipe, spool: Spool::default(), tag, at_start: true, is_stdout, is_cut: false }
    }

    /// Takes the bytes that were read into `buffer`. Closes the pipe at the end of the output or after an error.
    async fn take(
        &mut self,
        launcher: &Arc<Launcher>,
        read: io::Result<usize>,
        buffer: &mut Vec<u8>,
    ) -> io::Result<()> {
        if !matches!(read, Ok(1..)) {
            self.pipe = None;
            return read.map(drop);
        }
        let bytes = std::mem::take(buffer);
        if self.is_cut {
            return Ok(());
        }
        let kept = self.keep(launcher, bytes).await;
        self.is_cut = kept.is_err();
        kept
    }

    async fn keep(&mut self, launcher: &Arc<Launcher>, bytes: Vec<u8>) -> io::Result<()> {
        let bytes = self.tagged(bytes);
        let by_line = launcher.options.output == Output::Lines;
        let whole = memchr::memrchr(b'\n', &bytes).filter(|_| by_line).map_or(0, |last| last + 1);
        let (ended, begun) = bytes.split_at(whole);
        launcher.store(&mut self.spool, ended).await?;
        if ended.is_empty() {
            return launcher.store(&mut self.spool, begun).await;
        }
        let lines = std::mem::take(&mut self.spool);
        launcher.store(&mut self.spool, begun).await?;
        launcher.print_lines(lines, self.is_stdout).await
    }

    /// Puts the tag before each line that begins in `bytes`.
    fn tagged(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let was_at_start = std::mem::replace(&mut self.at_start, bytes.ends_with(b"\n"));
        let Some(tag) = &self.tag else { return bytes };
        let mut text = Vec::with_capacity(bytes.len() + tag.len());
        for (place, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
            text.extend_from_slice(if place > 0 || was_at_start { tag } else { b"" });
            text.extend_from_slice(line);
        }
        text
    }

    /// Takes the bytes that are in the pipe now. A slow reader or a stop may have kept us from reading them, and the
    /// runtime may not have noticed them yet.
    async fn drain(&mut self, launcher: &Arc<Launcher>) -> io::Result<()> {
        let (mut buffer, mut taken) = (Vec::new(), 0);
        while let Some(pipe) = self.pipe.as_ref().filter(|_| taken < MAX_PIPE_BYTES) {
            buffer.reserve(READ_BYTES);
            match rustix::io::read(pipe, spare_capacity(&mut buffer)) {
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                read => {
                    taken += buffer.len();
                    self.take(launcher, read.map_err(io::Error::from), &mut buffer).await?;
                }
            }
        }
        Ok(())
    }

    /// Ends an incomplete last line, so that the next command's output begins on a new line. Closes the pipe, which a
    /// process that was left behind may hold open: the next command may need the file.
    async fn close(&mut self, launcher: &Arc<Launcher>) -> io::Result<()> {
        self.pipe = None;
        let by_line = launcher.options.output == Output::Lines;
        if !self.at_start && !self.is_cut && (by_line || self.tag.is_some()) {
            launcher.store(&mut self.spool, b"\n").await?;
        }
        if by_line {
            return launcher.print_lines(std::mem::take(&mut self.spool), self.is_stdout).await;
        }
        Ok(())
    }
}

/// Reads into `buffer`, which is allocated only when there is something to read: most commands print nothing.
async fn read_some(pipe: &mut Option<Box<dyn Pipe>>, buffer: &mut Vec<u8>) -> io::Result<usize> {
    match pipe {
        Some(pipe) => {
            buffer.reserve(READ_BYTES);
            pipe.read_buf(buffer).await
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_tagged_once_wherever_it_is_cut() {
        let (pipe, spool, tag) = (None, Spool::default(), Some(b"u\t".to_vec()));
        let (at_start, is_stdout, is_cut) = (true, true, false);
        let mut stream = Stream { pipe, spool, tag, at_start, is_stdout, is_cut };
        let text: Vec<u8> =
            ["a\nb", "c", "\n\nd"].iter().flat_map(|text| stream.tagged(text.as_bytes().to_vec())).collect();
        assert_eq!(text, b"u\ta\nu\tbc\nu\t\nu\td");
        assert!(!stream.at_start);
    }
}
