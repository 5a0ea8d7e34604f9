//! The output of commands, through the real program: its order, tags, memory, and readers that leave.

use crate::support::*;
use rustix::process::Signal;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

#[test]
fn the_output_of_each_command_comes_out_whole() {
    let script = "for i in 1 2 3 4 5; do echo $1; echo $1 >&2; sleep 0.02; done";
    let ended = run(["-q", "-j4", "-r", "unlimited", "-c", script], numbers(8));
    for text in [ended.text(), &ended.err] {
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 40);
        assert!(lines.chunks(5).all(|chunk| chunk.iter().all(|line| *line == chunk[0])), "{text}");
    }
}

#[test]
fn output_comes_in_the_order_of_finishing_or_of_the_input() {
    let script = "if [ $1 = 1 ]; then sleep 0.6; fi; echo $1; echo $1 >&2";
    let finishing = run(["-q", "-r", "unlimited", "-c", script], numbers(3));
    assert_eq!((finishing.text().lines().last(), finishing.sorted()), (Some("1"), vec!["1", "2", "3"]));
    let input = run(["-qk", "-r", "unlimited", "-c", script], numbers(40));
    assert_eq!((input.text(), &input.err), (&*numbers(40), &numbers(40)));
}

/// The first command waits for a much later one; all results in between are held.
#[test]
fn results_behind_a_slow_one_take_little_memory_and_few_files() {
    let all = if cfg!(debug_assertions) { 1000 } else { 12_000 };
    let last = all * 3 / 4;
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "case $1 in 1) until [ -e done ]; do sleep 0.02; done; ls /proc/$PPID/fd | wc -l;; \
         {last}) : > done; echo $1;; *) echo $1;; esac"
    );
    let mut command = throttle(["-k", "-j4", "-r", "unlimited", "-c", &script]);
    command.current_dir(&folder);
    let ended = feed(command, numbers(all));
    let (files, rest) = ended.text().split_once('\n').unwrap();
    assert_eq!((rest, ended.code()), (numbers(all).strip_prefix("1\n").unwrap(), Some(0)));
    assert!(files.trim().parse::<u32>().unwrap() < 40, "{files} open files");
    assert!(ended.peak < most_memory(), "{} KiB", ended.peak);
}

/// Before, the output of the second command waited for the first, which waits for its reader.
#[test]
fn lines_come_as_they_are_written() {
    for how in [&["--line-buffer"][..], &["-u"], &["-j1"], &["-j1", "--timeout", "1h"], &["-j1", "--tag"]] {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo line; until [ -e seen ]; do sleep 0.02; done; echo seen";
        let mut command = throttle([how, &["-r", "unlimited", "--repeat", "1", "-c", script]].concat());
        let mut child = command.current_dir(&folder).spawn().unwrap();
        let mut line = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        std::fs::write(folder.path().join("seen"), "").unwrap();
        assert!(line == *b"line\n" || line == *b"1\tlin", "{how:?}");
        assert_eq!(Running::read(child).finish().code(), Some(0));
    }
}

/// Lines of more than what a pipe takes in one piece.
#[test]
fn lines_of_different_commands_are_not_mixed() {
    let script = "line=$(head -c 20000 /dev/zero | tr '\\0' $1); for i in $(seq 30); do echo $line; done";
    let mut command = throttle(["--line-buffer", "-j4", "-r", "unlimited", "-a", "units", "-c", script]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("units"), "a\nb\nc\nd\n").unwrap();
    let child = command.current_dir(&folder).spawn().unwrap();
    // The pipe fills, and all wait to write.
    thread::sleep(Duration::from_millis(700));
    let ended = Running::read(child).finish();
    let lines: Vec<&[u8]> = ended.out.split_inclusive(|&byte| byte == b'\n').collect();
    assert_eq!(lines.len(), 120);
    for line in lines {
        let (end, text) = line.split_last().unwrap();
        assert!((text.len(), *end) == (20_000, b'\n') && text.iter().all(|byte| *byte == text[0]));
    }
}

/// However long a line is, and however slowly it comes.
#[test]
fn a_line_beyond_memory_is_neither_torn_nor_tagged_twice() {
    let script = "for i in 1 2 3 4; do head -c 400000 /dev/zero | tr '\\0' $1; sleep 0.05; done; echo; printf end";
    let ended = run(["-q", "-r", "unlimited", "--tag", "--line-buffer", "-c", script], "a\nb\nc\n");
    let mut lines = ended.sorted();
    lines.retain(|line| line.len() > 9);
    assert_eq!(lines.len(), 3);
    for (line, unit) in lines.iter().zip(["a", "b", "c"]) {
        assert!(**line == format!("{unit}\t{}", unit.repeat(1_600_000)), "{} bytes", line.len());
    }
    assert_eq!(ended.out.len(), 3 * (1_600_003 + 6));
}

