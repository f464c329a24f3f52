//! Sequences to micro-batches: what one forward pass holds.
//!
//! Sequences lie end to end, without padding. Completions of one prompt lie behind one copy of it ([`Tree`]).

mod packed;
mod share;

use std::{collections::HashMap, ops::Range, sync::Arc};

use shared::config::TrainConfig;
use tch::{Device, Tensor};

use crate::{error::LearnerError, ragged::Ragged, support::Support};

pub use packed::{Packed, Packer, Tree};
pub use share::share;

/// Most tokens of one forward pass of a run.
///
/// # Errors
/// When the configuration leaves it open.
pub(crate) fn token_budget(config: &TrainConfig) -> Result<usize, LearnerError> {
    let missing = "`micro_batch_tokens` is missing; `tandem train` fills it in from model and memory";
    config.micro_batch_tokens.map(|tokens| tokens as usize).ok_or_else(|| LearnerError::Config(missing.into()))
}

/// A prompt with its completion, as token ids.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// The prompt; at least one token, since the first completion token is predicted from its last.
    pub prompt: &'a [u32],
    /// The completion.
    pub completion: &'a [u32],
}

impl<'a> Sequence<'a> {
    /// Tokens of prompt and completion.
    #[must_use]
    pub fn length(&self) -> usize {
        self.prompt.len() + self.completion.len()
    }

    /// Completion tokens that are fed: the last one predicts nothing.
    fn fed(&self) -> &'a [u32] {
        &self.completion[..self.completion.len().saturating_sub(1)]
    }
}

