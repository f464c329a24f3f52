//! A transformer with one number per position on top: critics and reward models.

use shared::{Head, ModelConfig};
use tch::Tensor;

use super::{
    kinds::wide,
    parameters::{Gradients, Leaf},
    trunk::Trunk,
    weights::Weights,
};
use crate::{batch::Packed, error::LearnerError, host::to_host};

/// Hugging Face's name of the head of `…ForSequenceClassification`.
pub(super) const SCORE: &str = "score.weight";

/// A model that gives positions a score: Hugging Face's `…ForSequenceClassification` with one label.
#[derive(Debug)]
pub struct Scorer {
    trunk: Trunk,
    /// `[1, H]`.
    head: Leaf,
}

impl Scorer {
    /// The architecture with a scorer's head instead of its own.
    #[must_use]
    pub fn config_of(config: &ModelConfig) -> ModelConfig {
        ModelConfig { head: Head::Score { labels: 1 }, ..config.clone() }
    }

    /// A scorer over the given weights. `config` comes from [`Self::config_of`].
    #[must_use]
    pub fn new(config: ModelConfig, weights: Weights, gradient_checkpointing: bool) -> Self {
        let head = weights.leaf(SCORE);
        Self { trunk: Trunk::new(config, weights, gradient_checkpointing), head }
    }

    /// The architecture.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.trunk.config()
    }

    /// The weights.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        self.trunk.weights()
    }

    /// Scores of the given places of a batch, `[N]`, without gradients.
    pub fn evaluate(&self, batch: &Packed, positions_N: &Tensor) -> Result<Vec<f64>, LearnerError> {
        to_host(&self.project(&self.trunk.forward(batch, positions_N)))
    }

    /// Forward and backward pass. `gradient_of` receives the scores of the given places and returns the derivative
    /// of the loss with respect to each. Parameter gradients are added to `gradients`.
    pub fn differentiate(
        &self,
        batch: &Packed,
        positions_N: &Tensor,
        gradients: &mut Gradients,
        gradient_of: &mut dyn FnMut(&[f64]) -> Vec<f64>,
    ) -> Result<(), LearnerError> {
        let tape = self.trunk.record(batch, positions_N);
        let hidden_NH = tape.hidden();
        let of_scores = gradient_of(&to_host(&self.project(hidden_NH))?);
        let gradient_N1 =
            Tensor::from_slice(&of_scores).to_kind(hidden_NH.kind()).to_device(hidden_NH.device()).unsqueeze(1);
        gradients.add_product(&self.head, &gradient_N1, hidden_NH);
        let gradient_NH = gradient_N1.mm(&wide(&self.head.values));
        self.trunk.backward(batch, positions_N, tape, &gradient_NH, gradients);
        Ok(())
    }

    fn project(&self, hidden_NH: &Tensor) -> Tensor {
        hidden_NH.linear(&wide(&self.head.values), None::<Tensor>).squeeze_dim(1)
    }
}
