//! The whole screen of a terminal with a bar, at three widths and beside other programs: no row is torn, doubled or left
//! over. A limit of one unit an hour keeps the screen still.

use crate::support::terminal::Terminal;
use crate::support::{THROTTLE, found};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

/// Runs `script` in `folder` on `terminal`; `throttle` is ours.
fn run(terminal: &Terminal, folder: &Path, script: &str) -> Child {
    let path = [Path::new(THROTTLE).parent().unwrap().to_str().unwrap(), &std::env::var("PATH").unwrap()].join(":");
    let mut command = terminal.command("bash");
    command.args(["-c", &format!("ulimit -c 0; {script}")]).current_dir(folder).env("PATH", path).env("LESS", "-G");
    command.env_remove("NO_COLOR").spawn().unwrap()
}

/// Watches for some pictures of the bar: these rows and no others stand there.
#[track_caller]
fn stays(terminal: &Terminal, expected: &[&str]) {
    for _ in 0..30 {
        assert_eq!(terminal.rows(), expected);
        thread::sleep(Duration::from_millis(10));
    }
}

/// `child` ends, and leaves these rows and no others.
#[track_caller]
fn ends(terminal: &Terminal, child: Child, expected: &[&str]) {
    terminal.watch(child, |_| false);
    if expected == [ACCOUNTS] {
        let rows = terminal.at_rest().concat();
        assert!(rows.contains("interrupted: ") && !rows.contains("next in"), "{rows}");
        return;
    }
    terminal.wait_for_screen(expected);
    assert_eq!(terminal.at_rest(), expected);
}

/// Tests each case at each width, all at once.
fn at_three_widths<T: Copy + Send>(cases: &[T], test: impl Fn(u16, T) + Sync) {
    thread::scope(|scope| {
        for columns in [40, 80, 160] {
            for case in cases.iter().copied() {
                let test = &test;
                scope.spawn(move || test(columns, case));
            }
        }
    });
}

/// A folder with `lines`, and a program that asks for a password once there is a file `ask`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("lines"), "a 1\nb 2\na 3\nb 4\na 5\nb 6\n").unwrap();
    let ask = "until test -e ask; do sleep 0.01; done
        exec 3<>/dev/tty; stty -echo <&3; printf 'Password: ' >&3; read -r p <&3; printf '\\ngot %s\\n' $p >&3; stty echo <&3";
    fs::write(folder.path().join("ask.sh"), ask).unwrap();
    folder
}

/// The rows that a terminal of `columns` columns makes of `line`.
fn wrapped(line: &str, columns: u16) -> Vec<String> {
    let chars: Vec<char> = line.chars().collect();
    chars.chunks(columns.into()).map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect()
}

/// The reports of two pipes about the units that they had read, in any order.
const ACCOUNTS: &str = "read and not passed on";

/// A script, the rows above its bar, its bar at 40, 80 and 160 columns, and what stands there after an interrupt.
type Place = (&'static str, &'static [&'static str], [&'static str; 3], &'static [&'static str]);

