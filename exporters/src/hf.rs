//! Back to a Hugging Face directory: `model.safetensors` in fp32 with everything else the model came with.

use std::{collections::HashMap, fs, io::Write, path::Path};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use serde_json::{Value, json};
use shared::{Architecture, Head, ModelConfig, ModelDir, atomic};

use crate::{ExportError, TensorSource, VersionDir, values};

/// Writes the folder `out`: the parameters that `read` gives as `model.safetensors` (fp32, Hugging Face names, sorted
/// by name) and the configuration, tokenizer and chat template of `model`. Where `config.json` states another element
/// type it is set to float32, because transformers would otherwise round the weights on loading. `out` appears whole
/// or not at all.
///
/// # Errors
/// An error of `read` or of the file system, or values that do not fit their shape (by name).
pub fn write_hf(model: &ModelDir, out: &Path, read: TensorSource<'_>) -> Result<(), ExportError> {
    atomic::write_dir(out, |dir| fill_hf(model, dir, read))
}

/// As [`write_hf`], for a model of [`fill_hf_scorer`].
///
/// # Errors
/// As [`write_hf`].
pub fn write_hf_scorer(model: &ModelDir, out: &Path, read: TensorSource<'_>) -> Result<(), ExportError> {
    atomic::write_dir(out, |dir| fill_hf_scorer(model, dir, read))
}

/// As [`write_hf`], into a folder that is there: one part of a larger [`atomic::write_dir`], such as a checkpoint.
///
/// # Errors
/// As [`write_hf`]; the folder may then have some of the files.
pub fn fill_hf(model: &ModelDir, dir: &Path, read: TensorSource<'_>) -> Result<(), ExportError> {
    write_safetensors(model.config(), &dir.join("model.safetensors"), read)?;
    copy_companions(model, dir, as_float32)
}

/// As [`fill_hf`], for the transformer of `model` under `score.weight` with one label, whatever head `model` has itself:
/// `config.json` then names `…ForSequenceClassification`.
///
/// # Errors
/// As [`fill_hf`].
pub fn fill_hf_scorer(model: &ModelDir, dir: &Path, read: TensorSource<'_>) -> Result<(), ExportError> {
    let config = ModelConfig { head: Head::Score { labels: 1 }, ..model.config().clone() };
    write_safetensors(&config, &dir.join("model.safetensors"), read)?;
    copy_companions(model, dir, |config| {
        as_float32(config);
        as_scorer(config, model.config().architecture);
        true
    })
}

/// Copies everything beside the weights; `rewrite` changes `config.json` and says whether it did.
fn copy_companions(model: &ModelDir, dir: &Path, rewrite: impl Fn(&mut Value) -> bool) -> Result<(), ExportError> {
    for source in model.companions() {
        let name = source.file_name().expect("a companion is a file of the model directory");
        let mut content = fs::read(&source).map_err(|e| ExportError::io(&source, e))?;
        if name == "config.json" {
            let mut config = serde_json::from_slice(&content)
                .map_err(|e| ExportError::content(&source, format!("is not valid JSON: {e}")))?;
            if rewrite(&mut config) {
                content = format!("{config:#}\n").into_bytes();
            }
        }
        atomic::write(&dir.join(name), &content)?;
    }
    Ok(())
}

/// `config.json` of a sequence classifier with one label.
fn as_scorer(config: &mut Value, architecture: Architecture) {
    let family = match architecture {
        Architecture::Llama => "Llama",
        Architecture::Qwen2 => "Qwen2",
        Architecture::Qwen3 => "Qwen3",
    };
    config["architectures"] = json!([format!("{family}ForSequenceClassification")]);
    config["id2label"] = json!({"0": "LABEL_0"});
    config["label2id"] = json!({"LABEL_0": 0});
    if let Some(config) = config.as_object_mut() {
        config.remove("num_labels");
    }
}

/// Writes a published version back as a Hugging Face directory that transformers loads.
///
/// # Errors
/// A version whose weights are damaged or belong to another model, or an error of the file system.
pub fn version_to_hf(model: &ModelDir, version_dir: &Path, out: &Path) -> Result<(), ExportError> {
    let version = VersionDir::open(version_dir)?;
    if !version.is_intact() {
        return Err(ExportError::content(version_dir, "the weights differ from the checksum in the manifest"));
    }
    if !version.manifest().is_of(model.config()) {
        let message = format!("not a version of the model in {}: other parameters", model.path().display());
        return Err(ExportError::content(version_dir, message));
    }
    write_hf(model, out, &mut |name| Ok(version.read_f32(name)?))
}

fn write_safetensors(config: &ModelConfig, path: &Path, read: TensorSource<'_>) -> Result<(), ExportError> {
    let mut parameters = config.parameters();
    parameters.sort();
    let (header, length) = safetensors_header(&parameters);
    atomic::require_space(path, header.len() as u64 + length)?;
    atomic::write_with(path, |file| {
        file.write_all(&header).map_err(|e| ExportError::io(path, e))?;
        for (name, shape) in &parameters {
            let values = read(name).map_err(|source| ExportError::Tensor { name: name.clone(), source })?;
            values::check_length(name, shape, shape.iter().product::<usize>() as u64, values.len())?;
            let bytes = values::encode(name, &values, shared::Dtype::Fp32)?;
            file.write_all(&bytes).map_err(|e| ExportError::io(path, e))?;
        }
        Ok(())
    })
}

/// Length prefix and header of the file, and the length of the tensors that follow. The crate's own writer wants all
/// tensors at hand, which a trainer with little memory to spare cannot give.
fn safetensors_header(parameters: &[(String, Vec<usize>)]) -> (Vec<u8>, u64) {
    let mut end = 0;
    let tensors = parameters
        .iter()
        .map(|(name, shape)| {
            let start = end;
            end += shape.iter().product::<usize>() * size_of::<f32>();
            (name.clone(), TensorInfo { dtype: Dtype::F32, shape: shape.clone(), data_offsets: (start, end) })
        })
        .collect();
    // transformers refuses files without this entry.
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    let metadata = Metadata::new(Some(format), tensors).expect("the tensors follow one another without a gap");
    let mut json = serde_json::to_vec(&metadata).expect("a header is always valid JSON");
    json.resize(json.len().next_multiple_of(size_of::<u64>()), b' ');
    ([&(json.len() as u64).to_le_bytes(), json.as_slice()].concat(), end as u64)
}

/// Sets the element type (`torch_dtype`, in transformers 5 `dtype`) to float32; returns whether another one was stated.
fn as_float32(config: &mut Value) -> bool {
    let mut changed = false;
    for key in ["torch_dtype", "dtype"] {
        if let Some(dtype) = config.get_mut(key).filter(|v| v.as_str() != Some("float32")) {
            *dtype = "float32".into();
            changed = true;
        }
    }
    changed
}
