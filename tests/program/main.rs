//! The program, through the real binary, and what only it uses.
#![cfg(feature = "cli")]

mod again;
mod any_bytes;
mod attempt_log;
mod bucket_list;
mod bucket_options;
mod bucket_waits;
mod cli;
mod common;
mod completion;
mod done_list;
mod faults;
mod judges;
mod launch;
mod launch_ends;
mod launch_output;
mod launch_readers;
mod launch_shortage;
mod launch_signals;
mod launching;
mod mistakes;
mod nginx;
mod pipe;
mod pump;
mod recipes;
mod recipes_again;
mod redis;
mod redis_link;
mod shared;
mod shared_machine;
mod shared_pipes;
mod shares;
mod started_with;
mod stores;
mod support;
mod terminal;
