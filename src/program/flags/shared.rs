//! What the options on buckets mean together.

use super::{Flags, Format, Raw, usage};
use crate::program::bucket::Bucket;
use crate::program::exit::Exit;
use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::time::Duration;
use throttle::launch::Template;
use throttle::limits::Plan;
use throttle::rate::{Amount, Limit};
use throttle::store::Address;

/// What to do while the server of a bucket is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnStoreError {
    /// Go on trying
    Wait,
    /// End
    Fail,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// Pass units on.
    Pipe,
    /// Run a command for each unit.
    Launch(Template),
    /// Show what would run.
    DryRun(Template),
    /// Take one from the bucket, then become the command.
    Once(Bucket),
    /// Set the limits of the bucket.
    Set(Bucket),
    /// Show the bucket.
    Show(Bucket, Format),
}

/// What the options on buckets ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Units are passed on or become commands.
    Flow,
    /// One is taken.
    Once,
    /// A bucket's limits are set.
    Set,
    /// A bucket is shown.
    Show(Format),
}

/// Options on input, commands and the report, none of which a bucket by itself has.
pub(super) const ABOUT_STREAMS: [&str; 18] = [
    "null",
    "delimiter",
    "bytes",
    "arg_file",
    "repeat",
    "jobs",
    "max_args",
    "replace",
    "shell",
    "stdin",
    "keep_order",
    "line_buffer",
    "ungroup",
    "tag",
    "timeout",
    "trace",
    "dry_run",
    "summary",
];

impl Flags {
    /// The bucket that holds the limits.
    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        self.bucket.as_ref()
    }

    /// The limits that were named, resolved; `None` where the bucket knows them.
    pub(crate) fn named(&self) -> Option<&Plan> {
        (!self.raw.rate.is_empty()).then_some(&self.plan)
    }

    /// The limits that were named, and the burst beside them.
    pub(crate) fn said(&self) -> (&[Limit], Option<Amount>) {
        (&self.raw.rate, self.raw.burst)
    }

    /// Which limits name what is there at the start, and so are to begin anew.
    pub(crate) fn fresh(&self) -> Vec<bool> {
        let names_initial = |limit: &Limit| matches!(limit, Limit::Bucket { initial: Some(_), .. });
        self.raw.rate.iter().map(names_initial).collect()
    }

    /// Whether the server of a bucket is waited for.
    pub(crate) fn waits_for_store(&self) -> bool {
        self.raw.on_store_error != Some(OnStoreError::Fail)
    }

    pub(crate) fn max_wait(&self) -> Option<Duration> {
        self.raw.max_wait
    }

    /// The words of the command.
    pub(crate) fn command(&self) -> &[OsString] {
        &self.raw.command
    }

    /// How an error of ours ends the program: with `--once`, codes up to 124 are the command's.
    pub(crate) fn own_error(&self) -> Exit {
        own_error(matches!(self.task, Task::Once(_)), Exit::Error)
    }
}

pub(super) fn own_error(once: bool, otherwise: Exit) -> Exit {
    if once { Exit::OnceError } else { otherwise }
}

pub(super) fn mode(raw: &Raw) -> Mode {
    match raw {
        Raw { once: true, .. } => Mode::Once,
        Raw { set: true, .. } => Mode::Set,
        Raw { show: Some(format), .. } => Mode::Show(*format),
        _ => Mode::Flow,
    }
}

/// The bucket that was named, or that the environment names, if that is not empty. A stream that names its limits, and no
/// bucket, has them for itself: a script must not be hijacked by what is set for another.
pub(super) fn bucket(raw: &Raw, mode: Mode, default: Option<&OsStr>) -> Result<Option<Bucket>, clap::Error> {
    let is_private = mode == Mode::Flow && !raw.rate.is_empty();
    let (flag, word) = match (&raw.bucket, default) {
        (Some(word), _) => ("--bucket", word.as_os_str()),
        (None, Some(word)) if !word.is_empty() && !is_private => ("THROTTLE_BUCKET", word),
        _ => return nowhere(raw, mode).map(|()| None),
    };
    let bucket = Bucket::named(word, raw.bucket.is_none())
        .map_err(|error| usage(&format!("{flag} '{}': {error}", Address::redacted(word))))?;
    alone(raw, mode)?;
    Ok(Some(bucket))
}

/// What makes no sense without a bucket.
fn nowhere(raw: &Raw, mode: Mode) -> Result<(), clap::Error> {
    let flag = match mode {
        Mode::Flow if raw.on_store_error.is_none() => return Ok(()),
        Mode::Flow if !raw.rate.is_empty() => {
            return Err(usage(
                "--on-store-error is about a bucket on a server; name it: --bucket NAME (with -r, THROTTLE_BUCKET is not used)",
            ));
        }
        Mode::Flow => "--on-store-error is about a bucket on a server",
        Mode::Once => "--once takes one from a bucket",
        Mode::Set => "--set sets the limits of a bucket",
        Mode::Show(_) => "--show shows a bucket",
    };
    Err(usage(&format!("{flag}; name it: --bucket NAME, or THROTTLE_BUCKET=NAME")))
}

