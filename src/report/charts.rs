//! The charts of a report, made of what the catalogue of metrics says about them.

use std::collections::BTreeSet;

use shared::metrics::{self, CHARTS, Metric, MetricRecord, ROLLOUT_TOKENS_PER_S, STEP, catalogue};

use super::svg::{Chart, Series};

/// A heading with its charts.
#[derive(Debug)]
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// Charts, those without data included.
    pub charts: Vec<Chart>,
}

/// Every chart that a run can have, under its headings; those without data draw nothing.
pub fn sections(records: &[MetricRecord], evaluations: &[MetricRecord]) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for declared in CHARTS {
        if sections.last().is_none_or(|section| section.title != declared.group) {
            sections.push(Section { title: declared.group, charts: Vec::new() });
        }
        let section = sections.last_mut().expect("there is one");
        section.charts.push(chart(declared, records, evaluations));
    }
    sections
}

/// A chart with the curves of its metrics; those of evaluations come from their own records.
fn chart(declared: &'static metrics::Chart, records: &[MetricRecord], evaluations: &[MetricRecord]) -> Chart {
    let mut curves = Vec::new();
    for metric in catalogue::all() {
        if let Some((chart, label)) = metric.chart
            && chart.title == declared.title
        {
            if metric.key == ROLLOUT_TOKENS_PER_S.key {
                curves.push(throughput(records));
            }
            let evaluated = catalogue::EVALUATION.metrics.iter().any(|other| other.key == metric.key);
            curves.extend(curves_of(metric, label, if evaluated { evaluations } else { records }));
        }
    }
    let sum = |s: &Series| s.points.iter().filter_map(|p| p.1).sum::<f64>();
    if declared.hidden_at_zero && curves.iter().all(|s| s.points.iter().all(|p| p.1.is_none_or(|v| v == 0.0))) {
        curves.clear();
    }
    if declared.stacked {
        // Parts that nobody would see in the drawing only lengthen the legend.
        let total: f64 = curves.iter().map(sum).sum();
        curves.retain(|s| sum(s) > 0.002 * total);
    }
    Chart { declared, series: curves }
}

/// The curve of a metric, or one for each member of a family, in the order of their names.
fn curves_of(metric: &'static Metric, label: &str, records: &[MetricRecord]) -> Vec<Series> {
    let keys: BTreeSet<&str> = records.iter().flat_map(|r| r.values().keys().map(String::as_str)).collect();
    let found = keys.into_iter().filter_map(|key| Some((key, metric.name_in(key)?)));
    found
        .map(|(key, name)| {
            let value = |r: &MetricRecord| r.values().get(key).and_then(serde_json::Value::as_f64);
            let points = records.iter().filter_map(|r| Some((r.get(STEP)?, value(r)))).collect();
            Series { name: if name.is_empty() { label.to_owned() } else { name.to_owned() }, points }
        })
        .collect()
}

/// Completion tokens per second of a whole step, which is made of two metrics.
fn throughput(records: &[MetricRecord]) -> Series {
    let rate = |r: &MetricRecord| crate::summary::tokens_per_second(std::slice::from_ref(r), 0);
    let points = records.iter().filter_map(|r| Some((r.get(STEP)?, rate(r)))).collect();
    Series { name: "whole step".to_owned(), points }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charts(lines: &[&str]) -> Vec<Chart> {
        let records: Vec<MetricRecord> =
            lines.iter().map(|line| MetricRecord::from_line(line.as_bytes()).unwrap()).collect();
        let evaluations = [MetricRecord::from_line(br#"{"step":0,"eval_accuracy":0.5,"reward":9.0}"#).unwrap()];
        let charts = sections(&records, &evaluations).into_iter().flat_map(|s| s.charts);
        charts.filter(|c| c.draw().is_some()).collect()
    }

    fn titles(lines: &[&str]) -> Vec<&'static str> {
        charts(lines).into_iter().map(|chart| chart.declared.title).filter(|title| *title != "Evaluation").collect()
    }

    #[test]
    fn what_a_run_does_not_have_is_left_out() {
        let shown = titles(&[r#"{"step":1,"reward":1.0,"kl":null,"sample/staleness_max":0,"rewards/a/mean":0.5}"#]);
        assert_eq!(shown, ["Reward", "Reward by function"]);
        let shown = titles(&[r#"{"step":1,"kl":0.1,"sample/staleness_max":1}"#]);
        assert_eq!(shown, ["KL to the reference", "Staleness"]);
    }

    #[test]
    fn curves_are_those_of_their_own_records_and_families_have_one_each() {
        let charts = charts(&[r#"{"step":1,"rewards/b/mean":1.0,"rewards/a/mean":0.5,"eval_accuracy":7.0}"#]);
        let of = |title: &str| &charts.iter().find(|chart| chart.declared.title == title).unwrap().series;
        assert_eq!(of("Reward by function").iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(of("Evaluation")[0].points, [(0.0, Some(0.5))]);
        assert!(!charts.iter().any(|chart| chart.declared.title == "Reward"));
    }

    #[test]
    fn throughput_is_that_of_the_step_and_of_generation_alone() {
        let charts = charts(&[r#"{"step":1,"completions/num_tokens":60,"step_time":2.0,"rollout/tokens_per_s":45.0}"#]);
        let curves = &charts.iter().find(|chart| chart.declared.title == "Throughput").unwrap().series;
        let shown: Vec<_> = curves.iter().map(|s| (s.name.as_str(), s.points[0].1)).collect();
        assert_eq!(shown, [("whole step", Some(30.0)), ("generation alone", Some(45.0))]);
    }

    #[test]
    fn invisible_phases_are_left_out_of_the_step_time() {
        let charts = charts(&[r#"{"step":1,"perf/fwd_bwd_s":1.0,"perf/old_logps_s":1e-6,"perf/ref_logps_s":0.0}"#]);
        let chart = charts.iter().find(|chart| chart.declared.title == "Step time").unwrap();
        assert_eq!(chart.series.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["forward and backward"]);
    }
}
