//! The man page, the completions and docs/options.md are generated from the flags, committed, and checked
//! here. After a change of flags: `THROTTLE_REGENERATE=1 cargo test generated`.

mod committed;
mod completions;
mod man;

use super::args;
use committed::check;

/// The head of the page of options.
const OPTIONS: &str = "# Options

All options, one line each. `throttle --help` and the man page explain them, and list exit codes, signals and variables of
the environment. Examples are in the [cookbook](cookbook.md).
";

#[test]
fn the_page_of_options_is_what_the_help_says() {
    let help =
        args::command().mut_args(|option| option.hide_short_help(false)).term_width(100).render_help().to_string();
    check("docs/options.md", &format!("{OPTIONS}\n```text\n{}\n```\n", help.trim_end()));
}
