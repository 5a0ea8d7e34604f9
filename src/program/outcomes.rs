//! The outcomes of the commands: the counts, the line for each that failed, and the closing line.

mod left;
mod once;
mod ran;
mod reached;
mod retries;

use super::args::MaxFail;
use super::exit::Exit;
use super::failure::failure;
use super::names::{End, Names, ON_TERMINAL, shown};
use super::task::Launch;
use super::unit_name::{blank_skipped, counted, nonzero, scaled};
use left::Left;
use once::OnceEnd;
use ran::Ran;
use reached::Starts;
use retries::Retries;
use std::collections::BTreeMap;
use std::io::ErrorKind::{BrokenPipe, TimedOut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use throttle::launch::{Ended, Job, Key, Outcome, Success, Template, Verdict};
use throttle_limits::clock::{self, Nanos, SECOND};
use throttle_limits::limits::Policy;
use throttle_limits::rate::Rate;

/// A hint is given if all slots were taken for this long.
const SLOTS_TAKEN: Nanos = 10 * SECOND;

/// A mean of fewer costs says nothing.
const LEAST_FOR_MEAN: u64 = 10;

/// A share of failures says nothing before so many have ended.
const LEAST_FOR_PERCENT: u64 = 20;

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "seven are options, two have happened or not")]
pub(crate) struct Outcomes {
    pub(super) quiet: bool,
    pub(super) trace: bool,
    /// Whether there are hints, and totals also after a success: on a terminal, or if the user asked for them. cron would
    /// mail them.
    pub(super) sums_up: bool,
    names: Names,
    /// What messages call the command.
    command: String,
    /// Only if the name of the command depends on the unit.
    template: Option<Template>,
    /// How the user can allow a command to use the terminal.
    terminal: &'static str,
    /// `limit 5/s`: as the user wrote them.
    limits: String,
    /// Commands at once; 0: no cap.
    jobs: u32,
    /// Units for each command.
    max_args: u64,
    /// How many commands the limits let through, if they count units.
    pace: Option<Rate>,
    /// Whether the number of jobs is worth a hint: it is not chosen.
    hints_at_jobs: bool,
    hinted: bool,
    /// Whether a unit that ends in CR is worth a hint.
    hints_at_cr: bool,
    /// Whether commands had to wait, since the system had no more files or processes.
    pub(super) waits_for_room: bool,
    /// When the hint was last considered.
    looked: Nanos,
    /// Whether a key that takes most slots is worth a hint: the number of its jobs is not chosen.
    hints_at_keys: bool,
    /// When those that run have started, and their keys.
    running: BTreeMap<u64, (Nanos, Key)>,
    durations: Nanos,
    ran: Ran,
    starts: Starts,
    started: u64,
    ok: u64,
    failed: u64,
    timed_out: u64,
    killed: u64,
    /// Ended because the run ended.
    stopped: u64,
    skipped: u64,
    pub(super) retries: Retries,
    pub(super) left: Left,
    /// Whether a limit counts a cost of each unit.
    is_priced: bool,
    /// Of the commands whose reply names a cost: how many, the sum of these costs, and the sum of what was charged.
    told: [u64; 3],
    /// The unit that was read and not started, for the last line.
    next: Option<String>,
    /// Why commands are ended early.
    interrupted: Option<&'static str>,
    /// No more commands are started.
    pub(super) starts_no_more: bool,
    pub(super) exit: Exit,
    /// There is one command, whose end is ours.
    pub(super) is_once: bool,
    /// How that ended, unless it is tried again.
    once: Option<OnceEnd>,
}

