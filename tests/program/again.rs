//! Attempts that are made again, through the real program: failures, servers that ask to wait, replies, and what is told.

mod failures;
mod learned;
mod left;
mod pauses;
mod real;
mod replies;

mod told;

use crate::launching::{Ended, finish, run, throttle};
use crate::support::server::Server;
use std::process::Command;

/// A script that asks the server for the page of the unit.
const CURL: &str = "curl -q -fsS -o /dev/null -D \"$THROTTLE_REPLY\" \"$URL$1\"";

/// The program with `options`, which runs [`CURL`] against `server`.
fn asking(server: &Server, options: &[&str]) -> Command {
    let mut command = throttle([options, &["-c", CURL]].concat());
    command.env("URL", server.url()).env("no_proxy", "*");
    command
}

/// The same for `units`, to its end.
fn asked(server: &Server, options: &[&str], units: &str) -> Ended {
    finish(asking(server, options), units)
}

/// What `--summary=json` says of the commands, and what else was said.
fn summary(ended: &Ended) -> (serde_json::Value, Vec<&str>) {
    let (json, lines): (Vec<&str>, Vec<&str>) = ended.err.lines().partition(|line| line.starts_with('{'));
    let json: serde_json::Value = serde_json::from_str(json.first().expect(&ended.err)).expect(&ended.err);
    (json["commands"].clone(), lines)
}

/// Runs `script` for `units` to its end, without a limit.
fn scripted(options: &[&str], script: &str, units: &str) -> Ended {
    run([&["-r", "unlimited"], options, &["-c", script]].concat(), units)
}
