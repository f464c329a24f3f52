//! Names of tensors: Hugging Face's, and llama.cpp's.

use std::collections::{BTreeMap, BTreeSet};

use super::{families::Family, parse::Gguf};
use crate::{Architecture, VerifyError};

/// Divisors of the rotary frequencies.
pub(super) const DIVISORS: &str = "rope_freqs.weight";
/// The same in sequences of up to the original length, and in longer ones.
pub(super) const OF_LENGTHS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

/// A name of Hugging Face's and one of llama.cpp's.
type Pair = (&'static str, &'static str);

/// Tensors outside the layers.
const OUTER: [Pair; 7] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
    ("model.embedding_norm.weight", "token_embd_norm.weight"),
    ("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("model.per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
];

const NORMS: [Pair; 2] = [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")];

const NORMS_OF_QWEN3_5: [Pair; 2] =
    [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm")];

/// Norms of families that norm the results of a layer's two blocks.
const NORMS_OF_OUTPUTS: [Pair; 4] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

const ATTENTION: [Pair; 6] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
];

const MLP: [Pair; 4] = [
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
];

/// Attention and MLP of Phi-3, each with one tensor for its inputs.
const OF_PHI3: [Pair; 4] = [
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

const OF_LFM2: [Pair; 14] = [
    ("operator_norm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("conv.conv", "shortconv.conv"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
];

const OF_GRANITE: [Pair; 5] = [
    ("mamba.in_proj", "ssm_in"),
    ("mamba.conv1d", "ssm_conv1d"),
    ("mamba.norm", "ssm_norm"),
    ("mamba.out_proj", "ssm_out"),
    ("shared_mlp.output_linear", "ffn_down"),
];

const OF_QWEN3_5: [Pair; 7] = [
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
];

const OF_GEMMA4: [Pair; 3] = [
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
];

/// Parts of a layer with `.weight` and perhaps `.bias`.
fn parts(family: &str) -> Vec<&'static [Pair]> {
    match family {
        "lfm2" => vec![&OF_LFM2],
        "phi3" => vec![&NORMS, &OF_PHI3],
        "granite" | "granitehybrid" => vec![&NORMS, &ATTENTION, &OF_GRANITE],
        "qwen35" => vec![&NORMS_OF_QWEN3_5, &ATTENTION, &MLP, &OF_QWEN3_5],
        "gemma3" | "olmo2" => vec![&NORMS_OF_OUTPUTS, &ATTENTION, &MLP],
        "gemma4" => vec![&NORMS_OF_OUTPUTS, &ATTENTION, &MLP, &OF_GEMMA4],
        _ => vec![&NORMS, &ATTENTION, &MLP],
    }
}

/// Parts of a layer with whole names.
fn whole(family: &str) -> &'static [Pair] {
    match family {
        "granitehybrid" => &[("mamba.dt_bias", "ssm_dt.bias"), ("mamba.A_log", "ssm_a"), ("mamba.D", "ssm_d")],
        "qwen35" => &[("linear_attn.dt_bias", "ssm_dt.bias"), ("linear_attn.A_log", "ssm_a")],
        "gemma4" => &[("layer_scalar", "layer_output_scale.weight")],
        _ => &[],
    }
}

/// Two tensors whose rows are one of Hugging Face's.
const JOINED: (&str, [&str; 2]) = ("shared_mlp.input_linear", ["ffn_gate", "ffn_up"]);

/// Parts of an expert; a tensor has those of all experts of a layer.
const EXPERT: [Pair; 3] = [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];

/// Where a parameter is.
pub(super) struct Stored {
    /// The tensors whose rows it has, one behind the other.
    pub names: Vec<String>,
    /// The number of the expert that it belongs to, and how many there are.
    pub part: Option<(usize, usize)>,
}

/// Names in the file by Hugging Face's names. A tensor that no name leads to is an error: llama.cpp would refuse it, or
/// pass over it.
pub(super) fn of(
    gguf: &Gguf,
    family: &Family,
    architecture: &Architecture,
) -> Result<BTreeMap<String, Stored>, VerifyError> {
    let mut names: BTreeMap<String, Stored> = BTreeMap::new();
    let mut add = |meant: String, stored: Vec<String>, part: Option<(usize, usize)>| {
        if stored.iter().all(|name| gguf.places().contains_key(name)) {
            names.insert(meant, Stored { names: stored, part });
        }
    };
    for (meant, name) in OUTER {
        add(meant.into(), vec![name.into()], None);
    }
    for index in 0..architecture.layers.len() {
        let (layer, block) = (format!("model.layers.{index}"), format!("blk.{index}"));
        for (meant, name) in parts(family.name).into_iter().flatten() {
            for end in ["weight", "bias"] {
                add(format!("{layer}.{meant}.{end}"), vec![format!("{block}.{name}.{end}")], None);
            }
        }
        for (meant, name) in whole(family.name) {
            add(format!("{layer}.{meant}"), vec![format!("{block}.{name}")], None);
        }
        if family.name.starts_with("granite") {
            let (meant, members) = JOINED;
            let members = members.map(|member| format!("{block}.{member}.weight"));
            add(format!("{layer}.{meant}.weight"), members.into(), None);
        }
        let count = architecture.mixture.map_or(0, |mixture| mixture.count);
        for expert in 0..count {
            for (meant, name) in EXPERT {
                add(
                    format!("{layer}.mlp.experts.{expert}.{meant}.weight"),
                    vec![format!("{block}.{name}.weight")],
                    Some((expert, count)),
                );
            }
        }
    }
    let known: BTreeSet<&str> = names.values().flat_map(|stored| &stored.names).map(String::as_str).collect();
    let is_table = |name: &str| match family.name {
        "phi3" => OF_LENGTHS.contains(&name),
        _ => family.divisors && name == DIVISORS,
    };
    match gguf.places().keys().find(|name| !known.contains(name.as_str()) && !is_table(name)) {
        None => Ok(names),
        Some(name) => Err(VerifyError::file(&gguf.path, format!("has a tensor {name}, which is no part of the model"))),
    }
}
