//! Checks that the contents of a checkpoint can be read, and what can be checked without its list of checksums.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Damage, STATE_FILE, unreadable};
use crate::{
    Dtype, ModelDir, WeightManifest,
    model::{
        manifest::{DATA_FILE, MANIFEST_FILE, TensorEntry},
        model_dir::ADAPTER_CONFIG_FILE,
    },
};

/// Most bytes of a JSON file that is parsed; tokenizers are larger than others.
const MOST_JSON: u64 = 512 << 20;
/// Longest header of a safetensors file, as the format has it.
const MOST_HEADER: u64 = 100_000_000;
/// Weights of the policy.
const WEIGHTS: &str = "model.safetensors";

/// Checks the files without which no run could resume: every JSON file holds JSON, every safetensors file has the
/// length that its header gives, and the model can be opened.
pub fn look(dir: &Path, files: impl IntoIterator<Item = PathBuf>) -> Result<(), Damage> {
    for path in files {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => drop(parse(dir, &path)?),
            Some("safetensors") => drop(Header::read(dir, &path)?),
            _ => (),
        }
    }
    let state = parse(dir, Path::new(STATE_FILE))?;
    if !state.is_object() {
        return Err(damaged(STATE_FILE, "is no trainer state"));
    }
    if dir.join("config.json").exists() && !dir.join(ADAPTER_CONFIG_FILE).exists() {
        ModelDir::open(dir).map_err(|error| damaged("config.json", format!("cannot be used: {error}")))?;
    }
    Ok(())
}

/// Every file of a checkpoint without a list, by its path within the checkpoint.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>, Damage> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(within) = folders.pop() {
        let failed = unreadable(&within.display().to_string());
        for entry in fs::read_dir(dir.join(&within)).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let path = within.join(entry.file_name());
            let list = if entry.file_type().map_err(&failed)?.is_dir() { &mut folders } else { &mut found };
            list.push(path);
        }
    }
    Ok(found)
}

fn parse(dir: &Path, file: &Path) -> Result<Value, Damage> {
    let name = file.display().to_string();
    let text = shared_bounds::read(&dir.join(file), MOST_JSON).map_err(unreadable(&name))?;
    serde_json::from_slice(&text).map_err(|error| damaged(&name, format!("is not valid JSON: {error}")))
}

fn damaged(file: &str, reason: impl Into<String>) -> Damage {
    Damage::Content { file: file.to_owned(), reason: reason.into() }
}

/// The header of a safetensors file.
struct Header {
    file: fs::File,
    /// Where the tensors begin.
    start: u64,
    tensors: HashMap<String, Tensor>,
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    data_offsets: [u64; 2],
}

impl Header {
    fn read(dir: &Path, path: &Path) -> Result<Self, Damage> {
        let name = path.display().to_string();
        let no_tensors = |why: &str| damaged(&name, format!("is no whole safetensors file: {why}"));
        let mut file = shared_bounds::open(&dir.join(path)).map_err(unreadable(&name))?;
        let length = file.metadata().map_err(unreadable(&name))?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|_| no_tensors("it is too short"))?;
        let size = u64::from_le_bytes(size);
        if size > MOST_HEADER.min(length) {
            return Err(no_tensors("its header is longer than it"));
        }
        let mut header = Vec::new();
        (&mut file).take(size).read_to_end(&mut header).map_err(unreadable(&name))?;
        let header: Map<String, Value> =
            serde_json::from_slice(&header).map_err(|error| no_tensors(&error.to_string()))?;
        let mut tensors = HashMap::new();
        for (key, value) in header.into_iter().filter(|(key, _)| key != "__metadata__") {
            let tensor = serde_json::from_value(value).map_err(|error| no_tensors(&format!("{key}: {error}")))?;
            tensors.insert(key, tensor);
        }
        let start = 8 + size;
        let end = tensors.values().map(|tensor: &Tensor| tensor.data_offsets[1]).max().unwrap_or(0);
        if start.checked_add(end) != Some(length) {
            return Err(no_tensors("it is not as long as its header says"));
        }
        Ok(Self { file, start, tensors })
    }
}

/// Agreement between the files of a checkpoint without a list: the hashes in the manifest are those of the model's
/// weights and of the export's.
pub fn compare(dir: &Path) -> Result<(), Damage> {
    let required = if dir.join(ADAPTER_CONFIG_FILE).exists() { ADAPTER_CONFIG_FILE } else { "config.json" };
    if !dir.join(required).exists() {
        return Err(Damage::Missing(required.into()));
    }
    if !dir.join(MANIFEST_FILE).exists() {
        return Ok(());
    }
    let manifest =
        WeightManifest::read_alone(dir).map_err(|error| damaged(MANIFEST_FILE, format!("cannot be used: {error}")))?;
    if manifest.adapter.is_some() {
        return Ok(());
    }
    let data: PathBuf = dir.join(DATA_FILE);
    let mut data = shared_bounds::open(&data).map_err(unreadable(DATA_FILE))?;
    let mut model = dir.join(WEIGHTS).exists().then(|| Header::read(dir, Path::new(WEIGHTS))).transpose()?;
    for entry in &manifest.tensors {
        if hash(&mut data, entry.offset, entry.length).map_err(unreadable(DATA_FILE))? != entry.blake3 {
            return Err(damaged(DATA_FILE, format!("has other values of {} than the manifest says", entry.name)));
        }
        if let Some(model) = &mut model
            && let Some([begin, end]) = model.range(entry)
            && hash(&mut model.file, begin, end - begin).map_err(unreadable(WEIGHTS))? != entry.blake3
        {
            return Err(damaged(WEIGHTS, format!("has other values of {} than the export beside it", entry.name)));
        }
    }
    Ok(())
}

impl Header {
    /// Range of the bytes that must equal those of an entry of the manifest.
    fn range(&self, entry: &TensorEntry) -> Option<[u64; 2]> {
        let tensor =
            self.tensors.get(&entry.name).filter(|tensor| entry.dtype == Dtype::Fp32 && tensor.dtype == "F32")?;
        let [begin, end] = tensor.data_offsets.map(|offset| self.start + offset);
        (end.checked_sub(begin) == Some(entry.length)).then_some([begin, end])
    }
}

fn hash(file: &mut fs::File, offset: u64, length: u64) -> io::Result<String> {
    file.seek(SeekFrom::Start(offset))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file.take(length))?;
    Ok(hasher.finalize().to_hex().to_string())
}
