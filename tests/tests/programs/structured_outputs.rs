//! Runs whose completions follow a regular expression: every completion does, sampler and learner take log-probs over
//! the same tokens, and neither drafts nor workers change a bit.

use std::path::Path;

use harness::{cli, fleet::FleetBench, training::json_lines};
use serde_json::Value;

const STEPS: u64 = 12;
/// With an end in some places, a part that may be left out, and no bound but that of the run.
const REGEX: &str = "structured_outputs_regex = \"[a-f]{2,6}(?:=[0-9]+)?\"\nbeta = 0.04\n";

/// Whether a text is a match, or with `cut` the beginning of one.
fn follows(text: &str, cut: bool) -> bool {
    let letters = text.bytes().take_while(|byte| (b'a'..=b'f').contains(byte)).count();
    let enough = (2..=6).contains(&letters);
    match text[letters..].strip_prefix('=') {
        Some(digits) => enough && digits.bytes().all(|byte| byte.is_ascii_digit()) && (cut || !digits.is_empty()),
        None => letters == text.len() && letters <= 6 && (cut || enough),
    }
}

/// Checks every completion of a run, and returns how many were cut off.
fn assert_all_follow(run: &Path) -> usize {
    let mut cut = 0;
    for step in 1..=STEPS {
        let rows = json_lines(&run.join(format!("completions/step-{step}.jsonl")));
        assert_eq!(rows.len(), 16, "step {step}");
        for row in rows {
            let text = row["completion"].as_str().unwrap();
            let is_cut = row["finish_reason"] == "length";
            assert!(is_cut || row["finish_reason"] == "stop", "{row}");
            assert!(follows(text, is_cut), "step {step}: {text:?}, {}", row["finish_reason"]);
            cut += usize::from(is_cut);
        }
    }
    cut
}

fn curve(records: &[Value], key: &str) -> Vec<f64> {
    records.iter().map(|record| record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"))).collect()
}

fn largest(records: &[Value], key: &str) -> f64 {
    curve(records, key).into_iter().fold(0.0, f64::max)
}

#[test]
fn completions_follow_the_expression_and_both_halves_take_log_probs_over_the_same_tokens() {
    for (name, more) in [("plain", ""), ("cut", "top_p = 0.9\ntop_k = 5\ntemperature = 0.8\n")] {
        let bench = FleetBench::new(STEPS, &format!("{REGEX}{more}"));
        let _ = bench.pair(STEPS);
        let run = bench.path("pair");
        let cut = assert_all_follow(&run);
        let records = json_lines(&run.join("metrics.jsonl"));
        let difference = largest(&records, "sampling/sampling_logp_difference/max");
        let (mismatch, supports) = (largest(&records, "mismatch_kl"), curve(&records, "sampling/support_mismatch"));
        let (kl, reward) = (curve(&records, "kl"), curve(&records, "reward"));
        eprintln!("{name}: {cut} cut, largest difference {difference:.2e}, mismatch {mismatch:.2e}, {kl:?} {reward:?}");
        assert!(difference < 2e-5, "{name}: a log-prob differs by {difference}");
        assert!(mismatch < 1e-9, "{name}: mismatch_kl {mismatch:e}");
        assert!(supports.iter().all(|&count| count == 0.0), "{name}: {supports:?}");
        assert!(kl[0].abs() < 1e-9 && kl[1..].iter().any(|&kl| kl > 0.0), "{name}: {kl:?}");
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        assert!(mean(&reward[9..]) > mean(&reward[..3]), "{name}: {reward:?}");
    }
}

#[test]
fn evaluations_of_a_run_follow_its_expression() {
    let regex = "structured_outputs_regex = \"[a-f]{3}|[a-f]{5}\"\n";
    let bench = FleetBench::new(4, &format!("{regex}eval_dataset = \"prompts.jsonl\"\neval_steps = 2\n"));
    let _ = bench.pair(4);
    let evaluated = json_lines(&bench.path("pair/eval.jsonl"));
    assert!(evaluated.len() >= 2, "{evaluated:?}");
    // What this model says without an expression goes on until it is cut.
    assert!(curve(&evaluated, "eval_completions/clipped_ratio").iter().all(|&share| share == 0.0), "{evaluated:?}");
    let lengths = curve(&evaluated, "eval_completions/mean_length");
    assert!(lengths.iter().all(|length| (3.0..=5.0).contains(length)), "{lengths:?}");
}

#[test]
fn neither_drafts_nor_workers_change_a_run_with_an_expression() {
    let bench = FleetBench::new(STEPS, REGEX);
    let expected = bench.pair(STEPS);
    let mut drafting = bench.start("drafts", &["--speculative_tokens", "4"]);
    assert!(drafting.wait().unwrap().success(), "{}", bench.run_said());
    assert!(bench.result("drafts", STEPS) == expected, "drafts changed the weights");
    let mut run = bench.start_fleet("fleet", &["--verify_share", "0.5"]);
    let workers = vec![("one", bench.worker("one")), ("two", bench.worker("two"))];
    bench.ends(&mut run, workers);
    assert!(bench.result("fleet", STEPS) == expected, "workers changed the weights");
    let table = bench.table("fleet");
    assert!(table["verified"].as_u64().unwrap() > 0 && table["disputed"] == 0, "{table}");
    assert_all_follow(&bench.path("fleet"));
}

#[test]
fn an_asynchronous_run_follows_its_expression_across_swaps() {
    let bench = FleetBench::new(STEPS, &format!("{REGEX}max_staleness = 2\nweight_swap = \"continue\"\n"));
    let mut run = bench.start("run", &[]);
    assert!(run.wait().unwrap().success(), "{}", bench.run_said());
    assert_all_follow(&bench.path("run"));
    let records = json_lines(&bench.path("run").join("metrics.jsonl"));
    assert!(curve(&records, "sampling/support_mismatch").iter().all(|&count| count == 0.0));
}

#[test]
fn an_expression_that_no_completion_can_follow_is_refused_at_the_start() {
    let bench = FleetBench::new(1, "");
    for (number, (regex, words)) in [
        ("(a", "unclosed group, at character 1"),
        ("a(?!b)", "look-around"),
        ("[ab&&c]", "matches no text"),
        ("", "the empty completion alone"),
        ("\u{e9}+", "no text that the tokens of the model make up"),
        ("[a-f]{17}", "more tokens than `max_completion_length` (16)"),
        (r"\w{3000}", "too large"),
    ]
    .into_iter()
    .enumerate()
    {
        // Before a run that is only asked about, and before one that is to be made: neither leaves a folder.
        let own = format!("run-{number}");
        for (run, more) in [("asked", &["--dry-run"] as &[&str]), (own.as_str(), &[] as &[&str])] {
            let options = [&["--structured_outputs_regex", regex][..], more].concat();
            let refused = cli::finish(bench.command(run, &options));
            let said = refused.refusal();
            assert!(said.contains("`structured_outputs_regex`: ") && said.contains(words), "{regex}: {said}");
            assert!(!bench.path(run).exists(), "{regex}");
        }
    }
    let dry = cli::finish(bench.command("run", &["--structured_outputs_regex", "[a-f]{16}", "--dry-run"]));
    let _ = dry.success();
}
