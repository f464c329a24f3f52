//! `learner logprobs`: log-probs of given completions, for whoever doubts that sampler and learner agree.

use std::{path::PathBuf, time::Instant};

use anyhow::{anyhow, bail};
use serde_json::{Map, Value, json};
use shared::{
    ModelConfig,
    files::atomic,
    run::memory_plan::{LearnerSizes, Workload},
};

use super::{ComputeArgs, above_zero, load_or_initialise};
use crate::{batch::Sequence, model::LoadOptions, step::evaluate, text};

/// Flags of `learner logprobs`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model directory.
    #[arg(long)]
    pub model: PathBuf,
    /// JSONL rows with `prompt_ids` and `completion_ids` or `token_ids`; the output of `tandem generate` fits.
    #[arg(long)]
    pub input: PathBuf,
    /// The same rows with `logprobs`.
    #[arg(long)]
    pub output: PathBuf,
    /// Divides the logits.
    #[arg(long, default_value_t = 1.0)]
    pub temperature: f64,
    /// Add `entropies` as well.
    #[arg(long)]
    pub entropies: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

struct Row {
    fields: Map<String, Value>,
    prompt: Vec<u32>,
    completion: Vec<u32>,
}

/// Writes the rows; the last line on stdout is a JSON summary, with the largest difference from log-probs that the
/// input already had.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    above_zero("--temperature", args.temperature)?;
    let device = args.compute.open()?;
    let options = LoadOptions { device, trainable: false, ..LoadOptions::default() };
    let (model, policy) = load_or_initialise(&args.model, None, options)?;
    let mut rows = text::rows(&args.input, |fields| read_row(fields, model.config()).map_err(|e| format!("{e:#}")))?;
    let start = Instant::now();
    let sequences: Vec<Sequence<'_>> = rows.iter().map(|row| Sequence::new(&row.prompt, &row.completion)).collect();
    let all: Vec<usize> = (0..rows.len()).collect();
    let longest = sequences.iter().map(|s| s.prompt.len() + s.completion.len()).max().unwrap_or(1);
    let (sizes, work) = (LearnerSizes::evaluated(model.config()), Workload::apart(longest, rows.len()));
    let budget = args.compute.budget(&sizes, &work)? as usize;
    let found = evaluate(&policy, &sequences, &all, args.temperature, budget, device)?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(row) = not_finite(all.iter().map(|&row| &found.logprobs[row])) {
        bail!(
            "{}: the log-probs of row {} are not finite: the model's values overflow; take an earlier checkpoint",
            args.model.display(),
            row + 1
        );
    }
    let mut largest: Option<f64> = None;
    for (i, row) in rows.iter_mut().enumerate() {
        if let Some(difference) = difference(&row.fields, &found.logprobs[i]) {
            largest = Some(largest.unwrap_or(0.0).max(difference));
        }
        row.fields.insert("logprobs".into(), json!(found.logprobs[i]));
        if args.entropies {
            row.fields.insert("entropies".into(), json!(found.entropies[i]));
        }
    }
    let lines: Vec<String> = rows.iter().map(|row| serde_json::to_string(&row.fields)).collect::<Result<_, _>>()?;
    let tokens: usize = rows.iter().map(|row| row.completion.len()).sum();
    atomic::write_output(&args.output, (lines.join("\n") + "\n").as_bytes())?;
    println!("{}", json!({"rows": rows.len(), "tokens": tokens, "seconds": seconds, "max_abs_difference": largest}));
    Ok(())
}

fn read_row(fields: Map<String, Value>, model: &ModelConfig) -> anyhow::Result<Row> {
    let (vocabulary, limit) = (model.vocab_size, model.max_position_embeddings);
    let ids = |key: &str| -> Option<anyhow::Result<Vec<u32>>> {
        let given = fields.get(key).filter(|value| !value.is_null());
        given.map(|value| serde_json::from_value(value.clone()).map_err(|_| anyhow!("`{key}` is no list of token ids")))
    };
    let prompt = ids("prompt_ids").ok_or_else(|| anyhow!("the row has no `prompt_ids`"))??;
    let completion = match (ids("completion_ids").transpose()?, ids("token_ids").transpose()?) {
        (Some(one), Some(other)) if one != other => {
            bail!("`completion_ids` and `token_ids` are both there and differ; leave one out")
        }
        (Some(ids), _) | (None, Some(ids)) => ids,
        (None, None) => bail!("the row has neither `completion_ids` nor `token_ids`"),
    };
    if prompt.is_empty() {
        bail!("`prompt_ids` is empty: the first token has nothing to be predicted from");
    }
    if let Some(token) = prompt.iter().chain(&completion).find(|&&token| token as usize >= vocabulary) {
        bail!("token {token} is outside the model's vocabulary of {vocabulary}");
    }
    let length = prompt.len() + completion.len();
    if length > limit {
        bail!("the row has {length} tokens, and the model has {limit} positions (`max_position_embeddings`)");
    }
    Ok(Row { fields, prompt, completion })
}

/// The first row with a log-prob that is no finite number; JSON has no such numbers.
fn not_finite<'a>(mut rows: impl Iterator<Item = &'a [f64]>) -> Option<usize> {
    rows.position(|row| row.iter().any(|logprob| !logprob.is_finite()))
}

/// Largest absolute difference from the log-probs that a row came with.
fn difference(fields: &Map<String, Value>, found: &[f64]) -> Option<f64> {
    let given = fields.get("logprobs")?.as_array()?;
    given.iter().zip(found).filter_map(|(given, found)| Some((given.as_f64()? - found).abs())).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use harness::tiny_model::SMALL;
    use shared::ModelDir;

    use super::*;

    #[test]
    fn a_row_with_two_completions_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        SMALL.write(dir.path(), 5);
        let model = ModelDir::open(dir.path()).unwrap();
        let read = |row: Value| read_row(row.as_object().unwrap().clone(), model.config());
        let both = |other: Value| json!({"prompt_ids": [3], "completion_ids": [4, 5], "token_ids": other});
        assert_eq!(read(both(json!([4, 5]))).unwrap().completion, [4, 5]);
        let error = read(both(json!([4, 6]))).map(|row| row.completion).unwrap_err().to_string();
        assert_eq!(error, "`completion_ids` and `token_ids` are both there and differ; leave one out");
        assert_eq!(read(json!({"prompt_ids": [3], "token_ids": [7]})).unwrap().completion, [7]);
        let error = read(json!({"prompt_ids": [3]})).map(|row| row.completion).unwrap_err().to_string();
        assert_eq!(error, "the row has neither `completion_ids` nor `token_ids`");
    }

    #[test]
    fn a_row_with_log_probs_that_json_does_not_have_is_found() {
        assert_eq!(not_finite([[-0.5, -80.0].as_slice(), &[]].into_iter()), None);
        assert_eq!(not_finite([[-0.5].as_slice(), &[-1.0, f64::NAN]].into_iter()), Some(1));
        assert_eq!(not_finite([[f64::NEG_INFINITY].as_slice()].into_iter()), Some(0));
    }
}
