//! The page: its texts, its tables, and the places of its charts.

use super::axis::Axis;
use super::entry::Verdict;
use super::history::{Counts, End, History, MAX_NAMED_FAILURES, Micros, Run, SECOND, joined, seconds, shown};
use super::keys::{Key, Keys};
use super::pictures::{Scene, Size};
use super::spans::{MAX_ALL_DRAWN, OK_PER_SPAN, spans};
use super::template::Value::{Markup, Text};
use super::template::fill;
use super::words::{Shown, count, counted, duration, number, time};
use throttle_limits::rate::Limit;

/// The most runs that are listed.
const MAX_LISTED_RUNS: usize = 20;

/// The most keys in a table.
const MAX_TABLE_KEYS: usize = 10;

/// The most learned paces that are drawn.
const MAX_PACES: usize = 6;

/// The most kinds of ends that are listed.
const MAX_LISTED_ENDS: usize = 60;

/// The most values of a setting that are drawn, if runs have different values.
const MAX_LEVELS: usize = 6;

/// Makes the page. `offset` is the offset of the local time that the page shows, in seconds.
pub(super) fn page(history: &mut History, offset: i64) -> String {
    history.attempts.sort_unstable_by_key(|kept| kept.start);
    let history = &*history;
    let busy = joined(history.runs.iter().flat_map(|run| run.spans.iter().copied()).collect(), 0);
    let mut all = Counts::default();
    history.runs.iter().for_each(|run| all.add(&run.counts));
    let begun =
        busy.first().map_or_else(String::new, |first| format!(", {}", time(first.0, offset, Shown::DayAndMinute)));
    let title = format!("{}{begun}", counted(all.all_units(), "unit"));
    let (body, footer) = if history.attempts.is_empty() {
        (String::new(), String::new())
    } else {
        let axis = Axis::new(&busy, offset);
        (body(history, &axis), footer(history, &axis))
    };
    let parts = [runs(history, offset), tiles(history, &all, &busy), notes(history), body, footer];
    let [runs, tiles, notes, body, footer] = parts.each_ref().map(|part| Markup(part));
    fill(
        "page",
        &[
            ("version", Text(env!("CARGO_PKG_VERSION"))),
            ("title", Text(&title)),
            ("runs", runs),
            ("tiles", tiles),
            ("notes", notes),
            ("body", body),
            ("footer", footer),
        ],
    )
}

fn runs(history: &History, offset: i64) -> String {
    let mut list: String = history.runs.iter().take(MAX_LISTED_RUNS).map(|run| run_item(run, offset)).collect();
    if let Some(more @ 1..) = history.runs.len().checked_sub(MAX_LISTED_RUNS) {
        list += &fill(
            "run",
            &[("command", Text("…")), ("about", Text(&format!("and {} more", counted(more as u64, "run"))))],
        );
    }
    list
}

fn run_item(run: &Run, offset: i64) -> String {
    let command = run.line.command.as_deref().unwrap_or("a run whose log does not name its command");
    let from = run.spans.iter().map(|span| span.0).min().unwrap_or_default();
    let mut about = vec![time(from, offset, Shown::DayAndSecond), counted(run.counts.all_units(), "unit")];
    if !run.line.limits.is_empty() {
        about.push(format!("limit {}", run.line.limits.join(" and ")));
    }
    about.extend(run.line.jobs.filter(|jobs| *jobs > 0).map(|jobs| format!("-j {jobs}")));
    about.extend(run.line.version.as_ref().map(|version| format!("throttle {version}")));
    if !run.line.id.is_empty() {
        about.push(format!("run {}", run.line.id));
        about.extend(
            (!run.has_ended).then(|| "the log has no end of this run: it still runs, or it was killed".to_owned()),
        );
    }
    fill("run", &[("command", Text(command)), ("about", Text(&about.join(" · ")))])
}

