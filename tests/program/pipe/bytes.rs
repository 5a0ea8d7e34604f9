//! The output of a pipe is its input, byte for byte, for every kind of file at either end and every way the bytes arrive.

use crate::support::{
    Lines, Running, THROTTLE, assert_same, feed, make_non_blocking, noise, passed, read_all, shell, skipped, text,
    throttle,
};
use proptest::prelude::*;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Fast enough that no test waits for it, and a limit all the same.
const FAST: &str = "1G/s";

const AWKWARD: [&[u8]; 12] = [
    b"",
    b"\n",
    b"\n\n\n",
    b"a",
    b"a\n",
    b"a\nb",
    b"\r\n\r\na\r\n",
    b"\0\n\0\0a\0",
    b"\xff\xfe\n\x80\xc3\n\xc3",
    b"  leading and trailing  \n\ttab\t\n",
    b"\x1b[31m\n\x07\n",
    b"-r\n--help\n",
];

#[test]
fn nothing_is_changed_added_or_lost() {
    for args in
        [&["-r", FAST][..], &["-r", FAST, "-0"], &["-r", FAST, "-d", "a"], &["-r", FAST, "--bytes"], &["-r", "1GB/s"]]
    {
        for input in AWKWARD {
            assert_eq!(text(&passed(args, input)), text(input), "{args:?}");
            assert_eq!(passed(args, input), input, "{args:?}");
        }
    }
}

#[test]
fn long_inputs_pass_unchanged_in_every_framing() {
    let input = noise(1_000_003);
    for args in [
        &["-r", FAST][..],
        &["-r", "unlimited"],
        &["-r", FAST, "-0"],
        &["-r", FAST, "-d", "\\xff"],
        &["-r", "unlimited", "--bytes"],
    ] {
        assert_same(&passed(args, &input), &input, &format!("{args:?}"));
    }
}

#[test]
fn units_around_the_size_of_the_buffer_pass_unchanged() {
    for length in [65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 600_000] {
        for end in [&b""[..], b"\n", b"\nb", b"\n\n"] {
            let input = [b"first\n", vec![b'x'; length].as_slice(), end].concat();
            assert_same(&passed(&["-r", FAST], &input), &input, &format!("a line of {length}, then {end:?}"));
        }
    }
}

/// The number of units, from the summary.
fn units(args: &[&str], input: &[u8]) -> u64 {
    let args = [args, &["--summary=json"]].concat();
    let output = feed(throttle(&args), input);
    assert!(output.status.success(), "{args:?}: {}", output.err);
    let summary: serde_json::Value = serde_json::from_str(&output.err).unwrap();
    assert_eq!(summary["bytes"], output.out.len(), "{args:?}");
    summary["units"].as_u64().unwrap()
}

#[test]
fn blank_units_count_and_so_does_a_last_one_without_its_end() {
    for (args, input, expected) in [
        (&["-r", FAST][..], &b""[..], 0),
        (&["-r", FAST], b"\n\n\n", 3),
        (&["-r", FAST], b"a\nb", 2),
        (&["-r", FAST], b"a\r\nb\r\n", 2),
        (&["-r", FAST], b"a\0b\0c", 1),
        (&["-r", FAST, "-0"], b"a\0b\0\0c", 4),
        (&["-r", FAST, "-0"], b"a\nb\n", 1),
        (&["-r", FAST, "-d", ","], b"1,2,3\n", 3),
        (&["-r", FAST, "-d", "\\t"], b"1\t2\t", 2),
        (&["-r", FAST, "--bytes"], b"a\nb\n", 4),
        (&["-r", "1GB/s"], b"a\nb\n", 4),
    ] {
        assert_eq!(units(args, input), expected, "{args:?} {:?}", text(input));
    }
}

#[test]
fn units_that_outgrow_the_buffer_are_one_unit_each() {
    let line = [vec![b'x'; 700_000], b"\n".to_vec()].concat();
    assert_eq!(units(&["-r", FAST], &line.repeat(3)), 3);
    assert_eq!(units(&["-r", FAST], &vec![b'x'; 262_144]), 1);
    assert_eq!(units(&["-r", FAST], &vec![b'x'; 700_000]), 1);
}

#[test]
fn an_argument_file_is_read_instead_of_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("units");
    let input = noise(300_000);
    fs::write(&file, &input).unwrap();
    for args in [["-r", FAST, "-a"], ["-r", "1GB/s", "-a"], ["-r", FAST, "--arg-file"]] {
        let args = [&args[..], &[file.to_str().unwrap()]].concat();
        assert_same(&feed(throttle(&args), b"not this").out, &input, &format!("{args:?}"));
    }
}

