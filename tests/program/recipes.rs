//! Every recipe for users of xargs and GNU parallel does what the README says it does.
//!
//! A block marked `sh run` is run in an empty folder with our program first in `PATH`, and must print, on standard output,
//! what the `text` block after it shows.

use std::path::Path;
use std::process::Command;

const SECTION: &str = "## From xargs and GNU parallel\n";

struct Recipe {
    script: String,
    output: String,
}

#[test]
fn the_readmes_recipes_print_what_it_says() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let section = readme.split(SECTION).nth(1).expect("the section is there").split("\n## ").next().unwrap();
    let recipes = recipes(section);
    assert_eq!(recipes.len(), section.matches("```sh run\n").count(), "each has its output beneath");
    assert!(recipes.len() >= 8, "only {} recipes were found", recipes.len());
    for Recipe { script, output } in recipes {
        assert_eq!(printed(&script), output, "{script}");
    }
}

fn recipes(section: &str) -> Vec<Recipe> {
    let blocks: Vec<(&str, &str)> = blocks(section);
    let pairs = blocks.windows(2).filter(|pair| (pair[0].0, pair[1].0) == ("sh run", "text"));
    pairs.map(|pair| Recipe { script: pair[0].1.to_owned(), output: pair[1].1.to_owned() }).collect()
}

/// The fenced blocks: what stands behind the fence, and the text.
fn blocks(section: &str) -> Vec<(&str, &str)> {
    let inside = section.split("```").skip(1).step_by(2);
    inside.filter_map(|block| block.split_once('\n')).collect()
}

fn printed(script: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_throttle")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let run = Command::new("sh")
        .args(["-c", script])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", program.display()))
        .env_remove("THROTTLE_BUCKET")
        .output()
        .unwrap();
    assert!(run.status.success(), "{script}{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}
