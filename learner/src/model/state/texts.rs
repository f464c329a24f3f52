//! Texts that the rule computes together, chunk by chunk.

use tch::{Device, Kind, Tensor};

use crate::batch::Tree;

/// Tokens of a chunk. A longer chunk has more work within itself, a shorter one more states.
const CHUNK: i64 = 64;
/// Most rows of all heads of the texts that are computed together, so that intermediate results stay small.
const ROWS: i64 = 8192;

/// A stem or a branch.
#[derive(Debug, Clone, Copy)]
struct Text {
    start: i64,
    length: i64,
    tree: usize,
}

/// Texts that begin in the same way, at zero states or at the ends of their stems, from the longest to the shortest.
#[derive(Debug)]
pub(super) struct Run {
    texts: Vec<Text>,
    /// Whether they are branches.
    pub(super) of_branches: bool,
    chunk: i64,
}

/// One chunk of each text of a run that is long enough.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Texts.
    pub(super) texts: i64,
    /// Tokens of each, the missing ones of an end included.
    pub(super) length: i64,
    /// Rows of the tokens, `[texts · length]`; a row of some other token where one is missing.
    pub(super) rows: Tensor,
    /// The tokens that are there, if any is missing.
    pub(super) partial: Option<Partial>,
}

/// A chunk in which tokens are missing.
#[derive(Debug)]
pub(super) struct Partial {
    /// 1 for a token, 0 for a missing one, `[texts · length]`.
    pub(super) present: Tensor,
    /// Which places have a token.
    pub(super) places: Tensor,
    /// Their rows.
    pub(super) rows: Tensor,
}

impl Run {
    /// All runs of some trees, stems before branches.
    pub(super) fn of(trees: &[Tree], heads: i64) -> Vec<Self> {
        let stems = trees.iter().enumerate().map(|(tree, of)| Text { start: of.start, length: of.stem, tree });
        let branches = trees.iter().enumerate().flat_map(|(tree, of)| {
            let mut start = of.start + of.stem;
            of.branches.iter().map(move |&length| {
                start += length;
                Text { start: start - length, length, tree }
            })
        });
        let mut runs = Self::batched(stems.collect(), false, heads);
        runs.extend(Self::batched(branches.collect(), true, heads));
        runs
    }

    fn batched(mut texts: Vec<Text>, of_branches: bool, heads: i64) -> Vec<Self> {
        texts.sort_by_key(|text| (-text.length, text.start));
        let most = (ROWS / (heads * CHUNK)).max(1) as usize;
        let run = |texts: &[Text]| Self { texts: texts.to_vec(), of_branches, chunk: CHUNK.min(texts[0].length) };
        texts.chunks(most).map(run).collect()
    }

    /// The trees of the texts.
    pub(super) fn trees(&self) -> impl Iterator<Item = usize> {
        self.texts.iter().map(|text| text.tree)
    }

    /// Number of chunks of the longest text.
    pub(super) fn chunks(&self) -> i64 {
        (self.texts[0].length + self.chunk - 1) / self.chunk
    }

    /// How many texts have a chunk of that number; they are the first ones.
    pub(super) fn active(&self, chunk: i64) -> i64 {
        self.texts.iter().take_while(|text| text.length > chunk * self.chunk).count() as i64
    }

    /// Indices of the texts that end with a chunk, and their trees.
    pub(super) fn ending(&self, chunk: i64) -> impl Iterator<Item = (i64, usize)> {
        (self.active(chunk + 1)..self.active(chunk)).map(|index| (index, self.texts[index as usize].tree))
    }

    /// A chunk, with its indices on a device and its masks of an element type.
    pub(super) fn chunk(&self, chunk: i64, (kind, device): (Kind, Device)) -> Chunk {
        let (texts, length) = (self.active(chunk), self.chunk);
        let (mut rows, mut places, mut present) = (Vec::new(), Vec::new(), Vec::new());
        for text in &self.texts[..texts as usize] {
            let (first, last) = (text.start + chunk * length, text.start + text.length - 1);
            for row in first..first + length {
                if row <= last {
                    places.push(rows.len() as i64);
                }
                present.push(if row <= last { 1.0 } else { 0.0 });
                rows.push(row.min(last));
            }
        }
        let indices = |list: &[i64]| Tensor::from_slice(list).to_device(device);
        let is_partial = places.len() < rows.len();
        let partial = is_partial.then(|| Partial {
            present: Tensor::from_slice::<f64>(&present).to_kind(kind).to_device(device),
            rows: indices(&places.iter().map(|&place| rows[place as usize]).collect::<Vec<_>>()),
            places: indices(&places),
        });
        Chunk { texts, length, rows: indices(&rows), partial }
    }
}

impl Chunk {
    /// `[T, heads, width]` as `[texts, heads, length, width]`.
    pub(super) fn take(&self, x_TND: &Tensor) -> Tensor {
        let [_, heads, width] = x_TND.size()[..] else { unreachable!("tokens, heads and width") };
        x_TND.index_select(0, &self.rows).view([self.texts, self.length, heads, width]).transpose(1, 2)
    }

    /// As [`Self::take`], with 0 for missing tokens.
    pub(super) fn take_present(&self, x_TND: &Tensor) -> Tensor {
        let x = self.take(x_TND);
        match &self.partial {
            None => x,
            Some(partial) => x * partial.present.view([self.texts, 1, self.length, 1]),
        }
    }

    /// Writes `[texts, heads, length, width]` to its tokens in `[T, heads, width]`.
    pub(super) fn put(&self, x: &Tensor, onto_TND: &mut Tensor) {
        let x = x.transpose(1, 2).flatten(0, 1);
        let _ = match &self.partial {
            None => onto_TND.index_copy_(0, &self.rows, &x),
            Some(partial) => onto_TND.index_copy_(0, &partial.rows, &x.index_select(0, &partial.places)),
        };
    }
}
