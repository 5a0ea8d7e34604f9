//! Each fault is reported with what failed and where; signals act at once; nothing is lost silently.

use crate::support::{
    Lines, Running, assert_fails, assert_same, feed, is_right_once, noise, passed, shell, throttle, wait_until,
};
use rustix::process::Signal;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

mod reader_gone {
    use super::*;

    #[test]
    fn it_dies_of_sigpipe_as_cat_does_and_says_nothing() {
        for args in [["-r", "1k/s"], ["-r", "1G/s"], ["-r", "unlimited"], ["-r", "10kB/s"], ["-r", "1GB/s"]] {
            let mut running = Running::start(throttle(args));
            drop(running.stdout());
            running.write(&noise(1_000_000));
            let output = running.finish();
            assert_eq!((output.signal(), output.err), (Some(Signal::PIPE.as_raw()), String::new()), "{args:?}");
        }
    }

    #[test]
    fn it_dies_while_the_writer_goes_on() {
        let mut running = Running::start(throttle(["-r", "1000/s"]));
        let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
        stdin.write_all(b"a\n").unwrap();
        assert_eq!(lines.next(), "a");
        drop(lines);
        wait_until("the writer to be told", || stdin.write_all(b"b\n").is_err());
        assert_eq!(running.end().signal(), Some(Signal::PIPE.as_raw()));
    }

    #[test]
    fn the_summary_comes_first() {
        let mut running = Running::start(throttle(["-r", "1G/s", "--summary=json"]));
        drop(running.stdout());
        running.write(b"a\n");
        let output = running.finish();
        assert_eq!(output.signal(), Some(Signal::PIPE.as_raw()));
        let summary: serde_json::Value = serde_json::from_str(&output.err).unwrap();
        assert_eq!(summary["units"], 0);
    }

    #[test]
    fn a_summary_that_is_not_read_holds_up_one_signal_and_not_two() {
        let (_reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&b"x".repeat(65_536)).unwrap();
        let mut command = throttle(["-r", "1G/s", "--summary"]);
        command.stderr(writer);
        let mut running = Running::start(command);
        running.settle();
        running.signal(Signal::TERM);
        thread::sleep(Duration::from_millis(300));
        assert!(running.is_running(), "it still has something to tell");
        running.signal(Signal::TERM);
        assert_eq!(running.end().signal(), Some(15));
    }

    #[test]
    #[ignore = "slow: a busy machine can spoil it"]
    fn a_summary_without_a_reader_does_not_change_the_end() {
        // As in `throttle --summary … 2>&1 | head -1`.
        // While another test starts a command, its new process has all pipes open for a moment. Then there is a reader.
        let end = || {
            let mut running = Running::start(throttle(["-r", "1G/s", "--summary"]));
            drop((running.stdout(), running.stderr()));
            running.write(b"a\n");
            running.end().signal()
        };
        is_right_once(end, |signal| *signal == Some(Signal::PIPE.as_raw()));
    }
}

mod writing {
    use super::*;

    #[test]
    fn a_full_device_is_named_and_what_was_passed_is_counted() {
        for (rate, passed) in [("1G/s", "0 lines"), ("unlimited", "0 lines"), ("1GB/s", "0 bytes")] {
            let mut command = throttle(["-r", rate]);
            command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
            let output = feed(command, b"a\nb\n");
            assert_fails(
                &output,
                1,
                &["cannot write to standard output", passed, "had been read", "No space left on device"],
            );
        }
    }

    #[test]
    fn an_output_that_is_not_open_for_writing_is_named() {
        for rate in ["5/s", "1GB/s"] {
            let mut command = throttle(["-r", rate]);
            let (reader, _writer) = std::io::pipe().unwrap();
            command.stdout(reader);
            assert_fails(&feed(command, b"a\n"), 1, &["standard output is not open for writing"]);
        }
    }

