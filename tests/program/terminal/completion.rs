//! The completions, in real shells on a terminal. A shell that is not installed is skipped, with a message.

use crate::support::terminal::Terminal;
use crate::support::{THROTTLE, skipped};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const COMPLETIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/completions");
const BASH_COMPLETION: &str = "/usr/share/bash-completion/bash_completion";

/// A command with completions of its own; nothing else begins like it.
const POLISHER: &str = "polish-furniture";

/// The text that is typed before the tab key, and the line after it, without a blank at its end.
const CASES: [(&str, &str); 22] = [
    ("throttle --dry", "throttle --dry-run"),
    ("throttle -k --buck", "throttle -k --bucket"),
    ("throttle -r 100/", "throttle -r 100/min"),
    ("throttle -kr 100/", "throttle -kr 100/min"),
    ("throttle -r 100/min,jo", "throttle -r 100/min,jobs=2"),
    ("throttle -r 100/min,per=host,jo", "throttle -r 100/min,per=host,jobs=2"),
    ("throttle -r 1/s,jobs=2,per=h", "throttle -r 1/s,jobs=2,per=host"),
    ("throttle --rate=5/s,co", "throttle --rate=5/s,cost=bytes/4+300"),
    ("throttle -r 5/s,cost=f2,els", "throttle -r 5/s,cost=f2,else=100"),
    ("throttle --progress al", "throttle --progress always"),
    ("throttle --progress=al", "throttle --progress=always"),
    ("throttle --summary=js", "throttle --summary=json"),
    ("throttle --on-store-error f", "throttle --on-store-error fail"),
    ("throttle --bucket web-a", "throttle --bucket web-api"),
    ("throttle --bucket=web-a", "throttle --bucket=web-api"),
    ("throttle -r 5/s -a some-f", "throttle -r 5/s -a some-file"),
    ("throttle -r 5/s -k polish-f", "throttle -r 5/s -k polish-furniture"),
    ("throttle -r 5/s -- polish-f", "throttle -r 5/s -- polish-furniture"),
    ("throttle --help lim", "throttle --help limits"),
    ("throttle --help polish-f", "throttle --help polish-f"),
    // Arguments after COMMAND belong to it.
    ("throttle -r 5/s polish-furniture some-f", "throttle -r 5/s polish-furniture some-file"),
    (
        "throttle --bucket redis://h/x -r 5/s polish-furniture some-f",
        "throttle --bucket redis://h/x -r 5/s polish-furniture some-file",
    ),
];

/// Where the command's own completions are known.
const OWN: [(&str, &str); 3] = [
    ("throttle -r 5/s polish-furniture --var", "throttle -r 5/s polish-furniture --varnish"),
    ("throttle -r5/s --once -- polish-furniture --var", "throttle -r5/s --once -- polish-furniture --varnish"),
    ("throttle -r 5/s polish-furniture --buck\tX", "throttle -r 5/s polish-furniture --buckX"),
];

struct Session {
    terminal: Terminal,
    shell: Child,
    _folder: tempfile::TempDir,
}

