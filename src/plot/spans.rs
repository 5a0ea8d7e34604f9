//! Counts attempts for each span of the axis, and chooses the attempts that a picture shows.

use super::axis::Axis;
use super::entry::Verdict;
use super::history::{Kept, Micros};

/// A span of the axis outside gaps.
#[derive(Debug, Default)]
pub(super) struct Span {
    pub(super) place: usize,
    pub(super) start: Micros,
    /// The number of starts with each verdict.
    pub(super) starts: [u32; Verdict::ALL.len()],
    /// The median, the 99th percentile and the maximum of the durations of attempts that started in this span. `None`
    /// if no attempt started.
    pub(super) durations: Option<[Micros; 3]>,
    /// The most commands at once.
    pub(super) at_once: u32,
    /// The last learned pace, or 0.
    pub(super) pace: f32,
}

/// The spans of `axis`. `attempts` must be in the order of their starts.
pub(super) fn spans(axis: &Axis, attempts: &[Kept]) -> Vec<Span> {
    let (mut spans, mut rest, mut durations) = (Vec::new(), attempts, Vec::new());
    for (place, start) in axis.starts() {
        let inside = rest.partition_point(|kept| axis.span(kept.start) <= place);
        let (own, later) = rest.split_at(inside);
        let mut span = Span { place, start, ..Span::default() };
        for kept in own {
            span.starts[kept.verdict as usize] += 1;
        }
        span.pace = own.iter().rev().find(|kept| kept.pace > 0.0).map_or(0.0, |kept| kept.pace);
        durations.clear();
        durations.extend(own.iter().map(Kept::ran));
        durations.sort_unstable();
        let percentile = |percent: usize| durations.get((durations.len() * percent).div_ceil(100).max(1) - 1).copied();
        span.durations = percentile(50).zip(percentile(99)).zip(percentile(100)).map(|((a, b), c)| [a, b, c]);
        spans.push(span);
        rest = later;
    }
    count_at_once(axis, &mut spans, attempts);
    spans
}

fn count_at_once(axis: &Axis, spans: &mut [Span], attempts: &[Kept]) {
    let mut ends: Vec<Micros> = attempts.iter().map(Kept::end).collect();
    ends.sort_unstable();
    let (mut starts, mut ends) = (attempts.iter().map(|kept| kept.start).peekable(), ends.into_iter().peekable());
    let mut running = 0;
    for span in spans {
        span.at_once = running;
        let is_inside = |at: &Micros| *at < span.start + axis.width;
        loop {
            let (start, end) = (starts.peek().copied().filter(is_inside), ends.peek().copied().filter(is_inside));
            match (start, end) {
                // A command may take the slot of another command that ends at the same moment.
                (start, Some(end)) if start.is_none_or(|start| end <= start) && running > 0 => {
                    running -= 1;
                    ends.next();
                }
                (Some(_), _) => {
                    running += 1;
                    starts.next();
                }
                _ => break,
            }
            span.at_once = span.at_once.max(running);
        }
    }
}

/// Up to this number of attempts, each attempt is drawn.
pub(super) const MAX_ALL_DRAWN: usize = 2000;

/// If there are more attempts: the maximum number of successful attempts that are drawn in each span. The longest and
/// the shortest attempt are drawn in addition.
pub(super) const OK_PER_SPAN: usize = 12;

/// The attempts that a picture shows. If there are at most `most` attempts, it shows all. Otherwise it shows the
/// longest, the shortest and one other attempt of each verdict in each span. It also shows up to `ok` more successful
/// attempts, at equal distances, so that most points are typical attempts. Each peak and each span with a refusal
/// remain visible.
pub(super) fn thinned<'a>(axis: &Axis, attempts: &'a [Kept], most: usize, ok: usize) -> Vec<&'a Kept> {
    if attempts.len() <= most {
        return attempts.iter().collect();
    }
    let mut drawn = Vec::new();
    for own in attempts.chunk_by(|one, next| axis.span(one.start) == axis.span(next.start)) {
        for verdict in Verdict::ALL {
            let alike: Vec<&Kept> = own.iter().filter(|kept| kept.verdict == verdict).collect();
            let longest = (0..alike.len()).max_by_key(|place| alike[*place].ran());
            let shortest = (0..alike.len()).min_by_key(|place| alike[*place].ran());
            let between = if verdict == Verdict::Ok { ok } else { 1 };
            let step = alike.len().div_ceil(between.max(1)).max(1);
            let is_drawn = |place: &usize| {
                let is_extreme = [longest, shortest].contains(&Some(*place));
                is_extreme || between > 0 && place.is_multiple_of(step)
            };
            drawn.extend((0..alike.len()).filter(is_drawn).map(|place| alike[place]));
        }
    }
    drawn
}
