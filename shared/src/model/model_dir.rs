//! A Hugging Face model directory: the places of its files, and the content of `generation_config.json`. A LoRA adapter
//! of PEFT is a model too, whose base is another directory.

mod foreign;
mod remarks;
mod special;
mod templates;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use shared_bounds::{foreign_content, read_text as read_bounded};

use crate::{
    config::TrainConfig,
    model::{
        model_config::{ConfigJsonError, ModelConfig},
        python_json,
    },
};

pub use special::{NamedToken, NamedTokens};
pub use templates::{ChatTemplates, TEMPLATE_DIR, TEMPLATE_FILE};

/// File that marks a folder as a LoRA adapter of PEFT.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";

/// Most bytes of a JSON file or template of a model directory, other than the tokenizer.
pub const MOST_BYTES: u64 = 16 << 20;

/// Most bytes of a `tokenizer.json`; the largest known ones have 35 million bytes.
pub const MOST_TOKENIZER_BYTES: u64 = 256 << 20;

/// A model directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelDirError {
    /// A file is missing or cannot be read.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: String,
        /// The fault.
        message: String,
    },
    /// `config.json` is not usable.
    #[error("{path}: {reason}")]
    Config {
        /// The directory.
        path: String,
        /// The fault.
        reason: ConfigJsonError,
    },
}

/// End-of-sequence ids and other special ids of a model, from its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GenerationConfig {
    /// Every id that ends a sequence, each once: the tokenizer's `eos_token`, then the `eos_token_id` of
    /// `generation_config.json`, then that of `config.json`. transformers and vLLM stop at all ids that the first two
    /// name. Fine-tuned models often have only one of the three right, and no text goes on after any of these tokens.
    pub eos_token_ids: Vec<u32>,
    /// Texts that a file calls `eos_token` but that are no token of `tokenizer.json`: they end nothing.
    pub eos_without_id: Vec<String>,
    /// Ids that a file calls `eos_token_id` but that the model's vocabulary does not have: they end nothing.
    /// -1 is one of them, by which older files mean none.
    pub eos_beyond: Vec<i64>,
    /// Keys of `generation_config.json` that transformers' `generate` follows, and nothing here does.
    pub not_followed: Vec<&'static str>,
    /// Padding id, if there is one.
    pub pad_token_id: Option<u32>,
    /// Beginning-of-sequence id, if there is one.
    pub bos_token_id: Option<u32>,
}

/// A Hugging Face model directory whose `config.json` was read.
#[derive(Debug, Clone)]
pub struct ModelDir {
    path: PathBuf,
    adapter: Option<PathBuf>,
    config: ModelConfig,
    generation: GenerationConfig,
    /// Keys of `config.json` among rotary positions that nothing reads.
    unknown_rope_keys: Vec<String>,
    /// Templates that replace its own.
    templates: Option<ChatTemplates>,
}

