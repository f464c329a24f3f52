//! Draws one chart as an inline SVG. Colours come from the page's style sheet, so that light and dark need no second
//! drawing.

use std::fmt::Write;

use shared::metrics;

use super::scale::{Axis, Scale, brief, short};

/// One curve: a value per step, with gaps.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// `(step, value)`, ascending by step; a missing or non-finite value leaves a gap.
    pub points: Vec<(f64, Option<f64>)>,
}

/// A chart over the steps of a run, with its curves.
#[derive(Debug)]
pub struct Chart {
    /// What it is called and how it is drawn.
    pub declared: &'static metrics::Chart,
    /// The curves; those without any value are left out.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

/// Most points of a curve; longer ones are thinned to means of neighbours.
const MAX_POINTS: usize = 400;
/// Curves with more points than this are shown with a moving average.
pub const SMOOTH_FROM: usize = 40;

impl Chart {
    /// The chart as an HTML figure; nothing when there is no value to show.
    pub fn draw(&self) -> Option<String> {
        let series: Vec<Series> = self.series.iter().filter_map(Series::prepared).collect();
        let is_stacked = self.declared.stacked;
        let tops = if is_stacked { stacked(&series) } else { series.clone() };
        let values = tops.iter().flat_map(|s| s.points.iter().filter_map(|p| p.1));
        let scale = if self.declared.logarithmic { Scale::Log } else { Scale::Linear };
        let y = Axis::around(values, scale, is_stacked)?;
        let steps = || series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
        let x = Axis::exact(steps().fold(f64::INFINITY, f64::min), steps().fold(f64::NEG_INFINITY, f64::max));
        let plot = Plot { x, y };
        let window = self.smoothing(&series);

        let mut svg = String::new();
        plot.grid(&mut svg);
        if is_stacked {
            (0..tops.len()).rev().for_each(|i| plot.area(&mut svg, i, &tops[i]));
        } else {
            series.iter().enumerate().for_each(|(i, s)| plot.line(&mut svg, i, s, window));
        }
        Some(self.figure(&series, &svg))
    }

    fn smoothing(&self, series: &[Series]) -> Option<usize> {
        let longest = series.iter().map(|s| s.points.len()).max().unwrap_or(0);
        (self.declared.smooth && longest > SMOOTH_FROM).then_some(longest / 20)
    }

    fn figure(&self, series: &[Series], svg: &str) -> String {
        let mut legend = String::new();
        if series.len() > 1 {
            for (i, s) in series.iter().enumerate() {
                let _ = write!(legend, "<span class=\"key\"><i class=\"c{}\"></i>{}</span>", i % 8, escape(&s.name));
            }
            legend = format!("<div class=\"legend\">{legend}</div>");
        }
        let last = match series {
            [only] if !self.declared.stacked => only.points.iter().rev().find_map(|p| p.1).map(brief),
            _ => None,
        };
        format!(
            "<figure class=\"chart\" data-series=\"{data}\"><figcaption><h3>{title}</h3><b>{last}</b><p>{note}</p>\
             </figcaption>{legend}<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">{svg}\
             <line class=\"cursor\" y1=\"{TOP}\" y2=\"{bottom}\"/></svg></figure>",
            data = escape(&hover_data(series)),
            title = escape(self.declared.title),
            note = escape(self.declared.note),
            last = last.unwrap_or_default(),
            bottom = HEIGHT - BOTTOM,
        )
    }
}

impl Series {
    /// Thinned, without values that are no numbers; nothing when no value is left.
    fn prepared(&self) -> Option<Self> {
        let clean = |p: &(f64, Option<f64>)| (p.0, p.1.filter(|v| v.is_finite()));
        let points: Vec<_> = self.points.iter().map(clean).filter(|p| p.0.is_finite()).collect();
        if points.iter().all(|p| p.1.is_none()) {
            return None;
        }
        let size = points.len().div_ceil(MAX_POINTS);
        let points = points
            .chunks(size)
            .map(|chunk| {
                let values: Vec<f64> = chunk.iter().filter_map(|p| p.1).collect();
                let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
                (chunk[chunk.len() - 1].0, mean)
            })
            .collect();
        Some(Self { name: self.name.clone(), points })
    }

