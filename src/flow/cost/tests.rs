use super::*;
use crate::rounds::rounds;
use proptest::prelude::*;

fn cost(text: &str) -> Cost {
    text.parse().expect(text)
}

#[test]
fn a_cost_is_fixed_or_read_from_the_unit() {
    for (text, unit, expected) in [
        ("800", "anything", Some(800)),
        ("4k", "", Some(4000)),
        ("0", "x", Some(0)),
        ("f2", "a 12 c", Some(12)),
        ("f2", "a", None),
        ("f2", "a b", None),
        ("f2", "a -1", None),
        ("f2", "a 1.5", None),
        ("f2:,", "a, 12\r", Some(12)),
        ("f2:,", "a,,b", None),
        ("f1", "007", Some(7)),
        ("f1", "18446744073709551615", Some(u64::MAX)),
        ("f1", "99999999999999999999999999", Some(u64::MAX)),
        ("f1,else=5", "x", Some(5)),
        ("f1,else=5", "3", Some(3)),
        ("/max_tokens", r#"{"max_tokens":300}"#, Some(300)),
        ("/max_tokens", r#"{"max_tokens":"300"}"#, Some(300)),
        ("/max_tokens", r#"{"max_tokens":3.5}"#, None),
        ("/max_tokens", r#"{"max_tokens":null}"#, None),
        ("/max_tokens,else=7", "{}", Some(7)),
        ("bytes", "12345", Some(5)),
        ("bytes/4", "12345", Some(2)),
        ("bytes/4", "1234", Some(1)),
        ("bytes/4", "", Some(0)),
        ("bytes/4+300", "12345", Some(302)),
        ("bytes+1k", "12345", Some(1005)),
        ("bytes+18446744073709551615", "1", Some(u64::MAX)),
        ("/max_tokens+bytes/4+300", r#"{"max_tokens":7}"#, Some(7 + 4 + 300)),
        ("/max_tokens+bytes/4+300", r#"{"max_tokens":"many"}"#, None),
        ("/max_tokens+bytes/4+300,else=9", "{}", Some(9)),
        ("300+f2+f1", "4 5", Some(309)),
        ("f2:++f1:+", "4+5", Some(9)),
        ("/a\\+b+1", r#"{"a+b":6}"#, Some(7)),
        ("f1+f2", "18446744073709551615 1", Some(u64::MAX)),
    ] {
        assert_eq!(cost(text).of(unit.as_bytes()), expected, "{text} of {unit:?}");
    }
}

#[test]
fn a_unit_that_is_not_looked_into_costs_what_is_known_without() {
    for (text, unread, of_length) in [
        ("800", Some(800), Some(800)),
        ("bytes/4,else=100", Some(100), Some(25)),
        ("bytes/4+7", None, Some(32)),
        ("f2", None, None),
        ("f2+bytes", None, None),
        ("f2+bytes,else=0", Some(0), Some(0)),
    ] {
        let cost = cost(text);
        assert_eq!((cost.unread(), cost.of_length(99)), (unread, of_length), "{text}");
        assert_eq!(cost.looks_inside(), text.starts_with('f'), "{text}");
    }
    assert_eq!(
        cost("f2+bytes/4").too_large(),
        "'cost=f2+bytes/4' can read units of at most 64 MiB; add the cost of a longer unit, like else=1000"
    );
}

#[test]
fn each_mistake_has_its_own_words() {
    for (text, words) in [
        (".max_tokens", "for a value in JSON write /max_tokens"),
        ("F3", "field 3 is written f3"),
        ("f0", "fields count from 1"),
        ("f", "a field needs a number after the f"),
        ("1.5", "a whole number"),
        ("4KiB", "a whole number"),
        ("bytes/", "bytes/4+300"),
        ("bytes*2", "bytes/4+300"),
        ("bytes+300/4", "bytes/4+300"),
        ("bytes-1", "bytes/4+300"),
        ("f3/2", "only bytes can be divided"),
        ("bytes+", "the cost is missing; write a number, f3"),
        ("+5", "the cost is missing; write a number, f3"),
        ("f3+tokens", "unknown cost 'tokens'"),
        ("re:[0-9]+", "a cost is a number in the unit"),
        ("f3,x", "unexpected text after the cost: ',x'"),
    ] {
        let error = text.parse::<Cost>().expect_err(text);
        assert!(error.contains(words), "{text:?}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(10_000)))]

    #[test]
    fn the_cost_of_a_sum_is_the_sum_of_the_costs(
        terms in prop::collection::vec("(f[1-3]|f2:\\+|/a|bytes(/[1-9])?|[1-9][0-9]{0,3})", 1..5),
        unit in prop::sample::select(vec!["1 2 3", "4+5", "{\"a\":6}", "7", ""]),
    ) {
        let of = |text: &str| cost(text).of(unit.as_bytes());
        let sum: Option<u64> = terms.iter().map(|term| of(term)).sum();
        prop_assert_eq!(of(&terms.join("+")), sum);
    }
}
