//! Reductions: what a token's loss weighs in the loss of an optimiser update.
//!
//! Every reduction gives one weight to all tokens of a completion, and the weight is made of figures of the logical
//! batch and of the generation batch alone. The sum over tokens of weight × loss is then the loss, however the
//! completions are spread over forward passes.

use shared::config::LossType;

/// Figures that are the same for every completion of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normaliser {
    /// Logical batches per optimiser update (`gradient_accumulation_steps`).
    pub accumulation: f64,
    /// Share of the generation batch that one update sees (`gradient_accumulation_steps / steps_per_generation`).
    pub share: f64,
    /// Completion tokens of the generation batch (TRL `num_items_in_batch`), truncated completions included.
    pub generation_tokens: f64,
    /// `max_completion_length`.
    pub max_completion_length: f64,
}

/// Weight of each completion's tokens, given the trained tokens of every completion of one logical batch.
///
/// Source: TRL 1.16 `GRPOTrainer._compute_loss`. An empty row counts as 0 in `grpo`'s mean.
#[must_use]
pub fn row_weights(loss_type: LossType, lengths: &[usize], normaliser: &Normaliser) -> Vec<f64> {
    let rows = lengths.len() as f64;
    let tokens = lengths.iter().sum::<usize>() as f64;
    let weight = |length: usize| match loss_type {
        LossType::Grpo => 1.0 / (rows * (length as f64).max(1.0) * normaliser.accumulation),
        LossType::Bnpo => 1.0 / (tokens.max(1.0) * normaliser.accumulation),
        LossType::DrGrpo => 1.0 / (rows * normaliser.max_completion_length * normaliser.accumulation),
        _ => 1.0 / (normaliser.generation_tokens.max(1.0) * normaliser.share),
    };
    lengths.iter().map(|&length| weight(length)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths 1 and 3 with per-token losses a and b.
    #[test]
    fn worked_examples() {
        let normaliser =
            Normaliser { accumulation: 1.0, share: 1.0, generation_tokens: 4.0, max_completion_length: 4.0 };
        let weights = |loss_type| row_weights(loss_type, &[1, 3], &normaliser);
        assert_eq!(weights(LossType::Grpo), [0.5, 1.0 / 6.0]);
        assert_eq!(weights(LossType::Bnpo), [0.25, 0.25]);
        assert_eq!(weights(LossType::Dapo), [0.25, 0.25]);
        assert_eq!(weights(LossType::DrGrpo), [0.125, 0.125]);
    }
}
