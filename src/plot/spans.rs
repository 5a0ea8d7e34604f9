//! What happened in each span of the axis, and the attempts that a picture shows.

use super::axis::Axis;
use super::entry::Verdict;
use super::history::{Kept, Micros};

/// A span of the axis in which no gap is.
#[derive(Debug, Default)]
pub(super) struct Span {
    pub(super) place: usize,
    pub(super) start: Micros,
    /// Starts by verdict.
    pub(super) starts: [u32; Verdict::ALL.len()],
    /// The median of the durations of what started, the 99th percentile, and the longest, if anything did.
    pub(super) durations: Option<[Micros; 3]>,
    /// The most commands at once.
    pub(super) at_once: u32,
    /// The last learned pace, or 0.
    pub(super) pace: f32,
}

/// The spans of `axis`. `attempts` are in the order of their starts.
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
                // A command that takes the slot of another one at the same moment.
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

/// Up to so many attempts are all drawn.
pub(super) const DRAWN: usize = 2000;

/// Otherwise so many that were ok are drawn in each span, besides the longest and the shortest.
pub(super) const OK_BETWEEN: usize = 12;

/// The attempts that a picture shows. If there are more than `most`, then of each verdict in each span: the longest, the
/// shortest, and another one; and up to `ok` more that were ok, at equal distances: most points are what most attempts were. So each
/// peak stays, and so does each span with a refusal.
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
