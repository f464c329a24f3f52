//! Names, types and layouts of the tensors.

use std::borrow::Cow;

use shared::{Architecture, Dtype, Experts, ModelConfig};

use super::{GgufType, quantise};
use crate::{ExportError, values};

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    /// Its Hugging Face name; several, whose values follow each other, for the experts of a layer, and none for the
    /// table of divisors.
    pub sources: Vec<String>,
    /// llama.cpp's name.
    pub name: String,
    /// Row-major, as Hugging Face has it; the file states the reverse.
    pub shape: Vec<usize>,
    pub kind: GgufType,
    layout: Layout,
}

/// What is done to the values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Nothing.
    Same,
    /// The rows of each head are reordered, for positions that turn neighbouring values: row `half * d/2 + pair`
    /// becomes row `2 pair + half`.
    Paired { head_dim: usize },
    /// 1 is added: llama.cpp's norms multiply with what is stored.
    PlusOne,
}

impl Tensor {
    /// Bytes of its values.
    pub fn length(&self) -> u64 {
        let (values, bytes) = self.kind.block();
        self.shape.iter().product::<usize>() as u64 / values as u64 * bytes as u64
    }

    /// The bytes in the file of the values of one source.
    pub fn encode(&self, values: &[f32]) -> Result<Vec<u8>, ExportError> {
        let values = self.laid_out(values);
        let dtype = match self.kind {
            GgufType::F32 => Dtype::Fp32,
            GgufType::F16 => Dtype::Fp16,
            GgufType::Bf16 => Dtype::Bf16,
            GgufType::Q8_0 => return Ok(quantise::q8_0(&values)),
            GgufType::Q4_0 => return Ok(quantise::q4_0(&values)),
        };
        values::encode(&self.name, &values, dtype).map(Cow::into_owned)
    }

    fn laid_out<'v>(&self, values: &'v [f32]) -> Cow<'v, [f32]> {
        match self.layout {
            Layout::Same => values.into(),
            Layout::PlusOne => values.iter().map(|value| value + 1.0).collect(),
            Layout::Paired { head_dim } => {
                let columns = self.shape.get(1).copied().unwrap_or(1);
                let rows: Vec<&[f32]> = values.chunks_exact(columns).collect();
                let of_head = |head: &[&[f32]]| -> Vec<f32> {
                    let (first, second) = head.split_at(head_dim / 2);
                    first.iter().zip(second).flat_map(|(a, b)| [*a, *b]).flatten().copied().collect()
                };
                rows.chunks_exact(head_dim).flat_map(of_head).collect()
            }
        }
    }
}

/// The tensors of a model, in its order; the divisors of rotary frequencies come first, where a scaling needs them.
pub(super) fn of(config: &ModelConfig, kind: GgufType) -> Vec<Tensor> {
    let divisors = super::hyperparameters::divisors(config).map(|divisors| Tensor {
        sources: Vec::new(),
        name: "rope_freqs.weight".into(),
        shape: vec![divisors.len()],
        kind: GgufType::F32,
        layout: Layout::Same,
    });
    let tensor = |(source, mut shape): (String, Vec<usize>)| {
        let mut sources = vec![source.clone()];
        if let Some(experts) = config.experts.as_ref().filter(|_| Experts::number_in(&source).is_some()) {
            let of = |expert| source.replacen(&Experts::block(0), &Experts::block(expert), 1);
            sources = (0..experts.count).map(of).collect();
            shape.insert(0, experts.count);
        }
        let name = name_of(&source, config.output_norms());
        // A convolution of each channel by itself is a matrix in llama.cpp.
        if let [_, 1, _] = shape[..] {
            shape.remove(1);
        }
        let kind = kind_of(&name, &shape, kind, config.tie_word_embeddings);
        Tensor { layout: layout_of(&source, config), name, kind, shape, sources }
    };
    // The first expert of a layer stands for all of them.
    let parameters = config.parameters().into_iter().filter(|(name, _)| Experts::number_in(name).unwrap_or(0) == 0);
    divisors.into_iter().chain(parameters.map(tensor)).collect()
}

