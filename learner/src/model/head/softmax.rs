//! From logits to log-probs and entropies, and from the loss's derivatives back to the gradient of the logits.
//!
//! In float32 at least, libtorch makes log-probs and probabilities of the whole vocabulary. Where the gradient becomes
//! bfloat16, the sampler's kernels go through the logits row by row and store neither.

use rollout_kernels::{
    logits::{Rows, TokenDerivatives, TokenStatistics},
    parallel::Machine,
};
use tch::{Kind, Tensor};

use super::{TokenGradients, TokenStats};
use crate::model::kernels::{numbers, with_machine};

/// The softmax of a run of tokens.
#[derive(Debug)]
pub(super) enum Softmax {
    /// Log-probs and probabilities, `[n, V]` each.
    Whole([Tensor; 2]),
    /// Logits, room for their gradient in bfloat16, `[n, V]` each, and what is known of each token.
    Rows([Tensor; 2], Vec<TokenStatistics>),
}

impl Softmax {
    /// Statistics of tokens. The buffers hold logits, and anything; the second one is in the kind of gradients.
    pub(super) fn new([logits_nV, other_nV]: [Tensor; 2], ids_n: &Tensor, temperature: f64) -> (TokenStats, Self) {
        if other_nV.kind() == Kind::BFloat16 {
            let mut known = vec![TokenStatistics::default(); ids_n.size()[0] as usize];
            with_rows(&logits_nV, ids_n, temperature, |rows, machine| rows.statistics(&mut known, machine));
            let column =
                |of: fn(&TokenStatistics) -> f32| Tensor::from_slice(&known.iter().map(of).collect::<Vec<_>>());
            let stats = TokenStats { logprobs_N: column(|x| x.logprob), entropies_N: column(|x| x.entropy) };
            return (stats, Self::Rows([logits_nV, other_nV], known));
        }
        let (mut logits_nV, logs_nV) = (logits_nV, other_nV);
        if temperature != 1.0 {
            let _ = logits_nV.g_div_scalar_(temperature);
        }
        let _ = logits_nV.internal_log_softmax_out(&logs_nV, -1, false);
        let probabilities_nV = logs_nV.exp_out(&logits_nV);
        let logprobs_N = logs_nV.gather(1, &ids_n.unsqueeze(1), false).squeeze_dim(1);
        // A row-wise dot product as a batched matrix product: no third tensor of the vocabulary's size.
        let entropies_N = probabilities_nV.unsqueeze(1).bmm(&logs_nV.unsqueeze(2)).reshape([-1]).neg();
        (TokenStats { logprobs_N, entropies_N }, Self::Whole([logs_nV, probabilities_nV]))
    }

    /// Derivatives of the loss with respect to the logits, `[n, V]`, in place.
    ///
    /// With p the probabilities and H the entropy: `∂logprob/∂z_j = (1[j = token] − p_j) / T` and
    /// `∂H/∂z_j = −p_j (log p_j + H) / T`.
    pub(super) fn gradient(
        self,
        stats: &TokenStats,
        ids_n: &Tensor,
        gradients: &TokenGradients,
        temperature: f64,
    ) -> Tensor {
        match self {
            Self::Whole(buffers) => of_whole(buffers, stats, ids_n, gradients, temperature),
            Self::Rows([logits_nV, gradient_nV], known) => {
                let logprobs = floats(&gradients.logprobs_N);
                let entropies = gradients.entropies_N.as_ref().map(floats);
                let of = TokenDerivatives { statistics: &known, logprobs: &logprobs, entropies: entropies.as_deref() };
                // SAFETY: the buffer is dense, in bfloat16, on the CPU, and the head's alone.
                let out = unsafe { numbers(&gradient_nV) };
                with_rows(&logits_nV, ids_n, temperature, |rows, machine| rows.gradient(of, out, machine));
                gradient_nV
            }
        }
    }
}

/// See [`Softmax::gradient`].
fn of_whole(
    [mut logs_nV, mut probabilities_nV]: [Tensor; 2],
    stats: &TokenStats,
    ids_n: &Tensor,
    gradients: &TokenGradients,
    temperature: f64,
) -> Tensor {
    let column = |x: &Tensor| (x.to_kind(probabilities_nV.kind()) / temperature).unsqueeze(1);
    let gradient_n1 = column(&gradients.logprobs_N);
    if let Some(entropies_N) = &gradients.entropies_N {
        let entropy_gradient_n1 = column(entropies_N);
        let constant_n1 = &gradient_n1 + &entropy_gradient_n1 * stats.entropies_N.unsqueeze(1);
        let _ = logs_nV.g_mul_(&entropy_gradient_n1).g_add_(&constant_n1).neg_();
        let _ = probabilities_nV.g_mul_(&logs_nV);
    } else {
        let _ = probabilities_nV.g_mul_(&gradient_n1.neg());
    }
    probabilities_nV.scatter_add_(1, &ids_n.unsqueeze(1), &gradient_n1)
}

/// Lends logits to the kernels.
fn with_rows(logits_nV: &Tensor, ids_n: &Tensor, temperature: f64, work: impl FnOnce(Rows<'_>, Machine<'_>)) {
    assert!(logits_nV.is_contiguous() && logits_nV.kind() == Kind::Float, "logits are a dense float32 buffer");
    let ids = Vec::<i64>::try_from(ids_n).expect("a list of token ids");
    // SAFETY: the buffer is dense, in float32, on the CPU, and not written while it is lent.
    let logits = unsafe { numbers(logits_nV) };
    with_machine(|machine| work(Rows { logits, ids: &ids, temperature: temperature as f32 }, machine));
}

fn floats(x: &Tensor) -> Vec<f32> {
    Vec::try_from(x.to_kind(Kind::Float)).expect("a list of numbers")
}
