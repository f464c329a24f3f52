//! Decoder-only transformers of the Llama, Qwen2 and Qwen3 families over libtorch.

mod attention;
mod head;
mod linear;
mod load;
mod mlp;
mod norm;
mod parameters;
mod rope;

use std::{ops::Range, sync::Arc};

use shared::ModelConfig;
use tch::{Kind, Tensor};

pub use head::{Head, Slopes, Span, Targets, TokenStats};
pub use load::{LoadOptions, has_weights, initialise, load};
pub use parameters::{Gradients, Parameters};

use crate::{
    batch::MicroBatch,
    kept::{Kept, Truncation},
};
use attention::Attention;
use mlp::Mlp;
use norm::RmsNorm;
use rope::Rotation;

const EMBEDDING: &str = "model.embed_tokens.weight";
const UNTIED_HEAD: &str = "lm_head.weight";

#[derive(Debug)]
struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    output_norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    fn forward(&self, x_BSH: &Tensor, rotation: &Rotation) -> Tensor {
        let x_BSH = x_BSH + self.attention.forward(&self.input_norm.forward(x_BSH), rotation);
        &x_BSH + self.mlp.forward(&self.output_norm.forward(&x_BSH))
    }
}

/// A causal language model.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    parameters: Parameters,
    layers: Vec<Layer>,
    norm: RmsNorm,
    embedding_VH: Tensor,
    head: Head,
    /// Leaves between embedding and head, with their indices: those that autograd differentiates.
    trunk: Vec<(usize, Tensor)>,
    embedding_index: usize,
    head_index: usize,
}

impl Decoder {
    /// A model over the given parameters.
    #[must_use]
    pub fn new(config: ModelConfig, parameters: Parameters) -> Self {
        let norm = |name: &str| RmsNorm::new(&parameters, name, config.rms_norm_eps);
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer {
                input_norm: norm(&format!("model.layers.{i}.input_layernorm")),
                attention: Attention::new(&config, &parameters, &format!("model.layers.{i}.self_attn")),
                output_norm: norm(&format!("model.layers.{i}.post_attention_layernorm")),
                mlp: Mlp::new(&parameters, &format!("model.layers.{i}.mlp")),
            })
            .collect();
        let index = |name| parameters.leaf_index(name).expect("every architecture has an embedding and a head");
        let head_name = if config.tie_word_embeddings { EMBEDDING } else { UNTIED_HEAD };
        let (embedding_index, head_index) = (index(EMBEDDING), index(head_name));
        let trunk = (0..parameters.leaves().len())
            .filter(|i| ![embedding_index, head_index].contains(i))
            .map(|i| (i, parameters.leaves()[i].shallow_clone()))
            .collect();
        Self {
            layers,
            norm: norm("model.norm"),
            embedding_VH: parameters.leaf(EMBEDDING).detach(),
            head: Head::new(&parameters.leaf(head_name)),
            trunk,
            embedding_index,
            head_index,
            config,
            parameters,
        }
    }

    /// The architecture.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The parameters.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Logits of every position, `[B, S]` token ids to `[B, S, V]`.
    pub fn logits(&self, input_ids_BS: &Tensor) -> Tensor {
        tch::no_grad(|| {
            let x_BSH = self.trunk(self.embed(input_ids_BS));
            self.head.logits(&self.norm.forward(&x_BSH))
        })
    }

    /// Log-probs and entropies of a micro-batch's completion tokens at a temperature, without gradients.
    #[must_use]
    pub fn evaluate(&self, batch: &MicroBatch, temperature: f64) -> TokenStats {
        tch::no_grad(|| {
            let hidden_NH = self.select(&self.trunk(self.embed(&batch.input_ids_BS)), batch);
            self.head.evaluate(&hidden_NH, &batch.targets(temperature))
        })
    }

    /// What truncated sampling keeps at each completion token of a micro-batch, the token itself always included.
    #[must_use]
    pub fn keep(&self, batch: &MicroBatch, temperature: f64, truncation: &Truncation) -> Vec<Arc<Kept>> {
        tch::no_grad(|| {
            let hidden_NH = self.select(&self.trunk(self.embed(&batch.input_ids_BS)), batch);
            self.head.keep(&hidden_NH, &batch.targets(temperature), truncation)
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
        gradient_of: &mut dyn FnMut(Range<i64>, &TokenStats) -> Slopes,
    ) {
        // The embedding is left out of the graph: autograd would make a dense [V, H] gradient of it every time.
        let embedded_BSH = tch::no_grad(|| self.embed(&batch.input_ids_BS)).set_requires_grad(true);
        let hidden_NH = self.select(&self.trunk(embedded_BSH.shallow_clone()), batch);
        let gradient_NH = tch::no_grad(|| {
            self.head.differentiate(
                &hidden_NH.detach(),
                &batch.targets(temperature),
                span,
                gradients.leaf_mut(self.head_index),
                gradient_of,
            )
        });
        // A gradient is carried into the graph by a product whose derivative it is.
        let carrier = (hidden_NH * gradient_NH).sum(None::<Kind>);
        let inputs: Vec<&Tensor> =
            std::iter::once(&embedded_BSH).chain(self.trunk.iter().map(|(_, leaf)| leaf)).collect();
        let mut results = Tensor::run_backward(&[carrier], &inputs, false, false).into_iter();
        let embedded_gradient = results.next().expect("one gradient per input");
        tch::no_grad(|| {
            for ((index, _), gradient) in self.trunk.iter().zip(results) {
                *gradients.leaf_mut(*index) += gradient;
            }
            let rows_BH = embedded_gradient.reshape([-1, self.config.hidden_size as i64]);
            let _ = gradients.leaf_mut(self.embedding_index).index_add_(0, &batch.input_ids_BS.reshape([-1]), &rows_BH);
        });
    }

    fn embed(&self, input_ids_BS: &Tensor) -> Tensor {
        Tensor::embedding(&self.embedding_VH, input_ids_BS, -1, false, false)
    }

    fn trunk(&self, embedded_BSH: Tensor) -> Tensor {
        let kind = embedded_BSH.kind();
        let rotation = Rotation::new(&self.config, embedded_BSH.size()[1], kind, embedded_BSH.device());
        self.layers.iter().fold(embedded_BSH, |x_BSH, layer| layer.forward(&x_BSH, &rotation))
    }

    /// Normed hidden states of the positions that predict completion tokens, `[N, H]`.
    fn select(&self, x_BSH: &Tensor, batch: &MicroBatch) -> Tensor {
        let rows_TH = x_BSH.reshape([-1, self.config.hidden_size as i64]);
        self.norm.forward(&rows_TH.index_select(0, &batch.positions_N))
    }
}
