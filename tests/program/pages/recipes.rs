//! The commands and links of README.md, CONTRIBUTING.md, SECURITY.md and docs/*.md work.
//!
//! A block of a shell is marked `sh run` or `sh example`. Each `sh run` is run as it stands there, in a folder of its own
//! with [`FILES`], and with our program, real tools and [stand-ins](STAND_IN) in `PATH`. It must succeed, and print what
//! the `text` block after it shows, if there is one. A comment `<!-- test … -->` before it holds a script that is run
//! in its place, and calls it as `recipe`: to prepare something, to shorten a wait in `../recipe`, or to look at what it
//! did; `calls` lists what was called.

use crate::support::redis::Redis;
use crate::support::server::{Answer, Request, Server};
use crate::support::{THROTTLE, feed, find, skipped, with_pipes};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// The marks of a fence.
const MARKS: [&str; 6] = ["sh run", "sh example", "text", "rust", "json", "toml"];

const FILES: [(&str, &str); 9] = [
    ("urls", "http://a.example/1\nhttp://b.example/2\nhttp://c.example/3\n"),
    ("access.log", "one\ntwo\nthree\n"),
    ("inserts.sql", "create table t (x);\ninsert into t values (1);\n"),
    ("backup.tar", "bytes\n"),
    ("photos/1.jpg", "a picture\n"),
    ("addresses", "a@x.example\ngrey@x.example\nlate@x.example\n"),
    ("letter", "Hello\n"),
    ("prompts", "one\ntwo\nthree\n"),
    ("redis-password", "secret\n"),
];

/// The programs that are replaced, and the real ones that may be missing.
const REPLACED: [&str; 11] =
    ["aws", "curl", "gh", "journalctl", "lychee", "nc", "notify", "psql", "sendmail", "ssh", "wget"];
const SCRIPTS: [&str; 3] = ["ask", "call", "send-sms"];
const NEEDED: [&str; 7] = ["curl", "jq", "man", "python3", "redis", "sqlite3", "wget"];

const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/pages/stand-in");

/// The limit for the words of the README outside of tables and code.
const README_WORDS: usize = 900;

/// A fenced block.
#[derive(Debug)]
struct Block {
    /// For messages.
    place: String,
    mark: String,
    text: String,
    /// The script in the comment before it.
    test: Option<String>,
    /// The expected output.
    output: Option<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages, by their paths.
fn pages() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let mut pages: Vec<_> =
        pages.chain(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name))).collect();
    pages.sort();
    pages.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// The blocks of a page, and its text without blocks and comments.
fn read(path: &Path, page: &str) -> (Vec<Block>, String) {
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

fn blocks() -> Vec<Block> {
    pages().iter().flat_map(|(path, page)| read(path, page).0).collect()
}

#[test]
fn each_block_of_a_page_is_marked() {
    for block in blocks() {
        assert!(MARKS.contains(&&*block.mark), "{}: ```{} is none of {MARKS:?}", block.place, block.mark);
    }
    for (path, page) in pages() {
        let indented = page.lines().any(|line| line.trim_start() != line && line.contains("```"));
        assert!(!indented, "{}: an indented fence is not seen here", path.display());
    }
}

#[test]
fn what_a_page_links_to_is_there() {
    for (path, page) in pages() {
        let (_, prose) = read(&path, &page);
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_there = link.is_empty() || link.contains("://") || path.parent().unwrap().join(link).exists();
            assert!(is_there, "{}: {link}", path.display());
        }
    }
}

#[test]
fn the_readme_is_short() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, prose) = read(Path::new("README.md"), &page);
    let words = prose.lines().filter(|line| !line.starts_with('|')).flat_map(str::split_whitespace).count();
    assert!(words <= README_WORDS, "{words} words outside of tables and code; at most {README_WORDS}");
}

