//! The program, through the real binary, in folders by what a user does; and what only it uses.

/// What is common to all: options, messages, and text that others write.
mod command_line {
    mod arbitrary_input;
    mod byte_order_mark;
    mod fuzz_targets;
    mod mistakes;
    mod options;
}

/// Input that passes from standard input to standard output.
mod pipe {
    mod bytes;
    mod ends;
    mod faults;
    mod pump;
}

/// Commands that are started at a rate.
mod launch {
    mod attempt_log;
    mod columns;
    mod commands;
    mod done_list;
    mod ends;
    mod nginx;
    mod once;
    pub(crate) mod output;
    mod readers;
    mod shortage;
    mod signals;
    mod started_with;
    pub(crate) mod strict_windows;
    mod summary;
}

/// Commands that fail, or whose server asks to wait, and are tried again.
mod retry {
    mod failures;
    mod interrupted_runs;
    mod nginx;
    mod pauses;
    mod replies;
    mod reports;
    mod slow_down;
    mod units_left;
}

/// Limits that several processes share, in a file or on a server.
mod bucket {
    mod fair_shares;
    mod list;
    mod machine;
    mod options;
    mod pipes;
    pub(crate) mod redis;
    mod redis_connection;
    mod service;
    mod set_limits;
    mod shared;
    mod stores;
    mod waits;
}

/// Limits for each key.
mod keys {
    mod buckets;
    mod fairness;
    mod order;
    mod order_model;
    mod runs;
}

/// What a limit counts and promises, alike for pipes, commands and buckets.
mod limits {
    mod costs;
    mod exact_model;
    mod real_costs;
    mod stopped_runs;
}

/// What a terminal shows: the bar, messages, and completions of its shell.
mod terminal {
    mod bar;
    mod completion;
    mod screen;
}

/// Pages: README.md, docs/, and those that `--plot` writes.
mod pages {
    mod blocks;
    mod plot;
    mod recipes;
}

#[path = "../../library/tests/library/rounds.rs"]
mod rounds;
mod support;
