//! The results in Markdown for BENCHMARKS.md, and the defaults that they would change.

use std::fmt::Write as _;

use serde_json::Value;

use super::{
    plan::{BATCH_SIZES, LEVERS, STEP_MODELS, STEPS, agreement_name, rollout_name, step_name},
    results::{Outcome, Results},
};

/// An optional feature becomes a default if it gains this factor somewhere …
const GAIN: f64 = 1.05;
/// … and nowhere falls below this factor.
const LOSS: f64 = 0.98;
/// bf16 becomes a default if every model gains this factor.
const BF16_GAIN: f64 = 1.2;

/// The page.
pub fn render(results: &Results) -> String {
    let page = [agreement, sampler, learner, publishing, pair, without_result, defaults];
    page.iter().map(|section| section(results)).fold(machine(results), |page, section| page + "\n" + &section)
}

fn machine(results: &Results) -> String {
    let about = |key: &str| results.get("machine").map_or(&Value::Null, |found| &found["figures"][key]).clone();
    let device = results.get("machine").and_then(|found| found["device"].as_str()).unwrap_or("unknown device");
    let limit = |key: &str, unit: f64| number(results.figure("limits", key).map(|value| value / unit), 1);
    let gpu = about("gpu");
    let trial = if device == "cpu" { " **A trial with tiny models: no figure means anything.**" } else { "" };
    format!(
        "## GPU proof\n\nTandem {} on {} ({device}), {} cores. Limits as torch reaches them: a copy moves {} GB/s \
         (read and written), a bf16 product {} TFLOP/s, an fp32 product {} TFLOP/s.{trial}\n",
        about("version").as_str().unwrap_or("unknown"),
        gpu.as_str().unwrap_or("no GPU"),
        about("cores"),
        limit("copy_bytes_per_s", 1e9),
        limit("bf16_flops_per_s", 1e12),
        limit("fp32_flops_per_s", 1e12),
    )
}

fn agreement(results: &Results) -> String {
    let mut text = "| check | result |\n|---|---|\n".to_owned();
    let count = |key: &str| number(results.figure("engine tests", key), 0);
    let _ = writeln!(
        text,
        "| engine tests | {} passed, {} failed, {} of them had nothing to do |",
        count("passed"),
        count("failed"),
        count("skipped")
    );
    let levers = LEVERS.map(|(lever, _)| (lever, format!("sampler with {lever}")));
    for (what, about) in [("learner", "learner".into()), ("sampler", "sampler".into())].into_iter().chain(levers) {
        let _ = writeln!(
            text,
            "| largest difference of a log-prob, {about} against the learner on the CPU | {} |",
            small(difference(results, what))
        );
    }
    text
}

fn difference(results: &Results, what: &str) -> Option<f64> {
    results.figure(&agreement_name(what), "max_abs_difference")
}

fn tokens_per_s(results: &Results, size: u32, lever: &str) -> Option<f64> {
    results.figure(&rollout_name(size, lever), "tokens_per_s")
}

fn sampler(results: &Results) -> String {
    let names = LEVERS.map(|(name, _)| format!(" {name} |")).concat();
    let mut text = format!(
        "| sequences, 1.5B | transformers, tokens/s | Tandem, tokens/s | ratio | reading / copy rate |{names}\n\
         |---|---|---|---|---|{}\n",
        "---|".repeat(LEVERS.len())
    );
    for size in BATCH_SIZES {
        let own = tokens_per_s(results, size, "");
        let rival = tokens_per_s(results, size, "transformers");
        let read = results.figure(&rollout_name(size, ""), "read_bytes_per_s");
        let share = ratio(read, results.figure("limits", "copy_bytes_per_s"));
        let levers = LEVERS.map(|(lever, _)| format!(" {} |", times(ratio(tokens_per_s(results, size, lever), own))));
        let _ = writeln!(
            text,
            "| {size} | {} | {} | {} | {} |{}",
            number(rival, 0),
            number(own, 0),
            times(ratio(own, rival)),
            percent(share),
            levers.concat()
        );
    }
    text
}

