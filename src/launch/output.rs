//! All printing: here the output of commands is written to our standard output and error, in every mode.
//!
//! A reader that does not read must not hold up timeouts, signals or the second end: only threads made for that may block.

use super::event::{Event, Success};
use super::job::Job;
use super::options::Output;
use super::printer::{Collected, Printer};
use super::shared::Shared;
use super::spool::Spool;
use super::template::printable;
use super::temporary::TemporaryError;
use crate::flow::unpoisoned;
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use tokio::sync::Semaphore;
use tokio::time::sleep;

impl Shared {
    /// What is put before each line of a command's output, or of its standard error: its first unit, so that a terminal
    /// can show it, and a tab.
    pub(super) fn tag(&self, job: &Job, is_stdout: bool) -> Vec<u8> {
        let unit = job.units.first().filter(|_| job.shape.gives_arguments()).unwrap_or(job.name());
        let unit = unit.strip_suffix(b"\n").unwrap_or(unit);
        let shown = || printable(&String::from_utf8_lossy(unit)).into_bytes();
        let mut tag = if self.printer().outlets.is_terminal(is_stdout) { shown() } else { unit.to_vec() };
        tag.push(b'\t');
        tag
    }

    /// Prints all that the command of job `seq` wrote, now or in its turn. Only then a success is recorded as done.
    pub(super) async fn print(
        self: &Arc<Self>,
        seq: u64,
        result: Collected,
        success: Option<Success>,
    ) -> io::Result<()> {
        if result.is_empty() && self.options.output != Output::InOrder {
            self.done(success);
            return Ok(());
        }
        let shared = Arc::clone(self);
        let finish = move |printer: &mut Printer| {
            shared.done(printer.finish(seq, &result, success)?);
            // It is not this command's output that is lost if that fails.
            let _ = shared.note(printer.write_held(&mut |success| shared.done(Some(success))));
            Ok(())
        };
        self.print_with(finish).await
    }

    /// Prints what still waits for its turn, which will not come any more, as far as it can be printed. Returns the jobs
    /// that succeeded and whose output cannot be. May block.
    pub(super) fn print_rest(&self) -> Vec<Arc<Job>> {
        let mut lost = Vec::new();
        let rest = |printer: &mut Printer| {
            lost = printer.write_rest(|success| self.done(Some(success)));
            Ok(())
        };
        // The error, if there is one, was told before.
        let _ = self.print_beside(rest);
        lost.into_iter().map(|success| success.job).collect()
    }

    /// The output was written, if there was any.
    fn done(&self, success: Option<Success>) {
        let Some(success) = success else { return };
        let recorded = self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.record_done(&success.job));
        self.events.send(match recorded {
            Ok(()) => Event::Done(success),
            Err(error) => Event::CannotRecord(error.to_string()),
        });
    }

    /// Prints whole lines.
    pub(super) async fn print_lines(self: &Arc<Self>, lines: Spool, is_stdout: bool) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.print_with(move |printer| lines.copy_to(&mut printer.outlets.stream(is_stdout))).await
    }

    /// Prints output that may have to wait for a reader, on a thread for that. One at a time: a write beyond `PIPE_BUF`
    /// may be taken in pieces (pipe(7)), and another's would come in between.
    async fn print_with(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Printer) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(self);
        let printed = self.on_a_thread(Some(&self.printing), move || shared.print_beside(act)).await;
        self.note(printed.unwrap_or_else(|| Err(ErrorKind::TimedOut.into())))
    }

    /// Runs `act`, which may block, on a thread for that: one at a time of those with the same `turns`. `None` if everything
    /// was killed meanwhile, and it still takes too long.
    pub(super) async fn on_a_thread<T: Send + 'static>(
        &self,
        turns: Option<&Arc<Semaphore>>,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let acted = async {
            let turn = if let Some(turns) = turns { Arc::clone(turns).acquire_owned().await.ok() } else { None };
            let act = move || {
                let _turn = turn;
                act()
            };
            tokio::task::spawn_blocking(act).await.ok()
        };
        self.unless_killed(acted).await.flatten()
    }

    fn print_beside(&self, act: impl FnOnce(&mut Printer) -> io::Result<()>) -> io::Result<()> {
        let (mut act, mut done) = (Some(act), Ok(()));
        let mut printer = self.printer();
        let was_full = printer.is_full();
        self.screen.beside(&mut || {
            done = act.take().map_or(Ok(()), |act| act(&mut printer));
            printer.outlets.take_open_line()
        });
        let is_full = printer.is_full();
        if is_full != was_full {
            // Under the lock: otherwise two that finish at once could set it in the wrong order.
            self.is_held_up.store(is_full, Ordering::SeqCst);
        }
        drop(printer);
        if is_full && !was_full {
            self.events.send_once(Event::HeldUp);
        }
        done
    }

    fn printer(&self) -> MutexGuard<'_, Printer> {
        unpoisoned(self.printer.lock())
    }

    /// Sends `event`, and returns once the user was told, if standard error is read.
    pub(super) async fn tell(&self, event: Event) {
        let told = self.events.send_and_wait(event);
        // Best effort: a message that nothing reads does not stop the run.
        let _ = self.unless_killed(told).await;
    }

    /// `None` if everything was killed meanwhile, and it still takes too long.
    pub(super) async fn unless_killed<T>(&self, act: impl Future<Output = T>) -> Option<T> {
        let too_long = async {
            self.slots.killed().await;
            sleep(self.options.second).await;
        };
        tokio::select! {
            done = act => Some(done),
            () = too_long => None,
        }
    }

    /// Tells the receiver if nothing can be printed any more.
    fn note(&self, printed: io::Result<()>) -> io::Result<()> {
        printed.inspect_err(|error| match (error.kind(), TemporaryError::within(error)) {
            (ErrorKind::BrokenPipe, _) => self.events.send(Event::ReaderGone),
            _ if self.slots.is_killing() => {}
            (_, Some(_)) => self.events.send(Event::CannotHold(error.to_string())),
            (_, None) => self.events.send(Event::CannotPrint(error.to_string())),
        })
    }
}
