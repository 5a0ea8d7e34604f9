//! The axis of time: spans of equal width, and a gap where no run was.
//!
//! A place on the axis is a number of widths from its left end.

use super::chart::Labels;
use super::history::{Micros, SECOND};
use super::words::{Shown, time};

/// How many spans there are, about.
const SPANS: i64 = 110;

/// How wide a gap is drawn.
const GAP: usize = 2;

/// At most so many gaps are drawn shorter than they are.
const CUTS: usize = 8;

/// Widths and distances of labels, in microseconds.
const NICE: [Micros; 22] = {
    let seconds =
        [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800];
    let mut nice = [SECOND / 10; 22];
    (nice[1], nice[2]) = (SECOND / 5, SECOND / 2);
    let mut place = 0;
    while place < seconds.len() {
        nice[place + 3] = seconds[place] * SECOND;
        place += 1;
    }
    nice
};

const DAY: Micros = 86_400 * SECOND;

/// A time without gaps.
#[derive(Debug)]
struct Piece {
    from: Micros,
    /// How many spans are before it, and in it.
    first: usize,
    spans: usize,
}

#[derive(Debug)]
pub(super) struct Axis {
    /// Of one span.
    pub(super) width: Micros,
    /// How many there are, with those of gaps.
    pub(super) spans: usize,
    pieces: Vec<Piece>,
    /// Of local time, in seconds.
    pub(super) offset: i64,
}

impl Axis {
    /// `busy`: when something ran, in order and without overlaps.
    pub(super) fn new(busy: &[(Micros, Micros)], offset: i64) -> Self {
        let (from, to) = (busy.first().map_or(0, |first| first.0), busy.last().map_or(0, |last| last.1));
        // The longest first.
        let mut gaps: Vec<_> = busy.windows(2).map(|pair| (pair[0].1 - pair[1].0, pair[1].0)).collect();
        gaps.sort_unstable();
        let (mut left, mut starts) = (to - from, vec![from]);
        for (shorter, end) in gaps.into_iter().take(CUTS) {
            let length = -shorter;
            if length > left / 4 && length > SECOND {
                left -= length;
                starts.push(end);
            }
        }
        starts.sort_unstable();
        let least = if left >= 12 * SECOND { SECOND } else { left / 60 };
        let width = nice(least.max(left / SPANS));
        let mut axis = Axis { width, spans: 0, pieces: Vec::new(), offset };
        for (place, start) in starts.iter().enumerate() {
            let end = starts.get(place + 1).and_then(|next| busy.iter().rev().find(|span| span.0 < *next));
            axis.add(*start, end.map_or(to, |span| span.1));
        }
        axis
    }

    fn add(&mut self, from: Micros, to: Micros) {
        let from = self.aligned(from, self.width);
        let first = self.spans + if self.pieces.is_empty() { 0 } else { GAP };
        let spans = usize::try_from((to - from) / self.width + 1).unwrap_or(1);
        self.pieces.push(Piece { from, first, spans });
        self.spans = first + spans;
    }

    /// The last time of the local clock, up to `at`, that is a multiple of `step`.
    fn aligned(&self, at: Micros, step: Micros) -> Micros {
        at - (at + self.offset * SECOND).rem_euclid(step)
    }

    fn piece(&self, at: Micros) -> &Piece {
        let place = self.pieces.partition_point(|piece| piece.from <= at).saturating_sub(1);
        &self.pieces[place]
    }

    /// The place of a time; one in a gap is at the end of what was before.
    #[allow(clippy::cast_precision_loss, reason = "less than a picture shows")]
    pub(super) fn place(&self, at: Micros) -> f64 {
        let piece = self.piece(at);
        let inside = (at - piece.from) as f64 / self.width as f64;
        piece.first as f64 + inside.clamp(0.0, piece.spans as f64)
    }

    /// The span that a time is in.
    pub(super) fn span(&self, at: Micros) -> usize {
        let piece = self.piece(at);
        let inside = usize::try_from((at - piece.from) / self.width).unwrap_or_default();
        piece.first + inside.min(piece.spans - 1)
    }

    /// The spans that are no gaps: the place of each and its beginning.
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
        self.pieces.iter().skip(1).map(|piece| ((piece.first - GAP) as f64, piece.first as f64))
    }

    /// Whether two spans are in one piece.
    pub(super) fn are_together(&self, one: usize, other: usize) -> bool {
        let piece = |span| self.pieces.partition_point(|piece| piece.first <= span);
        piece(one) == piece(other)
    }

    /// How times in a chart are written.
    pub(super) fn shown(&self) -> Shown {
        shown(self.width)
    }

    /// `21:04:12 to 21:04:13`, from the beginning of a span to its end.
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
                    // Without the year.
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

/// How times are written that are so far apart.
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
    let known = NICE.into_iter().find(|step| *step >= least);
    known.unwrap_or_else(|| (least / (7 * DAY) + 1) * 7 * DAY)
}