    /// Means over up to `window` points before and after each.
    fn smoothed(&self, window: usize) -> Vec<(f64, Option<f64>)> {
        (0..self.points.len())
            .map(|i| {
                let near = &self.points[i.saturating_sub(window)..(i + window + 1).min(self.points.len())];
                let values: Vec<f64> = near.iter().filter_map(|p| p.1).collect();
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                (self.points[i].0, (self.points[i].1.is_some() && !values.is_empty()).then_some(mean))
            })
            .collect()
    }
}

/// Each series with the sum of those before it added; a gap counts as nothing.
fn stacked(series: &[Series]) -> Vec<Series> {
    let mut sums: std::collections::BTreeMap<u64, f64> = std::collections::BTreeMap::new();
    let add = |s: &Series| {
        let mut top = |p: &(f64, Option<f64>)| {
            let sum = sums.entry(p.0.to_bits()).or_default();
            *sum += p.1.unwrap_or(0.0).max(0.0);
            (p.0, Some(*sum))
        };
        Series { name: s.name.clone(), points: s.points.iter().map(&mut top).collect() }
    };
    series.iter().map(add).collect()
}

/// What the page's script shows beside the pointer: names, steps and values, with the steps' places in the drawing.
fn hover_data(series: &[Series]) -> String {
    let list: Vec<_> = series.iter().map(|s| serde_json::json!({ "name": s.name, "points": s.points })).collect();
    let low = series.iter().flat_map(|s| s.points.first()).map(|p| p.0).fold(f64::INFINITY, f64::min);
    let high = series.iter().flat_map(|s| s.points.last()).map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
    serde_json::json!({ "left": LEFT, "right": WIDTH - RIGHT, "width": WIDTH, "low": low, "high": high, "series": list })
        .to_string()
}

struct Plot {
    x: Axis,
    y: Axis,
}

impl Plot {
    fn left(&self, step: f64) -> Option<f64> {
        self.x.place(step).map(|p| LEFT + p * (WIDTH - LEFT - RIGHT))
    }

    fn top(&self, value: f64) -> Option<f64> {
        self.y.place(value).map(|p| HEIGHT - BOTTOM - p * (HEIGHT - TOP - BOTTOM))
    }

    fn grid(&self, svg: &mut String) {
        let right = WIDTH - RIGHT;
        for tick in &self.y.ticks {
            if let Some(y) = self.top(*tick) {
                let _ = write!(
                    svg,
                    "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                     <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LEFT - 6.0,
                    y + 3.5,
                    short(*tick)
                );
            }
        }
        for tick in &self.x.ticks {
            if let Some(x) = self.left(*tick) {
                let _ = write!(
                    svg,
                    "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    HEIGHT - BOTTOM + 16.0,
                    short(*tick)
                );
            }
        }
    }

    fn line(&self, svg: &mut String, index: usize, series: &Series, window: Option<usize>) {
        let class = format!("c{}", index % 8);
        match window {
            None => self.path(svg, &format!("line {class}"), &series.points),
            Some(window) => {
                self.path(svg, &format!("line raw {class}"), &series.points);
                self.path(svg, &format!("line {class}"), &series.smoothed(window));
            }
        }
    }

    fn path(&self, svg: &mut String, class: &str, points: &[(f64, Option<f64>)]) {
        for run in self.runs(points) {
            match run.as_slice() {
                [(x, y)] => {
                    let _ = write!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>");
                }
                run => {
                    let _ = write!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", coordinates(run));
                }
            }
        }
    }

    fn area(&self, svg: &mut String, index: usize, top: &Series) {
        for run in self.runs(&top.points) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            let floor = HEIGHT - BOTTOM;
            let _ = write!(
                svg,
                "<polygon class=\"area c{}\" points=\"{:.1},{floor:.1} {} {:.1},{floor:.1}\"/>",
                index % 8,
                first.0,
                coordinates(&run),
                last.0
            );
        }
    }

