use super::*;
use crate::program::task::Task;
use std::sync::Arc;
use std::time::{Duration, Instant};
use throttle::launch::{Ended, Paused, Reply, Verdict};

fn outcomes(args: &[&str]) -> Outcomes {
    let Task::Launch(launch) = Task::from_words(&[args, &["curl"]].concat()).unwrap() else { panic!("{args:?}") };
    let policy = &launch.limits.policy();
    Outcomes::new(&launch, policy, &launch.limits.written(policy), true)
}

/// The outcomes after `ended` commands of one second each.
fn after(ended: u64, args: &[&str]) -> Outcomes {
    Outcomes { started: ended, durations: ended * SECOND, ..outcomes(args) }
}

#[test]
fn the_hint_says_once_how_many_jobs_the_rate_needs() {
    let mut slow = after(100, &["-r", "50/s"]);
    assert_eq!(slow.hint(SECOND, || MIN_TIME_SLOTS_TAKEN - 1), None, "not yet");
    assert_eq!(slow.hint(2 * SECOND - 1, || unreachable!("once a second")), None);
    let hint = "the limit of 16 jobs at once slows the run, not the rate; 50/s needs about -j 51";
    let hints = [2, 3].map(|second| slow.hint(second * SECOND, || MIN_TIME_SLOTS_TAKEN));
    assert_eq!(hints, [Some(hint.to_owned()), None]);
    for args in [&["-r", "50/s", "-j", "16"][..], &["-r", "50/s", "-q"], &["-r", "unlimited"], &["-r", "5/s"]] {
        assert_eq!(
            after(100, args).hint(SECOND, || MIN_TIME_SLOTS_TAKEN),
            None,
            "{args:?}: it was chosen, unwanted, meaningless or no help"
        );
    }
    assert_eq!(after(0, &["-r", "50/s"]).hint(SECOND, || MIN_TIME_SLOTS_TAKEN), None, "no command has ended");
    let mut unseen = Outcomes { sums_up: false, ..after(100, &["-r", "50/s"]) };
    assert_eq!(unseen.hint(SECOND, || MIN_TIME_SLOTS_TAKEN), None, "nobody watches");
}

/// The server allows 20 of the 50 starts a second. The pace of a single key is not the pace of the run.
#[test]
fn the_hint_counts_with_what_the_server_allows() {
    let learned = |key: Option<&[u8]>| Some((Duration::from_secs(1) / 20, key.map(Into::into)));
    let mut slow = after(100, &["-r", "50/s"]);
    slow.retries.learned = learned(None);
    let hint = "the limit of 16 jobs at once slows the run, not the rate; about 20.0/s needs about -j 21";
    assert_eq!(slow.hint(SECOND, || MIN_TIME_SLOTS_TAKEN).as_deref(), Some(hint));
    let mut of_a_key = Outcomes {
        retries: Retries { learned: learned(Some(b"a")), ..Retries::default() },
        ..after(100, &["-r", "50/s"])
    };
    assert!(of_a_key.hint(SECOND, || MIN_TIME_SLOTS_TAKEN).is_some_and(|hint| hint.contains("50/s needs about -j 51")));
}

/// With two slots there is no hint, because `,jobs=2` would change nothing.
#[test]
fn the_hint_names_a_key_with_over_three_quarters_of_slots() {
    let hint = |jobs, keys: &str| {
        let running = (1..).zip(keys.bytes()).map(|(seq, key)| (seq, (SECOND, Some([key].into())))).collect();
        Outcomes { running, ..outcomes(&["-r", "5/s,per=f1", "-j", jobs]) }.hint(SECOND, || MIN_TIME_SLOTS_TAKEN)
    };
    let expected = "4 of 4 slots are taken by 'a'; ,jobs=2 leaves slots for other keys";
    assert_eq!(hint("4", "aaaa").as_deref(), Some(expected));
    assert!(hint("7", "aaaaaab").is_some());
    for (jobs, keys) in [("4", "aaab"), ("2", "ab"), ("2", "aa"), ("3", "aab"), ("7", "aaaaabb")] {
        assert_eq!(hint(jobs, keys), None, "{keys}");
    }
}

