//! `tokenizer.json` as llama.cpp's keys.
//!
//! llama.cpp has three tokenizers that these models need. `gpt2` is BPE over bytes, and takes the name of a way to
//! split texts, its code for which is in llama.cpp. `llama` is SentencePiece, and takes a score for each token in place
//! of merges. `gemma4` has SentencePiece's letters, and merges. A tokenizer that is none of them is refused: llama.cpp
//! would make other tokens of the same text.

use std::{collections::HashMap, path::Path};

use serde_json::Value as Json;
use shared::{
    Architecture, ModelDir,
    model::model_dir::{MOST_TOKENIZER_BYTES, NamedTokens},
};

use super::{
    merges,
    metadata::{Metadata, Value},
    splits,
};
use crate::ExportError;

/// SentencePiece's letter for a space.
const SPACE: &str = "\u{2581}";

/// llama.cpp's types of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Which of llama.cpp's tokenizers a `tokenizer.json` is.
#[derive(Debug, PartialEq, Eq)]
enum Family {
    /// BPE over bytes, with the name of its way to split texts.
    Gpt2(&'static str),
    /// SentencePiece, with or without a space before a text.
    Llama { add_space_prefix: bool },
    /// SentencePiece's letters, with merges.
    Gemma4,
}

/// Adds the tokenizer and the chat templates of a model.
pub(super) fn add(model: &ModelDir, metadata: &mut Metadata) -> Result<(), ExportError> {
    let path = model.tokenizer()?;
    let bytes = shared_bounds::read(&path, MOST_TOKENIZER_BYTES).map_err(|e| ExportError::io(&path, e))?;
    let json: Json =
        serde_json::from_slice(&bytes).map_err(|e| ExportError::content(&path, format!("is not valid JSON: {e}")))?;
    let named = NamedTokens::of(model)?;
    let file = File { json: &json, path: &path };
    let family = match file.family()? {
        Family::Llama { add_space_prefix: false } if model.config().architecture == Architecture::Gemma4 => {
            Family::Gemma4
        }
        family => family,
    };
    let tokens = Tokens::of(&file, &named, &family, model.config().vocab_size)?;
    let pairs = file.merges()?;
    match &family {
        Family::Gpt2(pre) => {
            metadata.text("tokenizer.ggml.model", "gpt2");
            metadata.text("tokenizer.ggml.pre", *pre);
            tokens.add(metadata);
            add_merges(&pairs, metadata);
        }
        Family::Gemma4 => {
            metadata.text("tokenizer.ggml.model", "gemma4");
            metadata.text("tokenizer.ggml.pre", "gemma4");
            tokens.add(metadata);
            add_merges(&pairs, metadata);
            metadata.add("tokenizer.ggml.add_space_prefix", Value::Bool(false));
        }
        Family::Llama { add_space_prefix } => {
            metadata.text("tokenizer.ggml.model", "llama");
            metadata.text("tokenizer.ggml.pre", "default");
            tokens.add(metadata);
            let plain = |id: usize| tokens.kinds[id] == Kind::Normal;
            let scores = merges::scores(&tokens.texts, plain, &pairs).map_err(|message| file.refused(&message))?;
            metadata.add("tokenizer.ggml.scores", Value::Floats(scores));
            metadata.add("tokenizer.ggml.add_space_prefix", Value::Bool(*add_space_prefix));
        }
    }
    add_special(model, &file, &named, &tokens, metadata);
    add_templates(model, metadata)
}

fn add_merges(pairs: &[(&str, &str)], metadata: &mut Metadata) {
    let merges = pairs.iter().map(|(left, right)| format!("{left} {right}")).collect();
    metadata.add("tokenizer.ggml.merges", Value::Texts(merges));
}

/// Ids of special tokens, and which of them llama.cpp puts around a text.
fn add_special(model: &ModelDir, file: &File<'_>, named: &NamedTokens, tokens: &Tokens, metadata: &mut Metadata) {
    let of_name = |name: &str| tokens.id(named.variables.get(name)?.as_str()?);
    let generation = model.generation();
    let mut ends = generation.eos_token_ids.iter().copied();
    let bos = of_name("bos_token").or(generation.bos_token_id);
    let ids = [
        ("bos_token_id", bos),
        ("eos_token_id", ends.next()),
        // A turn may end with another token than a text.
        ("eot_token_id", ends.next()),
        ("unknown_token_id", of_name("unk_token").or_else(|| tokens.id(file.json["model"]["unk_token"].as_str()?))),
        ("padding_token_id", of_name("pad_token").or(generation.pad_token_id)),
    ];
    for (key, id) in ids {
        if let Some(id) = id.filter(|id| (*id as usize) < tokens.texts.len()) {
            metadata.add(format!("tokenizer.ggml.{key}"), Value::U32(id));
        }
    }
    let (before, behind) = file.around();
    metadata.add("tokenizer.ggml.add_bos_token", Value::Bool(before));
    metadata.add("tokenizer.ggml.add_eos_token", Value::Bool(behind));
}

fn add_templates(model: &ModelDir, metadata: &mut Metadata) -> Result<(), ExportError> {
    let templates = model.chat_templates()?;
    if let Some(template) = templates.tool_use() {
        metadata.add("tokenizer.chat_templates", Value::Texts(vec!["tool_use".into()]));
        metadata.text("tokenizer.chat_template.tool_use", template);
    }
    if let Some(template) = templates.default() {
        metadata.text("tokenizer.chat_template", template);
    }
    Ok(())
}

/// A `tokenizer.json`.
struct File<'a> {
    json: &'a Json,
    path: &'a Path,
}