    #[test]
    fn a_disk_that_fills_up_counts_what_was_passed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out");
        // `ulimit -f` counts blocks of 512 bytes, or of 1024 in some shells: 20 lines fit either way, 40 do not.
        let mut command = shell("trap '' XFSZ; ulimit -f 1; exec \"$0\" -r 10k/s > \"$1\"");
        command.arg(&file);
        let line = [vec![b'x'; 24], b"\n".to_vec()].concat();
        let output = feed(command, line.repeat(60));
        let fitted = fs::metadata(&file).unwrap().len() / line.len() as u64;
        let counted = format!("after {fitted} lines; {} more had been read", 60 - fitted);
        assert!((20..=40).contains(&fitted), "{fitted}");
        assert_fails(&output, 1, &["cannot write to standard output", &counted, "File too large"]);
    }

    #[test]
    fn a_summary_that_cannot_be_written_hides_no_other_error() {
        let mut command = throttle(["-r", "1G/s", "--summary=text:/dev/full"]);
        command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let output = feed(command, b"a\n");
        let said = &output.err;
        assert_eq!(output.code(), Some(1));
        assert!(said.contains("cannot write to standard output"), "{said}");
        assert!(said.contains("--summary: cannot write /dev/full"), "{said}");
    }

    #[test]
    fn a_summary_that_cannot_be_written_is_an_error() {
        let output = feed(throttle(["-r", "1G/s", "--summary=json:/dev/full"]), b"a\n");
        assert_fails(&output, 1, &["--summary", "/dev/full", "No space left on device"]);
        assert_eq!(output.text(), "a\n");
    }

    #[test]
    fn a_summary_that_cannot_be_created_is_reported_at_once() {
        let output = feed(throttle(["-r", "1G/s", "--summary=json:/nowhere/at/all"]), b"a\n");
        assert_fails(&output, 1, &["--summary", "cannot create /nowhere/at/all", "No such file"]);
        assert_eq!(output.text(), "");
    }
}

mod reading {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let output = feed(throttle(["-r", "5/s", "-a", "/nowhere/at/all"]), b"");
        assert_fails(&output, 1, &["--arg-file", "cannot open /nowhere/at/all", "No such file"]);
    }

    #[test]
    fn a_file_that_cannot_be_reached_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = file.path().join("below");
        let output = feed(throttle(["-r", "5/s", "-a", below.to_str().unwrap()]), b"");
        assert_fails(&output, 1, &["--arg-file", below.to_str().unwrap(), "Not a directory"]);
    }

    #[test]
    fn a_file_that_may_not_be_read_is_named() {
        if rustix::process::geteuid().is_root() {
            return; // Root may read everything.
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        let output = feed(throttle(["-r", "5/s", "-a", file.path().to_str().unwrap()]), b"");
        assert_fails(&output, 1, &["--arg-file", file.path().to_str().unwrap(), "Permission denied"]);
    }

    #[test]
    fn a_directory_is_no_input() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        for rate in ["5/s", "1GB/s"] {
            let output = feed(throttle(["-r", rate, "-a", name]), b"");
            assert_fails(&output, 1, &[name, "is a directory", "throttle -a FILE"]);
            let mut command = throttle(["-r", rate]);
            command.stdin(fs::File::open(folder.path()).unwrap());
            assert_fails(&Running::start(command).finish(), 1, &["standard input is a directory", "throttle < FILE"]);
        }
    }

    #[test]
    fn an_input_that_is_not_open_for_reading_is_named() {
        for rate in ["5/s", "1GB/s"] {
            let mut command = throttle(["-r", rate]);
            let (_reader, writer) = std::io::pipe().unwrap();
            command.stdin(writer);
            assert_fails(&Running::start(command).finish(), 1, &["standard input is not open for reading"]);
        }
    }

    #[test]
    fn a_closed_standard_input_is_an_empty_one() {
        for rate in ["1/h", "1B/h", "1/h,initial=0"] {
            let output = Running::start(shell(&format!("exec \"$0\" -r {rate} <&-"))).finish();
            assert_eq!((output.code(), output.text()), (Some(0), ""), "{}", output.err);
        }
    }

    #[test]
    fn a_file_that_shrinks_meanwhile_just_ends() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), noise(3_000_000)).unwrap();
        let mut running =
            Running::start(throttle(["-r", "10MB/s", "-a", file.path().to_str().unwrap(), "--summary=json"]));
        let mut stdout = running.stdout();
        stdout.read_exact(&mut vec![0; 100_000]).unwrap();
        file.as_file().set_len(1_000_000).unwrap();
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        let output = running.finish();
        assert!(output.status.success(), "{}", output.err);
        let summary: serde_json::Value = serde_json::from_str(&output.err).unwrap();
        assert_eq!(summary["bytes"], 100_000 + rest.len());
        assert_eq!(summary["units"], summary["bytes"]);
    }
}

