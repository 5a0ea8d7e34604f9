//! The README's recipes for servers that refuse, each run as it stands there, with small programs in the place of curl,
//! sendmail and psql.

use crate::launching::{Ended, finish, numbers};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use tempfile::TempDir;

static SECTION: LazyLock<String> = LazyLock::new(|| {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let section = readme.split("## When an API says no\n").nth(1).expect("the section is there");
    section.split("\n## ").next().unwrap().to_owned()
});

/// The recipe in which `words` stand; only one has them.
fn recipe(words: &str) -> &'static str {
    let recipes = SECTION.split("```sh run\n").skip(1).map(|block| block.split("```").next().unwrap());
    let found: Vec<&str> = recipes.filter(|recipe| recipe.contains(words)).collect();
    assert_eq!(found.len(), 1, "{words}: {found:?}");
    found[0]
}

/// Counts its calls for each unit: `$n` is 1 at the first.
const CURL: &str = r#"for last; do :; done
echo "$last" >> "calls"
n=$(grep -cxF "$last" calls)
answer() { printf 'HTTP/2 %s\r\n%b\r\n' "$1" "$2" > "$THROTTLE_REPLY"; [ $1 = 200 ] && { echo "got $last"; exit 0; }; exit 22; }
case $last,$n in
*/missing,*) answer 404;;
*/flaky,[12]) answer 500;;
*/private,1) answer 403 "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: $(($(date +%s) + 1))\r\n";;
*/chat,*) echo "$5 $7" >> asked; mkdir told 2> /dev/null && answer 429 'retry-after: 1\r\n'; answer 200;;
*) answer 200;;
esac
"#;