#[allow(clippy::cast_precision_loss, reason = "rounded anyway")]
fn tiles(history: &History, all: &Counts, busy: &[(Micros, Micros)]) -> String {
    let elapsed = seconds(busy.iter().map(|span| span.1 - span.0).sum());
    let mut tiles = vec![
        ("units", count(all.all_units())),
        ("ok", count(all.units_of(Verdict::Ok))),
        ("failed", count(all.units_of(Verdict::Failed))),
        ("refused", count(all.of(Verdict::Later))),
        ("attempts", count(all.attempts())),
    ];
    let ended = [Verdict::Ok, Verdict::Failed].map(|verdict| all.units_of(verdict)).iter().sum();
    let unfinished = all.all_units().saturating_sub(ended);
    tiles.extend((unfinished > 0).then(|| ("unfinished", count(unfinished))));
    tiles.push(("elapsed", duration(elapsed)));
    if elapsed > 0.0 {
        tiles.push(("starts, mean", format!("{}/s", number(all.attempts() as f64 / elapsed))));
    }
    let last = history
        .runs
        .iter()
        .filter(|run| run.pace.is_some())
        .max_by_key(|run| run.spans.iter().map(|span| span.1).max());
    tiles.extend(last.and_then(|run| Some(("server allows", format!("{}/s", number(run.pace?))))));
    tiles.iter().map(|(name, value)| fill("tile", &[("name", Text(name)), ("value", Text(value))])).collect()
}

fn notes(history: &History) -> String {
    let mut notes = Vec::new();
    if history.attempts.is_empty() {
        notes.push("No attempt has ended yet: there is nothing to draw.".to_owned());
    }
    if history.ends.keys().any(|end| *end != End::Exit(0)) {
        let ends = history.ends.iter().take(MAX_LISTED_ENDS);
        let ends: Vec<String> = ends.map(|(end, times)| format!("{end}: {}", count(*times))).collect();
        notes.push(format!("How attempts ended: {}.", ends.join(" · ")));
    }
    if let Some(foreign) = &history.foreign {
        let what = if foreign.count == 1 { "line is not one" } else { "lines are not" };
        let of = if foreign.count == 1 { "of a log" } else { "lines of a log" };
        notes.push(format!(
            "{} {what} {of}; the first is line {} of {}.",
            count(foreign.count),
            count(foreign.line),
            foreign.name
        ));
    }
    notes.extend(
        history.cut.iter().take(10).map(|name| format!("The last line of {name} is incomplete and is ignored.")),
    );
    if history.keys.left_out > 0 {
        let (attempts, keys) = (counted(history.keys.left_out, "attempt"), counted(history.keys.len() as u64, "key"));
        notes.push(format!("The tables of keys have only the first {keys}: {attempts} of other keys are left out."));
    }
    if history.steps_back > 0 {
        notes.push(format!(
            "The clock was set back {}: times before and after that overlap.",
            counted(history.steps_back, "time")
        ));
    }
    notes.iter().map(|note| fill("note", &[("text", Text(note))])).collect()
}

fn body(history: &History, axis: &Axis) -> String {
    let spans = spans(axis, &history.attempts);
    let mut pauses = joined(history.pauses.clone(), 0);
    let last = history.runs.iter().flat_map(|run| run.spans.iter().map(|span| span.1)).max().unwrap_or_default();
    pauses.retain(|pause| pause.0 < last);
    let (limits, jobs) = (limits(&history.runs), jobs(&history.runs));
    let paced = paced(&history.runs);
    let scene = Scene {
        axis,
        spans: &spans,
        attempts: &history.attempts,
        pauses: &pauses,
        limits: &limits,
        jobs: &jobs,
        paced: &paced,
    };
    let mut body = figures(history, &scene);
    if history.has_keys() {
        let busiest = history.keys.top(MAX_TABLE_KEYS, |key| key.attempts);
        let refused = history.keys.top(MAX_TABLE_KEYS, |key| key.refused);
        body += &keys(history, &scene, &format!("Busiest of {}", counted(history.keys.len() as u64, "key")), &busiest);
        if !refused.is_empty() {
            body += &keys(history, &scene, "Most refused keys", &refused);
        }
    }
    body + &failures(history, axis)
}

/// The runs whose learned pace is drawn: the runs with the most attempts.
fn paced(runs: &[Run]) -> Vec<u16> {
    let attempts = |run: &Run| i64::try_from(run.counts.attempts()).unwrap_or(i64::MAX);
    let paced = (0..).zip(runs).filter(|(_, run)| run.pace.is_some());
    let mut paced: Vec<(i64, i64)> = paced.map(|(place, run)| (-attempts(run), place)).collect();
    paced.sort_unstable();
    paced.iter().take(MAX_PACES).filter_map(|(_, place)| (*place).try_into().ok()).collect()
}

