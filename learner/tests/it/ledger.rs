//! What became of every completion of whole runs.

use std::{collections::BTreeMap, fs};

use serde_json::Value;
use shared::{
    LedgerGroup, LedgerState, RunDir,
    config::{RewardFailure, TrainConfig},
    metrics,
    run::ledger::{self, LedgerEvent, LedgerLine, TokenRecord, states_now},
};

use crate::{
    pair::{Folder, train},
    support::Manners,
};

fn lines(run_dir: &RunDir) -> Vec<LedgerLine> {
    ledger::read(&run_dir.ledger()).unwrap()
}

fn groups(run_dir: &RunDir) -> Vec<LedgerGroup> {
    let group = |line| match line {
        LedgerLine::Group(group) => Some(group),
        LedgerLine::Event { .. } => None,
    };
    lines(run_dir).into_iter().filter_map(group).collect()
}

/// States of the completions of each step, as they are in the end.
fn states(run_dir: &RunDir, step: u64) -> Vec<LedgerState> {
    let all = lines(run_dir);
    groups(run_dir).iter().filter(|group| group.step == step).flat_map(|group| states_now(group, &all)).collect()
}

#[test]
fn every_completion_has_a_state_and_its_tokens_are_told_of() {
    let folder = Folder::new();
    let config = TrainConfig { mask_truncated_completions: true, token_records: 2, ..folder.config() };
    let run_dir = folder.run_dir("run");
    train(&run_dir, &config, Manners::default());
    let positions: Vec<u64> = groups(&run_dir).iter().map(|group| group.position).collect();
    assert_eq!(positions, (0..18).collect::<Vec<u64>>());
    let records = metrics::read(&run_dir.metrics()).unwrap();
    for record in &records {
        let counts: f64 = record.family(metrics::LEDGER).filter_map(|(_, count)| count).sum();
        assert_eq!(counts, 12.0);
    }
    let truncated: usize =
        (1..=6).map(|step| states(&run_dir, step).iter().filter(|s| **s == LedgerState::Truncated).count()).sum();
    assert!(truncated > 0);
    assert_eq!(run_dir.steps_with_tokens().unwrap(), [5, 6], "the newest two");
    let text = fs::read_to_string(run_dir.step_tokens(5)).unwrap();
    let tokens: Vec<TokenRecord> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(tokens.len(), 12);
    for record in &tokens {
        let length = record.tokens.len();
        assert_eq!([record.sampler.len(), record.learner.len(), record.advantages.len()], [length; 3]);
        assert!(record.sampler.iter().all(|&logprob| logprob == -6.0) && record.learner.iter().all(|&l| l < 0.0));
    }
    assert!(tokens.iter().any(|record| record.entropy.iter().all(|&entropy| entropy > 0.0)));
    assert!(tokens.iter().any(|record| record.marks.values().any(|marks| !marks.is_empty())), "something was clipped");
}

#[test]
fn what_the_guard_leaves_out_or_gives_up_is_not_trained() {
    let folder = Folder::new();
    let strange = Manners { strange: Some((3, 4)), ..Manners::default() };
    let of = |action: &str| {
        let run_dir = folder.run_dir(action);
        let guard = vec![format!("mismatch={action}:above=50")];
        train(&run_dir, &TrainConfig { guard, ..folder.config() }, strange);
        [2, 3, 4, 5].map(|step| states(&run_dir, step)[0])
    };
    use LedgerState::{RolledBack, StepSkipped, Trained};
    assert_eq!(of("skip_step"), [Trained, Trained, StepSkipped, Trained]);
    assert_eq!(of("roll_back"), [Trained, RolledBack, StepSkipped, Trained]);
}

