//! Constrained sampling: the learner's log-probs are over the tokens that an expression leaves.

use std::path::Path;

use harness::tiny_model::{self, SMALL};
use learner::{
    LearnerError,
    batch::{MicroBatch, Sequence},
    model::{Decoder, LoadOptions, load},
    step::{StepBatch, TrainedStep, Trainer, record},
};
use shared::{
    Episode, FinishReason, ModelDir, Placed, PolicyVersion, RewardOutcome, TokenLogprob, config::TrainConfig, metrics,
};
use tch::{Device, Kind};

use crate::support;

const REGEX: &str = r"[ab]{2}(?:=\d)?";
/// `$` stands for the end token. The last one was cut off.
const TEXTS: [&str; 4] = ["ab$", "ba=7", "bb$", "aa="];

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| if byte == b'$' { 0 } else { u32::from(byte) - 30 }).collect()
}

/// The tokens that may come in each place of [`REGEX`].
fn allowed(at: usize) -> Vec<u32> {
    match at {
        0 | 1 => ids("ab"),
        2 => ids("$="),
        _ => ids("0123456789"),
    }
}

fn config(folder: &Path, regex: &str) -> TrainConfig {
    let model = folder.join("model");
    SMALL.write(&model, 5);
    tiny_model::write_tokenizer(&model);
    TrainConfig {
        model,
        structured_outputs_regex: Some(regex.into()),
        temperature: 0.8,
        beta: 0.05,
        learning_rate: 0.0,
        warmup_steps: 0,
        num_iterations: 3,
        ..support::config("unused.jsonl".into())
    }
}

fn groups(config: &TrainConfig, texts: [&str; 4], logprob_of: impl Fn(usize, usize) -> TokenLogprob) -> Vec<Placed> {
    let mut groups = support::groups(config, 0);
    for group in &mut groups {
        group.scored.group.prompt_ids = ids("1+1");
        for (i, completion) in group.scored.group.completions.iter_mut().enumerate() {
            let token_ids = ids(texts[i]);
            let logprobs = (0..token_ids.len()).map(|at| logprob_of(i, at)).collect();
            let versions = vec![(0, PolicyVersion(0))];
            completion.episode = Episode::of_one_turn(token_ids, logprobs, versions, FinishReason::Stop);
            completion.rewards = vec![RewardOutcome::Score(i as f64), RewardOutcome::NotApplicable];
        }
    }
    groups
}

fn policy(config: &TrainConfig) -> Decoder {
    load(&ModelDir::open(&config.model).unwrap(), LoadOptions::default()).unwrap()
}

fn step(config: &TrainConfig, groups: &[Placed]) -> Result<TrainedStep, LearnerError> {
    tch::set_num_threads(1);
    let mut trainer = Trainer::new(config, policy(config), Some(policy(config)))?;
    trainer.keep_first_gradient();
    trainer.step(&StepBatch::new(groups, config, PolicyVersion(0)), 0)
}

/// The log-prob of each token of a completion among those that may come and, with `top_k`, are among the likeliest or
/// the token itself; with the number of these.
fn by_hand(config: &TrainConfig, policy: &Decoder, text: &str) -> Vec<(f64, u32)> {
    let (prompt, completion) = (ids("1+1"), ids(text));
    let batch = MicroBatch::new(&[Sequence::new(&prompt, &completion)], &[0], Device::Cpu);
    let logits_TV = tch::no_grad(|| policy.logits(&batch.packed)).to_kind(Kind::Double);
    let of = |at: usize| {
        let row = Vec::<f64>::try_from(logits_TV.get((prompt.len() - 1 + at) as i64)).unwrap();
        let mut scores: Vec<(f64, u32)> =
            allowed(at).into_iter().map(|id| (row[id as usize] / f64::from(config.temperature), id)).collect();
        scores.sort_by(|a, b| b.0.total_cmp(&a.0));
        let most = if config.top_k == 0 { usize::MAX } else { config.top_k as usize };
        let kept: Vec<f64> = (0..)
            .zip(&scores)
            .filter(|(place, (_, id))| *place < most || *id == completion[at])
            .map(|(_, (score, _))| *score)
            .collect();
        let own = scores.iter().find(|(_, id)| *id == completion[at]).expect("it may come").0;
        let total = kept.iter().map(|score| (score - own).exp()).sum::<f64>();
        (-total.ln(), kept.len() as u32)
    };
    (0..completion.len()).map(of).collect()
}

