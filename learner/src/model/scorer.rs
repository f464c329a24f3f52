//! A transformer with one number per position on top: critics and reward models.

use shared::{Head, ModelConfig};
use tch::Tensor;

use super::{
    parameters::{Gradients, Parameters},
    trunk::Trunk,
};
use crate::{error::LearnerError, host::to_host};

/// Hugging Face's name of the head of `…ForSequenceClassification`.
pub(super) const SCORE: &str = "score.weight";

/// A model that gives positions a score: Hugging Face's `…ForSequenceClassification` with one label.
#[derive(Debug)]
pub struct Scorer {
    trunk: Trunk,
    weight_1H: Tensor,
    head_index: usize,
}

impl AsRef<Parameters> for Scorer {
    fn as_ref(&self) -> &Parameters {
        self.parameters()
    }
}

impl Scorer {
    /// The architecture with this head instead of its own.
    #[must_use]
    pub fn config_of(config: &ModelConfig) -> ModelConfig {
        ModelConfig { head: Head::Score { labels: 1 }, ..config.clone() }
    }

    /// A scorer over parameters of [`Self::config_of`] some architecture.
    #[must_use]
    pub fn new(config: ModelConfig, parameters: Parameters) -> Self {
        let weight_1H = parameters.leaf(SCORE).detach();
        let head_index = parameters.leaf_index(SCORE).expect("the head is a leaf");
        Self { trunk: Trunk::new(config, parameters, SCORE), weight_1H, head_index }
    }

    /// The architecture.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.trunk.config()
    }

    /// The parameters.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        self.trunk.parameters()
    }

    /// Scores of the given flat positions (in `B·S`), without gradients.
    pub fn evaluate(&self, input_ids_BS: &Tensor, positions_N: &Tensor) -> Result<Vec<f64>, LearnerError> {
        tch::no_grad(|| to_host(&self.project(&self.trunk.selected(input_ids_BS, positions_N))))
    }

    /// Forward and backward pass. `gradient_of` receives the scores of the given flat positions and returns the derivative
    /// of the loss with respect to each. Parameter gradients are added to `gradients`.
    pub fn differentiate(
        &self,
        input_ids_BS: &Tensor,
        positions_N: &Tensor,
        gradients: &mut Gradients,
        gradient_of: &mut dyn FnMut(&[f64]) -> Vec<f64>,
    ) -> Result<(), LearnerError> {
        let tape = self.trunk.record(input_ids_BS, positions_N);
        let gradient_NH = tch::no_grad(|| {
            let hidden_NH = tape.hidden();
            let of_scores = gradient_of(&to_host(&self.project(&hidden_NH))?);
            let gradient_N1 =
                Tensor::from_slice(&of_scores).to_kind(hidden_NH.kind()).to_device(hidden_NH.device()).unsqueeze(1);
            let _ = gradients.leaf_mut(self.head_index).addmm_(&gradient_N1.tr(), &hidden_NH);
            Ok::<_, LearnerError>(gradient_N1.mm(&self.weight_1H))
        })?;
        self.trunk.backward(tape, &gradient_NH, gradients);
        Ok(())
    }

    fn project(&self, hidden_NH: &Tensor) -> Tensor {
        hidden_NH.linear(&self.weight_1H, None::<Tensor>).squeeze_dim(1)
    }
}
