//! The time axis: spans of equal width, with shortened gaps where no run was active.
//!
//! A place on the axis is a number of span widths from its left end.

use super::chart::Labels;
use super::history::{Micros, SECOND};
use super::words::{Shown, time};

/// The approximate number of spans.
const TARGET_SPANS: i64 = 110;

/// The drawn width of a gap, in spans.
const GAP_WIDTH: usize = 2;

/// The most gaps that are drawn shorter than they are.
const MAX_GAPS: usize = 8;

/// Possible widths of spans and distances of labels, in tenths of a second.
const NICE_TENTHS: [Micros; 22] = [
    1, 2, 5, 10, 20, 50, 100, 150, 300, 600, 1200, 3000, 6000, 9000, 18_000, 36_000, 72_000, 108_000, 216_000, 432_000,
    864_000, 1_728_000,
];

const DAY: Micros = 86_400 * SECOND;

/// A part of the axis without gaps.
#[derive(Debug)]
struct Piece {
    from: Micros,
    /// The number of spans before this piece, including the spans of gaps.
    first: usize,
    /// The number of spans in this piece.
    spans: usize,
}

#[derive(Debug)]
pub(super) struct Axis {
    /// The width of one span.
    pub(super) width: Micros,
    /// The number of spans, including the spans of gaps.
    pub(super) spans: usize,
    pieces: Vec<Piece>,
    /// The offset of local time, in seconds.
    pub(super) offset: i64,
}

impl Axis {
    /// Makes an axis. `busy` has the times at which runs were active, in order and without overlaps.
    pub(super) fn new(busy: &[(Micros, Micros)], offset: i64) -> Self {
        let (from, to) = (busy.first().map_or(0, |first| first.0), busy.last().map_or(0, |last| last.1));
        // The lengths are negative, so the longest gap comes first.
        let mut gaps: Vec<_> = busy.windows(2).map(|pair| (pair[0].1 - pair[1].0, pair[1].0)).collect();
        gaps.sort_unstable();
        let (mut active, mut starts) = (to - from, vec![from]);
        for (shorter, end) in gaps.into_iter().take(MAX_GAPS) {
            let length = -shorter;
            if length > active / 4 && length > SECOND {
                active -= length;
                starts.push(end);
            }
        }
        starts.sort_unstable();
        let least = if active >= 12 * SECOND { SECOND } else { active / 60 };
        let width = nice(least.max(active / TARGET_SPANS));
        let mut axis = Axis { width, spans: 0, pieces: Vec::new(), offset };
        for (place, start) in starts.iter().enumerate() {
            let end = starts.get(place + 1).and_then(|next| busy.iter().rev().find(|span| span.0 < *next));
            axis.add(*start, end.map_or(to, |span| span.1));
        }
        axis
    }

    fn add(&mut self, from: Micros, to: Micros) {
        let from = self.aligned(from, self.width);
        let first = self.spans + if self.pieces.is_empty() { 0 } else { GAP_WIDTH };
        let spans = usize::try_from((to - from) / self.width + 1).unwrap_or(1);
        self.pieces.push(Piece { from, first, spans });
        self.spans = first + spans;
    }

    /// The last time up to `at` that is a multiple of `step` on the local clock.
    fn aligned(&self, at: Micros, step: Micros) -> Micros {
        at - (at + self.offset * SECOND).rem_euclid(step)
    }

    fn piece(&self, at: Micros) -> &Piece {
        let place = self.pieces.partition_point(|piece| piece.from <= at).saturating_sub(1);
        &self.pieces[place]
    }

    /// The place of a time. A time in a gap has the place at which the gap begins.
    #[allow(clippy::cast_precision_loss, reason = "less than a picture shows")]
    pub(super) fn place(&self, at: Micros) -> f64 {
        let piece = self.piece(at);
        let inside = (at - piece.from) as f64 / self.width as f64;
        piece.first as f64 + inside.clamp(0.0, piece.spans as f64)
    }

    /// The span that contains a time.
    pub(super) fn span(&self, at: Micros) -> usize {
        let piece = self.piece(at);
        let inside = usize::try_from((at - piece.from) / self.width).unwrap_or_default();
        piece.first + inside.min(piece.spans - 1)
    }

    /// The spans outside gaps: the place and the beginning of each.
    pub(super) fn starts(&self) -> impl Iterator<Item = (usize, Micros)> {
        let of_piece = |piece: &Piece| {
            let (first, from, width) = (piece.first, piece.from, self.width);
            (first..).zip((0..).map(move |span| from + span * width)).take(piece.spans)
        };
        self.pieces.iter().flat_map(of_piece)
    }

    /// The gaps, by their places.
    #[allow(clippy::cast_precision_loss, reason = "they are few")]
    pub(super) fn gaps(&self) -> impl Iterator<Item = (f64, f64)> {
        self.pieces.iter().skip(1).map(|piece| ((piece.first - GAP_WIDTH) as f64, piece.first as f64))
    }

    /// Whether two spans have no gap between them.
    pub(super) fn are_together(&self, one: usize, other: usize) -> bool {
        let piece = |span| self.pieces.partition_point(|piece| piece.first <= span);
        piece(one) == piece(other)
    }

    /// The format of times in a chart.
    pub(super) fn shown(&self) -> Shown {
        shown(self.width)
    }

    /// The text `21:04:12 to 21:04:13`, from the beginning of a span to its end.
    pub(super) fn words(&self, start: Micros) -> String {
        let text = |at| time(at, self.offset, self.shown());
        format!("{} to {}", text(start), text(start + self.width))
    }

    /// Labels for about `count` places.
    pub(super) fn labels(&self, count: usize) -> Labels {
        let most = i64::try_from(self.spans / count.max(1)).unwrap_or(1).max(1);
        let step = nice(most * self.width).max(self.width);
        let shown = shown(step);
        #[allow(clippy::cast_precision_loss, reason = "they are few")]
        let apart = self.spans as f64 / count.max(1) as f64 * 0.8;
        let (mut labels, mut day): (Labels, _) = (Vec::new(), String::new());
        for piece in &self.pieces {
            let to = piece.from + self.width * i64::try_from(piece.spans).unwrap_or(1);
            let first = self.aligned(piece.from + step - 1, step);
            // A piece that is shorter than a step has a label at its beginning.
            let first = if first > to { piece.from } else { first };
            for at in (0..).map(|number| first + number * step).take_while(|at| *at <= to) {
                let place = self.place(at);
                if labels.last().is_some_and(|(last, _)| place - last < apart) {
                    continue;
                }
                let today = time(at, self.offset, Shown::Day);
                let text = if self.pieces.len() > 1 && today != day && shown != Shown::Day {
                    // The text without the year.
                    time(at, self.offset, Shown::DayAndMinute).chars().skip(5).collect()
                } else {
                    time(at, self.offset, shown)
                };
                labels.push((place, text));
                day = today;
            }
        }
        labels
    }
}

/// The format of times that are `step` apart.
fn shown(step: Micros) -> Shown {
    match step / SECOND {
        0 => Shown::Tenth,
        1..60 => Shown::Second,
        60..86_400 => Shown::Minute,
        _ => Shown::Day,
    }
}

/// The least nice step that is not below `least`.
fn nice(least: Micros) -> Micros {
    let known = NICE_TENTHS.map(|tenths| tenths * SECOND / 10).into_iter().find(|step| *step >= least);
    known.unwrap_or_else(|| (least / (7 * DAY) + 1) * 7 * DAY)
}
