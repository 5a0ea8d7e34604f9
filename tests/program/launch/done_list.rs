//! `--done FILE`, through the real program: a run that was stopped goes on where it was.

use crate::launch::output::{with_mounted, with_room_for};
use crate::support::*;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = throttle([&["-r", "unlimited", "--done", "seen"][..], args].concat());
        command.current_dir(&self.folder);
        command
    }

    fn run(&self, args: &[&str], input: impl AsRef<[u8]>) -> Ended {
        feed(self.command(args), input)
    }

    /// The records, sorted.
    fn seen(&self, delimiter: u8) -> Vec<Vec<u8>> {
        let bytes = fs::read(self.path("seen")).unwrap();
        assert!(bytes.last().is_none_or(|last| *last == delimiter), "every record has its end");
        let mut records: Vec<Vec<u8>> = bytes.split(|byte| *byte == delimiter).map(<[u8]>::to_vec).collect();
        records.pop();
        records.sort_unstable();
        records
    }

    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

#[track_caller]
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!((ended.code(), &*ended.out), (Some(1), &b""[..]), "{}", ended.err);
    assert!(ended.err.starts_with("throttle: --") && ended.err.lines().count() == 1, "{}", ended.err);
    for word in words {
        assert!(ended.err.contains(word), "{word:?} is missing in: {}", ended.err);
    }
}