const PLACES: [Place; 10] = [
    (
        "throttle --progress=always -r 1/h -b1 -a lines > out",
        &[],
        [
            "16% 1 line, 4 B, next in 1h, 5h left",
            "===>                 16% 1 line, 4 B, next in 1h, 5h left, limit 1/h",
            "===>                 16% 1 line, 4 B, next in 1h, 5h left, limit 1/h",
        ],
        &["throttle: interrupted: 1 line, 4 B, 5 read and not passed on"],
    ),
    (
        // Without a total there is no time left.
        "tail -f lines | throttle --progress=always -r 1/h -b1 > out",
        &[],
        ["1 line, 4 B, next in 1h, limit 1/h"; 3],
        &["throttle: interrupted: 1 line, 4 B, 5 read and not passed on"],
    ),
    (
        "throttle --progress=always -r 1/h,per=f1 -a lines > out",
        &[],
        [
            "33% 2 lines, next in 1h, 2h 30m left",
            "======>              33% 2 lines, 8 B, 2 keys wait, next in 1h, 2h 30m left",
            "======>              33% 2 lines, 8 B, 2 keys wait, next in 1h, 2h 30m left, limit 1/h,per=f1",
        ],
        &["throttle: interrupted: 2 lines, 8 B, 2 keys wait, 4 read and not passed on"],
    ),
    (
        "throttle --progress=always -r 1/h,per=f1 -a lines true",
        &[],
        [
            "33% 2 ok, next in 1h, 2h 30m left",
            "===>       33% 2 started, 0 running, 2 ok, 2 keys wait, next in 1h, 2h 30m left",
            "======>              33% 2 started, 0 running, 2 ok, 2 keys wait, next in 1h, 2h 30m left, limit 1/h,per=f1",
        ],
        &["throttle: interrupted: 2 ok, 0 stopped, 4 read and not started"],
    ),
    (
        "throttle --progress=always -j4 -r 1/h -b1 -a lines -c 'test \"$1\"'",
        &[],
        [
            "16% 1 ok, next in 1h, 5h left",
            "===>                 16% 1 started, 0 running, 1 ok, next in 1h, 5h left",
            "===>                 16% 1 started, 0 running, 1 ok, next in 1h, 5h left, limit 1/h",
        ],
        &["throttle: interrupted: 1 ok, 0 stopped, next line not started: 2 'b 2'"],
    ),
    (
        // Wide characters, also where the row ends, and a line without an end.
        "throttle --progress=always -j4 -r 1/h -b1 -a lines -c 'printf \"日本語 %s\\n🦀\" \"$1\"'",
        &["日本語 a 1", "🦀"],
        [
            "16% 1 ok, next in 1h, 5h left",
            "===>                 16% 1 started, 0 running, 1 ok, next in 1h, 5h left",
            "===>                 16% 1 started, 0 running, 1 ok, next in 1h, 5h left, limit 1/h",
        ],
        &["日本語 a 1", "🦀", "throttle: interrupted: 1 ok, 0 stopped, next line not started: 2 'b 2'"],
    ),
    (
        // The units are not done, though their first commands have ended. The end of one would hold up the start of the other,
        // so the first waits for the second.
        "mkfifo both; throttle --progress=always -r 1/h -b2 --attempts 2 --no-learn --max-pause 2h -a lines -c 'if [ $THROTTLE_SEQ = 1 ]; then read -r x <both; else echo >both; fi; echo \"retry-after: 3600\" >>\"$THROTTLE_REPLY\"; exit 1 \"$1\"'",
        &["throttle: a server requested a wait: nothing starts for 1h"],
        [
            "           0% 0 ok, 7h left",
            "0% 0 ok, told to wait, next in 2h, 7h left",
            "                     0% 2 started, 0 running, 0 ok, 2 to be tried again, told to wait, next in 2h, 7h left, limit 1/h",
        ],
        &[
            "throttle: a server requested a wait: nothing starts for 1h",
            "throttle: line 1 'a 1': not tried again",
            "throttle: line 2 'b 2': not tried again",
            "throttle: interrupted: 0 ok, 0 stopped, 2 not tried again, next line not started: 3 'a 3'",
        ],
    ),
    (
        // The server of one key requests a wait; the other key waits for its limit.
        "throttle --progress=always -r 1/h,per=f1 --attempts 2 --max-pause 2h -a lines -c 'test \"$1\" = \"b 2\" || { echo \"retry-after: 3600\" >>\"$THROTTLE_REPLY\"; exit 1; }'",
        &["throttle: the server of 'a' requested a wait: no unit of this key starts for 1h"],
        [
            "16% 1 ok, next in 1h, 3h left",
            "16% 1 ok, next in 1h, 3h left",
            "===>                 16% 2 started, 0 running, 1 ok, 1 to be tried again, 2 keys wait, next in 1h, 3h left, limit 1/h,per=f1",
        ],
        &[
            "throttle: the server of 'a' requested a wait: no unit of this key starts for 1h",
            "throttle: line 1 'a 1': not tried again",
            "throttle: interrupted: 1 ok, 0 stopped, 1 not tried again, 4 read and not started",
        ],
    ),
    (
        "throttle --progress=always -r 1/h -b1 --repeat 4 true",
        &[],
        [
            "25% 1 ok, next in 1h, 3h left",
            "=====>               25% 1 started, 0 running, 1 ok, next in 1h, 3h left",
            "=====>               25% 1 started, 0 running, 1 ok, next in 1h, 3h left, limit 1/h",
        ],
        &["throttle: interrupted: 1 ok, 0 stopped, next unit not started: 2 '2'"],
    ),
    (
        // Only the last one shows a bar: the output of the other has a reader.
        "throttle -r 1/h -b2 -a lines | throttle -r 1/h -b1 > out",
        &[],
        ["1 line, 4 B, next in 1h, limit 1/h"; 3],
        &[ACCOUNTS],
    ),
];

