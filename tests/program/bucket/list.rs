//! The list of buckets, and the removal of a bucket.

use crate::bucket::redis::runs;
use crate::support::redis::Redis;
use crate::support::terminal::recorded_terminal;
use crate::support::{Ended, Lines, Running, THROTTLE, assert_fails, copy_program, feed, text, throttle, wait_until};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The state of a user; the folder of buckets is in it once there is one.
struct State(TempDir);

impl State {
    fn new() -> Self {
        State(tempfile::tempdir().unwrap())
    }

    fn with(buckets: &[(&str, &str)]) -> Self {
        let state = State::new();
        for (name, limit) in buckets {
            assert_eq!(state.says(&["--bucket", name, "--set", "-r", limit]), "");
        }
        state
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("throttle")
    }

    fn path(&self, name: &str) -> String {
        self.folder().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = throttle(args);
        command.env("XDG_STATE_HOME", self.0.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        feed(self.command(args), b"")
    }

    #[track_caller]
    fn says(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.code(), &*output.err), (Some(0), ""), "{args:?}");
        output.into_text()
    }

    fn waiter(&self, bucket: &str) -> Running {
        let waiter = Running::start(self.command(&["--bucket", bucket, "--once", "true"]));
        wait_until("it to wait", || self.says(&["--bucket", bucket, "--show"]).contains("waiting"));
        waiter
    }
}

const AN_HOUR: &str = "1/h,burst=1,initial=0";