impl Outcomes {
    /// `policy` is in force; `limits` are the same as the user wrote them.
    pub(crate) fn new(launch: &Launch, policy: &Policy, limits: &str, on_terminal: bool) -> Self {
        let Launch { commands, reporting, .. } = launch;
        let most = if on_terminal { ON_TERMINAL } else { u64::MAX };
        let again = launch.flags.again.policy(0, Duration::ZERO);
        let is_once = launch.call.is_some();
        Outcomes {
            quiet: reporting.quiet,
            trace: launch.flags.trace,
            is_once,
            sums_up: !is_once && reporting.sums_up(on_terminal),
            hints_at_cr: !is_once
                && reporting.sums_up(on_terminal)
                && !commands.shape.to_stdin
                && commands.shape.skip_blank,
            names: Names::new(commands, if reporting.quiet { 0 } else { most }),
            command: commands.name(),
            template: Some(&commands.template).filter(|template| template.name().is_none()).cloned(),
            terminal: match (launch.flags.jobs, launch.flags.timeout) {
                (Some(1), Some(_)) => "without --timeout it may have it",
                (_, Some(_)) => "with -j 1 and without --timeout it may have it",
                _ => "with -j 1 it may have it",
            },
            limits: match limits {
                "unlimited" => "no limit".to_owned(),
                limits => format!("limit {limits}"),
            },
            jobs: launch.flags.jobs(),
            max_args: commands.shape.max_args.max(1),
            hints_at_keys: policy.of_keys().is_some_and(|keys| keys.jobs.is_none()),
            is_priced: policy.has_costs() || policy.of_keys().is_some_and(|keys| keys.each.has_costs()),
            pace: policy.of_units().fastest(),
            hints_at_jobs: launch.flags.jobs.is_none(),
            retries: Retries {
                max_fail: launch.flags.again.max_fail,
                goes_on_after_255: is_once || again.is_some_and(|again| again.goes_on_after_255()),
                ..Retries::default()
            },
            ..Outcomes::default()
        }
    }

    /// Units that were left out: blank ones, and those that an earlier run has done.
    pub(super) fn set_skipped(&mut self, skipped: u64, done_before: u64) {
        (self.skipped, self.retries.done_before) = (skipped, done_before);
    }

    /// How many commands the rest of the input is for, if they were `commands` for `bytes` of it and `unread` bytes are
    /// left. Units that were done before may all be at the beginning of the input: so what the list holds beyond those
    /// that were skipped is subtracted from the rest. If that leaves a quarter or less, the input so far is the measure.
    pub(super) fn commands_unread(&self, commands: u64, bytes: u64, unread: u64) -> u64 {
        let Retries { done_before, known, .. } = self.retries;
        let units = commands.saturating_mul(self.max_args).saturating_add(done_before);
        let all = scaled(units, unread, bytes) / self.max_args;
        let new = all.saturating_sub(known.saturating_sub(done_before) / self.max_args);
        let as_so_far = scaled(commands, unread, bytes);
        if new > all / 4 { new.max(as_so_far) } else { as_so_far }
    }

    /// How many commands so many units are for.
    pub(super) fn commands_for(&self, units: u64) -> u64 {
        units.div_ceil(self.max_args)
    }

    /// `waiting for 3 commands`, if no more are started.
    pub(super) fn waiting(&self) -> Option<String> {
        let running = self.running.len() as u64;
        self.starts_no_more.then(|| format!("waiting for {}", counted(running, "command")))
    }

    /// From now on, a command that fails counts as stopped.
    pub(super) fn interrupt(&mut self, why: &'static str) {
        self.interrupted.get_or_insert(why);
    }

    /// The same, as nobody reads the output any more. That ends every pipe, and one line reports it: units are only counted.
    pub(super) fn lose_reader(&mut self) {
        self.interrupt("the reader is gone");
        self.names.stop();
    }

    /// Commands wait for others to end, since the system has no room for them. Returns whether nothing else limits how many
    /// run.
    pub(super) fn wait_for_room(&mut self) -> bool {
        self.waits_for_room = true;
        self.jobs == 0
    }

    pub(super) fn start(&mut self, job: &Job, attempt: u32, now: Nanos) {
        self.started += 1;
        self.starts.note(now);
        self.retries.waiting -= u64::from(attempt > 1).min(self.retries.waiting);
        self.running.insert(job.seq, (now, job.key.clone()));
        if attempt == 1 {
            self.next = None;
        }
    }

    pub(super) fn set_next(&mut self, first: Option<(u64, &[u8])>) {
        self.next = Some(self.names.next(first));
    }

    /// throttle itself has failed, not a command.
    pub(super) fn fail(&mut self) {
        self.exit = self.exit.max(Exit::Error);
    }

    /// What a message calls the first unit of `job`.
    pub(super) fn name(&self, job: &Job) -> String {
        self.names.first(job)
    }

