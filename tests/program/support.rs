//! Servers that the tests start.

pub(crate) mod nginx;
pub(crate) mod redis;
pub(crate) mod server;
pub(crate) mod terminal;