    /// Stretches of neighbouring points that have a place, in drawing coordinates.
    fn runs(&self, points: &[(f64, Option<f64>)]) -> Vec<Vec<(f64, f64)>> {
        let place = |p: &(f64, Option<f64>)| Some((self.left(p.0)?, self.top(p.1?)?));
        let placed: Vec<_> = points.iter().map(place).collect();
        placed
            .split(Option::is_none)
            .filter(|run| !run.is_empty())
            .map(|run| run.iter().flatten().copied().collect())
            .collect()
    }
}

/// A text that may stand in HTML, between tags and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn coordinates(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: metrics::Chart = metrics::Chart {
        group: "g",
        title: "t",
        note: "",
        logarithmic: false,
        stacked: false,
        smooth: true,
        hidden_at_zero: false,
    };

    fn chart(points: &[(f64, Option<f64>)]) -> Chart {
        Chart { declared: &PLAIN, series: vec![Series { name: "s".into(), points: points.to_vec() }] }
    }

    /// Every coordinate of the drawing is a finite number.
    fn assert_sound(html: &str) {
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert_eq!(html.matches('<').count(), html.matches('>').count());
    }

    #[test]
    fn gaps_split_a_line_and_do_not_break_it() {
        let html = chart(&[
            (1.0, Some(1.0)),
            (2.0, Some(2.0)),
            (3.0, None),
            (4.0, Some(f64::NAN)),
            (5.0, Some(f64::INFINITY)),
            (6.0, Some(2.0)),
            (7.0, Some(1.0)),
            (8.0, None),
            (9.0, Some(1.5)),
        ])
        .draw()
        .unwrap();
        assert_sound(&html);
        assert_eq!(html.matches("<polyline").count(), 2);
        assert_eq!(html.matches("<circle").count(), 1);
    }

    #[test]
    fn a_chart_without_values_is_not_drawn() {
        assert!(chart(&[]).draw().is_none());
        assert!(chart(&[(1.0, None), (2.0, Some(f64::NAN))]).draw().is_none());
        let declared = &metrics::Chart { logarithmic: true, ..PLAIN };
        assert!(Chart { declared, ..chart(&[(1.0, Some(0.0))]) }.draw().is_none());
    }

    #[test]
    fn one_point_and_a_flat_line_are_drawn() {
        for points in [vec![(1.0, Some(0.0))], vec![(1.0, Some(3.0)), (2.0, Some(3.0))]] {
            assert_sound(&chart(&points).draw().unwrap());
        }
    }

    #[test]
    fn long_curves_are_thinned_and_smoothed() {
        let points: Vec<_> = (0..10_000).map(|i| (f64::from(i), Some(f64::from(i % 7)))).collect();
        let html = chart(&points).draw().unwrap();
        assert_sound(&html);
        assert_eq!(html.matches("<polyline").count(), 2);
        assert!(html.len() < 60_000, "{}", html.len());
    }

    #[test]
    fn a_stack_adds_up() {
        let one = Series { name: "a".into(), points: vec![(1.0, Some(1.0)), (2.0, None)] };
        let two = Series { name: "b".into(), points: vec![(1.0, Some(2.0)), (2.0, Some(5.0))] };
        let tops = stacked(&[one.clone(), two.clone()]);
        assert_eq!(tops[1].points, [(1.0, Some(3.0)), (2.0, Some(5.0))]);
        let html =
            Chart { declared: &metrics::Chart { stacked: true, ..PLAIN }, series: vec![one, two] }.draw().unwrap();
        assert_sound(&html);
        assert_eq!(html.matches("<polygon").count(), 2);
    }

    #[test]
    fn names_are_escaped() {
        let mut evil = chart(&[(1.0, Some(1.0)), (2.0, Some(2.0))]);
        evil.declared = &metrics::Chart { title: "<script>\"&", ..PLAIN };
        evil.series[0].name = "\"><script>alert(1)</script>".into();
        evil.series.push(evil.series[0].clone());
        let html = evil.draw().unwrap();
        assert!(!html.contains("<script") && !html.contains("\\\"><"), "{html}");
        assert_sound(&html);
    }
}
