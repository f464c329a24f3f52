//! The texts of the progress: its lines, and the bar with its message.

use std::{fmt, time::Duration};

use console::Term;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use shared::{
    config::TrainConfig,
    metrics::{self, Figure, MetricRecord},
    process::heartbeat::{Beat, Phase},
};
use unicode_width::UnicodeWidthStr;

use super::super::steps_in_words;
use crate::records::{summary, tail::step_of};

/// `training models/a for 10 steps of 64 completions: steps 5 to 10 of 10, from checkpoint-4; run directory runs/a`.
pub(super) fn announcement(config: &TrainConfig, from: Option<u64>) -> String {
    let total = config.max_steps.unwrap_or(0);
    let left = match from {
        None => String::new(),
        Some(step) if step >= total => format!(": all are made (checkpoint-{step}); raise `max_steps` to go on"),
        Some(step) => format!(": steps {} to {total} of {total}, from checkpoint-{step}", step + 1),
    };
    format!(
        "training {} for {} of {} completions{left}; run directory {}",
        config.model.display(),
        steps_in_words(total),
        config.completions_per_step(),
        config.output_dir.display()
    )
}

pub(super) fn bar(total: u64, done: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    // The part that does not fit into the line is cut off.
    let style = ProgressStyle::with_template("{bar:12.cyan/blue} {pos}/{len}  {elapsed}{left}  {wide_msg}")
        .expect("the template is valid")
        // Before the first step, nobody knows how long a step takes.
        .with_key("left", move |state: &ProgressState, text: &mut dyn fmt::Write| {
            if state.pos() > done {
                let _ = write!(text, " < {:#}", HumanDuration(state.eta()));
            }
        })
        .progress_chars("━╸─");
    bar.set_style(style);
    // Steps of an earlier session say nothing about the speed of this one.
    bar.set_position(done);
    bar.reset_eta();
    bar
}

/// The present work of a step: a half that waits reports how much has arrived of what it waits for.
pub(super) fn work(learner: Beat, sampler: Beat, per_step: u64) -> String {
    let part = |what: &str| match (learner.part, learner.main) {
        (Some((of_phase, done, of)), Some((phase, _))) if phase == of_phase => format!(" {done}/{of} {what}"),
        _ => String::new(),
    };
    match (learner.main.map(|(phase, _)| phase), sampler.main.map(|(phase, _)| phase)) {
        // A pass may leave out completions without contrast, or belong to one of several updates.
        (Some(Phase::Step), _) => match learner.part {
            Some((_, _, of)) if of < per_step => format!("training{}", part("completions of a pass")),
            _ => format!("training{}", part("completions")),
        },
        (Some(Phase::Save), _) => "saving".to_owned(),
        (Some(Phase::Wait), Some(Phase::Step | Phase::Wait)) => format!("sampling{}", part("groups")),
        (Some(Phase::Wait), _) => "loading the sampler".to_owned(),
        (Some(Phase::Load) | None, _) => "loading the learner".to_owned(),
    }
}

/// `evaluation after step 50:  accuracy 0.610  reward 1.520  tokens 20.4`. Where prompts have no score, it says how
/// many have one: their share is not that of the dataset.
pub(super) fn evaluation_line(record: &MetricRecord) -> String {
    let mut line = format!("evaluation after step {}:", step_of(record));
    let prompts = record.get(metrics::EVAL_SCORED_PROMPTS).zip(record.get(metrics::EVAL_PROMPTS));
    let scored =
        prompts.filter(|(scored, all)| scored < all).map(|(scored, all)| format!(" ({scored} of {all} scored)"));
    for (name, metric, digits) in [
        ("accuracy", metrics::EVAL_ACCURACY, 3),
        ("reward", metrics::EVAL_REWARD, 3),
        ("tokens", metrics::EVAL_COMPLETIONS_MEAN_LENGTH, 1),
    ] {
        let value = record.get(metric);
        let scored = scored.as_deref().filter(|_| name == "accuracy");
        if value.is_some() || scored.is_some() {
            let value = value.map_or_else(|| "-".to_owned(), |value| format!("{:.digits$}", Figure(value)));
            line += &format!("  {name} {value}{}", scored.unwrap_or_default());
        }
    }
    line
}

/// A name of a reward function that fits a line: without arguments, and without the folders of a file.
pub(in crate::train) fn short(name: &str) -> &str {
    let name = name.strip_prefix("command:run=").or_else(|| name.strip_prefix("model:path=")).unwrap_or(name);
    let name = name.split_whitespace().next().unwrap_or(name).trim_end_matches('/');
    let name = name.rsplit('/').next().unwrap_or(name);
    name.rsplit_once(".py:").map_or(name, |(_, function)| function)
}

