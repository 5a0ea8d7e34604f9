//! Buckets: one limit for many processes, tested through the real program.

use crate::rounds::rounds;
use crate::support::{
    Ended, Lines, Running, THROTTLE, assert_fails, copy_program, feed, read_all, shell, skipped, throttle, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A folder that may contain a bucket.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("bucket")
    }

    fn command(&self, args: &[&str]) -> Command {
        let path = self.path();
        throttle([&["--bucket", path.to_str().unwrap()], args].concat())
    }

    fn run(&self, args: &[&str]) -> Ended {
        feed(self.command(args), b"")
    }

    /// One unit is available now.
    #[track_caller]
    fn takes(&self, args: &[&str]) {
        let output = self.run(&[&["--once", "--max-wait", "0"], args].concat());
        assert_eq!((output.code(), &*output.err), (Some(0), ""));
    }

    /// No unit is available.
    #[track_caller]
    fn refuses(&self) {
        let output = self.run(&["--once", "--max-wait", "0"]);
        assert_eq!(output.code(), Some(75), "{}", output.err);
        assert!(output.err.starts_with("throttle: would have to wait "), "{}", output.err);
    }

    #[track_caller]
    fn shown(&self) -> Value {
        let output = self.run(&["--show", "json"]);
        assert!(output.status.success(), "{}", output.err);
        serde_json::from_slice(&output.out).unwrap()
    }

    /// How long a new request would wait.
    #[track_caller]
    fn wait(&self) -> Duration {
        Duration::from_nanos(self.shown()["wait_ns"].as_u64().unwrap())
    }
}

const HOUR: Duration = Duration::from_secs(3600);

mod once {
    use super::*;

    #[test]
    fn it_becomes_the_command() {
        let place = Place::new();
        let mut running = Running::start(place.command(&["-r", "5/s", "--once", "sh", "-c", "echo $$; cat; exit 7"]));
        let pid = running.pid();
        running.write(b"its input");
        let output = running.finish();
        assert_eq!(output.code(), Some(7), "{}", output.err);
        assert_eq!(output.text(), format!("{pid}\nits input"));
    }

    #[test]
    fn exit_codes_above_124_are_ours() {
        let place = Place::new();
        let (path, folder) = (place.path(), place.0.path().to_str().unwrap().to_owned());
        place.takes(&["-r", "1/h"]);
        place.refuses();
        assert_fails(&place.run(&["--once", "no such command"]), 127, &["no such command in PATH"]);
        assert_fails(&place.run(&["--once", &folder]), 126, &["cannot be run"]);
        fs::write(path, "something else").unwrap();
        assert_fails(&place.run(&["--once", "true"]), 125, &["is not a bucket"]);
        assert_eq!(feed(throttle(["--once", "true"]), b"").code(), Some(125), "a wrong command line");
    }

    #[test]
    fn a_missing_command_takes_nothing() {
        let place = Place::new();
        assert_fails(&place.run(&["-r", "1/h", "--once", "/no/such"]), 127, &["no such command"]);
        place.takes(&["-r", "1/h"]);
    }

