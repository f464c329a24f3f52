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
    /// In the order of [`ModelConfig::parameters`].
    names: Vec<String>,
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
        let mut checkpoint = Self { files: Vec::new(), names: Vec::new(), tensors: HashMap::new() };
        for path in weight_files(model.path())? {
            checkpoint.add_file(path)?;
        }
        checkpoint.check_shards(model.path())?;
        checkpoint.check(model.config(), model.path())?;
        Ok(checkpoint)
    }

    /// Names of the parameters, in the model's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Shape of a parameter, row-major.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|t| t.shape.as_slice())
    }

    /// Element type in the file.
    #[must_use]
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name).map(|t| t.dtype)
    }

    /// The values of a parameter, row-major.
    ///
    /// # Errors
    /// An unknown name.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let tensor = self.tensors.get(name).ok_or_else(|| ExportError::Values {
            name: name.into(),
            message: "the checkpoint has no parameter of that name".into(),
        })?;
        Ok(values::decode(self.bytes(tensor), tensor.dtype))
    }

    /// The weight files with their contents, in a fixed order.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.files.iter().map(|f| (f.path.as_path(), &f.map[..]))
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
        for (name, shape) in config.parameters() {
            self.check_parameter(&name, &shape, dir)?;
            self.names.push(name);
        }
        let known: BTreeSet<&str> = self.names.iter().map(String::as_str).collect();
        match self.tensors.keys().filter(|name| !known.contains(name.as_str())).min() {
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
    fn check_shards(&self, dir: &Path) -> Result<(), ExportError> {
        let Some(index) = ShardIndex::read(dir)? else {
            return Ok(());
        };
        for (name, shard) in &index.weight_map {
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

impl ShardIndex {
    /// None when the weights are one file.
    fn read(dir: &Path) -> Result<Option<Self>, ExportError> {
        let path = dir.join(INDEX);
        if dir.join(SINGLE).is_file() || !path.is_file() {
            return Ok(None);
        }
        let text = fs::read(&path).map_err(|e| ExportError::io(&path, e))?;
        let index: Self = serde_json::from_slice(&text)
            .map_err(|e| ExportError::content(&path, format!("not a safetensors index: {e}")))?;
        let outside = |name: &&String| Path::new(name).file_name() != Some(name.as_ref());
        match index.weight_map.values().find(outside) {
            Some(name) => Err(ExportError::content(&path, format!("`{name}` is not the name of a file beside it"))),
            None => Ok(Some(index)),
        }
    }
}

/// The weight files of a directory; as transformers does, one file goes before shards.
fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let single = dir.join(SINGLE);
    if single.is_file() {
        return Ok(vec![single]);
    }
    let Some(index) = ShardIndex::read(dir)? else {
        let message = format!(
            "no {SINGLE} and no {INDEX}; weights in another format are converted by transformers' save_pretrained"
        );
        return Err(ExportError::content(dir, message));
    };
    let shards: BTreeSet<&String> = index.weight_map.values().collect();
    Ok(shards.into_iter().map(|name| dir.join(name)).collect())
}

fn map(path: &Path) -> Result<Mmap, ExportError> {
    let file = File::open(path).map_err(|e| ExportError::io(path, e))?;
    // SAFETY: the mapping is read-only and private to `Checkpoint`. Files of weights are written once and replaced by
    // renaming, never in place (`shared::atomic`); truncation by a stranger would end the process with SIGBUS.
    unsafe { Mmap::map(&file) }.map_err(|e| ExportError::io(path, e))
}

/// Buffers that transformers once saved and now computes.
fn is_inverse_frequencies(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}
