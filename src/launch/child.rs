//! One command from its start to its end: its output is read, its time is watched, and its process group ends with it.

use super::again::Again;
use super::attempt::{Attempt, Charge, Ended, Granted, Ledger, Running, Settler};
use super::by_key::ByKey;
use super::event::{Event, Events, Success};
use super::job::{Job, Outcome};
use super::options::{GRACE, NEVER, Options, Output};
use super::output::Printing;
use super::printer::Collected;
use super::reply::{self, Reply};
use super::reply_file::unopened;
use super::retries::Verdict;
use super::settling::Real;
use super::slots::Slots;
use super::spool::Spool;
use super::target::Target;
use super::wakes::Wakes;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant as StdInstant, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep};

/// The most that a pipe usually holds: at most so much was written before the command's end and is not read yet.
const IN_A_PIPE: usize = 1 << 20;

/// Bytes read at once.
const READ: usize = 8 * 1024;

/// What the pump's thread and the commands' tasks share.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) slots: Arc<Slots>,
    /// There if the pump may wait for several things.
    pub(super) wakes: Option<Arc<Wakes>>,
    pub(super) again: Option<Arc<Again>>,
    pub(super) by_key: Option<Arc<ByKey>>,
    pub(super) ledger: Option<Arc<dyn Ledger>>,
    pub(super) settler: Arc<dyn Settler>,
    /// Held while the ledger may block.
    pub(super) recording: Arc<Semaphore>,
    pub(super) output: Arc<Printing>,
    pub(super) events: Events,
    /// Jobs whose commands were ended because they wanted the terminal.
    pub(super) wanted_terminal: Mutex<BTreeSet<u64>>,
    /// Events that are sent once.
    pub(super) told: Told,
}

/// Which events were sent that are sent once.
#[derive(Default)]
pub(super) struct Told {
    pub(super) full_agenda: AtomicBool,
    bad_reply: AtomicBool,
    unopened: AtomicBool,
    overlong_pause: AtomicBool,
}

impl Shared {
    /// Decides what follows from the end of an attempt, prints what its command wrote, and records it. The last thing that
    /// a command's task does.
    pub(super) async fn finish(self: &Arc<Self>, mut running: Running, outcome: Outcome, collected: Collected) {
        let (seq, at) = (running.seq(), StdInstant::now());
        let wanted_terminal = self.wanted_terminal.lock().unwrap_or_else(PoisonError::into_inner).remove(&seq);
        let mut outcome = if wanted_terminal { Outcome::WantedTerminal } else { outcome };
        let reply = self.reply(&running);
        if !matches!(outcome, Outcome::Ok) && reply == Reply::default() {
            self.tell_of_unopened(&running, &collected);
        }
        let real = self.real(&running, &reply);
        self.settle(running.charge.take(), &real).await;
        let mut verdict = self.verdict(&running, at, &outcome, &reply);
        if let (Some(by_key), Some(granted), Verdict::Later(_)) = (&self.by_key, &running.granted, verdict) {
            let key = &running.attempt.job.key;
            if let Some(time) = self.again.as_ref().and_then(|again| again.take_hold(key)) {
                by_key.hold(granted, time);
            }
        }
        let success = matches!(verdict, Verdict::Ok)
            .then(|| Success { job: Arc::clone(&running.attempt.job), attempt: running.attempt.number });
        let printed = if verdict.is_repeated() {
            // Only the last attempt's output counts, but its messages tell why there were more.
            self.output.print_lines(collected.err, false).await
        } else {
            // Even if some of it is lost: later output waits for its turn.
            self.output.print(seq, collected, success).await
        };
        if let Err(error) = printed
            && !verdict.is_repeated()
            && !wanted_terminal
        {
            (outcome, verdict) = (Outcome::OutputLost(error), Verdict::Failed);
        }
        self.ended(running, (outcome, verdict), reply, &real, at).await;
    }

