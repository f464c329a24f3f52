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
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The better one.
    pub chosen: Answer,
    /// The worse one.
    pub rejected: Answer,
    /// By how much the better one's score is to be higher before the loss is that of equal scores.
    pub margin: f64,
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
    margin: Option<Value>,
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

/// What was read of a row, and how many tokens its longest answer had before it was cut.
struct Uncut<T> {
    read: T,
    length: usize,
}

/// Turns rows into answers.
#[derive(Debug)]
pub struct Reader {
    text: TextIds,
    conversations: Conversations,
    level: Level,
    /// The bound that is asked for.
    asked: Option<usize>,
    /// The model's limit.
    limit: usize,
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
        let (asked, limit) = (max_length, model.config().max_position_embeddings);
        let (text, conversations) = (TextIds::open(model)?, Conversations::open(model)?);
        Ok(Self { text, conversations, level, asked, limit, eos: model.generation().eos_token_ids.clone() })
    }

    /// Most tokens of an answer.
    fn max_length(&self) -> usize {
        self.asked.map_or(self.limit, |most| most.min(self.limit))
    }

    /// Reads a dataset of pairs. Remarks on its rows are warnings.
    ///
    /// # Errors
    /// A dataset that cannot be read, the first unusable row, with its place and the reason, or pairs that are all of
    /// two equal sides.
    pub fn pairs(&self, path: &Path) -> Result<Vec<Pair>, LearnerError> {
        let rows = text::rows(path, |row: PairRow| {
            let margin = margin(row.margin.as_ref())?;
            let prompt = Prompt::of(row.prompt, row.prompt_ids, row.tools, row.chat_template_kwargs)?;
            let (chosen, rejected) = (row.chosen, row.rejected);
            let chosen = Given { key: "chosen", content: chosen, ids: row.chosen_ids, ends: row.chosen_ends };
            let rejected = Given { key: "rejected", content: rejected, ids: row.rejected_ids, ends: row.rejected_ends };
            let (chosen, rejected) = (self.behind(&prompt, chosen)?, self.behind(&prompt, rejected)?);
            let length = chosen.length.max(rejected.length);
            Ok(Uncut { read: Pair { chosen: chosen.read, rejected: rejected.read, margin }, length })
        })?;
        let equal = self.of_equal_sides(&rows).map_err(|message| LearnerError::content(path, message))?;
        let long = self.of_long(&rows).map(|remark| format!("{remark}; --max-length sets another bound"));
        long.into_iter().chain(equal).for_each(|remark| tracing::warn!("{}: {remark}", path.display()));
        Ok(rows.into_iter().map(|row| row.read).collect())
    }

    /// Reads a dataset of single completions: `prompt` and `completion` or `prompt_ids` and `completion_ids`, and
    /// `ends` for scores of steps.
    ///
    /// # Errors
    /// As [`Self::pairs`].
    pub fn answers(&self, path: &Path) -> Result<Vec<Answer>, LearnerError> {
        let rows = text::rows(path, |row: AnswerRow| {
            let prompt = Prompt::of(row.prompt, row.prompt_ids, row.tools, row.chat_template_kwargs)?;
            let (content, ids) = (row.completion, row.completion_ids);
            self.behind(&prompt, Given { key: "completion", content, ids, ends: row.ends })
        })?;
        self.of_long(&rows).iter().for_each(|remark| tracing::warn!("{}: {remark}", path.display()));
        Ok(rows.into_iter().map(|row| row.read).collect())
    }

    /// A remark on rows that only the model's limit cuts.
    fn of_long<T>(&self, rows: &[Uncut<T>]) -> Option<String> {
        let limit = self.limit;
        let long = rows.iter().filter(|row| row.length > limit).count();
        (long > 0 && self.asked.is_none_or(|most| most > limit)).then(|| {
            format!(
                "{long} of {} rows have more tokens than the {limit} positions of the model \
                 (`max_position_embeddings`), and only their last {limit} are read",
                rows.len()
            )
        })
    }

    /// A remark on pairs of two equal sides, whose scores are equal whatever the weights are. An error where no pair is
    /// of another kind.
    fn of_equal_sides(&self, rows: &[Uncut<Pair>]) -> Result<Option<String>, String> {
        let (all, most) = (rows.len(), self.max_length());
        let equal: Vec<_> = rows.iter().filter(|row| row.read.chosen == row.read.rejected).collect();
        if equal.is_empty() {
            return Ok(None);
        }
        let cut = match equal.iter().filter(|row| row.length > most).count() {
            0 => String::new(),
            cut => format!(" ({cut} of them because only the last {most} tokens are read)"),
        };
        if equal.len() == all {
            return Err(format!(
                "in all {all} pairs the two sides are the same tokens{cut}, so there is nothing to learn; write pairs \
                 that differ, or let --max-length be large enough for their differences"
            ));
        }
        Ok(Some(format!(
            "in {} of {all} pairs the two sides are the same tokens{cut}, and nothing is learned from them",
            equal.len()
        )))
    }

    /// A completion behind its prompt. Its messages either go on from those of the prompt, or are the whole
    /// conversation, as TRL's `RewardTrainer` takes them.
    fn behind(&self, prompt: &Prompt, given: Given) -> Result<Uncut<Answer>, String> {
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
    ) -> Result<Uncut<Answer>, String> {
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
        let (length, most) = (tokens.len(), self.max_length());
        let cut = length.saturating_sub(most);
        let ends = ends.iter().filter_map(|end| (prompt.len() + end).checked_sub(cut)).collect::<Vec<_>>();
        if ends.is_empty() {
            return Err(format!("no step of `{key}` ends within the last {most} tokens"));
        }
        Ok(Uncut { read: Answer { tokens: tokens[cut..].to_vec(), ends }, length })
    }
}

