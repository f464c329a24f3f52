//! The tensors of a file, and their types.

use std::borrow::Cow;

use shared::{Dtype, Experts, LayerKind, ModelConfig};

use super::{GgufType, layout::Layout, names, positions, quantise};
use crate::{ExportError, values};

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tensor {
    pub source: Source,
    /// llama.cpp's name.
    pub name: String,
    /// Row-major, as Hugging Face has it; the file states the reverse.
    pub shape: Vec<usize>,
    pub kind: GgufType,
    /// What is done to the values of each parameter.
    layout: Option<Layout>,
}

/// Where the values of a tensor come from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    /// Parameters by their Hugging Face names, whose values follow each other; several for the experts of a layer.
    Parameters(Vec<String>),
    /// The first or second half of the rows of a parameter.
    Half(String, usize),
    /// Numbers that follow from the configuration.
    Numbers(Vec<f32>),
}

impl Tensor {
    /// Numbers that follow from the configuration.
    fn table((name, numbers): (&str, Vec<f32>)) -> Self {
        let (name, shape) = (name.to_owned(), vec![numbers.len()]);
        Self { source: Source::Numbers(numbers), name, shape, kind: GgufType::F32, layout: None }
    }

    /// Bytes of its values.
    pub fn length(&self) -> u64 {
        let (values, bytes) = self.kind.block();
        self.shape.iter().product::<usize>() as u64 / values as u64 * bytes as u64
    }

    /// Values of each parameter that it comes from.
    pub fn needed(&self) -> usize {
        let values = self.shape.iter().product::<usize>();
        match &self.source {
            Source::Parameters(names) => values / names.len(),
            Source::Half(..) => 2 * values,
            Source::Numbers(_) => values,
        }
    }

    /// The bytes in the file of the values of one parameter, or of the numbers.
    pub fn encode(&self, values: &[f32]) -> Result<Vec<u8>, ExportError> {
        let values = match self.source {
            Source::Half(_, half) => &values[half * values.len() / 2..(half + 1) * values.len() / 2],
            _ => values,
        };
        let values = match self.layout {
            Some(layout) => layout.applied(values, self.columns()),
            None => values.into(),
        };
        let dtype = match self.kind {
            GgufType::F32 => Dtype::Fp32,
            GgufType::F16 => Dtype::Fp16,
            GgufType::Bf16 => Dtype::Bf16,
            GgufType::Q8_0 => return Ok(quantise::q8_0(&values)),
            GgufType::Q4_0 => return Ok(quantise::q4_0(&values)),
        };
        values::encode(&self.name, &values, dtype).map(Cow::into_owned)
    }

    /// Values of a row.
    fn columns(&self) -> usize {
        if self.shape.len() == 1 { 1 } else { self.shape[self.shape.len() - 1] }
    }
}

/// The tensors of a model, in its order; tables of divisors of rotary frequencies come first, where there are some.
pub(super) fn of(config: &ModelConfig, kind: GgufType) -> Vec<Tensor> {
    // The first expert of a layer stands for all of them.
    let parameters = config.parameters().into_iter().filter(|(name, _)| Experts::number_in(name).unwrap_or(0) == 0);
    let tables = positions::divisors(config).into_iter().map(Tensor::table);
    tables.chain(parameters.flat_map(|(source, shape)| of_parameter(config, kind, &source, &shape))).collect()
}

fn of_parameter(config: &ModelConfig, kind: GgufType, source: &str, shape: &[usize]) -> Vec<Tensor> {
    let mut sources = vec![source.to_owned()];
    let mut shape = shape_of(source, shape, config);
    if let Some(experts) = config.experts.as_ref().filter(|_| Experts::number_in(source).is_some()) {
        let of = |expert| source.replacen(&Experts::block(0), &Experts::block(expert), 1);
        sources = (0..experts.count).map(of).collect();
        shape.insert(0, experts.count);
    }
    let tensor = |named: names::Named| {
        let mut shape = shape.clone();
        let source = match named.half {
            None => Source::Parameters(sources.clone()),
            Some(half) => {
                shape[0] /= 2;
                Source::Half(source.to_owned(), half)
            }
        };
        let kind = kind_of(&named.name, &shape, kind, config.tie_word_embeddings);
        Tensor { source, layout: Some(Layout::of(&sources[0], config)), name: named.name, kind, shape }
    };
    names::of(source, config).into_iter().map(tensor).collect()
}

