//! Linear layers that a LoRA adapter changes: PEFT's `target_modules`.

use super::model_config::{Experts, ModelConfig};

/// The linear layers of a decoder's blocks, in the model's order: each with its name, outputs and inputs. A name is one
/// like `model.layers.0.self_attn.q_proj`. `parameters` are those of [`ModelConfig::parameters`].
pub fn linear_layers(
    parameters: impl IntoIterator<Item = (String, Vec<usize>)>,
) -> impl Iterator<Item = (String, [usize; 2])> {
    parameters.into_iter().filter_map(|(name, shape)| {
        let layer = name.strip_prefix("model.layers.").and(name.strip_suffix(".weight"))?;
        Some((layer.to_owned(), <[usize; 2]>::try_from(shape).ok()?))
    })
}

/// Whether an entry of `target_modules` means a linear layer: its whole name, or the end of it from a dot on.
#[must_use]
pub fn is_target(layer: &str, target: &str) -> bool {
    layer.strip_suffix(target).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether a linear layer is LFM3's gate on heads. transformers calls it otherwise than the files do, and PEFT passes
/// over an adapter that is named as in the files.
#[must_use]
pub fn is_gate_of_heads(layer: &str) -> bool {
    layer.ends_with("self_attn.gate_proj")
}

/// Whether a linear layer can have an adapter: all can but experts, their routers and LFM3's gates on heads.
#[must_use]
pub fn takes_adapter(layer: &str) -> bool {
    !Experts::own(layer) && !is_gate_of_heads(layer)
}

impl ModelConfig {
    /// The names behind `lora_target_modules`, of which none and `all-linear` mean all linear layers of the decoder.
    /// Experts and their router are none to PEFT, and dense layers beside them have the experts' names: with experts,
    /// these are the layers of attention.
    #[must_use]
    pub fn target_modules(&self, stated: &[String]) -> Vec<String> {
        if !stated.is_empty() && stated != ["all-linear"] {
            return stated.to_vec();
        }
        let mlp = self.experts.is_none().then(|| self.mlp_names());
        let blocks = (0..self.num_hidden_layers).map(|layer| self.mixer_names(layer)).chain(mlp);
        let mut all: Vec<String> = Vec::new();
        for names in blocks {
            for name in names.members.iter().chain([&names.last]) {
                let takes_adapter = takes_adapter(&format!("{}.{name}", names.block));
                if takes_adapter && !all.iter().any(|known| known == name) {
                    all.push((*name).to_owned());
                }
            }
        }
        all
    }

    /// The linear layers with an adapter in a run with these `lora_target_modules`, as [`linear_layers`] has them.
    pub fn adapted_layers(&self, stated: &[String]) -> impl Iterator<Item = (String, [usize; 2])> {
        let targets = self.target_modules(stated);
        linear_layers(self.parameters())
            .filter(move |(layer, _)| takes_adapter(layer) && targets.iter().any(|target| is_target(layer, target)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_whole_name_or_its_end_from_a_dot_on() {
        let layer = "model.layers.1.mlp.gate_up_proj";
        for target in [layer, "gate_up_proj", "mlp.gate_up_proj", "1.mlp.gate_up_proj"] {
            assert!(is_target(layer, target), "{target}");
        }
        for target in ["up_proj", "proj", "lp.gate_up_proj", "gate_up_pro", ".gate_up_proj", "x.model.layers.1.mlp"] {
            assert!(!is_target(layer, target), "{target}");
        }
    }

    #[test]
    fn linear_layers_are_the_matrices_of_blocks() {
        let parameters = [
            ("model.embed_tokens.weight", vec![9, 4]),
            ("model.layers.0.self_attn.q_proj.weight", vec![4, 4]),
            ("model.layers.0.self_attn.q_proj.bias", vec![4]),
            ("model.layers.0.input_layernorm.weight", vec![4]),
            ("model.layers.0.conv.conv.weight", vec![4, 1, 3]),
            ("lm_head.weight", vec![9, 4]),
        ];
        let found: Vec<_> = linear_layers(parameters.map(|(name, shape)| (name.to_owned(), shape))).collect();
        assert_eq!(found, [("model.layers.0.self_attn.q_proj".to_owned(), [4, 4])]);
    }

    #[test]
    fn experts_routers_and_gates_on_heads_take_no_adapter() {
        for layer in ["0.mlp.experts.3.up_proj", "0.mlp.gate", "0.self_attn.gate_proj"] {
            assert!(!takes_adapter(&format!("model.layers.{layer}")), "{layer}");
        }
        for layer in ["0.mlp.gate_proj", "0.self_attn.q_proj", "0.conv.in_proj"] {
            assert!(takes_adapter(&format!("model.layers.{layer}")), "{layer}");
        }
    }
}
