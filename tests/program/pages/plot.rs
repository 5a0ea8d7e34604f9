//! `--plot LOG…`, through the real program: mistakes, and the pages in a browser.

use crate::support::terminal::Terminal;
use crate::support::{Running, THROTTLE, assert_fails, feed, find, read_all, skipped, throttle, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Seconds since 1970.
const START: f64 = 1_795_727_053.0;

const WIDTHS: [u64; 3] = [360, 760, 1600];

/// The page of this log, through standard input.
fn page_of(log: &[u8]) -> String {
    let output = feed(throttle(["--plot", "-"]), log);
    assert!(output.status.success() && output.err.is_empty(), "{}", output.err);
    String::from_utf8(output.out).unwrap()
}

#[test]
fn a_log_that_is_none_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("other"), "a line\n").unwrap();
    fs::write(path("empty"), "").unwrap();
    let plot = |logs: &[&str]| feed(throttle([&["--plot"], logs].concat()), b"");
    let right = "name a file that --log wrote: --plot tries.jsonl";
    assert_fails(&plot(&[&path("none")]), 1, &["--plot: cannot open", "none", right, "No such file"]);
    assert_fails(&plot(&[&path("empty"), &path("")]), 1, &["--plot: cannot read", right, "Is a directory"]);
    assert_fails(&plot(&[&path("other")]), 1, &["--plot:", "other has no line of a log", right]);
    assert_fails(&plot(&[]), 2, &["--plot takes a value; write --plot LOG"]);
    assert_fails(&plot(&["a", "-r", "5/s"]), 2, &["--plot reads logs", "write throttle --plot tries.jsonl > run.html"]);
    assert_fails(
        &plot(&["a", "--", "true"]),
        2,
        &["--plot reads logs", "write throttle --plot tries.jsonl > run.html"],
    );
    assert_fails(
        &plot(&["a", "--bucket", "b"]),
        2,
        &["--plot reads logs", "write throttle --plot tries.jsonl > run.html"],
    );
    assert_fails(&plot(&["a", "--jobs", "2"]), 2, &["--plot cannot be used with --jobs"]);
    assert!(plot(&[&path("empty"), &path("other")]).code() == Some(1));
    let empty = plot(&[&path("empty")]);
    assert!(empty.status.success() && empty.text().contains("there is nothing to draw"), "{}", empty.err);
    let mut command = throttle(["--plot", &path("empty")]);
    command.stdout(fs::File::options().append(true).open(path("empty")).unwrap());
    assert_fails(&feed(command, b""), 1, &["empty is also the output", "> run.html"]);
}

#[test]
fn on_a_terminal_the_page_is_not_written_but_how_to() {
    let terminal = Terminal::new(200);
    let mut child = terminal.command(THROTTLE).args(["--plot", "my log"]).spawn().unwrap();
    let right = "throttle: --plot writes a page for a browser; write throttle --plot 'my log' > run.html";
    wait_until("the message", || terminal.rows().iter().any(|row| row.contains(right)));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(terminal.rows().len(), 1);
}

/// The log of a run is read while it is written, and afterwards.
#[test]
fn the_log_of_a_real_run_becomes_its_page() {
    let folder = tempfile::tempdir().unwrap();
    let script = "case $1 in 3) exit 9;; 5) until [ -e go ]; do sleep 0.02; done;; esac";
    let words = ["-q", "-r", "200/s", "-j", "7", "--bucket", "./b", "--log", "log", "-c", script];
    let mut command = throttle(words);
    command.current_dir(&folder).env("TZ", "UTC-3");
    let mut running = Running::start(command);
    drop(running.write(b"1\n2\n3\n4\n5\n6\n"));
    let page = || {
        let mut command = throttle(["--plot", "log"]);
        command.current_dir(&folder);
        feed(command, b"").into_text()
    };
    wait_until("five lines", || {
        fs::read_to_string(folder.path().join("log")).is_ok_and(|log| log.lines().count() == 6)
    });
    let meanwhile = page();
    assert!(
        meanwhile.contains("the log has no end of this run") && meanwhile.contains("<dt>units</dt><dd>5</dd>"),
        "{meanwhile}"
    );
    fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(running.finish().code(), Some(123));
    let after = page();
    for words in ["6 units, ", "limit 200/s", "· -j 7 ·", "--bucket ./b", "1 failed unit<", "exit 9", "UTC+03:00"] {
        assert!(after.contains(words), "{words} is missing in {after}");
    }
    assert!(!after.contains("the log has no end of this run"));
}