    /// Settles the charge at the cost that the command has told.
    async fn settle(&self, charge: Option<Charge>, real: &Real) {
        let Some(charge) = charge else { return };
        let settler = Arc::clone(&self.settler);
        if !settler.may_block() {
            settler.settle(&charge, &real.costs);
        } else if real.told.is_some() {
            let costs = real.costs.clone();
            let settle = tokio::task::spawn_blocking(move || settler.settle(&charge, &costs));
            self.output.unless_killed(settle).await;
        }
    }

    /// What the command has told about the answer it got.
    fn reply(&self, running: &Running) -> Reply {
        let Some(file) = &running.reply else { return Reply::default() };
        let reply = file.read().map(|bytes| Reply::parse(&bytes, SystemTime::now())).unwrap_or_default();
        if let Some(field) = &reply.bad {
            let is_cost = field.starts_with(reply::COST);
            let right = if is_cost { self.options.settling.example() } else { "retry-after: 30".to_owned() };
            self.tell_of_reply(format!("a reply has '{field}', which makes no sense; write for example {right}"));
        }
        reply
    }

    /// If its command could not open the file of its reply, says so, once.
    fn tell_of_unopened(&self, running: &Running, collected: &Collected) {
        let Some(file) = running.reply.as_ref().filter(|_| !self.told.unopened.load(Ordering::Relaxed)) else { return };
        let words = self.options.template.fill(&running.attempt.job.units);
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let errors = collected.err.in_memory().unwrap_or_default();
        if let Some(remark) = unopened(file.path(), &words.join(" "), errors)
            && !self.told.unopened.swap(true, Ordering::Relaxed)
        {
            self.events.send(Event::BadReply(remark));
        }
    }

    /// What it really cost each limit.
    fn real(&self, running: &Running, reply: &Reply) -> Real {
        let Running { granted, charge, .. } = running;
        let charged = granted.as_ref().map(|granted| &granted.costs).or(charge.as_ref().map(|charge| &charge.costs));
        let mut real = self.options.settling.real(charged.map_or(&[], |costs| costs), reply);
        real.remark.take().into_iter().for_each(|remark| self.tell_of_reply(remark));
        real
    }

    /// Once.
    fn tell_of_reply(&self, remark: String) {
        if !self.told.bad_reply.swap(true, Ordering::Relaxed) {
            self.events.send(Event::BadReply(remark));
        }
    }

    fn verdict(&self, running: &Running, at: StdInstant, outcome: &Outcome, reply: &Reply) -> Verdict {
        let (is_ok, is_ending) = (matches!(outcome, Outcome::Ok), self.slots.is_ending());
        match &self.again {
            Some(again) if is_ok || !is_ending => again.judge(&running.attempt, [running.started, at], outcome, reply),
            _ if is_ok => Verdict::Ok,
            _ if is_ending => Verdict::Stopped,
            _ => Verdict::Failed,
        }
    }

    async fn ended(
        self: &Arc<Self>,
        running: Running,
        (outcome, verdict): (Outcome, Verdict),
        reply: Reply,
        real: &Real,
        at: StdInstant,
    ) {
        let Running { attempt, slot, started, reply: file, granted, .. } = running;
        // Before something waits for a file descriptor.
        drop(file);
        let (job, number, seq) = (Arc::clone(&attempt.job), attempt.number, attempt.job.seq);
        let due = self.again.as_ref().zip(verdict.due()).map(|(again, due)| (again, due, again.instant(due)));
        let due_in = due.map(|(.., due)| due.saturating_duration_since(at));
        let waited = started.saturating_duration_since(attempt.ready);
        let is_ok = matches!(outcome, Outcome::Ok);
        // A command that writes to our standard output itself is the one that finds its reader gone.
        if self.options.output == Output::Direct && !is_ok && has_no_reader(io::stdout()) {
            self.events.send(Event::ReaderGone);
        }
        let ended = Ended { job, number, outcome, verdict, due_in, reply, cost: real.told, waited, started, at, slot };
        let ended = Arc::new(ended);
        self.record(&ended).await;
        let is_sent_away = match due {
            Some((again, ..)) => self.is_sent_away(again, &attempt, granted.as_ref()).await,
            None => false,
        };
        let due = due.filter(|_| !is_sent_away);
        let ended = Event::Ended(ended);
        if ended.is_urgent() {
            self.output.tell(ended).await;
        } else {
            self.events.send(ended);
        }
        // Only now may the next attempt start; and nobody sees a moment with neither.
        self.slots.release(seq, slot, || {
            if let Some((by_key, granted)) = self.by_key.as_ref().zip(granted) {
                by_key.ended(&granted, &real.costs);
            }
            if let Some((again, due, ready)) = due {
                again.add(due, attempt.next(verdict, ready));
            }
        });
        self.wakes.iter().for_each(|wakes| wakes.wake());
        self.again.iter().for_each(|again| again.wake_pump());
    }

