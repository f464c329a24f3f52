//! The language-model head: log-probs and entropies of completion tokens, and their gradients, without ever holding a
//! `[tokens, vocabulary]` tensor larger than a budget.
//!
//! The softmax's derivative is known in closed form (one-hot minus probability), so the head's backward pass is written
//! out. A chunk of tokens is projected, and its log-probs go to the loss. The gradient that comes back becomes the
//! gradients of hidden states and weight, in place, before the next chunk is touched. Nothing is computed twice, and
//! all chunks use the same two buffers: memory that is new to a process costs more time than the softmax.

mod product;
mod softmax;

use std::{ops::Range, sync::Arc};

use shared::run::memory_plan::head_chunk;
use tch::Tensor;

use self::{product::Weight, softmax::Softmax};
use crate::support::{self, Support, Truncation};

/// Log-probs and entropies of a run of tokens.
#[derive(Debug)]
pub struct TokenStats {
    /// Log-prob of each token under the policy at the temperature, `[N]`.
    pub logprobs_N: Tensor,
    /// Entropy of the distribution that each token was drawn from, in nats, `[N]`.
    pub entropies_N: Tensor,
}

/// Derivatives of the loss with respect to [`TokenStats`].
#[derive(Debug)]
pub struct TokenGradients {
    /// With respect to the log-probs, `[N]`.
    pub logprobs_N: Tensor,
    /// With respect to the entropies, `[N]`; absent = 0.
    pub entropies_N: Option<Tensor>,
}

impl TokenGradients {
    /// The tokens with the given numbers.
    #[must_use]
    pub fn slice(&self, run: &Range<i64>) -> Self {
        let part = |x: &Tensor| x.narrow(0, run.start, run.end - run.start);
        Self { logprobs_N: part(&self.logprobs_N), entropies_N: self.entropies_N.as_ref().map(part) }
    }
}

impl From<Tensor> for TokenGradients {
    /// Of a loss that does not depend on the entropies.
    fn from(logprobs_N: Tensor) -> Self {
        Self { logprobs_N, entropies_N: None }
    }
}

/// The tokens that a loss has to see at once to give their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span<'a> {
    /// A token.
    Token,
    /// A completion. The ranges are the token numbers of each completion, in order and without gaps. Chunks then end
    /// where completions do; a completion that is longer than a chunk is projected twice.
    Completion(&'a [Range<usize>]),
}

/// Which token each hidden state predicts, and from which distribution.
#[derive(Debug, Clone, Copy)]
pub struct Targets<'a> {
    /// Token ids, `[N]`.
    pub ids_N: &'a Tensor,
    /// Divides the logits.
    pub temperature: f64,
    /// Support of each token's distribution; absent = the whole vocabulary.
    pub supports: Option<&'a [Arc<Support>]>,
}

impl Targets<'_> {
    fn chunk(&self, run: &Range<i64>) -> Self {
        Self {
            ids_N: self.ids_N,
            temperature: self.temperature,
            supports: self.supports.map(|all| &all[run.start as usize..run.end as usize]),
        }
    }

    fn ids(&self, run: &Range<i64>) -> Tensor {
        self.ids_N.narrow(0, run.start, run.end - run.start)
    }
}

/// The projection from hidden states to the vocabulary, with logits in float32 at least.
#[derive(Debug)]
pub struct Head {
    weight: Weight,
    /// Most tokens at once.
    chunk: i64,
    /// Tokens at once where nothing asks for more.
    usual: i64,
    /// Two chunks, `[chunk, V]` each, of logits and what is made of them. Only their used parts take memory.
    buffers: [Tensor; 2],
    cap: Option<Cap>,
}

/// A bound `c` of logits, which become `c · tanh(logit / c)`.
#[derive(Debug)]
struct Cap {
    bound: f64,
    /// Derivatives of the bounded logits, another chunk.
    slopes: Tensor,
}

impl Cap {
    /// Replaces logits by bounded ones; `slopes` receives the derivatives.
    fn hold(&self, logits_nV: &Tensor, slopes_nV: Option<&Tensor>) {
        let _ = logits_nV.shallow_clone().g_div_scalar_(self.bound).tanh_();
        if let Some(slopes_nV) = slopes_nV {
            let _ = logits_nV.square_out(slopes_nV).neg_().g_add_scalar_(1.0);
        }
        let _ = logits_nV.shallow_clone().g_mul_scalar_(self.bound);
    }
}

