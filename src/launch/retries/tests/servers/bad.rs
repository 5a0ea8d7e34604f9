//! Servers that always refuse some units. `cargo test --release --lib by_hand_servers_that -- --ignored --nocapture` prints a table.

use super::*;

/// A server of 60 calls a second.
const USUAL: Row = Row {
    kind: Kind::Bucket(5),
    rate: 60_000,
    takes: 15 * MILLISECOND,
    has_few_slots: true,
    tenths: 10,
    ..super::USUAL
};

/// A row with `bad` bad units: one in `spread` of the first units, or anywhere in 1000 units.
fn row(bad: usize, spread: Option<usize>) -> Row {
    let units = if spread.is_some() { 240 + bad } else { 1000 };
    Row { units, bad, spread, ..USUAL }
}

/// Prints times relative to the ideal time without the refused units, from 41 runs for each row.
#[test]
#[ignore = "by hand: prints a table"]
fn by_hand_servers_that_always_refuse_some() {
    println!("| processes, tenths, time named, bad, one of | time: median; 90 %; worst | refused | lost |");
    let layouts = [(8, Some(1)), (16, Some(3)), (17, None), (0, None)];
    for (processes, tenths) in [1, 4].into_iter().flat_map(|processes| [10, 20, 100].map(|tenths| (processes, tenths)))
    {
        for says in [Says::Nothing, Says::Right, Says::OneSecond] {
            for (bad, spread) in layouts {
                let row = Row { tenths, says, processes, ..row(bad, spread) };
                let came: Vec<Came> = (0..41).map(|seed| Run::new(row, seed).run()).collect();
                let [took, refused] = [parts(&came, |came| came.took), parts(&came, |came| came.refused)];
                let lost: usize = came.iter().map(|came| came.lost).sum();
                println!(
                    "| {processes}, {tenths}, {says:?}, {bad}, {spread:?} | {took:.2?} | {refused:.2?} | {lost} |"
                );
            }
        }
    }
    for row in [RESTARTS, NIGHT] {
        let came: Vec<Came> = (0..101).map(|seed| Run::new(row, seed).run()).collect();
        println!(
            "| restarts, {} units | {:.2?} | {:.2?} |",
            row.units,
            parts(&came, |came| came.took),
            parts(&came, |came| came.refused)
        );
    }
}

#[test]
fn bad_units_hold_up_no_others_even_if_calls_are_too_fast() {
    for (tenths, says, most) in [
        (10, Says::Nothing, 1.6),
        (20, Says::Nothing, 1.6),
        (20, Says::Right, 1.6),
        (20, Says::OneSecond, 3.5),
        (100, Says::Nothing, 1.6),
    ] {
        let came = runs(11, Row { tenths, says, ..row(17, None) });
        assert!(came[5].took < most, "{tenths} tenths, {says:?}: {came:?}");
        assert!(came.iter().all(|came| came.lost == 0), "{tenths} tenths, {says:?}: {came:?}");
    }
}

/// Law 12: the first units are always refused, as after a restart. Each takes a few calls of its own.
#[test]
fn bad_units_at_the_front_hold_up_no_others() {
    for (bad, spread) in [1, 4, 8, 16].into_iter().flat_map(|bad| [(bad, 1), (bad, 3)]) {
        for tenths in [9, 10, 12, 20] {
            let came = Run::new(Row { tenths, units: 300 + bad, ..row(bad, Some(spread)) }, fastrand::u64(..)).run();
            let most = 1.7 + 0.3 * bad as f64;
            assert!(came.took < most, "{bad} bad ones, one of {spread}, asked for {tenths} tenths: {came:?}");
        }
    }
}

/// Each restart begins with units that were refused before, and with units that do not exist. They are suspects with a
/// weight of 32, as if they had been refused once. When a restart forgot them, they slowed each later run down more: to
/// 8 times the ideal.
#[test]
fn units_that_are_always_refused_slow_down_no_later_run() {
    let came = runs(11, RESTARTS);
    assert!(came[5].took < 1.5, "{came:?}");
}

/// As in `tests/program/retry/interrupted_runs.rs`. The usual ratio is 1.16. Without [`Retries::left_over`] it was 1.9. With a weight of
/// 8 for units left over it was 1.3.
#[test]
#[ignore = "slow: 2 s"]
fn restarts_and_outages_cost_little_time() {
    let came = runs(11, NIGHT);
    assert!(came[5].took < 1.3, "{came:?}");
}

const RESTARTS: Row = Row { units: 2500, bad: 8, spread: Some(300), restarts: 20, takes: 20 * MILLISECOND, ..USUAL };

const NIGHT: Row = Row { units: 5000, bad: 17, takes: 15 * MILLISECOND, is_night: true, ..RESTARTS };
