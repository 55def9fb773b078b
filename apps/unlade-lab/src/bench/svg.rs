//! A line chart as SVG text: sizes, counts or percents to the right, a figure upwards.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 56.0;
/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#999999", "#e69f00", "#d55e00", "#000000"];

/// The x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Bytes, logarithmic.
    Bytes,
    /// How many of something, logarithmic.
    Count,
    /// Percents from 0 on.
    Percent,
}

impl Axis {
    fn place(self, x: f64) -> f64 {
        match self {
            Axis::Bytes | Axis::Count => x.log2(),
            Axis::Percent => x,
        }
    }

    fn holds(self, x: f64) -> bool {
        x > 0.0 || (self == Axis::Percent && x == 0.0)
    }

    fn mark(self, x: f64) -> String {
        match self {
            Axis::Bytes => size(x),
            Axis::Count => format!("{x}"),
            Axis::Percent => format!("{x} %"),
        }
    }
}

/// One line of a chart.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    /// Value of the x axis, and the figure.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    pub title: String,
    pub x_label: String,
    pub axis: Axis,
    pub y_label: String,
    pub y_is_log: bool,
    pub series: Vec<Series>,
}

impl Chart {
    /// The chart as an SVG document; `None` without any point.
    pub fn draw(&self) -> Option<String> {
        let points: Vec<(f64, f64)> = self
            .series
            .iter()
            .flat_map(|series| series.points.iter().copied())
            .filter(|(x, y)| self.axis.holds(*x) && y.is_finite() && (!self.y_is_log || *y > 0.0))
            .collect();
        let (x_min, x_max) = bounds(points.iter().map(|(x, _)| self.axis.place(*x)))?;
        let (low, high) = bounds(points.iter().map(|(_, y)| self.height_of(*y)))?;
        let (low, high) = match self.y_is_log {
            true => (low.floor(), high.ceil().max(low.floor() + 1.0)),
            false => (0.0, if high > 0.0 { high * 1.05 } else { 1.0 }),
        };
        let span = (x_max - x_min).max(1.0);
        let x = |at: f64| LEFT + (self.axis.place(at) - x_min) / span * (WIDTH - LEFT - RIGHT);
        let y =
            |height: f64| HEIGHT - BOTTOM - (height - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
        let mut svg = self.open();
        self.draw_axes(&mut svg, &points, (low, high), &x, &y);
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let usable = series.points.iter().filter(|(_, v)| !self.y_is_log || *v > 0.0);
            let at: Vec<(f64, f64)> =
                usable.map(|(place, value)| (x(*place), y(self.height_of(*value)))).collect();
            draw_series(&mut svg, &series.name, colour, &at, index);
        }
        svg.push_str("</svg>\n");
        Some(svg)
    }

    fn height_of(&self, value: f64) -> f64 {
        if self.y_is_log { value.log10() } else { value }
    }

    fn open(&self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n\
             <text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            escape(&self.title),
            (HEIGHT - BOTTOM + TOP) / 2.0,
            escape(&self.y_label)
        )
    }

    fn draw_axes(
        &self,
        svg: &mut String,
        points: &[(f64, f64)],
        (low, high): (f64, f64),
        x: &dyn Fn(f64) -> f64,
        y: &dyn Fn(f64) -> f64,
    ) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let steps = if self.y_is_log { (high - low).round() as u32 } else { 5 };
        for step in 0..=steps.clamp(1, 12) {
            let height = low + (high - low) * f64::from(step) / f64::from(steps.clamp(1, 12));
            let value = if self.y_is_log { 10f64.powf(height) } else { height };
            let at = y(height);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" \
                 stroke=\"#dddddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                number(value)
            );
        }
        let mut places: Vec<f64> = points.iter().map(|(place, _)| *place).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        for place in places {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(place),
                bottom + 18.0,
                self.axis.mark(place)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            bottom + 40.0,
            escape(&self.x_label)
        );
    }
}

fn draw_series(svg: &mut String, name: &str, colour: &str, at: &[(f64, f64)], index: usize) {
    let line: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        line.join(" ")
    );
    for (x, y) in at {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
    let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 10.0 + 20.0 * index as f64);
    let _ = writeln!(
        svg,
        "<line x1=\"{x}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
         stroke-width=\"3\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x + 18.0,
        x + 24.0,
        y + 4.0,
        escape(name)
    );
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |seen, value| match seen {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    })
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1_048_576.0 => format!("{} MiB", b / 1_048_576.0),
        b if b >= 1024.0 => format!("{} KiB", b / 1024.0),
        b => format!("{b} B"),
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 10_000.0 => format!("{value:.0e}"),
        v if v >= 10.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y_is_log: bool, points: Vec<(f64, f64)>) -> Chart {
        let series = vec![Series { name: "a<b".to_owned(), points }];
        let (title, x_label) = ("t & u".to_owned(), "object size".to_owned());
        let y_label = "MiB/s".to_owned();
        Chart { title, x_label, axis: Axis::Bytes, y_label, y_is_log, series }
    }

    #[test]
    fn charts_are_well_formed_and_within_the_frame() {
        for y_is_log in [false, true] {
            let points = vec![(4096.0, 10.0), (65_536.0, 0.0), (1_048_576.0, 900.0)];
            let svg = chart(y_is_log, points).draw().unwrap();
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            assert!(
                svg.contains("t &amp; u")
                    && svg.contains("a&lt;b")
                    && svg.contains("64 KiB") != y_is_log
            );
            for value in svg.split("cy=\"").skip(1) {
                let y: f64 = value.split('"').next().unwrap().parse().unwrap();
                assert!((TOP - 1.0..=HEIGHT - BOTTOM + 1.0).contains(&y), "{y}");
            }
        }
        assert!(chart(true, vec![]).draw().is_none());
        assert!(chart(false, vec![(4096.0, 0.0)]).draw().is_some());
    }

    #[test]
    fn nothing_lost_has_a_place_among_percents() {
        let points = vec![(0.0, 3.0), (5.0, 1.0)];
        let percents = Chart { axis: Axis::Percent, ..chart(false, points.clone()) };
        assert_eq!(percents.draw().unwrap().matches("<circle").count(), 2);
        assert_eq!(chart(false, points).draw().unwrap().matches("<circle").count(), 2);
        let counts =
            Chart { axis: Axis::Count, ..chart(false, vec![(64.0, 1.0), (131_072.0, 2.0)]) };
        assert!(counts.draw().unwrap().contains("131072"));
    }
}