    /// Whether the server asked to wait for too long. Then no unit of the key is tried any more, if limits are kept for
    /// each; without keys the run ends.
    async fn is_sent_away(&self, again: &Again, attempt: &Attempt, granted: Option<&Granted>) -> bool {
        let key = &attempt.job.key;
        let Some(left) = again.overlong_pause(key) else { return false };
        let left = Duration::from_nanos(left);
        let Some((by_key, granted)) = self.by_key.as_ref().zip(granted) else {
            if !self.told.overlong_pause.swap(true, Ordering::Relaxed) {
                self.events.send(Event::SentAway(left));
            }
            return false;
        };
        let waiting = [vec![attempt.clone()], by_key.give_up(key, granted), again.give_up(key)].concat();
        let jobs: Vec<_> = waiting.into_iter().map(|attempt| attempt.job).collect();
        for job in &jobs {
            // Output in input order waits for the turn of each.
            let _ = self.output.print(job.seq, Collected::default(), None).await;
        }
        self.events.send(Event::KeySentAway { left, jobs });
        true
    }

    /// Has the ledger record what has ended, before its slot is free.
    async fn record(&self, ended: &Arc<Ended>) {
        let Some(ledger) = &self.ledger else { return };
        let recorded = if ledger.may_block() {
            let (ledger, ended) = (Arc::clone(ledger), Arc::clone(ended));
            let record = async {
                // One at a time: a reader that does not read takes one thread, and others print meanwhile.
                let turn = Arc::clone(&self.recording).acquire_owned().await;
                let record = move || {
                    let _turn = turn;
                    ledger.record(&ended)
                };
                tokio::task::spawn_blocking(record).await.unwrap_or_else(|error| Err(io::Error::other(error)))
            };
            self.output.unless_killed(record).await.unwrap_or(Ok(()))
        } else {
            ledger.record(ended)
        };
        if let Err(error) = recorded {
            self.events.send(Event::CannotRecord(error.to_string()));
        }
    }
}

/// Attends to the command until its end, prints its output, and sends how it ended.
pub(super) async fn attend(shared: Arc<Shared>, running: Running, mut child: Child, target: Target) {
    let job = Arc::clone(&running.attempt.job);
    let mut streams = Streams::new(&shared, &job, &mut child);
    let outcome = watch(&shared, &job, &mut child, target, &mut streams).await;
    // Frees a file descriptor before something waits for one.
    drop(child);
    let (collected, finished) = streams.finish(&shared).await;
    let outcome = finished.map_or_else(Outcome::OutputLost, |()| outcome);
    shared.finish(running, outcome, collected).await;
}

/// Reads its output and watches its time side by side: a reader of ours that takes nothing holds up no timeout.
async fn watch(
    shared: &Arc<Shared>,
    job: &Arc<Job>,
    child: &mut Child,
    target: Target,
    streams: &mut Streams,
) -> Outcome {
    let has_ended = Notify::new();
    let living = async {
        let end = live(shared, child, target).await;
        let rest = shared.slots.waited_for(job.seq, target);
        has_ended.notify_one();
        end_group(shared, rest, end.kill_at).await;
        end
    };
    let (end, (lost, is_open)) = tokio::join!(living, listen(shared, streams, &has_ended));
    if is_open && end.kill_at.is_none() && !shared.slots.is_ending() {
        shared.output.tell(Event::LeftBehind(Arc::clone(job))).await;
    }
    outcome(end.status, end.kill_at.is_some(), lost)
}