/// `step 12/100  reward 1.30  …  ETA 1m 05s`.
pub(super) fn plain_line(records: &[MetricRecord], total: u64, overlaps: bool) -> String {
    let step = records.last().map_or(0, step_of);
    let eta = summary::recent(records, metrics::STEP_TIME, 20)
        .map(|seconds| Duration::from_secs_f64((seconds * total.saturating_sub(step) as f64).max(0.0)))
        .map(|left| format!("  ETA {}", HumanDuration(left)));
    format!("step {step}/{total}  {}{}", figures(records, overlaps).join("  "), eta.unwrap_or_default())
}

/// The newest figures in a fixed order; figures that a run does not have are left out.
pub(super) fn figures(records: &[MetricRecord], overlaps: bool) -> Vec<String> {
    let Some(record) = records.last() else {
        return Vec::new();
    };
    let mut parts = Vec::new();
    let mut push = |name: &str, value: Option<String>| parts.extend(value.map(|v| format!("{name} {v}")));
    let functions: Vec<String> = record
        .family(metrics::REWARDS_MEAN)
        .filter_map(|(name, value)| Some(format!("{} {:.3}", short(name), Figure(value?))))
        .collect();
    let functions = if functions.len() > 1 { format!(" ({})", functions.join(", ")) } else { String::new() };
    push("reward", record.get(metrics::REWARD).map(|v| format!("{:.3}{functions}", Figure(v))));
    push("length", record.get(metrics::COMPLETIONS_MEAN_LENGTH).map(|v| format!("{v:.1}")));
    let failed = record.get(metrics::TOOLS_FAILURE_FREQUENCY).filter(|failed| *failed > 0.0);
    let failed = failed.map_or_else(String::new, |failed| format!(" ({:.0} % failed)", 100.0 * failed));
    push("calls", record.get(metrics::TOOLS_CALL_FREQUENCY).map(|calls| format!("{calls:.2}{failed}")));
    let small = |value: f64| if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") };
    push("mismatch_kl", record.get(metrics::MISMATCH_KL).map(small));
    push(
        "tokens/s",
        summary::tokens_per_second(&records[records.len().saturating_sub(5)..], 0).map(|v| format!("{v:.0}")),
    );
    for (name, metric) in [("learner", metrics::PERF_IDLE_SHARE), ("sampler", metrics::ROLLOUT_IDLE_SHARE)] {
        let idle = record.get(metric).filter(|_| overlaps).map(|share| format!("idle {name} {:.0} %", 100.0 * share));
        parts.extend(idle);
    }
    parts
}

/// Columns that the bar of a run with `total` steps leaves free on this terminal.
pub(super) fn room(total: u64) -> usize {
    // The bar, the steps twice, the time taken and the time left, and the characters between them.
    let taken = 12 + 1 + 2 * total.to_string().len() + 1 + 2 + 4 + 8 + 2;
    usize::from(Term::stderr().size().1).saturating_sub(taken)
}