fn line(seq: usize, start: f64, ran: f64, verdict: &str, more: &str) -> String {
    format!(
        "{{\"seq\":{seq},\"unit\":\"http://h.example/{seq}\",\"try\":1,\"start\":{start:.6},\"ran\":{ran:.6},\
         \"exit\":{},\"verdict\":\"{verdict}\",\"run\":\"a\"{more}}}\n",
        i32::from(verdict != "ok")
    )
}

fn run_line(id: &str, start: f64, limits: &str) -> String {
    format!(
        "{{\"run\":{{\"id\":\"{id}\",\"start\":{start},\"utc_offset\":-34200,\"version\":\"1.0.0\",\"limits\":[{limits}],\
         \"jobs\":8,\"command\":\"throttle -r 10/s -j 8 --log tries.jsonl ./call\"}}}}\n"
    )
}

/// A run of `count` commands, `apart` seconds from each other.
fn run(count: usize, apart: f64, of: impl Fn(usize) -> (&'static str, String)) -> String {
    let mut log = run_line("a", START, "\"10/s,burst=5\",\"500/min,window\"");
    let mut start = START;
    for seq in 1..=count {
        let (verdict, more) = of(seq);
        let ran = [0.05, 0.2, 0.1, 0.4][seq % 4];
        log += &line(seq, start, ran, verdict, &more);
        start += apart;
    }
    log
}

fn some_fail(seq: usize) -> (&'static str, String) {
    match seq % 50 {
        7 => ("later", format!(",\"http\":429,\"pace\":6.5,\"until\":{}", START + 2.0)),
        11 => ("again", ",\"http\":503,\"pace\":7.25".to_owned()),
        13 => ("failed", ",\"http\":404".to_owned()),
        _ => ("ok", ",\"http\":200,\"pace\":8.0".to_owned()),
    }
}

/// A dozen logs, by their names.
fn logs() -> BTreeMap<&'static str, String> {
    let key = |seq: usize| ("ok", format!(",\"key\":\"host-{}.example\"", seq * seq % 37));
    let evil = "<script>document.title = 'hit'</script><b>\\u0000\\u001b[31m\\u202e\\\"'&amp;</svg>--><img src=x onerror=alert(1)>";
    let evil_key = format!(",\"key\":\"{evil}\",\"error\":\"{evil}\"");
    let hostile = run_line("a", START, &format!("\"{evil}\"")).replace("throttle -r", evil)
        + &(1..30).map(|seq| line(seq, START, 0.1, "failed", &evil_key).replace("http://", evil)).collect::<String>()
        + &line(40, START, 0.1, "failed", "").replace("h.example", &"x".repeat(1 << 20));
    let mut several = run(100, 0.1, some_fail);
    for (place, run) in ["b", "c", "d"].into_iter().enumerate() {
        let start = START + 90_000.0 * f64::from(u32::try_from(place).unwrap() + 1);
        several += &run_line(run, start, "\"20/s\"");
        several.extend((1..90).map(|seq| {
            let at = start + f64::from(u32::try_from(seq).unwrap()) / 9.0;
            line(seq, at, 0.3, "ok", "").replace("\"run\":\"a\"", &format!("\"run\":\"{run}\""))
        }));
    }
    let mut night = String::new();
    write!(night, "{}", run(20_000, 1.7, |seq| if seq % 400 < 30 { some_fail(seq % 50) } else { key(seq) })).unwrap();
    BTreeMap::from([
        ("empty", String::new()),
        ("one", run(1, 1.0, |_| ("ok", String::new()))),
        ("short", run(40, 0.03, some_fail)),
        ("plain", run(600, 0.1, some_fail)),
        ("keys", run(900, 0.2, key)),
        ("night", night),
        ("many", run(30_000, 0.004, some_fail)),
        ("several", several),
        ("slow", run(300, 86_400.0, some_fail)),
        ("long", (1..99).map(|seq| line(seq, START, [0.004, 2.0, 9000.0][seq % 3], "ok", "")).collect()),
        ("hours", (1..99).map(|seq| line(seq, START, [50_000.0, 90_000.0][seq % 2], "ok", "")).collect()),
        ("failed", run(400, 0.1, |_| ("failed", ",\"error\":\"cannot be run: No such file or directory\"".to_owned()))),
        ("others", format!("a line\n{}cut", run(50, 1.0, some_fail))),
        ("hostile", hostile),
    ])
}