impl<'a> File<'a> {
    /// An error about the file, with the way out.
    fn refused(&self, message: &str) -> ExportError {
        let message = format!("{message}; llama.cpp has no such tokenizer: export with --format safetensors");
        ExportError::content(self.path, message)
    }

    fn family(&self) -> Result<Family, ExportError> {
        let model = &self.json["model"];
        if model["type"] != "BPE" {
            return Err(self.refused(&format!("`model.type` is {}, not BPE", model["type"])));
        }
        let (normalizers, splits) =
            (self.parts("normalizer", "normalizers"), self.parts("pre_tokenizer", "pretokenizers"));
        if splits.iter().any(|part| part["type"] == "ByteLevel") {
            self.of_bytes(&normalizers, &splits)
        } else if model["byte_fallback"] == true {
            self.of_pieces(&normalizers, &splits)
        } else {
            Err(self.refused("it is neither BPE over bytes (`ByteLevel`) nor SentencePiece (`byte_fallback`)"))
        }
    }

    /// The parts of a section, which is one part or a sequence of them.
    fn parts(&self, section: &str, sequence: &str) -> Vec<&'a Json> {
        let section = &self.json[section];
        match section[sequence].as_array() {
            Some(parts) if section["type"] == "Sequence" => parts.iter().collect(),
            _ if section.is_null() => Vec::new(),
            _ => vec![section],
        }
    }

    fn of_bytes(&self, normalizers: &[&Json], splits: &[&Json]) -> Result<Family, ExportError> {
        // llama.cpp normalises nothing; texts are in this form already, as a rule.
        if let Some(other) = normalizers.iter().find(|part| part["type"] != "NFC") {
            return Err(self.refused(&format!("its normalizer {} changes texts", other["type"])));
        }
        let unknown = || {
            self.refused(&format!(
                "its pre_tokenizer is not known: {}",
                Json::from_iter(splits.iter().copied().cloned())
            ))
        };
        let (last, before) = splits.split_last().ok_or_else(unknown)?;
        if last["type"] != "ByteLevel" || last["add_prefix_space"] == true {
            return Err(unknown());
        }
        let by_regex = last["use_regex"] != false;
        let name = match before {
            [] if by_regex => Some("gpt-2"),
            [digits] if by_regex && digits["type"] == "Digits" && digits["individual_digits"] == true => Some("smollm"),
            [split] if !by_regex => splits::name_of(split, self.json["model"]["ignore_merges"] == true),
            _ => None,
        };
        name.map(Family::Gpt2).ok_or_else(unknown)
    }

    fn of_pieces(&self, normalizers: &[&Json], splits: &[&Json]) -> Result<Family, ExportError> {
        let (mut add_space_prefix, mut spaces) = (false, false);
        for part in normalizers {
            match part["type"].as_str() {
                Some("Prepend") if part["prepend"] == SPACE => add_space_prefix = true,
                Some("Replace") if part["pattern"]["String"] == " " && part["content"] == SPACE => spaces = true,
                _ => return Err(self.refused(&format!("its normalizer {} changes texts", part["type"]))),
            }
        }
        for part in splits {
            match part["type"].as_str() {
                Some("Metaspace") if part["replacement"] == SPACE && part["split"] == false => {
                    add_space_prefix |= part["prepend_scheme"] != "never";
                    spaces = true;
                }
                // There are no spaces any more.
                Some("Split") if spaces && part["pattern"]["String"] == " " => {}
                _ => return Err(self.refused(&format!("its pre_tokenizer {} splits texts", part["type"]))),
            }
        }
        match spaces {
            true => Ok(Family::Llama { add_space_prefix }),
            false => Err(self.refused(&format!("it does not replace spaces by {SPACE}"))),
        }
    }

    /// The pairs that are merged, the first ones first: texts with a space between, or lists of two.
    fn merges(&self) -> Result<Vec<(&'a str, &'a str)>, ExportError> {
        let pair = |merge: &'a Json| match merge {
            Json::String(text) => text.split_once(' '),
            merge => Some((merge[0].as_str()?, merge[1].as_str()?)),
        };
        let merges = self.json["model"]["merges"].as_array().map_or(&[][..], Vec::as_slice);
        let pairs: Option<Vec<_>> = merges.iter().map(pair).collect();
        pairs.ok_or_else(|| ExportError::content(self.path, "`model.merges` has an entry that is no pair of tokens"))
    }

    /// Whether encoding puts a token before a text, and one behind it.
    fn around(&self) -> (bool, bool) {
        let parts = self.parts("post_processor", "processors");
        let Some(template) = parts.iter().find(|part| part["type"] == "TemplateProcessing") else {
            return (false, false);
        };
        let parts = template["single"].as_array().map_or(&[][..], Vec::as_slice);
        let is_special = |part: Option<&Json>| part.is_some_and(|part| part.get("SpecialToken").is_some());
        (is_special(parts.first()), is_special(parts.last()))
    }
}

