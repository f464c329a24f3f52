//! The weights of a Hugging Face directory: `model.safetensors` or the shards of `model.safetensors.index.json`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    ops::Range,
    path::{Path, PathBuf},
};

use memmap2::Mmap;
use safetensors::SafeTensors;
use serde::Deserialize;
use shared::{Dtype, ModelConfig, ModelDir};

use crate::{ExportError, values};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const EMBEDDING: &str = "model.embed_tokens.weight";
const LM_HEAD: &str = "lm_head.weight";

/// The mapped weights of a model directory, checked against its configuration.
///
/// The files must not be overwritten while they are mapped; a new version belongs into a new file.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<MappedFile>,
    tensors: HashMap<String, Tensor>,
}

#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

#[derive(Debug)]
struct Tensor {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl Checkpoint {
    /// Maps the weights and checks that they are exactly the parameters of the configuration. A stored
    /// `lm_head.weight` of a tied model is passed over when it equals the embedding, and so are the rotary
    /// `inv_freq` buffers of old checkpoints.
    ///
    /// # Errors
    /// No weights, a broken file (by name), an element type other than fp32, fp16 or bf16, or a parameter that is
    /// missing, unknown or of another shape (by name).
    pub fn open(model: &ModelDir) -> Result<Self, ExportError> {
        let dir = model.path();
        let mut checkpoint = Self { files: Vec::new(), tensors: HashMap::new() };
        let (files, shard_of) = weight_files(dir)?;
        files.into_iter().try_for_each(|file| checkpoint.add_file(file))?;
        checkpoint.check_shards(&shard_of, dir)?;
        checkpoint.check(model.config(), dir)?;
        Ok(checkpoint)
    }

    /// The values of a parameter, row-major.
    ///
    /// # Errors
    /// An unknown name.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let unknown = || ExportError::values(name, "the checkpoint has no parameter of that name");
        let tensor = self.tensors.get(name).ok_or_else(unknown)?;
        Ok(values::decode(self.bytes(tensor), tensor.dtype))
    }

