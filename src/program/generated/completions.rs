//! The completions. clap generates the completions of options. This module adds COMMAND and its arguments, and the
//! names of buckets. The script of clap for bash ignores a command after the options, so that script is our own.

use super::committed::check;
use crate::program::args;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

/// Examples of limits, and of parts that may follow a limit after a comma.
const LIMITS: &str = "1/s 10/s 100/min 5000/h,window 1MiB/s unlimited";
const KEYS: &str = "window burst=10 initial=0 slack=0 per=host jobs=2 fails=3 rates=FILE cost=bytes/4+300 else=100";

/// The command line with details that only a shell needs: values to choose from, and which values are not files.
fn command() -> Command {
    let values = |option: Arg, values: &'static [&str]| option.value_parser(PossibleValuesParser::new(values));
    let mut command = args::command().mut_args(|option| match option.get_id().as_str() {
        "show" | "list" | "summary" => values(option, &["text", "json"]),
        "retry_on" => values(option, &["timeout", "signal"]),
        _ if option.get_action().takes_values() && option.get_value_hint() == ValueHint::Unknown => {
            option.value_hint(ValueHint::Other)
        }
        _ => option,
    });
    command.build();
    command
}

/// The names of the chapters, which may follow --help.
fn chapters() -> String {
    args::CHAPTERS.map(|chapter| chapter.name).join(" ")
}

fn generated(shell: Shell, command: &mut Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "throttle", &mut script);
    String::from_utf8(script).unwrap()
}

/// Replaces each `from` in `text` with `to`. `from` must occur.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from:?} is missing in: {text}");
    text.replace(from, to)
}

/// In the specifications of zsh, excludes the command beside the flags that run nothing. More logs may follow --plot.
fn without_command(options: &str) -> String {
    let runs_nothing = |line: &str| {
        let mut flags = args::VERBS.iter().filter(|flag| !["once", "plot"].contains(flag));
        flags.any(|flag| line.contains(&format!(")--{flag}[")) || line.contains(&format!(")--{flag}=[")))
    };
    let without = |line: &str| if runs_nothing(line) { line.replacen("'(", "'(* ", 1) } else { line.to_owned() };
    options.split_inclusive('\n').map(without).collect()
}

/// The completions for zsh. Colons and brackets are escaped, because they have a meaning in a specification of zsh.
fn zsh() -> String {
    let mut command = command();
    let mut script = generated(Shell::Zsh, &mut command);
    for name in command.get_arguments().filter_map(|option| option.get_value_names()).map(|names| names[0].as_str()) {
        let escaped = name.replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
        script = script.replace(&format!(":{name}:"), &format!(":{escaped}:"));
    }
    let script = replaced(&script, "]:BUCKET:_files'", "]:BUCKET:_throttle_buckets'");
    let script = replaced(&script, "]:LIMIT:'", "]:LIMIT:_throttle_limits'");
    let help = r"'--help[Print help (see more with '\''--help'\'')";
    let script = replaced(&script, &format!("{help}]'"), &format!("{help}]:CHAPTER:({})'", chapters()));
    // After the first word that is not an option, all words belong to the command.
    let script = replaced(&script, "_arguments_options[@]}\" :", "_arguments_options[@]}\" -A '-*' :");
    let (options, _) = script.split_once("'*::command -- ").expect("the command is the last one");
    let options = without_command(options);
    format!(
        r"{options}'*:::command:_normal' \
&& ret=0
return ret
}}

_throttle_limits() {{
    if compset -P '*,'; then
        compadd -- {KEYS}
    else
        compadd -- {LIMITS}
    fi
}}
{}",
        r#"
_throttle_buckets() {
    local -a buckets
    buckets=(${${(f)"$(_call_program buckets env -u THROTTLE_BUCKET ${(q)words[1]} --list 2>/dev/null)"}%%:*})
    _alternative 'buckets:bucket:compadd -a buckets' 'files:file:_files'
}

if [ "$funcstack[1]" = "_throttle" ]; then
    _throttle "$@"
else
    compdef _throttle throttle
fi
"#
    )
}

/// Words that name an option: `-r`, `-P`, `--rate`, `--max-procs`.
fn names(option: &Arg) -> impl Iterator<Item = String> {
    let short = option
        .get_short_and_visible_aliases()
        .into_iter()
        .flatten()
        .chain(option.get_all_short_aliases().into_iter().flatten());
    let long = option.get_long().into_iter().chain(option.get_all_aliases().into_iter().flatten());
    let (short, long): (Vec<char>, Vec<String>) = (short.collect(), long.map(|long| format!("--{long}")).collect());
    short.into_iter().map(|short| format!("-{short}")).chain(long)
}

/// Whether the next word is the value of the option.
fn takes_next_word(option: &Arg) -> bool {
    option.get_action().takes_values() && !option.is_positional() && !option.is_require_equals_set()
}

