//! Sequences to micro-batches: what one forward pass holds.

use std::{ops::Range, sync::Arc};

use tch::{Device, Tensor};

use crate::{host::to_device, ragged::Ragged, support::Support};

/// A prompt with its completion, as token ids.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// The prompt; at least one token, since the first completion token is predicted from its last.
    pub prompt: &'a [u32],
    /// The completion.
    pub completion: &'a [u32],
}

impl Sequence<'_> {
    /// Positions of the forward pass: the last token predicts nothing and is not fed.
    fn positions(&self) -> usize {
        self.prompt.len() + self.completion.len().saturating_sub(1)
    }
}

/// Sequences that go through the model together, padded on the right.
///
/// Completion tokens are numbered consecutively, row after row; `N` is their count.
#[derive(Debug)]
pub struct MicroBatch {
    /// Index of each row in the list of sequences that the batch was made from.
    pub rows: Vec<usize>,
    /// Numbers of each row's completion tokens.
    pub tokens: Vec<Range<usize>>,
    /// Inputs, `[B, S]`.
    pub input_ids_BS: Tensor,
    /// For each completion token, the flat position (in `B·S`) that predicts it, `[N]`.
    pub positions_N: Tensor,
    /// Completion token ids, `[N]`.
    pub targets_N: Tensor,
    /// Support of each completion token's distribution; absent without truncation.
    pub supports: Option<Vec<Arc<Support>>>,
}

impl MicroBatch {
    /// A batch of the given rows of `sequences`.
    #[must_use]
    pub fn new(sequences: &[Sequence<'_>], rows: &[usize], device: Device) -> Self {
        let fed = |&row: &usize| {
            let Sequence { prompt, completion } = sequences[row];
            let ids = prompt.iter().chain(completion).take(sequences[row].positions());
            ids.map(|&id| i64::from(id))
        };
        let input_ids_BS = rows.iter().map(fed).collect::<Ragged<i64>>().padded(0);
        let (mut positions, mut targets, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for (b, &row) in rows.iter().enumerate() {
            let Sequence { prompt, completion } = sequences[row];
            let first = targets.len();
            let start = b * input_ids_BS.ncols() + prompt.len() - 1;
            positions.extend((start..start + completion.len()).map(|p| p as i64));
            targets.extend(completion.iter().map(|&id| i64::from(id)));
            tokens.push(first..targets.len());
        }
        Self {
            rows: rows.to_vec(),
            tokens,
            input_ids_BS: to_device(&input_ids_BS, device),
            positions_N: Tensor::from_slice(&positions).to_device(device),
            targets_N: Tensor::from_slice(&targets).to_device(device),
            supports: None,
        }
    }

    /// With distributions limited to the supports of its rows, which are indexed as `sequences` is.
    #[must_use]
    pub fn with_supports(mut self, supports: Option<&Ragged<Arc<Support>>>) -> Self {
        self.supports = supports.map(|all| all.gather(&self.rows));
        self
    }

    /// One value per row, repeated for each of the row's tokens: `[N]` on the host.
    #[must_use]
    pub fn per_token(&self, value_of: impl Fn(usize) -> f64) -> Vec<f64> {
        self.rows.iter().zip(&self.tokens).flat_map(|(&row, span)| vec![value_of(row); span.len()]).collect()
    }
}

/// Splits rows into micro-batches of at most `budget` positions, padding included; a longer row goes alone.
///
/// Rows of like length come together (longest first, ties by index), so that little is padded. The split depends on
/// nothing but the lengths, and no gradient depends on the split.
#[must_use]
pub fn split(sequences: &[Sequence<'_>], rows: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let filled = rows.iter().copied().filter(|&r| !sequences[r].completion.is_empty());
    pack(filled, |row| sequences[row].positions(), 1, budget)
}

/// Packs items of `rows_per_item` rows each into passes of at most `budget` positions, padding included, longest first and
/// ties by index; a longer item goes alone.
#[must_use]
pub fn pack(
    items: impl Iterator<Item = usize>,
    length_of: impl Fn(usize) -> usize,
    rows_per_item: usize,
    budget: usize,
) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = items.collect();
    order.sort_by_key(|&item| (std::cmp::Reverse(length_of(item)), item));
    let mut passes: Vec<Vec<usize>> = Vec::new();
    for item in order {
        match passes.last_mut() {
            // The first item of a pass is its longest, so it sets the width.
            Some(pass) if (pass.len() + 1) * rows_per_item * length_of(pass[0]) <= budget => pass.push(item),
            _ => passes.push(vec![item]),
        }
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_holds_every_row_once_within_the_budget() {
        let prompt = [1u32; 5];
        let completions: Vec<Vec<u32>> = (0..40u32).map(|i| vec![2; (i * 7 % 23) as usize]).collect();
        let sequences: Vec<Sequence<'_>> =
            completions.iter().map(|c| Sequence { prompt: &prompt, completion: c }).collect();
        let rows: Vec<usize> = (0..40).collect();
        for budget in [1, 30, 64, 10_000] {
            let batches = split(&sequences, &rows, budget);
            let mut seen: Vec<usize> = batches.concat();
            seen.sort_unstable();
            let expected: Vec<usize> = rows.iter().copied().filter(|&r| !completions[r].is_empty()).collect();
            assert_eq!(seen, expected);
            for batch in &batches {
                let width = batch.iter().map(|&r| sequences[r].positions()).max().unwrap();
                assert!(batch.len() == 1 || batch.len() * width <= budget, "{} x {width} > {budget}", batch.len());
            }
        }
    }

    #[test]
    fn targets_are_predicted_from_the_position_before() {
        let sequences =
            [Sequence { prompt: &[10, 11], completion: &[20, 21, 22] }, Sequence { prompt: &[12], completion: &[30] }];
        let batch = MicroBatch::new(&sequences, &[0, 1], Device::Cpu);
        assert_eq!(batch.input_ids_BS.size(), [2, 4]);
        let ids = Vec::<i64>::try_from(batch.input_ids_BS.reshape([-1])).unwrap();
        assert_eq!(ids, [10, 11, 20, 21, 12, 0, 0, 0]);
        assert_eq!(Vec::<i64>::try_from(&batch.positions_N).unwrap(), [1, 2, 3, 4]);
        assert_eq!(Vec::<i64>::try_from(&batch.targets_N).unwrap(), [20, 21, 22, 30]);
        assert_eq!(batch.tokens, [0..3, 3..4]);
    }
}
