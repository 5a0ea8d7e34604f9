//! The reply file, in which a command reports the answer of its server.

use crate::support::retries::{attempts, summary};
use crate::support::server::{Answer, Server};
use crate::support::{THROTTLE, feed, found, numbers, skipped, wait_until, with_pipes};
use rustix::process::Signal;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The number of waits that commands requested, with `script` run for `units` units. Each unit has to succeed in the end.
fn told_to_wait(options: &[&str], script: &str, units: u32) -> u64 {
    let ended = attempts(1).backoff("1ms").options(options).summary().script(script).run(numbers(units));
    let commands = summary(&ended);
    assert_eq!((ended.code(), &commands["ok"]), (Some(0), &units.into()), "{script}: {}", ended.err);
    commands["told_to_wait"].as_u64().unwrap()
}

#[test]
fn any_command_and_any_child_of_it_can_ask_to_wait() {
    for tell in [
        "echo 'retry-after: 0.1' > \"$THROTTLE_REPLY\"",
        "echo 'retry-after: 0.1' >> \"$THROTTLE_REPLY\"",
        "cd / && sh -c '(echo retry-after: 0.1 | tee -a \"$THROTTLE_REPLY\" > /dev/null) & wait'",
        "echo 'retry-after: 0.1' | dd of=\"$THROTTLE_REPLY\" oflag=append conv=notrunc status=none",
        // More than counts, behind what counts.
        "{ echo 'retry-after: 0.1'; head -c 3000000 /dev/zero; } > \"$THROTTLE_REPLY\"",
        // A process that is left behind holds it open.
        "exec 3>> \"$THROTTLE_REPLY\"; echo retry-after: 0.1 >&3; sleep 0.3 > /dev/null 2>&1 &",
    ] {
        let script = format!("if [ $THROTTLE_ATTEMPT = 1 ]; then {tell}\n exit 1; fi");
        assert_eq!(told_to_wait(&[], &script, 2), 2, "{tell}");
    }
}

#[test]
fn curl_and_wget_write_their_replies() {
    let server = Server::that_answers().first(Answer::later("0.1").body(b"later")).start();
    let url = server.url();
    for (place, client) in [
        "curl -qfsS -D \"$THROTTLE_REPLY\"",
        "wget -qS -O - -t 1 -o \"$THROTTLE_REPLY\"",
        "wget -S -O - -t 1 2> \"$THROTTLE_REPLY\"",
    ]
    .iter()
    .enumerate()
    {
        if found(client.split(' ').next().unwrap()).is_none() {
            continue;
        }
        let script = format!("no_proxy='*' {client} {url}{place}/$1");
        assert_eq!(told_to_wait(&[], &script, 2), 2, "{client}");
    }
}

#[test]
fn each_of_many_at_once_has_a_reply_of_its_own() {
    let script = "sleep 0.05; [ $THROTTLE_ATTEMPT = 1 ] && [ $(($1 % 2)) = 0 ] || exit 0; \
                  echo 'HTTP/1.1 503 x' > \"$THROTTLE_REPLY\"; exit 1";
    assert_eq!(told_to_wait(&["-j", "64"], script, 128), 64);
}

#[test]
fn twenty_open_files_are_enough() {
    let script = "if [ $THROTTLE_ATTEMPT = 1 ]; then echo retry-after: 0 > \"$THROTTLE_REPLY\"; exit 1; fi; echo $1";
    // Files that are inherited from the test's own process count as well, so they are closed.
    let limited = format!(
        "for file in /proc/$$/fd/*; do n=${{file##*/}}; [ $n -le 2 ] || eval \"exec $n>&-\"; done; \
         ulimit -n 20; exec \"$0\" -r unlimited --attempts 1 -c '{script}'"
    );
    let mut command = Command::new("bash");
    command.args(["-c", &limited, THROTTLE]);
    let ended = feed(with_pipes(command), numbers(40));
    assert_eq!((ended.sorted().len(), ended.code()), (40, Some(0)), "{}", ended.err);
}

#[test]
fn nothing_is_left_of_replies_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo x > \"$THROTTLE_REPLY\"; echo 1 > started.$1; exec sleep 1";
    let retries = attempts(2).script(script).inside(&folder).variable("TMPDIR", folder.path().to_str().unwrap());
    let before = fs::read_dir("/dev/shm").map_or(0, Iterator::count);
    let run = retries.start("1\n2\n");
    let files = || fs::read_dir(&folder).unwrap().count();
    wait_until("both commands", || files() == 2);
    run.signal(Signal::KILL);
    assert_eq!(run.finish().signal(), Some(9));
    assert_eq!(files(), 2, "only what the commands made");
    assert!(fs::read_dir("/dev/shm").map_or(0, Iterator::count) <= before);
}

const UNOPENED: &str = "throttle: hint: a command failed without a reply: under sudo -u, in a container or over ssh it cannot \
                        open $THROTTLE_REPLY; have the shell open it: sudo -u USER curl -D - -o FILE URL >> \
                        \"$THROTTLE_REPLY\"; or exit with 75 to request a pause\n";

