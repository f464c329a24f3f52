//! The charts that runs can have, as the catalogue of metrics declares them.

use serde::Serialize;
use shared::metrics::{self, CHARTS, catalogue};

/// A chart.
#[derive(Debug, Serialize)]
pub struct Chart {
    group: &'static str,
    title: &'static str,
    note: &'static str,
    logarithmic: bool,
    stacked: bool,
    smooth: bool,
    hidden_at_zero: bool,
    curves: Vec<Curve>,
}

/// A curve of a chart, or one for each member of a family.
#[derive(Debug, Serialize)]
struct Curve {
    /// Key of the metric; a family's has a part in braces.
    key: &'static str,
    label: &'static str,
    /// Whether records of evaluations have it.
    evaluated: bool,
}

/// Every chart, in the order of the page.
pub fn charts() -> Vec<Chart> {
    CHARTS.iter().map(|declared| chart(declared)).collect()
}

fn chart(declared: &'static metrics::Chart) -> Chart {
    let metrics::Chart { group, title, note, logarithmic, stacked, smooth, hidden_at_zero } = *declared;
    let evaluated = |key| catalogue::EVALUATION.metrics.iter().any(|metric| metric.key == key);
    let curves = catalogue::all().filter_map(|metric| {
        let (chart, label) = metric.chart?;
        (chart.title == title).then(|| Curve { key: metric.key, label, evaluated: evaluated(metric.key) })
    });
    Chart { group, title, note, logarithmic, stacked, smooth, hidden_at_zero, curves: curves.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chart_has_curves_and_those_of_evaluations_are_marked() {
        let charts = charts();
        assert!(charts.iter().all(|chart| !chart.curves.is_empty()));
        let of = |title: &str| &charts.iter().find(|chart| chart.title == title).unwrap().curves;
        assert!(of("Evaluation").iter().all(|curve| curve.evaluated));
        assert_eq!(of("Reward by function")[0].key, "rewards/{name}/mean");
        assert!(!of("Reward")[0].evaluated);
    }
}
