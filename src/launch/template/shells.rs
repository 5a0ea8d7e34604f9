//! Finds the word of a command that a shell will run as a script.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const SHELLS: [&str; 5] = ["sh", "bash", "dash", "zsh", "ksh"];

/// Commands that run another command, given in their last words.
const WRAPPERS: [&str; 16] = [
    "busybox", "chrt", "doas", "env", "flock", "ionice", "nice", "nohup", "setsid", "stdbuf", "sudo", "taskset",
    "time", "timeout", "unshare", "xargs",
];

/// Long options that take the next word. bash also accepts long options with a single dash.
const LONG_OPTIONS_WITH_VALUE: [&[u8]; 3] = [b"rcfile", b"init-file", b"emulate"];
const LONG_OPTIONS: [&[u8]; 6] = [b"norc", b"noprofile", b"posix", b"login", b"restricted", b"verbose"];

/// A script in the words of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Script<'a> {
    pub(super) text: &'a OsStr,
    /// The name of the shell that runs it.
    pub(super) shell: &'a str,
    /// Whether another command starts the shell.
    pub(super) is_wrapped: bool,
    /// The words after the text: `$0`, `$1` and so on.
    pub(super) arguments: &'a [OsString],
}

impl<'a> Script<'a> {
    /// Finds the script after a shell's `-c`, if `words` start a shell directly or through a wrapper.
    pub(super) fn in_words(words: &'a [OsString]) -> Option<Self> {
        let place = if is_wrapper(words.first()?) { words.iter().position(|word| shell(word).is_some())? } else { 0 };
        let (text, arguments) = operand_of_c(shell(&words[place])?, &words[place + 1..])?;
        Some(Script { text, shell: shell(&words[place])?, is_wrapped: place > 0, arguments })
    }
}

/// A program, other than a shell, that runs a word as code.
#[derive(Debug)]
pub(super) struct Language {
    /// Its name, without a version.
    name: &'static str,
    /// The endings of the options that are followed by the code, and the other options that take the next word.
    options: [&'static [&'static str]; 2],
    /// How to pass the unit as an argument instead, and the name of that argument in the code.
    pub(super) instead: [&'static str; 2],
}

#[rustfmt::skip]
const LANGUAGES: [Language; 5] = [
    Language { name: "python", options: [&["c"], &["-W", "-X"]], instead: ["python3 -c CODE", "sys.argv[1]"] },
    Language { name: "perl", options: [&["e", "E"], &["-I"]], instead: ["perl -e CODE", "$ARGV[0]"] },
    Language { name: "ruby", options: [&["e"], &["-r", "-I", "-C"]], instead: ["ruby -e CODE", "ARGV[0]"] },
    Language { name: "node", options: [&["e", "p", "-eval", "-print"], &["-r"]], instead: ["node -e CODE", "process.argv[1]"] },
    Language { name: "su", options: [&["c", "-command"], &["-s", "-g", "-G"]], instead: ["su -c CODE USER sh", "\"$1\""] },
];

/// Finds a word of code that contains `{}`, if `words` certainly run it. Returns its option and its language.
pub(super) fn code_with_unit(words: &[OsString]) -> Option<(String, &'static Language)> {
    let language = |word: &OsString| {
        let name = basename(word)?.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        LANGUAGES.iter().find(|language| language.name == name)
    };
    let place = if is_wrapper(words.first()?) { words.iter().position(|word| language(word).is_some())? } else { 0 };
    let language = language(&words[place])?;
    let mut rest = words[place + 1..].iter().map(|word| word.to_string_lossy());
    // Only options before the name of a file count. su also accepts options after its user.
    while let Some(word) = rest.next().filter(|word| *word != "--" && (word.starts_with('-') || language.name == "su"))
    {
        let [before_code, with_value] = language.options;
        let letters = word.strip_prefix('-').filter(|letters| letters.chars().all(|c| c.is_ascii_alphanumeric()));
        let is_one = |end: &&str| word.strip_prefix('-') == Some(end) || letters.is_some_and(|all| all.ends_with(end));
        if before_code.iter().any(is_one) {
            let option = format!("{} {word}", basename(&words[place])?);
            return rest.next().filter(|code| code.contains("{}")).map(|_| (option, language));
        }
        if with_value.contains(&&*word) {
            rest.next();
        }
    }
    None
}

