//! Datasets of a script: a call of `load_dataset` as the keys that TRL's YAML has for it.

use serde_json::{Map, Value};

use super::expression::{Call, Expression, Kind};
use crate::import_config::{mixture, read::Entry};

/// The arguments of `load_dataset` in its order.
const SIGNATURE: [&str; 5] = ["path", "name", "data_dir", "data_files", "split"];

/// Arguments that do not change the rows.
const WITHOUT_EFFECT: [&str; 9] = [
    "cache_dir",
    "download_mode",
    "keep_in_memory",
    "num_proc",
    "streaming",
    "token",
    "trust_remote_code",
    "verification_mode",
    "use_auth_token",
];

const WAY: &str = "write its rows to a file, dataset.to_json(\"train.jsonl\"), and name that";

/// What a call of `load_dataset` asks for, in TRL's words for one of several datasets.
struct Loaded {
    words: Map<String, Value>,
    revision: Option<Value>,
}

impl Loaded {
    fn read(value: &Expression) -> Result<Self, Entry> {
        let unread = |what: &str| Entry::unread("dataset_name", value.unset(what, WAY));
        if let Some(path) = value.text() {
            let words = Map::from_iter([("path".to_owned(), path.into())]);
            return Ok(Self { words, revision: None });
        }
        let Kind::Call(call @ Call { item, .. }) = &value.is else { return Err(unread(&value.what())) };
        if !call.is("datasets", "load_dataset") {
            return Err(unread(&value.what()));
        }
        let mut loaded = Self { words: Map::new(), revision: None };
        for (name, value) in call.arguments(&SIGNATURE) {
            if value.is_none() || WITHOUT_EFFECT.contains(&name.as_str()) {
                continue;
            }
            let literal = value.literal().map_err(|unset| Entry::unread("dataset_name", unset))?;
            match name.as_str() {
                "revision" => loaded.revision = Some(literal),
                name if SIGNATURE.contains(&name) => {
                    loaded.words.insert(name.to_owned(), literal);
                }
                _ => return Err(unread(&format!("`load_dataset` has `{name}`, which is no option"))),
            }
        }
        if let Some(item) = item {
            loaded.words.insert("split".to_owned(), item.as_str().into());
        }
        if let Some(split) =
            loaded.words.get("split").and_then(Value::as_str).filter(|split| split.contains(['[', '+']))
        {
            return Err(unread(&format!("the split `{split}` is no whole one")));
        }
        Ok(loaded)
    }

    fn is_of_files(&self) -> bool {
        self.words.contains_key("data_files") || self.words.contains_key("data_dir")
    }

    fn take(&mut self, word: &str) -> Option<Value> {
        self.words.remove(word)
    }
}

/// The keys of the dataset to train on.
pub fn train(value: &Expression) -> Vec<Entry> {
    let mut loaded = match Loaded::read(value) {
        Ok(loaded) => loaded,
        Err(entry) => return vec![entry],
    };
    let mut entries: Vec<Entry> =
        loaded.revision.take().map(|revision| Entry::new("dataset_revision", revision)).into_iter().collect();
    if loaded.is_of_files() {
        let list = Value::from(vec![Value::Object(loaded.words)]);
        entries.push(match mixture::options(&list).is_empty() {
            true => Entry::unread("datasets", value.unset(&mixture::remarks(&list).join("; "), "")),
            false => Entry::new("datasets", list),
        });
        return entries;
    }
    for (word, key) in [("path", "dataset_name"), ("name", "dataset_config"), ("split", "dataset_train_split")] {
        entries.extend(loaded.take(word).map(|value| Entry::new(key, value)));
    }
    entries
}

/// The keys of the dataset to evaluate on.
pub fn eval(value: &Expression) -> Vec<Entry> {
    let key = "eval_dataset";
    let mut loaded = match Loaded::read(value) {
        Ok(loaded) => loaded,
        Err(entry) => return vec![Entry { key: key.to_owned(), ..entry }],
    };
    let split = loaded.words.get("split").cloned();
    let path = if loaded.is_of_files() {
        let list = Value::from(vec![Value::Object(loaded.words.clone())]);
        let found = mixture::options(&list).into_iter().find(|(option, _)| option == "dataset");
        found.and_then(|(_, paths)| Some(paths.as_array().filter(|paths| paths.len() == 1)?[0].clone()))
    } else {
        loaded.take("path")
    };
    let Some(path) = path else {
        return vec![Entry::unread(key, value.unset("`load_dataset` names no single file or folder", WAY))];
    };
    let split = split.map(|split| Entry::new("dataset_test_split", split));
    [Entry::new(key, path)].into_iter().chain(split).collect()
}
