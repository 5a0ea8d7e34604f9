//! The lists of mutations do not rot: the lines that each changes stand in the source exactly once, each test it names
//! exists, and every requirement of the limiters has one. That the tests fail is for `tests/mutations.sh` to show.

use std::fs;
use std::path::Path;

/// What one entry of a list says.
#[derive(Default)]
struct Mutation {
    /// `7`, or the requirement and a number: `A1.2`.
    name: String,
    file: String,
    binary: String,
    test: String,
    old: Vec<String>,
    new: Vec<String>,
}

fn mutations(list: &str) -> Vec<Mutation> {
    read(list).split("\n## ").skip(1).map(mutation).collect()
}

fn mutation(entry: &str) -> Mutation {
    let mut mutation = Mutation { name: entry.split([' ', '\n']).next().unwrap().to_owned(), ..Mutation::default() };
    let mut in_diff = false;
    for line in entry.lines() {
        match (in_diff, line.split_at_checked(1)) {
            (false, _) if line == "```diff" => in_diff = true,
            (false, _) if line.starts_with("`src/") => {
                let words: Vec<&str> = line.split('`').collect();
                let (binary, test) = words[3].split_once("::").unwrap();
                (mutation.file, mutation.binary, mutation.test) = (words[1].into(), binary.into(), test.into());
            }
            (true, Some((" ", context))) => {
                mutation.old.push(context.into());
                mutation.new.push(context.into());
            }
            (true, Some(("-", old))) => mutation.old.push(old.into()),
            (true, Some(("+", new))) => mutation.new.push(new.into()),
            (true, _) => in_diff = false,
            (false, _) => {}
        }
    }
    mutation
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_mutation_changes_one_place_and_names_a_test() {
    for list in ["tests/mutations.md", "tests/mutations_limiters.md"] {
        let mutations = mutations(list);
        assert!(mutations.len() >= 10);
        for Mutation { name, file, binary, test, old, new } in mutations {
            let source = read(&file);
            let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
            assert_eq!(lines.windows(old.len()).filter(|place| *place == old).count(), 1, "{name}: {file}: {old:#?}");
            assert_ne!(old, new);
            assert!(read(&format!("tests/{binary}.rs")).contains(&format!("fn {test}(")), "{name}: {binary}: {test}");
        }
    }
}

#[test]
fn every_requirement_of_the_limiters_has_a_mutation_and_a_test_of_its_name() {
    let mutations = mutations("tests/mutations_limiters.md");
    let ids = [("A", 14), ("B", 11), ("C", 9), ("D", 11)];
    let ids = ids.iter().flat_map(|&(kind, count)| (1..=count).map(move |number| format!("{kind}{number}")));
    let id = |mutation: &Mutation| mutation.name.split('.').next().unwrap().to_owned();
    for wanted in ids {
        assert!(mutations.iter().any(|mutation| id(mutation) == wanted), "{wanted} has no mutation");
    }
    for mutation in &mutations {
        let prefix = format!("{}_", id(mutation).to_lowercase());
        assert!(mutation.test.starts_with(&prefix) || prefix == "fault_", "{}: {}", mutation.name, mutation.test);
    }
    let mut names: Vec<_> = mutations.iter().map(|mutation| &mutation.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
}
