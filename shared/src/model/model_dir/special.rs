//! The tokens that the files beside a tokenizer name: special tokens, and tokens that end a sequence.
//!
//! transformers 5 (`PreTrainedTokenizerBase.__init__`) takes special tokens from every key of `tokenizer_config.json`
//! that ends with `_token`, from `additional_special_tokens` and `extra_special_tokens`, and from
//! `added_tokens_decoder`; earlier versions wrote some of them into `special_tokens_map.json`. All of these are read,
//! whichever version wrote the directory.

use std::{collections::HashMap, io::BufReader, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{MOST_TOKENIZER_BYTES, ModelDir, ModelDirError};

/// A token that a file beside `tokenizer.json` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedToken {
    /// Its text.
    pub content: String,
    /// Its id, if a file gives it.
    pub id: Option<u32>,
    /// Whether decoded texts leave it out.
    pub special: bool,
    /// Whether it matches only as a whole word.
    pub single_word: bool,
    /// Whether it absorbs the spaces before it.
    pub lstrip: bool,
    /// Whether it absorbs the spaces behind it.
    pub rstrip: bool,
    /// Whether it is matched in the normalised text.
    pub normalized: bool,
}

/// Tokens in the files beside `tokenizer.json`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedTokens {
    /// Every token, each once: tokens with an id first, by their ids.
    pub tokens: Vec<NamedToken>,
    /// The texts of `bos_token`, `eos_token` and so on, by these names: variables for chat templates.
    pub variables: Map<String, Value>,
    /// Every text that a file calls `eos_token`.
    pub eos: Vec<String>,
    /// Whether the texts of special tokens are to be read as text (`split_special_tokens`).
    pub split_special: bool,
}

impl NamedTokens {
    /// Reads `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` of a directory.
    ///
    /// # Errors
    /// A file that exists and cannot be read.
    pub fn of(model: &ModelDir) -> Result<Self, ModelDirError> {
        let config = model.tokenizer_config()?;
        let map = model.json("special_tokens_map.json")?;
        let ids = model.json("added_tokens.json")?;
        Ok(Self::from_json(&config, &map, &ids))
    }

    /// As [`of`](Self::of), of what the files hold.
    #[must_use]
    pub fn from_json(config: &Value, map: &Value, ids: &Value) -> Self {
        let mut found = Self::default();
        let mut known = HashMap::new();
        for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
            let Ok(id) = id.parse() else { continue };
            found.add(token, Some(id), token["special"].as_bool().unwrap_or(false));
        }
        for (content, id) in ids.as_object().into_iter().flatten() {
            known.extend(id.as_u64().and_then(|id| u32::try_from(id).ok()).map(|id| (content.clone(), id)));
        }
        for file in [config, map] {
            for (key, value) in file.as_object().into_iter().flatten() {
                match key.as_str() {
                    "additional_special_tokens" | "extra_special_tokens" | "model_specific_special_tokens" => {
                        found.add_all(value);
                    }
                    name if name.ends_with("_token") => found.add_named(name, value),
                    _ => {}
                }
            }
        }
        for token in &mut found.tokens {
            token.id = token.id.or_else(|| known.get(&token.content).copied());
        }
        // Earlier versions of transformers listed added tokens in a file of their own.
        if config["added_tokens_decoder"].is_null() {
            known.iter().for_each(|(content, id)| found.add(&content.as_str().into(), Some(*id), false));
        }
        found.split_special = config["split_special_tokens"] == true;
        found.tokens.sort_by_key(|token| token.id.unwrap_or(u32::MAX));
        found
    }

    /// Adds a list of tokens, or tokens by their names.
    fn add_all(&mut self, tokens: &Value) {
        for token in tokens.as_array().into_iter().flatten() {
            self.add(token, None, true);
        }
        for (name, token) in tokens.as_object().into_iter().flatten() {
            self.add_named(name, token);
        }
    }

    fn add_named(&mut self, name: &str, token: &Value) {
        let Some(content) = content(token).map(str::to_owned) else { return };
        if name == "eos_token" && !self.eos.contains(&content) {
            self.eos.push(content.clone());
        }
        self.variables.entry(name).or_insert(content.into());
        self.add(token, None, true);
    }

    /// Adds a token. It is special if any file calls it special. Its first mention says how it is matched; that is
    /// `added_tokens_decoder` if the token is there, which says most.
    fn add(&mut self, token: &Value, id: Option<u32>, special: bool) {
        let Some(content) = content(token).filter(|content| !content.is_empty()) else { return };
        let flag = |key: &str| token[key].as_bool();
        if let Some(known) = self.tokens.iter_mut().find(|known| known.content == content) {
            known.special |= special;
            known.id = known.id.or(id);
            return;
        }
        self.tokens.push(NamedToken {
            content: content.to_owned(),
            id,
            special,
            single_word: flag("single_word").unwrap_or(false),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
        });
    }
}

