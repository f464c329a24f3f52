//! Reductions as data: how token losses become one number.

use crate::declare::choices;

choices! {
    /// How token losses are reduced to one number, unless `loss_type` decides it. verl `loss_agg_mode`.
    LossAggregation {
        /// Mean over all tokens of an optimiser update.
        TokenMean = "token-mean",
        /// Sum over all tokens of an optimiser update.
        TokenSum = "token-sum",
        /// Sum over a sequence's tokens, mean over sequences.
        SeqMeanTokenSum = "seq-mean-token-sum",
        /// Mean over a sequence's tokens, mean over sequences.
        SeqMeanTokenMean = "seq-mean-token-mean",
        /// Sum over a sequence's tokens divided by `loss_scale_factor`, mean over sequences (Dr. GRPO).
        SeqMeanTokenSumNorm = "seq-mean-token-sum-norm",
    }
}

/// Denominator of token losses, unless `loss_aggregation` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Mean over the tokens of a completion, then over the completions of a minibatch (TRL `grpo`).
    CompletionMean,
    /// Mean over the tokens of a minibatch (TRL `bnpo`).
    MinibatchTokenMean,
    /// Sum over tokens divided by completions × `max_completion_length`, of a minibatch (TRL `dr_grpo`).
    LengthConstant,
    /// Sum over the tokens of a completion, then mean over the completions of a minibatch (TRL `luspo`).
    CompletionSum,
    /// Sum over tokens divided by the tokens of the generation batch (TRL `dapo`).
    GenerationTokenMean,
    /// Mean over the completions of an optimiser update; each completion has one value (verl `geo_mean`).
    UpdateMean,
    /// One of verl's aggregations, over an optimiser update.
    Aggregation(LossAggregation),
}

impl Reduction {
    /// Whether it is a mean over the tokens of an update or more: each minibatch is already weighted by its number of
    /// tokens.
    #[must_use]
    pub fn is_token_mean(self) -> bool {
        match self {
            Self::GenerationTokenMean | Self::Aggregation(LossAggregation::TokenMean) => true,
            Self::CompletionMean
            | Self::MinibatchTokenMean
            | Self::LengthConstant
            | Self::CompletionSum
            | Self::UpdateMean
            | Self::Aggregation(
                LossAggregation::TokenSum
                | LossAggregation::SeqMeanTokenSum
                | LossAggregation::SeqMeanTokenMean
                | LossAggregation::SeqMeanTokenSumNorm,
            ) => false,
        }
    }

    /// The reduction in a few words, for tables.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::CompletionMean => "mean over each completion, then over completions",
            Self::MinibatchTokenMean => "token mean of the minibatch",
            Self::LengthConstant => "sum over tokens / (completions × `max_completion_length`)",
            Self::CompletionSum => "sum over each completion, mean over completions",
            Self::GenerationTokenMean => "token mean of the generation batch",
            Self::UpdateMean => "mean over the completions of the update",
            Self::Aggregation(aggregation) => aggregation.about(),
        }
    }
}

impl LossAggregation {
    fn about(self) -> &'static str {
        match self {
            Self::TokenMean => "token mean of the update",
            Self::TokenSum => "sum over the tokens of the update",
            Self::SeqMeanTokenSum => "sum over each completion, mean over those of the update",
            Self::SeqMeanTokenMean => "mean over each completion, then over those of the update",
            Self::SeqMeanTokenSumNorm => {
                "sum over each completion / `loss_scale_factor`, mean over those of the update"
            }
        }
    }

    /// Whether `loss_scale_factor` is its divisor.
    #[must_use]
    pub fn has_scale_factor(self) -> bool {
        match self {
            Self::SeqMeanTokenSumNorm => true,
            Self::TokenMean | Self::TokenSum | Self::SeqMeanTokenSum | Self::SeqMeanTokenMean => false,
        }
    }
}
