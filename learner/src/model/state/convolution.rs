//! A short causal convolution of each channel.

use tch::Tensor;

use super::super::{
    kinds::wide,
    parameters::{Gradients, Leaf},
    weights::Weights,
};
use crate::batch::Tree;

/// `y_t = Σ_lag w_lag u_{t − lag}` for every channel, over the token's own text, with a bias in some models.
#[derive(Debug)]
pub(super) struct Convolution {
    /// `[C, 1, kernel]`; the last entry is that of the token itself.
    weight: Leaf,
    bias: Option<Leaf>,
    kernel: i64,
}

impl Convolution {
    /// The leaves `{name}.weight` and, where the model has one, `.bias`.
    pub(super) fn new(weights: &Weights, name: &str) -> Self {
        let weight = weights.leaf(&format!("{name}.weight"));
        Self { kernel: weight.values.size()[2], weight, bias: weights.find(&format!("{name}.bias")) }
    }

    /// `[T, C]` to `[T, C]`, in float32 at least.
    pub(super) fn forward(&self, u_TC: &Tensor, trees: &[Tree]) -> Tensor {
        let (u_TC, taps) = (wide(u_TC), self.taps());
        let mut y_TC = &u_TC * &taps[0];
        if let Some(bias) = &self.bias {
            y_TC += wide(&bias.values);
        }
        for Reach { lag, from, to, count } in self.reaches(trees) {
            let _ = y_TC.narrow(0, to, count).addcmul_(&u_TC.narrow(0, from, count), &taps[lag as usize]);
        }
        y_TC
    }

    /// Adds the parameters' gradients, given the input and the gradient of the output; returns that of the input. All
    /// are in float32 at least.
    pub(super) fn backward(&self, u_TC: &Tensor, dy_TC: &Tensor, trees: &[Tree], gradients: &mut Gradients) -> Tensor {
        let (u_TC, taps) = (wide(u_TC), self.taps());
        let du_TC = dy_TC * &taps[0];
        let rows = |x: &Tensor| x.sum_dim_intlist([0i64].as_slice(), false, None);
        let mut d_taps = self.weight.is_trained().then(|| vec![rows(&(dy_TC * &u_TC))]);
        let reaches = self.reaches(trees);
        for Reach { lag, from, to, count } in reaches {
            let (dy, lag) = (dy_TC.narrow(0, to, count), lag as usize);
            let _ = du_TC.narrow(0, from, count).addcmul_(&dy, &taps[lag]);
            if let Some(d_taps) = &mut d_taps {
                let found = rows(&(dy * u_TC.narrow(0, from, count)));
                match d_taps.get_mut(lag) {
                    Some(sum) => *sum += found,
                    None => d_taps.push(found),
                }
            }
        }
        if let (Some(gradient), Some(d_taps)) = (gradients.of(&self.weight), d_taps) {
            for (lag, found) in (1..).zip(d_taps) {
                let mut place = gradient.select(2, self.kernel - lag).select(1, 0);
                place += found;
            }
        }
        if let Some(bias) = &self.bias {
            gradients.add_rows(bias, dy_TC);
        }
        du_TC
    }

    /// The factors of each lag, `[C]`.
    fn taps(&self) -> Vec<Tensor> {
        let weight = wide(&self.weight.values);
        (1..=self.kernel).map(|back| weight.select(2, self.kernel - back).select(1, 0).contiguous()).collect()
    }

    /// All pairs of a token and an earlier token of its text within the kernel, by lag.
    fn reaches(&self, trees: &[Tree]) -> Vec<Reach> {
        let mut all = Vec::new();
        let mut add = |lag, from, to, count| {
            if count > 0 {
                all.push(Reach { lag, from, to, count });
            }
        };
        for lag in 1..self.kernel {
            for tree in trees {
                add(lag, tree.start, tree.start + lag, tree.stem - lag);
                let end = tree.start + tree.stem;
                let mut start = end;
                for &length in &tree.branches {
                    add(lag, start, start + lag, length - lag);
                    // The first tokens of a branch see the end of the stem, if the stem reaches back so far.
                    let first = (lag - tree.stem).max(0);
                    add(lag, end - lag + first, start + first, lag.min(length) - first);
                    start += length;
                }
            }
        }
        all
    }
}

/// Rows whose sums take in other rows, both one behind the other.
#[derive(Debug, Clone, Copy)]
struct Reach {
    lag: i64,
    from: i64,
    to: i64,
    count: i64,
}