/// Has Chromium show all pages at all widths, and returns what it found: an object for each. `None`: there is no Chromium.
fn looked_at(folder: &Path, pages: &BTreeMap<&str, String>, dark: bool) -> Option<Vec<Value>> {
    let Some(chromium) = find("chromium").or_else(|| find("chromium-browser")) else {
        skipped("chromium");
        return None;
    };
    // A script ends at the first end tag in it.
    let all = json!(pages).to_string().replace('<', "\\u003c");
    let harness = include_str!("look.html").replace("PAGES", &all);
    fs::write(folder.join("look.html"), harness).unwrap();
    let mut command = Command::new(chromium);
    command
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"])
        .args(["--virtual-time-budget=600000", "--window-size=1700,1000", "--dump-dom"])
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", folder.join("look.html").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = Running::start(command).finish();
    let (out, said) = (output.text(), &output.err);
    let console: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "the console says {console:#?}");
    let found =
        out.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>")).map(|(found, _)| found);
    let found = found.filter(|found| !found.is_empty()).unwrap_or_else(|| panic!("nothing was found: {said}"));
    Some(serde_json::from_str(found).unwrap())
}

#[test]
#[ignore = "slow: 10 s"]
fn a_browser_shows_each_page_wide_and_narrow_light_and_dark() {
    let folder = tempfile::tempdir().unwrap();
    let pages: BTreeMap<&str, String> = logs().into_iter().map(|(name, log)| (name, page_of(log.as_bytes()))).collect();
    let Some(light) = looked_at(folder.path(), &pages, false) else { return };
    let Some(dark) = looked_at(folder.path(), &pages, true) else { return };
    assert_eq!((light.len(), dark.len()), (pages.len() * WIDTHS.len(), pages.len() * WIDTHS.len()));
    let wrong: Vec<&Value> = light.iter().chain(&dark).filter(|found| found["wrong"] != json!([])).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (light, dark) in light.iter().zip(&dark) {
        assert_eq!((&light["back"], &dark["back"]), (&"rgb(250, 250, 247)".into(), &"rgb(21, 22, 26)".into()));
        let three = json!(["Starts a second", "Durations", "Commands at once"]);
        assert_eq!(light["charts"], if light["name"] == "empty" { json!([]) } else { three });
    }
    let at = |name: &str, width: u64| {
        let mut found = light.iter().filter(|found| found["name"] == name && found["width"] == width);
        found.next().unwrap_or_else(|| panic!("no page {name}"))
    };
    let [plain, narrow] = [1600, 360].map(|width| at("plain", width));
    assert_eq!(plain["title"], "600 units, 2026-11-26 11:34", "9.5 hours behind UTC");
    assert_eq!(plain["tiles"]["refused"], "12");
    assert_eq!(
        (&plain["points"], plain["tables"].to_string()),
        (&600.into(), json!([["12 failed units", 12]]).to_string())
    );
    assert_eq!(plain["bars"], 60 + 3 * 12, "each second has one that was ok, and each other end its second");
    assert!(narrow["points"].as_u64().is_some_and(|points| (60..600).contains(&points)), "{narrow}");
    assert_eq!(narrow["bars"], plain["bars"]);
    let tables = at("keys", 360)["tables"].to_string();
    assert_eq!(tables, json!([["Busiest of 19 keys", 10]]).to_string());
    assert!(at("many", 1600)["points"].as_u64().is_some_and(|points| (500..4000).contains(&points)));
    assert_eq!(at("hostile", 760)["tables"][1], json!(["30 failed units", 30]));
}

/// The memory for a million attempts, and the size of their page. The time is printed and not checked, as machines differ.
#[test]
#[ignore = "by hand: makes a log of 300 MB"]
fn by_hand_a_million_attempts_take_100_mib_for_a_page_of_2_mib() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let fields =
        ",\"key\":null,\"waited\":0.000089,\"signal\":null,\"timed_out\":false,\"charged\":1,\"cost\":null,\"slot\":3";
    let log = run(1_000_000, 0.025, |seq| {
        let (verdict, more) = some_fail(seq);
        (verdict, more + fields)
    });
    fs::write(&path, log).unwrap();
    let begun = Instant::now();
    let mut running = Running::start(throttle(["--plot", path.to_str().unwrap()]));
    let page = read_all(running.stdout());
    let mut most = 0;
    wait_until("the page", || {
        most = running.most_resident().unwrap_or_default().max(most);
        page.is_finished()
    });
    let (time, page) = (begun.elapsed(), page.join().unwrap());
    assert!(running.end().success() && page.len() < 2 << 20 && most < 100 << 10, "{most} KiB, {} bytes", page.len());
    eprintln!("{time:?}, {most} KiB, {} bytes", page.len());
}
