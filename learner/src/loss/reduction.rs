//! Reductions: the weight of a token's loss in the loss of an optimiser update.
//!
//! Every reduction gives one weight to all tokens of a completion. The weight depends only on figures of the minibatch,
//! the update and the generation batch. So the sum over tokens of weight × loss is the loss, however the completions
//! are spread over forward passes.

use shared::{
    config::{LossAggregation, TrainConfig},
    methods::Reduction,
};

use crate::{ragged::Ragged, verl::EPSILON};

/// Figures that are the same for every completion of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normaliser {
    /// Minibatches of the optimiser update (`gradient_accumulation_steps`; fewer in an incomplete last update).
    pub accumulation: f64,
    /// Share of the generation batch that the update sees (`gradient_accumulation_steps / steps_per_generation`; less
    /// in an incomplete last update).
    pub share: f64,
    /// Tokens of the generation batch that are in the loss (TRL `num_items_in_batch`). Tokens of masked truncated
    /// completions are not.
    pub generation_tokens: f64,
    /// `max_completion_length`.
    pub max_completion_length: f64,
}

/// Weights of the rows of one optimiser update.
#[derive(Debug, Clone, PartialEq)]
pub struct RowWeights {
    /// Of a row's token losses.
    pub losses: Vec<f64>,
    /// Of a row's entropies in the bonus, which is the mean over minibatches of the mean over their tokens.
    pub entropies: Vec<f64>,
}

/// Weights of an update's rows, given the trained tokens of each in its minibatch.
#[must_use]
pub fn update_weights(config: &TrainConfig, minibatches: &Ragged<usize>, normaliser: &Normaliser) -> RowWeights {
    let reduction = config.loss_aggregation.map_or(config.loss_type.spec().reduction, Reduction::Aggregation);
    let scale_factor = config.loss_scale_factor.unwrap_or(normaliser.max_completion_length);
    let mut losses = loss_weights(reduction, minibatches, normaliser, scale_factor);
    let mut entropies: Vec<f64> = minibatches.rows().flat_map(|rows| entropy_weights(rows, normaliser)).collect();
    if config.use_valid_token_scale {
        let total = minibatches.values().iter().sum::<usize>().max(1) as f64;
        let scales = minibatches.rows().flat_map(|rows| {
            let share = rows.iter().sum::<usize>() as f64 / total;
            vec![share * minibatches.len() as f64; rows.len()]
        });
        let scales: Vec<f64> = scales.collect();
        let scale = |weights: &mut [f64]| weights.iter_mut().zip(&scales).for_each(|(weight, scale)| *weight *= scale);
        // If all tokens weigh the same already, scaling would count lengths twice. The bonus is a mean per minibatch,
        // so it is scaled always.
        if !reduction.is_token_mean() {
            scale(&mut losses);
        }
        scale(&mut entropies);
    }
    RowWeights { losses, entropies }
}

/// Weight of each completion's tokens, given the trained tokens of every completion of an update by minibatch.
///
/// All but verl's reductions follow TRL 1.16 `GRPOTrainer._compute_loss`, over one minibatch at a time. An empty row
/// counts as 0 in the mean over completions.
#[must_use]
pub fn loss_weights(
    reduction: Reduction,
    minibatches: &Ragged<usize>,
    normaliser: &Normaliser,
    scale_factor: f64,
) -> Vec<f64> {
    let of_minibatch = |weight: &dyn Fn(usize, f64, f64) -> f64| -> Vec<f64> {
        let each = |batch: &[usize]| -> Vec<f64> {
            let (rows, tokens) = (batch.len() as f64, batch.iter().sum::<usize>() as f64);
            batch.iter().map(|&length| 1.0 / weight(length, rows, tokens)).collect()
        };
        minibatches.rows().flat_map(each).collect()
    };
    let Normaliser { accumulation, share, generation_tokens, max_completion_length } = *normaliser;
    match reduction {
        Reduction::CompletionMean => of_minibatch(&|length, rows, _| rows * (length as f64).max(1.0) * accumulation),
        Reduction::MinibatchTokenMean => of_minibatch(&|_, _, tokens| tokens.max(1.0) * accumulation),
        Reduction::LengthConstant => of_minibatch(&|_, rows, _| rows * max_completion_length * accumulation),
        Reduction::CompletionSum => of_minibatch(&|_, rows, _| rows * accumulation),
        Reduction::GenerationTokenMean => of_minibatch(&|_, _, _| generation_tokens.max(1.0) * share),
        Reduction::UpdateMean => sequence_weights(minibatches.values()),
        Reduction::Aggregation(mode) => Aggregation::new(mode, scale_factor).weights(minibatches.values()),
    }
}

/// The mean over rows, where each token of a row repeats the row's value (GMPO). An empty row counts as 0.
fn sequence_weights(lengths: &[usize]) -> Vec<f64> {
    lengths.iter().map(|&length| 1.0 / (lengths.len() as f64 * (length as f64).max(1.0))).collect()
}

/// The mean over the tokens of a minibatch, divided by the number of minibatches. TRL's entropy bonus.
#[must_use]
pub fn entropy_weights(lengths: &[usize], normaliser: &Normaliser) -> Vec<f64> {
    let tokens = lengths.iter().sum::<usize>().max(1) as f64;
    vec![1.0 / (tokens * normaliser.accumulation); lengths.len()]
}

/// verl's reductions, over all completions of an optimiser update (`agg_loss`): one worker sees all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aggregation {
    mode: LossAggregation,
    scale_factor: f64,
}

impl Aggregation {
    /// `scale_factor` is the divisor of `seq-mean-token-sum-norm`.
    #[must_use]
    pub fn new(mode: LossAggregation, scale_factor: f64) -> Self {
        Self { mode, scale_factor }
    }

