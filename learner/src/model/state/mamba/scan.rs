//! The state space of Mamba-2 over texts, in chunks, and its derivative.
//!
//! For each head and token, with a state `S`, `[state width, head width]`, that is 0 before a text:
//! `S ← e^g S + B vᵀ; o = Sᵀ C`. Within a chunk, with `b` the running sums of `g` and `D_ij = e^{b_i − b_j}` for
//! `j ≤ i`: `O = e^b C S + (C Bᵀ ⊙ D) V` and `S ← e^{b_C} S + Bᵀ (e^{b_C − b} V)`. The heads of a group share `B` and
//! `C`, so their states stand side by side, and one product serves all of them. The derivative is written out: autograd
//! would keep every chunk's matrices.

use tch::{Kind, Tensor};

use super::super::{
    passes::{Inner, Rule, of_running_sums, rows},
    texts::Chunk,
};

/// Inputs of the state space, or their gradients, in float32 at least.
#[derive(Debug)]
pub(super) struct Inputs {
    /// `C` and `B`, `[T, groups, state width]`.
    pub(super) c: Tensor,
    pub(super) b: Tensor,
    /// What is written, `Δ x`, `[T, heads, head width]`.
    pub(super) v: Tensor,
    /// Logarithms of the decays, `[T, heads]`.
    pub(super) g: Tensor,
}

impl Rule for Inputs {
    type Inner = Parts;

    fn values(&self) -> &Tensor {
        &self.v
    }

    fn gradients(&self) -> Self {
        let empty = |x: &Tensor| Tensor::empty(x.size(), (x.kind(), x.device()));
        Self { c: empty(&self.c), b: empty(&self.b), v: empty(&self.v), g: empty(&self.g) }
    }

    fn inner(&self, chunk: &Chunk) -> Parts {
        let [groups, shared, width] = self.shared();
        let v = chunk.take_present(&self.v.reshape([-1, groups, shared * width]));
        let v = v.reshape([chunk.texts, groups, chunk.length, shared, width]);
        // Without an input and without a decay, a missing token leaves the state as it is.
        let g = chunk.take_present(&self.g.view([-1, groups, shared])).unsqueeze(-1);
        let (b, c, sums) = (chunk.take(&self.b), chunk.take(&self.c), g.cumsum(2, None));
        let later = Tensor::ones([chunk.length; 2], (Kind::Bool, sums.device())).triu(1);
        let of_heads = by_head(&sums);
        // Hidden before the exponential, which may overflow there.
        let decays = (&of_heads - of_heads.mt()).masked_fill(&later, f64::NEG_INFINITY).exp();
        let mixed = c.matmul(&b.mt()).unsqueeze(2) * &decays;
        Parts { b, c, v, sums, decays, mixed }
    }
}

impl Inputs {
    /// Groups, heads of each, and the width of a head.
    fn shared(&self) -> [i64; 3] {
        let groups = self.b.size()[1];
        let [_, heads, width] = self.v.size()[..] else { unreachable!("tokens, heads and width") };
        [groups, heads / groups, width]
    }
}

/// The parts of a chunk that do not depend on its first state.
pub(super) struct Parts {
    /// `[texts, groups, length, state width]`.
    b: Tensor,
    c: Tensor,
    /// `[texts, groups, length, heads of a group, head width]`.
    v: Tensor,
    /// Running sums of the decays' logarithms, `[texts, groups, length, heads of a group, 1]`.
    sums: Tensor,
    /// `e^{b_i − b_j}`, 0 for `j > i`, `[texts, groups, heads of a group, length, length]`.
    decays: Tensor,
    /// `C Bᵀ ⊙ D`, likewise.
    mixed: Tensor,
}

impl Parts {
    /// `b_C`, `[.., 1, heads of a group, 1]`.
    fn last(&self) -> Tensor {
        self.sums.narrow(2, self.sums.size()[2] - 1, 1)
    }

    /// `e^{b_C − b}`: the decay up to the chunk's end.
    fn to_end(&self) -> Tensor {
        (self.last() - &self.sums).exp()
    }

