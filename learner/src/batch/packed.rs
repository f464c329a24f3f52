//! Token sequences laid end to end.

use tch::{Device, Tensor};

/// A text and its continuations, one behind the other. A token attends to those before it in its own text, and a branch
/// to the whole stem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Where the stem begins.
    pub start: i64,
    /// Tokens of the stem.
    pub stem: i64,
    /// Tokens of each branch; none is empty.
    pub branches: Vec<i64>,
}

/// Inputs of a transformer: texts without padding, some of which share their beginnings.
#[derive(Debug)]
pub struct Packed {
    /// Token ids, `[T]`.
    pub ids_T: Tensor,
    /// Number of tokens before each in its own text, `[T]`.
    pub places: Vec<i64>,
    /// Tokens of the whole row that each token is part of, those included that are not fed, `[T]`.
    pub lengths: Vec<usize>,
    /// Who attends to whom, in the order of the tokens.
    pub trees: Vec<Tree>,
}

/// Lays texts end to end.
#[derive(Debug, Default)]
pub struct Packer {
    ids: Vec<i64>,
    places: Vec<i64>,
    lengths: Vec<usize>,
    trees: Vec<Tree>,
    row: Option<usize>,
}

impl Packer {
    /// States the tokens of the whole rows that the next texts are parts of. A text of which nothing is stated is a
    /// whole row.
    pub fn part_of(&mut self, length: usize) {
        self.row = Some(length);
    }

    /// Appends a new text, which must not be empty. Returns where it begins.
    pub fn stem<'a>(&mut self, ids: impl IntoIterator<Item = &'a u32>) -> i64 {
        let start = self.append(ids, 0);
        self.trees.push(Tree { start, stem: self.ids.len() as i64 - start, branches: Vec::new() });
        start
    }

    /// Appends a continuation of the last stem, which may be empty. Returns where it begins.
    ///
    /// # Panics
    /// Before the first stem.
    pub fn branch<'a>(&mut self, ids: impl IntoIterator<Item = &'a u32>) -> i64 {
        let stem = self.trees.last().expect("a branch has a stem").stem;
        let start = self.append(ids, stem);
        let length = self.ids.len() as i64 - start;
        self.trees.last_mut().expect("seen above").branches.extend((length > 0).then_some(length));
        start
    }

    /// All texts, as inputs on `device`.
    #[must_use]
    pub fn finish(self, device: Device) -> Packed {
        Packed {
            ids_T: Tensor::from_slice(&self.ids).to_device(device),
            places: self.places,
            lengths: self.lengths,
            trees: self.trees,
        }
    }

    fn append<'a>(&mut self, ids: impl IntoIterator<Item = &'a u32>, first_place: i64) -> i64 {
        let start = self.ids.len() as i64;
        self.ids.extend(ids.into_iter().map(|&id| i64::from(id)));
        let own = self.ids.len() as i64 - start;
        self.places.extend((0..own).map(|i| first_place + i));
        self.lengths.resize(self.ids.len(), self.row.unwrap_or((first_place + own) as usize));
        start
    }
}