    /// The command is found, but cannot run: its interpreter is missing, or another process is still writing it.
    #[test]
    fn a_command_that_does_not_run_is_not_counted() {
        let place = Place::new();
        let script = place.0.path().join("script");
        fs::write(&script, "#!/no/such/interpreter\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let unfinished = place.0.path().join("unfinished");
        copy_program("/bin/true", &unfinished);
        let _writer = fs::OpenOptions::new().append(true).open(&unfinished).unwrap();
        for limit in ["1/h", "1/h,window"] {
            assert!(place.run(&["--set", "-r", limit]).status.success());
            assert_fails(&place.run(&["--once", script.to_str().unwrap()]), 127, &["cannot be run"]);
            assert_fails(&place.run(&["--once", unfinished.to_str().unwrap()]), 126, &["cannot be run"]);
            assert_eq!((place.shown()["available"].as_u64(), place.wait()), (Some(1), Duration::ZERO), "{limit}");
        }
    }

    #[test]
    fn it_waits_for_its_time() {
        let place = Place::new();
        let start = Instant::now();
        for _ in 0..4 {
            assert!(place.run(&["-r", "10/s", "--once"]).status.success());
        }
        assert!(start.elapsed() >= Duration::from_millis(300));
    }

    #[test]
    fn a_refusal_states_the_wait_and_takes_nothing() {
        let place = Place::new();
        place.takes(&["-r", "1/h"]);
        for max_wait in ["0", "30min"] {
            let refused = place.run(&["--once", "--max-wait", max_wait]);
            assert_fails(&refused, 75, &["would have to wait "]);
            let said = &refused.err;
            assert!(said.contains("wait 1h") || said.contains("wait 59m"), "{said}");
        }
        assert!(place.wait() <= HOUR);
    }

    #[test]
    fn those_behind_an_interrupted_process_move_up() {
        let place = Place::new();
        place.takes(&["-r", "1/h"]);
        let first = Running::start(place.command(&["--once", "true"]));
        wait_until("the first to be told its time", || place.wait() > HOUR);
        let mut second = Running::start(place.command(&["--once", "true"]));
        wait_until("the second to be told its time", || place.wait() > 2 * HOUR);
        wait_until("it to wait for signals", || attends_to_signals(&second));
        second.signal(Signal::TERM);
        assert_eq!(second.end().signal(), Some(Signal::TERM.as_raw()));
        assert!(place.wait() <= 2 * HOUR, "the last grant is given back");

        let _second = Running::start(place.command(&["--once", "true"]));
        wait_until("the second to be told its time", || place.wait() > 2 * HOUR);
        wait_until("it to wait for signals", || attends_to_signals(&first));
        let mut first = first;
        first.signal(Signal::INT);
        assert_eq!(first.end().signal(), Some(Signal::INT.as_raw()));
        assert!(place.wait() <= 2 * HOUR, "the second is the first now");
    }

    /// The signal arrives at any moment around the end of the wait: either the program dies of it, or the command does.
    /// If it were lost, the command would end normally.
    #[test]
    fn a_signal_is_never_lost_between_the_wait_and_the_command() {
        let each = u64::from(rounds(100));
        let became: usize = std::thread::scope(|scope| {
            let three = [0, 100, 200].map(|first| scope.spawn(move || became_the_command(first..first + each)));
            three.into_iter().map(|rounds| rounds.join().unwrap()).sum()
        });
        println!("{became} of {} had become the command", 3 * each);
    }

    fn became_the_command(rounds: std::ops::Range<u64>) -> usize {
        let place = Place::new();
        let mut noise = 0x2545_F491_4F6C_DD1D_u64 + rounds.start;
        let mut became = 0;
        for round in rounds {
            assert!(place.run(&["--set", "-r", "50/s,burst=1,initial=0"]).status.success());
            let announced = place.wait();
            let begun = Instant::now();
            let mut running = Running::start(place.command(&["--once", "sh", "-c", "echo ran; exec sleep 3"]));
            let out = read_all(running.stdout());
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // It got its time shortly before this test noticed, so the wait ends somewhere in these four milliseconds.
            let early = Duration::from_micros(noise >> 52);
            std::thread::sleep(announced.saturating_sub(begun.elapsed() + early));
            running.signal(Signal::TERM);
            assert_eq!(running.end().signal(), Some(Signal::TERM.as_raw()), "round {round}");
            became += usize::from(!out.join().unwrap().is_empty());
        }
        became
    }

    fn attends_to_signals(running: &Running) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    }
}

mod limits {
    use super::*;

    #[test]
    fn the_bucket_remembers_them() {
        let place = Place::new();
        assert_fails(&place.run(&["--once"]), 125, &["there is no bucket", "--set -r 5/s"]);
        place.takes(&["-r", "2/h,window"]);
        place.takes(&[]);
        place.refuses();
        let shown = place.shown();
        assert_eq!(shown["limits"], serde_json::json!([{"limit": "2/h,window,slack=250ms", "left": 0}]));
        assert_eq!(shown["path"], place.path().to_str().unwrap());
        let shown = place.run(&["--show"]).into_text();
        assert!(
            shown.contains("2/h,window,slack=250ms: 0 left") && shown.contains("1h") | shown.contains("59m"),
            "{shown}"
        );
    }

