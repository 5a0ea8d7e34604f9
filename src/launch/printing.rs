//! What commands wrote and how they ended, told to whoever reads it, while nobody who does not read holds up a command's
//! time, a signal or the end: what may block is done by threads made for that.

use super::printer::{Collected, Printer};
use super::temporary::TemporaryError;
use super::{Job, Observer, Outcome, Output, Shared};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// After everything was killed, nobody who takes no output holds up the end longer than this.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) async fn print(self: &Arc<Self>, seq: u64, result: Collected) -> io::Result<()> {
        let in_turn = self.options.output == Output::InOrder;
        let nothing = result.out.is_empty() && result.err.is_empty();
        if nothing && !in_turn {
            return Ok(());
        }
        let printed = match self.print_at_once(result) {
            Ok(printed) => printed,
            Err(result) => {
                let shared = Arc::clone(self);
                self.blocking(move || shared.finish(shared.printer(), seq, result)).await
            }
        };
        self.note_written(printed).await
    }

    /// Prints what takes no wait: a little, on one stream, where nobody else prints. What would wait is given back: another
    /// thread does the waiting, and commands are attended to meanwhile. What goes to both streams would stand on one, if
    /// they are the same, and could be torn.
    fn print_at_once(&self, result: Collected) -> Result<io::Result<()>, Collected> {
        if self.options.output == Output::InOrder || self.observer.shows_something() {
            return Err(result);
        }
        let (Some(out), Some(err)) = (result.out.in_memory(), result.err.in_memory()) else { return Err(result) };
        let Ok(printer) = self.printer.try_lock() else { return Err(result) };
        let written = match (out, err) {
            (out, []) => printer.outlets.out_at_once(out),
            ([], err) => printer.outlets.err_at_once(err),
            _ => None,
        };
        drop(printer);
        written.ok_or(result)
    }

    /// Whether too much is held is told under the lock: otherwise two who finish at once could tell it in the wrong order.
    fn finish(&self, mut printer: MutexGuard<'_, Printer>, seq: u64, result: Collected) -> io::Result<()> {
        let was_full = printer.is_full();
        let mut result = Some(result);
        let mut finished = Ok(());
        self.observer.printing(&mut || {
            finished = result.take().map_or(Ok(()), |result| printer.finish(seq, result));
            printer.outlets.take_open_line()
        });
        let full = printer.is_full();
        self.slots.set_full(full);
        drop(printer);
        if full && !was_full && !self.told_of_holding.swap(true, Ordering::Relaxed) {
            self.observer.held_up();
        }
        finished
    }

    pub(super) fn printer(&self) -> MutexGuard<'_, Printer> {
        self.printer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints what may have to wait for somebody who reads it, on a thread for that.
    pub(super) async fn blocking(&self, print: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let printing = Arc::clone(&self.printing);
        let print = async {
            let turn = printing.acquire_owned().await;
            let print = move || {
                let _turn = turn;
                print()
            };
            on_a_thread(print).await
        };
        self.unless_killed(print).await
    }

    /// Tells what may have to be written for somebody to read.
    pub(super) async fn tell(
        self: &Arc<Self>,
        job: &Arc<Job>,
        tell: impl FnOnce(&dyn Observer, &Job) + Send + 'static,
    ) {
        let (shared, job) = (Arc::clone(self), Arc::clone(job));
        let told = on_a_thread(move || {
            tell(&*shared.observer, &job);
            Ok(())
        });
        // Who does not want to know need not.
        let _ = self.unless_killed(told).await;
    }

    async fn unless_killed(&self, act: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let too_long = async {
            self.slots.killed().await;
            sleep(LAST_WORDS).await;
        };
        tokio::select! {
            done = act => done,
            () = too_long => Err(ErrorKind::TimedOut.into()),
        }
    }

    /// A reader that is gone ends everything.
    pub(super) async fn note_written(self: &Arc<Self>, written: io::Result<()>) -> io::Result<()> {
        let Err(error) = written else { return Ok(()) };
        match error.kind() {
            ErrorKind::BrokenPipe => self.observer.reader_gone(),
            _ if self.slots.is_killing() => {}
            _ => return self.tell_of_loss(error).await,
        }
        Err(error)
    }

    /// Nobody may be there to read what is said about it.
    async fn tell_of_loss(self: &Arc<Self>, error: io::Error) -> io::Result<()> {
        let shared = Arc::clone(self);
        let told = on_a_thread(move || {
            match TemporaryError::within(&error) {
                Some(_) => shared.observer.cannot_hold(&error),
                None => shared.observer.cannot_print(&error),
            }
            Err(error)
        });
        self.unless_killed(told).await
    }

    pub(super) async fn ended(self: &Arc<Self>, job: &Arc<Job>, outcome: Outcome, printed: io::Result<()>, slot: u32) {
        let wanted_terminal = self.wanted_terminal.lock().unwrap_or_else(PoisonError::into_inner).remove(&job.seq);
        let outcome = match (wanted_terminal, printed) {
            (true, _) => Outcome::WantedTerminal,
            (false, Err(error)) => Outcome::OutputLost(error),
            (false, Ok(())) => outcome,
        };
        // What writes to our standard output itself finds for itself that nobody reads.
        if self.options.output == Output::Direct && !matches!(outcome, Outcome::Ok) && has_no_reader(io::stdout()) {
            self.observer.reader_gone();
        }
        if matches!(outcome, Outcome::Ok) {
            self.observer.ended(job, &outcome);
        } else {
            self.tell(job, move |observer, job| observer.ended(job, &outcome)).await;
        }
        self.slots.release(job.seq, slot);
    }
}

async fn on_a_thread(act: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Whether nobody will ever read what is written to `fd`: a pipe without readers has `POLLERR` (poll(2)).
fn has_no_reader(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|_| fds[0].revents().contains(PollFlags::ERR))
}
