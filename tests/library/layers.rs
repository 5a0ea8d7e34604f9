//! Each layer may import only layers before it (in the list below).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules in one row may not import each other, unless the row is a list of its own.
const LAYERS: [&[&str]; 5] =
    [&["rate", "clock"], &["limits"], &["store"], &["limiter", "semaphore", "leaky_bucket"], &["flow"]];

/// `launch` is last.
const LAST: &str = "launch";

fn rank(module: &str) -> Option<usize> {
    let ranked = LAYERS.iter().position(|layer| layer.contains(&module));
    ranked.or((module == LAST).then_some(LAYERS.len()))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The words that follow `crate::` in the code, without comments.
fn imports(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words = code.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>());
    words.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn no_layer_imports_a_later_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for path in sources(&root) {
        let inside = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let module = inside.split(['/', '.']).next().unwrap().to_owned();
        let Some(own) = rank(&module) else { continue };
        for import in imports(&fs::read_to_string(&path).unwrap()) {
            seen += 1;
            let other = rank(&import).unwrap_or_else(|| panic!("{inside} imports crate::{import}, which is no layer"));
            assert!(other < own || import == module || own == 3 && other == 3, "{inside} imports crate::{import}");
        }
    }
    assert!(seen > 10, "only {seen} imports were found: the test looks in the wrong place");
}

/// Only the program may use clap, the terminal and anyhow.
#[test]
fn only_the_program_knows_clap_and_anyhow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root) {
        let inside = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        if !inside.starts_with("program") {
            for word in ["clap::", "anyhow::"] {
                assert!(!text.contains(word), "{inside} uses {word}");
            }
        }
        let may = inside.starts_with("program/args") || inside == "program/generated.rs";
        assert!(may || !text.contains("use clap"), "{inside} uses clap");
    }
}

/// The modules that each module of `folder` imports from it, tests left out.
fn imports_inside(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let imports = files.map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines = code.lines().filter_map(|line| line.trim_start().strip_prefix("use super::"));
        let names = lines.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), names.collect())
    });
    imports.collect()
}

#[test]
fn modules_inside_these_folders_import_no_circle_and_nothing_from_their_guide() {
    for folder in ["launch", "flow"] {
        let mut imports = imports_inside(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder));
        let modules: BTreeSet<String> = imports.keys().cloned().collect();
        assert!(imports.values().flatten().count() > 5, "the test looks in the wrong place");
        for (module, imported) in &imports {
            let unknown: Vec<_> = imported.difference(&modules).collect();
            assert!(unknown.is_empty(), "{folder}/{module}.rs imports {unknown:?}, which is no module of {folder}");
        }
        while let Some(leaf) = imports.iter().find(|(_, imported)| imported.is_empty()).map(|(leaf, _)| leaf.clone()) {
            imports.remove(&leaf);
            for imported in imports.values_mut() {
                imported.remove(&leaf);
            }
        }
        assert!(imports.is_empty(), "these modules of {folder} import each other in a circle: {imports:?}");
    }
}
