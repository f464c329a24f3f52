//! Memory of a learner.

use super::Workload;
use crate::{AttentionGate, BaseFormat, DeltaRule, Head, LayerKind, ModelConfig, system::compute::Device};

/// Largest `[tokens, vocabulary]` buffer of the language-model head, in bytes. A head has two, or three where logits
/// have a bound.
const HEAD_CHUNK_BYTES: u64 = 7 << 24;
/// Size of such a buffer from which on products are fast: this many bytes, or this many tokens if they take more.
const ENOUGH: (u64, u64) = (3 << 24, 256);

/// Tokens that a head computes at once: the usual number, and the most, for a completion that a loss must see as a
/// whole. `row` is the size of one token's logits in bytes.
#[must_use]
pub fn head_chunk(row: u64) -> (u64, u64) {
    let most = (HEAD_CHUNK_BYTES / row).max(1);
    ((ENOUGH.0 / row).max(ENOUGH.1).min(most), most)
}

/// libtorch, its threads and this program, before any tensor.
const BASELINE: u64 = 200 << 20;
/// Activations take more room than their numbers: glibc's allocator hardly ever fills a gap with an aligned tensor of
/// the same size. Measured on models of 135M and 0.5B, with 300 to 2,200 tokens at once.
const GAPS: f64 = 1.2;

/// A learner, as far as its memory depends on it.
#[derive(Debug, Clone, Copy)]
pub struct LearnerSizes<'a> {
    /// The policy, or another model that the learner computes with.
    pub model: &'a ModelConfig,
    /// Whether it is trained; otherwise it is only evaluated.
    pub trained: bool,
    /// Whether layers compute in bfloat16, with float32 copies of the trained weights.
    pub bf16: bool,
    /// Whether layers are computed again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Numbers of a low-rank adapter, if only that is trained.
    pub adapter: Option<u64>,
    /// How the model beside the adapter is quantised, if it is.
    pub base: Option<BaseFormat>,
    /// Number of processes over which the optimiser's moments are sharded.
    pub shards: u64,
    /// Whether it keeps a frozen copy of the policy.
    pub reference: bool,
    /// A critic that is trained as well.
    pub critic: Option<&'a ModelConfig>,
    /// Tokens of the longest completion, if a loss must see it as a whole.
    pub completion: u64,
}

/// Bytes of a learner, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnerPlan {
    /// Parameters.
    pub weights: u64,
    /// Their gradients.
    pub gradients: u64,
    /// AdamW's two moments.
    pub optimizer: u64,
    /// Parameters of the reference policy.
    pub reference: u64,
    /// Parameters, gradients and moments of the critic.
    pub critic: u64,
    /// The activations of one forward and backward pass.
    pub activations: u64,
    /// The buffers of the head.
    pub head: u64,
    /// libtorch and the program.
    pub baseline: u64,
}

impl<'a> LearnerSizes<'a> {
    /// A learner that only evaluates a model, in float32.
    #[must_use]
    pub fn evaluated(model: &'a ModelConfig) -> Self {
        let (bf16, gradient_checkpointing) = (false, false);
        Self {
            model,
            trained: false,
            bf16,
            gradient_checkpointing,
            adapter: None,
            base: None,
            shards: 1,
            reference: false,
            critic: None,
            completion: 0,
        }
    }

    /// The plan with passes of at most `tokens` tokens.
    #[must_use]
    pub fn plan(&self, tokens: u64) -> LearnerPlan {
        let weights = |model: &ModelConfig| self.weights(model);
        let moved = |model: &ModelConfig| self.adapter.unwrap_or(model.parameter_count()) * FLOAT;
        // With bfloat16, a rounded copy of the trained weights is kept as well.
        let masters = |model: &ModelConfig| if self.bf16 { moved(model) } else { self.adapter.unwrap_or(0) * FLOAT };
        let trained = if self.trained { moved(self.model) } else { 0 };
        LearnerPlan {
            weights: weights(self.model) + if self.trained { masters(self.model) } else { 0 },
            gradients: trained,
            optimizer: (2 * trained).div_ceil(self.shards),
            reference: if self.reference && self.adapter.is_none() { weights(self.model) } else { 0 },
            critic: self.critic.map_or(0, |critic| {
                let all = critic.parameter_count();
                let moments = (2 * all * FLOAT).div_ceil(self.shards);
                all * self.number() + moments + all * FLOAT * (1 + u64::from(self.bf16))
            }),
            activations: self.bytes_per_token().saturating_mul(tokens),
            head: self.head_buffers(tokens) + self.wide_heads(),
            baseline: BASELINE,
        }
    }