/// As many parts as fit into so many columns, from the first on; no part is cut.
pub(super) fn fitting(parts: Vec<String>, columns: usize) -> String {
    let mut line = String::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let longer = if line.is_empty() { part } else { format!("{line}  {part}") };
        if longer.width() > columns {
            break;
        }
        line = longer;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> MetricRecord {
        let mut record = MetricRecord::default();
        record.count(metrics::STEP, step).set(metrics::REWARD, 1.25).set(metrics::STEP_TIME, 2.0);
        record.set(metrics::MISMATCH_KL, 3e-13).set(metrics::PERF_IDLE_SHARE, 0.25);
        record
    }

    #[test]
    fn a_plain_line_has_what_the_record_has_and_the_time_left() {
        let line = plain_line(&[record(1), record(2)], 12, false);
        assert_eq!(line, "step 2/12  reward 1.250  mismatch_kl 3.0e-13  ETA 20 seconds");
        let line = plain_line(&[record(2)], 2, true);
        assert_eq!(line, "step 2/2  reward 1.250  mismatch_kl 3.0e-13  idle learner 25 %  ETA 0 seconds");
        let with_tools = |failed| {
            let mut record = record(2);
            record.set(metrics::TOOLS_CALL_FREQUENCY, 0.97).set(metrics::TOOLS_FAILURE_FREQUENCY, failed);
            plain_line(&[record], 2, false)
        };
        assert!(with_tools(0.0).contains("  calls 0.97  "), "{}", with_tools(0.0));
        assert!(with_tools(0.25).contains("  calls 0.97 (25 % failed)  "), "{}", with_tools(0.25));
    }

    #[test]
    fn what_begins_is_said_with_the_step_of_its_checkpoint() {
        let config = TrainConfig {
            model: "models/a".into(),
            output_dir: "runs/a".into(),
            max_steps: Some(10),
            generation_batch_size: Some(64),
            ..TrainConfig::default()
        };
        let begins = "training models/a for 10 steps of 64 completions";
        assert_eq!(announcement(&config, None), format!("{begins}; run directory runs/a"));
        assert_eq!(
            announcement(&config, Some(4)),
            format!("{begins}: steps 5 to 10 of 10, from checkpoint-4; run directory runs/a")
        );
        assert!(announcement(&config, Some(10)).contains("all are made (checkpoint-10); raise `max_steps`"));
    }

    #[test]
    fn a_step_is_seen_at_work() {
        let beat = |phase, shown: Option<(u64, u64)>| Beat {
            main: Some((phase, 7)),
            part: shown.map(|(done, of)| (phase, done, of)),
            ..Beat::default()
        };
        let asleep = Beat::default();
        for (learner, sampler, expected) in [
            (asleep, asleep, "loading the learner"),
            (beat(Phase::Wait, Some((0, 8))), beat(Phase::Load, None), "loading the sampler"),
            (beat(Phase::Wait, Some((3, 8))), beat(Phase::Step, None), "sampling 3/8 groups"),
            (beat(Phase::Step, Some((24, 64))), beat(Phase::Wait, None), "training 24/64 completions"),
            (beat(Phase::Save, Some((24, 64))), beat(Phase::Wait, None), "saving"),
            (Beat { part: Some((Phase::Wait, 8, 8)), ..beat(Phase::Step, None) }, beat(Phase::Wait, None), "training"),
            (beat(Phase::Step, Some((24, 32))), beat(Phase::Wait, None), "training 24/32 completions of a pass"),
        ] {
            assert_eq!(work(learner, sampler, 64), expected);
        }
    }

    #[test]
    fn rewards_have_short_names_beside_their_sum() {
        for (name, expected) in [
            ("gsm8k", "gsm8k"),
            ("my_rewards.py:f", "f"),
            ("src/my_rewards.py:f", "f"),
            ("my_lib.rewards.f", "my_lib.rewards.f"),
            ("command:run=./tools/score --strict", "score"),
            ("model:path=models/judge/", "judge"),
        ] {
            assert_eq!(short(name), expected);
        }
        let line = br#"{"step":1,"reward":1.5,"rewards/length/mean":0.5,"rewards/a.py:f/mean":1.0}"#;
        let text = figures(&[MetricRecord::from_line(line).unwrap()], false).join("  ");
        assert_eq!(text, "reward 1.500 (length 0.500, f 1.000)");
    }

    #[test]
    fn rewards_of_extreme_size_do_not_fill_the_line() {
        let line = br#"{"step":1,"reward":1e300,"rewards/a/mean":1e300,"rewards/b/mean":-2.5e12,"eval_reward":1e300}"#;
        let record = MetricRecord::from_line(line).unwrap();
        assert_eq!(evaluation_line(&record), "evaluation after step 1:  reward 1.000e300");
        assert_eq!(figures(&[record], false).join("  "), "reward 1.000e300 (a 1.000e300, b -2.500e12)");
    }

    #[test]
    fn an_evaluation_is_a_line() {
        let line = br#"{"step":50,"eval_accuracy":0.61,"eval_reward":1.5,"eval_completions/mean_length":20.4}"#;
        let text = evaluation_line(&MetricRecord::from_line(line).unwrap());
        assert_eq!(text, "evaluation after step 50:  accuracy 0.610  reward 1.500  tokens 20.4");
    }

    #[test]
    fn an_evaluation_of_which_prompts_have_no_score_says_of_how_many_it_is() {
        let line = |accuracy: f64, scored: u64| {
            let mut record = MetricRecord::default();
            record.count(metrics::STEP, 1).count(metrics::EVAL_PROMPTS, 200).set(metrics::EVAL_ACCURACY, accuracy);
            record.count(metrics::EVAL_SCORED_PROMPTS, scored).set(metrics::EVAL_REWARD, accuracy);
            evaluation_line(&record)
        };
        assert_eq!(line(1.0, 18), "evaluation after step 1:  accuracy 1.000 (18 of 200 scored)  reward 1.000");
        assert_eq!(line(f64::NAN, 0), "evaluation after step 1:  accuracy - (0 of 200 scored)");
        assert_eq!(line(1.0, 200), "evaluation after step 1:  accuracy 1.000  reward 1.000");
    }

    #[test]
    fn figures_that_are_missing_are_left_out() {
        assert!(figures(&[], true).is_empty());
        assert!(figures(&[MetricRecord::default()], true).is_empty());
    }

    #[test]
    fn a_figure_is_shown_whole_or_not_at_all() {
        let parts = || ["training", "reward 1.250", "mismatch_kl 4.7e-13", "tokens/s 900"].map(str::to_owned).to_vec();
        assert_eq!(fitting(parts(), 80), "training  reward 1.250  mismatch_kl 4.7e-13  tokens/s 900");
        assert_eq!(fitting(parts(), 42), "training  reward 1.250");
        assert_eq!(fitting(parts(), 43), "training  reward 1.250  mismatch_kl 4.7e-13");
        assert_eq!((fitting(parts(), 7), fitting(Vec::new(), 40)), (String::new(), String::new()));
    }

    #[test]
    fn a_figure_of_nothing_is_a_0() {
        let mut record = record(2);
        record.set(metrics::MISMATCH_KL, 0.0);
        assert!(plain_line(&[record], 2, false).contains("mismatch_kl 0  "));
    }
}