#[test]
fn a_file_is_read_from_its_current_offset() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&noise(200_000)).unwrap();
    for (args, start) in
        [(["-r", FAST], 7), (["-r", "1GB/s"], 7), (["-r", "1GB/s"], 200_000), (["-r", "1GB/s"], 300_000)]
    {
        file.seek(std::io::SeekFrom::Start(start)).unwrap();
        let mut command = throttle(args);
        command.stdin(file.try_clone().unwrap());
        let start = usize::try_from(start).unwrap().min(200_000);
        assert_same(&Running::start(command).finish().out, &noise(200_000)[start..], "the rest of the file");
    }
}

#[test]
fn files_of_unknown_size_are_read_to_their_end() {
    for rate in [FAST, "1GB/s"] {
        let out = passed(&["-r", rate, "-a", "/proc/version"], b"");
        assert_eq!(out, fs::read("/proc/version").unwrap());
    }
}

#[test]
fn no_wait_before_the_first_unit_or_after_the_last() {
    // One an hour: had it waited for anything, this would hang.
    for input in [&b""[..], b"\n", b"one\n", b"one"] {
        for args in [["-r", "1/h", "-d", "\\n"], ["-r", "1/h", "-d", ","], ["-r", "1/h", "-b", "1"]] {
            assert_eq!(passed(&args, input), input, "{args:?}");
        }
        assert_eq!(passed(&["-r", "1B/h", "-b", "4"], input), input);
    }
}

#[test]
fn an_empty_input_takes_nothing() {
    for args in [["-r", "1/h,initial=0"], ["-r", "1B/h,initial=0"]] {
        assert_eq!(passed(&args, b""), b"");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wherever_the_input_is_cut_the_output_is_the_same(
        input in prop::collection::vec(prop::sample::select(vec![b'\n', b'\r', 0, b'a', 0xff]), 0..2_000),
        cuts in prop::collection::vec(1_usize..300, 1..20),
        args in prop::sample::select(vec![["-r", "20k/s"], ["-r", "1G/s"], ["-r", "1MB/s"], ["-r", "unlimited"]]),
    ) {
        let mut running = Running::start(throttle(args));
        let (mut stdin, whole) = (running.stdin(), input.clone());
        let writer = thread::spawn(move || {
            let mut rest = &whole[..];
            for cut in cuts.into_iter().cycle() {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                stdin.write_all(piece).unwrap();
                thread::sleep(Duration::from_micros(300));
                rest = after;
                if rest.is_empty() {
                    return;
                }
            }
        });
        let output = running.finish();
        writer.join().unwrap();
        prop_assert_eq!(output.out, input);
        prop_assert_eq!(output.err, "");
    }
}

#[test]
fn a_slow_writer_is_passed_on_at_once() {
    // As from `tail -f`: each unit has arrived before the next is written. A full buffer never comes.
    for args in [["-r", "100/s"], ["-r", FAST], ["-r", "unlimited"], ["-r", "1MB/s"]] {
        let mut running = Running::start(throttle(args));
        let (mut stdin, lines) = (running.stdin(), Lines::of(running.stdout()));
        for number in 0..20 {
            writeln!(stdin, "line {number}").unwrap();
            assert_eq!(lines.next(), format!("line {number}"), "{args:?}");
        }
        drop(stdin);
        assert!(running.finish().status.success());
    }
}

#[test]
fn a_unit_is_passed_on_when_its_end_has_been_read() {
    let mut running = Running::start(throttle(["-r", FAST]));
    let (mut stdin, mut stdout) = (running.stdin(), running.stdout());
    stdin.write_all(b"whole\nhalf").unwrap();
    let mut bytes = [0; 100];
    let first = stdout.read(&mut bytes).unwrap();
    assert_eq!(text(&bytes[..first]), "whole\n", "half a unit must not leave before its end is known");
    stdin.write_all(b" and half\n").unwrap();
    let second = stdout.read(&mut bytes).unwrap();
    assert_eq!(text(&bytes[..second]), "half and half\n");
}

/// An unoptimised build would take too long over the whole 4 GiB.
const LONG_LINE: u64 = if cfg!(debug_assertions) { 1 << 28 } else { 1 << 32 };

/// Each byte that is read by itself takes a page of the pipe that tee(2) fills, so that pipe is full long before the line's
/// end: from there on bytes are copied, and none is lost or written twice.
#[test]
fn a_line_that_comes_byte_by_byte_passes_unchanged() {
    let line: Vec<u8> = noise(700).into_iter().filter(|&byte| byte != b'\n').collect();
    let mut run = Running::start(throttle(["-r", "unlimited"]));
    let mut stdin = run.stdin();
    let out = read_all(run.stdout());
    for byte in &line {
        stdin.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    let rest = b"\nmore\n".repeat(1000);
    stdin.write_all(&rest).unwrap();
    drop(stdin);
    assert_same(&out.join().unwrap(), &[line, rest].concat(), "byte by byte");
    assert!(run.end().success());
}

/// Passes a line of zeros whose end does not come. Returns the most memory that was resident, in KiB.
fn memory_of_a_line(length: u64) -> u64 {
    let mut running = Running::start(throttle(["-r", "1/h"]));
    let (mut stdin, mut stdout) = (running.stdin(), running.stdout());
    let writer = thread::spawn(move || {
        let zeros = vec![0; 1 << 20];
        for _ in 0..length >> 20 {
            stdin.write_all(&zeros).unwrap();
        }
        stdin // Open, so that the process is still there to be measured.
    });
    let (mut bytes, mut buffer) = (0, vec![0; 1 << 20]);
    while bytes < length {
        let read = stdout.read(&mut buffer).unwrap();
        assert!(read > 0 && buffer[..read].iter().all(|&byte| byte == 0));
        bytes += read as u64;
    }
    let stdin = writer.join().unwrap();
    let resident = running.most_resident().expect("it runs until its input ends");
    drop(stdin);
    assert!(running.finish().status.success());
    resident
}

#[test]
#[ignore = "slow: 2 s"]
fn a_line_of_gibibytes_needs_no_memory() {
    let [short, long] = [1 << 20, LONG_LINE].map(memory_of_a_line);
    assert!(long <= short + 1024, "{long} KiB were resident, {short} for a line of 1 MiB");
}

#[test]
fn units_that_conform_together_are_written_together() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("no strace here");
    }
    let counts = tempfile::NamedTempFile::new().unwrap();
    let script = "yes 1234567 | head -n 1000000 | strace -f -c -U calls,name -e trace=write,splice -o \"$1\" \"$0\" -r 1M/s | wc -l";
    let mut command = shell(script);
    command.arg(counts.path());
    let output = Running::start(command).finish();
    let counted = fs::read_to_string(counts.path()).unwrap();
    if counted.is_empty() && output.err.contains("ptrace") {
        return skipped(format!("strace may not trace here: {}", output.err));
    }
    assert_eq!(output.text().trim(), "1000000", "{}", output.err);
    let writes = counted.lines().filter(|line| line.contains("write") || line.contains("splice"));
    let writes: u64 = writes.map(|line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap()).sum();
    assert!(writes > 0 && writes < 100_000, "{writes} writes of 1000000 units\n{counted}");
}

