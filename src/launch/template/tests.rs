use super::*;

fn reading(max_args: u64, place: Place) -> Reading {
    Reading { replace: None, max_args, place, columns: None }
}

fn words(text: &str) -> Vec<OsString> {
    text.split(' ').map(OsString::from).collect()
}

fn filled(template: &str, max_args: u64, units: &[&str]) -> Vec<String> {
    let template = Template::new(&words(template), &reading(max_args, Place::Arguments)).unwrap();
    words_of(&template, units).into_iter().map(|word| word.into_string().unwrap()).collect()
}

fn words_of<T: AsRef<[u8]>>(template: &Template, units: &[T]) -> Vec<OsString> {
    template.fill(&units.iter().collect()).map(Cow::into_owned).collect()
}

#[test]
fn units_replace_the_braces_or_follow_the_words() {
    assert_eq!(filled("echo", 1, &["a b"]), ["echo", "a b"]);
    assert_eq!(filled("echo {} x", 1, &["{}"]), ["echo", "{}", "x"]);
    assert_eq!(filled("cp {} {}.bak", 1, &["f"]), ["cp", "f", "f.bak"]);
    assert_eq!(filled("echo a{}b{}c", 1, &["-"]), ["echo", "a-b-c"]);
    assert_eq!(filled("echo", 3, &["1", "2"]), ["echo", "1", "2"]);
    assert_eq!(filled("echo {} end", 3, &["1", "2", "3"]), ["echo", "1", "2", "3", "end"]);
    assert_eq!(filled("echo", 0, &["1"]), ["echo"]);
}

#[test]
fn bytes_that_are_no_text_pass_through() {
    let template = Template::new(&words("x {}.y"), &reading(1, Place::Arguments)).unwrap();
    assert_eq!(words_of(&template, &[b"\xff\n'"])[1].as_bytes(), b"\xff\n'.y");
}

#[test]
fn another_marker_may_replace_the_braces() {
    let marker = Reading { replace: Some("@".into()), ..reading(1, Place::Arguments) };
    let template = Template::new(&words("sh -c @ {}"), &marker).unwrap();
    assert_eq!(words_of(&template, &["u"]), ["sh", "-c", "u", "{}"].map(OsString::from));
}

#[test]
fn the_shell_gets_the_unit_as_its_first_argument() {
    let script = OsStr::new("echo \"$1\" {}");
    for place in [Place::Arguments, Place::Nowhere] {
        let template = Template::shell(script, &reading(1, place)).unwrap();
        assert_eq!(words_of(&template, &["u"]), ["sh", "-c", "echo \"$1\" {}", "throttle -c", "u"].map(OsString::from));
    }
    let template = Template::shell(script, &reading(1, Place::StandardInput)).unwrap();
    assert_eq!(words_of(&template, &["u"]).len(), 4);
}

#[test]
fn a_unit_that_would_run_as_code_of_another_language_is_refused() {
    for (text, expected) in [
        ("python3 -c print('{}')", "write python3 -c CODE {}, where the unit is sys.argv[1] (or -I {} if it is meant)"),
        ("/usr/bin/python3.11 -W ignore -Bc {}", "the code of 'python3.11 -Bc'"),
        ("timeout 5 perl -lne print'{}'", "write perl -e CODE {}, where the unit is $ARGV[0]"),
        ("ruby -r json -e {}", "ruby -e CODE {}, where the unit is ARGV[0]"),
        ("node --eval f({})", "node -e CODE {}, where the unit is process.argv[1]"),
        ("node -p {}", "the code of 'node -p'"),
        ("sudo su -c rm_{} user", "write su -c CODE USER sh {}, where the unit is \"$1\""),
        ("su user --command rm_{}", "the code of 'su --command'"),
    ] {
        let error = Template::new(&words(text), &reading(1, Place::Arguments)).unwrap_err();
        assert!(error.contains("would run the unit as code") && error.contains(expected), "{text}: {error}");
    }
    for text in [
        "python3 -c code {}",
        "python3 script.py -c {}",
        "python3 -m json.tool -c {}",
        "perl script -e {}",
        "perl -e code {}",
        "node script --eval {}",
        "ruby {}",
        "suspend -c {}",
        "psql -c {}",
        "sudo -u perl ls -e {}",
    ] {
        assert!(Template::new(&words(text), &reading(1, Place::Arguments)).is_ok(), "{text}");
    }
    let meant = Reading { replace: Some("{}".into()), ..reading(1, Place::Arguments) };
    assert!(Template::new(&words("python3 -c {}"), &meant).is_ok());
}

