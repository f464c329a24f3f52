//! Hashes of the files that a run is made of, and the kind of its processor. They show a resumed run that one of these
//! was replaced.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
};

use rollout_kernels::simd::Isa;
use serde::{Deserialize, Serialize};
use shared::config::{Device, TrainConfig};

use crate::ranks;

/// Hashes of files outside the run directory, and the processor; an absent one is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Of the model that the run began with: its weights and configuration, tokenizer and chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Of the dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Of the programs of the pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<String>,
    /// Of the files that `reward_funcs` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_files: Option<String>,
    /// The learner's vector instructions: they decide how sums are rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl Origin {
    /// The hashes as they are now.
    #[must_use]
    pub fn of(config: &TrainConfig) -> Self {
        Self {
            model: model_files(config).and_then(|files| hash(&files)),
            dataset: dataset_files(config).and_then(|files| hash(&files)),
            programs: hash(&programs(config)),
            reward_files: hash(&reward_files(config)),
            instructions: (config.learner_device == Device::Cpu).then(|| instructions(config)),
        }
    }
}

/// The vector instructions of libtorch and, with `bf16`, those of the learner's own kernels.
fn instructions(config: &TrainConfig) -> String {
    let own = Isa::detect().bf16().filter(|_| config.bf16).map(|format| Isa::detect().name(format));
    [ranks::instructions()].into_iter().chain(own.map(str::to_owned)).collect::<Vec<_>>().join(" and ")
}

/// This program and, if it lies beside this one, the sampler of the run. A run with workers has another sampler.
fn programs(config: &TrainConfig) -> Vec<PathBuf> {
    let Ok(own) = env::current_exe() else { return Vec::new() };
    let sampler = own.with_file_name(if config.listen.is_some() { "rollout-fleet" } else { "rollout" });
    [own].into_iter().chain(sampler.is_file().then_some(sampler)).collect()
}

/// The words of reward functions that are files: both `command:run=python3 reward.py` and `reward.py:f` name one.
fn reward_files(config: &TrainConfig) -> Vec<PathBuf> {
    let words =
        config.reward_funcs.iter().flat_map(|spec| spec.split(|c: char| c.is_whitespace() || matches!(c, ':' | '=')));
    let folder = config.reward_dir.clone().unwrap_or_default();
    words.map(|word| folder.join(word)).filter(|path| path.is_file()).collect()
}

/// The hash of the names and contents of all files in order; absent without files, or if one cannot be read.
fn hash(files: &[PathBuf]) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    for path in files {
        add(&mut hasher, path)?;
    }
    (!files.is_empty()).then(|| hasher.finalize().to_hex().to_string())
}

fn add(hasher: &mut blake3::Hasher, path: &Path) -> Option<()> {
    hasher.update(path.file_name()?.as_encoded_bytes()).update(b"\0");
    // Reading a pipe or a device might never end.
    let file = File::open(path).ok().filter(|_| path.is_file())?;
    hasher.update_reader(file).ok().map(|_| ())
}

/// The files of a run's model that are read, in the order of their names: weights, and texts on model and tokenizer.
/// The files of another chat template follow.
fn model_files(config: &TrainConfig) -> Option<Vec<PathBuf>> {
    let mut files = texts_and_weights(&config.model)?;
    match &config.chat_template {
        Some(folder) if folder.is_dir() => {
            let is_template = |path: &PathBuf| path.extension().is_none_or(|ending| ending != "safetensors");
            files.extend(texts_and_weights(folder)?.into_iter().filter(is_template));
        }
        file => files.extend(file.clone()),
    }
    Some(files)
}

fn texts_and_weights(folder: &Path) -> Option<Vec<PathBuf>> {
    let is_read = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ["safetensors", "json", "jinja"].contains(&ending))
    };
    let entries = fs::read_dir(folder).ok()?.collect::<Result<Vec<_>, _>>().ok()?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).filter(is_read).collect();
    files.sort();
    Some(files)
}

/// The files of all datasets that are trained on.
fn dataset_files(config: &TrainConfig) -> Option<Vec<PathBuf>> {
    let files = config.dataset.iter().map(|path| shared_data::files(path, config.train_part()).ok());
    Some(files.collect::<Option<Vec<_>>>()?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_content_is_another_origin_and_what_is_no_file_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let (dataset, reward) = (dir.path().join("prompts.jsonl"), dir.path().join("reward.py"));
        let config = TrainConfig {
            dataset: dataset.clone().into(),
            reward_funcs: vec!["format".into(), format!("command:run=python3 {}", reward.display())],
            ..TrainConfig::default()
        };
        fs::write(&dataset, "a").unwrap();
        let first = Origin::of(&config);
        let in_bf16 = Origin::of(&TrainConfig { bf16: true, ..config.clone() });
        assert!(in_bf16.instructions.unwrap().starts_with(first.instructions.as_ref().unwrap()));
        assert!(first.dataset.is_some() && first.programs.is_some() && first.reward_files.is_none());
        fs::write(&dataset, "b").unwrap();
        fs::write(&reward, "c").unwrap();
        let second = Origin::of(&config);
        assert!(second.dataset.is_some() && second.dataset != first.dataset);
        assert!(second.reward_files.is_some() && second.programs == first.programs);
        let missing = TrainConfig { dataset: dir.path().join("no").into(), ..config.clone() };
        assert_eq!(Origin::of(&missing).dataset, None);
        let of_model = || Origin::of(&TrainConfig { model: dir.path().to_owned(), ..config.clone() }).model;
        fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        let before = of_model();
        fs::write(dir.path().join("README.md"), "of no account").unwrap();
        assert!(before.is_some() && of_model() == before);
        fs::rename(dir.path().join("tokenizer.json"), dir.path().join("config.json")).unwrap();
        assert!(of_model() != before);
        let chat_template = Some(dir.path().join("other.txt"));
        let with_template = || {
            Origin::of(&TrainConfig {
                model: dir.path().to_owned(),
                chat_template: chat_template.clone(),
                ..config.clone()
            })
            .model
        };
        fs::write(dir.path().join("other.txt"), "a").unwrap();
        let before = with_template();
        fs::write(dir.path().join("other.txt"), "b").unwrap();
        assert!(before.is_some() && with_template() != before, "the file of the chat template is the model's too");
        let folder = dir.path().join("rows");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("train.jsonl"), "a").unwrap();
        let of_rows = || Origin::of(&TrainConfig { dataset: folder.clone().into(), ..config.clone() }).dataset;
        let before = of_rows();
        fs::write(folder.join("test.jsonl"), "b").unwrap();
        assert!(before.is_some() && of_rows() == before, "another split is not trained on");
        fs::write(folder.join("train.jsonl"), "c").unwrap();
        assert!(of_rows() != before);
    }
}
