//! The model in a file, as llama.cpp understands it.

use std::fmt::Display;

use super::{families::Family, metadata::Value, names, parse::Gguf, weights::File};
use crate::{Architecture, Mixture, Model, VerifyError};

/// What the delta rule adds before it divides by a length: llama.cpp takes the epsilon of the norms for it.
const LENGTH_EPSILON: f64 = 1e-6;

/// Opens the model of a file.
pub(super) fn open(gguf: Gguf) -> Result<Model, VerifyError> {
    let name = gguf.metadata().text("general.architecture").unwrap_or_default();
    let family = Family::of(name).ok_or_else(|| {
        VerifyError::file(&gguf.path, format!("`general.architecture` is {name:?}, which is not read here"))
    })?;
    let architecture = Reading { gguf: &gguf, family }.architecture()?;
    let names = names::of(&gguf, family, &architecture)?;
    Ok(Model::new(architecture, Box::new(File { gguf, names })))
}

/// A file that is read, and the family that it names.
pub(super) struct Reading<'a> {
    pub gguf: &'a Gguf,
    pub family: &'static Family,
}

/// Heads of attention.
pub(super) struct Heads {
    queries: usize,
    keys: usize,
    /// Width of a head.
    pub width: usize,
    /// Width of a head in layers without a window, where it is another one.
    pub wide: Option<usize>,
}

