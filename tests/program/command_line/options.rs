//! The command line as a user meets it: exit codes, messages, help, hints, and every option once.

use crate::support::terminal::Terminal;
use crate::support::{Ended, Running, feed, passed, run, shell, text, throttle};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod exit_codes {
    use super::*;

    fn code(args: &[&str]) -> Option<i32> {
        run(args, b"a\n").code()
    }

    #[test]
    fn zero_when_everything_was_passed_on() {
        assert_eq!(code(&["-r", "5/s"]), Some(0));
        assert_eq!(code(&["--help"]), Some(0));
        assert_eq!(code(&["--version"]), Some(0));
    }

    #[test]
    fn one_when_something_failed() {
        assert_eq!(code(&["-r", "5/s", "-a", "/nowhere/at/all"]), Some(1));
    }

    #[test]
    fn two_when_the_command_line_is_wrong() {
        assert_eq!(code(&[]), Some(2));
        assert_eq!(code(&["-r", "5m"]), Some(2));
        assert_eq!(code(&["-r", "5/s", "--no-such-option"]), Some(2));
    }

    #[test]
    fn they_hold_when_nobody_reads_the_message() {
        let mut running = Running::start(throttle(["-r", "5m"]));
        drop(running.stderr());
        assert_eq!(running.end().code(), Some(2));
    }
}

mod help {
    use super::*;

    fn shown(args: &[&str]) -> String {
        let output = run(args, b"");
        assert_eq!((output.code(), &*output.err), (Some(0), ""));
        output.into_text()
    }

    /// Of 24 lines, one of which is the prompt.
    #[test]
    fn the_short_one_fits_one_screen_and_shows_the_commonest_wishes() {
        let help = shown(&["-h"]);
        assert!(help.lines().count() <= 23, "{} lines", help.lines().count());
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        for words in [
            "  cat urls | throttle -r 5/s curl -sSO {}",
            "  throttle --bucket api -r 5/s --once ./call",
            "  throttle -r 10MiB/s < a.tar",
            "-r, --rate <LIMIT>",
            "--help",
        ] {
            assert!(help.contains(words), "{words:?} is missing in: {help}");
        }
    }

    /// Also if it is piped into a pager on that terminal. The usage and words like redis://... are not broken.
    #[test]
    fn both_wrap_to_the_terminal_and_at_100_columns() {
        for (columns, most) in [(40, 40), (60, 60), (80, 80), (200, 100)] {
            for help in [&["--help"][..], &["-h"], &["--help", "limits"]] {
                let terminal = Terminal::new(columns);
                let mut command = throttle(help);
                let page = text(&command.stdin(Stdio::null()).stderr(terminal.end()).output().unwrap().stdout);
                let is_long = |line: &&str| line.chars().count() > most && line.trim_start().contains(' ');
                let long: Vec<&str> =
                    page.lines().filter(is_long).filter(|line| !line.contains("throttle [OPT")).collect();
                assert!(long.is_empty(), "{columns}: {long:#?}");
                let widest = page.lines().map(|line| line.chars().count()).max().unwrap();
                assert!(widest * 10 >= most * 7, "{columns}: only {widest} are used");
            }
        }
    }

    #[test]
    fn the_long_one_explains_with_examples_exit_codes_and_signals() {
        let help = shown(&["--help"]);
        for words in [
            "Examples:",
            "Exit codes:",
            "Signals:",
            "USR1",
            "\n  0\n",
            "\n  75\n",
            "\n  127\n",
            "-r 5/s -r 5000/h",
            "window",
        ] {
            assert!(help.contains(words), "{words:?} is missing in: {help}");
        }
    }