impl Session {
    /// Nothing if this shell is not installed.
    fn start(shell: &str, options: &[&str], settings: &str) -> Option<Self> {
        if Command::new(shell).arg("--version").output().is_err() {
            skipped(format!("no {shell} here"));
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = prepare(folder.path());
        for file in [".bashrc", ".zshrc", "fish/config.fish"] {
            fs::write(folder.path().join(file), settings).unwrap();
        }
        let terminal = Terminal::new(120);
        let mut command = terminal.command(shell);
        command.args(options).current_dir(folder.path().join("work")).env("PATH", path);
        for variable in ["HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"] {
            command.env(variable, folder.path());
        }
        let shell = command.spawn().unwrap();
        terminal.wait_for("the prompt", |row| row == "$");
        Some(Session { terminal, shell, _folder: folder })
    }

    /// What the line becomes by the tab key; zsh adds an equals sign to some options until something else is typed.
    /// Nothing else is written, no error of the completion either.
    #[track_caller]
    fn complete(&mut self, (typed, expected): (&str, &str)) {
        let expected = format!("$ {expected}");
        self.terminal.press(b"\x15\x0c");
        self.terminal.wait_for("an empty line", |row| row == "$");
        self.terminal.press(typed.as_bytes());
        self.terminal.press(b"\t");
        self.terminal.wait_for(&expected, |row| row.trim_end_matches('=') == expected);
        assert_eq!(self.terminal.at_rest().len(), 1, "{:?}", self.terminal.rows());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        _ = self.shell.kill();
        _ = self.shell.wait();
    }
}

/// A home with a bucket, a file to complete and the command. Gives the `PATH`.
fn prepare(home: &Path) -> std::ffi::OsString {
    for folder in ["bin", "work", "fish/completions"] {
        fs::create_dir_all(home.join(folder)).unwrap();
    }
    fs::write(home.join("work/some-file"), "").unwrap();
    let polisher = home.join("bin").join(POLISHER);
    fs::write(&polisher, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&polisher, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(THROTTLE, home.join("bin/throttle")).unwrap();
    symlink(Path::new(COMPLETIONS).join("throttle.fish"), home.join("fish/completions/throttle.fish")).unwrap();
    let mut set = Command::new(THROTTLE);
    set.args(["--bucket", "web-api", "-r", "5/s", "--set"]).env("XDG_STATE_HOME", home);
    assert!(set.status().unwrap().success());
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths([home.join("bin")].into_iter().chain(std::env::split_paths(&path))).unwrap()
}

#[test]
#[ignore = "slow: 3 s"]
fn bash_alone_completes_options_values_and_buckets() {
    let settings = format!("PS1='$ '; bind 'set bell-style none'; . {COMPLETIONS}/throttle.bash");
    let Some(mut bash) = Session::start("bash", &["--noprofile", "-i"], &settings) else { return };
    for case in CASES {
        bash.complete(case);
    }
}

#[test]
#[ignore = "slow: 3 s"]
fn bash_completion_completes_the_arguments_of_the_command() {
    if !PathBuf::from(BASH_COMPLETION).exists() {
        return skipped("no package bash-completion here");
    }
    let own = format!("complete -o default -W '--sand --varnish' {POLISHER}");
    let settings =
        format!("PS1='$ '; bind 'set bell-style none'; . {BASH_COMPLETION}; . {COMPLETIONS}/throttle.bash; {own}");
    let Some(mut bash) = Session::start("bash", &["--noprofile", "-i"], &settings) else { return };
    for case in CASES.iter().chain(&OWN) {
        bash.complete(*case);
    }
}

#[test]
#[ignore = "slow: 4 s"]
fn zsh_completes_options_values_buckets_and_the_command() {
    let own = format!("_polish() {{ _arguments --sand --varnish '*:file:_files' }}; compdef _polish {POLISHER}");
    let load = format!("fpath=({COMPLETIONS} $fpath); autoload -U compinit; compinit -u -D");
    let settings = format!("PROMPT='$ '; setopt nobeep; {load}; {own}");
    let Some(mut zsh) = Session::start("zsh", &["-o", "noglobalrcs", "-i"], &settings) else { return };
    // Nothing runs beside --show, so no command is offered.
    let alone = "throttle --bucket=web-api --show polish-wi";
    for case in CASES.iter().chain(&OWN).chain(&[(alone, alone)]) {
        zsh.complete(*case);
    }
}

#[test]
#[ignore = "slow: 3 s"]
fn fish_completes_options_values_buckets_and_the_command() {
    let own = format!("complete -c {POLISHER} -l sand; complete -c {POLISHER} -l varnish");
    let prompt = "function fish_prompt; echo -n '$ '; end; set -g fish_greeting; set -g fish_autosuggestion_enabled 0";
    let Some(mut fish) = Session::start("fish", &["-i"], &format!("{prompt}; {own}")) else { return };
    for case in CASES.iter().chain(&OWN) {
        fish.complete(*case);
    }
}
