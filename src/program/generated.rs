//! The man page, the completions and the README's list of options are generated from the flags, committed, and checked
//! here. After a change of flags: `THROTTLE_REGENERATE=1 cargo test generated`.

mod man;

use super::args;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

const REGENERATE: &str = "THROTTLE_REGENERATE";

#[track_caller]
fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os(REGENERATE).is_some() {
        return fs::write(&path, expected).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == expected,
        "{} is not what the flags say; run: {REGENERATE}=1 cargo test generated",
        path.display()
    );
}

#[test]
fn the_completions_are_what_the_flags_say() {
    for (shell, path) in [
        (Shell::Bash, "completions/throttle.bash"),
        (Shell::Zsh, "completions/_throttle"),
        (Shell::Fish, "completions/throttle.fish"),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut args::command(), "throttle", &mut script);
        check(path, &String::from_utf8(script).unwrap());
    }
}

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