/// The end of a command.
struct End {
    status: io::Result<ExitStatus>,
    /// If it took too long: when the rest of its group is killed; see [`Slots::ran`](super::Slots::ran).
    kill_at: Option<Duration>,
}

/// Waits for its end, and ends it if it takes too long.
async fn live(shared: &Arc<Shared>, child: &mut Child, target: Target) -> End {
    let timeout = shared.options.timeout.map_or(NEVER, |timeout| timeout.min(NEVER));
    if let Some(status) = ended_within(shared, child, timeout).await {
        return End { status, kill_at: None };
    }
    let grace = GRACE * shared.options.second;
    target.signal(Signal::TERM);
    target.signal(Signal::CONT);
    let kill_at = Some(shared.slots.ran() + grace);
    if let Some(status) = ended_within(shared, child, grace).await {
        return End { status, kill_at };
    }
    target.signal(Signal::KILL);
    End { status: child.wait().await, kill_at }
}

/// How it ended, if it did within `time`. If we were stopped meanwhile, both may be true: then it ended in time.
async fn ended_within(shared: &Shared, child: &mut Child, time: Duration) -> Option<io::Result<ExitStatus>> {
    tokio::select! {
        status = child.wait() => return Some(status),
        () = shared.slots.sleep(time) => {}
    }
    child.try_wait().transpose()
}

/// Reads its output until no process holds that open, or for a while after its end. Returns why output was lost, if it was,
/// and whether a process still holds it open.
async fn listen(shared: &Arc<Shared>, streams: &mut Streams, has_ended: &Notify) -> (Option<io::Error>, bool) {
    let (mut out_buffer, mut err_buffer) = (Vec::new(), Vec::new());
    let mut lost = None;
    let left_behind = async {
        has_ended.notified().await;
        shared.slots.sleep(shared.options.second).await;
    };
    tokio::pin!(left_behind);
    while !streams.are_closed() {
        tokio::select! {
            read = read_some(&mut streams.out.pipe, &mut out_buffer), if streams.out.pipe.is_some() => {
                lost = lost.or(streams.out.take(shared, read, &mut out_buffer).await.err());
            }
            read = read_some(&mut streams.err.pipe, &mut err_buffer), if streams.err.pipe.is_some() => {
                lost = lost.or(streams.err.take(shared, read, &mut err_buffer).await.err());
            }
            () = &mut left_behind => {
                lost = lost.or(streams.drain(shared).await.err());
                return (lost, !streams.are_closed());
            }
        }
    }
    (lost, false)
}

