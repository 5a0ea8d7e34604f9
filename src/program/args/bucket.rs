//! Buckets: `--bucket`, and the flags that act on a bucket alone.

use super::values::{Format, duration_or_zero, format, from_text};
use clap::ValueEnum;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
pub(crate) use throttle_limits::store::Named as Kind;
use throttle_limits::store::{Address, AddressError, Place, folder_of_buckets};

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Shared")]
#[group(skip)]
pub(crate) struct SharedFlags {
    /// Share the limits with every other process that names the same bucket, first come, first served.
    ///
    /// BUCKET is a NAME for the processes of one user, the path of a file, or redis://HOST/NAME on a Redis or Valkey
    /// server, for any number of machines.
    ///
    /// A bucket that does not exist is made with the limits of -r. After that it stores its limits, and -r is not
    /// needed. A bucket outlives processes and restarts.
    ///
    /// THROTTLE_BUCKET names the bucket of --once and of a stream without -r. Everyone can see a command line: keep a
    /// password in a file or in THROTTLE_BUCKET.
    ///
    /// Addresses, passwords and more: throttle --help buckets, and BUCKETS in the manual.
    #[arg(long, value_name = "BUCKET", value_hint = clap::ValueHint::FilePath)]
    #[arg(help = "Limits that processes share: a file, or redis://", long_help)]
    pub(crate) bucket: Option<OsString>,

    /// Take one unit from the bucket, wait for its time, then become COMMAND. The exit code is the code of COMMAND;
    /// without COMMAND it is 0, for --once && COMMAND. If COMMAND does not run, the unit is given back.
    ///
    /// With --attempts or --timeout, COMMAND is a child of throttle, and --bucket may be left out. The exit code is the
    /// code of the last attempt, 124 after --timeout, or 75 if a server requests a wait longer than --max-pause. With
    /// -c SCRIPT, the words after it are "$1", "$2" and so on:
    ///
    /// throttle --once --attempts 5 -c 'curl -fsS "$1" > page' URL
    ///
    /// Costs, and other exit codes: throttle --help buckets.
    #[arg(long, help = "Take one unit, then become COMMAND", long_help)]
    pub(crate) once: bool,

    /// The key for --once, --clear or --pause, if the bucket has a limit for each key, like --set -r 1/s,per=host:
    /// --once --key a.example curl https://a.example/. --clear and --pause change only this key.
    #[arg(long, value_name = "KEY", help = "With --once, --clear, --pause: for this key", long_help)]
    pub(crate) key: Option<OsString>,

    /// With --drop: drop a unit that would wait longer than TIME. With --once: if the wait would be longer than TIME
    /// (30s, 500ms, 2min), take nothing, report the wait, and exit 75. A call that waits does so as soon as its wait
    /// becomes too long, for example after --pause. With 0, nothing waits.
    ///
    /// A server that does not answer delays the exit by at most 3 s. It may have granted the unit.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = from_text(duration_or_zero))]
    #[arg(help = "Instead of a longer wait: exit 75, or drop with --drop", long_help)]
    pub(crate) max_wait: Option<Duration>,

    /// Make the bucket with the limits of -r, or change its limits for all processes, and exit. Processes that wait have
    /// new times within a second. Saved and counted units are kept; -r 5000/h,initial=5000 refills the bucket. With
    /// --clear, the bucket starts empty of saved and counted units.
    ///
    /// With -r 60/min -r 200k/min,cost=/max_tokens, the bucket also stores the cost of a unit. With -r
    /// 1/s,per=host,jobs=2 -r 50/s, it stores a limit for each host and counts the commands of all processes. throttle
    /// --help buckets has more.
    #[arg(long, help = "Make the bucket, or change its limits for everyone", long_help)]
    pub(crate) set: bool,

    /// With --set and the path of a bucket: members of GROUP, a name or a number, may also use its file (mode 0660).
    /// You must be in the group. Everyone else is refused. A file that replaces the bucket keeps the group.
    ///
    /// throttle --bucket /var/lib/api/bucket --set --group devs -r 5/s
    #[arg(long, value_name = "GROUP", value_parser = from_text(str::parse::<String>))]
    #[arg(help = "With --set: members of GROUP may use the bucket's file", long_help)]
    pub(crate) group: Option<String>,

