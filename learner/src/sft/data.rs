//! Rows for the supervised warm start: prompts with completions, or conversations.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use shared::{ModelDir, RopeScaling};
use shared_data::{Content, Values};

use crate::{
    conversation::{self, Conversations},
    error::LearnerError,
    text::{self, TextIds},
};

/// A tokenised row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Prompt tokens. For a conversation that is trained on as a whole: its first token, which nothing predicts.
    pub prompt: Vec<u32>,
    /// Tokens behind them, which alone carry loss.
    pub completion: Vec<u32>,
}

impl Example {
    /// The first `most` tokens, as TRL keeps them (`truncation_mode` keep_start).
    ///
    /// # Errors
    /// When no token of the completion is left.
    fn first(self, most: usize) -> Result<Self, String> {
        let Self { prompt, mut completion } = self;
        match most.checked_sub(prompt.len()).filter(|&rest| rest > 0) {
            Some(rest) => {
                completion.truncate(rest);
                Ok(Self { prompt, completion })
            }
            None => Err(format!(
                "its prompt has {} tokens, so --max-length {most} leaves nothing of its completion: raise it, or leave \
                 the row out",
                prompt.len()
            )),
        }
    }
}

/// A row: texts, messages, or token ids that are taken as they are.
#[derive(Debug, Deserialize)]
struct Row {
    prompt: Option<Value>,
    completion: Option<Value>,
    #[serde(alias = "conversations")]
    messages: Option<Value>,
    prompt_ids: Option<Vec<u32>>,
    completion_ids: Option<Vec<u32>>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Value>,
}

/// The format of a row, which decides which of its tokens are trained on; TRL's `SFTTrainer` does the same by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExampleFormat {
    /// Prompt and completion as texts or ids.
    Plain,
    /// Prompt and completion as messages.
    Messages,
    /// A conversation.
    Conversation,
}

impl ExampleFormat {
    fn words(self) -> &'static str {
        match self {
            Self::Plain => "prompts and completions; the completions are trained on",
            Self::Messages => {
                "prompts and completions of messages, written by the chat template; the completions are trained on"
            }
            Self::Conversation => {
                "conversations (`messages`), written by the chat template; all of their tokens are trained on, those \
                 of users and systems as well (write `prompt` and `completion` as lists of messages to train on \
                 answers alone)"
            }
        }
    }
}

/// Error about a row in which only one of the two parts is a list of messages.
const ALIKE: &str = "`prompt` and `completion` must both be lists of messages, or both texts";

/// Turns rows into examples.
#[derive(Debug)]
pub struct Encoder {
    text: TextIds,
    conversations: Conversations,
    /// Every end-of-sequence id; the first is appended to completion texts that have none at their end.
    eos: Vec<u32>,
    /// Most tokens of an example, if that is bounded.
    max_length: Option<usize>,
    /// The model's limit.
    limit: usize,
    /// Whether positions are turned in another way from there on (`dynamic`).
    turns_otherwise_beyond: bool,
}

impl Encoder {
    /// An encoder with the model's tokenizer; without one, rows must carry token ids. A row with more than `max_length`
    /// tokens keeps its first ones.
    ///
    /// # Errors
    /// A tokenizer that cannot be read, or `append_eos` for a model that names no end-of-sequence token.
    pub fn new(model: &ModelDir, append_eos: bool, max_length: Option<usize>) -> Result<Self, LearnerError> {
        let text = TextIds::open(model)?;
        let eos = if append_eos { model.generation().eos_token_ids.clone() } else { Vec::new() };
        if append_eos && eos.is_empty() {
            return Err(LearnerError::content(
                model.path(),
                "neither generation_config.json nor config.json names an `eos_token_id`, nor tokenizer_config.json an \
                 `eos_token`; add one, or pass --no-append-eos",
            ));
        }
        let limit = model.config().max_position_embeddings;
        let turns_otherwise_beyond = matches!(model.config().rope_scaling, Some(RopeScaling::Dynamic { .. }));
        let conversations = Conversations::open(model)?;
        Ok(Self { text, conversations, eos, max_length, limit, turns_otherwise_beyond })
    }

