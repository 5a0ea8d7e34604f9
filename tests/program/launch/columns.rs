//! Units that are split into columns.

use crate::support::{Ended, run};

fn ran(args: &[&str], input: &str) -> Ended {
    run([&["-r", "unlimited", "-k"], args].concat(), input)
}

#[test]
fn a_command_gets_the_columns_of_its_unit() {
    for (args, input, out) in [
        (&["--columns", "echo", "{2}-{1}", "<{}>"][..], "a  b\n", "b-a <a  b>\n"),
        (&["--columns=,", "printf", "[%s]", "{1}", "{3}"], "a b,,c\n", "[a b][c]"),
        (&["--columns=\\t", "echo", "{2}"], "a b\tc d\n", "c d\n"),
        (&["--columns=csv", "printf", "[%s]", "{1}", "{2}"], "\"a,\"\"b\"\"\",c\r\n", "[a,\"b\"][c]"),
        (&["--columns", "printf", "[%s]"], "a b\n", "[a][b]"),
        (&["--columns=,", "-c", "echo \"$2\" \"$#\""], "a,b c,d\n", "b c 3\n"),
        (&["--columns", "-0", "echo", "{2}"], "a\nb\0", "b\n"),
    ] {
        let ended = ran(args, input);
        assert_eq!((ended.text(), ended.err.as_str(), ended.code()), (out, "", Some(0)), "{args:?}");
    }
}

#[test]
fn a_unit_with_too_few_columns_fails_unstarted_and_is_named() {
    let ended = ran(&["--attempts", "3", "--columns=,", "echo", "{2}", "{1}"], "a,b\nc\nd,e,f\n");
    assert_eq!((ended.text(), ended.code()), ("b a\ne d\n", Some(123)));
    let line = "throttle: line 2 'c': not run: it has 1 column, but the command uses {2}\n";
    assert!(ended.err.starts_with(line), "{}", ended.err);
    let shown = ran(&["--dry-run", "--columns=,", "echo", "{2}"], "a,b\nc\n");
    assert!(shown.text().starts_with("echo b  # ") && shown.text().contains("it has 1 column"), "{}", shown.text());
}

#[test]
fn the_whole_unit_has_the_key_and_the_cost() {
    let limit = "1k/s,per=f2";
    let ended = run(["-r", limit, "-k", "--columns", "-c", "echo \"$1 $THROTTLE_KEY\""], "a x\nb y\n");
    assert_eq!(ended.text(), "a x\nb y\n", "{}", ended.err);
    let ended = run(["-r", "1k/s,cost=f2", "-k", "--tag", "--columns", "echo", "{1}"], "a 2\nb x\n");
    assert_eq!(ended.text(), "a 2\ta\n");
    assert!(ended.err.contains("line 2 'b x': not run: limit 1k/s"), "{}", ended.err);
}

#[test]
fn a_bad_spelling_of_columns_is_answered_before_anything_runs() {
    for (args, words) in [
        (&["--columns", "echo", "{0}"][..], "{0} is not a column; write {1} to {99}"),
        (&["--columns", "echo", "{100}"], "{100} is not a column; write {1} to {99}"),
        (&["--columns=ab", "echo", "{1}"], "--columns 'ab': write one character, \\t or csv, like --columns=,"),
        (&["--columns=", "echo", "{1}"], "--columns: write one character"),
        (&["--columns"], "--columns needs a command"),
        (&["--columns=csv"], "--columns needs a command"),
        (&["--columns", "-n", "2", "echo"], "--columns cannot be used with --max-args"),
        (&["--columns", "--stdin", "cat"], "--columns cannot be used with --stdin"),
        (&["--columns", "sh", "-c", "rm {2}"], "would run the unit as code; write -c 'rm \"${2}\"'"),
        (&["echo", "{1}"], "{1} is a column of the unit and needs --columns"),
    ] {
        let ended = ran(args, "a b\n");
        assert_eq!((ended.code(), ended.text()), (Some(2), ""), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(words), "{args:?}: {}", ended.err);
    }
}
