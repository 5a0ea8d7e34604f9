//! The options of buckets: mistakes are found before anything is opened, and the messages.

use crate::rounds::rounds;
use crate::support::terminal::recorded_terminal;
use crate::support::{Ended, HANGS, Running, THROTTLE, assert_fails, copy_program, feed, passed, throttle};
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Mistakes that the command line alone shows, each with a piece of its message.
const MISTAKES: [(&[&str], &str); 78] = [
    (&["--no-such-option"], "--no-such-option"),
    (&["-r"], "-r takes a limit"),
    (&["-r", "10M"], "could be lines or bytes"),
    (&["-r", "5/s", "-b", "0"], "--burst"),
    (&["-r", "5/s,burst=2", "-b", "3"], "--burst"),
    (&["-r", "5MB/s", "-r", "5/s"], "--rate: '5MB/s' counts bytes"),
    (&["-r", "5MB/s", "-0"], "-0: the rate counts bytes"),
    (&["-r", "5MB/s", "true"], "--rate: commands are not counted in bytes"),
    (&["-b", "5"], "--burst needs a rate"),
    (&["-d", "ab"], "more than one byte"),
    (&["-0", "-d", ","], "cannot be used with"),
    (&["-0", "--bytes"], "cannot be used with"),
    (&["--bytes", "true"], "--rate: commands are not counted in bytes"),
    (&["--progress=often"], "--progress"),
    (&["--summary=xml"], "--summary"),
    (&["--on-store-error", "sometimes"], "--on-store-error"),
    (&["--max-wait", "5s"], "--once"),
    (&["-j", "5"], "--jobs needs a command"),
    (&["-j", "five", "true"], "--jobs"),
    (&["-n", "2"], "--max-args needs a command"),
    (&["-I", "%"], "--replace needs a command"),
    (&["-k", "-r", "5/s"], "--keep-order needs a command"),
    (&["--line-buffer"], "--line-buffer needs a command"),
    (&["-u"], "--ungroup needs a command"),
    (&["-t"], "--trace needs a command"),
    (&["--tag"], "--tag needs a command"),
    (&["--stdin"], "--stdin needs a command"),
    (&["--repeat", "5"], "--repeat needs a command"),
    (&["--timeout", "5s"], "--timeout needs a command"),
    (&["--timeout", "soon", "true"], "--timeout"),
    (&["--dry-run", "-k", "--ahead", "5"], "--keep-order needs a command"),
    (&["-r", "5/s", "--ahead", "5"], "--ahead needs limits for each key"),
    (&["-r", "5/s", "--ahead", "5", "true"], "--ahead needs --attempts"),
    (&["-I", "%", "true"], "-I '%': the command does not contain '%'"),
    (&["-k", "-u", "true"], "cannot be used with"),
    (&["-k", "--line-buffer", "true"], "cannot be used with"),
    (&["-u", "--line-buffer", "true"], "cannot be used with"),
    (&["-u", "--tag", "true"], "cannot be used with"),
    (&["--repeat", "5", "-0", "true"], "cannot be used with"),
    (&["--repeat", "-5", "true"], "--repeat"),
    (&["-n", "x", "true"], "--max-args"),
    (&["-c", "true", "true"], "cannot be used with"),
    (&["-c", "echo {}"], "{}"),
    (&["-I", "", "true"], "-I"),
    (&["--summary=json:"], "a file name is missing"),
    // Also if something else, which is looked for later, is missing.
    (&["-a", "/no/such/file", "-j", "five", "true"], "--jobs"),
    (&["-j", "five", "no-such-command"], "--jobs"),
    (&["--summary=json:/no/such/folder/x", "-j", "5"], "--jobs needs a command"),
    (&["-c", "true", "-I", "%"], "cannot be used with"),
    (&["true", ":::", "a"], "::: is not an option here"),
    (&["sh", "-c", "echo {}"], "{}"),
    (&["--set"], "--set needs a limit"),
    (&["--set", "-r", "5/s", "true"], "--set runs nothing"),
    (&["--set", "-r", "5/s", "-j", "5"], "cannot be used with"),
    (&["--set", "-r", "5/s", "-0"], "cannot be used with"),
    (&["--set", "--show"], "cannot be used with"),
    (&["--show", "-r", "5/s"], "--show sets no limits"),
    (&["--show", "json", "true"], "--show runs nothing"),
    (&["--show", "--dry-run"], "cannot be used with"),
    (&["--show", "github"], "--show 'github': the format is text or json"),
    (&["--list", "-r", "5/s"], "--list sets no limits"),
    (&["--list", "-b", "5"], "--burst needs a rate"),
    (&["--list", "json", "true"], "--list runs nothing"),
    (&["--list", "/tmp/"], "name a bucket with --bucket"),
    (&["--list", "--show"], "cannot be used with"),
    (&["--list", "--list"], "--list is given twice"),
    (&["--list", "--max-wait", "5s"], "cannot be used with"),
    (&["--show", "--max-wait", "5s"], "cannot be used with"),
    (&["--pause", "5s", "--max-wait", "5s"], "cannot be used with"),
    (&["--pause", "-1"], "write for example 30s"),
    (&["--remove", "-r", "5/s"], "--remove sets no limits"),
    (&["--remove", "true"], "--remove runs nothing"),
    (&["--remove", "--list"], "cannot be used with"),
    (&["--remove", "--clear"], "cannot be used with"),
    (&["--once", "-j", "5"], "cannot be used with"),
    (&["--once", "-r", "5MB/s"], "--once takes one unit, so it cannot use a limit in bytes"),
    (&["--once", "--max-wait", "soon"], "--max-wait"),
    (&["--once", "-b", "5", "true"], "--burst needs a rate"),
];