fn learner(results: &Results) -> String {
    let mut text =
        "| step of the learner | s | completion tokens/s | memory | MFU | torch, s | memory | MFU | ratio |\n\
                    |---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    let peak = results.figure("limits", "bf16_flops_per_s");
    for model in STEP_MODELS {
        for (step, ..) in STEPS {
            let [own, rival] = [false, true].map(|rival| step_name(model, step, rival));
            let seconds = |name: &str| results.figure(name, "step_s");
            let rate = results.figure(&own, "gflops").map(|rate| 1e9 * rate);
            let passes = |name: &str| results.figure(name, "fwd_bwd_s");
            // The passes that are needed are the same for both.
            let of_rival = passes(&own).zip(passes(&rival)).zip(rate).map(|((own, rival), rate)| rate * own / rival);
            let _ = writeln!(
                text,
                "| {} {step} | {} | {} | {} | {} | {} | {} | {} | {} |",
                model.name,
                number(seconds(&own), 2),
                number(results.figure(&own, "completion_tokens_per_s"), 0),
                memory(results, &own),
                percent(ratio(rate, peak)),
                number(seconds(&rival), 2),
                memory(results, &rival),
                percent(ratio(of_rival, peak)),
                times(ratio(seconds(&rival), seconds(&own))),
            );
        }
    }
    text + "\nMFU is the rate of needed operations in forward and backward passes over that of the bf16 product.\n"
}

fn bytes(results: &Results, name: &str) -> Option<f64> {
    let of_device = results.get(name).and_then(|result| result["device_memory_bytes"].as_f64());
    of_device.or_else(|| results.figure(name, "peak_rss_bytes"))
}

fn memory(results: &Results, name: &str) -> String {
    bytes(results, name).map_or_else(|| "-".into(), |bytes| format!("{:.1} GiB", bytes / f64::from(1 << 30)))
}

fn publishing(results: &Results) -> String {
    let mut text = "| new weights, 1.5B | s |\n|---|---|\n".to_owned();
    for (about, name, key) in [
        ("published whole", "publish whole model", "perf/publish_s"),
        ("an adapter published (r 16)", "publish lora", "perf/publish_s"),
        ("loaded beside those in use", "swap", "swap_seconds"),
        ("to their first token", "swap", "swap_first_token_seconds"),
        ("standstill of the step loop", "swap", "swap_stall_seconds"),
    ] {
        let _ = writeln!(text, "| {about} | {} |", small(results.figure(name, key)));
    }
    text
}

fn pair(results: &Results) -> String {
    let mut text =
        "| pair, 1.5B, 64 completions | steps | s a step | waiting for groups | forward and backward | optimiser | \
                    publishing | swap |\n|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for name in ["synchronous", "max_staleness 1"] {
        let figure = |key: &str| number(results.figure(&format!("pair {name}"), key), 2);
        let columns = [
            "step_time",
            "perf/rollout_wait_s",
            "perf/fwd_bwd_s",
            "perf/optimizer_s",
            "perf/publish_s",
            "rollout/swap_s",
        ];
        let steps = number(results.figure(&format!("pair {name}"), "steps"), 0);
        let _ = writeln!(text, "| {name} | {steps} | {} |", columns.map(figure).join(" | "));
    }
    text
}

/// Measurements that are not in the table, by name.
fn without_result(results: &Results) -> String {
    let open = |result: &&Value| result.get("outcome").is_some_and(|outcome| outcome != Outcome::Done.name());
    let lines: String = results
        .iter()
        .filter(open)
        .map(|result| {
            let text = |key: &str| result[key].as_str().unwrap_or_default();
            format!("- {}: {}, {}\n", text("name"), text("outcome"), text("reason"))
        })
        .collect();
    if lines.is_empty() { String::new() } else { format!("Not measured in full:\n\n{lines}") }
}

/// Whether an option should get another default, and why.
struct Verdict {
    option: &'static str,
    /// `None` if a result that is needed is missing.
    flips: Option<bool>,
    because: String,
}

