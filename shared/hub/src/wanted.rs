//! Chooses the files of a repository that are needed.

use std::{io::ErrorKind, path::Path};

use shared_data::{CARD, DataError, Selection};

use crate::HubError;

/// Weights in one file, and the index of weights in several.
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Most bytes of the index.
const MOST_INDEX: u64 = 64 << 20;

/// Files of a model: weights in safetensors, the text files that describe the model and its tokenizer, and its card,
/// whose licence holds for what is made of the model.
///
/// # Errors
/// No safetensors.
pub fn of_model(name: &str, files: &[String]) -> Result<Vec<String>, HubError> {
    let top = || files.iter().filter(|file| !file.contains('/'));
    let shards = files.iter().any(|file| file == INDEX);
    let is_weights = |file: &str| match shards {
        true => file.starts_with("model-") && file.ends_with(".safetensors"),
        false => file == WHOLE || file == "adapter_model.safetensors",
    };
    let is_text = |file: &str| file == CARD || [".json", ".jinja", ".txt"].iter().any(|end| file.ends_with(end));
    if !top().any(|file| is_weights(file)) {
        return Err(HubError::NoSafetensors { name: name.to_owned() });
    }
    Ok(top().filter(|file| is_weights(file) || is_text(file)).cloned().collect())
}

/// Why a folder of the cache is no whole model, if it is not.
pub fn lacking_in_model(folder: &Path) -> Option<String> {
    let has = |file: &str| folder.join(file).is_file();
    if has("adapter_config.json") {
        return (!has("adapter_model.safetensors")).then(|| "adapter_model.safetensors".to_owned());
    }
    if let Some(missing) = ["config.json", "tokenizer.json"].into_iter().find(|file| !has(file)) {
        return Some(missing.to_owned());
    }
    let index = match shared_bounds::read(&folder.join(INDEX), MOST_INDEX) {
        Ok(index) => index,
        Err(error) if error.kind() == ErrorKind::NotFound => return (!has(WHOLE)).then(|| WHOLE.to_owned()),
        Err(error) => return Some(format!("{INDEX} ({error})")),
    };
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap_or_default();
    let mut shards = index["weight_map"].as_object().into_iter().flatten().filter_map(|(_, file)| file.as_str());
    shards.find(|file| !has(file)).map(str::to_owned)
}

/// Files of a part of a dataset, given the text of its card.
///
/// # Errors
/// No such part.
pub fn of_dataset(
    name: &str,
    files: &[String],
    card: Option<&str>,
    part: Selection<'_>,
) -> Result<Vec<String>, DataError> {
    let (mut wanted, _) = shared_data::choose(Path::new(name), files, card, part)?;
    // With the card, reading the folder chooses the same files.
    wanted.extend(files.iter().filter(|file| *file == CARD).cloned());
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Result<Vec<String>, HubError> {
        of_model("o/m", &files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn of_a_model_safetensors_and_texts_are_wanted() {
        let others = [
            "pytorch_model.bin",
            "onnx/model.onnx",
            "consolidated.safetensors",
            "docs/README.md",
            "flax_model.msgpack",
        ];
        let texts = ["config.json", "tokenizer.json", "chat_template.jinja", "merges.txt", "README.md"];
        let wanted = |weights: &[&str]| {
            let files: Vec<&str> = [&others[..], &texts, weights].concat();
            of(&files).unwrap()
        };
        assert_eq!(wanted(&["model.safetensors"]), [&texts[..], &["model.safetensors"]].concat());
        let sharded =
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(wanted(&sharded), [&texts[..], &sharded].concat());
        assert!(matches!(of(&[&others[..], &texts].concat()), Err(HubError::NoSafetensors { .. })));
    }

    #[test]
    fn a_model_in_the_cache_is_whole_when_its_shards_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        assert_eq!(lacking_in_model(dir.path()).as_deref(), Some("config.json"));
        put("config.json", "{}");
        put("tokenizer.json", "{}");
        assert_eq!(lacking_in_model(dir.path()).as_deref(), Some(WHOLE));
        put(INDEX, r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#);
        put("model-1.safetensors", "");
        assert_eq!(lacking_in_model(dir.path()).as_deref(), Some("model-2.safetensors"));
        put("model-2.safetensors", "");
        assert_eq!(lacking_in_model(dir.path()), None);
    }
}
