//! A limiter on a clock of its own: the processor's counter, read by the crate quanta, which is quicker to read than
//! the system's clock.
//!
//! `cargo run --release -p throttle-peers --example own_clock`
//!
//! What is given up: the system corrects its clock by time servers, but not the counter. quanta measures the counter once,
//! for up to 200 ms, when its first clock is made, and it goes on at that speed: a rate may be off by some millionths.
//! And where the counter is not steady, or goes on while the machine is suspended, so does this clock.

use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle_limits::clock::{Clock, Nanos};
use throttle_limits::limiter::Limiter;

struct Counter(quanta::Clock);

impl Clock for Counter {
    fn now(&self) -> Nanos {
        self.0.delta_as_nanos(0, self.0.raw())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let second = Duration::from_secs(1);
    let counter = Arc::new(Counter(quanta::Clock::new()));
    let limiters = [
        ("the system's clock", Limiter::builder().rate(1_000_000, second).build()?),
        ("the counter", Limiter::builder().rate(1_000_000, second).timer(counter).build()?),
    ];
    for (clock, limiter) in limiters {
        let start = Instant::now();
        let granted = (0..100_000).filter(|_| limiter.try_acquire(1).is_ok()).count();
        println!("{granted} granted by {clock}, {:?} each", start.elapsed() / 100_000);
        limiter.blocking_acquire(1)?;
    }
    Ok(())
}
