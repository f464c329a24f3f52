//! A PEFT directory, opened.

use std::{collections::HashMap, path::Path};

use shared::ModelConfig;

use super::{ADAPTER_WEIGHTS_FILE, AdapterConfig, BASE_KEY, LowRank};
use crate::{ExportError, tensor_file::TensorFile};

/// A LoRA adapter in memory, in fp32.
#[derive(Debug, Clone)]
pub struct Adapter {
    config: AdapterConfig,
    blake3: String,
    /// By the name of the linear layer.
    updates: HashMap<String, LowRank>,
}

impl Adapter {
    /// Reads a PEFT directory for a base of this configuration.
    ///
    /// # Errors
    /// What [`AdapterConfig::read`] refuses; a broken file; a tensor that is missing, unknown, of another shape or of another
    /// element type than fp32, fp16 or bf16 (by name).
    pub fn open(dir: &Path, model: &ModelConfig) -> Result<Self, ExportError> {
        let mut config = AdapterConfig::read(dir)?;
        let path = dir.join(ADAPTER_WEIGHTS_FILE);
        let refused = |message: String| ExportError::content(&path, message);
        if !path.is_file() {
            return Err(refused("no such file; save the adapter again with PEFT's save_pretrained".into()));
        }
        let file = TensorFile::open(path.clone())?;
        config.base_blake3 = file.entry(BASE_KEY).map(str::to_owned);
        let mut stored: HashMap<_, _> = file.tensors()?.into_iter().collect();
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
        for (module, [outputs, inputs]) in config.modules(model.parameters())? {
            let [a, b] = AdapterConfig::tensor_names(&module);
            let (a, b) = (take(&a, [config.r, inputs])?, take(&b, [outputs, config.r])?);
            updates.insert(module, LowRank { scaling: config.scaling() as f32, a, b, r: config.r });
        }
        if let Some(extra) = stored.keys().min() {
            return Err(refused(format!("has a tensor {extra} that adapter_config.json does not ask for")));
        }
        let blake3 = blake3::Hasher::new().update_rayon(&file.map).finalize().to_hex().to_string();
        Ok(Self { config, blake3, updates })
    }

    /// What the adapter is.
    #[must_use]
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// blake3 of `adapter_model.safetensors`, in hex.
    #[must_use]
    pub fn blake3(&self) -> &str {
        &self.blake3
    }

    /// What is added to a parameter of the base, by its name; most have nothing.
    #[must_use]
    pub fn update(&self, parameter: &str) -> Option<&LowRank> {
        self.updates.get(parameter.strip_suffix(".weight")?)
    }

    /// The values of a parameter of the base with the update added.
    ///
    /// # Panics
    /// When a linear layer has not the size that the adapter was opened for.
    #[must_use]
    pub fn merged(&self, parameter: &str, mut base: Vec<f32>) -> Vec<f32> {
        if let Some(update) = self.update(parameter) {
            update.add_to(&mut base);
        }
        base
    }
}
