//! A tokenizer small enough for tests: one token per byte.

use std::fs;

use serde_json::{Map, Value, json};
use shared::ModelDir;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::Tokenizer;

/// Id of `<s>`, which is put before plain text and left out when decoding.
pub const BOS: u32 = 256;

/// A tokenizer with one token per byte, a `<s>` before plain text, and maybe a chat template.
pub fn byte_tokenizer(template: Option<&str>) -> Tokenizer {
    byte_tokenizer_with(template, &[])
}

/// As [`byte_tokenizer`], with further special tokens, whose ids follow on [`BOS`].
pub fn byte_tokenizer_with(template: Option<&str>, special: &[&str]) -> Tokenizer {
    opened(template, &tokenizer_json(special))
}

/// As [`byte_tokenizer_with`], with one more added token behind these, which is not special.
pub fn byte_tokenizer_and(template: &str, special: &[&str], added: &str) -> Tokenizer {
    let mut tokenizer = tokenizer_json(&[special, &[added]].concat());
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    tokens.last_mut().unwrap()["special"] = false.into();
    opened(Some(template), &tokenizer)
}

/// As [`byte_tokenizer`], with nothing before plain text.
pub fn bare_byte_tokenizer() -> Tokenizer {
    let mut tokenizer = tokenizer_json(&[]);
    tokenizer["post_processor"] = Value::Null;
    opened(None, &tokenizer)
}

fn opened(template: Option<&str>, tokenizer: &Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(harness::golden_dir().join("models/llama/config.json"), dir.path().join("config.json")).unwrap();
    fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    if let Some(template) = template {
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    }
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}, "pad_token": null});
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::open(&ModelDir::open(dir.path()).unwrap()).unwrap()
}

fn tokenizer_json(special: &[&str]) -> Value {
    let added = |(id, content): (u32, &&str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let added: Vec<Value> = (BOS..).zip([&"<s>"].into_iter().chain(special)).map(added).collect();
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let vocab: Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), Value::from(id))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let bos = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    json!({
        "version": "1.0",
        // Both must have no effect.
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": {"type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, text],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}},
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}