    /// Counts an attempt that has ended. Returns the lines about it.
    pub(super) fn end(&mut self, ended: &Ended, now: Nanos) -> Vec<String> {
        let (job, outcome) = (&*ended.job, &ended.outcome);
        if let Some(cost) = ended.cost {
            self.told =
                [(0, 1), (1, cost), (2, job.charged)].map(|(place, more)| self.told[place].saturating_add(more));
        }
        self.retries.note_pace(ended.pace, &job.key);
        let started = self.running.remove(&job.seq).map_or(now, |(started, _)| started);
        let time = now.saturating_sub(started);
        self.durations += time;
        self.ran.note(outcome, time);
        self.once = OnceEnd::new(ended).filter(|_| self.is_once);
        match ended.verdict {
            Verdict::Ok => return Vec::new(),
            Verdict::Again(_) | Verdict::Later(_) => {
                let is_later = matches!(ended.verdict, Verdict::Later(_));
                self.retries.wait(now, ended.due_in.unwrap_or_default(), is_later.then_some(ended.pause.left));
                let line = || self.retries.long_pause(now, job.key.as_deref());
                return (is_later && !self.quiet && !ended.pause.is_overlong)
                    .then(line)
                    .flatten()
                    .into_iter()
                    .collect();
            }
            Verdict::Failed | Verdict::Stopped => {}
        }
        let (words, exit) =
            failure(job, outcome, || self.command_for(job), self.terminal, self.retries.goes_on_after_255);
        // An error such as a full disk is a failure, also in a run that was ended because of it.
        let is_lost = matches!(outcome, Outcome::OutputLost(error) if !matches!(error.kind(), BrokenPipe | TimedOut));
        if self.interrupted.is_some() && !is_lost {
            self.stopped += 1;
            return self.names.name(End::Stopped, job, "stopped");
        }
        self.failed += 1;
        self.timed_out += u64::from(matches!(outcome, Outcome::TimedOut));
        self.killed += u64::from(matches!(outcome, Outcome::Killed(_)));
        self.left.sent_away += u64::from(matches!(outcome, Outcome::SentAway));
        self.exit = self.exit.max(exit);
        if self.is_once && ended.number == 1 && matches!(outcome, Outcome::Exited(_)) {
            return Vec::new(); // Its exit code says it.
        }
        let is_too_long = self.is_once && matches!(outcome, Outcome::TooLong);
        let words = if is_too_long { "its words are too long for the system".to_owned() } else { words };
        let words = if ended.number > 1 { format!("{words}, attempt {}", ended.number) } else { words };
        self.names.name(End::Failed, job, &words)
    }

    /// Counts a command whose units are done.
    pub(super) fn done(&mut self, success: &Success) {
        self.ok += 1;
        self.retries.ok += u64::from(success.attempt > 1);
    }

    /// Counts commands that succeeded, but whose output was not printed; returns a line for each unit.
    pub(super) fn unprinted(&mut self, jobs: &[Arc<Job>]) -> Vec<String> {
        self.stopped += jobs.len() as u64;
        jobs.iter().flat_map(|job| self.names.name(End::Stopped, job, "its output was not printed")).collect()
    }

    /// How the program ends: as the command of --once did, if there is one and it has ended. Dies of a signal that it died of.
    pub(super) fn exit(&self) -> Exit {
        match self.once {
            Some(end) => end.exit(),
            None if self.is_once && self.exit == Exit::Error => Exit::OnceError,
            None => self.exit,
        }
    }

    /// Whether the command of --once has ended, and is not tried again.
    pub(super) fn has_ended_once(&self) -> bool {
        self.once.is_some()
    }

    /// Whether so many units have failed that nothing more should be launched.
    pub(super) fn has_failed_enough(&self) -> bool {
        let ended = self.ok + self.failed;
        match self.retries.max_fail {
            None => false,
            Some(MaxFail::Units(most)) => self.failed >= most.get(),
            Some(MaxFail::Percent(most)) => {
                ended >= LEAST_FOR_PERCENT && self.failed * 100 >= ended * u64::from(most) && self.failed > 0
            }
        }
    }

    /// Counts units whose further attempts will not be made; returns a line for each.
    pub(super) fn give_up(&mut self, jobs: &[Arc<Job>]) -> Vec<String> {
        self.retries.given_up += jobs.len() as u64;
        self.retries.waiting = self.retries.waiting.saturating_sub(jobs.len() as u64);
        jobs.iter().flat_map(|job| self.names.name(End::GivenUp, job, "not tried again")).collect()
    }