    /// The contents of the weight files, in a fixed order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.files.iter().map(|f| &f.map[..])
    }

    fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.files[tensor.file].map[tensor.bytes.clone()]
    }

    fn add_file(&mut self, path: PathBuf) -> Result<(), ExportError> {
        let map = map(&path)?;
        let broken = |e: safetensors::SafeTensorError| {
            ExportError::content(&path, format!("not a whole safetensors file: {e}; download or write it again"))
        };
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(broken)?;
        let start = header + size_of::<u64>();
        for name in metadata.offset_keys() {
            let info = metadata.info(&name).expect("the name is one of the file's");
            let dtype = match info.dtype {
                safetensors::Dtype::F32 => Dtype::Fp32,
                safetensors::Dtype::F16 => Dtype::Fp16,
                safetensors::Dtype::BF16 => Dtype::Bf16,
                _ if is_inverse_frequencies(&name) => continue,
                other => {
                    let message = format!("tensor {name} has element type {other}; supported: F32, F16, BF16");
                    return Err(ExportError::content(&path, message));
                }
            };
            let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
            let tensor = Tensor { file: self.files.len(), dtype, shape: info.shape.clone(), bytes };
            if let Some(first) = self.tensors.insert(name.clone(), tensor) {
                let message = format!("tensor {name} is also in {}", self.files[first.file].path.display());
                return Err(ExportError::content(&path, message));
            }
        }
        self.files.push(MappedFile { path, map });
        Ok(())
    }

    fn check(&mut self, config: &ModelConfig, dir: &Path) -> Result<(), ExportError> {
        if config.tie_word_embeddings {
            self.drop_redundant_head(dir)?;
        }
        self.tensors.retain(|name, _| !is_inverse_frequencies(name));
        let parameters = config.parameters();
        parameters.iter().try_for_each(|(name, shape)| self.check_parameter(name, shape, dir))?;
        let known: BTreeSet<&String> = parameters.iter().map(|(name, _)| name).collect();
        match self.tensors.keys().filter(|name| !known.contains(name)).min() {
            None => Ok(()),
            Some(extra) => Err(ExportError::content(
                dir,
                format!("the weights have a tensor {extra} that a model with this config.json does not have"),
            )),
        }
    }

    fn check_parameter(&self, name: &str, shape: &[usize], dir: &Path) -> Result<(), ExportError> {
        let Some(tensor) = self.tensors.get(name) else {
            let hint = if name == LM_HEAD { " (with `tie_word_embeddings` true it would not be needed)" } else { "" };
            return Err(ExportError::content(dir, format!("the weights have no tensor {name}{hint}")));
        };
        if tensor.shape == shape {
            return Ok(());
        }
        let message = format!("tensor {name} has shape {:?}, config.json asks for {shape:?}", tensor.shape);
        Err(ExportError::content(&self.files[tensor.file].path, message))
    }

    /// transformers ties only when both tensors are equal (`PreTrainedModel.tie_weights`); a head that differs would
    /// be lost here.
    fn drop_redundant_head(&mut self, dir: &Path) -> Result<(), ExportError> {
        let (Some(head), Some(embedding)) = (self.tensors.get(LM_HEAD), self.tensors.get(EMBEDDING)) else {
            return Ok(());
        };
        if head.dtype != embedding.dtype || self.bytes(head) != self.bytes(embedding) {
            let message = "config.json: `tie_word_embeddings` = true, but the weights have a lm_head.weight that \
                           differs from the embedding; set it to false";
            return Err(ExportError::content(dir, message));
        }
        self.tensors.remove(LM_HEAD);
        Ok(())
    }

    /// Every tensor of the index must be in the shard it names.
    fn check_shards(&self, shard_of: &BTreeMap<String, String>, dir: &Path) -> Result<(), ExportError> {
        for (name, shard) in shard_of {
            let found = self.tensors.get(name).map(|t| &self.files[t.file].path);
            if found != Some(&dir.join(shard)) && !is_inverse_frequencies(name) {
                let message = format!("names tensor {name} in {shard}, which does not have it");
                return Err(ExportError::content(&dir.join(INDEX), message));
            }
        }
        Ok(())
    }
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct ShardIndex {
    /// Tensor name to file name.
    weight_map: BTreeMap<String, String>,
}

/// The weight files of a directory, and the one of each tensor where they are shards; as transformers does, one file goes
/// before shards.
fn weight_files(dir: &Path) -> Result<(Vec<PathBuf>, BTreeMap<String, String>), ExportError> {
    let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
    if single.is_file() {
        return Ok((vec![single], BTreeMap::new()));
    }
    if !index.is_file() {
        let message = format!(
            "no {SINGLE} and no {INDEX}; weights in another format are converted by transformers' save_pretrained"
        );
        return Err(ExportError::content(dir, message));
    }
    let text = fs::read(&index).map_err(|e| ExportError::io(&index, e))?;
    let ShardIndex { weight_map } = serde_json::from_slice(&text)
        .map_err(|e| ExportError::content(&index, format!("not a safetensors index: {e}")))?;
    let shards: BTreeSet<&String> = weight_map.values().collect();
    if let Some(name) = shards.iter().find(|name| Path::new(name).file_name() != Some(name.as_ref())) {
        return Err(ExportError::content(&index, format!("`{name}` is not the name of a file beside it")));
    }
    Ok((shards.into_iter().map(|name| dir.join(name)).collect(), weight_map))
}

/// Maps a file of weights.
pub(crate) fn map(path: &Path) -> Result<Mmap, ExportError> {
    let file = File::open(path).map_err(|e| ExportError::io(path, e))?;
    // SAFETY: the mapping is read-only and goes out as shared slices only. Files of weights are written once and replaced by
    // renaming, never in place (`shared::atomic`); truncation by a stranger would end the process with SIGBUS.
    unsafe { Mmap::map(&file) }.map_err(|e| ExportError::io(path, e))
}

/// Buffers that transformers once saved and now computes.
fn is_inverse_frequencies(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}