/// A folder with these files, and stand-ins for what the recipes call.
fn place(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mail = "echo \"$1\" >> calls; case $1,$(grep -cxF \"$1\" calls) in grey*,[12]) exit 75;; late*,1) exit 1;; esac; cat > /dev/null";
    let psql = "echo $4 >> calls; [ $4 != 3.sql ]";
    for (name, script) in [("curl", CURL), ("sendmail", mail), ("psql", psql)] {
        let file = folder.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn run(folder: &TempDir, script: &str) -> Ended {
    let program = Path::new(env!("CARGO_BIN_EXE_throttle")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder).env("XDG_STATE_HOME", folder.path()).env_remove("THROTTLE_BUCKET");
    command.env("PATH", format!("{}:{}:{path}", folder.path().display(), program.display()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command, "")
}

fn sorted(folder: &TempDir, file: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        fs::read_to_string(folder.path().join(file)).unwrap_or_default().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn failed_calls_are_tried_again_and_a_second_run_makes_only_what_is_left() {
    let folder = place(&[("urls", "http://x/a\nhttp://x/flaky\nhttp://x/missing\n")]);
    let recipe = recipe("< urls").replace("--attempts 5", "--attempts 5 --backoff 50ms");
    let first = run(&folder, &recipe);
    assert_eq!(
        (first.code(), first.sorted()),
        (Some(123), vec!["got http://x/a", "got http://x/flaky"]),
        "{}",
        first.err
    );
    assert_eq!(sorted(&folder, "calls").len(), 5, "404 is not tried again");
    assert_eq!(sorted(&folder, "seen"), ["http://x/a", "http://x/flaky"]);
    let second = run(&folder, &recipe);
    assert_eq!((second.code(), second.text(), sorted(&folder, "calls").len()), (Some(123), "", 6), "{}", second.err);
    assert!(second.err.contains("0 ok, 1 failed, 2 done before"), "{}", second.err);
    let joblog = |folder| run(folder, self::recipe("jq -rn"));
    if Command::new("jq").arg("--version").output().is_err() {
        // Past the test harness, which shows no output of what passes.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: no jq here\n");
        return;
    }
    assert_eq!((joblog(&folder).code(), joblog(&folder).err), (Some(0), String::new()));
    let lines = fs::read_to_string(folder.path().join("joblog")).unwrap();
    let mut lines = lines.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let names = ["Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command"];
    assert_eq!(lines.next().unwrap(), names);
    let mut rows: Vec<_> =
        lines.map(|row| (row[0].to_owned(), row[6].to_owned(), row[7].to_owned(), row[8].to_owned())).collect();
    rows.sort();
    let row = |seq: &str, exit: &str, name: &str| {
        (seq.to_owned(), exit.to_owned(), "0".to_owned(), format!("http://x/{name}"))
    };
    let expected = [
        row("1", "0", "a"),
        row("1", "22", "missing"),
        row("2", "0", "flaky"),
        row("2", "22", "flaky"),
        row("2", "22", "flaky"),
        row("3", "22", "missing"),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn github_is_waited_for_until_its_quota_is_renewed() {
    let folder = place(&[("repos", "me/a\nme/private\nme/b\n")]);
    let ended = run(&folder, recipe("< repos"));
    let got = ["a", "b", "private"].map(|name| format!("got https://api.github.com/repos/me/{name}"));
    assert_eq!((ended.code(), ended.sorted()), (Some(0), got.iter().map(String::as_str).collect()), "{}", ended.err);
    let pause = run(&folder, recipe("--pause"));
    assert_eq!(pause.code(), Some(0), "{}", pause.err);
    let held = run(&folder, "throttle --bucket gh --once --max-wait 20s true");
    assert!(held.code() == Some(75), "{}", held.err);
}

#[test]
fn an_api_that_asks_to_wait_gets_every_prompt_once_more_with_the_same_id() {
    let folder = place(&[("prompts", "one\ntwo\nthree\n")]);
    let recipe = recipe("< prompts");
    let with_log = recipe.replace("--done answered", "--done answered --log tries.jsonl");
    let ended = run(&folder, &with_log);
    assert_eq!((ended.code(), ended.text().lines().count()), (Some(0), 3), "{}", ended.err);
    assert_eq!(sorted(&folder, "answered"), ["one", "three", "two"]);
    let later: Vec<Value> =
        sorted(&folder, "tries.jsonl").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let later: Vec<&Value> = later.iter().filter(|line| line["verdict"] == "later").collect();
    assert!(later.len() == 1 && later[0]["http"] == 429, "{later:?}");
    let mut asked = sorted(&folder, "asked");
    assert!(asked.len() == 4 && asked.iter().all(|line| line.starts_with("Idempotency-Key: ")), "{asked:?}");
    asked.dedup();
    assert_eq!(asked.len(), 3, "a prompt has the same key again");
    assert!(later[0]["until"].as_f64().unwrap() >= later[0]["start"].as_f64().unwrap() + 1.0);
}

#[test]
fn mail_that_is_turned_away_at_first_goes_out_later() {
    let folder = place(&[("addresses", "a@x\ngrey@x\nlate@x\n"), ("letter", "Hello\n")]);
    let recipe = recipe("< addresses");
    assert!(recipe.contains("--backoff 5m..1h"));
    let ended = run(&folder, &recipe.replace("5m..1h", "50ms..100ms"));
    assert_eq!((ended.code(), &*ended.err), (Some(0), ""));
    assert_eq!(sorted(&folder, "sent"), ["a@x", "grey@x", "late@x"]);
    assert_eq!(sorted(&folder, "calls").len(), 6);
}

#[test]
fn a_batch_job_stops_at_the_first_failure_that_lasts() {
    let scripts = numbers(40).replace('\n', ".sql\n");
    let folder = place(&[("scripts", &scripts)]);
    let ended = run(&folder, recipe("< scripts"));
    assert_eq!(ended.code(), Some(123), "{}", ended.err);
    assert!(ended.err.contains("line 3 '3.sql': the script exited 1, attempt 3\n"), "{}", ended.err);
    let (calls, applied) = (sorted(&folder, "calls"), sorted(&folder, "applied"));
    assert_eq!(calls.iter().filter(|call| *call == "3.sql").count(), 3);
    assert!(!applied.contains(&"3.sql".to_owned()) && applied.len() < 39, "{applied:?}");
    assert_eq!(applied.len(), calls.len() - 3, "what ran is recorded");
}