impl ModelDir {
    /// Opens a directory: reads `config.json` and `generation_config.json`; it does not touch weights and tokenizer.
    /// With an `adapter_config.json`, it is an adapter, and the base that it names is opened: a folder with an absolute
    /// path, or relative to the adapter, to one of the two folders above it (its run), or to the working directory.
    ///
    /// # Errors
    /// A missing directory or file, or an unsupported model, with its name.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, ModelDirError> {
        let path = path.into();
        if path.join(ADAPTER_CONFIG_FILE).is_file() {
            Self::open_adapter(&path, &base_of(&path)?)
        } else {
            Ok(Self::open_whole(path)?.with_end_of_tokenizer())
        }
    }

    /// Opens the model of a run, with the chat template that the run configures.
    ///
    /// # Errors
    /// As [`ModelDir::open`] and [`ModelDir::with_chat_template`].
    pub fn of_run(config: &TrainConfig) -> Result<Self, ModelDirError> {
        Self::open(&config.model)?.with_chat_template(config.chat_template.as_deref())
    }

    /// Opens an adapter on a given base, without a search.
    ///
    /// # Errors
    /// As [`ModelDir::open`], or a base that is an adapter itself.
    pub fn open_adapter(adapter: &Path, base: &Path) -> Result<Self, ModelDirError> {
        if base.join(ADAPTER_CONFIG_FILE).is_file() {
            let message =
                format!("the base of {} is an adapter itself; merge it first: tandem merge", adapter.display());
            return Err(ModelDirError::File { path: base.display().to_string(), message });
        }
        refuse_links_out(adapter)?;
        let model = Self { adapter: Some(adapter.to_path_buf()), ..Self::open_whole(base.to_path_buf())? };
        Ok(model.with_end_of_tokenizer())
    }

    /// Puts the tokens that the tokenizer's files call `eos_token` before the other end-of-sequence ids.
    fn with_end_of_tokenizer(mut self) -> Self {
        // Code that needs the tokenizer reports faults of its files; weights can be read without it.
        let named = NamedTokens::of(&self).unwrap_or_default();
        let of_file = special::ids_in(&self.file("tokenizer.json"), &named.eos);
        let mut ends = Vec::new();
        for (text, id) in named.eos.iter().zip(of_file) {
            let stated = || named.tokens.iter().find(|token| token.content == *text).and_then(|token| token.id);
            match id.or_else(stated) {
                Some(id) => ends.push(id),
                None => self.generation.eos_without_id.push(text.clone()),
            }
        }
        ends.append(&mut self.generation.eos_token_ids);
        let vocabulary = self.config.vocab_size;
        let beyond = |id: &u32| *id as usize >= vocabulary;
        let (beyond, ends): (Vec<u32>, Vec<u32>) = distinct(ends).into_iter().partition(beyond);
        self.generation.eos_beyond.extend(beyond.into_iter().map(i64::from));
        self.generation.eos_token_ids = ends;
        self
    }

    fn open_whole(path: PathBuf) -> Result<Self, ModelDirError> {
        if !path.is_dir() {
            return Err(ModelDirError::File {
                path: path.display().to_string(),
                message:
                    "no such directory; a model is a folder with config.json, model.safetensors and tokenizer.json, or \
                     a name on the Hub, as in Qwen/Qwen2.5-0.5B-Instruct (hf://owner/name is never a folder)"
                        .into(),
            });
        }
        refuse_links_out(&path)?;
        let config_path = path.join("config.json");
        if !config_path.exists() {
            return Err(ModelDirError::File {
                path: path.display().to_string(),
                message: foreign::instead_of_model(&path),
            });
        }
        let config_text = read_text(&config_path)?;
        let config = ModelConfig::from_json(&config_text)
            .map_err(|reason| ModelDirError::Config { path: path.display().to_string(), reason })?;
        let own = parse(&config_text, &config_path)?;
        let generation_path = path.join("generation_config.json");
        let generation = if generation_path.exists() {
            parse(&read_text(&generation_path)?, &generation_path)?
        } else {
            Value::Null
        };
        let files = [(&generation, &generation_path), (&own, &config_path), (&own["text_config"], &config_path)];
        let first = |key: &str| -> Result<Option<u32>, ModelDirError> {
            let stated = files.iter().find(|(json, _)| !json[key].is_null());
            Ok(stated.map(|(json, path)| ids(json, path, key)).transpose()?.unwrap_or_default().first().copied())
        };
        let ends = files.iter().map(|(json, path)| ids(json, path, "eos_token_id"));
        let says_none = files.iter().any(|(json, _)| listed(&json["eos_token_id"]).iter().any(is_none));
        let generation = GenerationConfig {
            eos_token_ids: distinct(ends.collect::<Result<Vec<_>, _>>()?.concat()),
            eos_without_id: Vec::new(),
            eos_beyond: says_none.then_some(-1).into_iter().collect(),
            not_followed: remarks::not_followed(&generation),
            pad_token_id: first("pad_token_id")?,
            bos_token_id: first("bos_token_id")?,
        };
        let unknown_rope_keys = remarks::unknown_rope_keys(&own);
        Ok(Self { path, adapter: None, config, generation, unknown_rope_keys, templates: None })
    }

    /// The directory; for an adapter, the base's.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the adapter on the weights.
    #[must_use]
    pub fn adapter(&self) -> Option<&Path> {
        self.adapter.as_deref()
    }

    /// A file of the adapter if it has it, else of its base.
    fn file(&self, name: &str) -> PathBuf {
        let own = self.adapter.as_ref().map(|dir| dir.join(name)).filter(|path| path.is_file());
        own.unwrap_or_else(|| self.path.join(name))
    }

    /// The architecture.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// End-of-sequence ids and other special ids.
    #[must_use]
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// Whether the directory holds safetensors weights, or is an adapter on some.
    #[must_use]
    pub fn has_weights(&self) -> bool {
        self.adapter.is_some()
            || ["model.safetensors", "model.safetensors.index.json"].iter().any(|name| self.path.join(name).is_file())
    }

    /// `tokenizer.json`.
    ///
    /// # Errors
    /// When the file is missing.
    pub fn tokenizer(&self) -> Result<PathBuf, ModelDirError> {
        let path = self.file("tokenizer.json");
        if path.is_file() {
            return Ok(path);
        }
        Err(ModelDirError::File {
            path: path.display().to_string(),
            message: "no such file; convert the tokenizer to the fast format with transformers' save_pretrained".into(),
        })
    }

    /// `tokenizer_config.json` as it stands, or null without one.
    ///
    /// # Errors
    /// When the file exists and cannot be read.
    pub fn tokenizer_config(&self) -> Result<Value, ModelDirError> {
        self.json("tokenizer_config.json")
    }

    /// A JSON file as it stands, or null without one.
    fn json(&self, name: &str) -> Result<Value, ModelDirError> {
        let path = self.file(name);
        if path.is_file() { parse(&read_text(&path)?, &path) } else { Ok(Value::Null) }
    }

    /// Files of the directory, other than weights, that a checkpoint takes along.
    #[must_use]
    pub fn companions(&self) -> Vec<PathBuf> {
        let others = [
            TEMPLATE_FILE,
            "chat_template.json",
            "tokenizer.model",
            "vocab.json",
            "merges.txt",
            "preprocessor_config.json",
            "processor_config.json",
        ];
        let names = SAMPLER_FILES.iter().copied().chain(others);
        names.map(|name| self.file(name)).filter(|path| path.is_file()).collect()
    }

    /// Files that a sampler which renders no prompts needs, other than weights.
    #[must_use]
    pub fn sampler_files(&self) -> Vec<PathBuf> {
        SAMPLER_FILES.iter().map(|name| self.file(name)).filter(|path| path.is_file()).collect()
    }
}

