//! The weights of a Hugging Face directory: `model.safetensors` or the shards of `model.safetensors.index.json`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use shared::{BaseFormat, Experts, ModelConfig, ModelDir, model::model_dir::ADAPTER_CONFIG_FILE, system::memory};

use crate::{
    Adapter, Codes, ExportError, finite, names,
    onnx::decoder::{EMBEDDING, LM_HEAD},
    tensor_file::{Tensor, TensorFile, is_inverse_frequencies},
    values,
    weight_files::{INDEX, check_sums, weight_files},
    wrapper,
};

/// The mapped weights of a model directory, checked against its configuration.
///
/// The files must not be overwritten while they are mapped; a new version belongs into a new file.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<TensorFile>,
    /// By name, with the number of the file.
    tensors: HashMap<String, (usize, Tensor)>,
    adapter: Option<Adapter>,
}

impl Checkpoint {
    /// Maps the weights and checks that they are exactly the parameters of the configuration. A stored `lm_head.weight`
    /// of a tied model is passed over when it equals the embedding, and so are the rotary `inv_freq` buffers of old
    /// checkpoints and keys and values of layers that read those of others. An adapter is added to the values that are
    /// read.
    ///
    /// # Errors
    /// No weights, a broken file (by name), a file of a checkpoint that is not what was written, an element type other
    /// than fp32, fp16 or bf16, or a parameter that is missing, unknown, of another shape, or has values that are not
    /// finite (by name); an adapter that cannot be opened, or is for other weights.
    pub fn open(model: &ModelDir) -> Result<Self, ExportError> {
        let dir = model.path();
        let mut checkpoint = Self { files: Vec::new(), tensors: HashMap::new(), adapter: None };
        let (files, shard_of) = weight_files(dir)?;
        check_sums(dir, &files)?;
        files.into_iter().try_for_each(|file| checkpoint.add_file(file))?;
        checkpoint.check_shards(&shard_of, dir)?;
        if model.config().wrapped || checkpoint.is_named_as_in_a_whole() {
            checkpoint.keep_text_model();
        }
        checkpoint.check(model.config(), dir)?;
        checkpoint.check_finite(dir)?;
        if let Some(folder) = model.adapter() {
            checkpoint.add_adapter(Adapter::open(folder, model.config().parameters())?, folder, dir)?;
        }
        Ok(checkpoint)
    }

    fn add_adapter(&mut self, adapter: Adapter, folder: &Path, base: &Path) -> Result<(), ExportError> {
        if !adapter.is_for(|| Ok(self.weights_blake3()))? {
            let message = format!(
                "is an adapter for other weights than those in {}; let `base_model_name_or_path` of its \
                 {ADAPTER_CONFIG_FILE} name the folder that it was trained on",
                base.display()
            );
            return Err(ExportError::content(folder, message));
        }
        self.adapter = Some(adapter);
        Ok(())
    }