    /// Reads a dataset, and reports which part of its rows is trained on.
    ///
    /// # Errors
    /// A dataset that cannot be read, or the first unusable row, with its place and the reason. A row beyond the
    /// model's limit is unusable where positions change there.
    pub fn read(&self, path: &Path) -> Result<Vec<Example>, LearnerError> {
        let rows = text::rows(path, |row| self.encode(row))?;
        for kind in [ExampleFormat::Plain, ExampleFormat::Messages, ExampleFormat::Conversation] {
            let count = rows.iter().filter(|row| row.kind == kind).count();
            if count > 0 {
                tracing::info!("{count} rows are {}", kind.words());
            }
        }
        remarks(&rows).iter().chain(&self.of_long(&rows)).for_each(|remark| tracing::warn!("{remark}"));
        Ok(rows.into_iter().map(|row| row.example).collect())
    }

    fn encode(&self, row: Row) -> Result<Encoded, String> {
        // Ids are taken as they are, whatever stands beside them.
        let prompt = conversation::content("prompt", row.prompt.filter(|_| row.prompt_ids.is_none()))?;
        let completion = conversation::content("completion", row.completion.filter(|_| row.completion_ids.is_none()))?;
        let conversation = conversation::content("messages", row.messages)?;
        let variables = conversation::variables(row.tools, row.chat_template_kwargs)?;
        let has_both = conversation.is_some() && (prompt.is_some() || row.prompt_ids.is_some());
        let ((example, lost), kind) = match (prompt, completion, conversation) {
            (Some(Content::Messages(prompt)), Some(Content::Messages(completion)), _) => {
                (self.messages(&prompt, &completion, &variables)?, ExampleFormat::Messages)
            }
            (Some(Content::Messages(_)), _, _) | (_, Some(Content::Messages(_)), _) => {
                return Err(ALIKE.into());
            }
            (None, None, Some(Content::Messages(messages))) if row.prompt_ids.is_none() => {
                (self.conversation(&messages, &variables)?, ExampleFormat::Conversation)
            }
            (None, None, Some(Content::Text(_))) if row.prompt_ids.is_none() => {
                return Err("`messages` is a text, not a list of messages".into());
            }
            (None, None, None) if row.prompt_ids.is_none() && row.completion_ids.is_none() => {
                return Err(format!("{}`prompt` nor `prompt_ids` nor `messages`", text::MISSING));
            }
            (prompt, completion, _) => {
                let text = |content| match content {
                    Some(Content::Text(text)) => Some(text),
                    _ => None,
                };
                let fields = ((row.prompt_ids, text(prompt)), (row.completion_ids, text(completion)));
                let ids = self.text.prompt_and_completion(fields.0, fields.1, "completion", &self.eos);
                let (prompt, completion) = ids?;
                ((Example { prompt, completion }, None), ExampleFormat::Plain)
            }
        };
        if example.prompt.is_empty() || example.completion.is_empty() {
            return Err("prompt and completion must have at least one token each".into());
        }
        let example = match self.max_length {
            Some(most) => example.first(most)?,
            None => example,
        };
        let (length, limit) = (example.prompt.len() + example.completion.len(), self.limit);
        if self.turns_otherwise_beyond && length > limit {
            return Err(format!(
                "it has {length} tokens, and rotary positions of type `dynamic` are trained up to \
                 `max_position_embeddings` ({limit}) alone; --max-length {limit} keeps the first {limit} tokens of \
                 each row"
            ));
        }
        Ok(Encoded { example, kind, lost, has_both })
    }

    /// A remark on rows that are longer than the model's limit.
    fn of_long(&self, rows: &[Encoded]) -> Option<String> {
        let (all, limit) = (rows.len(), self.limit);
        let is_long = |row: &&Encoded| row.example.prompt.len() + row.example.completion.len() > limit;
        let long = rows.iter().filter(is_long).count();
        (long > 0).then(|| {
            format!(
                "{long} of {all} rows have more tokens than the {limit} positions of the model \
                 (`max_position_embeddings`), and it is trained beyond them; --max-length {limit} keeps the first \
                 {limit} tokens of each row"
            )
        })
    }

