//! Runs whose starts are limited by something else than the pace, and servers that close for a while.
//! `cargo test --release --lib all_starts -- --ignored --nocapture` prints a table.

use super::*;

/// A server of 20 calls a second with a burst of 5, whose refusals take as long as its answers.
const BASE: Row = Row { kind: Kind::Bucket(5), takes: SECOND, is_refused_late: true, tenths: 100, units: 300, ..USUAL };

/// Six busy loops beside a run: some 50 commands start in a second, and the answers take a second.
const BUSY: Row = Row { starts: Starts::Machine(50), ..BASE };

/// A server of 190 ms between two calls; the requested rate is 20/s.
const APART: Row =
    Row { kind: Kind::Apart(2 * SECOND), rate: 5_263, tenths: 38, units: 60, takes: 20 * MILLISECOND, ..USUAL };

fn rows_of_starts() -> Vec<(&'static str, Row)> {
    let quick = 20 * MILLISECOND;
    let slots = |slots, millis| Row { starts: Starts::Slots(slots), takes: millis * MILLISECOND, ..BASE };
    let falls = Fate::Steps(&[(10, 5_000)]);
    let rises = Fate::Steps(&[(10, 80_000)]);
    vec![
        ("machine 50/s, answers 1 s, -r 200/s", BUSY),
        ("machine 50/s, answers 1 s, -r 200/s, refusals at once", Row { is_refused_late: false, ..BUSY }),
        ("machine 50/s, answers 20 ms, -r 200/s", Row { takes: quick, ..BUSY }),
        ("machine 50/s, answers 1 s, unlimited", Row { tenths: 10_000, ..BUSY }),
        ("machine 30/s, answers 1 s, -r 200/s", Row { starts: Starts::Machine(30), ..BUSY }),
        ("machine 100/s, answers 1 s, -r 200/s", Row { starts: Starts::Machine(100), ..BUSY }),
        ("machine 50/s, log of 1 s, -r 200/s", Row { kind: Kind::Log(SECOND), ..BUSY }),
        ("machine 50/s, window of 1 s, -r 200/s", Row { kind: Kind::Fixed(SECOND), ..BUSY }),
        ("machine 50/s, falls to 5/s", Row { fate: falls, ..BUSY }),
        ("machine 50/s, rises to 80/s", Row { fate: rises, units: 600, ..BUSY }),
        ("8 slots of 0.25 s, -r 1000/s", Row { tenths: 500, ..slots(8, 250) }),
        ("8 slots of 0.25 s, unlimited", Row { tenths: 10_000, ..slots(8, 250) }),
        ("16 slots of 0.5 s, -r 1000/s", Row { tenths: 500, ..slots(16, 500) }),
        ("16 slots of 0.5 s, unlimited", Row { tenths: 10_000, ..slots(16, 500) }),
        (
            "16 slots of 0.5 s, unlimited, refusals at once",
            Row { tenths: 10_000, is_refused_late: false, ..slots(16, 500) },
        ),
        ("answers 1 s, -r 40/s", Row { tenths: 20, ..BASE }),
        ("answers 1 s, -r 200/s", BASE),
        ("answers 20 ms, -r 200/s", Row { takes: quick, ..BASE }),
        ("apart 190 ms, ban 2 s, -r 20/s", APART),
        ("apart 190 ms, ban 2 s, -r 20/s, 300 units", Row { units: 300, ..APART }),
        ("apart 190 ms, ban 2 s, -r 10/s", Row { tenths: 19, ..APART }),
        ("apart 190 ms, ban 2 s, -r 6/s", Row { tenths: 11, ..APART }),
        ("apart 190 ms, ban 10 s, -r 20/s", Row { kind: Kind::Apart(10 * SECOND), ..APART }),
        ("apart 190 ms, ban 2 s, answers 0.5 s, -r 20/s", Row { takes: SECOND / 2, is_refused_late: true, ..APART }),
        ("apart 1 s, ban 10 s, -r 20/s", Row { kind: Kind::Apart(10 * SECOND), rate: 1_000, tenths: 200, ..APART }),
    ]
}

#[test]
#[ignore = "by hand: prints a table"]
fn by_hand_all_starts() {
    println!("| server | processes | time: median; 90 %; worst | refused calls |");
    for (name, row) in rows_of_starts() {
        for processes in [1, 4] {
            let came: Vec<_> = (0..41).map(|seed| Run::new(Row { processes, ..row }, seed).run()).collect();
            let refused = parts(&came, |came| came.refused).map(|refused| refused * row.units as f64);
            println!("| {name} | {processes} | {:.2?} | {refused:.0?} |", parts(&came, |came| came.took));
        }
    }
}

/// Six busy loops beside the run: the pace never limited the starts, so a cut from the pace changed nothing. The median was
/// 131 refused calls, and nine of ten runs had at most 315.
#[test]
fn a_cut_begins_where_a_slow_machine_limits_starts() {
    let came: Vec<Came> = (0..11).map(|seed| Run::new(BUSY, seed).run()).collect();
    let (took, refused) = (parts(&came, |came| came.took)[0], parts(&came, |came| came.refused)[0]);
    assert!(took < 1.25 && refused * 300.0 < 100.0, "{came:?}");
}

/// The median was 107 refused calls.
#[test]
fn a_cut_begins_where_few_slots_limit_starts() {
    let row = Row { tenths: 500, starts: Starts::Slots(16), takes: SECOND / 2, ..BASE };
    let came: Vec<Came> = (0..11).map(|seed| Run::new(row, seed).run()).collect();
    let (took, refused) = (parts(&came, |came| came.took)[0], parts(&came, |came| came.refused)[0]);
    assert!(took < 1.2 && refused * 300.0 < 60.0, "{came:?}");
}

/// A single success made each ban begin with the shortest pauses, which prolonged it. The median was 95 refused calls.
#[test]
fn pauses_of_a_further_ban_begin_at_half_of_the_needed() {
    let came: Vec<Came> = (0..11).map(|seed| Run::new(APART, seed).run()).collect();
    let (took, refused) = (parts(&came, |came| came.took)[0], parts(&came, |came| came.refused)[0]);
    assert!(took < 4.2 && refused * 60.0 < 60.0, "{came:?}");
}
