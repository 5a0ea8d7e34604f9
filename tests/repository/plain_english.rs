//! Counts phrases that readers read twice, for every 100 000 words of pages, comments and messages. The numbers must not rise.

use crate::root;
use regex::bytes::Regex;
use std::fs;
use std::path::{Path, PathBuf};

/// The pages, and the code.
const PAGES: [&str; 7] =
    ["docs", "library/docs", "README.md", "library/README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"];
const CODE: [&str; 2] = ["src", "library/src"];

/// The name of a kind, its pattern, and its bounds for the pages and for the code.
const KINDS: [(&str, &str, usize, usize); 4] = [
    // A sentence that begins with its object or with a question word.
    (
        "opens",
        r"(?:^|[.:;] )(?:Of|What|Who|Whose|Whoever|How many|How much|As many|As much|As long|So many|If not,|That of)\b",
        60,
        30,
    ),
    // A missing name for a number.
    ("so-many", r"\b[Ss]o (?:many|much|long|often|far)\b", 10, 12),
    // A missing noun.
    ("one-that", r"\b(?:one|ones|those|that|all|what|nothing|something) (?:that|which|who|whose|of)\b", 120, 75),
    // Verbs of people for the acts of programs.
    ("told", r"\b(?:told|tells|tell|knows|asks|asked|says|said|looks|looked)\b", 100, 40),
];

#[test]
fn the_pages_and_the_comments_stay_in_plain_english() {
    let texts = [&PAGES[..], &CODE[..]]
        .map(|tops| tops.iter().flat_map(|top| files(Path::new(top))).flat_map(|path| texts(&path)));
    let texts = texts.map(Iterator::collect::<Vec<String>>);
    for (name, pattern, of_pages, of_code) in KINDS {
        let places = Regex::new(&format!("(?-u){pattern}")).unwrap();
        for (what, most, texts) in [("pages", of_pages, &texts[0]), ("code", of_code, &texts[1])] {
            let words: usize = texts.iter().map(|text| text.split_whitespace().count()).sum();
            let found: usize = texts.iter().map(|text| places.find_iter(text.as_bytes()).count()).sum();
            let share = found * 100_000 / words;
            println!("{name} in the {what}: {share} for every 100 000 of {words} words");
            assert!(words > 1000 && share <= most, "{name} in the {what}: {share}, at most {most}");
        }
    }
}

/// The pages or source files at or below `path`, but for tests and generated pages.
fn files(path: &Path) -> Vec<PathBuf> {
    let whole = root().join(path);
    let name = path.file_name().unwrap().to_str().unwrap();
    if whole.is_dir() {
        let entries = fs::read_dir(&whole).unwrap().map(|entry| path.join(entry.unwrap().file_name()));
        return if name == "tests" || name.starts_with("generated") {
            Vec::new()
        } else {
            entries.flat_map(|entry| files(&entry)).collect()
        };
    }
    let is_wanted = path.extension().is_some_and(|end| end == "rs" || end == "md") && !name.starts_with("generated");
    if is_wanted { vec![whole] } else { Vec::new() }
}

/// The paragraphs of a page; the comments and the longer texts of a source file.
fn texts(path: &Path) -> Vec<String> {
    let content = fs::read_to_string(path).unwrap();
    if path.extension().is_some_and(|end| end == "md") {
        let mut is_fenced = false;
        let is_text = |line: &&str| {
            is_fenced ^= line.starts_with("```");
            !is_fenced && !line.is_empty() && !line.starts_with(['|', '`', '<', '#', '!'])
        };
        return content.lines().filter(is_text).map(|line| line.trim().to_owned()).collect();
    }
    let (mut texts, mut comment) = (Vec::new(), Vec::new());
    for line in content.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("//") {
            comment.push(rest.trim_start_matches(['/', '!']).trim());
            continue;
        }
        texts.push(std::mem::take(&mut comment).join(" "));
        // Between quotation marks, as the odd parts are if none is escaped.
        let quoted = line.split('"').skip(1).step_by(2).filter(|text| text.matches(' ').count() >= 3);
        texts.extend(quoted.map(str::to_owned));
    }
    texts.push(comment.join(" "));
    texts
}
