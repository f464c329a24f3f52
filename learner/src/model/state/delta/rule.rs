//! The gated delta rule over texts, in chunks, and its derivative.
//!
//! For each value head and token, with a state `S`, `[key width, value width]`, that is 0 before a text:
//! `S ← e^g S; r = v − Sᵀk; S ← S + β k rᵀ; o = Sᵀq`. Within a chunk, with `b` the running sums of `g` and
//! `D_ij = e^{b_i − b_j}` for `j ≤ i`, the rows `U` of `β r` solve
//! `(I + lower(β K Kᵀ ⊙ D)) U = β (V − e^b K S)`, and then `O = e^b Q S + (Q Kᵀ ⊙ D) U` and
//! `S ← e^{b_C} S + (e^{b_C − b} K)ᵀ U`. The derivative is written out: autograd would keep every chunk's matrices.

use tch::{Kind, Tensor};

use super::super::{
    passes::{Inner, Rule, of_running_sums, rows},
    texts::Chunk,
};

/// Inputs of the rule, or their gradients, in float32 at least.
#[derive(Debug)]
pub(super) struct Rules {
    /// Queries and keys, `[T, key heads, key width]`.
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    /// Values, `[T, value heads, value width]`.
    pub(super) v: Tensor,
    /// Logarithms of the decays, `[T, value heads]`.
    pub(super) g: Tensor,
    /// Step sizes, `[T, value heads]`.
    pub(super) beta: Tensor,
}

impl Rule for Rules {
    type Inner = Parts;

    fn values(&self) -> &Tensor {
        &self.v
    }

    fn gradients(&self) -> Self {
        Self {
            q: self.q.empty_like(),
            k: self.k.empty_like(),
            v: self.v.empty_like(),
            g: self.g.empty_like(),
            beta: self.beta.empty_like(),
        }
    }

    fn inner(&self, chunk: &Chunk) -> Parts {
        Parts::new(self, chunk)
    }
}

impl Rules {
    /// Value heads.
    fn heads(&self) -> i64 {
        self.v.size()[1]
    }
}

/// The parts of a chunk that do not depend on its first state, each `[texts, value heads, length, ..]`.
pub(super) struct Parts {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// `[.., length, 1]`.
    beta: Tensor,
    /// Running sums of the decays' logarithms, `[.., length, 1]`.
    sums: Tensor,
    /// `e^{b_i − b_j}`, 0 for `j > i`, `[.., length, length]`.
    decays: Tensor,
    /// `K Kᵀ` and `Q Kᵀ`.
    keys_keys: Tensor,
    queries_keys: Tensor,
    /// `β K Kᵀ ⊙ D`, of which the part below the diagonal counts.
    lower: Tensor,
    /// `Q Kᵀ ⊙ D`.
    mixed: Tensor,
    /// Solutions for `β V` and for `β e^b K`.
    of_values: Tensor,
    of_keys: Tensor,
    /// Value heads of a key head.
    shared: i64,
}

impl Parts {
    fn new(rules: &Rules, chunk: &Chunk) -> Self {
        let shared = rules.heads() / rules.q.size()[1];
        let spread = |x: Tensor| if shared == 1 { x } else { x.repeat_interleave_self_int(shared, 1, None) };
        let (q, k, v) = (spread(chunk.take(&rules.q)), spread(chunk.take(&rules.k)), chunk.take(&rules.v));
        // Without a step and without a decay, a missing token leaves the state as it is.
        let [g, beta] = [&rules.g, &rules.beta].map(|x| chunk.take_present(&x.unsqueeze(-1)));
        let sums = g.cumsum(2, None);
        let length = chunk.length;
        let later = Tensor::ones([length, length], (Kind::Bool, sums.device())).triu(1);
        // Hidden before the exponential, which may overflow there.
        let decays = (&sums - sums.mt()).masked_fill(&later, f64::NEG_INFINITY).exp();
        let (keys_keys, queries_keys) = (k.matmul(&k.mt()), q.matmul(&k.mt()));
        let lower = &keys_keys * &decays * &beta;
        let mixed = &queries_keys * &decays;
        let right = Tensor::cat(&[&v * &beta, &k * (&beta * sums.exp())], -1);
        let solved = lower.linalg_solve_triangular(&right, false, true, true);
        let (value_width, key_width) = (v.size()[3], k.size()[3]);
        let (of_values, of_keys) = (solved.narrow(3, 0, value_width), solved.narrow(3, value_width, key_width));
        Self { q, k, v, beta, sums, decays, keys_keys, queries_keys, lower, mixed, of_values, of_keys, shared }
    }

    /// `U`, given the first states.
    fn u(&self, before: Option<&Tensor>) -> Tensor {
        match before {
            Some(before) => &self.of_values - self.of_keys.matmul(before),
            None => self.of_values.shallow_clone(),
        }
    }

    /// `e^b x`: decayed from the chunk's start.
    fn since_start(&self, x: &Tensor) -> Tensor {
        x * self.sums.exp()
    }

