//! `cargo xtask methods`: trains the demo's task with every method from the same warm start, and writes the table in
//! `docs/methods.md`.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{host::Host, steps::build};

/// A method: the options that configure it.
#[derive(Debug, Clone)]
struct Method {
    name: String,
    about: String,
    options: Vec<String>,
}

/// Options that all runs share: two updates on each generation batch and two passes over it, so that ratios move away
/// from 1 and every method has something to clip or to weight.
const COMMON: &[&str] = &[
    "--generation_batch_size=128",
    "--per_device_train_batch_size=64",
    "--num_iterations=2",
    "--max_steps=20",
    "--learning_rate=3e-4",
    "--lr_scheduler_type=linear",
    "--warmup_ratio=0",
    "--eval_steps=none",
    "--save_steps=1000",
    "--logging_steps=1000",
];

/// Methods other than a loss or an advantage estimator: name, description, options.
const OTHERS: &[(&str, &str, &[&str])] = &[
    ("GRPO, KL k3", "penalty of 0.04 × k3 in the loss", &["--loss_type=grpo", "--beta=0.04"]),
    (
        "GSPO",
        "one ratio per completion",
        &["--loss_type=grpo", "--importance_sampling_level=sequence", "--epsilon=3e-4", "--epsilon_high=4e-4"],
    ),
    ("GDPO", "each reward normalised, then summed", &["--multi_objective_aggregation=normalize_then_sum"]),
    ("entropy bonus", "0.01 × mean entropy", &["--entropy_coef=0.01"]),
    ("high-entropy tokens", "the fifth of the tokens with the highest entropy", &["--top_entropy_quantile=0.2"]),
    ("nucleus sampling", "top_p 0.9 on both sides", &["--top_p=0.9"]),
    ("asynchronous", "one step of staleness, decoupled objective", &["--max_staleness=1"]),
    ("int8 rollouts", "completions of the rounded model, importance correction", &["--rollout_dtype=int8"]),
    ("int8 keys and values", "completions of rounded attention, importance correction", &["--kv_dtype=int8"]),
];

/// Every loss and estimator with the options that its description recommends, followed by the others.
fn methods(host: &Host) -> Result<Vec<Method>> {
    let mut command = host.cargo();
    command.args(["run", "--quiet", "--release", "--locked", "--package", "shared", "--example", "losses", "recipes"]);
    let described = last_json(command)?;
    let text = |value: &Value| value.as_str().map(str::to_owned).with_context(|| format!("{value} is no text"));
    let of = |recipe: &Value| {
        let options = recipe["options"].as_array().context("a recipe has options")?.iter().map(text);
        let options = options.collect::<Result<_>>()?;
        Ok(Method { name: text(&recipe["name"])?, about: text(&recipe["about"])?, options })
    };
    let described = described.as_array().context("recipes are a list")?.iter().map(of);
    let others = OTHERS.iter().map(|(name, about, options)| {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Ok(Method { name: (*name).to_owned(), about: (*about).to_owned(), options })
    });
    described.chain(others).collect()
}

const SEEDS: [u64; 3] = [1, 2, 3];
/// Columns, each with the metrics that may fill it: methods have different metrics for clipping. The keys are spelt out
/// since this crate builds before any other; a test compares them with the catalogue of metrics.
const COLUMNS: [(&str, &[&str]); 4] = [
    ("entropy", &["entropy"]),
    ("length", &["completions/mean_length"]),
    ("clipped", &["clip_ratio/region_mean", "policy/clipfrac_avg", "actor/pg_clipfrac", "cispo_clip_ratio"]),
    ("gradient", &["grad_norm"]),
];

/// Metric of `rollout eval` for the share of solved problems.
const ACCURACY: &str = "avg@1";

/// The result of one run.
struct Run {
    accuracy: f64,
    /// First and last value of each column; none if the method has no such metric.
    figures: Vec<Option<(f64, f64)>>,
    seconds: f64,
}

