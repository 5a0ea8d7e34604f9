//! Draws a chart from its marks, with plotters.
//!
//! The backend in this file writes the output of plotters as SVG. A shape gets a class in place of a color, so that the
//! style of the page can set the colors for light screens, dark screens and paper. Marks in a group have a title, which
//! browsers show on hover.

use super::template::escaped;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind};
use std::convert::Infallible;
use std::fmt::Write;
use std::ops::Range;

/// The kind of a shape, which decides its look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Ok,
    Again,
    Later,
    Failed,
    Stopped,
    Grid,
    Axis,
    Label,
    /// The area of a span, to show its title.
    Hover,
    Pause,
    Gap,
    Pace,
    Limit,
    Median,
    High,
    AtOnce,
}

/// The names of the classes, in their order.
const NAMES: [&str; 16] = [
    "ok", "again", "later", "failed", "stopped", "grid", "axis", "label", "hover", "pause", "gap", "pace", "limit",
    "median", "high", "at-once",
];

impl Class {
    fn color(self) -> RGBColor {
        RGBColor(self as u8, 0, 0)
    }
}

/// A mark, by its place on both axes.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// A title for the marks up to `Close`.
    Open(String),
    Close,
    /// A bar from one corner to the opposite corner.
    Bar(Class, (f64, f64), (f64, f64)),
    Dot(Class, (f64, f64)),
    Line(Class, Vec<(f64, f64)>),
    /// A text at the right of the chart, at this height.
    Beside(f64, String),
}

/// The room around a chart for its labels, in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) left: i32,
    pub(super) right: i32,
    pub(super) below: i32,
}

/// Places on an axis, with the text of each.
pub(super) type Labels = Vec<(f64, String)>;

/// A chart without its marks.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) size: (u32, u32),
    pub(super) room: Room,
    /// The ends of both axes, which begin at 0.
    pub(super) ends: (f64, f64),
    /// The labels of both axes.
    pub(super) labels: (Labels, Labels),
}

type Root<'a> = DrawingArea<Svg<'a>, plotters::coord::Shift>;

type Axes<'a, 'b> = ChartContext<'a, Svg<'b>, Cartesian2d<Length, Length>>;

/// The result of drawing functions of plotters.
type Drawn = Result<(), DrawingAreaErrorKind<Infallible>>;

impl Frame {
    /// Draws the marks. Returns SVG without its outermost tag.
    pub(super) fn draw(&self, marks: &[Mark]) -> String {
        let mut text = String::new();
        // Only a backend or a font could fail.
        let drawn = self.draw_into(&mut text, marks);
        debug_assert!(drawn.is_ok(), "{drawn:?}");
        text
    }

    fn draw_into(&self, text: &mut String, marks: &[Mark]) -> Drawn {
        let root = Svg { text, size: self.size }.into_drawing_area();
        let places = |labels: &[(f64, String)]| labels.iter().map(|(place, _)| *place).collect::<Vec<f64>>();
        let mut chart = ChartBuilder::on(&root)
            .margin_top(if self.room.below > 0 { 16 } else { 0 })
            .margin_right(self.room.right)
            .y_label_area_size(self.room.left)
            .x_label_area_size(self.room.below)
            .build_cartesian_2d(
                Length { end: self.ends.0, labels: places(&self.labels.0) },
                Length { end: self.ends.1, labels: places(&self.labels.1) },
            )?;
        if self.room.below > 0 {
            self.draw_axes(&mut chart, &root)?;
        }
        let area = chart.plotting_area();
        for mark in marks {
            match mark {
                Mark::Open(title) => root.draw(&Title(Some(title)))?,
                Mark::Close => root.draw(&Title(None))?,
                Mark::Bar(class, one, other) => area.draw(&Rectangle::new([*one, *other], class.color().filled()))?,
                Mark::Dot(class, at) => area.draw(&Circle::new(*at, 4, class.color().filled()))?,
                Mark::Line(class, points) => area.draw(&PathElement::new(&points[..], class.color()))?,
                Mark::Beside(height, text) => {
                    let (x, y) = area.map_coordinate(&(self.ends.0, *height));
                    let style = ("sans-serif", 18).with_color(Class::Label.color()).into_text_style(&root);
                    root.draw_text(text, &style.pos(Pos::new(HPos::Left, VPos::Center)), (x + 8, y))?;
                }
            }
        }
        Ok(())
    }

