//! What all tests share: the program as a process, servers, terminals, and tools that may be missing.

pub(crate) mod nginx;
mod processes;
mod program;
pub(crate) mod redis;
pub(crate) mod retries;
pub(crate) mod server;
pub(crate) mod simulated;
pub(crate) mod stores;
pub(crate) mod terminal;
mod tools;

pub(crate) use processes::*;
pub(crate) use program::*;
pub(crate) use tools::{find, found, skipped};