#[test]
fn ends_in_non_blocking_mode_are_waited_for() {
    let input = noise(400_000);
    for args in [["-r", FAST], ["-r", "1GB/s"], ["-r", "unlimited"], ["-r", "20MB/s"]] {
        let (source, mut writer) = std::io::pipe().unwrap();
        let (mut reader, sink) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&sink, 4096).unwrap();
        let mut command = throttle(args);
        command.stdin(make_non_blocking(source)).stdout(make_non_blocking(sink));
        let running = Running::start(command);
        let pieces = input.clone();
        let writer = thread::spawn(move || {
            for piece in pieces.chunks(30_000) {
                writer.write_all(piece).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
        });
        let (mut out, mut buffer) = (Vec::new(), [0; 10_000]);
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => break,
                read => out.extend(&buffer[..read]),
            }
            thread::sleep(Duration::from_micros(500));
        }
        writer.join().unwrap();
        let output = running.finish();
        assert!(output.status.success(), "{args:?}: {}", output.err);
        assert_same(&out, &input, &format!("{args:?}"));
    }
}

/// One end of the program, and how the other side is played.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Pipe,
    File,
    /// Opened to append, which splice refuses.
    Append,
    Socket,
}

fn source(end: End, input: &[u8]) -> Stdio {
    if end == End::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(input).unwrap();
        file.rewind().unwrap();
        return file.into();
    }
    let (ours, theirs): (OwnedFd, OwnedFd) = if end == End::Socket {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours.into(), theirs.into())
    } else {
        let (theirs, ours) = std::io::pipe().unwrap();
        (ours.into(), theirs.into())
    };
    let input = input.to_vec();
    thread::spawn(move || File::from(ours).write_all(&input).unwrap());
    theirs.into()
}

/// An end to write to, and a function that reads it all once the writer is gone.
fn sink(end: End) -> (Stdio, Box<dyn FnOnce() -> Vec<u8>>) {
    match end {
        End::Pipe => {
            let (ours, theirs) = std::io::pipe().unwrap();
            let reader = read_all(ours);
            (theirs.into(), Box::new(|| reader.join().unwrap()))
        }
        End::Socket => {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let reader = read_all(ours);
            (OwnedFd::from(theirs).into(), Box::new(|| reader.join().unwrap()))
        }
        End::File | End::Append => {
            let file = tempfile::NamedTempFile::new().unwrap();
            let opened = OpenOptions::new().write(true).append(end == End::Append).open(file.path()).unwrap();
            (opened.into(), Box::new(move || fs::read(file.path()).unwrap()))
        }
    }
}

