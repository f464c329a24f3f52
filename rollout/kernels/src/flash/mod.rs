//! Attention over whole rows in bf16, and its derivative, in the tile registers of AMX: what a learner needs, where no
//! pages are.
//!
//! As in flash attention (Dao 2023), probabilities exist only for a strip of 32 rows at a time, and the way back makes
//! them again from the log-sum-exps. Heads are laid out once as the tiles want them ([`layout`]), some at a time
//! ([`round`]). A strip of queries gives its results ([`forward`]) or its gradients, and a strip of keys the gradients
//! of keys and values of all query heads that share them ([`backward`]). So no two tasks write to the same place, and
//! sums have one order on any number of threads.
//!
//! Probabilities and the gradients of scores are rounded to bf16 before they are multiplied. All sums are fp32.

mod backward;
mod forward;
mod layout;
mod round;
mod strip;

use std::{arch::is_x86_feature_detected, ops::Range};

use self::{
    backward::Backward,
    forward::Forward,
    layout::{Line, STRIP},
};
use super::{parallel::Shared, simd::Isa, thread_pool::ThreadPool};

/// Whether this processor has the instructions.
#[must_use]
pub fn is_available() -> bool {
    // Tests have the products in plain Rust too.
    (cfg!(test) || Isa::detect().has_tiles())
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512bf16")
}

/// Sizes of a call: texts of equal lengths, and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Texts.
    pub texts: usize,
    /// Queries of each text.
    pub queries: usize,
    /// Keys of each text.
    pub keys: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Entries of a head.
    pub width: usize,
}

/// Which keys a query sees, and the factor of the scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sight {
    /// The query at place `q` sees keys up to the place `q + shift`; absent = all keys.
    pub shift: Option<usize>,
    /// Most keys that a query sees.
    pub window: usize,
    /// Factor of the scores.
    pub scale: f32,
}

/// Numbers of heads of places of texts, somewhere in a larger array. The entries of a head lie side by side.
#[derive(Debug, Clone, Copy)]
pub struct Places<T> {
    /// The first number.
    pub first: *const T,
    /// Distances from one text, place and head to the next, in numbers.
    pub steps: [usize; 3],
}

// SAFETY: addresses alone; whoever makes a call vouches that the numbers are there.
unsafe impl<T: Sync> Sync for Places<T> {}

impl<T> Places<T> {
    fn at(&self, text: usize, place: usize, head: usize) -> *const T {
        self.first.wrapping_add(text * self.steps[0] + place * self.steps[1] + head * self.steps[2])
    }
}

/// Threads, and memory that calls reuse.
pub struct Workshop<'a> {
    /// The threads.
    pub threads: &'a ThreadPool,
    /// Layouts of heads.
    pub memory: &'a mut Memory,
}

/// Memory that calls reuse.
#[derive(Debug, Default)]
pub struct Memory(Vec<Line>);

impl Memory {
    /// Bytes that are held: those of the largest round so far.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * size_of::<Line>()
    }

    fn lines(&mut self, count: usize) -> Shared<Line> {
        if self.0.len() < count {
            self.0.resize(count, Line::default());
        }
        Shared::new(&mut self.0)
    }
}

/// Mixes values: writes results in bf16, `[texts, queries, heads, width]`, and the log-sum-exps of the scores, `[texts,
/// queries, heads]`.
///
/// # Panics
/// Where [`is_available`] does not hold, or an output has another size.
///
/// # Safety
/// Queries, keys and values, in bf16, are there for all places of `shape`, and nobody writes them meanwhile.
pub unsafe fn forward(
    shape: Shape,
    qkv: [Places<u16>; 3],
    sight: Sight,
    out: &mut [u16],
    lse: &mut [f32],
    workshop: &mut Workshop<'_>,
) {
    let rows = shape.check();
    assert_eq!((out.len(), lse.len()), (rows * shape.width, rows), "results, log-sum-exps");
    let (out, lse) = (Shared::new(out), Shared::new(lse));
    // SAFETY: as the caller says.
    unsafe { round::compute((shape, sight), Forward::CONTENT, workshop, |round| Forward { round, qkv, out, lse }) };
}

/// What is known of the way forward when the gradients of its inputs are sought.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Queries, keys and values, in bf16.
    pub qkv: [Places<u16>; 3],
    /// The results over all keys that the queries see, these among them, in bf16.
    pub out: Places<u16>,
    /// Log-sum-exps over all these keys.
    pub lse: Places<f32>,
    /// The gradient of the results, in bf16.
    pub d_out: Places<u16>,
}

/// Writes the gradients of queries, `[texts, queries, heads, width]`, keys and values, `[texts, keys, kv_heads, width]`
/// each.
///
/// # Panics
/// As [`fn@forward`].
///
/// # Safety
/// All that is known is there for all places of `shape`, and nobody writes it meanwhile.
pub unsafe fn backward(
    shape: Shape,
    known: Known,
    sight: Sight,
    gradients: [&mut [f32]; 3],
    workshop: &mut Workshop<'_>,
) {
    let (of_queries, of_keys) = (shape.check() * shape.width, shape.texts * shape.keys * shape.kv_heads * shape.width);
    assert_eq!(gradients.each_ref().map(|x| x.len()), [of_queries, of_keys, of_keys], "gradients");
    let gradients = gradients.map(Shared::new);
    let content = Backward::content(shape);
    // SAFETY: as the caller says.
    unsafe { round::compute((shape, sight), content, workshop, |round| Backward { round, known, gradients }) };
}

impl Shape {
    /// Looks for the instructions, and at the sizes. Returns the number of queries of all heads.
    fn check(self) -> usize {
        assert!(is_available(), "attention in tiles on a processor without them");
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "query heads share keys evenly");
        self.texts * self.queries * self.heads
    }

    /// Query heads that share keys and values.
    fn group(self) -> usize {
        self.heads / self.kv_heads
    }

    /// Lines of the layout of a head with this many places.
    fn lines(self, places: usize) -> usize {
        places.next_multiple_of(STRIP) * self.width.div_ceil(STRIP)
    }
}

impl Sight {
    /// Places of the keys that a query sees, of `keys`.
    fn of_query(self, query: usize, keys: usize) -> Range<usize> {
        let end = self.shift.map_or(keys, |shift| keys.min(query + shift + 1));
        let first = self.shift.map_or(0, |shift| (query + shift + 1).saturating_sub(self.window));
        first.min(end)..end
    }

    /// Places of the queries that see a key, of `queries`.
    fn of_key(self, key: usize, queries: usize) -> Range<usize> {
        let Some(shift) = self.shift else { return 0..queries };
        let end = key.saturating_add(self.window).saturating_sub(shift).min(queries);
        key.saturating_sub(shift).min(end)..end
    }
}
