//! Commands: how many run at once, their input, and their output.

use super::again::AgainFlags;
use super::input::parse_delimiter;
use super::values::{duration, from_text, parsed};
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use throttle::launch::{Output, Separator};

/// The most commands that run at once by default.
pub(crate) const JOBS: u32 = 16;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Launch")]
#[group(skip)]
pub(crate) struct LaunchFlags {
    /// Run at most N commands at once; 0: no cap. The default is 16. If all slots were taken for 10 s, a hint on a
    /// terminal gives the N that the rate needs. A unit waits for a slot first, then for the limits: a granted start
    /// never waits.
    ///
    /// With -j 1 a command writes to standard output and error directly, and without --timeout it may use the terminal.
    /// Otherwise each command has its own process group. If the system stops it at the terminal, throttle ends and
    /// reports it.
    ///
    /// A command has ended when its first process has. Processes that it leaves behind may go on, but their output is
    /// read for only one more second.
    #[arg(short, long, short_alias = 'P', alias = "max-procs", value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = from_text(jobs))]
    #[arg(help = "Commands at once; 0: no cap [default: 16] (also -P)", long_help)]
    pub(crate) jobs: Option<u32>,

    /// Give each command N units, or the rest at the end. The rate still counts commands. A word that is just {}
    /// becomes N words. 0 appends nothing.
    ///
    /// A command gets fewer units if N units do not fit: they may take 128 KiB, or less if the system allows less. Each
    /// unit counts 9 bytes more, and again for every {}. With --stdin all units fit.
    ///
    /// With --attempts, all N units run again if the server refuses one of them. So write curl --fail-early, which
    /// stops at the first failure.
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = from_text(|text| parsed::<u64>(text, "write a number of units, like -n 10")))]
    #[arg(help = "Units for each command, if they fit [default: 1]", long_help)]
    pub(crate) max_args: Option<u64>,

    /// The unit replaces R in COMMAND, even inside a word; a COMMAND without R is an error. Without -I it is {}.
    #[arg(short = 'I', long, value_name = "R", allow_hyphen_values = true)]
    #[arg(help = "The placeholder of the unit in COMMAND [default: {}]", long_help)]
    pub(crate) replace: Option<OsString>,

    /// Split each unit into columns: at blanks and tabs as awk does, or at SEP. SEP is a character, \t, or csv for
    /// commas and quotes as in RFC 4180.
    ///
    /// In COMMAND, {1} to {99} are the columns and {} is the unit. Without any of them, the columns are the last words
    /// of COMMAND. In a script they are "$1", "$2" and so on. A unit with too few columns for a {N} fails, and nothing
    /// is started for it. A line break ends a unit, even between quotes.
    ///
    /// throttle -r 5/s --columns=csv mv -n {2} {1} < renamed.csv
    #[arg(long, value_name = "SEP", num_args = 0..=1, require_equals = true, default_missing_value = "blanks")]
    #[arg(value_parser = from_text(separator), help = "Columns of the unit are {1}, {2}, … in COMMAND", long_help)]
    pub(crate) columns: Option<Separator>,

    /// Run sh -c SCRIPT 'throttle -c' UNIT for each unit. In SCRIPT the unit is "$1", and nothing is replaced. Put
    /// SCRIPT in single quotes, or your own shell replaces the $1. A {} in a script that does not use its unit is an
    /// error.
    #[arg(short = 'c', long, value_name = "SCRIPT", allow_hyphen_values = true, value_parser = script())]
    #[arg(help = "Run a shell script for each unit; the unit is \"$1\"", long_help)]
    pub(crate) shell: Option<OsString>,

    /// Give the unit with its delimiter to the standard input of the command, instead of its arguments. With -n N, the
    /// command gets N units.
    #[arg(long, help = "Give the unit to the command's standard input", long_help)]
    pub(crate) stdin: bool,

    /// Print output in input order. If 10 000 results or 1 GiB of output wait for an earlier command, no command
    /// starts. Waiting output is kept in an unnamed file in TMPDIR (/tmp), like all output above 1 MiB in total.
    ///
    /// In a pipe with limits for each key: pass units on in input order. A waiting key then holds up all keys. A bucket
    /// on a server gets a request for one unit after the other.
    #[arg(short, long, help = "Print output, or pass units on, in input order", long_help)]
    pub(crate) keep_order: bool,

    /// Print each line of output as soon as it is complete; lines of different commands mix. A last line without its
    /// newline gets one.
    #[arg(long, help = "Print output line by line", long_help)]
    pub(crate) line_buffer: bool,

    /// Let commands write to standard output and error themselves.
    #[arg(short, long, help = "Let commands write their output directly, mixed", long_help)]
    pub(crate) ungroup: bool,

    /// Put the unit and a tab before each line of output; of several units the first. A last line without its newline
    /// gets one. On a terminal, control characters in the unit are escaped. If the unit is not an argument (--stdin, -n
    /// 0), its first 200 bytes are shown.
    #[arg(long, help = "Put the unit and a tab before each line of output", long_help)]
    pub(crate) tag: bool,

    /// End a command that takes longer than TIME: TERM to its process group, KILL 5 s later. It counts as failed.
    ///
    /// A TIME, here and in other options, is for example 500ms, 30s, 1m30s, 2h, 7d or 1w. A bare number is in seconds.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = from_text(duration))]
    #[arg(help = "End a command that takes longer than TIME", long_help)]
    pub(crate) timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) again: AgainFlags,

    /// Write each command to standard error before it runs, quoted for the shell. On a terminal, control characters are
    /// written as $'\033', which bash, zsh, ksh and busybox read.
    #[arg(short, long, help = "Write each command to standard error before it runs", long_help)]
    pub(crate) trace: bool,

    /// Print the commands that would run, quoted for the shell, and how long after the start. The total and the maximum
    /// that each limit would pass follow. Without COMMAND, print the beginning of each unit that would leave; bytes are
    /// only counted. Nothing runs, and nothing waits.
    #[arg(long, help = "Show what would run or leave, and when; run nothing", long_help)]
    pub(crate) dry_run: bool,
}

