//! A byte-order mark, as some editors and spreadsheets write it before a text: parsers skip it, and a pipe passes it on.

use crate::support::{Ended, feed, run, throttle};
use std::fs;

const MARK: &str = "\u{feff}";

fn ran(args: &[&str], input: &str) -> Ended {
    let ended = run(args, format!("{MARK}{input}"));
    assert_eq!(ended.code(), Some(0), "{args:?}: {}", ended.err);
    ended
}

#[test]
fn a_key_and_a_cost_are_found_after_the_mark() {
    for (limit, input, key) in [
        ("1k/s,per=/n", "{\"n\":\"a\"}\n", "a"),
        ("1k/s,per=f1", "a 1\n", "a"),
        ("1k/s,per=re:^[a-z]+", "a1\n", "a"),
        ("1k/s,per=host", "https://a/b\n", "a"),
    ] {
        let ended = ran(&["-r", limit, "-c", ": \"$1\"; echo \"$THROTTLE_KEY\""], input);
        assert_eq!(ended.text(), format!("{key}\n"), "{limit}");
    }
    for (limit, input) in [("1k/s,cost=/n", "{\"n\":3}\n"), ("1k/s,cost=f1", "3 a\n"), ("1k/s,cost=f1:;", "3;a\n")] {
        let ended = ran(&["-r", limit], input);
        assert_eq!(ended.text(), format!("{MARK}{input}"), "a pipe passes the mark on: {limit}");
    }
}

#[test]
fn columns_begin_after_the_mark() {
    for (columns, input) in [("--columns", "a b\n"), ("--columns=,", "a,b\n"), ("--columns=csv", "\"a\",b\n")] {
        let ended = ran(&["-r", "unlimited", "--summary", columns, "echo", "{1}"], input);
        assert_eq!((ended.text(), ended.err.contains("byte-order")), ("a\n", false), "{columns}: {}", ended.err);
    }
}

#[test]
fn the_first_key_of_a_file_of_rates_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let rates = folder.path().join("rates");
    fs::write(&rates, format!("{MARK}a 10/s\n")).unwrap();
    let ended = run(["--dry-run", "-r", &format!("1/s,per=f1,rates={}", rates.display())], "a 1\na 2\n");
    assert!(ended.text().contains("a 2  # 100 ms"), "{}", ended.text());
}

#[test]
fn a_done_list_with_a_mark_has_its_first_unit() {
    let folder = tempfile::tempdir().unwrap();
    let continued = |before: &str, input: &str| {
        fs::write(folder.path().join("seen"), before).unwrap();
        let mut command = throttle(["-q", "-r", "unlimited", "--done", "seen", "echo"]);
        command.current_dir(&folder);
        feed(command, input).text().to_owned()
    };
    assert_eq!(continued(&format!("{MARK}a\nb\n"), "a\nb\nc\n"), "c\n", "an editor has written the mark");
    let input = format!("{MARK}a\nb\nc\n");
    assert_eq!(continued(&format!("{MARK}a\nb\n"), &input), "c\n", "the input has the mark");
}

#[test]
fn a_command_that_gets_the_mark_gets_one_hint() {
    let hint = "throttle: hint: a unit begins with a byte-order mark, which its command also gets; to remove it: \
         sed 's/^\\xEF\\xBB\\xBF//' FILE | throttle …\n";
    let ended = ran(&["-r", "unlimited", "--summary", "echo"], &format!("a\n{MARK}b\n"));
    assert_eq!((ended.err.matches(hint).count(), ended.err.matches("byte-order").count()), (1, 1), "{}", ended.err);
    assert!(ended.text().starts_with(MARK), "the argument is unchanged");
    assert_eq!(ran(&["-r", "unlimited", "echo"], "a\n").err, "", "not outside of a terminal");
    let repaired = crate::support::shell("printf '\\357\\273\\277a\\n' | sed 's/^\\xEF\\xBB\\xBF//'");
    assert_eq!(feed(repaired, "").text(), "a\n", "as the hint says");
}
