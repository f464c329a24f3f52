//! Decoder-only transformers of the Llama, Qwen2 and Qwen3 families over libtorch: language models and scorers.

mod attention;
mod head;
mod linear;
mod load;
mod mlp;
mod norm;
mod parameters;
mod rope;
mod scorer;
mod trunk;

use std::{ops::Range, sync::Arc};

use shared::ModelConfig;
use tch::Tensor;

pub use head::{Head, Span, Targets, TokenGradients, TokenStats};
pub use load::{LoadOptions, initialise, load, load_scorer};
pub use parameters::{Gradients, Parameters};
pub use scorer::Scorer;

use crate::{
    batch::MicroBatch,
    support::{Support, Truncation},
};
use trunk::{EMBEDDING, Trunk};

const UNTIED_HEAD: &str = "lm_head.weight";

/// A causal language model.
#[derive(Debug)]
pub struct Decoder {
    trunk: Trunk,
    head: Head,
    head_index: usize,
}

impl AsRef<Parameters> for Decoder {
    fn as_ref(&self) -> &Parameters {
        self.parameters()
    }
}

impl Decoder {
    /// A model over the given parameters.
    #[must_use]
    pub fn new(config: ModelConfig, parameters: Parameters) -> Self {
        let name = if config.tie_word_embeddings { EMBEDDING } else { UNTIED_HEAD };
        let head = Head::new(&parameters.leaf(name));
        let head_index = parameters.leaf_index(name).expect("every language model has a head");
        Self { trunk: Trunk::new(config, parameters, name), head, head_index }
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

    /// Logits of every position, `[B, S]` token ids to `[B, S, V]`.
    pub fn logits(&self, input_ids_BS: &Tensor) -> Tensor {
        tch::no_grad(|| self.head.logits(&self.trunk.every(input_ids_BS)))
    }

    /// Log-probs and entropies of a micro-batch's completion tokens at a temperature, without gradients.
    #[must_use]
    pub fn evaluate(&self, batch: &MicroBatch, temperature: f64) -> TokenStats {
        tch::no_grad(|| {
            let hidden_NH = self.trunk.selected(&batch.input_ids_BS, &batch.positions_N);
            self.head.evaluate(&hidden_NH, &targets(batch, temperature))
        })
    }

    /// What truncated sampling keeps at each completion token of a micro-batch, the token itself always included.
    #[must_use]
    pub fn supports(&self, batch: &MicroBatch, temperature: f64, truncation: &Truncation) -> Vec<Arc<Support>> {
        tch::no_grad(|| {
            let hidden_NH = self.trunk.selected(&batch.input_ids_BS, &batch.positions_N);
            self.head.supports(&hidden_NH, &targets(batch, temperature), truncation)
        })
    }

    /// Forward and backward pass of a micro-batch.
    ///
    /// `gradient_of` is called for consecutive runs of completion tokens (with [`Span::Whole`] once, for all) with
    /// their statistics and returns the derivatives of the loss. Parameter gradients are added to `gradients`.
    pub fn differentiate(
        &self,
        batch: &MicroBatch,
        temperature: f64,
        span: Span,
        gradients: &mut Gradients,
        gradient_of: &mut dyn FnMut(Range<i64>, &TokenStats) -> TokenGradients,
    ) {
        let tape = self.trunk.record(&batch.input_ids_BS, &batch.positions_N);
        let gradient_NH = tch::no_grad(|| {
            self.head.differentiate(
                &tape.hidden(),
                &targets(batch, temperature),
                span,
                gradients.leaf_mut(self.head_index),
                gradient_of,
            )
        });
        self.trunk.backward(tape, &gradient_NH, gradients);
    }
}

/// What the head needs to know about a micro-batch's completion tokens.
fn targets(batch: &MicroBatch, temperature: f64) -> Targets<'_> {
    Targets { ids_N: &batch.targets_N, temperature, supports: batch.supports.as_deref() }
}
