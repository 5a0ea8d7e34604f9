//! The man page.

use super::committed::check;
use crate::program::args::{CHAPTERS, Part};
use crate::program::{args, exit};

/// The date of the last release. The recipe of the release sets it.
const DATE: &str = "2026-11-22";

fn man() -> String {
    let man = clap_mangen::Man::new(args::command());
    let mut page = Vec::new();
    man.render_name_section(&mut page).unwrap();
    man.render_synopsis_section(&mut page).unwrap();
    man.render_description_section(&mut page).unwrap();
    man.render_options_section(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    let (before, options) = page.split_once(".SH OPTIONS\n").unwrap();
    // Groups of options become parts of one section, as in other manuals. A backslash is \e in roff.
    let mut options = options.replace("\\\\", "\\e");
    for heading in args::command().get_arguments().filter_map(|option| option.get_help_heading()) {
        options = options.replace(&format!(".SH {}\n", heading.to_uppercase()), &format!(".SS {heading}\n"));
    }
    let page = format!("{before}.SH OPTIONS\n{options}{}", sections());
    // Options and rates are neither hyphenated nor spread out, because users copy them.
    let (version, quote) = (env!("CARGO_PKG_VERSION"), ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n");
    let title =
        format!(".TH THROTTLE 1 {DATE} \"throttle {version}\" \"User Commands\"\n{quote}.nh\n.ad l\n.ss 12 0\n");
    title + &in_short_lines(&page.replace(quote, ""))
}

/// Rewrites the text as roff requires it: without long lines, and with `.sp` instead of blank lines. The text after
/// `.TP` stays one line, because roff would cut it.
fn in_short_lines(page: &str) -> String {
    let (mut text, mut is_tag, mut is_text) = (String::new(), false, false);
    for line in page.lines() {
        text += if is_text && !line.is_empty() && !line.starts_with('.') { ".br\n" } else { "" };
        is_text = !is_tag && !line.is_empty() && !line.starts_with('.');
        let mut column = 0;
        for word in if is_tag || line.starts_with('.') { vec![line] } else { line.split(' ').collect() } {
            let (separator, guard) = match column {
                0 => ("", ""),
                _ if column + word.len() < 80 => (" ", ""),
                _ if word.starts_with(['.', '\'']) => ("\n", "\\&"),
                _ => ("\n", ""),
            };
            column = if separator == "\n" { 0 } else { column + separator.len() } + word.len();
            text = text + separator + guard + word;
        }
        text += if line.is_empty() { ".sp\n" } else { "\n" };
        is_tag = line == ".TP";
    }
    text
}

/// The sections that clap does not generate.
fn sections() -> String {
    let mut text = String::new();
    for chapter in &CHAPTERS {
        text = text + ".SH " + &chapter.name.to_uppercase() + "\n" + &parts(chapter.parts());
    }
    text += ".SH \"EXIT STATUS\"\n";
    text.extend(exit::codes().map(|(code, meaning)| entry(&code.to_string(), &meaning)));
    text = text + ".SH SIGNALS\n" + &escaped(args::SIGNALS) + "\n.SH ENVIRONMENT\n";
    text.extend(args::environment().map(|(name, meaning)| entry(name, &meaning)));
    text += ".SH EXAMPLES\n";
    text.extend(args::EXAMPLES.map(|(command, meaning)| entry(command, meaning)));
    let others = ["cat", "curl", "flock", "nice", "parallel", "pv", "timeout", "xargs"];
    let others = others.map(|name| format!("\\fB{name}\\fR(1)"));
    text + ".SH \"SEE ALSO\"\n" + &others.join(", ") + "\n"
}

/// A paragraph directly after a heading has no `.PP`.
fn parts(parts: impl Iterator<Item = Part>) -> String {
    let (mut text, mut is_first) = (String::new(), true);
    for part in parts {
        let is_heading = matches!(part, Part::Heading(_));
        let shown = match part {
            Part::Heading(heading) => format!(".SS {}\n", escaped(&heading)),
            Part::Entry(name, meaning) => entry(&name, &meaning),
            Part::Paragraph(paragraph) if is_first => escaped(&paragraph) + "\n",
            Part::Paragraph(paragraph) => format!(".PP\n{}\n", escaped(&paragraph)),
        };
        text += &shown;
        is_first = is_heading;
    }
    text
}

fn entry(name: &str, meaning: &str) -> String {
    format!(".TP\n\\fB{}\\fR\n{}\n", escaped(name), escaped(meaning))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq")
}

#[test]
fn the_man_page_is_what_the_flags_say() {
    check("man/throttle.1", &man());
}

/// A program that is not installed is skipped, with a message.
#[test]
fn the_man_page_satisfies_mandoc_and_groff() {
    use std::io::Write;
    use std::process::Command;
    let mut page = tempfile::NamedTempFile::new().unwrap();
    page.write_all(man().as_bytes()).unwrap();
    for words in ["mandoc -Tlint", "groff -man -ww -Kutf8 -Tutf8 -Z"] {
        let (program, options) = words.split_once(' ').unwrap();
        match Command::new(program).args(options.split(' ')).arg(page.path()).output() {
            Ok(output) if program == "mandoc" => assert!(output.stdout.is_empty(), "{output:?}"),
            Ok(output) => assert!(output.stderr.is_empty(), "{output:?}"),
            // This bypasses the test harness, which hides the output of tests that pass.
            Err(_) => _ = writeln!(std::io::stderr(), "SKIPPED: no {program} here"),
        }
    }
}

#[test]
fn the_man_page_has_its_options_and_exit_codes_once() {
    let page = man();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
    let chapters: Vec<String> = CHAPTERS.iter().map(|chapter| chapter.name.to_uppercase()).collect();
    let (before, after) =
        (["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"], ["\"EXIT STATUS\"", "SIGNALS", "ENVIRONMENT"]);
    let chapters = chapters.iter().map(String::as_str);
    let expected = before.into_iter().chain(chapters).chain(after).chain(["EXAMPLES", "\"SEE ALSO\""]);
    assert_eq!(sections, expected.collect::<Vec<_>>());
    let codes = page.split("EXIT STATUS").nth(1).unwrap().split(".SH ").next().unwrap();
    let codes: Vec<&str> = codes.lines().filter(|line| line.starts_with("\\fB")).collect();
    assert!(codes.len() > 7 && codes.iter().all(|code| codes.iter().filter(|other| *other == code).count() == 1));
    let others = ["parallel", "flock", "xargs"];
    assert!(others.iter().all(|other| page.contains(&format!("\\fB{other}\\fR(1)"))));
}
