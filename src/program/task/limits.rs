//! The limits of a run, as the user asks for them.

use super::bucket::{Bucket, Environment};
use crate::program::args::{Args, in_limits};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use throttle::limits::Policy;
use throttle::rate::{Amount, Limit};

/// Limits named with `--rate` and `--burst`.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) policy: Policy,
    pub(crate) written: Vec<Limit>,
    pub(crate) burst: Option<Amount>,
}

/// Who keeps the limits of a run.
#[derive(Clone, Debug)]
pub(crate) enum Limits {
    /// The run has them for itself.
    Own(Named),
    /// A bucket keeps them. Those that were named must agree with it.
    Shared(Bucket, Option<Named>),
}

impl Named {
    /// `None` without `--rate`.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub(super) fn new(args: &Args) -> Result<Option<Self>, String> {
        if args.rate.is_empty() {
            return Ok(None);
        }
        let policy = Policy::with_slack(&args.rate, args.burst).map_err(|error| in_limits(&error))?;
        Ok(Some(Named { policy, written: args.rate.clone(), burst: args.burst }))
    }

    /// The same for `bucket`, which must be able to keep them.
    ///
    /// # Errors
    /// As [`new`](Self::new), and why the bucket cannot.
    pub(super) fn for_bucket(bucket: &Bucket, args: &Args) -> Result<Option<Self>, String> {
        if args.rate.contains(&Limit::Unlimited) {
            return Err("--rate: 'unlimited' is no limit that a bucket could keep; write for example -r 5/s".to_owned());
        }
        if args.rate.is_empty() && args.burst.is_some() {
            return Err("--burst belongs to a rate; write for example -r 5/s -b 10".to_owned());
        }
        let named = Named::new(args)?;
        if let Some(named) = &named {
            bucket.check(&named.policy).map_err(|error| format!("--rate: {error}"))?;
        }
        Ok(named)
    }
}

impl Limits {
    /// The limits of a stream. If it names limits, and no bucket, it has them for itself: `THROTTLE_BUCKET`, which is set
    /// for other scripts, does not change what a script does.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub(super) fn of_stream(args: &Args, environment: &Environment) -> Result<Self, String> {
        let is_private = args.bucket.is_none() && !args.rate.is_empty();
        let bucket = match &args.bucket {
            None if is_private => None,
            word => Bucket::named(word.as_deref(), args.on_store_error, environment)?,
        };
        if let Some(bucket) = bucket {
            let named = Named::for_bucket(&bucket, args)?;
            return Ok(Limits::Shared(bucket, named));
        }
        if args.on_store_error.is_some() {
            let or = if is_private { " (with -r, THROTTLE_BUCKET is not used)" } else { ", or THROTTLE_BUCKET=NAME" };
            return Err(format!("--on-store-error is about a bucket on a server; name it: --bucket NAME{or}"));
        }
        Named::new(args)?.map(Limits::Own).ok_or_else(|| without_rate(&args.command).to_owned())
    }

    /// The limits that were named; `None` if only the bucket knows them.
    pub(crate) fn named(&self) -> Option<&Named> {
        match self {
            Limits::Own(named) => Some(named),
            Limits::Shared(_, named) => named.as_ref(),
        }
    }

    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match self {
            Limits::Own(_) => None,
            Limits::Shared(bucket, _) => Some(bucket),
        }
    }

    /// The limits as the user wrote them, or `policy`, which the bucket keeps.
    pub(crate) fn written(&self, policy: &Policy) -> String {
        let join = |named: &Named| named.written.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        self.named().map_or_else(|| policy.to_string(), join)
    }
}

/// What is wrong if no limit is named. `command` is what is to be run.
fn without_rate(command: &[OsString]) -> &'static str {
    let is_rate = |word: &OsString| word.as_bytes().starts_with(b"-r") || word.as_bytes().starts_with(b"--rate");
    if command.iter().any(is_rate) {
        "--rate: how fast? options after the command are the command's; put -r before it, like -r 5/s COMMAND"
    } else {
        "--rate: how fast? write for example -r 5/s, -r 100/min or -r 10MiB/s"
    }
}