    /// Weight of each row's tokens. Unlike in TRL's reductions, a row without tokens is no sequence.
    #[must_use]
    pub fn weights(&self, lengths: &[usize]) -> Vec<f64> {
        let tokens = lengths.iter().sum::<usize>() as f64;
        let sequences = lengths.iter().filter(|&&length| length > 0).count() as f64;
        let weight = |length: usize| match self.mode {
            LossAggregation::TokenMean => 1.0 / tokens,
            LossAggregation::TokenSum => 1.0,
            LossAggregation::SeqMeanTokenSum => 1.0 / sequences,
            LossAggregation::SeqMeanTokenMean => 1.0 / (sequences * (length as f64 + EPSILON)),
            LossAggregation::SeqMeanTokenSumNorm => 1.0 / (sequences * self.scale_factor),
        };
        lengths.iter().map(|&length| weight(length)).collect()
    }
}

#[cfg(test)]
mod tests {
    use shared::config::LossType;

    use super::*;

    const NORMALISER: Normaliser =
        Normaliser { accumulation: 1.0, share: 1.0, generation_tokens: 4.0, max_completion_length: 4.0 };

    fn minibatches(lengths: &[usize], rows: usize) -> Ragged<usize> {
        lengths.chunks(rows).map(<[usize]>::to_vec).collect()
    }

    /// Lengths 1 and 3 with per-token losses a and b.
    #[test]
    fn worked_examples() {
        let weights = |reduction| loss_weights(reduction, &minibatches(&[1, 3], 2), &NORMALISER, 4.0);
        assert_eq!(weights(Reduction::CompletionMean), [0.5, 1.0 / 6.0]);
        assert_eq!(weights(Reduction::MinibatchTokenMean), [0.25, 0.25]);
        assert_eq!(weights(Reduction::GenerationTokenMean), [0.25, 0.25]);
        assert_eq!(weights(Reduction::LengthConstant), [0.125, 0.125]);
        assert_eq!(weights(Reduction::CompletionSum), [0.5, 0.5]);
        assert_eq!(weights(Reduction::UpdateMean), [0.5, 1.0 / 6.0]);
    }

    /// With the scale, `bnpo` weighs every token of the update alike, whatever the minibatches.
    #[test]
    fn the_valid_token_scale_makes_a_token_mean_of_the_update() {
        let config = TrainConfig { loss_type: LossType::Bnpo, use_valid_token_scale: true, ..TrainConfig::default() };
        for minibatch_rows in [1, 2, 3] {
            let accumulation = 3usize.div_ceil(minibatch_rows) as f64;
            let normaliser = Normaliser { accumulation, ..NORMALISER };
            let found = update_weights(&config, &minibatches(&[1, 3, 6], minibatch_rows), &normaliser);
            assert!(found.losses.iter().chain(&found.entropies).all(|w| (w - 0.1).abs() < 1e-12), "{found:?}");
        }
    }

    /// RLinf's DAPO page sets both options: its token mean is over a micro-batch, and the scale turns it into a mean
    /// over all tokens. Our token mean is over all tokens already.
    #[test]
    fn the_valid_token_scale_does_not_weigh_lengths_twice() {
        let token_mean = TrainConfig { loss_aggregation: Some(LossAggregation::TokenMean), ..TrainConfig::default() };
        for config in [token_mean, TrainConfig::default()] {
            let config = TrainConfig { use_valid_token_scale: true, ..config };
            let normaliser = Normaliser { accumulation: 3.0, generation_tokens: 10.0, ..NORMALISER };
            let found = update_weights(&config, &minibatches(&[1, 3, 6], 1), &normaliser);
            assert!(found.losses.iter().chain(&found.entropies).all(|w| (w - 0.1).abs() < 1e-12), "{found:?}");
        }
    }

    /// Dr. GRPO is 1/(G·L) (Liu et al. 2025): with the longest completion as divisor, verl's recipe for it has the
    /// weights of TRL's loss, however many completions there are.
    #[test]
    fn the_norm_of_an_aggregation_is_dr_grpo() {
        for rows in [1, 2, 64] {
            let lengths = minibatches(&vec![3; rows], rows);
            let norm = Reduction::Aggregation(LossAggregation::SeqMeanTokenSumNorm);
            let of = |reduction| loss_weights(reduction, &lengths, &NORMALISER, 4.0);
            assert_eq!(of(norm), of(Reduction::LengthConstant));
        }
    }

    #[test]
    fn an_aggregation_replaces_that_of_the_loss_type() {
        let config =
            |loss_type, loss_aggregation| TrainConfig { loss_type, loss_aggregation, ..TrainConfig::default() };
        let of = |config: &TrainConfig| update_weights(config, &minibatches(&[1, 3], 1), &NORMALISER).losses;
        assert_eq!(of(&config(LossType::Grpo, Some(LossAggregation::TokenMean))), [0.25, 0.25]);
        assert_eq!(of(&config(LossType::Vanilla, None)), [0.25, 0.25]);
        assert_eq!(of(&config(LossType::Vanilla, Some(LossAggregation::SeqMeanTokenSum))), [0.5, 0.5]);
        let norm = TrainConfig {
            loss_scale_factor: Some(8.0),
            ..config(LossType::GeoMean, Some(LossAggregation::SeqMeanTokenSumNorm))
        };
        assert_eq!(of(&norm), [0.0625, 0.0625], "the mean over two sequences of sums over 8");
        assert_eq!(of(&config(LossType::Vanilla, Some(LossAggregation::TokenSum))), [1.0, 1.0]);
    }
}
