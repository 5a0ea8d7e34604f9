//! The targets in `fuzz/`: each has seeds, and reads them without a fault.

use std::fs;
use std::path::{Path, PathBuf};

/// A check of any bytes.
type Check = fn(&[u8]);

const TARGETS: [(&str, Check); 8] = [
    ("bucket_file", throttle_limits::fuzzing::bucket_file),
    ("done_list", throttle::fuzzing::done_list),
    ("json_unit", throttle::fuzzing::json_unit),
    ("limit_text", throttle_limits::fuzzing::limit_text),
    ("log_record", throttle::fuzzing::log_record),
    ("redis_answer", throttle_limits::fuzzing::redis_answer),
    ("reply_file", throttle::fuzzing::reply_file),
    ("selector", throttle::fuzzing::selector),
];

/// The files in a folder of the repository, by name. A package of the program has no such folders: `None`.
fn files(folder: &str) -> Option<Vec<PathBuf>> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).ok()?;
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    Some(files)
}

#[test]
fn each_fuzz_target_accepts_its_seeds() {
    let Some(targets) = files("fuzz/fuzz_targets") else { return };
    let names: Vec<_> = targets.iter().map(|file| file.file_stem().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, TARGETS.map(|(name, _)| name));
    for (name, check) in TARGETS {
        let seeds = files(&format!("fuzz/corpus/{name}")).unwrap();
        assert!(seeds.len() > 5, "{name} has {} seeds", seeds.len());
        for seed in seeds {
            println!("{}", seed.display());
            check(&fs::read(seed).unwrap());
        }
    }
}
