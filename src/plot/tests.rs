//! Lines go in, and the tests check the page as text. `tests/program/pages/plot.rs` checks it in a browser.

use super::Plot;
use std::fmt::Write;

/// The time in seconds since 1970 at which logs begin here: 2026-11-26 22:04:13 where local time is an hour ahead.
const START: f64 = 1_795_727_053.0;

fn run_line(id: &str, start: f64) -> String {
    format!(
        "{{\"run\":{{\"id\":\"{id}\",\"start\":{start},\"utc_offset\":3600,\"version\":\"1.2.3\",\
         \"limits\":[\"60/s,burst=5\",\"1000/min,window\",\"2/s,per=host\"],\"jobs\":32,\"command\":\"throttle -r 60/s ./call\"}}}}\n"
    )
}

/// A line about an attempt; `more` has further fields.
fn attempt(run: &str, seq: u64, start: f64, verdict: &str, more: &str) -> String {
    let exit = u8::from(verdict != "ok");
    format!(
        "{{\"seq\":{seq},\"unit\":\"unit-{seq}\",\"try\":1,\"start\":{start:.6},\"ran\":0.25,\"exit\":{exit},\
         \"verdict\":\"{verdict}\",\"run\":\"{run}\"{more}}}\n"
    )
}

fn page(logs: &[(&str, &[u8])]) -> String {
    let mut plot = Plot::default();
    for (name, log) in logs {
        plot.read(name, *log).unwrap();
    }
    plot.page(|_| 7200)
}

fn page_of(log: &str) -> String {
    page(&[("log", log.as_bytes())])
}

fn tile(page: &str, name: &str) -> String {
    let (_, rest) = page.split_once(&format!("<dt>{name}</dt><dd>")).unwrap_or_else(|| panic!("no tile {name}"));
    rest.split('<').next().unwrap().to_owned()
}

/// The charts for a wide screen: starts, durations, commands at once.
fn charts(page: &str) -> Vec<&str> {
    page.split("<svg class=\"wide\"").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect()
}

/// The elements with this beginning.
fn marks(chart: &str, element: &str) -> usize {
    chart.matches(element).count()
}

#[test]
fn a_run_has_its_command_its_limits_and_its_totals() {
    let mut log = run_line("a", START);
    let verdicts = ["ok", "ok", "ok", "later", "again", "failed", "stopped"];
    for (seq, verdict) in (1..).zip(verdicts) {
        log += &attempt("a", seq, START + f64::from(u32::try_from(seq).unwrap()), verdict, "");
    }
    let open = page_of(&log);
    assert!(page_of(&format!("\u{feff}{log}")) == open, "an editor may have written a byte-order mark");
    assert!(open.contains("the log has no end of this run"), "{open}");
    let page = page_of(&(log + "{\"run\":{\"id\":\"a\",\"end\":1795727073.0,\"units\":7}}\n"));
    assert!(!page.contains("the log has no end of this run"));
    for text in [
        "7 units, 2026-11-26 22:04</h1>",
        "<code>throttle -r 60/s ./call</code>",
        "60/s,burst=5 and 1000/min,window and 2/s,per=host",
        "-j 32",
    ] {
        assert!(page.contains(text), "{text}");
    }
    let tiles = ["units", "ok", "failed", "refused", "attempts", "unfinished", "elapsed", "starts, mean"];
    assert_eq!(tiles.map(|name| tile(&page, name)), ["7", "3", "1", "1", "7", "3", "20 s", "0.35/s"]);
    let charts = charts(&page);
    assert_eq!(charts.len(), 3);
    let bars = ["ok", "again", "later", "failed", "stopped"]
        .map(|class| marks(charts[0], &format!("<rect class=\"{class}\"")));
    assert_eq!((bars, marks(charts[1], "<circle")), ([3, 1, 1, 1, 1], 7));
    assert!(charts[0].contains("22:04:14 to 22:04:15: 1 starts a second, 1 start (1 ok)"), "{}", charts[0]);
    assert!(charts[1].contains("command 4, attempt 1: refused after 250 ms"), "{}", charts[1]);
}