#[test]
fn a_command_that_cannot_open_its_reply_gets_one_hint() {
    let count = |script: &str| {
        let ended = attempts(2).backoff("1ms").script(script).run(numbers(3));
        ended.err.matches(UNOPENED).count()
    };
    // Messages of shells and curl; then a client without a message.
    for script in [
        "echo \"sh: 1: cannot create $THROTTLE_REPLY: Permission denied\" >&2; exit 2; : $1",
        "echo \"tee: $THROTTLE_REPLY: No such file or directory\" >&2; exit 1; : $1",
        "false || /usr/bin/sudo -u nobody false \"$THROTTLE_REPLY\" $1 2> /dev/null",
        "false ssh \"curl -D $THROTTLE_REPLY\" $1",
    ] {
        assert_eq!(count(script), 1, "{script}");
    }
    for script in [
        "echo \"+ curl -D $THROTTLE_REPLY\" >&2; exit 7; : $1",
        "curl -s -D \"$THROTTLE_REPLY\" -o /dev/null http://127.0.0.1:9/$1",
        "echo HTTP/1.1 500 x > \"$THROTTLE_REPLY\"; false sudo $1",
        "true ssh \"$THROTTLE_REPLY\" $1",
        "exit 1; sudo $1",
    ] {
        assert_eq!(count(script), 0, "{script}");
    }
}

/// If we may run something as another user, or in another PID namespace.
#[test]
fn a_reply_file_that_another_user_cannot_open_gets_a_hint() {
    for away in ["setpriv --reuid=65534 --clear-groups", "unshare -rpf --mount-proc"] {
        let works = Command::new("sh").args(["-c", &format!("{away} true")]).stderr(Stdio::null()).status();
        if !works.unwrap().success() {
            skipped("nobody may run a command elsewhere here");
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let wrapper = folder.path().join("wrapper");
        fs::write(&wrapper, format!("exec {away} sh -c 'echo retry-after: 0 >> \"$THROTTLE_REPLY\"'")).unwrap();
        let script = format!("sh {} $1", wrapper.display());
        let ended = attempts(1).script(&script).run("1\n");
        assert!(ended.code() == Some(123) && ended.err.contains(UNOPENED), "{away}: {}", ended.err);
        // As the hint says.
        let opened = format!("{away} sh -c 'echo retry-after: 0.1; [ $THROTTLE_ATTEMPT = 2 ]' >> \"$THROTTLE_REPLY\"");
        assert_eq!(told_to_wait(&[], &format!("{opened} # $1"), 2), 2, "{away}");
    }
}

/// Servers whose clocks are an hour behind or ahead ask to wait for two seconds. `at N FORMAT` writes the time N seconds from
/// now on their clock.
#[test]
#[ignore = "slow: 3 s"]
fn times_of_a_server_with_another_clock_count_from_its_own_date() {
    let http = "+%a, %d %b %Y %H:%M:%S GMT";
    let used_up = |limit, reset| format!("{limit}-remaining: 0\n{limit}-reset: {reset}");
    let cases = [
        ("1 429 x", format!("Retry-After: $(at 2 '{http}')")),
        ("1 503 x", "Retry-After: $(at 2 '+%A, %d-%b-%y %H:%M:%S GMT')".to_owned()),
        ("2 429", "retry-after: $(at 2 '+%a %b %e %H:%M:%S %Y')".to_owned()),
        ("2 429", "retry-after: $(at 2 +%Y-%m-%dT%H:%M:%SZ)".to_owned()),
        ("1.1 429 x", used_up("x-ratelimit", "$(at 2 +%s)")),
        ("1.1 403 x", used_up("x-ratelimit", "$(at 2 +%s)000")),
        ("1.1 429 x", used_up("x-rate-limit", "$(at 2 +%s)500")),
        ("1.1 429 x", used_up("ratelimit", "2")),
        ("1.1 429 x", used_up("anthropic-ratelimit-requests", "$(at 2 +%Y-%m-%dT%H:%M:%SZ)")),
    ];
    let runs = [-3600, 3600].into_iter().flat_map(|skew| {
        cases.iter().map(move |(status, fields): &(&str, String)| {
            let script = format!(
                "[ $THROTTLE_ATTEMPT = 1 ] || exit 0; now=$(($(date +%s) + {skew})); \
                 at() {{ LC_ALL=C date -u -d \"@$((now + $1))\" \"$2\"; }}; \
                 printf \"HTTP/{status}\\nDate: $(at 0 '{http}')\\n{fields}\\n\" > \"$THROTTLE_REPLY\"; exit 1; : $1"
            );
            thread::spawn(move || {
                let (begun, retries) = (Instant::now(), attempts(1).options(&["--max-pause", "1min"]));
                (retries.script(&script).run("1\n"), begun.elapsed(), script)
            })
        })
    });
    for run in runs.collect::<Vec<_>>() {
        let (ended, took, script) = run.join().unwrap();
        assert_eq!(ended.code(), Some(0), "{script}: {}", ended.err);
        assert!(took >= Duration::from_secs(2), "{script}: {took:?}");
    }
}