    /// `e^{b_C − b}`, `[.., length, 1]`.
    fn to_end(&self) -> Tensor {
        (self.last() - &self.sums).exp()
    }

    /// `e^{b_C − b} K`: decayed up to the chunk's end.
    fn k_to_end(&self) -> Tensor {
        &self.k * self.to_end()
    }

    /// `b_C`, `[.., 1, 1]`.
    fn last(&self) -> Tensor {
        self.sums.narrow(2, self.sums.size()[2] - 1, 1)
    }

    /// The decay of a state over the chunk, `[.., 1, 1]`.
    fn whole_decay(&self) -> Tensor {
        self.last().exp()
    }

    /// The gradient of a key head's part, summed over its value heads.
    fn gathered(&self, x: Tensor) -> Tensor {
        if self.shared == 1 {
            return x;
        }
        let [texts, heads, length, width] = shape(&x);
        let grouped = x.view([texts, heads / self.shared, self.shared, length, width]);
        grouped.sum_dim_intlist([2i64].as_slice(), false, None)
    }
}

impl Inner for Parts {
    type Rule = Rules;

    fn forward(&self, before: Option<&Tensor>) -> (Tensor, Tensor) {
        let u = self.u(before);
        let mut out = self.mixed.matmul(&u);
        let mut after = self.k_to_end().mt().matmul(&u);
        if let Some(before) = before {
            out += self.since_start(&self.q).matmul(before);
            after += before * self.whole_decay();
        }
        (out, after)
    }

    fn backward(
        &self,
        chunk: &Chunk,
        before: Option<&Tensor>,
        d_after: &Tensor,
        d_out_TND: &Tensor,
        found: &mut Rules,
    ) -> Tensor {
        let d_out = chunk.take_present(d_out_TND);
        let u = self.u(before);
        let (since_start, to_end) = (self.sums.exp(), self.to_end());
        let (q_start, k_start, k_end) = (&self.q * &since_start, &self.k * &since_start, &self.k * &to_end);
        let whole_decay = self.whole_decay();

        let d_u = self.mixed.mt().matmul(&d_out) + k_end.matmul(d_after);
        let d_before = q_start.mt().matmul(&d_out) + d_after * &whole_decay - self.of_keys.mt().matmul(&d_u);
        // The right side of the system, whose residual `V − e^b K S` is `e`.
        let d_right = self.lower.mt().linalg_solve_triangular(&d_u, true, true, true);
        let (e, dq_start, dk_start) = match before {
            None => (self.v.shallow_clone(), None, None),
            Some(before) => {
                let across = before.mt();
                let e = &self.v - k_start.matmul(before);
                (e, Some(d_out.matmul(&across)), Some((&d_right * &self.beta).matmul(&across).neg()))
            }
        };
        let d_lower = d_right.matmul(&u.mt()).neg().tril(-1);
        let d_mixed = d_out.matmul(&u.mt());
        let dk_end = u.matmul(&d_after.mt());

        let d_beta = rows(&(&d_right * e)) + rows(&(&d_lower * &self.keys_keys * &self.decays));
        let d_keys_keys = &d_lower * &self.decays * &self.beta;
        let d_queries_keys = d_mixed * &self.decays;
        // D ⊙ dD of both products; what lies above the diagonal is 0, since D is 0 there.
        let d_exponents = &d_keys_keys * &self.keys_keys + &d_queries_keys * &self.queries_keys;
        let mut d_sums = rows(&d_exponents) - rows(&d_exponents.mt());
        let d_to_end = rows(&(&dk_end * &k_end));
        d_sums -= &d_to_end;
        let mut d_last = d_to_end.sum_dim_intlist([2i64].as_slice(), true, None);

        let mut dq = d_queries_keys.matmul(&self.k);
        let mut dk =
            d_queries_keys.mt().matmul(&self.q) + (&d_keys_keys + d_keys_keys.mt()).matmul(&self.k) + dk_end * to_end;
        if let (Some(before), Some(dq_start), Some(dk_start)) = (before, dq_start, dk_start) {
            d_sums += rows(&(&dq_start * &q_start)) + rows(&(&dk_start * &k_start));
            d_last += (before * d_after).sum_dim_intlist([2i64, 3].as_slice(), true, None) * whole_decay;
            dq += dq_start * &since_start;
            dk += dk_start * &since_start;
        }
        let dg = of_running_sums(&d_sums, &d_last);

        chunk.put(&self.gathered(dq), &mut found.q);
        chunk.put(&self.gathered(dk), &mut found.k);
        chunk.put(&(d_right * &self.beta), &mut found.v);
        chunk.put(&dg, &mut found.g.unsqueeze(-1));
        chunk.put(&d_beta, &mut found.beta.unsqueeze(-1));
        d_before
    }

    fn zero_states(&self) -> Tensor {
        let ([texts, heads, _, key_width], value_width) = (shape(&self.k), self.v.size()[3]);
        Tensor::zeros([texts, heads, key_width, value_width], (self.v.kind(), self.v.device()))
    }
}

fn shape(x: &Tensor) -> [i64; 4] {
    x.size().try_into().expect("texts, heads, places and width")
}