#[test]
fn every_recipe_does_what_its_page_says() {
    let recipes: Vec<Block> = blocks().into_iter().filter(|block| block.mark == "sh run").collect();
    assert!(recipes.len() > 40, "only {} recipes were found", recipes.len());
    let (todo, failures) = (Mutex::new(recipes.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                while let Some(block) = { todo.lock().unwrap().next() } {
                    if let Err(fault) = run(block) {
                        failures.lock().unwrap().push(format!("{}\n{}{fault}", block.place, block.text));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} recipes:\n\n{}", failures.len(), recipes.len(), failures.join("\n"));
}

/// Runs a recipe; returns what is wrong.
fn run(block: &Block) -> Result<(), String> {
    let test = block.test.as_deref().unwrap_or("recipe");
    let words = [&block.text, test].map(|text| text.split(|c: char| !c.is_alphanumeric())).into_iter().flatten();
    let words: Vec<&str> = words.collect();
    let is_there = |tool: &str| match tool {
        "redis" => find("redis-server").or_else(|| find("valkey-server")).is_some(),
        tool => find(tool).is_some(),
    };
    if let Some(tool) = NEEDED.iter().find(|tool| words.contains(*tool) && !is_there(tool)) {
        assert!(std::env::var_os("CI").is_none(), "{tool} is not installed, and CI must not skip this");
        skipped(format!("{}: no {tool} here", block.place));
        return Ok(());
    }
    let redis = words.contains(&"redis").then(|| Redis::start(&["--requirepass", "secret"])).flatten();
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path(), &block.text);
    let (mut command, server) = (Command::new("sh"), Server::start(answer));
    let program = Path::new(THROTTLE).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let home = folder.path().join("home");
    command.arg("-ec").arg(format!("recipe() {{ bash -e -o pipefail ../recipe; }}\n{test}")).current_dir(&home);
    command
        .env_clear()
        .env("HOME", home)
        .env("PATH", format!("{}/bin:{}:{path}", folder.path().display(), program.display()));
    command.env("http_proxy", server.url()).env("REDIS_PORT", redis.as_ref().map_or(0, |redis| redis.port).to_string());
    let ended = feed(with_pipes(command), "");
    let printed = String::from_utf8_lossy(&ended.out);
    let is_right = ended.code() == Some(0) && block.output.as_ref().is_none_or(|output| *output == *printed);
    if is_right { Ok(()) } else { Err(format!("--- {:?}; printed:\n{printed}{}", ended.status, ended.err)) }
}

/// Makes what a recipe may need: its home and what it may call.
fn prepare(folder: &Path, recipe: &str) {
    let (bin, home) = (folder.join("bin"), folder.join("home"));
    fs::create_dir_all(home.join("photos")).unwrap();
    fs::create_dir(&bin).unwrap();
    for (name, text) in FILES {
        fs::write(home.join(name), text).unwrap();
        fs::set_permissions(home.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    for name in REPLACED {
        symlink(STAND_IN, bin.join(name)).unwrap();
    }
    for name in SCRIPTS {
        symlink(STAND_IN, home.join(name)).unwrap();
    }
    fs::write(folder.join("recipe"), recipe).unwrap();
}

/// A server for all hosts, which answers by the last part of the path.
fn answer(request: &Request) -> Answer {
    let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 1;
    let name = request.path.rsplit('/').next().unwrap();
    match (name, request.visit) {
        ("missing", _) => Answer::new(404),
        ("flaky", 1) => Answer::new(500),
        ("private", 1) => Answer::new(403).with(&format!("x-ratelimit-remaining: 0\nx-ratelimit-reset: {soon}")),
        ("forbidden", 1) => Answer::new(403),
        ("chat", 1) => Answer::new(429).with("retry-after: 1"),
        ("chat", _) => Answer::new(200).body(b"{\"usage\": {\"total_tokens\": 900}}\n"),
        _ => Answer::new(200).body(format!("got {name}\n").as_bytes()),
    }
}