/// `THROTTLE_TEST_KILLS` makes more of them. Commands outlive the killed program, so one may succeed unseen.
#[test]
fn a_kill_repeats_at_most_one_unit_of_each_slot() {
    let kills: u32 = std::env::var("THROTTLE_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(20);
    let (place, input, jobs) = (Place::new(), numbers(40 * kills), 4);
    let script = "case $1 in *3) [ -e mended ] || exit 1;; esac; echo $1 >> ok";
    let args = ["-q", "-j", "4", "-c", script];
    for _ in 0..kills {
        let mut command = place.command(&args);
        command.stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = input.clone();
        let feeder = thread::spawn(move || drop(std::io::Write::write_all(&mut stdin, bytes.as_bytes())));
        let size = || fs::metadata(place.path("ok")).map_or(0, |ok| ok.len());
        let enough = size() + fastrand::u64(..30);
        wait_until("units succeeded", || size() >= enough || child.try_wait().unwrap().is_some());
        thread::sleep(Duration::from_micros(fastrand::u64(..5000)));
        child.kill().unwrap();
        child.wait().unwrap();
        feeder.join().unwrap();
    }
    let before = place.lines("seen").len();
    fs::write(place.path("mended"), "").unwrap();
    let ended = place.run(&args, &input);
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    let (ok, seen) = (place.lines("ok"), place.lines("seen"));
    let [all, succeeded, recorded] = [
        input.lines().collect(),
        ok.iter().map(|line| &**line).collect(),
        seen.iter().map(|line| &**line).collect::<BTreeSet<&str>>(),
    ];
    assert!(succeeded == all && recorded == all, "every unit succeeded, and was recorded");
    let repeated = ok.len() - all.len();
    assert!(repeated <= (jobs * kills) as usize, "{repeated} were repeated after {kills} kills");
    assert!(before >= kills as usize, "only {before} units were done before the last kill");
    eprintln!("{kills} kills: {before} of {} units done before the last run, {repeated} repeated", all.len());
}

/// All units in the file have succeeded, even while others fail.
#[test]
fn only_units_that_succeeded_are_recorded() {
    let place = Place::new();
    let script = "case $1 in [25]) [ -e mended ] || exit 1;; 7) kill -9 $$;; esac; echo $1";
    let first = place.run(&["-k", "-c", script], numbers(8));
    assert_eq!(first.text(), "1\n3\n4\n6\n8\n", "{}", first.err);
    assert_eq!(place.seen(b'\n').concat(), b"13468");
    fs::write(place.path("mended"), "").unwrap();
    // The input was reordered, and has grown.
    let second = place.run(&["-k", "-c", script], "9\n8\n7\n6\n5\n4\n3\n2\n1\n0\n");
    assert_eq!(second.text(), "9\n5\n2\n0\n");
    let sum = "throttle: 4 ok, 1 failed, 5 done before; ";
    assert!(second.err.contains(sum), "{}", second.err);
    assert_eq!(place.seen(b'\n').concat(), b"012345689");
}

/// Arguments, input, delimiter and records.
type Kind = (&'static [&'static str], &'static [u8], u8, &'static [&'static [u8]]);

#[test]
fn units_are_recorded_as_read_and_not_run_again() {
    let cases: [Kind; 9] = [
        (&["echo"], b"a\r\n\n b\n\nc", b'\n', &[b" b", b"a\r", b"c"]),
        (&["-0", "echo"], b"a\0\0b\n\0", 0, &[b"", b"a", b"b\n"]),
        (&["-d", ",", "echo"], b"a,b\n,a b", b',', &[b"a", b"a b", b"b\n"]),
        (&["echo"], b"\xff\xfe\n\xc3\n", b'\n', &[b"\xc3", b"\xff\xfe"]),
        (&["--stdin", "cat"], b"a\n\nb", b'\n', &[b"a", b"b"]),
        (&["--stdin", "-n", "2", "cat"], b"a\nb\nc\n", b'\n', &[b"a", b"b", b"c"]),
        (&["-n", "3", "echo"], b"a\nb\nc\nd\n", b'\n', &[b"a", b"b", b"c", b"d"]),
        (&["-n", "0", "echo"], b"a\nb\n", b'\n', &[b"a", b"b"]),
        (&["--repeat", "3", "echo", "{}"], b"", b'\n', &[b"1", b"2", b"3"]),
    ];
    for (args, input, delimiter, records) in cases {
        let place = Place::new();
        let first = place.run(args, input);
        assert!(first.code() == Some(0) && !first.out.is_empty(), "{args:?}: {}", first.err);
        assert_eq!(place.seen(delimiter), records, "{args:?}");
        let second = place.run(&[&["--summary"], args].concat(), input);
        assert!(second.code() == Some(0) && second.out.is_empty(), "{args:?}: {}", second.err);
        assert!(second.err.contains(&format!(", {} done before", records.len())), "{args:?}: {}", second.err);
        assert_eq!(place.seen(delimiter), records, "{args:?}");
    }
}

#[test]
fn all_units_of_a_command_are_recorded_and_left_out_later() {
    let place = Place::new();
    fs::write(place.path("seen"), "b\nd\n").unwrap();
    let ended = place.run(&["-k", "-n", "3", "-c", "echo \"$@\"; [ $1 != f ]"], "a\nb\nc\nd\ne\nf\ng\n");
    assert_eq!(ended.text(), "a c e\nf g\n", "{}", ended.err);
    assert_eq!(place.seen(b'\n').concat(), b"abcde", "nothing of the command that failed");
}

/// This holds even if the first unit fails: it is reported once, and the next run tries it once.
#[test]
fn equal_units_run_once_however_far_apart_they_are() {
    for last in [1, 50, 500] {
        let place = Place::new();
        let input = numbers(last).repeat(2);
        let ended = place.run(&["--summary", "-k", "-c", "echo $1; [ $1 != 1 ]"], &input);
        assert_eq!(ended.text(), numbers(last), "{}", ended.err);
        let sum = format!("throttle: {} ok, 1 failed, {last} done before; ", last - 1);
        assert!(ended.err.contains(&sum), "{}", ended.err);
        assert_eq!(place.run(&["echo"], &input).text(), "1\n");
        assert_eq!(
            place.run(&["--dry-run", "echo"], "a\na\n").text(),
            "echo a  # 0 s\n# 1 command in 0 s, 1 done before\n"
        );
    }
}

#[test]
fn one_hint_names_a_list_with_other_line_ends() {
    for (list, input, hint) in [
        ("a\r\nb\r\n", "b\na\n", "'b' is not found because of a CR at its end in the list, not in the input; sed -i"),
        ("a\nb\n", "b\r\na\r\n", "'b\\r' is not found because of a CR at its end in the input, not in the list; tr -d"),
    ] {
        for dry_run in [&["--dry-run"][..], &[]] {
            let place = Place::new();
            fs::write(place.path("seen"), list).unwrap();
            let ended = place.run(&[dry_run, &["printf", "%s."]].concat(), input);
            let hints: Vec<&str> = ended.err.lines().filter(|line| line.contains("hint: --done:")).collect();
            assert!(hints.len() == 1 && hints[0].contains(hint), "{}", ended.err);
        }
    }
    for (list, input, passed) in [("a\r\nb\n", "a\r\nc\nb\n", "c\n"), ("x\n", "a\r\na\n", "a\r\na\n")] {
        let place = Place::new();
        fs::write(place.path("seen"), list).unwrap();
        let ended = place.run(&["-k", "echo"], input);
        assert_eq!((ended.text(), &*ended.err), (passed, ""));
    }
}

/// Units that were added to the old file are in no list.
#[test]
#[ignore = "slow: 2 s"]
fn a_list_that_is_replaced_during_a_run_ends_it_with_an_error() {
    for how in ["mv", "rm"] {
        let place = Place::new();
        fs::write(place.path("other"), "x\n").unwrap();
        let act = if how == "mv" { "mv other seen" } else { "rm seen" };
        let script = format!("[ $1 != 3 ] || {act}; sleep 0.1; echo $1");
        let ended = place.run(&["-j1", "--repeat", "60", "-c", &script], "");
        let message = "--done: cannot write seen: it was removed, or another file took its place; units of this run may run \
                    again in the next run; no more commands start\n";
        assert!(ended.code() == Some(1) && ended.err.contains(message), "{how}: {}", ended.err);
        assert!(ended.text().lines().count() < 60, "{how}");
        // It is found at the end as well.
        let place = Place::new();
        fs::write(place.path("other"), "x\n").unwrap();
        let ended = place.run(&["-c", act], "a\n");
        assert!(
            ended.code() == Some(1) && ended.err.contains("--done: cannot write seen: it was removed"),
            "{}",
            ended.err
        );
    }
}

#[test]
fn a_unit_too_long_to_be_recorded_is_reported() {
    let place = Place::new();
    let input = format!("{}\nsmall\n", "x".repeat(300_000));
    for again in [&["300001", "6"][..], &["300001"]] {
        let ended = place.run(&["-k", "--stdin", "wc", "-c"], &input);
        assert_eq!((ended.code(), ended.text().lines().collect::<Vec<_>>()), (Some(0), again.to_vec()));
        assert!(ended.err.contains("--done: a unit is too long to be recorded (192 KiB"), "{}", ended.err);
    }
    assert_eq!(place.seen(b'\n'), [b"small"]);
}

#[test]
fn a_torn_last_record_is_cut_off_and_its_unit_runs_again() {
    let place = Place::new();
    fs::write(place.path("seen"), "1\n2\n12").unwrap();
    let ended = place.run(&["-q", "-k", "echo"], numbers(12));
    assert_eq!(ended.text().lines().last(), Some("12"));
    assert_eq!(
        ended.err, // Also with -q: if it was no such list, the end is missed.
        "throttle: --done: cut 2 bytes off the end of seen: a record without its end; its unit runs again\n"
    );
    assert_eq!(place.lines("seen").len(), 12);
}

#[test]
fn a_list_that_a_power_cut_has_damaged_is_continued() {
    let nuls = "\0".repeat(100);
    for (args, before, bytes, what, again) in [
        (&[][..], format!("1\n2\n{nuls}"), 100, "NUL bytes, as", "3\n"),
        (&[], format!("1\n2\n12{nuls}"), 102, "a record that may be incomplete and 100 NUL bytes, as", "3\n"),
        (&[], nuls.clone(), 100, "NUL bytes, as", "1\n2\n3\n"),
        (&["-0"], format!("1\x002\0{nuls}"), 102, "a record that may be incomplete and 100 NUL bytes, as", "2\n3\n"),
    ] {
        let place = Place::new();
        fs::write(place.path("seen"), &before).unwrap();
        let input = if args.is_empty() { "1\n2\n3\n" } else { "1\x002\x003\0" };
        let dry = place.run(&[args, &["--dry-run", "echo"]].concat(), input);
        assert_eq!((dry.code(), fs::read_to_string(place.path("seen")).unwrap()), (Some(0), before), "{}", dry.err);
        let ended = place.run(&[&["-q", "-k"], args, &["echo"]].concat(), input);
        let said = format!(
            "throttle: --done: cut {bytes} bytes off the end of seen: {what} after a power cut; units that were \
             recorded there run again\n"
        );
        assert_eq!((ended.code(), ended.text(), &*ended.err), (Some(0), again, &*said));
        assert_eq!(place.seen(if args.is_empty() { b'\n' } else { 0 }), [b"1", b"2", b"3"]);
    }
}

#[test]
fn a_list_of_other_records_is_refused_and_not_touched() {
    for (args, before, words) in [
        (&["echo"][..], "a\0b\0", "its records end with NUL: add -0"),
        (&["-0", "echo"], "a\nb\n", "its records end with newline: leave out -0"),
        (&["-d", ",", "echo"], "a,b\n", "its records end with newline: leave out -d"),
        (&["echo"], "a\nb\0c\0", "its records end with NUL: add -0"),
        (&["echo"], "a,b", "no record in it has an end"),
        (&["echo"], "a\n\0\u{1}b", "its end has NUL bytes: it is not a list of done units"),
    ] {
        let place = Place::new();
        for dry_run in [&[][..], &["--dry-run"]] {
            fs::write(place.path("seen"), before).unwrap();
            assert_refused(
                &place.run(&[dry_run, args].concat(), "a\n"),
                &["--done: seen: ", words, "; or name another file"],
            );
            assert_eq!(fs::read_to_string(place.path("seen")).unwrap(), before);
        }
    }
}

#[test]
fn a_list_in_use_names_the_process_that_uses_it() {
    let place = Place::new();
    let mut first = place.command(&["-c", "echo $$ > leader; until [ -e go ]; do sleep 0.02; done"]).spawn().unwrap();
    std::io::Write::write_all(&mut first.stdin.take().unwrap(), b"a\n").unwrap();
    number_in(&place.path("leader"));
    let in_use = format!("--done: seen: in use by process {}; wait until it has ended", first.id());
    assert_refused(&place.run(&["echo"], "b\n"), &[&in_use]);
    assert_eq!(place.run(&["--dry-run", "echo"], "b\n").code(), Some(0), "that only reads it");
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(Running::read(first).finish().code(), Some(0));
    assert_eq!(place.seen(b'\n'), [b"a"]);
}

#[test]
fn what_is_no_file_to_be_read_and_written_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(place.path("fifo")).status().unwrap().success());
    let run = |args: &[&str]| {
        let mut command = throttle([&["-r", "unlimited"], args, &["echo"]].concat());
        command.current_dir(&place.folder);
        feed(command, "a\n")
    };
    assert_refused(&run(&["--done", "folder"]), &["folder is a directory; name a file: --done folder/done"]);
    for dry_run in [&[][..], &["--dry-run"]] {
        assert_refused(&run(&[dry_run, &["--done", "fifo"]].concat()), &["fifo is not a regular file"]);
        assert_refused(&run(&[dry_run, &["--done", "/dev/full"]].concat()), &["/dev/full is not a regular file"]);
    }
    assert_refused(&run(&["--done", "no/file"]), &["cannot open no/file; name a file", "in a folder that exists"]);
    let before = "echo a > seen && mount -o remount,ro .";
    let list = place.path("seen");
    let args = ["-r", "unlimited", "--done", list.to_str().unwrap(), "echo"];
    let Some(command) = with_mounted("size=16k", before, place.folder.path(), &args[2..]) else { return };
    assert_refused(
        &feed(command, "b\n"),
        &["--done: cannot open ", "name a file that can be read and written", "ead-only file system"],
    );
}

