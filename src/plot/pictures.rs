//! The marks of each chart.

use super::axis::Axis;
use super::chart::{Class, Frame, Labels, Mark, Room};
use super::entry::Verdict;
use super::history::{Kept, Micros, SECOND, seconds};
use super::spans::{MAX_ALL_DRAWN, OK_PER_SPAN, Span, thinned};
use super::words::{Shown, count, counted, duration, number, time};

/// The size of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Wide,
    /// For a telephone.
    Narrow,
}

/// The data of all charts.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) axis: &'a Axis,
    pub(super) spans: &'a [Span],
    /// In the order of their starts.
    pub(super) attempts: &'a [Kept],
    pub(super) pauses: &'a [(Micros, Micros)],
    /// Limits of all units: text, and rate per second.
    pub(super) limits: &'a [(String, f64)],
    /// The values of `-j`.
    pub(super) jobs: &'a [u64],
    /// The runs whose learned pace is drawn.
    pub(super) paced: &'a [u16],
}

/// The most pauses that are drawn one by one.
const MAX_DRAWN_PAUSES: usize = 200;

const CLASSES: [Class; Verdict::ALL.len()] = [Class::Ok, Class::Again, Class::Later, Class::Failed, Class::Stopped];

impl Scene<'_> {
    /// The chart of starts per second, stacked by verdict, with limits, learned pace and pauses.
    pub(super) fn starts(&self, size: Size) -> String {
        let width = seconds(self.axis.width);
        let highest =
            self.spans.iter().map(|span| f64::from(span.starts.iter().sum::<u32>()) / width).fold(0.0, f64::max);
        // Limits and paces far above the actual rates would make the rest of the chart flat.
        let limits: Vec<_> = self.limits.iter().filter(|(_, rate)| *rate <= highest * 2.5).collect();
        let paces = self.spans.iter().map(|span| f64::from(span.pace)).filter(|pace| *pace <= highest * 1.5);
        let top = limits.iter().map(|(_, rate)| *rate).chain(paces).fold(highest, f64::max);
        let frame = self.level_frame(size, top);
        let mut marks = self.background(&frame);
        for span in self.spans {
            let (x, mut below) = (f64_of(span.place), 0.0);
            marks.push(Mark::Open(self.starts_title(span, width)));
            marks.push(Mark::Bar(Class::Hover, (x, 0.0), (x + 1.0, frame.ends.1)));
            for (class, starts) in CLASSES.into_iter().zip(span.starts).filter(|(_, starts)| *starts > 0) {
                let above = below + f64::from(starts) / width;
                marks.push(Mark::Bar(class, (x + 0.06, below), (x + 0.94, above)));
                below = above;
            }
            marks.push(Mark::Close);
        }
        let lines: Vec<_> = limits
            .iter()
            .map(|(text, rate)| (format!("limit {text}"), *rate, format!("{}/s", number(*rate))))
            .collect();
        levels(&mut marks, &frame, &lines);
        self.paced.iter().for_each(|run| self.pace(*run, &frame, &mut marks));
        frame.draw(&marks)
    }

    fn starts_title(&self, span: &Span, width: f64) -> String {
        let parts = Verdict::ALL.into_iter().zip(span.starts).filter(|(_, starts)| *starts > 0);
        let parts: Vec<String> =
            parts.map(|(verdict, starts)| format!("{} {}", count(starts.into()), verdict.name())).collect();
        let all: u32 = span.starts.iter().sum();
        let verdicts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        let pace =
            if span.pace > 0.0 { format!("; the server allows {}/s", number(span.pace.into())) } else { String::new() };
        let rate = number(f64::from(all) / width);
        format!(
            "{}: {rate} starts a second, {}{verdicts}{pace}",
            self.axis.words(span.start),
            counted(all.into(), "start")
        )
    }

    /// Draws the learned pace of a run, with a new line after each gap.
    fn pace(&self, run: u16, frame: &Frame, marks: &mut Vec<Mark>) {
        let mut lines: Vec<(usize, Vec<(f64, f64)>)> = Vec::new();
        for kept in self.attempts.iter().filter(|kept| kept.run == run && kept.pace > 0.0) {
            let span = self.axis.span(kept.start);
            let at = (self.axis.place(kept.start), f64::from(kept.pace).min(frame.ends.1));
            match lines.last_mut() {
                // At most four points in each span.
                Some((_, points)) if points.last().is_some_and(|last| at.0 - last.0 < 0.25) => {
                    points.last_mut().into_iter().for_each(|last| last.1 = at.1);
                }
                Some((last, points)) if self.axis.are_together(*last, span) => {
                    points.push(at);
                    *last = span;
                }
                _ => lines.push((span, vec![at])),
            }
        }
        let points = lines.into_iter().map(|(_, points)| points);
        marks.extend(points.filter(|points| points.len() > 1).map(|points| Mark::Line(Class::Pace, points)));
    }

    /// The chart of durations. It has a point for each attempt, or for some attempts, and lines for the median and the
    /// 99th percentile.
    pub(super) fn durations(&self, size: Size) -> String {
        let scale = self.scale();
        let frame = self.frame(size, scale.labels(), scale.top());
        let mut marks = self.background(&frame);
        for span in self.spans {
            let Some([median, high, longest]) = span.durations else { continue };
            let x = f64_of(span.place);
            let [median, high, longest] = [median, high, longest].map(|time| duration(seconds(time)));
            let words = self.axis.words(span.start);
            let title = format!("{words}: median {median}, 99th percentile {high}, longest {longest}");
            marks.extend(titled(title, Mark::Bar(Class::Hover, (x, 0.0), (x + 1.0, frame.ends.1))));
        }
        let (most, ok) =
            if size == Size::Wide { (MAX_ALL_DRAWN, OK_PER_SPAN) } else { (MAX_ALL_DRAWN / 4, OK_PER_SPAN / 4) };
        for kept in thinned(self.axis, self.attempts, most, ok) {
            let at = (self.axis.place(kept.start), scale.place(seconds(kept.ran())));
            marks.extend(titled(self.attempt_title(kept), Mark::Dot(CLASSES[kept.verdict as usize], at)));
        }
        for (class, which) in [(Class::Median, 0), (Class::High, 1)] {
            for spans in self.spans.chunk_by(|one, next| self.axis.are_together(one.place, next.place)) {
                let value =
                    |span: &Span| Some((f64_of(span.place) + 0.5, scale.place(seconds(span.durations?[which]))));
                for line in spans.split(|span| span.durations.is_none()) {
                    let points: Vec<_> = line.iter().filter_map(value).collect();
                    marks.extend((points.len() > 1).then_some(Mark::Line(class, points)));
                }
            }
        }
        frame.draw(&marks)
    }

    fn attempt_title(&self, kept: &Kept) -> String {
        let at = time(kept.start, self.axis.offset, Shown::Tenth);
        let http = if kept.http > 0 { format!(", HTTP {}", kept.http) } else { String::new() };
        let (verdict, ran) = (kept.verdict.name(), duration(seconds(kept.ran())));
        format!("{at}: command {}, attempt {}: {verdict} after {ran}{http}", kept.seq, kept.number)
    }

    fn scale(&self) -> Scale {
        let longest = self.attempts.iter().map(Kept::ran).max().unwrap_or_default();
        let mut medians: Vec<Micros> = self.spans.iter().filter_map(|span| Some(span.durations?[0])).collect();
        medians.sort_unstable();
        let median = medians.get(medians.len() / 2).copied().unwrap_or_default();
        if longest > 20 * median.max(1) && longest > SECOND / 100 {
            let least =
                self.attempts.iter().map(Kept::ran).filter(|ran| *ran >= SECOND / 1000).min().unwrap_or(SECOND / 1000);
            let (low, high) = (seconds(least).log10().floor(), seconds(longest).log10() + 0.1);
            return Scale::Logarithmic { low, high: high.max(low + 1.0) };
        }
        Scale::Linear(seconds(longest))
    }

    /// Whether durations are drawn on a logarithmic scale.
    pub(super) fn is_logarithmic(&self) -> bool {
        matches!(self.scale(), Scale::Logarithmic { .. })
    }

    /// The chart of the most commands at once in each span.
    pub(super) fn at_once(&self, size: Size) -> String {
        let highest = self.spans.iter().map(|span| span.at_once).max().unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "less than a picture shows")]
        let jobs: Vec<_> =
            self.jobs.iter().map(|jobs| (format!("-j {jobs}"), *jobs as f64, format!("-j {jobs}"))).collect();
        let shown = jobs.iter().map(|jobs| jobs.1).filter(|jobs| *jobs <= 4.0 * f64::from(highest));
        let frame = self.level_frame(size, shown.fold(f64::from(highest), f64::max));
        let mut marks = self.background(&frame);
        for span in self.spans {
            let x = f64_of(span.place);
            marks.push(Mark::Open(format!(
                "{}: at most {} at once",
                self.axis.words(span.start),
                counted(span.at_once.into(), "command")
            )));
            marks.push(Mark::Bar(Class::Hover, (x, 0.0), (x + 1.0, frame.ends.1)));
            if span.at_once > 0 {
                marks.push(Mark::Bar(Class::AtOnce, (x, 0.0), (x + 1.0, span.at_once.into())));
            }
            marks.push(Mark::Close);
        }
        levels(&mut marks, &frame, &jobs);
        frame.draw(&marks)
    }

    /// The chart of one key's starts, without axes. For each group of `wide` spans, `counts` has the number of its
    /// starts and the number of its refusals.
    pub(super) fn of_key(&self, counts: &[[u32; 2]], wide: usize) -> String {
        let highest = counts.iter().map(|counts| counts[0]).max().unwrap_or_default().max(1);
        let ends = (f64_of(counts.len().max(1)), f64::from(highest));
        let room = Room { left: 0, right: 0, below: 0 };
        let frame = Frame { size: (600, 60), room, ends, labels: (Vec::new(), Vec::new()) };
        let mut marks = Vec::new();
        for (place, [all, refused]) in counts.iter().enumerate().filter(|(_, counts)| counts[0] > 0) {
            let (x, served) = (f64_of(place), all - refused);
            let start = self.spans.iter().find(|span| span.place / wide == place).map_or(0, |span| span.start);
            let at = time(start, self.axis.offset, self.axis.shown());
            marks.push(Mark::Open(format!(
                "{at}: {}, {} refused",
                counted((*all).into(), "start"),
                count((*refused).into())
            )));
            for (class, from, to) in [(Class::Ok, 0, served), (Class::Later, served, *all)] {
                if to > from {
                    marks.push(Mark::Bar(class, (x, from.into()), (x + 0.9, to.into())));
                }
            }
            marks.push(Mark::Close);
        }
        frame.draw(&marks)
    }

    /// A frame from 0 to the first label that is not below `highest`.
    fn level_frame(&self, size: Size, highest: f64) -> Frame {
        let labels = linear(highest);
        let top = labels.last().map_or(1.0, |last| last.0);
        self.frame(size, labels, top)
    }

    fn frame(&self, size: Size, labels: Labels, top: f64) -> Frame {
        let (size, room, count) = match size {
            Size::Wide => ((1600, 440), Room { left: 120, right: 120, below: 50 }, 9),
            Size::Narrow => ((760, 440), Room { left: 130, right: 110, below: 56 }, 3),
        };
        Frame { size, room, ends: (f64_of(self.axis.spans), top), labels: (self.axis.labels(count), labels) }
    }

    /// Pauses and gaps.
    fn background(&self, frame: &Frame) -> Vec<Mark> {
        let top = frame.ends.1;
        let mut marks = Vec::new();
        if self.are_pauses_shares() {
            self.shares(top, &mut marks);
        } else {
            for (from, to) in self.pauses {
                let text = |at| time(at, self.axis.offset, Shown::Tenth);
                let long = duration(seconds(to - from));
                let title = format!("paused from {} to {}, {long}", text(*from), text(*to));
                let bar = Mark::Bar(Class::Pause, (self.axis.place(*from), 0.0), (self.axis.place(*to), top));
                marks.extend(titled(title, bar));
            }
        }
        for (from, to) in self.axis.gaps() {
            let bar = Mark::Bar(Class::Gap, (from, 0.0), (to, top));
            marks.extend(titled("a gap: no run was active".to_owned(), bar));
        }
        marks
    }

    /// Whether there are too many pauses to draw each one. Each span then shows the share of its time that is paused.
    pub(super) fn are_pauses_shares(&self) -> bool {
        self.pauses.len() > MAX_DRAWN_PAUSES
    }

    fn shares(&self, top: f64, marks: &mut Vec<Mark>) {
        let mut rest = self.pauses;
        for span in self.spans {
            let end = span.start + self.axis.width;
            rest = &rest[rest.partition_point(|pause| pause.1 <= span.start)..];
            let inside = rest.iter().take_while(|pause| pause.0 < end);
            let paused: Micros = inside.map(|pause| pause.1.min(end) - pause.0.max(span.start)).sum();
            if paused > 0 {
                let (x, share) = (f64_of(span.place), seconds(paused) / seconds(self.axis.width));
                let title = format!("{}: paused for {}", self.axis.words(span.start), duration(seconds(paused)));
                marks.extend(titled(title, Mark::Bar(Class::Pause, (x, top * (1.0 - share)), (x + 1.0, top))));
            }
        }
    }
}