    /// What the rows of `C` or `B`, `[.., length, state width]`, find in states: `[.., length, heads of a group,
    /// head width]`.
    fn read(&self, rows: &Tensor, states: &Tensor) -> Tensor {
        rows.matmul(states).view_as(&self.v)
    }

    /// States, `[.., state width, heads of a group · head width]`, with the heads apart.
    fn apart(&self, states: &Tensor) -> Tensor {
        let [texts, groups, width, _] = states.size()[..] else { unreachable!("texts, groups and a matrix") };
        states.reshape([texts, groups, width, self.v.size()[3], self.v.size()[4]])
    }

    /// States decayed over the whole chunk.
    fn decayed(&self, states: &Tensor) -> Tensor {
        side_by_side(&(self.apart(states) * self.last().exp()))
    }
}

impl Inner for Parts {
    type Rule = Inputs;

    fn forward(&self, before: Option<&Tensor>) -> (Tensor, Tensor) {
        let mut out = self.mixed.matmul(&by_head(&self.v));
        let mut after = self.b.mt().matmul(&side_by_side(&(&self.v * self.to_end())));
        if let Some(before) = before {
            out += by_head(&(self.read(&self.c, before) * self.sums.exp()));
            after += self.decayed(before);
        }
        (out.flatten(1, 2), after)
    }

    fn zero_states(&self) -> Tensor {
        let ([texts, groups, _, width], of_heads) = (sizes(&self.b), self.v.size()[3] * self.v.size()[4]);
        Tensor::zeros([texts, groups, width, of_heads], (self.v.kind(), self.v.device()))
    }

    fn backward(
        &self,
        chunk: &Chunk,
        before: Option<&Tensor>,
        d_after: &Tensor,
        d_out_TND: &Tensor,
        found: &mut Inputs,
    ) -> Tensor {
        let [groups, shared, width] = found.shared();
        let d_out = chunk.take_present(&d_out_TND.reshape([-1, groups, shared * width])).reshape(self.v.size());
        let of_heads = by_head(&d_out);
        let (to_end, started) = (self.to_end(), &d_out * self.sums.exp());
        let (ended, from_after) = (&self.v * &to_end, self.read(&self.b, d_after));

        let d_mixed = of_heads.matmul(&by_head(&self.v).mt());
        let dv = by_head(&self.mixed.mt().matmul(&of_heads)) + &from_after * to_end;
        let d_products = (&d_mixed * &self.decays).sum_dim_intlist([2i64].as_slice(), false, None);
        let mut dc = d_products.matmul(&self.b);
        let db = d_products.mt().matmul(&self.c) + side_by_side(&ended).matmul(&d_after.mt());

        // D ⊙ dD; what lies above the diagonal is 0, since D is 0 there.
        let d_exponents = d_mixed * &self.mixed;
        let d_to_end = rows(&(from_after * ended));
        let mut d_sums = by_head(&(rows(&d_exponents) - rows(&d_exponents.mt()))) - &d_to_end;
        let mut d_last = d_to_end.sum_dim_intlist([2i64].as_slice(), true, None);
        let d_before = self.c.mt().matmul(&side_by_side(&started)) + self.decayed(d_after);
        if let Some(before) = before {
            d_sums += rows(&(self.read(&self.c, before) * &started));
            let kept = self.apart(&(before * d_after)).sum_dim_intlist([2i64, 4].as_slice(), true, None);
            d_last += kept * self.last().exp();
            dc += side_by_side(&started).matmul(&before.mt());
        }
        let dg = of_running_sums(&d_sums, &d_last);

        chunk.put(&dc, &mut found.c);
        chunk.put(&db, &mut found.b);
        chunk.put(&side_by_side(&dv), &mut found.v.view([-1, groups, shared * width]));
        chunk.put(&dg.squeeze_dim(-1), &mut found.g.view([-1, groups, shared]));
        d_before
    }
}

/// `[texts, groups, length, heads, ..]` with the heads before the length, and back.
fn by_head(x: &Tensor) -> Tensor {
    x.transpose(2, 3)
}

/// The heads of a group, the last dimension but one, in one row.
fn side_by_side(x: &Tensor) -> Tensor {
    x.flatten(3, 4)
}

fn sizes(x: &Tensor) -> [i64; 4] {
    x.size().try_into().expect("texts, groups, length and width")
}
