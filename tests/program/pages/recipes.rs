//! The commands of README.md, CONTRIBUTING.md, SECURITY.md and docs/*.md work.
//!
//! A block of a shell is marked `sh run` or `sh example`. Each `sh run` is run as it stands there, in a folder of its own
//! with [`FILES`], and with our program, real tools and [stand-ins](STAND_IN) in `PATH`. It must succeed, and print what
//! the `text` block after it shows, if there is one. A comment `<!-- test … -->` before it holds a script that is run
//! in its place, and calls it as `recipe`: to prepare something, to shorten a wait in `../recipe`, or to look at what it
//! did; `calls` lists what was called.

use super::blocks::{Block, blocks};
use crate::support::redis::Redis;
use crate::support::server::{Answer, Request, Server};
use crate::support::{THROTTLE, feed, find, skipped, with_pipes};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

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

#[test]
#[ignore = "slow: 5 s"]
fn every_recipe_does_what_its_page_says() {
    let recipes: Vec<Block> =
        blocks(Path::new(env!("CARGO_MANIFEST_DIR"))).into_iter().filter(|block| block.mark == "sh run").collect();
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