    #[test]
    fn help_and_manual_name_the_variables_and_blank_lines() {
        let manual = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/man/throttle.1")).unwrap();
        for page in [shown(&["--help"]), manual] {
            let page: String =
                page.replace("\\*(Aq", "'").replace('\\', "").split_whitespace().collect::<Vec<_>>().join(" ");
            for words in [
                "THROTTLE_BUCKET",
                "THROTTLE_SEQ",
                "THROTTLE_SLOT",
                "For commands, blank lines are skipped and counted, except with -0 or -d;",
                "Commands must not write to the terminal themselves",
                "a line of spaces or tabs is not blank.",
                "A command's standard input is /dev/null, even with -a",
                "A script cannot be run (126) if its first line does not name its interpreter",
                "that is killed by a signal or that cannot be run does not stop the others",
                "setsid CMD returns at once",
                "A last line without its newline gets one.",
                "{} is the number, and in a script \"$1\".",
                "sh -c SCRIPT 'throttle -c' UNIT",
            ] {
                assert!(page.contains(words), "{words:?} is missing in: {page}");
            }
        }
    }

    #[test]
    fn every_field_of_the_summary_as_json_is_in_the_manual() {
        let manual = shown(&["--help", "summary"]);
        for command in [&[][..], &["true"]] {
            let said = run([&["-r", "1k/s", "--summary=json"], command].concat(), b"a\nb\n").err;
            let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&said).unwrap();
            let of_commands = fields.get("commands").and_then(|commands| commands.as_object()).into_iter().flatten();
            for (name, _) in fields.iter().chain(of_commands) {
                assert!(manual.contains(name.as_str()), "{name}");
            }
        }
    }

    #[test]
    fn every_variable_of_a_command_is_on_all_three_pages() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = throttle(["-r", "9/s,per=host", "--attempts", "2", "--done", "seen", "-c", "env"]);
        command.current_dir(folder.path());
        let set = feed(command, b"http://a.example/\n").into_text();
        let set: Vec<&str> = set
            .lines()
            .filter_map(|line| line.split('=').next())
            .filter(|name| name.starts_with("THROTTLE_"))
            .collect();
        assert!(set.len() >= 6, "{set:?}");
        let file = |path| fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        for page in [shown(&["--help"]), file("man/throttle.1"), file("SECURITY.md")] {
            let missing: Vec<&&str> = set.iter().filter(|name| !page.contains(**name)).collect();
            assert!(missing.is_empty(), "{missing:?} are missing in: {page}");
        }
    }

    #[test]
    fn the_long_one_knows_every_option() {
        let help = shown(&["--help"]);
        let list = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/options.md")).unwrap();
        let options: Vec<&str> =
            list.lines().filter(|line| line.starts_with("  -") || line.starts_with("      --")).collect();
        assert!(options.len() > 40, "{options:?}");
        for option in options {
            let option = option.trim_start().split("  ").next().unwrap();
            assert!(help.contains(option), "{option} is missing in: {help}");
        }
    }

    #[test]
    fn it_prints_the_chapters_that_it_lists() {
        let help = shown(&["--help"]);
        let names: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  throttle --help ")).collect();
        let manual = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/man/throttle.1")).unwrap();
        assert!(names.len() > 4, "{help}");
        for name in names.iter().map(|line| line.split(' ').next().unwrap()) {
            let chapter = shown(&["-j", "3", "--help", name]);
            assert!(!chapter.contains("Usage:") && chapter.split_whitespace().count() > 100, "{name}: {chapter}");
            assert!(manual.contains(&format!("\n.SH {}\n", name.to_uppercase())), "{name}");
        }
        assert!(shown(&["--help", "limits"]).contains("\n  per=SEL\n          The limit holds for each value"));
        assert_eq!(shown(&["--help", "-q"]), help);
    }

    #[test]
    fn the_version_is_the_packages() {
        let version = format!("throttle {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!((shown(&["-V"]), shown(&["--version"])), (version.clone(), version));
    }

    #[test]
    fn it_comes_whatever_else_is_there() {
        assert!(shown(&["-r", "5/s", "-h"]).contains("Usage:"));
    }
}

mod hints {
    use super::*;

    fn said(mut command: Command, stdin: impl Into<Stdio>) -> String {
        command.stdin(stdin);
        let output = Running::start(command).finish();
        assert_eq!(output.code(), Some(0));
        output.err
    }

    fn empty_file() -> fs::File {
        tempfile::tempfile().unwrap()
    }

