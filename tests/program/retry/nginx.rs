//! A real nginx that serves fifty requests a second, or twenty without a burst, and a client for each unit.

use crate::rounds::rounds;
use crate::support::nginx::{Nginx, REST};
use crate::support::retries::{attempts, summary};
use crate::support::{found, numbers};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Runs `units` clients with these options. Returns the number of refusals, and the time.
fn run(url: &str, nginx: &Nginx, options: [&str; 4], units: u32) -> (u64, Duration) {
    sleep(REST);
    let begun = Instant::now();
    let ended = attempts(5).options(&options).summary().requests_at(url).run(numbers(units));
    let elapsed = begun.elapsed();
    let commands = summary(&ended);
    assert_eq!((ended.code(), &commands["ok"]), (Some(0), &units.into()), "{}", ended.err);
    let mut served: Vec<usize> =
        nginx.arrivals().into_iter().filter(|(_, status, _)| *status == 200).map(|(.., unit)| unit).collect();
    served.sort_unstable();
    assert_eq!(served, (1..=units as usize).collect::<Vec<_>>(), "each unit is served once");
    (commands["told_to_wait"].as_u64().unwrap(), elapsed)
}

#[test]
#[ignore = "slow: 4 s"]
fn nginx_serves_every_unit_at_its_rate_and_at_a_faster_one() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    // Ten at once, then the others at fifty a second; and some without a burst, at twenty a second: once 12.6 times the ideal.
    let (many, some) = (rounds(500).max(150), rounds(120).max(40));
    let ideal = f64::from(many - 10) / 50.0;
    let cases =
        [("", ["-r", "50/s", "-b", "10"], many, ideal, 4.0), ("", ["-r", "80/s", "-b", "10"], many, ideal, 8.0)];
    let strict = ("none/", ["-r", "20/s", "-b", "1"], some, f64::from(some - 1) / 20.0, 10.0);
    std::thread::scope(|scope| {
        for (folder, options, units, ideal, most) in cases.into_iter().chain([strict]) {
            let program = &program;
            scope.spawn(move || {
                let nginx = Nginx::start(|| Command::new(program)).unwrap();
                let (refused, elapsed) = run(&(nginx.url() + folder), &nginx, options, units);
                let ratio = elapsed.as_secs_f64() / ideal;
                println!("{options:?}: {refused} told to wait, {elapsed:?}, {ratio:.3} × the ideal");
                assert!(ratio < most, "{options:?}: {elapsed:?}");
            });
        }
    });
}
