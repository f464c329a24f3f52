//! Plots one small chart for each figure, over minutes.

use std::fmt::Write;

use super::figures::{Figures, SERIES};

const WIDTH: f64 = 280.0;
const HEIGHT: f64 = 110.0;
const COLUMNS: usize = 3;
/// Room for the name above a chart, and between charts.
const MARGIN: f64 = 24.0;

/// All measurements as an SVG image.
pub fn draw(seen: &[Figures]) -> String {
    let rows = SERIES.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * (WIDTH + MARGIN), rows as f64 * (HEIGHT + 2.0 * MARGIN));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let end = seen.last().map_or(1.0, |last| last.seconds).max(1.0);
    for (index, series) in SERIES.iter().enumerate() {
        let left = (index % COLUMNS) as f64 * (WIDTH + MARGIN) + MARGIN / 2.0;
        let top = (index / COLUMNS) as f64 * (HEIGHT + 2.0 * MARGIN) + MARGIN;
        let most = seen.iter().map(series.value).fold(0.0, f64::max).max(1e-9);
        let points: Vec<String> = seen
            .iter()
            .map(|figures| {
                let (x, y) = (figures.seconds / end, (series.value)(figures) / most);
                format!("{:.1},{:.1}", left + x * WIDTH, top + (1.0 - y) * HEIGHT)
            })
            .collect();
        let base = top + HEIGHT;
        let _ = write!(
            svg,
            "<text x=\"{left}\" y=\"{:.1}\">{}, at most {most:.1} {}</text>\n\
             <path d=\"M{left} {top}V{base}H{:.1}\" fill=\"none\" stroke=\"#999\"/>\n\
             <polyline points=\"{}\" fill=\"none\" stroke=\"#06c\"/>\n\
             <text x=\"{left}\" y=\"{:.1}\" fill=\"#555\">0</text>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\" text-anchor=\"end\">{:.0} minutes</text>\n",
            top - 6.0,
            series.name,
            series.unit,
            left + WIDTH,
            points.join(" "),
            base + 13.0,
            left + WIDTH,
            base + 13.0,
            end / 60.0,
        );
    }
    svg + "</svg>\n"
}