#[test]
fn a_unit_that_ssh_gives_to_a_shell_is_noticed() {
    let gives = |text: &str, place| Template::new(&words(text), &reading(1, place)).unwrap().gives_unit_to_ssh();
    for text in ["ssh h echo", "ssh h echo {}", "ssh -p 2 h rm_{}", "timeout 5 /usr/bin/ssh h echo", "ssh h"] {
        assert!(gives(text, Place::Arguments), "{text}");
    }
    for text in ["ssh {} uptime", "ssh {}", "sshfs h", "echo ssh {}", "echo ssh h"] {
        assert!(!gives(text, Place::Arguments), "{text}");
    }
    assert!(!gives("ssh h cat", Place::StandardInput), "it is data there");
}

#[test]
fn what_is_quoted_for_a_terminal_does_nothing_to_it() {
    let shown = |words: &[&[u8]]| {
        let words: Vec<Vec<u8>> = words.iter().map(|word| quote(word, true)).collect();
        String::from_utf8(words.join(&b' ')).unwrap()
    };
    assert_eq!(shown(&[b"echo", b"a b", "ü".as_bytes(), b""]), "echo 'a b' 'ü' ''");
    assert_eq!(shown(&[b"\x1b[31m it's \\"]), r"$'\033[31m it\'s \\'");
    assert_eq!(shown(&[b"a\nb\tc", b"\x7f1", b"\xff9"]), r"$'a\nb\tc' $'\1771' $'\3779'");
    assert_eq!(shown(&["\u{9b}31m".as_bytes()]), r"$'\302\23331m'", "one character in place of ESC [");
}

#[test]
fn a_script_in_which_braces_would_stay_is_refused() {
    let refused = |script: &str, max_args, place| Template::shell(OsStr::new(script), &reading(max_args, place));
    let error = refused("echo '{}'", 1, Place::Arguments).unwrap_err();
    assert!(error.contains("write -c 'echo \"$1\"'"), "{error}");
    let error = refused("echo {}", 9, Place::Nowhere).unwrap_err();
    assert!(error.contains("write -c 'echo \"$@\"'"), "{error}");
    for (script, max_args, place) in [
        ("find \"$1\" -exec rm {} +", 1, Place::Arguments),
        ("xargs -I{} echo {}", 1, Place::StandardInput),
        ("find . -exec rm {} +", 0, Place::Arguments),
    ] {
        assert!(refused(script, max_args, place).is_ok(), "{script}");
    }
}

#[test]
fn a_script_that_does_not_use_the_unit_is_noticed() {
    let is_unused = |unused| matches!(unused, Unused::All | Unused::Lost);
    let unused = |text: &[&str], place| {
        let words: Vec<OsString> = text.iter().map(OsString::from).collect();
        Template::new(&words, &reading(1, place)).map(|template| is_unused(template.unused_units()))
    };
    let found = |text: &str, place| Template::shell(OsStr::new(text), &reading(1, place)).unwrap().unused_units();
    let script = |text: &str, place| is_unused(found(text, place));
    for (text, expected) in
        [("echo ", Unused::Lost), ("f  x", Unused::Lost), ("f ''", Unused::Lost), ("f x", Unused::All)]
    {
        assert_eq!(found(text, Place::Arguments), expected, "{text}");
    }
    assert!(script("echo ", Place::Arguments) && unused(&["bash", "-c", "echo ", "x"], Place::Arguments).unwrap());
    assert!(unused(&["bash", "-c", "echo ", "{}"], Place::Arguments).unwrap());
    assert!(!script("echo", Place::Nowhere) && !script("cat", Place::StandardInput));
    for text in ["echo \"$1\"", "echo $THROTTLE_SEQ", "echo $THROTTLE_SLOT"] {
        assert!(!script(text, Place::Arguments), "{text}");
    }
    for text in [
        &["bash", "-c", "rm \"$0\""][..],
        &["bash", "-c", "f \"$@\"", "_"],
        &["bash", "-c", "f", "{}.x", "$1"],
        &["echo", "-c", "x"],
    ] {
        let is_unused = unused(text, Place::Arguments).unwrap();
        assert_eq!(is_unused, text[2] == "f", "{text:?}");
    }
    let error = unused(&["timeout", "5", "bash", "-c", "echo \"$1\""], Place::Arguments).unwrap_err();
    assert!(error.contains("like bash -c 'echo \"$1\"' bash {}"), "{error}");
    assert!(unused(&["bash", "-c", "echo $1", "{}"], Place::Arguments).is_err());
    assert!(unused(&["bash", "-c", "echo $1"], Place::Nowhere).is_ok_and(|is_unused| !is_unused));
}

