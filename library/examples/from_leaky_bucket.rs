//! A program written for the crate leaky-bucket 1.1.2. Only its import has changed.

use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle_limits::leaky_bucket::RateLimiter; // was: use leaky_bucket::RateLimiter;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = RateLimiter::builder().initial(5).refill(2).interval(Duration::from_millis(100)).max(10).build();
    let limiter = Arc::new(limiter);
    let start = Instant::now();
    let tasks: Vec<_> = (1..=4)
        .map(|number| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                limiter.acquire_owned(3).await;
                println!("{:4} ms: task {number} has its three", start.elapsed().as_millis());
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    assert!(!limiter.try_acquire(100));
    Ok(())
}
