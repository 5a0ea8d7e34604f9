//! The list of mutations does not rot: each line it changes stands in the core exactly once, and each test it names exists.
//! That the tests fail is for `tests/mutations.sh` to show, which takes minutes.

use std::fs;
use std::path::Path;

/// What one entry of `mutations.md` says.
#[derive(Default)]
struct Mutation<'a> {
    file: &'a str,
    binary: &'a str,
    test: &'a str,
    old: &'a str,
    new: &'a str,
}

fn mutations(text: &str) -> Vec<Mutation<'_>> {
    text.split("\n## ").skip(1).map(mutation).collect()
}

fn mutation(entry: &str) -> Mutation<'_> {
    let mut mutation = Mutation::default();
    for line in entry.lines() {
        if line.starts_with("`src/") {
            let words: Vec<&str> = line.split('`').collect();
            mutation.file = words[1];
            (mutation.binary, mutation.test) = words[3].split_once("::").unwrap();
        } else if let Some(old) = line.strip_prefix('-') {
            mutation.old = old;
        } else if let Some(new) = line.strip_prefix('+') {
            mutation.new = new;
        }
    }
    mutation
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_mutation_changes_one_line_of_the_core_and_names_a_test() {
    let text = read("tests/mutations.md");
    let mutations = mutations(&text);
    assert!(mutations.len() >= 10);
    for Mutation { file, binary, test, old, new } in mutations {
        assert_eq!(read(file).lines().filter(|line| line.trim() == old).count(), 1, "{file}: {old}");
        assert_ne!(old, new);
        assert!(read(&format!("tests/{binary}.rs")).contains(&format!("fn {test}(")), "{binary}: {test}");
    }
}
