//! The man page, the completions and docs/options.md are generated from the flags, committed, and checked
//! here. After a change of flags: `THROTTLE_REGENERATE=1 cargo test generated`.

use super::args;
use super::exit::TABLE;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

const REGENERATE: &str = "THROTTLE_REGENERATE";

/// The head of the page of options.
const OPTIONS: &str = "# Options

All options, one line each. `throttle --help` and the man page explain them, and list exit codes, signals and variables of
the environment. Examples are in the [cookbook](cookbook.md).
";

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

fn man() -> String {
    let man = clap_mangen::Man::new(args::command()).date("").manual("throttle");
    let mut page = Vec::new();
    man.render_title(&mut page).unwrap();
    // Options and rates are neither hyphenated nor spread out: one copies them.
    page.extend(b".nh\n.ad l\n");
    man.render_name_section(&mut page).unwrap();
    man.render_synopsis_section(&mut page).unwrap();
    man.render_description_section(&mut page).unwrap();
    man.render_options_section(&mut page).unwrap();
    let mut page = String::from_utf8(page).unwrap();
    page.push_str(&sections());
    page
}

/// What clap does not know of.
fn sections() -> String {
    use std::fmt::Write;
    let mut text = String::from(".SH \"EXIT STATUS\"\n");
    for (_, code, meaning) in TABLE {
        writeln!(text, ".TP\n\\fB{code}\\fR\n{meaning}").unwrap();
    }
    write!(text, ".SH SIGNALS\n{}\n", args::SIGNALS.replace('\'', "\\(aq")).unwrap();
    text.push_str(".SH ENVIRONMENT\n");
    for (name, meaning) in args::ENVIRONMENT {
        writeln!(text, ".TP\n\\fB{name}\\fR\n{}", meaning.replace('-', "\\-")).unwrap();
    }
    text.push_str(".SH EXAMPLES\n");
    for (command, meaning) in args::EXAMPLES {
        let command = command.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        writeln!(text, ".TP\n\\fB{command}\\fR\n{meaning}").unwrap();
    }
    text.push_str(".SH \"SEE ALSO\"\n\\fBpv\\fR(1), \\fBxargs\\fR(1), \\fBcat\\fR(1)\n");
    text
}

#[test]
fn the_man_page_is_what_the_flags_say() {
    check("man/throttle.1", &man());
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
fn the_page_of_options_is_what_the_help_says() {
    let help = args::command().mut_args(|option| option.hide_short_help(false)).render_help().to_string();
    check("docs/options.md", &format!("{OPTIONS}\n```text\n{}\n```\n", help.trim_end()));
}
