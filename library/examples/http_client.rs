//! A client that never calls faster than its server allows: 5 per second, and at most 20 in any 10 seconds.

use std::time::Duration;
use throttle_limits::limiter::{AcquireError, Limiter};

/// Wraps the code that makes the calls.
struct Client {
    limiter: Limiter,
}

impl Client {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let limiter =
            Limiter::builder().rate(5, Duration::from_secs(1)).burst(2).limit("20/10s,window".parse()?).build()?;
        Ok(Client { limiter })
    }

    async fn get(&self, url: &str) -> Result<String, AcquireError> {
        self.limiter.acquire_timeout(1, Duration::from_secs(30)).await?;
        Ok(format!("the page at {url}")) // here the real call
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new()?;
    let start = std::time::Instant::now();
    for page in 1..=8 {
        let text = client.get(&format!("https://example.com/{page}")).await?;
        println!("{:4} ms: {text}", start.elapsed().as_millis());
    }
    Ok(())
}
