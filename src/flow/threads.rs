//! The threads of the program.

use std::io;
use std::thread::{Builder, JoinHandle};

/// The stack of a thread, in bytes. With the usual 2 MiB, the threads of a run did not fit into some limits of `ulimit -v`: the
/// allocator of glibc reserves 64 MiB for each thread, as long as there is so much.
pub const STACK: usize = 512 * 1024;

/// Starts a thread that runs `act`.
///
/// # Errors
/// The system refuses a thread.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    act: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(STACK).spawn(act)
}
