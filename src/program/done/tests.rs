use super::*;
use std::fs;
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

fn fresh() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("done");
    (folder, path)
}

/// Opens a file that holds `before`. Returns the result, and the content of the file after that.
fn opened(before: &[u8], delimiter: u8) -> (Result<Option<Torn>, String>, Vec<u8>) {
    let (_folder, path) = fresh();
    fs::write(&path, before).unwrap();
    let found = match Done::open(&path, delimiter, HOUR) {
        Ok((done, found)) => done.finish().map(|()| found).map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    (found, fs::read(&path).unwrap())
}

fn units<'a>(units: &'a [&[u8]]) -> impl Iterator<Item = &'a [u8]> {
    units.iter().copied()
}

#[test]
fn units_of_any_bytes_are_known_when_done_or_taken() {
    let (_folder, path) = fresh();
    let long = b"x".repeat(3 * BUFFER_BYTES + 1);
    let added: [&[u8]; 6] = [b"a", b"a\r", b" a", b"\xff\0\xfe", b"", &long];
    let (done, torn) = Done::open(&path, b'\n', HOUR).unwrap();
    assert_eq!((done.taken().count(), torn), (0, None), "a missing file is made");
    done.add(units(&added[..2])).unwrap();
    done.add(units(&added[1..])).unwrap();
    let is_known = |done: &Done| {
        let others: [&[u8]; 4] = [b"A", b"a ", b"\xff", &long[1..]];
        let taken = done.taken();
        let is_new = |unit: &&[u8]| taken.take(unit).is_none() && taken.take(unit) == Some(Before::Taken);
        added.iter().all(|unit| taken.take(unit) == Some(Before::Done)) && others.iter().all(is_new)
    };
    done.finish().unwrap();
    drop(done);
    let expected = [&b"a\na\r\na\r\n a\n\xff\0\xfe\n\n"[..], &long, b"\n"].concat();
    assert!(fs::read(&path).unwrap() == expected, "each with the delimiter, and nothing else");
    let (done, torn) = Done::open(&path, b'\n', HOUR).unwrap();
    assert_eq!((done.taken().count(), torn), (6, None), "different ones");
    assert!(is_known(&done));
    done.finish().unwrap();
}

#[test]
fn a_torn_last_record_is_cut_off_and_reported() {
    let long = "y".repeat(2 * BUFFER_BYTES);
    for (delimiter, before, bytes) in
        [(b'\n', "a\nb\nc", 1), (0, "a\0{\n}\n", 4), (b',', "a,b\nc", 3), (b'\n', &long, 0)]
    {
        let before = if bytes == 0 { format!("a\nb\n{before}") } else { before.to_owned() };
        let torn = if bytes == 0 { long.len() } else { bytes };
        let (found, after) = opened(before.as_bytes(), delimiter);
        assert_eq!(found.unwrap(), Some(Torn { bytes: torn as u64, nuls: 0 }), "{before:.9}");
        assert_eq!(after, before.as_bytes()[..before.len() - torn]);
    }
}

#[test]
fn many_threads_add_whole_records() {
    let (_folder, path) = fresh();
    let (done, _) = Done::open(&path, 0, Duration::from_millis(1)).unwrap();
    thread::scope(|scope| {
        for thread in 0..8 {
            let done = &done;
            scope.spawn(move || {
                for number in 0..200 {
                    let pair = [format!("{thread} {number}"), "z".repeat(number)];
                    done.add(pair.iter().map(String::as_bytes)).unwrap();
                }
            });
        }
    });
    done.finish().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let mut records: Vec<&str> = text.split_terminator('\0').collect();
    let pairs: Vec<_> = records.chunks(2).filter(|pair| pair[0].ends_with(&format!(" {}", pair[1].len()))).collect();
    assert_eq!(pairs.len(), 1600, "the units of a command stay together");
    records.sort_unstable();
    records.dedup();
    assert_eq!(records.len(), 1600 + 200);
}

fn wait_until_synced(done: &Done) {
    let begun = Instant::now();
    while lock(&done.state).is_unsynced {
        assert!(begun.elapsed() < HOUR, "never synced");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn records_are_synced_once_in_each_second_and_at_the_end() {
    let (_folder, path) = fresh();
    let (done, _) = Done::open(&path, b'\n', Duration::from_millis(1)).unwrap();
    for _ in 0..3 {
        done.add(units(&[b"a"])).unwrap();
        wait_until_synced(&done);
    }
    done.finish().unwrap();
    drop(done);
    let (done, _) = Done::open(&path, b'\n', HOUR).unwrap();
    done.add(units(&[b"b"])).unwrap();
    wait_until_synced(&done);
    done.add(units(&[b"c"])).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert!(lock(&done.state).is_unsynced, "the second is not over");
    done.finish().unwrap();
    assert!(!lock(&done.state).is_unsynced && fs::read(&path).unwrap() == b"a\na\na\nb\nc\n");
}

fn records_in(path: &str) -> Done {
    let file = File::options().append(true).open(path).unwrap();
    Done::new(file, path.as_ref(), b'\n', Arc::default())
}

#[test]
fn after_an_error_nothing_is_written_and_each_call_fails() {
    let full = records_in("/dev/full");
    for _ in 0..2 {
        assert_eq!(full.append(b"a\n").unwrap_err().kind(), ErrorKind::StorageFull);
    }
    // A device without storage cannot be synced.
    let null = records_in("/dev/null");
    null.append(b"a\n").unwrap();
    null.sync_if_needed();
    assert_eq!(null.append(b"b\n").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!lock(&null.state).is_unsynced, "it was not written");
}

/// Runs this test again in a process with a limit on the size of files. That works like a full disk: bytes that fit are
/// written.
#[test]
fn a_record_that_does_not_fit_on_the_disk_leaves_no_part_of_it() {
    const NAME: &str = "program::done::tests::a_record_that_does_not_fit_on_the_disk_leaves_no_part_of_it";
    let Some(path) = std::env::var_os("THROTTLE_TEST_SMALL_FILES") else {
        let (_folder, path) = fresh();
        let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact \"$1\"";
        let mut limited = Command::new("sh");
        limited.args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(NAME);
        let ran = limited.env("THROTTLE_TEST_SMALL_FILES", &path).output().unwrap();
        assert!(ran.status.success() && String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "{ran:?}");
        assert_eq!(fs::read(&path).unwrap(), [b'x'; 1000].repeat(3).iter().chain(b"\n").copied().collect::<Vec<_>>());
        return;
    };
    let (done, _) = Done::open(Path::new(&path), b'\n', HOUR).unwrap();
    done.add(units(&[&[b'x'; 3000]])).unwrap();
    for size in [6000, 1] {
        assert_eq!(done.add(units(&[&vec![b'y'; size]])).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
    assert!(done.finish().is_err());
}