    #[test]
    fn named_limits_must_agree() {
        let place = Place::new();
        place.takes(&["-r", "5/s,burst=3", "-r", "5000/h"]);
        place.takes(&["-r", "5/s", "-r", "5000/h"]);
        place.takes(&["-r", "5000/h", "-r", "300/min", "-b", "3"]);
        let both = &["5/s with a burst of 4", "5/s,burst=3 and 5000/h,window,slack=250ms", "--set"];
        assert_fails(&place.run(&["-r", "5/s", "-b", "4"]), 1, both);
        assert_fails(&place.run(&["-r", "5000/h", "--once"]), 125, &[", not 5000/h;"]);
    }

    #[test]
    fn a_rate_in_units_is_no_rate_in_bytes() {
        for (kept, said, args) in [
            ("1kB/s", "1000/s", &[][..]),
            ("1kB/s", "1000/s", &["true"]),
            ("1000/s", "1kB/s", &[]),
            ("5/s", "5B/s", &[]),
        ] {
            let place = Place::new();
            assert!(place.run(&["--set", "-r", kept]).status.success());
            let output = place.run(&[&["-r", said], args].concat());
            assert_fails(&output, 1, &[&format!("has the limits {kept}"), &format!(", not {said};")]);
        }
    }

    #[test]
    fn a_pipe_that_counts_units_ends_if_the_bucket_now_counts_bytes() {
        for (before, after) in [("100/s", "1kB/s"), ("1kB/s", "100/s")] {
            let place = Place::new();
            assert!(place.run(&["--set", "-r", before]).status.success());
            let mut running = Running::start(place.command(&[]));
            let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
            std::thread::spawn(move || while stdin.write_all(&b"a line\n".repeat(1000)).is_ok() {});
            assert_eq!(lines.next(), "a line");
            assert!(place.run(&["--clear", "--set", "-r", after]).status.success());
            let output = running.finish();
            let both = format!("was changed from {before},burst=1");
            assert_fails(&output, 1, &[&both, &format!(" to {after},burst="), "start again"]);
        }
    }

    #[test]
    fn they_are_set_for_everyone() {
        let place = Place::new();
        assert!(place.run(&["--set", "-r", "1/h"]).status.success());
        place.takes(&[]);
        place.refuses();
        assert!(place.run(&["--set", "-r", "1/h,initial=1"]).status.success());
        place.takes(&["-r", "1/h"]);
        assert!(place.run(&["--set", "-r", "5000/h,window"]).status.success());
        place.takes(&["-r", "5000/h"]);
    }

    #[test]
    fn the_environment_names_the_default() {
        let place = Place::new();
        let mut once = throttle(["-r", "1/h", "--once", "--max-wait=0"]);
        once.env("THROTTLE_BUCKET", place.path());
        assert!(feed(once, b"").status.success());
        place.refuses();
        let mut without = throttle(["-r", "5/s"]);
        without.env("THROTTLE_BUCKET", "");
        assert_eq!(feed(without, b"a\n").into_text(), "a\n");
    }