#[test]
fn a_command_of_several_units_counts_as_its_units() {
    let of_ten = |seq: u64, number: u64, verdict: &str| {
        let units = (0..10).map(|unit| format!("\"{seq}{unit}\"")).collect::<Vec<_>>().join(",");
        let line = attempt("a", seq, START, verdict, "").replace("\"try\":1", &format!("\"try\":{number}"));
        line.replace(&format!("\"unit\":\"unit-{seq}\""), &format!("\"units\":[{units}]"))
    };
    let log = run_line("a", START) + &of_ten(1, 1, "again") + &of_ten(1, 2, "ok") + &of_ten(2, 1, "failed");
    let page = page_of(&log);
    assert_eq!(["units", "ok", "failed", "attempts"].map(|name| tile(&page, name)), ["20", "10", "10", "3"]);
    assert!(page.contains("20 units, "), "{page}");
}

#[test]
fn an_empty_log_is_a_page_and_lines_of_others_are_counted() {
    let empty = page_of("");
    assert!(empty.contains("there is nothing to draw") && charts(&empty).is_empty());
    let begun = page_of(&run_line("a", START));
    assert!(begun.contains("0 units, 2026-11-26 22:04</h1>") && begun.contains("there is nothing to draw"));
    let log = attempt("a", 1, START, "ok", "");
    let others: &[u8] = b"a line\n\n{\"seq\":1}\n[1]\n\xff\n{\"run\":7}\nnull\n";
    let page = page(&[("one", log.as_bytes()), ("two", others), ("three", b"x\n")]);
    assert!(page.contains("<p>7 lines are not lines of a log; the first is line 1 of two.</p>"), "{page}");
    let mut plot = Plot::default();
    plot.read("two", others).unwrap();
    assert!(plot.is_of_others());
}

#[test]
fn a_last_line_without_its_end_counts_if_it_is_whole() {
    let whole = attempt("a", 1, START, "ok", "") + attempt("a", 2, START, "ok", "").trim_end();
    assert_eq!(tile(&page_of(&whole), "attempts"), "2");
    assert!(!page_of(&whole).contains("has no end"));
    let cut = page_of(&whole[..whole.len() - 9]);
    assert!(cut.contains("The last line of log is incomplete and is ignored."));
    assert_eq!(tile(&cut, "attempts"), "1");
}

#[test]
fn a_gap_between_runs_is_a_gap_and_no_time_that_passed() {
    let mut log = String::new();
    for (run, start) in [("a", START), ("b", START + 80_000.0)] {
        log += &run_line(run, start);
        for seq in 1..=10_u32 {
            log += &attempt(run, seq.into(), start + f64::from(seq), "ok", ",\"pace\":7.0");
        }
    }
    let page = page_of(&log);
    let charts = charts(&page);
    assert_eq!(tile(&page, "elapsed"), "20.5 s");
    for chart in &charts {
        assert_eq!(marks(chart, "<rect class=\"gap\""), 1, "{chart}");
    }
    assert_eq!(marks(charts[0], "<polyline class=\"pace\""), 2, "no line across the gap");
    assert_eq!(marks(charts[1], "<polyline class=\"median\""), 2);
    assert_eq!(marks(charts[0], "<rect class=\"ok\""), 20, "each second is still seen");
}

#[test]
fn machines_that_run_at_once_are_told_apart_by_their_ids() {
    let log = |run: &str| -> String {
        let lines = (1..=5_u32).map(|seq| attempt(run, seq.into(), START + f64::from(seq) / 100.0, "ok", ""));
        run_line(run, START) + &lines.collect::<String>()
    };
    let (one, two) = (log("a"), log("b"));
    let page = page(&[("one", one.as_bytes()), ("two", two.as_bytes())]);
    assert_eq!((tile(&page, "units"), page.matches("· run ").count()), ("10".to_owned(), 2));
    assert!(page.contains("at most 10 commands"), "{page}");
}

#[test]
fn a_clock_that_steps_back_or_begins_in_1970_is_said_and_drawn() {
    let line = |seq: u64, start: f64| attempt("a", seq, start, "ok", "");
    let back = page_of(&(line(1, START) + &line(2, START - 60.0) + &line(3, START - 59.0)));
    assert!(back.contains("The clock was set back 1 time"), "{back}");
    let early = page_of(&(line(1, 5.0) + &line(2, 6.0) + &line(3, START) + &line(4, START + 9.0)));
    assert_eq!(tile(&early, "elapsed"), "10.5 s");
    assert_eq!(marks(charts(&early)[0], "<rect class=\"gap\""), 1);
    let extremes = page_of(&(line(1, 0.0) + &line(2, 9.9e10) + &line(u64::MAX, 5e10)));
    assert_eq!(tile(&extremes, "units"), "3");
}

