use super::*;
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
    ] {
        assert_eq!(cost(text).of(unit.as_bytes()), expected, "{text} of {unit:?}");
    }
}

#[test]
fn a_unit_that_is_not_looked_into_costs_what_is_known_without() {
    for (text, expected) in
        [("800", Some(800)), ("bytes/4,else=100", Some(100)), ("bytes/4", None), ("f2", None), ("f2,else=0", Some(0))]
    {
        assert_eq!(cost(text).unread(), expected, "{text}");
    }
    assert_eq!(
        cost("bytes/4+300").too_large(96 << 10).to_string(),
        "'cost=bytes/4+300' looks into units of at most 96 KiB; add what a longer one costs, like else=1000"
    );
}

#[test]
fn each_mistake_has_its_own_words() {
    for (text, words) in [
        ("", "how much? write a number, f3"),
        ("x.y", "JSON: /x/y"),
        (".max_tokens", "JSON: /max_tokens"),
        ("$3", "field 3 is f3"),
        ("F3", "field 3 is f3"),
        ("f0", "fields count from 1"),
        ("f", "a field has a number after the f"),
        ("-1", "a whole number that is not negative"),
        ("1.5", "a whole number"),
        ("4KiB", "a whole number"),
        ("bytes/0", "nothing can be divided by 0"),
        ("bytes/", "bytes/4+300"),
        ("bytes*2", "bytes/4+300"),
        ("bytes+300/4", "bytes/4+300"),
        ("bytes-1", "bytes/4+300"),
        ("host", "a cost is a number in the unit"),
        ("re:[0-9]+", "a cost is a number in the unit"),
        ("tokens", "no cost is called 'tokens'; JSON: /tokens; else write 800, f3 or bytes/4"),
        ("800,else=5", "can always be read; write cost=800 alone, or cost=f3,else=100"),
        ("f3,else=x", "a whole number, like else=100"),
        ("f3,x", "no part of it: ',x'"),
    ] {
        let error = text.parse::<Cost>().expect_err(text).to_string();
        assert!(error.contains(words), "{text:?}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn any_bytes_have_a_cost_or_none(unit in prop::collection::vec(any::<u8>(), 0..24)) {
        thread_local!(static ALL: Vec<Cost> = ["7", "f1", "f2:,", "/a", "bytes/7+3"].map(cost).to_vec());
        let cost: Vec<_> = ALL.with(|all| all.iter().map(|cost| cost.of(&unit)).collect());
        prop_assert_eq!((cost[0], cost[4]), (Some(7), Some((unit.len() as u64).div_ceil(7) + 3)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn any_text_is_read_or_refused_in_one_line(text in "(bytes|f|/|else=|[0-9]|[:,.~$+-]|[a-z]|\\PC){0,8}") {
        match text.parse::<Cost>() {
            Ok(cost) => prop_assert_eq!(cost.to_string().parse::<Cost>(), Ok(cost)),
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
        }
    }
}
