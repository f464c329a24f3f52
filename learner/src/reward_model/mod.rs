//! Training of a reward model on comparisons: the Bradley-Terry loss (Christiano et al. 2017; Ouyang et al. 2022, eq.
//! 1), with the margins of pairs that have one (Touvron et al. 2023, eq. 2).
//!
//! In iterative GRPO (DeepSeekMath, algorithm 1) it is trained further in every round, on fresh comparisons mixed with
//! a share of old ones.

mod batch;
mod data;

use std::time::Instant;

use serde::Serialize;
use shared::generation::rng;

pub use batch::{AnswerBatch, split_pairs};
pub use data::{Answer, Level, Pair, Reader};

use crate::{
    batch::pack,
    error::LearnerError,
    model::{Gradients, Scorer},
    optimizer::AdamWOptions,
    ragged::Ragged,
    schedule::Schedule,
    trained::{Progress, Trained},
};

/// Distinguishes the order of the pairs from other uses of the seed.
const SHUFFLE_KEY: u64 = 0x726d_7368;
/// Distinguishes the choice of old pairs from other uses of the seed.
const HISTORY_KEY: u64 = 0x726d_6873;

/// Parameters of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Passes over the pairs.
    pub epochs: f64,
    /// Pairs per update.
    pub batch_size: usize,
    /// Share of old pairs among the pairs that are trained on.
    pub history_share: f64,
    /// Most positions of one forward pass; never changes a gradient.
    pub micro_batch_tokens: usize,
    /// Peak learning rate; it falls to 0 linearly, as TRL's `RewardTrainer`'s does.
    pub learning_rate: f64,
    /// AdamW.
    pub optimizer: AdamWOptions,
    /// Seed of the order of the pairs and the choice of old ones.
    pub seed: u64,
}

/// How a training went.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Fresh pairs.
    pub pairs: usize,
    /// Pairs that were trained on, counted as often as they were.
    pub trained: usize,
    /// Old pairs among them.
    pub replayed: usize,
    /// Optimiser updates.
    pub updates: u64,
    /// Share of the fresh pairs that the starting model ranks rightly; equal scores count half.
    pub accuracy_before: f64,
    /// The same afterwards.
    pub accuracy_after: f64,
    /// Mean loss of the fresh pairs afterwards.
    pub loss: f64,
    /// Seconds of training.
    pub seconds: f64,
}

/// Loss and accuracy of a scorer on pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranking {
    /// Mean loss.
    pub loss: f64,
    /// Share that is ranked rightly; equal scores count half.
    pub accuracy: f64,
}