/// Fields with any values: a line is counted or not, and nothing fails.
#[test]
fn values_beyond_all_bounds_break_nothing() {
    let values = [
        "0",
        "-1",
        "1e999",
        "1e300",
        "-0.0",
        "1e-300",
        "18446744073709551615",
        "-9223372036854775808",
        "null",
        "\"\"",
        "[]",
        "{}",
        "true",
    ];
    let fields = [
        "seq", "try", "start", "ran", "exit", "signal", "http", "pace", "until", "unit", "key", "error", "run",
        "verdict",
    ];
    let mut log = String::new();
    for field in fields {
        for value in values {
            let line = attempt(
                "a",
                1,
                START,
                "later",
                ",\"http\":429,\"key\":\"k\",\"pace\":1.0,\"until\":1795727060.0,\"signal\":null,\"error\":null",
            );
            let mut line: serde_json::Value = serde_json::from_str(&line).unwrap();
            line[field] = serde_json::from_str(value).unwrap_or(serde_json::Value::Null);
            writeln!(log, "{line}").unwrap();
            writeln!(log, "{}", line.to_string().replace("\"later\"", "\"failed\"")).unwrap();
        }
    }
    for value in values {
        writeln!(log, "{{\"run\":{{\"id\":\"b\",\"start\":{value},\"jobs\":{value},\"utc_offset\":{value},\"limits\":[{value}]}}}}").unwrap();
    }
    assert_eq!(charts(&page_of(&log)).len(), 3);
}

proptest::proptest! {
    #[test]
    fn any_values_are_a_page_without_their_markup(
        changes in proptest::collection::vec(
            (0_usize..11, "-?[0-9]{1,12}(\\.5|e-?[0-9])?|null|\"(later|failed|<script>|</svg>|\\PC)\""), 0..6,
        ),
    ) {
        let fields = ["seq", "unit", "try", "start", "ran", "verdict", "run", "key", "until", "pace", "http"];
        let mut values = ["1", "\"a\"", "1", "1795727053", "0.25", "\"failed\"", "\"a\"", "null", "null", "null", "null"].map(str::to_owned);
        let mut log = String::new();
        for (place, value) in changes {
            let fields = fields.iter().zip(&values).map(|(field, value)| format!("\"{field}\":{value}"));
            writeln!(log, "{{{}}}", fields.collect::<Vec<_>>().join(",")).unwrap();
            values[place] = value;
        }
        crate::fuzzing::log_record(log.as_bytes());
    }
}

#[test]
fn text_of_units_keys_and_messages_is_no_markup() {
    let evil = "<script>alert(1)</script>\\u0000\\u001b[1m\\u202e'\\\"&{{title}}]]>--></svg>";
    let more = format!(",\"key\":\"{evil}\",\"error\":\"{evil}\"");
    let line = attempt("a", 1, START, "failed", &more).replace("unit-1", evil);
    let huge = attempt("a", 2, START, "failed", "").replace("unit-2", &"<b>".repeat(1 << 19));
    let base64 = attempt("a", 3, START, "failed", "").replace("\"unit\":\"unit-3\"", "\"unit_base64\":\"//4=\"");
    let run = run_line("a", START).replace("throttle -r 60/s ./call", evil).replace("60/s,burst=5", evil);
    let log = run + &line + &huge + &base64;
    let page = page(&[("<script>.jsonl", log.as_bytes()), ("<i>", b"x")]);
    assert!(!page.contains("<script") && !page.contains("<b>") && !page.contains("<i>") && !page.contains('\0'));
    assert_eq!(page.matches("</svg>").count(), 3 * 2 + 1, "two of each chart, and the chart of the key");
    assert!(page.contains("&lt;script&gt;alert(1)") && page.contains("\\u{1b}[1m\\u{202e}") && page.contains("//4="));
    assert!(page.len() < 100_000, "{}: long units are cut", page.len());
}

