//! The work that is measured: prompts, and the lengths of their completions.

use std::{fs, ops::ControlFlow, path::Path, sync::Arc};

use anyhow::{Context, ensure};
use shared::{ModelConfig, PromptId, SamplingParams, generation::rng::Stream};

use crate::{
    engine::GroupRequest,
    generate::{self, Generate},
};

/// Ids below this are often special tokens.
const FIRST_ORDINARY_TOKEN: usize = 300;

/// Prompts with the lengths of their completions.
pub(in crate::commands) struct Workload {
    pub num_generations: u32,
    pub prompts: Vec<Arc<[u32]>>,
    /// One per completion, prompt by prompt.
    pub lengths: Vec<u32>,
    pub seed: u64,
}

impl Workload {
    /// Number of completions.
    pub fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Longest prompt plus completion.
    pub fn longest(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0)
            + self.lengths.iter().max().copied().unwrap_or(0) as usize
    }

    /// Queues everything.
    pub fn submit(&self, generator: &mut dyn Generate) -> anyhow::Result<()> {
        self.submit_with(generator, &self.lengths)
    }

    /// Runs everything for a few tokens, so that pages are mapped and threads awake.
    pub fn warm_up(&self, generator: &mut dyn Generate) -> anyhow::Result<()> {
        const TOKENS: u32 = 3;
        let short: Vec<u32> = self.lengths.iter().map(|&n| n.min(TOKENS)).collect();
        self.submit_with(generator, &short)?;
        generate::finish(generator, |_, _| Ok(ControlFlow::Continue(())))
    }

    /// Queues one token after the first prompt.
    pub fn submit_one_token(&self, generator: &mut dyn Generate) -> anyhow::Result<()> {
        Ok(generator.begin(self.group(0, &[1]).into())?)
    }

    fn submit_with(&self, generator: &mut dyn Generate, lengths: &[u32]) -> anyhow::Result<()> {
        for (prompt, lengths) in lengths.chunks(self.num_generations as usize).enumerate() {
            generator.begin(self.group(prompt, lengths).into())?;
        }
        Ok(())
    }

    /// Completions of these lengths.
    fn group(&self, prompt: usize, lengths: &[u32]) -> GroupRequest {
        GroupRequest {
            tag: prompt as u64,
            prompt_id: PromptId(prompt as u64),
            epoch: 0,
            prompt_ids: self.prompts[prompt].clone(),
            samples: (0..lengths.len() as u32).collect(),
            sampling: Arc::new(SamplingParams { ignore_eos: true, seed: self.seed, ..SamplingParams::default() }),
            lengths: Some(lengths.into()),
            stop_criterion: None,
            constraint: None,
        }
    }
}

/// Tokens of a completion after a prompt of `prompt` tokens, unless the user says otherwise.
pub(in crate::commands) fn usual_length(prompt: u32, model: &ModelConfig) -> u32 {
    const USUAL: u32 = 128;
    let room = model.max_position_embeddings.saturating_sub(prompt as usize);
    USUAL.min(u32::try_from(room).unwrap_or(USUAL)).max(1)
}

/// The number of completions of a workload.
///
/// # Errors
/// When they are more than anybody would wait for.
pub(in crate::commands) fn completions(prompts: usize, num_generations: u32) -> anyhow::Result<usize> {
    const MOST: usize = 1 << 24;
    let count = prompts.saturating_mul(num_generations as usize);
    ensure!(
        count <= MOST,
        "{prompts} prompts with {num_generations} completions each are more than {MOST} completions"
    );
    Ok(count)
}

/// Prompts of random ordinary tokens.
pub(in crate::commands) fn random_prompts(count: usize, length: usize, vocab: usize, seed: u64) -> Vec<Arc<[u32]>> {
    let first = FIRST_ORDINARY_TOKEN.min(vocab / 4);
    let mut stream = Stream::new(&[seed, count as u64, length as u64]);
    let mut token = || first as u32 + stream.below((vocab - first) as u64) as u32;
    (0..count).map(|_| (0..length).map(|_| token()).collect()).collect()
}

/// The lengths of `sequences` completions, from the file of `--lengths-file`.
pub(super) fn read_lengths(path: &Path, sequences: usize) -> anyhow::Result<Vec<u32>> {
    let lengths = lengths_of(path)?;
    ensure!(
        lengths.len() == sequences,
        "--lengths-file {}: {} lengths for {sequences} completions (prompts × generations)",
        path.display(),
        lengths.len()
    );
    Ok(lengths)
}

/// The lengths in a file, one positive whole number per line and at least one of them.
pub(in crate::commands) fn lengths_of(path: &Path) -> anyhow::Result<Vec<u32>> {
    let name = || format!("--lengths-file {}", path.display());
    let text = fs::read_to_string(path).with_context(name)?;
    let mut lengths = Vec::new();
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
        let length = line.trim().parse().with_context(|| format!("{}: line {number}: `{line}`", name()))?;
        ensure!(length > 0, "{}: line {number}: a completion has at least 1 token", name());
        lengths.push(length);
    }
    ensure!(!lengths.is_empty(), "{}: holds no lengths", name());
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_line_by_line_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lengths");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read_lengths(&path, 3)
        };
        assert_eq!(read("3\n 4 \n\n5").unwrap(), [3, 4, 5]);
        for (text, part) in
            [("3\nx\n1", "line 2"), ("3\n0\n1", "line 2"), ("1\n2", "2 lengths for 3"), ("\n", "holds no lengths")]
        {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(part) && error.contains("--lengths-file"), "{error}");
        }
    }

    #[test]
    fn more_completions_than_anybody_waits_for_are_refused() {
        assert_eq!(completions(3, 4).unwrap(), 12);
        let error = completions(usize::MAX, u32::MAX).unwrap_err().to_string();
        assert!(error.contains("4294967295 completions each"), "{error}");
    }

    #[test]
    fn prompts_stay_within_the_vocabulary_and_repeat_with_the_seed() {
        let prompts = random_prompts(4, 50, 1000, 7);
        assert!(prompts.iter().flat_map(|p| p.iter()).all(|&t| (250..1000).contains(&t)));
        assert_eq!(prompts, random_prompts(4, 50, 1000, 7));
        assert_ne!(prompts[0], prompts[1]);
    }
}
