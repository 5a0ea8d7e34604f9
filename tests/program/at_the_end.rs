//! What a run of commands reports at its end: how long commands ran, and a rate that it did not reach.

use crate::launching::{Ended, run};

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
