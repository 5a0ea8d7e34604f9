//! A limiter on the processor's counter, which is quicker to read than the system's clock.
//!
//! `cargo run --release -p throttle-peers --example counter_clock`

use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle_limits::clock::CounterClock;
use throttle_limits::limiter::Limiter;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let second = Duration::from_secs(1);
    let counter = Arc::new(CounterClock::new());
    let limiters = [
        ("the system's clock", Limiter::builder().rate(1_000_000, second).build()?),
        ("the counter", Limiter::builder().rate(1_000_000, second).clock(counter).build()?),
    ];
    for (clock, limiter) in limiters {
        let start = Instant::now();
        let granted = (0..100_000).filter(|_| limiter.try_acquire(1).is_ok()).count();
        println!("{granted} granted by {clock}, {:?} each", start.elapsed() / 100_000);
        limiter.acquire(1).block()?;
    }
    Ok(())
}
