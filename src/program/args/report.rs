//! What is reported, and where.

use super::values::Format;
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
    /// auto shows a bar once the work has lasted a second, if standard error is a terminal that nothing else uses. So
    /// standard output must be a file or a device: the reader of a pipe may write to the terminal or ask for a password
    /// there, unless --size is given. In a pipe, standard output must not be the terminal. Commands must not write to the terminal themselves
    /// (-u, -j 1 without --tag), and units must not be typed in.
    ///
    /// In the background of a script no bar is shown: the script may ask the user something.
    ///
    /// No bar is drawn while the terminal does not echo what is typed: then a program asks for a password, or shows
    /// pages.
    ///
    /// After ten seconds the bar of a run of commands also says which keys end it: Ctrl-\ starts nothing more and lets
    /// what runs finish, Ctrl-C ends what runs.
    ///
    /// A narrow terminal shows less: first without the keys, then without the limit, then without the rate; the time left
    /// stays as long as it fits. It is known for a file, for --repeat and with --size, and is estimated from whatever holds the work
    /// back: the limits, the reader, or the commands.
    ///
    /// always without a terminal writes a plain line every 10 s. SIGUSR1 writes the same line at any time, and adds how
    /// many slots are busy, what is left of each limit, and until when a pause lasts.
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true, hide_possible_values = true)]
    #[arg(help = "Show progress: auto, always, never", long_help)]
    pub(crate) progress: ProgressWhen,

    /// How much a pipe will bring, for the bar and the time left: bytes, like 10GiB, or units, like 5000. The size of a
    /// file is known without it. The bar is then shown in the middle of a pipeline, too: no reader of the output should
    /// ask for a password on the terminal. If more comes, it is passed on as well.
    ///
    /// tar -c photos | throttle -r 10MiB/s --size 2GiB | ssh nas 'cat > photos.tar'
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = size_of_input)]
    #[arg(help = "How much a pipe will bring: 10GiB, or units", long_help)]
    pub(crate) size: Option<Amount>,

    /// At the end, even after an error or a signal, say how many units and bytes passed, how long it took, the mean
    /// rate, the time spent waiting for each limit, for the input and for the reader, and how late the units left that
    /// had to wait. After commands, also how long they ran: half of them, 99 of 100, and the longest; and the starts a second of those
    /// allowed, if all slots were taken for most of the time, with the -j that would reach the rate.
    ///
    /// FMT is text or json; it goes to standard error, or to FILE. The fields of json: unit, units, bytes, keys, dropped
    /// (dropped_by_key), read_and_not_passed_on, elapsed_ns, mean_rate_per_s, waited_for_limits_ns, waited_for_source_ns,
    /// waited_for_sink_ns, lateness_p50_ns, lateness_p99_ns, limits (limit, waited_ns), and with commands, instead of bytes
    /// and read_and_not_passed_on: commands (started, running, ok, ok_after_retry, failed, timed_out, killed, stopped,
    /// told_to_wait, paused_ns, to_be_tried_again, not_tried_again, read_and_not_started, blank_skipped, done_before,
    /// learned, jobs_needed (-j for a rate that was not reached)), and ran_ns (p50, p90, p99, max).
    #[arg(long, value_name = "FMT[:FILE]", num_args = 0..=1, require_equals = true, default_missing_value = "text", value_parser = summary())]
    #[arg(help = "Say at the end what happened: text or json", long_help)]
    pub(crate) summary: Option<Summary>,

    /// Write a page of HTML to standard output that shows the runs in files of --log; - is standard input. throttle --plot
    /// tries.jsonl > run.html. The page needs no network and no script.
    ///
    /// It shows the starts a second beside the limits and what the server allowed, with pauses; how long the commands ran;
    /// how many ran at once; the busiest and the most refused keys; and the first 200 units that failed. Point at a bar to read
    /// its numbers. Several logs, also of several machines, are one page. A log may still be written to.
    #[arg(long, value_name = "LOG", num_args = 1.., value_hint = clap::ValueHint::FilePath)]
    #[arg(help = "Write a page of HTML about runs, from files of --log", long_help)]
    pub(crate) plot: Vec<PathBuf>,

    /// No hints, no bar unless --progress=always asks for it, and in launch mode no messages about failed commands.
    ///
    /// Otherwise each line whose command failed, or was stopped by a signal, is reported by its number and its
    /// beginning: all of them, but on a terminal the first 20. Successes are not reported, except for the totals on a
    /// terminal or with --summary.
    #[arg(short, long, help = "No hints, no messages about failed commands", long_help)]
    pub(crate) quiet: bool,
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    /// On a terminal, if it disturbs nothing, once the work has lasted a second
    Auto,
    /// Always; without a terminal a plain line every 10 s
    Always,
    /// Never
    Never,
}

/// How and where the summary is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) format: Format,
    /// `None`: to standard error.
    pub(crate) file: Option<PathBuf>,
}

impl ReportFlags {
    /// Whether totals and hints are written after a success, too: on a terminal, or if the user asked for them. Elsewhere cron
    /// would mail them.
    pub(crate) fn sums_up(&self, on_terminal: bool) -> bool {
        let said_here = |summary: &Summary| summary.format == Format::Text && summary.file.is_none();
        !self.quiet && (on_terminal || self.summary.as_ref().is_some_and(said_here))
    }
}

/// How much a pipe will bring.
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
        Some(b"-") => Err("- is no file; for standard error write --summary=json, else --summary=json:./-".to_owned()),
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
