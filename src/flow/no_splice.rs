//! For systems without splice(2) and tee(2): bytes are copied.

/// Does nothing: the size of a pipe is fixed here.
pub fn enlarge<F>(_: F, _: usize) {}