    #[test]
    fn a_name_is_in_the_folder_for_state_which_is_ours_alone() {
        let home = tempfile::tempdir().unwrap();
        let named = |args: &[&str]| {
            let mut command = throttle(args);
            command.env("HOME", home.path()).env_remove("XDG_STATE_HOME");
            feed(command, b"")
        };
        assert!(named(&["--bucket", "api", "-r", "1/h", "--once"]).status.success());
        let folder = home.path().join(".local/state/throttle");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("api"))), (0o700, 0o600));
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert_fails(&named(&["--bucket", "api", "--once"]), 125, &["others may write", "chmod go-w"]);
        }
    }

    #[test]
    fn a_bucket_where_everyone_could_replace_it_is_refused() {
        for (mode, is_refused) in [(0o777, true), (0o707, true), (0o1777, false), (0o775, false), (0o700, false)] {
            let place = Place::new();
            let folder = place.path().parent().unwrap().join("open");
            fs::create_dir(&folder).unwrap();
            let bucket = folder.join("b");
            let once = || feed(throttle(["--bucket", bucket.to_str().unwrap(), "-r", "9/h,burst=9", "--once"]), b"");
            let is_made_before =
                feed(throttle(["--bucket", bucket.to_str().unwrap(), "-r", "9/h,burst=9", "--set"]), b"");
            assert!(is_made_before.status.success());
            for _ in 0..2 {
                fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
                let output = once();
                if is_refused {
                    assert_fails(&output, 125, &["others may write", "chmod go-w"]);
                } else {
                    assert_eq!(output.code(), Some(0), "{mode:o}: {}", output.err);
                }
                // The second time it has to be made.
                let _ = fs::remove_file(&bucket);
            }
        }
    }

    #[test]
    fn a_dry_run_begins_with_what_the_bucket_has_left() {
        let place = Place::new();
        let run = |args: &[&str], input: &[u8]| feed(place.command(args), input).into_text();
        assert_eq!(run(&["-r", "1/d,burst=3"], b"a\n"), "a\n");
        let times = |shown: &str| -> Vec<String> {
            let times = shown.lines().filter_map(|line| line.split_once("  # "));
            times.map(|(_, time)| time.split(' ').next().unwrap().to_owned()).collect()
        };
        let shown = run(&["--dry-run"], b"b\nc\nd\n");
        assert_eq!(times(&shown)[..2], ["0", "0"], "{shown}");
        assert!(["23h", "24h", "1d"].contains(&&*times(&shown)[2]), "two of three were left: {shown}");
        assert!(feed(place.command(&["--pause", "50h"]), b"").status.success());
        for command in [&[][..], &["echo"]] {
            let shown = run(&[&["--dry-run"], command].concat(), b"b\nc\n");
            assert!(["3d", "4d"] == times(&shown)[..2], "after the pause the bucket is empty: {shown}");
        }
    }

    #[test]
    fn the_pipe_and_commands_take_from_it_and_a_dry_run_does_not() {
        let place = Place::new();
        let run = |args: &[&str], input: &[u8]| feed(place.command(args), input).into_text();
        assert_eq!(run(&["-r", "9/h,window"], b"a\nb\nc\n"), "a\nb\nc\n");
        assert_eq!(run(&["-q", "-k", "echo", "unit"], b"a\nb\n"), "unit a\nunit b\n");
        assert!(run(&["-q", "--dry-run", "echo"], b"a\nb\n").contains("echo a"));
        assert_eq!(place.shown()["available"], 4);
    }
}

mod many_processes {
    use super::*;

    #[test]
    fn the_first_process_makes_the_bucket_for_all() {
        for round in 0..rounds(200) {
            let place = Place::new();
            let path = place.path();
            // All processes read the same pipe, and continue when its other end is closed.
            let (reader, gate) = std::io::pipe().unwrap();
            // None has to wait for its unit, but on a busy machine for the lock.
            let script = "read line; exec \"$0\" --bucket \"$1\" -r 8/h,burst=8 --once --max-wait 60s";
            let together: Vec<_> = (0..8)
                .map(|_| {
                    let mut command = Command::new("sh");
                    command.args(["-c", script, THROTTLE]).arg(&path).stdin(reader.try_clone().unwrap());
                    command.stderr(Stdio::inherit()).spawn().unwrap()
                })
                .collect();
            drop((reader, gate));
            for mut child in together {
                assert!(child.wait().unwrap().success(), "round {round}");
            }
            place.refuses();
            let left: Vec<_> = fs::read_dir(place.0.path()).unwrap().collect();
            assert_eq!(left.len(), 1, "nothing else is left behind");
        }
    }

    #[test]
    fn a_kill_leaves_no_half_made_bucket() {
        let place = Place::new();
        let mut noise = 0x2545_F491_4F6C_DD1D_u64;
        for round in 0..rounds(200) {
            let mut running = Running::start(place.command(&["-r", "5/s", "--once"]));
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_micros(noise >> 52));
            running.signal(Signal::KILL);
            running.end();
            for entry in fs::read_dir(place.0.path()).unwrap() {
                let name = entry.unwrap().file_name();
                assert!(
                    name == "bucket" || name.to_string_lossy().starts_with(".throttle-"),
                    "round {round}: {name:?}"
                );
            }
            if place.path().exists() {
                assert!(place.run(&["--show"]).status.success());
                fs::remove_file(place.path()).unwrap();
            }
        }
    }

    /// Two at a time make requests as fast as they can, and are killed at any point.
    #[test]
    fn a_killed_process_loses_at_most_a_horizon_of_grants() {
        let place = Place::new();
        place.run(&["--set", "-r", "1000000/s,burst=1", "-r", "3600000000/h,window"]);
        let mut pause = 0x2545_F491_4F6C_DD1D_u64;
        for round in 0..rounds(200) {
            let mut killed: Vec<Running> = (0..2)
                .map(|_| {
                    let mut command = place.command(&["-q"]);
                    command.stdin(fs::File::open("/dev/zero").unwrap()).stdout(Stdio::null()).args(["-0"]);
                    Running::start(command)
                })
                .collect();
            pause = pause.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_micros(pause >> 50));
            for running in &mut killed {
                running.signal(Signal::KILL);
                running.end();
            }
            // 10 ms for each, and one millisecond's worth more.
            assert!(place.wait() <= Duration::from_millis(22), "round {round}");
        }
        assert!(fs::metadata(place.path()).unwrap().len() < 32 << 20, "two slots");
    }
}