    /// An example whose completion is the tokens that follow the rendered prompt in the tokens of both together. The
    /// template ends the turn.
    fn messages(&self, prompt: &[Value], completion: &[Value], variables: &Values) -> Result<Rendered, String> {
        let all = [prompt, completion].concat();
        let (prompt, completion) = self.conversations.prompt_and_completion(prompt, completion, variables)?;
        let lost = self.conversations.lost(&all, &format!("{prompt}{completion}"));
        let (prompt, completion) = self.text.joined(prompt, completion, "completion", false)?;
        Ok((Example { prompt, completion }, lost))
    }

    /// An example that trains on all tokens of a conversation but the first.
    fn conversation(&self, messages: &[Value], variables: &Values) -> Result<Rendered, String> {
        let text = self.conversations.text(messages, variables)?;
        let lost = self.conversations.lost(messages, &text);
        let mut prompt = self.text.ids(None, Some(text), "messages", false)?;
        let completion = prompt.split_off(prompt.len().min(1));
        Ok((Example { prompt, completion }, lost))
    }
}

/// An example, and a message that the chat template has passed over, in words.
type Rendered = (Example, Option<String>);

/// A row as an example, and what is odd about it.
#[derive(Debug)]
struct Encoded {
    example: Example,
    kind: ExampleFormat,
    /// A message that the chat template has passed over, in words.
    lost: Option<String>,
    /// It has `messages` beside a prompt.
    has_both: bool,
}

