//! The man page, the completions and the README's list of options are generated from the flags, committed, and checked
//! here. After a change of flags: `THROTTLE_REGENERATE=1 cargo test generated`.

mod committed;
mod completions;
mod man;

use super::args;
use committed::check;
use std::fs;
use std::path::Path;

#[test]
fn the_readme_lists_all_options_as_the_help_does() {
    let (begin, end) = ("<!-- options -->\n", "<!-- /options -->");
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (head, rest) = readme.split_once(begin).expect("README.md has a place for the options");
    let (_, tail) = rest.split_once(end).expect("README.md has a place for the options");
    let help =
        args::command().mut_args(|option| option.hide_short_help(false)).term_width(100).render_help().to_string();
    check("README.md", &format!("{head}{begin}```\n{}\n```\n{end}{tail}", help.trim_end()));
}
