//! Answers to forward passes of a scorer.

use tch::{Device, Tensor};

use super::{Answer, Pair};
use crate::batch::pack;

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
        let width = answers.iter().map(|answer| answer.tokens.len()).max().unwrap_or(0);
        let mut input_ids = vec![0i64; answers.len() * width];
        let mut positions = Vec::new();
        for (b, answer) in answers.iter().enumerate() {
            for (slot, &id) in input_ids[b * width..].iter_mut().zip(&answer.tokens) {
                *slot = i64::from(id);
            }
            positions.extend(answer.ends.iter().map(|end| (b * width + end) as i64));
        }
        Self {
            input_ids_BS: Tensor::from_slice(&input_ids).view([answers.len() as i64, width as i64]).to_device(device),
            positions_N: Tensor::from_slice(&positions).to_device(device),
            counts: answers.iter().map(|answer| answer.ends.len()).collect(),
        }
    }

    /// Scores at the ends, `[N]`, by answer.
    #[must_use]
    pub fn by_answer(&self, scores: &[f64]) -> Vec<Vec<f64>> {
        let mut rest = scores;
        self.counts
            .iter()
            .map(|&count| {
                let (own, others) = rest.split_at(count);
                rest = others;
                own.to_vec()
            })
            .collect()
    }

    /// Derivatives with respect to each answer's mean score to derivatives with respect to the scores, `[N]`.
    #[must_use]
    pub fn per_end(&self, slopes: &[f64]) -> Vec<f64> {
        let answers = self.counts.iter().zip(slopes);
        answers.flat_map(|(&count, slope)| std::iter::repeat_n(slope / count as f64, count)).collect()
    }
}

/// Splits pairs into passes of at most `budget` positions, padding included; a pair is never torn apart, and a longer one
/// goes alone.
#[must_use]
pub fn split_pairs(pairs: &[&Pair], budget: usize) -> Vec<Vec<usize>> {
    let length_of = |pair: usize| pairs[pair].chosen.tokens.len().max(pairs[pair].rejected.tokens.len());
    pack(0..pairs.len(), length_of, 2, budget)
}
