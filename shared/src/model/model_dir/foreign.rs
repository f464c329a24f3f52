//! Folders that are given as models and are none.

use std::{fs, path::Path};

use crate::RunDir;

/// The kind of a folder without `config.json`, in words, and what to give instead. Of a run, that is the checkpoint
/// that its `model` leads to, else its newest one; `best.json` belongs to the room `run`, which uses this one.
pub(super) fn instead_of_model(dir: &Path) -> String {
    let run_dir = RunDir::new(dir);
    let newest = run_dir.checkpoints().ok().and_then(|steps| steps.last().copied());
    if let Some(checkpoint) = run_dir.chosen_checkpoint().or_else(|| newest.map(|step| run_dir.checkpoint(step))) {
        return format!(
            "is the directory of a run, not a model; name one of its checkpoints, such as {}",
            checkpoint.display()
        );
    }
    let has = |name: &str| dir.join(name).exists();
    if has("config.toml") && has("metrics.jsonl") {
        return "is the directory of a run that has no checkpoint yet; name one when it is there, or the model that it \
            began with"
            .into();
    }
    if has("adapter_model.safetensors") || has("adapter_model.bin") {
        return "holds an adapter without its adapter_config.json; put that file beside it".into();
    }
    if has("params.json") {
        return "holds the publisher's own files (params.json); take the repository's files for transformers, or \
            convert them with transformers' conversion script"
            .into();
    }
    let snapshot = || fs::read_dir(dir.join("snapshots")).ok()?.flatten().next().map(|entry| entry.path());
    if let Some(snapshot) = snapshot() {
        return format!("is a repository of the Hub's cache; name the folder within, {}", snapshot.display());
    }
    let inner =
        || fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).find(|path| path.join("config.json").is_file());
    let hint = inner().map(|path| format!("; {} is one", path.display())).unwrap_or_default();
    format!("has no config.json; a model is a folder with config.json, model.safetensors and tokenizer.json{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_are_no_models_say_what_to_name() {
        for (file, words) in [
            ("checkpoint-20/config.json", "name one of its checkpoints, such as "),
            ("adapter_model.safetensors", "without its adapter_config.json"),
            ("params.json", "publisher's own files"),
            ("snapshots/abc/config.json", "name the folder within, "),
            ("hf/config.json", "/hf is one"),
            ("notes.txt", "has no config.json; a model is a folder with"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
            let text = instead_of_model(dir.path());
            assert!(text.contains(words), "{file}: {text}");
        }
        let run = tempfile::tempdir().unwrap();
        for step in [5, 20] {
            fs::create_dir(run.path().join(format!("checkpoint-{step}"))).unwrap();
        }
        assert!(instead_of_model(run.path()).ends_with("/checkpoint-20"));
        RunDir::new(run.path()).link_model(5).unwrap();
        assert!(instead_of_model(run.path()).ends_with("/checkpoint-5"));
        let begun = tempfile::tempdir().unwrap();
        for file in ["config.toml", "metrics.jsonl"] {
            fs::write(begun.path().join(file), "").unwrap();
        }
        assert!(instead_of_model(begun.path()).contains("no checkpoint yet"));
    }
}
