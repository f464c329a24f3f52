//! Sample completions of real rows, for the rehearsal of reward functions.

use std::cell::Cell;

use anyhow::Context;
use rollout_rewards::{
    RewardCompletion, RewardInput,
    rehearsal::{Sample, Trial},
    rules::{answer::expected_answer, tags},
};
use shared::{FinishReason, ModelDir, config::TrainConfig};

use crate::data::{PromptRow, Tokenizer};

/// Rows that are tried at least, so that a column that differs from row to row is noticed.
const ROWS: usize = 3;

/// Samples that are made at least: each kind several times, however small the groups are.
const SAMPLES: usize = 12;

const PLAIN: &str = "I am not sure, but I will try.";
const ENDLESS: &str = "Let us think about it once more and go on with that. ";

/// Number of rows that are needed.
#[must_use]
pub fn rows(config: &TrainConfig) -> usize {
    SAMPLES.div_ceil(config.num_generations as usize).max(ROWS)
}

/// A group of samples for each of as many rows as [`rows`] says. After the last row, the first one follows again.
///
/// # Errors
/// When the tokenizer fails.
pub fn trials(
    rows_of_dataset: &[PromptRow],
    config: &TrainConfig,
    model: &ModelDir,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Vec<Trial>> {
    let writer = Writer {
        tokenizer,
        longest: config.max_completion_length as usize,
        end: model.generation().eos_token_ids.first().copied(),
        forms: Cell::new(0),
    };
    let group = config.num_generations as usize;
    let trial = |(index, row): (usize, &PromptRow)| writer.trial(row, index, group);
    rows_of_dataset.iter().cycle().take(rows(config)).enumerate().map(trial).collect()
}

/// Writes completions as the sampler would return them.
struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens of the longest completion.
    longest: usize,
    /// The token that ends a completion.
    end: Option<u32>,
    /// Number of rows with a right answer so far. Each is written in the next form.
    forms: Cell<usize>,
}

impl Writer<'_> {
    fn trial(&self, row: &PromptRow, index: usize, group: usize) -> anyhow::Result<Trial> {
        let input = row.reward_input([]);
        let right = right_answer(&input, self.forms.get()).map(|text| behind_opened(&input.prompt, text));
        self.forms.set(self.forms.get() + usize::from(right.is_some()));
        let mut kinds = vec![Sample::Empty, Sample::Plain, Sample::Overlong];
        kinds.extend(right.is_some().then_some(Sample::Right));
        let samples: Vec<Sample> = (0..group).map(|i| kinds[(index * group + i) % kinds.len()]).collect();
        let text = |sample: &Sample| match sample {
            Sample::Empty => String::new(),
            Sample::Model => unreachable!("the model makes its own"),
            Sample::Plain => PLAIN.to_owned(),
            // A token has at least one byte of text, but for special ones.
            Sample::Overlong => ENDLESS.repeat(self.longest.div_ceil(8)),
            Sample::Right => right.clone().unwrap_or_default(),
        };
        let written: Vec<RewardCompletion> = samples
            .iter()
            .map(|sample| self.write(*sample, &text(sample)))
            .collect::<anyhow::Result<_>>()
            .context("sample completions")?;
        Ok(Trial { input: row.reward_input(written), samples })
    }

    fn write(&self, sample: Sample, text: &str) -> anyhow::Result<RewardCompletion> {
        let mut ids = self.tokenizer.encode(text, false)?;
        if sample == Sample::Overlong {
            ids.truncate(self.longest);
            return Ok(RewardCompletion::of_one_turn(self.tokenizer.decode(&ids)?, ids, FinishReason::Length));
        }
        ids.extend(self.end);
        Ok(RewardCompletion::of_one_turn(text, ids, FinishReason::Stop))
    }
}

/// A completion without the tag that its prompt has opened for it.
fn behind_opened(prompt: &str, text: String) -> String {
    let rest = tags::opened(prompt).map(str::trim_end).and_then(|tag| match tag {
        "<answer>" => text.rsplit_once(tag).map(|(_, rest)| rest),
        tag => text.strip_prefix(tag),
    });
    rest.map(|rest| rest.trim_start().to_owned()).unwrap_or(text)
}

/// A completion with the row's right answer, if the row has one, in one of the usual forms, chosen by `index`. The
/// answer is what rules read in the column, which may hold a whole solution.
fn right_answer(row: &RewardInput, index: usize) -> Option<String> {
    let answers = ["answer", "solution"].map(|column| row.answers(&[column]));
    let whole = answers.iter().flatten().next()?.first().trim();
    let last = expected_answer(whole);
    let mut texts = answers.iter().flatten().map(|answers| answers.first().trim());
    let work = texts.rfind(|text| expected_answer(text) != *text).unwrap_or("It follows from what is given.");
    Some(match index % 3 {
        0 => format!("<think>\n{work}\n</think>\n<answer>\n{last}\n</answer>"),
        1 => format!("{work}\nThe answer is \\boxed{{{last}}}.\n#### {last}"),
        _ => format!("<reasoning>\n{work}\n</reasoning>\n<answer>\n{last}\n</answer>\n"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollout_rewards::RewardCompletion;
    use serde_json::json;
    use shared::RewardOutcome;

    use super::*;
    use crate::reward::registry;

    #[test]
    fn rules_find_the_right_answer_in_one_of_the_forms() {
        for columns in [
            json!({"answer": "72", "solution": "48 / 2 = 24, 48 + 24 = 72\n#### 72"}),
            json!({"answer": "48 / 2 = 24, 48 + 24 = 72\n#### 72"}),
            json!({"answer": r"Half of 48 is 24, so it is \boxed{72}."}),
            json!({"answer": "48 + 24 = 72. The answer is: 72"}),
            json!({"answer": "<answer>72</answer>"}),
            json!({"answer": 72}),
            json!({"answer": ["72", "72.0"]}),
        ] {
            for rule in ["gsm8k", "accuracy", "boxed", "correctness", "think_format", "numeric"] {
                assert!(is_found(rule, &columns), "{rule}: {columns}");
            }
        }
        for rule in ["accuracy", "boxed", "numeric"] {
            assert!(is_found(rule, &json!({"solution": "48 + 24\n#### 72"})), "{rule}");
        }
        assert_eq!(right_answer(&RewardInput::default(), 0), None);
    }

    /// Whether a rule gives 1 to the right sample in at least one form.
    fn is_found(rule: &str, columns: &serde_json::Value) -> bool {
        let row = RewardInput { columns: Arc::new(columns.as_object().unwrap().clone()), ..RewardInput::default() };
        let function = registry().function(rule).unwrap();
        let right = |index| {
            let text = right_answer(&row, index).unwrap();
            let completion = RewardCompletion::of_one_turn(text, vec![1], FinishReason::Stop);
            let input = RewardInput { completions: vec![completion], ..row.clone() };
            matches!(function.reward().score(&input)[0], RewardOutcome::Score(score) if score >= 1.0)
        };
        (0..ROWS).any(right)
    }
}