/// The letters of short options: with `with_value`, of options that take a value in the next word, else of the other
/// options.
fn letters(command: &Command, with_value: bool) -> String {
    let options =
        command.get_arguments().filter(|option| !option.is_positional() && takes_next_word(option) == with_value);
    options.flat_map(names).filter(|name| name.len() == 2).map(|name| name[1..].to_owned()).collect()
}

/// Long options that take a value in the next word.
fn takers(command: &Command) -> Vec<String> {
    let names = command.get_arguments().filter(|option| takes_next_word(option)).flat_map(names);
    names.filter(|name| name.starts_with("--")).collect()
}

fn fish() -> String {
    let mut command = command();
    let (takers, letters, flags) = (takers(&command).join(" "), letters(&command, true), letters(&command, false));
    let options = generated(Shell::Fish, &mut command);
    let help = "__fish_prev_arg_in --help; and not __throttle_command";
    let help = format!("complete -c throttle -f -n '{help}' -a '{}'\n", chapters());
    let options = replaced(&options, "complete -c throttle ", "complete -c throttle -n 'not __throttle_command' ");
    let options = replaced(&options, " -l bucket ", " -l bucket -a '(__throttle_buckets)' ");
    let options = replaced(&options, " -l rate ", " -l rate -a '(__throttle_limits)' ");
    let functions = fish_words(&takers, &letters, &flags) + &fish_values(&flags);
    format!("{functions}complete -c throttle -f -a '(__throttle_complete_command)'\n{help}{options}")
}

/// The functions that complete the words of COMMAND.
fn fish_words(takers: &str, letters: &str, flags: &str) -> String {
    format!(
        r"# The words of COMMAND before the cursor; fails if it has not begun.
function __throttle_command
    set -l words (commandline -opc)
    set -e words[1]
    while set -q words[1]
        switch $words[1]
            case --
                set -q words[2]; and string escape -- $words[2..]
                return 0
            case {takers}
                set -e words[1]
            case '-*'
                string match -qr -- '^-[{flags}]*[{letters}]$' $words[1]; and set -e words[1]
            case '*'
                break
        end
        set -e words[1]
    end
    set -q words[1]; and string escape -- $words
end

function __throttle_complete_command
    set -l words (__throttle_command)
    or not string match -q -- '-*' (commandline -ct); and not __fish_prev_arg_in --help
    or return
    complete --do-complete=(string join ' ' -- $words (commandline -ct))
end

"
    )
}

/// The functions that complete names of buckets, and limits.
fn fish_values(flags: &str) -> String {
    format!(
        r"function __throttle_buckets
    env -u THROTTLE_BUCKET throttle --list 2>/dev/null | string replace -r '(.*?): (.*)' '$1\t$2'
end

function __throttle_limits
    set -l limit (commandline -ct | string replace -r '^(--rate=|-[{flags}]*r)' '')
    if set -l before (string match -r '.*,' -- $limit)
        string join \n $before(string split ' ' '{KEYS}')
    else
        string split ' ' '{LIMITS}'
    end
end

"
    )
}

fn bash() -> String {
    let command = command();
    let cases = command.get_arguments().filter(|option| !option.is_positional()).filter_map(|option| {
        let values: Vec<String> =
            option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let action = match option.get_value_hint() {
            _ if option.get_id() == "bucket" => "_throttle_buckets \"$1\"".to_owned(),
            _ if option.get_id() == "rate" => format!("_throttle_limits '{LIMITS}' '{KEYS}'"),
            ValueHint::FilePath => "_throttle_files".to_owned(),
            _ if option.get_action().takes_values() && !values.is_empty() => {
                format!("_throttle_words '{}'", values.join(" "))
            }
            _ => return None,
        };
        Some(format!("{}) {action} ;;", names(option).collect::<Vec<_>>().join(" | ")))
    });
    let options = command.get_arguments().filter(|option| !option.is_positional());
    let options: Vec<String> = options.filter_map(Arg::get_long).map(|long| format!("--{long}")).collect();
    let template = include_str!("throttle.bash");
    let template = replaced(template, "@OPTIONS@", &options.join(" "));
    let template = replaced(&template, "@CHAPTERS@", &chapters());
    let template = replaced(&template, "@TAKERS@", &takers(&command).join(" | "));
    let template = replaced(&template, "@FLAGS@", &letters(&command, false));
    let template = replaced(&template, "@LETTERS@", &letters(&command, true));
    replaced(&template, "@CASES@", &cases.collect::<Vec<_>>().join("\n        "))
}

#[test]
fn the_completions_are_what_the_flags_say() {
    check("completions/throttle.bash", &bash());
    check("completions/_throttle", &zsh());
    check("completions/throttle.fish", &fish());
}

#[test]
fn the_limits_that_are_offered_are_limits() {
    let all = format!("1/s,{}", KEYS.replace("window ", "").replace("slack=0 ", "").replace(' ', ","));
    for limit in LIMITS.split(' ').chain(["5000/h,window,slack=0", &all]) {
        assert!(args::parse(&["throttle", "-r", limit, "true"].map(Into::into)).is_ok(), "{limit}");
    }
}
