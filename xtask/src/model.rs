//! Shapes of models whose weights are random: the speed of a model does not depend on its values.

use serde_json::{Value, json};

/// Shape of a Qwen2 model.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// Folder and name in results.
    pub name: &'static str,
    /// Width of a position.
    pub hidden_size: u32,
    /// Width inside the MLP.
    pub intermediate_size: u32,
    /// Layers.
    pub num_hidden_layers: u32,
    /// Heads of queries.
    pub num_attention_heads: u32,
    /// Heads of keys and values.
    pub num_key_value_heads: u32,
    /// Rows of the embedding.
    pub vocab_size: u32,
}

impl Model {
    /// Its `config.json`.
    pub fn config(&self) -> Value {
        json!({
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "tie_word_embeddings": true,
            "use_sliding_window": false,
            "torch_dtype": "float32",
        })
    }
}