/// Whether `word` is ssh(1).
pub(super) fn is_ssh(word: &OsStr) -> bool {
    basename(word) == Some("ssh")
}

/// Whether a script uses `$1` or another of its arguments.
pub(super) fn uses_arguments(script: &str) -> bool {
    const IMPLICIT: [&str; 5] = ["shift", "set", "getopts", ".", "source"];
    let is_argument = |c: char| c.is_ascii_digit() && c != '0' || "@*#".contains(c);
    let names_one = script.split('$').skip(1).any(|rest| {
        let name = rest.strip_prefix('{').unwrap_or(rest);
        name.trim_start_matches(['#', '!']).starts_with(is_argument) || rest.starts_with('#')
    });
    let words: Vec<&str> =
        script.split(|c: char| c.is_whitespace() || c == ';').filter(|word| !word.is_empty()).collect();
    let loops_over_all = words.windows(3).any(|words| words[0] == "for" && words[2] == "do");
    names_one || loops_over_all || words.iter().any(|word| IMPLICIT.contains(word))
}

/// Whether a script uses `$0`.
pub(super) fn uses_name(script: &str) -> bool {
    script.contains("$0") || script.contains("${0")
}

fn basename(word: &OsStr) -> Option<&str> {
    Path::new(word).file_name().and_then(OsStr::to_str)
}

fn shell(word: &OsStr) -> Option<&str> {
    basename(word).filter(|name| SHELLS.contains(name))
}

pub(super) fn is_wrapper(word: &OsStr) -> bool {
    basename(word).is_some_and(|name| WRAPPERS.contains(&name))
}

/// The first operand after a shell's options, if they include `-c`, and the words after it. Without `-c` the operand is
/// the name of a file, and the words after it are not options of the shell.
fn operand_of_c<'a>(shell: &str, words: &'a [OsString]) -> Option<(&'a OsStr, &'a [OsString])> {
    let (mut words, mut has_c) = (words.iter(), false);
    let operand = loop {
        let word = words.next()?;
        match Word::new(shell, word.as_bytes()) {
            Word::Operand => break word,
            Word::EndOfOptions => break words.next()?,
            Word::Options { c, values } => {
                has_c |= c;
                for _ in 0..values {
                    words.next();
                }
            }
        }
    };
    has_c.then_some((operand.as_os_str(), words.as_slice()))
}

/// A word as a shell parses it.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// Options: whether `c` is among them, and how many of the next words are their values.
    Options {
        c: bool,
        values: usize,
    },
    EndOfOptions,
    Operand,
}

impl Word {
    fn new(shell: &str, word: &[u8]) -> Self {
        let long = |values| Word::Options { c: false, values };
        match word {
            b"-" | b"--" => Word::EndOfOptions,
            [b'-', b'-', name @ ..] | [b'-', name @ ..] if LONG_OPTIONS_WITH_VALUE.contains(&name) => long(1),
            [b'-', b'-', ..] => long(0),
            [b'-', name @ ..] if LONG_OPTIONS.contains(&name) => long(0),
            [b'-' | b'+', letters @ ..] => Word::cluster(shell, letters),
            _ => Word::Operand,
        }
    }

