//! The model in a file, as llama.cpp understands it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    blocks,
    metadata::Value,
    parse::{Gguf, Place},
};
use crate::{
    Activation, Architecture, Layer, Mixer, Mixture, Model, Tensor, VerifyError, Weights, architecture::frequencies,
};

/// Layers of Gemma 3 and SmolLM3 of which the last differs from the others. llama.cpp reads these from no key.
const GEMMA_PATTERN: usize = 6;
const SMOLLM_PATTERN: usize = 4;
/// Base of the frequencies in Gemma 3's layers with a window, which llama.cpp reads from no key either.
const GEMMA_LOCAL_THETA: f64 = 1e4;

/// Opens the model of a file.
pub(super) fn open(gguf: Gguf) -> Result<Model, VerifyError> {
    let tied = !gguf.places().contains_key("output.weight");
    let family = gguf.metadata().text("general.architecture").unwrap_or_default();
    let architecture = Reading { gguf: &gguf, family }.architecture(tied)?;
    let names = names(&gguf, family, &architecture)?;
    Ok(Model::new(architecture, Box::new(File { gguf, names })))
}

struct Reading<'a> {
    gguf: &'a Gguf,
    /// `general.architecture`.
    family: &'a str,
}

/// Divisors of the frequencies, a tensor that llama.cpp reads for Llama alone.
const DIVISORS: &str = "rope_freqs.weight";

