//! Random real runs, compared with a model in exact fractions that was written from the manual: see `benches/judge.py`.

use crate::support::{THROTTLE, found};
use std::process::{Command, Stdio};

/// A few short cases. Deviations that a delay of this machine may explain are ignored; a longer run of the script checks them.
#[test]
#[ignore = "slow: 8 s"]
fn random_runs_agree_with_a_model_in_exact_fractions() {
    if found("python3").is_none() || found("cc").is_none() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/judge.py");
    let mut python = Command::new("python3");
    python.args([script, THROTTLE, "--loaded", "--cases", "12"]).stdin(Stdio::null());
    let output = python.output().unwrap();
    let [out, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    // The first line names the seed.
    assert!(output.status.success(), "{out}{errors}");
}
