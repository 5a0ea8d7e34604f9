//! A run whose units are tried again, as a test specifies it. With a server that follows a script:
//!
//! ```ignore
//! let server = Server::that_answers().page("/2", [Answer::later("0.2")]).always("/3", Answer::new(404)).start();
//! let ended = attempts(3).rate("100/s").backoff("1ms").requests(&server).run("1\n2\n3\n");
//! ```

use super::program::{Ended, Running, feed, throttle};
use super::server::Server;
use std::path::Path;
use std::process::Command;

/// A script that requests the page of its unit.
pub(crate) const CURL: &str = "curl -q -fsS -o /dev/null -D \"$THROTTLE_REPLY\" \"$URL$1\"";

/// A run with `--attempts`, without a limit unless one is named.
pub(crate) struct Retries {
    options: Vec<String>,
    script: String,
    command: Command,
}

pub(crate) fn attempts(count: u32) -> Retries {
    let options = vec!["--attempts".to_owned(), count.to_string()];
    Retries { options, script: String::new(), command: throttle([""; 0]) }
}

impl Retries {
    pub(crate) fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    pub(crate) fn rate(self, limit: &str) -> Self {
        self.options(&["-r", limit])
    }

    pub(crate) fn jobs(self, count: u32) -> Self {
        self.options(&["-j", &count.to_string()])
    }

    pub(crate) fn backoff(self, range: &str) -> Self {
        self.options(&["--backoff", range])
    }

    /// With `--summary=json`, which [`summary`] reads.
    pub(crate) fn summary(self) -> Self {
        self.options(&["--summary=json"])
    }

    /// The script that is run for each unit.
    pub(crate) fn script(mut self, script: &str) -> Self {
        script.clone_into(&mut self.script);
        self
    }

    /// Each unit is a page that curl requests from `server`.
    pub(crate) fn requests(self, server: &Server) -> Self {
        self.requests_at(&server.url())
    }

    /// Each unit is a page below `url` that curl requests.
    pub(crate) fn requests_at(self, url: &str) -> Self {
        self.script(CURL).variable("URL", url).variable("no_proxy", "*")
    }

    /// [`requests`](Self::requests), with another spelling of a part of the script.
    pub(crate) fn but(mut self, part: &str, other: &str) -> Self {
        assert!(self.script.contains(part), "{part}");
        self.script = self.script.replace(part, other);
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs in `folder`.
    pub(crate) fn inside(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// The program as specified; its three streams are pipes.
    pub(crate) fn command(mut self) -> Command {
        if !self.options.iter().any(|option| option == "-r" || option.starts_with("--bucket")) {
            self = self.rate("unlimited");
        }
        self.command.args(&self.options).args(["-c", &self.script]);
        self.command
    }

    /// Runs to the end of all units.
    pub(crate) fn run(self, units: impl AsRef<[u8]>) -> Ended {
        feed(self.command(), units)
    }

    /// Starts with `units`, which are few.
    pub(crate) fn start(self, units: &str) -> Running {
        let mut child = self.command().spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), units.as_bytes()).unwrap();
        Running::read(child)
    }
}

/// What `--summary=json` reports about the commands.
#[track_caller]
pub(crate) fn summary(ended: &Ended) -> serde_json::Value {
    let json = ended.err.lines().find(|line| line.starts_with('{')).expect(&ended.err);
    let json: serde_json::Value = serde_json::from_str(json).expect(&ended.err);
    json["commands"].clone()
}
