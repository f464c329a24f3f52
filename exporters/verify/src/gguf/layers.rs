//! The layers of a model: what each has in the place of attention, its window and its positions.

use super::{
    metadata::Value,
    model::{Heads, Reading},
    positions::Positions,
};
use crate::{Layer, Mixer, VerifyError, architecture::frequencies};

/// Layers of Gemma 3 and SmolLM3 of which the last differs from the others. llama.cpp reads these from no key.
const GEMMA_PATTERN: usize = 6;
const SMOLLM_PATTERN: usize = 4;
/// Base of the frequencies in layers with a window, where no key says it.
const LOCAL_THETA: f64 = 1e4;
/// Layers of Qwen3.5 of which the last has attention, where no key says it.
const QWEN_INTERVAL: usize = 4;
/// Most inputs of a convolution.
const MOST_INPUTS: usize = 64;

impl Reading<'_> {
    /// The layers, given the heads of keys and values of each where the family lists these.
    pub(super) fn layers(
        &self,
        count: usize,
        heads: &Heads,
        by_layer: Option<&[usize]>,
        positions: &Positions,
    ) -> Result<Vec<Layer>, VerifyError> {
        let global = |turns: bool| Layer::attention(turns.then(|| positions.frequencies.clone()), None);
        let all = |of: &dyn Fn(usize) -> Layer| Ok((0..count).map(of).collect());
        let is_last = |index: usize, pattern: usize| (index + 1).is_multiple_of(pattern);
        match self.family.name {
            "gemma3" => {
                let window = self.optional_size("attention.sliding_window")?;
                let local = Layer::attention(Some(frequencies(LOCAL_THETA, heads.width)), window);
                all(&|index| if is_last(index, GEMMA_PATTERN) { global(true) } else { local.clone() })
            }
            "gemma4" => self.gemma4(count, heads, positions),
            "smollm3" => all(&|index| global(!is_last(index, SMOLLM_PATTERN))),
            "lfm2" => {
                let conv = Mixer::ShortConv(self.inputs("shortconv.l_cache")?);
                all(&|index| if without(by_layer, index) { Layer::of(conv) } else { global(true) })
            }
            "granite" | "granitehybrid" => {
                let turns = self.flag("rope.scaling.finetuned").unwrap_or(true);
                if (0..count).all(|index| !without(by_layer, index)) {
                    return all(&|_| global(turns));
                }
                let mamba = self.mamba()?;
                all(&|index| if without(by_layer, index) { Layer::of(mamba) } else { global(turns) })
            }
            "qwen35" => {
                let rule = self.delta_rule()?;
                let interval = self.optional_size("full_attention_interval")?.unwrap_or(QWEN_INTERVAL);
                let listed = self.flags("attention.recurrent_layers", count)?;
                let recurrent =
                    |index: usize| listed.as_ref().map_or(!is_last(index, interval), |listed| listed[index]);
                all(&|index| if recurrent(index) { Layer::of(rule) } else { global(true) })
            }
            _ => all(&|_| global(true)),
        }
    }

    /// Inputs of a convolution.
    fn inputs(&self, key: &str) -> Result<usize, VerifyError> {
        let inputs = self.size(key)?;
        if inputs > MOST_INPUTS {
            return Err(self.wrong(format!("a convolution of {inputs} inputs is not read here")));
        }
        Ok(inputs)
    }

    fn mamba(&self) -> Result<Mixer, VerifyError> {
        let (heads, inner, groups) =
            (self.size("ssm.time_step_rank")?, self.size("ssm.inner_size")?, self.size("ssm.group_count")?);
        if !inner.is_multiple_of(heads)
            || !heads.is_multiple_of(groups)
            || inner != 2 * self.size("embedding_length")?
        {
            return Err(self.wrong("its state spaces have sizes that llama.cpp does not compute with"));
        }
        Ok(Mixer::Mamba {
            heads,
            head_dim: inner / heads,
            groups,
            state_dim: self.size("ssm.state_size")?,
            kernel: self.inputs("ssm.conv_kernel")?,
        })
    }

    fn delta_rule(&self) -> Result<Mixer, VerifyError> {
        let (key_heads, value_heads) = (self.size("ssm.group_count")?, self.size("ssm.time_step_rank")?);
        let (key_dim, inner) = (self.size("ssm.state_size")?, self.size("ssm.inner_size")?);
        // llama.cpp has one width for keys and values.
        if !value_heads.is_multiple_of(key_heads) || inner != value_heads * key_dim {
            return Err(self.wrong("its delta rules have sizes that llama.cpp does not compute with"));
        }
        Ok(Mixer::DeltaRule {
            key_heads,
            value_heads,
            key_dim,
            value_dim: key_dim,
            kernel: self.inputs("ssm.conv_kernel")?,
        })
    }

    /// Layers with windows and others, whose heads may have another width; the last ones have no keys of their own.
    fn gemma4(&self, count: usize, heads: &Heads, positions: &Positions) -> Result<Vec<Layer>, VerifyError> {
        let slides = self.flags("attention.sliding_window_pattern", count)?;
        let slides = slides.ok_or_else(|| self.wrong("no key says which layers have windows"))?;
        let window = self.size("attention.sliding_window")?;
        let theta = self.number("rope.freq_base_swa").unwrap_or(LOCAL_THETA);
        let local = frequencies(theta, self.size("rope.dimension_count_swa")?);
        let shared = self.optional_size("attention.shared_kv_layers")?.unwrap_or(0);
        // llama.cpp takes the keys of the two last layers that have some.
        let own = count.checked_sub(shared).filter(|own| *own >= 2);
        let own = own.ok_or_else(|| self.wrong("fewer than two layers have keys of their own"))?;
        let layer = |(index, &slides): (usize, &bool)| {
            let mut layer = if slides {
                Layer::attention(Some(local.clone()), Some(window))
            } else {
                Layer::attention(Some(positions.frequencies.clone()), None)
            };
            layer.head_dim = heads.wide.filter(|_| !slides);
            layer.reads = (index >= own).then_some(own - if slides { 2 } else { 1 });
            layer
        };
        Ok(slides.iter().enumerate().map(layer).collect())
    }

    /// A list of flags, one for each layer.
    fn flags(&self, key: &str, count: usize) -> Result<Option<Vec<bool>>, VerifyError> {
        let Some(list) = self.list(key) else { return Ok(None) };
        let flag = |value: &Value| if let Value::Bool(flag) = value { Some(*flag) } else { None };
        let flags: Option<Vec<bool>> = list.iter().map(flag).collect();
        let flags = flags.filter(|flags| flags.len() == count);
        flags.map(Some).ok_or_else(|| self.wrong(format!("`{key}` has no flag for each of {count} layers")))
    }
}

/// Whether a layer has no heads of keys and values.
fn without(by_layer: Option<&[usize]>, index: usize) -> bool {
    by_layer.is_some_and(|heads| heads[index] == 0)
}
