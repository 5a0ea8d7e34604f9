//! Answers of a server with any content: see [`crate::fuzzing`].

use super::link::MICROSECOND;
use super::{Patience, Redis, life};
use crate::ledger::Replica;
use ::redis::{Parser, Value};

/// Answers of a server, one after another: each is refused in printable words, or leads to a ledger that can be written and read.
///
/// The answers are in the server's protocol. Or `data` is a byte below 4, the length of a snapshot in 16 bits, the snapshot, and
/// the log: then they are the answer.
pub fn redis_answer(data: &[u8]) {
    let address = "unix:/none/bucket".parse().expect("an address");
    let Ok(redis) = Redis::unasked(address, None, Patience::none()) else { return };
    if let Some((&[kind @ 0..4, a, b], rest)) = data.split_first_chunk() {
        let (snapshot, log) = rest.split_at(usize::from(u16::from_le_bytes([a, b])).min(rest.len()));
        let kind = if kind % 2 == 0 { &b"anew"[..] } else { b"ok" };
        let [kind, folded, snapshot, log] = [kind, &[0; 8], snapshot, log].map(|text| Value::BulkString(text.into()));
        let [id, now, first] = [7, 1_000_000_000, 900].map(Value::Int);
        return answered(&redis, Ok(Value::Array(vec![kind, id, now, first, folded, snapshot, log])));
    }
    let (mut parser, mut rest) = (Parser::new(), data);
    while !rest.is_empty() {
        let value = parser.parse_value(&mut rest).and_then(Value::extract_error);
        let is_at_end = value.as_ref().is_err_and(::redis::RedisError::is_unrecoverable_error);
        answered(&redis, value);
        if is_at_end {
            return;
        }
    }
}

fn answered(redis: &Redis, value: Result<Value, ::redis::RedisError>) {
    let state = &mut *redis.state();
    let answer = value.map_err(|error| state.link.failure(&error)).and_then(|value| state.link.understood(value));
    let folded = answer.and_then(|answer| redis.fold(state, &answer).map(|()| answer));
    match folded {
        Ok(answer) => {
            let ledger = &*redis.ledger();
            let _ = (life(ledger), ledger.view(answer.now.saturating_mul(MICROSECOND)));
            let saved = ledger.save();
            let read = Replica::load(&saved).map(|ledger| ledger.save());
            assert!(read.as_ref() == Ok(&saved) || ledger.policy().is_empty(), "a ledger reads back the same");
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
    }
}