#[test]
fn each_line_is_tagged_with_its_unit() {
    let long = "u".repeat(1000);
    for how in [&["-k"][..], &["-j1"], &["-j1", "--line-buffer"]] {
        let args = [how, &["-q", "--tag", "-r", "unlimited", "-c", "printf 'a\\n\\nb'; echo c >&2"]].concat();
        let ended = run(args, format!("x y\n{long}\n"));
        assert_eq!(ended.text(), format!("x y\ta\nx y\t\nx y\tb\n{long}\ta\n{long}\t\n{long}\tb\n"), "{how:?}");
        assert_eq!(ended.err, format!("x y\tc\n{long}\tc\n"), "{how:?}");
    }
}

#[test]
fn a_last_line_gets_a_newline_only_if_lines_are_changed() {
    for how in [&["-k"][..], &["-j1"], &["-u", "-j1"]] {
        assert_eq!(run([how, &["-r", "unlimited", "printf", "%s"]].concat(), "a\nb\n").text(), "ab", "{how:?}");
    }
    let lines = run(["--line-buffer", "-r", "20/s", "printf", "%s"], "a\nb\n");
    assert_eq!(lines.sorted(), ["a", "b"], "a line of another command begins at the left");
}

/// Buffers once took more than was counted until they doubled again, and each result that waited took a thread.
#[test]
fn many_commands_that_write_much_take_little_memory() {
    for how in [&["-j16"][..], &["-k", "-j64"], &["--line-buffer"]] {
        let args = [how, &["-q", "-r", "unlimited", "-c", "head -c 999999 /dev/zero; echo"]].concat();
        let ended = run(args, numbers(100));
        assert_eq!((ended.code(), ended.out.len() % 1_000_000), (Some(0), 0), "{how:?}: {}", ended.err);
        assert!(ended.peak < most_memory(), "{how:?}: {} KiB", ended.peak);
    }
}

#[test]
fn a_command_that_writes_much_takes_little_memory() {
    let (length, name) = if cfg!(debug_assertions) { (64 << 20, "64M") } else { (1 << 30, "1G") };
    for how in [&[][..], &["-k"], &["--line-buffer"]] {
        let mut command =
            throttle([how, &["-r", "unlimited", "--repeat", "1", "head", "-c", name, "/dev/zero"]].concat());
        let mut child = command.spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let count = thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            let mut count = 0;
            loop {
                match out.read(&mut buffer).unwrap() {
                    0 => return count,
                    bytes => count += bytes,
                }
            }
        });
        let ended = Running::read(child).finish();
        let end = usize::from(how == ["--line-buffer"]);
        assert_eq!((count.join().unwrap(), ended.code()), (length + end, Some(0)), "{how:?} {}", ended.err);
        assert!(ended.peak < most_memory(), "{how:?}: {} KiB", ended.peak);
    }
}

#[test]
fn a_command_that_closes_its_output_is_waited_for_all_the_same() {
    let ended = run(["-r", "unlimited", "--repeat", "1", "-c", "echo a; exec >&- 2>&-; sleep 0.3; exit 3"], "");
    assert_eq!((ended.text(), ended.code()), ("a\n", Some(123)));
    assert!(ended.err.contains("exited 3"), "{}", ended.err);
}

#[test]
fn what_a_command_leaves_behind_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = throttle(["-r", "unlimited", "-c", "sleep 1000 & echo $! > left; echo $1"]);
    command.current_dir(&folder);
    let ended = feed(command, "a\n");
    let left = number_in(&folder.path().join("left"));
    assert!(is_alive(left), "it is nobody's to end");
    kill(left, Signal::TERM);
    assert_eq!((ended.text(), ended.code()), ("a\n", Some(0)));
    assert!(ended.err.contains("line 1 'a' left a process behind that holds its output open"), "{}", ended.err);
}

/// A command has long ended when the reader comes to its last lines: what is still in its pipe is not lost.
#[test]
#[ignore = "slow: 4 s"]
fn a_slow_reader_gets_everything() {
    let script = "yes 0123456 | head -c 60000";
    let mut child = throttle(["--line-buffer", "-r", "unlimited", "--repeat", "4", "-c", script]).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut count, mut some) = (0, [0; 16_000]);
    loop {
        thread::sleep(Duration::from_millis(250));
        match out.read(&mut some).unwrap() {
            0 => break,
            bytes => count += bytes,
        }
    }
    let ended = Running::read(child).finish();
    assert_eq!((count, ended.code()), (240_000, Some(0)), "{}", ended.err);
}

/// While one result waits for the reader, other commands are attended to: their time runs out.
#[test]
fn a_slow_reader_holds_up_no_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "case $1 in 1) head -c 300000 /dev/zero >&2;; 2) sleep 0.3; echo;; *) echo $$ > pid; exec sleep 40;; esac";
    let mut command =
        throttle(["-r", "10/s", "--repeat", "3", "--timeout", "1s", "--", "sh", "-c", script, "sh", "{}"]);
    let child = command.current_dir(&folder).spawn().unwrap();
    let pid = number_in(&folder.path().join("pid"));
    wait_until("its time runs out, though nobody reads standard error", || !is_alive(pid));
    let ended = Running::read(child).finish();
    assert!(ended.err.contains("2 ok, 1 failed (1 timed out)"));
}