/// After a timeout, or when the run ends, also waits for what is left of the group, and finally kills it.
async fn end_group(shared: &Arc<Shared>, rest: Target, kill_at: Option<Duration>) {
    let mut killed_at = None;
    while (kill_at.is_some() || shared.slots.is_ending()) && shared.slots.survives(rest) {
        let now = Instant::now();
        let overdue = kill_at.is_some_and(|kill_at| shared.slots.ran() >= kill_at);
        if overdue {
            rest.signal(Signal::KILL);
        }
        // A process that still seems to exist cannot be signalled, or is a zombie and there is no /proc to tell.
        if (overdue || shared.slots.is_killing()) && now >= *killed_at.get_or_insert(now) + shared.options.second {
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

/// Both outputs of a command.
struct Streams {
    out: Stream<tokio::process::ChildStdout>,
    err: Stream<tokio::process::ChildStderr>,
}

impl Streams {
    fn new(shared: &Arc<Shared>, job: &Job, child: &mut Child) -> Self {
        Streams {
            out: Stream::new(shared, job, child.stdout.take(), true),
            err: Stream::new(shared, job, child.stderr.take(), false),
        }
    }

    fn are_closed(&self) -> bool {
        self.out.pipe.is_none() && self.err.pipe.is_none()
    }

    async fn drain(&mut self, shared: &Arc<Shared>) -> io::Result<()> {
        self.out.drain(shared).await?;
        self.err.drain(shared).await
    }

    async fn finish(mut self, shared: &Arc<Shared>) -> (Collected, io::Result<()>) {
        let closed = [self.out.close(shared).await, self.err.close(shared).await];
        (Collected { out: self.out.spool, err: self.err.spool }, closed.into_iter().collect())
    }
}

struct Stream<P> {
    pipe: Option<P>,
    /// All that was written; with lines printed as they come, the line that has not ended yet.
    spool: Spool,
    tag: Option<Vec<u8>>,
    /// Whether the next byte begins a line.
    at_start: bool,
    by_line: bool,
    is_stdout: bool,
}

impl<P: AsyncRead + AsFd + Unpin> Stream<P> {
    fn new(shared: &Arc<Shared>, job: &Job, pipe: Option<P>, is_stdout: bool) -> Self {
        let tag = shared.options.tag.then(|| shared.output.tag(job, is_stdout));
        let by_line = shared.options.output == Output::Lines;
        Stream { pipe, spool: Spool::default(), tag, at_start: true, by_line, is_stdout }
    }

    /// Takes the bytes that were read. Closes the pipe at its end.
    async fn take(&mut self, shared: &Arc<Shared>, read: io::Result<usize>, buffer: &mut Vec<u8>) -> io::Result<()> {
        if !matches!(read, Ok(1..)) {
            self.pipe = None;
            return read.map(drop);
        }
        let bytes = std::mem::take(buffer);
        let bytes = self.tagged(bytes);
        let whole = memchr::memrchr(b'\n', &bytes).filter(|_| self.by_line).map_or(0, |last| last + 1);
        let (ended, begun) = bytes.split_at(whole);
        self.spool.add(ended)?;
        if ended.is_empty() {
            return self.spool.add(begun);
        }
        let lines = std::mem::take(&mut self.spool);
        self.spool.add(begun)?;
        shared.output.print_lines(lines, self.is_stdout).await
    }

    /// `bytes` with the tag before each line that begins in them.
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

    /// Takes the bytes that are in the pipe now. We may not have read them yet because of a slow reader or a stop, and the
    /// runtime may not know of them yet.
    async fn drain(&mut self, shared: &Arc<Shared>) -> io::Result<()> {
        let (mut buffer, mut taken) = (Vec::new(), 0);
        while let Some(pipe) = self.pipe.as_ref().filter(|_| taken < IN_A_PIPE) {
            buffer.reserve(READ);
            match rustix::io::read(pipe, spare_capacity(&mut buffer)) {
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                read => {
                    taken += buffer.len();
                    self.take(shared, read.map_err(io::Error::from), &mut buffer).await?;
                }
            }
        }
        Ok(())
    }

    /// Ends a last line that has no newline, so that the next command's output begins on a new line.
    async fn close(&mut self, shared: &Arc<Shared>) -> io::Result<()> {
        if !self.at_start && (self.by_line || self.tag.is_some()) {
            self.spool.add(b"\n")?;
        }
        if self.by_line {
            return shared.output.print_lines(std::mem::take(&mut self.spool), self.is_stdout).await;
        }
        Ok(())
    }
}

/// Reads into `buffer`, which is allocated only if there is something to read: most commands print nothing.
async fn read_some(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut Vec<u8>) -> io::Result<usize> {
    match pipe {
        Some(pipe) => {
            buffer.reserve(READ);
            pipe.read_buf(buffer).await
        }
        None => std::future::pending().await,
    }
}

/// Whether `fd` has no reader any more: a pipe without readers has `POLLERR` (poll(2)).
fn has_no_reader(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|_| fds[0].revents().contains(PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_tagged_once_wherever_it_is_cut() {
        let (pipe, spool, tag) = (None::<tokio::process::ChildStdout>, Spool::default(), Some(b"u\t".to_vec()));
        let mut stream = Stream { pipe, spool, tag, at_start: true, by_line: false, is_stdout: true };
        let text: Vec<u8> =
            ["a\nb", "c", "\n\nd"].iter().flat_map(|text| stream.tagged(text.as_bytes().to_vec())).collect();
        assert_eq!(text, b"u\ta\nu\tbc\nu\t\nu\td");
        assert!(!stream.at_start);
    }
}
