//! A rule over texts, chunk by chunk: which state a chunk begins with, and where gradients of states meet.

use tch::Tensor;

use super::texts::{Chunk, Run};
use crate::batch::Tree;

/// Inputs of a rule by which a state goes from token to token, or their gradients, in float32 at least.
pub(super) trait Rule: Sized {
    /// See [`Inner`].
    type Inner: Inner<Rule = Self>;

    /// The input that has the shape of the output, `[T, heads, width]`.
    fn values(&self) -> &Tensor;

    /// Memory for the gradients, which [`Inner::backward`] fills.
    fn gradients(&self) -> Self;

    /// One chunk of some texts.
    fn inner(&self, chunk: &Chunk) -> Self::Inner;
}

/// The parts of a chunk that do not depend on its first states. States are `[texts, ..]`.
pub(super) trait Inner {
    /// The rule.
    type Rule;

    /// The output, `[texts, heads, length, width]`, and the last states, given the first ones, none where they are 0.
    fn forward(&self, before: Option<&Tensor>) -> (Tensor, Tensor);

    /// Writes the inputs' gradients and returns that of the first states, given that of the last ones and that of the
    /// output of all tokens.
    fn backward(
        &self,
        chunk: &Chunk,
        before: Option<&Tensor>,
        d_after: &Tensor,
        d_out_TND: &Tensor,
        found: &mut Self::Rule,
    ) -> Tensor;

    /// States of 0.
    fn zero_states(&self) -> Tensor;
}

/// The rule's output, with what its derivative needs.
#[derive(Debug)]
pub(super) struct Ruled {
    /// `[T, heads, width]`.
    pub(super) out_TND: Tensor,
    /// The states before each chunk of each run; none where they are 0.
    states: Vec<Vec<Option<Tensor>>>,
}

/// The rule over all texts.
pub(super) fn forward<R: Rule>(rule: &R, trees: &[Tree]) -> Ruled {
    let values = rule.values();
    let mut out_TND = Tensor::empty(values.size(), (values.kind(), values.device()));
    // States at the ends of stems that have branches.
    let mut ends: Vec<Option<Tensor>> = trees.iter().map(|_| None).collect();
    let mut states = Vec::new();
    for run in runs(rule, trees) {
        let mut state = run.of_branches.then(|| {
            let of = |tree: usize| ends[tree].as_ref().expect("a stem comes before its branches").shallow_clone();
            Tensor::stack(&run.trees().map(of).collect::<Vec<_>>(), 0)
        });
        let mut kept = Vec::new();
        for number in 0..run.chunks() {
            let before = state.take().map(|state| state.narrow(0, 0, run.active(number)));
            let chunk = chunk_of(&run, number, rule);
            let (out, after) = rule.inner(&chunk).forward(before.as_ref());
            chunk.put(&out, &mut out_TND);
            for (index, tree) in run.ending(number).filter(|_| !run.of_branches) {
                // A copy: a view would hold the states of all texts of the run.
                ends[tree] = (!trees[tree].branches.is_empty()).then(|| after.get(index).copy());
            }
            kept.push(before);
            state = Some(after);
        }
        states.push(kept);
    }
    Ruled { out_TND, states }
}

/// Gradients of the inputs, given that of the output.
pub(super) fn backward<R: Rule>(rule: &R, ruled: &Ruled, d_out_TND: &Tensor, trees: &[Tree]) -> R {
    let mut found = rule.gradients();
    // Of the states at the ends of stems, summed over the branches.
    let mut d_ends: Vec<Option<Tensor>> = trees.iter().map(|_| None).collect();
    for (run, states) in runs(rule, trees).iter().zip(&ruled.states).rev() {
        let mut d_after: Option<Tensor> = None;
        for (number, before) in (0..run.chunks()).rev().zip(states.iter().rev()) {
            let chunk = chunk_of(run, number, rule);
            let inner = rule.inner(&chunk);
            let d_state = inner.zero_states();
            if let Some(later) = &d_after {
                d_state.narrow(0, 0, later.size()[0]).copy_(later);
            }
            for (index, tree) in run.ending(number).filter(|_| !run.of_branches) {
                if let Some(d_end) = d_ends[tree].take() {
                    d_state.get(index).copy_(&d_end);
                }
            }
            d_after = Some(inner.backward(&chunk, before.as_ref(), &d_state, d_out_TND, &mut found));
        }
        let d_first = d_after.filter(|_| run.of_branches);
        for (index, tree) in run.trees().enumerate().filter(|_| d_first.is_some()) {
            let d_state = d_first.as_ref().expect("filtered").get(index as i64);
            match &mut d_ends[tree] {
                Some(sum) => *sum += d_state,
                none => *none = Some(d_state.copy()),
            }
        }
    }
    found
}

fn runs(rule: &impl Rule, trees: &[Tree]) -> Vec<Run> {
    Run::of(trees, rule.values().size()[1])
}

fn chunk_of(run: &Run, number: i64, rule: &impl Rule) -> Chunk {
    let values = rule.values();
    run.chunk(number, (values.kind(), values.device()))
}

/// The gradient of decays' logarithms, given that of their running sums over a chunk, `[.., length, ..]` with the
/// length third, and what the last of these gets besides.
pub(super) fn of_running_sums(d_sums: &Tensor, d_last: &Tensor) -> Tensor {
    let mut end = d_sums.narrow(2, d_sums.size()[2] - 1, 1);
    end += d_last;
    d_sums.flip([2i64].as_slice()).cumsum(2, None).flip([2i64].as_slice())
}

/// Sums over the last dimension, which stays.
pub(super) fn rows(x: &Tensor) -> Tensor {
    x.sum_dim_intlist([-1i64].as_slice(), true, None)
}
