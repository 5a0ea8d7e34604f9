//! The picture of arrival times, `benches/arrivals.svg`.

use crate::arrivals::{Arrivals, seconds};
use crate::flow::{self, Feed};
use crate::tool::Tool;
use anyhow::Result;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

const OURS: (Tool, &str) = (Tool("throttle -r 1000/s"), "#1f5fbf");
const OTHER: (Tool, &str) = (Tool("pv -q -l -L 1000"), "#d1495b");

/// Lines given to the tool, and when, in milliseconds: the source stalls for one second after half a second's worth.
const SCRIPT: [(u64, u64); 2] = [(0, 500), (1500, 1500)];

/// Measures both tools and draws the result.
pub(crate) fn draw() -> Result<()> {
    if !OTHER.0.is_there() {
        return Ok(());
    }
    let feed =
        Feed::Script(flow::lines(85), SCRIPT.map(|(at, lines)| (Duration::from_millis(at), lines * 85)).to_vec());
    let mut tools = Vec::new();
    for (tool, colour) in [OTHER, OURS] {
        tools.push((tool, colour, Arrivals::of_lines(tool, &feed)?));
    }
    let mut svg = String::from(HEAD);
    for panel in PANELS {
        panel.draw(&mut svg, &tools)?;
    }
    svg.push_str("</svg>\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/arrivals.svg");
    std::fs::write(&path, svg)?;
    eprintln!("bench: wrote {}", path.display());
    Ok(())
}

const HEAD: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 470" font-family="sans-serif" font-size="13" fill="#222">
<title>When lines arrive at the reader under a limit of 1000 lines a second</title>
<rect width="960" height="470" fill="#fff"/>
<text x="60" y="28" font-size="17" font-weight="bold">1000 lines a second asked for: when do they arrive?</text>
<text x="60" y="48" fill="#555">500 lines are there at 0 s; then the source stalls; 1500 more are there at 1.5 s. Times noted by the reader.</text>
<g stroke-width="2.5"><path d="M60 68h28" stroke="#1f5fbf"/><path d="M310 68h28" stroke="#d1495b"/><path d="M500 68h28" stroke="#999" stroke-dasharray="5 4"/></g>
<g><text x="94" y="73">throttle -r 1000/s (burst 10)</text><text x="344" y="73">pv -q -l -L 1000</text><text x="534" y="73">exactly 1000/s while there is something to send</text></g>
"##;

/// A part of the drawing: time in seconds to the right, lines upwards.
struct Panel {
    title: &'static str,
    left: f64,
    until: f64,
    lines: f64,
    step: (f64, f64),
}

const PANELS: [Panel; 2] = [
    Panel { title: "The first half second", left: 60.0, until: 0.5, lines: 500.0, step: (0.1, 100.0) },
    Panel { title: "The stall, and after it", left: 540.0, until: 3.2, lines: 2000.0, step: (0.5, 500.0) },
];

const TOP: f64 = 116.0;
const WIDTH: f64 = 390.0;
const HEIGHT: f64 = 300.0;

impl Panel {
    fn x(&self, seconds: f64) -> f64 {
        self.left + seconds / self.until * WIDTH
    }

    fn y(&self, lines: f64) -> f64 {
        TOP + HEIGHT - lines / self.lines * HEIGHT
    }

    fn draw(&self, svg: &mut String, tools: &[(Tool, &str, Arrivals)]) -> Result<()> {
        self.axes(svg)?;
        for (_, colour, arrivals) in tools {
            let steps = self.steps(arrivals);
            writeln!(svg, r#"<path d="{steps}" fill="none" stroke="{colour}" stroke-width="2"/>"#)?;
        }
        writeln!(
            svg,
            r##"<path d="{}" fill="none" stroke="#999" stroke-width="1.5" stroke-dasharray="5 4"/>"##,
            self.ideal()
        )?;
        Ok(())
    }

    fn axes(&self, svg: &mut String) -> Result<()> {
        let (left, bottom) = (self.left, TOP + HEIGHT);
        writeln!(
            svg,
            r#"<text x="{left}" y="{}" font-weight="bold">{}: lines arrived</text>"#,
            TOP - 14.0,
            self.title
        )?;
        for k in 0..=count(self.lines, self.step.1) {
            let lines = f64::from(k) * self.step.1;
            let y = self.y(lines);
            writeln!(svg, r##"<path d="M{left} {y:.1}h{WIDTH}" stroke="#e4e4e4"/>"##)?;
            writeln!(svg, r#"<text x="{}" y="{:.1}" text-anchor="end">{lines}</text>"#, left - 6.0, y + 4.0)?;
        }
        for k in 0..=count(self.until, self.step.0) {
            let at = f64::from(k) * self.step.0;
            let x = self.x(at);
            writeln!(svg, r##"<path d="M{x:.1} {bottom}v5" stroke="#222"/>"##)?;
            writeln!(svg, r#"<text x="{x:.1}" y="{}" text-anchor="middle">{at:.1}</text>"#, bottom + 20.0)?;
        }
        writeln!(svg, r##"<path d="M{left} {TOP}v{HEIGHT}h{WIDTH}" fill="none" stroke="#222"/>"##)?;
        let middle = left + WIDTH / 2.0;
        writeln!(
            svg,
            r#"<text x="{middle}" y="{}" text-anchor="middle">seconds since the start</text>"#,
            bottom + 42.0
        )?;
        Ok(())
    }

    /// A staircase through the arrivals; steps too small to see are left out.
    fn steps(&self, arrivals: &Arrivals) -> String {
        let mut path = format!("M{:.1} {:.1}", self.x(0.0), self.y(0.0));
        let (mut lines, mut drawn) = (0, (self.x(0.0), self.y(0.0)));
        for &(at, units) in &arrivals.0 {
            lines += units;
            let (x, y) = (self.x(seconds(at)), self.y(lines as f64));
            if seconds(at) > self.until {
                break;
            }
            if x - drawn.0 >= 0.5 || drawn.1 - y >= 0.5 {
                let _ = write!(path, "H{x:.1}V{y:.1}");
                drawn = (x, y);
            }
        }
        path
    }

    fn ideal(&self) -> String {
        let corners = [(0.0, 0.0), (0.5, 500.0), (1.5, 500.0), (3.0, 2000.0), (3.2, 2000.0)];
        let inside = corners.iter().filter(|corner| corner.0 <= self.until);
        let points: Vec<String> =
            inside.map(|&(at, lines)| format!("{:.1} {:.1}", self.x(at), self.y(lines))).collect();
        format!("M{}", points.join("L"))
    }
}

/// How many steps fit.
fn count(whole: f64, step: f64) -> u32 {
    (1..100).take_while(|k| f64::from(*k) * step <= whole * 1.0001).count().try_into().unwrap_or(0)
}
