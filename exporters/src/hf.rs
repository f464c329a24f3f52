//! Back to a Hugging Face directory: `model.safetensors` in fp32 with everything else the model came with.

use std::{collections::BTreeMap, ffi::OsStr, fs, path::Path};

use serde_json::{Value, json};
use shared::{
    Architecture, Dtype, Head, ModelConfig, ModelDir,
    files::atomic,
    model::model_dir::{ModelDirError, TEMPLATE_DIR},
};

use crate::{
    Checkpoint, ExportError, TensorSource, VersionDir, tensor_file,
    wrapper::{Whole, whole_name},
};

/// The file of the model's configuration.
const CONFIG: &str = "config.json";

/// Writes the folder `out`: the parameters that `read` gives as `model.safetensors` (fp32, Hugging Face names, sorted
/// by name) and the configuration, tokenizer and chat template of `model`. Where `config.json` states another element
/// type it is set to float32, because transformers would otherwise round the weights on loading. `out` appears whole
/// or not at all.
///
/// # Errors
/// An error of `read` or of the file system, values that do not fit their shape (by name), or a file that, opened
/// again, does not hold them bit for bit.
pub fn write_hf(model: &ModelDir, out: &Path, read: TensorSource<'_, '_>) -> Result<(), ExportError> {
    atomic::write_dir(out, |dir| fill_hf(model, dir, read))
}

/// As [`write_hf`], for a model of [`fill_hf_scorer`].
///
/// # Errors
/// As [`write_hf`].
pub fn write_hf_scorer(model: &ModelDir, out: &Path, read: TensorSource<'_, '_>) -> Result<(), ExportError> {
    atomic::write_dir(out, |dir| fill_hf_scorer(model, dir, read))
}

/// As [`write_hf`], into an existing folder: one part of a larger [`atomic::write_dir`], such as a checkpoint.
///
/// # Errors
/// As [`write_hf`]; the folder may then have some of the files.
pub fn fill_hf(model: &ModelDir, dir: &Path, read: TensorSource<'_, '_>) -> Result<(), ExportError> {
    fill_hf_as(model, dir, Dtype::Fp32, read)
}

/// As [`fill_hf`], with parameters of another type, to which `config.json` is then set.
///
/// # Errors
/// As [`fill_hf`], or a value out of the range of the type.
pub fn fill_hf_as(model: &ModelDir, dir: &Path, dtype: Dtype, read: TensorSource<'_, '_>) -> Result<(), ExportError> {
    if model.config().wrapped {
        write_whole(model, dir, dtype, read)?;
    } else {
        write_weights(model.config(), dir, dtype, read)?;
    }
    copy_companions(model, dir, |config| as_dtype(config, dtype))
}

/// As [`fill_hf`], for the transformer of `model` under `score.weight` with one label, whatever head `model` has
/// itself: `config.json` then names `…ForSequenceClassification`.
///
/// # Errors
/// As [`fill_hf`].
pub fn fill_hf_scorer(model: &ModelDir, dir: &Path, read: TensorSource<'_, '_>) -> Result<(), ExportError> {
    if let Some(reason) = model.config().refuses_scorers() {
        return Err(ExportError::content(model.path(), reason));
    }
    let config = ModelConfig { head: Head::Score { labels: 1 }, ..model.config().clone() };
    write_weights(&config, dir, Dtype::Fp32, read)?;
    copy_companions(model, dir, |config| {
        as_dtype(config, Dtype::Fp32);
        as_scorer(config, model.config().architecture);
        true
    })
}

/// Copies the files that an adapter needs beside its own two to be used by itself, into an existing folder: tokenizer,
/// chat template and `generation_config.json` of `model`, as in TRL's checkpoints of adapters. `config.json` stays with
/// the base.
///
/// # Errors
/// A file that cannot be read or written.
pub fn fill_adapter_companions(model: &ModelDir, dir: &Path) -> Result<(), ExportError> {
    copy_all_but_config(model, dir)
}

/// Copies everything beside the weights and `config.json`.
pub(crate) fn copy_all_but_config(model: &ModelDir, dir: &Path) -> Result<(), ExportError> {
    copy(model, dir, |name, _, content| Ok((name != CONFIG).then_some(content)))
}

/// Copies everything beside the weights; `rewrite` changes `config.json` and says whether it did.
fn copy_companions(model: &ModelDir, dir: &Path, rewrite: impl Fn(&mut Value) -> bool) -> Result<(), ExportError> {
    copy(model, dir, |name, source, content| {
        if name != CONFIG {
            return Ok(Some(content));
        }
        let mut config = serde_json::from_slice(&content)
            .map_err(|e| ExportError::content(source, format!("is not valid JSON: {e}")))?;
        Ok(Some(if rewrite(&mut config) { format!("{config:#}\n").into_bytes() } else { content }))
    })
}

/// Copies the companions and the chat templates. `make` is given the name, path and content of each companion, and
/// returns the content to write, if there is any.
fn copy(
    model: &ModelDir,
    dir: &Path,
    make: impl Fn(&OsStr, &Path, Vec<u8>) -> Result<Option<Vec<u8>>, ExportError>,
) -> Result<(), ExportError> {
    for source in model.companions() {
        let name = source.file_name().expect("a companion is a file of the model directory");
        let content = fs::read(&source).map_err(|e| ExportError::io(&source, e))?;
        if let Some(content) = make(name, &source, content)? {
            atomic::write(&dir.join(name), &content)?;
        }
    }
    write_templates(model, dir)
}

