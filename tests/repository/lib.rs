//! Checks of the repository's own text. It builds without the program, so a fault here is reported first.

#![cfg(test)]

#[allow(dead_code, reason = "the tests of the program run what these tests only count")]
#[path = "../program/pages/blocks.rs"]
mod blocks;
mod layers;
mod mutants;
mod pages;
mod plain_english;
mod test_names;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The top of the repository.
fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap());
    &ROOT
}

/// The files at or below `folder`, sorted by path.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort_unstable();
    files
}

/// The Rust files at or below `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}
