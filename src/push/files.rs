//! The files of a model that go to the Hub. A list says which they are: everything else in a checkpoint (the
//! optimiser's state, canaries, what was in flight, the graph for the sampler, and whatever else lies there) stays.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shared::model::model_dir::{ADAPTER_CONFIG_FILE, MOST_BYTES, TEMPLATE_DIR, TEMPLATE_FILE};

use crate::card::{self, place::Place};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const ADAPTER: &str = "adapter_model.safetensors";

/// Files beside the weights, of a whole model and of an adapter.
const BESIDE: [&str; 11] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    TEMPLATE_FILE,
    "chat_template.json",
    card::FILE,
];

/// Files of JSON in which programs leave the path that a model was read from, and the keys that hold it.
const JSON: [&str; 4] = ["config.json", "generation_config.json", "tokenizer_config.json", ADAPTER_CONFIG_FILE];
const BASE: &str = "base_model_name_or_path";
const PATHS: [&str; 5] = ["_name_or_path", "name_or_path", BASE, "special_tokens_map_file", "tokenizer_file"];

/// Names of the files of a model in a folder, in alphabetic order.
///
/// # Errors
/// Weights that are not there, or an index that cannot be read.
pub fn names(folder: &Path, as_adapter: bool) -> Result<Vec<String>> {
    let is_there = |name: &str| folder.join(name).is_file();
    let mut names: BTreeSet<String> = BESIDE.into_iter().filter(|name| is_there(name)).map(str::to_owned).collect();
    if as_adapter {
        names.extend([ADAPTER_CONFIG_FILE, ADAPTER].map(str::to_owned));
    } else {
        names.insert("config.json".to_owned());
        // As for transformers, one file goes before shards.
        match is_there(WHOLE) {
            true => _ = names.insert(WHOLE.to_owned()),
            false => names.extend(shards(folder)?),
        }
    }
    names.extend(templates(folder)?);
    for name in &names {
        ensure!(is_there(name), "{}: no such file, which the model needs", folder.join(name).display());
    }
    Ok(names.into_iter().collect())
}

/// The index, and the files that it names.
fn shards(folder: &Path) -> Result<BTreeSet<String>> {
    let path = folder.join(INDEX);
    let failed = || path.display().to_string();
    let text = shared_bounds::read(&path, MOST_BYTES).with_context(failed)?;
    let index: Value = serde_json::from_slice(&text).with_context(failed)?;
    let mut names = BTreeSet::from([INDEX.to_owned()]);
    for (_, name) in index["weight_map"].as_object().into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        ensure!(is_weights(name), "{}: `{name}` is no name of a shard", path.display());
        names.insert(name.to_owned());
    }
    Ok(names)
}