/// What makes no sense with one.
fn alone(raw: &Raw, mode: Mode) -> Result<(), clap::Error> {
    match mode {
        _ if raw.rate.contains(&Limit::Unlimited) => {
            Err(usage("--rate: 'unlimited' is no limit that a bucket could keep; write for example -r 5/s"))
        }
        _ if raw.rate.is_empty() && raw.burst.is_some() => {
            Err(usage("--burst belongs to a rate; write for example -r 5/s -b 10"))
        }
        Mode::Set if raw.rate.is_empty() => Err(usage("--set: to what? write for example --set -r 5000/h")),
        Mode::Set if !raw.command.is_empty() => Err(usage("--set runs nothing; leave the command out")),
        Mode::Show(_) if !raw.rate.is_empty() => Err(usage("--show changes nothing; leave -r out")),
        Mode::Show(_) if !raw.command.is_empty() => Err(usage("--show runs nothing; leave the command out")),
        _ => Ok(()),
    }
}

/// As other durations, but nothing is a wait as well.
pub(super) fn max_wait(text: &str) -> Result<Duration, String> {
    let is_nothing = text.trim_start_matches('0').trim_start_matches(|c: char| c.is_ascii_alphabetic()).is_empty();
    if text.starts_with('0') && is_nothing { Ok(Duration::ZERO) } else { super::duration(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(args: &[&str]) -> Result<Flags, String> {
        super::super::tests::flags(args)
    }

    #[test]
    fn mistakes_about_buckets_show_a_right_spelling() {
        for (args, expected) in [
            (&["--once"][..], "--once takes one from a bucket; name it: --bucket NAME, or THROTTLE_BUCKET=NAME"),
            (&["--show"], "--show shows a bucket; name it"),
            (&["--set", "-r", "5/s"], "--set sets the limits of a bucket; name it"),
            (&["--bucket", "a b", "-r", "5/s"], "--bucket 'a b': a name is of letters, digits and .-_"),
            (&["--bucket", "redis://me:secret@db/a b", "--once"], "--bucket 'redis…': the bucket's name"),
            (&["--bucket", "redis://:sec#ret@db/b", "--once"], "--bucket 'redis…': in user and password write / ?"),
            (&["--bucket", "redis://db:99999/b", "--once"], "--bucket 'redis…': a port is a number from 1 to 65535"),
            (&["-r", "5/s", "--on-store-error", "fail"], "--on-store-error is about a bucket on a server; name it"),
            (
                &["--bucket", "./b", "--on-store-error", "sometimes"],
                "write --on-store-error=wait or --on-store-error=fail",
            ),
            (&["--bucket", "./b", "--set"], "--set: to what? write for example --set -r 5000/h"),
            (&["--bucket", "./b", "--set", "-r", "5/s", "true"], "--set runs nothing"),
            (&["--bucket", "./b", "--show", "-r", "5/s"], "--show changes nothing; leave -r out"),
            (&["--bucket", "./b", "-r", "unlimited"], "'unlimited' is no limit that a bucket could keep"),
            (&["--bucket", "./b", "-b", "5"], "--burst belongs to a rate"),
            (&["--bucket", "./b", "--once", "-r", "5/s", "-j", "5"], "cannot be used with"),
            (&["--bucket", "./b", "--once", "-r", "5/s", "-c", "true"], "cannot be used with"),
            (&["--bucket", "./b", "--max-wait", "5s", "-r", "5/s"], "--once"),
            (&["--bucket", "./b", "--once", "-r", "5MB/s"], "counts bytes"),
        ] {
            let error = flags(args).expect_err(expected);
            assert!(error.contains(expected), "{args:?}: {error}");
        }
    }

    #[test]
    fn to_wait_for_nothing_is_to_try() {
        assert_eq!(max_wait("0"), Ok(Duration::ZERO));
        assert_eq!(max_wait("0s"), Ok(Duration::ZERO));
        assert_eq!(max_wait("0.5"), super::super::duration("0.5"));
        assert_eq!(max_wait("90"), Ok(Duration::from_secs(90)));
        assert_eq!(max_wait("2min"), Ok(Duration::from_secs(120)));
        assert!(max_wait("soon").is_err());
    }

    #[test]
    fn limits_that_name_their_start_begin_anew() {
        let flags = flags(&["--bucket", "./b", "--set", "-r", "5/s,burst=9,initial=9", "-r", "5000/h"]).unwrap();
        assert!(matches!(flags.task(), Task::Set(_)));
        assert_eq!(flags.fresh(), [true, false]);
    }
}