/// llama.cpp's name.
fn name_of(source: &str, output_norms: bool) -> String {
    let Some(inner) = source.strip_prefix("model.layers.") else {
        return match source {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            // llama.cpp's name for what it uses as the output norm of LFM2.
            "model.embedding_norm.weight" => "token_embd_norm.weight",
            _ => "output.weight",
        }
        .into();
    };
    let (layer, part) = inner.split_once('.').expect("a parameter of a layer has a name within it");
    let (part, end) = part.rsplit_once('.').expect("parameters end in weight or bias");
    let name = match part {
        "input_layernorm" | "operator_norm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" | "self_attn.out_proj" => "attn_output",
        "self_attn.q_norm" | "self_attn.q_layernorm" => "attn_q_norm",
        "self_attn.k_norm" | "self_attn.k_layernorm" => "attn_k_norm",
        "conv.conv" => "shortconv.conv",
        "conv.in_proj" => "shortconv.in_proj",
        "conv.out_proj" => "shortconv.out_proj",
        "post_attention_layernorm" if output_norms => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" | "ffn_norm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate_proj" | "feed_forward.w1" => "ffn_gate",
        "mlp.up_proj" | "feed_forward.w3" => "ffn_up",
        "mlp.down_proj" | "feed_forward.w2" => "ffn_down",
        Experts::ROUTER => "ffn_gate_inp",
        "mlp.experts.0.gate_proj" => "ffn_gate_exps",
        "mlp.experts.0.up_proj" => "ffn_up_exps",
        "mlp.experts.0.down_proj" => "ffn_down_exps",
        other => unreachable!("{other} is no part of a layer of `ModelConfig::parameters`"),
    };
    format!("blk.{layer}.{name}.{end}")
}

fn kind_of(name: &str, shape: &[usize], kind: GgufType, tied: bool) -> GgufType {
    let is_output = name == "output.weight" || tied && name == "token_embd.weight";
    let kind = if is_output && kind == GgufType::Q4_0 { GgufType::Q8_0 } else { kind };
    match shape {
        [_] => GgufType::F32,
        // llama.cpp routes in fp32 whatever the rest is.
        _ if name.ends_with(".ffn_gate_inp.weight") => GgufType::F32,
        // llama.cpp computes convolutions in fp32 alone.
        _ if name.ends_with(".shortconv.conv.weight") => GgufType::F32,
        [.., columns] if !columns.is_multiple_of(kind.block().0) => GgufType::F16,
        _ => kind,
    }
}

