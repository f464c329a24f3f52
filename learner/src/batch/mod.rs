//! Packs sequences into micro-batches, one for each forward pass.
//!
//! Sequences lie end to end, without padding. Completions of one prompt lie behind one copy of it ([`Tree`]).

mod packed;
mod share;

use std::{collections::HashMap, ops::Range, sync::Arc};

use shared::{Episode, ModelConfig, Routing, config::TrainConfig};
use tch::{Device, Tensor};

use crate::{error::LearnerError, ragged::Ragged, support::Support};

use packed::RoutedText;
pub use packed::{Packed, PackedRouting, Packer, Tree};
pub use share::share;

/// Most tokens of one forward pass of a run.
///
/// # Errors
/// When the configuration has no `micro_batch_tokens`.
pub(crate) fn token_budget(config: &TrainConfig) -> Result<usize, LearnerError> {
    let missing = "`micro_batch_tokens` is missing; `tandem train` fills it in from model and memory";
    config.micro_batch_tokens.map(|tokens| tokens as usize).ok_or_else(|| LearnerError::Config(missing.into()))
}

/// A prompt with its completion, as token ids.
///
/// The policy has sampled some tokens of the completion, and others were given to it. Given tokens are context: they
/// are fed if a sampled token follows, and have no log-probs. A completion with several paths is still one row: each
/// path follows the prompt by itself, and the row has the sampled tokens of all of them.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// The prompt; at least one token, since the first completion token is predicted from its last.
    pub prompt: &'a [u32],
    /// The completion.
    pub completion: &'a [u32],
    /// Owners of the completion's tokens; absent where all were sampled.
    episode: Option<&'a Episode>,
    /// Whether the model turns the positions of rows of this length otherwise than those of short ones (longrope).
    long: bool,
    /// The experts that the sampler chose, and whether the model computes with them.
    routing: Option<(&'a Routing, bool)>,
}

impl<'a> Sequence<'a> {
    /// A sequence whose completion has sampled tokens only.
    #[must_use]
    pub fn new(prompt: &'a [u32], completion: &'a [u32]) -> Self {
        Self { prompt, completion, episode: None, long: false, routing: None }
    }

    /// A prompt with the episode that follows it.
    #[must_use]
    pub fn of(prompt: &'a [u32], episode: &'a Episode) -> Self {
        Self { prompt, completion: episode.token_ids(), episode: Some(episode), long: false, routing: None }
    }

    /// The sequence as a row of a model. Rows of one prompt with other positions do not go through together.
    #[must_use]
    pub fn of_model(self, model: &ModelConfig) -> Self {
        Self { long: model.rotary_begin(self.length()) > 0, ..self }
    }

    /// The sequence with the experts that the sampler chose for it, to be compared with those of the model, or to be
    /// computed with where they are `replayed`.
    #[must_use]
    pub fn routed(self, routing: Option<&'a Routing>, replayed: bool) -> Self {
        Self { routing: routing.map(|routing| (routing, replayed)), ..self }
    }