/// Writes the chat templates that are no companions: the templates that replace the model's, or else those in the
/// model's folder of templates.
///
/// # Errors
/// A template that cannot be read or written.
fn write_templates(model: &ModelDir, dir: &Path) -> Result<(), ExportError> {
    let replaced = model.other_templates().is_some();
    if !replaced && !model.path().join(TEMPLATE_DIR).is_dir() {
        return Ok(());
    }
    let templates = model.chat_templates().map_err(|e: ModelDirError| ExportError::content(dir, e.to_string()))?;
    for (file, source) in templates.files() {
        let in_folder = file.starts_with(TEMPLATE_DIR);
        if in_folder {
            fs::create_dir_all(dir.join(TEMPLATE_DIR)).map_err(|e| ExportError::io(dir, e))?;
        }
        if replaced || in_folder {
            atomic::write(&dir.join(file), source.as_bytes())?;
        }
    }
    Ok(())
}

/// `config.json` of a sequence classifier with one label.
fn as_scorer(config: &mut Value, architecture: Architecture) {
    let family = match architecture {
        Architecture::Llama => "Llama",
        Architecture::Qwen2 => "Qwen2",
        Architecture::Qwen3 => "Qwen3",
        Architecture::SmolLm3 => "SmolLM3",
        Architecture::Gemma3 => "Gemma3Text",
        Architecture::Gemma4 => unreachable!("models of which no scorer can be written are refused before"),
        Architecture::Olmo2 => "Olmo2",
        Architecture::Ministral3 => "Ministral3",
        Architecture::Phi3 => "Phi3",
        Architecture::GraniteMoeHybrid => "GraniteMoeHybrid",
        Architecture::Qwen3Moe => "Qwen3Moe",
        Architecture::Lfm2 => "Lfm2",
        Architecture::Lfm3 => "Lfm3",
        Architecture::Qwen3_5 => "Qwen3_5Text",
    };
    config["architectures"] = json!([format!("{family}ForSequenceClassification")]);
    config["id2label"] = json!({"0": "LABEL_0"});
    config["label2id"] = json!({"LABEL_0": 0});
    if let Some(config) = config.as_object_mut() {
        config.shift_remove("num_labels");
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
    write_hf(model, out, &mut |name| Ok(version.read_f32(name)?.into()))
}

/// Writes an adapter and its base as one Hugging Face directory, `out`, which appears whole or not at all.
///
/// # Errors
/// An adapter or base that cannot be read, an adapter that was trained and changes nothing, or as [`write_hf`].
pub fn merge(model: &ModelDir, out: &Path) -> Result<(), ExportError> {
    let merged = Checkpoint::open(model)?;
    atomic::write_dir(out, |dir| {
        fill_hf(model, dir, &mut |name| Ok(merged.read_f32(name)?.into()))?;
        match merged.adapter().filter(|adapter| adapter.is_trained()) {
            Some(_) if !merged.differs_from_base()? => {
                let message = "has no effect on its base: every update is lost in rounding";
                Err(ExportError::content(model.adapter().unwrap_or(dir), message))
            }
            _ => Ok(()),
        }
    })
}

/// The name that a parameter has in files of a model that is made anew. Within a model of images and text, it is not
/// the text model's own.
#[must_use]
pub fn stored_name(config: &ModelConfig, own: &str) -> String {
    if config.wrapped { whole_name(own) } else { own.to_owned() }
}

/// As [`write_weights`], for the text model of a whole: under its names there, with the whole's other tensors.
fn write_whole(model: &ModelDir, dir: &Path, dtype: Dtype, read: TensorSource<'_, '_>) -> Result<(), ExportError> {
    let whole = Whole::open(model)?;
    let named = |(own, shape): (String, Vec<usize>)| (whole.name_of(&own), (own, shape));
    let parameters: BTreeMap<String, (String, Vec<usize>)> =
        model.config().parameters().into_iter().map(named).collect();
    let stored: Vec<_> = parameters.iter().map(|(name, (_, shape))| (name.clone(), shape.clone())).collect();
    let carried: Vec<_> = whole.carried().collect();
    let mut read = |name: &str| read(&parameters[name].0);
    tensor_file::write(&dir.join("model.safetensors"), dtype, &stored, [], &mut read, &carried)
}

fn write_weights(
    config: &ModelConfig,
    dir: &Path,
    dtype: Dtype,
    read: TensorSource<'_, '_>,
) -> Result<(), ExportError> {
    let mut parameters = config.parameters();
    parameters.sort();
    tensor_file::write(&dir.join("model.safetensors"), dtype, &parameters, [], read, &[])
}

/// Sets the element type (`torch_dtype`, in transformers 5 `dtype`); returns whether another one was stated. A type
/// other than float32 is stated in any case: without one, earlier versions of transformers load float32.
fn as_dtype(config: &mut Value, dtype: Dtype) -> bool {
    let name = match dtype {
        Dtype::Fp32 => "float32",
        Dtype::Fp16 => "float16",
        Dtype::Bf16 => "bfloat16",
    };
    let keys = ["torch_dtype", "dtype"];
    if dtype != Dtype::Fp32 && keys.iter().all(|key| config[*key].is_null()) {
        config["torch_dtype"] = name.into();
        return true;
    }
    let mut changed = false;
    for key in keys {
        if let Some(stated) = config.get_mut(key).filter(|v| v.as_str() != Some(name)) {
            *stated = name.into();
            changed = true;
        }
        let text = config.get_mut("text_config").and_then(|text| text.get_mut(key));
        if let Some(stated) = text.filter(|v| v.is_string() && v.as_str() != Some(name)) {
            *stated = name.into();
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_a_scorer_keeps_the_order_of_its_keys() {
        let mut config = json!({"num_labels": 3, "model_type": "llama", "hidden_size": 16, "vocab_size": 99});
        as_scorer(&mut config, Architecture::Llama);
        let keys: Vec<&str> = config.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["model_type", "hidden_size", "vocab_size", "architectures", "id2label", "label2id"]);
    }
}
