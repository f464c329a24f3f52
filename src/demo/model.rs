//! A tiny model directory without weights: architecture (a Qwen2 of 0.2 million parameters, or one of the user's) and
//! tokenizer. The tags of the completion format are whole tokens; everything else is one token per character.

use std::{
    borrow::Cow,
    fmt::{self, Display},
    fs, io,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use shared::{ModelConfig, files::atomic};

const CONFIG: &str = include_str!("model/config.json");
const FILES: [(&str, &str); 3] = [
    ("generation_config.json", include_str!("model/generation_config.json")),
    ("tokenizer.json", include_str!("model/tokenizer.json")),
    ("tokenizer_config.json", include_str!("model/tokenizer_config.json")),
];
/// Tokens of the tokenizer.
const VOCAB: usize = 19;
/// Positions that problems and answers of the demo fit into.
const LONGEST: usize = 64;

/// A model of the demo, not yet written.
pub struct TinyModel {
    /// Its `config.json`.
    text: Cow<'static, str>,
    config: ModelConfig,
}

impl TinyModel {
    /// The demo's own, or that of the user's `config.json`.
    ///
    /// # Errors
    /// A file that cannot be read, a configuration that no model has, or one without room for the tokens and lengths of
    /// the demo.
    pub fn of(file: Option<&Path>) -> Result<Self> {
        let Some(file) = file else { return Self::new(CONFIG.into()) };
        let text = fs::read_to_string(file).map_err(anyhow::Error::from);
        text.and_then(|text| Self::new(text.into())).with_context(|| format!("--model-config {}", file.display()))
    }

    fn new(text: Cow<'static, str>) -> Result<Self> {
        let config = ModelConfig::from_json(&text)?;
        let (tokens, positions) = (config.vocab_size, config.max_position_embeddings);
        ensure!(tokens == VOCAB, "`vocab_size` is {tokens}, and the tokenizer of the demo has {VOCAB} tokens");
        ensure!(positions >= LONGEST, "`max_position_embeddings` is {positions}, and the demo takes {LONGEST}");
        Ok(Self { text, config })
    }

    /// Writes its directory; the learner initialises the weights.
    ///
    /// # Errors
    /// Any error of the file system, with the path in its message.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let files = FILES.into_iter().chain([("config.json", &*self.text)]);
        atomic::write_dir(dir, |target| {
            files.clone().try_for_each(|(name, text)| atomic::write(&target.join(name), text.as_bytes()))
        })
    }
}

impl Display for TinyModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: usize = self.config.parameters().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        write!(f, "{:?}, {:.2} million parameters", self.config.architecture, parameters as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use shared::{Architecture, ModelDir};

    use super::*;

    #[test]
    fn the_directory_opens_as_a_qwen2_model() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        let own = TinyModel::of(None).unwrap();
        assert_eq!(own.to_string(), "Qwen2, 0.15 million parameters");
        own.write(&path).unwrap();
        let model = ModelDir::open(&path).unwrap();
        assert_eq!(model.config().architecture, Architecture::Qwen2);
        assert_eq!(model.generation().eos_token_ids, [0]);
        assert!(model.tokenizer().is_ok());
    }

    #[test]
    fn another_architecture_has_the_tokens_and_the_room_that_the_demo_needs() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("own.json");
        let with = |from: &str, to: &str| {
            assert!(CONFIG.contains(from));
            fs::write(&file, CONFIG.replace(from, to)).unwrap();
            TinyModel::of(Some(&file)).map(|model| model.to_string()).map_err(|error| format!("{error:#}"))
        };
        assert!(with("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1").unwrap().starts_with("Qwen2, 0.05"));
        for (from, to, reason) in [
            ("\"vocab_size\": 19", "\"vocab_size\": 20", "`vocab_size` is 20, and the tokenizer of the demo has 19"),
            ("embeddings\": 64", "embeddings\": 63", "`max_position_embeddings` is 63"),
            ("\"model_type\": \"qwen2\"", "\"model_type\": \"other\"", "other"),
        ] {
            let error = with(from, to).unwrap_err();
            assert!(error.starts_with("--model-config ") && error.contains(reason), "{error}");
        }
        assert!(TinyModel::of(Some(&root.path().join("none.json"))).is_err());
    }

    #[test]
    fn the_example_s_families_are_of_about_one_size() {
        let root = tempfile::tempdir().unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/families");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let configs: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
        assert_eq!(configs.len(), 5);
        for config in configs {
            let model = TinyModel::of(Some(&config)).unwrap();
            model.write(&root.path().join("model")).unwrap();
            ModelDir::open(root.path().join("model")).unwrap();
            let words = model.to_string();
            let millions: f64 = words.split(&[' ', ','][..]).find_map(|word| word.parse().ok()).unwrap();
            assert!((0.14..=0.18).contains(&millions), "{words}");
        }
    }

    #[test]
    fn problems_are_written_in_the_model_s_alphabet() {
        let tokenizer: serde_json::Value = serde_json::from_str(FILES[1].1).unwrap();
        let known = tokenizer["model"]["vocab"].as_object().unwrap();
        assert_eq!(known.len(), VOCAB);
        let tags = known.keys().map(String::as_str).filter(|token| token.starts_with('<'));
        let mut rest = crate::demo::problems::Problems::new(0).warm_up_rows();
        for word in tags.chain(["prompt", "completion", "{", "}", "\"", ":", "\n"]) {
            rest = rest.replace(word, "");
        }
        assert!(rest.chars().all(|c| known.contains_key(&c.to_string())), "unknown characters");
    }
}
