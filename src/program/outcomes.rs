//! The outcomes of the commands: the counts, the line about each failure, and the closing lines.

mod once;
mod ran;
mod reached;
mod retries;
mod unfinished;

use super::args::MaxFail;
use super::exit::Exit;
use super::failure::failure;
use super::names::{End, MAX_NAMED_ON_TERMINAL, Names, shown};
use super::task::Launch;
use super::unit_name::{blank_skipped, counted, nonzero, scaled};
use once::OnceEnd;
use ran::Ran;
use reached::Starts;
use retries::Retries;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use throttle::flow::BYTE_ORDER_MARK;
use throttle::launch::{Ended, Job, Key, Outcome, Success, Template, Verdict};
use throttle_limits::clock::{self, Nanos, SECOND};
use throttle_limits::limits::Policy;
use throttle_limits::rate::Rate;
use unfinished::Unfinished;

/// A hint is printed if all slots were taken for at least this time.
const MIN_TIME_SLOTS_TAKEN: Nanos = 10 * SECOND;

/// The fewest costs whose mean is meaningful.
const MIN_COSTS_FOR_MEAN: u64 = 10;

/// The fewest ended units for which a share of failures is meaningful.
const MIN_ENDED_FOR_PERCENT: u64 = 20;

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "eight are options, two have happened or not")]
pub(crate) struct Outcomes {
    pub(super) quiet: bool,
    pub(super) trace: bool,
    /// Whether to print hints, and totals even after a success: on a terminal, or if the user requested them. Elsewhere
    /// cron would mail them.
    pub(super) sums_up: bool,
    names: Names,
    /// The name of the command in messages.
    command: String,
    /// The template, if the name of the command depends on the unit.
    template: Option<Template>,
    /// The advice on letting a command use the terminal.
    terminal: &'static str,
    /// The limits as the user wrote them: `limit 5/s`.
    limits: String,
    /// The most commands at once; 0 is no cap.
    jobs: u32,
    /// The most units for each command.
    max_args: u64,
    /// The rate of commands that the limits allow, if they count units.
    pace: Option<Rate>,
    /// Whether to hint at the number of jobs: yes, unless the user has chosen it.
    hints_at_jobs: bool,
    hinted: bool,
    /// Whether to hint at a unit that ends with CR.
    hints_at_cr: bool,
    /// Whether to hint at a unit that begins with a byte-order mark.
    hints_at_mark: bool,
    /// Whether commands had to wait because the system had no more files or processes.
    pub(super) waits_for_room: bool,
    /// The last time at which `hint` checked the slots.
    considered: Nanos,
    /// Whether to hint at a key that takes most slots: yes, if there are limits for each key without `jobs=`.
    hints_at_keys: bool,
    /// The start and the key of each running command.
    running: BTreeMap<u64, (Nanos, Key)>,
    durations: Nanos,
    pub(super) ran: Ran,
    starts: Starts,
    /// Commands that were started.
    started: u64,
    /// Commands whose units will not be tried any more.
    finished: u64,
    /// Units that are done. This and the following counts are counts of units, however many a command has.
    ok: u64,
    failed: u64,
    timed_out: u64,
    killed: u64,
    /// Units whose command ended because the run ended.
    stopped: u64,
    skipped: u64,
    pub(super) retries: Retries,
    pub(super) unfinished: Unfinished,
    /// Whether a limit counts a cost of each unit.
    is_priced: bool,
    /// Totals of the commands whose reply names a cost: their number, the sum of these costs, and the sum of the
    /// charged costs.
    reply_costs: [u64; 3],
    /// The first unit that was read but not started, for the last line.
    next: Option<String>,
    /// The reason to end commands early.
    interrupted: Option<&'static str>,
    /// Whether no more commands are started.
    pub(super) starts_no_more: bool,
    pub(super) exit: Exit,
    /// Whether there is a single command (`--once`), whose exit becomes the exit of this program.
    pub(super) is_once: bool,
    /// The end of that command, unless it is tried again.
    once: Option<OnceEnd>,
}