/// A process that is blocked somewhere, and what keeps it there.
struct Blocked {
    place: &'static str,
    running: Running,
    /// Dropped last, so that nothing it waits for comes.
    _ends: Vec<Box<dyn Send>>,
}

impl Blocked {
    fn start(place: &'static str, mut command: Command, more: &[&str], input: Vec<u8>) -> Self {
        command.args(more);
        let mut running = Running::start(command);
        let (mut stdin, stdout) = (running.stdin(), running.stdout());
        let (send, receive) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let _ = stdin.write_all(&input); // Cut short by the end of the process.
            let _ = send.send(stdin);
        });
        running.settle();
        Blocked { place, running, _ends: vec![Box::new(receive), Box::new(stdout)] }
    }

    fn everywhere(more: &[&str]) -> Vec<Self> {
        vec![
            Blocked::start("reading lines", throttle(["-r", "5/s"]), more, Vec::new()),
            Blocked::start("reading bytes", throttle(["-r", "1GB/s"]), more, Vec::new()),
            Blocked::start("writing lines", throttle(["-r", "1G/s"]), more, noise(5_000_000)),
            Blocked::start("writing bytes", throttle(["-r", "1GB/s"]), more, noise(5_000_000)),
            Blocked::start("waiting for the limit", throttle(["-r", "1/h"]), more, b"a\nb\nc\n".to_vec()),
            Blocked::start("waiting to pass bytes", throttle(["-r", "1B/h"]), more, b"abc".to_vec()),
            Blocked::start(
                "waiting for both limits",
                throttle(["-r", "1/s", "-r", "2/h"]),
                more,
                b"a\nb\nc\n".to_vec(),
            ),
        ]
    }
}

mod signals {
    use super::*;

