//! llama.cpp's names of tensors.

use shared::{Architecture, Experts, ModelConfig, PerLayerInput};

/// A tensor that a parameter becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub name: String,
    /// Which half of the rows it has, of a parameter that becomes two tensors.
    pub half: Option<usize>,
}

/// The tensors of a parameter.
pub(super) fn of(source: &str, config: &ModelConfig) -> Vec<Named> {
    let whole = |name: String| vec![Named { name, half: None }];
    let Some(inner) = source.strip_prefix("model.layers.") else { return whole(outer(source).into()) };
    let (layer, part) = inner.split_once('.').expect("a parameter of a layer has a name within it");
    if part == "shared_mlp.input_linear.weight" {
        // Granite has gate and up in one tensor.
        let of = |(half, name)| Named { name: format!("blk.{layer}.{name}.weight"), half: Some(half) };
        return ["ffn_gate", "ffn_up"].into_iter().enumerate().map(of).collect();
    }
    whole(match within(part) {
        Some(name) => format!("blk.{layer}.{name}"),
        None => {
            let (part, end) = part.rsplit_once('.').expect("other parameters end in weight or bias");
            format!("blk.{layer}.{}.{end}", module(part, config))
        }
    })
}

fn outer(source: &str) -> &'static str {
    match source {
        "model.embed_tokens.weight" => "token_embd.weight",
        PerLayerInput::TABLE => "per_layer_token_embd.weight",
        "model.per_layer_model_projection.weight" => "per_layer_model_proj.weight",
        "model.per_layer_projection_norm.weight" => "per_layer_proj_norm.weight",
        "model.norm.weight" => "output_norm.weight",
        // llama.cpp's name for what it uses as the output norm of LFM2.
        "model.embedding_norm.weight" => "token_embd_norm.weight",
        _ => "output.weight",
    }
}

/// The name of what is no weight or bias of a module.
fn within(part: &str) -> Option<&'static str> {
    match part {
        "linear_attn.dt_bias" | "mamba.dt_bias" => Some("ssm_dt.bias"),
        "linear_attn.A_log" | "mamba.A_log" => Some("ssm_a"),
        "mamba.D" => Some("ssm_d"),
        ModelConfig::LAYER_SCALAR => Some("layer_output_scale.weight"),
        _ => None,
    }
}

fn module(part: &str, config: &ModelConfig) -> &'static str {
    let is_qwen3_5 = config.architecture == Architecture::Qwen3_5;
    match part {
        "input_layernorm" | "operator_norm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.qkv_proj" | "linear_attn.in_proj_qkv" => "attn_qkv",
        "self_attn.o_proj" | "self_attn.out_proj" => "attn_output",
        "self_attn.q_norm" | "self_attn.q_layernorm" => "attn_q_norm",
        "self_attn.k_norm" | "self_attn.k_layernorm" => "attn_k_norm",
        "linear_attn.in_proj_z" => "attn_gate",
        "linear_attn.in_proj_b" => "ssm_beta",
        "linear_attn.in_proj_a" => "ssm_alpha",
        "mamba.in_proj" => "ssm_in",
        "linear_attn.conv1d" | "mamba.conv1d" => "ssm_conv1d",
        "linear_attn.norm" | "mamba.norm" => "ssm_norm",
        "linear_attn.out_proj" | "mamba.out_proj" => "ssm_out",
        "conv.conv" => "shortconv.conv",
        "conv.in_proj" => "shortconv.in_proj",
        "conv.out_proj" => "shortconv.out_proj",
        "post_attention_layernorm" if config.output_norms() || is_qwen3_5 => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" | "ffn_norm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate_proj" | "feed_forward.w1" => "ffn_gate",
        // Phi's gate and up are one tensor in llama.cpp too.
        "mlp.up_proj" | "feed_forward.w3" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" | "feed_forward.w2" | "shared_mlp.output_linear" => "ffn_down",
        Experts::ROUTER => "ffn_gate_inp",
        "mlp.experts.0.gate_proj" => "ffn_gate_exps",
        "mlp.experts.0.up_proj" => "ffn_up_exps",
        "mlp.experts.0.down_proj" => "ffn_down_exps",
        PerLayerInput::GATE => "inp_gate",
        PerLayerInput::BACK => "proj",
        PerLayerInput::OUTPUT_NORM => "post_norm",
        other => unreachable!("{other} is no part of a layer of `ModelConfig::parameters`"),
    }
}