/// Each option that is about a stream, which an option about a bucket by itself is not.
const OF_STREAMS: [&[&str]; 18] = [
    &["-0"],
    &["-d", ","],
    &["--bytes"],
    &["-a", "x"],
    &["--repeat", "5"],
    &["-j", "5"],
    &["-n", "5"],
    &["-I", "%"],
    &["-c", "true"],
    &["--stdin"],
    &["-k"],
    &["--line-buffer"],
    &["-u"],
    &["--tag"],
    &["--timeout", "5s"],
    &["-t"],
    &["--dry-run"],
    &["--summary"],
];

/// Buckets that cannot be had, and what shows that somebody tried.
struct Nowhere {
    folder: tempfile::TempDir,
    listener: TcpListener,
}

impl Nowhere {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Nowhere { folder: tempfile::tempdir().unwrap(), listener }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// One of each kind: a server that is dead, one that never answers, a file, one in no folder, a name.
    fn buckets(&self) -> [String; 5] {
        let silent = format!("redis://127.0.0.1:{}/x", self.listener.local_addr().unwrap().port());
        ["redis://127.0.0.1:1/x".to_owned(), silent, self.path("b"), self.path("no/b"), "name".to_owned()]
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = throttle(args);
        command.env("XDG_STATE_HOME", self.folder.path());
        command
    }

    #[track_caller]
    fn is_untouched(&self) {
        assert!(self.listener.accept().is_err(), "a server was contacted");
        let made: Vec<OsString> = entries(self.folder.path());
        assert!(made.is_empty(), "{made:?}");
    }
}

