//! What a learner holds.

use super::Workload;
use crate::{Head, ModelConfig, compute::Device};

/// Largest `[tokens, vocabulary]` buffer of the language-model head, in bytes. A head has two.
const HEAD_CHUNK_BYTES: u64 = 7 << 24;
/// What is enough of them for products to be fast: this many bytes, or tokens if these take more.
const ENOUGH: (u64, u64) = (3 << 24, 256);

/// Tokens that a head computes at once: those that are usual, and the most, for a completion that a loss has to see as
/// a whole. `row` is the size of one token's logits in bytes.
#[must_use]
pub fn head_chunk(row: u64) -> (u64, u64) {
    let most = (HEAD_CHUNK_BYTES / row).max(1);
    ((ENOUGH.0 / row).max(ENOUGH.1).min(most), most)
}

/// libtorch, its threads and this program, before any tensor.
const BASELINE: u64 = 200 << 20;
/// Activations take more room than they have numbers: glibc's allocator hardly ever fills a gap with an aligned tensor
/// of the same size. Measured on models of 135M and 0.5B, with 300 to 2,200 tokens at once.
const GAPS: f64 = 1.2;

/// A model as a learner holds it.
#[derive(Debug, Clone, Copy)]
pub struct LearnerSizes<'a> {
    /// The policy, or whatever else the learner computes with.
    pub model: &'a ModelConfig,
    /// Whether it is trained; otherwise it is only evaluated.
    pub trained: bool,
    /// Whether layers are computed in bfloat16, with float32 copies of what is trained.
    pub bf16: bool,
    /// Whether layers are computed again on the way back.
    pub gradient_checkpointing: bool,
    /// Numbers of a low-rank adapter, where that alone is trained.
    pub adapter: Option<u64>,
    /// Processes that share the optimiser's moments out.
    pub shards: u64,
    /// Whether a frozen copy of the policy stays beside it.
    pub reference: bool,
    /// A critic, trained along.
    pub critic: Option<&'a ModelConfig>,
    /// Tokens of the longest completion, if a loss may have to see it as a whole.
    pub completion: u64,
}

/// Bytes of a learner, by what they hold.
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
    /// What the tokens of one forward and backward pass take.
    pub activations: u64,
    /// The buffers of the head.
    pub head: u64,
    /// libtorch and the program.
    pub baseline: u64,
}

impl<'a> LearnerSizes<'a> {
    /// A model that is evaluated in float32.
    #[must_use]
    pub fn evaluated(model: &'a ModelConfig) -> Self {
        let (bf16, gradient_checkpointing) = (false, false);
        Self {
            model,
            trained: false,
            bf16,
            gradient_checkpointing,
            adapter: None,
            shards: 1,
            reference: false,
            critic: None,
            completion: 0,
        }
    }

    /// The plan with passes of at most `tokens` tokens.
    #[must_use]
    pub fn plan(&self, tokens: u64) -> LearnerPlan {
        let weights = |model: &ModelConfig| model.parameter_count() * self.number();
        let moved = |model: &ModelConfig| self.adapter.unwrap_or(model.parameter_count()) * FLOAT;
        // A rounded copy beside what is trained.
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

    /// The token budget that suits `work`, lowered to what `room` bytes for all of the learner allow.
    #[must_use]
    pub fn budget(&self, device: Device, work: &Workload, room: u64) -> u64 {
        let fixed = LearnerPlan { activations: 0, ..self.plan(u64::MAX) }.total();
        work.budget(device, room.saturating_sub(fixed) / self.bytes_per_token())
    }

    /// What a token of a pass takes, in bytes.
    #[must_use]
    pub fn bytes_per_token(&self) -> u64 {
        let kept = |model: &ModelConfig| match (self.trained, self.gradient_checkpointing) {
            (false, _) => 0,
            (true, false) => model.num_hidden_layers as u64 * kept(model),
            (true, true) => (model.num_hidden_layers * model.hidden_size) as u64 + kept(model),
        };
        let bytes = |model| self.number() * kept(model) + FLOAT * at_work(model);
        let policy = bytes(self.model);
        let bytes = self.critic.map_or(policy, |critic| policy.max(bytes(critic)));
        (bytes as f64 * GAPS) as u64
    }

    /// The two buffers, as far as they are used.
    fn head_buffers(&self, tokens: u64) -> u64 {
        if self.model.head != Head::LanguageModel {
            return 0;
        }
        let row = self.model.vocab_size as u64 * FLOAT;
        let (usual, most) = head_chunk(row);
        2 * row * self.completion.clamp(usual, most).min(tokens.max(1))
    }

    /// Each head computes in float32.
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

    /// What is there, with its bytes.
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

/// Numbers that a layer keeps of each token until its backward pass: input, queries, keys and values, what attention
/// mixed and the log-sum-exp of each head, the input of the MLP, gate and up. With normed heads, queries and keys
/// twice.
fn kept(model: &ModelConfig) -> u64 {
    let [queries, keys] = heads(model);
    let normed = if model.head_norms() { queries + keys } else { 0 };
    let attention = queries + 2 * keys + queries + model.num_attention_heads as u64 + normed;
    attention + 2 * (model.hidden_size + model.intermediate_size) as u64
}

/// Numbers of each token that are alive at once in the widest place of a backward pass, beside what the layers keep:
/// the gradients of a layer's two ends, the normed input, inner products of the MLP and their gradients; and the hidden
/// states that the head reads, with their gradient. A norm of a block's result has that once more, its units and its
/// gradient.
fn at_work(model: &ModelConfig) -> u64 {
    let wide = if model.output_norms() { 7 + 3 } else { 7 };
    (wide * model.hidden_size + 5 * model.intermediate_size) as u64
}

/// Widths of all queries and of all keys of a token.
fn heads(model: &ModelConfig) -> [u64; 2] {
    [model.num_attention_heads, model.num_key_value_heads].map(|heads| (heads * model.head_dim) as u64)
}