    /// Some of its tokens in a batch, if its choices of experts are known.
    fn routed_text(&self, start: i64, first: usize, length: usize) -> Option<RoutedText<'a>> {
        self.routing.map(|routing| RoutedText { start: start as usize, first, length, routing })
    }

    /// The sequence for another model than the one that the sampler has.
    #[must_use]
    pub fn unrouted(self) -> Self {
        Self { routing: None, ..self }
    }

    /// Tokens of the prompt and of its longest path.
    #[must_use]
    pub fn length(&self) -> usize {
        self.prompt.len() + self.path_spans().map(|path| path.len()).max().unwrap_or(0)
    }

    /// Prompt and longest path as one text.
    pub(crate) fn longest_text(&self) -> impl Iterator<Item = u32> + use<'a> {
        let path = self.path_spans().max_by_key(|path| path.len()).unwrap_or(0..0);
        self.prompt.iter().chain(&self.completion[path]).copied()
    }

    /// Where the paths lie in the completion, in order.
    fn path_spans(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let whole = self.episode.is_none().then_some(0..self.completion.len());
        whole.into_iter().chain(self.episode.into_iter().flat_map(Episode::paths))
    }

    /// The paths that have a sampled token.
    fn paths(&self) -> impl Iterator<Item = Path<'a>> + use<'a> {
        let (completion, spans) = (self.completion, self.sampled_spans().filter(|span| !span.is_empty()));
        let spans: Vec<Range<usize>> = spans.collect();
        self.path_spans().filter_map(move |path| {
            let own = spans.iter().filter(|span| path.contains(&span.start));
            let sampled: Vec<Range<usize>> = own.map(|span| span.start - path.start..span.end - path.start).collect();
            let end = path.start + sampled.last()?.end;
            // The last sampled token predicts nothing.
            Some(Path { fed: &completion[path.start..end - 1], sampled })
        })
    }

    /// Number of completion tokens that are fed.
    fn fed(&self) -> usize {
        self.paths().map(|path| path.fed.len()).sum()
    }

    /// Number of sampled tokens.
    #[must_use]
    pub fn sampled(&self) -> usize {
        self.sampled_spans().map(|span| span.len()).sum()
    }

    /// Where the sampled tokens of all paths lie in the completion, in order.
    fn sampled_spans(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let whole = self.episode.is_none().then_some(0..self.completion.len());
        whole.into_iter().chain(self.episode.into_iter().flat_map(Episode::sampled_spans))
    }

    /// The sampled tokens of each turn.
    pub(crate) fn sampled_turns(&self) -> impl Iterator<Item = &'a [u32]> + use<'a> {
        let completion = self.completion;
        self.sampled_spans().map(move |span| &completion[span])
    }
}

/// A path of a completion.
struct Path<'a> {
    /// Its tokens that are fed: those before the last sampled one.
    fed: &'a [u32],
    /// Where its sampled tokens lie in it, in order.
    sampled: Vec<Range<usize>>,
}

/// Sequences that go through the model together. A prompt that neighbours share goes through once.
///
/// Sampled completion tokens are numbered consecutively, row after row; `N` is their count. So no computation on a
/// micro-batch knows of given tokens.
#[derive(Debug)]
pub struct MicroBatch {
    /// Index of each row in the list of sequences that the batch was made from.
    pub rows: Vec<usize>,
    /// Numbers of each row's sampled tokens.
    pub tokens: Vec<Range<usize>>,
    /// Inputs.
    pub packed: Packed,
    /// For each sampled token, the place in the inputs that predicts it, `[N]`.
    pub positions_N: Tensor,
    /// Ids of the sampled tokens, `[N]`.
    pub targets_N: Tensor,
    /// Support of each sampled token's distribution; absent without truncation and without a constraint.
    pub supports: Option<Vec<Arc<Support>>>,
}