fn entries(folder: &Path) -> Vec<OsString> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// The exit code and the message; the run must end soon.
#[track_caller]
fn ends(command: Command) -> (Option<i32>, String) {
    let begun = Instant::now();
    let mut running = Running::start(command);
    while running.is_running() {
        assert!(begun.elapsed() < HANGS, "it waits");
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = running.finish();
    (output.code(), output.err)
}

#[test]
#[ignore = "slow: 2 s"]
fn a_mistake_in_options_is_found_before_anything_opens() {
    let nowhere = &Nowhere::new();
    let is_found = |bucket: String| {
        for (args, words) in MISTAKES {
            let code = if args.contains(&"--once") { 125 } else { 2 };
            let named = ends(nowhere.command(&[&["--bucket", &bucket], args].concat()));
            assert!(named.0 == Some(code) && named.1.contains(words), "{bucket} {args:?}: {named:?}");
            let mut default = nowhere.command(args);
            default.env("THROTTLE_BUCKET", &bucket);
            let default = ends(default);
            assert!(default.0 == Some(code) && default.1.contains(words), "{bucket} {args:?}: {default:?}");
            nowhere.is_untouched();
        }
    };
    std::thread::scope(|scope| {
        for bucket in nowhere.buckets().into_iter().take(rounds(20) as usize) {
            scope.spawn(move || is_found(bucket));
        }
    });
}

#[test]
fn an_option_about_streams_with_one_about_a_bucket_is_refused() {
    let nowhere = Nowhere::new();
    let bucket = &nowhere.buckets()[1];
    for (verb, code) in [("--once", 125), ("--set", 2), ("--show", 2), ("--list", 2), ("--remove", 2)] {
        // One command may be tried again, within a time, and be a script.
        let is_of_one = |option: &[&str]| verb == "--once" && ["-c", "--timeout"].contains(&option[0]);
        for option in OF_STREAMS.into_iter().filter(|option| !is_of_one(option)) {
            let rate: &[&str] = if verb == "--set" { &["-r", "5/s"] } else { &[] };
            let ended = ends(nowhere.command(&[&["--bucket", bucket, verb], rate, option].concat()));
            assert!(ended.0 == Some(code) && ended.1.contains("cannot be used with"), "{verb} {option:?}: {ended:?}");
        }
    }
    nowhere.is_untouched();
}

/// It is a server, not one of its buckets.
#[test]
fn an_address_without_a_name_is_only_for_the_list() {
    let nowhere = Nowhere::new();
    let port = nowhere.listener.local_addr().unwrap().port();
    for address in [format!("redis://127.0.0.1:{port}"), format!("redis://127.0.0.1:{port}/2/")] {
        for args in [&["--show"][..], &["--remove"], &["--clear"], &["--set", "-r", "5/s"], &["-r", "5/s"]] {
            let (code, said) = ends(nowhere.command(&[&["--bucket", &address], args].concat()));
            assert!(code == Some(2) && said.contains("the bucket's name is missing; write"), "{args:?}: {said}");
        }
        nowhere.is_untouched();
    }
}

#[test]
fn unfit_limits_are_refused_before_a_bucket_is_opened() {
    let nowhere = Nowhere::new();
    let many = ["-r", "5/s"].repeat(17);
    for (bucket, args, words) in
        [(0, &many[..], "1 to 16 limits"), (1, &many[..], "1 to 16 limits"), (2, &many[..], "1 to 16 limits")]
    {
        let bucket = &nowhere.buckets()[bucket];
        let (code, said) = ends(nowhere.command(&[&["--bucket", bucket], args].concat()));
        assert!(code == Some(2) && said.contains("--rate: ") && said.contains(words), "{bucket}: {code:?}: {said}");
        nowhere.is_untouched();
    }
}

/// Files and commands of this machine are looked up before the program waits for a server.
#[test]
fn what_is_missing_here_is_reported_before_a_server_is_asked() {
    let nowhere = Nowhere::new();
    let missing = nowhere.path("missing");
    let summary = format!("--summary=json:{missing}/summary");
    for bucket in &nowhere.buckets()[..2] {
        for (args, code, words) in [
            (&["-a", &missing][..], 1, "--arg-file: cannot open"),
            (&["-a", &missing, "true"], 1, "--arg-file: cannot open"),
            (&["-a", &missing, "--dry-run", "true"], 1, "--arg-file: cannot open"),
            (&["no-such-command"], 127, "no such command in PATH"),
            (&["-r", "5/s", "no-such-command"], 127, "no such command in PATH"),
            (&["--once", "no-such-command"], 127, "no such command in PATH"),
            (&[summary.as_str()], 1, "--summary: cannot create"),
            (&[&summary[..], "true"], 1, "--summary: cannot create"),
        ] {
            let ended = ends(nowhere.command(&[&["--bucket", bucket], args].concat()));
            assert!(ended.0 == Some(code) && ended.1.contains(words), "{bucket} {args:?}: {ended:?}");
            nowhere.is_untouched();
        }
    }
}

/// `--once` among the words of a command is the command's.
#[test]
fn the_options_of_the_command_do_not_decide_how_a_mistake_ends() {
    let (code, said) = ends(throttle(["-r", "5/s", "--no-such-option", "mail", "--once"]));
    assert_eq!(code, Some(2), "{said}");
}

mod the_variable {
    use super::*;

    fn with_default(bucket: &str, args: &[&str], input: &[u8]) -> Ended {
        let mut command = throttle(args);
        command.env("THROTTLE_BUCKET", bucket);
        feed(command, input)
    }

    #[track_caller]
    fn succeeds(output: &Ended, stdout: &str) {
        assert_eq!((output.code(), output.text(), &*output.err), (Some(0), stdout, ""));
    }

    #[test]
    fn a_stream_that_names_its_limits_has_them_for_itself() {
        let nowhere = Nowhere::new();
        for bucket in nowhere.buckets() {
            for (args, out) in [
                (&["-r", "10MB/s"][..], "a\n"),
                (&["-r", "1k/s"], "a\n"),
                (&["-r", "unlimited"], "a\n"),
                (&["-q", "-r", "1k/s", "-j1", "echo"], "a\n"),
            ] {
                succeeds(&with_default(&bucket, args, b"a\n"), out);
            }
            nowhere.is_untouched();
        }
        // However wrong it is.
        succeeds(&with_default("a b", &["-r", "1k/s"], b"a\n"), "a\n");
    }

    #[test]
    fn it_is_the_bucket_of_verbs_and_of_a_stream_without_limits() {
        let folder = tempfile::tempdir().unwrap();
        let bucket = folder.path().join("b").to_str().unwrap().to_owned();
        succeeds(&with_default(&bucket, &["--set", "-r", "9/h,window"], b""), "");
        succeeds(&with_default(&bucket, &["-r", "9/h", "--once"], b""), "");
        succeeds(&with_default(&bucket, &[], b"a\n"), "a\n");
        succeeds(&with_default(&bucket, &["-q", "echo"], b"a\n"), "a\n");
        assert!(with_default(&bucket, &["--show"], b"").into_text().contains("9/h,window,slack=250ms: 6 left"));
        // Nested in a script of somebody else's.
        succeeds(&with_default(&bucket, &["-r", "1k/s"], b"a\n"), "a\n");
        assert_eq!(passed(&["--bucket", &bucket, "-r", "9/h"], b"a\n"), b"a\n");
        assert!(with_default(&bucket, &["--show"], b"").into_text().contains("9/h,window,slack=250ms: 5 left"));
    }

    /// If the user did not name the bucket, no message may suggest to change its limits for everyone.
    #[test]
    fn messages_name_the_variable_that_named_the_bucket() {
        let nowhere = Nowhere::new();
        let (missing, kept, damaged) = (nowhere.path("missing"), nowhere.path("kept"), nowhere.path("damaged"));
        succeeds(&with_default(&kept, &["--set", "-r", "5MB/s"], b""), "");
        std::fs::write(&damaged, "").unwrap();
        for (bucket, args, code, words) in [
            (&missing, &["--once"][..], 125, "there is no bucket"),
            (&missing, &[], 1, "there is no bucket"),
            (&missing, &["true"], 1, "there is no bucket"),
            (&missing, &["--show"], 1, "there is no bucket"),
            (&kept, &["--once", "-r", "7/s"], 125, ", not 7/s;"),
            (&kept, &["--once"], 125, "--once takes one unit, so it cannot use a limit in bytes"),
            (&kept, &["true"], 1, "commands are not counted in bytes"),
            (&kept, &["-0"], 1, "-0: the bucket counts bytes"),
            (&damaged, &["--once"], 125, "cut short"),
        ] {
            let output = with_default(bucket, args, b"a\n");
            assert_fails(&output, code, &["throttle: THROTTLE_BUCKET: ", words]);
            assert!(!output.err.contains("--set"), "{args:?}: {}", output.err);
        }
        let away = with_default("redis://127.0.0.1:1/x", &["--once", "--on-store-error", "fail"], b"");
        assert_fails(&away, 125, &["throttle: THROTTLE_BUCKET: cannot reach the bucket"]);
        let away = with_default("redis://127.0.0.1:1/x", &["--once", "--max-wait", "100ms"], b"");
        let said = &away.err;
        assert!(away.code() == Some(75), "{said}");
        assert!(said.lines().count() == 2 && said.lines().all(|line| line.contains("THROTTLE_BUCKET: ")), "{said}");
        let wrong = with_default("a b", &["--once"], b"");
        assert!(wrong.err.contains("THROTTLE_BUCKET 'a b': a bucket name has only"), "{}", wrong.err);
        // If the bucket is named, both are suggested.
        let named = feed(throttle(["--bucket", &kept, "-r", "7MB/s"]), b"");
        assert_fails(&named, 1, &[", not 7MB/s;", "leave -r out, or change them for all processes with --set"]);
    }

    /// It is set, and would not be used.
    #[test]
    fn on_store_error_with_a_private_limit_is_explained() {
        let output = with_default("redis://127.0.0.1:1/x", &["-r", "5/s", "--on-store-error", "fail"], b"");
        let said = &output.err;
        assert!(output.code() == Some(2) && said.contains("with -r, THROTTLE_BUCKET is not used"), "{said}");
    }
}

mod what_is_said {
    use super::*;

    /// However the address is mistyped, and wherever it lands.
    #[test]
    fn a_password_is_never_repeated() {
        for address in [
            "redis//:SECRET@127.0.0.1/x",
            "redis:/:SECRET@127.0.0.1/x",
            "redis:me:SECRET@127.0.0.1/x",
            "reids://:SECRET@127.0.0.1/x",
            "//:SECRET@127.0.0.1/x",
            "/:SECRET@127.0.0.1/x",
            "./:SECRET@127.0.0.1/x",
            ":SECRET@127.0.0.1/x",
            "SECRET@127.0.0.1:6379/x",
            "me:SECRET@127.0.0.1",
            "redis://:SECRET@127.0.0.1:99999/x",
            "redis://:SE/CRET@127.0.0.1/x",
        ] {
            let attached = [format!("--bucket={address}"), format!("-r{address}"), format!("-j{address}")];
            for args in [
                &["--bucket", address, "-r", "5/s"][..],
                &["--bucket", address],
                &["--bucket", address, "--once"],
                &["--bucket", address, "--show"],
                &["--bucket", address, "--list"],
                &["--bucket", address, "--set", "-r", "5/s"],
                &[&attached[0], "-r", "5/s"],
                &["-r", address],
                &[&attached[1]],
                &["-b", address, "-r", "5/s"],
                &["-r", "5/s", &attached[2], "true"],
                &["-r", "5/s", "-d", address],
                &["-r", "5/s", address],
                &["--show", address],
            ] {
                let (code, said) = ends(throttle(args));
                assert!(code != Some(0) && !said.contains("CRET"), "{args:?}: {said}");
            }
            let mut default = throttle(["--once"]);
            default.env("THROTTLE_BUCKET", address);
            let (code, said) = ends(default);
            assert!(code == Some(125) && said.contains("THROTTLE_BUCKET") && !said.contains("CRET"), "{said}");
        }
    }

    #[test]
    fn what_is_said_on_a_help_page_is_left_as_it_is() {
        let help = feed(throttle(["--bucket", "redis://", "--help"]), b"");
        let seen = (help.code(), &*help.err);
        assert!(seen == (Some(0), "") && help.text().contains("redis://"), "{seen:?}");
    }

    #[test]
    fn an_address_with_a_mistyped_scheme_is_no_path() {
        let (code, said) = ends(throttle(["--bucket", "redis//:SECRET@127.0.0.1/x", "-r", "5/s"]));
        assert!(code == Some(2) && said.contains("--bucket 'redis…': an address begins with redis://"), "{said}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a:b@c");
        assert_eq!(passed(&["--bucket", path.to_str().unwrap(), "-r", "1k/s"], b"a\n"), b"a\n", "a path is one");
    }

    /// Colours, the title of the window, the direction of text: what a name contains does none of it.
    #[test]
    fn names_do_not_steer_the_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let odd = "a\u{1b}[31m\u{9b}1m\u{202e}\u{2066}\u{200f}\u{61c}b";
        let path = folder.path().join(odd).to_str().unwrap().to_owned();
        let in_none = folder.path().join(odd).join("b").to_str().unwrap().to_owned();
        let on_terminal = |args: &[&str]| {
            let (terminal, read) = recorded_terminal();
            let mut command = throttle(args);
            command.stdin(Stdio::null()).stdout(terminal.try_clone().unwrap()).stderr(terminal);
            let (_, nothing) = ends(command);
            assert_eq!(nothing, "");
            read.join().unwrap()
        };
        for (args, words) in [
            (&["--bucket", odd, "-r", "5/s"][..], "a bucket name has only letters"),
            (&["--bucket", &path], "there is no bucket"),
            (&["--bucket", &in_none, "-r", "5/s"], "cannot make the bucket"),
            (&["--bucket", &path, "-q", "-r", "5/s", odd], "no such command in PATH"),
            (&["--bucket", &path, "--once", "-r", "5/s", &in_none], "no such command"),
            (&["-r", "5/s", "-a", &path], "--arg-file: cannot open"),
            (&["-r", odd], "--rate"),
            (&["--bucket", &path, "--set", "-r", "5/s"], ""),
            (&["--bucket", &path, "--show"], "5/s,burst=1: 1 left"),
            (&["--bucket", &path, "-r", "7/s"], ", not 7/s;"),
            (&["--repeat", "1", "-t", "-r", "5/s", "echo", odd], "echo"),
        ] {
            let said = on_terminal(args);
            // The output of commands is not changed.
            let ours = if args.contains(&"-t") { said.lines().next().unwrap() } else { &said };
            assert!(ours.contains(words), "{args:?}: {ours:?}");
            let steers = |c: char| c != '\n' && (c.is_control() || odd[1..].contains(c) && !c.is_ascii());
            assert!(!ours.contains(steers), "{args:?}: {ours:?}");
        }
        let named = ends(throttle(["--bucket", &path, "-r", "7/s"])).1;
        assert!(named.contains(odd), "elsewhere a name is what it is: {named:?}");
    }
}

