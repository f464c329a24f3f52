//! Layers that keep a state: keys, and the refusal of what llama.cpp computes otherwise.

use shared::{DeltaRule, LayerKind, Mamba, ModelConfig};

use super::{
    metadata::{Metadata, Value},
    refused,
};
use crate::ExportError;

/// What a delta rule adds to a sum of squares before it divides by its root. llama.cpp takes the epsilon of the norms.
const LENGTH_EPSILON: f64 = 1e-6;

/// Adds the keys of the first layer with a state: all of a model have the same sizes.
pub(super) fn add(config: &ModelConfig, family: &str, metadata: &mut Metadata) {
    let mut sizes = |sizes: &[(&str, usize)]| {
        sizes.iter().for_each(|(key, size)| metadata.size(format!("{family}.{key}"), *size));
    };
    match first(config) {
        None | Some(LayerKind::Attention(_)) => {}
        Some(LayerKind::ShortConv(conv)) => sizes(&[("shortconv.l_cache", conv.kernel)]),
        Some(LayerKind::Mamba(mamba)) => sizes(&[
            ("ssm.conv_kernel", mamba.kernel),
            ("ssm.state_size", mamba.state_dim),
            ("ssm.group_count", mamba.groups),
            ("ssm.inner_size", mamba.inner()),
            // llama.cpp's key for the number of heads.
            ("ssm.time_step_rank", mamba.heads),
        ]),
        Some(LayerKind::DeltaRule(rule)) => {
            sizes(&[
                ("ssm.conv_kernel", rule.kernel),
                ("ssm.state_size", rule.key_dim),
                ("ssm.group_count", rule.key_heads),
                ("ssm.inner_size", rule.values()),
                ("ssm.time_step_rank", rule.value_heads),
            ]);
            if let Some(interval) = interval(config) {
                sizes(&[("full_attention_interval", interval)]);
            }
            let layers = config.layers.iter().map(|layer| matches!(layer, LayerKind::DeltaRule(_))).collect();
            metadata.add(format!("{family}.attention.recurrent_layers"), Value::Flags(layers));
        }
    }
}

/// The number of layers of which the last one has attention, if they repeat. Earlier versions of llama.cpp know no list
/// of layers.
fn interval(config: &ModelConfig) -> Option<usize> {
    let interval = config.attention_layers().next()?.0 + 1;
    let fits = |layer: usize| config.attention(layer).is_some() == (layer + 1).is_multiple_of(interval);
    (0..config.num_hidden_layers).all(fits).then_some(interval)
}

fn first(config: &ModelConfig) -> Option<LayerKind> {
    config.layers.iter().find(|layer| !matches!(layer, LayerKind::Attention(_))).copied()
}

/// Refuses sizes and biases that llama.cpp has no place for.
pub(super) fn refuse(config: &ModelConfig) -> Result<(), ExportError> {
    match first(config) {
        Some(LayerKind::ShortConv(conv)) if conv.bias => Err(refused("conv_bias", true, "false")),
        Some(LayerKind::DeltaRule(DeltaRule { key_dim, value_dim, .. })) if key_dim != value_dim => {
            Err(refused("linear_value_head_dim", value_dim, &format!("linear_key_head_dim ({key_dim})")))
        }
        Some(LayerKind::DeltaRule(_)) if config.rms_norm_eps != LENGTH_EPSILON => {
            Err(refused("rms_norm_eps", config.rms_norm_eps, "1e-6, which is the delta rule's own"))
        }
        Some(LayerKind::Mamba(mamba)) => refuse_mamba(config, mamba),
        _ => Ok(()),
    }
}

fn refuse_mamba(config: &ModelConfig, mamba: Mamba) -> Result<(), ExportError> {
    if !mamba.conv_bias {
        return Err(refused("mamba_conv_bias", false, "true"));
    }
    if mamba.proj_bias {
        return Err(refused("mamba_proj_bias", true, "false"));
    }
    if mamba.inner() != 2 * config.hidden_size {
        let expand = mamba.inner() as f64 / config.hidden_size as f64;
        return Err(refused("mamba_expand", expand, "2"));
    }
    Ok(())
}
