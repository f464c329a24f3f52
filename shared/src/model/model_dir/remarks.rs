//! Remarks for the user on what the files of a model say of generation.

use serde_json::{Map, Value};

use super::{GenerationConfig, ModelDir};
use crate::RopeScaling;

/// Keys of `generation_config.json` that change what transformers' `generate` writes, each with the number that changes
/// nothing, if there is one. Temperature and the usual truncations are not among them: every command has its own.
const NOT_FOLLOWED: [(&str, Option<f64>); 14] = [
    ("bad_words_ids", None),
    ("begin_suppress_tokens", None),
    ("exponential_decay_length_penalty", None),
    ("forced_bos_token_id", None),
    ("forced_eos_token_id", None),
    ("guidance_scale", Some(1.0)),
    ("min_length", Some(0.0)),
    ("min_new_tokens", Some(0.0)),
    ("no_repeat_ngram_size", Some(0.0)),
    ("num_beams", Some(1.0)),
    ("repetition_penalty", Some(1.0)),
    ("sequence_bias", None),
    ("stop_strings", None),
    ("suppress_tokens", None),
];

/// The keys in a `generation_config.json` that transformers' `generate` follows, and nothing here does.
pub(super) fn not_followed(generation: &Value) -> Vec<&'static str> {
    let says_something = |value: &Value, neutral: Option<f64>| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        value => neutral.is_none_or(|neutral| value.as_f64() != Some(neutral)),
    };
    let keys = NOT_FOLLOWED.into_iter().filter(|(key, neutral)| says_something(&generation[*key], *neutral));
    keys.map(|(key, _)| key).collect()
}

/// Keys that say how positions are turned, those of all types together: transformers 5.23 and the families here.
const ROPE_KEYS: [&str; 22] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    // Of older checkpoints with YaRN, and without an effect.
    "finetuned",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
    "llama_4_scaling_beta",
];

/// The keys among rotary positions in a `config.json` that no type of them has: misspelt ones.
pub(super) fn unknown_rope_keys(config: &Value) -> Vec<String> {
    let text = config.get("text_config").unwrap_or(config);
    let sections =
        ["rope_scaling", "rope_parameters"].into_iter().filter_map(|name| Some((name, text[name].as_object()?)));
    let unknown = |(name, section): (&str, &Map<String, Value>)| {
        // A section for each type of layer.
        let nested = section.values().filter_map(Value::as_object);
        let own = section.iter().filter(|(_, value)| !value.is_object()).map(|(key, _)| key);
        let keys: Vec<&String> = own.chain(nested.flat_map(Map::keys)).collect();
        let unknown = keys.into_iter().filter(|key| !ROPE_KEYS.contains(&key.as_str()));
        unknown.map(|key| format!("{name}.{key}")).collect::<Vec<_>>()
    };
    sections.flat_map(unknown).collect()
}

impl ModelDir {
    /// Remarks for the user before completions are made.
    #[must_use]
    pub fn remarks_on_generation(&self) -> Vec<String> {
        let mut remarks = self.remarks();
        let keys: Vec<String> = self.generation.not_followed.iter().map(|key| format!("`{key}`")).collect();
        if !keys.is_empty() {
            remarks.push(format!(
                "{}: generation_config.json has {}, which transformers' `generate` follows and Tandem does not",
                self.path.display(),
                keys.join(", ")
            ));
        }
        remarks
    }

    /// Remarks for the user on what a model says of itself.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.remarks_on_ends();
        let unknown: Vec<String> = self.unknown_rope_keys.iter().map(|key| format!("`{key}`")).collect();
        if !unknown.is_empty() {
            let keys = unknown.join(", ");
            remarks
                .push(format!("{}: config.json has {keys}, which nothing reads: is it misspelt?", self.path.display()));
        }
        if let Some(RopeScaling::Dynamic { .. }) = self.config.rope_scaling {
            remarks.push(format!(
                "{}: rotary positions of type `dynamic` change beyond `max_position_embeddings`, so no sequence has \
                 more than {} tokens here: completions end there, and longer prompts are refused or left out",
                self.path.display(),
                self.config.max_position_embeddings
            ));
        }
        remarks
    }

    /// Remarks on end-of-sequence tokens.
    pub(super) fn remarks_on_ends(&self) -> Vec<String> {
        let GenerationConfig { eos_token_ids, eos_without_id, eos_beyond, .. } = &self.generation;
        let folder = self.adapter().unwrap_or(self.path()).display();
        let mut remarks: Vec<String> = eos_without_id
            .iter()
            .map(|text| {
                format!(
                    "{folder}: `eos_token` is {text:?}, which is no token of tokenizer.json, so it ends no completion"
                )
            })
            .collect();
        remarks.extend(eos_beyond.iter().map(|id| {
            let vocabulary = self.config.vocab_size;
            format!(
                "{folder}: {id} is to end sequences (`eos_token_id` or `eos_token`), but the vocabulary has \
                 {vocabulary} tokens, so it ends no completion"
            )
        }));
        if eos_token_ids.is_empty() {
            remarks.push(format!(
                "{folder}: no file names a token that ends a sequence, so completions end at `stop` or at the longest \
                 length alone; add `eos_token` to tokenizer_config.json, or `eos_token_id` to generation_config.json"
            ));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn misspelt_keys_of_rotary_positions_are_named() {
        let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fst": 3}});
        assert_eq!(unknown_rope_keys(&yarn), ["rope_scaling.beta_fst"]);
        let layers = json!({"text_config": {"rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_teta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}});
        assert_eq!(unknown_rope_keys(&layers), ["rope_parameters.rope_teta"]);
        for known in
            [json!({}), json!({"rope_scaling": null}), json!({"rope_scaling": {"type": "linear", "factor": 2}})]
        {
            assert!(unknown_rope_keys(&known).is_empty(), "{known}");
        }
    }

    #[test]
    fn keys_with_an_effect_are_named() {
        let all = json!({
            "bad_words_ids": [[5]], "begin_suppress_tokens": [3], "exponential_decay_length_penalty": [9, 1.1],
            "forced_bos_token_id": 1, "forced_eos_token_id": [2], "guidance_scale": 1.5, "min_length": 2,
            "min_new_tokens": 1, "no_repeat_ngram_size": 3, "num_beams": 4, "repetition_penalty": 1.05,
            "sequence_bias": [[[3], -1.0]], "stop_strings": "end", "suppress_tokens": [7]
        });
        assert_eq!(not_followed(&all), NOT_FOLLOWED.map(|(key, _)| key));
        let neutral = json!({
            "bad_words_ids": null, "begin_suppress_tokens": [], "forced_eos_token_id": null, "min_length": 0,
            "min_new_tokens": null, "no_repeat_ngram_size": 0, "num_beams": 1, "repetition_penalty": 1.0,
            "sequence_bias": {}, "suppress_tokens": [], "temperature": 0.6, "top_p": 0.9, "top_k": 20,
            "do_sample": true
        });
        for generation in [neutral, json!({}), Value::Null] {
            assert!(not_followed(&generation).is_empty(), "{generation}");
        }
    }
}
