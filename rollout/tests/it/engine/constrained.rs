//! Completions whose tokens a constraint chooses among.

use std::{collections::BTreeMap, sync::Arc};

use rollout::engine::{Constrained, Constraint, Engine, EngineOptions, GroupRequest, Kernels};
use shared::{FinishReason, SamplingParams, TokenLogprob};

use super::support::{Steps, exported, finish, golden_model, group, options, outcome};

/// Allows tokens of one remainder by 3 at a time, in turn; nothing follows after `whole` tokens, and nothing can come
/// after `stuck`.
struct Turns {
    vocab: u32,
    turn: u32,
    whole: u32,
    stuck: u32,
    bits: Vec<u32>,
}

impl Constraint for Turns {
    fn allowed(&mut self) -> Result<&[u32], String> {
        if self.turn == self.stuck {
            return Err("the turns are over".into());
        }
        self.bits = vec![0; self.vocab.div_ceil(32) as usize];
        let these = (0..self.vocab).filter(|token| token % 3 == self.turn % 3);
        these.for_each(|token| self.bits[token as usize / 32] |= 1 << (token % 32));
        Ok(&self.bits)
    }

    fn push(&mut self, token: u32) -> Result<bool, String> {
        assert_eq!(token % 3, self.turn % 3, "it is told of what was drawn");
        self.turn += 1;
        Ok(self.turn == self.whole)
    }
}

fn turns(vocab: usize, whole: u32, stuck: u32) -> Constrained {
    let (vocab, bits) = (vocab as u32, Vec::new());
    Constrained::new("turns", Arc::new(move || Box::new(Turns { vocab, turn: 0, whole, stuck, bits: bits.clone() })))
}

fn hot(max_completion_length: u32) -> SamplingParams {
    SamplingParams { ignore_eos: true, max_completion_length, ..SamplingParams::default() }
}

#[test]
fn a_constraint_chooses_the_tokens_of_its_completions_and_no_bit_of_their_neighbours() {
    let model = golden_model("llama");
    let vocab = model.config().vocab_size;
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, folder.path());
    let free = || group(0, &[7; 20], 4, hot(30));
    let bound = |tag, sampling: SamplingParams| GroupRequest {
        constraint: Some(turns(vocab, 12, u32::MAX)),
        ..group(tag, &[9; 11], 3, sampling)
    };
    let samplings = [
        hot(40),
        SamplingParams { temperature: 0.0, ..hot(40) },
        SamplingParams { top_p: 0.8, top_k: 30, ..hot(40) },
        hot(5),
    ];
    let mut first: Option<BTreeMap<_, _>> = None;
    for (kernels, speculative_tokens, seqs) in
        [(Kernels::Packed, 0, 8), (Kernels::Packed, 4, 8), (Kernels::Packed, 0, 2), (Kernels::Packed, 3, 20)]
    {
        let what = format!("{kernels:?}, {speculative_tokens} drafts, {seqs} at once");
        let open = || {
            let options = EngineOptions { kernels, speculative_tokens, ..options(seqs, 2) };
            Engine::new(weights.clone(), &model, options).unwrap()
        };
        let mut engine = open();
        engine.add_group(free()).unwrap();
        let alone: BTreeMap<_, _> = finish(&mut engine).into_iter().map(outcome).collect();
        engine.add_group(bound(1, samplings[0].clone())).unwrap();
        engine.add_group(free()).unwrap();
        for (tag, sampling) in (2..).zip(&samplings[1..]) {
            engine.add_group(bound(tag, sampling.clone())).unwrap();
        }
        let mut all: BTreeMap<_, _> = finish(&mut engine).into_iter().map(outcome).collect();
        let beside: BTreeMap<_, _> = alone.keys().map(|key| (*key, all.remove(key).unwrap())).collect();
        assert!(beside == alone, "{what}: neighbours changed");
        for ((tag, sample), (ids, _, finish)) in &all {
            assert!(ids.iter().zip(0..).all(|(id, turn)| id % 3 == turn % 3), "{what}: {tag}.{sample}: {ids:?}");
            let expected = if *tag == 4 { (5, FinishReason::Length) } else { (12, FinishReason::Stop) };
            assert_eq!((ids.len(), *finish), expected, "{what}: {tag}.{sample}");
        }
        // Neither drafts nor slots change a bit of them.
        assert!(*first.get_or_insert_with(|| all.clone()) == all, "{what}");
    }
}

/// What the learner would compute: the log-probs of all tokens in a place, from passes of their own.
#[test]
fn log_probs_are_over_the_tokens_that_may_come() {
    let model = golden_model("llama");
    let vocab = model.config().vocab_size;
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options(4, 1)).unwrap();
    for temperature in [1.0, 0.0] {
        let sampling = SamplingParams { temperature, ..hot(8) };
        let constraint = Some(turns(vocab, 4, u32::MAX));
        engine.add_group(GroupRequest { constraint, ..group(0, &[3, 8, 5], 1, sampling) }).unwrap();
        let sequence = finish(&mut engine).remove(0);
        for (at, (&id, logprob)) in sequence.token_ids.iter().zip(&sequence.logprobs).enumerate() {
            let context = [&[3, 8, 5], &sequence.token_ids[..at]].concat();
            let allowed: Vec<u32> = (0..vocab as u32).filter(|token| token % 3 == at as u32 % 3).collect();
            let of = |engine: &mut Engine, token: u32| engine.score(&context, &[token]).unwrap()[0];
            let mass: f64 = allowed.iter().map(|&token| of(&mut engine, token).exp()).sum();
            let own = of(&mut engine, id);
            let TokenLogprob { logprob: full, log_kept_mass, kept_count, .. } = *logprob;
            assert!((f64::from(full) - own).abs() < 1e-4, "{full} and {own}");
            assert!((f64::from(log_kept_mass) - mass.ln()).abs() < 1e-4, "{log_kept_mass} and {}", mass.ln());
            assert!((f64::from(logprob.sampling_logprob()) - (own - mass.ln())).abs() < 1e-4);
            assert_eq!(kept_count as usize, allowed.len());
        }
    }
}

#[test]
fn a_completion_whose_constraint_cannot_go_on_is_given_up_alone() {
    let model = golden_model("llama");
    let vocab = model.config().vocab_size;
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options(4, 1)).unwrap();
    let free = || group(0, &[7; 20], 2, hot(30));
    engine.add_group(free()).unwrap();
    let alone: BTreeMap<_, _> = finish(&mut engine).into_iter().map(outcome).collect();
    // At once, and in the middle.
    let constraints = [turns(vocab, 9, 0), turns(vocab, 9, 5)];
    for (tag, constraint) in (1..).zip(&constraints) {
        let request = GroupRequest { constraint: Some(constraint.clone()), ..group(tag, &[5; 9], 2, hot(20)) };
        engine.add_group(request).unwrap();
    }
    engine.add_group(free()).unwrap();
    let mut all: BTreeMap<_, _> = finish(&mut engine).into_iter().map(outcome).collect();
    for (tag, length) in [(1, 0), (2, 5)] {
        for sample in 0..2 {
            let (ids, _, finish) = all.remove(&(tag, sample)).unwrap();
            assert_eq!((ids.len(), finish), (length, FinishReason::Aborted));
        }
    }
    assert!(constraints.iter().all(|constraint| constraint.failure() == Some("the turns are over")));
    assert!(all == alone, "neighbours changed");
    assert!(engine.is_idle());
}