#[test]
fn at_three_widths_an_interrupt_leaves_nothing_of_the_bar() {
    at_three_widths(&PLACES, |columns, (script, above, [narrow, usual, wide], rest)| {
        let (folder, mut terminal) = (folder(), Terminal::new(columns));
        let child = run(&terminal, folder.path(), script);
        let bar = if columns == 40 { narrow } else { [usual, wide][usize::from(columns > 80)] };
        let rows_of =
            |lines: &[&str]| -> Vec<String> { lines.iter().flat_map(|line| wrapped(line, columns)).collect() };
        let above = rows_of(above);
        terminal.wait_for_screen(&above.iter().map(String::as_str).chain([bar]).collect::<Vec<_>>());
        terminal.press(b"\x03");
        let rest = rows_of(rest);
        ends(&terminal, child, &rest.iter().map(String::as_str).collect::<Vec<_>>());
    });
}

#[test]
fn two_bars_on_one_terminal_share_a_row_and_tear_nothing() {
    let (all, part) = (
        "======>              33% 2 lines, 8 B, next in 1h, 4h left, limit 1/h",
        "33% 2 lines, 8 B, next in 1h, 4h left",
    );
    at_three_widths(&[()], |columns, ()| {
        let (folder, mut terminal) = (folder(), Terminal::new(columns));
        let script = "throttle --progress=always -r 1/h -b2 -a lines | throttle --progress=always -r 1/h -b1 > out";
        let child = run(&terminal, folder.path(), script);
        let bars = [if columns == 40 { part } else { all }, "1 line, 4 B, next in 1h, limit 1/h"];
        terminal.wait_for("the first unit", |row| row == bars[1]);
        for _ in 0..50 {
            let rows = terminal.rows();
            assert!(rows.is_empty() || bars.iter().any(|bar| rows == [*bar]), "{rows:#?}");
            thread::sleep(Duration::from_millis(10));
        }
        terminal.press(b"\x03");
        ends(&terminal, child, &[ACCOUNTS]);
    });
}

/// The reader has it all on the screen, also after more than a second.
#[test]
fn a_reader_that_writes_to_the_terminal_has_it_for_itself() {
    at_three_widths(&[()], |columns, ()| {
        let (folder, terminal) = (folder(), Terminal::new(columns));
        let script = "throttle -r 4/s -b1 -a lines | while read -r line; do echo \"got $line\"; done";
        let mut child = run(&terminal, folder.path(), script);
        let all = ["got a 1", "got b 2", "got a 3", "got b 4", "got a 5", "got b 6"];
        while child.try_wait().unwrap().is_none() {
            let rows = terminal.rows();
            assert!(rows.iter().zip(all).all(|(row, whole)| whole.starts_with(row)), "{rows:#?}");
            thread::sleep(Duration::from_millis(10));
        }
        ends(&terminal, child, &all);
    });
}

