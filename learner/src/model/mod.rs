//! Decoder-only transformers over libtorch: language models and scorers.
//!
//! All parameters of a model are slices of one flat buffer. A trunk of layers stands under a language-model head
//! ([`Decoder`]) or under one number for each position ([`Scorer`]: critics and reward models). Forward and backward
//! passes are written out, layer by layer, and add to flat gradients. The head computes log-probs and their gradients
//! in chunks. Chunks end where completions do if a loss has to see a completion at once.
//!
//! [`Weights`] separates the parameters that passes read from those that training moves. With `bf16`, training moves a
//! float32 copy, which is rounded after each update. With `use_peft`, it moves an adapter beside a frozen base, and
//! only the adapter has gradients. The reference policy of such a run is the base without the adapter. Such a base may
//! be quantised: its matrices are widened one at a time when a pass needs them.

mod adapter;
mod attention;
mod coded;
mod experts;
mod halves;
mod head;
mod kernels;
mod kinds;
mod linear;
mod load;
mod low_rank;
mod mixer;
mod mlp;
mod norm;
mod output;
mod parameters;
mod per_layer;
mod rope;
mod scorer;
mod state;
mod trunk;
mod weights;

use std::{
    ops::{AddAssign, Range},
    sync::Arc,
    time::{Duration, Instant},
};

use exporters::AdapterConfig;
use shared::ModelConfig;
use tch::{Device, Kind, Tensor};

pub use adapter::{adapter_config, load_adapter};
pub use experts::ExpertLoad;
pub use head::{Head, Span, Targets, TokenGradients, TokenStats};
pub use load::{LoadOptions, initialise, load, load_scorer};
pub use parameters::{Gradients, HostParameters, Parameters};
pub use scorer::Scorer;
pub use weights::Weights;

use crate::{
    batch::{MicroBatch, Packed},
    device::wait_for,
    support::{Support, Truncation},
};
use parameters::Leaf;
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

/// What a pass with gradients tells beside its gradients.
#[derive(Debug, Clone, Copy, Default)]
pub struct PassReport {
    /// Seconds of its parts.
    pub times: PassTimes,
    /// How evenly its tokens were spread over experts.
    pub experts: ExpertLoad,
}

/// What an optimiser can move.
pub trait Trainable {
    /// Its parameters.
    fn trained(&self) -> &Parameters;

    /// To be called when they have changed.
    fn moved(&self);
}

impl<M: Trainable> Trainable for &M {
    fn trained(&self) -> &Parameters {
        (*self).trained()
    }

    fn moved(&self) {
        (*self).moved();
    }
}

impl Trainable for Scorer {
    fn trained(&self) -> &Parameters {
        self.weights().trained()
    }

    fn moved(&self) {
        self.weights().moved();
    }
}

impl Trainable for Decoder {
    fn trained(&self) -> &Parameters {
        self.weights().trained()
    }

    fn moved(&self) {
        self.weights().moved();
        if self.head_leaf.is_trained() {
            self.head.follow(&self.head_leaf.values);
        }
    }
}

/// A causal language model.
#[derive(Debug)]
pub struct Decoder {
    trunk: Trunk,
    head: Head,
    head_leaf: Leaf,
}

impl Decoder {
    /// A model over the given weights. With gradient checkpointing, passes with gradients keep each layer's input alone
    /// and compute the layer again on the way back: the same bits, in less memory and more time.
    #[must_use]
    pub fn new(config: ModelConfig, weights: Weights, gradient_checkpointing: bool) -> Self {
        let head_leaf = weights.leaf(head_name(&config));
        let head = Head::new(&head_leaf.values).with_cap(config.logit_cap);
        Self { trunk: Trunk::new(config, weights, gradient_checkpointing), head, head_leaf }
    }

    /// The model with another adapter, or none, in the memory of this one.
    #[must_use]
    pub fn with_adapter(&self, adapter: Option<(AdapterConfig, Parameters)>) -> Self {
        let base = self.weights().base().shared();
        let weights = match adapter {
            Some((config, parameters)) => Weights::adapted(base, config, parameters),
            None => Weights::new(base),
        };
        let head_leaf = weights.leaf(head_name(self.config()));
        Self { trunk: self.trunk.with_weights(weights), head: self.head.shared(), head_leaf }
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

    /// The device of its weights.
    #[must_use]
    pub fn device(&self) -> Device {
        self.weights().base().flat().device()
    }

    /// Logits of every position, `[T, V]`.
    pub fn logits(&self, batch: &Packed) -> Tensor {
        let every_T = Tensor::arange(batch.ids_T.size()[0], (Kind::Int64, batch.ids_T.device()));
        let logits = self.head.logits(&self.trunk.forward(batch, &every_T));
        match self.config().logits_scaling {
            1.0 => logits,
            scaling => logits / scaling,
        }
    }

    /// Log-probs and entropies of a micro-batch's completion tokens at a temperature, without gradients.
    #[must_use]
    pub fn evaluate(&self, batch: &MicroBatch, temperature: f64) -> TokenStats {
        let hidden_NH = self.trunk.forward(&batch.packed, &batch.positions_N);
        self.head.evaluate(&hidden_NH, &self.targets(batch, temperature))
    }

    /// The tokens that truncated sampling keeps at each completion token of a micro-batch, always with the token
    /// itself.
    #[must_use]
    pub fn supports(&self, batch: &MicroBatch, temperature: f64, truncation: &Truncation) -> Vec<Arc<Support>> {
        let hidden_NH = self.trunk.forward(&batch.packed, &batch.positions_N);
        self.head.supports(&hidden_NH, &self.targets(batch, temperature), truncation)
    }

    /// Forward and backward pass of a micro-batch.
    ///
    /// `gradient_of` receives the statistics of consecutive runs of completion tokens and returns the derivatives of
    /// the loss, as in [`Head::differentiate`]. Parameter gradients are added to `gradients`. Returns the time of each
    /// part and the load of experts.
    pub fn differentiate(
        &self,
        batch: &MicroBatch,
        temperature: f64,
        span: Span<'_>,
        gradients: &mut Gradients,
        gradient_of: &mut dyn FnMut(Range<i64>, &TokenStats) -> TokenGradients,
    ) -> PassReport {
        let (device, start) = (batch.targets_N.device(), Instant::now());
        let elapsed = || {
            wait_for(device);
            start.elapsed()
        };
        let tape = self.trunk.record(&batch.packed, &batch.positions_N);
        let forward = elapsed();
        let gradient_NH = self.head.differentiate(
            tape.hidden(),
            &self.targets(batch, temperature),
            span,
            gradients.of(&self.head_leaf),
            gradient_of,
        );
        let (head, experts) = (elapsed() - forward, tape.load());
        self.trunk.backward(&batch.packed, &batch.positions_N, tape, &gradient_NH, gradients);
        PassReport { times: PassTimes { forward, head, backward: elapsed() - forward - head }, experts }
    }

    /// The head's targets for a micro-batch's completion tokens. A divisor of logits is one more temperature.
    fn targets<'b>(&self, batch: &'b MicroBatch, temperature: f64) -> Targets<'b> {
        let temperature = temperature * self.config().logits_scaling;
        Targets { ids_N: &batch.targets_N, temperature, supports: batch.supports.as_deref() }
    }
}

fn head_name(config: &ModelConfig) -> &'static str {
    if config.tie_word_embeddings { EMBEDDING } else { UNTIED_HEAD }
}
