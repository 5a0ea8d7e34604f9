//! Workers with both a rate and a concurrency: three at a time, and at most ten starts per second after the first
//! three.

use std::time::{Duration, Instant};
use throttle_limits::semaphore::Semaphore;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let workers = Semaphore::new(3, 10)?;
    let start = Instant::now();
    let mut jobs = Vec::new();
    for job in 1..=9 {
        let permit = workers.acquire().await?;
        jobs.push(tokio::spawn(async move {
            println!("{:4} ms: job {job} starts", start.elapsed().as_millis());
            tokio::time::sleep(Duration::from_millis(150)).await;
            drop(permit); // frees the place; a panic does, too
        }));
    }
    for job in jobs {
        job.await?;
    }
    Ok(())
}