    #[test]
    fn a_limit_that_can_never_bind_is_named_once() {
        for (args, limit, other) in [
            (&["-r", "5/s", "-r", "18000/h,window,slack=0"][..], "18000/h", "5/s"),
            (&["-r", "300/min,window,slack=0", "-r", "5/s"], "300/min", "5/s"),
            (&["-r", "10/s,window", "-r", "1000/min,window"], "1000/min", "10/s"),
            (&["-r", "1/s,window,per=f1", "-r", "100/min,window,per=f1"], "100/min", "1/s"),
        ] {
            assert_eq!(said(throttle(args), empty_file()), "", "cron mails nothing");
            let said = said(throttle([args, &["--summary"]].concat()), empty_file());
            assert!(
                said.contains(&format!("the limit {limit}")) && said.contains("has no effect together with"),
                "{args:?}: {said}"
            );
            assert!(said.contains(other) && said.matches("has no effect").count() == 1, "{args:?}: {said}");
        }
        // A unit of this window counts a little longer than its period, so the window binds.
        let binds = &["-r", "5/s", "-r", "300/min,window"][..];
        for args in [binds, &["-r", "5/s", "-r", "5000/h"], &["-r", "5/s"], &["-r", "unlimited"]] {
            assert_eq!(said(throttle(args), empty_file()), "", "{args:?}");
        }
    }

    #[test]
    fn only_a_limit_that_can_never_bind_is_left_out() {
        for (limits, kept) in [
            (["5/s", "18000/h,window,slack=0"], &["5/s,burst=1"][..]),
            (["10/s,window", "1000/min,window"], &["10/s,window,slack=50ms"]),
            (["5/s", "300/min"], &["5/s,burst=1"]),
            (["1/s", "80/min"], &["1/s,burst=1"]),
            (["5/s", "299/min"], &["5/s,burst=1", "299/min,window,slack=250ms"]),
        ] {
            let said = said(throttle(["-r", limits[0], "-r", limits[1], "--summary=json"]), empty_file());
            let summary: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
            let shown = summary["limits"].as_array().unwrap().iter().map(|limit| limit["limit"].as_str().unwrap());
            assert_eq!(shown.collect::<Vec<_>>(), kept, "{limits:?}");
        }
    }