    /// Print the limits of the bucket and the rest of each, the number of waiting processes, the end of a pause, the
    /// learned pace, the wait of the next unit, and the place of the bucket. Counts since it was made follow: units
    /// granted and given back, requests that the bucket denied (--max-wait, fails=N), and the total wait.
    ///
    /// If keys have limits, the number of keys in use and the ten longest waits are printed; json has all keys. FMT is
    /// text or json. In json, times are in ns, and since and paused_until in seconds since 1970.
    #[arg(long, value_name = "FMT", num_args = 0..=1, default_missing_value = "text", value_parser = from_text(format))]
    #[arg(help = "Show the bucket: text or json", long_help)]
    pub(crate) show: Option<Format>,

    /// Empty the queue of the bucket, lift a pause, forget the learned pace, and exit. A process that still waits
    /// requests again within a second; the order may change.
    ///
    /// --clear --set -r LIMIT also drops the saved and the counted units.
    #[arg(long, help = "Empty the bucket's queue, and lift a pause", long_help)]
    pub(crate) clear: bool,

    /// Grant nothing from the bucket for TIME (30s, 10min, 1h) from now on, and exit. The bucket is empty after that.
    /// Waiting processes go after that; with --key, the processes that wait for that key. A second --pause never
    /// shortens the first. --pause 0 and --clear lift it, and the waits go on within a second.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = from_text(duration_or_zero))]
    #[arg(help = "Grant nothing from the bucket for TIME; 0 lifts a pause", long_help)]
    pub(crate) pause: Option<Duration>,

    /// Print a line for each bucket, with its limits and the number of waiting processes, and exit. These are the
    /// buckets of this user. With --bucket or THROTTLE_BUCKET, they are the buckets in the same folder or on the same
    /// server. /tmp/ names a folder, redis://HOST[:PORT]/[DB/] a server (of a cluster, one node).
    ///
    /// Files that are not buckets are left out. A damaged bucket is listed with its fault. FMT is text or json, with an
    /// object for each bucket as in --show json. Nothing is made or changed.
    #[arg(long, value_name = "FMT", num_args = 0..=1, default_missing_value = "text", value_parser = from_text(format))]
    #[arg(help = "List the buckets: text or json", long_help)]
    pub(crate) list: Option<Format>,

    /// Remove the bucket, even a damaged one, and exit. No other file is ever removed. A process that still uses the
    /// bucket makes it again with its limits, within a second. The order of waiting processes may change, and their
    /// waits. Standard error reports how many processes wait.
    ///
    /// --clear --set -r LIMIT keeps the bucket and starts it empty.
    #[arg(long, help = "Remove the bucket", long_help)]
    pub(crate) remove: bool,

    /// The reaction while the server of a bucket cannot be reached. With wait (the default), throttle tries again at
    /// growing intervals, reports it once, and passes nothing on meanwhile. With fail, it ends with an error. A server
    /// that refuses, for example because of a wrong password, always ends the run.
    ///
    /// Options such as --show and --pause wait 5 s at most. With --once --max-wait TIME, no attempt starts after TIME,
    /// each waits 3 s for the answer, and the exit code is 75.
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    #[arg(help = "If the bucket's server is away: wait, fail [default: wait]", long_help)]
    pub(crate) on_store_error: Option<OnStoreError>,
}

/// The reaction while the server of a bucket is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnStoreError {
    /// Retry until the server answers
    Wait,
    /// End with an error
    Fail,
}

/// A bucket that the user named. It is not open yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) kind: Kind,
    /// Whether `THROTTLE_BUCKET` named it, not the command line.
    pub(crate) is_default: bool,
    /// Whether to wait for its server while the server is away.
    pub(crate) is_waited_for: bool,
}

/// The environment variables about buckets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// The value of `THROTTLE_BUCKET`, unless it is empty.
    pub(crate) bucket: Option<OsString>,
    /// The folder for buckets that are named without a path.
    folder: Option<PathBuf>,
}