/// Neither drawn over nor erased, whoever asks; the bar goes on below.
#[test]
fn a_prompt_for_a_password_is_left_alone() {
    let scripts = [
        "throttle --progress=always -r 1/h -b1 -a lines | { . ./ask.sh; exec sleep 100; }",
        "{ cat lines; . ./ask.sh; exec sleep 100; } | throttle --progress=always -r 1/h -b1 > out",
    ];
    at_three_widths(&scripts, |columns, script| {
        let (folder, mut terminal) = (folder(), Terminal::new(columns));
        let child = run(&terminal, folder.path(), script);
        let bar = terminal.wait_for("the bar", |row| row.contains("next in 1h"));
        fs::write(folder.path().join("ask"), "").unwrap();
        terminal.wait_for_screen(&["Password:"]);
        stays(&terminal, &["Password:"]);
        terminal.press(b"secret\n");
        terminal.wait_for_screen(&["Password:", "got secret", &bar]);
        terminal.press(b"\x03");
        terminal.watch(child, |_| false);
        // The reader ends as well. If that is noticed first, the units that were read are not reported.
        let rows = terminal.at_rest();
        assert!(rows.starts_with(&["Password:".to_owned(), "got secret".to_owned()]), "{rows:#?}");
        assert!(rows.iter().all(|row| !row.contains("next in")), "{rows:#?}");
    });
}

#[test]
fn a_pager_shows_searches_and_quits_as_without_a_bar() {
    if found("less").is_none() {
        return;
    }
    at_three_widths(&["auto", "always"], |columns, when| {
        let (folder, mut terminal) = (folder(), Terminal::new(columns));
        let many: Vec<String> = (1..=1001).map(|line| format!("line {line}\n")).collect();
        fs::write(folder.path().join("many"), many.concat()).unwrap();
        let script = format!("stty -echoctl; throttle --progress={when} -r 1/h -b1000 -a many | less");
        let child = run(&terminal, folder.path(), &script);
        let page = |first: usize| many[first - 1..first + 48].iter().map(|line| line.trim_end()).chain([":"]).collect();
        for (keys, rows) in [("", page(1)), ("/line 500\n", page(500)), ("b", page(451))] {
            let rows: Vec<&str> = rows;
            terminal.press(keys.as_bytes());
            terminal.wait_for_screen(&rows);
            stays(&terminal, &rows);
        }
        terminal.press(b"q");
        // The reader has left, so the wait for the last line is over.
        ends(&terminal, child, &[]);
    });
}

/// The bar wiped out a question that the script asked.
#[test]
#[ignore = "slow: 3 s"]
fn a_bar_in_the_background_spares_the_output_of_the_script() {
    at_three_widths(&[()], |columns, ()| {
        let (folder, mut terminal) = (folder(), Terminal::new(columns));
        let script = "throttle -r 1/s -b1 -a lines > out & sleep 1.5; printf 'Delete? '; read n; kill $!; echo over";
        let child = run(&terminal, folder.path(), script);
        terminal.wait_for("the question", |row| row.trim_end() == "Delete?");
        thread::sleep(Duration::from_millis(700));
        stays(&terminal, &["Delete?"]);
        terminal.press(b"no\r");
        terminal.watch(child, |_| false);
        terminal.wait_for("the end", |row| row == "over");
        assert!(!terminal.at_rest().concat().contains("====="));
    });
}

