//! The blocks, links and length of README.md, CONTRIBUTING.md, SECURITY.md and docs/*.md.

use crate::blocks::{blocks, pages, read};
use crate::root;
use std::fs;
use std::path::Path;

/// The marks of a fence.
const MARKS: [&str; 6] = ["sh run", "sh example", "text", "rust", "json", "toml"];

/// The limit for the words of the README outside of tables and code.
const README_WORDS: usize = 900;

#[test]
fn each_block_of_a_page_is_marked() {
    for block in blocks(root()) {
        assert!(MARKS.contains(&&*block.mark), "{}: ```{} is none of {MARKS:?}", block.place, block.mark);
    }
    for (path, page) in pages(root()) {
        let indented = page.lines().any(|line| line.trim_start() != line && line.contains("```"));
        assert!(!indented, "{}: an indented fence is not seen here", path.display());
    }
}

#[test]
fn what_a_page_links_to_is_there() {
    for (path, page) in pages(root()) {
        let (_, prose) = read(&path, &page);
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_there = link.is_empty() || link.contains("://") || path.parent().unwrap().join(link).exists();
            assert!(is_there, "{}: {link}", path.display());
        }
    }
}

#[test]
fn the_readme_is_short() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, prose) = read(Path::new("README.md"), &page);
    let words = prose.lines().filter(|line| !line.starts_with('|')).flat_map(str::split_whitespace).count();
    assert!(words <= README_WORDS, "{words} words outside of tables and code; at most {README_WORDS}");
}