/// Trains with every method (or those whose name contains `only`) and writes the table.
///
/// # Errors
/// When set-up, build or a run fails.
pub fn run(host: &Host, only: Option<&str>) -> Result<()> {
    build(host)?;
    let place = host.target.join("methods");
    let warm = warm_up(host, &place.join("warm"))?;
    let methods = methods(host)?;
    let chosen: Vec<&Method> = methods.iter().filter(|m| only.is_none_or(|part| m.name.contains(part))).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = methods.iter().map(|m| m.name.as_str()).collect();
        bail!("no method is called so; there are {}", names.join(", "));
    }
    let mut rows = String::new();
    for method in &chosen {
        let runs = SEEDS.iter().map(|seed| train(host, &place, method, *seed)).collect::<Result<Vec<Run>>>()?;
        let row = row(method, &runs);
        eprint!("{row}");
        rows.push_str(&row);
    }
    let page = page(&rows, warm);
    if only.is_some() {
        print!("{page}");
        return Ok(());
    }
    let path = host.root.join("docs/methods.md");
    fs::write(&path, page).with_context(|| path.display().to_string())
}

/// Makes the demo's warm start; returns its accuracy.
fn warm_up(host: &Host, dir: &Path) -> Result<f64> {
    let mut demo = host.command(host.binary("tandem"));
    demo.args(["demo", "--warm-up-only", "--output-dir"]).arg(dir);
    number(&last_json(demo)?, "accuracy_before")
}

fn train(host: &Host, place: &Path, method: &Method, seed: u64) -> Result<Run> {
    let dir = place.join(format!("{}-{seed}", method.name.replace(|c: char| !c.is_alphanumeric(), "_")));
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    let mut command = host.command(host.binary("tandem"));
    command.arg("train").arg(place.join("warm/run.toml")).args(COMMON).args(&method.options);
    command.arg(format!("--seed={seed}")).arg("--output_dir").arg(&dir);
    let start = Instant::now();
    let summary = last_json(command).with_context(|| format!("{} with seed {seed}", method.name))?;
    let seconds = start.elapsed().as_secs_f64();
    let records = records(&dir.join("metrics.jsonl"))?;
    let figures = COLUMNS.iter().map(|(_, keys)| keys.iter().find_map(|key| first_and_last(&records, key))).collect();
    let checkpoint = dir.join(format!("checkpoint-{}", number(&summary, "steps")?));
    Ok(Run { accuracy: accuracy(host, place, &checkpoint)?, figures, seconds })
}

fn accuracy(host: &Host, place: &Path, model: &Path) -> Result<f64> {
    let mut eval = host.command(host.binary("rollout"));
    eval.args(["eval", "--reward-funcs", "correctness", "--max-completion-length", "32", "--model"]).arg(model);
    eval.arg("--dataset").arg(place.join("warm/data/held_out.jsonl"));
    number(&last_json(eval)?, ACCURACY)
}

/// The JSON document on a command's last line.
fn last_json(mut command: Command) -> Result<Value> {
    let output = command.stderr(Stdio::piped()).output().context("cannot be started")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", output.status, said.trim_end().lines().last().unwrap_or("no message"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.trim_end().lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("`{line}` is no JSON"))
}

fn number(answer: &Value, key: &str) -> Result<f64> {
    answer[key].as_f64().with_context(|| format!("`{key}` is missing in {answer}"))
}

fn records(path: &PathBuf) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| path.display().to_string())).collect()
}