/// Both states and the record of the policy.
fn damage(path: &str) {
    let mut bytes = fs::read(path).unwrap();
    for place in [64, 4096, 4096 + (1 << 24)] {
        bytes[place] ^= 1;
    }
    fs::write(path, bytes).unwrap();
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// As another user than root, who may read everything.
fn as_nobody(folder: &Path) -> impl Fn(&[&str]) -> Ended {
    const NOBODY: u32 = 65_534;
    let (program, is_root) = (folder.join("program"), rustix::process::geteuid().is_root());
    copy_program(THROTTLE, &program);
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    if is_root {
        chown(folder, Some(NOBODY), None).unwrap();
    }
    move |args| {
        let mut command = Command::new(&program);
        command.args(args).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        if is_root {
            command.uid(NOBODY);
        }
        feed(command, b"")
    }
}

mod files {
    use super::*;

    #[test]
    fn without_a_bucket_nothing_is_listed_and_nothing_is_made() {
        let state = State::new();
        for args in [&["--list"][..], &["--list", "json"], &["--bucket", "b", "--list"]] {
            assert_eq!(state.says(args), "");
        }
        assert_eq!(entries(state.0.path()), [""; 0]);
        fs::create_dir(state.folder()).unwrap();
        assert_eq!(state.says(&["--list"]), "");
    }

    #[test]
    fn each_bucket_has_a_line_with_its_limits_and_how_many_wait() {
        let state = State::with(&[("api", "5/s"), ("slow", AN_HOUR), ("big", "10MB/s,burst=1MB")]);
        state.says(&["--bucket", "api", "--set", "-r", "5/s", "-r", "5000/h"]);
        let _waiter = state.waiter("slow");
        let before = fs::read(state.path("api")).unwrap();
        let expected = "api: 5/s,burst=1 and 5000/h,window,slack=250ms\n\
            big: 10MB/s,burst=1000000\n\
            slow: 1/h,burst=1,initial=0, 1 waiting\n";
        let folder = state.folder().to_str().unwrap().to_owned();
        for args in [
            &["--list"][..],
            &["--list", "text"],
            &["--bucket", "api", "--list"],
            &["--bucket", "no-such", "--list"],
            &["--bucket", &folder, "--list"],
            &["--bucket", &format!("{folder}/"), "--list"],
            &["--bucket", &format!("{folder}/no-such"), "--list"],
        ] {
            assert_eq!(state.says(args), expected, "{args:?}");
        }
        for default in ["big", &format!("{folder}/big"), &folder] {
            let mut command = state.command(&["--list"]);
            command.env("THROTTLE_BUCKET", default).env_remove("HOME");
            assert_eq!(feed(command, b"").into_text(), expected, "{default}");
        }
        assert_eq!(fs::read(state.path("api")).unwrap(), before, "looking changes nothing");
    }

    #[test]
    fn as_json_each_line_is_what_show_writes() {
        let state = State::with(&[("a", "9/h,window"), ("b", "7/h,window")]);
        let shown = |name: &str| state.says(&["--bucket", name, "--show", "json"]);
        assert_eq!(state.says(&["--list", "json"]), shown("a") + &shown("b"));
    }

    #[test]
    fn other_files_are_left_out_and_broken_buckets_reported() {
        let state = State::with(&[("a", "9/h"), ("damaged", "9/h")]);
        let path = |name: &str| state.path(name);
        damage(&path("damaged"));
        fs::write(path("newer"), "throttle bucket 19\n something that is yet to come").unwrap();
        fs::write(path("short"), "throttle bucket 18\n").unwrap();
        fs::write(path("script"), "#!/bin/sh\n").unwrap();
        fs::write(path("empty"), "").unwrap();
        fs::copy(path("a"), path(".throttle-Ab3")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink(path("a"), path("link")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let (before, folder) = (entries(&state.folder()), path(""));
        // An empty file is nothing in a folder that is for other files, too.
        for (args, is_named) in [(&["--list"][..], true), (&["--bucket", &folder, "--list"], false)] {
            let said = state.says(args);
            let lines: Vec<&str> = said.lines().collect();
            assert_eq!(lines.len(), if is_named { 5 } else { 4 }, "{said}");
            for (start, words) in [
                ("a: 9/h,burst=1", ""),
                ("damaged: the bucket ", "is damaged; to start again"),
                ("newer: the bucket ", "newer throttle"),
                ("short: the bucket ", "cut short (19 bytes)"),
            ] {
                assert!(lines.iter().any(|line| line.starts_with(start) && line.contains(words)), "{start}: {said}");
            }
            assert_eq!(said.contains("empty: the bucket"), is_named, "{said}");
        }
        let json = state.says(&["--list", "json"]);
        let damaged: Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
        assert_eq!((damaged["bucket"].as_str(), damaged["path"].as_str()), (Some("damaged"), Some(&*path("damaged"))));
        assert!(damaged["error"].as_str().unwrap().contains("is damaged"), "{json}");
        assert_eq!(entries(&state.folder()), before);
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_an_error() {
        let state = State::with(&[("a", "9/h")]);
        for (place, words) in [
            ("/no/such/folder/", "cannot read the folder /no/such/folder/: no such file"),
            ("/no/such/bucket", "cannot read the folder /no/such: no such file"),
            (&format!("{}/", state.path("a")), "not a directory"),
        ] {
            assert_fails(&state.run(&["--bucket", place, "--list"]), 1, &[words]);
            let mut default = state.command(&["--list"]);
            default.env("THROTTLE_BUCKET", place);
            assert_fails(&feed(default, b""), 1, &["throttle: THROTTLE_BUCKET: cannot read the folder", words]);
        }
        let folder = tempfile::tempdir().unwrap();
        let (run, closed) = (as_nobody(folder.path()), folder.path().join("closed"));
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let place = format!("{}/", closed.to_str().unwrap());
        assert_fails(&run(&["--bucket", &place, "--list"]), 1, &["cannot read the folder", "permission denied"]);
    }

    /// Others could replace what is in it.
    #[test]
    fn a_folder_of_buckets_that_others_may_write_to_is_an_error() {
        let state = State::with(&[("a", "9/h")]);
        fs::set_permissions(state.folder(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_fails(&state.run(&["--list"]), 1, &["others may write to the folder", "chmod go-w"]);
    }

    #[test]
    fn odd_names_do_not_steer_the_terminal() {
        let state = State::with(&[("a", "9/h")]);
        let odd = "a\u{1b}[31m\n\u{9b}1m\u{202e}b";
        state.says(&["--bucket", &state.path(odd), "--set", "-r", "5/s"]);
        damage(&state.path("a"));
        for format in ["text", "json"] {
            let (terminal, read) = recorded_terminal();
            let mut command = state.command(&["--list", format]);
            command.stdout(terminal);
            assert!(feed(command, b"").status.success());
            let shown = read.join().unwrap();
            assert!(shown.lines().count() == 2 && shown.contains("5/s,burst=1"), "{shown:?}");
            assert!(!shown.contains(|c: char| c != '\n' && (c.is_control() || c == '\u{202e}')), "{shown:?}");
        }
        assert!(state.says(&["--list"]).contains(odd), "elsewhere a name is what it is");
    }

    #[test]
    fn a_bucket_that_another_program_keeps_locked_holds_up_no_list() {
        let state = State::with(&[("a", "9/h"), ("b", "9/h"), ("c", "9/h")]);
        let file = fs::File::open(state.path("b")).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let said = state.says(&["--list"]);
        assert!(said.contains("b: another program keeps the bucket") && said.contains("c: 9/h,burst=1\n"), "{said}");
    }

    /// As `cat` does.
    #[test]
    fn a_reader_that_has_left_ends_it_without_a_word() {
        let state = State::with(&[("a", "9/h")]);
        for args in [&["--list"][..], &["--bucket", "a", "--show"]] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = state.command(args);
            command.stdout(writer);
            let ended = feed(command, b"");
            assert_eq!((ended.signal(), &*ended.err), (Some(13), ""), "{args:?}");
        }
    }

    #[test]
    fn a_bucket_is_removed_also_a_damaged_one() {
        let state = State::with(&[("a", "9/h"), ("b", "9/h"), ("c", "9/h")]);
        damage(&state.path("b"));
        fs::set_permissions(state.path("c"), fs::Permissions::from_mode(0o400)).unwrap();
        for name in ["a", "b", "c"] {
            assert_eq!(state.says(&["--bucket", name, "--remove"]), "");
        }
        assert_eq!(entries(&state.folder()), [""; 0]);
        let words = ["there is no bucket ", "; to list the buckets write --list"];
        assert_fails(&state.run(&["--bucket", "a", "--remove"]), 1, &words);
        let mut default = state.command(&["--remove"]);
        default.env("THROTTLE_BUCKET", "a");
        assert_fails(&feed(default, b""), 1, &["THROTTLE_BUCKET: there is no bucket ", words[1]]);
    }

    #[test]
    fn what_is_no_bucket_is_never_removed() {
        let state = State::with(&[("a", "9/h")]);
        let path = |name: &str| state.path(name);
        fs::write(path("script"), "#!/bin/sh\n").unwrap();
        fs::write(path("empty"), "").unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink(path("a"), path("link")).unwrap();
        let before = entries(&state.folder());
        for (name, words) in [
            ("script", "is not a bucket"),
            ("empty", "cut short (0 bytes)"),
            ("folder", "is not a plain file"),
            ("link", "is a symbolic link"),
        ] {
            assert_fails(&state.run(&["--bucket", name, "--remove"]), 1, &[words]);
        }
        assert_eq!(entries(&state.folder()), before);
    }

    /// The step of another process is whole, and nobody is left with a file that has no name.
    #[test]
    fn a_bucket_is_removed_once_it_is_not_locked() {
        let state = State::with(&[("a", "9/h")]);
        let file = fs::File::open(state.path("a")).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut remove = Running::start(state.command(&["--bucket", "a", "--remove"]));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(remove.is_running() && fs::exists(state.path("a")).unwrap());
        rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(remove.finish().status.success() && !fs::exists(state.path("a")).unwrap());
    }
}

mod those_who_use_it {
    use super::*;

    fn each(check: impl Fn(&str)) {
        let redis = Redis::start(&[]);
        let folder = tempfile::tempdir().unwrap();
        check(folder.path().join("b").to_str().unwrap());
        if let Some(redis) = redis {
            check(&redis.bucket("b"));
        }
    }

    #[test]
    fn a_stream_makes_it_again_with_its_limits() {
        each(|bucket| {
            let mut stream = Running::start(throttle(["--bucket", bucket, "-r", "100/s,burst=1"]));
            let (mut stdin, lines) = (stream.stdin(), Lines::of(stream.stdout()));
            stdin.write_all(b"a\n").unwrap();
            assert_eq!(lines.next(), "a");
            assert_eq!(runs(bucket, &["--remove"]), "");
            assert_eq!(runs(bucket, &["--list"]), "");
            stdin.write_all(b"b\n").unwrap();
            assert_eq!(lines.next(), "b");
            assert_eq!(runs(bucket, &["--list"]), "b: 100/s,burst=1\n");
        });
    }

    #[test]
    fn waiters_are_counted_and_make_it_again_in_order() {
        let (state, redis) = (State::with(&[("b", AN_HOUR)]), Redis::start(&[]));
        let on_server = redis.map(|redis| (redis.bucket("b"), redis));
        let mut places = vec!["b"];
        if let Some((bucket, _)) = &on_server {
            runs(bucket, &["--set", "-r", AN_HOUR]);
            places.push(bucket);
        }
        let waiters: Vec<Running> = places.iter().map(|bucket| state.waiter(bucket)).collect();
        for bucket in &places {
            let output = state.run(&["--bucket", bucket, "--remove"]);
            let said = &output.err;
            assert!(output.status.success() && said.starts_with("throttle: 1 waited for the bucket "), "{said}");
            // The one that waits may have made it again by now.
            let list = state.says(&["--bucket", bucket, "--list"]);
            assert!(!list.contains("b: ") || list == "b: 1/h,burst=1,initial=0, 1 waiting\n", "{list}");
        }
        for bucket in &places {
            let list = || state.says(&["--bucket", bucket, "--list"]);
            wait_until("it to be made again", || list() == "b: 1/h,burst=1,initial=0, 1 waiting\n");
            assert_eq!(state.says(&["--bucket", bucket, "--remove", "-q"]), "");
        }
        drop(waiters);
    }
}

mod server {
    use super::*;

    #[test]
    fn its_buckets_are_named_by_a_scan_among_many_other_keys() {
        let Some(redis) = Redis::start(&["--requirepass", "s3cret"]) else { return };
        let at = |path: &str| format!("redis://:s3cret@127.0.0.1:{}{path}", redis.port);
        assert_eq!(runs(&at("/"), &["--list"]), "");
        let mut connection = redis::Client::open(at("/")).unwrap().get_connection().unwrap();
        let mut tell =
            |words: &[&str]| -> redis::Value { redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap() };
        for key in 0..3000 {
            tell(&["SET", &format!("key:{key}"), "value"]);
        }
        for name in ["c", "api", "b"] {
            runs(&at(&format!("/{name}")), &["--set", "-r", "5/s", "-r", "5000/h"]);
        }
        runs(&at("/2/other"), &["--set", "-r", "9/h"]);
        tell(&["SET", "throttle:string", "value"]);
        tell(&["HSET", "throttle:hash", "field", "value"]);
        tell(&["HSET", "throttle:an\u{1b}[31m odd one", "v", "18"]);
        tell(&["HSET", "throttle:damaged", "v", "18", "first", "x"]);
        tell(&["HSET", "throttle:newer", "v", "18"]);
        let size = tell(&["DBSIZE"]);
        let all = "api: 5/s,burst=1 and 5000/h,window,slack=250ms\n\
            b: 5/s,burst=1 and 5000/h,window,slack=250ms\n\
            c: 5/s,burst=1 and 5000/h,window,slack=250ms\n\
            damaged: the bucket ";
        for path in ["", "/", "/api", "/no-such"] {
            let said = runs(&at(path), &["--list"]);
            assert!(said.starts_with(all) && said.lines().count() == 5 && !said.contains("s3cret"), "{path}: {said}");
            assert!(said.lines().nth(4).unwrap().starts_with("newer: the bucket "), "{said}");
        }
        assert_eq!(runs(&at("/2/"), &["--list"]), "other: 9/h,burst=1\n");
        // The start of the counts is shown as a time of the wall clock, and may be a second off.
        let parse = |line: &str| -> serde_json::Value {
            let mut state: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(state["counts"]["since"].take().is_u64(), "{line}");
            state
        };
        let listed = runs(&at("/"), &["--list", "json"]);
        assert_eq!(parse(listed.lines().next().unwrap()), parse(&runs(&at("/api"), &["--show", "json"])));
        assert_eq!(tell(&["DBSIZE"]), size, "nothing is made");
        let redis::Value::BulkString(counts) = tell(&["INFO", "commandstats"]) else { panic!("counts") };
        let counts = text(&counts);
        assert!(!counts.contains("cmdstat_keys:"), "it would block the server");
        let scans: u64 =
            counts.split("cmdstat_scan:calls=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        assert!(scans >= 5 * 3000 / 500, "{scans}: a step is short");
    }

    #[test]
    fn what_a_server_refuses_is_said_of_the_server() {
        let Some(redis) = Redis::start(&["--requirepass", "s3cret"]) else { return };
        let list = |address: &str| feed(throttle(["--bucket", address, "--list"]), b"");
        let at = format!("127.0.0.1:{}", redis.port);
        let refuses = format!("the server redis://{at}/ refuses: ");
        assert_fails(&list(&format!("redis://{at}")), 1, &[&refuses, "it needs a password; write ?password-file=PATH"]);
        assert_fails(&list(&format!("redis://:no@{at}/")), 1, &[&refuses, "wrong user or password"]);
        let away = feed(throttle(["--bucket", "redis://127.0.0.1:1", "--list", "--on-store-error", "fail"]), b"");
        assert_fails(&away, 125, &["cannot reach the server redis://127.0.0.1:1/: "]);
        let mut default = throttle(["--list"]);
        default.env("THROTTLE_BUCKET", format!("redis://{at}"));
        assert_fails(&feed(default, b""), 1, &["throttle: THROTTLE_BUCKET: the server redis"]);
    }

    #[test]
    fn a_bucket_is_removed_also_a_damaged_one_and_nothing_else() {
        let Some(redis) = Redis::start(&[]) else { return };
        runs(&redis.bucket("b"), &["--set", "-r", "5/s"]);
        let _: i64 = redis.tell(&["HSET", "throttle:damaged", "v", "18", "id", "x"]);
        let _: i64 = redis.tell(&["HSET", "throttle:newer", "v", "19"]);
        let _: i64 = redis.tell(&["HSET", "throttle:hash", "field", "value"]);
        let () = redis.tell(&["SET", "throttle:string", "value"]);
        let remove = |name: &str| feed(throttle(["--bucket", &redis.bucket(name), "--remove"]), b"");
        for name in ["b", "damaged"] {
            assert!(remove(name).status.success(), "{name}");
            assert_eq!(redis.tell::<i64>(&["EXISTS", &format!("throttle:{name}")]), 0, "{name}");
        }
        for (name, words) in [
            ("b", "there is no bucket "),
            ("b", "; to list the buckets write --list"),
            ("newer", "has format 19"),
            ("hash", "holds something else"),
            ("string", "holds something else"),
        ] {
            assert_fails(&remove(name), 1, &[words]);
        }
        assert_eq!(redis.tell::<i64>(&["DBSIZE"]), 3);
    }
}
