//! The tokenizer of a model directory.

use std::sync::{Arc, OnceLock};

use rollout_rewards::PolicyTokenizer;
use serde_json::{Map, Value};
use shared::{ModelDir, config::JsonTable, model::model_dir::ModelDirError};
use shared_chat::{ChatTemplate, TemplateError};
use shared_tokenizer::{ControlTokens, OpenError, TextTokenizer, TokenBytes};
use time::OffsetDateTime;

use super::{
    detokenizer::TextStream,
    stop::{StopCriterionFactory, StopStrings},
};

/// A tokenizer that cannot be loaded, or a text that it cannot handle.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file of the model directory is missing or cannot be read.
    #[error(transparent)]
    Directory(#[from] ModelDirError),
    /// The tokenizer itself cannot be loaded.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The chat template does not compile or cannot render these messages.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Messages, but the model directory has no chat template.
    #[error(
        "the model has no chat template for a prompt of messages; add chat_template.jinja to the model directory, name \
         one with `chat_template`, or write `prompt` as plain text"
    )]
    NoTemplate,
    /// The text cannot be tokenised.
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
    /// The token ids cannot be decoded.
    #[error("the token ids cannot be decoded: {0}")]
    Decode(String),
}

/// Text to token ids and back. Cheap to clone; two of them are equal when their `tokenizer.json` is the same.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<TextTokenizer>,
    template: Option<Arc<ChatTemplate>>,
    /// The control tokens of both, once somebody has asked.
    pub(super) control: Arc<OnceLock<ControlTokens>>,
    /// Variables that every rendering has.
    kwargs: Arc<Map<String, Value>>,
    /// Remarks on odd tokens and templates of the model.
    remarks: Arc<[String]>,
    /// Token ids that the model has an embedding for; the tokenizer may know more or fewer.
    model_vocab_size: usize,
}

impl PartialEq for Tokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.content() == other.content()
    }
}

impl PolicyTokenizer for Tokenizer {
    /// Formally: the length of the common prefix of two decoded texts, that of the tokens up to and including this one
    /// and that of all tokens.
    fn token_ends(&self, ids: &[u32]) -> Result<Vec<usize>, String> {
        let text = self.decode(ids).map_err(|e| e.to_string())?;
        let mut stream = TextStream::new(self.clone());
        let mut settled = 0;
        let end = |&id: &u32| {
            let (piece, whole) = stream.push(id);
            let end = settled + common_prefix(&piece, &text[settled..]);
            if whole {
                settled = end;
            }
            end
        };
        Ok(ids.iter().map(end).collect())
    }

    fn content(&self) -> [u8; 32] {
        self.inner.content()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

/// A token of an encoded text, with the bytes of the text that it stands for. All tokens of a character that was cut
/// into several stand for the whole character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextToken {
    /// Token id.
    pub id: u32,
    /// First byte.
    pub start: usize,
    /// End of its bytes.
    pub end: usize,
}

impl Tokenizer {
    /// Loads `tokenizer.json` and, where there is one, the chat template.
    ///
    /// # Errors
    /// A missing or broken file, by name.
    pub fn open(model: &ModelDir) -> Result<Self, TokenizerError> {
        Self::open_at(model, None)
    }

    /// As [`Tokenizer::open`], with a chat template that takes `now` as the current time.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn open_at(model: &ModelDir, now: Option<OffsetDateTime>) -> Result<Self, TokenizerError> {
        let now = now.unwrap_or_else(OffsetDateTime::now_utc);
        let inner = TextTokenizer::of_model(model)?;
        let mut remarks = inner.remarks().to_vec();
        let template = ChatTemplate::of_model(model, now).map_err(|error| match error {
            shared_chat::OpenError::Directory(error) => TokenizerError::Directory(error),
            shared_chat::OpenError::Template(error) => TokenizerError::Template(error),
        })?;
        if let Some(names) = model.chat_templates()?.without_default() {
            remarks.push(format!(
                "none of the model's chat templates is the default ({}); name a file with one of them as \
                 `chat_template`",
                names.join(", ")
            ));
        }
        Ok(Self {
            inner: Arc::new(inner),
            template: template.map(Arc::new),
            control: Arc::default(),
            kwargs: Arc::default(),
            remarks: remarks.into(),
            model_vocab_size: model.config().vocab_size,
        })
    }