/// The system has no page at the beginning of this file, so a read of it fails.
#[test]
fn a_list_that_cannot_be_read_ends_the_run() {
    let ended = run(["-r", "unlimited", "--dry-run", "--done", "/proc/self/mem", "echo"], "a\n");
    assert_refused(&ended, &["--done: cannot read /proc/self/mem: "]);
}

/// Otherwise all would count as done, or output would, and nothing would run ever after.
#[test]
fn a_list_that_is_also_another_file_of_the_run_is_refused() {
    let place = Place::new();
    let script = |arguments: &str| {
        let mut command = shell(&format!("\"$0\" -r unlimited {arguments} -c 'echo $1; : > ran'"));
        command.current_dir(&place.folder);
        feed(command, "a\n")
    };
    let before = "a\nb";
    fs::write(place.path("units"), before).unwrap();
    std::os::unix::fs::symlink("units", place.path("symlink")).unwrap();
    fs::hard_link(place.path("units"), place.path("link")).unwrap();
    let input = "units is also the input, and all of its units would count as done; name another file";
    for (arguments, words) in [
        ("--done units -a units", input),
        ("--done units < units", input),
        ("--done units < link", input),
        ("--done units -a symlink", input),
        ("--dry-run --done units -a units", input),
        ("--log units < units", "--log: units is also the input, and its lines would be read as units"),
        ("--done link --log units", "--done: link is also the file of --log; name another file"),
        ("--done units --summary=json:symlink", "--summary: symlink is also a file of --done or --log"),
        ("--log units --summary=json:symlink", "--summary: symlink is also a file of --done or --log"),
    ] {
        // A list that is opened may lose a torn record, and a log gets an end.
        let kept = if arguments.contains("--summary") || arguments.contains("link --log") { "a\nb\n" } else { before };
        fs::write(place.path("units"), kept).unwrap();
        assert_refused(&script(arguments), &[words]);
        assert_eq!(fs::read_to_string(place.path("units")).unwrap(), kept, "{arguments}");
    }
    for stream in ["", "2"] {
        let ended = script(&format!("--done units {stream}>> units"));
        let message = fs::read_to_string(place.path("units")).unwrap() + &ended.err;
        assert!(message.contains("units is also the output of the commands, and their lines would count"), "{message}");
        assert_eq!(ended.code(), Some(1));
    }
    assert_refused(&script("--done new --log new"), &["--done: new is also the file of --log"]);
    assert!(!place.path("ran").exists());
}

