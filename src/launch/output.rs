//! Prints the output of commands to our standard output and error, in every mode.
//!
//! A reader that does not read must not delay timeouts or signals, such as a second signal, which kills the commands.
//! So only dedicated threads may block.

use super::event::{Event, Success};
use super::job::Job;
use super::launcher::Launcher;
use super::options::Output;
use super::printer::{Collected, Printer};
use super::spool::Spool;
use super::template::printable;
use super::temporary::{TemporaryError, is_shortage, of_the_system};
use crate::flow::unpoisoned;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use tokio::sync::Semaphore;
use tokio::time::sleep;

impl Launcher {
    /// The tag before each line of a command's standard output or error: its first unit and a tab. For a terminal the
    /// unit is escaped.
    pub(super) fn tag(&self, job: &Job, is_stdout: bool) -> Vec<u8> {
        let unit = job.units.first().filter(|_| job.shape.gives_arguments()).unwrap_or(job.name());
        let unit = unit.strip_suffix(b"\n").unwrap_or(unit);
        let shown = || printable(&String::from_utf8_lossy(unit)).into_bytes();
        let mut tag = if self.printer().outlets.is_terminal(is_stdout) { shown() } else { unit.to_vec() };
        tag.push(b'\t');
        tag
    }

    /// Adds `bytes` to the output of a running command. If there is no open file left for so much output, waits until
    /// another command gives one back. Meanwhile the command has to wait as well, once its pipe is full. If all commands
    /// would wait for each other, this output stays in memory.
    pub(super) async fn store(&self, spool: &mut Spool, bytes: &[u8]) -> io::Result<()> {
        loop {
            match spool.write_all(bytes) {
                Err(error) if is_shortage(&error) && self.slots.wait_for_file().await => self.note_shortage(&error),
                Err(error) if is_shortage(&error) => {
                    spool.use_more_memory();
                    return spool.write_all(bytes);
                }
                done => return done,
            }
        }
    }

    /// Reports, once, that commands wait until other commands end.
    pub(super) fn note_shortage(&self, error: &io::Error) {
        self.events.send_once(Event::Shortage(of_the_system(error)));
    }

    /// Prints the output of the job `seq`, now or after the output of earlier jobs. A success is recorded as done only
    /// after that.
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
        let launcher = Arc::clone(self);
        let finish = move |printer: &mut Printer| {
            launcher.done(printer.finish(seq, &result, success)?);
            // A failure to write the held output of other commands does not lose the output of this command.
            let _ = launcher.note(printer.write_held(&mut |success| launcher.done(Some(success))));
            Ok(())
        };
        self.print_with(finish).await
    }

    /// Prints as much as possible of the output that still waits for the output of earlier jobs, which will never come.
    /// Must be called when no command runs and none will start. Returns the successful jobs whose output was not printed.
    /// May block.
    pub fn print_rest(&self) -> Vec<Arc<Job>> {
        let mut lost = Vec::new();
        let rest = |printer: &mut Printer| {
            lost = printer.write_rest(|success| self.done(Some(success)));
            Ok(())
        };
        // An error was reported before.
        let _ = self.print_beside(rest);
        lost.into_iter().map(|success| success.job).collect()
    }

    /// Records a success. Must be called once the output of its command was written.
    fn done(&self, success: Option<Success>) {
        let Some(success) = success else { return };
        let recorded = self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.record_done(&success.job));
        self.events.send(match recorded {
            Ok(()) => Event::Done(success),
            Err(error) => Event::CannotRecord(error.to_string()),
        });
    }

    /// Prints complete lines.
    pub(super) async fn print_lines(self: &Arc<Self>, lines: Spool, is_stdout: bool) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.print_with(move |printer| lines.copy_to(&mut printer.outlets.stream(is_stdout))).await
    }

    /// Prints output on a dedicated thread, because the print may have to wait for a reader. Only one print runs at a
    /// time: a write above `PIPE_BUF` may be split (pipe(7)), and other output could come in between.
    async fn print_with(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Printer) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let launcher = Arc::clone(self);
        let printed = self.on_a_thread(Some(&self.printing), move || launcher.print_beside(act)).await;
        self.note(printed.unwrap_or_else(|| Err(ErrorKind::TimedOut.into())))
    }

    /// Calls `act`, which may block, on a dedicated thread. Calls with the same `turns` run one at a time. Returns
    /// `None` if all commands were killed meanwhile and `act` still takes too long.
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
            // Stored under the lock: otherwise two tasks that finish at once could store it in the wrong order.
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

    /// Sends `event`, and returns once it was reported to the user, if standard error is read.
    pub(super) async fn report(&self, event: Event) {
        let reported = self.events.send_and_wait(event);
        // Best effort: a message that nobody reads does not stop the run.
        let _ = self.unless_killed(reported).await;
    }

    /// Returns `None` if all commands were killed meanwhile and `act` still takes too long.
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

    /// Sends an event if output cannot be printed any more.
    fn note(&self, printed: io::Result<()>) -> io::Result<()> {
        printed.inspect_err(|error| match (error.kind(), TemporaryError::within(error)) {
            (ErrorKind::BrokenPipe, _) => self.events.send(Event::ReaderGone),
            _ if self.slots.is_killing() => {}
            (_, Some(_)) => self.events.send(Event::CannotHold(error.to_string())),
            (_, None) => self.events.send(Event::CannotPrint(error.to_string())),
        })
    }
}
