//! Families with a state in some layers: LFM2, LFM3, Qwen3.5 and Granite 4.

use serde_json::{Value, json};

use super::{
    super::{
        Architecture, AttentionGate, AttentionKind, ConfigJsonError, DeltaRule, LayerKind, Mamba, Rotary, ShortConv,
    },
    Reader,
    layers::{FULL, SLIDING},
};

const CONV: &str = "conv";
const LINEAR: &str = "linear_attention";
/// Granite's names of its layers, by the older and the newer releases of transformers.
const OF_GRANITE: [[&str; 2]; 2] = [["attention", FULL], ["mamba", LINEAR]];

/// transformers' default of `full_attention_interval`: every fourth layer has attention.
const FULL_ATTENTION_INTERVAL: usize = 4;
/// transformers' default of `sliding_window` for LFM3.
const LFM3_WINDOW: usize = 256;
/// Longest convolution; published ones have seven inputs at most.
const LONGEST_KERNEL: usize = 64;

impl Reader<'_> {
    /// LFM2's layers, from `layer_types`, or from `full_attn_idxs` as older files have it.
    pub(super) fn lfm2_layers(&self, count: usize) -> Result<Vec<LayerKind>, ConfigJsonError> {
        let conv = ShortConv { kernel: self.kernel("conv_L_cache", 3)?, bias: self.flag("conv_bias", false)? };
        let attention = AttentionKind { rotary: Some(Rotary::Global), window: None, gate: None };
        let kinds = [(FULL, LayerKind::Attention(attention)), (CONV, LayerKind::ShortConv(conv))];
        if let Some(types) = self.get("layer_types") {
            return self.kinds_of(types, count, &kinds);
        }
        let Some(list) = self.get("full_attn_idxs") else { return Ok(vec![kinds[0].1; count]) };
        let index = |v: &Value| v.as_u64().map(|index| index as usize).filter(|&index| index < count);
        let full: Option<Vec<usize>> = list.as_array().and_then(|list| list.iter().map(index).collect());
        let wrong = || self.unsupported("full_attn_idxs", list, &format!("expected numbers of layers below {count}"));
        let full = full.ok_or_else(wrong)?;
        Ok((0..count).map(|layer| kinds[usize::from(!full.contains(&layer))].1).collect())
    }

    /// The width of LFM2's MLP. `block_ff_dim` is the older name; with `block_auto_adjust_ff_dim`, which is the
    /// default, it is cut to two thirds and rounded up to a multiple.
    pub(super) fn lfm2_inner_width(&self) -> Result<usize, ConfigJsonError> {
        let key = if self.get("block_ff_dim").is_some() { "block_ff_dim" } else { "intermediate_size" };
        let stated = self.required_size(key)?;
        if !self.flag("block_auto_adjust_ff_dim", true)? {
            return Ok(stated);
        }
        let cut = 2 * stated / 3;
        const FACTOR: &str = "block_ffn_dim_multiplier";
        let width = if self.fields.get(FACTOR).is_some_and(Value::is_null) {
            cut
        } else {
            let factor = if self.get(FACTOR).is_some() { self.positive(FACTOR)? } else { 1.0 };
            let multiple = self.size("block_multiple_of")?.unwrap_or(256);
            ((factor * cut as f64) as usize).div_ceil(multiple).saturating_mul(multiple)
        };
        if width == 0 || width as u64 > super::MOST {
            return Err(self.bad(key, format!("({stated}) makes an MLP of {width} after its adjustment")));
        }
        Ok(width)
    }

    /// LFM3's layers, from `layer_types` or as its class has them.
    pub(super) fn lfm3_layers(&self, count: usize) -> Result<Vec<LayerKind>, ConfigJsonError> {
        let norms = "blocks of this family have norms on both sides";
        self.expect("use_sandwich_norm", |v| v == &Value::Bool(true), norms)?;
        let conv = ShortConv { kernel: self.kernel("conv_L_cache", 7)?, bias: self.flag("conv_bias", false)? };
        let gate = self.flag("use_attention_gate", true)?.then_some(AttentionGate::Heads);
        let full = AttentionKind { rotary: Some(Rotary::Global), window: None, gate };
        let window = match self.size("sliding_window")? {
            None if self.fields.contains_key("sliding_window") => return Err(self.bad("sliding_window", "is null")),
            window => window.unwrap_or(LFM3_WINDOW),
        };
        let sliding = AttentionKind { rotary: Some(Rotary::Local), window: Some(window), gate };
        let kinds = [
            (FULL, LayerKind::Attention(full)),
            (SLIDING, LayerKind::Attention(sliding)),
            (CONV, LayerKind::ShortConv(conv)),
        ];
        if let Some(types) = self.get("layer_types") {
            return self.kinds_of(types, count, &kinds);
        }
        let kind = |layer: usize| match layer % 4 {
            2 => kinds[0].1,
            0 if layer > 0 => kinds[1].1,
            _ => kinds[2].1,
        };
        Ok((0..count).map(kind).collect())
    }

    /// Qwen3.5's layers, from `layer_types` or from the interval.
    pub(super) fn qwen3_5_layers(&self, count: usize) -> Result<Vec<LayerKind>, ConfigJsonError> {
        self.expect("attn_output_gate", |v| v == &Value::Bool(true), "attention of this family has a gate")?;
        let size = |key: &str, default: usize| Ok(self.size(key)?.unwrap_or(default));
        let rule = DeltaRule {
            key_heads: size("linear_num_key_heads", 16)?,
            value_heads: size("linear_num_value_heads", 32)?,
            key_dim: size("linear_key_head_dim", 128)?,
            value_dim: size("linear_value_head_dim", 128)?,
            kernel: self.kernel("linear_conv_kernel_dim", 4)?,
        };
        if !rule.value_heads.is_multiple_of(rule.key_heads) {
            let problem = format!("({}) must divide linear_num_value_heads ({})", rule.key_heads, rule.value_heads);
            return Err(self.bad("linear_num_key_heads", problem));
        }
        let gate = Some(AttentionGate::Entries);
        let attention = AttentionKind { rotary: Some(Rotary::Global), window: None, gate };
        let kinds = [(FULL, LayerKind::Attention(attention)), (LINEAR, LayerKind::DeltaRule(rule))];
        if let Some(types) = self.get("layer_types") {
            return self.kinds_of(types, count, &kinds);
        }
        let interval = self.size("full_attention_interval")?.unwrap_or(FULL_ATTENTION_INTERVAL);
        Ok((1..=count).map(|layer| kinds[usize::from(!layer.is_multiple_of(interval))].1).collect())
    }

    /// Granite 4's layers. Without a list, all of them are Mamba-2, as its class has it.
    pub(super) fn granite_layers(&self, count: usize) -> Result<Vec<LayerKind>, ConfigJsonError> {
        self.window(Architecture::GraniteMoeHybrid)?;
        // Without the key, and with another value than this one, transformers' model has no positions.
        const POSITIONS: &str = "position_embedding_type";
        self.expect(POSITIONS, |v| matches!(v.as_str(), Some("rope" | "nope")), "supported: rope, nope")?;
        let turns = self.get(POSITIONS).and_then(Value::as_str) == Some("rope");
        let attention =
            LayerKind::Attention(AttentionKind { rotary: turns.then_some(Rotary::Global), window: None, gate: None });
        // Its class takes the second name for the first, also where both are given.
        let Some(types) = self.get("layers_block_type").or_else(|| self.get("layer_types")) else {
            return Ok(vec![LayerKind::Mamba(self.mamba()?); count]);
        };
        let [of_attention, of_mamba] = OF_GRANITE;
        let has_mamba = types.as_array().into_iter().flatten().any(|v| of_mamba.iter().any(|name| v == name));
        // The sizes of Mamba layers need not fit a model that has none.
        let mamba = if has_mamba { LayerKind::Mamba(self.mamba()?) } else { attention };
        let kinds = [of_attention.map(|name| (name, attention)), of_mamba.map(|name| (name, mamba))].concat();
        self.kinds_of(types, count, &kinds)
    }

    /// The sizes of Granite's Mamba layers, with transformers' defaults.
    fn mamba(&self) -> Result<Mamba, ConfigJsonError> {
        let size = |key: &str, default: usize| Ok(self.size(key)?.unwrap_or(default));
        let (heads, groups) = (size("mamba_n_heads", 128)?, size("mamba_n_groups", 1)?);
        let inner = size("mamba_expand", 2)?.saturating_mul(self.required_size("hidden_size")?);
        const WIDTH: &str = "mamba_d_head";
        let is_auto = self.get(WIDTH).is_none_or(|v| v == "auto");
        let head_dim = if is_auto { inner / heads } else { self.required_size(WIDTH)? };
        if heads.saturating_mul(head_dim) != inner {
            let problem = format!(
                "({head_dim}) times mamba_n_heads ({heads}) must be mamba_expand times hidden_size, which is {inner}"
            );
            return Err(self.bad(WIDTH, problem));
        }
        if !heads.is_multiple_of(groups) {
            return Err(self.bad("mamba_n_groups", format!("({groups}) must divide mamba_n_heads ({heads})")));
        }
        let state_dim = size("mamba_d_state", 256)?;
        if inner.saturating_mul(state_dim) as u64 > super::MOST {
            let problem = format!("({state_dim}) makes a state of more than {} numbers in a layer", super::MOST);
            return Err(self.bad("mamba_d_state", problem));
        }
        let unlimited = |v: &Value| match v.as_array().map(Vec::as_slice) {
            Some([least, most]) => least.as_f64() == Some(0.0) && most == &json!({"__float__": "Infinity"}),
            _ => false,
        };
        self.expect("time_step_limit", unlimited, "steps of Mamba layers have no limits here")?;
        Ok(Mamba {
            heads,
            head_dim,
            groups,
            state_dim,
            kernel: self.kernel("mamba_d_conv", 4)?,
            conv_bias: self.flag("mamba_conv_bias", true)?,
            proj_bias: self.flag("mamba_proj_bias", false)?,
        })
    }

    fn kernel(&self, key: &str, default: usize) -> Result<usize, ConfigJsonError> {
        match self.size(key)?.unwrap_or(default) {
            kernel @ 2..=LONGEST_KERNEL => Ok(kernel),
            kernel => Err(self.bad(key, format!("must be between 2 and {LONGEST_KERNEL}, found {kernel}"))),
        }
    }

    /// The layers of a list of names.
    pub(super) fn kinds_of<T: Copy>(
        &self,
        types: &Value,
        count: usize,
        kinds: &[(&str, T)],
    ) -> Result<Vec<T>, ConfigJsonError> {
        let kind = |v: &Value| kinds.iter().find(|(name, _)| v.as_str() == Some(name)).map(|(_, kind)| *kind);
        let list = types.as_array().filter(|list| list.len() == count);
        if let Some(read) = list.and_then(|list| list.iter().map(kind).collect()) {
            return Ok(read);
        }
        let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        let unknown = types.as_array().and_then(|list| list.iter().position(|v| kind(v).is_none()));
        let which = unknown.map_or(String::new(), |layer| format!("; layer {layer} is {}", types[layer]));
        let hint = format!("expected {count} layers, each {}{which}", names.join(" or "));
        Err(self.unsupported("layer_types", types, &hint))
    }
}
