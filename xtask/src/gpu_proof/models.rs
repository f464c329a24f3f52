//! Models in published shapes, or tiny ones, with the other files that their measurements read. Weights are random: the
//! speed of a model does not depend on its values.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::model::Model;

/// Qwen2.5-0.5B, by its published `config.json`.
pub const SMALL: Model = Model {
    name: "0.5B",
    hidden_size: 896,
    intermediate_size: 4864,
    num_hidden_layers: 24,
    num_attention_heads: 14,
    num_key_value_heads: 2,
    vocab_size: 151_936,
};

/// Qwen2.5-1.5B, by its published `config.json`.
pub const LARGE: Model = Model {
    name: "1.5B",
    hidden_size: 1536,
    intermediate_size: 8960,
    num_hidden_layers: 28,
    num_attention_heads: 12,
    num_key_value_heads: 2,
    vocab_size: 151_936,
};

/// Replaces both where there is no GPU.
pub const TINY: Model = Model {
    name: "tiny",
    hidden_size: 64,
    intermediate_size: 128,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    vocab_size: 512,
};

impl Model {
    /// Its folder below `work`.
    pub fn dir(&self, work: &Path) -> PathBuf {
        work.join(self.name)
    }

    /// A word for every id, with a full stop in it: random completions then have sentences, and `sentence_share` of a
    /// word differs between them.
    fn tokenizer(&self) -> Value {
        let word = |id: u32| if id == 0 { "<eos>".into() } else { format!("{}.{id}", ["dog", "cat"][id as usize % 2]) };
        let vocab: Map<String, Value> = (0..self.vocab_size).map(|id| (word(id), id.into())).collect();
        json!({
            "version": "1.0",
            "added_tokens": [{"id": 0, "content": "<eos>", "special": true, "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false}],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<eos>"},
        })
    }

    /// Rows of random prompts, with completions for programs that read them.
    fn rows(&self, count: u64, prompt: u64, completion: u64) -> String {
        // SplitMix64 over the position: any distribution will do, if it is the same everywhere.
        let id = |row: u64, at: u64| {
            let mut z = (row << 32 | at).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            1 + (z >> 31) % u64::from(self.vocab_size - 1)
        };
        let ids = |row: u64, from: u64, to: u64| (from..to).map(|at| id(row, at)).collect::<Vec<_>>();
        let row =
            |row: u64| json!({"prompt_ids": ids(row, 0, prompt), "token_ids": ids(row, prompt, prompt + completion)});
        (0..count).map(|index| format!("{}\n", row(index))).collect()
    }

    /// Writes the files other than weights: configuration, tokenizer, 64 rows for training (`prompts.jsonl`) and 8 with
    /// completions (`completions.jsonl`).
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, work: &Path, prompt: u64, completion: u64) -> Result<()> {
        let dir = self.dir(work);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let prompts = self.rows(64, prompt, 0).replace(r#","token_ids":[]"#, "");
        for (name, content) in [
            ("config.json", self.config().to_string()),
            ("tokenizer.json", self.tokenizer().to_string()),
            ("tokenizer_config.json", json!({"eos_token": "<eos>"}).to_string()),
            ("generation_config.json", json!({"eos_token_id": 0}).to_string()),
            ("prompts.jsonl", prompts),
            ("completions.jsonl", self.rows(8, prompt, completion)),
        ] {
            let path = dir.join(name);
            fs::write(&path, content).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Whether its weights are there.
    pub fn has_weights(&self, work: &Path) -> bool {
        self.dir(work).join("model.safetensors").is_file()
    }
}

#[cfg(test)]
mod tests {
    use shared::ModelConfig;

    use super::*;

    #[test]
    fn shapes_are_the_published_ones() {
        for (model, parameters) in [(SMALL, 494_032_768), (LARGE, 1_543_714_304)] {
            let config = ModelConfig::from_json(&model.config().to_string()).unwrap();
            assert_eq!(config.parameter_count(), parameters, "{}", model.name);
        }
    }

    #[test]
    fn ids_are_words_of_the_model() {
        let dir = tempfile::tempdir().unwrap();
        TINY.write(dir.path(), 16, 8).unwrap();
        let lines = |name: &str| -> Vec<Value> {
            let text = fs::read_to_string(dir.path().join("tiny").join(name)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let completions = lines("completions.jsonl");
        let ids = |row: &Value, key: &str| -> Vec<u64> {
            row[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
        };
        let all: Vec<u64> = completions.iter().flat_map(|row| ids(row, "token_ids")).collect();
        assert_eq!(all.len(), 64);
        assert!(all.iter().all(|&id| 0 < id && id < 512) && all.windows(2).any(|pair| pair[0] != pair[1]));
        assert!(
            lines("prompts.jsonl")
                .iter()
                .all(|row| row.get("token_ids").is_none() && ids(row, "prompt_ids").len() == 16)
        );
    }
}