fn layout_of(source: &str, config: &ModelConfig) -> Layout {
    let paired = matches!(config.architecture, Architecture::Llama | Architecture::SmolLm3);
    if paired && [".q_proj.", ".k_proj."].iter().any(|part| source.contains(part)) {
        Layout::Paired { head_dim: config.head_dim }
    } else if config.norm_offset() != 0.0 && source.ends_with("norm.weight") {
        Layout::PlusOne
    } else {
        Layout::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> ModelConfig {
        let path = harness::golden_model_dir(name).join("config.json");
        ModelConfig::from_json(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn kind(config: &ModelConfig, kind: GgufType, name: &str) -> GgufType {
        of(config, kind).into_iter().find(|tensor| tensor.name == name).unwrap().kind
    }

    #[test]
    fn rows_of_a_head_become_pairs_and_norms_count_from_one() {
        let tensor = |layout, shape: &[usize]| Tensor {
            sources: Vec::new(),
            name: "t".into(),
            shape: shape.to_vec(),
            kind: GgufType::F32,
            layout,
        };
        let rows: Vec<f32> = (0..16).map(|n| n as f32).collect();
        let paired = tensor(Layout::Paired { head_dim: 4 }, &[8, 2]);
        let expected = [0., 1., 4., 5., 2., 3., 6., 7., 8., 9., 12., 13., 10., 11., 14., 15.];
        assert_eq!(*paired.laid_out(&rows), expected);
        let bias = tensor(Layout::Paired { head_dim: 4 }, &[4]);
        assert_eq!(*bias.laid_out(&[0., 1., 2., 3.]), [0., 2., 1., 3.]);
        assert_eq!(*tensor(Layout::PlusOne, &[2]).laid_out(&[0.25, -1.0]), [1.25, 0.0]);
    }

    #[test]
    fn matrices_alone_are_rounded_and_the_output_layer_less() {
        let llama = config("llama");
        for name in ["output_norm.weight", "blk.0.ffn_norm.weight"] {
            assert_eq!(kind(&llama, GgufType::Q4_0, name), GgufType::F32);
        }
        assert_eq!(kind(&config("qwen2"), GgufType::F16, "blk.1.attn_q.bias"), GgufType::F32);
        assert_eq!(kind(&llama, GgufType::Q4_0, "blk.1.ffn_up.weight"), GgufType::Q4_0);
        assert_eq!(kind(&llama, GgufType::Q4_0, "token_embd.weight"), GgufType::Q4_0);
        assert_eq!(kind(&llama, GgufType::Q4_0, "output.weight"), GgufType::Q8_0);
        assert_eq!(kind(&config("qwen2"), GgufType::Q4_0, "token_embd.weight"), GgufType::Q8_0, "it is tied");
        let odd = ModelConfig { intermediate_size: 100, ..llama };
        assert_eq!(kind(&odd, GgufType::Q8_0, "blk.0.ffn_down.weight"), GgufType::F16);
        assert_eq!(kind(&odd, GgufType::Q8_0, "blk.0.ffn_up.weight"), GgufType::Q8_0);
    }

    #[test]
    fn a_convolution_is_a_matrix_in_fp32() {
        let lfm2 = ModelConfig::from_json(
            r#"{"model_type": "lfm2", "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64,
            "conv_L_cache": 3, "layer_types": ["conv", "full_attention"]}"#,
        )
        .unwrap();
        let of = |name: &str| of(&lfm2, GgufType::Q8_0).into_iter().find(|tensor| tensor.name == name).unwrap();
        let conv = of("blk.0.shortconv.conv.weight");
        assert_eq!((conv.shape, conv.kind), (vec![32, 3], GgufType::F32));
        assert_eq!(of("blk.0.shortconv.in_proj.weight").kind, GgufType::Q8_0);
        assert_eq!(of("token_embd_norm.weight").sources, ["model.embedding_norm.weight"]);
    }

    #[test]
    fn every_parameter_has_a_name_of_its_own_but_for_experts_who_share_a_tensor() {
        let folders = harness::golden_models_in("models").into_iter().chain(["qwen3_moe".to_owned()]);
        for family in folders.filter(|family| harness::golden_model_dir(family).is_dir()) {
            let config = config(&family);
            let tensors = of(&config, GgufType::F32);
            let mut names: Vec<&String> = tensors.iter().map(|tensor| &tensor.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{family}");
            let mut sources: Vec<&String> = tensors.iter().flat_map(|tensor| &tensor.sources).collect();
            sources.sort();
            let mut parameters = config.parameters();
            parameters.sort();
            assert!(sources.into_iter().eq(parameters.iter().map(|(name, _)| name)), "{family}: no divisors");
        }
    }

    #[test]
    fn experts_of_a_layer_follow_each_other_in_one_tensor() {
        let tensors = of(&config("qwen3_moe"), GgufType::F32);
        let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let down = find("blk.1.ffn_down_exps.weight");
        assert_eq!((&down.shape[..], down.sources.len()), (&[8, 32, 16][..], 8));
        assert_eq!(down.sources[7], "model.layers.1.mlp.experts.7.down_proj.weight");
        let router = |kind| of(&config("qwen3_moe"), kind).into_iter().find(|t| t.name == "blk.0.ffn_gate_inp.weight");
        let router = router(GgufType::F16).unwrap();
        assert_eq!((&router.shape[..], router.kind), (&[8, 32][..], GgufType::F32));
    }
}
