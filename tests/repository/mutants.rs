//! The files of cargo-mutants name files that exist.

use crate::{root, sources};
use regex::bytes::Regex;
use std::fs;

#[test]
fn each_glob_of_cargo_mutants_matches_a_file() {
    let sources = ["src", "library/src"].map(|folder| sources(&root().join(folder))).concat();
    let sources: Vec<&str> = sources.iter().map(|file| file.strip_prefix(root()).unwrap().to_str().unwrap()).collect();
    let (quoted, mut globs) = (Regex::new("(?-u)\"([^\"]+)\"").unwrap(), 0);
    for list in ["mutants.toml", "mutants-program.toml"] {
        let text = fs::read_to_string(root().join(".cargo").join(list)).unwrap();
        let parts = text.split("_globs = [").skip(1).map(|part| part.split(']').next().unwrap());
        for glob in parts.flat_map(|part| quoted.captures_iter(part.as_bytes())) {
            let glob = String::from_utf8(glob[1].to_vec()).unwrap();
            let pattern = regex::escape(&glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*");
            let pattern = Regex::new(&format!("(?-u)^(?:{pattern})$")).unwrap();
            assert!(sources.iter().any(|file| pattern.is_match(file.as_bytes())), "{list}: {glob} matches no file");
            globs += 1;
        }
    }
    assert!(globs > 20, "only {globs} globs were found");
}
