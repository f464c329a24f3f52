//! Gemma 4: widths of heads by kind of layer, layers that share keys and values, inputs of each layer's own.

use serde_json::Value;

use super::{
    super::{Architecture, AttentionKind, ConfigJsonError, LayerKind, PerLayerInput, Rotary},
    Reader,
    layers::{FULL, SLIDING},
};

/// Widths of heads of each layer, as transformers 5 writes them.
const BY_LAYER: &str = "per_layer_config";
const SHARED: &str = "num_kv_shared_layers";
const WIDTH: &str = "hidden_size_per_layer_input";
const ROWS: &str = "vocab_size_per_layer_input";

/// Defaults of transformers' Gemma4TextConfig.
const WINDOW: usize = 512;
const PATTERN: usize = 6;
const GLOBAL_HEAD_DIM: usize = 512;
const INPUT_WIDTH: usize = 256;
const INPUT_ROWS: usize = 262_144;

impl Reader<'_> {
    /// The kinds of layers. The last one has full attention in every model of the family.
    pub(super) fn gemma4_layers(&self, count: usize) -> Result<Vec<LayerKind>, ConfigJsonError> {
        let window = match self.size("sliding_window")? {
            Some(window) => window,
            None if self.fields.contains_key("sliding_window") => return Err(self.bad("sliding_window", "is null")),
            None => WINDOW,
        };
        let kind = |rotary, window| LayerKind::Attention(AttentionKind { rotary: Some(rotary), window, gate: None });
        let kinds = [(FULL, kind(Rotary::Global, None)), (SLIDING, kind(Rotary::Local, Some(window)))];
        let Some(types) = self.get("layer_types") else {
            let slides = |layer: usize| layer < count && !layer.is_multiple_of(PATTERN);
            return Ok((1..=count).map(|layer| kinds[usize::from(slides(layer))].1).collect());
        };
        let layers = self.kinds_of(types, count, &kinds)?;
        if layers.last() == Some(&kinds[1].1) {
            return Err(self.unsupported("layer_types", types, &format!("the last layer must be {FULL}")));
        }
        Ok(layers)
    }

    /// Width of the heads of layers with full attention, where it is another one than that of windows.
    pub(super) fn global_head_dim(
        &self,
        architecture: Architecture,
        count: usize,
        head_dim: usize,
    ) -> Result<Option<usize>, ConfigJsonError> {
        if architecture != Architecture::Gemma4 {
            return Ok(None);
        }
        let width = match self.get(BY_LAYER) {
            None => self.size("global_head_dim")?.unwrap_or(GLOBAL_HEAD_DIM),
            Some(by_layer) => self.width_by_layer(by_layer, count, head_dim)?,
        };
        if !width.is_multiple_of(2) {
            let problem = format!("must be even for rotary positions, found {width}");
            return Err(self.bad("global_head_dim", problem));
        }
        Ok((width != head_dim).then_some(width))
    }

    /// The width that all layers with full attention have in a list of what is particular to single layers.
    fn width_by_layer(&self, by_layer: &Value, count: usize, head_dim: usize) -> Result<usize, ConfigJsonError> {
        let hint = format!("supported: one `head_dim` for all layers with {FULL}, and none for the others");
        let wrong = || self.unsupported(BY_LAYER, by_layer, &hint);
        let listed = by_layer.as_object().ok_or_else(wrong)?;
        let heads = self.get("num_key_value_heads");
        let width_of = |fields: &Value| {
            let fields = fields.as_object()?;
            let is_known = |(key, value): (&String, &Value)| match key.as_str() {
                "head_dim" => value.as_u64().is_some_and(|width| (1..=super::MOST).contains(&width)),
                "num_key_value_heads" => Some(value) == heads,
                _ => false,
            };
            let width = fields.get("head_dim").and_then(Value::as_u64).map_or(head_dim, |width| width as usize);
            fields.iter().all(is_known).then_some(width)
        };
        let mut full = None;
        for (layer, kind) in self.gemma4_layers(count)?.into_iter().enumerate() {
            let width = match listed.get(&layer.to_string()) {
                None => head_dim,
                Some(fields) => width_of(fields).ok_or_else(wrong)?,
            };
            let is_full = matches!(kind, LayerKind::Attention(AttentionKind { window: None, .. }));
            let fits = if is_full { *full.get_or_insert(width) == width } else { width == head_dim };
            if !fits {
                return Err(wrong());
            }
        }
        let layer = |key: &String| key.parse::<usize>().is_ok_and(|layer| layer < count);
        if !listed.keys().all(layer) {
            return Err(wrong());
        }
        Ok(full.unwrap_or(head_dim))
    }

    /// Number of last layers that read the keys and values of earlier ones. Those must have every kind of layer that
    /// the last ones have.
    pub(super) fn shared_layers(
        &self,
        architecture: Architecture,
        layers: &[LayerKind],
    ) -> Result<usize, ConfigJsonError> {
        if architecture != Architecture::Gemma4 {
            return Ok(0);
        }
        let shared = self.count(SHARED)?.unwrap_or(0);
        let own = layers.len().saturating_sub(shared);
        match layers[own..].iter().find(|kind| !layers[..own].contains(kind)) {
            None => Ok(shared),
            Some(LayerKind::Attention(AttentionKind { window, .. })) => {
                let kind = if window.is_some() { SLIDING } else { FULL };
                let problem = format!("({shared}) leaves no earlier layer of {kind} whose keys and values are read");
                Err(self.bad(SHARED, problem))
            }
            Some(_) => unreachable!("all layers of the family have attention"),
        }
    }

    /// The inputs of each layer's own; width 0 means none.
    pub(super) fn per_layer_input(
        &self,
        architecture: Architecture,
        vocab_size: usize,
    ) -> Result<Option<PerLayerInput>, ConfigJsonError> {
        if architecture != Architecture::Gemma4 {
            return Ok(None);
        }
        let width = self.count(WIDTH)?.unwrap_or(if self.fields.contains_key(WIDTH) { 0 } else { INPUT_WIDTH });
        let rows = self.size(ROWS)?.unwrap_or(INPUT_ROWS);
        if width > 0 && rows < vocab_size {
            return Err(self.bad(ROWS, format!("({rows}) must be at least vocab_size ({vocab_size})")));
        }
        Ok((width > 0).then_some(PerLayerInput { width, vocab_size: rows }))
    }

    /// The bound of logits.
    pub(super) fn logit_cap(&self, architecture: Architecture) -> Result<Option<f64>, ConfigJsonError> {
        const KEY: &str = "final_logit_softcapping";
        match architecture {
            Architecture::Gemma4 if self.get(KEY).is_some() => self.positive(KEY).map(Some),
            _ => Ok(None),
        }
    }

    /// Refuses what only the larger models of the family have.
    pub(super) fn refuse_larger_gemma4(&self) -> Result<(), ConfigJsonError> {
        let off = |v: &Value| v == &Value::Bool(false);
        let small = "E2B and E4B of the family are supported";
        self.expect("enable_moe_block", off, &format!("experts beside the MLP; {small}"))?;
        self.expect("attention_k_eq_v", off, &format!("keys that are values too; {small}"))
    }
}