    /// Parses letters after one dash or plus. All of these shells give `c` the same meaning after both.
    fn cluster(shell: &str, letters: &[u8]) -> Self {
        let takes_rest = matches!(shell, "zsh" | "ksh");
        // In these shells, text attached to an `o` is the name of an option: -oextendedglob.
        if let Some((letters, [_, ..])) = memchr::memchr(b'o', letters).map(|o| letters.split_at(o + 1))
            && takes_rest
        {
            return Word::Options { c: letters.contains(&b'c'), values: 0 };
        }
        let takes_next = |letter: &&u8| **letter == b'o' || (**letter == b'O' && !takes_rest);
        Word::Options { c: letters.contains(&b'c'), values: letters.iter().filter(takes_next).count() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_script_is_found_in_every_ordinary_spelling() {
        for text in [
            "sh -c {}",
            "/bin/sh -c {}",
            "bash -ce {}",
            "bash -ec {} x y",
            "bash -c -e {}",
            "bash -e -c {}",
            "bash +e -c {}",
            "dash +c {}",
            "bash -c -- {}",
            "dash -c - {}",
            "bash -o pipefail -c {}",
            "bash -eo pipefail -c {}",
            "bash -euo pipefail -c {}",
            "bash -oc pipefail {}",
            "bash -c -o pipefail {}",
            "bash +o posix -c {}",
            "bash -O extglob -c {}",
            "bash --norc -c {}",
            "bash -norc -c {}",
            "bash -noprofile -c {}",
            "bash --rcfile file -c {}",
            "bash -rcfile file -c {}",
            "bash --init-file file -c {}",
            "zsh -oextendedglob -c {}",
            "zsh -fc {}",
            "zsh -co errexit {}",
            "zsh --emulate sh -c {}",
            "ksh -o pipefail -c {}",
            "timeout 5 bash -c {}",
            "timeout -k 1 5 /usr/bin/env -i bash -ec {}",
            "env X=1 sh -c {}",
            "/usr/bin/env sh -c {}",
            "nice -n 5 sh -c {}",
            "sudo -u x sh -c {}",
            "doas sh -c {}",
            "nohup sh -c {}",
            "setsid -w sh -c {}",
            "time -p bash -c {}",
            "ionice -c 3 bash -c {}",
            "chrt -i 0 bash -c {}",
            "taskset -c 0 bash -c {}",
            "stdbuf -oL bash -c {}",
            "flock lock sh -c {}",
            "busybox sh -c {}",
        ] {
            let words = words(text);
            let script = Script::in_words(&words);
            assert_eq!(script.map(|script| script.text), Some(OsStr::new("{}")), "{text}");
        }
    }

    #[test]
    fn words_that_no_shell_runs_as_a_script_are_none() {
        for text in [
            "bash script.sh -c {}",
            "bash -e script.sh -c {}",
            "bash -o pipefail script.sh -c {}",
            "bash -- script.sh -c {}",
            "bash {}",
            "bash -e {}",
            "bash --rcfile {} -i",
            "bash -norc {}",
            "sh",
            "sh -c",
            "grep -c {} file",
            "echo sh -c {}",
            "env X=1 ./run -c {}",
            "timeout 5 curl -c {}",
            "nice -n 5 bash script.sh -c {}",
        ] {
            assert_eq!(Script::in_words(&words(text)), None, "{text}");
        }
        let as_argument = words("bash -c script name {}");
        assert_eq!(Script::in_words(&as_argument).map(|script| script.text), Some(OsStr::new("script")));
    }

    #[test]
    fn what_a_script_uses_is_seen() {
        for script in [
            "echo $1",
            "echo \"$1\"",
            "echo ${1%.*}",
            "f \"$@\"",
            "echo $*",
            "echo ${#1}",
            "echo $#",
            "echo ${2:-x}",
            "shift; x",
            "for x do echo $x; done",
            "for x; do echo $x; done",
            "set -- x",
            "a\n. ./lib.sh",
        ] {
            assert!(uses_arguments(script), "{script}");
        }
        for script in [
            "echo ",
            "echo $x",
            "echo $$",
            "echo $?",
            "echo $0",
            "for x in a b; do echo $x; done",
            "echo 1",
            "a.b set.x",
        ] {
            assert!(!uses_arguments(script), "{script}");
        }
        assert!(uses_name("rm \"$0\"") && uses_name("echo ${0##*/}") && !uses_name("echo $10 $1"));
    }

    #[test]
    fn words_that_are_no_text_are_read_as_bytes() {
        let invalid = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let words = [invalid(b"env"), invalid(b"X=\xff"), invalid(b"/\xff/bash"), invalid(b"-c"), invalid(b"\xff{}")];
        let script = Script::in_words(&words).unwrap();
        assert_eq!((script.text.as_bytes(), script.shell, script.is_wrapped), (&b"\xff{}"[..], "bash", true));
    }
}
