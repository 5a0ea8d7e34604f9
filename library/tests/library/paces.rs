//! The learned paces of keys in a line, and keys that are given up.

use std::num::NonZeroU32;
use throttle_limits::clock::{MILLISECOND as MS, Nanos, SECOND};
use throttle_limits::line::{KeyId, Line, Next, Refusal, Rules, Unit};

fn line(fails: Option<u32>) -> Line<u64> {
    let (jobs, fails) = (Some(NonZeroU32::MAX), fails.and_then(NonZeroU32::new));
    Line::new(&Rules { jobs, fails, paced: Some(10 * MS), ..Rules::default() }, 0)
}

fn add(line: &mut Line<u64>, now: Nanos, key: &[u8], age: u64) -> KeyId {
    let unit = Unit { age, costs: [1].into(), size: 1, arrived: now, settles: false, content: age };
    line.add(now, Some(key), unit).unwrap()
}

/// The unit that leaves now: its key, its content, and the number of its grant.
fn goes(line: &mut Line<u64>, now: Nanos) -> (KeyId, u64, u64) {
    match line.poll(now, u64::MAX) {
        Next::Go(key, unit, charged) => (key, unit.content, charged.number),
        next => panic!("{next:?} at {now}"),
    }
}

/// Starts ten units 10 ms apart, and has the last of them refused at 100 ms. Returns the key.
fn refused(line: &mut Line<u64>, name: &[u8]) -> KeyId {
    let mut started = Vec::new();
    for age in 0..10 {
        add(line, age * 10 * MS, name, age);
        started.push(goes(line, age * 10 * MS));
    }
    let (key, _, number) = started[9];
    let start = line.start_of(number).unwrap();
    line.refused(100 * MS, Some(key), start, 200 * MS);
    line.hold_until(100 * MS, key, 200 * MS);
    for (.., number) in started {
        line.ended(100 * MS, number);
    }
    assert_eq!(line.start_of(number), None);
    key
}

#[test]
fn a_refusal_slows_the_starts_of_its_key_only() {
    let mut line = line(None);
    let key = refused(&mut line, b"a");
    assert_eq!(line.find(Some(b"a")), Some(key), "the key has a pace, so it is not forgotten");
    let interval = line.pace_of(key).unwrap().learned().unwrap();
    assert!(interval > 10 * MS, "{interval}");
    for age in 20..23 {
        add(&mut line, 150 * MS, b"a", age);
        add(&mut line, 150 * MS, b"b", age + 10);
    }
    let others = [0; 3].map(|_| goes(&mut line, 150 * MS).1);
    assert_eq!(others, [30, 31, 32]);
    assert_eq!(line.poll(150 * MS, u64::MAX), Next::At(200 * MS));
    assert_eq!(goes(&mut line, 200 * MS).1, 20);
    let Next::At(second) = line.poll(200 * MS, u64::MAX) else { panic!("the second has to wait") };
    assert_eq!(second, 200 * MS + interval - interval / 10);
    // Lateness of up to a tenth of the interval is made up for.
    assert_eq!(goes(&mut line, second + interval / 10).1, 21);
    assert_eq!(line.poll(second + interval / 10, u64::MAX), Next::At(second + interval));
    assert_eq!(goes(&mut line, second + interval + SECOND).1, 22);
}

#[test]
fn successes_bring_the_pace_of_a_key_back() {
    let mut line = line(None);
    let key = refused(&mut line, b"a");
    let (mut now, slow) = (200 * MS, line.pace_of(key).unwrap().learned());
    for age in 100..150 {
        add(&mut line, now, b"a", age);
        if let Next::At(time) = line.poll(now, u64::MAX) {
            now = time;
            let (_, _, number) = goes(&mut line, now);
            let served = line.start_of(number).unwrap().succeeded(false);
            line.ended(now, number);
            line.served(now, Some(key), served);
        }
    }
    assert!(line.pace_of(key).unwrap().learned() < slow);
}

#[test]
fn after_failures_in_a_row_a_key_is_given_up() {
    let mut line = line(Some(2));
    (0..6).for_each(|age| {
        add(&mut line, 0, b"a", age);
    });
    add(&mut line, 0, b"b", 6);
    for (age, has_succeeded) in [(0, false), (1, true), (2, false), (3, false)] {
        // The unit of b goes between those of a.
        let first = goes(&mut line, age * MS);
        let (key, content, number) = if first.1 == 6 { goes(&mut line, age * MS) } else { first };
        assert_eq!(content, age);
        line.ended(age * MS, number);
        line.tried(age * MS, key, has_succeeded);
    }
    add(&mut line, 5 * MS, b"a", 7);
    let why = Refusal::GivenUp(NonZeroU32::new(2));
    assert_eq!((line.len(), line.ready_at(6 * MS)), (3, Some(6 * MS)));
    let refused = [0, 1, u64::MAX].map(|room| match line.poll(6 * MS, room) {
        Next::Refused(_, unit, because) => (unit.content, because),
        next => panic!("{next:?}"),
    });
    assert_eq!(refused, [(4, why), (5, why), (7, why)]);
    assert_eq!((line.poll(6 * MS, u64::MAX), line.len(), line.memory()), (Next::Nothing, 0, 0));
    add(&mut line, 7 * MS, b"b", 8);
    assert_eq!(goes(&mut line, 7 * MS).1, 8);
}

#[test]
fn a_key_that_is_given_up_refuses_also_later_arrivals() {
    let mut line = line(None);
    let unit = |age, arrived| Unit { age, costs: [1].into(), size: 1, arrived, settles: false, content: age };
    let key = line.add(0, Some(b"a"), unit(0, SECOND)).unwrap();
    line.add_suspect(0, Some(b"a"), unit(1, 0), 8).unwrap();
    line.give_up(0, key, None);
    // One that is cancelled is not returned.
    assert_eq!(line.tickets().count(), 2);
    let first = line.tickets().find(|ticket| ticket.slot() == 0).unwrap();
    assert!(line.cancel(first).is_some());
    let next = line.poll(0, u64::MAX);
    assert!(matches!(&next, Next::Refused(_, Unit { age: 1, .. }, Refusal::GivenUp(None))), "{next:?}");
    assert_eq!((line.poll(2 * SECOND, u64::MAX), line.len()), (Next::Nothing, 0));
}

/// Otherwise endless new keys would take memory.
#[test]
fn at_most_ten_thousand_paces_are_stored() {
    let mut line = line(None);
    for age in 0..12_000_u64 {
        let now = age * MS;
        let key = add(&mut line, now, &age.to_be_bytes(), age);
        let (_, _, number) = goes(&mut line, now);
        line.ended(now, number);
        assert!(line.pace_of(key).is_some() || age >= 10_000);
    }
    assert!(line.keys() <= 10_000 + 4096, "{}", line.keys());
}
