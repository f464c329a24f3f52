//! A tiny Qwen2-style model directory without weights: architecture and tokenizer.

use std::{io, path::Path};

use serde_json::{Map, Value, json};
use shared::atomic;

/// Ends a completion, and fills up batches.
const END: &str = "<|endoftext|>";
/// Any character that the model does not know.
const UNKNOWN: &str = "<|unknown|>";
/// Whole words of the completion format; everything else is one token per character.
const TAGS: [&str; 4] = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"];
const CHARACTERS: &str = "0123456789+=,";

/// Every token in the order of its id.
fn tokens() -> Vec<String> {
    let words = [END, UNKNOWN].into_iter().chain(TAGS).map(str::to_owned);
    words.chain(CHARACTERS.chars().map(String::from)).collect()
}

/// Writes the directory; the learner initialises the weights.
///
/// # Errors
/// Any error of the file system, with the path in its message.
pub fn write(dir: &Path) -> io::Result<()> {
    let files = [
        ("config.json", config()),
        ("generation_config.json", json!({ "bos_token_id": null, "eos_token_id": 0, "pad_token_id": 0 })),
        ("tokenizer.json", tokenizer()),
        (
            "tokenizer_config.json",
            json!({
                "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END, "unk_token": UNKNOWN,
                "clean_up_tokenization_spaces": false
            }),
        ),
    ];
    atomic::write_dir(dir, |target| {
        files.iter().try_for_each(|(name, value)| atomic::write(&target.join(name), format!("{value:#}\n").as_bytes()))
    })
}

/// 0.2 million parameters.
fn config() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": tokens().len(),
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": true,
        "use_sliding_window": false,
        "attention_dropout": 0.0,
        "bos_token_id": null,
        "eos_token_id": 0,
        "torch_dtype": "float32"
    })
}

fn tokenizer() -> Value {
    let vocab: Map<String, Value> = tokens().into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let special = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true
        })
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(0, END), special(1, UNKNOWN)],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split", "pattern": { "Regex": "</?[a-z]+>|[\\s\\S]" }, "behavior": "Isolated", "invert": false
        },
        "post_processor": null,
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN }
    })
}

#[cfg(test)]
mod tests {
    use shared::{Architecture, ModelDir};

    use super::*;

    #[test]
    fn the_directory_opens_as_a_qwen2_model() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        write(&path).unwrap();
        let model = ModelDir::open(&path).unwrap();
        assert_eq!(model.config().architecture, Architecture::Qwen2);
        assert_eq!(model.generation().eos_token_ids, [0]);
        assert!(model.tokenizer().is_ok());
    }

    #[test]
    fn problems_are_written_in_the_model_s_alphabet() {
        let known = tokens();
        let mut rest = crate::demo::problems::Problems::new(0).warm_up_rows();
        for word in TAGS.into_iter().chain(["prompt", "completion", "{", "}", "\"", ":", "\n"]) {
            rest = rest.replace(word, "");
        }
        assert!(rest.chars().all(|c| known.contains(&c.to_string())), "unknown characters");
    }
}
