//! What to write instead of a word that is no command.

use super::exit::Exit;
use super::lookup::{Missing, find, quoted, runs};
use super::say::say;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Words of shells that no program can replace, or that would have no effect here.
const BUILTINS: [&str; 22] = [
    "[[", "case", "for", "if", "until", "while", ".", "alias", "cd", "eval", "exec", "export", "let", "local", "read",
    "set", "shift", "source", "trap", "ulimit", "umask", "unset",
];

/// Says why a command will not run, and what to write instead. `dash_c` is how a script is run: `-c`, or `sh -c`.
pub(super) fn refuse(missing: &Missing, dash_c: &str) -> Exit {
    let advice = if let Missing::NotFound(name) = missing { advice(name, dash_c) } else { None };
    say(advice.map_or_else(|| missing.to_string(), |advice| format!("{missing}; {advice}")));
    missing.exit()
}

/// What only a shell gives a meaning to.
const FOR_SHELLS: [char; 7] = ['|', '&', ';', '<', '>', '$', '`'];

/// What to write instead of `name`, which is not found.
fn advice(name: &OsStr, dash_c: &str) -> Option<String> {
    let text = name.to_str()?;
    if BUILTINS.contains(&text) {
        return Some(format!("it is built into the shell; write {dash_c} '{text} …'"));
    }
    if is_exported_function(text) {
        return Some(format!("it is a function of bash; write bash -c '{text} \"$@\"' _"));
    }
    if let Some((variable, _)) = text.split_once('=').filter(|(variable, _)| is_variable(variable)) {
        return Some(format!("to set {variable} write env {text} COMMAND"));
    }
    let path = Path::new(name);
    let needs_shell = text.contains(FOR_SHELLS);
    match runs(path) {
        Some(_) => Some(format!("the one in this folder is {}", quoted(format!("./{text}")))),
        None if path.is_file() => Some(format!("it is a file; to read it write < {}", quoted(text))),
        None if needs_shell || is_command_line(name) => {
            let script = text.replace("'{}'", "{}").replace("\"{}\"", "{}").replace("{}", "\"$1\"");
            let unit = if !needs_shell && dash_c == "-c" && script == text { " \"$1\"" } else { "" };
            let or = if needs_shell { "for a shell" } else { "drop the quotes around it, or" };
            Some(format!("{or} write {dash_c} {}", quoted(format!("{script}{unit}"))))
        }
        None => None,
    }
}

/// Whether `word` is a whole command line in quotes: its first part alone would run.
pub(crate) fn is_command_line(word: &OsStr) -> bool {
    let mut parts = word.as_bytes().split(u8::is_ascii_whitespace).filter(|part| !part.is_empty());
    let first = parts.next().filter(|first| first.len() < word.len());
    first.is_some_and(|first| find(OsStr::from_bytes(first)).is_ok())
}

/// Shells that know what bash knows.
const LIKE_BASH: [&str; 6] = ["bash", "busybox", "ksh", "ksh93", "mksh", "zsh"];

/// A word of a script that only bash knows, if the sh of this system is another shell.
pub(super) fn word_of_bash(script: &OsStr) -> Option<String> {
    let script = script.to_str()?;
    let mut words = script.split(|c: char| c.is_whitespace() || ";&|()".contains(c)).filter(|word| !word.is_empty());
    let word = words.find(|word| *word == "[[" || is_exported_function(word))?;
    let sh = find(OsStr::new("sh")).ok().and_then(|path| std::fs::canonicalize(path).ok())?;
    let is_like_bash = LIKE_BASH.iter().any(|name| sh.file_name() == Some(OsStr::new(name)));
    (!is_like_bash).then(|| word.to_owned())
}

/// See bash(1), export -f.
fn is_exported_function(name: &str) -> bool {
    !name.contains(['=', '\0']) && std::env::var_os(format!("BASH_FUNC_{name}%%")).is_some()
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