    /// Units are left, and the exit says so.
    pub(super) fn leave(&mut self, why: String) {
        self.left.why.get_or_insert(why);
        self.exit = self.exit.max(Exit::SentAway);
    }

    /// The run ends early. Units may be left.
    pub(super) fn leave_rest(&mut self, why: String) {
        if !self.left.is_all_started || self.retries.given_up + self.retries.unstarted > 0 {
            self.leave(why);
        }
    }

    /// The time until which a server has asked to wait, if it is in the future.
    pub(super) fn paused_until(&self, now: Nanos) -> Option<Nanos> {
        Some(self.retries.paused_until).filter(|until| *until > now && !self.starts_no_more)
    }

    /// What a message calls the command that was run for `job`.
    fn command_for(&self, job: &Job) -> String {
        let name = self.template.as_ref().and_then(|template| template.fill(&job.units).next());
        let name = name.as_deref().and_then(|name| Path::new(name).file_name());
        name.map_or_else(|| self.command.clone(), |name| shown(name.as_bytes()))
    }

    /// A hint if all slots were taken for long. It is given once, and considered once a second.
    pub(super) fn hint(&mut self, now: Nanos, waited_for_jobs: impl FnOnce() -> Nanos) -> Option<String> {
        if self.hinted || !self.sums_up || now < self.looked + SECOND {
            return None;
        }
        self.looked = now;
        let hint = || self.hint_at_key().or_else(|| self.hint_at_jobs());
        let hint = (waited_for_jobs() >= SLOTS_TAKEN).then(hint).flatten();
        self.hinted = hint.is_some();
        hint
    }

    /// A hint at the first unit that ends in CR.
    pub(super) fn hint_at_cr(&mut self, job: &Job) -> Option<String> {
        let is_first = self.hints_at_cr && job.name().ends_with(b"\r");
        self.hints_at_cr &= !is_first;
        let hint =
            "hint: the units end in CR, which the commands get, too; to drop it: tr -d '\\r' < FILE | throttle …";
        is_first.then(|| hint.to_owned())
    }

    /// Which key takes most slots.
    fn hint_at_key(&self) -> Option<String> {
        let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
        for key in self.running.values().filter_map(|(_, key)| key.as_ref()) {
            *counts.entry(key).or_default() += 1;
        }
        let (key, count) = counts.into_iter().max_by_key(|(_, count)| *count).filter(|_| self.hints_at_keys)?;
        let all = usize::try_from(self.jobs).unwrap_or(usize::MAX);
        (4 * count > 3 * all && all > 2).then(|| {
            let key = shown(key);
            format!("{count} of {all} slots are taken by '{key}'; ,jobs=2 keeps the others going")
        })
    }

    /// Which `-j` the rate needs.
    fn hint_at_jobs(&self) -> Option<String> {
        let (pace, needs) = self.jobs_needed().filter(|_| self.hints_at_jobs)?;
        Some(format!("{} jobs at once hold the work back, not the rate; {pace} needs about -j {needs}", self.jobs))
    }

    /// `50/s` and 51, from the mean time of a command: how many jobs the limits need, or what the server allows of
    /// them, if it is more than there are. With fewer, starting the commands takes the time.
    fn jobs_needed(&self) -> Option<(String, u128)> {
        let mean = u128::from(self.durations.checked_div(self.ended())?);
        let (pace, units, period) = match (&self.retries.learned, self.pace) {
            (Some((interval, None)), _) => (self.retries.learned_text()?, 1, interval.as_nanos()),
            (_, pace) => pace.map(|pace| (pace.to_string(), pace.units().into(), pace.period().into()))?,
        };
        let jobs = (mean * units).div_ceil(period);
        (jobs > self.jobs.into()).then_some((pace, jobs + 1))
    }