/// A mark with a title of its own.
fn titled(title: String, mark: Mark) -> [Mark; 3] {
    [Mark::Open(title), mark, Mark::Close]
}

/// Draws lines across the chart. Each has a title, a height, and a text at its right.
fn levels(marks: &mut Vec<Mark>, frame: &Frame, levels: &[(String, f64, String)]) {
    let mut written: Vec<f64> = Vec::new();
    for (title, height, text) in levels.iter().filter(|level| level.1 <= frame.ends.1) {
        let line = Mark::Line(Class::Limit, vec![(0.0, *height), (frame.ends.0, *height)]);
        marks.extend(titled(title.clone(), line));
        if written.iter().all(|other| (height - other).abs() > frame.ends.1 / 10.0) {
            marks.push(Mark::Beside(*height, text.clone()));
            written.push(*height);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a number of spans")]
fn f64_of(place: usize) -> f64 {
    place as f64
}

/// The vertical axis of durations.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// From 0 to the longest duration.
    Linear(f64),
    /// Between powers of ten, in seconds.
    Logarithmic { low: f64, high: f64 },
}

impl Scale {
    fn place(self, seconds: f64) -> f64 {
        match self {
            Scale::Linear(_) => seconds,
            Scale::Logarithmic { low, high } => (seconds.max(1e-9).log10() - low).clamp(0.0, high - low),
        }
    }

    fn labels(self) -> Labels {
        match self {
            Scale::Linear(longest) => {
                let (unit, name) = match longest {
                    ..=0.5 => (0.001, "ms"),
                    ..120.0 => (1.0, "s"),
                    ..7200.0 => (60.0, "min"),
                    _ => (3600.0, "h"),
                };
                let labels = linear(longest / unit).into_iter();
                labels.map(|(place, text)| (place * unit, format!("{text} {name}"))).collect()
            }
            Scale::Logarithmic { low, high } => {
                let places = (0..20_u8).map(f64::from).take_while(|place| low + place <= high);
                places.map(|place| (place, power_of_ten(low + place))).collect()
            }
        }
    }

    fn top(self) -> f64 {
        match self {
            Scale::Linear(_) => self.labels().last().map_or(1.0, |last| last.0),
            Scale::Logarithmic { low, high } => high - low,
        }
    }
}

/// The text for a power of ten seconds: `10 ms`, `1 s`, `1000 s`.
fn power_of_ten(power: f64) -> String {
    let (power, unit) = if power < 0.0 { (power + 3.0, "ms") } else { (power, "s") };
    format!("{} {unit}", number(10f64.powf(power)))
}

/// Labels at round numbers, from 0 to the first that is not below `highest`.
fn linear(highest: f64) -> Labels {
    let highest = if highest > 0.0 { highest } else { 1.0 };
    let power = 10f64.powf((highest / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| step * 5.0 >= highest);
    let step = step.unwrap_or(highest);
    let places = (0..8_u8).map(|place| f64::from(place) * step);
    let last = (highest / step).ceil();
    places.take_while(|place| *place <= (last + 0.5) * step).map(|place| (place, number(place))).collect()
}