#[test]
fn a_full_disk_stops_launching_and_what_runs_may_finish() {
    let place = Place::new();
    let (list, long) = (place.path("seen"), "x".repeat(5000));
    let script = "case $THROTTLE_SEQ in 1) sleep 0.5;; *) sleep 0.0$THROTTLE_SEQ;; esac; echo $THROTTLE_SEQ";
    let args = ["-j", "2", "--done", list.to_str().unwrap(), "-c", script, "--", "sh"];
    let Some(command) = with_room_for(16 * 1024, place.folder.path(), &args[..6]) else { return };
    let input: String = numbers(100).replace('\n', &format!(" {long}\n"));
    let ended = feed(command, input);
    let words = format!("throttle: --done: cannot write {}: No space left on device (os error 28)", list.display());
    assert_eq!(ended.code(), Some(1), "{}", ended.err);
    assert!(ended.err.contains(&format!("{words}; no more commands start\n")), "{}", ended.err);
    let ran = ended.text().lines().count();
    assert!((4..20).contains(&ran) && ended.text().lines().any(|line| line == "1"), "{}", ended.text());
}

#[test]
fn a_dry_run_leaves_out_what_is_done_and_writes_nothing() {
    let place = Place::new();
    for before in [None, Some("2\n"), Some("2\n3")] {
        if let Some(before) = before {
            fs::write(place.path("seen"), before).unwrap();
        }
        let ended = place.run(&["--dry-run", "echo"], numbers(3));
        let shown = if before.is_some() {
            "echo 1  # 0 s\necho 3  # 0 s\n# 2 commands in 0 s, 1 done before\n"
        } else {
            "echo 1  # 0 s\necho 2  # 0 s\necho 3  # 0 s\n# 3 commands in 0 s\n"
        };
        assert_eq!((ended.text(), &*ended.err), (shown, ""));
        assert_eq!(fs::read_to_string(place.path("seen")).ok().as_deref(), before);
    }
}

