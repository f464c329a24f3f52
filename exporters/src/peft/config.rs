//! `adapter_config.json`.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use shared::{
    Experts, ModelDir,
    config::TrainConfig,
    model::{
        adapted::{is_gate_of_heads, is_target, linear_layers, takes_adapter},
        model_dir::{ADAPTER_CONFIG_FILE, MOST_BYTES},
    },
};

use crate::{ExportError, wrapper};

/// PEFT's prefix of the names of the base's modules.
const PREFIX: &str = "base_model.model.";

/// The way out of settings that are not applied here.
pub(super) const MERGE: &str =
    "merge the adapter with PEFT and name the merged model: `model.merge_and_unload().save_pretrained(…)`";

/// The configuration of a LoRA adapter: PEFT's `LoraConfig`, as far as it is applied here. Every other key must have a
/// value that changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// The base as its user named it: a folder, absolute or as seen from the adapter's.
    pub base_model_name_or_path: String,
    /// The base by the content of its weights ([`Checkpoint::weights_blake3`](crate::Checkpoint::weights_blake3)). PEFT
    /// knows no such key, so it is in the header of the safetensors, if a program of ours wrote them.
    pub base_blake3: Option<String>,
    /// Rank of the updates.
    pub r: usize,
    /// Numerator of [`scaling`](Self::scaling).
    pub lora_alpha: f64,
    /// Share of the adapter's inputs that training drops.
    pub lora_dropout: f64,
    /// The linear layers that have an update, by the ends of their names: `q_proj`, `self_attn.q_proj`, …
    pub target_modules: Vec<String>,
    /// Rank-stabilised LoRA (Kalajdzievski 2023, arXiv:2312.03732).
    pub use_rslora: bool,
    /// Whether the base is the text model of a model of images and text
    /// ([`ModelConfig::wrapped`](shared::ModelConfig::wrapped)), whose names the file has.
    pub wrapped: bool,
}

/// The keys that are read.
#[derive(Deserialize)]
struct Keys {
    base_model_name_or_path: Option<String>,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: Vec<String>,
    #[serde(default)]
    use_rslora: bool,
}

impl AdapterConfig {
    /// The adapter that a run on `model` trains, if it trains one. The hash of its base is left open.
    ///
    /// # Errors
    /// A model that is an adapter itself, or `lora_target_modules` that it does not have.
    pub fn of_run(config: &TrainConfig, model: &ModelDir) -> Result<Option<Self>, ExportError> {
        if !config.use_peft {
            return Ok(None);
        }
        let refused = |option, message| Err(ExportError::Option { option, message });
        if let Some(adapter) = model.adapter() {
            let message = format!("the model {} is an adapter itself; merge it first: tandem merge", adapter.display());
            return refused("use_peft", message);
        }
        let base = std::path::absolute(model.path()).map_err(|e| ExportError::io(model.path(), e))?;
        let adapter = Self {
            base_model_name_or_path: base.display().to_string(),
            base_blake3: None,
            r: config.lora_r as usize,
            lora_alpha: config.lora_alpha,
            lora_dropout: config.lora_dropout,
            target_modules: model.config().target_modules(&config.lora_target_modules),
            use_rslora: config.use_rslora,
            wrapped: model.config().wrapped,
        };
        match adapter.modules(model.config().parameters()) {
            Ok(_) => Ok(Some(adapter)),
            Err(error) => refused("lora_target_modules", error.to_string()),
        }
    }

