//! The rows on which an export is compared with its model.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use shared::{RunDir, generation::rng::Stream};
use shared_data::{Selection, Values};
use shared_hub::{NamedModel, locate_dataset};
use shared_tokenizer::TextTokenizer;

/// Most rows, and most tokens of a row: each row is a forward pass of the plain kind, of the model and of the export.
const MOST_ROWS: usize = 8;
const MOST_TOKENS: usize = 128;
/// Rows of pseudo-random tokens, and the length of each.
const RANDOM: (usize, usize) = (4, 64);
/// Most bytes of a file of completions that is read.
const MOST_BYTES: u64 = 256 << 20;

/// Columns that hold token ids, and columns that hold texts, in the order in which a model sees them.
const IDS: [&str; 4] = ["prompt_ids", "completion_ids", "input_ids", "token_ids"];
const TEXTS: [&str; 8] = ["system", "prompt", "messages", "question", "text", "completion", "answer", "solution"];

/// Rows of tokens, and where they are from in words.
pub(super) struct Rows {
    pub tokens: Vec<Vec<u32>>,
    pub origin: String,
    /// Whether they are no text that a model would say.
    pub random: bool,
}

/// The rows of a dataset, if one is named; else the last completions of the model's run; else pseudo-random tokens.
/// None is longer than `positions`.
///
/// # Errors
/// A dataset that cannot be read, or has no row that can be used.
pub(super) fn choose(named: &NamedModel, dataset: Option<&Path>, positions: Option<usize>) -> Result<Rows> {
    let most = MOST_TOKENS.min(named.dir().config().max_position_embeddings).min(positions.unwrap_or(MOST_TOKENS));
    if let Some(path) = dataset {
        let tokens = of_dataset(named, path, most).context("--rows")?;
        return Ok(Rows { tokens, origin: format!("of {}", path.display()), random: false });
    }
    if let Some((tokens, step)) = named.run().and_then(|run| of_run(named, &run, most)) {
        return Ok(Rows { tokens, origin: format!("completions of the run's step {step}"), random: false });
    }
    let origin =
        "fixed pseudo-random tokens: the model belongs to no run with completions, and --rows names no dataset";
    Ok(Rows {
        tokens: random(named.dir().config().vocab_size, RANDOM.1.min(most)),
        origin: origin.into(),
        random: true,
    })
}

fn of_dataset(named: &NamedModel, path: &Path, most: usize) -> Result<Vec<Vec<u32>>> {
    let path = locate_dataset(path, Selection { split: "train", config: None })?;
    let table = shared_data::read(&path, "train")?;
    let vocabulary = named.dir().config().vocab_size;
    let mut tokenizer = None;
    let mut found = Vec::new();
    for row in &table.rows {
        let mut tokens = ids(&row.values);
        if tokens.is_empty() {
            if tokenizer.is_none() {
                tokenizer = Some(TextTokenizer::of_model(named.dir())?);
            }
            let tokenizer = tokenizer.as_ref().expect("it was opened above");
            tokens = tokenizer.encode(&text(&row.values), true).map_err(anyhow::Error::msg)?;
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            bail!("{}: has the token {token}, but the model has {vocabulary} tokens", row.place);
        }
        tokens.truncate(most);
        if tokens.len() > 1 {
            found.push(tokens);
        }
        if found.len() == MOST_ROWS {
            break;
        }
    }
    ensure!(
        !found.is_empty(),
        "{}: no row has two tokens in {} or {}",
        path.display(),
        IDS.join(", "),
        TEXTS.join(", ")
    );
    Ok(found)
}

