//! The guide. Its programs run as tests of the documentation.

const GUIDE: &str = include_str!("../../docs/guide.md");

#[test]
fn the_twelve_programs_are_each_shorter_than_15_lines() {
    let (_, programs) = GUIDE.split_once("# Twelve programs").unwrap();
    let programs = programs.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines: Vec<_> = programs.map(|program| program.lines().count()).collect();
    assert!(lines.len() == 12 && lines.iter().all(|lines| *lines < 15), "{lines:?}");
}

#[test]
fn the_page_of_the_crate_has_at_most_700_words() {
    let words = include_str!("../../README.md").split_whitespace().count();
    assert!(words <= 700, "{words}");
}
