//! The man page, the completions and docs/options.md are generated from the flags, committed, and checked
//! here. After a change of flags: `THROTTLE_REGENERATE=1 cargo test generated`.

mod committed;
mod completions;
mod man;

use super::args::{self, CHAPTERS, Part};
use committed::check;

/// The head of the page of options.
const OPTIONS: &str = "# Options

All options, one line each. `throttle --help` and the man page explain them, and list exit codes, signals and variables of
the environment. Examples are in the [cookbook](cookbook.md).

[Fields of --log](#fields-of---log) · [Fields of --summary=json](#fields-of---summaryjson)
";

#[test]
fn the_page_of_options_is_what_the_help_says() {
    let help =
        args::command().mut_args(|option| option.hide_short_help(false)).term_width(100).render_help().to_string();
    let tables = [("log", "--log"), ("summary", "--summary=json")].map(|(chapter, flag)| fields(chapter, flag));
    check("docs/options.md", &format!("{OPTIONS}\n```text\n{}\n```\n{}", help.trim_end(), tables.concat()));
}

/// The chapter about the fields of `flag`, as a section with a table.
fn fields(chapter: &str, flag: &str) -> String {
    let chapter = CHAPTERS.iter().find(|one| one.name == chapter).unwrap();
    let (mut text, mut is_table) = (format!("\n## Fields of {flag}\n"), false);
    for part in chapter.parts() {
        let is_row = matches!(part, Part::Entry(..));
        text += if is_row && is_table { "" } else { "\n" };
        text += if is_row && !is_table { "| field | meaning |\n|---|---|\n" } else { "" };
        let shown = match part {
            Part::Entry(name, meaning) => format!("| `{}` | {meaning} |\n", name.replace(", ", "`, `")),
            Part::Heading(text) | Part::Paragraph(text) => text + "\n",
        };
        text += &shown;
        is_table = is_row;
    }
    text
}
