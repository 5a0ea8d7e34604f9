//! Each layer may import only layers before it (as docs/architecture.md lists them), and there is no circle inside a folder.

use crate::{root, sources};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The page for maintainers. The rows of its table of layers begin with a number.
static PAGE: LazyLock<String> = LazyLock::new(|| fs::read_to_string(root().join("docs/architecture.md")).unwrap());

/// The layers, the lowest first. Modules of one layer may not import each other, except for those of the limiter.
static LAYERS: LazyLock<Vec<Vec<&str>>> = LazyLock::new(|| {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let layers = rows.filter(|(number, _)| number.parse::<usize>().is_ok());
    layers
        .map(|(_, rest)| rest.split(" | ").next().unwrap().split(", ").map(|name| name.trim_matches('`')).collect())
        .collect()
});

/// The sources of the library and of the program.
const ROOTS: [&str; 2] = ["library/src", "src"];

/// The place of `module` among the layers; `program` is above them all.
fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module)).filter(|_| module != "program")
}

/// All files of the library and the program, each with its path inside its `src`.
fn all_sources() -> Vec<(PathBuf, String)> {
    let roots = ROOTS.map(|top| root().join(top));
    let files = roots.iter().flat_map(|root| sources(root).into_iter().map(move |path| (root, path)));
    files.map(|(root, path)| (path.clone(), path.strip_prefix(root).unwrap().to_str().unwrap().to_owned())).collect()
}

/// The words that follow `crate::` in the code, without comments.
fn imports(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words = code.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>());
    words.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn no_layer_imports_a_later_one() {
    let mut seen = 0;
    for (path, inside) in all_sources() {
        let module = inside.split(['/', '.']).next().unwrap().to_owned();
        let Some(own) = rank(&module) else { continue };
        // All tests may use these.
        let is_for_tests = |import: &String| ["rounds", "simulated", "fuzzing"].contains(&&**import);
        for import in imports(&fs::read_to_string(&path).unwrap()).into_iter().filter(|import| !is_for_tests(import)) {
            seen += 1;
            let other = rank(&import).unwrap_or_else(|| panic!("{inside} imports crate::{import}, which is no layer"));
            let is_limiter = own == other && LAYERS[own].contains(&"limiter");
            assert!(other < own || import == module || is_limiter, "{inside} imports crate::{import}");
        }
    }
    assert!(seen > 10, "only {seen} imports were found: the test looks in the wrong place");
}

#[test]
fn the_architecture_page_names_all_layers_and_folders() {
    let libs = ROOTS.map(|src| fs::read_to_string(root().join(src).join("lib.rs")).unwrap()).concat();
    let mut declared: Vec<_> =
        libs.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    declared.retain(|module| *module != "fuzzing");
    let mut named = LAYERS.concat();
    declared.push("program");
    declared.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, declared, "the table of layers");
    let is_test = |path: &PathBuf| path.with_extension("").iter().any(|part| part == "tests");
    let files = all_sources().into_iter().map(|(path, _)| path).filter(|path| !is_test(path));
    let folders: BTreeSet<PathBuf> = files.map(|path| path.parent().unwrap().to_owned()).collect();
    for folder in folders.iter().filter(|folder| !folder.ends_with("src")) {
        let name = format!("`{}/`", folder.strip_prefix(root()).unwrap().display());
        assert!(PAGE.contains(&name), "docs/architecture.md does not name {name}");
    }
    let paths = PAGE.split('`').filter(|word| ["src/", "tests/", "library/"].iter().any(|top| word.starts_with(top)));
    for path in paths {
        assert!(root().join(path).exists(), "docs/architecture.md names {path}, which is gone");
    }
}

/// Only the program may use clap, the terminal and anyhow.
#[test]
fn only_the_program_knows_clap_and_anyhow() {
    for (path, inside) in all_sources() {
        let text = fs::read_to_string(&path).unwrap();
        if !inside.starts_with("program") {
            for word in ["clap::", "anyhow::"] {
                assert!(!text.contains(word), "{inside} uses {word}");
            }
        }
        let may = inside.starts_with("program/args") || inside.starts_with("program/generated");
        assert!(may || !text.contains("use clap"), "{inside} uses clap");
    }
}

/// A module by its path from the root, such as `["limits", "policy"]`, and its code.
type Files = BTreeMap<Vec<String>, String>;

/// Inside each folder, modules import each other in no circle, and import nothing from the module that declares them:
/// what several of them need stands in a module of its own.
#[derive(Debug, Default, PartialEq, Eq)]
struct Faults {
    /// A module that declares others, and how many of those import something from it.
    parents: BTreeMap<String, usize>,
    /// Modules that import each other in a circle, or stand between two circles.
    circles: BTreeSet<String>,
}

