//! Log-probs and entropies of tokens by rows of logits, and the gradient of these logits in bf16: what a learner's head
//! needs between its products.
//!
//! A row is read while it lies in the processor's caches, and no probabilities are stored: both passes make them from
//! the logits.

use super::{
    element::to_bf16,
    parallel::{Claims, Machine, Shared},
    simd::{LANES, Simd, Task, exp, load_up_to},
};

/// The logarithm of a probability below which [`exp`] does not go. Logits that stand for a probability of 0 are far
/// below, and times that probability they would count.
const LEAST: f32 = -87.0;

/// Logits of some tokens, `[tokens, vocabulary]`, and the tokens themselves.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The logits. One that stands for a probability of 0 is finite, and far below all others.
    pub logits: &'a [f32],
    /// Places of the tokens in the vocabulary.
    pub ids: &'a [i64],
    /// Divides the logits.
    pub temperature: f32,
}

/// What is known of a token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenStatistics {
    /// Logarithm of the softmax's denominator.
    pub lse: f32,
    /// Log-prob of the token.
    pub logprob: f32,
    /// Entropy of its distribution, in nats.
    pub entropy: f32,
}

/// Derivatives of a loss with respect to [`TokenStatistics`], and what is known of the tokens.
#[derive(Debug, Clone, Copy)]
pub struct TokenDerivatives<'a> {
    /// What is known of the tokens.
    pub statistics: &'a [TokenStatistics],
    /// With respect to the log-probs.
    pub logprobs: &'a [f32],
    /// With respect to the entropies; absent = 0.
    pub entropies: Option<&'a [f32]>,
}

impl Rows<'_> {
    fn vocabulary(&self) -> usize {
        let (tokens, vocabulary) = (self.ids.len(), self.logits.len() / self.ids.len().max(1));
        assert_eq!(tokens * vocabulary, self.logits.len(), "whole rows of logits");
        let known = |&id: &i64| usize::try_from(id).is_ok_and(|id| id < vocabulary);
        assert!(self.ids.iter().all(known), "a token beyond the vocabulary of {vocabulary}");
        vocabulary
    }

    /// Log-probs and entropies. Each depends on its own row alone, bit for bit.
    ///
    /// # Panics
    /// When sizes do not fit each other.
    pub fn statistics(self, found: &mut [TokenStatistics], machine: Machine<'_>) {
        assert_eq!(found.len(), self.ids.len(), "a place for each token");
        let (isa, vocabulary) = (machine.isa, self.vocabulary());
        let (claims, found) = (Claims::new(self.ids.len()), Shared::new(found));
        machine.threads.run(&|| {
            claims.run_all(|token| {
                let row = &self.logits[token * vocabulary..][..vocabulary];
                let task = Statistics { row, id: self.ids[token] as usize, inverse: self.temperature.recip() };
                // SAFETY: each token is claimed once.
                unsafe { *found.at(token) = isa.run(task) };
            });
        });
    }

    /// The gradient of the logits in bf16, `[tokens, vocabulary]`.
    ///
    /// With p the probabilities and H the entropy, `∂logprob/∂z_j = (1[j = token] − p_j) / T` and
    /// `∂H/∂z_j = −p_j (log p_j + H) / T`.
    ///
    /// # Panics
    /// When sizes do not fit each other.
    pub fn gradient(self, of: TokenDerivatives<'_>, gradient: &mut [u16], machine: Machine<'_>) {
        let (isa, vocabulary, tokens) = (machine.isa, self.vocabulary(), self.ids.len());
        assert_eq!(gradient.len(), self.logits.len(), "a place for each logit");
        assert_eq!([of.statistics.len(), of.logprobs.len()], [tokens; 2], "statistics and derivatives of each token");
        let entropies = |token: usize| of.entropies.map_or(0.0, |all| all[token]);
        let (claims, gradient) = (Claims::new(tokens), Shared::new(gradient));
        machine.threads.run(&|| {
            claims.run_all(|token| {
                let row = &self.logits[token * vocabulary..][..vocabulary];
                isa.run(Gradient {
                    row,
                    id: self.ids[token] as usize,
                    inverse: self.temperature.recip(),
                    statistics: of.statistics[token],
                    of_logprob: of.logprobs[token],
                    of_entropy: entropies(token),
                    out: gradient.at(token * vocabulary),
                });
            });
        });
    }
}