impl Environment {
    /// Takes the values of `THROTTLE_BUCKET`, `XDG_STATE_HOME` and `HOME`.
    pub(crate) fn new(bucket: Option<OsString>, state: Option<OsString>, home: Option<OsString>) -> Self {
        Environment { bucket: bucket.filter(|word| !word.is_empty()), folder: folder_of_buckets(state, home) }
    }
}

impl Bucket {
    /// The bucket that `--bucket` or `THROTTLE_BUCKET` names, or `None` if neither does. A name with a scheme is on a
    /// server, and a name with a slash is a path. Any other name is a file in the folder of buckets.
    ///
    /// # Errors
    /// The name is not valid.
    pub(crate) fn named(flags: &SharedFlags, environment: &Environment) -> Result<Option<Self>, String> {
        Bucket::with(flags, environment, str::parse)
    }

    /// A bucket that represents its whole folder or server. The name of a bucket on a server may be missing. If no
    /// bucket is named, the result is the folder of buckets.
    ///
    /// # Errors
    /// The name is not valid, or there is no folder of buckets.
    pub(crate) fn among(flags: &SharedFlags, environment: &Environment) -> Result<Self, String> {
        let named = Bucket::with(flags, environment, Address::of_server)?;
        let own = || {
            let why = "--list: neither XDG_STATE_HOME nor HOME is set; name a path with a slash, like /tmp/b";
            let folder = environment.folder.as_ref().ok_or(why)?;
            // `join` with an empty name adds a slash at the end.
            let path = folder.join("");
            let kind = Kind::File(Place { path, own_folder: true, group: None });
            Ok(Bucket { kind, is_default: false, is_waited_for: false })
        };
        named.map_or_else(own, Ok)
    }

    fn with(
        flags: &SharedFlags,
        environment: &Environment,
        address: impl FnOnce(&str) -> Result<Address, AddressError>,
    ) -> Result<Option<Self>, String> {
        let (flag, word) = match (&flags.bucket, &environment.bucket) {
            (Some(word), _) => ("--bucket", word),
            (None, Some(word)) => ("THROTTLE_BUCKET", word),
            (None, None) => return Ok(None),
        };
        let kind = Kind::new(word, environment.folder.as_deref(), address)
            .map_err(|error| format!("{flag} '{}': {error}", Address::redacted(word)))?;
        let is_waited_for = flags.on_store_error != Some(OnStoreError::Fail);
        Ok(Some(Bucket { kind, is_default: flag != "--bucket", is_waited_for }))
    }

    /// The prefix of an error message: the variable, if it named the bucket.
    pub(crate) fn origin(&self) -> &'static str {
        if self.is_default { "THROTTLE_BUCKET: " } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_name_is_in_the_folder_of_buckets_and_a_path_is_itself() {
        let environment = Environment::new(None, Some("/state".into()), None);
        let kind = |word: &str| Kind::new(OsStr::new(word), environment.folder.as_deref(), str::parse);
        let file = |path: &str, own_folder| Ok(Kind::File(Place { path: path.into(), own_folder, group: None }));
        assert_eq!(kind("git-hub_2.x"), file("/state/throttle/git-hub_2.x", true));
        assert_eq!(kind("api:v1:me"), file("/state/throttle/api:v1:me", true));
        assert_eq!(kind("./b"), file("./b", false));
        assert_eq!(kind("/tmp/my bucket"), file("/tmp/my bucket", false));
        for wrong in ["", ".", "..", ".b", ":b", "a b", "a:b@c", "redis:b", "ü"] {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
        assert!(Kind::new(OsStr::new("b"), None, str::parse).unwrap_err().contains("HOME"));
    }

    #[test]
    fn the_folder_of_buckets_is_in_the_folder_of_state() {
        let folder = |state: Option<&str>, home: Option<&str>| {
            Environment::new(None, state.map(Into::into), home.map(Into::into)).folder
        };
        assert_eq!(folder(Some("/s"), Some("/h")), Some("/s/throttle".into()));
        assert_eq!(folder(Some("relative"), Some("/h")), Some("/h/.local/state/throttle".into()));
        assert_eq!(folder(None, Some("/h")), Some("/h/.local/state/throttle".into()));
        assert_eq!(folder(None, None), None);
    }
}
