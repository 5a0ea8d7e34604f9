//! Real runs beside a model of the rules in exact fractions, which was written from the manual: see `benches/judge.py`.

use crate::support::found;
use std::process::{Command, Stdio};

/// A few short cases. What a delay of this machine may excuse is not judged: that is for a longer run of the script.
#[test]
fn random_runs_agree_with_a_model_in_exact_fractions() {
    if found("python3").is_none() || found("cc").is_none() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/judge.py");
    let mut python = Command::new("python3");
    python.args([script, env!("CARGO_BIN_EXE_throttle"), "--loaded", "--cases", "12"]).stdin(Stdio::null());
    let output = python.output().unwrap();
    let [out, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    // The first line names the seed.
    assert!(output.status.success(), "{out}{errors}");
}