/// Means over the first and the last five records; none if no record has the metric.
fn first_and_last(records: &[Value], key: &str) -> Option<(f64, f64)> {
    let mean = |part: &[Value]| {
        let values: Vec<f64> = part.iter().filter_map(|record| record[key].as_f64()).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let size = records.len().min(5);
    Some((mean(&records[..size])?, mean(&records[records.len() - size..])?))
}

fn row(method: &Method, runs: &[Run]) -> String {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let accuracies: Vec<f64> = runs.iter().map(|run| run.accuracy).collect();
    let each: Vec<String> = accuracies.iter().map(|accuracy| format!("{accuracy:.2}")).collect();
    let mut row =
        format!("| {} | {} | **{:.2}** ({}) |", method.name, method.about, mean(&accuracies), each.join(", "));
    for column in 0..COLUMNS.len() {
        let (first, last): (Vec<f64>, Vec<f64>) = runs.iter().filter_map(|run| run.figures[column]).unzip();
        if first.is_empty() {
            row.push_str(" – |");
            continue;
        }
        let (first, last) = (mean(&first), mean(&last));
        let digits = if first.max(last) >= 10.0 { 1 } else { 3 };
        let _ = write!(row, " {first:.digits$} → {last:.digits$} |");
    }
    let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    let _ = writeln!(row, " {:.0} s | `{}` |", mean(&seconds), method.options.join(" "));
    row
}

fn page(rows: &str, warm: f64) -> String {
    let columns: String = COLUMNS.iter().map(|(name, _)| format!(" {name} |")).collect();
    format!(
        "# Methods on one task\n\n\
         Written by `cargo xtask methods`; do not edit. Every run starts from the same warm start of `tandem demo`, \
         which\n\
         solves {:.0} % of 300 held-out additions, and differs from the others in the options of the last column \
         alone.\n\
         Common to all:\n\n```text\n{}\n```\n\n\
         Accuracy is that of greedy completions of the held-out problems after training: mean over three seeds, and \
         each\n\
         of them. The other columns are means over the first and over the last five steps: entropy in nats per token,\n\
         length in tokens, share of tokens that the method clips or caps (a dash: it has no bound), norm of the \
         gradient.\n\
         Time is that of a whole run, start of both processes included. The task is small and the learning rate is the \
         same for\n\
         all: the table shows that each method runs and what it does to a policy, not which one is best.\n\n\
         | method | what it is | accuracy |{columns} time | options |\n\
         |---|---|---|---|---|---|---|---|---|\n{rows}",
        100.0 * warm,
        COMMON.join("\n"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_as_many_cells_as_the_heading() {
        let run = |accuracy| Run { accuracy, figures: vec![Some((0.5, 0.25)); COLUMNS.len()], seconds: 20.0 };
        let options = vec!["--loss_type=grpo".to_owned()];
        let method = Method { name: "GRPO".into(), about: "clipped surrogate".into(), options };
        let row = row(&method, &[run(0.9), run(1.0)]);
        let page = page(&row, 0.5);
        let cells = |line: &str| line.matches('|').count();
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| cells(line) == cells(lines[0])), "{lines:?}");
        assert!(row.contains("**0.95** (0.90, 1.00)") && row.contains("0.500 → 0.250"), "{row}");
    }

    #[test]
    fn columns_are_filled_by_declared_metrics_and_every_loss_that_clips_fills_one() {
        use shared::metrics::catalogue;

        for key in COLUMNS.iter().flat_map(|(_, keys)| *keys) {
            assert!(catalogue::find(key).is_some(), "{key} is no metric");
        }
        assert!(catalogue::find(ACCURACY).is_some());
        let (_, clipped) = COLUMNS.iter().find(|(name, _)| *name == "clipped").unwrap();
        // A metric of both sides together stands for these.
        let sides = ["clip_ratio/low_mean", "clip_ratio/high_mean", "actor/pg_clipfrac_lower"];
        for metric in catalogue::all().filter(|m| m.chart.is_some_and(|(chart, _)| chart.title == "Clip ratio")) {
            let shown = clipped.contains(&metric.key) || sides.contains(&metric.key);
            assert!(shown, "the table leaves out {}", metric.key);
        }
    }

    #[test]
    fn gaps_in_the_records_are_left_out() {
        let records = [json!({ "entropy": 1.0 }), json!({ "entropy": null }), json!({ "entropy": 3.0 })];
        assert_eq!(first_and_last(&records, "entropy"), Some((2.0, 2.0)));
        assert_eq!(first_and_last(&records, "ratio"), None);
    }
}
