//! Files that are generated and committed.

use std::fs;
use std::path::Path;

const REGENERATE: &str = "THROTTLE_REGENERATE";

/// Checks that the file has the expected text. Writes the file instead if `THROTTLE_REGENERATE` is set.
#[track_caller]
pub(super) fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os(REGENERATE).is_some() {
        return fs::write(&path, expected).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == expected,
        "{} does not agree with the flags; run: {REGENERATE}=1 cargo test generated",
        path.display()
    );
}
