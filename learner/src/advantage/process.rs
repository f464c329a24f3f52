//! Process supervision (DeepSeekMath, section 4.1.3): rewards of steps, normalised over all steps of all completions of
//! a group; a token's advantage is the sum of the normalised rewards of the steps that end at or after it.

use shared::config::StepDeviation;

use super::moments::Moments;
use crate::ragged::Ragged;

/// Normalised step rewards of a group, and the advantages that follow from them.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessAdvantages {
    /// One row per completion, laid out as the steps.
    pub normalised: Ragged<f64>,
    /// One row per completion, one entry per token.
    pub advantages: Ragged<f64>,
    /// Mean of all step rewards. NaN without any.
    pub mean: f64,
    /// Their standard deviation. NaN without any.
    pub std: f64,
}

/// Advantages of the completions of one group. `steps[i]` lists (index of the step's last token, reward) of completion
/// i, which has `lengths[i]` tokens.
#[must_use]
pub fn process(
    steps: &[Vec<(usize, f64)>],
    lengths: &[usize],
    deviation: StepDeviation,
    eps: f64,
) -> ProcessAdvantages {
    let all: Vec<Option<f64>> = steps.iter().flatten().map(|&(_, reward)| Some(reward)).collect();
    let Moments { mean, std, count } = Moments::of(&all);
    let std = match (count, deviation) {
        (1, _) => 0.0,
        (_, StepDeviation::Unbiased) => std,
        (_, StepDeviation::Population) => std * ((count as f64 - 1.0) / count as f64).sqrt(),
    };
    let normalise = |reward: f64| if std + eps == 0.0 { 0.0 } else { (reward - mean) / (std + eps) };
    let normalised: Ragged<f64> = steps.iter().map(|own| own.iter().map(|&(_, reward)| normalise(reward))).collect();
    let advantages = steps
        .iter()
        .zip(normalised.rows())
        .zip(lengths)
        .map(|((own, values), &length)| {
            let ends = || own.iter().map(|&(end, _)| end).zip(values);
            let sum = |t: usize| ends().filter(|(end, _)| *end >= t).map(|(_, value)| value).sum();
            (0..length).map(sum).collect::<Vec<f64>>()
        })
        .collect();
    ProcessAdvantages { normalised, advantages, mean, std }
}
