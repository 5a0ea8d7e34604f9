//! The message about a wrong command line: one line, which names the option and shows a right spelling.

use crate::support::{feed, shell, throttle};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, path::Path};

/// The output of a command line that must not be run.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = feed(throttle(args), b"must not be read\n");
    assert_eq!((output.code(), output.text()), (Some(2), ""), "{args:?}: {}", output.err);
    let said = output.err;
    assert!(said.starts_with("throttle: ") && said.lines().count() == 1, "{args:?}: {said}");
    said
}

#[test]
fn each_mistake_in_a_rate_shows_a_right_spelling() {
    let rates = [
        ("5m", "a minute is written after the slash, 5/min; a million is 5M/s"),
        (
            "10M",
            "'10M' could be lines or bytes; write 10M/s for ten million lines a second, or 10MB/s or 10MiB/s for bytes",
        ),
        ("K", "5k/s, 5kB/s or 5KiB/s"),
        ("5K/s", "a thousand is 5k/s"),
        ("8Mb/s", "bits must be divided by 8: write 1MB/s"),
        ("0/s", "lets nothing through"),
        ("-1/s", "is negative"),
        ("5/0s", "has a period of 0"),
        ("5//s", "has two slashes"),
        ("5/fortnight", "no unit of time 'fortnight'; use ms, s, min, h or d"),
        ("1e400/s", "has an exponent"),
        ("1e3/s", "write the number out or with k, M, G: 1000/s"),
        ("5 / s", "has a space in it"),
        ("5/s,burst=0", "the least is burst=1"),
        ("5/s,brst=2", "did you mean burst=2?"),
        ("5/s,burst=2,initial=3", "initial=3 is more than burst=2"),
        ("5/s,window,burst=2", "a window has no burst"),
        ("5/1.5s", "10/3s"),
        ("5/usec", "no unit of time 'usec'; write 5/us"),
        ("5/", "5/s or 5/min"),
        ("0,5/s", "write 0.5/s"),
        ("1,000/s", "no commas inside numbers; write 1000/s"),
        ("", "empty"),
        ("18446744073709551616/s", "is more than the largest number of units"),
        ("five/s", "has no number before the 'five'"),
        ("unlimited,burst=2", "unlimited cannot"),
    ];
    let mut all: Vec<String> = Vec::new();
    for (rate, words) in rates {
        let said = refused(&["--rate", rate]);
        assert!(said.contains("--rate") && said.contains(words), "{rate:?}: {said}");
        all.push(said.replace(rate, ""));
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), rates.len(), "two mistakes have the same words");
}

/// Each message is about one mistake, and all are different.
#[test]
fn each_mistake_in_what_a_limit_counts_has_its_own_words() {
    let rules = [
        ("5/s,per=2", "per=2: field 2 is written f2"),
        ("5/s,per=f0", "fields count from 1"),
        ("5/s,per=f", "a field needs a number after the f, like f2"),
        ("5/s,per=f2:ab", "the separator of fields is exactly one byte; write for example f2:; or, for a tab, f2:\\t"),
        ("5/s,per=f2:,jobs=2", "write a second comma before the next part, like f2:,,jobs=2"),
        ("5/s,per=user.id", "per=user.id: for a value in JSON write /user/id"),
        ("5/s,per=/a~b", "in a JSON Pointer ~0 is a ~ and ~1 is a /; write /a~0b"),
        ("5/s,per=hosts", "per=hosts: write host"),
        ("5/s,cost=byte", "the number of bytes is named bytes; write cost=bytes or cost=bytes/4"),
        ("5/s,per=", "the selector is missing; write host, f2, /user/id or re:REGEX"),
        ("5/s,per=Host", "per=Host: write host"),
        ("5/s,per=ip", "unknown selector 'ip'; write /ip for JSON, otherwise host, f2 or re:REGEX"),
        ("5/s,per=re:", "a pattern is missing; write for example re:^[a-z]+"),
        ("5/s,per=re:(", "the pattern is not a regular expression: unclosed group; write for example re:^[a-z]+"),
        ("5/s,per=re:\\w{900}{900}", "the pattern is too large"),
        (
            "5/s,burst=2,per=re:a,jobs=2",
            "re: extends to the end of the limit, so it must be the last part; write 5/s,burst=2,jobs=2,per=re:a",
        ),
        ("5/s,per=host,per=f2", "per is given twice in one limit; write it once, like 5/s,per=host"),
        ("5/s,cost=x.y", "cost=x.y: for a value in JSON write /x/y"),
        ("5/s,cost=$3", "field 3 is written f3"),
        ("5/s,cost=", "the cost is missing; write a number, f3, /max_tokens or bytes/4, like cost=800"),
        ("5/s,cost=-1", "a cost is a whole number that is not negative, like cost=800"),
        (
            "5/s,cost=host",
            "a cost is a number in the unit or its number of bytes; write for example f3, /max_tokens or bytes/4",
        ),
        ("5/s,cost=f2/4", "only bytes can be divided, and only by a whole number; write for example bytes/4+300"),
        ("5/s,cost=bytes/0", "nothing can be divided by 0; write for example bytes/4"),
        ("5/s,cost=tokens", "unknown cost 'tokens'; write /tokens for JSON, otherwise for example 800, f3 or bytes/4"),
        ("5/s,cost=800,else=5", "else= is never used with a fixed number; write cost=800 alone, or cost=f3,else=100"),
        (
            "5/s,cost=f3,else=x",
            "else= needs a whole number, the cost of a unit whose own cost cannot be read; write for example else=100",
        ),
        ("5/s,else=5", "else= needs a cost; write for example cost=f3,else=100"),
        ("5/s,jobs=2", "jobs=2 needs a key; add per=host, or use -j 2"),
        ("5/s,per=host,jobs=0", "jobs=0: at least one command of a key must run; write for example per=host,jobs=2"),
        ("per=host", "the rate is missing; write it first, like 5/s,per=host"),
        ("unlimited,per=host", "unlimited,per=host limits nothing; write 1/s,per=host or unlimited,jobs=2,per=host"),
        ("unlimited,cost=f3", "unlimited takes no cost; write a rate, like 500/min,cost=f3"),
        ("5MB/s,per=host", "'5MB/s' counts bytes, but per= needs a limit in units; write for example 5/s,per=host"),
        (
            "5MB/s,cost=f3",
            "'5MB/s' counts bytes, but cost= needs a limit in units; to count the bytes of units write \
             10M/s,cost=bytes",
        ),
        ("5/s, per=host", "has a space in it; write 5/s,per=host"),
        ("5/s,key=host", "no key 'key=host' in a limit; did you mean 5/s,per=host?"),
        ("5/s,host", "no key 'host' in a limit; did you mean 5/s,per=host?"),
        ("5/s burst=3", "has a space in it; write 5/s,burst=3"),
    ];
    let mut all: Vec<String> = Vec::new();
    for (rule, words) in rules {
        let said = refused(&["--rate", rule, "true"]);
        assert!(said.contains("--rate") && said.contains(words), "{rule:?}: {said}");
        all.push(said.replace(rule, ""));
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), rules.len(), "two mistakes have the same words");
}