/// Completions of the last step that a run has records of; none if they cannot be used.
fn of_run(named: &NamedModel, run: &RunDir, most: usize) -> Option<(Vec<Vec<u32>>, u64)> {
    let tokenizer = TextTokenizer::of_model(named.dir()).ok()?;
    let vocabulary = named.dir().config().vocab_size;
    for step in run.logged_steps().ok()?.into_iter().rev() {
        let Ok(text) = shared_bounds::read_text(&run.step_completions(step), MOST_BYTES) else { continue };
        let rows = text.lines().filter_map(|line| serde_json::from_str::<Values>(line).ok());
        let tokens = rows.filter_map(|row| tokenizer.encode(&self::text(&row), false).ok());
        let usable = tokens.filter(|row| row.len() > 1 && row.iter().all(|token| (*token as usize) < vocabulary));
        let cut = usable.map(|mut row| {
            row.truncate(most);
            row
        });
        let found: Vec<Vec<u32>> = cut.take(MOST_ROWS).collect();
        if !found.is_empty() {
            return Some((found, step));
        }
    }
    None
}

/// The token ids of a row's columns of ids, one behind the other.
fn ids(row: &Values) -> Vec<u32> {
    let lists = IDS.iter().filter_map(|column| row.get(*column)?.as_array());
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    lists.flatten().filter_map(id).collect()
}

/// The text of a row's columns, one behind the other; of messages, their contents.
fn text(row: &Values) -> String {
    let mut text = String::new();
    let mut add =
        |value: &Value| text.push_str(value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default());
    for value in TEXTS.iter().filter_map(|column| row.get(*column)) {
        match value {
            Value::Array(messages) => messages.iter().for_each(&mut add),
            value => add(value),
        }
    }
    text
}

/// Rows of tokens that only the size of the vocabulary decides.
fn random(vocabulary: usize, length: usize) -> Vec<Vec<u32>> {
    let mut stream = Stream::new(&[0]);
    (0..RANDOM.0).map(|_| (0..length).map(|_| stream.below(vocabulary as u64) as u32).collect()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_checkpoint_of_a_run_is_compared_on_the_runs_last_completions_and_another_model_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        let checkpoint = run.checkpoint(2);
        harness::tiny_model::TINY.write(&checkpoint, 1);
        harness::tiny_model::write_tokenizer(&checkpoint);
        let chosen = || choose(&NamedModel::find(&checkpoint).unwrap(), None, None).unwrap();
        assert!(chosen().origin.starts_with("fixed pseudo-random tokens"));
        std::fs::write(run.config(), "").unwrap();
        assert!(chosen().origin.starts_with("fixed pseudo-random tokens"), "no completions");
        std::fs::create_dir(run.completions()).unwrap();
        std::fs::write(run.step_completions(1), "{\"prompt\": \"old\", \"completion\": \"er\"}\n").unwrap();
        let long = "7".repeat(300);
        let lines = format!("{{\"prompt\": \"1+1=\", \"completion\": \"2\"}}\n{{\n{{\"prompt\": \"{long}\"}}\n");
        std::fs::write(run.step_completions(3), lines).unwrap();
        let rows = chosen();
        assert_eq!(rows.origin, "completions of the run's step 3");
        assert_eq!(rows.tokens.iter().map(Vec::len).collect::<Vec<_>>(), [5, MOST_TOKENS]);
    }

    fn row(value: Value) -> Values {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn ids_and_texts_of_a_row_stand_one_behind_the_other() {
        assert_eq!(ids(&row(json!({"completion_ids": [3], "prompt_ids": [1, 2], "prompt": "x"}))), [1, 2, 3]);
        assert!(ids(&row(json!({"prompt": "x"}))).is_empty());
        let chat = json!({"answer": "4", "prompt": [{"role": "user", "content": "2+2="}], "n": 3});
        assert_eq!(text(&row(chat)), "2+2=4");
        assert_eq!(text(&row(json!({"completion": "b", "prompt": "a"}))), "ab");
    }

    #[test]
    fn pseudo_random_tokens_are_the_same_each_time_and_within_the_vocabulary() {
        let rows = random(7, 64);
        assert_eq!(rows, random(7, 64));
        assert!(rows.len() == 4 && rows.iter().all(|row| row.len() == 64 && row.iter().all(|token| *token < 7)));
        assert_ne!(rows[0], rows[1]);
    }
}