impl Head {
    /// A head with weight `[vocabulary, hidden]`. A weight in bfloat16 is multiplied as such where the processor can.
    /// Elsewhere the head keeps a float32 copy of a 16-bit weight.
    #[must_use]
    pub fn new(weight_VH: &Tensor) -> Self {
        let weight = Weight::new(weight_VH);
        let row = weight.vocabulary() as u64 * weight.kind().elt_size_in_bytes() as u64;
        let (usual, most) = head_chunk(row);
        Self::of(weight, [usual, most].map(|tokens| tokens as i64))
    }

    /// The head with a bound of its logits, if there is one.
    #[must_use]
    pub fn with_cap(self, cap: Option<f64>) -> Self {
        let slopes =
            || Tensor::empty([self.chunk, self.weight.vocabulary()], (self.weight.kind(), self.weight.device()));
        let cap = cap.map(|bound| Cap { bound, slopes: slopes() });
        Self { cap, ..self }
    }

    /// Takes over the changed weight, if the head has a copy of its own.
    pub(super) fn follow(&self, weight_VH: &Tensor) {
        self.weight.follow(weight_VH);
    }

    /// Another head with the same weight and the same buffers.
    pub(super) fn shared(&self) -> Self {
        Self {
            weight: self.weight.shared(),
            chunk: self.chunk,
            usual: self.usual,
            buffers: self.buffers.each_ref().map(Tensor::shallow_clone),
            cap: self.cap.as_ref().map(|cap| Cap { bound: cap.bound, slopes: cap.slopes.shallow_clone() }),
        }
    }

    /// A head with other sizes of chunks, usual and largest. Results do not depend on them.
    #[must_use]
    pub fn with_chunks(weight_VH: &Tensor, chunks: [i64; 2]) -> Self {
        Self::of(Weight::new(weight_VH), chunks)
    }

    fn of(weight: Weight, [usual, chunk]: [i64; 2]) -> Self {
        let buffer = |kind| Tensor::empty([chunk, weight.vocabulary()], (kind, weight.device()));
        let buffers = [weight.kind(), weight.kind_of_gradients()].map(buffer);
        Self { chunk, usual, buffers, weight, cap: None }
    }

    /// Logits of every position, `[N, hidden]` to `[N, vocabulary]`.
    pub fn logits(&self, hidden_NH: &Tensor) -> Tensor {
        let size = [hidden_NH.size()[0], self.weight.vocabulary()];
        let logits_NV = Tensor::empty(size, (self.weight.kind(), self.weight.device()));
        self.weight.project(hidden_NH, &logits_NV);
        if let Some(cap) = &self.cap {
            cap.hold(&logits_NV, None);
        }
        logits_NV
    }

    /// Log-probs and entropies, without gradients.
    #[must_use]
    pub fn evaluate(&self, hidden_NH: &Tensor, targets: &Targets<'_>) -> TokenStats {
        self.evaluate_run(hidden_NH, targets, 0..hidden_NH.size()[0])
    }

    fn evaluate_run(&self, hidden_NH: &Tensor, targets: &Targets<'_>, run: Range<i64>) -> TokenStats {
        let (logprobs, entropies) = chunks(run, self.usual)
            .map(|run| {
                let (stats, _) = self.project(&part(hidden_NH, &run), targets, &run, None);
                (stats.logprobs_N, stats.entropies_N)
            })
            .unzip::<_, _, Vec<_>, Vec<_>>();
        TokenStats { logprobs_N: join(&logprobs, hidden_NH), entropies_N: join(&entropies, hidden_NH) }
    }

    /// The tokens that truncated sampling keeps at each position, among those of the targets' supports; they always
    /// include the position's own token. One entry per token.
    #[must_use]
    pub fn supports(&self, hidden_NH: &Tensor, targets: &Targets<'_>, truncation: &Truncation) -> Vec<Arc<Support>> {
        // Sorting takes several times the memory of the logits.
        let runs = chunks(0..hidden_NH.size()[0], (self.chunk / 8).max(1));
        let sets = runs.flat_map(|run| {
            let mut logits_nV = self.logits(&part(hidden_NH, &run));
            if let Some(sets) = targets.chunk(&run).supports {
                let _ = logits_nV.masked_fill_(&support::outside(sets, &logits_nV), f64::NEG_INFINITY);
            }
            support::supports(&logits_nV, &targets.ids(&run), targets.temperature, truncation)
        });
        sets.map(Arc::new).collect()
    }

