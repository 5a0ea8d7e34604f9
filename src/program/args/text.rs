//! What the help and the man page say beside the flags.

use crate::program::exit;

pub(super) const USAGE: &str = "\
throttle [OPTIONS] -r LIMIT < input
       throttle [OPTIONS] -r LIMIT [--] COMMAND [ARG]… < input
       throttle [OPTIONS] -r LIMIT -c SCRIPT < input
       throttle [OPTIONS] --bucket BUCKET --once [COMMAND]…";

/// Command and meaning; the first ones are those of `-h`.
pub(crate) const EXAMPLES: [(&str, &str); 6] = [
    ("cat urls | throttle -r 5/s curl -sSO {}", "a command for each line"),
    ("cat urls | throttle -r 5/s -b 10 > paced", "10 at once, then one every 200 ms"),
    ("throttle -r 10MiB/s < a.tar > /mnt/a.tar", "bytes"),
    ("throttle --bucket api -r 5/s --once ./call", "a rate that all scripts share"),
    ("cat log | throttle -r 100/s -r 1000/min", "both limits kept"),
    ("throttle -r 2/s --repeat 100 ./probe", "a hundred times"),
];

/// What stands in `-h` between the usage and the options.
pub(super) fn after_help() -> String {
    examples(&EXAMPLES[..4])
}

fn examples(of: &[(&str, &str)]) -> String {
    let examples: Vec<String> = of.iter().map(|(command, meaning)| format!("  {command:<44}{meaning}")).collect();
    format!("Examples:\n{}", examples.join("\n"))
}

/// Variable and meaning.
pub(crate) const ENVIRONMENT: [(&str, &str); 9] = [
    (
        "THROTTLE_BUCKET",
        "The bucket of --once, --show, --set, --clear, --pause, --remove and --list without --bucket, and of a stream without -r \
         and --bucket.",
    ),
    ("THROTTLE_SEQ", "Set for each command: its number, from 1."),
    (
        "THROTTLE_SLOT",
        "Set for each command: the number of its slot (see --jobs), from 0; no two commands that run at once have the same.",
    ),
    ("THROTTLE_ATTEMPT", "Set for each command with --attempts: which attempt at its unit this is, from 1."),
    (
        "THROTTLE_REPLY",
        "Set for each command with --attempts or cost=: a file that takes HTTP header fields, as from curl -D. Known are the \
         status line, retry-after, x-ratelimit-remaining and -reset, and ratelimit; and throttle-cost: N, the real cost of \
         the unit, which replaces what it was charged; with limits of several costs throttle-cost: N KIND, with KIND as in \
         cost=KIND. Only the same user in the same PID namespace can open it: \
         under sudo -u, in a container and over ssh, have the shell open it (curl -D - -o FILE URL >> \"$THROTTLE_REPLY\"), or \
         exit 75.",
    ),
    ("THROTTLE_KEY", "Set for each command with per=: the key of its units, which comes from the input."),
    (
        "THROTTLE_ID",
        "Set for each command with --attempts or --done: a hash of its units, the same at every attempt and in every run, for \
         example as an idempotency key.",
    ),
    ("TMPDIR", "The folder for output, and units for --stdin, that are too much for memory; /tmp if not set."),
    ("XDG_STATE_HOME", "The folder of buckets that are named without a path; ~/.local/state if not set."),
];

pub(crate) const SIGNALS: &str = "\
USR1 writes a status line to standard error. INT, QUIT, TERM and HUP end the program at once, after the summary if one was \
asked for. Commands and their process groups get the signal too, and are waited for; a second signal kills them. A \
signal that was ignored at the start stays ignored. If the reader is gone, the program dies of SIGPIPE, as cat does.";

/// Examples, exit codes, signals and environment, for `--help`.
pub(super) fn after_long_help() -> String {
    let entry = |name: String, meaning: &str| format!("  {name}\n          {meaning}");
    let codes: Vec<String> = exit::codes().map(|(code, meaning)| entry(code.to_string(), &meaning)).collect();
    let environment: Vec<String> =
        ENVIRONMENT.iter().map(|(name, meaning)| entry((*name).to_owned(), meaning)).collect();
    let (examples, codes, environment) = (examples(&EXAMPLES), codes.join("\n"), environment.join("\n"));
    format!("{examples}\n\nExit codes:\n{codes}\n\nSignals:\n  {SIGNALS}\n\nEnvironment:\n{environment}")
}
