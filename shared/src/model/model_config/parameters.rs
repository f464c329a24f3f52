//! Names and shapes of a model's parameters.

use super::{DeltaRule, Experts, Head, LayerKind, Mamba, ModelConfig, PerLayerInput, ShortConv};

/// Decay of the delta rule, the logarithm of a factor for each value head.
const DECAY: &str = "linear_attn.A_log";
/// What is added to the input of the delta rule's step sizes, for each value head.
const STEP_BIAS: &str = "linear_attn.dt_bias";
/// What Mamba-2 has for each head: the addend of the step's input, the logarithm of the decay's factor, and the share
/// of the input in the result.
const OF_MAMBA: [&str; 3] = ["mamba.dt_bias", "mamba.A_log", "mamba.D"];

/// The embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";

impl ModelConfig {
    /// Whether a parameter is a table whose rows are looked up by tokens.
    #[must_use]
    pub fn is_table(name: &str) -> bool {
        [EMBEDDING, PerLayerInput::TABLE].contains(&name)
    }

    /// Whether a matrix is multiplied with: all but tables, though the embedding may be the head too.
    #[must_use]
    pub fn is_product(&self, name: &str) -> bool {
        !Self::is_table(name) || name == EMBEDDING && self.tie_word_embeddings
    }

    /// Every parameter as (Hugging Face name, shape), in the model's order; the head's come last. With tied embeddings
    /// there is no `lm_head.weight`. Factors on results of layers are among them, which are not trained.
    #[must_use]
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, mlp) = (self.hidden_size, self.mlp_names());
        let mut list = vec![(EMBEDDING.to_string(), vec![self.vocab_size, hidden])];
        if let Some(PerLayerInput { width, vocab_size }) = self.per_layer_input {
            let all = self.num_hidden_layers * width;
            list.push((PerLayerInput::TABLE.to_string(), vec![vocab_size, all]));
            list.push((format!("{}.weight", PerLayerInput::PROJECTION), vec![all, hidden]));
            list.push((format!("{}.weight", PerLayerInput::NORM), vec![width]));
        }
        for layer in 0..self.num_hidden_layers {
            let mut add = |name: &str, shape: Vec<usize>| list.push((format!("model.layers.{layer}.{name}"), shape));
            if let Some(norm) = self.input_norm() {
                add(&format!("{norm}.weight"), vec![hidden]);
            }
            self.mixer(layer, &mut add);
            let [after_mixer, after_mlp] = self.output_norm_names();
            if self.output_norms() {
                add(&format!("{after_mixer}.weight"), vec![hidden]);
            }
            if let Some(norm) = self.mlp_norm() {
                add(&format!("{norm}.weight"), vec![hidden]);
            }
            match self.experts_of(layer) {
                None => {
                    let inner = self.mlp_width(layer);
                    let of_gate_up = if mlp.is_fused() { vec![2 * inner] } else { vec![inner, inner] };
                    for (name, width) in mlp.inputs().zip(&of_gate_up) {
                        projection(&mut add, &name, [*width, hidden], self.mlp_bias);
                    }
                    projection(&mut add, &mlp.output(), [hidden, inner], self.mlp_bias);
                }
                Some(experts) => {
                    projection(&mut add, Experts::ROUTER, [experts.count, hidden], false);
                    for expert in 0..experts.count {
                        let block = Experts::block(expert);
                        for name in mlp.members {
                            projection(&mut add, &format!("{block}.{name}"), [experts.width, hidden], false);
                        }
                        projection(&mut add, &format!("{block}.{}", mlp.last), [hidden, experts.width], false);
                    }
                }
            }
            if self.output_norms() {
                add(&format!("{after_mlp}.weight"), vec![hidden]);
            }
            if let Some(PerLayerInput { width, .. }) = self.per_layer_input {
                projection(&mut add, PerLayerInput::GATE, [width, hidden], false);
                projection(&mut add, PerLayerInput::BACK, [hidden, width], false);
                add(&format!("{}.weight", PerLayerInput::OUTPUT_NORM), vec![hidden]);
            }
            if self.layer_scalars() {
                add(Self::LAYER_SCALAR, vec![1]);
            }
        }
        list.push((format!("{}.weight", self.final_norm()), vec![hidden]));
        match self.head {
            Head::Score { labels } => list.push(("score.weight".to_string(), vec![labels, hidden])),
            Head::LanguageModel if self.tie_word_embeddings => {}
            Head::LanguageModel => list.push(("lm_head.weight".to_string(), vec![self.vocab_size, hidden])),
        }
        list
    }

    /// Whether a parameter decides how fast a state decays, or is another number of a head of Mamba-2. Such a one stays
    /// in float32 under every type, on both sides: a state adds up the error of a whole sequence.
    #[must_use]
    pub fn is_exact(name: &str) -> bool {
        [DECAY, STEP_BIAS].iter().chain(&OF_MAMBA).any(|end| name.ends_with(end))
    }

    /// The parameters of attention, or of that which a layer has instead.
    fn mixer(&self, layer: usize, add: &mut dyn FnMut(&str, Vec<usize>)) {
        let (hidden, names) = (self.hidden_size, self.mixer_names(layer));
        let (input_bias, output_bias) = match self.layers[layer] {
            LayerKind::Attention(_) => (self.qkv_bias, self.attention_output_bias),
            LayerKind::ShortConv(ShortConv { bias, .. }) => (bias, bias),
            LayerKind::DeltaRule(_) => (false, false),
            LayerKind::Mamba(Mamba { proj_bias, .. }) => (proj_bias, proj_bias),
        };
        for (name, width) in names.inputs().zip(self.mixer_widths(layer)) {
            let has_bias = input_bias && !name.ends_with("gate_proj");
            projection(add, &name, [width, hidden], has_bias);
        }
        let mut inner = hidden;
        match self.layers[layer] {
            LayerKind::Attention(_) => {
                inner = self.query_and_key_widths(layer)[0];
                if let Some(widths) = self.query_and_key_norms(layer) {
                    let normed = if self.shares_keys_of(layer).is_some() { 1 } else { 2 };
                    for (which, width) in self.query_and_key_norm_names().iter().zip(widths).take(normed) {
                        add(&format!("{}.{which}.weight", names.block), vec![width]);
                    }
                }
            }
            LayerKind::ShortConv(ShortConv { kernel, bias }) => {
                let name = format!("{}.conv", names.block);
                add(&format!("{name}.weight"), vec![hidden, 1, kernel]);
                if bias {
                    add(&format!("{name}.bias"), vec![hidden]);
                }
            }
            LayerKind::DeltaRule(rule) => {
                let DeltaRule { value_heads, value_dim, kernel, .. } = rule;
                inner = rule.values();
                add(&format!("{}.conv1d.weight", names.block), vec![rule.channels(), 1, kernel]);
                add(STEP_BIAS, vec![value_heads]);
                add(DECAY, vec![value_heads]);
                add(&format!("{}.norm.weight", names.block), vec![value_dim]);
            }
            LayerKind::Mamba(mamba) => {
                let Mamba { heads, kernel, conv_bias, .. } = mamba;
                inner = mamba.inner();
                for name in OF_MAMBA {
                    add(name, vec![heads]);
                }
                add(&format!("{}.conv1d.weight", names.block), vec![mamba.channels(), 1, kernel]);
                if conv_bias {
                    add(&format!("{}.conv1d.bias", names.block), vec![mamba.channels()]);
                }
                add(&format!("{}.norm.weight", names.block), vec![inner]);
            }
        }
        projection(add, &names.output(), [hidden, inner], output_bias);
    }
}

/// Adds the weight of a linear layer, and its bias if it has one.
fn projection(add: &mut dyn FnMut(&str, Vec<usize>), name: &str, shape: [usize; 2], bias: bool) {
    add(&format!("{name}.weight"), shape.to_vec());
    if bias {
        add(&format!("{name}.bias"), vec![shape[0]]);
    }
}