/// Reads a number of commands. GNU parallel counts the processors in `+2`, `-1` and `50%`; `+0` must not be read as 0,
/// which is no cap.
fn jobs(text: &str) -> Result<u32, String> {
    let number = if text.starts_with('+') { "" } else { text };
    let how = "write a number of commands, like -j 8, -j \"$(nproc)\" for one for each processor, or -j 0 for no cap";
    parsed(number, how)
}

/// The parser for a script. An empty script would run nothing for each unit, without an error.
fn script() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|script| match script.as_bytes().trim_ascii() {
        b"" => Err("the script is empty; write for example -c 'echo \"$1\"'"),
        _ => Ok(script),
    })
}

/// Reads the separator of columns.
fn separator(text: &str) -> Result<Separator, String> {
    let mut chars = text.chars();
    match (text, chars.next(), chars.next()) {
        ("blanks", ..) => Ok(Separator::Blanks),
        ("csv", ..) => Ok(Separator::Csv),
        (_, Some(_), None) => Ok(Separator::Text(text.into())),
        (_, Some('\\'), Some(_)) => parse_delimiter(text.as_ref()).map(|byte| Separator::Text(vec![byte])),
        _ => {
            Err("write one character, \\t or csv, like --columns=, or --columns=csv; --columns alone splits at blanks"
                .to_owned())
        }
    }
}

impl LaunchFlags {
    /// The most commands that run at once; 0 is no cap.
    pub(crate) fn jobs(&self) -> u32 {
        self.jobs.unwrap_or(JOBS)
    }

    /// How output is printed. With -j 1, a command writes to our output directly, unless a flag changes its output.
    pub(crate) fn output(&self) -> Output {
        let (collects, is_one) = (self.again.attempts.is_some(), self.jobs == Some(1));
        match self {
            _ if !collects && (self.ungroup || is_one && !self.tag) => Output::Direct,
            _ if !collects && (self.line_buffer || is_one) => Output::Lines,
            _ if self.keep_order => Output::InOrder,
            _ => Output::Whole,
        }
    }

    /// Refuses -u and --line-buffer with --attempts.
    ///
    /// # Errors
    /// Output is printed at once, but attempts may be repeated.
    pub(crate) fn refuse_unrepeatable_output(&self) -> Result<(), String> {
        let flags = [(self.ungroup, "-u"), (self.line_buffer, "--line-buffer")];
        let printed = flags.into_iter().find(|(is_given, _)| *is_given && self.again.attempts.is_some());
        printed.map_or(Ok(()), |(_, flag)| {
            Err(format!(
                "{flag}: the output of an attempt that is repeated must not be printed; with --attempts leave {flag} out"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_separated_by_a_character_blanks_or_csv() {
        assert_eq!(separator("blanks"), Ok(Separator::Blanks));
        assert_eq!(separator("csv"), Ok(Separator::Csv));
        for (text, byte) in [(",", ","), ("\\t", "\t"), ("é", "é"), ("\\", "\\"), (" ", " ")] {
            assert_eq!(separator(text), Ok(Separator::Text(byte.into())), "{text}");
        }
        for wrong in ["", ",,", "tab", "CSV", "\\q"] {
            assert!(separator(wrong).is_err(), "{wrong}");
        }
    }
}
