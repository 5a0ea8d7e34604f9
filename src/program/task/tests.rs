use super::*;
use crate::program::args::{Refused, Rule, parse, redacted};
use std::ffi::OsString;
use throttle::flow::framing::Framing;

impl Task {
    /// The task of a whole command line, given without the name of the program.
    pub(crate) fn from_words(words: &[&str]) -> Result<Self, String> {
        Task::from_environment(words, &Environment::default())
    }

    fn from_environment(words: &[&str], environment: &Environment) -> Result<Self, String> {
        let words: Vec<OsString> = std::iter::once(&"throttle").chain(words).map(OsString::from).collect();
        match parse(&words) {
            Ok(args) => Task::new(args, environment).map_err(|message| redacted(&message, &words)),
            Err(Refused::Mistake(message, _)) => Err(message),
            Err(Refused::Answer(answer)) => panic!("{answer}"),
            Err(Refused::Help(page)) => panic!("a page of help: {page}"),
        }
    }
}

fn mistake(args: &[&str]) -> Option<String> {
    Task::from_words(args).err()
}

#[track_caller]
fn pipe(args: &[&str]) -> Pipe {
    let Ok(Task::Pipe(pipe)) = Task::from_words(args) else { panic!("{args:?} is no pipe") };
    *pipe
}

#[test]
fn units_are_lines_by_default() {
    for (args, framing) in [
        (&["-r", "5/s"][..], Framing::EndedBy(b'\n')),
        (&["-r", "5/s", "-0"], Framing::EndedBy(0)),
        (&["-r5/s", "-d,"], Framing::EndedBy(b',')),
        (&["--rate=5/s", "--delimiter=\\t"], Framing::EndedBy(b'\t')),
        (&["-r", "5/s", "--bytes"], Framing::Bytes),
        (&["-r", "5MB/s"], Framing::Bytes),
    ] {
        let Pipe { limits, input, .. } = pipe(args);
        assert_eq!(input.framing(&limits.policy()), Ok(framing), "{args:?}");
    }
}