impl Reading<'_> {
    pub(super) fn wrong(&self, message: impl Display) -> VerifyError {
        VerifyError::file(&self.gguf.path, message)
    }

    /// A key of the family.
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name)
    }

    pub(super) fn optional_size(&self, name: &str) -> Result<Option<usize>, VerifyError> {
        let key = self.key(name);
        let Some(value) = self.gguf.metadata().get(&key) else { return Ok(None) };
        // 0 says that there is none.
        if as_size(value) == Some(0) {
            return Ok(None);
        }
        let size = as_size(value).filter(|size| *size <= 1 << 31);
        size.map(Some).ok_or_else(|| self.wrong(format!("`{key}` is no size")))
    }

    pub(super) fn size(&self, name: &str) -> Result<usize, VerifyError> {
        self.optional_size(name)?.ok_or_else(|| self.wrong(format!("`{}` is no size", self.key(name))))
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.gguf.metadata().number(&self.key(name))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.gguf.metadata().text(&self.key(name))
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.gguf.metadata().get(&self.key(name))? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    pub(super) fn list(&self, name: &str) -> Option<&[Value]> {
        self.gguf.metadata().list(&self.key(name))
    }

    fn architecture(&self) -> Result<Architecture, VerifyError> {
        let Family { name, scaled_embedding, .. } = *self.family;
        let epsilon = self.number("attention.layer_norm_rms_epsilon");
        let epsilon =
            epsilon.ok_or_else(|| self.wrong(format!("`{name}.attention.layer_norm_rms_epsilon` is missing")))?;
        if name == "qwen35" && (epsilon - LENGTH_EPSILON).abs() > 1e-6 * LENGTH_EPSILON {
            return Err(self.wrong(format!("llama.cpp divides by lengths with the epsilon {epsilon:e}")));
        }
        let (hidden_size, count) = (self.size("embedding_length")?, self.size("block_count")?);
        let by_layer = if self.family.heads_by_layer { Some(self.heads_of_layers(count)?) } else { None };
        let heads = self.heads(by_layer.as_deref())?;
        if !heads.queries.is_multiple_of(heads.keys) || heads.width % 2 == 1 || count > 1024 {
            return Err(self.wrong("its heads, their width or its layers are no sizes of a model"));
        }
        let positions = self.positions()?;
        let factor = |key: &str| self.number(key).filter(|factor| *factor != 0.0 && name.starts_with("granite"));
        let embedding_scale = if scaled_embedding { (hidden_size as f64).sqrt() } else { 1.0 };
        Ok(Architecture {
            hidden_size,
            intermediate_size: self.width_of_mlp(count)?,
            mixture: self.mixture()?,
            vocab_size: self.vocabulary()?,
            positions: self.size("context_length")?,
            heads: heads.queries,
            kv_heads: heads.keys,
            head_dim: heads.width,
            layers: self.layers(count, &heads, by_layer.as_deref(), &positions)?,
            attention_scale: factor("attention.scale").unwrap_or_else(|| self.scale(hidden_size, count, &heads)),
            epsilon,
            embedding_scale: factor("embedding_scale").unwrap_or(embedding_scale),
            residual_scale: factor("residual_scale").unwrap_or(1.0),
            logit_divisor: factor("logit_scale").unwrap_or(1.0),
            turn_scale: positions.factor,
            beyond: positions.beyond,
            growth: positions.growth,
            head_norms: self.family.head_norms,
            value_norms: self.family.value_norms,
            logit_cap: self.number("final_logit_softcapping").filter(|cap| *cap != 0.0 && name == "gemma4"),
            width_norms: self.family.width_norms,
            gated: self.family.gated,
            input_norms: self.family.input_norms,
            output_norms: self.family.output_norms,
            activation: self.family.activation,
            tied: !self.gguf.places().contains_key("output.weight"),
            norm_offset: 0.0,
            interleaved: self.family.interleaved,
            tiled: true,
        })
    }

    /// Factor on attention scores, where no key says it.
    fn scale(&self, hidden_size: usize, count: usize, heads: &Heads) -> f64 {
        let width = match self.family.name {
            "gemma4" => 1,
            // llama.cpp knows the largest Gemma 3 by its number of layers; its scores are scaled otherwise.
            "gemma3" if count == 62 => hidden_size / heads.queries,
            _ => heads.width,
        };
        (width as f64).sqrt().recip()
    }

    fn heads(&self, by_layer: Option<&[usize]>) -> Result<Heads, VerifyError> {
        let queries = self.size("attention.head_count")?;
        let keys = match by_layer {
            Some(heads) => heads.iter().copied().max().filter(|heads| *heads > 0).unwrap_or(1),
            None => self.size("attention.head_count_kv")?,
        };
        let name = self.family.name;
        let full = self.size("attention.key_length")?;
        let of_windows = if name == "gemma4" { self.size("attention.key_length_swa")? } else { full };
        let turned = self.size("rope.dimension_count")?;
        let is_part = ["phi3", "qwen35"].contains(&name) && turned < full;
        let values = [("attention.value_length", full), ("attention.value_length_swa", of_windows)];
        for (key, width) in &values[..if name == "gemma4" { 2 } else { 1 }] {
            if self.size(key)? != *width || turned != full && !is_part || turned % 2 == 1 {
                return Err(self.wrong("its keys, values and positions have other widths"));
            }
        }
        if name == "gemma4" && self.size("rope.dimension_count_swa")? != of_windows {
            return Err(self.wrong("its keys and positions in windows have other widths"));
        }
        Ok(Heads { queries, keys, width: of_windows, wide: (full != of_windows).then_some(full) })
    }

    /// Width of the MLP; of layers that read the keys of others in Gemma 4, it may be another one.
    fn width_of_mlp(&self, count: usize) -> Result<usize, VerifyError> {
        let key = "feed_forward_length";
        let Some(list) = self.list(key).filter(|_| self.family.name == "gemma4") else { return self.size(key) };
        let widths: Option<Vec<usize>> = list.iter().map(as_size).collect();
        let rows = |layer: usize| {
            let place = self.gguf.places().get(&format!("blk.{layer}.ffn_up.weight"));
            place.and_then(|place| place.sizes.get(1)).copied()
        };
        let is_one_for_each = |widths: &Vec<usize>| {
            widths.len() == count && widths.iter().enumerate().all(|(layer, width)| rows(layer) == Some(*width as u64))
        };
        let first = widths.filter(is_one_for_each).and_then(|widths| widths.first().copied());
        first.ok_or_else(|| self.wrong(format!("`{}` has not the width of each of {count} layers", self.key(key))))
    }

    fn mixture(&self) -> Result<Option<Mixture>, VerifyError> {
        if self.family.name != "qwen3moe" {
            return Ok(None);
        }
        let count = self.size("expert_count").ok().filter(|count| *count <= 1024);
        Ok(Some(Mixture {
            count: count.ok_or_else(|| self.wrong("it has no number of experts"))?,
            per_token: self.size("expert_used_count")?,
            width: self.size("expert_feed_forward_length")?,
            // llama.cpp does so in this family.
            normalised: true,
        }))
    }

    /// The number of tokens, of which the tokenizer has a text and the embedding a row for each.
    fn vocabulary(&self) -> Result<usize, VerifyError> {
        let texts = self.gguf.metadata().list("tokenizer.ggml.tokens").map_or(0, <[_]>::len);
        for name in ["token_embd.weight", "per_layer_token_embd.weight"] {
            let place = self.gguf.places().get(name);
            let rows = place.and_then(|place| place.sizes.get(1)).copied();
            if rows != Some(texts as u64) && (place.is_some() || name == "token_embd.weight") {
                return Err(self.wrong(format!("the tokenizer has {texts} tokens, {name} has {rows:?} rows")));
            }
        }
        Ok(texts)
    }

    /// Heads of keys and values of each layer: none where it has a state.
    fn heads_of_layers(&self, count: usize) -> Result<Vec<usize>, VerifyError> {
        let key = "attention.head_count_kv";
        let list = self.list(key).filter(|list| list.len() == count);
        let heads: Option<Vec<usize>> = list.and_then(|list| list.iter().map(as_size).collect());
        let key = self.key(key);
        let heads = heads.ok_or_else(|| self.wrong(format!("`{key}` has no number for each of {count} layers")))?;
        let mut attending = heads.iter().filter(|heads| **heads > 0);
        let first = attending.next();
        if attending.any(|heads| Some(heads) != first) {
            return Err(self.wrong(format!("`{key}` has several numbers of heads")));
        }
        Ok(heads)
    }
}

/// A whole number that is not negative.
fn as_size(value: &Value) -> Option<usize> {
    match value {
        Value::Unsigned(n) => usize::try_from(*n).ok(),
        Value::Signed(n) => usize::try_from(*n).ok(),
        _ => None,
    }
}