    #[test]
    fn it_dies_of_them_at_once_wherever_it_is_blocked() {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            for mut blocked in Blocked::everywhere(&[]) {
                blocked.running.signal(signal);
                assert_eq!(blocked.running.end().signal(), Some(signal.as_raw()), "{}", blocked.place);
                let said = blocked.running.finish().err;
                let is_account = said.is_empty() || said.ends_with(" read and not passed on\n");
                assert!(is_account && said.lines().count() <= 1, "{}: {said}", blocked.place);
            }
        }
    }

    #[test]
    fn the_summary_comes_first() {
        for (signal, format) in
            [(Signal::INT, "--summary"), (Signal::TERM, "--summary=json"), (Signal::HUP, "--summary")]
        {
            for blocked in Blocked::everywhere(&[format]) {
                let Blocked { place, running, _ends } = blocked;
                running.signal(signal);
                let output = running.finish();
                assert_eq!(output.signal(), Some(signal.as_raw()), "{place}");
                let said = &output.err;
                if format == "--summary" {
                    assert!(said.starts_with("throttle: ") && said.contains("  waited "), "{place}: {said}");
                } else {
                    let summary: serde_json::Value = serde_json::from_str(said).unwrap();
                    assert!(summary["elapsed_ns"].as_u64().unwrap() > 0, "{place}: {said}");
                }
            }
        }
    }

    #[test]
    fn the_summary_after_a_signal_says_where_the_time_went() {
        let longest = |place: &str| match place {
            "reading lines" | "reading bytes" => "waited_for_source_ns",
            "writing lines" | "writing bytes" => "waited_for_sink_ns",
            _ => "waited_for_limits_ns",
        };
        let start = Instant::now();
        let all = Blocked::everywhere(&["--summary=json"]);
        // Longer than all that came before.
        thread::sleep(start.elapsed() + Duration::from_millis(300));
        for Blocked { place, running, _ends } in all {
            running.signal(Signal::TERM);
            let summary: serde_json::Value = serde_json::from_str(&running.finish().err).unwrap();
            let times = ["waited_for_source_ns", "waited_for_sink_ns", "waited_for_limits_ns"];
            let most = times.iter().max_by_key(|name| summary[**name].as_u64()).unwrap();
            assert_eq!(*most, longest(place), "{place}: {summary}");
        }
    }

    #[test]
    fn the_summary_also_goes_to_a_file() {
        let folder = tempfile::tempdir().unwrap();
        for format in ["text", "json"] {
            let file = folder.path().join(format);
            let option = format!("--summary={format}:{}", file.display());
            let input = b"a\nbc\nd\n".to_vec();
            let Blocked { running, _ends, .. } =
                Blocked::start("", throttle(["-r", "1/h", "-b", "2"]), &[&option], input);
            running.signal(Signal::TERM);
            let output = running.finish();
            assert_eq!((output.signal(), &*output.err), (Some(Signal::TERM.as_raw()), ""));
            let said = fs::read_to_string(file).unwrap();
            if format == "text" {
                assert!(said.starts_with("throttle: 2 lines, 5 B in "), "{said}");
            } else {
                let summary: serde_json::Value = serde_json::from_str(&said).unwrap();
                assert_eq!((&summary["units"], &summary["bytes"]), (&2.into(), &5.into()));
            }
        }
    }

    #[test]
    fn usr1_prints_the_status_wherever_the_run_is_blocked() {
        for mut blocked in Blocked::everywhere(&[]) {
            let said = Lines::of(blocked.running.stderr());
            for _ in 0..2 {
                blocked.running.signal(Signal::USR1);
                let line = said.next();
                assert!(line.starts_with("throttle: ") && line.contains(" in "), "{}: {line}", blocked.place);
            }
            assert!(blocked.running.is_running(), "{}", blocked.place);
        }
    }

    #[test]
    fn usr1_neither_shortens_a_wait_nor_loses_a_unit() {
        let mut running = Running::start(throttle(["-r", "2/s", "-b", "1"]));
        let said = Lines::of(running.stderr());
        let start = Instant::now();
        running.write(b"1\n2\n3\n");
        running.settle();
        for _ in 0..20 {
            running.signal(Signal::USR1);
            said.next();
        }
        let output = running.finish();
        assert!(start.elapsed() >= Duration::from_millis(990), "{:?}", start.elapsed());
        assert_eq!((output.code(), output.text()), (Some(0), "1\n2\n3\n"));
    }

    #[test]
    fn usr1_while_it_reads_or_writes_loses_nothing() {
        // More than the pipes and the reads below hold together: it has not ended before the last signal.
        let input = noise(8_000_000);
        for args in [["-r", "1G/s"], ["-r", "30MB/s"]] {
            let mut running = Running::start(throttle(args));
            let said = Lines::of(running.stderr());
            let mut stdout = running.stdout();
            let writer = running.write(&input);
            running.settle();
            let mut out = Vec::new();
            let mut piece = vec![0; 300_000];
            for _ in 0..8 {
                running.signal(Signal::USR1);
                said.next();
                let read = stdout.read(&mut piece).unwrap();
                out.extend(&piece[..read]);
            }
            stdout.read_to_end(&mut out).unwrap();
            writer.join().unwrap();
            assert_same(&out, &input, &format!("{args:?}"));
            assert!(running.end().success());
        }
    }

    #[test]
    fn what_was_ignored_at_the_start_stays_ignored() {
        let names = [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP)];
        for (name, signal) in names {
            let command = shell(&format!("trap '' {name}; exec \"$0\" -r 1/h -b 2"));
            let mut blocked = Blocked::start(name, command, &[], b"a\nb\nc\n".to_vec());
            blocked.running.signal(signal);
            thread::sleep(Duration::from_millis(200));
            assert!(blocked.running.is_running(), "{name}");
            let other = if signal == Signal::TERM { Signal::HUP } else { Signal::TERM };
            blocked.running.signal(other);
            assert_eq!(blocked.running.end().signal(), Some(other.as_raw()), "{name}");
        }
        let ignored = Blocked::start("USR1", shell("trap '' USR1; exec \"$0\" -r 1/h"), &[], b"a\nb\n".to_vec());
        ignored.running.signal(Signal::USR1);
        ignored.running.signal(Signal::TERM);
        let Blocked { running, _ends, .. } = ignored;
        let output = running.finish();
        assert_eq!(output.signal(), Some(Signal::TERM.as_raw()));
        assert_eq!(output.err.lines().count(), 1, "no status, only what was read and did not leave");
    }
}

