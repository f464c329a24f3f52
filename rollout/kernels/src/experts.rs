//! Experts in the place of an MLP: a router chooses some for each token, and the tokens of an expert are multiplied
//! together.
//!
//! A token's results are added in the order of the experts' numbers, so its bits depend on its own row alone.

use super::{
    linear::{Input, Linear},
    parallel::Machine,
};

/// Products of a layer with experts.
pub struct Experts<'a> {
    /// From the input to a logit for each expert.
    pub router: Linear<'a>,
    /// Gate and up, and down, of each expert.
    pub experts: &'a dyn Fn(usize) -> [Linear<'a>; 2],
    /// Experts that compute a token.
    pub per_token: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalised: bool,
}

/// Memory that calls reuse.
#[derive(Debug, Default)]
pub struct ExpertMemory {
    logits: Vec<f32>,
    inner: Vec<f32>,
    results: Vec<f32>,
    /// The tokens of each expert, with the weight of the result.
    shares: Vec<(Vec<usize>, Vec<f32>)>,
    /// The experts of each token, by number.
    chosen: Vec<u16>,
    ranks: Vec<usize>,
}

impl ExpertMemory {
    /// The experts of each token of the last call, `[tokens, experts of a token]`, by number.
    #[must_use]
    pub fn chosen(&self) -> &[u16] {
        &self.chosen
    }
}

impl Experts<'_> {
    /// Computes `out = x + Σ weight · expert(x)` over the chosen experts, `[tokens, hidden]`.
    ///
    /// # Panics
    /// When sizes do not fit each other.
    pub fn run(&self, x: &[f32], out: &mut [f32], memory: &mut ExpertMemory, machine: Machine<'_>) {
        let Machine { isa, threads, scratch } = machine;
        let (hidden, count) = (self.router.shape.depth, self.router.shape.outputs);
        assert_eq!(x.len(), out.len(), "input and output");
        let tokens = x.len() / hidden;
        memory.logits.resize(tokens * count, 0.0);
        let logits = &mut memory.logits[..tokens * count];
        self.router.run(Input { x, rows: None, residual: None }, logits, Machine { isa, threads, scratch });
        memory.shares.resize_with(count, Default::default);
        memory.shares.iter_mut().for_each(|(tokens, weights)| {
            tokens.clear();
            weights.clear();
        });
        memory.chosen.clear();
        for (token, logits) in logits.chunks_exact(count).enumerate() {
            for (expert, weight) in route(logits, self.per_token, self.normalised, &mut memory.ranks) {
                let (tokens, weights) = &mut memory.shares[expert];
                tokens.push(token);
                weights.push(weight);
                memory.chosen.push(expert as u16);
            }
        }
        out.copy_from_slice(x);
        for (expert, (rows, weights)) in memory.shares.iter().enumerate() {
            if rows.is_empty() {
                continue;
            }
            let [gate_up, down] = (self.experts)(expert);
            memory.inner.resize(rows.len() * gate_up.shape.outputs, 0.0);
            memory.results.resize(rows.len() * hidden, 0.0);
            let input = Input { x, rows: Some(rows), residual: None };
            gate_up.run(input, &mut memory.inner, Machine { isa, threads, scratch });
            let input = Input { x: &memory.inner, rows: None, residual: None };
            down.run(input, &mut memory.results, Machine { isa, threads, scratch });
            for ((&row, &weight), result) in rows.iter().zip(weights).zip(memory.results.chunks_exact(hidden)) {
                let sum = &mut out[row * hidden..(row + 1) * hidden];
                sum.iter_mut().zip(result).for_each(|(sum, result)| *sum += weight * result);
            }
        }
    }
}

/// The experts of a token and the weights of their results, by number: those with the `per_token` largest logits, and
/// of equal ones those with the smaller numbers. Weights are the softmax over all logits, divided by their sum where
/// they are `normalised`. A logit that is no number gives weights that are none.
fn route<'r>(
    logits: &'r [f32],
    per_token: usize,
    normalised: bool,
    ranks: &'r mut Vec<usize>,
) -> impl Iterator<Item = (usize, f32)> + use<'r> {
    ranks.clear();
    ranks.extend(0..logits.len());
    if per_token < ranks.len() {
        ranks.select_nth_unstable_by(per_token, |&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        ranks.truncate(per_token);
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mass = move |logit: f32| (f64::from(logit) - f64::from(largest)).exp();
    let total: f64 = match normalised {
        _ if logits.iter().any(|logit| logit.is_nan()) => f64::NAN,
        true => ranks.iter().map(|&expert| mass(logits[expert])).sum(),
        false => logits.iter().map(|&logit| mass(logit)).sum(),
    };
    ranks.sort_unstable();
    ranks.iter().map(move |&expert| (expert, (mass(logits[expert]) / total) as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(logits: &[f32], per_token: usize, normalised: bool) -> Vec<(usize, f32)> {
        let mut ranks = Vec::new();
        route(logits, per_token, normalised, &mut ranks).collect()
    }

    #[test]
    fn the_largest_logits_choose_and_of_equal_ones_the_first() {
        let third = (1.0_f32).exp() / (1.0_f32.exp() + 2.0);
        let found = routed(&[0.0, 1.0, 0.0], 2, true);
        assert_eq!(found.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), [0, 1]);
        let two = 1.0 / (1.0 + 1.0_f32.exp());
        assert!((found[0].1 - two).abs() < 1e-6 && (found[1].1 - (1.0 - two)).abs() < 1e-6, "{found:?}");
        let found = routed(&[0.0, 1.0, 0.0], 1, false);
        assert!(found[0].0 == 1 && (found[0].1 - third).abs() < 1e-6, "{found:?}");
        assert_eq!(routed(&[0.5; 4], 2, true), [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn a_logit_that_is_no_number_is_seen_in_the_result() {
        for normalised in [true, false] {
            let found = routed(&[0.0, f32::NAN, 1.0], 2, normalised);
            assert!(found.iter().any(|(_, weight)| weight.is_nan()), "{found:?}");
        }
    }
}
