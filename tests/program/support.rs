//! Servers that the tests start, and what they do if something is missing.

pub(crate) mod nginx;
pub(crate) mod redis;
pub(crate) mod server;
pub(crate) mod terminal;
pub(crate) mod tools;

pub(crate) use tools::{find, found, skipped};