    #[test]
    fn a_looser_limit_beside_a_stricter_one_slows_no_run() {
        let times = |limits: &[&str]| {
            let ended = feed(throttle([limits, &["--dry-run"]].concat()), "a\n".repeat(300));
            let lines = ended.text().lines().filter(|line| line.starts_with("a "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let alone = times(&["-r", "1/s"]);
        assert_eq!((alone.len(), alone.last().unwrap().as_str()), (300, "a  # 4m 59s"));
        for loose in ["80/min", "60/min", "2/s", "3601/h"] {
            assert_eq!(times(&["-r", "1/s", "-r", loose]), alone, "{loose}");
            assert_eq!(times(&["-r", loose, "-r", "1/s"]), alone, "{loose}");
        }
    }

    #[test]
    fn an_input_that_can_hold_nothing_is_named() {
        // As in for u in 1 2; do throttle -r 2/s echo $u < /dev/null; done, which runs nothing.
        let named = "throttle: standard input is /dev/null, so no unit was read; \
                     to pace single commands: --bucket NAME --once\n";
        for args in [&["-r", "5/s"][..], &["-r", "5/s", "echo", "1"], &["-r", "5/s", "-a", "-", "echo"]] {
            assert_eq!(said(throttle(args), Stdio::null()), named, "{args:?}");
        }
        let closed = feed(shell("exec \"$0\" -r 5/s echo 1 0<&-"), b"");
        assert_eq!((closed.err.as_str(), closed.code()), (named, Some(0)));
        assert_eq!(said(throttle(["-r", "5/s", "--repeat", "1", "true"]), Stdio::null()), "");
        assert_eq!(said(throttle(["-r", "5/s", "-a", "/dev/null"]), Stdio::null()), "", "that was meant");
        assert_eq!(said(throttle(["-r", "5/s"]), empty_file()), "");
    }

    /// As in throttle -a addresses ./sendmail < body, which sends empty mails.
    #[test]
    fn a_standard_input_that_is_not_used_is_named_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (units, body) = (path("units"), path("body"));
        fs::write(&units, "a\nb\n").unwrap();
        fs::write(&body, "a body\n").unwrap();
        let message = |flag: &str| {
            format!(
                "throttle: standard input is not used, because {flag} is given; to pass it to a command write it to a file: \
                 -c 'COMMAND \"$1\" < FILE'\n"
            )
        };
        assert_eq!(said(throttle(["-r", "1k/s", "-a", &units, "echo"]), fs::File::open(&body).unwrap()), message("-a"));
        for (args, flag) in [
            (&["-r", "9/s", "-a", &units, "true"][..], Some("-a")),
            (&["-r", "9/s", "-a", &units], Some("-a")),
            (&["-r", "9/s", "--repeat", "3", "true"], Some("--repeat")),
            (&["-q", "-r", "9/s", "-a", &units, "true"], None),
            (&["-r", "9/s", "-a", "-", "true"], None),
        ] {
            let said = run(args, b"a body\n").err;
            assert_eq!(said, flag.map_or_else(String::new, message), "{args:?}");
            assert_eq!(run(args, b"").err, "", "{args:?}: there is nothing to use");
        }
    }

    #[test]
    fn quiet_silences_them() {
        for quiet in ["-q", "--quiet"] {
            assert_eq!(said(throttle([quiet, "-r", "5/s", "-r", "18000/h"]), Stdio::null()), "");
        }
    }

    #[test]
    fn quiet_silences_no_errors() {
        let output = run(["-q", "-r", "5/s", "-a", "/nowhere/at/all"], b"");
        assert!(output.err.contains("/nowhere/at/all"));
    }
}

mod spellings {
    use super::*;

    #[test]
    fn each_has_its_short_and_its_long_form() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("units");
        fs::write(&file, "a,b\0c\n").unwrap();
        let file = file.to_str().unwrap();
        for args in [
            &["-r", "1k/s"][..],
            &["-r1k/s"],
            &["--rate", "1k/s"],
            &["--rate=1k/s"],
            &["-r", "1k/s", "-b", "5"],
            &["-r", "1k/s", "--burst=5"],
            &["-r", "1k/s", "-0"],
            &["-r", "1k/s", "--null"],
            &["-0r1k/s"],
            &["-r", "1k/s", "-d", ","],
            &["-r", "1k/s", "-d,"],
            &["-r", "1k/s", "--delimiter=\\t"],
            &["-r", "1k/s", "--bytes"],
            &["-r", "1kB/s", "--bytes"],
            &["-r", "1k/s", "--progress=auto"],
            &["-r", "1k/s", "--progress", "never"],
            &["-r", "1k/s", "-q"],
        ] {
            assert_eq!(text(&passed(args, b"a,b\0c\n")), "a,b\0c\n", "{args:?}");
        }
        for option in ["-a", "--arg-file"] {
            assert_eq!(text(&passed(&["-r", "1k/s", option, file], b"")), "a,b\0c\n");
        }
    }

    #[test]
    fn rates_are_read_in_every_spelling() {
        for rate in [
            "1000/s",
            "60000/min",
            "1000",
            "300/15s",
            "1000.5/s",
            "5k/s",
            "200/500ms",
            "1k/s,burst=5,initial=0",
            "1MiB/s",
            "1.5GB/s",
            "10kB",
            "5000/h,window",
            "10G/d",
            "unlimited",
            "1B/ms",
        ] {
            assert_eq!(passed(&["-r", rate], b"a\n"), b"a\n", "{rate}");
        }
    }

    #[test]
    fn progress_without_a_terminal_tears_nothing() {
        let output = run(["-r", "1G/s", "--progress=always"], b"a\nb\n");
        assert_eq!((output.code(), output.text()), (Some(0), "a\nb\n"));
        assert!(!output.err.contains('\x1b'), "{}", output.err);
    }
}

mod summary {
    use super::*;