#[test]
fn what_would_surprise_is_refused_with_the_right_spelling() {
    let error = |text: &str, reading: &Reading| Template::new(&words(text), reading).unwrap_err();
    let one = reading(1, Place::Arguments);
    let refused = error("bash -ec rm_'{}' x", &one);
    assert!(refused.contains("-c 'rm_\"$1\"'"), "{refused}");
    assert!(error("ffmpeg -i {} {.}.mp3", &one).contains("${1%.*}"));
    assert!(error("echo {#}", &one).contains("$THROTTLE_SEQ"));
    assert!(error("cp {1} x", &one).contains("--columns COMMAND {1}"));
    assert!(Template::new(&words("grep -E x{1}"), &one).is_ok(), "a regular expression");
    assert!(error("echo x{}", &reading(2, Place::Arguments)).contains("-n 1"));
    assert!(error("echo {}", &reading(1, Place::StandardInput)).contains("--stdin"));
    assert!(error("echo {}", &reading(0, Place::Arguments)).contains("-n 0"));
    let marker = Reading { replace: Some("".into()), ..one };
    assert!(error("echo", &marker).contains("-I"));
    let marker = |max_args, place| Reading { replace: Some("%".into()), ..reading(max_args, place) };
    let refused = error("echo {}", &marker(1, Place::Arguments));
    assert!(
        refused.starts_with("-I '%': the command does not contain '%'; write '%' where the unit goes"),
        "{refused}"
    );
    for (max_args, place) in [(0, Place::Arguments), (1, Place::Nowhere), (1, Place::StandardInput)] {
        assert!(Template::new(&words("echo"), &marker(max_args, place)).is_ok(), "{place:?}: nothing is appended");
    }
}

fn with_columns(separator: Separator) -> Reading {
    Reading { columns: Some(separator), ..reading(1, Place::Arguments) }
}

#[test]
fn columns_replace_numbers_in_braces_or_follow_the_words() {
    let filled = |template: &str, separator, unit: &str| -> Vec<String> {
        let template = Template::new(&words(template), &with_columns(separator)).unwrap();
        words_of(&template, &[unit]).into_iter().map(|word| word.into_string().unwrap()).collect()
    };
    assert_eq!(filled("mv {2} {1}", Separator::Blanks, "a  b c"), ["mv", "b", "a"]);
    assert_eq!(filled("echo <{}> {1}{}-{2}.x", Separator::Blanks, "a b"), ["echo", "<a b>", "aa b-b.x"]);
    assert_eq!(filled("echo", Separator::Blanks, "a b"), ["echo", "a", "b"]);
    assert_eq!(filled("echo {}", Separator::Blanks, "a b"), ["echo", "a b"]);
    assert_eq!(filled("echo {1}", Separator::Csv, "\"a,\"\"b\",c"), ["echo", "a,\"b"]);
    assert_eq!(filled("{1} x", Separator::Text(vec![b',']), "a b,c"), ["a b", "x"]);
    let shell = Template::shell("echo $2".as_ref(), &with_columns(Separator::Blanks)).unwrap();
    assert_eq!(words_of(&shell, &["a b"]), ["sh", "-c", "echo $2", "throttle -c", "a", "b"].map(OsString::from));
    let marker = Reading { replace: Some("@".into()), ..with_columns(Separator::Blanks) };
    let template = Template::new(&words("cp @ {2} {}"), &marker).unwrap();
    assert_eq!(words_of(&template, &["a b"]), ["cp", "a b", "b", "{}"].map(OsString::from));
}

#[test]
fn impossible_columns_and_columns_in_code_are_refused() {
    for (text, expected) in [
        ("echo {0}", "{0} is not a column; write {1} to {99}, or {} for the whole unit"),
        ("echo a{100}", "{100} is not a column; write {1} to {99}"),
        ("echo {18446744073709551617}", " is not a column; write {1} to {99}"),
        ("sh -c {2}", "write -c '\"${2}\"'"),
        ("sudo sh -c rm{}", "write … sh -c 'rm\"$@\"' sh {1} {2}"),
        ("python3 -c {1}", "write python3 -c CODE {}"),
    ] {
        let error = Template::new(&words(text), &with_columns(Separator::Blanks)).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = Template::shell("echo {2}".as_ref(), &with_columns(Separator::Blanks)).unwrap_err();
    assert!(error.contains("write -c 'echo \"${2}\"'"), "{error}");
    let error = Template::new(&words("echo {2}"), &reading(1, Place::Arguments)).unwrap_err();
    assert!(error.contains("{2} is a column of the unit and needs --columns"), "{error}");
}