    /// Adds variables for the chat template (`chat_template_kwargs`). A variable that no template reads causes a
    /// remark.
    #[must_use]
    pub fn with_template_kwargs(mut self, kwargs: Option<&JsonTable>) -> Self {
        let Some(kwargs) = kwargs.map(JsonTable::values).filter(|kwargs| !kwargs.is_empty()) else { return self };
        let switches = self.template.as_ref().map(|template| template.switches());
        let unread: Vec<&str> = kwargs
            .keys()
            .filter(|name| switches.as_ref().is_none_or(|read| !read.contains(*name)))
            .map(String::as_str)
            .collect();
        if !unread.is_empty() {
            let why = match switches {
                None => "the model has no chat template".to_owned(),
                Some(read) if read.is_empty() => "the chat template has no switches".to_owned(),
                Some(read) => format!("the chat template reads {}", read.into_iter().collect::<Vec<_>>().join(", ")),
            };
            let remark = format!("`chat_template_kwargs`: {} changes nothing: {why}", unread.join(", "));
            self.remarks = self.remarks.iter().cloned().chain([remark]).collect();
        }
        self.kwargs = Arc::new(kwargs.clone());
        self
    }

    /// Remarks on odd tokens and chat templates of the model.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Whether variables were given for the chat template.
    #[must_use]
    pub fn has_template_kwargs(&self) -> bool {
        !self.kwargs.is_empty()
    }

    /// The variables that every rendering has (`chat_template_kwargs`).
    #[must_use]
    pub fn template_kwargs(&self) -> &Map<String, Value> {
        &self.kwargs
    }

    /// Token ids of a text. `add_special_tokens` is for plain text; a rendered chat template brings its own.
    ///
    /// # Errors
    /// When the tokenizer's model cannot represent the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        self.inner.encode(text, add_special_tokens).map_err(TokenizerError::Encode)
    }

    /// Tokens of a text, without special tokens around it, and where in the text they are.
    ///
    /// # Errors
    /// When the tokenizer's model cannot represent the text.
    pub fn encode_with_offsets(&self, text: &str) -> Result<Vec<TextToken>, TokenizerError> {
        let encoding = self.inner.encode_with_offsets(text).map_err(TokenizerError::Encode)?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(tokens.map(|(&id, &(start, end))| TextToken { id, start, end }).collect())
    }

    /// Text of token ids, special tokens left out.
    ///
    /// # Errors
    /// When the decoder of the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(ids).map_err(TokenizerError::Decode)
    }

    /// Whether [`Tokenizer::decode`] leaves a token out: it is special, or not one of the tokenizer's.
    pub(super) fn leaves_out(&self, id: u32) -> bool {
        self.inner.leaves_out(id)
    }

    /// What stands for a token that [`Tokenizer::decode`] leaves out, if it is one of the tokenizer's.
    #[must_use]
    pub fn special_text(&self, id: u32) -> Option<String> {
        self.inner.special_text(id)
    }

    /// Number of token ids, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    /// The tokenizer without the chat template.
    #[must_use]
    pub fn text_tokenizer(&self) -> &TextTokenizer {
        &self.inner
    }

    /// The bytes of all tokens of the model.
    ///
    /// # Errors
    /// When its texts are not the bytes of its tokens, one after the other.
    pub fn token_bytes(&self) -> Result<TokenBytes, String> {
        self.inner.token_bytes(self.model_vocab_size)
    }

    /// Number of token ids that the model takes.
    #[must_use]
    pub fn model_vocab_size(&self) -> usize {
        self.model_vocab_size
    }

    /// The chat template, if the model has one.
    #[must_use]
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_deref()
    }

    /// Renders messages for generation. The text ends with the opening of the assistant's turn or, if the last message
    /// is the assistant's, with that message left open. `variables` are further template variables (`tools`, …), which
    /// take precedence over those of every rendering.
    ///
    /// # Errors
    /// Without a template, or when the template refuses the messages.
    pub fn render(&self, messages: &[Value], variables: &Map<String, Value>) -> Result<String, TokenizerError> {
        let template = self.template.as_ref().ok_or(TokenizerError::NoTemplate)?;
        let mut all = (*self.kwargs).clone();
        all.extend(variables.clone());
        Ok(template.render_prompt(messages, &all)?)
    }

    /// The value of [`crate::engine::GroupRequest::stop_criterion`]: a factory of criteria for these stop strings, or
    /// `None` when there are none.
    #[must_use]
    pub fn stop_criterion(&self, stop: &[String]) -> Option<StopCriterionFactory> {
        let stop: Arc<[String]> = stop.iter().filter(|s| !s.is_empty()).cloned().collect();
        if stop.is_empty() {
            return None;
        }
        let tokenizer = self.clone();
        Some(Arc::new(move || Box::new(StopStrings::new(tokenizer.clone(), stop.clone()))))
    }
}