#[test]
fn pauses_are_shaded_but_not_those_of_one_key() {
    let until = |seq: u32| format!(",\"until\":{}", START + f64::from(seq) + 0.5);
    let line = |seq: u32, more: &str| attempt("a", seq.into(), START + f64::from(seq), "later", more);
    let log: String = (0..20).map(|seq| line(seq, &until(seq))).collect();
    // The last chunk begins with the end of the run.
    assert_eq!(marks(charts(&page_of(&log))[0], "<rect class=\"pause\""), 19);
    let log: String = (0..500).map(|seq| line(seq, &until(seq))).collect();
    let page = page_of(&log);
    assert!(page.contains("23:05:10 to 23:05:15: paused for 1.25 s") && page.contains("pauses: how much of the time"));
    let log: String = (0..20).map(|seq| line(seq, &(until(seq) + ",\"key\":\"k\""))).collect();
    let page = page_of(&log);
    assert_eq!(marks(charts(&page)[0], "<rect class=\"pause\""), 0);
    assert!(page.contains("Busiest of 1 key") && page.contains("Most refused keys"));
}

#[test]
fn the_ten_busiest_and_the_ten_most_refused_keys_have_rows() {
    let mut log = String::new();
    for key in 1..=30_u32 {
        for seq in 0..key {
            let verdict = if seq < 31 - key { "later" } else { "ok" };
            log += &attempt(
                "a",
                u64::from(key * 100 + seq),
                START + f64::from(seq),
                verdict,
                &format!(",\"key\":\"k{key}\""),
            );
        }
    }
    let page = page_of(&log);
    let rows = |title: &str| -> Vec<String> {
        let (_, table) = page.split_once(title).unwrap();
        let table = table.split("</table>").next().unwrap();
        table.split("<tr><td>").skip(1).map(|row| row.split('<').next().unwrap().to_owned()).collect()
    };
    let names = |keys: &mut dyn Iterator<Item = u32>| keys.map(|key| format!("k{key}")).collect::<Vec<_>>();
    assert_eq!(rows("Busiest of 30 keys"), names(&mut (21..=30).rev()));
    // The key with the number n is refused min(n, 31 - n) times.
    assert_eq!(rows("Most refused keys"), names(&mut [15, 16, 14, 17, 13, 18, 12, 19, 11, 20].into_iter()));
}

#[test]
fn the_first_200_failures_are_named_and_what_a_later_run_mends() {
    let mut log = String::new();
    for seq in 1..=250 {
        log += &attempt("a", seq, START, "failed", ",\"http\":404");
    }
    log += &attempt("b", 7, START + 10.0, "ok", "");
    let page = page_of(&log);
    assert!(page.contains("250 failed units") && page.contains("These are the first 200; 50 units more failed."));
    assert_eq!(page.matches("<tr><td>unit-").count(), 200);
    assert_eq!(page.matches("; ok in a later run").count(), 1);
    assert!(page.contains("<tr><td>unit-7</td><td class=\"why\">exit 1; ok in a later run</td>"));
}

/// Each span keeps its longest attempt, and each span with a refusal remains, however many attempts there are.
#[test]
fn thinned_points_keep_peaks_and_refusals() {
    let mut log = String::new();
    for seq in 0..40_000_u32 {
        let verdict = if seq % 997 == 0 { "later" } else { "ok" };
        let line = attempt("a", seq.into(), START + f64::from(seq) / 400.0, verdict, "");
        log += &if seq % 3001 == 7 { line.replace("0.25", "9.75") } else { line };
    }
    let page = page_of(&log);
    let charts = charts(&page);
    let drawn = marks(charts[1], "<circle");
    assert!((100..1500).contains(&drawn), "{drawn} of 40 000");
    assert_eq!(marks(charts[1], "ok after 9.75 s</title>"), 14, "each peak");
    assert_eq!(marks(charts[1], ": refused after"), 41, "each refusal, of which there are less than one a span");
    assert!(page.contains("does not have a point for each of the 40\u{202f}000 attempts"), "{page}");
    assert!(
        charts[0].contains("; 400 starts a second") || charts[0].contains(": 400 starts a second"),
        "bars count all"
    );
}

/// The worst case for the size: attempts of all verdicts in all spans, with keys and failures.
#[test]
fn the_page_stays_below_2_mib() {
    let mut log = run_line("a", START);
    let escaped = "&".repeat(300);
    for seq in 0..30_000_u32 {
        let verdict = ["ok", "again", "later", "failed", "stopped"][seq as usize % 5];
        let more = format!(",\"http\":429,\"pace\":{},\"error\":\"{escaped}\"", 1 + seq % 7);
        log += &attempt("a", seq.into(), START + f64::from(seq), verdict, &more).replace("unit-", &escaped);
        log +=
            &attempt("a", seq.into(), START + f64::from(seq), verdict, &format!(",\"key\":\"{}{escaped}\"", seq % 100));
    }
    let page = page_of(&log);
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
}
