//! The completions of a step, group by group.

use std::{collections::HashMap, io, path::Path};

use serde::Serialize;
use serde_json::{Map, Value};
use shared::{
    RunDir,
    files::{atomic::named, journal},
    run::ledger::{self, LedgerEvent},
};
use shared_tokenizer::TextTokenizer;

/// Most bytes of the completions of a step that are read.
const MOST_BYTES: u64 = 1 << 30;
/// Characters of a text in a list; more are shown when it is opened.
const LISTED: usize = 1_500;
/// Characters of a text that is opened. A browser is slow with more.
const OPENED: usize = 1_000_000;

/// A group: a prompt with its completions.
#[derive(Debug, Serialize)]
pub struct Group {
    /// Index within the batch; none for a group that was dropped before it reached the batch.
    group: Option<u64>,
    /// Its place in the order of prompts.
    position: u64,
    prompt_id: u64,
    prompt: String,
    /// The other columns of its row; empty in runs of versions that did not keep them.
    columns: Value,
    /// Its completions: lines of `completions/step-N.jsonl` without the fields that they share.
    samples: Vec<Map<String, Value>>,
}

/// The completions of a step.
#[derive(Debug, Serialize)]
pub struct Step {
    step: u64,
    /// Whether there are figures for their tokens.
    tokens: bool,
    /// Lines of the file that were left out, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
    groups: Vec<Group>,
}

impl Step {
    /// Keeps the first groups.
    pub fn keep_groups(&mut self, most: usize) {
        self.groups.truncate(most);
    }

    /// Index of the group, position and sample of each completion.
    pub fn ids(&self) -> impl Iterator<Item = (Option<u64>, u64, u64)> {
        self.groups
            .iter()
            .flat_map(move |group| group.samples.iter().map(move |row| (group.group, group.position, sample(row))))
    }
}

/// What a list leaves out of a completion: its group has it, or only an opened completion shows it.
const LEFT_OUT: [&str; 11] = [
    "step",
    "group",
    "position",
    "prompt_id",
    "prompt",
    "shared_prompt_ids",
    "columns",
    "messages",
    "branch_messages",
    "owners",
    "opening",
];

/// The completions of a step, long texts cut; none where the run does not keep them.
///
/// # Errors
/// Any error of the file system but that the file is not there.
pub fn of_step(dir: &RunDir, step: u64) -> io::Result<Option<Step>> {
    let Some(text) = read(&dir.step_completions(step))? else { return Ok(None) };
    let given_up = given_up(dir, step);
    let mut groups: Vec<Group> = Vec::new();
    let mut places: HashMap<u64, usize> = HashMap::new();
    let (rows, skipped) = journal::parse::<Map<String, Value>>(&text);
    for mut row in rows {
        let Some(position) = position(&row) else { continue };
        let place = *places.entry(position).or_insert_with(|| {
            let number = |key: &str| row.get(key).and_then(Value::as_u64);
            let prompt = row.get("prompt").and_then(Value::as_str).unwrap_or_default();
            let prompt = cut(prompt, LISTED).unwrap_or_else(|| prompt.to_owned());
            let prompt_id = number("prompt_id").unwrap_or_default();
            let columns = row.get("columns").cloned().unwrap_or_default();
            groups.push(Group { group: number("group"), position, prompt_id, prompt, columns, samples: Vec::new() });
            groups.len() - 1
        });
        // A list shows the completion as a text, and an opened one its messages.
        for key in LEFT_OUT {
            row.shift_remove(key);
        }
        mark(&mut row, given_up);
        shorten(&mut row, LISTED);
        groups[place].samples.push(row);
    }
    let skipped = skipped.of_a_whole_file();
    let damage = (!skipped.is_empty()).then(|| format!("step-{step}.jsonl: {skipped}"));
    Ok(Some(Step { step, tokens: dir.step_tokens(step).is_file(), damage, groups }))
}

/// The whole lines of some completions of a step, by position and sample. With the model's tokenizer, that of an agent
/// has `shared_prompt`, the text with which all prompts of its group begin.
///
/// # Errors
/// As [`of_step`].
pub fn some(
    dir: &RunDir,
    tokenizer: Option<&TextTokenizer>,
    step: u64,
    wanted: &[(u64, u64)],
) -> io::Result<HashMap<(u64, u64), Map<String, Value>>> {
    let Some(text) = read(&dir.step_completions(step))? else { return Ok(HashMap::new()) };
    let given_up = given_up(dir, step);
    let found = rows(&text).filter_map(|mut row| {
        let id = (position(&row)?, sample(&row));
        wanted.contains(&id).then(|| {
            mark(&mut row, given_up);
            read_prompt(&mut row, tokenizer);
            shorten(&mut row, OPENED);
            (id, row)
        })
    });
    Ok(found.take(wanted.len()).collect())
}

/// A single completion.
///
/// # Errors
/// As [`of_step`].
pub fn one(
    dir: &RunDir,
    tokenizer: Option<&TextTokenizer>,
    step: u64,
    position: u64,
    sample: u64,
) -> io::Result<Option<Map<String, Value>>> {
    Ok(some(dir, tokenizer, step, &[(position, sample)])?.remove(&(position, sample)))
}

/// Where a completion's prompt stands in the order of prompts; older runs know its row of the dataset alone.
pub(super) fn position(row: &Map<String, Value>) -> Option<u64> {
    row.get("position").or(row.get("prompt_id")).and_then(Value::as_u64)
}

/// Which of its prompt's completions a line is.
pub(super) fn sample(row: &Map<String, Value>) -> u64 {
    row.get("sample").and_then(Value::as_u64).unwrap_or_default()
}

