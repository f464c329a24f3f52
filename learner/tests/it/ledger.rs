//! What became of every completion of whole runs.

use std::fs;

use shared::{
    LedgerGroup, LedgerState, RunDir,
    config::TrainConfig,
    ledger::{self, LedgerEvent, LedgerLine, TokenRecord, states_now},
    metrics,
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