    /// Bytes of the parameters that passes read. Of a quantised model, the matrices that read one input are widened at
    /// a time, by way of indices and float32.
    fn weights(&self, model: &ModelConfig) -> u64 {
        let Some(format) = self.base else { return model.parameter_count() * self.number() };
        let numbers = |shape: &[usize]| shape.iter().product::<usize>() as u64 * self.number();
        let mut held = 0;
        for (name, shape) in model.parameters() {
            held += BaseFormat::matrix(&name, &shape).map_or_else(|| numbers(&shape), |matrix| format.bytes(matrix));
        }
        let inputs = (0..model.num_hidden_layers).map(|layer| model.mixer_widths(layer).iter().sum::<usize>());
        let inner = (0..model.num_hidden_layers).map(|layer| model.mlp_width(layer)).max().unwrap_or(0);
        let widest = inputs.max().unwrap_or(0).max(2 * inner) * model.hidden_size;
        held + widest as u64 * (2 * FLOAT + self.number())
    }

    /// The token budget that suits `work`, lowered so that the whole learner fits into `room` bytes.
    #[must_use]
    pub fn budget(&self, device: Device, work: &Workload, room: u64) -> u64 {
        let fixed = LearnerPlan { activations: 0, ..self.plan(u64::MAX) }.total();
        work.budget(device, self.bf16, room.saturating_sub(fixed) / self.bytes_per_token())
    }

    /// Bytes for each token of a pass.
    #[must_use]
    pub fn bytes_per_token(&self) -> u64 {
        let kept = |model: &ModelConfig| {
            let of_layer = |layer: usize| {
                let [numbers, floats] = kept(model, layer);
                self.number() * numbers + FLOAT * floats
            };
            let layers = (0..model.num_hidden_layers).map(of_layer);
            match (self.trained, self.gradient_checkpointing) {
                (false, _) => 0,
                (true, false) => layers.sum(),
                (true, true) => {
                    let inputs = (model.num_hidden_layers * model.hidden_size) as u64;
                    self.number() * inputs + layers.max().unwrap_or(0)
                }
            }
        };
        let bytes = |model| kept(model) + FLOAT * at_work(model);
        let policy = bytes(self.model);
        let bytes = self.critic.map_or(policy, |critic| policy.max(bytes(critic)));
        (bytes as f64 * GAPS) as u64
    }

    /// The buffers, as far as they are used.
    fn head_buffers(&self, tokens: u64) -> u64 {
        if self.model.head != Head::LanguageModel {
            return 0;
        }
        let row = self.model.vocab_size as u64 * FLOAT;
        let (usual, most) = head_chunk(row);
        let buffers = if self.model.logit_cap.is_some() { 3 } else { 2 };
        buffers * row * self.completion.clamp(usual, most).min(tokens.max(1))
    }

    /// Heads compute in float32.
    fn wide_heads(&self) -> u64 {
        let heads = if self.reference && self.adapter.is_none() { 2 } else { 1 };
        let weight = (self.model.vocab_size * self.model.hidden_size) as u64 * FLOAT;
        if self.bf16 && self.model.head == Head::LanguageModel { heads * weight } else { 0 }
    }

    /// Bytes of a number in the layers.
    fn number(&self) -> u64 {
        if self.bf16 { FLOAT / 2 } else { FLOAT }
    }
}

