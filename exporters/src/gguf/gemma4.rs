//! Gemma 4's own keys, and the refusal of what they cannot say.

use shared::{ModelConfig, Rotary};

use super::{
    metadata::{Metadata, Value},
    refused,
};
use crate::ExportError;

/// Adds the keys beside those of all families.
pub(super) fn add(config: &ModelConfig, family: &str, metadata: &mut Metadata) {
    let windows = (0..config.num_hidden_layers).map(|layer| has_window(config, layer)).collect();
    metadata.add(format!("{family}.attention.sliding_window_pattern"), Value::Flags(windows));
    let sizes = [
        ("attention.key_length_swa", config.head_dim),
        ("attention.value_length_swa", config.head_dim),
        ("attention.shared_kv_layers", config.num_kv_shared_layers),
        ("rope.dimension_count_swa", config.rotary_entries(Rotary::Local)),
        ("embedding_length_per_layer_input", config.per_layer_input.map_or(0, |input| input.width)),
    ];
    for (key, size) in sizes {
        metadata.size(format!("{family}.{key}"), size);
    }
    if let Some(theta) = config.rope_local_theta {
        metadata.number(format!("{family}.rope.freq_base_swa"), theta);
    }
    if let Some(cap) = config.logit_cap {
        metadata.number(format!("{family}.final_logit_softcapping"), cap);
    }
}

fn has_window(config: &ModelConfig, layer: usize) -> bool {
    config.attention(layer).is_some_and(|kind| kind.window.is_some())
}

/// Refuses tables of other tokens, and layers that llama.cpp would pair otherwise.
pub(super) fn refuse(config: &ModelConfig) -> Result<(), ExportError> {
    let layers = config.num_hidden_layers;
    if let Some(input) = config.per_layer_input.filter(|input| input.vocab_size != config.vocab_size) {
        let supported = format!("vocab_size ({})", config.vocab_size);
        return Err(refused("vocab_size_per_layer_input", input.vocab_size, &supported));
    }
    if !(0..layers).any(|layer| has_window(config, layer)) {
        return Err(refused("layer_types", "full_attention alone", "layers with windows and layers without"));
    }
    // llama.cpp takes the keys of the last layer that has its own, or of the one before it in layers with windows.
    let own = layers - config.num_kv_shared_layers;
    if own < 2 {
        return Err(refused("num_kv_shared_layers", config.num_kv_shared_layers, "two layers with keys of their own"));
    }
    let differs = |layer: &usize| {
        let source = own - if has_window(config, *layer) { 2 } else { 1 };
        config.shares_keys_of(*layer) != Some(source)
    };
    match (own..layers).find(differs) {
        None => Ok(()),
        Some(layer) => Err(refused(
            "layer_types",
            format!("other types before layer {own}, whose keys layer {layer} reads"),
            "of the last two layers with keys of their own, one with a window, then one without",
        )),
    }
}
