use super::*;
use crate::limits::Account;

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
        (&["80/min", "1/s"], None, "80/min,window,slack=0 and 1/s,burst=1"),
        (&["1/s", "80/min"], Some("2"), "1/s,burst=2 and 80/min,window,slack=0"),
        (&["5/s", "3/s"], None, "5/s,window,slack=0 and 3/s,burst=1"),
        (&["1/s,window", "80/min"], None, "1/s,window,slack=0 and 80/min,window,slack=0"),
        (&["5000/h,window"], None, "5000/h,window,slack=0"),
        (&["5000/h,window,initial=5000"], None, "5000/h,window,slack=0"),
        (&["5000/h,window,initial=0"], None, "5000/h,window,initial=0,slack=0"),
        (&["5/s,burst=9,initial=0"], None, "5/s,burst=9,initial=0"),
        (&["5/s", "1/h,burst=9"], Some("3"), "5/s,burst=3 and 1/h,burst=9"),
        (&["unlimited"], None, "unlimited"),
    ] {
        assert_eq!(policy(limits, burst).map(|policy| policy.to_string()), Ok(expected.to_owned()), "{limits:?}");
    }
}

#[test]
fn units_count_in_a_window_for_the_period_and_the_slack() {
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

/// With slack, a window of a looser limit could be slower than the limit that paces.
#[test]
fn a_looser_limit_beside_a_stricter_one_slows_nothing() {
    let with_slack = |limits: &[&str]| {
        let limits: Vec<Limit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        Policy::with_slack(&limits, None).unwrap()
    };
    for (strict, loose) in [
        ("1/s", "80/min"),
        ("1/s", "60/min"),
        ("1/s", "2/s"),
        ("5/s", "301/min"),
        ("5/s", "300/min"),
        ("10/min", "601/h"),
        ("1/s,burst=3", "70/min"),
        ("7/s,window", "420/min"),
    ] {
        for limits in [[strict, loose], [loose, strict]] {
            let times = |policy: &Policy| {
                let mut limits = Account::new(policy, 0);
                (0..4000).map(|_| limits.take(0, 1).unwrap().at).collect::<Vec<_>>()
            };
            let both = with_slack(&limits);
            assert!(times(&both) == times(&with_slack(&[strict])), "{both}");
            assert_eq!(both.pace(), Some(strict.split(',').next().unwrap().parse().unwrap()), "{both}");
        }
    }
    // The groups of a large window free their units late, so a run leaves it out.
    for loose in ["3601/h", "3600/h"] {
        assert_eq!(with_slack(&["1/s", loose]).never_bind().collect::<Vec<_>>(), [(1, 0)], "{loose}");
    }
    assert_eq!(with_slack(&["5/s", "301/min"]).to_string(), "5/s,burst=1 and 301/min,window,slack=200ms");
    assert_eq!(with_slack(&["5/s", "301/min,window"]).to_string(), "5/s,burst=1 and 301/min,window,slack=250ms");
    assert_eq!(with_slack(&["5/s", "299/min"]).to_string(), "5/s,burst=1 and 299/min,window,slack=250ms");
}

#[test]
fn a_policy_without_limits_is_stored_with_what_it_counts() {
    for (is_bytes, text) in [(false, "unlimited"), (true, "unlimited,bytes")] {
        let policy = Policy::unlimited(is_bytes);
        assert_eq!((policy.to_lines().as_str(), policy.to_string().as_str()), (text, text));
        assert_eq!(Policy::from_lines(text), Some(policy.clone()));
        assert!(policy.is_unlimited() && !policy.is_empty() && policy.counts_bytes() == is_bytes);
    }
    assert_eq!(policy(&["unlimited"], None), Ok(Policy::unlimited(false)));
    assert!(Policy::default().is_empty() && Policy::from_lines("").is_none());
}

/// A stream continues while nothing limits it, and when the limits return that it began with.
#[test]
fn units_of_any_cost_are_granted_while_nothing_is_limited() {
    for (lines, is_bytes, agree) in [
        ("5/s", false, true),
        ("5/s", true, false),
        ("5kB/s", true, true),
        ("5/s\n9/s,cost=f2", false, true),
        ("5/s\nper=f1\n1/s", false, false),
        ("5/s\njobs=2", false, false),
    ] {
        let limited = Policy::from_lines(lines).unwrap();
        assert_eq!(Policy::unlimited(is_bytes).counts_like(&limited), agree, "{lines}");
        assert!(limited.counts_like(&limited));
    }
    let priced = Policy::from_lines("9/s,cost=f2").unwrap();
    assert!(!priced.counts_like(&Policy::unlimited(false)), "a stream that began without costs cannot have them");
}

#[test]
fn costs_are_text_and_a_policy_without_them_is_unchanged() {
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
        (&["unlimited", "5/s"], None, "unlimited cannot be combined with a burst or another limit"),
        (&["unlimited"], Some("5"), "unlimited cannot be combined with a burst or another limit"),
        (&["5/s", "1MB/s"], None, "'1MB/s' counts bytes and '5/s' counts units; write limits of one kind"),
        (&["5/s,burst=3"], Some("5"), "the pacing limit '5/s,burst=3' already has a burst; write it once"),
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
fn the_first_limit_of_keys_shows_their_other_settings() {
    let policy = Policy::from_lines("per=f1\njobs=2\nfails=3\n5/s,burst=1\n9/min,burst=4").unwrap();
    let keys = policy.of_keys().unwrap();
    let shown = [0, 1].map(|place| keys.describe(place));
    assert_eq!(shown, ["5/s,burst=1,jobs=2,fails=3,per=f1", "9/min,burst=4,per=f1"]);
}

#[test]
fn a_limit_that_can_never_bind_is_found() {
    for (limits, expected) in [
        (&["5/s", "5000/h"][..], None),
        (&["5/s", "300/min"], Some((1, 0))),
        (&["5/s,burst=2", "300/min"], None),
        (&["5/s", "5/s"], Some((1, 0))),
        (&["5/s,burst=2", "5/s,burst=2"], Some((1, 0))),
        (&["5/s", "10/s,burst=1"], Some((1, 0))),
        (&["5/s,burst=2", "10/s,burst=1"], None),
        (&["5/s", "4/s,burst=10"], None),
        (&["5/s", "18000/h"], Some((1, 0))),
        (&["18000/h", "5/s"], Some((0, 1))),
        (&["5/s", "20000/h"], Some((1, 0))),
        (&["10/s,window", "1000/min,window"], Some((1, 0))),
        (&["10/s,window", "599/min,window"], None),
        (&["10/s,window", "1000/min,window,initial=1"], None),
        (&["5/s", "300/min,window,slack=1s"], None),
        (&["5/s", "304/min,window,slack=1s"], None),
        (&["5/s", "305/min,window,slack=1s"], Some((1, 0))),
        (&["10/s,window,slack=50ms", "599/min,window"], Some((1, 0))),
        (&["10/s,burst=5", "5/s,burst=5"], Some((0, 1))),
        (&["10/s,burst=5,initial=4", "5/s,burst=5"], None),
        (&["10/min,window", "5/min,window"], Some((0, 1))),
        (&["10/min,window,initial=9", "5/min,window"], None),
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

/// Otherwise a bucket with such a policy could be written but not read.
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
    let limit = Limit::Window { rate, initial: Some("6".parse().unwrap()), slack: None };
    assert_eq!(Policy::new(&[limit], None), Err(PolicyError::InitialAboveCount { initial: 6, count: 5 }));
}

#[test]
fn a_unit_costs_the_same_if_costs_keys_and_counts_agree() {
    for (one, other, agree) in [
        ("9/s", "5/s\n9/min", true),
        ("9/s", "9kB/s", false),
        ("9/s,cost=f1", "5/s,cost=f1", true),
        ("9/s,cost=f1", "9/s,cost=f2", false),
        ("9/s,cost=f1", "9/s,cost=f1\n5/min", false),
        ("9/s\nper=f1\n1/s,cost=f2", "5/s\nper=f1\n2/s,cost=f2", true),
        ("9/s\nper=f1\n1/s,cost=f2", "9/s\n5/min\nper=f1\n1/s,cost=f2", false),
        ("9/s\nper=f1\n1/s", "9/s\nper=f2\n1/s", false),
        ("9/s\nper=f1\n1/s", "9/s", false),
        ("9/s\njobs=2", "9/s\njobs=3", true),
        ("9/s\njobs=2", "9/s", false),
    ] {
        let [one, other] = [one, other].map(|lines| Policy::from_lines(lines).unwrap());
        assert_eq!([one.counts_like(&other), other.counts_like(&one)], [agree; 2], "{one} and {other}");
    }
}

#[test]
fn a_policy_of_several_has_all_their_costs_jobs_and_windows() {
    let [first, second] = ["9/s,cost=f1\n5/min", "7/s\n3/min,cost=f2"].map(|lines| Policy::from_lines(lines).unwrap());
    let all = Policy::of_all([&first, &second]);
    assert_eq!([0, 1, 2, 3].map(|place| all.cost(place)), [Some("f1"), None, None, Some("f2")]);
    let jobs = NonZeroU32::new(3);
    assert_eq!((all.clone().with_jobs(jobs).jobs(), all.with_jobs(jobs).len()), (jobs, 4));
    let mixed = policy(&["5/s", "9/min,window,slack=1s", "99/h,window,slack=50ms"], None).unwrap();
    assert_eq!(mixed.windows(), 2);
    assert_eq!([0, 1, 2].map(|place| mixed.most_ever(place)), [u64::MAX, 9, 99]);
}

#[test]
fn a_policy_has_costs_if_some_limit_has() {
    for (lines, has_costs) in [("5/s", false), ("5/s\n9/s,cost=f2", true)] {
        assert_eq!(Policy::from_lines(lines).unwrap().has_costs(), has_costs, "{lines}");
    }
}
