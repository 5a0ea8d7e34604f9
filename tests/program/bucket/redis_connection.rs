//! How the program reaches a Redis server: sockets, logins, deadlines and round trips.

use crate::bucket::redis::{run, runs};
use crate::support::redis::{Redis, bucket_at, counted_network};
use crate::support::{Running, assert_fails, feed, throttle, wait_until};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Sends a byte every 100 ms, so that no single read waits for long.
#[test]
#[ignore = "slow: 3 s"]
fn a_server_that_answers_byte_by_byte_is_given_three_seconds() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let bucket = bucket_at(listener.local_addr().unwrap().port(), "b");
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let _ = client.write_all(b"$1000\r\n");
                while client.write_all(b"x").is_ok() {
                    thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    let begun = Instant::now();
    let output = run(&bucket, &["--once", "-r", "5/s", "--max-wait", "500ms"]);
    assert_fails(&output, 75, &["cannot reach the bucket", "no answer within 3 s"]);
    let took = begun.elapsed();
    // All of its answer would take 100 s.
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(90), "{took:?}");
}

#[test]
fn a_bucket_is_reached_through_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock").to_str().unwrap().to_owned();
    let bucket = format!("unix:{socket}/b");
    let Some(redis) = Redis::start(&["--unixsocket", &socket]) else { return };
    runs(&bucket, &["-r", "1/h,burst=2", "--once"]);
    assert!(runs(&bucket, &["--show"]).contains(&bucket));
    assert!(runs(&redis.bucket("b"), &["--show", "json"]).contains("\"available\":1"));
    let without_name = run(&format!("unix:{socket}"), &["-r", "5/s", "--on-store-error", "fail"]);
    let parts = format!("(the socket is {}, the bucket's name redis.sock)", folder.path().display());
    assert_fails(&without_name, 1, &["cannot reach the bucket unix:", &parts]);
}

#[test]
fn a_password_is_read_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let Some(redis) = Redis::start(&["--requirepass", "s3cret!"]) else { return };
    let bucket = format!("{}?password-file={}", redis.bucket("2/b"), file.display());
    let named_by_environment = |args: &[&str]| {
        let mut command = throttle(args);
        command.env("THROTTLE_BUCKET", &bucket);
        feed(command, b"")
    };
    assert_fails(&run(&bucket, &["--show"]), 1, &["throttle: cannot read the password in '", "No such file"]);
    let output = named_by_environment(&["--once", "-r", "5/s"]);
    assert_fails(&output, 125, &["throttle: THROTTLE_BUCKET: cannot read the password in '"]);
    assert_fails(&run(&bucket, &["--set"]), 2, &["--set needs a limit"]);
    fs::write(&file, "s3cret!\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_fails(&run(&bucket, &["-r", "5/s"]), 1, &["everyone may read it; run chmod 600"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    runs(&bucket, &["-r", "5/s", "--once"]);
    let said = runs(&bucket, &["--show"]);
    assert!(said.contains("/2/b") && !said.contains("s3cret"), "{said}");
    fs::write(&file, "wrong").unwrap();
    assert_fails(&named_by_environment(&["--once"]), 125, &["THROTTLE_BUCKET: the server", "wrong user or password"]);
}

#[test]
fn a_database_that_the_server_does_not_have_changes_no_other() {
    let Some(redis) = Redis::start(&["--requirepass", "s3cret!"]) else { return };
    let bucket = format!("redis://:s3cret!@127.0.0.1:{}/99/b", redis.port);
    assert_fails(&run(&bucket, &["-r", "5/s", "--once"]), 125, &["refuses", "DB index is out of range"]);
    let mut connection = redis::Client::open(format!("redis://:s3cret!@127.0.0.1:{}/", redis.port)).unwrap();
    assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut connection).unwrap(), 0);
}

#[test]
fn once_takes_one_round_trip_with_login_and_database() {
    let Some(redis) = Redis::start(&["--requirepass", "s3cret!"]) else { return };
    let (port, turns) = counted_network(redis.port);
    let bucket = format!("redis://:s3cret!@127.0.0.1:{port}/2/b");
    runs(&bucket, &["--set", "-r", "9/h,window"]);
    for args in [&["--once"][..], &["--once", "-r", "9/h,window"], &["--once", "--max-wait", "0", "true"]] {
        turns.store(0, Ordering::SeqCst);
        runs(&bucket, args);
        assert_eq!(turns.load(Ordering::SeqCst), 1, "{args:?}");
    }
    assert!(runs(&bucket, &["--show", "json"]).contains("\"available\":6"));
}

#[test]
fn partly_named_limits_are_compared_before_a_take() {
    let Some(redis) = Redis::start(&[]) else { return };
    let bucket = redis.bucket("b");
    runs(&bucket, &["--set", "-r", "1/h,burst=9,initial=9"]);
    assert_fails(&run(&bucket, &["--once", "-r", "2/h", "--max-wait", "0"]), 125, &[", not 2/h;", "1/h,burst=9"]);
    runs(&bucket, &["--once", "-r", "1/h"]);
    let () = redis.tell(&["DEL", "throttle:b"]);
    runs(&bucket, &["--set", "-r", "9kB/h"]);
    let shown = || {
        let mut shown: serde_json::Value = serde_json::from_str(&runs(&bucket, &["--show", "json"])).unwrap();
        // It is computed from two clocks, and may be on either side of a second.
        shown["counts"]["since"] = 0.into();
        shown
    };
    let mut left = shown();
    assert_fails(&run(&bucket, &["--once"]), 125, &["bytes"]);
    // The counts tell that it was taken and given back.
    (left["counts"]["given_back"], left["counts"]["granted"]) = (1.into(), 1.into());
    assert_eq!(shown(), left, "what was taken is given back");
}

#[test]
fn a_long_wait_holds_no_connection_and_still_gives_back() {
    let Some(redis) = Redis::start(&[]) else { return };
    let bucket = redis.bucket("b");
    runs(&bucket, &["-r", "1/h", "--once"]);
    let waiting = Running::start(throttle(["--bucket", &bucket, "--once"]));
    let shown = |what: &str| runs(&bucket, &["--show", "json"]).contains(what);
    wait_until("it to take its place", || shown("\"line\":[{"));
    let clients = || redis.tell::<String>(&["CLIENT", "LIST"]).lines().count();
    wait_until("all but this connection to close", || clients() == 1);
    thread::sleep(Duration::from_millis(300));
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.finish().signal(), Some(15));
    assert!(shown("\"line\":[]"));
}