    /// `23 starts a second of 100 allowed: 16 jobs were busy all the time; -j 70 would reach it`, and that number.
    /// `waited_for_jobs`: how long starts waited for a free slot.
    pub(super) fn not_reached(&self, waited_for_jobs: Nanos) -> Option<(String, u128)> {
        // Commands that were interrupted ended sooner than they would have.
        let is_of_jobs =
            self.jobs > 0 && self.interrupted.is_none() && self.retries.learned.is_none() && !self.waits_for_room;
        let text = self.starts.short_of(self.pace.filter(|_| is_of_jobs)?, waited_for_jobs, self.jobs)?;
        let (_, needed) = self.jobs_needed()?;
        Some((format!("{text}; -j {needed} would reach it"), needed))
    }

    /// `5 of 16 slots busy`, and how many the rate needs if all of them are.
    pub(super) fn slots_text(&self) -> Option<String> {
        let (running, jobs) = (self.running.len(), usize::try_from(self.jobs).unwrap_or(usize::MAX));
        let needs = if running >= jobs { self.jobs_needed() } else { None };
        let needs = needs.map_or_else(String::new, |(pace, needs)| format!(" ({pace} needs about -j {needs})"));
        (jobs > 0).then(|| format!("{running} of {} busy{needs}", counted(self.jobs.into(), "slot")))
    }

    pub(super) fn ended(&self) -> u64 {
        self.started.saturating_sub(self.running.len() as u64)
    }

