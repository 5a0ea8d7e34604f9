//! Buckets: `--bucket`, and the flags about a bucket by itself.

use super::values::{Format, duration_or_zero, format};
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
    /// Share the limits with every other process that names the same bucket, first come, first served. A NAME (of
    /// letters, digits and .:-_) is a file in $XDG_STATE_HOME/throttle, or else ~/.local/state/throttle; a word with a
    /// slash is the path of a file. redis://[USER:PASSWORD@]HOST[:PORT][/DB]/NAME is on a Redis or Valkey server, for
    /// any number of machines. In user and password write / ? # @ and % as %2F %3F %23 %40 and %25. unix:/SOCKET/NAME
    /// is on the server at that socket, like unix:/run/redis.sock/llm. ?password-file=PATH after either names a file
    /// whose first line is the password; a file that everyone can read is refused.
    ///
    /// THROTTLE_BUCKET names the bucket of --once, --show, --set, --clear, --pause, --remove, --list and of a stream
    /// without -r. A stream with -r and without --bucket has its limits for itself. Keep a password in a file or in
    /// THROTTLE_BUCKET rather than on the command line, which everyone can see.
    ///
    /// If there is no such bucket yet, it is made with the limits of -r. After that the bucket knows its limits and -r
    /// is not needed; if -r is given, it must agree with them. A bucket outlives processes and restarts. On a terminal,
    /// a long wait is announced after a second. If a process that waits is interrupted or killed, the processes behind it
    /// move up within a second.
    ///
    /// Each user has their own buckets in files, on one machine; under sudo they are root's; see --group. A network
    /// file system is refused. To start anew: --remove. A bucket on a server uses the server's clock. The server keeps
    /// it under the key throttle:NAME for 30 days after the last take. If the server loses its data, one burst and what
    /// comes due within a second may go twice. rediss: is encrypted, in builds with TLS.
    #[arg(long, value_name = "BUCKET", value_hint = clap::ValueHint::FilePath)]
    #[arg(help = "Limits shared with all that name it: file or redis://", long_help)]
    pub(crate) bucket: Option<OsString>,

    /// Take one from the bucket, wait for its time, then become COMMAND, with the same standard input and process id.
    /// The exit code is COMMAND's; without COMMAND it is 0, as for --once && COMMAND. An error of throttle itself exits
    /// 125, a refusal by --max-wait 75, a command that cannot be run 126, one that is not found 127. If the command
    /// does not run or the wait is interrupted, the turn is given back. On a server with jobs= it stays as COMMAND's
    /// parent and passes signals on.
    ///
    /// No unit is read. If the bucket keeps costs, name its limits and write what the call costs as a number: --once -r
    /// 60/min -r 200k/min,cost=800 COMMAND. Without that it costs what else=N says, and is an error if nothing does.
    ///
    /// With --attempts or --timeout COMMAND runs below throttle, and --bucket may be left out. Its standard input is
    /// ours: for another attempt a file is read again, and of a pipe up to 64 MiB are kept. What an attempt writes to
    /// standard output is dropped if another follows. Signals are passed on. The exit code is that of the last attempt,
    /// or 124 if it took longer than --timeout, or 75 if a server asked to wait for longer than --max-pause. With -c
    /// SCRIPT the words behind it are "$1", "$2" and so on:
    ///
    /// throttle --bucket llm --once --attempts 5 -c 'curl -fsS -D "$THROTTLE_REPLY" "$1"' URL
    #[arg(long, help = "Take one, then become COMMAND; with --attempts: run it", long_help)]
    pub(crate) once: bool,

    /// With --once: take one of the key KEY, if the bucket keeps limits for each key, like --set -r 1/s,per=host:
    /// --once --key a.example curl https://a.example/. With --clear and --pause: only this key.
    #[arg(long, value_name = "KEY", help = "With --once, --clear, --pause: for this key", long_help)]
    pub(crate) key: Option<OsString>,

    /// With --drop: a unit that would wait longer than TIME is dropped. With --once: if the wait would be longer than
    /// TIME (30s, 500ms, 2min), take nothing, say how long it would be, and exit 75. 0 does not wait at all. A server
    /// that does not answer is waited for at most 3 s more, and may have taken one.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration_or_zero)]
    #[arg(help = "Exit 75 instead of waiting longer; with --drop: drop", long_help)]
    pub(crate) max_wait: Option<Duration>,

    /// Make the bucket with the limits of -r, or change its limits for everyone from their next take on, and exit. What
    /// it has saved or counted is kept; -r 5000/h,initial=5000 refills it as well. Processes that wait move up if the
    /// new limits allow it; none waits longer than before. With --clear everything starts anew.
    ///
    /// With -r 60/min -r 200k/min,cost=/max_tokens the bucket keeps what a unit costs, too: a stream that names only
    /// the bucket is charged by it. A stream ends if that is changed meanwhile. With -r 1/s,per=host,jobs=2 -r 50/s it keeps
    /// limits for each host, at most 10000 that are not as new, and counts the commands that run, whoever runs them.
    #[arg(long, help = "Make the bucket, or change its limits for everyone", long_help)]
    pub(crate) set: bool,

    /// With --set and a bucket given by its path: members of GROUP, a name or a number, may use its file, too (mode
    /// 0660). throttle --bucket /var/lib/api/bucket --set --group devs -r 5/s. You must be in the group. A file that
    /// replaces it belongs to the group as well, whichever member makes it. Everyone else is refused.
    #[arg(long, value_name = "GROUP", help = "With --set: members of GROUP may use the bucket's file", long_help)]
    pub(crate) group: Option<String>,

    /// Write the limits of the bucket, what is left of each, how many wait, until when it is paused, what the server
    /// allows if that is less than the limits, how long the next unit would wait, where the bucket is, and what happened
    /// since it was made: units granted and given back, requests refused, and how long grants waited in all. If keys have
    /// limits of their own, it also says how many are in use, and which ten wait longest; json names all. FMT is text or
    /// json; in json, times are in ns, and since and paused_until in seconds since 1970.
    #[arg(long, value_name = "FMT", num_args = 0..=1, default_missing_value = "text", value_parser = format)]
    #[arg(help = "Show the bucket: text or json", long_help)]
    pub(crate) show: Option<Format>,

    /// Empty the queue of the bucket, lift a pause, forget what the server allows, and exit. A process that still waits joins the queue again within a
    /// second, in order; what was reserved for others is free. --clear --set -r LIMIT starts the bucket anew, without
    /// what it has saved or counted.
    #[arg(long, help = "Empty the bucket's queue, and lift a pause", long_help)]
    pub(crate) clear: bool,

    /// Grant nothing from the bucket for TIME (30s, 10min, 1h) from now on, and exit. The bucket is empty after that.
    /// Processes that already wait keep their times; with --key, those that wait for that key wait until the pause is
    /// over, too. A second --pause never shortens the first; --pause 0 lifts it, and so does --clear.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration_or_zero)]
    #[arg(help = "Grant nothing from the bucket for TIME; 0 lifts a pause", long_help)]
    pub(crate) pause: Option<Duration>,

    /// Name the buckets there are, a line each with the limits and how many wait, and exit: those of this user, or with
    /// --bucket or THROTTLE_BUCKET those beside the bucket that it names, in its folder or on its server. /tmp/ names a
    /// folder, redis://HOST[:PORT]/[DB/] a server (of a cluster, one node). What is no bucket is left out, and of a
    /// damaged one it is said what is wrong. FMT is text or json: an object for each, as --show json writes it. Nothing
    /// is made or changed.
    #[arg(long, value_name = "FMT", num_args = 0..=1, default_missing_value = "text", value_parser = format)]
    #[arg(help = "Name the buckets there are: text or json", long_help)]
    pub(crate) list: Option<Format>,

    /// Remove the bucket, also a damaged one, and exit. Nothing else is ever removed. A process that still uses it
    /// makes it again with the limits it knows: a stream at its next take, a process that waits within a second. Waiting
    /// processes keep their order, but may wait for longer than they were told. If any wait, standard error says how many.
    /// --clear --set -r LIMIT keeps the bucket and starts it anew.
    #[arg(long, help = "Remove the bucket", long_help)]
    pub(crate) remove: bool,

    /// What to do while the server of a bucket cannot be reached: wait (the default) tries again, less and less often,
    /// says so once and lets nothing through meanwhile; fail ends with an error. A server that refuses, for example a
    /// wrong password, always ends the run. Questions and changes, like --show or --pause, wait 5 s at most. With
    /// --once --max-wait TIME no attempt starts after TIME, each gets 3 s for the answer, and the exit code is 75.
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    #[arg(help = "While the bucket's server is away: wait, fail [default: wait]", long_help)]
    pub(crate) on_store_error: Option<OnStoreError>,
}