mod bad_places {
    use super::*;

    #[test]
    fn another_kind_of_file_is_not_taken_for_a_bucket() {
        let place = Place::new();
        let fails = |words: &[&str]| assert_fails(&place.run(&["-r", "5/s", "--once"]), 125, words);
        for (content, words) in [
            (&b""[..], &["cut short (0 bytes)", "rm "][..]),
            (b"throttle bucket 18\n", &["cut short (19 bytes)", "rm "]),
            (b"#!/bin/sh\necho\n", &["is not a bucket; choose another name"]),
            (
                b"throttle bucket 19\n something that is yet to come",
                &["a newer throttle (format 19, but this throttle reads format 18); use"],
            ),
            (
                b"throttle bucket 1\n something of the past",
                &["an older throttle (format 1, ", "or remove the bucket to start again: rm "],
            ),
        ] {
            fs::write(place.path(), content).unwrap();
            fails(words);
            assert_eq!(fs::read(place.path()).unwrap(), content, "it is left alone");
        }
        fs::remove_file(place.path()).unwrap();
        fs::create_dir(place.path()).unwrap();
        fails(&["is not a plain file"]);
        fs::remove_dir(place.path()).unwrap();
        symlink("/etc/hostname", place.path()).unwrap();
        fails(&["is a symbolic link"]);
    }

