//! The parts of the program `throttle`, for the program itself, its tests and its benches. This is not a public
//! interface: it changes with any release. Rust programs use the package `throttle-limits`.

#![allow(clippy::must_use_candidate, reason = "this is not a public interface")]

pub mod flow;
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
pub mod plot;
#[cfg(test)]
#[path = "../library/tests/library/rounds.rs"]
mod rounds;
#[cfg(test)]
#[path = "../tests/program/support/simulated.rs"]
mod simulated;