    /// Reads `adapter_config.json` of a folder.
    ///
    /// # Errors
    /// A file that cannot be read or is not of PEFT, or a key that asks for something that is not applied here, with
    /// its value.
    pub fn read(dir: &Path) -> Result<Self, ExportError> {
        let path = dir.join(ADAPTER_CONFIG_FILE);
        let refused = |message: String| ExportError::content(&path, message);
        let text = shared_bounds::read(&path, MOST_BYTES).map_err(|e| ExportError::io(&path, e))?;
        let json: Value = serde_json::from_slice(&text).map_err(|e| refused(format!("is not valid JSON: {e}")))?;
        if let Some((key, value, hint)) = first_refused(&json) {
            return Err(refused(format!("`{key}` = {value} is not supported ({hint}); {MERGE}")));
        }
        let Keys { base_model_name_or_path, r, lora_alpha, lora_dropout, target_modules, use_rslora } =
            Keys::deserialize(&json).map_err(|e| refused(format!("not the configuration of a LoRA adapter: {e}")))?;
        if r == 0 || target_modules.is_empty() {
            return Err(refused("`r` must be at least 1, and `target_modules` must name something".into()));
        }
        let base_model_name_or_path = base_model_name_or_path.unwrap_or_default();
        Ok(Self {
            base_model_name_or_path,
            base_blake3: None,
            r,
            lora_alpha,
            lora_dropout,
            target_modules: target_modules.into_iter().map(wrapper::own_ending).collect(),
            use_rslora,
            wrapped: false,
        })
    }

    /// The content of the file, with every key whose value is not PEFT's default. `modules` are the linear layers that
    /// have an update.
    pub(super) fn to_json(&self, modules: &[(String, [usize; 2])]) -> Value {
        // The towers of a whole model have layers with the same ends of names, which PEFT would adapt too.
        let target_modules: Vec<String> = if self.wrapped {
            modules.iter().map(|(module, _)| wrapper::whole_name(module)).collect()
        } else {
            self.target_modules.clone()
        };
        // PEFT declares a whole number.
        let whole = self.lora_alpha.fract() == 0.0 && self.lora_alpha.abs() < f64::from(u32::MAX);
        let lora_alpha = if whole { json!(self.lora_alpha as i64) } else { json!(self.lora_alpha) };
        json!({
            "base_model_name_or_path": self.base_model_name_or_path,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": true,
            "lora_alpha": lora_alpha,
            "lora_dropout": self.lora_dropout,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": self.r,
            "target_modules": target_modules,
            "task_type": "CAUSAL_LM",
            "use_dora": false,
            "use_rslora": self.use_rslora,
        })
    }

    /// Factor of the product of B and A: `lora_alpha / r`, or rank-stabilised `lora_alpha / sqrt(r)`.
    #[must_use]
    pub fn scaling(&self) -> f64 {
        let r = self.r as f64;
        self.lora_alpha / if self.use_rslora { r.sqrt() } else { r }
    }

    /// The linear layers that have an update, in the model's order: each with its name, outputs and inputs.
    /// `parameters` are those of the base ([`ModelConfig::parameters`](shared::ModelConfig::parameters)).
    ///
    /// # Errors
    /// An entry of `target_modules` that is no linear layer of the decoder, or one of experts, of their router or of
    /// LFM3's gates.
    pub fn modules(
        &self,
        parameters: impl IntoIterator<Item = (String, Vec<usize>)>,
    ) -> Result<Vec<(String, [usize; 2])>, ExportError> {
        let all: Vec<_> = linear_layers(parameters).collect();
        let has = |target: &&String| all.iter().any(|(module, _)| is_target(module, target));
        if let Some(target) = self.target_modules.iter().find(|target| !has(target)) {
            let mut known: Vec<&str> = Vec::new();
            let adaptable = all.iter().filter(|(module, _)| takes_adapter(module));
            for name in adaptable.filter_map(|(module, _)| module.rsplit('.').next()) {
                if !known.contains(&name) {
                    known.push(name);
                }
            }
            return Err(ExportError::NoSuchModule { target: target.clone(), known: known.join(", ") });
        }
        let of_experts =
            |target: &&String| all.iter().any(|(module, _)| Experts::own(module) && is_target(module, target));
        if let Some(target) = self.target_modules.iter().find(of_experts) {
            return Err(ExportError::ModuleOfExperts { target: target.clone() });
        }
        let of_gates =
            |target: &&String| all.iter().any(|(module, _)| is_gate_of_heads(module) && is_target(module, target));
        if let Some(target) = self.target_modules.iter().find(of_gates) {
            return Err(ExportError::ModuleOfGates { target: target.clone() });
        }
        let is_adapted = |module: &str| self.target_modules.iter().any(|target| is_target(module, target));
        Ok(all.iter().filter(|(module, _)| is_adapted(module)).cloned().collect())
    }

