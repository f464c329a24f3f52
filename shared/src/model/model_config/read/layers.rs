//! Sliding windows, and layers without rotary positions.

use serde_json::Value;

use super::{
    super::{Architecture, AttentionKind, ConfigJsonError, LayerKind, Rotary},
    Reader,
};

pub(super) const FULL: &str = "full_attention";
pub(super) const SLIDING: &str = "sliding_attention";

/// transformers' default of `sliding_window` for Qwen and Gemma.
const WINDOW: usize = 4096;
/// transformers' default of `max_window_layers` for Qwen.
const QWEN_FULL_LAYERS: usize = 28;
/// transformers' default of `sliding_window_pattern` for Gemma: every sixth layer attends to all positions.
const PATTERN: usize = 6;
/// transformers' default of `no_rope_layer_interval`: every fourth layer has no rotary positions.
const NO_ROPE_INTERVAL: usize = 4;

impl Reader<'_> {
    pub(super) fn layers(&self, architecture: Architecture, count: usize) -> Result<Vec<LayerKind>, ConfigJsonError> {
        match architecture {
            Architecture::Lfm2 => return self.lfm2_layers(count),
            Architecture::Lfm3 => return self.lfm3_layers(count),
            Architecture::Qwen3_5 => return self.qwen3_5_layers(count),
            Architecture::GraniteMoeHybrid => return self.granite_layers(count),
            Architecture::Gemma4 => return self.gemma4_layers(count),
            _ => {}
        }
        let window = self.window(architecture)?;
        let mut rotary = self.rotary(architecture, count)?;
        let slides = match self.get("layer_types") {
            // transformers' models go by the window alone.
            _ if matches!(architecture, Architecture::Phi3 | Architecture::Ministral3) => vec![window.is_some(); count],
            Some(types) => self.layer_types(types, count, window)?,
            None => self.sliding_layers(architecture, window, &rotary)?,
        };
        if architecture == Architecture::Gemma3 {
            let kind = |&slides: &bool| Some(if slides { Rotary::Local } else { Rotary::Global });
            rotary = slides.iter().map(kind).collect();
        }
        let kind = |(rotary, slides)| {
            LayerKind::Attention(AttentionKind { rotary, window: window.filter(|_| slides), gate: None })
        };
        Ok(rotary.into_iter().zip(slides).map(kind).collect())
    }

    /// The window of those layers that have one.
    pub(super) fn window(&self, architecture: Architecture) -> Result<Option<usize>, ConfigJsonError> {
        use Architecture::{GraniteMoeHybrid, Llama, Ministral3, Olmo2, Phi3};
        if [Llama, Olmo2, GraniteMoeHybrid].contains(&architecture) {
            let hint = "this family attends to everything";
            self.expect("use_sliding_window", |v| v == &Value::Bool(false), hint)?;
            self.expect("sliding_window", |_| false, hint)?;
        }
        if architecture == Architecture::Qwen3Moe {
            let hint = "layers of this family are read without windows";
            self.expect("use_sliding_window", |v| v == &Value::Bool(false), hint)?;
            return Ok(None);
        }
        if [Phi3, Ministral3].contains(&architecture) {
            // A window as long as the longest sequence hides nothing.
            let longest = self.required_size("max_position_embeddings")?;
            return Ok(self.size("sliding_window")?.filter(|&window| window < longest));
        }
        // Some configurations have a window that `use_sliding_window`, false by default, leaves unused.
        if architecture != Architecture::Gemma3 && !self.flag("use_sliding_window", false)? {
            return Ok(None);
        }
        let said = self.fields.contains_key("sliding_window");
        let default = (architecture != Architecture::SmolLm3 && !said).then_some(WINDOW);
        match self.size("sliding_window")?.or(default) {
            None if architecture == Architecture::Gemma3 => Err(self.bad("sliding_window", "is missing")),
            window => Ok(window),
        }
    }

    /// Which layers have a window, from the list in `layer_types`.
    fn layer_types(&self, types: &Value, count: usize, window: Option<usize>) -> Result<Vec<bool>, ConfigJsonError> {
        let slides = self.kinds_of(types, count, &[(FULL, false), (SLIDING, true)])?;
        if window.is_none() && slides.contains(&true) {
            let hint = format!("{SLIDING} without a window: see `use_sliding_window` and `sliding_window`");
            return Err(self.unsupported("layer_types", types, &hint));
        }
        Ok(slides)
    }

    /// Which layers have a window, if `layer_types` is missing.
    fn sliding_layers(
        &self,
        architecture: Architecture,
        window: Option<usize>,
        rotary: &[Option<Rotary>],
    ) -> Result<Vec<bool>, ConfigJsonError> {
        let layers = 0..rotary.len();
        Ok(match architecture {
            Architecture::Gemma3 => {
                let pattern = self.size("sliding_window_pattern")?.unwrap_or(PATTERN);
                layers.map(|layer| !(layer + 1).is_multiple_of(pattern)).collect()
            }
            _ if window.is_none() => vec![false; rotary.len()],
            Architecture::SmolLm3 => rotary.iter().map(Option::is_none).collect(),
            _ => {
                let full = self.count("max_window_layers")?.unwrap_or(QWEN_FULL_LAYERS);
                layers.map(|layer| layer >= full).collect()
            }
        })
    }

    /// The rotary positions of every layer.
    fn rotary(&self, architecture: Architecture, count: usize) -> Result<Vec<Option<Rotary>>, ConfigJsonError> {
        let global = Some(Rotary::Global);
        if architecture != Architecture::SmolLm3 {
            return Ok(vec![global; count]);
        }
        let Some(list) = self.get("no_rope_layers") else {
            let interval = self.size("no_rope_layer_interval")?.unwrap_or(NO_ROPE_INTERVAL);
            return Ok((1..=count).map(|layer| global.filter(|_| !layer.is_multiple_of(interval))).collect());
        };
        // 1 means a layer with rotary positions, whatever the key's name suggests.
        let has = |v: &Value| match v.as_u64() {
            Some(0) => Some(None),
            Some(1) => Some(global),
            _ => None,
        };
        let read: Option<Vec<_>> = list.as_array().and_then(|list| list.iter().map(has).collect());
        match read {
            Some(mut layers) if layers.len() >= count => {
                layers.truncate(count);
                Ok(layers)
            }
            _ => Err(self.unsupported("no_rope_layers", list, &format!("expected 0 or 1 for each of {count} layers"))),
        }
    }
}