fn pass_between(from: End, to: End, args: &[&str], length: usize) {
    let input = noise(length);
    let (sink, result) = sink(to);
    let mut command = throttle(args);
    command.stdin(source(from, &input)).stdout(sink);
    let output = Running::start(command).finish();
    let what = format!("{args:?}, {length} bytes from {from:?} to {to:?}");
    assert_eq!(output.err, "", "{what}");
    assert!(output.status.success(), "{what}: {}", output.status);
    assert_same(&result(), &input, &what);
}

/// Around the least run that is spliced, the size of a pipe, and a good deal more.
const LENGTHS: [usize; 8] = [0, 1, 4_097, 65_535, 65_536, 65_537, 1_048_577, 3_000_001];

#[test]
#[ignore = "slow: 3 s"]
fn bytes_pass_between_any_two_ends_in_large_runs() {
    for from in [End::Pipe, End::File, End::Socket] {
        for to in [End::Pipe, End::File, End::Append, End::Socket] {
            for length in LENGTHS {
                pass_between(from, to, &["-r", "100GB/s"], length);
            }
        }
    }
}

#[test]
#[ignore = "slow: 2 s"]
fn bytes_pass_between_any_two_ends_in_many_runs() {
    for from in [End::Pipe, End::File, End::Socket] {
        for to in [End::Pipe, End::File, End::Append, End::Socket] {
            pass_between(from, to, &["-r", "20MB/s,burst=100kB"], 1_000_003);
            pass_between(from, to, &["-r", "10MB/s,burst=1kB"], 300_001);
        }
    }
}

#[test]
fn lines_pass_between_any_two_ends() {
    for from in [End::Pipe, End::File, End::Socket] {
        for to in [End::Pipe, End::File, End::Append, End::Socket] {
            pass_between(from, to, &["-r", "100k/s"], 1_000_003);
        }
    }
}

#[test]
fn what_a_file_held_before_is_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    for (rate, shift) in [(FAST, ">>"), ("1GB/s", ">>")] {
        let file = folder.path().join(rate.replace('/', "-"));
        fs::write(&file, "before\n").unwrap();
        let mut command = shell(&format!("\"$0\" -r {rate} {shift} \"$1\""));
        command.arg(&file);
        assert!(feed(command, noise(200_000)).status.success());
        let after = fs::read(&file).unwrap();
        assert_eq!((&after[..7], after.len()), (&b"before\n"[..], 200_007));
    }
}

#[test]
fn a_terminal_can_be_either_end() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcsetattr};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let no_tty = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let terminal = rustix::fs::open(&name, no_tty, rustix::fs::Mode::empty()).unwrap();
    let mut modes = tcgetattr(&terminal).unwrap();
    modes.output_modes.remove(OutputModes::OPOST);
    modes.local_modes.remove(rustix::termios::LocalModes::ECHO);
    tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
    let mut master = File::from(master);
    for rate in ["1000/s", "100kB/s"] {
        let mut command = throttle(["-q", "-r", rate]);
        command.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap());
        let running = Running::start(command);
        master.write_all(b"typed\nand more\n\x04").unwrap(); // Ctrl-D
        let mut out = [0; 15];
        master.read_exact(&mut out).unwrap();
        assert_eq!(text(&out), "typed\nand more\n");
        let output = running.finish();
        assert!(output.status.success(), "{}", output.err);
    }
}

#[test]
fn several_in_a_row_change_nothing() {
    let script = "\"$0\" -r 1G/s | \"$0\" -r 1GB/s | \"$0\" -r unlimited | \"$0\" -0 -r 1G/s";
    let input = noise(500_000);
    assert_same(&feed(shell(script), &input).out, &input, THROTTLE);
}

#[test]
fn a_rate_takes_its_time() {
    let start = Instant::now();
    passed(&["-r", "1MB/s,burst=100kB"], &noise(400_000));
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
}

/// The line of a shared bucket kept a grant of each unit with a cost of its own.
#[test]
fn units_with_costs_of_a_bucket_take_no_memory_later() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let options = ["--bucket", bucket.to_str().unwrap(), "-r", "1G/s,cost=f1", "-q"];
    let ended = crate::support::run(options, "1\n".repeat(30_000));
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    let few = crate::support::run(options, "1\n".repeat(1000));
    assert!(ended.peak < few.peak + 4 * 1024, "{} KiB, not {}", ended.peak, few.peak);
}
