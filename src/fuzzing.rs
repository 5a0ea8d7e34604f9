//! Checks of what strangers send: each takes any bytes, and panics if the code that reads them is wrong. The property tests and
//! the targets in `fuzz/` call them.

use crate::flow::cost::Cost;
use crate::flow::selector::Selector;
use crate::launch::{DoneList, DoneUnits, Identity, Reply, steers_terminal};
use crate::plot::Plot;
use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::str::{FromStr, from_utf8};
use std::time::{Duration, UNIX_EPOCH};

/// A log for `--plot`: the page has no markup and no control characters of the log.
pub fn log_record(data: &[u8]) {
    let mut plot = Plot::default();
    plot.read("log", data).expect("bytes in memory can be read");
    let page = plot.page(|_| 3600);
    for wrong in ["<script", "\0", "\u{1b}", "\u{202e}"] {
        assert!(!page.contains(wrong), "{wrong:?} is on the page");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

/// The file of `THROTTLE_REPLY`: waits are bounded, and a bad field is reported in printable words.
pub fn reply_file(data: &[u8]) {
    for now in [0, 1_700_000_000, u32::MAX] {
        let reply = Reply::parse(data, 2, UNIX_EPOCH + Duration::from_secs(now.into()));
        for answer in reply.earlier.iter().chain([&reply.last]) {
            let waits = [answer.retry_after, answer.reset, answer.unpaired_reset].into_iter().flatten().flatten();
            assert!(waits.into_iter().all(|wait| wait.as_secs() <= u32::MAX.into()), "{reply:?}");
            assert!(answer.retry_after != Some(None) || reply.bad.is_some(), "{reply:?}");
        }
        assert!(!reply.bad.unwrap_or_default().contains(steers_terminal));
    }
}

/// A done list: it does not depend on how the file is cut into pieces, and after its torn end is cut off, it has all its records.
pub fn done_list(data: &[u8]) {
    for delimiter in [b'\n', 0] {
        let read = |data: &[u8], size| {
            let mut list = DoneList::default();
            data.chunks(size).for_each(|piece| list.add(piece, delimiter));
            list.finish(delimiter)
        };
        let found = read(data, usize::MAX);
        for size in [1, 2, 7] {
            assert_eq!(read(data, size), found, "in pieces of {size}");
        }
        let Ok(DoneUnits { units, whole, .. }) = found else { continue };
        let data = &data[..usize::try_from(whole).expect("a length in memory")];
        let again = read(data, usize::MAX).expect("its damaged end was cut off");
        assert_eq!((again.whole, again.torn, &again.units), (whole, None, &units));
        let mut records: Vec<&[u8]> = data.split(|byte| *byte == delimiter).collect();
        assert_eq!(records.pop(), Some(&b""[..]), "each record has its end");
        let records: BTreeSet<Identity> = records.into_iter().map(Identity::of).collect();
        assert!(records.iter().eq(&units));
    }
}

/// A line with a selector or a cost, and a unit: a selector prints as it parses, and a mistake is explained in one line.
pub fn selector(data: &[u8]) {
    let (text, unit) = data.split_at(memchr::memchr(b'\n', data).unwrap_or(data.len()));
    let Ok(text) = from_utf8(text) else { return };
    let _ = parsed::<Selector>(text).map(|selector| selector.key(unit).is_some());
    let _ = parsed::<Cost>(text).map(|cost| cost.of(unit));
}

fn parsed<T: FromStr<Err: Display + Debug + PartialEq> + Display + Debug + PartialEq>(text: &str) -> Option<T> {
    let parsed = text.parse::<T>();
    match &parsed {
        Ok(value) => assert_eq!(value.to_string().parse::<T>().as_ref(), Ok(value)),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
    parsed.ok()
}

const POINTERS: [&str; 6] = ["/id", "/id/id", "/0", "/id/0/id", "/", "/id~1a/~0"];

/// A unit: any selector finds a key in it or none, and JSON Pointers find the values that the crate `serde_json` finds.
pub fn json_unit(data: &[u8]) {
    thread_local! {
        static SELECTORS: Vec<Selector> = ["host", "f1", "f3", "f2:,", "f2:\\t", "re:(a+)|[0-9]+", "re:(?s)^.*$"].map(known).into();
        static COSTS: Vec<Cost> = ["7", "bytes/7+3", "f1", "f2:,", "/id"].map(known).into();
        static IN_JSON: Vec<Selector> = POINTERS.map(known).into();
    }
    SELECTORS.with(|all| all.iter().for_each(|selector| drop(selector.key(data))));
    let costs = COSTS.with(|all| all.iter().map(|cost| cost.of(data)).collect::<Vec<_>>());
    assert_eq!(costs[..2], [Some(7), Some((data.len() as u64).div_ceil(7) + 3)]);
    let keys = IN_JSON.with(|all| all.iter().map(|selector| selector.key(data)).collect::<Vec<_>>());
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(data) else { return };
    for (pointer, key) in POINTERS.iter().zip(keys) {
        match json.pointer(pointer) {
            Some(serde_json::Value::String(text)) => assert_eq!(key.as_deref(), Some(text.as_bytes()), "{pointer}"),
            Some(value @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_))) => {
                let key = key.and_then(|key| serde_json::from_slice(&key).ok());
                assert_eq!(key.as_ref(), Some(value), "{pointer}");
            }
            _ => assert_eq!(key, None, "{pointer}"),
        }
    }
}

fn known<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect(text)
}