struct Statistics<'a> {
    row: &'a [f32],
    id: usize,
    inverse: f32,
}

impl Task for Statistics<'_> {
    type Output = TokenStatistics;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> TokenStatistics {
        let (blocks, rest) = self.row.as_chunks::<LANES>();
        let mut tail = [f32::NEG_INFINITY; LANES];
        tail[..rest.len()].copy_from_slice(rest);
        // SAFETY: a chunk is a block; the caller vouches for the instruction set.
        unsafe {
            let mut largest = S::load(tail.as_ptr());
            for block in blocks {
                largest = S::max(largest, S::load(block.as_ptr()));
            }
            let largest = S::largest(largest);
            // The largest is subtracted before anything is rounded: of it exactly 0 is left, so no probability exceeds
            // 1, nor does an entropy fall below 0.
            let (inverse, shift) = (S::splat(self.inverse), S::splat(-largest));
            let scaled = |z: S::V| S::max(S::splat(LEAST), S::mul(S::add(z, shift), inverse));
            let (mut sums, mut products) = (S::splat(0.0), S::splat(0.0));
            for block in blocks {
                let x = scaled(S::load(block.as_ptr()));
                let e = exp::<S>(x);
                sums = S::add(sums, e);
                products = S::fma(e, x, products);
            }
            let (mut sum, mut product) = (S::sum(sums), S::sum(products));
            if !rest.is_empty() {
                let mut lanes = [0.0_f32; LANES];
                let x = scaled(load_up_to::<S>(rest.as_ptr(), rest.len()));
                S::store(lanes.as_mut_ptr(), x);
                let shifted = lanes;
                S::store(lanes.as_mut_ptr(), exp::<S>(x));
                for (e, x) in lanes.into_iter().zip(shifted).take(rest.len()) {
                    sum += e;
                    product += e * x;
                }
            }
            let log = sum.ln();
            TokenStatistics {
                lse: largest * self.inverse + log,
                logprob: (self.row[self.id] - largest) * self.inverse - log,
                entropy: log - product / sum,
            }
        }
    }
}

struct Gradient<'a> {
    row: &'a [f32],
    id: usize,
    inverse: f32,
    statistics: TokenStatistics,
    of_logprob: f32,
    of_entropy: f32,
    out: *mut u16,
}

impl Task for Gradient<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let TokenStatistics { lse, entropy, .. } = self.statistics;
        // −p_j / T · (of_logprob + of_entropy · (log p_j + H)), and of_logprob / T more at the token.
        let at_token = self.of_logprob * self.inverse;
        let constant = -self.inverse * (self.of_logprob + self.of_entropy * entropy);
        // SAFETY: so many numbers are there, and they belong to this task alone; the caller vouches for the instruction
        // set.
        unsafe {
            let (inverse, shift) = (S::splat(self.inverse), S::splat(-lse));
            let (constant, slope) = (S::splat(constant), S::splat(-self.inverse * self.of_entropy));
            for first in (0..self.row.len()).step_by(LANES) {
                let count = LANES.min(self.row.len() - first);
                let log = S::fma(load_up_to::<S>(self.row.as_ptr().add(first), count), inverse, shift);
                let log = S::max(S::splat(LEAST), log);
                let mut lanes = [0.0_f32; LANES];
                S::store(lanes.as_mut_ptr(), S::mul(exp::<S>(log), S::fma(slope, log, constant)));
                if (first..first + count).contains(&self.id) {
                    lanes[self.id - first] += at_token;
                }
                let rounded = lanes.map(to_bf16);
                self.out.add(first).copy_from_nonoverlapping(rounded.as_ptr(), count);
            }
        }
    }
}
