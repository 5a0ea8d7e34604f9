//! Chapters of the manual: texts that are too long for the help of a flag. `--help NAME` prints a chapter. The man page
//! has all chapters, and docs/options.md has the two tables of fields.
//!
//! A chapter is a list of parts with blank lines between them: a heading (`# `), an entry (a name, and its meaning in
//! indented lines), or a paragraph.

use clap::Command;
use std::ffi::OsStr;

pub(crate) struct Chapter {
    pub(crate) name: &'static str,
    /// A short description for the list of chapters.
    pub(super) about: &'static str,
    text: &'static str,
}

pub(crate) const CHAPTERS: [Chapter; 6] = [
    Chapter { name: "limits", about: "how to write a limit", text: include_str!("chapters/limits.txt") },
    Chapter {
        name: "attempts",
        about: "when a command fails, or a server refuses",
        text: include_str!("chapters/attempts.txt"),
    },
    Chapter { name: "buckets", about: "limits that processes share", text: include_str!("chapters/buckets.txt") },
    Chapter { name: "progress", about: "the bar", text: include_str!("chapters/progress.txt") },
    Chapter { name: "log", about: "the fields of --log", text: include_str!("chapters/log.txt") },
    Chapter { name: "summary", about: "the fields of --summary=json", text: include_str!("chapters/summary.txt") },
];

pub(crate) enum Part {
    Heading(String),
    Entry(String, String),
    Paragraph(String),
}

impl Part {
    fn new(lines: &str) -> Self {
        let joined = |lines: &str| lines.split_whitespace().collect::<Vec<_>>().join(" ");
        match (lines.strip_prefix("# "), lines.split_once("\n  ")) {
            (Some(heading), _) => Part::Heading(joined(heading)),
            (None, Some((name, meaning))) => Part::Entry(joined(name), joined(meaning)),
            (None, None) => Part::Paragraph(joined(lines)),
        }
    }
}

impl Chapter {
    /// The chapter with this name, in the singular or the plural. The chapter `limits` also has the name `rates`.
    pub(super) fn named(name: &OsStr) -> Option<&'static Self> {
        let singular = name.to_str()?.trim_end_matches('s');
        let singular = if singular == "rate" { "limit" } else { singular };
        CHAPTERS.iter().find(|chapter| chapter.name.trim_end_matches('s') == singular)
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        self.text.trim_end().split("\n\n").map(Part::new)
    }

    /// A definition whose help is this chapter. Clap wraps it to the terminal.
    pub(super) fn page(&self) -> Command {
        let (mut text, mut is_list) = (String::new(), false);
        for part in self.parts() {
            let is_entry = matches!(part, Part::Entry(..));
            text += match (text.is_empty(), is_list && is_entry) {
                (true, _) => "",
                (false, true) => "\n",
                (false, false) => "\n\n",
            };
            is_list = is_entry;
            let shown = match part {
                Part::Heading(heading) => format!("{heading}:"),
                Part::Entry(name, meaning) => entry(&name, &meaning),
                Part::Paragraph(paragraph) => paragraph,
            };
            text += &shown;
        }
        Command::new("throttle").max_term_width(100).about(text).help_template("{about}")
    }
}

/// The message about a name that no chapter has.
pub(super) fn no_chapter(name: &OsStr) -> String {
    let names = CHAPTERS.iter().map(|chapter| format!("throttle --help {}", chapter.name)).collect::<Vec<_>>();
    format!("there is no chapter '{}'; write {}, or throttle --help", name.display(), names.join(", "))
}

/// A name, and its meaning on the next line.
pub(super) fn entry(name: &str, meaning: &str) -> String {
    format!("  {name}\n          {meaning}")
}

/// The list of the chapters, for `--help`.
pub(super) fn list() -> String {
    let entries = CHAPTERS.iter().map(|chapter| format!("  throttle --help {:<12}{}", chapter.name, chapter.about));
    format!("Chapters:\n{}", entries.collect::<Vec<_>>().join("\n"))
}
