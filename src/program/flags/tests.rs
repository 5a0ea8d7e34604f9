use super::*;

#[track_caller]
pub(super) fn flags(args: &[&str]) -> Result<Flags, String> {
    let args: Vec<OsString> = std::iter::once("throttle").chain(args.iter().copied()).map(OsString::from).collect();
    raw(&args).and_then(|raw| ripen(raw, None, &args)).map_err(|error| habits::explain(error, &args).to_string())
}

#[test]
fn the_definition_is_consistent() {
    command().debug_assert();
}

#[test]
fn the_short_help_fits_one_screen() {
    let help = command().render_help().to_string();
    assert!(help.lines().count() <= 46, "{} lines", help.lines().count());
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn units_are_lines_unless_told_otherwise() {
    for (args, framing) in [
        (&["-r", "5/s"][..], Framing::EndedBy(b'\n')),
        (&["-r", "5/s", "-0"], Framing::EndedBy(0)),
        (&["-r5/s", "-d,"], Framing::EndedBy(b',')),
        (&["--rate=5/s", "--delimiter=\\t"], Framing::EndedBy(b'\t')),
        (&["-r", "5/s", "--bytes"], Framing::Bytes),
        (&["-r", "5MB/s"], Framing::Bytes),
    ] {
        assert_eq!(flags(args).unwrap().framing(), framing, "{args:?}");
    }
}

#[test]
fn summaries_go_where_they_are_told() {
    let parsed = |text: &str| summary(text.as_bytes()).map(|s| (s.format, s.file));
    assert_eq!(parsed("text"), Ok((Format::Text, None)));
    assert_eq!(parsed("json:a:b"), Ok((Format::Json, Some("a:b".into()))));
    assert_eq!(parsed(":x"), Ok((Format::Text, Some("x".into()))));
    assert!(parsed("xml").is_err() && parsed("json:").is_err());
    assert_eq!(flags(&["-r", "5/s", "--summary"]).unwrap().summary().unwrap().format, Format::Text);
}

#[test]
fn mistakes_name_the_flag_and_show_a_right_spelling() {
    for (args, expected) in [
        (&[][..], "--rate: how fast? write for example -r 5/s"),
        (
            &["-r", "10M"],
            "invalid value '10M' for '--rate <LIMIT>': lines or bytes? 10M/s is ten million lines a second",
        ),
        (&["-r", "-1/s"], "'-1/s' is negative"),
        (&["-r"], "-r takes a limit, like -r 5/s"),
        (&["-r", "-n", "1"], "-r takes a limit, like -r 5/s"),
        (&["-r", "-0"], "-r takes a limit, like -r 5/s"),
        (&["-r", "5/s", "-b", "0"], "--burst: a burst of 0 would let nothing through; the least is 1"),
        (&["-r", "5/s", "-b", "1KiB"], "--burst: a burst of '1KiB' is in bytes, but the limit counts units"),
        (&["-r", "5/s,burst=2", "-b", "3"], "--burst: the limit '5/s,burst=2' already names its burst"),
        (&["-r", "5/s,window", "-b", "3"], "write -r 5/s -b N"),
        (&["-r", "unlimited", "-r", "5/s"], "--rate: unlimited stands alone"),
        (&["-r", "5MB/s", "-0"], "-0: the rate counts bytes, and -0 cuts records"),
        (&["-r", "5MB/s", "-r", "5/s"], "--rate: '5MB/s' counts bytes and '5/s' units"),
        (&["-r", "5/s", "-0", "-d", ","], "cannot be used with"),
        (&["-r", "5/s", "--bytes", "-0"], "cannot be used with"),
        (&["-r", "5/s", "-d", "ab"], "'ab' is more than one byte; give one, like -d , or -d '\\t'"),
        (&["-L", "10M"], "-L is not an option here: write -r 10MB/s for bytes, -r 10M/s for lines"),
        (&["--delay", "2s"], "--delay is not an option here: a delay is a rate: for one every 2s write -r 1/2s"),
        (&["--delay=2"], "for one every 2s write -r 1/2s"),
        (&["--delay=x"], "for one every 2 s write -r 1/2s"),
        (&["--delay", "0.02"], "for one every 0.02s write -r 50/s"),
        (&["--delay=1.5"], "for one every 1.5s write -r 1/1500ms"),
        (&["--delay=0.0015s"], "for one every 0.0015s write -r 2/3ms"),
        (&["--delay=.25"], "for one every .25s write -r 4/s"),
        (&["--delay", "3m"], "for one every 3m write -r 1/3m"),
        (&["--delay", "0"], "for one every 2 s write -r 1/2s"),
        (&["--rate-limit", "10M"], "--rate-limit is not an option here: write -r 10MB/s for bytes"),
        (&["-r", "5/s", ":::", "a"], "::: is not an option here: pass units on standard input"),
        (&["-r", "5/s", "-c", "echo", ":::", "a"], "::: is not an option here: pass units on standard input"),
        (&["-r", "5/s", "-c", "echo", "--", ":::", "a"], "cannot be used with"),
        (&["-r", "5/s", "--bogus", "--", "grep", "-r", "-n", "x"], "'--bogus'"),
        (&["-0r", "5/s", "-j4", "-n", "2", "--bogus", "grep", "-r", "-n", "x"], "'--bogus'"),
        (&["-P", "4", "--burst", "2", "-r", "-n", "1", "grep"], "-r takes a limit, like -r 5/s"),
        (&["-r", "5/s", "-p"], "-p is not an option here: to see what would run write --dry-run"),
        (&["-r", "5/s", "--raet", "5/s"], "'--raet'"),
        (&["-r", "5/s", "--progress=often"], "often"),
        (&["-r", "5/s", "--summary=xml"], "write --summary, --summary=json"),
    ] {
        let error = flags(args).expect_err(expected);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}