#[test]
fn in_a_pipe_and_with_once_the_error_shows_what_to_write() {
    for option in ["--done", "--log"] {
        let pipe = run(["-r", "5/s", option, "x"], "");
        assert_eq!(pipe.code(), Some(2));
        assert!(pipe.err.contains(&format!("write throttle -r 5/s {option} … COMMAND, or -c SCRIPT")), "{}", pipe.err);
        let once = run(["--bucket", "./b", "--once", option, "x", "true"], "");
        assert_eq!(once.code(), Some(125));
        assert!(once.err.contains(&format!("--once cannot be used with {option}; ")), "{}", once.err);
    }
}

/// The list is complete when the program ends, whatever ends it.
#[test]
fn a_unit_that_succeeds_after_a_signal_is_recorded() {
    let place = Place::new();
    let script =
        "echo $$ > leader.$1; case $1 in 1) trap 'exit 0' TERM; while :; do sleep 0.02; done;; *) exec sleep 50;; esac";
    let mut child = place.command(&["-j", "2", "-c", script]).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"1\n2\n3\n").unwrap();
    for unit in 1..=2 {
        number_in(&place.path(&format!("leader.{unit}")));
    }
    thread::sleep(Duration::from_millis(100));
    let started = Running::read(child);
    started.signal(Signal::TERM);
    let ended = started.finish();
    assert_eq!(ended.signal(), Some(15), "{}", ended.err);
    assert!(ended.err.contains("line 2 '2': stopped\n"), "{}", ended.err);
    assert_eq!(place.seen(b'\n'), [b"1"]);
}

