//! Answers to forward passes of a scorer.

use tch::{Device, Tensor};

use super::{Answer, Pair};
use crate::{
    batch::{Packed, Packer, pack},
    ragged::Ragged,
};

/// Answers that go through the model together, with the places where scores are read off.
#[derive(Debug)]
pub struct AnswerBatch {
    /// Inputs.
    pub packed: Packed,
    /// Places in the inputs where answers end, `[N]`.
    pub positions_N: Tensor,
    /// Number of ends of each answer.
    counts: Vec<usize>,
}

impl AnswerBatch {
    /// A batch of the given answers.
    #[must_use]
    pub fn new(answers: &[&Answer], device: Device) -> Self {
        let (mut packer, mut positions) = (Packer::default(), Vec::new());
        for answer in answers {
            let start = packer.stem(&answer.tokens);
            positions.extend(answer.ends.iter().map(|&end| start + end as i64));
        }
        Self {
            packed: packer.finish(device),
            positions_N: Tensor::from_slice(&positions).to_device(device),
            counts: answers.iter().map(|answer| answer.ends.len()).collect(),
        }
    }

    /// Scores at the ends, `[N]`, by answer.
    #[must_use]
    pub fn by_answer(&self, scores: &[f64]) -> Ragged<f64> {
        let mut rest = scores.iter().copied();
        self.counts.iter().map(|&count| rest.by_ref().take(count).collect::<Vec<f64>>()).collect()
    }

    /// Derivatives with respect to each answer's mean score to derivatives with respect to the scores, `[N]`.
    #[must_use]
    pub fn per_end(&self, gradients: &[f64]) -> Vec<f64> {
        let answers = self.counts.iter().zip(gradients);
        answers.flat_map(|(&count, gradient)| std::iter::repeat_n(gradient / count as f64, count)).collect()
    }
}

/// Splits pairs into passes of at most `budget` positions; a pair is never torn apart, and a longer one goes alone.
#[must_use]
pub fn split_pairs(pairs: &[&Pair], budget: usize) -> Vec<Vec<usize>> {
    pack(pairs.iter().map(|pair| pair.chosen.tokens.len() + pair.rejected.tokens.len()), budget)
}