#[test]
fn mistakes_name_the_flag_and_show_a_right_spelling() {
    for (args, expected) in [
        (&[][..], "--rate: how fast? write for example -r 5/s"),
        (&["-r", "-n", "1"], "-r takes a limit, like -r 5/s"),
        (&["-r", "5/s,window", "-b", "3"], "write -r 5/s -b N"),
        (
            &["--reset"],
            "--reset is not an option here: to start a bucket again write --bucket NAME --clear --set -r 5/s",
        ),
        (&["--delay=2"], "for one every 2s write -r 1/2s"),
        (&["--delay=x"], "for one every 2 s write -r 1/2s"),
        (&["--delay=0.0015s"], "for one every 0.0015s write -r 2000/3s"),
        (&["--delay=.25"], "for one every .25s write -r 4/s"),
        (&["--delay", "3m"], "for one every 3m write -r 1/3m"),
        (&["--delay", "0"], "--delay is not an option here: for no delay write -r unlimited"),
        (&["-c", "50", "-r", "5/s", "curl"], "for 50 commands at once write -j 50"),
        (&["-r", "5/s", "-c50", "curl"], "for 50 commands at once write -j 50"),
        (&["--rpm", "60"], "write -r 60/min"),
        (&["--tpslimit=5"], "write -r 5/s"),
        (&["--limit-rate=1000"], "write -r 1000B/s"),
        (&["--connections=8"], "write -j 8"),
        (&["--tries", "3"], "write --attempts 3"),
        (&["--tries", "0"], "run up to N times in all with --attempts N"),
        (&["--burst-size=0"], "the burst is -b N"),
        (&["--max-time=10"], "write --timeout 10"),
        (&["--burst-size=9"], "write -b 9"),
        (&["--redis", "redis://h/b"], "a bucket on a server is --bucket redis://HOST/NAME"),
        (&["-r", "5/s", "-c", "echo", "--", ":::", "a"], "cannot be used with"),
        (&["-0r", "5/s", "-j4", "-n", "2", "--bogus", "grep", "-r", "-n", "x"], "'--bogus'"),
        (&["-P", "4", "--burst", "2", "-r", "-n", "1", "grep"], "-r takes a limit, like -r 5/s"),
        (&["-r", "5/s", "--raet", "5/s"], "there is no option '--raet'; did you mean --rate?"),
        (&["-r", "5/s", "-n", "x"], "--max-args 'x': write a number of units, like -n 10"),
        (&["-r", "5/s", "--timeout", "-5"], "--timeout '-5': write for example 30s, 500ms or 2min"),
        (&["-r", "5/s", "-a"], "--arg-file takes a value; write --arg-file FILE"),
        (&["-r", "5/s", "--null=x"], "--null takes no value"),
        (&["-r", "5/s", "-j1", "-j2"], "--jobs is given twice"),
        (&["-r", "5/s", "-c", "echo", "x"], "--shell cannot be used with a command"),
        (&["-j4", "10MB/s", "curl"], "write -r 10MB/s"),
        (&["--bwlimit=10"], "--bwlimit is not an option here: write --rate, or -r: -r 10MB/s"),
        (&["--limit-rate=10k"], "write -r 10kB/s for bytes, -r 10k/s for lines"),
        (&["--rate-limit=5/s"], "--rate-limit is not an option here: write -r 5/s"),
    ] {
        let error = mistake(args).expect(expected);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

/// The limits that a message shows after `-r`.
fn limits_shown(message: &str) -> Vec<String> {
    let behind = message.split("-r ").skip(1).filter_map(|rest| rest.split(' ').next());
    let limits = behind.map(|limit| limit.trim_end_matches([',', ';', ':', ')']).to_owned());
    limits.filter(|limit| limit.starts_with(|c: char| c.is_ascii_digit())).collect()
}

#[test]
fn rates_shown_for_foreign_options_parse_to_the_typed_rate() {
    let mut shown = 0;
    for name in ["-L", "-R", "--rate-limit", "--limit-rate", "--bwlimit", "--limit", "--delay", "-N", "--line-mode"] {
        for value in
            ["10", "10M", "1.5k", "5/s", "10MB/s", "100/min", "2s", "0.02", "1.5", "3m", "x", "0", "10mb", "1,5"]
        {
            let separator = if name.starts_with("--") { "=" } else { "" };
            let error = mistake(&[&format!("{name}{separator}{value}")]).expect(name);
            assert!(error.starts_with(&format!("{name} is not an option here: ")), "{error}");
            for limit in limits_shown(&error) {
                shown += 1;
                assert!(limit.parse::<Rule>().is_ok(), "{limit} in {error}");
            }
        }
    }
    assert!(shown > 100, "{shown}");
    for (option, limits) in [
        ("--rate-limit=5/s", &["5/s"][..]),
        ("--bwlimit=10M", &["10MB/s", "10M/s"]),
        ("-L1.5k", &["1.5kB/s", "1.5k/s"]),
        ("--limit-rate=500K", &["500kB/s", "500k/s"]),
        ("--bandwidth=1m", &["1MB/s", "1M/s"]),
        ("--limit=1g", &["1GB/s", "1G/s"]),
        ("-R10MB/s", &["10MB/s"]),
    ] {
        assert_eq!(limits_shown(&mistake(&[option]).unwrap()), limits, "{option}");
    }
    for (delay, rate) in [("2", "1/2s"), ("0.02", "50/s"), ("90s", "1/90s"), ("1.5", "2/3s"), ("250ms", "1/250ms")] {
        assert_eq!(limits_shown(&mistake(&["--delay", delay]).unwrap()), [rate]);
    }
}

#[test]
fn a_limit_in_place_of_the_command_is_shown_so_that_it_parses() {
    for (args, limits) in [
        (&["5/s"][..], &["5/s"][..]),
        (&["10MB/s,burst=5kB", "cat"], &["10MB/s,burst=5kB"]),
        (&["-r", "5", "/min"], &["5/min"]),
        (&["-r", "5/s", "100/min,window"], &["5/s", "100/min,window"]),
        (&["-r", "5/s", "initial=0"], &["5/s,initial=0"]),
    ] {
        let shown = limits_shown(&mistake(args).expect("a limit is no command"));
        assert_eq!(shown, limits);
        assert!(shown.iter().all(|limit| limit.parse::<Rule>().is_ok()));
    }
    for args in
        [&["-r", "5/s", "--", "5/s"][..], &["-r", "5/s", "/bin/s"], &["-r", "5/s", "a=b"], &["-r", "5/s", "100"]]
    {
        assert_eq!(mistake(args), None, "{args:?}");
    }
}

#[test]
fn mistakes_about_buckets_show_a_right_spelling() {
    for (args, expected) in [
        (&["--once"][..], "--once takes a unit from a bucket; name the bucket: --bucket NAME, or THROTTLE_BUCKET=NAME"),
        (&["--show"], "--show shows a bucket; name the bucket"),
        (&["--set", "-r", "5/s"], "--set sets the limits of a bucket; name the bucket"),
        (&["--bucket", "a b", "-r", "5/s"], "--bucket 'a b': a bucket name has only letters, digits and .:-_"),
        (&["--bucket", "redis://me:secret@db/a b", "--once"], "--bucket 'redis…': the bucket's name"),
        (&["--bucket", "redis://:sec#ret@db/b", "--once"], "--bucket 'redis…': in user and password write / ?"),
        (&["--bucket", "redis://db:99999/b", "--once"], "--bucket 'redis…': a port is a number from 1 to 65535"),
        (&["-r", "5/s", "--on-store-error", "fail"], "--on-store-error needs a bucket on a server; name the bucket"),
        (&["--bucket", "./b", "--on-store-error", "sometimes"], "write --on-store-error=wait or --on-store-error=fail"),
        (&["--bucket", "./b", "--set"], "--set needs a limit; write for example --set -r 5000/h"),
        (
            &["--bucket", "./b", "--set", "--clear", "--key", "a", "-r", "1/s,per=host"],
            "--key cannot be used with --set, which sets the limits of all keys; leave --key out",
        ),
        (&["--bucket", "./b", "--clear", "-r", "5/s"], "--clear sets no limits; leave -r out, or write --set"),
        (&["--bucket", "./b", "--pause", "5s", "true"], "--pause runs nothing"),
        (&["--pause", "5s"], "--pause pauses a bucket; name the bucket"),
        (&["--bucket", "./b", "--clear", "--show"], "cannot be used with"),
        (&["--bucket", "./b", "--once", "-r", "5/s", "-n", "2", "true"], "cannot be used with"),
        (
            &["--bucket", "./b", "--once", "-r", "9/s", "-r", "1/s,cost=f2"],
            "--once: no unit is read, so the limit 1/s,burst=1,cost=f2 has no cost; write the cost of the call: \
             -r 9/s,burst=1 -r 1/s,burst=1,cost=800",
        ),
        (
            &["--bucket", "./b", "--set", "-r", "1/s,cost=/a\nb"],
            "the cost has control characters or more than 100 bytes",
        ),
        (
            &["--bucket", "redis://db/b", "--set", "-r", "1/s", "--group", "devs"],
            "--group needs the path of a bucket; write for example --bucket ./b --set --group devs",
        ),
        (&["--bucket", "./b", "-r", "1/s", "--group", "devs"], "--group needs --set; write for example"),
    ] {
        let error = mistake(args).expect(expected);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

fn grouped(args: &[&str]) -> Grouped {
    let words: Vec<OsString> = ["throttle"].iter().chain(args).map(OsString::from).collect();
    let args = parse(&words).unwrap_or_else(|_| panic!("{args:?} parse"));
    Grouped::new(&args.limit.rate, args.limit.burst, false).unwrap_or_else(|error| panic!("{error}")).unwrap()
}

#[test]
fn limits_are_grouped_by_what_they_hold_for_and_what_they_count() {
    let policy = |args: &[&str]| grouped(args).policy;
    let of_keys = policy(&["-r", "1/s,per=host,jobs=2", "-r", "50/s", "-r", "3000/h", "-r", "30/min,per=host", "curl"]);
    let keys = of_keys.of_keys().unwrap();
    assert_eq!(keys.each.to_string(), "1/s,burst=1 and 30/min,window,slack=250ms");
    assert_eq!((&*keys.per, keys.jobs.map(u32::from)), ("host", Some(2)));
    assert_eq!(of_keys.without(&[]).to_string(), "50/s,burst=1 and 3000/h,window,slack=250ms");

    let costly = ["-r", "500/min", "-r", "200k/min,burst=200k,cost=bytes/4+300", "-r", "9/s"];
    let all = "500/min,window,slack=250ms and 9/s,burst=1 and 200k/min,burst=200000,cost=bytes/4+300";
    assert_eq!((policy(&costly).to_string().as_str(), policy(&costly).cost(2)), (all, Some("bytes/4+300")));
    let said: Vec<String> = grouped(&costly).said[0].iter().map(|said| said.limit.to_string()).collect();
    assert_eq!(said, ["500/min", "9/s", "200k/min,burst=200k"]);

    let jobs = policy(&["-r", "unlimited,per=f2,jobs=2", "curl"]);
    let keys = jobs.of_keys().unwrap();
    assert_eq!(jobs.len(), 0);
    assert!(keys.each.is_empty() && keys.jobs.is_some());
    assert_eq!(policy(&["-r", "5/s,cost=f2", "-b", "7"]).to_string(), "5/s,burst=7,cost=f2");
    assert!(policy(&["-r", "unlimited"]).is_unlimited());
}

#[test]
fn limits_that_name_their_start_start_anew() {
    let words = ["--bucket", "./b", "--set", "-r", "5/s,burst=9,initial=9", "-r", "5000/h"];
    let Ok(Task::Bucket(_, Verb::Set(set))) = Task::from_words(&words) else { panic!("no --set") };
    assert_eq!(set.fresh, [true, false]);
}

#[test]
fn a_bucket_stores_costs_but_not_the_number_of_one_call() {
    let words = ["--bucket", "./b", "--set", "-r", "5/s", "-r", "9/s,cost=f2,else=3", "-r", "7/s,cost=4"];
    let Ok(Task::Bucket(_, Verb::Set(set))) = Task::from_words(&words) else { panic!("no --set") };
    assert_eq!(set.policy.to_string(), "5/s,burst=1 and 9/s,burst=1,cost=f2,else=3 and 7/s,burst=1,cost=4");
    let Ok(Task::Once(once)) = Task::from_words(&words.map(|word| if word == "--set" { "--once" } else { word }))
    else {
        panic!("no --once")
    };
    let kept = &once.call.named.as_ref().unwrap().policy;
    assert_eq!(kept.to_string(), "5/s,burst=1 and 9/s,burst=1,cost=f2,else=3 and 7/s,burst=1");
    assert_eq!(once.call.costs(kept), Ok([1, 3, 4].into()));
    // The bucket has the same limits in another order.
    assert_eq!(once.call.costs(&set.policy.without(&[0])).map_err(drop), Ok([3, 4].into()));
}

/// A wrong name in the environment is a mistake only if the bucket is needed.
#[test]
fn a_stream_with_limits_ignores_the_bucket_of_the_environment() {
    let environment = Environment::new(Some("a b".into()), None, None);
    let task = |args: &[&str]| Task::from_environment(args, &environment);
    assert!(matches!(task(&["-r", "5/s"]), Ok(Task::Pipe(pipe)) if pipe.limits.bucket.is_none()));
    for args in [&[][..], &["true"], &["--once"], &["--show"], &["--set", "-r", "5/s"]] {
        let error = task(args).expect_err("it is needed");
        assert!(error.starts_with("THROTTLE_BUCKET 'a b': a bucket name has only"), "{args:?}: {error}");
    }
}

#[test]
fn units_are_dropped_only_under_limits_of_the_stream_itself() {
    let environment = Environment::new(Some("./b".into()), None, None);
    let task = |args: &[&str]| Task::from_environment(args, &environment);
    for args in [&["--drop"][..], &["--drop", "--max-wait", "1s"], &["--drop", "--dry-run"]] {
        let error = task(args).expect_err("the bucket would be used");
        assert_eq!(error, "--drop cannot be used with a bucket; write for example -r 5/s --drop", "{args:?}");
    }
    let Ok(Task::Pipe(pipe)) = task(&["-r", "5/s", "--drop"]) else { panic!("no pipe") };
    assert!(pipe.limits.bucket.is_none() && pipe.stream().drop_after == Some(Duration::ZERO));
}