impl Reading<'_> {
    fn wrong(&self, message: impl std::fmt::Display) -> VerifyError {
        VerifyError::file(&self.gguf.path, message)
    }

    fn architecture(&self, tied: bool) -> Result<Architecture, VerifyError> {
        let (metadata, family) = (self.gguf.metadata(), self.family);
        if !["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "smollm3", "lfm2"].contains(&family) {
            return Err(self.wrong(format!("`general.architecture` is {family:?}, which is not read here")));
        }
        let (gemma, lfm2) = (family == "gemma3", family == "lfm2");
        let size = |key: &str| {
            let key = format!("{family}.{key}");
            let found = metadata.size(&key).filter(|size| (1..=1 << 31).contains(size));
            found.ok_or_else(|| self.wrong(format!("`{key}` is no size")))
        };
        let epsilon = format!("{family}.attention.layer_norm_rms_epsilon");
        let epsilon = metadata.number(&epsilon).ok_or_else(|| self.wrong(format!("`{epsilon}` is missing")))?;
        let (hidden_size, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let head_dim = size("attention.key_length")?;
        if size("attention.value_length")? != head_dim || size("rope.dimension_count")? != head_dim {
            return Err(self.wrong("its keys, values and positions have other widths"));
        }
        let count = size("block_count")?;
        let of_layers = if lfm2 { Some(self.heads_of_layers(count)?) } else { None };
        let kv_heads = match &of_layers {
            Some(heads) => heads.iter().copied().max().filter(|heads| *heads > 0).unwrap_or(1),
            None => size("attention.head_count_kv")?,
        };
        if !heads.is_multiple_of(kv_heads) || head_dim % 2 == 1 || count > 1024 {
            return Err(self.wrong("its heads, their width or its layers are no sizes of a model"));
        }
        // llama.cpp knows the largest Gemma 3 by its number of layers; its scores are scaled otherwise.
        let width = if gemma && count == 62 { hidden_size / heads } else { head_dim };
        Ok(Architecture {
            hidden_size,
            intermediate_size: size("feed_forward_length")?,
            mixture: match family {
                "qwen3moe" => Some(Mixture {
                    count: size("expert_count")
                        .ok()
                        .filter(|count| *count <= 1024)
                        .ok_or_else(|| self.wrong("it has no number of experts"))?,
                    per_token: size("expert_used_count")?,
                    width: size("expert_feed_forward_length")?,
                    // llama.cpp does so in this family.
                    normalised: true,
                }),
                _ => None,
            },
            vocab_size: self.vocabulary()?,
            positions: size("context_length")?,
            heads,
            kv_heads,
            head_dim,
            layers: self.layers(count, head_dim, of_layers.as_deref())?,
            attention_scale: (width as f64).sqrt().recip(),
            epsilon,
            embedding_scale: if gemma { (hidden_size as f64).sqrt() } else { 1.0 },
            residual_scale: 1.0,
            logit_divisor: 1.0,
            turn_scale: 1.0,
            beyond: None,
            growth: None,
            head_norms: gemma || lfm2 || family.starts_with("qwen3"),
            width_norms: false,
            gated: false,
            input_norms: true,
            output_norms: gemma,
            value_norms: false,
            logit_cap: None,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            tied,
            norm_offset: 0.0,
            interleaved: ["llama", "smollm3"].contains(&family),
        })
    }

    /// The number of tokens, of which the tokenizer has a text and the embedding a row for each.
    fn vocabulary(&self) -> Result<usize, VerifyError> {
        let texts = self.gguf.metadata().list("tokenizer.ggml.tokens").map_or(0, <[_]>::len);
        let rows = self.gguf.places().get("token_embd.weight").and_then(|place| place.sizes.get(1)).copied();
        if rows != Some(texts as u64) {
            let message = format!("the tokenizer has {texts} tokens, token_embd.weight has {rows:?} rows");
            return Err(self.wrong(message));
        }
        Ok(texts)
    }

    /// Heads of keys and values of each layer: none where it is a short convolution.
    fn heads_of_layers(&self, count: usize) -> Result<Vec<usize>, VerifyError> {
        let key = format!("{}.attention.head_count_kv", self.family);
        let number = |value: &Value| match value {
            Value::Unsigned(n) => usize::try_from(*n).ok(),
            Value::Signed(n) => usize::try_from(*n).ok(),
            _ => None,
        };
        let list = self.gguf.metadata().list(&key).filter(|list| list.len() == count);
        let heads: Option<Vec<usize>> = list.and_then(|list| list.iter().map(number).collect());
        let heads = heads.ok_or_else(|| self.wrong(format!("`{key}` has no number for each of {count} layers")))?;
        let mut attending = heads.iter().filter(|heads| **heads > 0);
        let first = attending.next();
        if attending.any(|heads| Some(heads) != first) {
            return Err(self.wrong(format!("`{key}` has several numbers of heads")));
        }
        Ok(heads)
    }

    fn layers(&self, count: usize, head_dim: usize, heads: Option<&[usize]>) -> Result<Vec<Layer>, VerifyError> {
        let (metadata, family) = (self.gguf.metadata(), self.family);
        let key = |name: &str| format!("{family}.rope.{name}");
        let theta = metadata.number(&key("freq_base")).unwrap_or(1e4);
        let mut global = frequencies(theta, head_dim);
        match metadata.text(&key("scaling.type")) {
            None | Some("none") => {}
            Some("linear") => {
                let factor = metadata.number(&key("scaling.factor")).filter(|factor| *factor > 0.0);
                let factor = factor.ok_or_else(|| self.wrong("its positions are scaled by no factor"))?;
                global.iter_mut().for_each(|frequency| *frequency /= factor);
            }
            Some(other) => return Err(self.wrong(format!("its positions are scaled as {other:?}"))),
        }
        if let Some(place) = self.gguf.places().get(DIVISORS).filter(|_| family == "llama") {
            let divisors = blocks::read(self.gguf, DIVISORS, place)?.values;
            if divisors.len() != global.len() {
                return Err(self.wrong(format!("{DIVISORS} has {} values", divisors.len())));
            }
            global.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= f64::from(divisor));
        }
        let window = metadata.size(&format!("{family}.attention.sliding_window"));
        let local = frequencies(GEMMA_LOCAL_THETA, head_dim);
        let kernel = metadata.size("lfm2.shortconv.l_cache").filter(|kernel| *kernel <= 64).unwrap_or(0);
        let layer = |index: usize| match family {
            _ if heads.is_some_and(|heads| heads[index] == 0) => Layer::of(Mixer::ShortConv(kernel)),
            "gemma3" if !(index + 1).is_multiple_of(GEMMA_PATTERN) => Layer::attention(Some(local.clone()), window),
            "smollm3" if (index + 1).is_multiple_of(SMOLLM_PATTERN) => Layer::attention(None, None),
            _ => Layer::attention(Some(global.clone()), None),
        };
        Ok((0..count).map(layer).collect())
    }
}