/// Names of files, other than weights, that describe the tokens and name those that end a sequence.
const SAMPLER_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];

/// Refuses a directory in which a link leads outside: any file read there would be copied into checkpoints and shown in
/// prompts. The Hub's cache links a model's files to its folder of blobs, two levels up.
fn refuse_links_out(dir: &Path) -> Result<(), ModelDirError> {
    let failed = |path: &Path, message: String| ModelDirError::File { path: path.display().to_string(), message };
    let unreadable = |e: std::io::Error| failed(dir, format!("cannot be read: {e}"));
    let own = dir.canonicalize().map_err(unreadable)?;
    let in_cache = own.parent().is_some_and(|folder| folder.ends_with("snapshots"));
    let repository = own.ancestors().nth(2).filter(|_| in_cache);
    let blobs = repository.and_then(|repository| repository.join("blobs").canonicalize().ok());
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if !path.is_symlink() || !path.is_file() {
            continue;
        }
        let target = path.canonicalize().map_err(unreadable)?;
        if !target.starts_with(&own) && !blobs.as_ref().is_some_and(|blobs| target.starts_with(blobs)) {
            let message =
                format!("is a link to {}, outside of the model; copy the file in its place", target.display());
            return Err(failed(&path, message));
        }
    }
    Ok(())
}

/// Checks the folder of an adapter by itself, as [`ModelDir::open`] does; whether its base is on this machine.
///
/// # Errors
/// A configuration that cannot be read, or a link that leads outside.
pub fn has_base(adapter: &Path) -> Result<bool, ModelDirError> {
    refuse_links_out(adapter)?;
    Ok(find_base(adapter)?.1.is_some())
}

/// The base that `adapter_config.json` of a folder names: its name, and its folder if that is on this machine.
fn find_base(adapter: &Path) -> Result<(String, Option<PathBuf>), ModelDirError> {
    let path = adapter.join(ADAPTER_CONFIG_FILE);
    let json = parse(&read_text(&path)?, &path)?;
    let named = json.get("base_model_name_or_path").and_then(Value::as_str).unwrap_or_default();
    let folders = adapter.ancestors().take(3).chain([Path::new("")]);
    let found = folders.map(|folder| folder.join(named)).find(|base| base.join("config.json").is_file());
    Ok((named.to_owned(), found))
}