/// A program in the background that writes is stopped by `stty tostop`.
#[test]
fn in_the_background_no_bar_is_written() {
    at_three_widths(&[()], |columns, ()| {
        let (folder, mut terminal) = (folder(), Terminal::new(columns));
        let end = folder.path().join("end");
        let script = "set -m; stty tostop; w() { until test -e end; do sleep 0.01; done; }
            t() { exec throttle --progress=always -r 1/h; }
            w | t & wait $!; echo ended $?; rm end; w | t; bg; wait %1; echo ended $?; echo over";
        let child = run(&terminal, folder.path(), script);
        stays(&terminal, &[]);
        fs::write(&end, "").unwrap();
        terminal.wait_for("the bar", |row| row == "0 lines, 0 B, 0.00/s now, limit 1/h");
        terminal.press(b"\x1a");
        terminal.wait_for("it to go on", |row| row == "[1]+ w | t &");
        thread::sleep(Duration::from_millis(300));
        fs::write(&end, "").unwrap();
        terminal.watch(child, |_| false);
        terminal.wait_for("the end", |row| row == "over");
        let mut rows = terminal.at_rest();
        // Messages of bash about its jobs.
        rows.retain(|row| !row.starts_with("[1]"));
        assert_eq!(rows, ["ended 0", "ended 0", "over"]);
    });
}

#[test]
fn however_a_pipe_ends_nothing_is_left_of_its_bar() {
    at_three_widths(&["\x03", "\x1c", ""], |columns, key| {
        let (folder, mut terminal) = (folder(), Terminal::new(columns));
        let script =
            "exec throttle --progress=always -r 1k/s -a <(cat lines; until test -e end; do sleep 0.01; done) > out";
        let child = run(&terminal, folder.path(), script);
        terminal.wait_for("the bar", |row| row.contains("limit 1k/s"));
        if key.is_empty() {
            fs::write(folder.path().join("end"), "").unwrap();
        }
        terminal.press(key.as_bytes());
        ends(&terminal, child, &[]);
    });
}

/// There are no colours, so `NO_COLOR` changes nothing. A terminal of an unknown kind may know no control sequence.
#[test]
fn a_dumb_terminal_gets_no_bar() {
    thread::scope(|scope| {
        for (words, has_bar) in [
            ("TERM=vt100 NO_COLOR=1 throttle --progress=always", true),
            ("TERM=vt100 throttle --progress never", false),
            ("TERM=vt100 throttle -q", false),
            ("TERM=dumb throttle --progress=always", false),
            ("TERM= throttle --progress=always", false),
            ("env -u TERM throttle --progress=always", false),
            ("throttle --progress=always 2> err", false),
        ] {
            scope.spawn(move || {
                let (folder, mut terminal) = (folder(), Terminal::new(80));
                let script = format!("stty -echoctl; {words} -r 1/h -b1 -a lines > out");
                let child = run(&terminal, folder.path(), &script);
                while fs::read(folder.path().join("out")).unwrap_or_default().is_empty() {
                    thread::sleep(Duration::from_millis(10));
                }
                let bar = "===>                 16% 1 line, 4 B, next in 1h, 5h left, limit 1/h";
                let expected = if has_bar { &[bar][..] } else { &[] };
                terminal.wait_for_screen(expected);
                stays(&terminal, expected);
                terminal.press(b"\x03");
                let (account, err) =
                    ("throttle: interrupted: 1 line, 4 B, 5 read and not passed on", folder.path().join("err"));
                let (is_redirected, rows) = (err.exists(), [account]);
                ends(&terminal, child, if is_redirected { &[] } else { &rows });
                assert_eq!(
                    fs::read_to_string(err).unwrap_or_default().trim_end(),
                    if is_redirected { account } else { "" }
                );
            });
        }
    });
}

/// The terminal would stop it for the last line, and nobody would continue it.
#[test]
fn in_the_background_a_run_ends_after_stty_tostop() {
    let (folder, terminal) = (folder(), Terminal::new(80));
    let script = "set -m; stty tostop; throttle -r 100/s -j 2 false < lines > out & wait $!; echo ended $?";
    let child = run(&terminal, folder.path(), script);
    terminal.wait_for("the end", |row| row == "ended 123");
    let rows = terminal.at_rest().concat();
    assert!(rows.contains("0 ok, 6 failed"), "{rows}");
    terminal.watch(child, |_| false);
}