/// Tensors outside the layers: Hugging Face's names and llama.cpp's.
const OUTER: [(&str, &str); 4] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
    ("model.embedding_norm.weight", "token_embd_norm.weight"),
];

/// Parts of a layer: Hugging Face's names and llama.cpp's.
const INNER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
];

/// Parts of an expert likewise; a tensor has those of all experts of a layer.
const EXPERT: [(&str, &str); 3] =
    [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];

/// Where a parameter is.
struct Stored {
    name: String,
    /// The number of the expert that it belongs to, and how many there are.
    part: Option<(usize, usize)>,
}
/// Parts of a layer of LFM2, likewise.
const OF_LFM2: [(&str, &str); 14] = [
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

/// The norms that stand in other places with norms of outputs.
fn norms(of_outputs: bool) -> &'static [(&'static str, &'static str)] {
    if of_outputs {
        &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ]
    } else {
        &[("post_attention_layernorm", "ffn_norm")]
    }
}

/// Names in the file by Hugging Face's names. A tensor that no name leads to is an error: llama.cpp would refuse it, or
/// pass over it.
fn names(gguf: &Gguf, family: &str, architecture: &Architecture) -> Result<BTreeMap<String, Stored>, VerifyError> {
    let mut names: BTreeMap<String, Stored> = BTreeMap::new();
    let mut add = |meant: String, name: String, part: Option<(usize, usize)>| {
        if gguf.places().contains_key(&name) {
            names.insert(meant, Stored { name, part });
        }
    };
    for (meant, name) in OUTER {
        add(meant.into(), name.into(), None);
    }
    for index in 0..architecture.layers.len() {
        let usual = INNER.iter().chain(norms(architecture.output_norms));
        let parts: Vec<_> = if family == "lfm2" { OF_LFM2.iter().collect() } else { usual.collect() };
        for (meant, name) in parts {
            for end in ["weight", "bias"] {
                add(format!("model.layers.{index}.{meant}.{end}"), format!("blk.{index}.{name}.{end}"), None);
            }
        }
        let count = architecture.mixture.map_or(0, |mixture| mixture.count);
        for expert in 0..count {
            for (meant, name) in EXPERT {
                add(
                    format!("model.layers.{index}.mlp.experts.{expert}.{meant}.weight"),
                    format!("blk.{index}.{name}.weight"),
                    Some((expert, count)),
                );
            }
        }
    }
    let known: BTreeSet<&String> = names.values().map(|stored| &stored.name).collect();
    let used = |name: &String| known.contains(name) || family == "llama" && name == DIVISORS;
    match gguf.places().keys().find(|name| !used(name)) {
        None => Ok(names),
        Some(name) => Err(VerifyError::file(&gguf.path, format!("has a tensor {name}, which is no part of the model"))),
    }
}

/// The tensors of a file.
struct File {
    gguf: Gguf,
    /// Names in the file by Hugging Face's.
    names: BTreeMap<String, Stored>,
}

impl Weights for File {
    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Tensor, VerifyError> {
        let missing = || VerifyError::Differs(format!("it has no tensor {name}"));
        let stored = self.names.get(name).ok_or_else(missing)?;
        let place: &Place = &self.gguf.places()[&stored.name];
        let mut tensor = match stored.part {
            None => blocks::read(&self.gguf, &stored.name, place)?,
            Some((part, parts)) => {
                let place = blocks::part(place, part, parts).ok_or_else(|| {
                    let message = format!("{} has not the shape of {parts} experts", stored.name);
                    VerifyError::Differs(message)
                })?;
                blocks::read(&self.gguf, &stored.name, &place)?
            }
        };
        // A convolution of each channel by itself is a matrix here.
        if stored.name.ends_with(".shortconv.conv.weight") && tensor.shape.len() == 2 {
            tensor.shape.insert(1, 1);
        }
        Ok(tensor)
    }
}