/// Trains `scorer` on `pairs` with some of `history`; `report` is called every few seconds and after the last update.
///
/// # Errors
/// An update whose loss or gradient is not finite.
pub fn train(
    scorer: &Scorer,
    pairs: &[Pair],
    history: &[Pair],
    options: &Options,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, LearnerError> {
    let start = Instant::now();
    let before = rank(scorer, pairs, options.micro_batch_tokens)?;
    let epoch = Epoch { fresh: pairs.len(), history: history.len(), options };
    let total = ((options.epochs * epoch.length() as f64).round() as usize).max(1);
    let updates = total.div_ceil(options.batch_size) as u64;
    let schedule = Schedule {
        kind: shared::config::LrSchedulerType::Linear,
        peak: options.learning_rate,
        warmup: 0,
        total: updates,
        settings: shared::config::ScheduleSettings::default(),
    };
    let mut replayed = 0;
    let mut order = epoch.endless().take(total);
    let mut pass = |_, scorer: &&Scorer, gradients: &mut Gradients| {
        let chosen: Vec<usize> = order.by_ref().take(options.batch_size).collect();
        replayed += chosen.iter().filter(|&&i| i >= pairs.len()).count();
        let batch: Vec<&Pair> =
            chosen.iter().map(|&i| pairs.get(i).unwrap_or_else(|| &history[i - pairs.len()])).collect();
        loss_and_gradients(scorer, &batch, options.micro_batch_tokens, gradients)
    };
    Trained::new(scorer, options.optimizer, schedule).fit(updates, &mut pass, report)?;
    let after = rank(scorer, pairs, options.micro_batch_tokens)?;
    Ok(Summary {
        pairs: pairs.len(),
        trained: total,
        replayed,
        updates,
        accuracy_before: before.accuracy,
        accuracy_after: after.accuracy,
        loss: after.loss,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// The pairs of one pass: every fresh pair and a share of the old ones, drawn anew each time.
#[derive(Debug, Clone, Copy)]
struct Epoch<'a> {
    fresh: usize,
    history: usize,
    options: &'a Options,
}

impl<'a> Epoch<'a> {
    /// Number of old pairs in a pass: the wanted share of all pairs, rounded, but no more than there are.
    fn replayed(&self) -> usize {
        let share = self.options.history_share;
        let wanted = (self.fresh as f64 * share / (1.0 - share)).round() as usize;
        wanted.min(self.history)
    }

    fn length(&self) -> usize {
        self.fresh + self.replayed()
    }

    /// Indexes of a pass in a seeded random order. Old pairs are numbered after the fresh ones.
    fn order(&self, number: u64) -> Vec<usize> {
        let seed = self.options.seed;
        let drawn = rng::permutation(self.history, &[seed, HISTORY_KEY, number]);
        let old = drawn.into_iter().take(self.replayed()).map(|i| self.fresh + i as usize);
        let all: Vec<usize> = (0..self.fresh).chain(old).collect();
        rng::permutation(all.len(), &[seed, SHUFFLE_KEY, number]).into_iter().map(|i| all[i as usize]).collect()
    }

    fn endless(self) -> impl Iterator<Item = usize> + 'a {
        (0..).flat_map(move |number| self.order(number))
    }
}

/// Scores of answers at each of their ends.
pub fn score(scorer: &Scorer, answers: &[Answer], budget: usize) -> Result<Ragged<f64>, LearnerError> {
    let device = scorer.weights().trained().flat().device();
    let mut found = Ragged::filled(0.0, answers.iter().map(|answer| answer.ends.len()));
    for items in pack(answers.iter().map(|answer| answer.tokens.len()), budget) {
        let batch = AnswerBatch::new(&items.iter().map(|&i| &answers[i]).collect::<Vec<_>>(), device);
        found.scatter(&items, &scorer.evaluate(&batch.packed, &batch.positions_N)?);
    }
    Ok(found)
}

/// Loss and accuracy on pairs, without gradients.
pub fn rank(scorer: &Scorer, pairs: &[Pair], budget: usize) -> Result<Ranking, LearnerError> {
    let answers: Vec<Answer> = pairs.iter().flat_map(|pair| [pair.chosen.clone(), pair.rejected.clone()]).collect();
    let scores: Vec<f64> = score(scorer, &answers, budget)?.rows().map(mean).collect();
    let leads: Vec<f64> = scores.chunks(2).map(|pair| pair[0] - pair[1]).collect();
    let count = leads.len() as f64;
    let right = leads.iter().map(|&lead| f64::from(lead > 0.0) + 0.5 * f64::from(lead == 0.0)).sum::<f64>();
    let loss = leads.iter().zip(pairs).map(|(lead, pair)| bradley_terry(lead - pair.margin).0).sum::<f64>();
    Ok(Ranking { loss: loss / count, accuracy: right / count })
}

/// Mean Bradley-Terry loss of pairs, its gradients added to `gradients`.
pub fn loss_and_gradients(
    scorer: &Scorer,
    pairs: &[&Pair],
    budget: usize,
    gradients: &mut Gradients,
) -> Result<f64, LearnerError> {
    let device = scorer.weights().trained().flat().device();
    let (count, mut sum) = (pairs.len() as f64, 0.0);
    for items in split_pairs(pairs, budget) {
        let answers: Vec<&Answer> = items.iter().flat_map(|&i| [&pairs[i].chosen, &pairs[i].rejected]).collect();
        let batch = AnswerBatch::new(&answers, device);
        scorer.differentiate(&batch.packed, &batch.positions_N, gradients, &mut |scores| {
            let scores: Vec<f64> = batch.by_answer(scores).rows().map(mean).collect();
            let gradients = scores.chunks(2).zip(&items).flat_map(|(pair, &i)| {
                let (loss, gradient) = bradley_terry(pair[0] - pair[1] - pairs[i].margin);
                sum += loss;
                [gradient / count, -gradient / count]
            });
            batch.per_end(&gradients.collect::<Vec<f64>>())
        })?;
    }
    Ok(sum / count)
}

/// `−log σ(lead)` and its derivative with respect to the lead of the chosen completion. A margin is taken off the lead
/// before.
#[must_use]
pub fn bradley_terry(lead: f64) -> (f64, f64) {
    let small = (-lead.abs()).exp();
    let loss = small.ln_1p() + (-lead).max(0.0);
    let wrong = if lead >= 0.0 { small / (1.0 + small) } else { 1.0 / (1.0 + small) };
    (loss, -wrong)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(history_share: f64) -> Options {
        Options {
            epochs: 1.0,
            batch_size: 4,
            history_share,
            micro_batch_tokens: 64,
            learning_rate: 1e-3,
            optimizer: AdamWOptions::default(),
            seed: 7,
        }
    }

    #[test]
    fn the_gradient_is_the_derivative_of_the_loss() {
        for lead in [-700.0, -3.0, -0.2, 0.0, 0.2, 3.0, 700.0] {
            let (loss, gradient) = bradley_terry(lead);
            let numeric = (bradley_terry(lead + 1e-5).0 - bradley_terry(lead - 1e-5).0) / 2e-5;
            assert!(loss.is_finite() && (gradient - numeric).abs() < 1e-6, "{lead}: {gradient} is not {numeric}");
        }
        assert!((bradley_terry(0.0).0 - 2.0f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn a_pass_holds_every_fresh_pair_and_a_tenth_of_old_ones() {
        let options = options(0.1);
        let epoch = Epoch { fresh: 90, history: 500, options: &options };
        assert_eq!(epoch.replayed(), 10);
        let mut first = epoch.order(0);
        assert_ne!(first, epoch.order(1));
        assert_eq!(first, epoch.order(0));
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 100);
        assert_eq!(first[..90], (0..90).collect::<Vec<_>>());
        assert!(first[90..].iter().all(|&i| i < 590));
        assert_eq!(Epoch { fresh: 90, history: 3, options: &options }.replayed(), 3);
        assert_eq!(Epoch { fresh: 90, history: 0, options: &options }.length(), 90);
    }
}
