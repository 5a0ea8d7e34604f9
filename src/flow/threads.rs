//! The threads of the program.

use std::thread::Builder;

/// The stack of a thread, in bytes. With the usual 2 MiB, the threads of a run did not fit into some limits of `ulimit -v`: the
/// allocator of glibc reserves 64 MiB for each thread, as long as there is so much.
pub const STACK: usize = 512 * 1024;

/// A thread with this name.
pub fn named_thread(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK)
}
