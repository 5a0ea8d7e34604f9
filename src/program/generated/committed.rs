//! Files that are generated and committed.

use std::fs;
use std::path::Path;

const REGENERATE: &str = "THROTTLE_REGENERATE";

/// Whether the file says what it should; or it is written, if that is asked for.
#[track_caller]
pub(super) fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os(REGENERATE).is_some() {
        return fs::write(&path, expected).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == expected,
        "{} is not what the flags say; run: {REGENERATE}=1 cargo test generated",
        path.display()
    );
}
