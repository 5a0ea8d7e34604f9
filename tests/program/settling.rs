//! `throttle-cost:` in a reply settles what a command was charged.

use crate::common::{feed, text, throttle};
use std::process::Output;
use std::time::{Duration, Instant};

/// Commands that tell this cost, one at a time, after other options.
fn told(cost: u32, units: usize, options: &[&str]) -> (Output, Duration) {
    let script = format!("echo throttle-cost: {cost} >> $THROTTLE_REPLY; : $1");
    let begun = Instant::now();
    let args = [options, &["-j", "1", "-c", &script]].concat();
    (feed(throttle(&args), "x\n".repeat(units).as_bytes()), begun.elapsed())
}

/// Charged alone they would take hours.
#[test]
fn commands_that_cost_less_than_charged_do_not_hold_up_those_behind() {
    let (output, elapsed) = told(1, 20, &["-r", "100/h,burst=100,cost=80"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
}

/// What comes in while they run is as much as they were charged, and they were not the only ones. With what only that
/// leaves of their credit, this would take 27 s.
#[test]
fn commands_of_a_key_that_run_at_once_give_back_all_that_they_did_not_use() {
    let script = "sleep 0.3; echo throttle-cost: 1 >> $THROTTLE_REPLY; : $1";
    let limits = ["-r", "1000/s,burst=6000,per=f1,cost=300", "-r", "1000/s,burst=6000,cost=300"];
    let begun = Instant::now();
    let output = feed(throttle(&[&limits[..], &["-j", "20", "-c", script]].concat()), "x\n".repeat(110).as_bytes());
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(begun.elapsed() < Duration::from_secs(18), "{:?}", begun.elapsed());
}

#[test]
fn a_bucket_gives_back_what_a_command_did_not_use() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    let (output, elapsed) = told(1, 20, &["--bucket", bucket.to_str().unwrap(), "-r", "100/h,burst=100,cost=80"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
}

#[test]
fn what_commands_cost_more_than_charged_is_owed_by_those_behind() {
    let (output, elapsed) = told(300, 3, &["-r", "1000/s,burst=100,cost=10"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(elapsed >= Duration::from_millis(500), "{elapsed:?}");
}

/// Requests are not tokens: only limits with a cost are settled.
#[test]
fn limits_without_a_cost_are_not_settled() {
    let (output, elapsed) = told(0, 3, &["-r", "4/s,burst=1", "-r", "100/h,burst=100,cost=80"]);
    assert_eq!(output.status.code(), Some(0));
    assert!((Duration::from_millis(500)..Duration::from_secs(60)).contains(&elapsed), "{elapsed:?}");
}

#[test]
fn costs_far_from_what_was_charged_are_worth_a_hint() {
    for (cost, charged, hint) in [
        (5, "50", "throttle: hint: commands cost 5 on average, charged 50; cost=5 lets more of them run at once\n"),
        (50, "5", "throttle: hint: commands cost 50 on average, charged 5; cost=50 keeps them within the limit\n"),
    ] {
        let limit = |cost: &str| format!("100000/s,burst=1000,cost={cost}");
        let (output, _) = told(cost, 12, &["--summary", "-r", &limit(charged)]);
        assert!(text(&output.stderr).starts_with(hint), "{}", text(&output.stderr));
        let (output, _) = told(cost, 12, &["--summary", "-r", &limit(&cost.to_string())]);
        assert!(!text(&output.stderr).contains("hint"), "what it shows parses, and settles it");
    }
}