/// The shape that llama.cpp has.
fn shape_of(source: &str, shape: &[usize], config: &ModelConfig) -> Vec<usize> {
    let groups = config.layers.iter().find_map(|layer| match layer {
        LayerKind::Mamba(mamba) => Some(mamba.groups),
        LayerKind::Attention(_) | LayerKind::ShortConv(_) | LayerKind::DeltaRule(_) => None,
    });
    match (shape, groups) {
        // A convolution of each channel by itself is a matrix.
        (&[channels, 1, kernel], _) => vec![channels, kernel],
        // The norm of a state space has a row for each group, and a number of each head is a matrix of one column.
        (&[width], Some(groups)) if source.ends_with("mamba.norm.weight") => vec![groups, width / groups],
        (&[heads], _) if ["mamba.A_log", "mamba.D"].iter().any(|end| source.ends_with(end)) => vec![heads, 1],
        _ => shape.to_vec(),
    }
}

/// Matrices that llama.cpp computes with in fp32 alone: its router, convolutions, and what state spaces have for heads.
const EXACT: [&str; 6] =
    [".ffn_gate_inp.weight", ".shortconv.conv.weight", ".ssm_conv1d.weight", ".ssm_norm.weight", ".ssm_a", ".ssm_d"];

fn kind_of(name: &str, shape: &[usize], kind: GgufType, tied: bool) -> GgufType {
    let is_output = name == "output.weight" || tied && name == "token_embd.weight";
    let kind = if is_output && kind == GgufType::Q4_0 { GgufType::Q8_0 } else { kind };
    match shape {
        [_] => GgufType::F32,
        _ if EXACT.iter().any(|end| name.ends_with(end)) => GgufType::F32,
        [.., columns] if !columns.is_multiple_of(kind.block().0) => GgufType::F16,
        _ => kind,
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
        assert_eq!(parameters(&of("token_embd_norm.weight")), ["model.embedding_norm.weight"]);
    }

    /// The parameters whose values a tensor has.
    fn parameters(tensor: &Tensor) -> Vec<String> {
        match &tensor.source {
            Source::Parameters(names) => names.clone(),
            // The first half stands for both.
            Source::Half(name, half) => vec![name.clone(); 1 - half],
            Source::Numbers(_) => Vec::new(),
        }
    }

    #[test]
    fn every_parameter_has_a_name_of_its_own_but_for_experts_who_share_a_tensor() {
        for family in harness::golden_models().into_iter().filter(|family| family != "lfm3") {
            let config = config(&family);
            let tensors = of(&config, GgufType::F32);
            let mut names: Vec<&String> = tensors.iter().map(|tensor| &tensor.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{family}");
            let mut sources: Vec<String> = tensors.iter().flat_map(parameters).collect();
            sources.sort();
            let mut expected: Vec<String> = config.parameters().into_iter().map(|(name, _)| name).collect();
            expected.sort();
            assert_eq!(sources, expected, "{family}");
        }
    }

    #[test]
    fn what_state_spaces_have_for_heads_is_a_matrix_in_fp32_and_gate_and_up_are_apart() {
        let find = |name: &str| {
            let tensors = of(&config("granite4_h"), GgufType::Q8_0);
            tensors.into_iter().find(|tensor| tensor.name == name).unwrap()
        };
        for (name, shape) in [
            ("blk.0.ssm_a", vec![4, 1]),
            ("blk.0.ssm_d", vec![4, 1]),
            ("blk.0.ssm_dt.bias", vec![4]),
            ("blk.0.ssm_conv1d.weight", vec![96, 4]),
            ("blk.0.ssm_norm.weight", vec![1, 64]),
        ] {
            let tensor = find(name);
            assert_eq!((tensor.shape, tensor.kind), (shape, GgufType::F32), "{name}");
        }
        let (gate, up) = (find("blk.1.ffn_gate.weight"), find("blk.1.ffn_up.weight"));
        assert_eq!((gate.shape.as_slice(), gate.needed(), &gate.shape), (&[48, 32][..], 2 * 48 * 32, &up.shape));
        let values: Vec<f32> = (0..gate.needed()).map(|n| n as f32).collect();
        let of = |tensor: Tensor| Tensor { kind: GgufType::F32, ..tensor }.encode(&values).unwrap();
        let (gate, up) = (of(gate), of(up));
        assert_eq!((&gate[4..8], &up[..4]), (&1_f32.to_le_bytes()[..], &(48.0 * 32.0_f32).to_le_bytes()[..]));
    }

    #[test]
    fn experts_of_a_layer_follow_each_other_in_one_tensor() {
        let tensors = of(&config("qwen3_moe"), GgufType::F32);
        let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let down = find("blk.1.ffn_down_exps.weight");
        assert_eq!((&down.shape[..], parameters(down).len()), (&[8, 32, 16][..], 8));
        assert_eq!(parameters(down)[7], "model.layers.1.mlp.experts.7.down_proj.weight");
        let router = |kind| of(&config("qwen3_moe"), kind).into_iter().find(|t| t.name == "blk.0.ffn_gate_inp.weight");
        let router = router(GgufType::F16).unwrap();
        assert_eq!((&router.shape[..], router.kind), (&[8, 32][..], GgufType::F32));
    }
}