#[test]
fn an_unknown_word_in_a_limit_is_answered_with_all_words() {
    for rule in ["5/s,foo=1", "5/s,foo", "5/s,", "5/s,per=host,foo=1"] {
        let said = refused(&["--rate", rule, "true"]);
        for key in ["burst=N", "initial=N", "window", "slack=TIME", "per=SEL", "jobs=N", "cost=COST", "else=N"] {
            assert!(said.contains("--rate") && said.contains(key), "{rule:?}: {said}");
        }
    }
}

#[test]
fn contradicting_limits_are_answered_with_what_to_write() {
    for (args, words) in [
        (
            &["-r", "1/s,per=host", "-r", "9/min,per=f2", "true"][..],
            "per=host and per=f2 are given, but a run has one selector; write -r 9/min,per=host",
        ),
        (
            &["-r", "1/s,per=host,jobs=2", "-r", "9/min,per=host,jobs=3", "true"],
            "jobs= is given in '1/s,per=host,jobs=2' and '9/min,per=host,jobs=3'; write it once: -r 9/min,per=host",
        ),
        (
            &["--bucket", "./b", "--set", "-r", "1/s,per=host", "-r", "5/s,jobs=2", "-r", "9/min,jobs=3"],
            "jobs= is given in '5/s,jobs=2' and '9/min,jobs=3'; write it once: -r 9/min",
        ),
        (
            &["-r", "1/s,per=host,jobs=2"],
            "jobs=2 counts commands, but no COMMAND was given; write -r 1/s,per=host,jobs=2 COMMAND",
        ),
        (
            &["-r", "1/s,per=host", "-r", "9/s", "-b", "5"],
            "--burst: the limits count different things; write it in one of them, like -r 1/s,burst=5,per=host",
        ),
        (
            &["-r", "9/s,window", "-r", "1/s,jobs=2,per=re:a b", "-b", "0", "true"],
            "like -r '1/s,burst=1,jobs=2,per=re:a b'",
        ),
        (&["-r", "1/s,per=host", "-r", "unlimited"], "--rate: unlimited cannot"),
        (&["-r", "unlimited,per=host,jobs=2", "-b", "5", "true"], "--rate: unlimited cannot"),
        (&["-r", "1/s,cost=f2", "-r", "5MB/s"], "--rate: '5MB/s' counts bytes and '1/s' counts units"),
        (&["-r", "1/s,per=host", "--bytes"], "--bytes: '1/s,per=host' needs whole units, not single bytes"),
        (
            &["--bucket", "./b", "-r", "1/s,per=host,rates=./f"],
            "a bucket cannot store a file of rates; write -r 1/s,per=host",
        ),
        (
            &["--bucket", "./b", "--set", "-r", "1/s,jobs=20000"],
            "a bucket counts at most 10000 commands; write -r 1/s,jobs=10000",
        ),
        (&["-r", "1/s", "per=host"], "--rate: write it as one word: -r 1/s,per=host"),
    ] {
        let said = refused(args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn a_rate_in_the_spelling_of_another_tool_is_translated() {
    for (rate, meant) in [
        ("0,5/s", "0.5/s"),
        ("05/s", "5/s"),
        ("1,5/s", "1.5/s"),
        ("10mb/s", "10MB/s, or if bits were meant 1.25MB/s"),
        ("10mbit/s", "1.25MB/s"),
        ("10kib/s", "10KiB/s, or if bits were meant 1.25KiB/s"),
        ("10Mbps", "1.25MB/s"),
        ("10T/s", "10TB/s"),
        ("1g/s", "1GB/s"),
        ("inf", "unlimited"),
        ("max", "unlimited"),
        ("none", "unlimited"),
        ("5rps", "5/s"),
        ("5req/s", "5/s"),
        ("10MBps", "10MB/s"),
    ] {
        let said = refused(&["-r", rate]);
        assert!(said.ends_with(&format!(" write {meant}\n")), "{rate}: {said}");
    }
}

#[test]
fn a_wrong_value_is_answered_without_words_of_the_parser() {
    for (args, message) in [
        (&["-r", "5/s", "-j", "-1"][..], "--jobs '-1': write a number of commands, like -j 8, -j"),
        (&["-r", "5/s", "-j", "x"], "--jobs 'x': write a number of commands, like -j 8, -j"),
        (&["-r", "5/s", "--treis", "3"], "there is no option '--treis'; throttle --help lists them all"),
        (&["-r", "5/s", "--bar", "x"], "--bar is not an option here: a bar is shown on a terminal anyway, unless"),
        (&["--no-run-if-empty"], "--no-run-if-empty is not an option here: leave it out"),
    ] {
        let said = refused(args);
        assert!(said.starts_with(&format!("throttle: {message}")), "{args:?}: {said}");
    }
}

#[test]
fn a_rate_that_is_no_text_is_refused() {
    let output = feed(shell("exec \"$0\" -r \"$(printf '5/s\\377')\""), b"a\n");
    let said = &output.err;
    assert_eq!(output.code(), Some(2), "{said}");
    assert!(said.contains("--rate") && said.contains("for example 5/s"), "{said}");
}

#[test]
fn options_that_contradict_each_other_are_named() {
    for (args, words) in [
        (&[][..], "--rate: how fast? write for example -r 5/s"),
        (&["-j", "8", "true"], "--rate: how fast? to limit only the number of jobs, write -r unlimited -j 8 COMMAND"),
        (&["-j", "8", "-c", "true"], "to limit only the number of jobs, write -r unlimited -j 8 -c SCRIPT"),
        (&["-P", "0", "true"], "to limit only the number of jobs, write -r unlimited -j 0 COMMAND"),
        (&["-j", "8", "true", "-r", "5/s"], "options after the command are options of the command"),
        (&["-c", "true"], "--rate: how fast? write for example -r 5/s or -r 100/min, or -r unlimited"),
        (&["-r", "5/s", "-b", "0"], "--burst: a burst of 0 would let nothing through"),
        (&["-r", "5/s", "-b", "x"], "--burst: 'x' has no number; write for example 10"),
        (&["-r", "5/s", "-b", "1.5"], "--burst: '1.5' is not a whole number; write for example 10"),
        (
            &["echo", "-r", "5/s"],
            "options after the command are options of the command; write -r before it, like -r 5/s COMMAND",
        ),
        (&["echo", "--rate=5/s"], "options after the command are options of the command"),
        (&["-r", "5/s", "-b", "1KiB"], "--burst: a burst of '1KiB' is in bytes"),
        (&["-r", "5/s,burst=2", "-b", "3"], "--burst: the limit '5/s,burst=2' already names its burst"),
        (&["-r", "5/s,window", "-b", "3"], "--burst: "),
        (&["-r", "unlimited", "-r", "5/s"], "--rate: unlimited cannot"),
        (&["-r", "unlimited", "-b", "5"], "--rate: unlimited cannot"),
        (&["-r", "5MB/s", "-r", "5/s"], "--rate: '5MB/s' counts bytes and '5/s' counts units"),
        (&["-r", "5MB/s", "-0"], "-0: the rate counts bytes"),
        (&["-r", "5MB/s", "-d", ","], "-d: the rate counts bytes"),
        (&["-r", "5/s", "-0", "-d", ","], "--null cannot be used with"),
        (&["-r", "5/s", "-0", "--bytes"], "--null cannot be used with"),
        (&["-r", "5/s", "-d", ",", "--bytes"], "--delimiter cannot be used with --bytes"),
        (&["-r", "5/s", "-d", ""], "--delimiter"),
        (&["-r", "5/s", "-d", "ab"], "'ab' is more than one byte"),
        (&["-r", "5/s", "-d", "\\q"], "'\\q' is not an escape"),
        (&["-r", "5/s", "-a"], "--arg-file"),
        (&["-r", "5/s", "--progress=often"], "--progress"),
        (&["-r", "5/s", "--summary=xml"], "write --summary, --summary=json"),
        (&["-r", "5/s", "--summary=json:"], "a file name is missing"),
        (&["-r", "5/s", "--raet", "5/s"], "'--raet'"),
    ] {
        let said = refused(args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn our_mistakes_are_not_blamed_on_the_commands_options() {
    for args in [&["--bogus", "--", "grep", "-r", "-n", "x"][..], &["--bogus", "grep", "-r", "-n", "x"]] {
        let said = refused(&[&["-r", "5/s"], args].concat());
        assert!(said.contains("'--bogus'") && !said.contains("-r takes a limit"), "{args:?}: {said}");
    }
}

#[test]
fn a_limit_as_the_command_is_answered_with_what_was_meant() {
    for (args, words) in [
        (&["5/s"][..], "--rate is missing before the limit; write -r 5/s"),
        (&["5/s", "curl", "-sS"], "write -r 5/s"),
        (&["-r", "5", "/s"], "-r 5/s"),
        (&["-r", "5/s", "100/min"], "-r 5/s -r 100/min"),
        (&["-r", "5/s", "burst=10"], "-r 5/s,burst=10"),
        (&["-r", "5/s", "--summary", "json"], "--summary=json"),
    ] {
        let said = refused(args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn an_option_is_suggested_only_for_a_slip_of_the_finger() {
    assert!(refused(&["-r", "5/s", "--jbos", "4"]).contains("did you mean --jobs?"));
    assert!(!refused(&["--lmit"]).contains("--limit"), "that is another tool's");
    for (args, wrong) in [(["--tries", "3"], "--rate"), (["--bar", "x"], "as a value"), (["-j", "-1"], "unexpected")] {
        let said = refused(&args);
        assert!(!said.contains(wrong), "{args:?}: {said}");
    }
}

#[test]
fn a_long_option_with_one_dash_is_answered_with_two() {
    assert!(refused(&["-rate=5/s"]).contains("-rate: a long option begins with two dashes; write --rate"));
    for args in
        [&["-rate", "5/s"][..], &["-q", "-rate", "5/s"], &["-r", "5/s", "-jobs", "4", "true"], &["-timeout", "4"]]
    {
        let option = args.iter().find(|word| word.len() > 2 && word.starts_with('-')).unwrap();
        assert!(refused(args).contains(&format!("{option}: a long option begins with two dashes; write -{option}")));
    }
    assert!(refused(&["-r", "5/x", "true", "-null"]).contains("5/x"), "that is the command's");
}

#[test]
fn a_shell_keyword_as_the_command_is_called_one() {
    for word in ["while", "for", "if", "[["] {
        let (code, _, said) = launched(folder_with(&[]).path(), &format!("exec \"$0\" -r 1k/s '{word}' x"));
        let message = format!("it is built into the shell; write -c '{word} …'");
        assert!(code == Some(127) && said.contains(&message), "{word}: {said}");
    }
}

#[test]
fn words_of_gnu_parallel_are_answered_with_our_spelling() {
    for (args, words) in [
        (&["--joblog", "x"][..], "--log x"),
        (&["--halt", "now,fail=1"], "write --max-fail 1"),
        (&["--retries", "3"], "write --attempts 4 for 3 more after the first, or --attempts 3 for 3 in all"),
        (&["--halt", "now,fail=10%"], "write --max-fail 10%"),
        (&["--resume"], "--done FILE"),
        (&["--results", "out"], "$THROTTLE_SEQ"),
        (&["--colsep", ","], "throttle -r 5/s --columns=, COMMAND {1} {2}"),
        (&["--pipe", "wc"], "--stdin"),
        (&["-r", "5/s", "echo", "::::", "x"], "throttle -r 5/s COMMAND < FILE"),
    ] {
        let said = refused(args);
        assert!(said.contains("is not an option here") && said.contains(words), "{args:?}: {said}");
    }
}

#[test]
fn a_script_that_drops_all_units_but_the_first_gets_a_hint() {
    let hint = "throttle: hint: the script uses only the first of its units, \"$1\"; all its units are \"$@\"";
    for (words, has_hint) in [
        ("--summary -n 2 -c 'echo \"$1\"'", true),
        ("--summary -n 2 -c 'echo ${1%x}'", true),
        ("--summary -n 2 sh -c 'echo \"$1\"' _", true),
        ("-q -n 2 -c 'echo \"$1\"'", false),
        ("-n 2 -c 'echo \"$1\" \"$2\"'", false),
        ("-n 2 -c 'echo ${1:-$2}'", false),
        ("-n 2 -c 'echo $1 $#'", false),
        ("-n 2 -c 'echo $1; shift; echo $1'", false),
        ("-n 2 -c 'for x do echo $x $1; done'", false),
        ("-n 2 -c 'echo \"$@\"'", false),
        ("-n 2 --stdin -c 'cat # $1'", false),
        ("-c 'echo \"$1\"'", false),
    ] {
        let (code, _, said) = launched(folder_with(&[]).path(), &format!("exec \"$0\" -r 1k/s {words}"));
        assert_eq!((code, said.matches(hint).count()), (Some(0), usize::from(has_hint)), "{words}: {said}");
    }
}

#[test]
fn the_message_about_max_wait_without_once_says_what_is_missing() {
    let said = refused(&["-r", "5/s", "--max-wait", "3s"]);
    let advice =
        "write for example -r 5/s --drop --max-wait 30s in a pipe, or --bucket NAME --once --max-wait 30s COMMAND";
    assert!(said.contains(&format!("--max-wait needs --once or --drop; {advice}")), "{said}");
}

/// On a datagram socket each write is one datagram.
#[test]
fn a_message_is_one_write() {
    for args in [&["-r", "5m"][..], &["--bogus"], &["-r", "5/s", "no-such-command"], &["-r", "5/s", "-a", "/nowhere"]] {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut command = throttle(args);
        command.stdin(Stdio::null()).stderr(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        assert!(!command.status().unwrap().success(), "{args:?}");
        ours.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        let length = ours.recv(&mut buffer).unwrap();
        let first = String::from_utf8_lossy(&buffer[..length]);
        assert!(first.starts_with("throttle: ") && first.ends_with('\n'), "{args:?}: {first}");
    }
}

#[test]
fn the_long_names_of_xargs_options_are_known() {
    assert_eq!(
        feed(throttle(["-q", "-r", "1k/s", "--max-procs", "4", "--max-args=2", "true"]), b"a\nb\n").code(),
        Some(0)
    );
}

#[test]
fn the_habits_of_other_tools_are_answered_with_our_spelling() {
    for (args, words) in [
        (&["-L", "10M"][..], "-L is not an option here: write -r 10MB/s for bytes, -r 10M/s for lines"),
        (&["-q", "-L", "10m"], "-L is not an option here: write -r 10MB/s for bytes, -r 10M/s for lines"),
        (&["-q", "-L", "10x"], "-L is not an option here: a rate is -r 10MB/s or -r 10M/s"),
        (&["--delay", "2s"], "--delay is not an option here: a delay is a rate: for one every 2s write -r 1/2s"),
        (&["--delay=0.02"], "for one every 0.02s write -r 50/s"),
        (&["--delay", "1.5"], "for one every 1.5s write -r 2/3s"),
        (&["--rate-limit", "10M"], "--rate-limit is not an option here: write -r 10MB/s"),
        (&["--rate-limit=10"], "--rate-limit is not an option here: write -r 10"),
        (&["--retry", "3"], "--retry is not an option here: write --attempts 4 for 3 more after the first"),
        (&["--rps=2.5"], "--rps is not an option here: write -r 2.5/s"),
        (&["--qps", "x"], "--qps is not an option here: a rate is -r 5/s"),
        (&["--parallel", "4"], "write -j 4"),
        (&["--concurrency=4"], "write -j 4"),
        (&["--workers"], "N commands at once are -j N"),
        (&["-r", "5/s", "-o", "out"], "-o is not an option here: the shell writes output to a file: > FILE"),
        (&["-r", "5/s", "-f", "urls"], "-f is not an option here: write -a urls"),
        (&["--no-wait"], "write --drop; for one call write --bucket NAME --once --max-wait 0"),
        (&["--duration", "60"], "write --stop-after 60; to end a pipe write timeout -s INT 60 throttle -r 5/s"),
        (&["--fail-fast"], "with --max-fail 1"),
        (&["--interval", "2"], "for one every 2s write -r 1/2s"),
        (&["--every=250ms"], "for one every 250ms write -r 1/250ms"),
        (&["--per", "f2"], "write -r 5/s,per=f2"),
        (&["--per", "x"], "write -r 1/s,per=host"),
        (&["--cost", "bytes/4"], "write -r 5/s,cost=bytes/4"),
        (&["--times", "3"], "write --repeat 3"),
        (&["--load", "3"], "N commands at once are -j N"),
        (&["--lock", "x"], "a limit that several scripts share is --bucket NAME"),
        (&["--color"], "leave it out"),
        (&["-r", "5/s", "-k4", "echo"], "-k4: -k takes no number; write -k"),
        (&["-r", "5/s", "-qk12", "echo"], "-qk12: -qk takes no number; write -qk"),
        (&["\u{2013}r", "5/s"], "write -r"),
        (&["-r", "5/s", "\u{2014}jobs", "5"], "write --jobs"),
        (&["\u{2013}rate=5/s"], "write --rate=5/s"),
        (&["-r", "\u{201c}5/s\u{201d}"], "has quotation marks in it; write 5/s"),
        (&["-r", "'5/s,per=host'", "true"], "has quotation marks in it; write 5/s,per=host"),
        (&["-r", "5/s", "--drop", "echo"], "throttle -r 5/s --drop | throttle -r unlimited COMMAND"),
        (&["-r", "5/s", "--drop", "-c", "echo"], "throttle -r 5/s --drop | throttle -r unlimited COMMAND"),
        (&["-r", "5/s", "--log", "-", "echo"], "write /dev/stderr, for a file of that name ./-"),
        (&["-r", "5/s", "--done", "-", "echo"], "write /dev/stderr, for a file of that name ./-"),
        (&["-r", "5/s", "--summary=json:-"], "write --summary=json, else --summary=json:./-"),
        (&["--bucket", "b", "--pause", "1M"], "minutes are min or m: write 1min"),
        (&["-r", "5/s", "--timeout", "1h 30M", "echo"], "write 1h 30min"),
        (&["-r", "5/s", "--attempts", "2", "--backoff", "1M", "echo"], "minutes are min or m: write 1min"),
        (&["-r", "5/s", "--attempts", "2", "--backoff", "1s..2M", "echo"], "minutes are min or m: write 2min"),
        (&["-r", "5/s", "--timeout", "-1s", "true"], "--timeout '-1s' is negative; write --timeout 1s"),
        (&["-r", "5/s", "--dry"], "did you mean --dry-run?"),
        (&["-r", "100/min,per"], "did you mean 100/min,per=host?"),
        (&["-r", "5/s", "--done", "", "echo"], "--done: the name of the file is missing; write for example ./records"),
        (&["--list", "xml"], "like --show json or --list json"),
        (&["--bucket", "redis://", "--show"], "write for example redis://:PASSWORD@host:6379/2/NAME"),
        (&["-N2"], "-N is not an option here: write -n 2"),
        (&["--bwlimit=10M"], "--bwlimit is not an option here: write -r 10MB/s"),
        (&["-r"], "-r takes a limit, like -r 5/s (xargs' -r, --no-run-if-empty, is not needed"),
        (&["-r", "-0"], "-r takes a limit, like -r 5/s"),
        (&["-0", "-r"], "-r takes a limit, like -r 5/s"),
        (&["-r", "5/s", "-l"], "-l is not an option here: lines are counted by default"),
        (
            &["-r", "5/s", "-p"],
            "-p is not an option here: to see what would run write --dry-run, for progress --progress=always",
        ),
        (&["-r", "5/s", ":::", "a", "b"], "::: is not an option here: pass units on standard input"),
        (&["-r", "5/s", "-c", "true", ":::", "a"], "::: is not an option here: pass units on standard input"),
    ] {
        let said = refused(args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}

/// The output and exit code for two units `1` and `2` of a shell that has `$0` as the program, in `folder`.
fn launched(folder: &Path, script: &str) -> (Option<i32>, String, String) {
    let mut command = shell(script);
    command.current_dir(folder);
    let output = feed(command, b"1\n2\n");
    (output.code(), output.text().to_owned(), output.err)
}

fn folder_with(files: &[(&str, &str, u32)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content, mode) in files {
        fs::write(folder.path().join(name), content).unwrap();
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(*mode)).unwrap();
    }
    folder
}

#[test]
fn a_command_that_is_none_is_answered_once_with_what_to_write() {
    let folder = folder_with(&[
        ("access.log", "a\n", 0o644),
        ("runs", "#!/bin/sh\n", 0o755),
        ("no-interpreter", "#!/no/such/interpreter -x\n", 0o755),
        ("dos", "#!/bin/sh\r\ntrue\r\n", 0o755),
        ("a&b c", "", 0o644),
        ("a\u{1}", "", 0o644),
    ]);
    for (words, code, message) in [
        (
            "'cat -u {}'",
            127,
            "'cat -u {}': no such command in PATH; leave out the quotes around it, or write -c 'cat -u \"$1\"'",
        ),
        ("'cat -u'", 127, "write -c 'cat -u \"$1\"'"),
        ("access.log", 127, "it is a file; to read it write < access.log"),
        ("./access.log", 126, "to read it write < ./access.log"),
        ("runs", 127, "to run the command in this folder write ./runs"),
        ("./no-interpreter", 127, "its first line names '/no/such/interpreter', which does not exist"),
        ("./dos", 127, "its lines end in CR; write sed -i 's/\\r$//' ./dos"),
        ("cd /tmp", 127, "it is built into the shell; write -c 'cd …'"),
        ("A=1 true", 127, "to set A write env A=1 COMMAND"),
        ("--bucket ./b --once 'cat -u'", 127, "or write sh -c 'cat -u'"),
        ("'no-such|wc'", 127, "no such command in PATH; for a shell write -c 'no-such|wc'"),
        ("'cat {} | wc'", 127, "no such command in PATH; for a shell write -c 'cat \"$1\" | wc'"),
        ("'a&b c'", 127, "it is a file; to read it write < 'a&b c'"),
        ("./'a&b c'", 126, "to read it write < './a&b c', to run it chmod +x './a&b c'"),
        ("\"$(printf 'a\\001')\"", 127, "it is a file; to read it write < $'a\\001'"),
    ] {
        let (exit, out, said) = launched(folder.path(), &format!("exec \"$0\" -r 1k/s {words}"));
        assert_eq!((exit, out.as_str(), said.lines().count()), (Some(code), "", 1), "{words}: {said}");
        assert!(said.starts_with("throttle: ") && said.contains(message), "{words}: {said}");
    }
}

#[test]
fn an_exported_function_of_bash_is_known_as_one() {
    let folder = folder_with(&[]);
    let function = "f() { echo \"<$1>\"; }; export -f f; exec";
    let (code, _, said) = launched(folder.path(), &format!("exec bash -c '{function} \"$0\" -r 1k/s f' \"$0\""));
    assert_eq!(code, Some(127));
    assert!(said.contains("it is a function of bash; write bash -c 'f \"$@\"' _"), "{said}");
    let script = format!("exec bash -c '{function} \"$0\" -r 1k/s -k bash -c \"f \\\"\\$@\\\"\" _' \"$0\"");
    assert_eq!(launched(folder.path(), &script).1, "<1>\n<2>\n");
}

#[test]
fn a_script_that_ignores_its_unit_gets_a_hint_or_a_refusal() {
    let folder = folder_with(&[]);
    for (words, message) in [
        ("-c 'echo {}'", "write -c 'echo \"$1\"'"),
        ("--repeat 2 -c 'echo {}'", "write -c 'echo \"$1\"'"),
        ("bash -c 'echo {}'", "write -c 'echo \"$1\"'"),
        ("bash -c 'echo $1' {}", "the unit would be $0 of the script, not $1"),
        ("bash -c 'echo $1'", "like bash -c 'echo $1' bash {}"),
        ("cp {1} x", "write --columns COMMAND {1} to split units at blanks, or --columns=',' to split them at commas"),
        ("echo {12}", "{12} is a column of the unit and needs --columns"),
    ] {
        let (code, out, said) = launched(folder.path(), &format!("exec \"$0\" -r 1k/s {words}"));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{words}: {said}");
        assert!(said.contains(message), "{words}: {said}");
    }
    let hint = "throttle: hint: the script does not use its unit, \"$1\"; if it should, put the script in single \
                quotes, like -c 'echo \"$1\"'; if not, write -n 0";
    for (words, has_hint) in [
        ("-c \"echo hi $1\"", true),
        ("-c \"echo \\\"$1\\\" hi\"", true),
        ("sh -c \"echo $1 hi\" _", true),
        ("-q -c \"echo hi $1\"", false),
        ("-n 0 -c \"echo hi $1\"", false),
        ("--repeat 2 -c \"echo hi $1\"", false),
        ("-c 'true'", false),
        ("--summary -c 'true'", true),
        ("--summary -c \"echo $1\"", true),
        ("--summary sh -c \"echo $1\" _", true),
        ("-c \"echo $1\"", true),
        ("--summary -c 'echo $THROTTLE_ID'", false),
        ("-q -c \"echo $1\"", false),
        ("-c 'echo \"$1\"'", false),
        ("-c 'echo $THROTTLE_SEQ'", false),
        ("--stdin -c 'cat'", false),
        ("--repeat 2 -c 'echo'", false),
    ] {
        let (code, _, said) = launched(folder.path(), &format!("exec \"$0\" -r 1k/s {words}"));
        assert_eq!((code, said.matches(hint).count()), (Some(0), usize::from(has_hint)), "{words}: {said}");
    }
    let (_, out, _) = launched(folder.path(), "exec \"$0\" -r 1k/s -k --repeat 2 -c 'echo \"<$1>\"'");
    assert_eq!(out, "<1>\n<2>\n", "the number is the unit");
}

#[test]
fn a_shells_error_in_a_script_does_not_read_as_ours() {
    let (_, _, said) = launched(folder_with(&[]).path(), "exec \"$0\" -r 1k/s -j 1 -c 'no-such-command \"$1\"'");
    assert!(said.starts_with("throttle -c: "), "{said}");
}

#[test]
fn units_that_end_in_cr_get_one_hint() {
    for (args, input, hints) in [
        (&["--summary", "-r", "1k/s", "echo"][..], &b"a\r\nb\r\n"[..], 1),
        (&["-r", "1k/s", "echo"], b"a\r\nb\r\n", 0),
        (&["-r", "1k/s", "echo"], b"a\nb\n", 0),
        (&["-q", "-r", "1k/s", "echo"], b"a\r\n", 0),
        (&["-0", "-r", "1k/s", "echo"], b"a\r\0", 0),
        (&["--stdin", "-r", "1k/s", "cat"], b"a\r\n", 0),
    ] {
        let output = feed(throttle(args), input);
        let said = &output.err;
        assert_eq!(
            (output.code(), said.matches("hint: the units end with CR").count()),
            (Some(0), hints),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn a_dash_as_the_file_is_standard_input() {
    for args in [&["-r", "1k/s", "-a", "-"][..], &["-r", "1k/s", "--arg-file=-", "-k", "echo"]] {
        assert_eq!(feed(throttle(args), b"a\nb\n").into_text(), "a\nb\n", "{args:?}");
    }
}

#[test]
fn a_folder_in_the_place_of_the_command_is_called_one() {
    let output = feed(throttle(["-r", "5/s", "/etc"]), b"1\n");
    let said = &output.err;
    assert_eq!(output.code(), Some(126));
    assert!(said.contains("'/etc' cannot be run: it is a folder") && !said.contains("chmod"), "{said}");
}

/// A message may repeat any end of a word, so each is compared with all of them: also of the longest words that Linux
/// passes, 128 KiB, and with little memory. No word of these is an address, so nothing is hidden.
#[test]
fn a_mistake_beside_a_long_script_takes_little_memory() {
    for (flag, words) in [
        ("--rtae 5/s", "there is no option '--rtae'; did you mean --rate?"),
        ("-r 5m", "a minute is written after the slash, 5/min; a million is 5M/s"),
    ] {
        let long = "s=$(yes \"echo 'ü'; #\" | head -c 120000)";
        let begun = Instant::now();
        let output = feed(shell(&format!("ulimit -v 500000; {long}; exec \"$0\" {flag} -c \"$s\" \"$s$0\"")), b"");
        let said = &output.err;
        assert!(output.code() == Some(2) && said.contains(words), "{}: {said}", output.status);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

#[test]
fn hints_name_what_was_meant() {
    for (args, words) in [
        (
            &["--duration", "30s"][..],
            "--duration is not an option here: to start no commands after this time write --stop-after 30s",
        ),
        (&["-r", "5/s", "http://u:p@h/"], "to fetch it write curl -sS"),
        (&["--pipe", "wc", "-l"], "--pipe is not an option here"),
        (&["-r", "1MB/s", "-s", "3M"], "-s is not an option here: for the size of a pipe write --size"),
        (&["-s", "3000000", "-r", "1MB/s"], "-s is not an option here: for the size of a pipe write --size"),
        (&["-r", "5/s", "-s", "4096", "echo"], "-s is not an option here: a size is not needed"),
        (&["-r", "5/s", "-t", "4", "echo"], "-t is --trace and takes no number; for 4 commands at once write -j 4"),
        (&["-t", "4", "echo"], "-t is --trace and takes no number"),
        (&["--max-rate", "3"], "--max-rate is not an option here: write -r 3"),
        (&["--release"], "--release is not an option here: leave it out"),
        (&["-j", "4", "true"], "write -r unlimited -j 4 COMMAND"),
        (&["list"], "'list' is an option here; write --list"),
        (&["show", "gh"], "'show' is an option here; write --bucket gh --show"),
        (&["set", "gh"], "write --bucket gh --set -r 5/s"),
        (&["help"], "write --help"),
        (&["version"], "write --version"),
        (
            &["-r", "5/s", "--attempts", "2", "--retry-on", "429", "true"],
            "a status of 429 in THROTTLE_REPLY is tried again anyway",
        ),
        (&["-r", "5/s", "--attempts", "2", "--retry-on", "500", "true"], "--later-on http:500"),
        (&["--sleep", "2"], "for one every 2s write -r 1/2s"),
        (&["--count", "3"], "write --repeat 3"),
        (&["--threads=4"], "write -j 4"),
        (&["--vus", "4"], "write -j 4"),
        (&["--retry-delay", "2s"], "write --attempts 5 --backoff 2s"),
        (&["--per-host", "2"], "-r 5/s,per=host"),
        (&["--size", "0"], "--size '0': write bytes, like --size 10GiB, or a number of units, like --size 5000"),
        (&["--size", "x"], "--size 'x': write bytes, like --size 10GiB"),
        (&["--size", "5", "--repeat", "5", "true"], "--size cannot be used with --repeat"),
        (&["--bucket", "b", "--show", "--size", "5"], "cannot be used with"),
        (&["--fg"], "--bucket NAME -r unlimited,jobs=N --once COMMAND"),
        (&["--semaphore"], "--bucket NAME -r unlimited,jobs=N --once COMMAND"),
        (&["-r", "5/s", "--output", "x"], "the shell writes output to a file: > FILE"),
        (&["--kill-after", "5"], "KILL follows the TERM of --timeout"),
        (&["--jitter", "1"], "--backoff 1s..60s"),
        (&["-v"], "each command is written before it runs with -t"),
        (&["--sshlogin", "a"], "throttle -r 5/s ssh HOST COMMAND"),
        (&["--nice", "5"], "write nice -n N before throttle"),
    ] {
        let said = refused(args);
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(!said.contains("u:p"), "{args:?}: {said}");
    }
}

/// Each is parsed here, or is a part of a command line that is.
#[test]
fn what_the_hints_show_can_be_written() {
    let folder = folder_with(&[]);
    for words in [
        "-r 5/s --stop-after 30s --dry-run echo",
        "-r 1k/s,per=host,jobs=2 --dry-run echo",
        "-r unlimited -j 4 --dry-run echo",
        "-r 1k/s --attempts 5 --backoff 2s --dry-run echo",
        "-r 1k/s --attempts 2 --retry-on 255 --dry-run echo",
        "-r 1k/s --attempts 2 --later-on http:500 --dry-run echo",
        "-r 1k/s --dry-run --columns echo {1} {2}",
        "-r 1k/s --dry-run --columns=, echo {1}",
        "--bucket ./b -r unlimited,jobs=2 --once echo",
        "--bucket ./c --set -r 5/s",
        "--bucket ./c --repeat 1 --attempts 3 echo < /dev/null",
        "--bucket ./c --show",
        "--list",
    ] {
        let script = format!("XDG_STATE_HOME=$PWD exec \"$0\" {words}");
        let (code, _, said) = launched(folder.path(), &script);
        assert_eq!((code, &*said), (Some(0), ""), "{words}");
    }
}

#[test]
fn what_only_bash_knows_in_a_script_gets_a_hint() {
    let sh = fs::canonicalize("/bin/sh").unwrap();
    let is_dash = sh.ends_with("dash");
    let folder = folder_with(&[]);
    let function = "f() { :; }; export -f f; exec";
    for (words, word) in [
        ("--summary -c '[[ $1 = 1 ]]'", Some("[[")),
        ("--summary -c 'if [[ $1 = 1 ]]; then :; fi'", Some("[[")),
        ("--summary -c 'f \"$1\"'", Some("f")),
        ("--summary -c 'test \"$1\"'", None),
        ("-c '[[ $1 = 1 ]]'", None),
    ] {
        let script = format!("exec bash -c {} \"$0\"", quoted(&format!("{function} \"$0\" -r 1k/s {words}")));
        let (_, _, said) = launched(folder.path(), &script);
        let hint = |word: &str| {
            format!("throttle: hint: {word} needs bash, but sh runs the script of -c; write bash -c '…' _ {{}}\n")
        };
        match word.filter(|_| is_dash) {
            Some(word) => assert!(said.contains(&hint(word)), "{words}: {said}"),
            None => assert!(!said.contains("known to bash"), "{words}: {said}"),
        }
    }
}

/// In single quotes for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[test]
fn a_pattern_of_addresses_is_no_address() {
    let limit = "1k/s,per=re:https?://([^/]+)";
    let output = feed(throttle(["-r", limit]), b"http://a/1\nhttps://b/2\n");
    assert_eq!((output.text(), output.err.as_str()), ("http://a/1\nhttps://b/2\n", ""));
    let said = refused(&["-r", "1k/s,per=re:https?://([^/]+"]);
    assert!(said.contains("--rate '1k/s,per=re:https?://([^/]+': ") && said.contains("unclosed group"), "{said}");
    let said = refused(&["-r", "redis://:secret@host/b,per=re:x"]);
    assert!(said.contains("this is a bucket, not a limit") && !said.contains("secret"), "{said}");
}

#[test]
fn numbers_of_jobs_as_for_gnu_parallel_are_refused() {
    for jobs in ["-j+0", "-j+2", "--jobs=-1", "-P 50%", "-j 100%"] {
        let said = refused(&[&["-r", "5/s"][..], &jobs.split(' ').collect::<Vec<_>>(), &["echo"]].concat());
        assert!(said.contains("like -j 8, -j \"$(nproc)\" for one for each processor"), "{jobs}: {said}");
    }
    let (code, out, said) = launched(folder_with(&[]).path(), "exec \"$0\" -r 1k/s -k -j \"$(nproc)\" echo");
    assert_eq!((code, out.as_str(), said.as_str()), (Some(0), "1\n2\n", ""));
}

#[test]
fn an_empty_script_is_refused() {
    for words in [&["-r", "5/s", "-c", ""][..], &["-r", "5/s", "--shell=", "--dry-run"], &["-r", "5/s", "-c", " "]] {
        let said = refused(words);
        assert!(said.contains("the script is empty; write for example -c 'echo \"$1\"'"), "{words:?}: {said}");
    }
}

/// The example in the advice begins like the typed address, but has no password.
#[test]
fn an_example_in_the_advice_is_not_hidden() {
    for (words, advice) in [
        ("--bucket redis://h --show", "for example redis://host/NAME,"),
        ("--bucket redis://host --show", "for example redis://host/NAME,"),
        ("--bucket redis://host:6379 --show", "for example redis://host/NAME,"),
        ("--bucket redis:// --list", "for example redis://:PASSWORD@host:6379/2/NAME"),
        ("--bucket http://h/x --show", "--bucket 'http://h/x': an address begins with redis://, rediss://"),
        ("-r 5/s http://h/x", "to fetch it write curl -sS 'http://h/x'"),
        ("-r 5/s redis://:secret@h/x", "'redis…' is a bucket, not a command; write --bucket before it"),
        ("-r 5/s http://me:secret@h/x", "write curl -sS '…'"),
        ("--bucket redis://:secret@h --show", "--bucket 'redis…': the bucket's name is missing"),
    ] {
        let said = refused(&words.split(' ').collect::<Vec<_>>());
        assert!(said.contains(advice) && !said.contains("secret"), "{words}: {said}");
    }
}

/// Each row: a mistake, the advice in its message, and a command line that follows the advice.
#[test]
fn advice_that_is_followed_is_not_refused() {
    for (mistake, advice, followed) in [
        ("-r 5/s --max-wait 5", "-r 5/s --drop --max-wait 30s in a pipe", "-r 5/s --drop --max-wait 30s"),
        ("--max-wait 5 echo", "--bucket NAME --once --max-wait 30s", "--bucket ./b -r 5/s --once --max-wait 30s true"),
        (
            "--key a",
            "--bucket NAME -r 1/s,per=host --once --key a.example COMMAND",
            "--bucket ./k -r 1/s,per=host --once --key a.example true",
        ),
        ("-r 9/s --backoff 1s", "--attempts 5 --backoff 1s..60s COMMAND", "-r 9/s --attempts 5 --backoff 1s..60s true"),
        ("-r 10k true", "the unit of time is missing; write for example -r 10k/s", "-r 10k/s true"),
        ("-r 2k,per=f1 -c true", "write for example -r 2k/s,per=f1", "-r 2k/s,per=f1 -c true"),
        ("-r 10 MB/s", "--rate: write it as one word: -r 10MB/s", "-r 10MB/s"),
        ("-r 5 / s", "--rate: write it as one word: -r 5/s", "-r 5/s"),
        ("-r 5 per second", "--rate: write it as one word: -r 5/second", "-r 5/second"),
        ("-r 10 MB per second", "--rate: write it as one word: -r 10MB/second", "-r 10MB/second"),
        ("-r 9/s --columns , echo {1}", "write --columns=,", "-r 9/s --columns=, echo {1}"),
        ("-r 9/s --columns \\t echo {1}", "write --columns='\\t'", "-r 9/s --columns=\\t echo {1}"),
    ] {
        let (words, folder) = (|line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>(), folder_with(&[]));
        let run = |line: &str| {
            let mut command = throttle(words(line));
            command.current_dir(folder.path());
            feed(command, "x\n")
        };
        let said = run(mistake);
        assert!(said.code() != Some(0) && said.err.contains(advice), "{mistake}: {}", said.err);
        let ended = run(followed);
        assert_eq!((ended.code(), ended.err.as_str()), (Some(0), ""), "{followed}");
    }
}

#[test]
fn a_unit_of_time_in_place_of_the_command_names_the_limit() {
    for (words, code, limit) in [("-r 5 s", 127, "5/s"), ("-r 10 MB", 127, "10MB"), ("-r 10 kB/s cat", 2, "10kB/s")] {
        let output = feed(throttle(words.split(' ')), "x\n");
        let advice = format!("--rate: write it as one word: -r {limit}\n");
        assert!(output.code() == Some(code) && output.err.ends_with(&advice), "{words}: {}", output.err);
    }
    let folder = folder_with(&[("s", "#!/bin/sh\necho ran\n", 0o755)]);
    let (code, out, said) = launched(folder.path(), "PATH=.:$PATH; exec \"$0\" -r 900 s");
    assert_eq!((code, out.as_str()), (Some(0), "ran\nran\n"), "{said}");
}

#[test]
fn an_option_that_does_not_exist_gets_no_wild_guess() {
    for (flag, words) in [
        ("--queue", "there is no option '--queue'; throttle --help lists them all"),
        ("--jbos=2", "there is no option '--jbos'; did you mean --jobs?"),
        ("--attmepts", "did you mean --attempts?"),
        ("--keep-oder", "did you mean --keep-order?"),
        ("--loop=5", "write --repeat 5"),
        ("--per-minute=100", "write -r 100/min"),
        ("--per-second", "a rate is -r 5/s, -r 100/min or -r 5000/h"),
        ("--window", "write -r 100/min,window"),
        ("--wait=5", "--bucket NAME --once --max-wait 5s COMMAND"),
        ("-w5", "--bucket NAME --once --max-wait 5s COMMAND"),
        ("-Shost", "throttle -r 5/s ssh HOST COMMAND"),
        ("--lb", "--line-buffer"),
        ("--bg", "throttle --bucket NAME --once COMMAND &"),
        ("-EEND", "sed '/^END$/,$d' FILE"),
        ("--shuf", "shuf FILE | throttle"),
        ("--memfree=1G", "-j N"),
        ("--tagstring={}", "--tag"),
        ("--id=x", "--bucket NAME"),
    ] {
        let said = refused(&["-r", "5/s", flag, "true"]);
        assert!(said.contains(words), "{flag}: {said}");
    }
    let said = refused(&["--semaphore", "--id", "x", "-j", "2", "true"]);
    assert!(said.contains("--semaphore is not an option here"), "{said}");
}

#[test]
fn a_chapter_that_does_not_exist_is_named_with_the_list() {
    for name in ["zzz", "chapters", "limit-s", ""] {
        let said = refused(&["--help", name]);
        let list = "write throttle --help limits, throttle --help attempts, throttle --help buckets, throttle --help \
                    progress, throttle --help log, throttle --help summary, or throttle --help";
        assert!(said.contains(&format!("there is no chapter '{name}'; {list}")), "{said}");
    }
    let limits = feed(throttle(["--help", "limits"]), "").into_text();
    for name in ["limit", "rate", "rates"] {
        assert_eq!(feed(throttle(["--help", name]), "").into_text(), limits, "{name}");
    }
    for option in ["--version", "-V"] {
        let said = refused(&[option, "x"]);
        assert!(said.contains("--version takes no value; leave 'x' out"), "{said}");
    }
    assert_eq!(feed(throttle(["--version", "-q"]), "").code(), Some(0));
}

/// The message named no option.
#[test]
fn a_value_that_is_not_text_is_shown_with_its_option() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    for (words, expected) in [
        (&[&b"-j"[..], b"\xff2"][..], "--jobs '\u{fffd}2' is not UTF-8 text; write for example --jobs 2"),
        (
            &[b"--backoff=1s..\xff2s"],
            "--backoff '--backoff=1s..\u{fffd}2s' is not UTF-8 text; write for example --backoff 1s..2s",
        ),
        (&[b"-tj2\xff", b"true"], "--jobs '-tj2\u{fffd}' is not UTF-8 text; write for example --jobs 2"),
        (
            &[b"-k", b"--attempts", b"\xff", b"a\xff"],
            "--attempts '\u{fffd}' is not UTF-8 text; write for example --attempts 10",
        ),
        (
            &[b"--size", b"\xffx", b"--timeout", b"\xff"],
            "--size '\u{fffd}x' is not UTF-8 text; write for example --size 10",
        ),
        (
            &[b"--timeout", b"1\xffs", b"-a", b"\xff"],
            "--timeout '1\u{fffd}s' is not UTF-8 text; write for example --timeout 1s",
        ),
        (&[b"--progress=al\xffways"], "--progress 'al\u{fffd}ways': write --progress=auto or"),
    ] {
        let words = words.iter().map(|word| OsStr::from_bytes(word));
        let ended = crate::support::run([OsStr::new("-r"), OsStr::new("5/s")].into_iter().chain(words), "");
        assert_eq!(ended.code(), Some(2), "{}", ended.err);
        assert!(ended.err.starts_with(&format!("throttle: {expected}")), "{}", ended.err);
    }
}