/// What to do while the server of a bucket is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnStoreError {
    /// Go on trying
    Wait,
    /// End
    Fail,
}

/// A bucket as the user asks for it. Nothing is opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) kind: Kind,
    /// Whether it was not named on the command line but by `THROTTLE_BUCKET`.
    pub(crate) is_default: bool,
    /// Whether its server is waited for while it is away.
    pub(crate) is_waited_for: bool,
}

/// What the environment says about buckets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// The value of `THROTTLE_BUCKET`, unless it is empty.
    pub(crate) bucket: Option<OsString>,
    /// The folder of buckets that are named without a path.
    folder: Option<PathBuf>,
}

impl Environment {
    /// The values of `THROTTLE_BUCKET`, `XDG_STATE_HOME` and `HOME`.
    pub(crate) fn new(bucket: Option<OsString>, state: Option<OsString>, home: Option<OsString>) -> Self {
        Environment { bucket: bucket.filter(|word| !word.is_empty()), folder: folder_of_buckets(state, home) }
    }
}

impl Bucket {
    /// The bucket that `word` names: on a server if it begins with a scheme, a path if it has a slash, otherwise a file in the
    /// folder of buckets. `None`: the environment names it, if it does.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn named(flags: &SharedFlags, environment: &Environment) -> Result<Option<Self>, String> {
        Bucket::with(flags, environment, str::parse)
    }

    /// A bucket whose folder or server is meant: the name of one on a server may be missing. If nothing names it, the folder
    /// of buckets itself.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn among(flags: &SharedFlags, environment: &Environment) -> Result<Self, String> {
        let named = Bucket::with(flags, environment, Address::of_server)?;
        let own = || {
            // With a slash at its end.
            let why = "--list: neither XDG_STATE_HOME nor HOME says where; name a path with a slash, like /tmp/b";
            let folder = environment.folder.as_ref().ok_or(why)?;
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

    /// What an error begins with: the variable, if that names the bucket.
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
