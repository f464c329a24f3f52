//! Supervised warm start on prompt/completion pairs: cross-entropy of the completion tokens.
//!
//! GRPO cannot start from a model that never succeeds; a few minutes of a warm start give it something to reinforce.

mod data;

use std::time::Instant;

use serde::Serialize;
use shared::generation::rng;
use tch::{Device, Kind, Tensor};

pub use data::{Encoder, Example};

use crate::{
    batch::{MicroBatch, Sequence, split},
    error::LearnerError,
    model::{Decoder, Gradients, Span},
    optimizer::AdamWOptions,
    schedule::Schedule,
    trained::{Progress, Trained},
};

/// Distinguishes the shuffle from other uses of the seed.
const SHUFFLE_KEY: u64 = 0x7366_7473;

/// Parameters of a warm start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Optimiser updates.
    pub steps: u64,
    /// Rows per update.
    pub batch_size: usize,
    /// Whether no update reaches over the end of an epoch, so that the last one of each may have fewer rows, as in
    /// TRL's `SFTTrainer`. Otherwise epochs follow each other without a border, and every update is full.
    pub by_epochs: bool,
    /// Most positions of one forward pass; never changes a gradient.
    pub micro_batch_tokens: usize,
    /// Learning rate over the updates.
    pub schedule: Schedule,
    /// AdamW.
    pub optimizer: AdamWOptions,
    /// Seed of the order of the rows.
    pub seed: u64,
}

/// How a warm start went.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Optimiser updates.
    pub steps: u64,
    /// Mean loss per completion token over the last tenth of the updates.
    pub loss: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// Tokens trained on per second, prompts included.
    pub tokens_per_s: f64,
}

/// Trains `policy` on the examples; `report` is called every few seconds and after the last update.
///
/// # Errors
/// An update whose loss or gradient is not finite.
pub fn train(
    policy: &Decoder,
    examples: &[Example],
    options: &Options,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, LearnerError> {
    let sequences: Vec<Sequence<'_>> =
        examples.iter().map(|e| Sequence::new(&e.prompt, &e.completion).of_model(policy.config())).collect();
    let (start, mut tokens) = (Instant::now(), 0);
    let mut trained = Trained::new(policy, options.optimizer, options.schedule);
    let mut pass = |step, policy: &&Decoder, gradients: &mut Gradients| {
        let rows = rows_of(step, examples.len(), options);
        tokens += rows.iter().map(|&r| examples[r].prompt.len() + examples[r].completion.len()).sum::<usize>();
        loss_and_gradients(policy, &sequences, &rows, options.micro_batch_tokens, gradients)
    };
    let losses = trained.fit(options.steps, &mut pass, report)?;
    let seconds = start.elapsed().as_secs_f64();
    let tail = &losses[losses.len() - losses.len().div_ceil(10)..];
    Ok(Summary {
        steps: options.steps,
        loss: tail.iter().sum::<f64>() / tail.len() as f64,
        seconds,
        tokens_per_s: tokens as f64 / seconds,
    })
}

/// Updates of an epoch, none of which reaches over its end.
#[must_use]
pub fn updates_of_epoch(rows: usize, batch_size: usize) -> usize {
    rows.div_ceil(batch_size)
}

/// Rows of an update: consecutive places of an endless sequence of shuffled epochs.
fn rows_of(step: u64, rows: usize, options: &Options) -> Vec<usize> {
    let (step, size) = (step as usize, options.batch_size);
    let places = if options.by_epochs {
        let updates = updates_of_epoch(rows, size);
        let (begin, first) = (step / updates * rows, step % updates * size);
        begin + first..begin + (first + size).min(rows)
    } else {
        step * size..(step + 1) * size
    };
    let mut order = (usize::MAX, Vec::new());
    places
        .map(|position| {
            let epoch = position / rows;
            if order.0 != epoch {
                order = (epoch, rng::permutation(rows, &[options.seed, SHUFFLE_KEY, epoch as u64]));
            }
            order.1[position % rows] as usize
        })
        .collect()
}

/// Mean negative log-likelihood per completion token, its gradients added to `gradients`.
pub fn loss_and_gradients(
    policy: &Decoder,
    sequences: &[Sequence<'_>],
    rows: &[usize],
    budget: usize,
    gradients: &mut Gradients,
) -> Result<f64, LearnerError> {
    let total: usize = rows.iter().map(|&r| sequences[r].completion.len()).sum();
    let device = policy.device();
    let mut sum = Tensor::zeros([], (Kind::Double, device));
    for rows in split(sequences, rows, budget) {
        let micro = MicroBatch::new(sequences, &rows, device);
        policy.differentiate(&micro, 1.0, Span::Token, gradients, &mut |_, stats| {
            sum += stats.logprobs_N.sum(Kind::Double);
            stats.logprobs_N.full_like(-1.0 / total as f64).into()
        });
    }
    Ok(-f64::try_from(sum.to_device(Device::Cpu))? / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::config::{LrSchedulerType, ScheduleSettings};

    #[test]
    fn an_epoch_shows_every_row_once() {
        let settings = ScheduleSettings::default();
        let schedule = Schedule { kind: LrSchedulerType::Constant, peak: 1.0, warmup: 0, total: 1, settings };
        let options = Options {
            steps: 5,
            batch_size: 4,
            by_epochs: false,
            micro_batch_tokens: 1,
            schedule,
            optimizer: AdamWOptions::default(),
            seed: 3,
        };
        let mut seen: Vec<usize> = (0..5).flat_map(|step| rows_of(step, 10, &options)).collect();
        assert_ne!(seen[..10], seen[10..]);
        for epoch in seen.chunks_mut(10) {
            epoch.sort_unstable();
            assert_eq!(*epoch, (0..10).collect::<Vec<_>>());
        }
        let by_epochs = Options { by_epochs: true, ..options };
        let updates: Vec<Vec<usize>> = (0..6).map(|step| rows_of(step, 10, &by_epochs)).collect();
        assert_eq!(updates.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 4, 4, 2]);
        assert_eq!(
            updates[..3].concat(),
            (0..10).map(|at| rows_of(at / 4, 10, &options)[at as usize % 4]).collect::<Vec<_>>()
        );
        for epoch in updates.chunks(3) {
            let mut rows = epoch.concat();
            rows.sort_unstable();
            assert_eq!(rows, (0..10).collect::<Vec<_>>());
        }
        assert_eq!(rows_of(7, 1, &Options { batch_size: 32, ..by_epochs }), [0], "one row is one update");
    }
}
