//! For systems without splice(2) and tee(2): bytes are copied.

/// Pipes have the size they have.
pub fn enlarge<F>(_: F, _: usize) {}