#[test]
fn the_status_has_the_busy_slots_and_the_needed_slots() {
    let running = (1..=8).map(|seq| (seq, (SECOND, None))).collect();
    let full = Outcomes { started: 108, running, ..after(100, &["-r", "50/s", "-j", "8"]) };
    assert_eq!(full.slots_text().as_deref(), Some("8 of 8 slots busy (50/s needs about -j 51)"));
    assert_eq!(after(100, &["-r", "50/s", "-j", "8"]).slots_text().as_deref(), Some("0 of 8 slots busy"));
    assert_eq!(after(9, &["-r", "50/s", "-j", "0"]).slots_text(), None);
}

/// Four jobs of one second each finish 4 units a second, whatever the limit allows.
#[test]
fn if_slots_are_short_the_time_left_is_that_of_the_commands() {
    let args = ["-r", "9/s", "-j", "4"];
    let running = |seqs: std::ops::RangeInclusive<u64>| seqs.map(|seq| (seq, (SECOND, None))).collect();
    let new = outcomes(&args);
    assert_eq!(new.time_left(36, 4 * SECOND, 0), Some(4 * SECOND), "nothing but the limit is known");
    let full = Outcomes { started: 4, running: running(1..=4), ..outcomes(&args) };
    assert_eq!(full.time_left(36, 4 * SECOND, 9 * SECOND), None, "how long they take is not known");
    let ended = after(4, &args);
    assert_eq!(ended.time_left(36, 4 * SECOND, SECOND), Some(9 * SECOND));
    assert_eq!(ended.time_left(36, 60 * SECOND, SECOND), Some(61 * SECOND), "also the last one runs");
    let last = Outcomes { started: 5, running: running(5..=5), ..after(4, &args) };
    assert_eq!(last.time_left(0, 0, SECOND + SECOND / 4), Some(3 * SECOND / 4), "what runs is waited for");
    let stopped = Outcomes { starts_no_more: true, ..after(4, &args) };
    assert_eq!(stopped.time_left(36, 4 * SECOND, SECOND), None);
}

/// The unit does not start before its backoff allows, so it does not end before that.
#[test]
fn a_unit_that_waits_for_a_retry_lengthens_the_time_left() {
    let mut outcomes = Outcomes { finished: 4, ..after(4, &["-r", "9/s", "-j", "4", "--attempts", "2"]) };
    assert_eq!((outcomes.time_left(1, 0, SECOND), outcomes.finished()), (Some(SECOND), 4));
    outcomes.retries.wait(SECOND, Duration::from_secs(30), None);
    outcomes.retries.wait(SECOND, Duration::from_secs(20), None);
    assert_eq!((outcomes.time_left(2, 0, 6 * SECOND), outcomes.finished()), (Some(26 * SECOND), 4));
    assert_eq!(outcomes.retries.waiting, 2);
}

#[test]
fn a_key_that_is_sent_away_leaves_the_count_of_others_that_wait() {
    let mut outcomes = outcomes(&["-r", "5/s,per=host", "--attempts", "2"]);
    (0..3).for_each(|_| outcomes.retries.wait(0, Duration::ZERO, None));
    drop(outcomes.give_up(&[Arc::default(), Arc::default()]));
    assert_eq!((outcomes.retries.waiting, outcomes.finished()), (1, 2));
}

/// A job of this many units.
fn job_of(units: u64) -> Arc<Job> {
    let mut job = Job::default();
    job.set_unit_count(units);
    Arc::new(job)
}

fn ended(job: &Arc<Job>, outcome: Outcome, verdict: Verdict) -> Ended {
    let now = Instant::now();
    let (due_in, pause, reply) = (verdict.due().map(|_| Duration::ZERO), Paused::default(), Reply::default());
    let (job, waited, cost, pace) = (Arc::clone(job), Duration::ZERO, None, None);
    Ended { job, number: 1, outcome, verdict, due_in, pause, pace, reply, cost, waited, started: now, at: now, slot: 0 }
}

