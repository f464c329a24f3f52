//! What llama.cpp knows of a family by its name alone.

use crate::Activation;

/// A value of `general.architecture`, and what no key says of it.
pub(super) struct Family {
    pub name: &'static str,
    /// Each head of queries and keys is normed.
    pub head_norms: bool,
    /// All queries, and all keys, of a token are normed together.
    pub width_norms: bool,
    /// Each head of values is normed.
    pub value_norms: bool,
    pub input_norms: bool,
    pub output_norms: bool,
    /// Attention has a gate for each entry of its result.
    pub gated: bool,
    pub activation: Activation,
    /// Embeddings are multiplied with the square root of their width.
    pub scaled_embedding: bool,
    /// Positions turn neighbouring values of a head.
    pub interleaved: bool,
    /// Numbers of heads of keys and values are a list; 0 is a layer without attention.
    pub heads_by_layer: bool,
    /// `rope_freqs.weight` divides the frequencies.
    pub divisors: bool,
}

/// Llama with positions that turn the halves of a head.
const PLAIN: Family = Family {
    name: "qwen2",
    head_norms: false,
    width_norms: false,
    value_norms: false,
    input_norms: true,
    output_norms: false,
    gated: false,
    activation: Activation::Silu,
    scaled_embedding: false,
    interleaved: false,
    heads_by_layer: false,
    divisors: false,
};

const GEMMA3: Family = Family {
    name: "gemma3",
    head_norms: true,
    output_norms: true,
    activation: Activation::GeluTanh,
    scaled_embedding: true,
    ..PLAIN
};

const FAMILIES: [Family; 14] = [
    Family { name: "llama", interleaved: true, divisors: true, ..PLAIN },
    PLAIN,
    Family { name: "qwen3", head_norms: true, ..PLAIN },
    Family { name: "qwen3moe", head_norms: true, ..PLAIN },
    Family { name: "qwen35", head_norms: true, gated: true, ..PLAIN },
    Family { name: "smollm3", interleaved: true, ..PLAIN },
    GEMMA3,
    Family { name: "gemma4", value_norms: true, divisors: true, ..GEMMA3 },
    Family { name: "lfm2", head_norms: true, heads_by_layer: true, ..PLAIN },
    Family { name: "olmo2", width_norms: true, input_norms: false, output_norms: true, ..PLAIN },
    Family { name: "mistral3", interleaved: true, ..PLAIN },
    Family { name: "phi3", ..PLAIN },
    Family { name: "granite", interleaved: true, ..PLAIN },
    Family { name: "granitehybrid", interleaved: true, heads_by_layer: true, ..PLAIN },
];

impl Family {
    /// The family with a name.
    pub fn of(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }
}