/// Further chat templates, which have a folder of their own.
fn templates(folder: &Path) -> Result<BTreeSet<String>> {
    let inner = folder.join(TEMPLATE_DIR);
    let mut names = BTreeSet::new();
    if !inner.is_dir() || inner.is_symlink() {
        return Ok(names);
    }
    for entry in fs::read_dir(&inner).with_context(|| inner.display().to_string())? {
        let entry = entry.with_context(|| inner.display().to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link may lead to any file of the user's.
        if name.ends_with(".jinja") && entry.file_type()?.is_file() {
            names.insert(format!("{TEMPLATE_DIR}/{name}"));
        }
    }
    Ok(names)
}

/// Whether a file has weights, by its name: `model.safetensors`, or a shard of it.
fn is_weights(name: &str) -> bool {
    let is_shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    name == WHOLE
        || is_shard.is_some_and(|middle| middle.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
}

/// Whether a file of the repository that is not among those of this push would make another model of it: weights in
/// other files, or an adapter beside a whole model.
pub fn replaces(name: &str) -> bool {
    is_weights(name) || [INDEX, ADAPTER, ADAPTER_CONFIG_FILE].contains(&name)
}

/// The content of a file of JSON without paths of this machine; none if it has none. Of an adapter's configuration also
/// the name of a base that nobody else finds. `base` is the base's name on the Hub, if it is given.
///
/// # Errors
/// A file that cannot be read.
pub fn without_paths(path: &Path, base: Option<&str>) -> Result<Option<(Vec<u8>, Option<String>)>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !JSON.contains(&name) {
        return Ok(None);
    }
    let failed = || path.display().to_string();
    let text = shared_bounds::read(path, MOST_BYTES).with_context(failed)?;
    let mut json: Value = serde_json::from_slice(&text).with_context(failed)?;
    let (mut changed, mut lost) = (false, None);
    for key in PATHS {
        let Some(text) = json.get(key).and_then(Value::as_str) else { continue };
        let public = match base.filter(|_| key == BASE) {
            Some(base) => base.to_owned(),
            None if is_path(text) => {
                let place = Place::of(Path::new(text));
                if key == BASE && matches!(place, Place::Local(_)) {
                    lost = Some(place.name().to_owned());
                }
                place.name().to_owned()
            }
            None => continue,
        };
        changed |= public != text;
        json[key] = public.into();
    }
    Ok(changed.then(|| (format!("{json:#}\n").into_bytes(), lost)))
}

/// Whether a text is a path, and no name on the Hub.
fn is_path(text: &str) -> bool {
    let on_hub = shared::config::on_hub(&format!("hf://{text}"), Path::new("")).is_some();
    text.starts_with(['/', '.', '~']) || (text.contains('/') && (!on_hub || Path::new(text).exists()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
        }
        dir
    }

    const STRAYS: [&str; 16] = [
        "optimizer.safetensors",
        "trainer_state.json",
        "checksums.json",
        "manifest.json",
        "canaries.json",
        "model.onnx",
        "weights.data",
        "in_flight.frames",
        "metrics.jsonl",
        "logs/learner.log",
        "token",
        ".env",
        "critic/model.safetensors",
        "reference/model.safetensors",
        "pytorch_model.bin",
        "additional_chat_templates/notes.txt",
    ];

    #[test]
    fn only_files_of_the_list_are_named() {
        let own = ["config.json", "model.safetensors", "tokenizer.json", "additional_chat_templates/tool_use.jinja"];
        let dir = folder(&[&STRAYS[..], &own].concat());
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("additional_chat_templates/x.jinja")).unwrap();
        let mut expected = own.map(str::to_owned);
        expected.sort();
        assert_eq!(names(dir.path(), false).unwrap(), expected);
        let adapter = ["adapter_config.json", "adapter_model.safetensors", "chat_template.jinja"];
        let dir = folder(&[&STRAYS[..], &adapter, &["config.json"]].concat());
        assert_eq!(names(dir.path(), true).unwrap(), adapter);
    }

    #[test]
    fn shards_are_those_of_the_index() {
        let dir = folder(&["config.json", "model-00001-of-00002.safetensors", "model-00009-of-00009.safetensors"]);
        let index = |name: &str| fs::write(dir.path().join(INDEX), json!({"weight_map": {"a": name}}).to_string());
        index("model-00001-of-00002.safetensors").unwrap();
        let found = names(dir.path(), false).unwrap();
        assert_eq!(found, ["config.json", "model-00001-of-00002.safetensors", INDEX]);
        index("../../secret.safetensors").unwrap();
        assert!(names(dir.path(), false).unwrap_err().to_string().contains("is no name of a shard"));
        index("model-00002-of-00002.safetensors").unwrap();
        assert!(names(dir.path(), false).unwrap_err().to_string().contains("no such file, which the model needs"));
        for stale in ["model.safetensors", "model-1-of-2.safetensors", INDEX, "adapter_config.json"] {
            assert!(replaces(stale), "{stale}");
        }
        for other in ["README.md", "pytorch_model.bin", "optimizer.safetensors", "model-x/y.safetensors", "a.gguf"] {
            assert!(!replaces(other), "{other}");
        }
    }

    #[test]
    fn paths_of_this_machine_are_in_no_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, json: Value, base: Option<&str>| {
            let path = dir.path().join(name);
            fs::write(&path, json.to_string()).unwrap();
            let found = without_paths(&path, base).unwrap();
            found.map(|(bytes, lost)| (serde_json::from_slice::<Value>(&bytes).unwrap(), lost))
        };
        let commit = "0123456789012345678901234567890123456789";
        let cached = format!("/users/me/.cache/huggingface/hub/models--a--b/snapshots/{commit}");
        let config = json!({"b": 1, "_name_or_path": "/users/me/mine", "a": 2});
        assert_eq!(of("config.json", config, None), Some((json!({"b": 1, "_name_or_path": "mine", "a": 2}), None)));
        assert_eq!(of("config.json", json!({"_name_or_path": "Qwen/Qwen2"}), None), None);
        let adapter = |base: &str| json!({"base_model_name_or_path": base});
        assert_eq!(of("adapter_config.json", adapter(&cached), None), Some((adapter("a/b"), None)));
        let local = of("adapter_config.json", adapter("/users/me/mine"), None);
        assert_eq!(local, Some((adapter("mine"), Some("mine".to_owned()))));
        assert_eq!(of("adapter_config.json", adapter("/users/me/mine"), Some("a/b")), Some((adapter("a/b"), None)));
        let tokenizer = json!({"tokenizer_file": format!("{cached}/tokenizer.json")});
        assert_eq!(of("tokenizer_config.json", tokenizer, None), Some((json!({"tokenizer_file": "a/b"}), None)));
        assert_eq!(of("tokenizer.json", json!({"_name_or_path": "/users/me"}), None), None);
    }
}