/// The option counted commands: with `-n 10` it ended the run after 50 units.
#[test]
fn max_fail_counts_units_whatever_a_command_has() {
    let mut outcomes = outcomes(&["-r", "5/s", "-n", "10", "--max-fail", "25"]);
    let end =
        |outcomes: &mut Outcomes| drop(outcomes.end(&ended(&job_of(10), Outcome::Exited(1), Verdict::Failed), 0, 0));
    let reached = [1, 2, 3].map(|_| {
        end(&mut outcomes);
        outcomes.has_failed_enough()
    });
    assert_eq!((reached, outcomes.finished(), outcomes.failed), ([false, false, true], 3, 30));
    let mut share = self::outcomes(&["-r", "5/s", "-n", "10", "--max-fail", "50%"]);
    end(&mut share);
    assert!(!share.has_failed_enough(), "fewer than 20 units");
    share.done(&Success { job: job_of(10), attempt: 2 });
    assert!(share.has_failed_enough());
    assert_eq!(share.sum(SECOND, 0), "10 ok (10 after a retry), 10 failed; 1 s (limit 5/s)");
}

/// The log said `failed`, the summary "stopped".
#[test]
fn the_verdict_decides_whether_a_command_was_stopped() {
    for (verdict, line) in [
        (Verdict::Stopped, "interrupted: 0 ok, 1 stopped"),
        (Verdict::Failed, "interrupted: 0 ok, 1 failed, 0 stopped"),
    ] {
        let mut outcomes = outcomes(&["-r", "5/s"]);
        outcomes.interrupt("interrupted");
        drop(outcomes.end(&ended(&Arc::default(), Outcome::Killed(2), verdict), 0, 0));
        assert_eq!(outcomes.interrupted_line("interrupted"), line);
    }
}

#[test]
fn the_closing_lines_read_as_in_the_manual() {
    let sum = Outcomes { ok: 498, failed: 2, timed_out: 1, skipped: 3, ..outcomes(&["-r", "5/s"]) };
    let expected = "498 ok, 2 failed (1 timed out), 3 blank lines skipped; 1m 40s (limit 5/s)";
    assert_eq!(sum.closing(100_150_000_000, 0, ("", 0)), [expected]);
    let next = Some("next line not started: 413 'https://…'".to_owned());
    let interrupted =
        Outcomes { ok: 409, stopped: 3, next, interrupted: Some("interrupted"), ..outcomes(&["-r", "5/s"]) };
    assert_eq!(
        interrupted.closing(0, 0, ("", 0)),
        ["interrupted: 409 ok, 3 stopped, next line not started: 413 'https://…'"]
    );
    let two = Outcomes { failed: 21, ..outcomes(&["-r", "5/s", "-b", "9", "-r", "60/min"]) };
    assert_eq!(two.closing(49_999_999, 0, ("", 0)), ["0 ok, 21 failed; 50 ms (limit 5/s and 60/min)"]);
    assert_eq!(Outcomes { failed: 21, ..outcomes(&["-q", "-r", "5/s"]) }.closing(0, 0, ("", 0)).len(), 0);
}

#[test]
fn further_attempts_and_pauses_are_part_of_the_sum() {
    let retries =
        Retries { ok: 31, later: 14, given_up: 2, done_before: 812, paused: 200 * SECOND, ..Retries::default() };
    let sum = Outcomes { ok: 498, failed: 2, retries, ..outcomes(&["-r", "5/s"]) };
    let expected = "498 ok (31 after a retry), 2 failed, 14 told to wait (paused 3m 20s), 2 not tried again, \
                    812 done before; 1 s (limit 5/s)";
    assert_eq!(sum.closing(SECOND, 0, ("", 0)), [expected]);
}

#[test]
fn a_share_of_failures_counts_from_20_ends_on() {
    let with = |max_fail: &str, ok, failed| {
        let outcomes = outcomes(&["-r", "5/s", "--max-fail", max_fail]);
        Outcomes { ok, failed, ..outcomes }.has_failed_enough()
    };
    assert!(!with("3", 0, 2) && with("3", 0, 3));
    assert!(!with("10%", 0, 19), "too few have ended");
    assert!(with("10%", 18, 2) && !with("10%", 19, 1) && !with("10%", 20, 0));
}

