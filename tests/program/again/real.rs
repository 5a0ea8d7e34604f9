//! The real thing: an nginx that lets fifty requests a second through, or twenty without a burst, and a client for each unit.

use super::{CURL, summary};
use crate::launching::{finish, numbers, throttle};
use crate::support::found;
use crate::support::nginx::{Nginx, REST};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Runs so many clients for these options; how many answers were refusals, and how long it took.
fn run(url: &str, nginx: &Nginx, options: [&str; 4], units: u32) -> (u64, Duration) {
    sleep(REST);
    let mut command = throttle([&options[..], &["--attempts", "5", "--summary=json", "-c", CURL]].concat());
    command.env("URL", url).env("no_proxy", "*");
    let begun = Instant::now();
    let ended = finish(command, numbers(units));
    let elapsed = begun.elapsed();
    let (commands, _) = summary(&ended);
    assert_eq!((ended.code(), &commands["ok"]), (Some(0), &units.into()), "{}", ended.err);
    let mut served: Vec<usize> =
        nginx.arrivals().into_iter().filter(|(_, status, _)| *status == 200).map(|(.., unit)| unit).collect();
    served.sort_unstable();
    assert_eq!(served, (1..=units as usize).collect::<Vec<_>>(), "each unit is served once");
    (commands["told_to_wait"].as_u64().unwrap(), elapsed)
}

#[test]
fn a_strict_server_serves_every_unit_at_its_own_rate_and_at_one_that_is_too_fast() {
    let (Some(program), Some(_)) = (found("nginx"), found("curl")) else { return };
    // Ten at once, then 490 at fifty a second; and 120 without a burst, at twenty a second: once 12.6 times the ideal.
    let cases = [("", ["-r", "50/s", "-b", "10"], 500, 9.8, 4.0), ("", ["-r", "80/s", "-b", "10"], 500, 9.8, 8.0)];
    let strict = ("none/", ["-r", "20/s", "-b", "1"], 120, 5.95, 10.0);
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
