//! Servers that refuse everything for a time. `cargo test --release --lib outages -- --ignored --nocapture` prints a table.

use super::*;

impl Row {
    /// Whether the server refuses everything now.
    pub(super) fn is_out(&self, now: Nanos) -> bool {
        (self.outage[0]..self.outage[1]).contains(&now)
    }

    /// How long a run takes that asks as soon as it would be served. The bucket is full at the start and after the outage.
    pub(super) fn ideal_with_outage(&self, interval: f64) -> f64 {
        let Kind::Bucket(burst) = self.kind else { panic!("an outage of a server that has no bucket") };
        (self.units as f64 - 2.0 * burst as f64) * interval + (self.outage[1] - self.outage[0]) as f64
    }
}

/// 50 calls a second at a server of this rate, in calls per 1000 s, and this burst. It answers after 2, 20 or 100 ms. An outage of
/// 30 s begins after 1 to 3 s, while the pace is still being learned.
fn row([rate, burst]: [u64; 2], processes: usize, seed: u64) -> Row {
    let takes = [2, 20, 100][usize::try_from(seed % 3).unwrap()] * MILLISECOND;
    let begins = fastrand::Rng::with_seed(seed).u64(SECOND..3 * SECOND);
    let (kind, outage) = (Kind::Bucket(burst), [begins, begins + 30 * SECOND]);
    Row { kind, rate, tenths: 500_000 / rate, takes, units: 250, outage, processes, ..USUAL }
}

fn came(server: [u64; 2], processes: usize, seeds: std::ops::Range<u64>) -> Vec<Came> {
    seeds.map(|seed| Run::new(row(server, processes, seed), seed).run()).collect()
}

const SERVERS: [[u64; 2]; 2] = [[5_000, 5], [10_000, 1]];

#[test]
#[ignore = "prints a table; see above"]
fn outages() {
    println!("| server, processes | time: median; 90 %; worst | refused |");
    for (server, processes) in SERVERS.into_iter().flat_map(|server| [(server, 1), (server, 4)]) {
        let came = came(server, processes, 0..101);
        let column = |value: fn(&Came) -> f64| [50, 90, 100].map(|k| part(came.iter().map(value).collect(), k));
        println!(
            "| {server:?}, {processes} | {:.2?} | {:.2?} |",
            column(|came| came.took),
            column(|came| came.refused)
        );
    }
}

/// The outage was taken for the pace of the server, so calls started ten times too slowly for minutes: six of the first 21 runs at
/// 5/s took four times the ideal.
#[test]
fn an_outage_of_30_s_slows_a_run_down_for_no_longer() {
    for (server, processes) in SERVERS.into_iter().flat_map(|server| [(server, 1), (server, 4)]) {
        let came = came(server, processes, 0..21);
        let column = |value: fn(&Came) -> f64, k| part(came.iter().map(value).collect(), k);
        let (took, refused) = (column(|came| came.took, 90), column(|came| came.refused, 50));
        assert!(took < 1.7 && refused < 0.2, "{server:?}, {processes}: {came:?}");
    }
}