fn defaults(results: &Results) -> String {
    let mut text = "Defaults that these figures would change:\n\n".to_owned();
    for Verdict { option, flips, because } in verdicts(results) {
        let word = match flips {
            Some(true) => "change",
            Some(false) => "keep",
            None => "open",
        };
        let _ = writeln!(text, "- {option}: **{word}**; {because}");
    }
    text
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let mut verdicts: Vec<_> = [("`cuda_graphs` true", 0), ("`candidates` 8192", 1), ("`prefill_batch` 8", 2)]
        .map(|(option, lever)| of_lever(results, option, LEVERS[lever].0))
        .into();
    let step = |step: &str, key: fn(&Results, &str) -> Option<f64>| -> Option<Vec<f64>> {
        STEP_MODELS.iter().map(|model| key(results, &step_name(*model, step, false))).collect()
    };
    let seconds = |results: &Results, name: &str| results.figure(name, "step_s");
    let gain = |before: &str, after: &str, key| -> Option<Vec<f64>> {
        Some(step(before, key)?.iter().zip(step(after, key)?).map(|(before, after)| before / after).collect())
    };
    let mut add = |option, faster: Option<Vec<f64>>, smaller: Option<Vec<f64>>, gain: f64, room: f64| {
        let measured = faster.zip(smaller);
        verdicts.push(Verdict {
            option,
            flips: measured.as_ref().map(|(faster, smaller)| {
                faster.iter().all(|&gained| gained >= gain) && smaller.iter().all(|&gained| gained >= room)
            }),
            because: measured.map_or_else(
                || "not measured on both models".into(),
                |(faster, smaller)| {
                    format!("1.5B and 0.5B: {} the speed, memory divided by {}", list(&faster), list(&smaller))
                },
            ),
        });
    };
    add("`bf16` true", gain("fp32", "bf16", seconds), gain("fp32", "bf16", bytes), BF16_GAIN, LOSS);
    let checkpointing = ("bf16", "bf16 checkpointing");
    let smaller = gain(checkpointing.0, checkpointing.1, bytes);
    add("`gradient_checkpointing` true", gain(checkpointing.0, checkpointing.1, seconds), smaller, LOSS, 1.1);
    let step_time = |name: &str| results.figure(name, "step_time");
    let faster = ratio(step_time("pair synchronous"), step_time("pair max_staleness 1"));
    verdicts.push(Verdict {
        option: "`max_staleness` 1",
        flips: faster.map(|_| false),
        because: format!("{} the speed, but only synchronous runs are reproducible", times(faster)),
    });
    verdicts
}

fn of_lever(results: &Results, option: &'static str, lever: &str) -> Verdict {
    let gains: Option<Vec<f64>> = BATCH_SIZES
        .iter()
        .map(|&size| ratio(tokens_per_s(results, size, lever), tokens_per_s(results, size, "")))
        .collect();
    let tests_pass = results.figure("engine tests", "failed") == Some(0.0);
    let [plain, pulled] = ["sampler", lever].map(|name| difference(results, name));
    // Half precision rounds either way; a wrong block or slot gives a far larger difference.
    let agrees = plain.zip(pulled).is_some_and(|(plain, pulled)| pulled <= 2.0 * plain + 1e-3);
    let (flips, because) = match gains {
        None => (None, "not measured with all numbers of sequences".into()),
        Some(gains) => {
            let pays = gains.iter().all(|&gain| gain >= LOSS) && gains.iter().any(|&gain| gain >= GAIN);
            let doubt = match (tests_pass, agrees) {
                (true, true) => "",
                (false, _) => ", but the engine tests have not all passed",
                (true, false) => ", but log-probs were not shown to agree",
            };
            (Some(pays && tests_pass && agrees), format!("{} with {BATCH_SIZES:?} sequences{doubt}", list(&gains)))
        }
    };
    Verdict { option, flips, because }
}

fn list(ratios: &[f64]) -> String {
    ratios.iter().map(|&ratio| times(Some(ratio))).collect::<Vec<_>>().join(", ")
}

fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    above.zip(below).filter(|&(_, below)| below > 0.0).map(|(above, below)| above / below)
}

/// With separators between thousands.
fn number(value: Option<f64>, decimals: usize) -> String {
    let Some(value) = value else { return "-".into() };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// With two significant digits, however small.
fn small(value: Option<f64>) -> String {
    match value {
        Some(value) if value != 0.0 && value.abs() < 0.01 => format!("{value:.1e}"),
        _ => number(value, 2),
    }
}

fn times(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2} ×"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{:.0} %", 100.0 * value))
}