#[test]
fn overlapping_pauses_count_once() {
    let mut retries = Retries::default();
    let mut pause = |from, seconds| {
        retries.wait(from, Duration::from_secs(seconds), Some(Duration::from_secs(seconds)));
        (retries.paused, retries.later)
    };
    assert_eq!(
        [(0, 10), (5 * SECOND, 10), (6 * SECOND, 1)].map(|(from, long)| pause(from, long)).last(),
        Some(&(15 * SECOND, 3))
    );
    assert_eq!(pause(20 * SECOND, 1), (16 * SECOND, 4));
}

/// The server requested a wait of two minutes for this unit, but serves other units. So there is no pause.
#[test]
fn a_unit_that_waits_alone_pauses_nobody() {
    let now = Instant::now();
    let alone = Ended {
        job: Arc::default(),
        number: 3,
        outcome: Outcome::Killed(9),
        verdict: Verdict::Later(120 * SECOND),
        due_in: Some(Duration::from_secs(120)),
        pause: Paused::default(),
        pace: None,
        reply: Reply::default(),
        cost: None,
        waited: Duration::ZERO,
        started: now,
        at: now,
        slot: 0,
    };
    let mut outcomes = outcomes(&["-r", "5/s", "--attempts", "9"]);
    assert_eq!(outcomes.end(&alone, 0, 0), [""; 0]);
    let retries = &outcomes.retries;
    assert_eq!((retries.due, retries.later, retries.paused, retries.paused_until), (120 * SECOND, 1, 0, 0));
    let all = Ended { pause: Paused { rest: Duration::from_secs(120), is_named: true, is_overlong: false }, ..alone };
    let lines = outcomes.end(&all, 0, 0);
    assert!(lines[0].contains("nothing starts for 2m") && outcomes.retries.paused == 120 * SECOND, "{lines:?}");
}

/// Two commands request the same wait, the second one 300 ms after the first. The pause is longer for the first.
#[test]
fn a_pause_that_another_command_extends_is_told_from_now() {
    let ended = ended(&Arc::default(), Outcome::Killed(9), Verdict::Later(3600 * SECOND));
    let pause = Paused { rest: Duration::from_millis(3_600_300), is_named: true, is_overlong: false };
    let mut outcomes = outcomes(&["-r", "5/s", "--attempts", "9"]);
    let lines = outcomes.end(&Ended { pause, ..ended }, 0, SECOND / 2);
    assert!(lines[0].contains("nothing starts for 1h") && !lines[0].contains("1h 1s"), "{lines:?}");
    assert_eq!(outcomes.retries.paused, 3600 * SECOND + 3 * SECOND / 10);
}

/// Units of 10 bytes each. The first run was stopped after 900 of 1000 units. In the second run every tenth unit had
/// failed.
#[test]
fn units_done_before_do_not_distort_the_time_left() {
    let known = |known, done_before| {
        let mut outcomes = outcomes(&["-r", "5/s", "--done", "x"]);
        outcomes.retries.known = known;
        outcomes.set_skipped(0, done_before);
        outcomes
    };
    assert_eq!(known(0, 0).commands_unread(64, 640, 9360), 936);
    assert_eq!(known(900, 900).commands_unread(64, 9640, 360), 36, "all of the rest is new");
    assert_eq!(known(900, 576).commands_unread(64, 6400, 3600), 36, "a tenth of the rest is");
    assert_eq!(known(5000, 0).commands_unread(64, 640, 9360), 936, "the list has units of other inputs");
}

/// `-n` may be any number.
#[test]
fn counts_of_commands_with_many_units_do_not_overflow() {
    let most = u64::MAX.to_string();
    let mut outcomes = outcomes(&["-r", "5/s", "-n", &most]);
    outcomes.set_skipped(0, 3);
    assert_eq!(outcomes.commands_unread(2, 10, 40), 8);
    outcomes.leave("stopped".to_owned());
    let units_left =
        |outcomes: &Outcomes, unread| outcomes.closing(0, 0, unread)[0].split("; ").next().map(str::to_owned);
    for unread in [("about ", 3), ("", 1)] {
        assert_eq!(units_left(&outcomes, unread), Some("stopped: units are left".to_owned()));
    }
    assert_eq!(units_left(&outcomes, ("at least ", 3)), Some("stopped: at least 3 units are left".to_owned()));
}