#[test]
fn log_probs_are_over_the_tokens_that_may_come_and_truncation_cuts_these() {
    let folder = tempfile::tempdir().unwrap();
    for top_k in [0, 2] {
        let config = TrainConfig { top_k, ..config(folder.path(), REGEX) };
        let policy = policy(&config);
        let expected = TEXTS.map(|text| by_hand(&config, &policy, text));
        let groups = groups(&config, TEXTS, |i, at| {
            let (logprob, kept_count) = expected[i][at];
            TokenLogprob { logprob_at_temperature: logprob as f32, kept_count, ..TokenLogprob::default() }
        });
        let found = step(&config, &groups).unwrap();
        let sizes = found.metrics.support_sizes.as_ref().unwrap();
        for row in 0..12 {
            for (at, &(logprob, count)) in expected[row % 4].iter().enumerate() {
                let (old, reference) = (found.inputs.old_logprobs[row][at], found.inputs.ref_logprobs[row][at]);
                assert!((old - logprob).abs() < 1e-5, "top_k {top_k}, {row}, {at}: {old} and {logprob}");
                assert!((old - reference).abs() < 1e-6, "{old} and {reference}");
                assert_eq!(sizes[row][at], count, "top_k {top_k}, {row}, {at}");
            }
        }
        let (least, most) = found.metrics.measures.range(shared::methods::metric::RATIO).unwrap();
        assert!((least - 1.0).abs() < 1e-5 && (most - 1.0).abs() < 1e-5, "{least} {most}");
        let metrics = record(&StepBatch::new(&groups, &config, PolicyVersion(0)), &found.inputs, &found.metrics);
        assert_eq!(metrics.get(metrics::SAMPLING_SUPPORT_MISMATCH), Some(0.0));
        assert!(metrics.get(metrics::MISMATCH_KL).unwrap() < 1e-9);
        // Of the whole vocabulary they would be others.
        let free = TrainConfig { structured_outputs_regex: None, top_k: 0, ..config };
        let free = step(&free, &groups).unwrap();
        let apart = (free.inputs.old_logprobs[0][0] - found.inputs.old_logprobs[0][0]).abs();
        assert!(free.metrics.support_sizes.is_none() && apart > 1.0, "{apart}");
    }
}

#[test]
fn where_one_token_alone_may_come_its_log_prob_and_gradient_are_zero() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { learning_rate: 1e-3, entropy_coef: 0.1, ..config(folder.path(), "abc=7") };
    let groups = groups(&config, ["abc=7", "abc=", "abc", "a"], |_, _| TokenLogprob {
        kept_count: 1,
        ..TokenLogprob::default()
    });
    let found = step(&config, &groups).unwrap();
    assert!(found.inputs.advantages.values().iter().any(|&advantage| advantage != 0.0), "there is something to learn");
    assert!(
        found.inputs.old_logprobs.values().iter().all(|&logprob| logprob == 0.0),
        "{:?}",
        found.inputs.old_logprobs
    );
    let gradient = found.metrics.first_gradient.unwrap();
    assert_eq!(gradient.abs().max().double_value(&[]), 0.0);
    // Where others may come there is a gradient.
    let config = TrainConfig { structured_outputs_regex: Some("abc=7|ab".into()), ..config };
    let gradient = step(&config, &groups).unwrap().metrics.first_gradient.unwrap();
    assert!(gradient.abs().max().double_value(&[]) > 0.0);
}

#[test]
fn what_does_not_follow_the_expression_is_named_and_a_wrong_one_has_its_option() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "[ab]{3}");
    let groups = groups(&config, TEXTS, |_, _| TokenLogprob::default());
    let error = step(&config, &groups).unwrap_err().to_string();
    assert!(
        error.contains("completion 0 of the step does not follow `structured_outputs_regex`: token 2 of"),
        "{error}"
    );
    let config = TrainConfig { structured_outputs_regex: Some("[ab".into()), ..config };
    let error = step(&config, &groups).unwrap_err().to_string();
    assert!(error.starts_with("`structured_outputs_regex`: no regular expression"), "{error}");
}