    fn summary(output: &Ended) -> serde_json::Value {
        assert_eq!(output.code(), Some(0));
        serde_json::from_str(&output.err).unwrap_or_else(|error| panic!("{error}: {}", output.err))
    }

    #[test]
    fn the_json_has_every_field_and_they_agree() {
        let output = run(["-r", "100/s", "-b", "1", "-r", "1000/h", "--summary=json"], b"line\n".repeat(11));
        let summary = summary(&output);
        assert_eq!((&summary["unit"], &summary["units"], &summary["bytes"]), (&"line".into(), &11.into(), &55.into()));
        let number = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"));
        assert!(number("elapsed_ns") >= 100_000_000, "{summary}");
        assert!(number("waited_for_limits_ns") >= 50_000_000, "{summary}");
        let waits = ["waited_for_limits_ns", "waited_for_source_ns", "waited_for_sink_ns"];
        assert!(waits.iter().map(|name| number(name)).sum::<u64>() <= number("elapsed_ns"), "{summary}");
        assert!(number("lateness_p50_ns") <= number("lateness_p99_ns"), "{summary}");
        assert!(summary["mean_rate_per_s"].as_f64().unwrap() <= 110.0, "{summary}");
        let limits = summary["limits"].as_array().unwrap();
        let names: Vec<_> = limits.iter().map(|limit| limit["limit"].as_str().unwrap()).collect();
        assert_eq!(names, ["100/s,burst=1", "1000/h,window,slack=250ms"]);
        assert_eq!(
            limits.iter().map(|limit| limit["waited_ns"].as_u64().unwrap()).sum::<u64>(),
            number("waited_for_limits_ns")
        );
        assert_eq!(limits[1]["waited_ns"], 0, "the hour's limit did not bind");
    }

    #[test]
    fn units_are_called_what_they_are() {
        for (args, unit) in
            [(&["-r", "1G/s"][..], "line"), (&["-r", "1G/s", "-0"], "record"), (&["-r", "1GB/s"], "byte")]
        {
            assert_eq!(summary(&run([args, &["--summary=json"]].concat(), b"a\n"))["unit"], unit);
        }
    }

    #[test]
    fn the_text_says_it_in_two_lines() {
        for option in ["--summary", "--summary=text"] {
            let output = run(["-r", "5/s", "-b", "1", option], b"a\nb\n");
            let said = &output.err;
            assert!(said.starts_with("throttle: 2 lines, 4 B in "), "{said}");
            for words in
                ["waited ", " for 5/s,burst=1, ", " for input, ", " for the reader; late by ", "(median)", "(p99)"]
            {
                assert!(said.contains(words), "{words:?} is missing in: {said}");
            }
            assert_eq!(said.lines().count(), 2, "{said}");
        }
    }

    #[test]
    fn it_goes_to_a_file_if_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a:b");
        for format in ["text", "json"] {
            assert_eq!(passed(&["-r", "1G/s", &format!("--summary={format}:{}", file.display())], b"a\n"), b"a\n");
            let said = fs::read_to_string(&file).unwrap();
            assert!(said.starts_with(if format == "json" { "{" } else { "throttle: 1 line, 2 B in " }), "{said}");
        }
    }

    #[test]
    fn it_comes_after_an_error_too() {
        let mut command = throttle(["-r", "1G/s", "--summary"]);
        command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let said = feed(command, b"a\n").err;
        assert!(said.contains("throttle: 0 lines, 0 B in ") && said.contains("cannot write"), "{said}");
    }
}

/// Real time: never faster than asked for, and not held back without need.
mod pace {
    use super::*;