#[test]
fn output_that_cannot_be_written_ends_everything_with_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = throttle(["-r", "20/s", "-j2", "-c", "echo $1"]);
    command.stdout(full);
    let ended = feed(command, numbers(200));
    assert_eq!(ended.code(), Some(1), "{}", ended.err);
    assert!(ended.err.contains("cannot write to standard output: No space left"), "{}", ended.err);
}

#[test]
fn a_reader_that_goes_away_stops_launching() {
    for how in [&["-j2"][..], &["-j1"], &["-u"], &["--line-buffer"], &["-k"]] {
        let mut child = throttle([how, &["-r", "20/s", "--repeat", "1000", "echo"]].concat()).spawn().unwrap();
        let mut first = [0; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        drop(child.stdout.take());
        let ended = Running::read(child).finish();
        assert_eq!(ended.signal(), Some(13), "{how:?} {}", ended.err);
        assert!(
            ended.err.contains("the reader of the output is gone: ") && !ended.err.contains("SIGPIPE"),
            "{how:?} {}",
            ended.err
        );
    }
}

/// The program with a temporary folder of `bytes` bytes, on its own file system; `None` if mounting is not allowed.
pub(crate) fn with_room_for(bytes: u32, folder: &Path, args: &[&str]) -> Option<Command> {
    with_mounted(&format!("size={bytes}"), "true", folder, args)
}

/// A program with a file system of its own at `folder`, mounted with these options. `before` is run in the folder first.
pub(crate) fn with_mounted(options: &str, before: &str, folder: &Path, args: &[&str]) -> Option<Command> {
    let script = format!("mount -t tmpfs -o {options} tmpfs . && cd \"$PWD\" && {before} && exec \"$0\" \"$@\"");
    let mounting = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script, program]).current_dir(folder).env("TMPDIR", folder);
        with_pipes(command)
    };
    if !mounting("true").output().is_ok_and(|output| output.status.success()) {
        let must = std::env::var_os("CI").is_some() && rustix::process::geteuid().is_root();
        assert!(!must, "root cannot mount a file system, and CI must not skip this");
        skipped("nobody may mount a file system here");
        return None;
    }
    let mut command = mounting(THROTTLE);
    command.args(["-r", "unlimited"]).args(args);
    Some(command)
}

#[test]
fn a_full_disk_is_reported_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let much = "if [ $1 = 1 ]; then head -c 3000000 /dev/zero; else echo $1; fi";
    let behind = "if [ $1 = 1 ]; then sleep 20; else head -c 30000 /dev/zero; fi";
    for (args, input, words) in [
        (&["-k", "-c", much][..], numbers(3), "line 1 '1': its output is lost"),
        (&["-k", "-j2", "-c", behind], numbers(3), "cannot store output that waits for its turn (-k)"),
        (&["--stdin", "wc", "-c"], "x".repeat(3_000_000), "cannot store units for --stdin"),
        (&["--stdin", "wc", "-c"], "x".repeat(30_000), "not run, because its input cannot be stored"),
    ] {
        let Some(command) = with_room_for(16 * 1024, folder.path(), args) else { return };
        let ended = feed(command, input);
        let at = folder.path().display();
        let message =
            format!("{words}: a temporary file in {at} cannot be used: No space left on device (os error 28); ");
        assert!(ended.err.contains(&(message + "TMPDIR may name another folder")), "{}", ended.err);
        assert!(!ended.err.contains("another folder: "), "the cause is told once: {}", ended.err);
        assert_eq!(ended.code(), Some(1), "{}", ended.err);
        assert!(!args.contains(&much) || ended.out.ends_with(b"2\n3\n"), "what comes behind is not lost");
    }
}

/// It did not fail by itself.
#[test]
fn a_command_ended_by_a_full_disk_counts_as_stopped() {
    let script = "if [ $1 = 1 ]; then exec sleep 100; fi; sleep 0.3; echo x";
    let mut command = throttle(["-j2", "-r", "unlimited", "--repeat", "2", "-c", script]);
    command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let ended = feed(command, "");
    assert_eq!(ended.code(), Some(1), "{}", ended.err);
    assert!(ended.err.ends_with("throttle: the output is lost: 0 ok, 1 failed, 1 stopped\n"), "{}", ended.err);
    assert!(ended.err.contains("unit 1 '1': stopped\n") && ended.err.contains("unit 2 '2': its output is lost"));
}

#[test]
fn without_dev_null_the_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some(command) = with_mounted("size=1M", "mount --bind . /dev", folder.path(), &["echo"]) else { return };
    assert_fails(&feed(command, b"a\n"), 1, &["cannot open the files that a command needs: /dev/null: No such file"]);
}