/// Sequences that go through the model together. Where neighbours have the same prompt, it goes through once.
///
/// Completion tokens are numbered consecutively, row after row; `N` is their count.
#[derive(Debug)]
pub struct MicroBatch {
    /// Index of each row in the list of sequences that the batch was made from.
    pub rows: Vec<usize>,
    /// Numbers of each row's completion tokens.
    pub tokens: Vec<Range<usize>>,
    /// Inputs.
    pub packed: Packed,
    /// For each completion token, the place in the inputs that predicts it, `[N]`.
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
        let (mut packer, mut positions) = (Packer::default(), Vec::new());
        for group in rows.chunk_by(|&a, &b| sequences[a].prompt == sequences[b].prompt) {
            let prompt = sequences[group[0]].prompt;
            if let [row] = group {
                // One text is cheaper than a stem with one branch.
                let start = packer.stem(prompt.iter().chain(sequences[*row].fed())) + prompt.len() as i64 - 1;
                positions.extend(start..start + sequences[*row].completion.len() as i64);
                continue;
            }
            let last = packer.stem(prompt) + prompt.len() as i64 - 1;
            for &row in group {
                let fed = sequences[row].fed();
                let start = packer.branch(fed);
                positions.extend((!sequences[row].completion.is_empty()).then_some(last));
                positions.extend(start..start + fed.len() as i64);
            }
        }
        let targets = rows.iter().flat_map(|&row| sequences[row].completion).map(|&id| i64::from(id));
        let tokens = rows.iter().scan(0, |end, &row| {
            let start = *end;
            *end += sequences[row].completion.len();
            Some(start..*end)
        });
        Self {
            rows: rows.to_vec(),
            tokens: tokens.collect(),
            packed: packer.finish(device),
            positions_N: Tensor::from_slice(&positions).to_device(device),
            targets_N: Tensor::from_slice(&targets.collect::<Vec<i64>>()).to_device(device),
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

/// The rows that have a completion, those with the same prompt together, in the order in which they first come.
fn by_prompt(sequences: &[Sequence<'_>], rows: &[usize]) -> Vec<Vec<usize>> {
    let (mut groups, mut known) = (Vec::<Vec<usize>>::new(), HashMap::new());
    for &row in rows.iter().filter(|&&row| !sequences[row].completion.is_empty()) {
        let group = *known.entry(sequences[row].prompt).or_insert(groups.len());
        groups.resize_with(groups.len().max(group + 1), Vec::new);
        groups[group].push(row);
    }
    groups
}

/// Splits rows into micro-batches of at most `budget` positions; a longer row goes alone.
///
/// Rows with the same prompt come together, and those that fit into one micro-batch stay in one, so that the prompt goes
/// through once. Among them the longest come first, ties by index: attention takes runs of the same length at once. The
/// split depends on nothing but lengths and which prompts are the same, and no gradient depends on the split.
#[must_use]
pub fn split(sequences: &[Sequence<'_>], rows: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let mut passes = Passes::new(budget);
    for group in &mut by_prompt(sequences, rows) {
        group.sort_by_key(|&row| (std::cmp::Reverse(sequences[row].completion.len()), row));
        let prompt = sequences[group[0]].prompt.len();
        let whole = prompt + group.iter().map(|&row| sequences[row].fed().len()).sum::<usize>();
        if whole <= budget && !passes.fits(whole) {
            passes.open();
        }
        let mut shared = false;
        for &row in &*group {
            let own = sequences[row].fed().len();
            shared &= passes.fits(own);
            let needed = if shared { own } else { prompt + own };
            if !passes.fits(needed) {
                passes.open();
            }
            passes.push(row, needed);
            shared = true;
        }
    }
    passes.found
}

/// Packs items into passes of at most `budget` positions, in their order; a longer item goes alone.
#[must_use]
pub fn pack(lengths: impl IntoIterator<Item = usize>, budget: usize) -> Vec<Vec<usize>> {
    let mut passes = Passes::new(budget);
    for (item, length) in lengths.into_iter().enumerate() {
        if !passes.fits(length) {
            passes.open();
        }
        passes.push(item, length);
    }
    passes.found
}

/// Passes that are being filled one after the other.
struct Passes {
    found: Vec<Vec<usize>>,
    used: usize,
    budget: usize,
}

impl Passes {
    /// None, of which each is to hold at most `budget` positions.
    fn new(budget: usize) -> Self {
        Self { found: Vec::new(), used: 0, budget }
    }

    /// Whether the last pass has room for so many positions.
    fn fits(&self, positions: usize) -> bool {
        !self.found.is_empty() && self.used + positions <= self.budget
    }

    fn open(&mut self) {
        self.found.push(Vec::new());
        self.used = 0;
    }

    /// Adds an item to the last pass.
    fn push(&mut self, item: usize, positions: usize) {
        self.found.last_mut().expect("a pass was opened for the first item").push(item);
        self.used += positions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(x: &Tensor) -> Vec<i64> {
        Vec::try_from(x).unwrap()
    }

    /// Positions of a micro-batch of the given rows.
    fn positions(sequences: &[Sequence<'_>], rows: &[usize]) -> usize {
        MicroBatch::new(sequences, rows, Device::Cpu).packed.places.len()
    }

    #[test]
    fn a_split_holds_every_row_once_within_the_budget() {
        let prompts = [[1u32; 5], [2; 5], [3; 5]];
        let completions: Vec<Vec<u32>> = (0..40u32).map(|i| vec![2; (i * 7 % 23) as usize]).collect();
        let sequences: Vec<Sequence<'_>> = completions
            .iter()
            .enumerate()
            .map(|(i, completion)| Sequence { prompt: &prompts[i * 5 % 3], completion })
            .collect();
        let rows: Vec<usize> = (0..40).collect();
        for budget in [1, 30, 64, 200, 10_000] {
            let batches = split(&sequences, &rows, budget);
            let mut seen: Vec<usize> = batches.concat();
            seen.sort_unstable();
            let expected: Vec<usize> = rows.iter().copied().filter(|&r| !completions[r].is_empty()).collect();
            assert_eq!(seen, expected);
            for batch in &batches {
                let positions = positions(&sequences, batch);
                assert!(batch.len() == 1 || positions <= budget, "{batch:?}: {positions} > {budget}");
            }
        }
        let fed: usize = sequences.iter().map(|sequence| sequence.fed().len()).sum();
        assert_eq!(positions(&sequences, &split(&sequences, &rows, 10_000).concat()), 3 * 5 + fed);
    }

    #[test]
    fn a_group_that_fits_is_not_torn() {
        let (short, long) = ([1u32, 2], [3u32; 7]);
        let completion = [5u32; 4];
        let of = |prompt| Sequence { prompt, completion: &completion };
        let sequences = [of(&short[..]), of(&long[..]), of(&short[..]), of(&long[..])];
        assert_eq!(split(&sequences, &[0, 1, 2, 3], 14), [[0, 2], [1, 3]]);
        assert_eq!(split(&sequences, &[0, 1, 2, 3], 12), [vec![0, 2], vec![1], vec![3]]);
    }

    #[test]
    fn targets_are_predicted_from_the_position_before_and_a_prompt_goes_through_once() {
        let sequences = [
            Sequence { prompt: &[10, 11], completion: &[20, 21, 22] },
            Sequence { prompt: &[12], completion: &[30] },
            Sequence { prompt: &[10, 11], completion: &[40, 41] },
            Sequence { prompt: &[10, 11], completion: &[50] },
        ];
        let batch = MicroBatch::new(&sequences, &[0, 2, 3, 1], Device::Cpu);
        assert_eq!(ids(&batch.packed.ids_T), [10, 11, 20, 21, 40, 12]);
        assert_eq!(batch.packed.places, [0, 1, 2, 3, 2, 0]);
        let tree = |start, stem, branches: &[i64]| Tree { start, stem, branches: branches.to_vec() };
        assert_eq!(batch.packed.trees, [tree(0, 2, &[2, 1]), tree(5, 1, &[])]);
        assert_eq!(ids(&batch.positions_N), [1, 2, 3, 1, 4, 1, 5]);
        assert_eq!(ids(&batch.targets_N), [20, 21, 22, 40, 41, 50, 30]);
        assert_eq!(batch.tokens, [0..3, 3..5, 5..6, 6..7]);
        let alone = MicroBatch::new(&sequences, &[0], Device::Cpu);
        assert_eq!(alone.packed.trees, [tree(0, 4, &[])]);
        assert_eq!(ids(&alone.positions_N), [1, 2, 3]);
    }
}
