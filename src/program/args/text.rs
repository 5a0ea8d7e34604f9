//! The parts of the help and the man page that are not about a flag.

use super::chapters::{self, entry};
use crate::program::exit;

pub(super) const USAGE: &str = "\
throttle [OPTIONS] -r LIMIT < input
       throttle [OPTIONS] -r LIMIT [--] COMMAND [ARG]… < input
       throttle [OPTIONS] -r LIMIT -c SCRIPT < input
       throttle [OPTIONS] [--bucket BUCKET] --once [COMMAND]…";

/// An example command, and its meaning. `-h` shows the first four.
pub(crate) const EXAMPLES: [(&str, &str); 7] = [
    ("cat urls | throttle -r 5/s curl -sSO {}", "a command for each line"),
    ("cat urls | throttle -r 5/s -b 10 > paced", "10 at once, then one every 200 ms"),
    ("throttle -r 10MiB/s < a.tar > /mnt/a.tar", "bytes"),
    ("throttle --bucket api -r 5/s --once ./call", "a rate that all scripts share"),
    ("cat log | throttle -r 100/s -r 1000/min", "both limits kept"),
    ("throttle -r 2/s --repeat 100 ./probe", "a hundred times"),
    ("throttle --plot tries.jsonl > run.html", "a page about the runs in a --log"),
];

/// The part of `-h` between the usage and the options.
pub(super) fn after_help() -> String {
    examples(&EXAMPLES[..4])
}

fn examples(of: &[(&str, &str)]) -> String {
    let examples: Vec<String> = of.iter().map(|(command, meaning)| format!("  {command:<44}{meaning}")).collect();
    format!("Examples:\n{}", examples.join("\n"))
}

/// Each environment variable, and its meaning.
pub(crate) fn environment() -> impl Iterator<Item = (&'static str, String)> {
    let entries = include_str!("environment.txt").split("\n\n").filter_map(|entry| entry.split_once('\n'));
    entries.map(|(name, meaning)| (name, meaning.trim_end().replace('\n', " ")))
}

pub(crate) const SIGNALS: &str = "\
USR1 writes a status line to standard error: the counts, the slots, the limits and a pause. INT, QUIT, TERM and HUP end the program at once, after the report of \
--summary. Commands and their process groups also get the signal, and throttle waits for them; a second signal kills them. \
But after a QUIT (Ctrl-\\), a run of commands starts nothing more and lets running commands finish; with -j 1 the terminal \
also sends Ctrl-\\ to the command. A signal that was ignored at the start stays ignored. If the reader of the output is gone, the program dies of SIGPIPE, as cat does.";

/// Examples, chapters, exit codes, signals and environment, for `--help`.
pub(super) fn after_long_help() -> String {
    let codes: Vec<String> = exit::codes().map(|(code, meaning)| entry(&code.to_string(), &meaning)).collect();
    let environment: Vec<String> = environment().map(|(name, meaning)| entry(name, &meaning)).collect();
    let (examples, chapters) = (examples(&EXAMPLES), chapters::list());
    let (codes, environment) = (codes.join("\n"), environment.join("\n"));
    format!("{examples}\n\n{chapters}\n\nExit codes:\n{codes}\n\nSignals:\n  {SIGNALS}\n\nEnvironment:\n{environment}")
}
