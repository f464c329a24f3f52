//! The support of a truncated distribution (top-k, top-p, min-p), without sorting the vocabulary.

use shared::SamplingParams;

use super::stats::BLOCK;

/// A token of the support with its weight exp((l − max) / T).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The logit (after the repetition penalty).
    pub logit: f32,
    /// The token.
    pub token: u32,
    /// Its unnormalised probability at the sampling temperature; 1 for the likeliest token.
    pub weight: f64,
}

/// A row as the truncation sees it.
#[derive(Debug, Clone, Copy)]
pub struct LogitsRow<'a> {
    /// Logits after the repetition penalty.
    pub logits: &'a [f32],
    /// Maxima of the blocks of [`BLOCK`] logits.
    pub maxima: &'a [f32],
    /// Largest logit.
    pub max: f32,
    /// Sum of the weights of all tokens.
    pub total: f64,
}

/// Buffers that are reused from token to token.
#[derive(Debug, Default)]
pub struct TruncateScratch {
    candidates: Vec<Candidate>,
    maxima: Vec<f32>,
}

impl TruncateScratch {
    /// The support, ordered by token; never empty.
    ///
    /// Source: transformers `logits_process.py`. `TopKLogitsWarper` removes logits smaller than the k-th largest;
    /// `TopPLogitsWarper` sorts in ascending order and removes tokens whose cumulative probability is at most
    /// 1 − top_p, which is to keep a token as long as the tokens before it in descending order have less than top_p
    /// together (of equal logits the higher token comes first); `MinPLogitsWarper` removes tokens less likely than
    /// min_p times the likeliest. Each works on what the one before it left; the likeliest token always stays.
    pub fn keep(&mut self, row: &LogitsRow, params: &SamplingParams) -> &[Candidate] {
        let bound = match Cut::of(params, row.logits.len()) {
            Cut { top_k: Some(k), .. } => self.kth_largest(row.maxima, k),
            Cut { top_p: Some(p), .. } => {
                logit_of_weight((1.0 - p) * row.total / row.logits.len() as f64, row.max, params.temperature)
            }
            Cut { min_p: Some(p), .. } => logit_of_weight(p, row.max, params.temperature),
            _ => f32::NEG_INFINITY,
        };
        self.gather(row, bound);
        self.cut(params, row.logits.len(), row.max, row.total, 0.0).expect("without a slack every set is certain")
    }

    /// The support among candidates (`[(token, logit)]`, in the order of the vocabulary) that contain all of it.
    /// `total` is known up to the factors 1 ± `slack`; `None` when the set depends on that.
    pub(crate) fn keep_of(
        &mut self,
        candidates: impl Iterator<Item = (u32, f32)>,
        params: &SamplingParams,
        vocab: usize,
        max: f32,
        (total, slack): (f64, f64),
    ) -> Option<&[Candidate]> {
        self.candidates.clear();
        self.candidates.extend(candidates.map(|(token, logit)| Candidate { logit, token, weight: 0.0 }));
        self.cut(params, vocab, max, total, slack)
    }

    /// Cuts the candidates that were gathered.
    fn cut(&mut self, params: &SamplingParams, vocab: usize, max: f32, total: f64, slack: f64) -> Option<&[Candidate]> {
        let Cut { top_k, top_p, min_p } = Cut::of(params, vocab);
        if let Some(k) = top_k {
            keep_top_k(&mut self.candidates, k);
        }
        let temperature = f64::from(params.temperature);
        for candidate in &mut self.candidates {
            candidate.weight = ((f64::from(candidate.logit) - f64::from(max)) / temperature).exp();
        }
        // The mass of the k likeliest is that of the candidates, to the last bit.
        let (mass, slack) =
            if top_k.is_some() { (self.candidates.iter().map(|c| c.weight).sum(), 0.0) } else { (total, slack) };
        if let Some(p) = top_p {
            let kept = nucleus(&mut self.candidates, p * mass);
            let certain = slack == 0.0
                || [1.0 - slack, 1.0 + slack].iter().all(|f| nucleus(&mut self.candidates, f * p * mass) == kept);
            if !certain {
                return None;
            }
            self.candidates.truncate(kept);
        }
        if let Some(p) = min_p {
            self.candidates.retain(|c| c.weight >= p || c.logit == max);
        }
        self.candidates.sort_unstable_by_key(|c| c.token);
        Some(&self.candidates)
    }

    /// A logit that at least `k` entries reach: the k-th largest block maximum, if there are so many blocks.
    pub(crate) fn kth_largest(&mut self, maxima: &[f32], k: usize) -> f32 {
        if k > maxima.len() {
            return f32::NEG_INFINITY;
        }
        self.maxima.clear();
        self.maxima.extend_from_slice(maxima);
        *self.maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    }

    /// Every entry that reaches the bound; weights are filled in when the set is small.
    /// A token that may not come (negative infinity) is in no support.
    fn gather(&mut self, row: &LogitsRow, bound: f32) {
        let bound = bound.max(f32::MIN);
        self.candidates.clear();
        for (b, block) in row.logits.chunks(BLOCK).enumerate() {
            if row.maxima[b] < bound {
                continue;
            }
            for (i, &logit) in block.iter().enumerate() {
                if logit >= bound {
                    self.candidates.push(Candidate { logit, token: (b * BLOCK + i) as u32, weight: 0.0 });
                }
            }
        }
    }
}