/// Starts ten commands in input order, of which the first one waits for the file `go` and then runs `first`, and the others
/// have ended. Their output is held. Nothing outlives the folder.
fn held(place: &Place, stdout: impl Into<Stdio>, first: &str) -> Running {
    let script = format!(
        "if [ $1 = 1 ]; then while [ -e seen -a ! -e go ]; do sleep 0.02; done; {first}; fi; echo $1; : > ended.$1"
    );
    let mut command = place.command(&["-k", "--attempts", "3", "--backoff", "1h", "--repeat", "10", "-c", &script]);
    let child = command.stdin(Stdio::null()).stdout(stdout).spawn().unwrap();
    wait_until("the others have ended", || (2..=10).all(|unit| place.path(&format!("ended.{unit}")).exists()));
    // They are attended to.
    thread::sleep(Duration::from_millis(300));
    Running::read(child)
}

#[test]
fn after_a_kill_a_unit_with_held_output_is_not_done() {
    let place = Place::new();
    let run = held(&place, fs::File::create(place.path("out")).unwrap(), "true");
    run.signal(Signal::KILL);
    run.finish();
    assert_eq!((place.lines("out").len(), place.seen(b'\n').len()), (0, 0));
}

#[test]
fn a_unit_whose_output_cannot_be_written_is_not_done_and_not_ok() {
    let closed = std::io::pipe().unwrap().1;
    for (stdout, message) in [
        (Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap()), "lost: 0 ok, 1 failed, 9 stopped"),
        (closed.into(), "the reader of the output is gone: 0 ok, 10 stopped"),
    ] {
        let place = Place::new();
        let run = held(&place, stdout, "true");
        fs::write(place.path("go"), "").unwrap();
        let ended = run.finish();
        assert!(ended.err.contains(message), "{}", ended.err);
        let is_named = ended.err.contains("unit 7 '7': its output was not printed\n");
        assert_eq!(is_named, !message.contains("reader"), "{}", ended.err);
        assert_eq!(place.seen(b'\n').len(), 0);
    }
    for how in [&["-j2"][..], &["--line-buffer"], &["-j1"]] {
        let place = Place::new();
        let mut command = place.command(&[how, &["-c", "echo $1"]].concat());
        command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
        let ended = feed(command, numbers(3));
        assert!(ended.err.contains(": 0 ok, "), "{how:?}: {}", ended.err);
        assert_eq!(place.seen(b'\n').len(), 0, "{how:?}");
    }
}