/// How late the reader may note down what it reads, on a busy machine.
const READER_LATE: Duration = Duration::from_millis(500);

/// The units that a reader sees cost at most burst + rate·(time + the time that fills the bucket).
#[allow(clippy::cast_precision_loss, reason = "hundreds of units")]
fn burst_in(times: &[Instant], per_second: f64, burst: f64) -> Option<String> {
    let spans = (0..times.len()).flat_map(|first| (first..times.len()).map(move |last| (first, last)));
    let mut over = spans.filter(|&(first, last)| {
        let time = (times[last] - times[first] + READER_LATE).as_secs_f64();
        (last - first + 1) as f64 > burst + per_second * (time + burst / per_second)
    });
    over.next().map(|(first, last)| {
        format!(
            "{} units in {:?}, {:?} from the first",
            last - first + 1,
            times[last] - times[first],
            times[first] - times[0]
        )
    })
}

/// A burst of ours comes every time; one that a reader held up by other work makes of its notes does not.
#[track_caller]
fn assert_no_burst(run: impl Fn() -> Vec<Instant>) {
    let found: Vec<_> =
        std::iter::repeat_with(|| burst_in(&run(), 200.0, 5.0)).take(3).map_while(|burst| burst).collect();
    assert!(found.len() < 3, "{found:?}");
}

#[test]
#[ignore = "slow: 5 s"]
fn a_pause_makes_no_burst() {
    assert_no_burst(|| {
        // Three seconds at 200/s would be 600 units.
        let mut running = Running::start(throttle(["-r", "200/s", "-b", "5"]));
        let lines = Lines::of(running.stdout());
        running.write(&b"x\n".repeat(500));
        assert_eq!(lines.next(), "x");
        thread::sleep(Duration::from_millis(300));
        running.signal(Signal::STOP);
        thread::sleep(Duration::from_secs(3));
        running.signal(Signal::CONT);
        let times = lines.times();
        assert!(running.end().success());
        assert_eq!(times.len(), 499);
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        // The reader may have been late with the line before.
        assert!(longest >= Duration::from_secs(2), "it was not stopped: {longest:?}");
        times
    });
}

#[test]
#[ignore = "slow: 6 s"]
fn a_stalled_source_makes_no_burst() {
    assert_no_burst(|| {
        let mut running = Running::start(throttle(["-r", "200/s", "-b", "5"]));
        let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
        for _ in 0..2 {
            stdin.write_all(&b"x\n".repeat(250)).unwrap();
            thread::sleep(Duration::from_secs(3));
        }
        drop(stdin);
        let times = lines.times();
        assert_eq!(times.len(), 500);
        times
    });
}

#[test]
#[ignore = "slow: 3 s"]
fn a_slow_reader_makes_no_burst_once_it_reads_again() {
    assert_no_burst(|| {
        // The pipe holds 4096 bytes, that is four units; whatever comes after them has been held back.
        let (reader, sink) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&sink, 4096).unwrap();
        let mut command = throttle(["-r", "200/s", "-b", "5"]);
        command.stdout(sink);
        let mut running = Running::start(command);
        let line = [vec![b'x'; 1023], b"\n".to_vec()].concat();
        running.write(&line.repeat(200));
        thread::sleep(Duration::from_secs(2));
        let times = Lines::of(reader).times();
        assert_eq!(times.len(), 200);
        assert!(running.end().success());
        times[4..].to_vec()
    });
}

#[test]
#[ignore = "slow: 3 s"]
fn an_hour_at_the_limit_takes_no_processor_time() {
    // No polling: asleep, it is never run.
    let switches = |running: &Running| {
        let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
        let line =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap().trim().to_owned();
        line.parse::<u64>().unwrap()
    };
    for blocked in Blocked::everywhere(&[]) {
        wait_until(&format!("it to sleep for good while {}", blocked.place), || {
            let before = switches(&blocked.running);
            thread::sleep(Duration::from_millis(300));
            switches(&blocked.running) == before
        });
    }
    assert_eq!(passed(&["-r", "1/h"], b"x\n"), b"x\n");
}
