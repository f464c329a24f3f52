//! The transformer below any head: embedding, layers and final norm, with its backward pass.

use shared::ModelConfig;
use tch::{Kind, Tensor};

use super::{
    attention::Attention,
    mlp::Mlp,
    norm::RmsNorm,
    parameters::{Gradients, Parameters},
    rope::Rotation,
};

pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";

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

/// A forward pass that can be differentiated.
#[derive(Debug)]
pub(super) struct Tape {
    input_ids_BS: Tensor,
    embedded_BSH: Tensor,
    hidden_NH: Tensor,
}

impl Tape {
    /// Normed hidden states of the selected positions, `[N, H]`, outside the graph.
    pub(super) fn hidden(&self) -> Tensor {
        self.hidden_NH.detach()
    }
}

/// Embedding, layers and final norm, with all parameters of the model that they are part of.
#[derive(Debug)]
pub(super) struct Trunk {
    config: ModelConfig,
    parameters: Parameters,
    layers: Vec<Layer>,
    norm: RmsNorm,
    embedding_VH: Tensor,
    embedding_index: usize,
    /// Leaves between embedding and head, with their indices: those that autograd differentiates.
    inner: Vec<(usize, Tensor)>,
}

impl Trunk {
    /// The trunk of a model whose head is the leaf `head`, which may be the embedding.
    pub(super) fn new(config: ModelConfig, parameters: Parameters, head: &str) -> Self {
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
        let (embedding_index, head_index) = (index(EMBEDDING), index(head));
        let inner = (0..parameters.leaves().len())
            .filter(|i| ![embedding_index, head_index].contains(i))
            .map(|i| (i, parameters.leaves()[i].shallow_clone()))
            .collect();
        Self {
            layers,
            norm: norm("model.norm"),
            embedding_VH: parameters.leaf(EMBEDDING).detach(),
            embedding_index,
            inner,
            config,
            parameters,
        }
    }

    pub(super) fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(super) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Normed hidden states of every position, `[B, S]` token ids to `[B, S, H]`.
    pub(super) fn every(&self, input_ids_BS: &Tensor) -> Tensor {
        self.norm.forward(&self.layers(self.embed(input_ids_BS)))
    }

    /// Normed hidden states of the selected flat positions (in `B·S`), `[N, H]`.
    pub(super) fn selected(&self, input_ids_BS: &Tensor, positions_N: &Tensor) -> Tensor {
        self.select(&self.layers(self.embed(input_ids_BS)), positions_N)
    }

    /// As [`Self::selected`], to be followed by [`Self::backward`].
    pub(super) fn record(&self, input_ids_BS: &Tensor, positions_N: &Tensor) -> Tape {
        // The embedding is left out of the graph: autograd would make a dense [V, H] gradient of it every time.
        let embedded_BSH = tch::no_grad(|| self.embed(input_ids_BS)).set_requires_grad(true);
        let hidden_NH = self.select(&self.layers(embedded_BSH.shallow_clone()), positions_N);
        Tape { input_ids_BS: input_ids_BS.shallow_clone(), embedded_BSH, hidden_NH }
    }

    /// Adds the parameters' gradients, given that of the selected hidden states, `[N, H]`.
    pub(super) fn backward(&self, tape: Tape, gradient_NH: &Tensor, gradients: &mut Gradients) {
        // A gradient is carried into the graph by a product whose derivative it is.
        let carrier = (tape.hidden_NH * gradient_NH).sum(None::<Kind>);
        let inputs: Vec<&Tensor> =
            std::iter::once(&tape.embedded_BSH).chain(self.inner.iter().map(|(_, leaf)| leaf)).collect();
        let mut results = Tensor::run_backward(&[carrier], &inputs, false, false).into_iter();
        let embedded_gradient = results.next().expect("one gradient per input");
        tch::no_grad(|| {
            for ((index, _), gradient) in self.inner.iter().zip(results) {
                *gradients.leaf_mut(*index) += gradient;
            }
            let rows_BH = embedded_gradient.reshape([-1, self.config.hidden_size as i64]);
            let _ = gradients.leaf_mut(self.embedding_index).index_add_(0, &tape.input_ids_BS.reshape([-1]), &rows_BH);
        });
    }

    fn embed(&self, input_ids_BS: &Tensor) -> Tensor {
        Tensor::embedding(&self.embedding_VH, input_ids_BS, -1, false, false)
    }

    fn layers(&self, embedded_BSH: Tensor) -> Tensor {
        let kind = embedded_BSH.kind();
        let rotation = Rotation::new(&self.config, embedded_BSH.size()[1], kind, embedded_BSH.device());
        self.layers.iter().fold(embedded_BSH, |x_BSH, layer| layer.forward(&x_BSH, &rotation))
    }

    fn select(&self, x_BSH: &Tensor, positions_N: &Tensor) -> Tensor {
        let rows_TH = x_BSH.reshape([-1, self.config.hidden_size as i64]);
        self.norm.forward(&rows_TH.index_select(0, positions_N))
    }
}