    /// Whether the run ends because a command ended so.
    pub(super) fn stops_at(&self, outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Exited(255)) && !self.retries.goes_on_after_255
    }

    /// Units that will not be tried any more.
    pub(super) fn finished(&self) -> u64 {
        self.ok + self.failed + self.stopped + self.retries.given_up
    }

    /// How long until everything has ended, if `units` are still to be tried, also again, the last of them in `last_start`
    /// by the limits. `None` if that is not known: all slots are taken and no command has ended yet, or no more will be
    /// started.
    pub(super) fn time_left(&self, units: u64, last_start: Nanos, now: Nanos) -> Option<Nanos> {
        let last_due = if self.retries.waiting > 0 { self.retries.due.saturating_sub(now) } else { 0 };
        let last_start = last_start.max(last_due);
        let (running, jobs) = (self.running.len() as u64, u64::from(self.jobs));
        let is_full = jobs > 0 && running >= jobs;
        if self.starts_no_more || (self.ended() == 0 && is_full) {
            return None;
        }
        let mean = self.durations / self.ended().max(1);
        let left_of = |(started, _): &(Nanos, _)| mean.saturating_sub(now.saturating_sub(*started));
        let of_running: u64 = self.running.values().map(left_of).sum();
        let work = mean.saturating_mul(units).saturating_add(of_running);
        let by_jobs = work.checked_div(jobs).unwrap_or(0);
        let last_end = if units > 0 { last_start.saturating_add(mean) } else { 0 };
        let longest = self.running.values().map(left_of).max().unwrap_or(0);
        Some(last_end.max(by_jobs).max(longest))
    }

    /// The counts of commands and units, each with its name.
    fn tallies(&self) -> [(u64, &'static str); 13] {
        let Retries { ok, later, waiting, given_up, unstarted, done_before, .. } = self.retries;
        [
            (self.started, "started"),
            (self.running.len() as u64, "running"),
            (self.ok, "ok"),
            (self.failed, "failed"),
            (self.timed_out, "timed out"),
            (self.killed, "killed"),
            (self.stopped, "stopped"),
            (ok, "ok after retry"),
            (later, "told to wait"),
            (waiting, "to be tried again"),
            (given_up, "not tried again"),
            (unstarted, "read and not started"),
            (done_before, "done before"),
        ]
    }

    /// `, 3 failed, 1 killed`: the counts with these names that are not 0.
    fn some(&self, names: &[&str]) -> String {
        nonzero(self.tallies().into_iter().filter(|(_, name)| names.contains(name)))
    }

    /// `205 ok, 3 failed`
    pub(super) fn ends(&self) -> String {
        format!("{} ok{}", self.ok, self.some(&["failed"]))
    }

    /// `213 started, 5 running, 205 ok, 3 failed`
    pub(super) fn counts(&self) -> String {
        let (started, running) = (self.started, self.running.len());
        let ended = self.some(&["failed", "timed out", "killed"]);
        let blank = nonzero([(self.skipped, blank_skipped(self.skipped))]);
        let waiting = self.some(&["to be tried again", "done before"]);
        format!("{started} started, {running} running, {} ok{ended}{blank}{waiting}", self.ok)
    }

    /// The last lines: how many failures were not named, and the totals. None after a success without a terminal: cron
    /// would mail them.
    /// `unread`: how many commands were not started, and how exact that is.
    pub(super) fn closing(&self, elapsed: Nanos, keys: u64, (about, unread): (&str, u64)) -> Vec<String> {
        let is_success = self.exit == Exit::Success && self.interrupted.is_none();
        if self.quiet || self.is_once || (is_success && !self.sums_up) {
            return Vec::new();
        }
        let mut lines: Vec<String> = self.names.more().into_iter().collect();
        let line = self.interrupted.map_or_else(|| self.sum(elapsed, keys), |why| self.interrupted_line(why));
        let separator = if self.interrupted.is_some() { ", " } else { "; " };
        let next = self.next.as_ref().map(|next| format!("{separator}{next}"));
        lines.extend(self.hint_at_cost());
        lines.extend(self.retries.slowed_down());
        let commands = unread.saturating_add(self.retries.given_up).saturating_add(self.left.sent_away);
        let left = self.left.line((about, commands), self.max_args);
        lines.extend(left.filter(|_| self.interrupted.is_none()));
        lines.push(line + &next.unwrap_or_default());
        lines
    }

    /// A hint if the costs in replies differ much, on average, from what was charged.
    fn hint_at_cost(&self) -> Option<String> {
        let [count, cost, charged] = self.told;
        if !self.is_priced || !self.sums_up || self.max_args > 1 || count < LEAST_FOR_MEAN {
            return None;
        }
        let (mean, charged) = (cost.div_ceil(count), charged / count);
        let why = match () {
            () if mean <= charged / 2 => "lets more of them run at once",
            () if mean > charged.saturating_add(charged / 2) => "keeps them within the limit",
            () => return None,
        };
        Some(format!("hint: commands cost {mean} on average, charged {charged}; cost={mean} {why}"))
    }

    fn sum(&self, elapsed: Nanos, keys: u64) -> String {
        let mut failed = format!("{} failed", self.failed);
        if self.timed_out > 0 {
            failed = format!("{failed} ({} timed out)", self.timed_out);
        }
        let mut ok = format!("{} ok", self.ok);
        if self.retries.ok > 0 {
            ok = format!("{ok} ({} after a retry)", self.retries.ok);
        }
        let keys = if keys > 0 { format!("; {}", counted(keys, "key")) } else { String::new() };
        format!("{ok}, {failed}{}{keys}; {} ({})", self.more(), clock::shown(elapsed), self.limits)
    }

    /// `, 14 told to wait (paused 3m 20s), 812 done before, 2 blank lines skipped`
    fn more(&self) -> String {
        let paused = match self.retries.paused {
            0 => String::new(),
            paused => format!(" (paused {})", clock::shown(paused)),
        };
        let later = nonzero([(self.retries.later, format!("told to wait{paused}"))]);
        let rest = self.some(&["not tried again", "read and not started", "done before"]);
        later + &rest + &nonzero([(self.skipped, blank_skipped(self.skipped))])
    }

    fn interrupted_line(&self, why: &str) -> String {
        let (ends, more) = (self.ends(), self.some(&["not tried again", "read and not started"]));
        format!("{why}: {ends}, {} stopped{more}", self.stopped)
    }

    /// How long commands ran, in words.
    pub(super) fn ran_text(&self) -> Option<String> {
        self.ran.text()
    }

    /// The same for programs.
    pub(super) fn ran_json(&self) -> serde_json::Value {
        self.ran.json()
    }

    pub(super) fn json(&self, waited_for_jobs: Nanos) -> serde_json::Value {
        let more = [(self.skipped, "blank skipped"), (self.retries.paused, "paused ns")];
        let fields = self.tallies().into_iter().chain(more);
        let counts = fields.map(|(count, name)| (name.replace(' ', "_"), serde_json::Value::from(count)));
        let needed = self.not_reached(waited_for_jobs).and_then(|(_, needed)| u64::try_from(needed).ok());
        let learned = self.retries.learned_per_second().into();
        counts.chain([("learned".to_owned(), learned), ("jobs_needed".to_owned(), needed.into())]).collect()
    }
}

#[cfg(test)]
mod tests;