/// The unit before it will not be tried again: nothing is left to wait for.
#[test]
fn held_output_is_written_at_the_end_and_its_units_are_done() {
    for (first, message) in [("exit 1", "interrupted: 9 ok, 0 stopped"), ("exit 255", "9 ok, 1 failed")] {
        let place = Place::new();
        let run = held(&place, fs::File::create(place.path("out")).unwrap(), first);
        fs::write(place.path("go"), "").unwrap();
        if first == "exit 1" {
            thread::sleep(Duration::from_millis(700));
            run.signal(Signal::INT);
        }
        let ended = run.finish();
        assert!(ended.err.contains(message), "{}", ended.err);
        assert_eq!(place.lines("out"), (2..=10).map(|unit| unit.to_string()).collect::<Vec<_>>());
        assert_eq!(place.seen(b'\n').len(), 9);
    }
}

/// They may fail again.
#[test]
fn units_that_an_earlier_run_has_left_over_start_behind_others() {
    for (options, first, later) in [(&["--attempts", "2"][..], "4 5 6", "35 1 36"), (&[], "1 2 4", "33 34 35")] {
        let place = Place::new();
        fs::write(place.path("seen"), "3\n").unwrap();
        let ended = place.run(&[options, &["-j", "1", "echo"]].concat(), numbers(60));
        let found: Vec<&str> = ended.text().lines().collect();
        assert_eq!(found.len(), 59, "{}", ended.err);
        assert_eq!([found[..3].join(" "), found[31..34].join(" ")], [first, later], "{found:?}");
    }
}

/// Output in input order waits for them.
#[test]
fn units_that_are_left_over_keep_the_order_of_the_output() {
    let place = Place::new();
    fs::write(place.path("seen"), "3\n40\n").unwrap();
    let script = "[ $1 -ge 40 ] || head -c 100000 /dev/zero | tr '\\0' ' '; echo \"$1\"";
    let ended = place.run(&["--attempts", "2", "-k", "-j", "4", "-c", script], numbers(400));
    let found: Vec<u32> = ended.text().lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(found, (1..=400).filter(|unit| ![3, 40].contains(unit)).collect::<Vec<_>>(), "{}", ended.err);
}

/// A run that continues, in a shell with this redirection of its output: its messages.
fn redirected(place: &Place, redirection: &str, words: &str, input: &str) -> String {
    // File systems have time stamps of some milliseconds.
    thread::sleep(Duration::from_millis(20));
    let mut command = shell(&format!("exec \"$0\" -r unlimited --done seen {words} {redirection}"));
    command.current_dir(&place.folder);
    feed(command, input).err
}

#[test]
fn an_emptied_output_file_of_a_continued_run_gets_a_hint() {
    let place = Place::new();
    if place.folder.path().metadata().is_ok_and(|folder| folder.created().is_err()) {
        skipped("no birth times of files here");
        return;
    }
    let hint = "hint: --done continues an earlier run, but > has emptied the file of the output; to keep the output of \
                earlier runs write >> FILE";
    for (redirection, words, hints) in [
        ("> out", "echo", 0),
        ("> out", "echo", 1),
        (">> out", "echo", 0),
        ("> a-new-file", "echo", 0),
        ("> out", "-q echo", 0),
        ("", "echo", 0),
    ] {
        let said = redirected(&place, redirection, words, &format!("{redirection} {words} {hints}\n"));
        assert_eq!(said.matches(hint).count(), hints, "{redirection} {words}: {said}");
    }
    assert_eq!(place.lines("seen").len(), 6);
}

#[test]
fn the_way_to_continue_keeps_the_output_of_this_run() {
    let units = (1..=1000).map(|unit| unit.to_string()).collect::<Vec<_>>().join("\n");
    let script = "-j 1 -c '[ $1 -gt 1 ] || kill -QUIT $PPID; echo $1'";
    for (redirection, advice) in [
        ("> out", "run the same command again with >> FILE in place of > FILE to continue ("),
        (">> out", "run the same command again to continue ("),
        ("", "run the same command again to continue ("),
    ] {
        let said = redirected(&Place::new(), redirection, script, &units);
        assert!(said.contains(advice), "{redirection}: {said}");
    }
}
