//! The man page.

use super::committed::check;
use crate::program::{args, exit};

/// Of the last release; its recipe sets it.
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
    // Groups of options are parts of one section, as in other manuals; and roff writes a backslash as \e.
    let mut options = options.replace("\\\\", "\\e");
    for heading in args::command().get_arguments().filter_map(|option| option.get_help_heading()) {
        options = options.replace(&format!(".SH {}\n", heading.to_uppercase()), &format!(".SS {heading}\n"));
    }
    let page = format!("{before}.SH OPTIONS\n{options}{}", sections());
    // Options and rates are neither hyphenated nor spread out: one copies them.
    let (version, quote) = (env!("CARGO_PKG_VERSION"), ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n");
    let title =
        format!(".TH THROTTLE 1 {DATE} \"throttle {version}\" \"User Commands\"\n{quote}.nh\n.ad l\n.ss 12 0\n");
    title + &in_short_lines(&page.replace(quote, ""))
}

/// As roff wants its text: no long lines, and `.sp` instead of blank ones. What follows `.TP` is one line, or is cut.
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

/// What clap does not know of.
fn sections() -> String {
    let mut text = String::from(".SH \"EXIT STATUS\"\n");
    text.extend(exit::codes().map(|(code, meaning)| entry(&code.to_string(), &meaning)));
    text = text + ".SH SIGNALS\n" + &escaped(args::SIGNALS) + "\n.SH ENVIRONMENT\n";
    text.extend(args::environment().map(|(name, meaning)| entry(name, &meaning)));
    text += ".SH EXAMPLES\n";
    text.extend(args::EXAMPLES.map(|(command, meaning)| entry(command, meaning)));
    let others = ["cat", "curl", "flock", "nice", "parallel", "pv", "timeout", "xargs"];
    let others = others.map(|name| format!("\\fB{name}\\fR(1)"));
    text + ".SH \"SEE ALSO\"\n" + &others.join(", ") + "\n"
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

/// Skipped, with a word, where these are not installed.
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
            // Past the test harness, which shows no output of what passes.
            Err(_) => _ = writeln!(std::io::stderr(), "SKIPPED: no {program} here"),
        }
    }
}

#[test]
fn the_man_page_has_one_section_of_options_and_each_exit_code_once() {
    let page = man();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
    let expected =
        ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "SIGNALS", "ENVIRONMENT", "EXAMPLES"];
    assert_eq!((&sections[..8], &sections[8..]), (&expected[..], &["\"SEE ALSO\""][..]));
    let codes = page.split("EXIT STATUS").nth(1).unwrap().split(".SH ").next().unwrap();
    let codes: Vec<&str> = codes.lines().filter(|line| line.starts_with("\\fB")).collect();
    assert!(codes.len() > 7 && codes.iter().all(|code| codes.iter().filter(|other| *other == code).count() == 1));
    let others = ["parallel", "flock", "xargs"];
    assert!(others.iter().all(|other| page.contains(&format!("\\fB{other}\\fR(1)"))));
}