/// The completions of a step as `completions/step-N.jsonl` records them.
fn completions(run_dir: &RunDir, step: u64) -> Vec<Value> {
    let text = fs::read_to_string(run_dir.step_completions(step)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Numbers of completions by state, from the records. They must be those of the ledger, and add up to all completions
/// that were made.
fn counts(run_dir: &RunDir, step: u64) -> BTreeMap<String, usize> {
    let records = metrics::read(&run_dir.metrics()).unwrap();
    let of_records: BTreeMap<String, usize> = records[step as usize - 1]
        .family(metrics::LEDGER)
        .filter_map(|(name, count)| Some((name.to_owned(), count? as usize)))
        .collect();
    let mut of_ledger = BTreeMap::new();
    states(run_dir, step).iter().for_each(|state| *of_ledger.entry(state.to_string()).or_default() += 1);
    assert_eq!(of_records, of_ledger);
    assert_eq!(of_ledger.values().sum::<usize>(), 12);
    of_ledger
}

fn of_states<const N: usize>(counts: [(LedgerState, usize); N]) -> BTreeMap<String, usize> {
    counts.map(|(state, count)| (state.to_string(), count)).into()
}

/// One update on all completions of a step, and one pass.
fn one_pass(folder: &Folder) -> TrainConfig {
    TrainConfig {
        num_iterations: 1,
        per_device_train_batch_size: 12,
        gradient_accumulation_steps: 1,
        importance_sampling_correction: false,
        log_completions: true,
        ..folder.config()
    }
}

#[test]
fn a_function_that_says_nothing_has_not_failed() {
    let folder = Folder::new();
    let speechless = Manners { speechless: true, ..Manners::default() };
    let of = |reward_failure: RewardFailure| {
        let run_dir = folder.run_dir(&format!("{reward_failure}"));
        train(&run_dir, &TrainConfig { reward_failure, ..one_pass(&folder) }, speechless);
        let records = metrics::read(&run_dir.metrics()).unwrap();
        (counts(&run_dir, 2), records[1].get(metrics::SAMPLE_REWARD_FAILED))
    };
    use LedgerState::{Abstained, RewardFailed, Trained};
    assert_eq!(of(RewardFailure::Exclude), (of_states([(Abstained, 3), (RewardFailed, 3), (Trained, 6)]), Some(3.0)));
    assert_eq!(of(RewardFailure::Zero), (of_states([(Abstained, 3), (Trained, 9)]), Some(0.0)));
}

#[test]
fn completions_that_the_policy_has_moved_away_from_are_not_trained() {
    let folder = Folder::new();
    let config = TrainConfig { off_policy_mask_threshold: Some(0.0), ..one_pass(&folder) };
    let run_dir = folder.run_dir("run");
    train(&run_dir, &config, Manners::default());
    let records = metrics::read(&run_dir.metrics()).unwrap();
    let mut masked = 0;
    for step in 1..=6 {
        let counts = counts(&run_dir, step);
        masked += counts.get("off_policy_masked").copied().unwrap_or(0);
        assert!(counts.keys().all(|state| ["trained", "off_policy_masked"].contains(&state.as_str())), "{counts:?}");
        let tokens = |wanted: Option<&str>| -> f64 {
            let all = completions(&run_dir, step).into_iter();
            let wanted = all.filter(|row| wanted.is_none_or(|state| row["state"] == state));
            wanted.map(|row| row["tokens"].as_f64().unwrap()).sum()
        };
        let share = records[step as usize - 1].get(metrics::OFF_POLICY_MASKED_FRAC).unwrap();
        assert!((tokens(Some("off_policy_masked")) / tokens(None) - share).abs() < 1e-9, "step {step}: {share}");
        let negative = |row: &Value| row["state"] != "off_policy_masked" || row["advantage"].as_f64().unwrap() < 0.0;
        assert!(completions(&run_dir, step).iter().all(negative));
    }
    assert!(masked > 0);
}

#[test]
fn minibatches_that_were_stopped_are_not_trained() {
    let folder = Folder::new();
    let config = TrainConfig {
        decoupled_objective: false,
        early_stop_imp_ratio: Some(5.0),
        per_device_train_batch_size: 6,
        gradient_accumulation_steps: 2,
        ..one_pass(&folder)
    };
    let run_dir = folder.run_dir("run");
    train(&run_dir, &config, Manners { strange: Some((3, 4)), ..Manners::default() });
    let stopped = metrics::read(&run_dir.metrics()).unwrap()[3].get(metrics::EARLY_STOPPED_BATCHES);
    assert_eq!((counts(&run_dir, 4), stopped), (of_states([(LedgerState::EarlyStopped, 12)]), Some(2.0)));
    assert_eq!(counts(&run_dir, 3), of_states([(LedgerState::Trained, 12)]));
}

/// If a pass takes few tokens of high entropy, some completions have none of them.
#[test]
fn completions_without_a_token_of_high_entropy_are_not_trained() {
    let folder = Folder::new();
    let run_dir = folder.run_dir("run");
    train(&run_dir, &TrainConfig { top_entropy_quantile: 0.02, ..one_pass(&folder) }, Manners::default());
    for step in 1..=6 {
        let counts = counts(&run_dir, step);
        let of = |state: LedgerState| counts.get(&state.to_string()).copied().unwrap_or(0);
        assert!(of(LedgerState::Trained) > 0 && of(LedgerState::LowEntropy) > 0, "{counts:?}");
        assert_eq!(of(LedgerState::Trained) + of(LedgerState::LowEntropy), 12, "{counts:?}");
    }
}

#[test]
fn a_run_that_goes_on_has_every_prompt_once() {
    let folder = Folder::new();
    let config = folder.config();
    let run_dir = folder.run_dir("run");
    train(&run_dir, &config, Manners::default());
    let whole = groups(&run_dir);
    // As if it had been killed behind the checkpoint at 4, in the middle of a line.
    fs::remove_dir_all(run_dir.checkpoint(6)).unwrap();
    let mut text = fs::read(run_dir.ledger()).unwrap();
    text.truncate(text.len() - 20);
    fs::write(run_dir.ledger(), text).unwrap();
    train(&run_dir, &config, Manners::default());
    assert_eq!(groups(&run_dir), whole);
    let resumed = LedgerLine::Event { step: 4, event: LedgerEvent::Resumed };
    assert_eq!(lines(&run_dir).iter().filter(|line| **line == resumed).count(), 1);
}
