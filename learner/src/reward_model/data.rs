//! Rows for the reward model: pairs of completions of one prompt, the better one first, or single completions to score.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use shared::ModelDir;
use shared_data::{Content, Values};

use crate::{
    conversation::{self, Conversations},
    error::LearnerError,
    text::{self, TextIds},
};

/// Where a completion is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// At its last token.
    Outcome,
    /// At the last token of each step, where a row names them; a completion's score is their mean.
    Steps,
}

/// Prompt and completion with the places where scores are read off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Prompt, then completion.
    pub tokens: Vec<u32>,
    /// Indexes into `tokens`, ascending; at least one.
    pub ends: Vec<usize>,
}

/// Two completions of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The better one.
    pub chosen: Answer,
    /// The worse one.
    pub rejected: Answer,
}

#[derive(Debug, Deserialize)]
struct PairRow {
    prompt: Option<Value>,
    chosen: Option<Value>,
    rejected: Option<Value>,
    prompt_ids: Option<Vec<u32>>,
    chosen_ids: Option<Vec<u32>>,
    rejected_ids: Option<Vec<u32>>,
    chosen_ends: Option<Vec<usize>>,
    rejected_ends: Option<Vec<usize>>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct AnswerRow {
    prompt: Option<Value>,
    completion: Option<Value>,
    prompt_ids: Option<Vec<u32>>,
    #[serde(alias = "token_ids")]
    completion_ids: Option<Vec<u32>>,
    ends: Option<Vec<usize>>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Value>,
}

/// A completion of a row, as it stands there.
struct Given {
    key: &'static str,
    content: Option<Value>,
    ids: Option<Vec<u32>>,
    ends: Option<Vec<usize>>,
}

/// The prompt of a row. Ids are taken as they are, whatever stands beside them.
struct Prompt {
    /// Absent where there are ids.
    content: Option<Content>,
    ids: Option<Vec<u32>>,
    variables: Values,
}

impl Prompt {
    fn of(
        content: Option<Value>,
        ids: Option<Vec<u32>>,
        tools: Option<Value>,
        chat_template_kwargs: Option<Value>,
    ) -> Result<Self, String> {
        let variables = conversation::variables(tools, chat_template_kwargs)?;
        let content = conversation::content("prompt", content.filter(|_| ids.is_none()))?;
        Ok(Self { content, ids, variables })
    }
}

/// Turns rows into answers.
#[derive(Debug)]
pub struct Reader {
    text: TextIds,
    conversations: Conversations,
    level: Level,
    max_length: usize,
    /// Every end-of-sequence id; the first is appended to texts that have none at their end.
    eos: Vec<u32>,
}

impl Reader {
    /// A reader for a model. A row with more than `max_length` tokens keeps its last ones; the model's limit bounds
    /// `max_length`, and replaces an absent one. A prompt as text is tokenised with special tokens, as the sampler
    /// does, and an end-of-sequence token closes a completion, as in TRL's `RewardTrainer`; messages are written by the
    /// chat template.
    ///
    /// # Errors
    /// A tokenizer or chat template that cannot be read.
    pub fn new(model: &ModelDir, level: Level, max_length: Option<usize>) -> Result<Self, LearnerError> {
        let limit = model.config().max_position_embeddings;
        let max_length = max_length.map_or(limit, |most| most.min(limit));
        let (text, conversations) = (TextIds::open(model)?, Conversations::open(model)?);
        Ok(Self { text, conversations, level, max_length, eos: model.generation().eos_token_ids.clone() })
    }

    /// Reads a dataset of pairs.
    ///
    /// # Errors
    /// A dataset that cannot be read, or the first unusable row, with its place and the reason.
    pub fn pairs(&self, path: &Path) -> Result<Vec<Pair>, LearnerError> {
        text::rows(path, |row: PairRow| {
            let prompt = Prompt::of(row.prompt, row.prompt_ids, row.tools, row.chat_template_kwargs)?;
            let (chosen, rejected) = (row.chosen, row.rejected);
            let chosen = Given { key: "chosen", content: chosen, ids: row.chosen_ids, ends: row.chosen_ends };
            let rejected = Given { key: "rejected", content: rejected, ids: row.rejected_ids, ends: row.rejected_ends };
            Ok(Pair { chosen: self.behind(&prompt, chosen)?, rejected: self.behind(&prompt, rejected)? })
        })
    }

    /// Reads a dataset of single completions: `prompt` and `completion` or `prompt_ids` and `completion_ids`, and
    /// `ends` for scores of steps.
    ///
    /// # Errors
    /// As [`Self::pairs`].
    pub fn answers(&self, path: &Path) -> Result<Vec<Answer>, LearnerError> {
        text::rows(path, |row: AnswerRow| {
            let prompt = Prompt::of(row.prompt, row.prompt_ids, row.tools, row.chat_template_kwargs)?;
            let (content, ids) = (row.completion, row.completion_ids);
            self.behind(&prompt, Given { key: "completion", content, ids, ends: row.ends })
        })
    }

