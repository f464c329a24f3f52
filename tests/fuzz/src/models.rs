//! Files of a model directory other than weights.

use std::fs;

use harness::{golden_model_dir, golden_models, tiny_model};
use rollout::data::ChatTemplate;
use serde_json::{Map, json};
use shared::{ModelConfig, ModelDir, model::model_dir::ADAPTER_CONFIG_FILE};
use shared_tokenizer::TextTokenizer;
use time::OffsetDateTime;

use crate::text;

pub fn config_seeds() -> Vec<Vec<u8>> {
    let config = |name: &String| fs::read(golden_model_dir(name).join("config.json"));
    golden_models().iter().map(|name| config(name).expect("a golden model")).collect()
}

/// The parameters of an accepted configuration can be counted and listed.
pub fn config(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    if let Ok(config) = ModelConfig::from_json(text) {
        assert_eq!(config.layers.len(), config.num_hidden_layers);
        assert!(config.parameter_count() > 0 && config.group_size() > 0);
    }
}

/// Files among which the first byte chooses.
const FILES: [&str; 5] =
    ["generation_config.json", "tokenizer_config.json", "chat_template.jinja", ADAPTER_CONFIG_FILE, "config.json"];

pub fn directory_seeds() -> Vec<Vec<u8>> {
    let seeds = [
        r#"{"eos_token_id": [3, 5], "pad_token_id": 0, "bos_token_id": null}"#,
        r#"{"chat_template": [{"name": "default", "template": "t"}], "bos_token": {"content": "<s>"}}"#,
        "{{ messages }}",
        r#"{"peft_type": "LORA", "base_model_name_or_path": "base", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}"#,
        r#"{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "eos_token_id": 7}"#,
    ];
    seeds.iter().enumerate().map(|(index, text)| [&[index as u8], text.as_bytes()].concat()).collect()
}

/// No file of a directory that is opened lies elsewhere.
pub fn directory(bytes: &[u8]) {
    let Some((file, bytes)) = bytes.split_first() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("a writable folder");
    write("config.json", tiny_model::TINY.config().to_string().as_bytes());
    write(FILES[usize::from(*file) % FILES.len()], bytes);
    let Ok(model) = ModelDir::open(dir.path()) else { return };
    let _ = (model.chat_template(), model.tokenizer_config());
    assert!(model.companions().iter().all(|path| path.parent() == Some(dir.path())));
}

pub fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let models = [
        json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "byte_fallback": true,
            "unk_token": "a"}),
        json!({"type": "WordLevel", "vocab": {"a": 0, "<s>": 1}, "unk_token": "a"}),
        json!({"type": "WordPiece", "vocab": {"a": 0, "##b": 1}, "unk_token": "a", "continuing_subword_prefix": "##",
               "max_input_chars_per_word": 100}),
        json!({"type": "Unigram", "vocab": [["<unk>", 0.0], ["\u{2581}a", -1.5], ["b", -2.0]], "unk_id": 0,
            "byte_fallback": false}),
    ];
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let split = json!({"type": "Split", "pattern": {"Regex": "(?i:'s)|[^\\r\\n\\p{L}]?\\p{L}+|\\s+(?!\\S)"},
        "behavior": "Isolated",
                       "invert": false});
    let normalizers = [
        json!({"type": "NFKC"}),
        json!({"type": "Prepend", "prepend": "\u{2581}"}),
        replace(" ", "\u{2581}"),
        json!({"type": "Lowercase"}),
        json!({"type": "StripAccents"}),
    ];
    let decoders = [
        replace("\u{2581}", " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ];
    let whole = |model| {
        json!({
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": true, "rstrip": false,
                              "normalized": false, "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {"type": "Metaspace",
            "replacement": "\u{2581}",
                              "prepend_scheme": "first", "split": true}]},
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                               {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A",
                                   "type_id": 0}}],
                               "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        })
        .to_string()
        .into_bytes()
    };
    models.map(whole).into()
}

/// A tokenizer reports every failure by a result.
pub fn tokenizer(bytes: &[u8]) {
    let Ok(tokenizer) = TextTokenizer::parse(bytes, "tokenizer.json".into()) else { return };
    for text in ["", "a b, ab's 12 \u{fdfa} \u{1f600}", "<s>a\n\n  b</s>"] {
        if let Ok(ids) = tokenizer.encode(text, true) {
            let _ = tokenizer.decode(&ids);
        }
        if let Ok(encoding) = tokenizer.encode_with_offsets(text) {
            assert_eq!(encoding.get_ids().len(), encoding.get_offsets().len());
        }
    }
    let _ = tokenizer.decode(&[0, 1, 2, 3, u32::MAX]);
}

pub fn template_seeds() -> Vec<Vec<u8>> {
    [
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>{% endif %}",
        "{%- set ns = namespace(n=0) -%}{% for m in messages[::-1] %}{% set ns.n = ns.n + loop.index0 %}{% endfor %}{{ \
         ns.n }}",
        "{% macro f(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ f('x') }}{{ tools | tojson(indent=2) }}",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%d %b %Y') }}{{ \
         bos_token }}",
        "{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}{% generation %}a{% endgeneration %}",
        "{% for k, v in messages[0].items() %}{{ k | upper }}{{ '%5s' | format(v) }}{% endfor %}{{ range(3) | list | \
         join('-') }}",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// An error of a template is one line, whatever it holds.
pub fn template(bytes: &[u8]) {
    let Some(source) = text(bytes) else { return };
    // Widths and factors that take gigabytes rightly end the program (`shared_bounds::within`), and would end the
    // search with it.
    if source.as_bytes().windows(6).any(|window| window.iter().all(u8::is_ascii_digit)) {
        return;
    }
    let messages =
        [json!({"role": "user", "content": "2+2= <think> \u{1f600}"}), json!({"role": "assistant", "content": "so"})];
    let variables: Map<_, _> = [("tools".to_owned(), json!([{"name": "f", "x": 1.5}]))].into_iter().collect();
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let tokens = tokens.map(|(name, text)| (name.to_owned(), text.into())).into_iter().collect();
    let text = ChatTemplate::new(source, tokens, OffsetDateTime::UNIX_EPOCH)
        .and_then(|template| template.render_prompt(&messages, &variables));
    if let Err(error) = text {
        assert!(!error.to_string().contains(|c: char| c.is_control() && c != '\t'), "{error:?}");
    }
}
