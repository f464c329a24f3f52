//! Token sequences laid end to end.

use shared::Routing;
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
    /// The experts that the sampler chose for the tokens.
    pub routing: Option<PackedRouting>,
}

/// The experts that the sampler chose for the tokens of a batch.
#[derive(Debug)]
pub struct PackedRouting {
    /// Numbers of experts, `[T, W]`: layers with experts times experts of a token; -1 where the sampler chose none.
    choices_TW: Tensor,
    /// Whether the model computes with them. Else it only compares them with its own.
    is_replayed: bool,
}

/// A text, or the continuation of one, whose choices of experts are known.
pub(super) struct RoutedText<'a> {
    /// Where it begins in the batch.
    pub start: usize,
    /// Number of its first token in its row.
    pub first: usize,
    /// Its tokens.
    pub length: usize,
    /// The choices in its row, and whether they are replayed.
    pub routing: (&'a Routing, bool),
}

impl PackedRouting {
    /// Of texts in a batch of so many tokens. `None` where no text has choices.
    pub(super) fn new(texts: &[RoutedText<'_>], tokens: usize, device: Device) -> Option<Self> {
        let &RoutedText { routing: (first, is_replayed), .. } = texts.first()?;
        let width = first.width as usize;
        let mut choices = vec![-1_i64; tokens * width];
        for RoutedText { start, first, length, routing: (routing, _) } in texts {
            let known = (0..*length).map_while(|at| Some((start + at, routing.of(first + at)?)));
            for (at, chosen) in known.filter(|(_, chosen)| chosen.len() == width) {
                let places = &mut choices[at * width..(at + 1) * width];
                places.iter_mut().zip(chosen).for_each(|(place, &expert)| *place = i64::from(expert));
            }
        }
        let choices_TW = Tensor::from_slice(&choices).view([tokens as i64, width as i64]).to_device(device);
        Some(Self { choices_TW, is_replayed })
    }

    /// The choices of one of the layers with experts, `[T, K]`, and whether they are replayed.
    pub(crate) fn of_layer(&self, index: usize, per_token: i64) -> (Tensor, bool) {
        (self.choices_TW.narrow(1, index as i64 * per_token, per_token), self.is_replayed)
    }
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
            routing: None,
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
