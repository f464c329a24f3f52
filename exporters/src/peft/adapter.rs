//! A PEFT directory, opened.

use std::{collections::HashMap, path::Path};

use shared::{WeightManifest, model::model_dir::ADAPTER_CONFIG_FILE};

use super::{ADAPTER_WEIGHTS_FILE, AdapterConfig, BASE_KEY, LowRank, config::MERGE};
use crate::{
    ExportError, finite, names,
    tensor_file::{self, TensorFile},
    weight_files::check_sums,
};

/// A LoRA adapter in memory, in fp32.
#[derive(Debug, Clone)]
pub struct Adapter {
    config: AdapterConfig,
    blake3: String,
    /// By the name of the linear layer.
    updates: HashMap<String, LowRank>,
}

impl Adapter {
    /// Reads a PEFT directory for a base with these parameters.
    ///
    /// # Errors
    /// As [`AdapterConfig::read`]; a broken file; a tensor that is missing, unknown, of another shape, of another
    /// element type than fp32, fp16 or bf16, or with values that are not finite (by name).
    pub fn open(dir: &Path, parameters: impl IntoIterator<Item = (String, Vec<usize>)>) -> Result<Self, ExportError> {
        let mut config = AdapterConfig::read(dir)?;
        let path = dir.join(ADAPTER_WEIGHTS_FILE);
        let refused = |message: String| ExportError::content(&path, message);
        if !path.is_file() {
            return Err(refused("no such file; save the adapter again with PEFT's save_pretrained".into()));
        }
        check_sums(dir, std::slice::from_ref(&path))?;
        let file = TensorFile::open(path.clone())?;
        config.base_blake3 = file.entry(BASE_KEY).map(str::to_owned);
        let mut stored: HashMap<_, _> = HashMap::new();
        for (name, tensor) in file.tensors()? {
            let own = AdapterConfig::own_name(&name);
            config.wrapped |= own.is_some();
            stored.insert(own.unwrap_or(name), tensor);
        }
        let all = stored.iter().map(|(name, tensor)| {
            (name.as_str(), &file.map[tensor.bytes.clone()], tensor.dtype, tensor.shape.as_slice())
        });
        if let Some(message) = finite::first_not_finite(all) {
            return Err(refused(message));
        }
        let modules = config
            .modules(parameters)
            .map_err(|error| ExportError::content(&dir.join(ADAPTER_CONFIG_FILE), format!("{error}; {MERGE}")))?;
        let asked: Vec<String> = modules.iter().flat_map(|(module, _)| AdapterConfig::tensor_names(module)).collect();
        if let Some(message) = names::wrapped(stored.keys().map(String::as_str), asked.iter().map(String::as_str)) {
            return Err(refused(message));
        }
        let mut take = |name: &str, shape: [usize; 2]| {
            let missing = || refused(format!("has no tensor {name}, which adapter_config.json asks for"));
            let tensor = stored.remove(name).ok_or_else(missing)?;
            if tensor.shape == shape {
                return Ok(file.read_f32(&tensor));
            }
            let found = &tensor.shape;
            Err(refused(format!(
                "tensor {name} has shape {found:?}, adapter_config.json and the base ask for {shape:?}"
            )))
        };
        let mut updates = HashMap::new();
        for (module, [outputs, inputs]) in modules {
            let [a, b] = AdapterConfig::tensor_names(&module);
            let (a, b) = (take(&a, [config.r, inputs])?, take(&b, [outputs, config.r])?);
            updates.insert(module, LowRank { scaling: config.scaling() as f32, a, b, r: config.r });
        }
        if let Some(extra) = stored.keys().min() {
            return Err(refused(format!("has a tensor {extra} that adapter_config.json does not ask for")));
        }
        Ok(Self { config, blake3: tensor_file::hash(&file.map), updates })
    }