/// Bytes of the longest common prefix of two texts, in whole characters.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::data::testing::{BOS, byte_tokenizer};

    #[test]
    fn a_character_cut_into_tokens_ends_with_the_last_of_them() {
        let tokenizer = byte_tokenizer(None);
        let mut ids = tokenizer.encode("aé\u{1F600}b", false).unwrap();
        ids.push(BOS);
        assert_eq!(tokenizer.token_ends(&ids).unwrap(), [1, 1, 3, 3, 3, 3, 7, 8, 8]);
        let tokens = tokenizer.encode_with_offsets("aé").unwrap();
        assert_eq!(tokens.iter().map(|t| (t.start, t.end)).collect::<Vec<_>>(), [(0, 1), (1, 3), (1, 3)]);
    }

    proptest! {
        /// Any sequence of tokens, also one that is no valid UTF-8, against decoding every prefix from its start.
        #[test]
        fn ends_of_tokens_agree_with_decoding_everything(
            ids in proptest::collection::vec(prop_oneof![64u32..72, 0u32..257], 0..40),
        ) {
            let tokenizer = byte_tokenizer(None);
            let text = tokenizer.decode(&ids).unwrap();
            let expected: Vec<usize> =
                (1..=ids.len()).map(|n| common_prefix(&tokenizer.decode(&ids[..n]).unwrap(), &text)).collect();
            prop_assert_eq!(tokenizer.token_ends(&ids).unwrap(), expected);
        }
    }

    #[test]
    fn special_tokens_come_with_plain_text_only_and_go_when_decoding() {
        let tokenizer = byte_tokenizer(None);
        let text = "eight letters and more, é";
        let plain = tokenizer.encode(text, true).unwrap();
        assert_eq!(plain[0], BOS);
        assert_eq!(plain.len(), text.len() + 1, "saved truncation and padding are off");
        assert_eq!(tokenizer.encode(text, false).unwrap(), plain[1..]);
        assert_eq!(tokenizer.decode(&plain).unwrap(), text);
        assert_eq!(tokenizer.vocab_size(), 257);
    }

    #[test]
    fn messages_need_a_template() {
        let error = byte_tokenizer(None).render(&[json!({"role": "user", "content": "hi"})], &Map::new()).unwrap_err();
        assert!(error.to_string().contains("no chat template"), "{error}");
    }

    #[test]
    fn broken_tokenizer_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(harness::golden_dir().join("models/llama/config.json"), dir.path().join("config.json")).unwrap();
        let open = || Tokenizer::open(&ModelDir::open(dir.path()).unwrap()).err().unwrap().to_string();
        assert!(open().contains("tokenizer.json: no such file"), "{}", open());
        std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        assert!(open().contains("tokenizer.json: not a usable tokenizer"), "{}", open());
    }

    /// The real Qwen2.5 tokenizer and chat template give what transformers gives.
    #[test]
    fn qwen_texts_and_chats_are_those_of_transformers() {
        let Some(data) = harness::data_dir("qwen_texts_and_chats_are_those_of_transformers") else { return };
        let source = data.join("tokenizers/qwen2.5");
        let reference = std::fs::read_to_string(source.join("reference.json")).unwrap();
        let reference: Value = serde_json::from_str(&reference).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(source.join(file), dir.path().join(file)).unwrap();
        }
        std::fs::copy(data.join("configs/qwen2.5-0.5b.config.json"), dir.path().join("config.json")).unwrap();
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        // The template in tokenizer_config.json first, then the file of its own.
        for template_file in [false, true] {
            if template_file {
                std::fs::copy(source.join("chat_template.jinja"), dir.path().join("chat_template.jinja")).unwrap();
            }
            let tokenizer = Tokenizer::open(&ModelDir::open(dir.path()).unwrap()).unwrap();
            let chats = reference["chat"].as_array().unwrap();
            assert!(!chats.is_empty());
            for case in chats {
                let messages = case["messages"].as_array().unwrap();
                let generation = case["add_generation_prompt"].as_bool().unwrap();
                let text = tokenizer.template().unwrap().render(messages, generation, &Map::new()).unwrap();
                assert_eq!(text, case["text"].as_str().unwrap());
                assert_eq!(tokenizer.encode(&text, false).unwrap(), ids(&case["ids"]));
                if generation {
                    assert_eq!(tokenizer.render(messages, &Map::new()).unwrap(), text);
                }
            }
        }
        let tokenizer = Tokenizer::open(&ModelDir::open(dir.path()).unwrap()).unwrap();
        let texts = reference["encode"].as_array().unwrap();
        assert!(!texts.is_empty());
        for case in texts {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&case["ids"]), "{text:?}");
            // The tokenizer normalises, so the text may come back composed, but it means the same tokens.
            let decoded = tokenizer.decode(&ids(&case["ids"])).unwrap();
            assert_eq!(tokenizer.encode(&decoded, true).unwrap(), ids(&case["ids"]), "{decoded:?}");
        }
    }
}