    /// The values of a parameter, row-major, with what an adapter adds to it.
    ///
    /// # Errors
    /// An unknown name.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let unknown = || ExportError::values(name, "the checkpoint has no parameter of that name");
        let (file, tensor) = self.tensors.get(name).ok_or_else(unknown)?;
        let values = self.files[*file].read_f32(tensor);
        Ok(match &self.adapter {
            Some(adapter) => adapter.merged(name, values),
            None => values,
        })
    }

    /// The codes of a parameter in a quantised base, or `None` for one that keeps its digits. What an adapter adds is
    /// added before.
    ///
    /// # Errors
    /// An unknown name.
    pub fn codes(&self, name: &str, format: BaseFormat) -> Result<Option<Codes>, ExportError> {
        let shape = self.tensors.get(name).map(|(_, tensor)| tensor.shape.as_slice()).unwrap_or_default();
        let Some(matrix) = BaseFormat::matrix(name, shape) else { return Ok(None) };
        Ok(Some(Codes::of(format, &self.read_f32(name)?, matrix)))
    }

    /// Whether the adapter changes any bit of its base.
    pub(crate) fn differs_from_base(&self) -> Result<bool, ExportError> {
        for (name, (file, tensor)) in &self.tensors {
            let adapted = self.adapter.as_ref().is_some_and(|adapter| adapter.update(name).is_some());
            if adapted && !values::same_bits(&self.read_f32(name)?, &self.files[*file].read_f32(tensor)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The adapter that is added to the values that are read.
    #[must_use]
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// blake3 over the contents of the weight files, in hex, without an adapter: the name of a base in its adapters.
    #[must_use]
    pub fn weights_blake3(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for file in &self.files {
            hasher.update(&(file.map.len() as u64).to_le_bytes());
            hasher.update_rayon(&file.map);
        }
        hasher.finalize().to_hex().to_string()
    }

    fn bytes(&self, (file, tensor): &(usize, Tensor)) -> &[u8] {
        &self.files[*file].map[tensor.bytes.clone()]
    }

    fn add_file(&mut self, path: PathBuf) -> Result<(), ExportError> {
        let file = TensorFile::open(path)?;
        for (name, tensor) in file.tensors()? {
            if let Some((first, _)) = self.tensors.insert(name.clone(), (self.files.len(), tensor)) {
                let message = format!("tensor {name} is also in {}", self.files[first].path.display());
                return Err(ExportError::content(&file.path, message));
            }
        }
        self.files.push(file);
        Ok(())
    }

    /// Whether there are tensors of a text model alone, under their names in a whole: so transformers saves the text
    /// model of Qwen3.5, if it was opened from one.
    fn is_named_as_in_a_whole(&self) -> bool {
        let mut names = self.tensors.keys();
        names.all(|name| wrapper::own_name(name).is_some())
    }

    /// Keeps the text model's tensors of a whole model, under its own names.
    fn keep_text_model(&mut self) {
        let all = std::mem::take(&mut self.tensors);
        let own = |(name, place): (String, _)| Some((wrapper::own_name(&name)?.into_owned(), place));
        self.tensors = all.into_iter().filter_map(own).collect();
    }

    fn check(&mut self, config: &ModelConfig, dir: &Path) -> Result<(), ExportError> {
        if config.tie_word_embeddings {
            self.drop_redundant_head(config, dir)?;
        }
        self.tensors.retain(|name, _| !is_inverse_frequencies(name) && !config.passes_over(name));
        self.check_experts(config, dir)?;
        self.check_names(config, dir)?;
        self.check_layers(config, dir)?;
        let parameters = config.parameters();
        parameters.iter().try_for_each(|(name, shape)| self.check_parameter(name, shape, config, dir))?;
        let known: BTreeSet<&String> = parameters.iter().map(|(name, _)| name).collect();
        match self.tensors.keys().filter(|name| !known.contains(name)).min() {
            None => Ok(()),
            Some(extra) => Err(ExportError::content(
                dir,
                format!("the weights have a tensor {extra} that a model with this config.json does not have"),
            )),
        }
    }

    /// Checks that the names are those of transformers. A configuration with more layers than tensors is not a matter
    /// of names, and no names are made for all of its layers.
    fn check_names(&self, config: &ModelConfig, dir: &Path) -> Result<(), ExportError> {
        let parameters =
            ModelConfig { num_hidden_layers: config.num_hidden_layers.min(self.tensors.len()), ..config.clone() };
        let parameters = parameters.parameters();
        let asked = parameters.iter().map(|(name, _)| name.as_str());
        match names::foreign(self.tensors.keys().map(String::as_str), asked) {
            None => Ok(()),
            Some(message) => Err(ExportError::content(dir, message)),
        }
    }

    /// Checks that all values are finite. Weights that do not fit into memory are not checked: loading them is refused
    /// with the figures.
    fn check_finite(&self, dir: &Path) -> Result<(), ExportError> {
        let bytes: u64 = self.tensors.values().map(|(_, tensor)| tensor.bytes.len() as u64).sum();
        if memory::available().is_ok_and(|available| bytes > available) {
            return Ok(());
        }
        let tensors = self
            .tensors
            .iter()
            .map(|(name, place)| (name.as_str(), self.bytes(place), place.1.dtype, place.1.shape.as_slice()));
        finite::first_not_finite(tensors).map_or(Ok(()), |message| Err(ExportError::content(dir, message)))
    }

    /// Checks that the weights have as many experts as the configuration, where either has some.
    fn check_experts(&self, config: &ModelConfig, dir: &Path) -> Result<(), ExportError> {
        let found =
            self.tensors.keys().filter_map(|name| Experts::number_in(name)).max().map(|last| last.saturating_add(1));
        let fused = |name: &&String| name.ends_with(".mlp.experts.gate_up_proj");
        let message = match (&config.experts, found) {
            (Some(experts), Some(found)) if found != experts.count => {
                format!("config.json: `num_experts` = {}, but the weights have {found} experts", experts.count)
            }
            (Some(_), None) => match self.tensors.keys().find(fused) {
                None => return Ok(()),
                Some(name) => format!(
                    "the weights have all experts of a layer in one tensor, {name}: save the model with transformers' \
                     save_pretrained, which writes them one by one"
                ),
            },
            (None, Some(found)) => {
                format!("the weights have {found} experts in a layer, but a model with this config.json has none")
            }
            _ => return Ok(()),
        };
        Err(ExportError::content(dir, message))
    }

    /// Checks that the weights have as many layers as the configuration, before anything is made for each layer.
    fn check_layers(&self, config: &ModelConfig, dir: &Path) -> Result<(), ExportError> {
        let layer = |name: &String| name.strip_prefix("model.layers.")?.split('.').next()?.parse::<usize>().ok();
        let layers = self.tensors.keys().filter_map(layer).max().map_or(0, |last| last.saturating_add(1));
        if config.num_hidden_layers <= layers {
            return Ok(());
        }
        let message = format!(
            "config.json: `num_hidden_layers` = {}, but the weights have {layers} layers",
            config.num_hidden_layers
        );
        Err(ExportError::content(dir, message))
    }

    fn check_parameter(
        &self,
        name: &str,
        shape: &[usize],
        config: &ModelConfig,
        dir: &Path,
    ) -> Result<(), ExportError> {
        let Some((file, tensor)) = self.tensors.get(name) else {
            let hint = match name == LM_HEAD {
                true => format!(" (with `{}` true it would not be needed)", key_of_tying(config)),
                false => String::new(),
            };
            return Err(ExportError::content(dir, format!("the weights have no tensor {name}{hint}")));
        };
        if tensor.shape == shape {
            return Ok(());
        }
        let message = format!("tensor {name} has shape {:?}, config.json asks for {shape:?}", tensor.shape);
        Err(ExportError::content(&self.files[*file].path, message))
    }

    /// transformers ties only when both tensors are equal (`PreTrainedModel.tie_weights`); a head that differs would
    /// be lost here.
    fn drop_redundant_head(&mut self, config: &ModelConfig, dir: &Path) -> Result<(), ExportError> {
        let (Some(head), Some(embedding)) = (self.tensors.get(LM_HEAD), self.tensors.get(EMBEDDING)) else {
            // A file that has the head alone is tied the other way round, as transformers does.
            if let Some(head) = self.tensors.remove(LM_HEAD) {
                self.tensors.insert(EMBEDDING.to_owned(), head);
            }
            return Ok(());
        };
        if head.1.dtype != embedding.1.dtype || self.bytes(head) != self.bytes(embedding) {
            let message = format!(
                "config.json: `{key}` = true, but the weights have a lm_head.weight that differs from the embedding; \
                 set it to false",
                key = key_of_tying(config)
            );
            return Err(ExportError::content(dir, message));
        }
        self.tensors.remove(LM_HEAD);
        Ok(())
    }

    /// Every tensor of the index must be in the shard it names.
    fn check_shards(&self, shard_of: &BTreeMap<String, String>, dir: &Path) -> Result<(), ExportError> {
        for (name, shard) in shard_of {
            let found = self.tensors.get(name).map(|(file, _)| &self.files[*file].path);
            if found != Some(&dir.join(shard)) && !is_inverse_frequencies(name) {
                let message = format!("names tensor {name} in {shard}, which does not have it");
                return Err(ExportError::content(&dir.join(INDEX), message));
            }
        }
        Ok(())
    }
}

/// The key of config.json that says whether the head is the embedding.
fn key_of_tying(config: &ModelConfig) -> &'static str {
    if config.wrapped { "text_config.tie_word_embeddings" } else { "tie_word_embeddings" }
}