    /// The adapter of a version directory, if it is one.
    ///
    /// # Errors
    /// As [`open`](Self::open), or another adapter than the manifest was written for.
    pub fn of_version(dir: &Path, manifest: &WeightManifest) -> Result<Option<Self>, ExportError> {
        let Some(entry) = &manifest.adapter else {
            return Ok(None);
        };
        let adapter = Self::open(dir, manifest.parameters())?;
        if adapter.blake3 != entry.blake3 {
            let message = "is not the adapter that the manifest was written for";
            return Err(ExportError::content(&dir.join(ADAPTER_WEIGHTS_FILE), message));
        }
        Ok(Some(adapter))
    }

    /// The adapter's configuration.
    #[must_use]
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// blake3 of `adapter_model.safetensors`, in hex.
    #[must_use]
    pub fn blake3(&self) -> &str {
        &self.blake3
    }

    /// Whether it is for a base with these weights ([`Checkpoint::weights_blake3`](crate::Checkpoint::weights_blake3)),
    /// as far as it says. `weights_blake3` is called if it does.
    ///
    /// # Errors
    /// Those of `weights_blake3`.
    pub fn is_for(&self, weights_blake3: impl FnOnce() -> Result<String, ExportError>) -> Result<bool, ExportError> {
        let Some(named) = &self.config.base_blake3 else { return Ok(true) };
        Ok(*named == weights_blake3()?)
    }

    /// Its tensors by their names in the file.
    pub fn tensors(&self) -> impl Iterator<Item = (String, &[f32])> {
        self.updates.iter().flat_map(|(module, update)| {
            let [a, b] = AdapterConfig::tensor_names(module);
            [(a, update.a()), (b, update.b())]
        })
    }

    /// Whether it adds anything: an adapter before its first update adds 0.
    #[must_use]
    pub fn is_trained(&self) -> bool {
        self.updates.values().any(|update| update.b().iter().any(|&b| b != 0.0))
    }

    /// The update of a parameter of the base, by its name; absent for most parameters.
    #[must_use]
    pub fn update(&self, parameter: &str) -> Option<&LowRank> {
        self.updates.get(parameter.strip_suffix(".weight")?)
    }

    /// The values of a parameter of the base with the update added.
    ///
    /// # Panics
    /// When a linear layer has another size than the one that the adapter was opened for.
    #[must_use]
    pub fn merged(&self, parameter: &str, mut base: Vec<f32>) -> Vec<f32> {
        if let Some(update) = self.update(parameter) {
            update.add_to(&mut base);
        }
        base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill_adapter;

    /// As in PEFT's own loader, missing layers are a matter of `target_modules`, not of another layout of names.
    #[test]
    fn an_adapter_of_other_layers_is_refused_with_the_tensor_that_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let layer = |name: &str| (format!("model.layers.0.self_attn.{name}.weight"), vec![4, 6]);
        let parameters = || ["q_proj", "k_proj", "v_proj"].map(layer);
        let of = |layers: [&str; 2]| AdapterConfig {
            base_model_name_or_path: "../model".into(),
            base_blake3: None,
            r: 2,
            lora_alpha: 2.0,
            lora_dropout: 0.0,
            target_modules: layers.map(str::to_owned).to_vec(),
            use_rslora: false,
            wrapped: false,
        };
        let write = |dir: &Path, layers| {
            fill_adapter(dir, &of(layers), parameters(), &mut |name| {
                Ok(vec![0.5; if name.contains("lora_A") { 12 } else { 8 }].into())
            })
            .unwrap();
        };
        let other = tempfile::tempdir().unwrap();
        write(dir.path(), ["q_proj", "v_proj"]);
        write(other.path(), ["q_proj", "k_proj"]);
        std::fs::copy(other.path().join(ADAPTER_CONFIG_FILE), dir.path().join(ADAPTER_CONFIG_FILE)).unwrap();
        let error = Adapter::open(dir.path(), parameters()).unwrap_err().to_string();
        let missing =
            "has no tensor base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight, which adapter_config.json";
        assert!(error.contains(missing), "{error}");
    }
}