/// The folder of the base that `adapter_config.json` of a folder names.
fn base_of(adapter: &Path) -> Result<PathBuf, ModelDirError> {
    let (named, found) = find_base(adapter)?;
    found.ok_or_else(|| ModelDirError::File {
        path: adapter.join(ADAPTER_CONFIG_FILE).display().to_string(),
        message: format!(
            "`base_model_name_or_path` = {named:?} is no model directory on this machine; let it name the folder of \
             the base"
        ),
    })
}

/// The token ids that a file states, a number or a list of numbers; none if it states none.
fn ids(json: &Value, path: &Path, key: &str) -> Result<Vec<u32>, ModelDirError> {
    let value = &json[key];
    let stated = listed(value).iter().filter(|value| !value.is_null() && !is_none(value));
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    stated.map(id).collect::<Option<_>>().ok_or_else(|| ModelDirError::File {
        path: path.display().to_string(),
        message: format!("`{key}` must be a token id or a list of token ids, found {value}"),
    })
}

/// The entries of a list, or a value that stands alone.
fn listed(value: &Value) -> &[Value] {
    if let Value::Array(list) = value { list.as_slice() } else { std::slice::from_ref(value) }
}

/// Whether an id is -1, which older files write for "none".
fn is_none(id: &Value) -> bool {
    id.as_i64() == Some(-1)
}

/// The same ids in their order, each once.
fn distinct(ids: Vec<u32>) -> Vec<u32> {
    let mut seen = HashSet::new();
    ids.into_iter().filter(|id| seen.insert(*id)).collect()
}

fn read_text(path: &Path) -> Result<String, ModelDirError> {
    read_bounded(path, MOST_BYTES)
        .map_err(|e| ModelDirError::File { path: path.display().to_string(), message: format!("cannot be read: {e}") })
}