    /// Names and shapes of the tensors in `adapter_model.safetensors`: A, `[r, in]`, and B, `[out, r]`, of each of the
    /// [`modules`](Self::modules).
    ///
    /// # Errors
    /// As [`modules`](Self::modules).
    pub fn tensors(
        &self,
        parameters: impl IntoIterator<Item = (String, Vec<usize>)>,
    ) -> Result<Vec<(String, Vec<usize>)>, ExportError> {
        Ok(self.tensors_of(&self.modules(parameters)?))
    }

    /// As [`tensors`](Self::tensors), of the [`modules`](Self::modules).
    pub(super) fn tensors_of(&self, modules: &[(String, [usize; 2])]) -> Vec<(String, Vec<usize>)> {
        let pair = |(module, [outputs, inputs]): &(String, [usize; 2])| {
            let [a, b] = Self::tensor_names(module);
            [(a, vec![self.r, *inputs]), (b, vec![*outputs, self.r])]
        };
        modules.iter().flat_map(pair).collect()
    }

    /// The name in the file of a tensor of [`tensors`](Self::tensors).
    pub(super) fn stored_name(&self, name: &str) -> String {
        match name.strip_prefix(PREFIX) {
            Some(module) if self.wrapped => format!("{PREFIX}{}", wrapper::whole_name(module)),
            _ => name.to_owned(),
        }
    }

    /// The name of a tensor in a file as [`tensors`](Self::tensors) has it, if it is one of a whole model.
    pub(super) fn own_name(stored: &str) -> Option<String> {
        let module = stored.strip_prefix(PREFIX)?;
        let own = wrapper::own_name(module).filter(|own| own != module)?;
        Some(format!("{PREFIX}{own}"))
    }

    /// Names of A and B of a linear layer (`model.layers.0.self_attn.q_proj`).
    #[must_use]
    pub fn tensor_names(module: &str) -> [String; 2] {
        ["lora_A", "lora_B"].map(|which| format!("{PREFIX}{module}.{which}.weight"))
    }
}

/// The first key that asks for something that is not applied here, with its value and what is supported. An unknown key
/// may ask for anything.
fn first_refused(json: &Value) -> Option<(&str, &Value, &'static str)> {
    let keys = json.as_object().into_iter().flatten().filter(|(_, value)| !is_neutral(value));
    keys.map(|(key, value)| (key.as_str(), value)).find_map(|(key, value)| {
        let text = value.as_str().unwrap_or_default();
        let (is_applied, hint) = match key {
            // Keys that are read, and keys that do not change the result.
            "base_model_name_or_path" | "r" | "lora_alpha" | "lora_dropout" | "use_rslora" => return None,
            "inference_mode" | "peft_version" | "revision" | "auto_mapping" | "megatron_core" => return None,
            "qalora_group_size" | "ensure_weight_tying" | "layers_pattern" | "eva_config" => return None,
            "peft_type" => (text == "LORA", "supported: LORA"),
            "task_type" => (text == "CAUSAL_LM", "supported: CAUSAL_LM"),
            "bias" => (text == "none", "biases of the base are not changed"),
            "target_modules" => (value.is_array(), "a list of names is needed, no pattern"),
            "init_lora_weights" => (
                value.is_boolean() || ["gaussian", "eva", "orthogonal"].contains(&text),
                "it changes the base too; PEFT's path_initial_model_for_weight_conversion saves it as plain LoRA",
            ),
            "rank_pattern" | "alpha_pattern" => (false, "all updates must have the same rank and alpha"),
            "layers_to_transform" | "exclude_modules" => (false, "every layer has the same updates"),
            _ => (false, "plain LoRA of linear layers only"),
        };
        (!is_applied).then_some((key, value, hint))
    })
}

/// Whether a value says that the key's feature is not used.
fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