/// The margin of a row; rows without one have 0, as pairs in TRL's `RewardTrainer` where the column is missing.
fn margin(value: Option<&Value>) -> Result<f64, String> {
    let Some(value) = value else { return Ok(0.0) };
    let number = value.as_f64().filter(|margin| margin.is_finite());
    number.ok_or_else(|| format!("`margin` must be a finite number, found {value}"))
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
        let expected = Pair { chosen: text("u2;a4;"), rejected: text("u2;a5;"), margin: 0.0 };
        assert_eq!(found, [expected.clone(), expected]);
        let error = pairs(&format!("{{\"prompt\": [{user}], \"chosen\": \"4\", \"rejected\": \"5\"}}")).unwrap_err();
        assert!(error.contains("line 1: `prompt` is a list of messages and `chosen` is none"), "{error}");
        let beside =
            pairs(r#"{"prompt": 7, "prompt_ids": [3], "chosen": {}, "chosen_ids": [4, 5], "rejected_ids": [6]}"#);
        let of = |tokens: &[u32]| Answer { tokens: tokens.to_vec(), ends: vec![tokens.len() - 1] };
        assert_eq!(beside.unwrap(), [Pair { chosen: of(&[3, 4, 5]), rejected: of(&[3, 6]), margin: 0.0 }]);
    }

    /// A reader for a model without tokenizer, with this bound, and a place for rows.
    fn reader(max_length: Option<usize>) -> (tempfile::TempDir, Reader) {
        let dir = tempfile::tempdir().unwrap();
        SMALL.write(dir.path(), 5);
        let reader = Reader::new(&ModelDir::open(dir.path()).unwrap(), Level::Outcome, max_length).unwrap();
        (dir, reader)
    }

    #[test]
    fn a_margin_is_read_and_what_is_no_number_is_refused_by_its_line() {
        let (dir, reader) = reader(None);
        let path = dir.path().join("rows.jsonl");
        let ids = r#""prompt_ids": [3], "chosen_ids": [4], "rejected_ids": [5]"#;
        fs::write(
            &path,
            format!("{{{ids}, \"margin\": 0.5}}\n{{{ids}}}\n{{{ids}, \"margin\": null}}\n{{{ids}, \"margin\": -2}}\n"),
        )
        .unwrap();
        let margins: Vec<f64> = reader.pairs(&path).unwrap().iter().map(|pair| pair.margin).collect();
        assert_eq!(margins, [0.5, 0.0, 0.0, -2.0]);
        for bad in ["\"large\"", "[1]", "true"] {
            fs::write(&path, format!("{{{ids}}}\n{{{ids}, \"margin\": {bad}}}\n")).unwrap();
            let error = reader.pairs(&path).unwrap_err().to_string();
            assert!(error.contains("line 2: `margin` must be a finite number, found "), "{error}");
        }
    }

    #[test]
    fn rows_that_the_models_limit_cuts_are_counted() {
        let rows = |lengths: &[usize]| -> Vec<Uncut<()>> {
            lengths.iter().map(|&length| Uncut { read: (), length }).collect()
        };
        let (_dir, own) = reader(None);
        let limit = own.limit;
        let remark = own.of_long(&rows(&[3, limit + 1, limit])).unwrap();
        assert!(remark.starts_with(&format!("1 of 3 rows have more tokens than the {limit} positions")), "{remark}");
        assert_eq!(own.of_long(&rows(&[3, limit])), None);
        let (_dir, asked) = reader(Some(4));
        assert_eq!(asked.of_long(&rows(&[limit + 1])), None, "what is asked for is no surprise");
        let (_dir, beyond) = reader(Some(limit + 1));
        assert!(beyond.of_long(&rows(&[limit + 1])).is_some());
    }

    #[test]
    fn pairs_of_equal_sides_are_counted_and_refused_where_there_are_no_others() {
        let (dir, reader) = reader(Some(2));
        let path = dir.path().join("rows.jsonl");
        let row = |chosen: &str, rejected: &str| {
            format!("{{\"prompt_ids\": [3], \"chosen_ids\": {chosen}, \"rejected_ids\": {rejected}}}\n")
        };
        let (same, cut, other) = (row("[4]", "[4]"), row("[4, 5, 6]", "[7, 5, 6]"), row("[4]", "[5]"));
        fs::write(&path, [&same[..], &cut].concat()).unwrap();
        let error = reader.pairs(&path).unwrap_err().to_string();
        let words = "rows.jsonl: in all 2 pairs the two sides are the same tokens (1 of them because only the last 2";
        assert!(error.contains(words) && error.contains("--max-length"), "{error}");
        fs::write(&path, [&same[..], &cut, &other].concat()).unwrap();
        let pairs = reader.pairs(&path).unwrap();
        assert_eq!(pairs.len(), 3);
        let uncut = |length: &[usize]| -> Vec<Uncut<Pair>> {
            pairs.iter().cloned().zip(length).map(|(read, &length)| Uncut { read, length }).collect()
        };
        let remark = reader.of_equal_sides(&uncut(&[2, 4, 2])).unwrap().unwrap();
        assert!(remark.starts_with("in 2 of 3 pairs the two sides are the same tokens (1 of them"), "{remark}");
        assert_eq!(reader.of_equal_sides(&uncut(&[2, 2, 2])[2..]), Ok(None));
    }
}
