//! Which curves a report shows, and where in the records they are.

use std::collections::BTreeSet;

use shared::metrics::MetricRecord;

use super::{
    scale::Scale,
    svg::{Chart, Kind, Series},
};

/// A heading with its charts.
#[derive(Debug)]
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// Charts, those without data included.
    pub charts: Vec<Chart>,
}

/// Every chart that a run can have; those without data draw nothing.
pub fn sections(records: &[MetricRecord], evaluations: &[MetricRecord]) -> Vec<Section> {
    let lines = |title: &str, note: &str, keys: &[(&str, &str)]| chart(records, title, note, Scale::Linear, keys);
    let log = |title: &str, note: &str, keys: &[(&str, &str)]| chart(records, title, note, Scale::Log, keys);
    vec![
        Section {
            title: "Learning",
            charts: vec![
                lines("Reward", "mean over the completions of a step", &[("reward", "reward")]),
                by_function(records),
                evaluation(evaluations),
                lines(
                    "Completion length",
                    "tokens",
                    &[
                        ("completions/mean_length", "mean"),
                        ("completions/min_length", "min"),
                        ("completions/max_length", "max"),
                    ],
                ),
                lines("Entropy", "mean per token, in nats", &[("entropy", "entropy")]),
                lines(
                    "Shares",
                    "truncated completions; groups with equal rewards",
                    &[("completions/clipped_ratio", "truncated"), ("frac_reward_zero_std", "equal rewards")],
                ),
            ],
        },
        Section {
            title: "Optimisation",
            charts: vec![
                lines("KL to the reference", "k3 estimator, mean per token", &[("kl", "kl")]),
                unless_zero(lines(
                    "Clip ratio",
                    "share of tokens outside the clip range",
                    &[
                        ("clip_ratio/low_mean", "low"),
                        ("clip_ratio/high_mean", "high"),
                        ("clip_ratio/region_mean", "either"),
                    ],
                )),
                lines("Gradient norm", "before clipping", &[("grad_norm", "grad_norm")]),
                lines("Loss", "says little in GRPO: watch the reward", &[("loss", "loss")]),
                Chart {
                    smooth: false,
                    ..lines("Learning rate", "after warm-up and schedule", &[("learning_rate", "learning_rate")])
                },
            ],
        },
        Section {
            title: "The pair",
            charts: vec![
                log("Sampler against learner", "mismatch_kl; logarithmic", &[("mismatch_kl", "mismatch_kl")]),
                log(
                    "Difference of log-probs",
                    "absolute, sampler against learner; logarithmic",
                    &[
                        ("sampling/sampling_logp_difference/mean", "mean"),
                        ("sampling/sampling_logp_difference/max", "max"),
                    ],
                ),
                step_time(records),
                throughput(records),
                lines(
                    "Weight swap",
                    "seconds until the sampler runs new weights",
                    &[("rollout/swap_s", "swap"), ("rollout/swap_stall_s", "standstill")],
                ),
                unless_zero(lines(
                    "Staleness",
                    "versions between sampling and training",
                    &[("sample/staleness_mean", "mean"), ("sample/staleness_max", "max")],
                )),
            ],
        },
    ]
}

/// A chart that says nothing as long as all its values are 0.
fn unless_zero(chart: Chart) -> Chart {
    let zero = |s: &Series| s.points.iter().all(|p| p.1.is_none_or(|v| v == 0.0));
    let series = if chart.series.iter().all(zero) { Vec::new() } else { chart.series };
    Chart { series, ..chart }
}

fn chart(records: &[MetricRecord], title: &str, note: &str, scale: Scale, keys: &[(&str, &str)]) -> Chart {
    let series = keys.iter().map(|(key, name)| series(records, key, name)).collect();
    Chart {
        title: title.to_owned(),
        note: note.to_owned(),
        scale,
        kind: Kind::Lines,
        smooth: scale == Scale::Linear,
        series,
    }
}