fn figures(history: &History, scene: &Scene<'_>) -> String {
    let used = |verdict: Verdict| history.runs.iter().any(|run| run.counts.of(verdict) > 0);
    let verdicts: Vec<(&str, String)> = Verdict::ALL
        .into_iter()
        .zip(["ok", "again", "later", "failed", "stopped"])
        .filter(|(verdict, _)| used(*verdict))
        .map(|(verdict, class)| (class, verdict.name().to_owned()))
        .collect();
    let what = if scene.are_pauses_shares() { "pauses: how much of the time, from above" } else { "pause" };
    let pause = || (!scene.pauses.is_empty()).then(|| ("pause", what.to_owned()));
    let width = duration(seconds(scene.axis.width));
    let mut legend = verdicts.clone();
    legend.extend(scene.limits.iter().map(|(text, _)| ("dashed", format!("limit {text}"))));
    legend.extend((!scene.paced.is_empty()).then(|| ("bar pace", "learned pace: what the server allows".to_owned())));
    legend.extend(pause());
    let starts = figure("starts", "Starts a second", &starts_about(scene, &width), &legend, |size| scene.starts(size));
    let mut legend = verdicts;
    legend.extend([("bar median", "median".to_owned()), ("bar high", "99th percentile".to_owned())]);
    legend.extend(pause());
    let scale = if scene.is_logarithmic() { ", on a logarithmic scale" } else { "" };
    let about = format!("How long each command ran, by the time of its start{scale}.{}", durations_about(scene));
    let durations = figure("durations", "Durations", &about, &legend, |size| scene.durations(size));
    let mut legend = vec![("at-once", format!("the most in {width}"))];
    legend.extend(scene.jobs.iter().map(|jobs| ("dashed", format!("-j {jobs}"))));
    legend.extend(pause());
    let most = scene.spans.iter().map(|span| span.at_once).max().unwrap_or_default();
    let about = format!("How many ran at the same time: at most {}.", counted(most.into(), "command"));
    starts + &durations + &figure("at-once", "Commands at once", &about, &legend, |size| scene.at_once(size))
}

fn starts_about(scene: &Scene<'_>, width: &str) -> String {
    let all = |starts: &[u32]| starts.iter().sum::<u32>();
    let Some(highest) = scene.spans.iter().max_by_key(|span| all(&span.starts)) else { return String::new() };
    let rate = number(f64::from(all(&highest.starts)) / seconds(scene.axis.width));
    let at = time(highest.start, scene.axis.offset, scene.axis.shown());
    let pauses = match scene.pauses.len() {
        0 => String::new(),
        pauses => format!(" {}.", counted(pauses as u64, "pause")),
    };
    format!("Each bar is {width}; at most {rate} a second, at {at}.{pauses}")
}

fn durations_about(scene: &Scene<'_>) -> String {
    let mut all: Vec<Micros> = scene.attempts.iter().map(super::history::Kept::ran).collect();
    all.sort_unstable();
    let percentile = |percent: usize| {
        let place = (all.len() * percent).div_ceil(100).saturating_sub(1);
        duration(seconds(all.get(place).copied().unwrap_or_default()))
    };
    let [median, high, longest] = [50, 99, 100].map(percentile);
    format!(" All attempts: median {median}, 99th percentile {high}, longest {longest}.")
}

fn figure(id: &str, title: &str, about: &str, legend: &[(&str, String)], draw: impl Fn(Size) -> String) -> String {
    let item = |(class, text): &(&str, String)| fill("legend", &[("class", Text(class)), ("text", Text(text))]);
    let legend: String = legend.iter().map(item).collect();
    let (wide, narrow) = (draw(Size::Wide), draw(Size::Narrow));
    fill(
        "figure",
        &[
            ("id", Text(id)),
            ("title", Text(title)),
            ("about", Text(about)),
            ("wide", Markup(&wide)),
            ("narrow", Markup(&narrow)),
            ("legend", Markup(&legend)),
        ],
    )
}

/// The limits of all units: text, and rate per second. Limits of keys, of costs and of bytes are not drawn.
fn limits(runs: &[Run]) -> Vec<(String, f64)> {
    let mut limits: Vec<(String, f64)> = Vec::new();
    for text in runs.iter().flat_map(|run| &run.line.limits) {
        let Some(rate) = text.parse().ok().and_then(|limit: Limit| limit.rate()).filter(|rate| !rate.is_bytes()) else {
            continue;
        };
        #[allow(clippy::cast_precision_loss, reason = "less than a picture shows")]
        let a_second = rate.units() as f64 / rate.period() as f64 * 1e9;
        if limits.len() < MAX_LEVELS && limits.iter().all(|(known, _)| known != text) {
            limits.push((text.clone(), a_second));
        }
    }
    limits
}

