//! What a run is made of besides its options, by which a resumed run sees that something else has taken its place.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    slice,
};

use serde::{Deserialize, Serialize};
use shared::config::TrainConfig;

/// Hashes of files outside the run directory; one that is absent is not known.
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
}

impl Origin {
    /// What a run is made of now.
    #[must_use]
    pub fn of(config: &TrainConfig) -> Self {
        Self {
            model: hash(slice::from_ref(&config.model)),
            dataset: hash(&config.dataset),
            programs: hash(&programs()),
            reward_files: hash(&reward_files(config)),
        }
    }
}

/// This program and, where it is beside it, the sampler.
fn programs() -> Vec<PathBuf> {
    let Ok(own) = env::current_exe() else { return Vec::new() };
    let sampler = own.with_file_name("rollout");
    [own].into_iter().chain(sampler.is_file().then_some(sampler)).collect()
}

/// The words of reward functions that are files: `command:run=python3 reward.py` names one, and `reward.py:f`.
fn reward_files(config: &TrainConfig) -> Vec<PathBuf> {
    let words =
        config.reward_funcs.iter().flat_map(|spec| spec.split(|c: char| c.is_whitespace() || matches!(c, ':' | '=')));
    let folder = config.reward_dir.clone().unwrap_or_default();
    words.map(|word| folder.join(word)).filter(|path| path.is_file()).collect()
}

/// The hash of what files and folders hold, one after the other; nothing where there is none, or one cannot be read.
fn hash(files: &[PathBuf]) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    for path in files {
        add(&mut hasher, path)?;
    }
    (!files.is_empty()).then(|| hasher.finalize().to_hex().to_string())
}

/// Adds a file, or all files of a folder in the order of their names, hidden ones left out.
fn add(hasher: &mut blake3::Hasher, path: &Path) -> Option<()> {
    if path.is_dir() {
        let entries = fs::read_dir(path).ok()?.collect::<Result<Vec<_>, _>>().ok()?;
        let mut names: Vec<OsString> = entries.iter().map(fs::DirEntry::file_name).collect();
        names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
        names.sort();
        return names.iter().try_for_each(|name| {
            hasher.update(name.as_encoded_bytes()).update(b"\0");
            add(hasher, &path.join(name))
        });
    }
    // Of a pipe or a device, nothing would ever be known.
    let file = File::open(path).ok().filter(|_| path.is_file())?;
    hasher.update_reader(file).ok().map(|_| ())
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
        assert!(first.dataset.is_some() && first.programs.is_some() && first.reward_files.is_none());
        fs::write(&dataset, "b").unwrap();
        fs::write(&reward, "c").unwrap();
        let second = Origin::of(&config);
        assert!(second.dataset.is_some() && second.dataset != first.dataset);
        assert!(second.reward_files.is_some() && second.programs == first.programs);
        let missing = TrainConfig { dataset: dir.path().join("no").into(), ..config.clone() };
        assert_eq!(Origin::of(&missing).dataset, None);
        let of_folder = |config: &TrainConfig| Origin::of(config).model.unwrap();
        let model = TrainConfig { model: dir.path().to_owned(), ..config };
        let before = of_folder(&model);
        fs::create_dir(dir.path().join(".cache")).unwrap();
        assert_eq!(of_folder(&model), before);
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/tokenizer.json"), "{}").unwrap();
        let deeper = of_folder(&model);
        fs::rename(dir.path().join("sub/tokenizer.json"), dir.path().join("sub/other.json")).unwrap();
        assert!(before != deeper && deeper != of_folder(&model));
    }
}