/// `ulimit -f` in a shell: the system's signal for it would end us without a word.
mod a_file_that_gets_too_large {
    use super::*;
    use crate::support::shell;

    #[test]
    fn is_named_in_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(feed(shell_in(folder.path(), "exec \"$0\" --bucket ./b -r 5/s --set"), b"").status.success());
        let many = b"a line\n".repeat(2000);
        for (script, code, words) in [
            (
                "ulimit -f 1; exec \"$0\" --bucket ./new -r 5/s --once",
                125,
                "cannot make the bucket ./new: file too large",
            ),
            ("ulimit -f 1; exec \"$0\" --bucket ./b --once", 125, "cannot write the bucket ./b: file too large"),
            ("ulimit -f 1; exec \"$0\" --bucket ./b -r 5/s", 1, "cannot write the bucket ./b: file too large"),
            ("ulimit -f 1; exec \"$0\" -r 1G/s > out", 1, "cannot write to standard output, after "),
            ("ulimit -f 1; exec \"$0\" -r 1GB/s > out", 1, "cannot write to standard output, after "),
            ("ulimit -f 0; exec \"$0\" -r 1k/s --summary=text:sum", 1, "--summary: cannot write sum"),
            ("ulimit -f 0; exec \"$0\" --dry-run -r 1k/s --repeat 3 echo > out", 1, "cannot write to standard output"),
        ] {
            let input: &[u8] = if script.contains("--summary") { b"a\n" } else { &many };
            let output = feed(shell_in(folder.path(), script), input);
            assert_fails(&output, code, &[words, "ulimit -f allows larger files"]);
        }
        assert!(!entries(folder.path()).contains(&"new".into()), "nothing half made is left");
    }

    /// A command has the signal as it was.
    #[test]
    fn still_ends_a_command() {
        for flags in ["--repeat 1 -r 1k/s", "--bucket ./b --once -r 1k/s"] {
            let folder = tempfile::tempdir().unwrap();
            let script = format!("exec \"$0\" -q {flags} sh -c 'kill -XFSZ $$; exit 9'");
            let status = feed(shell_in(folder.path(), &script), b"").status;
            let seen = std::os::unix::process::ExitStatusExt::signal(&status).or(status.code());
            assert_eq!(seen, Some(if flags.contains("--once") { 25 } else { 125 }), "{flags}");
        }
    }

    fn shell_in(folder: &Path, script: &str) -> Command {
        let mut command = shell(script);
        command.current_dir(folder);
        command
    }
}

/// Nothing is written to a bucket that is only looked at.
#[test]
fn a_bucket_that_may_only_be_read_is_shown() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let folder = tempfile::tempdir().unwrap();
    let (path, program) = (folder.path().join("b"), folder.path().join("throttle"));
    copy_program(THROTTLE, &program);
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--bucket").arg(&path).args(args).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if rustix::process::geteuid().is_root() {
            // Root may write all the same.
            command.uid(NOBODY);
        }
        feed(command, b"")
    };
    if rustix::process::geteuid().is_root() {
        chown(folder.path(), Some(NOBODY), None).unwrap();
    }
    assert!(run(&["--set", "-r", "9/h,window"]).status.success());
    let before = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().mtime_nsec());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let shown = run(&["--show"]);
    assert!(shown.text().contains("9/h,window,slack=250ms: 9 left"), "{}", shown.err);
    assert_fails(&run(&["--once"]), 125, &["cannot open the bucket", "permission denied"]);
    let after = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().mtime_nsec());
    assert_eq!(before, after);
}
