//! Advice about a command that cannot run.

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

/// Prints why a command cannot run, and what to write instead. `dash_c` is the way to run a script: `-c`, or `sh -c`.
/// `meant` is the advice if the command was probably meant as something else.
pub(super) fn refuse(missing: &Missing, dash_c: &str, meant: Option<String>) -> Exit {
    let advice = if let Missing::NotFound(name) = missing { meant.or_else(|| advice(name, dash_c)) } else { None };
    say(advice.map_or_else(|| missing.to_string(), |advice| format!("{missing}; {advice}")));
    missing.exit()
}

/// Characters that have a meaning only to a shell.
const FOR_SHELLS: [char; 7] = ['|', '&', ';', '<', '>', '$', '`'];

/// Advice about a command `name` that was not found.
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
    match () {
        () if runs(path) => Some(format!("to run the command in this folder write {}", quoted(format!("./{text}")))),
        () if path.is_file() => Some(format!("it is a file; to read it write < {}", quoted(text))),
        () if needs_shell || is_command_line(name) => {
            let script = text.replace("'{}'", "{}").replace("\"{}\"", "{}").replace("{}", "\"$1\"");
            let unit = if !needs_shell && dash_c == "-c" && script == text { " \"$1\"" } else { "" };
            let or = if needs_shell { "for a shell" } else { "leave out the quotes around it, or" };
            Some(format!("{or} write {dash_c} {}", quoted(format!("{script}{unit}"))))
        }
        () => None,
    }
}

/// Whether `word` is a whole command line in quotes, whose first part is a command.
pub(crate) fn is_command_line(word: &OsStr) -> bool {
    let mut parts = word.as_bytes().split(u8::is_ascii_whitespace).filter(|part| !part.is_empty());
    let first = parts.next().filter(|first| first.len() < word.len());
    first.is_some_and(|first| find(OsStr::from_bytes(first)).is_ok())
}

/// Shells that support the same syntax as bash.
const LIKE_BASH: [&str; 6] = ["bash", "busybox", "ksh", "ksh93", "mksh", "zsh"];

/// The first word of a script that needs a shell like bash, if the sh of this system is another shell.
pub(super) fn word_of_bash(script: &OsStr) -> Option<String> {
    let script = script.to_str()?;
    let mut words = script.split(|c: char| c.is_whitespace() || ";&|()".contains(c)).filter(|word| !word.is_empty());
    let word = words.find(|word| *word == "[[" || is_exported_function(word))?;
    let sh = find(OsStr::new("sh")).ok().and_then(|path| std::fs::canonicalize(path).ok())?;
    let is_like_bash = LIKE_BASH.iter().any(|name| sh.file_name() == Some(OsStr::new(name)));
    (!is_like_bash).then(|| word.to_owned())
}

/// Whether bash has exported a function of this name: see bash(1), export -f.
fn is_exported_function(name: &str) -> bool {
    !name.contains(['=', '\0']) && std::env::var_os(format!("BASH_FUNC_{name}%%")).is_some()
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
