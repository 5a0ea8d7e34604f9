//! An HTTP client that keeps to its server's limits: 20 requests a second and 6000 tokens a minute, for each user half of
//! that. A call acquires an estimate of its tokens and settles what the answer says. If the server says "later", all calls
//! wait. The server is a thread of this program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use throttle_limits::limiter::{Keyed, Limiter};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The tokens that a call takes at most, which nobody knows before.
const ESTIMATE: u64 = 500;

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Client {
    http: reqwest::Client,
    requests: Limiter,
    /// Of each user, within those of all.
    tokens: Keyed<String>,
}

impl Client {
    fn new() -> Result<Self, Error> {
        let tokens = Limiter::builder().rate(6000, MINUTE);
        Ok(Client {
            http: reqwest::Client::new(),
            requests: Limiter::new(20, 2)?,
            tokens: Limiter::builder().rate(3000, MINUTE).keyed_within(&tokens)?,
        })
    }

    async fn ask(&self, user: &str, url: &str) -> Result<u64, Error> {
        loop {
            self.requests.acquire(1).await?;
            let tokens = self.tokens.acquire_to_settle(user, ESTIMATE).await?;
            let answer = self.http.get(url).send().await?;
            if answer.status() == 429 {
                tokens.settle(0)?;
                let header = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
                self.requests.pause_for(Duration::from_secs_f64(header.unwrap_or(1.0)));
                continue;
            }
            let answer: serde_json::Value = answer.error_for_status()?.json().await?;
            let spent = answer["usage"].as_u64().unwrap_or(ESTIMATE);
            tokens.settle(spent)?;
            return Ok(spent);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (client, url) = (Client::new()?, format!("http://{}/", serve()?));
    let begun = std::time::Instant::now();
    let call = |number: u32| {
        let (client, url) = (client.clone(), url.clone());
        async move { client.ask(if number.is_multiple_of(2) { "ann" } else { "bob" }, &url).await }
    };
    let calls: Vec<_> = (0..12).map(|number| tokio::spawn(call(number))).collect();
    for (number, call) in calls.into_iter().enumerate() {
        println!("{:4} ms: call {number} took {} tokens", begun.elapsed().as_millis(), call.await??);
    }
    println!("ann has {} tokens left in this minute", client.tokens.available("ann"));
    Ok(())
}

/// Answers each request with 80 tokens, but tells the third one to wait.
fn serve() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { continue };
            let _ = stream.read(&mut [0; 4096]);
            let answer = if number == 2 {
                "HTTP/1.1 429 Too Many Requests\r\nretry-after: 0.5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            } else {
                "HTTP/1.1 200 OK\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{\"usage\":80}"
            };
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    Ok(address)
}
