//! Buckets and their machine: other users, full and read-only disks, time namespaces. A test that needs
//! rights that it does not have is skipped, with a message.

use crate::support::{Ended, THROTTLE, assert_fails, can, copy_program, skipped};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A user that is not root and owns nothing.
const NOBODY: &str = "65534";

/// A folder that other users may read, with the program in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        copy_program(THROTTLE, &folder.path().join("throttle"));
        Place(folder)
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn bucket(&self) -> PathBuf {
        self.folder().join("bucket")
    }

    /// `script`, run by `wrapper`. In it `"$0"` is the program, `"$1"` the bucket and `"$2"` its folder.
    fn run(&self, wrapper: &[&str], script: &str) -> Ended {
        let mut command = Command::new(wrapper.first().unwrap_or(&"sh"));
        command.args(wrapper.iter().skip(1));
        if !wrapper.is_empty() {
            command.arg("sh");
        }
        command.args(["-c", script]).arg(self.folder().join("throttle")).arg(self.bucket()).arg(self.folder());
        command.stdin(Stdio::null()).output().unwrap().into()
    }
}

const AS_NOBODY: [&str; 6] = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];

#[test]
fn the_message_to_another_user_names_the_owner() {
    if !can(&AS_NOBODY) {
        return;
    }
    let place = Place::new();
    let made = place.run(&[], "\"$0\" --bucket \"$1\" -r 5/s --once");
    assert!(made.status.success(), "{}", made.err);
    let words = ["belongs to user 0", "under sudo you are root"];
    assert_fails(&place.run(&AS_NOBODY, "\"$0\" --bucket \"$1\" --once"), 125, &words);
    fs::set_permissions(place.bucket(), fs::Permissions::from_mode(0o666)).unwrap();
    assert_fails(&place.run(&AS_NOBODY, "\"$0\" --bucket \"$1\" --once"), 125, &words);
}

/// A user in these groups.
fn user<'a>(id: &'a str, groups: &'a str) -> [&'a str; 7] {
    ["setpriv", "--reuid", id, "--regid", id, "--groups", groups]
}

/// Two users of one group, and one who is not in it.
#[test]
fn a_file_of_a_group_is_used_by_its_members_alone() {
    let [ann, ben, eve] = [user("70001", "70009"), user("70002", "70009,70008"), user("70003", "70008")];
    if !can(&ann) {
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.folder(), None, Some(70009)).unwrap();
    fs::set_permissions(place.folder(), fs::Permissions::from_mode(0o775)).unwrap();
    let file = || fs::metadata(place.bucket()).map(|file| (file.uid(), file.gid(), file.mode() & 0o7777)).unwrap();
    let says = |who: &[&str], script: &str| {
        let output = place.run(who, script);
        assert!(output.status.success(), "{who:?} {script}: {}", output.err);
        output.into_text()
    };
    let refused = |who: &[&str], verb: &str, words: &str| {
        let output = place.run(who, &format!("\"$0\" --bucket \"$1\" {verb}"));
        assert!(!output.status.success() && output.err.contains(words), "{verb}: {}", output.err);
    };
    refused(
        &ann,
        "--set -r 1/h --group 70007",
        "to group 70007: only its owner can do that, and only for a group of the owner",
    );
    assert!(!place.bucket().exists(), "nothing is made that the group could not use");
    let named = place.run(&ann, "\"$0\" --bucket name --set -r 1/h --group 70009");
    assert!(named.err.contains("--group needs the path of a bucket"), "{}", named.err);
    refused(&ann, "--set -r 1/h --group no-such", "--group 'no-such': there is no such group");
    says(&ann, "umask 000; \"$0\" --bucket \"$1\" --set -r 9/h,burst=9 --group 70009");
    assert_eq!(file(), (70001, 70009, 0o660));
    for who in [&ann, &ben] {
        says(who, "\"$0\" --bucket \"$1\" --once");
        refused(&eve, "--once", "belongs to user 70001 and group 70009, which you are not in");
    }
    assert!(says(&ben, "\"$0\" --bucket \"$1\" --show").contains("burst=9: 7 left"));
    refused(&ben, "--set -r 9/h --group 70008", "only its owner can");
    // A file that replaces the bucket belongs to the group too, and keeps it after any number of writes.
    says(&ben, "\"$0\" --bucket \"$1\" --set -r 1M/s");
    let replaces = "umask 077; { echo a; sleep 0.2; rm \"$1\"; seq 300; } | \"$0\" --bucket \"$1\"";
    assert_eq!(says(&ben, replaces).lines().count(), 301);
    assert_eq!(file(), (70002, 70009, 0o660));
    says(&ann, "seq 300 | \"$0\" --bucket \"$1\" true");
    assert_eq!(file(), (70002, 70009, 0o660));
    // A file that was private until now.
    let shares = "rm \"$1\"; \"$0\" --bucket \"$1\" --once -r 9/h; \"$0\" --bucket \"$1\" --set -r 9/h --group daemon";
    says(&[], shares);
    assert_eq!((file().0, file().2), (0, 0o660));
    fs::set_permissions(place.bucket(), fs::Permissions::from_mode(0o666)).unwrap();
    refused(&ann, "--once", "belongs to user 0; each user");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    if !can(&AS_NOBODY) {
        return;
    }
    let place = Place::new();
    let output = place.run(&AS_NOBODY, "\"$0\" --bucket \"$1\" -r 5/s --once");
    assert_fails(&output, 125, &["cannot make the bucket", "permission denied", "a place of your own"]);
    assert!(!place.bucket().exists());
}

