//! The real thing: an nginx that lets fifty requests a second through, and a client for each unit.

use super::{CURL, summary};
use crate::launching::{finish, numbers, throttle};
use crate::support::found;
use crate::support::nginx::{Nginx, REST};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Ten at once, then 490 at fifty a second.
const IDEAL: Duration = Duration::from_millis(9800);

/// Runs 500 clients; how many answers were refusals, and how long it took.
fn run(nginx: &Nginx, rate: &str) -> (u64, Duration) {
    sleep(REST);
    let options = ["-r", rate, "-b", "10", "--attempts", "5", "--summary=json", "-c", CURL];
    let mut command = throttle(options);
    command.env("URL", nginx.url()).env("no_proxy", "*");
    let begun = Instant::now();
    let ended = finish(command, numbers(500));
    let elapsed = begun.elapsed();
    let (commands, _) = summary(&ended);
    assert_eq!((ended.code(), &commands["ok"]), (Some(0), &500.into()), "{}", ended.err);
    let mut served: Vec<usize> =
        nginx.arrivals().into_iter().filter(|(_, status, _)| *status == 200).map(|(.., unit)| unit).collect();
    served.sort_unstable();
    assert_eq!(served, (1..=500).collect::<Vec<_>>(), "each unit is served once");
    (commands["told_to_wait"].as_u64().unwrap(), elapsed)
}

#[test]
fn a_strict_server_serves_every_unit_at_its_own_rate_and_at_one_that_is_too_fast() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    std::thread::scope(|scope| {
        for (rate, most) in [("50/s", 4), ("80/s", 8)] {
            let program = &program;
            scope.spawn(move || {
                let nginx = Nginx::start(|| Command::new(program)).unwrap();
                let (refused, elapsed) = run(&nginx, rate);
                let ratio = elapsed.as_secs_f64() / IDEAL.as_secs_f64();
                println!("{rate}: {refused} told to wait, {elapsed:?}, {ratio:.3} × the ideal");
                assert!(elapsed < IDEAL * most, "{rate}: {elapsed:?}");
            });
        }
    });
}
