//! The generation batch of a step: completions in prompt order, with the outcomes of their reward functions.
//!
//! The owner mask is applied here, once for all. Everywhere else, values per token are values per sampled token, and
//! counts of tokens are counts of sampled tokens.

use std::borrow::Cow;

use shared::{Completion, Placed, PolicyVersion, RewardOutcome, StepScore, config::TrainConfig};

use crate::{
    advantage::{CreditOptions, RewardSummary, Sample},
    batch::Sequence,
};

/// A completion in its place within the generation batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchRow<'a> {
    /// The group it belongs to.
    pub group: &'a Placed,
    /// The completion.
    pub completion: &'a Completion,
    /// Whether it counts at all: not aborted and not stale.
    pub valid: bool,
    /// Whether a reward function that failed takes it out of baseline and loss (`reward_failure` exclude).
    pub excluded: bool,
    /// Whether its sampled tokens are part of the loss.
    pub trained: bool,
}

impl<'a> BatchRow<'a> {
    /// Prompt and completion as token ids.
    #[must_use]
    pub fn sequence(&self) -> Sequence<'a> {
        Sequence::of(&self.group.prompt_ids, &self.completion.episode)
    }

    /// Number of sampled tokens, for which the losses have values.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.completion.episode.sampled()
    }

    /// Number of tokens in the loss.
    #[must_use]
    pub fn trained_tokens(&self) -> usize {
        if self.trained { self.tokens() } else { 0 }
    }

    /// Log-prob of each sampled token under the distribution that it was drawn from.
    pub fn sampling_logprobs(&self) -> impl Iterator<Item = f64> + use<'a> {
        self.completion.episode.logprobs().map(|token| f64::from(token.sampling_logprob()))
    }
}

/// One generation batch.
#[derive(Debug)]
pub struct StepBatch<'a> {
    /// Completions, group after group in prompt order, `num_generations` each.
    pub rows: Vec<BatchRow<'a>>,
    /// Rewards of the rows.
    pub rewards: RewardSummary,
    /// Versions that the learner is ahead of each group's policy.
    pub staleness: Vec<u64>,
    /// Number of completions left out because their group was too old.
    pub stale: usize,
}

impl<'a> StepBatch<'a> {
    /// Builds the batch from the groups of a step, which must be in prompt order.
    ///
    /// `version` is the learner's policy version. Groups further behind it than `max_staleness` are counted and left
    /// out of baseline and loss, as are aborted completions and those on which a reward function failed; truncated ones
    /// leave the loss with `mask_truncated_completions` but stay in the baseline.
    #[must_use]
    pub fn new(groups: &'a [Placed], config: &TrainConfig, version: PolicyVersion) -> Self {
        let staleness: Vec<u64> = groups.iter().map(|group| version.0.saturating_sub(group.policy_version.0)).collect();
        let mut rows = Vec::new();
        for (group, &age) in groups.iter().zip(&staleness) {
            for completion in &group.completions {
                let valid = completion.is_usable() && age <= config.max_staleness;
                let cut = config.mask_truncated_completions && completion.episode.is_truncated();
                let excluded = config.reward_failure.excludes(&completion.rewards);
                rows.push(BatchRow { group, completion, valid, excluded, trained: valid && !excluded && !cut });
            }
        }
        let stale = groups
            .iter()
            .zip(&staleness)
            .filter(|(_, age)| **age > config.max_staleness)
            .map(|(group, _)| group.completions.len())
            .sum();
        let rewards = RewardSummary::new(&CreditOptions::from_config(config), &samples(&rows));
        Self { rows, rewards, staleness, stale }
    }

    /// The rows as the advantage estimators see them.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample<'a>> {
        samples(&self.rows)
    }

    /// The rows of each group, in prompt order.
    pub fn by_group(&self) -> impl Iterator<Item = &[BatchRow<'a>]> {
        self.rows.chunk_by(|a, b| std::ptr::eq(a.group, b.group))
    }

    /// The groups, in prompt order.
    pub fn groups(&self) -> impl Iterator<Item = &'a Placed> {
        self.by_group().map(|rows| rows[0].group)
    }

    /// Valid rows.
    pub fn valid(&self) -> impl Iterator<Item = &BatchRow<'a>> {
        self.rows.iter().filter(|row| row.valid)
    }

    /// Tokens in the loss (TRL `num_items_in_batch`, which 1.16 counts after `mask_truncated_completions`).
    #[must_use]
    pub fn trained_tokens(&self) -> usize {
        self.rows.iter().map(BatchRow::trained_tokens).sum()
    }

    /// Dataset position after this batch.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.rows.iter().map(|row| row.group.cursor()).max().unwrap_or(0)
    }
}

fn samples<'a>(rows: &[BatchRow<'a>]) -> Vec<Sample<'a>> {
    let mut group = 0;
    rows.iter()
        .enumerate()
        .map(|(i, row)| {
            group += usize::from(i > 0 && !std::ptr::eq(rows[i - 1].group, row.group));
            Sample {
                group,
                tokens: row.tokens(),
                paths: path_ends(row.completion),
                valid: row.valid,
                trained: row.trained,
                outcomes: outcomes(row.completion),
                weights: row.group.reward_names.iter().map(|(_, weight)| *weight).collect(),
                turns: turns(row.completion),
            }
        })
        .collect()
}

/// Where each path of a completion ends, in sampled tokens; empty for a single one.
fn path_ends(completion: &Completion) -> Vec<usize> {
    let episode = &completion.episode;
    if episode.paths().nth(1).is_none() {
        return Vec::new();
    }
    let before = |end: usize| episode.sampled_spans().filter(|span| span.end <= end).map(|span| span.len()).sum();
    episode.paths().map(|path| before(path.end)).collect()
}

/// Rewards of turns, for each reward that is their sum. Empty where the environment gives none by turn.
fn turns(completion: &Completion) -> Vec<Vec<(usize, f64)>> {
    if completion.exchange.as_ref().is_none_or(|exchange| exchange.turn_rewards().is_empty()) {
        return Vec::new();
    }
    let of_reward =
        |reward| completion.turn_scores(reward).iter().map(|turn| (turn.end as usize, turn.score)).collect();
    (0..completion.rewards.len()).map(of_reward).collect()
}

/// Outcomes of the reward functions, with the ends of steps counted in sampled tokens: reward functions count given
/// tokens too.
///
/// A step that ends within given tokens ends with the sampled token before them. A step that ends before the first
/// sampled token is not the policy's work and is left out.
fn outcomes(completion: &Completion) -> Cow<'_, [RewardOutcome]> {
    let episode = &completion.episode;
    if episode.given() == 0 {
        return Cow::Borrowed(&completion.rewards);
    }
    let step = |step: &StepScore| {
        let end = episode.sampled_before(step.end as usize + 1).checked_sub(1)?;
        Some(StepScore { end: end as u32, ..*step })
    };
    let outcome = |outcome: &RewardOutcome| match outcome {
        RewardOutcome::Steps(steps) => RewardOutcome::Steps(steps.iter().filter_map(step).collect()),
        other => other.clone(),
    };
    completion.rewards.iter().map(outcome).collect()
}
