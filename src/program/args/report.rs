//! The flags about reports: which reports there are, and where they go.

use super::values::{Format, from_text};
use clap::ValueEnum;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use throttle_limits::rate::Amount;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Report")]
#[group(skip)]
pub(crate) struct ReportFlags {
    /// Show progress on standard error: auto, always or never.
    ///
    /// auto shows a bar once the work has lasted a second, if standard error is a terminal and nothing else uses that
    /// terminal. Commands must not write to the terminal themselves (-u, -j 1 without --tag), and units must not be
    /// typed in. In a pipeline, --size shows the bar.
    ///
    /// always without a terminal writes a plain line every 10 s. SIGUSR1 writes the same line at any time, with busy
    /// slots, the rest of each limit, and the end of a pause.
    ///
    /// All conditions, and the parts of the bar: throttle --help progress, and PROGRESS in the manual.
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true, hide_possible_values = true)]
    #[arg(help = "Show progress: auto, always, never", long_help)]
    pub(crate) progress: ProgressWhen,

    /// The size of the input of a pipe, for the bar and the time left: bytes, like 10GiB, or units, like 5000. The size
    /// of a file is known without it. The bar is then shown even in the middle of a pipeline: no reader of the output
    /// should request a password on the terminal. If more comes, it is also passed on.
    ///
    /// tar -c a | throttle -r 9MiB/s --size 2GiB | gzip > a.tgz
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_text(size_of_input))]
    #[arg(help = "Size of the input of a pipe: 10GiB, or units", long_help)]
    pub(crate) size: Option<Amount>,

    /// At the end, even after an error or a signal, report the units, bytes, time and mean rate. The report also has
    /// the time spent waiting for each limit, for the input and for the reader, and how late the units left that
    /// waited.
    ///
    /// After commands, it also has how long they ran: half of them, 99 of 100, and the longest. If all slots were taken
    /// for most of the time, it compares the starts a second with the rate, and gives the -j that would reach the rate.
    ///
    /// FMT is text or json. The report goes to standard error, or replaces FILE at the end. All fields of json:
    /// throttle --help summary, and SUMMARY in the manual.
    #[arg(long, value_name = "FMT[:FILE]", num_args = 0..=1, require_equals = true, default_missing_value = "text", value_parser = summary())]
    #[arg(help = "Report at the end: text or json", long_help)]
    pub(crate) summary: Option<Summary>,

    /// Write a page of HTML to standard output that shows the runs in files of --log; - is standard input. The page
    /// needs no network and no script.
    ///
    /// throttle --plot tries.jsonl > run.html
    ///
    /// It shows the starts a second beside the limits, the pace of the server and the pauses; how long commands ran,
    /// and how many at once; the busiest and the most refused keys; and the first 200 units that failed. Point at a bar
    /// to read its numbers. Several logs, even of several machines, make one page. A log may still be growing.
    #[arg(long, value_name = "LOG", num_args = 1.., value_hint = clap::ValueHint::FilePath)]
    #[arg(help = "Write a page of HTML about runs, from files of --log", long_help)]
    pub(crate) plot: Vec<PathBuf>,

    /// No hints, no bar except with --progress=always, and in launch mode no messages about failed commands.
    ///
    /// Without -q, each line whose command failed or was stopped by a signal is reported by its number and its
    /// beginning, on a terminal at most 20 lines. Successes are not reported, except for the totals on a terminal or
    /// with --summary.
    #[arg(short, long, help = "No hints, no messages about failed commands", long_help)]
    pub(crate) quiet: bool,
}

/// When to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    /// On a terminal, if it disturbs nothing, once the work has lasted a second
    Auto,
    /// Always; without a terminal a plain line every 10 s
    Always,
    /// Never
    Never,
}

/// The format and the place of the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) format: Format,
    /// `None` is standard error.
    pub(crate) file: Option<PathBuf>,
}

impl ReportFlags {
    /// Whether totals and hints are written even after a success: on a terminal, or with --summary. Elsewhere cron
    /// would mail them.
    pub(crate) fn sums_up(&self, on_terminal: bool) -> bool {
        let is_text_on_stderr = |summary: &Summary| summary.format == Format::Text && summary.file.is_none();
        !self.quiet && (on_terminal || self.summary.as_ref().is_some_and(is_text_on_stderr))
    }
}

/// Reads the size of the input of a pipe.
fn size_of_input(text: &str) -> Result<Amount, String> {
    let size = text.parse::<Amount>().ok().filter(|size| size.value() > 0);
    size.ok_or_else(|| "write bytes, like --size 10GiB, or a number of units, like --size 5000".to_owned())
}

fn summary() -> impl TypedValueParser<Value = Summary> {
    OsStringValueParser::new().try_map(|text| parse_summary(text.as_bytes()))
}

fn parse_summary(text: &[u8]) -> Result<Summary, String> {
    let (format, file) = match text.iter().position(|&byte| byte == b':') {
        Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
        None => (text, None),
    };
    let format = match format {
        b"text" | b"" => Format::Text,
        b"json" => Format::Json,
        _ => return Err("write --summary, --summary=json, --summary=text:FILE or --summary=json:FILE".to_owned()),
    };
    match file {
        Some([]) => Err("a file name is missing after the colon; write --summary=json:FILE".to_owned()),
        Some(b"-") => {
            Err("- is not a file; for standard error write --summary=json, else --summary=json:./-".to_owned())
        }
        _ => Ok(Summary { format, file: file.map(|file| OsString::from_vec(file.to_vec()).into()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_in_bytes_or_units() {
        let size = |text| size_of_input(text).map(|size| (size.value(), size.is_bytes()));
        assert_eq!(size("10GiB"), Ok((10 << 30, true)));
        assert_eq!(size("5000"), Ok((5000, false)));
        assert_eq!(size("1.5M"), Ok((1_500_000, false)));
        for wrong in ["", "0", "0B", "-1", "x", "10G/s", "1.5"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn summaries_go_to_standard_error_or_the_file_named() {
        let parsed = |text: &str| parse_summary(text.as_bytes()).map(|s| (s.format, s.file));
        assert_eq!(parsed("text"), Ok((Format::Text, None)));
        assert_eq!(parsed("json:a:b"), Ok((Format::Json, Some("a:b".into()))));
        assert_eq!(parsed(":x"), Ok((Format::Text, Some("x".into()))));
        assert!(parsed("xml").is_err() && parsed("json:").is_err());
    }
}