/// Remarks about oddities of rows that can be trained on.
fn remarks(rows: &[Encoded]) -> Vec<String> {
    let all = rows.len();
    let mut lost = rows.iter().filter_map(|row| row.lost.as_ref());
    let of_lost = lost.next().map(|first| {
        format!(
            "in {} of {all} rows words of the messages are missing: the chat template passes over them. The first is \
             the message {first}. Give messages the roles and contents that the template reads, or put another \
             template into the model's chat_template.jinja",
            1 + lost.count()
        )
    });
    let both = rows.iter().filter(|row| row.has_both).count();
    let of_both = (both > 0).then(|| {
        format!(
            "{both} of {all} rows have `messages` beside a prompt: `prompt` and `completion` are trained on, and \
             `messages` are not"
        )
    });
    of_lost.into_iter().chain(of_both).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use harness::tiny_model::{SMALL, write_tokenizer};
    use serde_json::json;

    use super::*;

    /// The warnings about a file of these rows.
    fn told(lines: &str, template: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        SMALL.write(dir.path(), 5);
        write_tokenizer(dir.path());
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        let encoder = Encoder::new(&ModelDir::open(dir.path()).unwrap(), true, None).unwrap();
        let row = |line: &str| encoder.encode(serde_json::from_str(line).unwrap()).unwrap();
        remarks(&lines.lines().map(row).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_passed_over_is_told() {
        let known = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content \
            }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let lines = r#"{"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]}
{"messages": [{"role": "human", "content": "2+4?"}, {"role": "assistant", "content": "6"}]}
{"prompt": [{"role": "developer", "content": "Hi"}, {"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#;
        let remarks = told(lines, known);
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        assert!(remarks[0].starts_with("in 2 of 3 rows words of the messages are missing"), "{remarks:?}");
        assert!(remarks[0].contains("The first is the message of role `human`: \"2+4?\"."), "{remarks:?}");
        let both = r#"{"prompt": "2+3=", "completion": "5", "messages": [{"role": "user", "content": "a"}]}"#;
        assert!(told(both, known)[0].starts_with("1 of 1 rows have `messages` beside a prompt"));
    }

    const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '' if m.name is undefined else m.name \
        }}<end>\n\
                          {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{{ tools | default('', true) \
                          }}";

    /// The examples of a file, as (prompt, completion). A token is a character, and `~` stands for the end of the
    /// sequence.
    fn read(lines: &str, template: &str) -> Result<Vec<(String, String)>, String> {
        let dir = tempfile::tempdir().unwrap();
        SMALL.write(dir.path(), 5);
        write_tokenizer(dir.path());
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        let data = dir.path().join("rows.jsonl");
        fs::write(&data, lines).unwrap();
        let character = |&id: &u32| match id {
            0 => '~',
            1 => '\n',
            id => char::from_u32(id + 30).unwrap(),
        };
        let text = |ids: &[u32]| ids.iter().map(character).collect::<String>();
        let encoder = Encoder::new(&ModelDir::open(dir.path()).unwrap(), true, None).unwrap();
        let found = encoder.read(&data).map_err(|error| error.to_string())?;
        Ok(found.iter().map(|example| (text(&example.prompt), text(&example.completion))).collect())
    }

    /// TRL's `SFTTrainer`: of prompts with completions, the completions; of conversations, everything.
    #[test]
    fn rows_of_messages_are_trained_on_as_the_template_writes_them() {
        let lines = r#"{"prompt": [{"role": "user", "content": "2+3?", "name": null}], "completion": [{"role": "assistant", "content": "5"}]}
{"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]}
{"conversations": [{"from": "human", "value": "2+3?"}, {"from": "gpt", "value": "5"}]}
{"prompt": "[{\"role\": \"user\", \"content\": \"a\"}]", "completion": [{"from": "gpt", "value": "b"}], "tools": [7]}
{"prompt": "2+3=", "completion": "5"}"#;
        let pair = |prompt: &str, completion: &str| (prompt.to_owned(), completion.to_owned());
        let whole = pair("<", "user>2+3?<end>\n<assistant>5<end>\n");
        let expected = [
            pair("<user>2+3?<end>\n<assistant>", "5<end>\n"),
            whole.clone(),
            whole,
            pair("<user>a<end>\n<assistant>", "b<end>\n[7]"),
            pair("2+3=", "5~"),
        ];
        let template = CHATML.replace(
            "{{ tools | default('', true) }}",
            "{% if not add_generation_prompt %}{{ tools or '' }}{% endif %}",
        );
        assert_eq!(read(lines, &template).unwrap(), expected);
    }

    /// Ids by transformers 5.23, as TRL's `SFTTrainer` and `RewardTrainer` tokenise rows of texts.
    #[test]
    fn a_completion_is_tokenised_behind_its_prompt() {
        let Some(data) = harness::data_dir("a_completion_is_tokenised_behind_its_prompt") else { return };
        let model = ModelDir::open(data.join("stories260K")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, row: &str| {
            let path = dir.path().join(name);
            fs::write(&path, row).unwrap();
            path
        };
        let (prompt, completion) = (vec![1, 403, 407], vec![261, 378, 383, 286, 261, 280, 294, 426, 2]);
        let row = r#"{"prompt": "Once upon", "completion": " a time there was a cat."}"#;
        let found = Encoder::new(&model, true, None).unwrap().read(&write("sft.jsonl", row)).unwrap();
        assert_eq!(found, [Example { prompt: prompt.clone(), completion: completion.clone() }]);
        let row = r#"{"prompt": "Once upon", "chosen": " a time there was a cat.", "rejected": " a time"}"#;
        let reader = crate::reward_model::Reader::new(&model, crate::reward_model::Level::Outcome, None).unwrap();
        let pairs = reader.pairs(&write("pairs.jsonl", row)).unwrap();
        assert_eq!(pairs[0].chosen.tokens, [prompt, completion].concat());
        assert_eq!(
            (&pairs[0].rejected.tokens[..], &pairs[0].rejected.ends[..]),
            (&[1, 403, 407, 261, 378, 2][..], &[5][..])
        );
    }

    #[test]
    fn rows_longer_than_the_model_are_counted_and_cut_where_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        SMALL.write(dir.path(), 5);
        let model = ModelDir::open(dir.path()).unwrap();
        let limit = model.config().max_position_embeddings;
        let data = dir.path().join("rows.jsonl");
        let ids = |count: usize| vec![4; count];
        let row =
            |prompt: usize, completion: usize| json!({"prompt_ids": ids(prompt), "completion_ids": ids(completion)});
        let encode = |max_length, row: Value| {
            let encoder = Encoder::new(&model, false, max_length);
            encoder.map(|encoder| (encoder.encode(serde_json::from_value(row).unwrap()).unwrap(), encoder))
        };
        fs::write(&data, [row(limit, 1), row(2, 3), row(2, limit - 2)].map(|row| row.to_string()).join("\n")).unwrap();
        let lengths = |max_length| -> Vec<(usize, usize)> {
            let examples = Encoder::new(&model, false, max_length).unwrap().read(&data).unwrap();
            examples.iter().map(|example| (example.prompt.len(), example.completion.len())).collect()
        };
        assert_eq!(lengths(None), [(limit, 1), (2, 3), (2, limit - 2)]);
        assert_eq!(lengths(Some(limit + 1)), lengths(None));
        let (long, encoder) = encode(None, row(limit, 1)).unwrap();
        let (fits, _) = encode(None, row(2, limit - 2)).unwrap();
        let remark = encoder.of_long(&[long, fits]).unwrap();
        assert!(remark.starts_with(&format!("1 of 2 rows have more tokens than the {limit} positions")), "{remark}");
        let dynamic = Encoder { turns_otherwise_beyond: true, ..Encoder::new(&model, false, None).unwrap() };
        let refused = dynamic.read(&data).unwrap_err().to_string();
        assert!(refused.contains("`dynamic`") && refused.contains(&format!("--max-length {limit}")), "{refused}");
        let (cut, encoder) = encode(Some(limit), row(limit - 1, 5)).unwrap();
        assert_eq!((cut.example.completion.len(), encoder.of_long(&[cut])), (1, None));
        let parts = Example { prompt: vec![1, 2], completion: vec![3, 4, 5] };
        assert_eq!(parts.clone().first(9), Ok(parts.clone()));
        assert_eq!(parts.clone().first(4), Ok(Example { prompt: vec![1, 2], completion: vec![3, 4] }));
        let refused = parts.first(2).unwrap_err();
        assert!(refused.starts_with("its prompt has 2 tokens, so --max-length 2 leaves nothing"), "{refused}");
    }

    #[test]
    fn rows_that_cannot_be_trained_on_are_named() {
        let user = r#"[{"role": "user", "content": "a"}]"#;
        for (row, words) in [
            (format!(r#"{{"prompt": {user}, "completion": "b"}}"#), "must both be lists of messages, or both texts"),
            (
                format!(r#"{{"prompt": {user}}}"#),
                "`prompt` and `completion` must both be lists of messages, or both texts",
            ),
            (r#"{"messages": "a"}"#.into(), "`messages` is a text, not a list of messages"),
            (r#"{"messages": [{"text": "a"}]}"#.into(), "message 0 of `messages` is no object with a `role`, but"),
            (r#"{"prompt": 7, "completion": "b"}"#.into(), "`prompt` is neither a text nor a list of messages"),
            (r#"{"answer": "b"}"#.into(), "has neither `prompt` nor `prompt_ids` nor `messages`, but `answer`"),
            (r#"{"prompt": "b"}"#.into(), "has neither `completion` nor `completion_ids`, but `prompt`"),
            (
                r#"{"messages": [{"role": "user", "value": "a"}]}"#.into(),
                "message 0 of `messages` has no `content`, but `role`, `value`",
            ),
        ] {
            let error = read(&format!("{{\"prompt\": \"a\", \"completion\": \"b\"}}\n{row}"), CHATML).unwrap_err();
            assert!(error.contains("rows.jsonl, line 2: ") && error.contains(words), "{words}: {error}");
        }
        let both = format!(r#"{{"prompt": {user}, "completion": [{{"role": "assistant", "content": "b"}}]}}"#);
        let thinking = CHATML.replace("<assistant>{% endif %}", "<assistant><think>{% endif %}");
        let error = read(&both, &thinking).unwrap_err();
        assert!(
            error.contains(
                "line 1: the chat template writes `prompt` otherwise where `completion` follows: \"<think>\""
            ),
            "{error}"
        );
    }
}
