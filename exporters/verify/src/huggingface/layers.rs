//! Which layers a `config.json` has: attention with its window and its rotary positions, or a state.

use serde_json::Value;

use super::{Config, as_size};
use crate::{Layer, Mixer, VerifyError, architecture::frequencies};

impl Config<'_> {
    pub(super) fn layers(&self, family: &str, count: usize, head_dim: usize) -> Result<Vec<Layer>, VerifyError> {
        // Families with a section of rotary positions for each type of attention.
        let (lfm3, gemma4) = (family == "lfm3", family == "gemma4_text");
        let by_type = lfm3 || gemma4 || family == "gemma3_text";
        let wide = if gemma4 { self.width_of_full(head_dim) } else { head_dim };
        let sections = self.section("rope_parameters");
        let part = |name: &str| sections.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        // A `rope_scaling` that says something goes before transformers 5's section.
        let mut global = if by_type { part("full_attention") } else { sections.clone() };
        if (lfm3 || gemma4) && sections.is_empty() {
            let share = if lfm3 { 0.5 } else { 0.25 };
            global
                .extend([("rope_type".into(), "proportional".into()), ("partial_rotary_factor".into(), share.into())]);
        }
        let scaling = self.section("rope_scaling");
        if by_type {
            global.extend(scaling);
        } else if !scaling.is_empty() {
            global = scaling;
        }
        let theta = match family {
            "smollm3" => 2e6,
            "gemma3_text" | "gemma4_text" | "lfm2" | "lfm3" => 1e6,
            _ => 1e4,
        };
        let turned = if ["phi3", "qwen3_5_text"].contains(&family) { self.turned(&global, head_dim) } else { wide };
        let global = self.scaled(&global, self.number("rope_theta", theta), turned)?;
        let local = part("sliding_attention").get("rope_theta").and_then(Value::as_f64);
        let local = frequencies(local.unwrap_or_else(|| self.number("rope_local_base_freq", 1e4)), head_dim);
        let everywhere = ["phi3", "ministral3"].contains(&family);
        let slides = (by_type || everywhere || self.flag("use_sliding_window", false)) && family != "llama";
        let absent = !everywhere && !self.fields.contains_key("sliding_window");
        let usual = match family {
            "lfm3" => 256,
            "gemma4_text" => 512,
            _ => 4096,
        };
        let window = self.size("sliding_window").or(absent.then_some(usual));
        let window = window.filter(|&window| !everywhere || Some(window) < self.size("max_position_embeddings"));
        let layer = |index: usize| {
            if let Some(mixer) = self.state(family, index) {
                return Layer::of(mixer);
            }
            let turns = match family {
                "smollm3" => self.turns(index),
                "granitemoehybrid" => self.fields.get("position_embedding_type") == Some(&"rope".into()),
                _ => true,
            };
            let slides = slides && self.slides(index, family, turns);
            let chosen = if by_type && slides { &local } else { &global };
            Layer::attention(turns.then(|| chosen.clone()), window.filter(|_| slides))
        };
        let mut layers: Vec<Layer> = (0..count).map(layer).collect();
        if gemma4 {
            let own = count.saturating_sub(self.size("num_kv_shared_layers").unwrap_or(0));
            for index in 0..count {
                layers[index].head_dim = (wide != head_dim && layers[index].window.is_none()).then_some(wide);
                let same = |earlier: &usize| layers[*earlier].window == layers[index].window;
                let source = (0..own).rev().find(same).filter(|_| index >= own);
                layers[index].reads = source;
            }
        }
        Ok(layers)
    }

    /// Width of the heads of Gemma 4's layers with full attention: for single layers, as transformers 5 writes it, or
    /// for all of them.
    fn width_of_full(&self, head_dim: usize) -> usize {
        match self.fields.get("per_layer_config").and_then(Value::as_object) {
            Some(layers) => {
                let widths = layers.values().filter_map(|layer| layer.get("head_dim").and_then(as_size));
                widths.max().unwrap_or(head_dim)
            }
            None => self.size("global_head_dim").unwrap_or(512),
        }
    }

    /// What a layer has in place of attention.
    fn state(&self, family: &str, index: usize) -> Option<Mixer> {
        let stated = self.fields.get("layer_types").and_then(|types| types.get(index)).and_then(Value::as_str);
        let size = |key: &str, default: usize| self.size(key).unwrap_or(default);
        match family {
            "lfm2" => {
                let full = self.fields.get("full_attn_idxs").and_then(Value::as_array);
                let attends = full.is_none_or(|full| full.contains(&index.into()));
                let conv = stated.map_or(!attends, |stated| stated == "conv");
                conv.then(|| Mixer::ShortConv(size("conv_L_cache", 3)))
            }
            "lfm3" => {
                let attends = index % 4 == 2 || index > 0 && index.is_multiple_of(4);
                let conv = stated.map_or(!attends, |stated| stated == "conv");
                conv.then(|| Mixer::ShortConv(size("conv_L_cache", 7)))
            }
            "qwen3_5_text" => {
                let attends = (index + 1).is_multiple_of(size("full_attention_interval", 4));
                let rule = stated.map_or(!attends, |stated| stated == "linear_attention");
                rule.then(|| Mixer::DeltaRule {
                    key_heads: size("linear_num_key_heads", 16),
                    value_heads: size("linear_num_value_heads", 32),
                    key_dim: size("linear_key_head_dim", 128),
                    value_dim: size("linear_value_head_dim", 128),
                    kernel: size("linear_conv_kernel_dim", 4),
                })
            }
            "granitemoehybrid" => {
                let mamba = stated.is_none_or(|stated| ["mamba", "linear_attention"].contains(&stated));
                let heads = size("mamba_n_heads", 128);
                let inner = size("mamba_expand", 2) * size("hidden_size", 0);
                mamba.then(|| Mixer::Mamba {
                    heads,
                    head_dim: size("mamba_d_head", inner / heads),
                    groups: size("mamba_n_groups", 1),
                    state_dim: size("mamba_d_state", 256),
                    kernel: size("mamba_d_conv", 4),
                })
            }
            _ => None,
        }
    }

    /// Whether a layer of SmolLM3 has rotary positions: its list says 1 for layers that have them.
    fn turns(&self, index: usize) -> bool {
        let listed = self.fields.get("no_rope_layers").and_then(|list| list.get(index)).and_then(Value::as_u64);
        let interval = self.size("no_rope_layer_interval").unwrap_or(4);
        listed.map_or(!(index + 1).is_multiple_of(interval), |turns| turns == 1)
    }

    /// Whether a layer attends to a window alone.
    fn slides(&self, index: usize, family: &str, turns: bool) -> bool {
        if let Some(types) = self.fields.get("layer_types").and_then(Value::as_array) {
            return types.get(index).and_then(Value::as_str) == Some("sliding_attention");
        }
        match family {
            "gemma4_text" => !(index + 1).is_multiple_of(6) && Some(index + 1) != self.size("num_hidden_layers"),
            "gemma3_text" => !(index + 1).is_multiple_of(self.size("sliding_window_pattern").unwrap_or(6)),
            "smollm3" => !turns,
            "lfm3" => index.is_multiple_of(4),
            "phi3" | "ministral3" => true,
            _ => index >= self.fields.get("max_window_layers").and_then(Value::as_u64).unwrap_or(28) as usize,
        }
    }
}
