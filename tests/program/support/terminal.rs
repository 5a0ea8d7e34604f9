//! Pseudo-terminals, and the text on their screens.

use super::program::{HANGS, text};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionread;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const ROWS: u16 = 50;
/// Rows that have left the screen at the top and can still be read.
const ABOVE: usize = 1000;

/// The controlling side of a new pseudo-terminal, and the name of the other side.
fn open() -> (OwnedFd, String) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&controller).and_then(|()| unlockpt(&controller)).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
    (controller, name)
}

/// The side that a program has.
fn open_end(name: &str) -> File {
    let no_tty = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    OpenOptions::new().read(true).write(true).custom_flags(no_tty).open(name).unwrap()
}

/// Both sides of a terminal: a program writes to the second, and the test reads from the first.
pub(crate) fn terminal() -> (OwnedFd, File) {
    let (controller, name) = open();
    (controller, open_end(&name))
}

/// The side of a terminal that a program has, and all that is written to it.
pub(crate) fn recorded_terminal() -> (File, JoinHandle<String>) {
    let (controller, end) = terminal();
    let read = thread::spawn(move || {
        let (mut controller, mut all, mut piece) = (File::from(controller), Vec::new(), [0; 4096]);
        // It fails once nobody has the other side open.
        while let Ok(length @ 1..) = controller.read(&mut piece) {
            all.extend_from_slice(&piece[..length]);
        }
        text(&all).replace("\r\n", "\n")
    });
    (end, read)
}

/// A pseudo-terminal whose output is shown as a terminal would show it.
pub(crate) struct Terminal {
    keyboard: File,
    name: String,
    screen: Arc<Mutex<vt100::Parser<Edge>>>,
}

/// The right edge: whether a program has disabled wrapping into the next row (DECAWM).
#[derive(Default)]
struct Edge {
    cuts_off: bool,
    within_escape: bool,
}

impl vt100::Callbacks for Edge {
    fn unhandled_csi(&mut self, _: &mut vt100::Screen, mark: Option<u8>, _: Option<u8>, modes: &[&[u16]], c: char) {
        if (mark, modes) == (Some(b'?'), &[&[7][..]]) {
            self.cuts_off = c == 'l';
        }
    }
}

/// Shows `byte` as a terminal with DECAWM does; the parser does not implement it.
fn show(screen: &mut vt100::Parser<Edge>, byte: u8) {
    let ((_, column), (_, columns)) = (screen.screen().cursor_position(), screen.screen().size());
    let edge = screen.callbacks_mut();
    let is_cut_off = edge.cuts_off && !edge.within_escape && byte >= b' ' && column >= columns.get();
    edge.within_escape = byte == 0x1b || edge.within_escape && !byte.is_ascii_alphabetic();
    if !is_cut_off {
        screen.process(&[byte]);
    }
}

impl Terminal {
    pub(crate) fn new(columns: u16) -> Self {
        let (controller, name) = open();
        tcsetwinsize(&controller, Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let parser = vt100::Parser::new_with_callbacks(size(ROWS), size(columns), ABOVE, Edge::default());
        let screen = Arc::new(Mutex::new(parser));
        let keyboard = File::from(controller);
        let (mut output, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails while nobody has the terminal open.
            loop {
                // Without the lock, as a read that has to wait would keep it.
                if poll(&mut [PollFd::new(&output, PollFlags::IN)], None).is_err() {
                    continue;
                }
                // What has been read is on the screen before others look at it.
                let mut screen = shown.lock().unwrap();
                let result = output.read(&mut bytes);
                bytes[..*result.as_ref().unwrap_or(&0)].iter().for_each(|byte| show(&mut screen, *byte));
                drop(screen);
                match result {
                    Ok(_) => {}
                    Err(_) if Arc::strong_count(&shown) == 1 => return,
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Terminal { keyboard, name, screen }
    }

    /// The side that a program has.
    pub(crate) fn end(&self) -> File {
        open_end(&self.name)
    }

    /// `program` as it runs on this terminal, which controls it: standard input and error, and output, unless changed.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", program]).env("TERM", "xterm");
        command.stdin(self.end()).stdout(self.end()).stderr(self.end());
        command
    }

    /// Makes the terminal `columns` wide, and cuts the rows off there.
    pub(crate) fn resize(&self, columns: u16) {
        let mut screen = self.screen.lock().unwrap();
        tcsetwinsize(&self.keyboard, Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        screen.screen_mut().set_size(size(ROWS), size(columns));
    }

    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// The rows with something in them, from the top; without those that have left the screen.
    pub(crate) fn rows(&self) -> Vec<String> {
        let screen = self.screen.lock().unwrap();
        let columns = screen.screen().size().1;
        screen
            .screen()
            .rows(0, columns.get())
            .map(|row| row.trim_end().to_owned())
            .filter(|row| !row.is_empty())
            .collect()
    }

    /// Waits until a row satisfies `wanted`, and gives it.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            if let Some(row) = self.rows().into_iter().find(|row| wanted(row)) {
                return row;
            }
            assert!(begun.elapsed() < HANGS, "waited in vain for {what}; there is {:#?}", self.rows());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until these rows and no others are on the screen.
    #[track_caller]
    pub(crate) fn wait_for_screen(&self, expected: &[&str]) {
        let begun = Instant::now();
        while self.rows() != expected {
            assert!(begun.elapsed() < HANGS, "waited in vain for {expected:#?}; there is {:#?}", self.rows());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether `wanted` was true of some row while `child` ran, and how that ended.
    pub(crate) fn watch(&self, mut child: Child, mut wanted: impl FnMut(&str) -> bool) -> (bool, ExitStatus) {
        let mut seen = false;
        let begun = Instant::now();
        loop {
            let status = child.try_wait().unwrap();
            seen = seen || self.rows().iter().any(|row| wanted(row));
            if let Some(status) = status {
                return (seen, status);
            }
            assert!(begun.elapsed() < HANGS, "it hangs; there is {:#?}", self.rows());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The rows once they no longer change, and all that was written has been read.
    pub(crate) fn at_rest(&self) -> Vec<String> {
        let mut rows = self.rows();
        loop {
            thread::sleep(Duration::from_millis(100));
            let unread = ioctl_fionread(&self.keyboard).unwrap();
            let later = self.rows();
            if later == rows && unread == 0 {
                return rows;
            }
            rows = later;
        }
    }
}

fn size(cells: u16) -> NonZero<u16> {
    NonZero::new(cells).unwrap()
}
