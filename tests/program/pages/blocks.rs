//! The fenced blocks of the pages.

use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    /// For messages.
    pub(crate) place: String,
    pub(crate) mark: String,
    pub(crate) text: String,
    /// The script in the comment before it.
    pub(crate) test: Option<String>,
    /// The expected output.
    pub(crate) output: Option<String>,
}

/// The pages, by their paths.
pub(crate) fn pages(root: &Path) -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let mut pages: Vec<_> =
        pages.chain(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name))).collect();
    pages.sort();
    pages.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// The blocks of a page, and its text without blocks and comments.
pub(crate) fn read(path: &Path, page: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut prose, mut test) = (Vec::<Block>::new(), String::new(), None);
    // Only blank lines stand between the last block and this line.
    let mut is_next = false;
    let mut lines = page.lines().enumerate();
    let until = |lines: &mut dyn Iterator<Item = (usize, &str)>, end: &str| {
        let mut inside = String::new();
        for (_, line) in lines {
            if line == end {
                return inside;
            }
            inside.extend([line, "\n"]);
        }
        panic!("{}: no {end}", path.display());
    };
    while let Some((number, line)) = lines.next() {
        if line == "<!-- test" {
            test = Some(until(&mut lines, "-->"));
        } else if let Some(mark) = line.strip_prefix("```") {
            let (mark, inside) = (mark.to_owned(), until(&mut lines, "```"));
            if let Some(recipe) = blocks.last_mut().filter(|last| is_next && mark == "text" && last.mark == "sh run") {
                recipe.output = Some(inside.clone());
            }
            is_next = true;
            let place = format!("{}:{}", path.file_name().unwrap().display(), number + 1);
            blocks.push(Block { place, mark, text: inside, test: test.take(), output: None });
        } else if !line.starts_with("<!--") {
            prose.extend([line, "\n"]);
            is_next &= line.is_empty();
        }
    }
    (blocks, prose)
}

/// The blocks of all pages below `root`.
pub(crate) fn blocks(root: &Path) -> Vec<Block> {
    pages(root).iter().flat_map(|(path, page)| read(path, page).0).collect()
}
