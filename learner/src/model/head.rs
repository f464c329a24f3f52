//! The language-model head: log-probs and entropies of completion tokens, and their gradients, without ever holding a
//! `[tokens, vocabulary]` tensor larger than a budget.
//!
//! The softmax's derivative is known in closed form (one-hot minus probability), so the head's backward pass is written
//! out: a chunk of tokens is projected, its log-probs are handed to the loss, and the gradient that comes back is
//! turned into those of hidden states and weight in place, before the next chunk is touched. Nothing of the size of the
//! vocabulary outlives its chunk, and nothing is computed twice.

use std::ops::Range;

use tch::{Kind, Tensor};

/// Largest `[tokens, vocabulary]` tensor, in bytes. Two of them live at a time.
const CHUNK_BYTES: i64 = 1 << 28;

/// What the policy says about a run of tokens.
#[derive(Debug)]
pub struct TokenStats {
    /// Log-prob of each token under the policy at the temperature, `[N]`.
    pub logprobs_N: Tensor,
    /// Entropy of the distribution that each token was drawn from, in nats, `[N]`.
    pub entropies_N: Tensor,
}

/// The projection from hidden states to the vocabulary.
#[derive(Debug)]
pub struct Head {
    weight_VH: Tensor,
    chunk: i64,
}

impl Head {
    /// A head with weight `[vocabulary, hidden]`, outside the autograd graph.
    #[must_use]
    pub fn new(weight_VH: &Tensor) -> Self {
        let row = weight_VH.size()[0] * weight_VH.kind().elt_size_in_bytes() as i64;
        Self { weight_VH: weight_VH.detach(), chunk: (CHUNK_BYTES / row).max(1) }
    }

    /// With another bound on the tokens of a chunk; results do not depend on it.
    #[must_use]
    pub fn with_chunk(mut self, tokens: i64) -> Self {
        self.chunk = tokens.max(1);
        self
    }

    /// Logits of every position, `[.., hidden]` to `[.., vocabulary]`.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        hidden.linear(&self.weight_VH, None::<Tensor>)
    }

    /// Log-probs and entropies, without gradients.
    #[must_use]
    pub fn evaluate(&self, hidden_NH: &Tensor, targets_N: &Tensor, temperature: f64) -> TokenStats {
        let (logprobs, entropies) = self
            .chunks(targets_N)
            .map(|chunk| {
                let (start, length) = (chunk.start, chunk.end - chunk.start);
                let logs_nV = self.log_softmax(&hidden_NH.narrow(0, start, length), temperature);
                let (stats, _) = stats(&logs_nV, &targets_N.narrow(0, start, length));
                (stats.logprobs_N, stats.entropies_N)
            })
            .unzip::<_, _, Vec<_>, Vec<_>>();
        TokenStats { logprobs_N: join(&logprobs, hidden_NH), entropies_N: join(&entropies, hidden_NH) }
    }

    /// Log-probs, entropies and gradients.
    ///
    /// `gradient_of` receives the statistics of a run of tokens and returns the derivative of the loss with respect to
    /// their log-probs, `[n]`. The weight's gradient is added to `weight_gradient_VH`; the hidden states' gradient,
    /// `[N, hidden]`, is returned.
    pub fn differentiate(
        &self,
        hidden_NH: &Tensor,
        targets_N: &Tensor,
        temperature: f64,
        weight_gradient_VH: &mut Tensor,
        gradient_of: &mut dyn FnMut(Range<i64>, &TokenStats) -> Tensor,
    ) -> Tensor {
        let gradients: Vec<Tensor> = self
            .chunks(targets_N)
            .map(|chunk| {
                let (start, length) = (chunk.start, chunk.end - chunk.start);
                let (hidden_nH, targets_n) = (hidden_NH.narrow(0, start, length), targets_N.narrow(0, start, length));
                let logs_nV = self.log_softmax(&hidden_nH, temperature);
                let (stats, mut slopes_nV) = stats(&logs_nV, &targets_n);
                drop(logs_nV);
                let slope_n1 = (gradient_of(chunk, &stats).to_kind(hidden_NH.kind()) / temperature).unsqueeze(1);
                let _ = slopes_nV.g_mul_(&slope_n1.neg());
                let _ = slopes_nV.scatter_add_(1, &targets_n.unsqueeze(1), &slope_n1);
                let _ = weight_gradient_VH.addmm_(&slopes_nV.tr(), &hidden_nH);
                slopes_nV.mm(&self.weight_VH)
            })
            .collect();
        join(&gradients, hidden_NH)
    }

    fn chunks(&self, targets_N: &Tensor) -> impl Iterator<Item = Range<i64>> {
        let (tokens, chunk) = (targets_N.size()[0], self.chunk);
        (0..tokens).step_by(chunk as usize).map(move |start| start..(start + chunk).min(tokens))
    }

    fn log_softmax(&self, hidden_nH: &Tensor, temperature: f64) -> Tensor {
        let mut logits_nV = self.logits(hidden_nH);
        if temperature != 1.0 {
            let _ = logits_nV.g_div_scalar_(temperature);
        }
        logits_nV.log_softmax(-1, None::<Kind>)
    }
}

/// The statistics of a chunk, and its probabilities `[n, V]`.
fn stats(logs_nV: &Tensor, targets_n: &Tensor) -> (TokenStats, Tensor) {
    let probabilities_nV = logs_nV.exp();
    let logprobs_N = logs_nV.gather(1, &targets_n.unsqueeze(1), false).squeeze_dim(1);
    // A row-wise dot product as a batched matrix product: no third tensor of the vocabulary's size.
    let entropies_N = probabilities_nV.unsqueeze(1).bmm(&logs_nV.unsqueeze(2)).reshape([-1]).neg();
    (TokenStats { logprobs_N, entropies_N }, probabilities_nV)
}

/// Chunks back to back; an empty selection keeps kind, device and trailing shape of `like`.
fn join(chunks: &[Tensor], like: &Tensor) -> Tensor {
    if chunks.is_empty() {
        like.narrow(0, 0, 0).sum_dim_intlist([1i64].as_slice(), false, None)
    } else {
        Tensor::cat(chunks, 0)
    }
}
