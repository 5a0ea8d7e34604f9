//! The part of the status line about the slots, the limits and a pause.

use crate::program::time_of_day::until_text;
use crate::program::unit_name::counted;
use throttle::flow::meter::Reading;
use throttle_limits::clock::{self, Nanos};

/// `; 5 of 16 slots busy, 12 units read ahead; 5/s: 0 left, next in 180 ms`, or `paused until 14:05 (3m 20s)` at the
/// end. `paused` is the end of the pause, before which nothing starts.
pub(super) fn text(
    reading: &Reading,
    now: Nanos,
    slots: Option<String>,
    limits: &[(&String, i128)],
    paused: Option<Nanos>,
) -> String {
    let ahead = (reading.units_ahead > 0).then(|| format!("{} read ahead", counted(reading.units_ahead, "unit")));
    let mut state = Vec::new();
    state.extend(limits.iter().map(|(limit, units)| format!("{limit}: {} left", (*units).max(0))));
    let wait = |until: Nanos| until.saturating_sub(now);
    let next = match (paused.map(wait).filter(|wait| *wait > 0), reading.wait) {
        (Some(wait), _) => Some(format!("paused {} ({})", until_text(wait), clock::shown_wait(wait))),
        (None, Some(next)) => Some(format!("next in {}", clock::shown(wait(next.until)))),
        (None, None) => None,
    };
    let work: Vec<String> = slots.into_iter().chain(ahead).collect();
    state.extend(next);
    let mut text = String::new();
    for parts in [work, state].iter().filter(|parts| !parts.is_empty()) {
        text = format!("{text}; {}", parts.join(", "));
    }
    text
}

/// `, 31 keys wait`
pub(super) fn keys_waiting(reading: &Reading) -> String {
    match reading.keys_waiting {
        0 => String::new(),
        1 => ", 1 key waits".to_owned(),
        keys => format!(", {keys} keys wait"),
    }
}