impl MicroBatch {
    /// A batch of the given rows of `sequences`.
    #[must_use]
    pub fn new(sequences: &[Sequence<'_>], rows: &[usize], device: Device) -> Self {
        let (mut packer, mut positions, mut routes) = (Packer::default(), Vec::new(), Vec::new());
        let key = |row: usize| (sequences[row].prompt, sequences[row].long);
        for group in rows.chunk_by(|&a, &b| key(a) == key(b)) {
            let prompt = sequences[group[0]].prompt;
            packer.part_of(group.iter().map(|&row| sequences[row].length()).max().unwrap_or(0));
            let of_row = |&row: &usize| sequences[row].paths().map(move |path| (row, path));
            let paths: Vec<(usize, Path<'_>)> = group.iter().flat_map(of_row).collect();
            if let ([_], [(row, path)]) = (group, &paths[..]) {
                // One text is cheaper than a stem with one branch.
                let start = packer.stem(prompt.iter().chain(path.fed));
                routes.extend(sequences[*row].routed_text(start, 0, prompt.len() + path.fed.len()));
                let start = start + prompt.len() as i64 - 1;
                positions.extend(path.sampled.iter().cloned().flatten().map(|token| start + token as i64));
                continue;
            }
            let stem = packer.stem(prompt);
            routes.extend(sequences[group[0]].routed_text(stem, 0, prompt.len()));
            let last = stem + prompt.len() as i64 - 1;
            for (row, path) in paths {
                let start = packer.branch(path.fed);
                routes.extend(sequences[row].routed_text(start, prompt.len(), path.fed.len()));
                // The first token follows the stem, each other one a token of the branch.
                let before = |token: usize| if token == 0 { last } else { start + token as i64 - 1 };
                positions.extend(path.sampled.into_iter().flatten().map(before));
            }
        }
        let sampled =
            |&row: &usize| sequences[row].sampled_spans().flat_map(move |span| &sequences[row].completion[span]);
        let targets = rows.iter().flat_map(sampled).map(|&id| i64::from(id));
        let tokens = rows.iter().scan(0, |end, &row| {
            let start = *end;
            *end += sequences[row].sampled();
            Some(start..*end)
        });
        let mut packed = packer.finish(device);
        packed.routing = PackedRouting::new(&routes, packed.places.len(), device);
        Self {
            rows: rows.to_vec(),
            tokens: tokens.collect(),
            packed,
            positions_N: Tensor::from_slice(&positions).to_device(device),
            targets_N: Tensor::from_slice(&targets.collect::<Vec<i64>>()).to_device(device),
            supports: None,
        }
    }

    /// Limits the distributions of each row to its supports. `supports` is indexed as `sequences`.
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

/// The rows that have a sampled token, those with the same prompt and positions together, in the order in which they
/// first come.
fn by_prompt(sequences: &[Sequence<'_>], rows: &[usize]) -> Vec<Vec<usize>> {
    let (mut groups, mut known) = (Vec::<Vec<usize>>::new(), HashMap::new());
    for &row in rows.iter().filter(|&&row| sequences[row].sampled() > 0) {
        let group = *known.entry((sequences[row].prompt, sequences[row].long)).or_insert(groups.len());
        groups.resize_with(groups.len().max(group + 1), Vec::new);
        groups[group].push(row);
    }
    groups
}

/// Splits rows into micro-batches of at most `budget` positions; a longer row goes alone.
///
/// Rows with the same prompt come together, and those that fit into one micro-batch stay in one, so that the prompt
/// goes through once. Among them the longest come first, ties by index: attention takes runs of the same length at
/// once. The split depends only on lengths and on which prompts are the same, and no gradient depends on the split.
#[must_use]
pub fn split(sequences: &[Sequence<'_>], rows: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let mut passes = Passes::new(budget);
    for group in &mut by_prompt(sequences, rows) {
        group.sort_by_key(|&row| (std::cmp::Reverse(sequences[row].fed()), row));
        let prompt = sequences[group[0]].prompt.len();
        let whole = prompt + group.iter().map(|&row| sequences[row].fed()).sum::<usize>();
        if whole <= budget && !passes.fits(whole) {
            passes.open();
        }
        let mut shared = false;
        for &row in &*group {
            let own = sequences[row].fed();
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
    /// No pass yet. Each will hold at most `budget` positions.
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
    use proptest::prelude::*;
    use shared::{FinishReason, Segment, TokenLogprob, Why};

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
            .map(|(i, completion)| Sequence::new(&prompts[i * 5 % 3], completion))
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
        let fed: usize = sequences.iter().map(Sequence::fed).sum();
        assert_eq!(positions(&sequences, &split(&sequences, &rows, 10_000).concat()), 3 * 5 + fed);
    }

    #[test]
    fn a_group_that_fits_is_not_torn() {
        let (short, long) = ([1u32, 2], [3u32; 7]);
        let completion = [5u32; 4];
        let of = |prompt| Sequence::new(prompt, &completion);
        let sequences = [of(&short[..]), of(&long[..]), of(&short[..]), of(&long[..])];
        assert_eq!(split(&sequences, &[0, 1, 2, 3], 14), [[0, 2], [1, 3]]);
        assert_eq!(split(&sequences, &[0, 1, 2, 3], 12), [vec![0, 2], vec![1], vec![3]]);
    }

    #[test]
    fn targets_are_predicted_from_the_position_before_and_a_prompt_goes_through_once() {
        let sequences = [
            Sequence::new(&[10, 11], &[20, 21, 22]),
            Sequence::new(&[12], &[30]),
            Sequence::new(&[10, 11], &[40, 41]),
            Sequence::new(&[10, 11], &[50]),
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

    #[test]
    fn choices_of_experts_stand_at_the_tokens_of_their_rows() {
        let routing =
            |row: u16, tokens: u16| Routing { width: 1, choices: (0..tokens).map(|t| 10 * row + t).collect() };
        let [first, second] = [routing(1, 4), routing(2, 3)];
        let sequences = [
            Sequence::new(&[10, 11], &[20, 21, 22]).routed(Some(&first), true),
            Sequence::new(&[10, 11], &[40, 41]).routed(Some(&second), true),
            Sequence::new(&[12, 13], &[30]),
        ];
        let found = |rows: &[usize]| {
            let batch = MicroBatch::new(&sequences, rows, Device::Cpu);
            batch.packed.routing.map(|routing| ids(&routing.of_layer(0, 1).0.view([-1])))
        };
        assert_eq!(found(&[0, 1, 2]).unwrap(), [10, 11, 12, 13, 22, -1, -1]);
        assert_eq!(found(&[1]).unwrap(), [20, 21, 22]);
        assert_eq!(found(&[2]), None);
        let unrouted = sequences.map(|sequence| sequence.unrouted());
        assert!(MicroBatch::new(&unrouted, &[0, 1], Device::Cpu).packed.routing.is_none());
    }

    /// An episode of runs of tokens, each sampled or given.
    fn episode(runs: &[(bool, Vec<u32>)]) -> Episode {
        let mut episode = Episode::default();
        for (sampled, ids) in runs {
            let logprobs = vec![TokenLogprob::default(); ids.len()];
            episode.push(if *sampled {
                Segment::Sampled { ids, logprobs: &logprobs, versions: &[], finish: FinishReason::Stop }
            } else {
                Segment::Given { ids, why: Why::Reply }
            });
        }
        episode
    }

    /// A batch as it was before tokens had owners: positions without gaps.
    fn contiguous(prompts: &[Vec<u32>], completions: &[Vec<u32>], rows: &[usize]) -> (Packed, Vec<i64>, Vec<i64>) {
        let (mut packer, mut positions) = (Packer::default(), Vec::new());
        let fed = |row: usize| &completions[row][..completions[row].len().saturating_sub(1)];
        for group in rows.chunk_by(|&a, &b| prompts[a] == prompts[b]) {
            let prompt = &prompts[group[0]];
            if let [row] = group {
                let start = packer.stem(prompt.iter().chain(fed(*row))) + prompt.len() as i64 - 1;
                positions.extend(start..start + completions[*row].len() as i64);
                continue;
            }
            let last = packer.stem(prompt) + prompt.len() as i64 - 1;
            for &row in group {
                let start = packer.branch(fed(row));
                positions.extend((!completions[row].is_empty()).then_some(last));
                positions.extend(start..start + fed(row).len() as i64);
            }
        }
        let targets = rows.iter().flat_map(|&row| &completions[row]).map(|&id| i64::from(id));
        (packer.finish(Device::Cpu), positions, targets.collect())
    }

    fn runs() -> impl Strategy<Value = Vec<(bool, Vec<u32>)>> {
        prop::collection::vec((any::<bool>(), prop::collection::vec(0..99u32, 0..4)), 0..6)
    }

    proptest! {
        #[test]
        fn completions_of_one_turn_are_packed_as_if_nobody_owned_tokens(
            prompts in prop::collection::vec(prop::collection::vec(0..3u32, 1..3), 1..6),
            completions in prop::collection::vec(prop::collection::vec(0..99u32, 0..5), 6),
            budget in 1..40usize,
        ) {
            let episodes: Vec<Episode> = completions.iter().map(|ids| episode(&[(true, ids.clone())])).collect();
            let pairs = || prompts.iter().zip(&completions);
            let plain: Vec<Sequence<'_>> = pairs().map(|(prompt, ids)| Sequence::new(prompt, ids)).collect();
            let owned: Vec<Sequence<'_>> = prompts.iter().zip(&episodes).map(|(p, e)| Sequence::of(p, e)).collect();
            let rows: Vec<usize> = (0..prompts.len()).collect();
            let passes = split(&owned, &rows, budget);
            prop_assert_eq!(&passes, &split(&plain, &rows, budget));
            for rows in passes {
                let (packed, positions, targets) = contiguous(&prompts, &completions, &rows);
                for sequences in [&plain, &owned] {
                    let batch = MicroBatch::new(sequences, &rows, Device::Cpu);
                    prop_assert_eq!(ids(&batch.packed.ids_T), ids(&packed.ids_T));
                    prop_assert_eq!(&batch.packed.places, &packed.places);
                    prop_assert_eq!(&batch.packed.trees, &packed.trees);
                    prop_assert_eq!(ids(&batch.positions_N), &positions[..]);
                    prop_assert_eq!(ids(&batch.targets_N), &targets[..]);
                }
            }
        }

        /// Each sampled token is predicted from the token before it, at that token's place in its text.
        #[test]
        fn given_tokens_are_fed_and_nothing_is_asked_about_them(
            prompts in prop::collection::vec(prop::collection::vec(0..3u32, 1..3), 1..6),
            all in prop::collection::vec(runs(), 6),
            budget in 1..60usize,
        ) {
            let episodes: Vec<Episode> = all.iter().map(|runs| episode(runs)).collect();
            let sequences: Vec<Sequence<'_>> =
                prompts.iter().zip(&episodes).map(|(prompt, episode)| Sequence::of(prompt, episode)).collect();
            let rows: Vec<usize> = (0..prompts.len()).collect();
            let mut asked = vec![0; prompts.len()];
            for rows in split(&sequences, &rows, budget) {
                let batch = MicroBatch::new(&sequences, &rows, Device::Cpu);
                let (positions, targets) = (ids(&batch.positions_N), ids(&batch.targets_N));
                let fed = ids(&batch.packed.ids_T);
                for (&row, tokens) in rows.iter().zip(&batch.tokens) {
                    let text: Vec<u32> = prompts[row].iter().chain(episodes[row].token_ids()).copied().collect();
                    let sampled = episodes[row].owner_mask().zip(prompts[row].len()..).filter(|(owned, _)| *owned);
                    let places: Vec<usize> = sampled.map(|(_, place)| place).collect();
                    prop_assert_eq!(places.len(), tokens.len());
                    for (place, number) in places.into_iter().zip(tokens.clone()) {
                        let at = positions[number] as usize;
                        prop_assert_eq!(targets[number], i64::from(text[place]));
                        prop_assert_eq!(batch.packed.places[at], place as i64 - 1);
                        prop_assert_eq!(fed[at], i64::from(text[place - 1]));
                        asked[row] += 1;
                    }
                }
            }
            let sampled: Vec<usize> = sequences.iter().map(Sequence::sampled).collect();
            prop_assert_eq!(asked, sampled, "each once");
        }
    }
}
