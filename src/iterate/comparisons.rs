//! Comparisons: pairs of completions of one prompt, of which the first is the better one.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use shared::{config::TrainConfig, files::atomic, generation::rng};

/// Distinguishes the choice of prompts from other uses of the seed.
const PROMPTS_KEY: u64 = 0x6974_6572;

/// Most bytes of a file of comparisons.
const MOST_BYTES: u64 = 64 << 30;

/// Lines of a JSONL file that are not blank.
pub fn lines(path: &Path) -> Result<Vec<String>> {
    let text = shared_bounds::read_text(path, MOST_BYTES).with_context(|| path.display().to_string())?;
    Ok(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
}

/// Writes lines as a file, whole or not at all.
pub fn write(path: &Path, lines: &[String]) -> Result<()> {
    let put = |file: &mut dyn Write| lines.iter().try_for_each(|line| writeln!(file, "{line}"));
    atomic::write_with(path, |file| put(file)).with_context(|| path.display().to_string())
}

/// Rows of the datasets whose completions are compared in a round, as JSON lines: a seeded choice, which differs
/// between rounds.
pub fn choose_prompts(config: &TrainConfig, count: usize, round: u32) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    for path in config.dataset.iter() {
        rows.extend(shared_data::read(path, config.train_part())?.rows);
    }
    let order = rng::permutation(rows.len(), &[config.seed, PROMPTS_KEY, u64::from(round)]);
    let line = |row: u32| Ok(serde_json::to_string(&rows[row as usize].values)?);
    order.into_iter().take(count).map(line).collect()
}

/// The judge's scores of sampled completions: the pairs, and the mean reward of all.
#[derive(Debug, PartialEq)]
pub struct Judged {
    /// JSONL rows of `learner reward-model`.
    pub pairs: Vec<String>,
    /// Mean reward of the completions that have one.
    pub reward: Option<f64>,
}

/// Pairs the best with the worst completion of each prompt, as the judge scored them in the rows that
/// `rollout generate` wrote. Prompts whose completions all earn the same give no pair.
pub fn judge(samples: &Path) -> Result<Judged> {
    let rows: Vec<Value> = lines(samples)?
        .iter()
        .map(|line| serde_json::from_str(line).with_context(|| samples.display().to_string()))
        .collect::<Result<_>>()?;
    let scored: Vec<(&Value, f64)> = rows.iter().filter_map(|row| Some((row, row["reward"].as_f64()?))).collect();
    let by_prompt = scored.chunk_by(|a, b| a.0["prompt_id"] == b.0["prompt_id"]);
    let pairs = by_prompt.filter_map(pair).collect();
    let sum: f64 = scored.iter().map(|(_, reward)| reward).sum();
    Ok(Judged { pairs, reward: (!scored.is_empty()).then(|| sum / scored.len() as f64) })
}

fn pair(group: &[(&Value, f64)]) -> Option<String> {
    // Among equals, the first one on both sides, so that a pair does not depend on the order of a sort.
    let best = group.iter().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    let worst = group.iter().reduce(|a, b| if b.1 < a.1 { b } else { a })?;
    (best.1 > worst.1).then(|| {
        json!({
            "prompt_ids": best.0["prompt_ids"],
            "chosen_ids": best.0["token_ids"],
            "rejected_ids": worst.0["token_ids"],
        })
        .to_string()
    })
}

/// The part of given comparisons that belongs to a round: all rounds get the same number of comparisons, and together
/// they get all of them.
pub fn share(pairs: &[String], round: u32, rounds: u32) -> Result<Vec<String>> {
    let bound = |n: u32| pairs.len() * n as usize / rounds as usize;
    let part = &pairs[bound(round - 1)..bound(round)];
    if part.is_empty() {
        bail!("--pairs holds {} comparisons, too few for {rounds} rounds", pairs.len());
    }
    Ok(part.to_vec())
}

/// The comparisons of all rounds before `round`.
pub fn history(files: impl Iterator<Item = PathBuf>) -> Result<Vec<String>> {
    files.map(|path| lines(&path)).collect::<Result<Vec<_>>>().map(|all| all.concat())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(rows: &[Value]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
        file
    }

    fn sample(prompt: u64, token: u32, reward: Option<f64>) -> Value {
        json!({ "prompt_id": prompt, "prompt_ids": [prompt], "token_ids": [token], "reward": reward })
    }

    #[test]
    fn the_best_is_paired_with_the_worst_and_equal_groups_give_no_pair() {
        let samples = file(&[
            sample(0, 1, Some(0.5)),
            sample(0, 2, None),
            sample(0, 3, Some(1.0)),
            sample(0, 4, Some(0.0)),
            sample(1, 5, Some(1.0)),
            sample(1, 6, Some(1.0)),
        ]);
        let judged = judge(samples.path()).unwrap();
        assert_eq!(judged.reward, Some(0.7));
        let expected = json!({ "prompt_ids": [0], "chosen_ids": [3], "rejected_ids": [4] }).to_string();
        assert_eq!(judged.pairs, [expected]);
    }

    #[test]
    fn given_comparisons_are_shared_out_without_loss() {
        let pairs: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let parts: Vec<String> = (1..=3).flat_map(|round| share(&pairs, round, 3).unwrap()).collect();
        assert_eq!(parts, pairs);
        assert!(share(&pairs[..1], 1, 3).unwrap_err().to_string().contains("--pairs"));
    }

    #[test]
    fn each_round_compares_other_prompts() {
        let dataset = file(&(0..50).map(|n| json!({ "prompt": n.to_string() })).collect::<Vec<_>>());
        let config = TrainConfig { dataset: dataset.path().to_owned().into(), seed: 7, ..TrainConfig::default() };
        let chosen = |round| choose_prompts(&config, 10, round).unwrap();
        assert_eq!(chosen(1).len(), 10);
        assert_eq!(chosen(1), chosen(1));
        assert_ne!(chosen(1), chosen(2));
        assert_eq!(choose_prompts(&config, 1000, 1).unwrap().len(), 50);
    }
}
