//! The guide. Its programs run as tests of the documentation.

const GUIDE: &str = include_str!("../../docs/guide.md");

#[test]
fn the_ten_first_programs_are_each_shorter_than_15_lines() {
    let (_, programs) = GUIDE.split_once("# Ten first programs").unwrap();
    let programs = programs.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines: Vec<_> = programs.map(|program| program.lines().count()).collect();
    assert!(lines.len() == 10 && lines.iter().all(|lines| *lines < 15), "{lines:?}");
}
