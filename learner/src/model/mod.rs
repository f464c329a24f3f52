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

use std::{
    ops::{AddAssign, Range},
    sync::Arc,
    time::{Duration, Instant},
};

use shared::ModelConfig;
use tch::{Kind, Tensor};

pub use head::{Head, Span, Targets, TokenGradients, TokenStats};
pub use load::{LoadOptions, initialise, load, load_scorer};
pub use parameters::{Gradients, Leaf, Parameters};
pub use scorer::Scorer;

use crate::{
    batch::{MicroBatch, Packed},
    device::wait_for,
    support::{Support, Truncation},
};
use trunk::{EMBEDDING, Trunk};

const UNTIED_HEAD: &str = "lm_head.weight";

/// Seconds of passes with gradients, by part.
#[derive(Debug, Clone, Copy, Default)]
pub struct PassTimes {
    /// Forward through the layers.
    pub forward: Duration,
    /// Head and loss, forward and backward.
    pub head: Duration,
    /// Backward through the layers.
    pub backward: Duration,
}

impl AddAssign for PassTimes {
    fn add_assign(&mut self, other: Self) {
        self.forward += other.forward;
        self.head += other.head;
        self.backward += other.backward;
    }
}

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
        let leaf = parameters.leaf(name);
        Self { trunk: Trunk::new(config, parameters), head: Head::new(&leaf.values), head_index: leaf.index }
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

    /// Logits of every position, `[T, V]`.
    pub fn logits(&self, batch: &Packed) -> Tensor {
        let every_T = Tensor::arange(batch.ids_T.size()[0], (Kind::Int64, batch.ids_T.device()));
        self.head.logits(&self.trunk.forward(batch, &every_T))
    }

    /// Log-probs and entropies of a micro-batch's completion tokens at a temperature, without gradients.
    #[must_use]
    pub fn evaluate(&self, batch: &MicroBatch, temperature: f64) -> TokenStats {
        let hidden_NH = self.trunk.forward(&batch.packed, &batch.positions_N);
        self.head.evaluate(&hidden_NH, &targets(batch, temperature))
    }

    /// What truncated sampling keeps at each completion token of a micro-batch, the token itself always included.
    #[must_use]
    pub fn supports(&self, batch: &MicroBatch, temperature: f64, truncation: &Truncation) -> Vec<Arc<Support>> {
        let hidden_NH = self.trunk.forward(&batch.packed, &batch.positions_N);
        self.head.supports(&hidden_NH, &targets(batch, temperature), truncation)
    }

    /// Forward and backward pass of a micro-batch.
    ///
    /// `gradient_of` is called for consecutive runs of completion tokens (with [`Span::Whole`] once, for all) with
    /// their statistics and returns the derivatives of the loss. Parameter gradients are added to `gradients`. Returns where
    /// the time went.
    pub fn differentiate(
        &self,
        batch: &MicroBatch,
        temperature: f64,
        span: Span,
        gradients: &mut Gradients,
        gradient_of: &mut dyn FnMut(Range<i64>, &TokenStats) -> TokenGradients,
    ) -> PassTimes {
        let (device, start) = (batch.targets_N.device(), Instant::now());
        let elapsed = || {
            wait_for(device);
            start.elapsed()
        };
        let tape = self.trunk.record(&batch.packed, &batch.positions_N);
        let forward = elapsed();
        let gradient_NH = self.head.differentiate(
            tape.hidden(),
            &targets(batch, temperature),
            span,
            gradients.leaf_mut(self.head_index),
            gradient_of,
        );
        let head = elapsed() - forward;
        self.trunk.backward(&batch.packed, &batch.positions_N, tape, &gradient_NH, gradients);
        PassTimes { forward, head, backward: elapsed() - forward - head }
    }
}

/// What the head needs to know about a micro-batch's completion tokens.
fn targets(batch: &MicroBatch, temperature: f64) -> Targets<'_> {
    Targets { ids_N: &batch.targets_N, temperature, supports: batch.supports.as_deref() }
}