    /// Log-probs, entropies and gradients.
    ///
    /// `gradient_of` receives the statistics of one run of tokens after the other, each at least as long as `span` asks
    /// for, and returns the derivatives of the loss. The weight's gradient is added to `weight_gradient_VH`, if
    /// present; the hidden states' gradient, `[N, hidden]`, is returned.
    pub fn differentiate(
        &self,
        hidden_NH: &Tensor,
        targets: &Targets<'_>,
        span: Span<'_>,
        mut weight_gradient_VH: Option<&mut Tensor>,
        gradient_of: &mut dyn FnMut(Range<i64>, &TokenStats) -> TokenGradients,
    ) -> Tensor {
        let mut gradients = Vec::new();
        for seen in self.runs(hidden_NH.size()[0], span) {
            let known = (seen.end - seen.start > self.chunk)
                .then(|| gradient_of(seen.clone(), &self.evaluate_run(hidden_NH, targets, seen.clone())));
            for run in chunks(seen.clone(), self.chunk) {
                let (hidden_nH, ids_n) = (part(hidden_NH, &run), targets.ids(&run));
                let slopes_nV = self.cap.as_ref().map(|cap| cap.slopes.narrow(0, 0, run.end - run.start));
                let (stats, softmax) = self.project(&hidden_nH, targets, &run, slopes_nV.as_ref());
                let of_tokens = match &known {
                    Some(known) => known.slice(&(run.start - seen.start..run.end - seen.start)),
                    None => gradient_of(run, &stats),
                };
                let mut gradient_nV = softmax.gradient(&stats, &ids_n, &of_tokens, targets.temperature);
                if let Some(slopes_nV) = &slopes_nV {
                    gradient_nV *= slopes_nV;
                }
                let of_weight = weight_gradient_VH.as_deref_mut();
                gradients.push(self.weight.backward(&hidden_nH, &gradient_nV, of_weight));
            }
        }
        join(&gradients, hidden_NH)
    }

    /// The runs that `gradient_of` sees at once: of the usual size, and at least as long as `span` asks for.
    fn runs(&self, tokens: i64, span: Span<'_>) -> Vec<Range<i64>> {
        let Span::Completion(completions) = span else {
            return chunks(0..tokens, self.usual).collect();
        };
        let mut runs: Vec<Range<i64>> = Vec::new();
        for completion in completions.iter().map(|c| c.start as i64..c.end as i64) {
            match runs.last_mut() {
                Some(run) if completion.end - run.start <= self.usual => run.end = completion.end,
                _ => runs.push(completion),
            }
        }
        runs
    }

    /// Statistics of a run of tokens, and the softmax that they come from, in the buffers. Outside the support a
    /// log-prob is far below anything that counts. `slopes_nV` receives the derivatives of bounded logits, in a head
    /// that has a bound.
    fn project(
        &self,
        hidden_nH: &Tensor,
        targets: &Targets<'_>,
        run: &Range<i64>,
        slopes_nV: Option<&Tensor>,
    ) -> (TokenStats, Softmax) {
        let [logits_nV, other_nV] = self.buffers.each_ref().map(|buffer| buffer.narrow(0, 0, run.end - run.start));
        self.weight.project(hidden_nH, &logits_nV);
        if let Some(cap) = &self.cap {
            cap.hold(&logits_nV, slopes_nV);
        }
        if let Some(sets) = targets.chunk(run).supports {
            let _ = logits_nV.shallow_clone().masked_fill_(&support::outside(sets, &logits_nV), OUTSIDE);
        }
        Softmax::new([logits_nV, other_nV], &targets.ids(run), targets.temperature)
    }
}

/// Logit of a token outside the support. Finite, because the entropy multiplies it by a probability of 0.
const OUTSIDE: f64 = -1e30;

/// A run in parts of at most `chunk`.
fn chunks(run: Range<i64>, chunk: i64) -> impl Iterator<Item = Range<i64>> {
    let end = run.end;
    run.step_by(chunk as usize).map(move |start| start..(start + chunk).min(end))
}

fn part(hidden_NH: &Tensor, run: &Range<i64>) -> Tensor {
    hidden_NH.narrow(0, run.start, run.end - run.start)
}

/// Chunks back to back; an empty selection keeps kind, device and trailing shape of `like`.
fn join(chunks: &[Tensor], like: &Tensor) -> Tensor {
    if chunks.is_empty() {
        like.narrow(0, 0, 0).sum_dim_intlist([1i64].as_slice(), false, None)
    } else {
        Tensor::cat(chunks, 0)
    }
}
