use super::*;

fn policy(limits: &[&str], burst: Option<&str>) -> Result<Policy, PolicyError> {
    let limits: Vec<Limit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    Policy::new(&limits, burst.map(|burst| burst.parse().unwrap()))
}

#[test]
fn defaults_are_filled_in() {
    for (limits, burst, expected) in [
        (&["5/s"][..], None, "5/s,burst=1"),
        (&["5/s"], Some("10"), "5/s,burst=10"),
        (&["1M/s"], None, "1M/s,burst=10000"),
        (&["10MiB/s"], None, "10MiB/s,burst=104857"),
        (&["10MiB/s"], Some("1MiB"), "10MiB/s,burst=1048576"),
        (&["5/s", "5000/h"], None, "5/s,burst=1 and 5000/h,window,slack=0"),
        (&["5000/h", "5/s"], Some("3"), "5000/h,window,slack=0 and 5/s,burst=3"),
        (&["5/s", "5000/h,burst=100"], None, "5/s,burst=1 and 5000/h,burst=100"),
        (&["5/s", "300/min"], None, "5/s,burst=1 and 300/min,window,slack=0"),
        (&["300/min", "5/s"], None, "300/min,window,slack=0 and 5/s,burst=1"),
        (&["5000/h,window"], None, "5000/h,window,slack=0"),
        (&["5000/h,window,initial=5000"], None, "5000/h,window,slack=0"),
        (&["5000/h,window,initial=0"], None, "5000/h,window,initial=0,slack=0"),
        (&["5/s,burst=9,initial=0"], None, "5/s,burst=9,initial=0"),
        (&["unlimited"], None, "unlimited"),
    ] {
        assert_eq!(policy(limits, burst).map(|policy| policy.to_string()), Ok(expected.to_owned()), "{limits:?}");
    }
}

#[test]
fn units_on_their_way_to_a_server_count_for_the_period_and_some_slack() {
    for (limit, expected) in [
        ("5/s,window", "5/s,window,slack=50ms"),
        ("5/ms,window", "5/ms,window,slack=50000ns"),
        ("5/5s,window", "5/5s,window,slack=250ms"),
        ("5000/h,window", "5000/h,window,slack=250ms"),
        ("5000/h,window,slack=0", "5000/h,window,slack=0"),
        ("5000/h,window,slack=2s", "5000/h,window,slack=2s"),
    ] {
        let policy = Policy::with_slack(&[limit.parse().unwrap()], None).unwrap();
        assert_eq!(policy.to_string(), expected);
        assert_eq!(Policy::from_lines(&policy.to_lines()), Some(policy));
    }
    let policy = Policy::with_slack(&["5/s", "5000/h"].map(|limit| limit.parse().unwrap()), None).unwrap();
    assert_eq!(policy.to_string(), "5/s,burst=1 and 5000/h,window,slack=250ms");
}

#[test]
fn costs_are_kept_as_text_and_a_policy_without_them_is_written_as_ever() {
    let [plain, counted] = [policy(&["9/s"], None), policy(&["5/s"], None)].map(Result::unwrap);
    let joined = Policy::of_all([&plain, &counted.counting("/a\\,cost=b,else=3")]);
    assert_eq!(joined.to_lines(), "9/s,burst=1\n5/s,burst=1,cost=/a\\,cost=b,else=3");
    assert_eq!(Policy::from_lines(&joined.to_lines()), Some(joined.clone()));
    assert_eq!((joined.cost(0), joined.cost(1)), (None, Some("/a\\,cost=b,else=3")));
    assert_eq!((joined.without(&[0]).cost(0), joined.of_units()), (joined.cost(1), plain.clone()));
    assert_eq!(Policy::from_lines(&plain.to_lines()), Some(plain));
    assert!(!joined.counts_like(&joined.without_costs()) && !joined.counts_like(&joined.without(&[0])));
}

#[test]
fn each_contradiction_has_its_own_message() {
    for (limits, burst, expected) in [
        (&[][..], None, "no limit; write for example 5/s, or unlimited"),
        (&["unlimited", "5/s"], None, "unlimited stands alone, without a burst or another limit"),
        (&["unlimited"], Some("5"), "unlimited stands alone, without a burst or another limit"),
        (&["5/s", "1MB/s"], None, "'1MB/s' counts bytes and '5/s' units; a pipe counts one or the other"),
        (&["5/s,burst=3"], Some("5"), "the pacing limit '5/s,burst=3' already names its burst; say it once"),
        (
            &["5/s,window"],
            Some("5"),
            "the pacing limit '5/s' is a window, which has no burst; write it without ,window",
        ),
        (&["5/s"], Some("0"), "a burst of 0 would let nothing through; the least is 1"),
        (
            &["5/s"],
            Some("1KiB"),
            "a burst of '1KiB' is in bytes, but the limit counts units; write a number without a unit",
        ),
        (
            &["5/s,initial=3"],
            None,
            "initial=3 is more than the burst of 1, which is all the bucket holds; write burst=3,initial=3",
        ),
    ] {
        let error = policy(limits, burst).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_limit_that_can_never_bind_is_found() {
    for (limits, expected) in [
        (&["5/s", "5000/h"][..], None),
        (&["5/s", "300/min"], Some((1, 0))),
        (&["5/s,burst=2", "300/min"], None),
        (&["5/s", "5/s"], Some((1, 0))),
        (&["5/s", "10/s,burst=1"], None),
        (&["5/s", "4/s,burst=10"], None),
        (&["5/s", "18000/h"], Some((1, 0))),
        (&["18000/h", "5/s"], Some((0, 1))),
        (&["5/s", "20000/h"], None),
        (&["10/s,window", "1000/min,window"], Some((1, 0))),
        (&["10/s,window", "599/min,window"], None),
        (&["5/s", "300/min,window,slack=1s"], None),
        (&["5/s", "304/min,window,slack=1s"], None),
        (&["5/s", "305/min,window,slack=1s"], Some((1, 0))),
        (&["10/s,window,slack=50ms", "599/min,window"], Some((1, 0))),
    ] {
        let found: Vec<_> = policy(limits, None).unwrap().never_bind().collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{limits:?}");
    }
    let counting_others = Policy::from_lines("5/s,burst=1\n300/min,window,cost=f1").unwrap();
    assert_eq!(counting_others.never_bind().next(), None);
    let several = policy(&["5/s", "300/min", "18000/h"], None).unwrap();
    assert_eq!(several.never_bind().collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    assert_eq!(several.without(&[1, 2]).to_string(), "5/s,burst=1");
}

/// A bucket with such a policy could be written and never read again.
#[test]
fn a_slack_above_its_period_is_refused_however_it_is_given() {
    let rate = "5/s".parse().unwrap();
    let of = |seconds| {
        Policy::new(
            &[Limit::Window { rate, initial: None, slack: Some(std::time::Duration::from_secs(seconds)) }],
            None,
        )
    };
    assert_eq!(of(2).unwrap_err(), PolicyError::SlackAbovePeriod("5/s,window,slack=2s".to_owned()));
    let policy = of(1).unwrap();
    assert_eq!(Policy::from_lines(&policy.to_lines()).unwrap(), policy);
}
