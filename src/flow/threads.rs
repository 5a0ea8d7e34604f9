//! The threads of the program.

use std::io;
use std::thread::{Builder, JoinHandle};

/// The stack of a thread, in bytes. With the usual 2 MiB, the threads of a run did not fit into some limits of `ulimit
/// -v`. The allocator of glibc also reserves 64 MiB for each thread while it can.
pub const STACK: usize = 512 * 1024;

/// The memory in bytes that a thread may take at its start in addition to its stack. If the standard library finds too
/// little there, it panics, and may wait for ever for its own locks.
const MEMORY_AT_START: usize = 1 << 20;

/// Starts a thread that runs `act`.
///
/// # Errors
/// The system refuses a thread, or has no memory for it.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    act: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    drop(room(STACK + MEMORY_AT_START)?);
    Builder::new().name(name.to_owned()).stack_size(STACK).spawn(act)
}

/// Reserves `bytes` of memory without using them.
///
/// # Errors
/// There is less memory; the error is the one of a system that refuses a thread.
pub(crate) fn room(bytes: usize) -> io::Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| rustix::io::Errno::AGAIN)?;
    Ok(room)
}