/// Lines of a file that are whole; other lines are left out, since one of them must not break a page.
pub(super) fn rows(text: &[u8]) -> impl Iterator<Item = Map<String, Value>> {
    journal::parse(text).0.into_iter()
}

/// A file that may be missing.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match shared_bounds::read(path, MOST_BYTES) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(Some).map_err(named(path)),
    }
}

/// Marks completions that a roll-back gave up: they are not trained on any more, which only the ledger knows.
fn mark(row: &mut Map<String, Value>, given_up: bool) {
    if given_up && row.get("state").is_some_and(|state| state == "trained") {
        row.insert("state".into(), "rolled_back".into());
    }
}

fn given_up(dir: &RunDir, step: u64) -> bool {
    let mut given_up = false;
    // A ledger that cannot be read hides no completion.
    let _ = ledger::events(&dir.ledger(), |last, event| {
        if let LedgerEvent::RolledBack { from } = event {
            given_up |= (from..=last).contains(&step);
        }
    });
    given_up
}

/// Makes a text of the ids that all prompts of an agent's group begin with.
fn read_prompt(row: &mut Map<String, Value>, tokenizer: Option<&TextTokenizer>) {
    let Some(Value::Array(ids)) = row.shift_remove("shared_prompt_ids") else { return };
    let ids: Option<Vec<u32>> = ids.iter().map(|id| id.as_u64()?.try_into().ok()).collect();
    if let Some(text) = ids.zip(tokenizer).and_then(|(ids, tokenizer)| tokenizer.decode_all(&ids).ok()) {
        row.insert("shared_prompt".into(), text.into());
    }
}

fn shorten(row: &mut Map<String, Value>, most: usize) {
    for key in ["prompt", "shared_prompt", "completion"] {
        let text = row.get(key).and_then(Value::as_str).unwrap_or_default();
        if let Some(short) = cut(text, most) {
            let whole = text.chars().count();
            row.insert(key.into(), short.into());
            row.insert(format!("{key}_characters"), whole.into());
        }
    }
}

/// The beginning of a text that is longer than `most`; none for others.
fn cut(text: &str, most: usize) -> Option<String> {
    text.char_indices().nth(most).map(|(end, _)| text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn with(mut row: Value, key: &str, value: Value) -> Value {
        row[key] = value;
        row
    }

    fn run() -> (tempfile::TempDir, RunDir) {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        dir.create().unwrap();
        let row = |group: Value, position: u64, sample: u64, text: &str| {
            let row = serde_json::json!({
                "step": 4, "group": group, "position": position, "prompt_id": 7, "sample": sample, "state": "trained",
                "prompt": "p", "completion": text, "reward": 0.5, "extra": {"guess": sample},
            });
            // Runs of earlier versions have no columns.
            let row = if position == 10 { with(row, "columns", serde_json::json!({"answer": 4})) } else { row };
            format!("{row}\n")
        };
        let long = "é".repeat(LISTED + 1);
        let rows = [row(0.into(), 10, 0, "a"), row(0.into(), 10, 1, &long), row(Value::Null, 11, 0, "b")].concat();
        fs::write(dir.step_completions(4), rows + "{\"torn").unwrap();
        (root, dir)
    }

    #[test]
    fn completions_are_listed_by_group_with_long_texts_cut() {
        let (_root, dir) = run();
        assert!(of_step(&dir, 5).unwrap().is_none());
        let step = serde_json::to_value(of_step(&dir, 4).unwrap()).unwrap();
        assert_eq!((&step["tokens"], &step["groups"][1]["group"]), (&Value::Bool(false), &Value::Null));
        let long = &step["groups"][0]["samples"][1];
        assert_eq!(long["completion"].as_str().unwrap().chars().count(), LISTED);
        assert_eq!((&long["completion_characters"], long.get("prompt")), (&(LISTED + 1).into(), None));
        let whole = one(&dir, None, 4, 10, 1).unwrap().unwrap();
        assert_eq!(whole["completion"].as_str().unwrap().chars().count(), LISTED + 1);
        assert!(one(&dir, None, 4, 10, 2).unwrap().is_none());
        assert_eq!((&step["groups"][0]["columns"]["answer"], &step["groups"][1]["columns"]), (&4.into(), &Value::Null));
        assert_eq!((&long["extra"]["guess"], long.get("columns")), (&1.into(), None));
        assert_eq!(whole["columns"]["answer"], 4);
        assert_eq!(step["damage"], "step-4.jsonl: 1 damaged line");
    }

    #[test]
    fn of_an_agent_the_prompt_is_shown_that_the_policy_read() {
        let (root, dir) = run();
        harness::tiny_model::write_tokenizer(root.path());
        let tokenizer = TextTokenizer::open(&root.path().join("tokenizer.json")).unwrap();
        let ids = [tokenizer.encode("Add.", false).unwrap(), vec![0]].concat();
        let row = serde_json::json!({"position": 3, "prompt": "2+3", "shared_prompt_ids": ids});
        fs::write(dir.step_completions(4), format!("{row}\n")).unwrap();
        let found = one(&dir, Some(&tokenizer), 4, 3, 0).unwrap().unwrap();
        assert_eq!((&found["shared_prompt"], &found["prompt"]), (&"Add.<eos>".into(), &"2+3".into()));
        assert!(!one(&dir, None, 4, 3, 0).unwrap().unwrap().contains_key("shared_prompt"));
    }

    #[test]
    fn what_a_roll_back_gave_up_is_marked() {
        let (_root, dir) = run();
        fs::write(dir.ledger(), "{\"step\":5,\"event\":{\"rolled_back\":{\"from\":4}}}\n").unwrap();
        assert_eq!(one(&dir, None, 4, 10, 0).unwrap().unwrap()["state"], "rolled_back");
    }
}