/// The truncations that are on.
pub(crate) struct Cut {
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
}

impl Cut {
    pub fn of(params: &SamplingParams, vocab: usize) -> Self {
        Self {
            top_k: (params.top_k as usize != 0).then_some(params.top_k as usize).filter(|&k| k < vocab),
            top_p: (params.top_p < 1.0).then_some(f64::from(params.top_p)),
            min_p: params.min_p.filter(|&p| p > 0.0).map(f64::from),
        }
    }
}

/// A logit safely below every logit whose weight is at least `weight`.
pub(crate) fn logit_of_weight(weight: f64, max: f32, temperature: f32) -> f32 {
    let distance = weight.ln() * f64::from(temperature);
    (f64::from(max) + distance - 1e-3 - 1e-5 * distance.abs()) as f32
}

fn descending(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(b.token.cmp(&a.token))
}

fn keep_top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        let kth = candidates.select_nth_unstable_by(k - 1, descending).1.logit;
        candidates.retain(|c| c.logit >= kth);
        // The partition leaves an order that depends on the candidates gathered; sums must not.
        candidates.sort_unstable_by_key(|c| c.token);
    }
}

/// Moves the smallest set that reaches `target` to the front, by halving like quick-select; returns its size.
fn nucleus(candidates: &mut [Candidate], target: f64) -> usize {
    const SMALL: usize = 32;
    let (mut low, mut high, mut before) = (0, candidates.len(), 0.0);
    while high - low > SMALL {
        let middle = (high - low) / 2;
        candidates[low..high].select_nth_unstable_by(middle, descending);
        let mass: f64 = candidates[low..low + middle].iter().map(|c| c.weight).sum();
        if before + mass < target {
            before += mass;
            low += middle;
        } else {
            high = low + middle;
        }
    }
    candidates[low..high].sort_unstable_by(descending);
    for (i, candidate) in candidates[low..high].iter().enumerate() {
        if before >= target {
            return (low + i).max(1);
        }
        before += candidate.weight;
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::stats::{block_exp_sums, block_maxima};
    use shared::generation::rng::Stream;

    fn kept(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        let (mut maxima, mut sums) = (Vec::new(), Vec::new());
        let max = block_maxima(logits, &mut maxima);
        let total = block_exp_sums(logits, max, 1.0 / params.temperature, &mut sums);
        let row = LogitsRow { logits, maxima: &maxima, max, total };
        TruncateScratch::default().keep(&row, params).iter().map(|c| c.token).collect()
    }

    /// The definition, by a full sort in double precision.
    fn kept_by_sorting(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |t: u32| logits[t as usize];
        order.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)).then(b.cmp(&a)));
        if params.top_k > 0 && (params.top_k as usize) < order.len() {
            let kth = logit(order[params.top_k as usize - 1]);
            order.retain(|&t| logit(t) >= kth);
        }
        let top = f64::from(logit(order[0]));
        let weight = |t: u32| ((f64::from(logit(t)) - top) / f64::from(params.temperature)).exp();
        let total: f64 = order.iter().map(|&t| weight(t)).sum();
        let mut before = 0.0;
        let mut keep = Vec::new();
        for &t in &order {
            if before < f64::from(params.top_p) * total || params.top_p >= 1.0 || keep.is_empty() {
                keep.push(t);
            }
            before += weight(t);
        }
        let min_p = f64::from(params.min_p.unwrap_or(0.0));
        keep.retain(|&t| weight(t) >= min_p || t == order[0]);
        keep.sort_unstable();
        keep
    }

    #[test]
    fn large_rows_agree_with_a_full_sort() {
        let mut stream = Stream::new(&[7]);
        let peaked: Vec<f32> = (0..20_000).map(|_| (stream.next_normal() * 3.0) as f32).collect();
        let flat: Vec<f32> = (0..5_000).map(|_| (stream.next_normal() * 0.01) as f32).collect();
        let rounded: Vec<f32> = peaked.iter().map(|l| l.round()).collect();
        for logits in [&peaked, &flat, &rounded] {
            for temperature in [0.3, 1.0, 1.7] {
                for (top_k, top_p, min_p) in [
                    (1, 1.0, None),
                    (50, 1.0, None),
                    (3000, 1.0, None),
                    (0, 0.1, None),
                    (0, 0.9, None),
                    (0, 0.999, None),
                    (0, 1.0, Some(0.05)),
                    (0, 0.95, Some(0.01)),
                    (40, 0.8, Some(0.1)),
                    (100_000, 0.5, None),
                ] {
                    let params = SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() };
                    assert_eq!(kept(logits, &params), kept_by_sorting(logits, &params), "{params:?}");
                }
            }
        }
    }

    #[test]
    fn equal_logits_fill_the_nucleus_from_the_highest_token() {
        let params = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
        assert_eq!(kept(&[0.0; 4], &params), [2, 3]);
        assert_eq!(kept(&[0.0; 5], &params), [2, 3, 4]);
    }
}