#[test]
fn a_bucket_in_a_read_only_place_is_not_used() {
    let unshare = ["unshare", "-m"];
    if !can(&unshare) {
        return;
    }
    let place = Place::new();
    let script = "\"$0\" --bucket \"$1\" -r 5/s --once && mount --bind \"$2\" \"$2\" && mount -o remount,ro,bind \"$2\" || exit 9
        cd /; \"$0\" --bucket \"$1\" -r 5/s --once";
    assert_fails(
        &place.run(&unshare, script),
        125,
        &["cannot open the bucket", "read-only file system", "where you may write"],
    );
}

/// On a full disk no bucket is made and nothing is granted. One that was made before has all the room it will need.
#[test]
#[ignore = "slow: 5 s"]
fn a_full_disk_is_an_error_only_when_a_bucket_is_made() {
    let unshare = ["unshare", "-m"];
    if !can(&unshare) {
        return;
    }
    let place = Place::new();
    // The program is started by another path, because its folder is mounted over.
    let script = "exec 7<\"$0\"; mount -t tmpfs -o size=256k tmpfs \"$2\" || exit 9
        fill() { head -c 2M /dev/zero > \"$2/fill\" 2>/dev/null; }
        once() { /proc/self/fd/7 --bucket \"$1\" -r 900/h,window --once --max-wait 0; }
        ";
    let run = |then: &str| place.run(&unshare, &format!("{script}{then}"));
    let no_room = ["no space left", "nothing was taken"];
    assert_fails(&run("fill \"$@\"; once \"$@\""), 125, &no_room);
    // Each call adds to the window's log.
    let calls = "once \"$@\" || exit 8; fill \"$@\"; n=0
        while [ $n -lt 600 ]; do once \"$@\" || break; n=$((n + 1)); done
        /proc/self/fd/7 --bucket \"$1\" --show json";
    let grown = run(calls);
    assert!(grown.status.success() && grown.err.is_empty(), "{}", grown.err);
    let shown: serde_json::Value = serde_json::from_slice(&grown.out).unwrap();
    assert_eq!(shown["available"], 900 - 1 - 600);
}

/// A time namespace changes the boot clock, but not the bucket's clock.
#[test]
fn a_time_namespace_makes_no_difference() {
    for offset in ["1000000", "-5"] {
        let boottime = format!("--boottime={offset}");
        let inside = ["unshare", "-T", &boottime];
        if !can(&inside) {
            continue;
        }
        let place = Place::new();
        let made = place.run(&[], "\"$0\" --bucket \"$1\" -r 1/h --once");
        assert!(made.status.success(), "{}", made.err);
        for wrapper in [&inside[..], &[]] {
            let shown = place.run(wrapper, "\"$0\" --bucket \"$1\" --show json");
            let shown: serde_json::Value = serde_json::from_slice(&shown.out).unwrap();
            let wait = shown["wait_ns"].as_u64().unwrap() / 1_000_000_000;
            assert!((3000..=3600).contains(&wait), "{offset}: {wait} s");
        }
        let waited =
            place.run(&inside, "\"$0\" --bucket \"$1\" --set -r 10/s,initial=0 && \"$0\" --bucket \"$1\" --once");
        assert!(waited.status.success(), "it is slept on the right clock: {}", waited.err);
    }
}

/// A real remote file system, and one that a local program serves. Only the script sees both.
#[test]
fn a_fuse_file_system_is_refused_if_it_is_remote() {
    let sftp = "/usr/lib/openssh/sftp-server";
    let is_there = |tool: &str| Path::new("/usr/bin").join(tool).exists();
    if !can(&["unshare", "-m"]) || !Path::new("/dev/fuse").exists() || !Path::new(sftp).exists() {
        return skipped(format!("needs root, /dev/fuse and {sftp}"));
    }
    for (tool, mount) in [
        ("sshfs", "sshfs -o ssh_command=\"$2/ssh\" \"here:$2/real\" \"$2/seen\""),
        ("bindfs", "bindfs \"$2/real\" \"$2/seen\""),
    ] {
        if !is_there(tool) {
            skipped(format!("no {tool} here"));
            continue;
        }
        let place = Place::new();
        let script = format!(
            "mkdir \"$2/real\" \"$2/seen\"; printf '#!/bin/sh\\nexec {sftp}\\n' > \"$2/ssh\"; chmod +x \"$2/ssh\"
            {mount} 2>/dev/null || exit 9
            \"$0\" --bucket \"$2/seen/b\" -r 5/s --once; code=$?; umount \"$2/seen\"; exit $code"
        );
        let output = place.run(&["unshare", "-m"], &script);
        match tool {
            "sshfs" => {
                assert_fails(&output, 125, &["network file system (fuse.sshfs)", "choose a place on this machine"]);
                assert_eq!(fs::read_dir(place.folder().join("real")).unwrap().count(), 0, "nothing is left there");
            }
            _ => assert!(output.status.success(), "{}", output.err),
        }
    }
}