/// The words and signs of `code`, in which `::` is one.
fn tokens(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut tokens, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let length = match rest.find(|c| !is_word(c)).unwrap_or(rest.len()) {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            word => word,
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Reads the path, or the paths in braces, at the start of `tokens`; returns what follows.
fn read_paths<'a>(mut tokens: &'a [&'a str], mut path: Vec<String>, paths: &mut Vec<Vec<String>>) -> &'a [&'a str] {
    while let [token, rest @ ..] = tokens {
        tokens = rest;
        match *token {
            "{" => {
                while !tokens.is_empty() && tokens[0] != "}" {
                    tokens = read_paths(tokens, path.clone(), paths);
                    let end = tokens.iter().position(|token| [",", "}"].contains(token)).unwrap_or(tokens.len());
                    tokens = &tokens[end..];
                    tokens = tokens.strip_prefix(&[","]).unwrap_or(tokens);
                }
                return tokens.get(1..).unwrap_or_default();
            }
            "super" => drop(path.pop()),
            "self" => {}
            name => path.push(name.to_owned()),
        }
        match tokens {
            ["::", rest @ ..] => tokens = rest,
            _ => break,
        }
    }
    paths.push(path);
    tokens
}

/// The paths from the root that `module` names. Left out are its tests.
fn paths(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code = text.split("\nmod tests {").next().unwrap();
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let (code, mut paths) = (code.join("\n"), Vec::new());
    let tokens = tokens(&code);
    for (place, pair) in tokens.windows(2).enumerate() {
        let begins = place == 0 || tokens[place - 1] != "::";
        match pair {
            ["super", "::"] if begins => drop(read_paths(&tokens[place..], module.to_vec(), &mut paths)),
            ["crate", "::"] if begins => drop(read_paths(&tokens[place + 2..], Vec::new(), &mut paths)),
            _ => {}
        }
    }
    paths
}

fn faults(files: &Files) -> Faults {
    let mut users: BTreeMap<&[String], BTreeSet<&String>> = BTreeMap::new();
    let mut imports: BTreeSet<(&[String], &[String])> = BTreeSet::new();
    for (module, text) in files {
        for path in paths(module, text) {
            let found = (1..=path.len()).rev().find_map(|length| files.get_key_value(&path[..length]));
            let Some((target, _)) = found.filter(|(target, _)| *target != module) else { continue };
            let common = module.iter().zip(target).take_while(|(one, other)| one == other).count();
            if common == target.len() {
                users.entry(target).or_default().insert(&module[common]);
            } else if common < module.len() {
                imports.insert((&module[..=common], &target[..=common]));
            }
        }
    }
    loop {
        let importing: BTreeSet<_> = imports.iter().map(|(module, _)| *module).collect();
        let imported: BTreeSet<_> = imports.iter().map(|(_, module)| *module).collect();
        let before = imports.len();
        imports.retain(|(module, other)| importing.contains(other) && imported.contains(module));
        if imports.len() == before {
            break;
        }
    }
    Faults {
        parents: users.into_iter().map(|(parent, users)| (parent.join("/"), users.len())).collect(),
        circles: imports.into_iter().map(|(module, _)| module.join("/")).collect(),
    }
}

/// The known faults. This list may only become shorter, but each store imports the trait from its parent.
fn known() -> Faults {
    let parents = [("rate", 2), ("store", 3)];
    Faults { parents: parents.map(|(parent, users)| (parent.to_owned(), users)).into(), ..Faults::default() }
}

#[test]
fn folders_have_no_circles_and_import_nothing_from_above() {
    let files = all_sources().into_iter().filter_map(|(path, inside)| {
        let module: Vec<String> = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
        let is_code =
            !module.iter().any(|part| ["lib", "main", "tests", "loom_tests", "fuzzing"].contains(&part.as_str()));
        is_code.then(|| (module, fs::read_to_string(&path).unwrap()))
    });
    let files: Files = files.collect();
    assert!(files.len() > 90, "only {} files were found: the test looks in the wrong place", files.len());
    assert_eq!(faults(&files), known());
}

#[test]
fn a_circle_is_found_wherever_it_is() {
    let faults = |files: &[(&str, &str)]| {
        let module = |path: &str| path.split('/').map(str::to_owned).collect();
        faults(&files.iter().map(|(path, text)| (module(path), (*text).to_owned())).collect())
    };
    let (one, two) =
        (("a/one", "#[cfg(test)]\nmod tests;\nuse super::two::T;"), ("a/two", "fn f() {\n    use super::one::g;\n}"));
    let circles = ["a/one", "a/two"].map(str::to_owned).into();
    assert_eq!(faults(&[("a", ""), one, two]), Faults { circles, ..Faults::default() });
    let below = ("a/two/below", "use crate::{a::{self, one::{T}}};\n");
    let parents = [("a".to_owned(), 1)].into();
    let circles = ["a/one", "a/two"].map(str::to_owned).into();
    assert_eq!(faults(&[("a", ""), one, ("a/two", "mod below;"), below]), Faults { parents, circles });
    let child = ("a/one/child", "use super::super::{two::T, U as V};");
    let parents = [("a".to_owned(), 1)].into();
    assert_eq!(
        faults(&[("a", "use one::X;"), ("a/one", ""), child, ("a/two", "")]),
        Faults { parents, ..Faults::default() }
    );
    let tested = ("a/two", "// use super::one\n#[cfg(test)]\nmod tests { use super::super::one::T; }");
    assert_eq!(faults(&[("a", "use two::T; use one::T;"), one, tested]), Faults::default());
}