/// The tokens by their ids.
struct Tokens {
    texts: Vec<String>,
    kinds: Vec<Kind>,
    ids: HashMap<String, u32>,
}

impl Tokens {
    fn of(file: &File<'_>, named: &NamedTokens, family: &Family, rows: usize) -> Result<Self, ExportError> {
        let mut tokens =
            Self { texts: vec![String::new(); rows], kinds: vec![Kind::Unused; rows], ids: HashMap::new() };
        let wrong = |message: String| ExportError::content(file.path, message);
        let of_pieces = !matches!(family, Family::Gpt2(_));
        for (text, id) in file.json["model"]["vocab"].as_object().into_iter().flatten() {
            let kind = if of_pieces && is_byte(text) { Kind::Byte } else { Kind::Normal };
            tokens.put(text, id.as_u64(), kind).map_err(wrong)?;
        }
        for token in file.json["added_tokens"].as_array().into_iter().flatten() {
            let text = token["content"].as_str().ok_or_else(|| wrong("an added token has no text".into()))?;
            let kind = if token["special"] == true { Kind::Control } else { Kind::UserDefined };
            tokens.put(text, token["id"].as_u64(), kind).map_err(wrong)?;
        }
        for token in &named.tokens {
            let Some(id) = token.id.or_else(|| tokens.id(&token.content)) else { continue };
            if token.special || !tokens.ids.contains_key(&token.content) {
                let kind = if token.special { Kind::Control } else { Kind::UserDefined };
                tokens.put(&token.content, Some(id.into()), kind).map_err(wrong)?;
            }
        }
        if let Some(id) = file.json["model"]["unk_token"].as_str().and_then(|text| tokens.id(text)) {
            tokens.kinds[id as usize] = Kind::Unknown;
        }
        for (id, text) in tokens.texts.iter_mut().enumerate().filter(|(id, _)| tokens.kinds[*id] == Kind::Unused) {
            // Rows of the embedding without a token; llama.cpp's converter gives them this name.
            *text = format!("[PAD{id}]");
        }
        Ok(tokens)
    }