fn series(records: &[MetricRecord], key: &str, name: &str) -> Series {
    let points = records.iter().filter_map(|r| Some((r.get("step")?, r.get(key)))).collect();
    Series { name: name.to_owned(), points }
}

/// Keys that any record has, in alphabetical order.
fn keys(records: &[MetricRecord]) -> BTreeSet<&str> {
    records.iter().flat_map(|r| r.values().keys().map(String::as_str)).collect()
}

fn by_function(records: &[MetricRecord]) -> Chart {
    let series = keys(records)
        .into_iter()
        .filter_map(|key| Some((key, key.strip_prefix("rewards/")?.strip_suffix("/mean")?)))
        .map(|(key, name)| series(records, key, name))
        .collect();
    Chart {
        title: "Reward by function".to_owned(),
        note: "mean score before weighting".to_owned(),
        scale: Scale::Linear,
        kind: Kind::Lines,
        smooth: true,
        series,
    }
}

fn evaluation(evaluations: &[MetricRecord]) -> Chart {
    let chart =
        chart(evaluations, "Evaluation", "share of right answers", Scale::Linear, &[("eval_accuracy", "accuracy")]);
    Chart { smooth: false, ..chart }
}

/// Parts of a step's time, in the order of a step.
const PHASES: [(&str, &str); 6] = [
    ("perf/rollout_wait_s", "waiting for groups"),
    ("perf/old_logps_s", "old log-probs"),
    ("perf/ref_logps_s", "reference log-probs"),
    ("perf/fwd_bwd_s", "forward and backward"),
    ("perf/optimizer_s", "optimiser"),
    ("perf/publish_s", "publishing"),
];

fn step_time(records: &[MetricRecord]) -> Chart {
    let mut chart = chart(records, "Step time", "seconds of the learner, by phase", Scale::Linear, &PHASES);
    chart.kind = Kind::Stacked;
    chart.smooth = false;
    // Phases that nobody would see in the drawing only lengthen the legend.
    let sum = |s: &Series| s.points.iter().filter_map(|p| p.1).sum::<f64>();
    let total: f64 = chart.series.iter().map(sum).sum();
    chart.series.retain(|s| sum(s) > 0.002 * total);
    chart
}

fn throughput(records: &[MetricRecord]) -> Chart {
    let rate = |r: &MetricRecord| crate::summary::tokens_per_second(std::slice::from_ref(r), 0);
    let points = records.iter().filter_map(|r| Some((r.get("step")?, rate(r)))).collect();
    Chart {
        title: "Throughput".to_owned(),
        note: "completion tokens per second".to_owned(),
        scale: Scale::Linear,
        kind: Kind::Lines,
        smooth: true,
        series: vec![
            Series { name: "whole step".to_owned(), points },
            series(records, "rollout/tokens_per_s", "generation alone"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(lines: &[&str]) -> Vec<String> {
        let records: Vec<MetricRecord> =
            lines.iter().map(|line| MetricRecord::from_line(line.as_bytes()).unwrap()).collect();
        let charts = sections(&records, &[]).into_iter().flat_map(|s| s.charts);
        charts.filter(|c| c.draw().is_some()).map(|c| c.title).collect()
    }

    #[test]
    fn what_a_run_does_not_have_is_left_out() {
        let shown = titles(&[r#"{"step":1,"reward":1.0,"kl":null,"sample/staleness_max":0,"rewards/a/mean":0.5}"#]);
        assert_eq!(shown, ["Reward", "Reward by function"]);
        let shown = titles(&[r#"{"step":1,"kl":0.1,"sample/staleness_max":1}"#]);
        assert_eq!(shown, ["KL to the reference", "Staleness"]);
    }

    #[test]
    fn invisible_phases_are_left_out_of_the_step_time() {
        let line = br#"{"step":1,"perf/fwd_bwd_s":1.0,"perf/old_logps_s":1e-6,"perf/ref_logps_s":0.0}"#;
        let chart = step_time(&[MetricRecord::from_line(line).unwrap()]);
        assert_eq!(chart.series.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["forward and backward"]);
    }
}