    /// The suggested command can be pasted into a shell.
    #[test]
    fn a_path_with_a_blank_is_quoted_in_the_suggested_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my bucket");
        fs::write(&path, "").unwrap();
        let run = |path: &Path| feed(throttle(["--bucket", path.to_str().unwrap(), "-r", "5/s", "--once"]), b"");
        let output = run(&path);
        assert_fails(&output, 125, &["cut short (0 bytes)"]);
        let said = &output.err;
        let mends = said.trim_end().split("remove it: ").nth(1).unwrap();
        assert!(Command::new("sh").args(["-c", mends]).status().unwrap().success(), "{mends}");
        assert!(run(&path).status.success());
        assert_fails(&run(&folder.path().join("no/bucket")), 125, &["cannot make the bucket", "make the folder first"]);
    }

    #[test]
    fn a_damaged_bucket_is_not_used_and_one_good_state_is_enough() {
        let place = Place::new();
        place.takes(&["-r", "999/h,window"]);
        let (even, odd) = (4096, 4096 + (1 << 24));
        let is_written = |slot| {
            let mut start = [0; 24];
            File::open(place.path()).unwrap().read_exact_at(&mut start, slot).unwrap();
            start != [0; 24]
        };
        let mut taken = 1;
        while !is_written(odd as u64) {
            place.takes(&[]);
            taken += 1;
        }
        place.takes(&[]);
        let whole = fs::read(place.path()).unwrap();
        let damage = |places: &[usize]| {
            let mut bytes = whole.clone();
            for place in places {
                bytes[place + 84] ^= 1;
            }
            fs::write(place.path(), bytes).unwrap();
        };
        let left_after = |taken: u32| assert_eq!(place.shown()["available"], 999 - taken);
        let warns = |words: &str| {
            let output = place.run(&["--show", "json"]);
            let (shown, said): (serde_json::Value, _) = (serde_json::from_slice(&output.out).unwrap(), output.err);
            assert_eq!(shown["available"], 0, "what may have been granted is not granted again: {said}");
            assert!(said.starts_with("throttle: the bucket ") && said.contains(words), "{said}");
        };
        left_after(taken + 1);
        let last = whole.iter().rposition(|byte| *byte > 0).unwrap();
        damage(&[last - 84]);
        left_after(taken); // The last operation is lost, those before are there.
        damage(&[even]);
        left_after(taken + 1);
        damage(&[odd]);
        warns("the newer of its snapshots is lost, and the older one is used");
        damage(&[even, odd]);
        warns("both its snapshots are lost, and only its limits are left");
        damage(&[0, even, odd]);
        assert_fails(&place.run(&["-r", "9/h", "--once"]), 125, &["is damaged", "rm "]);
        fs::write(place.path(), &whole[..4096]).unwrap();
        assert_fails(&place.run(&["--once"]), 125, &["cut short (4096 bytes)"]);
        fs::write(place.path(), &whole).unwrap();
        left_after(taken + 1);
    }

    /// A quota was refilled in silence: a record that could not be read was taken for the end of the log.
    #[test]
    fn a_damaged_record_does_not_refill_a_quota_in_silence() {
        let place = Place::new();
        assert!(place.run(&["--set", "-r", "100/h,window"]).status.success());
        for _ in 0..3 {
            place.takes(&[]);
        }
        assert_eq!(feed(place.command(&[]), b"x\n".repeat(60)).out.len(), 120);
        let whole = fs::read(place.path()).unwrap();
        let length = usize::from_le_bytes(whole[4104..4112].try_into().unwrap());
        let first = 4096 + 24 + length;
        for (place_of, bit) in [(first, 0), (first, 4), (first + 5, 1), (first + 12, 0), (first + 20, 7)] {
            let mut bytes = whole.clone();
            bytes[place_of] ^= 1 << bit;
            fs::write(place.path(), bytes).unwrap();
            for args in [&["--show"][..], &["--once", "--max-wait", "0"]] {
                let output = place.run(args);
                let (out, said) = (output.text(), &output.err);
                assert!(
                    said.contains("operations of its log are lost, and the newer of its snapshots is used"),
                    "{said}"
                );
                assert!(args.len() > 1 || out.contains(": 0 left"), "{out}");
                assert!(args.len() == 1 || output.code() == Some(75), "{said}");
            }
            let (again, left) = (place.run(&["--show"]), place.shown()["available"].clone());
            assert_eq!((&*again.err, left), ("", 0.into()), "it is mended with the next operation");
        }
    }

    /// The limit on the size of a file cuts the record off at any of its bytes, and what follows in the file reads as zeros.
    #[test]
    #[ignore = "slow: 3 s"]
    fn an_operation_that_does_not_fit_on_the_disk_is_never_applied() {
        for limit in ["9/h,window", "99/h,window", "999/h,window,slack=1ms", "9999/h,window", "10/3min,window,slack=1s"]
        {
            let place = Place::new();
            place.takes(&["-r", limit]);
            let left = || place.shown()["available"].as_u64().unwrap();
            for blocks in 9..13 {
                let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
                let mut expected = left();
                for _ in 0..30 {
                    let mut command = shell(&script);
                    command.args(["--bucket", place.path().to_str().unwrap(), "--once", "--max-wait", "0"]);
                    let taken = feed(command, b"").status;
                    // A grant that a busy machine used too late cannot be given back then.
                    let is_lost = !taken.success() && left() + 1 == expected;
                    expected -= u64::from(taken.success() || is_lost);
                    assert_eq!(left(), expected, "{limit} {blocks} {taken}");
                    if !taken.success() {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn a_bucket_that_everyone_may_write_to_is_not_used() {
        let place = Place::new();
        place.takes(&["-r", "9/h,window"]);
        fs::set_permissions(place.path(), Permissions::from_mode(0o602)).unwrap();
        let output = place.run(&["--once"]);
        assert_fails(&output, 125, &["everyone may write to the bucket", "chmod o-w "]);
        let said = &output.err;
        let mends = said.trim_end().split("yours alone: ").nth(1).unwrap();
        assert!(Command::new("sh").args(["-c", mends]).status().unwrap().success(), "{mends}");
        place.takes(&[]);
    }

    /// As a power cut leaves it that came while both states were being written: the policy goes on, and nothing is granted
    /// that may have been granted before.
    #[test]
    fn a_bucket_with_two_torn_states_is_used_up() {
        for (limit, waits) in [("9/h,window", 3500..3700), ("2/h,burst=9", 1700..1900)] {
            let place = Place::new();
            place.takes(&["-r", "5/s"]);
            assert!(place.run(&["--set", "-r", limit]).status.success());
            let mut bytes = fs::read(place.path()).unwrap();
            for slot in [4096, 4096 + (1 << 24)] {
                bytes[slot + 90] ^= 1;
            }
            fs::write(place.path(), bytes).unwrap();
            let shown = place.shown();
            assert!(shown["limits"][0]["limit"].as_str().unwrap().starts_with(limit), "{shown}");
            assert!(waits.contains(&place.wait().as_secs()), "{limit}: {shown}");
        }
    }

    /// There is one bucket at a path, also for those who had the file open before.
    #[test]
    fn a_bucket_that_is_moved_or_linked_is_not_split() {
        for keep in
            ["mv \"$1\" \"$1.old\"", "ln \"$1\" \"$1.old\"; rm \"$1\"", "cp \"$1\" \"$1.new\"; mv \"$1.new\" \"$1\""]
        {
            let place = Place::new();
            let mut running = Running::start(place.command(&["-r", "1/h,burst=4"]));
            let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
            stdin.write_all(b"a\nb\n").unwrap();
            assert_eq!((lines.next(), lines.next()), ("a".into(), "b".into()));
            let path = place.path();
            let moved = Command::new("sh").args(["-c", keep, "sh"]).arg(&path).status().unwrap();
            assert!(moved.success());
            stdin.write_all(b"c\n").unwrap();
            assert_eq!(lines.next(), "c");
            let left = if keep.starts_with("cp") { 1 } else { 3 };
            assert_eq!(place.shown()["available"], left, "{keep}");
        }
    }

    #[test]
    fn a_lock_of_another_program_is_waited_for_as_long_as_asked() {
        let place = Place::new();
        place.takes(&["-r", "5/s"]);
        let path = place.path();
        let mut holder = Command::new("flock").arg("-F").arg(&path).args(["sleep", "60"]).spawn().unwrap();
        while Command::new("flock").arg("-n").arg(&path).arg("true").status().unwrap().success() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = place.run(&["--once", "--max-wait", "0.2s"]);
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_fails(&output, 75, &["another program keeps the bucket", "locked; to see the program: fuser -v "]);
    }

    /// Each grant was older than 10 ms when its write was done, so it was given back, for ever.
    #[test]
    fn a_slow_file_system_starves_no_stream() {
        for limit in ["unlimited,jobs=4", "100/s,per=f1"] {
            let place = Place::new();
            assert!(place.run(&["--set", "-r", limit]).status.success());
            let traced = "strace -f -qq -o /dev/null -e trace=pwrite64 -e inject=pwrite64:delay_enter=12000";
            let mut command = shell(&format!("seq 5 | timeout 60 {traced} \"$0\" -q --bucket \"$1\" echo"));
            command.arg(place.path());
            let output = Running::start(command).finish();
            if output.out.is_empty() && output.err.contains("strace") {
                return skipped(format!("strace may not delay writes here: {}", output.err));
            }
            assert_eq!(output.sorted(), ["1", "2", "3", "4", "5"], "{limit}: {}", output.err);
        }
    }

    #[test]
    fn an_error_in_the_middle_of_a_stream_reports_units_not_passed() {
        let place = Place::new();
        let mut running = Running::start(place.command(&["-r", "20/s"]));
        let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
        stdin.write_all(b"a\nb\nc\n").unwrap();
        assert_eq!(lines.next(), "a");
        // Not in the middle of a step, which would write its state after that.
        let file = fs::File::open(place.path()).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        fs::write(place.path(), "gone").unwrap();
        drop(file);
        stdin.write_all(b"d\n".repeat(50).as_slice()).unwrap();
        drop(stdin);
        let output = running.finish();
        assert_eq!(output.code(), Some(1));
        let said = &output.err;
        assert!(said.contains("the bucket") && said.contains("had been read"), "{said}");
    }
}