    fn draw_axes<'a>(&self, chart: &mut Axes<'_, 'a>, root: &Root<'a>) -> Drawn {
        let label = |labels: &[(f64, String)], place: f64| {
            let known = labels.iter().find(|(known, _)| (known - place).abs() < f64::EPSILON * place.abs().max(1.0));
            known.map(|(_, text)| text.clone()).unwrap_or_default()
        };
        let text = ("sans-serif", 18).with_color(Class::Label.color()).into_text_style(root);
        chart
            .configure_mesh()
            .disable_x_mesh()
            // At twice the usual distance, labels below the axis do not touch the lowest label at its left.
            .set_tick_mark_size(LabelAreaPosition::Bottom, 10)
            .max_light_lines(0)
            .bold_line_style(Class::Grid.color())
            .axis_style(Class::Axis.color())
            .label_style(text)
            .x_label_formatter(&|place| label(&self.labels.0, *place))
            .y_label_formatter(&|place| label(&self.labels.1, *place))
            .draw()
    }
}

/// An axis from 0, with the places of its labels.
struct Length {
    end: f64,
    labels: Vec<f64>,
}

impl Ranged for Length {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    #[allow(clippy::cast_possible_truncation, reason = "a pixel")]
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (value / self.end * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.end
    }
}

/// Opens a group with a title, or closes the group.
struct Title<'a>(Option<&'a str>);

impl<'a> plotters::element::PointCollection<'a, BackendCoord> for &'a Title<'_> {
    type Point = &'a BackendCoord;
    type IntoIter = std::iter::Empty<&'a BackendCoord>;

    fn point_iter(self) -> Self::IntoIter {
        std::iter::empty()
    }
}

impl plotters::element::Drawable<Svg<'_>> for Title<'_> {
    fn draw<I: Iterator<Item = BackendCoord>>(&self, _: I, svg: &mut Svg<'_>, _: (u32, u32)) -> Result<(), NoError> {
        match self.0 {
            Some(title) => svg.put(format_args!("<g><title>{}</title>", escaped(title))),
            None => svg.put(format_args!("</g>\n")),
        }
    }
}

/// Writes SVG to text, which cannot fail.
struct Svg<'a> {
    text: &'a mut String,
    size: (u32, u32),
}

type NoError = DrawingErrorKind<Infallible>;

impl Svg<'_> {
    #[allow(clippy::unnecessary_wraps, reason = "what the trait returns")]
    fn put(&mut self, text: std::fmt::Arguments<'_>) -> Result<(), NoError> {
        let _ = self.text.write_fmt(text);
        Ok(())
    }
}

fn name(color: BackendColor) -> &'static str {
    NAMES.get(usize::from(color.rgb.0)).copied().unwrap_or_default()
}

impl DrawingBackend for Svg<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Result<(), NoError> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), NoError> {
        Ok(())
    }

    fn draw_pixel(&mut self, at: BackendCoord, color: BackendColor) -> Result<(), NoError> {
        self.put(format_args!(
            "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"1\" height=\"1\"/>",
            name(color),
            at.0,
            at.1
        ))
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Result<(), NoError> {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        one: BackendCoord,
        other: BackendCoord,
        style: &S,
        _fill: bool,
    ) -> Result<(), NoError> {
        // A bar is always visible, however low it is.
        let (width, height) = ((other.0 - one.0).max(1), (other.1 - one.1).max(2));
        let (class, y) = (name(style.color()), other.1 - height);
        self.put(format_args!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>",
            one.0
        ))
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Result<(), NoError> {
        let points: Vec<String> = path.into_iter().map(|(x, y)| format!("{x},{y}")).collect();
        self.put(format_args!("<polyline class=\"{}\" points=\"{}\"/>", name(style.color()), points.join(" ")))
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        at: BackendCoord,
        radius: u32,
        style: &S,
        _fill: bool,
    ) -> Result<(), NoError> {
        let class = name(style.color());
        self.put(format_args!("<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{radius}\"/>", at.0, at.1))
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Result<(), NoError> {
        let anchor = match style.anchor().h_pos {
            HPos::Left => "start",
            HPos::Right => "end",
            HPos::Center => "middle",
        };
        let down = match style.anchor().v_pos {
            VPos::Top => "0.8em",
            VPos::Center => "0.35em",
            VPos::Bottom => "-0.3em",
        };
        let (class, (x, y), text) = (name(style.color()), at, escaped(text));
        self.put(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" dy=\"{down}\" text-anchor=\"{anchor}\">{text}</text>"
        ))
    }

    fn estimate_text_size<S: BackendTextStyle>(&self, text: &str, _: &S) -> Result<(u32, u32), NoError> {
        Ok((u32::try_from(text.len()).unwrap_or(u32::MAX).saturating_mul(10), 18))
    }
}