fn parse(text: &str, path: &Path) -> Result<Value, ModelDirError> {
    python_json::from_str(text).map_err(|e| ModelDirError::File {
        path: path.display().to_string(),
        message: foreign_content(text.as_bytes()).map_or_else(|| format!("is not valid JSON: {e}"), Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": 8, "max_position_embeddings": 8, "eos_token_id": 7}"#;

    /// A model directory with these files besides `config.json`.
    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), CONFIG).unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn ends_are_those_of_all_files_and_other_ids_those_of_the_first() {
        let generation = |files: &[(&str, &str)]| ModelDir::open(directory(files).path()).unwrap().generation().clone();
        let found = generation(&[("generation_config.json", r#"{"eos_token_id": [3, 5], "pad_token_id": 0}"#)]);
        let expected = GenerationConfig { eos_token_ids: vec![3, 5, 7], pad_token_id: Some(0), ..Default::default() };
        assert_eq!(found, expected);
        let none = r#"{"eos_token_id": null, "bos_token_id": 1, "pad_token_id": -1}"#;
        let expected = GenerationConfig { eos_token_ids: vec![7], bos_token_id: Some(1), ..Default::default() };
        assert_eq!(generation(&[("generation_config.json", none)]), expected);
        assert_eq!(generation(&[]).eos_token_ids, [7]);
        let nested = CONFIG.replace(r#""eos_token_id": 7"#, r#""text_config": {"eos_token_id": [6, 7]}"#);
        assert_eq!(generation(&[("config.json", &nested)]).eos_token_ids, [6, 7]);
    }

    #[test]
    fn the_tokenizers_end_comes_first() {
        let tokenizer = r#"{"added_tokens": [{"id": 4, "content": "<end>"}], "model": {"vocab": {"a": 0, "</s>": 2}}}"#;
        let ends = |more: &[(&str, &str)]| {
            let dir = directory(&[&[("tokenizer.json", tokenizer)], more].concat());
            let model = ModelDir::open(dir.path()).unwrap();
            (model.generation().eos_token_ids.clone(), model.remarks_on_ends())
        };
        let config = |text: &'static str| ("tokenizer_config.json", text);
        assert_eq!(ends(&[config(r#"{"eos_token": "<end>"}"#)]), (vec![4, 7], vec![]));
        assert_eq!(ends(&[config(r#"{"eos_token": {"content": "</s>"}}"#)]).0, [2, 7]);
        let map = ("special_tokens_map.json", r#"{"eos_token": "</s>"}"#);
        assert_eq!(ends(&[map]).0, [2, 7]);
        assert_eq!(ends(&[config(r#"{"eos_token": "<end>"}"#), map]).0, [4, 2, 7]);
        let generation = ("generation_config.json", r#"{"eos_token_id": [7, 4]}"#);
        assert_eq!(ends(&[config(r#"{"eos_token": "<end>"}"#), generation]).0, [4, 7]);
        let decoder = r#"{"eos_token": "<x>", "added_tokens_decoder": {"6": {"content": "<x>", "special": true}}}"#;
        assert_eq!(ends(&[config(decoder)]).0, [6, 7]);
        let (ids, remarks) = ends(&[config(r#"{"eos_token": "<no>"}"#)]);
        assert_eq!(ids, [7]);
        assert!(remarks[0].contains("`eos_token` is \"<no>\", which is no token of tokenizer.json"), "{remarks:?}");
        let trimmed = CONFIG.replace(r#""eos_token_id": 7"#, r#""eos_token_id": 9999"#);
        let (ids, remarks) = ends(&[("config.json", &trimmed)]);
        assert!(ids.is_empty() && remarks[0].contains("9999 is to end sequences"), "{remarks:?}");
        assert!(remarks[1].contains("no file names a token that ends a sequence"), "{remarks:?}");
        let (ids, remarks) = ends(&[("generation_config.json", r#"{"eos_token_id": [-1, 3]}"#)]);
        assert_eq!(ids, [3, 7]);
        assert!(remarks[0].contains("-1 is to end sequences"), "{remarks:?}");
        let silent = CONFIG.replace(r#", "eos_token_id": 7"#, "");
        let (ids, remarks) = ends(&[("config.json", &silent)]);
        assert!(ids.is_empty() && remarks[0].contains("no file names a token that ends a sequence"), "{remarks:?}");
    }

    #[test]
    fn what_is_not_followed_of_a_generation_config_is_told_before_completions() {
        let remarks = |text: &str| {
            let dir = directory(&[("generation_config.json", text)]);
            ModelDir::open(dir.path()).unwrap().remarks_on_generation()
        };
        assert_eq!(remarks(r#"{"repetition_penalty": 1.0, "temperature": 0.6}"#), Vec::<String>::new());
        let told = remarks(r#"{"suppress_tokens": [3], "repetition_penalty": 1.05}"#);
        let words = "generation_config.json has `repetition_penalty`, `suppress_tokens`, which transformers'";
        assert!(told.len() == 1 && told[0].contains(words), "{told:?}");
    }

    #[test]
    fn dynamic_positions_are_told_with_the_longest_sequence() {
        let dynamic = CONFIG.replacen('{', r#"{"rope_scaling": {"type": "dynamic", "factor": 2.0}, "#, 1);
        let dir = directory(&[("config.json", &dynamic)]);
        let remarks = ModelDir::open(dir.path()).unwrap().remarks();
        assert!(remarks.len() == 1 && remarks[0].contains("no sequence has more than 8 tokens here"), "{remarks:?}");
    }

    #[test]
    fn an_id_that_is_none_is_refused_instead_of_dropped() {
        for bad in ["-2", "[1, \"2\"]", "4294967296", "1.5"] {
            let dir = directory(&[("generation_config.json", &format!(r#"{{"eos_token_id": {bad}}}"#))]);
            let error = ModelDir::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("generation_config.json: `eos_token_id` must be"), "{error}");
        }
    }

    #[test]
    fn missing_and_broken_files_are_named() {
        let error = ModelDir::open("/no/such/model").unwrap_err().to_string();
        assert!(error.starts_with("/no/such/model: no such directory"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        let error = ModelDir::open(empty.path()).unwrap_err().to_string();
        assert!(error.contains(": has no config.json; a model is a folder with"), "{error}");
        let broken = directory(&[("generation_config.json", "{")]);
        let error = ModelDir::open(broken.path()).unwrap_err().to_string();
        assert!(error.contains("generation_config.json: is not valid JSON"), "{error}");
        let error = ModelDir::open(directory(&[]).path()).unwrap().tokenizer().unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: no such file"), "{error}");
    }

    #[test]
    fn a_name_does_not_lead_out_of_the_directory() {
        let secret = tempfile::NamedTempFile::new().unwrap();
        let dir = directory(&[("chat_template.jinja", "own")]);
        std::os::unix::fs::symlink("chat_template.jinja", dir.path().join("merges.txt")).unwrap();
        ModelDir::open(dir.path()).unwrap();
        std::os::unix::fs::symlink(secret.path(), dir.path().join("vocab.json")).unwrap();
        let error = ModelDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("vocab.json: is a link to ") && error.contains("copy the file in its place"), "{error}");

        // The layout of the Hub's cache.
        let cache = tempfile::tempdir().unwrap();
        let (snapshot, blobs) = (cache.path().join("snapshots/abc"), cache.path().join("blobs"));
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir(&blobs).unwrap();
        fs::write(blobs.join("1"), CONFIG).unwrap();
        std::os::unix::fs::symlink("../../blobs/1", snapshot.join("config.json")).unwrap();
        ModelDir::open(&snapshot).unwrap();
    }

    #[test]
    fn files_without_end_are_refused() {
        let dir = directory(&[]);
        fs::remove_file(dir.path().join("config.json")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("config.json"), rustix::fs::Mode::RUSR).unwrap();
        let error = ModelDir::open(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("config.json: cannot be read: is a pipe or device, not a file"), "{error}");
    }

    #[test]
    fn the_template_file_goes_before_the_key() {
        let key = ("tokenizer_config.json", r#"{"chat_template": "key"}"#);
        let template = |files: &[(&str, &str)]| {
            let dir = directory(files);
            ModelDir::open(dir.path()).unwrap().chat_template().unwrap()
        };
        assert_eq!(template(&[key, ("chat_template.jinja", "file")]).as_deref(), Some("file"));
        assert_eq!(template(&[key]).as_deref(), Some("key"));
        let named = r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(template(&[("tokenizer_config.json", named)]).as_deref(), Some("d"));
        assert_eq!(template(&[]), None);
    }

    #[test]
    fn an_adapter_finds_its_base_and_has_files_of_both() {
        let run = tempfile::tempdir().unwrap();
        let base = run.path().join("base");
        fs::create_dir_all(&base).unwrap();
        for (name, text) in [("config.json", CONFIG), ("tokenizer.json", "of the base"), ("merges.txt", "")] {
            fs::write(base.join(name), text).unwrap();
        }
        let adapter = run.path().join("weights/v000001");
        fs::create_dir_all(&adapter).unwrap();
        fs::write(adapter.join("chat_template.jinja"), "of the adapter").unwrap();
        let name_base = |name: &str| {
            let json = serde_json::json!({"base_model_name_or_path": name}).to_string();
            fs::write(adapter.join(ADAPTER_CONFIG_FILE), json).unwrap();
            ModelDir::open(&adapter)
        };
        for name in [base.to_str().unwrap(), "../../base", "base"] {
            let model = name_base(name).unwrap();
            assert_eq!((model.adapter(), model.has_weights()), (Some(&*adapter), true));
            assert_eq!(model.path().canonicalize().unwrap(), base.canonicalize().unwrap());
            assert_eq!(fs::read_to_string(model.tokenizer().unwrap()).unwrap(), "of the base");
            assert_eq!(model.chat_template().unwrap().as_deref(), Some("of the adapter"));
            assert_eq!(model.companions().len(), 4);
        }
        for name in ["Qwen/Qwen2.5-0.5B", ""] {
            let error = name_base(name).unwrap_err().to_string();
            assert!(error.contains(&format!("`base_model_name_or_path` = {name:?} is no model directory")), "{error}");
        }
        let other = directory(&[("tokenizer.json", "of another")]);
        let model = ModelDir::open_adapter(&adapter, other.path()).unwrap();
        assert_eq!(fs::read_to_string(model.tokenizer().unwrap()).unwrap(), "of another");
        fs::write(base.join(ADAPTER_CONFIG_FILE), "{}").unwrap();
        let error = name_base("base").unwrap_err().to_string();
        assert!(error.contains("is an adapter itself; merge it first: tandem merge"), "{error}");
    }

    #[test]
    fn companions_are_the_files_that_are_there() {
        let dir = directory(&[("tokenizer.json", "{}"), ("model.safetensors", ""), ("notes.txt", "")]);
        let model = ModelDir::open(dir.path()).unwrap();
        let names: Vec<_> = model.companions().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["config.json", "tokenizer.json"]);
    }
}
