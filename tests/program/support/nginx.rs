//! An nginx of our own, which answers fifty requests a second and ten more at once, and 503 to all others.
//! Each server name that ends in `.test` gets five a second for itself, and five more at once.
//! Below `503/` and `429/` it answers ten a second, and that status to others. Below `none/` it answers twenty a second, and none
//! more at once.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// After this time without a request, the server has forgotten all requests.
pub(crate) const REST: Duration = Duration::from_millis(500);

/// A running server; it ends with this value.
pub(crate) struct Nginx {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Nginx {
    /// Starts nginx by `command`, to which its arguments are added, on a free port of the loopback.
    pub(crate) fn start(command: impl Fn() -> Command) -> io::Result<Self> {
        let mut last = io::ErrorKind::AddrInUse.into();
        // Somebody else may take a port between our finding it free and nginx's using it.
        for _ in 0..5 {
            match Self::start_on(command(), free_port()?) {
                Ok(nginx) => return Ok(nginx),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn start_on(mut command: Command, port: u16) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = folder.path();
        fs::create_dir(at.join("html"))?;
        fs::write(at.join("html/index.html"), "hello\n")?;
        fs::write(at.join("nginx.conf"), config(at, port))?;
        let process = command
            .arg("-e")
            .arg(at.join("error.log"))
            .arg("-c")
            .arg(at.join("nginx.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Nginx { process, port, folder }.answering()
    }

    /// Waits until it can be reached; no request is made, so nothing is counted.
    fn answering(mut self) -> io::Result<Self> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if self.process.try_wait()?.is_some() {
                let log = fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default();
                return Err(io::Error::other(format!("nginx ended at once: {log}")));
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return Ok(self);
            }
            sleep(Duration::from_millis(10));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The address of a page, less its name.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The requests that came since the last call, in their order: when, in seconds since 1970, to the millisecond; the
    /// answer's status; the page asked for, which is a number.
    pub(crate) fn arrivals(&self) -> Vec<(f64, u16, usize)> {
        let log = self.folder.path().join("access.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        // nginx appends, so it goes on at the new end.
        let _ = fs::write(&log, "");
        let request = |line: &str| {
            let mut fields = line.split(' ');
            let (time, status) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            Some((time, status, fields.next()?.rsplit('/').next()?.parse().ok()?))
        };
        text.lines().filter_map(request).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// One process in the foreground, so that ending it ends all of it.
fn config(at: &Path, port: u16) -> String {
    let at = at.display();
    format!(
        "daemon off;
master_process off;
pid '{at}/pid';
events {{ worker_connections 256; }}
http {{
    log_format times '$msec $status $request_uri';
    access_log '{at}/access.log' times;
    client_body_temp_path '{at}/client_body';
    proxy_temp_path '{at}/proxy';
    fastcgi_temp_path '{at}/fastcgi';
    uwsgi_temp_path '{at}/uwsgi';
    scgi_temp_path '{at}/scgi';
    limit_req_zone $server_addr zone=one:1m rate=50r/s;
    limit_req_zone $server_addr zone=slow:1m rate=10r/s;
    limit_req_zone $server_addr zone=none:1m rate=20r/s;
    limit_req_zone $host zone=hosts:1m rate=5r/s;
    server {{
        listen 127.0.0.1:{port};
        server_name *.test;
        root '{at}/html';
        location / {{
            limit_req zone=hosts burst=5 nodelay;
            try_files /index.html =404;
        }}
    }}
    server {{
        listen 127.0.0.1:{port} default_server;
        root '{at}/html';
        location / {{
            limit_req zone=one burst=10 nodelay;
            try_files /index.html =404;
        }}
        location /429/ {{
            limit_req zone=slow burst=2 nodelay;
            limit_req_status 429;
            try_files /index.html =404;
        }}
        location /none/ {{
            limit_req zone=none;
            try_files /index.html =404;
        }}
        location /503/ {{
            limit_req zone=slow burst=2 nodelay;
            try_files /index.html =404;
        }}
    }}
}}
"
    )
}
