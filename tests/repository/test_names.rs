//! The names of all tests in the repository are short, and have the code of a requirement only if a page explains the
//! code. Ignored tests have a reason.

use crate::{root, sources};
use regex::bytes::Regex;
use std::collections::BTreeSet;
use std::fs;

/// The most characters in the name of a test.
const MAX_NAME: usize = 60;

/// The folders with tests.
const FOLDERS: [&str; 6] = ["tests", "library/tests", "library/peers", "benches", "src", "library/src"];

/// The page of the codes. A row of its tables begins with one.
const REQUIREMENTS: &str = "library/docs/requirements.md";

/// The names of the tests below `folder`.
fn names(folder: &str) -> Vec<String> {
    let test = r"#\[(?:\w+::)?test(?:\(.*\))?\]\s*(?:(?:#\[.*\]|//.*)\s*)*(?:async )?fn (\w+)";
    let test = Regex::new(&format!("(?-u){test}")).unwrap();
    let texts = sources(&root().join(folder)).into_iter().map(|path| fs::read(path).unwrap());
    let names = |text: Vec<u8>| -> Vec<String> {
        test.captures_iter(&text).map(|found| String::from_utf8(found[1].to_vec()).unwrap()).collect()
    };
    texts.flat_map(names).collect()
}

#[test]
fn names_of_tests_are_short() {
    let mut count = 0;
    for folder in FOLDERS {
        let names = names(folder);
        count += names.len();
        let long: Vec<&String> = names.iter().filter(|name| name.len() > MAX_NAME).collect();
        assert!(long.is_empty(), "{folder}: longer than {MAX_NAME} characters: {long:#?}");
    }
    assert!(count > 1000, "only {count} tests were found: the pattern is wrong");
}

#[test]
fn a_code_in_the_name_of_a_test_is_on_the_page_of_requirements() {
    let code = Regex::new(r"(?-u)^((?:[a-z]|law)_?[0-9]+)_").unwrap();
    let used: BTreeSet<String> = FOLDERS
        .iter()
        .flat_map(|folder| names(folder))
        .filter_map(|name| Some(String::from_utf8(code.captures(name.as_bytes())?[1].to_vec()).unwrap()))
        .collect();
    let page = fs::read_to_string(root().join(REQUIREMENTS)).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let rows = rows.map(|(code, _)| code.to_lowercase()).filter(|code| code.ends_with(|c: char| c.is_ascii_digit()));
    assert_eq!(used, rows.collect::<BTreeSet<_>>());
}

/// `.ci/run` runs the slow tests too, but skips all names with `by_hand_` in them.
#[test]
fn an_ignored_test_is_slow_or_is_started_by_hand() {
    let ignored = r#"#\[ignore(?: = "([^"]*)")?\]\s*(?:(?:#\[.*\]|//.*)\s*)*(?:async )?fn (\w+)"#;
    let ignored = Regex::new(&format!("(?-u){ignored}")).unwrap();
    let mut count = 0;
    for path in FOLDERS.iter().flat_map(|folder| sources(&root().join(folder))) {
        for found in ignored.captures_iter(&fs::read(&path).unwrap()) {
            let [reason, name] = [1, 2].map(|group| found.get(group).map_or(&b""[..], |text| text.as_bytes()));
            let expected: &[u8] = if name.starts_with(b"by_hand_") { b"by hand: " } else { b"slow: " };
            assert!(reason.starts_with(expected), "{}: {}", path.display(), String::from_utf8_lossy(name));
            count += 1;
        }
    }
    let names = FOLDERS.iter().flat_map(|folder| names(folder));
    let skipped: Vec<String> =
        names.filter(|name| name.contains("by_hand_") && !name.starts_with("by_hand_")).collect();
    assert!(skipped.is_empty(), "never run: {skipped:#?}");
    assert!(count > 100, "only {count} ignored tests were found: the pattern is wrong");
}