    /// A completion behind its prompt. Its messages either go on from those of the prompt, or are the whole
    /// conversation, as TRL's `RewardTrainer` takes them.
    fn behind(&self, prompt: &Prompt, given: Given) -> Result<Answer, String> {
        let Given { key, content, ids, ends } = given;
        let content = conversation::content(key, content.filter(|_| ids.is_none()))?;
        let text = match (prompt.content.clone(), content) {
            (before, Some(Content::Messages(messages))) if prompt.ids.is_none() => {
                if ends.is_some() && self.level == Level::Steps {
                    return Err(format!(
                        "the ends of `{key}` are token indexes, so `{key}` has to be a text or token ids"
                    ));
                }
                let all = match before {
                    Some(Content::Messages(before)) => [before, messages].concat(),
                    None => messages,
                    Some(Content::Text(_)) => {
                        return Err(format!("`prompt` is a text and `{key}` a list of messages; write both alike"));
                    }
                };
                let text = self.conversations.text(&all, &prompt.variables)?;
                return self.answer(&[], &self.text.ids(None, Some(text), key, false)?, None, key);
            }
            (Some(Content::Messages(_)), Some(Content::Text(_)) | None) => {
                return Err(format!("`prompt` is a list of messages and `{key}` is none; write both alike"));
            }
            (_, Some(Content::Messages(_))) => {
                return Err(format!("`{key}` is a list of messages, and the prompt is token ids; write both alike"));
            }
            (before, content) => {
                let text = |content| match content {
                    Some(Content::Text(text)) => Some(text),
                    _ => None,
                };
                (text(before), text(content))
            }
        };
        let (before, completion) = if ends.is_some() && self.level == Level::Steps {
            // Ends are places in the completion's own tokens.
            (self.text.ids(prompt.ids.clone(), text.0, "prompt", true)?, self.text.ids(ids, text.1, key, false)?)
        } else {
            self.text.prompt_and_completion((prompt.ids.clone(), text.0), (ids, text.1), key, &self.eos)?
        };
        self.answer(&before, &completion, ends, key)
    }

    fn answer(
        &self,
        prompt: &[u32],
        completion: &[u32],
        ends: Option<Vec<usize>>,
        key: &str,
    ) -> Result<Answer, String> {
        let last = completion.len().checked_sub(1).ok_or_else(|| format!("`{key}` has no token"))?;
        let ends = match ends {
            Some(ends) if self.level == Level::Steps => ends,
            _ => vec![last],
        };
        if ends.is_empty() || ends.windows(2).any(|two| two[0] >= two[1]) || ends.iter().any(|&end| end > last) {
            return Err(format!(
                "the ends of `{key}` must be ascending token indexes below {}, found {ends:?}",
                last + 1
            ));
        }
        let tokens: Vec<u32> = prompt.iter().chain(completion).copied().collect();
        let cut = tokens.len().saturating_sub(self.max_length);
        let ends = ends.iter().filter_map(|end| (prompt.len() + end).checked_sub(cut)).collect::<Vec<_>>();
        if ends.is_empty() {
            return Err(format!("no step of `{key}` ends within the last {} tokens", self.max_length));
        }
        Ok(Answer { tokens: tokens[cut..].to_vec(), ends })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use harness::tiny_model::{SMALL, write_tokenizer};

    use super::*;

    /// TRL's `RewardTrainer` takes a conversation in two parts, or whole.
    #[test]
    fn comparisons_of_messages_are_conversations_of_the_template() {
        let dir = tempfile::tempdir().unwrap();
        SMALL.write(dir.path(), 5);
        write_tokenizer(dir.path());
        let template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}";
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        let reader = Reader::new(&ModelDir::open(dir.path()).unwrap(), Level::Outcome, None).unwrap();
        let pairs = |lines: &str| {
            let path = dir.path().join("rows.jsonl");
            fs::write(&path, lines).unwrap();
            reader.pairs(&path).map_err(|error| error.to_string())
        };
        let (user, good, bad) = (
            r#"{"role": "user", "content": "2"}"#,
            r#"{"role": "assistant", "content": "4"}"#,
            r#"{"from": "gpt", "value": "5"}"#,
        );
        let found = pairs(&format!(
            "{{\"prompt\": [{user}], \"chosen\": [{good}], \"rejected\": [{bad}]}}\n\
             {{\"chosen\": [{user}, {good}], \"rejected\": [{user}, {bad}]}}\n"
        ))
        .unwrap();
        let text = |text: &str| Answer {
            tokens: text.bytes().map(|byte| u32::from(byte) - 30).collect(),
            ends: vec![text.len() - 1],
        };
        let expected = Pair { chosen: text("u2;a4;"), rejected: text("u2;a5;") };
        assert_eq!(found, [expected.clone(), expected]);
        let error = pairs(&format!("{{\"prompt\": [{user}], \"chosen\": \"4\", \"rejected\": \"5\"}}")).unwrap_err();
        assert!(error.contains("line 1: `prompt` is a list of messages and `chosen` is none"), "{error}");
        let beside =
            pairs(r#"{"prompt": 7, "prompt_ids": [3], "chosen": {}, "chosen_ids": [4, 5], "rejected_ids": [6]}"#);
        let of = |tokens: &[u32]| Answer { tokens: tokens.to_vec(), ends: vec![tokens.len() - 1] };
        assert_eq!(beside.unwrap(), [Pair { chosen: of(&[3, 4, 5]), rejected: of(&[3, 6]) }]);
    }
}
