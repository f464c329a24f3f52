//! Completions of the first and of the last steps, side by side.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
};

use serde::{Deserialize, Serialize};
use shared::{
    RunDir,
    files::journal::{self, Entry},
};

use super::completions;

/// One line of `completions/step-N.jsonl`, as far as a pair needs it.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct Sample {
    /// Row of the dataset.
    prompt_id: u64,
    /// The prompt as text.
    prompt: String,
    /// The completion as text.
    #[serde(alias = "completion")]
    text: String,
    /// Weighted reward, if one was given.
    #[serde(default)]
    reward: Option<f64>,
    /// Completed steps when it was sampled; from the file's name.
    #[serde(skip_deserializing)]
    step: u64,
}

impl Entry for Sample {
    fn step(&self) -> Option<u64> {
        Some(self.step)
    }
}

/// A row of the table: a prompt with its two completions.
#[derive(Debug, Serialize)]
pub struct Pair {
    /// Before training, or nearly.
    before: Sample,
    /// After training; of the same prompt if the run drew it again.
    after: Sample,
}

/// Rows of the table.
const ROWS: usize = 8;
/// Files that are searched from either end for the same prompts.
const FILES: usize = 12;

/// Completions before and after; empty when the run has not logged at least two steps.
pub fn pairs(dir: &RunDir) -> io::Result<Vec<Pair>> {
    let steps = dir.logged_steps()?;
    let reach = FILES.min(steps.len() / 2);
    let load = |steps: &[u64]| -> io::Result<Vec<Sample>> {
        let mut list = Vec::new();
        for &step in steps {
            let mut prompts = HashSet::new();
            let first_of_its_prompt = |sample: &Sample| prompts.insert(sample.prompt_id);
            list.extend(read(&dir.step_completions(step), step)?.into_iter().filter(first_of_its_prompt));
        }
        Ok(list)
    };
    let newest_first: Vec<u64> = steps.iter().rev().take(reach).copied().collect();
    Ok(match_up(load(&steps[..reach])?, load(&newest_first)?))
}

/// Pairs of the same prompt first; then the earliest with the latest of the rest.
fn match_up(early: Vec<Sample>, late: Vec<Sample>) -> Vec<Pair> {
    let mut by_prompt: HashMap<u64, Sample> = HashMap::new();
    for sample in late.iter().rev() {
        by_prompt.insert(sample.prompt_id, sample.clone());
    }
    let mut pairs: Vec<Pair> = Vec::new();
    for before in &early {
        if pairs.len() < ROWS
            && let Some(after) = by_prompt.remove(&before.prompt_id)
        {
            pairs.push(Pair { before: before.clone(), after });
        }
    }
    let used: Vec<u64> = pairs.iter().map(|p| p.before.prompt_id).collect();
    let free = |list: Vec<Sample>| list.into_iter().filter(|s| !used.contains(&s.prompt_id)).collect::<Vec<_>>();
    let rest = free(early).into_iter().zip(free(late)).map(|(before, after)| Pair { before, after });
    let missing = ROWS - pairs.len();
    pairs.extend(rest.take(missing));
    pairs
}

/// Lines that are no samples are left out: one of them must not break a report.
fn read(path: &Path, step: u64) -> io::Result<Vec<Sample>> {
    let bytes = completions::read(path)?.unwrap_or_default();
    Ok(journal::parse::<Sample>(&bytes).0.into_iter().map(|sample| Sample { step, ..sample }).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn log(dir: &RunDir, step: u64, prompts: &[u64]) {
        let line =
            |p: &u64| format!("{{\"prompt_id\":{p},\"prompt\":\"p{p}\",\"text\":\"at {step}\",\"reward\":1.5}}\n");
        let text: String = prompts.iter().flat_map(|p| [line(p), line(p)]).collect();
        fs::write(dir.step_completions(step), text).unwrap();
    }

    #[test]
    fn the_same_prompts_are_shown_first_and_once() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        dir.create().unwrap();
        assert!(pairs(&dir).unwrap().is_empty());
        log(&dir, 1, &[1, 2]);
        assert!(pairs(&dir).unwrap().is_empty(), "one step has no after");
        log(&dir, 2, &[3, 4]);
        log(&dir, 9, &[4, 5]);
        log(&dir, 10, &[2, 6]);
        let rows: Vec<_> = pairs(&dir)
            .unwrap()
            .iter()
            .map(|p| (p.before.prompt_id, p.before.step, p.after.prompt_id, p.after.step))
            .collect();
        assert_eq!(rows, [(2, 1, 2, 10), (4, 2, 4, 9), (1, 1, 6, 10), (3, 2, 5, 9)]);
    }

    #[test]
    fn torn_lines_and_missing_rewards_do_no_harm() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("step-1.jsonl");
        fs::write(&path, "{\"prompt_id\":1,\"prompt\":\"p\",\"completion\":\"t\",\"reward\":null}\n{\"prompt").unwrap();
        let samples = read(&path, 1).unwrap();
        assert_eq!((samples.len(), samples[0].reward), (1, None));
    }
}