    #[track_caller]
    fn takes_at_least(millis: u64, args: &[&str], input: &[u8]) {
        let start = Instant::now();
        assert_eq!(passed(args, input), input, "{args:?}");
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(millis), "{args:?} took {took:?}");
    }

    #[test]
    fn the_burst_goes_at_once_and_the_rest_at_the_rate() {
        let lines = |count: usize| b"x\n".repeat(count);
        takes_at_least(190, &["-r", "100/s", "-b", "1"], &lines(20));
        takes_at_least(100, &["-r", "100/s", "-b", "10"], &lines(20));
        takes_at_least(100, &["-r", "100/s,burst=10"], &lines(20));
        takes_at_least(200, &["-r", "100/s,burst=10,initial=0"], &lines(20));
        takes_at_least(0, &["-r", "1/h", "-b", "20"], &lines(20));
        takes_at_least(240, &["-r", "2/500ms", "-b", "2"], &lines(3));
    }

    #[test]
    fn the_default_burst_is_ten_milliseconds_of_rate() {
        takes_at_least(190, &["-r", "10k/s"], &b"\n".repeat(2_000));
        takes_at_least(190, &["-r", "100/s"], &b"\n".repeat(20));
    }

    #[test]
    fn records_and_bytes_are_counted_as_such() {
        takes_at_least(90, &["-r", "100/s", "-b", "1", "-0"], &b"\n\0".repeat(10));
        takes_at_least(90, &["-r", "100/s", "-b", "1", "-d", ","], &b"\n,".repeat(10));
        takes_at_least(190, &["-r", "100/s", "-b", "1", "--bytes"], &b"\n,".repeat(10));
        takes_at_least(190, &["-r", "100B/s", "-b", "1"], &b"\n,".repeat(10));
        takes_at_least(200, &["-r", "1MB/s", "-b", "100kB"], &vec![0; 300_000]);
    }

    #[test]
    fn every_limit_is_kept() {
        // Ten at once within any 300 ms, and one every 10 ms.
        takes_at_least(600, &["-r", "100/s", "-b", "1", "-r", "10/300ms"], &b"\n".repeat(21));
        takes_at_least(600, &["-r", "10/300ms", "-r", "100/s,burst=1"], &b"\n".repeat(21));
        takes_at_least(300, &["-q", "-r", "1k/s", "-r", "100/s,burst=10"], &b"\n".repeat(40));
    }

    #[test]
    fn a_window_lets_its_count_through_at_once_and_then_nothing() {
        takes_at_least(400, &["-r", "5/200ms,window"], &b"\n".repeat(11));
        takes_at_least(0, &["-r", "5/h,window"], &b"\n".repeat(5));
    }

    #[test]
    fn no_limit_is_no_limit() {
        takes_at_least(0, &["-r", "unlimited"], &b"\n".repeat(100_000));
    }
}

/// A run that was refused has emptied the report of the last run.
#[test]
fn a_refused_run_keeps_the_last_summary() {
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("sum");
    let option = format!("--summary=json:{}", summary.display());
    let bucket = folder.path().join("b");
    let bucket = bucket.to_str().unwrap();
    assert!(run(["--bucket", bucket, "--set", "-r", "5/s"], "").status.success());
    let old = "an older and longer report\n".repeat(200);
    for command in [&[][..], &["true"]] {
        std::fs::write(&summary, &old).unwrap();
        let refused = run([&["--bucket", bucket, "-r", "7/s", &option], command].concat(), "1\n");
        assert!(!refused.status.success());
        assert_eq!(std::fs::read_to_string(&summary).unwrap(), old);
        let ended = run([&["-r", "5/s", &option], command].concat(), "1\n");
        assert!(ended.status.success(), "{}", ended.err);
        let new: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&summary).unwrap()).unwrap();
        assert_eq!(new["units"], 1, "the new report replaces all of the last one");
    }
}

/// The pattern of the selector has the letters of a unit, and was taken for a limit in MiB or for a burst.
#[test]
fn a_selector_is_not_taken_for_a_part_of_its_limit() {
    for selector in ["/iB", "/a"] {
        let limit = format!("1k/s,per={selector}");
        let ended = run(["-r", &limit, "--summary"], "{\"a\":1,\"iB\":2}\n".repeat(200));
        assert!(ended.err.contains("200 lines, 3.00 kB in "), "{}", ended.err);
    }
    let dry = run(["-r", "5/s,window,cost=/burst=,else=1", "--dry-run"], "{}\n");
    assert!(!dry.text().contains("above the burst"), "{}", dry.text());
}
