//! What a run of commands reports at its end: how long commands ran, and a rate that it did not reach.

use crate::support::{Ended, run};

/// The JSON of `--summary=json`.
fn json(ended: &Ended) -> serde_json::Value {
    let line = ended.err.lines().find(|line| line.starts_with('{')).expect(&ended.err);
    serde_json::from_str(line).unwrap()
}

#[test]
fn the_summary_ends_with_how_long_commands_ran() {
    let times = "0.05\n0.05\n0.05\n0.4\n";
    let ended = run(["-r", "unlimited", "--summary", "sleep"], times);
    let last = ended.err.lines().last().unwrap();
    assert!(last.starts_with("  took ") && last.contains(" (half), ") && last.ends_with(" at most"), "{}", ended.err);
    let ended = run(["-r", "unlimited", "--summary", "sleep"], "0\n");
    let last = ended.err.lines().last().unwrap();
    assert!(last.starts_with("  took ") && !last.contains(','), "{}", ended.err);
}

#[test]
fn the_summary_as_json_has_the_times_of_commands() {
    let ended = run(["-r", "unlimited", "--summary=json", "sleep"], "0.05\n0.05\n0.05\n0.4\n");
    let ran = &json(&ended)["ran_ns"];
    let [half, most, longest] = ["p50", "p90", "max"].map(|name| ran[name].as_u64().unwrap());
    assert!(half >= 49_000_000 && most >= 396_000_000 && longest >= most, "{ran}");
    let none = json(&run(["-r", "unlimited", "--summary=json", "true"], ""));
    assert!(none["ran_ns"]["max"].is_null(), "{none}");
    let pipe = json(&run(["-r", "1k/s", "--summary=json"], "a\n"));
    assert!(pipe.get("ran_ns").is_none(), "{pipe}");
}

#[test]
#[ignore = "slow: 4 s"]
fn a_rate_that_is_not_reached_is_reported_at_the_end() {
    let units = "0.5\n".repeat(8);
    let ended = run(["-r", "100/s", "-j", "2", "--summary", "sleep"], &units);
    let words = " starts a second, although 100 are allowed: 2 jobs were busy all the time; -j ";
    let lines: Vec<&str> = ended.err.lines().filter(|line| line.contains(words)).collect();
    let [closing, summary] = lines[..] else { panic!("{}", ended.err) };
    assert!(
        closing.starts_with("throttle: 8 ok, 0 failed; ") && closing.ends_with(" would reach the rate"),
        "{closing}"
    );
    assert!(summary.starts_with("  "), "{summary}");
    let ended = run(["-r", "100/s", "-j", "2", "--summary=json", "sleep"], &units);
    assert!(json(&ended)["commands"]["jobs_needed"].as_u64().unwrap() > 40, "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "a run that prints no last line prints none for that");
}

#[test]
#[ignore = "slow: 4 s"]
fn a_rate_that_is_reached_is_not_reported_at_the_end() {
    for options in [["-r", "unlimited", "-j", "1"], ["-r", "2/s", "-j", "4"], ["-r", "100/s", "-j", "0"]] {
        let ended = run([&options[..], &["--summary", "sleep"]].concat(), "0.6\n0.6\n0.6\n");
        assert!(!ended.err.contains("allowed"), "{options:?}: {}", ended.err);
    }
}