impl LearnerPlan {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
    }

    /// The parts, with their bytes.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, u64); 8] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("AdamW", self.optimizer),
            ("reference", self.reference),
            ("critic", self.critic),
            ("activations", self.activations),
            ("head", self.head),
            ("libtorch", self.baseline),
        ]
    }
}

const FLOAT: u64 = size_of::<f32>() as u64;

/// Numbers that a layer keeps for each token until its backward pass: input, the part that mixes tokens, the input of
/// the MLP, gate and up. Attention keeps queries, keys and values, its output and the log-sum-exp of each head, and
/// queries and keys twice where they are normed. A layer with a state keeps its projected input; a rule also its
/// output, and the states between chunks, which are the second number, in float32 whatever the layers compute in.
fn kept(model: &ModelConfig, layer: usize) -> [u64; 2] {
    let (mixer, floats) = match model.layers[layer] {
        LayerKind::Attention(kind) => {
            let [queries, keys] = model.query_and_key_widths(layer).map(|width| width as u64);
            let keys = if model.shares_keys_of(layer).is_some() { 0 } else { keys };
            let normed = if model.query_and_key_norms(layer).is_some() { queries + keys } else { 0 };
            let normed = if model.value_norms() { normed + keys } else { normed };
            let gates = if kind.gate == Some(AttentionGate::Entries) { queries } else { 0 };
            (queries + 2 * keys + queries + model.num_attention_heads as u64 + normed + gates, 0)
        }
        LayerKind::ShortConv(_) => (3 * model.hidden_size as u64, 0),
        LayerKind::DeltaRule(rule) => {
            let states = (rule.values() * rule.key_dim).div_ceil(RULE_CHUNK);
            let projected = rule.channels() + rule.values() + 2 * rule.value_heads;
            (projected as u64, (rule.values() + states) as u64)
        }
        LayerKind::Mamba(mamba) => {
            let states = (mamba.inner() * mamba.state_dim).div_ceil(RULE_CHUNK);
            ((mamba.channels() + mamba.inner() + mamba.heads) as u64, (mamba.inner() + states) as u64)
        }
    };
    // The choice of experts and their weights: probabilities of all of them, and three numbers for each chosen one.
    let routing = model.experts.as_ref().map_or(0, |experts| experts.count + 6 * experts.per_token);
    let inner = if model.experts.is_some() { model.inner_width() } else { model.mlp_width(layer) };
    // The stream before the layer's own input is added, and its projection.
    let input = model.per_layer_input.map_or(0, |input| model.hidden_size + input.width);
    [mixer + (2 * (model.hidden_size + inner) + routing + input) as u64, floats]
}

/// Tokens between two states that a rule keeps.
const RULE_CHUNK: usize = 64;

/// Numbers for each token that are alive at once in the widest place of a backward pass, in addition to those that the
/// layers keep: the gradients of a layer's input and output, the normed input, inner products of the MLP and their
/// gradients; also the hidden states that the head reads, with their gradient. A norm on a block's result adds its
/// input, the normalised input and a gradient, and a factor its input and a gradient. A rule has its channels and its
/// inputs with their gradients instead of the MLP's. Inputs of each layer's own are there for all layers at once, as
/// projected, as layers read them, and with their gradients.
fn at_work(model: &ModelConfig) -> u64 {
    let wide = if model.output_norms() || model.residual_multiplier != 1.0 { 7 + 3 } else { 7 };
    let of_rule = |rule: DeltaRule| 7 * rule.channels() + 6 * rule.values();
    let of_mixer = |kind: &LayerKind| match *kind {
        LayerKind::Attention(_) => 0,
        LayerKind::ShortConv(_) => 10 * model.hidden_size,
        LayerKind::DeltaRule(rule) => of_rule(rule),
        LayerKind::Mamba(mamba) => 6 * mamba.channels() + 9 * mamba.inner(),
    };
    let mixer = model.layers.iter().map(of_mixer).max().unwrap_or(0);
    let inputs = model.per_layer_input.map_or(0, |input| 3 * model.num_hidden_layers * input.width);
    (wide * model.hidden_size + mixer.max(5 * model.inner_width()) + inputs) as u64
}
