//! Prints `docs/metrics.md`, the page of all metrics, made of their declarations; `cargo xtask docs` writes it.

use std::fmt::Write;

use shared::metrics::{Metric, Unit, catalogue::SECTIONS};

const HEAD: &str = "\
# Metrics

<!-- Written by `cargo xtask docs` from shared/src/metrics/catalogue. Do not edit. -->

Every key of `metrics.jsonl`, which holds one JSON object per step, and of `eval.jsonl`, which holds one per
evaluation. A value that is no finite number (the mean of nothing) is `null`. `tandem report` draws the metrics that
name a chart.

Keys are TRL's if TRL has the metric. Otherwise they are those of the tool named beside them, with that tool's
definition. A metric with a condition is recorded only if the condition holds.

[curves.md](curves.md) reads the metrics of a real run. Watch these first: [`reward`](#reward) and
[`eval_accuracy`](#eval_accuracy) say whether the run learns, [`frac_reward_zero_std`](#frac_reward_zero_std) and
[`completions/clipped_ratio`](#completionsclipped_ratio) why it may not, [`entropy`](#entropy) and
[`grad_norm`](#grad_norm) whether it stays sound, and [`mismatch_kl`](#mismatch_kl) whether both processes compute the
same.

**Normal** gives the values of a sound run, and then the meaning of other values.
";

fn main() {
    print!("{}", page());
}

/// The page as Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for section in SECTIONS {
        write!(page, "\n## {}\n\n{}\n", section.title, section.intro).expect("writing to a String");
        page.extend(section.metrics.iter().map(|metric| entry(metric)));
    }
    page
}

fn entry(metric: &Metric) -> String {
    let mut facts = vec![unit(metric.unit).to_owned(), format!("source: {}", metric.source)];
    facts.extend(metric.chart.map(|(chart, _)| format!("chart \"{}\"", chart.title)));
    facts.extend(metric.when.map(|when| format!("only with {when}")));
    let lines: Vec<&str> = metric.text.lines().map(str::trim).collect();
    let (meaning, normal) = lines.split_at(lines.iter().position(|line| line.is_empty()).unwrap_or(lines.len()));
    let (meaning, normal) = (meaning.join(" "), normal.join(" "));
    format!("\n### `{}`\n\n*{}*\n\n{meaning}\n\n**Normal:**{normal}\n", metric.key, facts.join("; "))
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "a count",
        Unit::Number => "a number",
        Unit::Points => "points",
        Unit::Share => "a share, 0 to 1",
        Unit::Nats => "nats per token",
        Unit::Tokens => "tokens",
        Unit::TokensPerSecond => "tokens per second",
        Unit::Seconds => "seconds",
        Unit::Bytes => "bytes",
    }
}