    fn put(&mut self, text: &str, id: Option<u64>, kind: Kind) -> Result<(), String> {
        let rows = self.texts.len();
        let place = id.and_then(|id| usize::try_from(id).ok()).filter(|id| *id < rows);
        let place = place.ok_or_else(|| match id {
            Some(id) => format!("token {text:?} has the id {id}, but the model has {rows} tokens"),
            None => format!("token {text:?} has no id"),
        })?;
        self.texts[place] = text.to_owned();
        self.kinds[place] = kind;
        self.ids.insert(text.to_owned(), place as u32);
        Ok(())
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    fn add(&self, metadata: &mut Metadata) {
        metadata.add("tokenizer.ggml.tokens", Value::Texts(self.texts.clone()));
        let kinds = self.kinds.iter().map(|kind| *kind as i32).collect();
        metadata.add("tokenizer.ggml.token_type", Value::Integers(kinds));
    }
}

/// `<0x0A>` and the like, SentencePiece's names of bytes.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    /// The tokenizer of a model with 12 tokens.
    fn added(tokenizer: &Json, more: &[(&str, Json)]) -> Result<Metadata, ExportError> {
        added_to("llama", tokenizer, more)
    }

    fn added_to(family: &str, tokenizer: &Json, more: &[(&str, Json)]) -> Result<Metadata, ExportError> {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"model_type": family, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 12, "max_position_embeddings": 8,
            "eos_token_id": [4, 1]});
        for (name, content) in [("config.json", &config), ("tokenizer.json", tokenizer)] {
            fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        for (name, content) in more {
            fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        let mut metadata = Metadata::default();
        add(&ModelDir::open(dir.path()).unwrap(), &mut metadata).map(|()| metadata)
    }

    fn of_bytes() -> Json {
        json!({
            "added_tokens": [{"id": 4, "content": "<end>", "special": true}, {"id": 5, "content": "<tool>"}],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": splits::SPLITS[0].0}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]},
        })
    }

    fn of_pieces() -> Json {
        json!({
            "added_tokens": [{"id": 0, "content": "<unk>", "special": true},
                {"id": 1, "content": "<s>", "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]},
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
                {"Sequence": {"id": "A"}}]},
            "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "▁": 3, "t": 4, "h": 5, "▁t": 6, "th": 7, "▁th": 8},
                "merges": ["▁ t", "t h", "▁t h", "▁ th"]},
        })
    }

    fn texts(metadata: &Metadata, key: &str) -> Vec<String> {
        match metadata.get(key) {
            Some(Value::Texts(texts)) => texts.clone(),
            other => panic!("{key} is {other:?}"),
        }
    }

    #[test]
    fn bpe_over_bytes_keeps_its_merges_and_names_its_split() {
        let template = json!({"chat_template": "{{ 1 }}", "bos_token": "<end>"});
        let metadata = added(&of_bytes(), &[("tokenizer_config.json", template)]).unwrap();
        for (key, value) in [
            ("tokenizer.ggml.model", Value::Text("gpt2".into())),
            ("tokenizer.ggml.pre", Value::Text("qwen2".into())),
            ("tokenizer.ggml.bos_token_id", Value::U32(4)),
            ("tokenizer.ggml.eos_token_id", Value::U32(4)),
            ("tokenizer.ggml.eot_token_id", Value::U32(1)),
            ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
            ("tokenizer.chat_template", Value::Text("{{ 1 }}".into())),
            ("tokenizer.ggml.token_type", Value::Integers(vec![1, 1, 1, 1, 3, 4, 5, 5, 5, 5, 5, 5])),
        ] {
            assert_eq!(metadata.get(key), Some(&value), "{key}");
        }
        assert_eq!(texts(&metadata, "tokenizer.ggml.merges"), ["a b"]);
        assert_eq!(texts(&metadata, "tokenizer.ggml.tokens")[3..7], ["Ġ", "<end>", "<tool>", "[PAD6]"]);
    }

    #[test]
    fn gemma_4_has_letters_of_sentence_piece_and_merges() {
        let mut json = of_pieces();
        json["normalizer"] = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let metadata = added_to("gemma4_text", &json, &[]).unwrap();
        for key in ["tokenizer.ggml.model", "tokenizer.ggml.pre"] {
            assert_eq!(metadata.get(key), Some(&Value::Text("gemma4".into())), "{key}");
        }
        assert_eq!(texts(&metadata, "tokenizer.ggml.merges"), ["▁ t", "t h", "▁t h", "▁ th"]);
        assert_eq!(metadata.get("tokenizer.ggml.scores"), None);
        let kinds = Value::Integers(vec![2, 3, 6, 1, 1, 1, 1, 1, 1, 5, 5, 5]);
        assert_eq!(metadata.get("tokenizer.ggml.token_type"), Some(&kinds));
    }

    #[test]
    fn sentence_piece_has_a_score_for_each_merge() {
        let metadata = added(&of_pieces(), &[]).unwrap();
        for (key, value) in [
            ("tokenizer.ggml.model", Value::Text("llama".into())),
            ("tokenizer.ggml.add_space_prefix", Value::Bool(true)),
            ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
            ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
            ("tokenizer.ggml.token_type", Value::Integers(vec![2, 3, 6, 1, 1, 1, 1, 1, 1, 5, 5, 5])),
        ] {
            assert_eq!(metadata.get(key), Some(&value), "{key}");
        }
        let Some(Value::Floats(scores)) = metadata.get("tokenizer.ggml.scores") else { panic!("no scores") };
        assert_eq!(scores[6..9], [0.0, -1.0, -2.0]);
        assert_eq!(scores.len(), 12);
    }

    #[test]
    fn other_tokenizers_are_refused_with_what_is_other() {
        let refusal = |mut json: Json, path: &str, value: Json| {
            *json.pointer_mut(path).unwrap() = value;
            added(&json, &[]).unwrap_err().to_string()
        };
        for (json, path, value, words) in [
            (of_bytes(), "/model/type", json!("WordLevel"), "`model.type` is \"WordLevel\", not BPE"),
            (of_bytes(), "/pre_tokenizer", json!(null), "neither BPE over bytes"),
            (of_bytes(), "/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("x"), "its pre_tokenizer is not known"),
            (of_bytes(), "/normalizer/type", json!("Lowercase"), "its normalizer \"Lowercase\" changes texts"),
            (of_pieces(), "/normalizer", json!(null), "does not replace spaces"),
            (
                of_pieces(),
                "/model/merges",
                json!(["▁ t", "t h", "▁t h"]),
                "would also make \"▁th\" of \"▁\" and \"th\"",
            ),
        ] {
            let error = refusal(json, path, value);
            assert!(error.contains("tokenizer.json: ") && error.contains(words), "{error}");
            assert!(error.ends_with("export with --format safetensors"), "{error}");
        }
        let error = refusal(of_bytes(), "/added_tokens/0/id", json!(12));
        assert!(error.contains("\"<end>\" has the id 12, but the model has 12 tokens"), "{error}");
    }
}
