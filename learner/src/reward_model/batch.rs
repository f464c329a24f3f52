//! Answers to forward passes of a scorer.

use tch::{Device, Tensor};

use super::{Answer, Pair};
use crate::{batch::pack, host::to_device, ragged::Ragged};

/// Answers that go through the model together, padded on the right, with the places where scores are read off.
#[derive(Debug)]
pub struct AnswerBatch {
    /// Inputs, `[B, S]`.
    pub input_ids_BS: Tensor,
    /// Flat positions (in `B·S`) of the ends of all answers, `[N]`.
    pub positions_N: Tensor,
    /// Number of ends of each answer.
    counts: Vec<usize>,
}

impl AnswerBatch {
    /// A batch of the given answers.
    #[must_use]
    pub fn new(answers: &[&Answer], device: Device) -> Self {
        let ids = answers.iter().map(|answer| answer.tokens.iter().map(|&id| i64::from(id)));
        let input_ids_BS = ids.collect::<Ragged<i64>>().padded(0);
        let width = input_ids_BS.ncols();
        let ends = answers.iter().enumerate().flat_map(|(b, answer)| answer.ends.iter().map(move |end| (b, end)));
        let positions: Vec<i64> = ends.map(|(b, end)| (b * width + end) as i64).collect();
        Self {
            input_ids_BS: to_device(&input_ids_BS, device),
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

/// Splits pairs into passes of at most `budget` positions, padding included; a pair is never torn apart, and a longer one
/// goes alone.
#[must_use]
pub fn split_pairs(pairs: &[&Pair], budget: usize) -> Vec<Vec<usize>> {
    let length_of = |pair: usize| pairs[pair].chosen.tokens.len().max(pairs[pair].rejected.tokens.len());
    pack(0..pairs.len(), length_of, 2, budget)
}