fn jobs(runs: &[Run]) -> Vec<u64> {
    let mut different: Vec<u64> = Vec::new();
    for jobs in runs.iter().filter_map(|run| run.line.jobs).filter(|jobs| *jobs > 0) {
        if different.len() < MAX_LEVELS && !different.contains(&jobs) {
            different.push(jobs);
        }
    }
    different
}

fn keys(history: &History, scene: &Scene<'_>, title: &str, places: &[u32]) -> String {
    let wide = scene.axis.spans.div_ceil(60).max(1);
    let mut counts = vec![vec![[0_u32; 2]; scene.axis.spans.div_ceil(wide)]; places.len()];
    for kept in history.attempts.iter().filter(|kept| kept.key != Keys::NONE) {
        if let Some(own) = places.iter().position(|place| *place == kept.key) {
            let [all, refused] = &mut counts[own][scene.axis.span(kept.start) / wide];
            *all += 1;
            *refused += u32::from(kept.verdict == Verdict::Later);
        }
    }
    let row = |(place, counts): (&u32, &Vec<[u32; 2]>)| {
        let (json, key) = history.keys.get(*place)?;
        Some(key_row(&key_name(json), key, &scene.of_key(counts, wide)))
    };
    let rows: String = places.iter().zip(&counts).filter_map(row).collect();
    fill("keys", &[("title", Text(title)), ("rows", Markup(&rows))])
}

/// The name of a key. The end of its JSON may be missing.
fn key_name(json: &str) -> String {
    let is_whole =
        json.len() > 1 && json.ends_with('"') && serde_json::from_str::<&serde_json::value::RawValue>(json).is_ok();
    if is_whole { shown(json) } else { format!("{}…", json.trim_start_matches('"')) }
}

fn key_row(name: &str, key: &Key, chart: &str) -> String {
    let numbers = [key.attempts, key.refused, key.failed].map(|value| count(value.into()));
    let about = format!("{name}: {}, {} refused", counted(key.attempts.into(), "attempt"), numbers[1]);
    fill(
        "key",
        &[
            ("name", Text(name)),
            ("attempts", Text(&numbers[0])),
            ("refused", Text(&numbers[1])),
            ("failed", Text(&numbers[2])),
            ("about", Text(&about)),
            ("chart", Markup(chart)),
        ],
    )
}

fn failures(history: &History, axis: &Axis) -> String {
    let failed: u64 = history.runs.iter().map(|run| run.counts.of(Verdict::Failed)).sum();
    let row = |failure: &super::history::Failure| {
        let later = if failure.is_ok_later { "; ok in a later run" } else { "" };
        let why = format!("{}{later}", failure.why);
        let status = failure.http.map(|status| status.to_string()).unwrap_or_default();
        let when = time(failure.at, axis.offset, Shown::DayAndSecond);
        let attempts = count(failure.attempts);
        let values =
            [("unit", &failure.unit), ("why", &why), ("attempts", &attempts), ("status", &status), ("when", &when)];
        fill("failure", &values.map(|(name, value)| (name, Text(value))))
    };
    let rows: String = history.failures.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let more = failed.saturating_sub(history.failures.len() as u64);
    let more = match more {
        0 => String::new(),
        more => {
            let text = format!("These are the first {MAX_NAMED_FAILURES}; {} more failed.", counted(more, "unit"));
            fill("note", &[("text", Text(&text))])
        }
    };
    fill(
        "failures",
        &[("title", Text(&counted(failed, "failed unit"))), ("rows", Markup(&rows)), ("more", Markup(&more))],
    )
}

fn footer(history: &History, axis: &Axis) -> String {
    let offset = time(axis.offset.saturating_abs().saturating_mul(SECOND), 0, Shown::Minute);
    let sign = if axis.offset < 0 { "−" } else { "+" };
    let mut texts = vec![format!("Times are of the zone UTC{sign}{offset}.")];
    if history.attempts.len() > MAX_ALL_DRAWN {
        texts.push(format!(
            "The chart of durations does not have a point for each of the {}. In each {}, it has points for the \
             longest, the shortest and one other attempt of each verdict, and for up to {OK_PER_SPAN} more that were \
             ok. Bars, lines and numbers count all attempts.",
            counted(history.attempts.len() as u64, "attempt"),
            duration(seconds(axis.width)),
        ));
    }
    texts.iter().map(|text| fill("note", &[("text", Text(text))])).collect()
}