impl Outcomes {
    /// `policy` is the policy in force. `limits` has the limits as the user wrote them.
    pub(crate) fn new(launch: &Launch, policy: &Policy, limits: &str, on_terminal: bool) -> Self {
        let Launch { commands, reporting, .. } = launch;
        let most = if on_terminal { MAX_NAMED_ON_TERMINAL } else { u64::MAX };
        let again = launch.flags.again.policy(Duration::ZERO);
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
            hints_at_mark: !is_once && reporting.sums_up(on_terminal) && launch.flags.columns.is_none(),
            names: Names::new(commands, if reporting.quiet { 0 } else { most }),
            command: commands.name(),
            template: Some(&commands.template).filter(|template| template.name().is_none()).cloned(),
            terminal: match (launch.flags.jobs, launch.flags.timeout) {
                (Some(1), Some(_)) => "to let it use the terminal leave --timeout out",
                (_, Some(_)) => "to let it use the terminal, write -j 1 and leave --timeout out",
                _ => "to let it use the terminal, write -j 1",
            },
            limits: match limits {
                "unlimited" => "no limit".to_owned(),
                limits => format!("limit {limits}"),
            },
            jobs: launch.flags.jobs(),
            max_args: commands.shape.max_args.max(1),
            hints_at_keys: policy.of_keys().is_some_and(|keys| keys.jobs.is_none()),
            is_priced: policy.has_costs() || policy.of_keys().is_some_and(|keys| keys.each.has_costs()),
            pace: policy.of_units().pace(),
            hints_at_jobs: launch.flags.jobs.is_none(),
            retries: Retries {
                max_fail: launch.flags.again.max_fail,
                goes_on_after_255: is_once || again.is_some_and(|again| again.goes_on_after_255()),
                ..Retries::default()
            },
            ..Outcomes::default()
        }
    }

    /// Sets the numbers of units that were left out: blank units, and units that an earlier run has done.
    pub(super) fn set_skipped(&mut self, skipped: u64, done_before: u64) {
        (self.skipped, self.retries.done_before) = (skipped, done_before);
    }

    /// Estimates the number of commands for the rest of the input. Up to now there were `commands` for `bytes` of the
    /// input, and `unread` bytes remain. The share of skipped units up to now may not hold for the rest, because all
    /// done units may be at the beginning of the input. So only units of the done list that were not skipped yet are
    /// subtracted from the rest. If a quarter of the rest or less remains after that, the estimate assumes that the
    /// rest is like the input up to now.
    pub(super) fn commands_unread(&self, commands: u64, bytes: u64, unread: u64) -> u64 {
        let Retries { done_before, known, .. } = self.retries;
        let units = commands.saturating_mul(self.max_args).saturating_add(done_before);
        let all = scaled(units, unread, bytes) / self.max_args;
        let new = all.saturating_sub(known.saturating_sub(done_before) / self.max_args);
        let as_so_far = scaled(commands, unread, bytes);
        if new > all / 4 { new.max(as_so_far) } else { as_so_far }
    }

    /// The number of commands for this number of units.
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

    /// Interrupts the run, because nothing reads the output any more. One line reports this. Units that are stopped
    /// because of it are counted, but not named.
    pub(super) fn lose_reader(&mut self) {
        self.interrupt("the reader of the output is gone");
        self.names.stop();
    }

    /// Records that new commands wait for other commands to end, because the system has no more files or processes.
    /// Returns whether there is no cap on the number of running commands (`-j 0`).
    pub(super) fn wait_for_room(&mut self) -> bool {
        self.waits_for_room = true;
        self.jobs == 0
    }

    pub(super) fn start(&mut self, job: &Job, attempt: u32, now: Nanos) {
        self.started += 1;
        self.starts.note(now);
        if attempt > 1 {
            self.retries.waits_no_more(job);
        }
        self.running.insert(job.seq, (now, job.key.clone()));
        if attempt == 1 {
            self.next = None;
        }
    }

    pub(super) fn set_next(&mut self, first: Option<(u64, &[u8])>) {
        self.next = Some(self.names.next(first));
    }

    /// Records that throttle itself has failed, not a command.
    pub(super) fn fail(&mut self) {
        self.exit = self.exit.max(Exit::Error);
    }

    /// The name of the first unit of `job`, for messages.
    pub(super) fn name(&self, job: &Job) -> String {
        self.names.first(job)
    }

    /// Counts an attempt that has ended at `at`, and returns the lines about it. Another command may have extended its
    /// pause since, so the pause is announced with the rest from `now`.
    pub(super) fn end(&mut self, ended: &Ended, at: Nanos, now: Nanos) -> Vec<String> {
        let (job, outcome) = (&*ended.job, &ended.outcome);
        let units = job.unit_count();
        if let Some(cost) = ended.cost {
            self.reply_costs =
                [(0, 1), (1, cost), (2, job.charged)].map(|(place, more)| self.reply_costs[place].saturating_add(more));
        }
        self.retries.note_pace(ended.pace, &job.key);
        let started = self.running.remove(&job.seq).map_or(at, |(started, _)| started);
        let time = at.saturating_sub(started);
        self.durations += time;
        self.ran.note(outcome, time);
        self.once = OnceEnd::new(ended).filter(|_| self.is_once);
        match ended.verdict {
            Verdict::Ok => return Vec::new(),
            Verdict::Again(_) | Verdict::Later(_) => {
                let is_later = matches!(ended.verdict, Verdict::Later(_));
                self.retries.waiting_units += units;
                self.retries.wait(at, ended.due_in.unwrap_or_default(), is_later.then_some(ended.pause.rest));
                let line = || self.retries.long_pause(now, job.key.as_deref(), ended.pause.is_named);
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
        if ended.verdict == Verdict::Stopped {
            self.stopped += units;
            self.finished += 1;
            return self.names.name(End::Stopped, job, "stopped");
        }
        self.failed += units;
        self.finished += 1;
        self.timed_out += if matches!(outcome, Outcome::TimedOut) { units } else { 0 };
        self.killed += if matches!(outcome, Outcome::Killed(_)) { units } else { 0 };
        self.unfinished.sent_away += u64::from(matches!(outcome, Outcome::SentAway));
        self.exit = self.exit.max(exit);
        if self.is_once && ended.number == 1 && matches!(outcome, Outcome::Exited(_)) {
            return Vec::new(); // The exit code reports it.
        }
        let is_too_long = self.is_once && matches!(outcome, Outcome::TooLong);
        let words = if is_too_long { "its arguments are too long for the system".to_owned() } else { words };
        let words = if ended.number > 1 { format!("{words}, attempt {}", ended.number) } else { words };
        self.names.name(End::Failed, job, &words)
    }

    /// Counts a command whose units are done.
    pub(super) fn done(&mut self, success: &Success) {
        let units = success.job.unit_count();
        self.ok += units;
        self.finished += 1;
        self.retries.ok += if success.attempt > 1 { units } else { 0 };
    }

    /// Counts commands that succeeded, but whose output was not printed. Returns a line for each unit.
    pub(super) fn unprinted(&mut self, jobs: &[Arc<Job>]) -> Vec<String> {
        self.stopped += jobs.iter().map(|job| job.unit_count()).sum::<u64>();
        self.finished += jobs.len() as u64;
        jobs.iter().flat_map(|job| self.names.name(End::Stopped, job, "its output was not printed")).collect()
    }

    /// The exit of the program. With --once, it is the exit of the command, once the command has ended. If a signal
    /// killed the command, the program dies of the same signal.
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

    /// Whether the failures have reached `--max-fail`, so that nothing more should be launched.
    pub(super) fn has_failed_enough(&self) -> bool {
        let ended = self.ok + self.failed;
        match self.retries.max_fail {
            None => false,
            Some(MaxFail::Units(most)) => self.failed >= most.get(),
            Some(MaxFail::Percent(most)) => {
                ended >= MIN_ENDED_FOR_PERCENT && self.failed * 100 >= ended * u64::from(most) && self.failed > 0
            }
        }
    }

    /// Counts units whose further attempts will not be made. Returns a line for each unit.
    pub(super) fn give_up(&mut self, jobs: &[Arc<Job>]) -> Vec<String> {
        self.finished += jobs.len() as u64;
        self.retries.given_up_commands += jobs.len() as u64;
        self.retries.given_up += jobs.iter().map(|job| job.unit_count()).sum::<u64>();
        for job in jobs {
            self.retries.waits_no_more(job);
        }
        jobs.iter().flat_map(|job| self.names.name(End::GivenUp, job, "not tried again")).collect()
    }

    /// Records that units are left, which the exit code reports.
    pub(super) fn leave(&mut self, why: String) {
        self.unfinished.why.get_or_insert(why);
        self.exit = self.exit.max(Exit::SentAway);
    }

    /// Records that the run ends early, if units are left.
    pub(super) fn leave_rest(&mut self, why: String) {
        if !self.unfinished.is_all_started || self.retries.given_up + self.retries.unstarted > 0 {
            self.leave(why);
        }
    }

    /// The end of the pause that a server requested, if it is in the future.
    pub(super) fn paused_until(&self, now: Nanos) -> Option<Nanos> {
        Some(self.retries.paused_until).filter(|until| *until > now && !self.starts_no_more)
    }

    /// The name of the command that ran for `job`, for messages.
    fn command_for(&self, job: &Job) -> String {
        let name = self.template.as_ref().and_then(|template| template.fill(&job.units).next());
        let name = name.as_deref().and_then(|name| Path::new(name).file_name());
        name.map_or_else(|| self.command.clone(), |name| shown(name.as_bytes()))
    }

    /// A hint if all slots were taken for long. It is printed once, and considered once a second.
    pub(super) fn hint(&mut self, now: Nanos, waited_for_jobs: impl FnOnce() -> Nanos) -> Option<String> {
        if self.hinted || !self.sums_up || now < self.considered + SECOND {
            return None;
        }
        self.considered = now;
        let hint = || self.hint_at_key().or_else(|| self.hint_at_jobs());
        let hint = (waited_for_jobs() >= MIN_TIME_SLOTS_TAKEN).then(hint).flatten();
        self.hinted = hint.is_some();
        hint
    }

    /// A hint about the first unit that ends with CR.
    pub(super) fn hint_at_cr(&mut self, job: &Job) -> Option<String> {
        let is_first = self.hints_at_cr && job.name().ends_with(b"\r");
        self.hints_at_cr &= !is_first;
        let hint =
            "hint: the units end with CR, which the commands also get; to remove it: tr -d '\\r' < FILE | throttle …";
        is_first.then(|| hint.to_owned())
    }

    /// A hint about the first unit that begins with a byte-order mark. Columns never have the mark.
    pub(super) fn hint_at_mark(&mut self, job: &Job) -> Option<String> {
        let is_first = self.hints_at_mark && job.name().starts_with(BYTE_ORDER_MARK);
        self.hints_at_mark &= !is_first;
        let hint = "hint: a unit begins with a byte-order mark, which its command also gets; to remove it: \
                    sed 's/^\\xEF\\xBB\\xBF//' FILE | throttle …";
        is_first.then(|| hint.to_owned())
    }

    /// A hint about the key that takes most slots.
    fn hint_at_key(&self) -> Option<String> {
        let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
        for key in self.running.values().filter_map(|(_, key)| key.as_ref()) {
            *counts.entry(key).or_default() += 1;
        }
        let (key, count) = counts.into_iter().max_by_key(|(_, count)| *count).filter(|_| self.hints_at_keys)?;
        let all = usize::try_from(self.jobs).unwrap_or(usize::MAX);
        (4 * count > 3 * all && all > 2).then(|| {
            let key = shown(key);
            format!("{count} of {all} slots are taken by '{key}'; ,jobs=2 leaves slots for other keys")
        })
    }

    /// A hint about the `-j` that the rate needs.
    fn hint_at_jobs(&self) -> Option<String> {
        let (pace, needs) = self.jobs_needed().filter(|_| self.hints_at_jobs)?;
        Some(format!(
            "the limit of {} jobs at once slows the run, not the rate; {pace} needs about -j {needs}",
            self.jobs
        ))
    }

    /// A rate and the `-j` that it needs, such as `50/s` and 51, from the mean time of a command. The rate is the pace
    /// that the server allows, or else the rate of the limits. `None` if there are enough jobs: then the time to start
    /// each command limits the run.
    fn jobs_needed(&self) -> Option<(String, u128)> {
        let mean = u128::from(self.durations.checked_div(self.ended())?);
        let (pace, units, period) = match (&self.retries.learned, self.pace) {
            (Some((interval, None)), _) => (self.retries.learned_text()?, 1, interval.as_nanos()),
            (_, pace) => pace.map(|pace| (pace.to_string(), pace.units().into(), pace.period().into()))?,
        };
        let jobs = (mean * units).div_ceil(period);
        (jobs > self.jobs.into()).then_some((pace, jobs + 1))
    }

    /// `23 starts a second, although 100 are allowed: 16 jobs were busy all the time; -j 70 would reach the rate`, and
    /// the number of jobs that it needs. `waited_for_jobs` is how long starts waited for a free slot.
    pub(super) fn not_reached(&self, waited_for_jobs: Nanos) -> Option<(String, u128)> {
        // Interrupted commands ended sooner than they would have.
        let is_of_jobs =
            self.jobs > 0 && self.interrupted.is_none() && self.retries.learned.is_none() && !self.waits_for_room;
        let text = self.starts.short_of(self.pace.filter(|_| is_of_jobs)?, waited_for_jobs, self.jobs)?;
        let (_, needed) = self.jobs_needed()?;
        Some((format!("{text}; -j {needed} would reach the rate"), needed))
    }

    /// `5 of 16 slots busy`, and the number of slots that the rate needs if all are busy.
    pub(super) fn slots_text(&self) -> Option<String> {
        let (running, jobs) = (self.running.len(), usize::try_from(self.jobs).unwrap_or(usize::MAX));
        let needs = if running >= jobs { self.jobs_needed() } else { None };
        let needs = needs.map_or_else(String::new, |(pace, needs)| format!(" ({pace} needs about -j {needs})"));
        (jobs > 0).then(|| format!("{running} of {} busy{needs}", counted(self.jobs.into(), "slot")))
    }

    pub(super) fn ended(&self) -> u64 {
        self.started.saturating_sub(self.running.len() as u64)
    }

    /// Whether a command with this outcome ends the run.
    pub(super) fn stops_at(&self, outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Exited(255)) && !self.retries.goes_on_after_255
    }

    /// The number of commands whose units will not be tried any more.
    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// The time until all commands have ended. `units` is the number of units to be tried or tried again. `last_start`
    /// is the time until the limits allow the last of these units to start. `None` if the time is not known: all slots
    /// are taken and no command has ended yet, or no more commands start.
    pub(super) fn time_left(&self, units: u64, last_start: Nanos, now: Nanos) -> Option<Nanos> {
        let last_due = if self.retries.waiting > 0 { self.retries.due.saturating_sub(now) } else { 0 };
        let last_start = last_start.max(last_due);
        let (running, jobs) = (self.running.len() as u64, u64::from(self.jobs));
        let is_full = jobs > 0 && running >= jobs;
        if self.starts_no_more || (self.ended() == 0 && is_full) {
            return None;
        }
        let mean = self.durations / self.ended().max(1);
        let time_left_of = |(started, _): &(Nanos, _)| mean.saturating_sub(now.saturating_sub(*started));
        let of_running: u64 = self.running.values().map(time_left_of).sum();
        let work = mean.saturating_mul(units).saturating_add(of_running);
        let by_jobs = work.checked_div(jobs).unwrap_or(0);
        let last_end = if units > 0 { last_start.saturating_add(mean) } else { 0 };
        let longest = self.running.values().map(time_left_of).max().unwrap_or(0);
        Some(last_end.max(by_jobs).max(longest))
    }

    /// The counts, each with its name: commands that started and that run, and units.
    fn tallies(&self) -> [(u64, &'static str); 13] {
        let Retries { ok, later, waiting_units, given_up, unstarted, done_before, .. } = self.retries;
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
            (waiting_units, "to be tried again"),
            (given_up, "not tried again"),
            (unstarted, "read and not started"),
            (done_before, "done before"),
        ]
    }

    /// `, 3 failed, 1 killed`: the counts in `names`, without counts that are 0.
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

    /// The last lines of the run: the number of failed units that were not named, and the totals. A success without a
    /// terminal has no such lines, because cron would mail them. `unread` is the number of commands that were not
    /// started. `about` is the text before that number: how exact it is.
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
        let commands = unread.saturating_add(self.retries.given_up_commands).saturating_add(self.unfinished.sent_away);
        let unfinished = self.unfinished.line((about, commands), self.max_args);
        lines.extend(unfinished.filter(|_| self.interrupted.is_none()));
        lines.push(line + &next.unwrap_or_default());
        lines
    }

    /// A hint if the costs in replies differ much, on average, from the charged costs.
    fn hint_at_cost(&self) -> Option<String> {
        let [count, cost, charged] = self.reply_costs;
        if !self.is_priced || !self.sums_up || self.max_args > 1 || count < MIN_COSTS_FOR_MEAN {
            return None;
        }
        let (mean, charged) = (cost.div_ceil(count), charged / count);
        let why = match () {
            () if mean <= charged / 2 => "lets more of them run at once",
            () if mean > charged.saturating_add(charged / 2) => "keeps them within the limit",
            () => return None,
        };
        Some(format!("hint: commands cost {mean} on average, but {charged} was charged; cost={mean} {why}"))
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