/// The text of a token, which is a text or an object with `content`.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// The ids that texts have in a `tokenizer.json`, in their order; none for a text that is no token there. A file that
/// is no tokenizer has no tokens: code that needs the tokenizer itself reports the fault.
pub(super) fn ids_in(path: &Path, texts: &[String]) -> Vec<Option<u32>> {
    if texts.is_empty() {
        return Vec::new();
    }
    let added = parse::<WithAdded>(path).map(|file| file.added_tokens).unwrap_or_default();
    let mut ids: Vec<Option<u32>> =
        texts.iter().map(|text| added.iter().find(|token| token.content == *text).map(|token| token.id)).collect();
    // Few tokenizers have such a token in the vocabulary alone, which can be large.
    if ids.contains(&None) {
        let vocabulary = parse::<WithVocabulary>(path).map(|file| file.model.vocab).unwrap_or_default();
        let place = |text: &str| match &vocabulary {
            Value::Object(ids) => ids.get(text)?.as_u64(),
            Value::Array(tokens) => tokens.iter().position(|token| token[0] == text).map(|at| at as u64),
            _ => None,
        };
        for (id, text) in ids.iter_mut().zip(texts) {
            *id = id.or_else(|| u32::try_from(place(text)?).ok());
        }
    }
    ids
}

#[derive(Deserialize)]
struct WithAdded {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct WithVocabulary {
    #[serde(default)]
    model: Vocabulary,
}

#[derive(Default, Deserialize)]
struct Vocabulary {
    #[serde(default)]
    vocab: Value,
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let file = shared_bounds::open(path).ok()?;
    if file.metadata().ok()?.len() > MOST_TOKENIZER_BYTES {
        return None;
    }
    serde_json::from_reader(BufReader::with_capacity(1 << 20, file)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(found: &NamedTokens) -> Vec<(&str, Option<u32>, bool)> {
        found.tokens.iter().map(|token| (token.content.as_str(), token.id, token.special)).collect()
    }

    #[test]
    fn tokens_are_named_in_many_places() {
        let config = json!({
            "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": true}, "pad_token": null,
            "add_bos_token": true,
            "additional_special_tokens": ["<a>", {"content": "<b>", "normalized": true}],
            "extra_special_tokens": {"image_token": "<i>"}, "model_max_length": 9, "boi_token": "<boi>",
            "added_tokens_decoder": {
                "9": {"content": "</s>", "special": false, "rstrip": true}, "7": {"content": "<tool>",
                "special": false},
                "8": {"content": "<think>", "special": true}, "x": {"content": "<no>"},
            },
        });
        let map = json!({"eos_token": "<end>", "unk_token": "<unk>", "additional_special_tokens": ["<a>", "<c>"]});
        let found = NamedTokens::from_json(&config, &map, &json!({"<c>": 6}));
        assert_eq!(
            texts(&found),
            [
                ("<c>", Some(6), true),
                ("<tool>", Some(7), false),
                ("<think>", Some(8), true),
                ("</s>", Some(9), true),
                ("<s>", None, true),
                ("<a>", None, true),
                ("<b>", None, true),
                ("<i>", None, true),
                ("<boi>", None, true),
                ("<end>", None, true),
                ("<unk>", None, true),
            ]
        );
        assert_eq!(found.eos, ["</s>", "<end>"]);
        assert_eq!(found.variables["eos_token"], "</s>");
        assert_eq!((&found.variables["image_token"], &found.variables["unk_token"]), (&json!("<i>"), &json!("<unk>")));
        let eos = found.tokens.iter().find(|token| token.content == "</s>").unwrap();
        assert!(eos.rstrip && !eos.lstrip && eos.normalized, "the decoder says more than the name");
        let list = NamedTokens::from_json(&json!({"extra_special_tokens": ["<x>"]}), &Value::Null, &Value::Null);
        assert_eq!(texts(&list), [("<x>", None, true)]);
        let ids = json!({"<old>": 5, "<x>": 4});
        let old = NamedTokens::from_json(&json!({"extra_special_tokens": ["<x>"]}), &Value::Null, &ids);
        assert_eq!(texts(&old), [("<x>", Some(4), true), ("<old>", Some(5), false)], "no list of later versions");
        assert!(!old.tokens[0].normalized && old.tokens[1].normalized);
    }

    #[test]
    fn ids_are_those_of_added_tokens_and_else_of_the_vocabulary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let wanted = ["<e>", "a", "no"].map(str::to_owned);
        for vocabulary in [json!({"b": 0, "a": 1}), json!([["b", -1.5], ["a", -2.0]])] {
            let added = json!([{"id": 5, "content": "<e>", "special": false}]);
            let file = json!({"added_tokens": added, "model": {"type": "BPE", "vocab": vocabulary}});
            std::fs::write(&path, file.to_string()).unwrap();
            assert_eq!(ids_in(&path, &wanted), [Some(5), Some(1), None]);
        }
        std::fs::write(&path, "{").unwrap();
        assert_eq!(ids_in(&path, &wanted), [None; 3]);
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(ids_in(&path, &wanted), [None; 3], "nobody waits for a pipe");
    }
}
