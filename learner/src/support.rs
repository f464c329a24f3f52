//! Truncated sampling: the support of a token's distribution is the part of the vocabulary that top-k, top-p and min-p
//! keep. Where a constraint says which tokens may come, they keep a part of these.
//!
//! Sampler and learner compute in different runtimes, so at the edge of the nucleus they may keep different tokens. The
//! learner therefore decides once per token, on the policy that the step begins with, and takes every later log-prob of
//! that token (of the current and of the reference policy) over the same set: ratios compare like with like.

use std::{collections::HashMap, sync::Arc};

use shared::SamplingParams;
use tch::{Device, Kind, Tensor};

/// What truncated sampling does, in transformers' order: top-k, top-p, min-p.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Truncation {
    /// Keep the k largest logits and those equal to the k-th; 0 = off.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 = off.
    pub top_p: f64,
    /// Drop tokens less likely than this times the likeliest.
    pub min_p: Option<f64>,
}

impl Truncation {
    /// The truncation of a sampling distribution; absent when it is not truncated.
    #[must_use]
    pub fn of(params: &SamplingParams) -> Option<Self> {
        params.truncated().then(|| Self {
            top_k: params.top_k,
            top_p: f64::from(params.top_p),
            min_p: params.min_p.filter(|&p| p > 0.0).map(f64::from),
        })
    }
}

/// The tokens that one position may have, in the smaller of two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// Ascending token ids.
    Ids(Box<[u32]>),
    /// One bit per token of the vocabulary.
    Bits(Box<[u64]>),
}

impl Support {
    /// A set of ascending ids out of a vocabulary.
    #[must_use]
    pub fn new(ids: &[u32], vocabulary: usize) -> Self {
        if ids.len() * 32 <= vocabulary {
            return Self::Ids(ids.into());
        }
        let mut bits = vec![0u64; vocabulary.div_ceil(64)];
        for &id in ids {
            bits[id as usize / 64] |= 1 << (id % 64);
        }
        Self::Bits(bits.into())
    }

    /// Number of tokens.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self {
            Self::Ids(ids) => ids.len() as u32,
            Self::Bits(bits) => bits.iter().map(|word| word.count_ones()).sum(),
        }
    }

    /// Ascending token ids.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        match self {
            Self::Ids(ids) => ids.to_vec(),
            Self::Bits(bits) => {
                let of_word = |(i, &word): (usize, &u64)| {
                    (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i as u32 * 64 + bit)
                };
                bits.iter().enumerate().flat_map(of_word).collect()
            }
        }
    }
}

/// The support of each row of logits (`[n, V]`, before the temperature; negative infinity for tokens that may not
/// come); `targets_n` are kept in any case.
///
/// Source: transformers `logits_process.py`, as in the sampler: of equal logits the higher token counts as the larger.
#[must_use]
pub fn supports(logits_nV: &Tensor, targets_n: &Tensor, temperature: f64, truncation: &Truncation) -> Vec<Support> {
    let (rows, vocabulary) = (logits_nV.size()[0] as usize, logits_nV.size()[1]);
    let inside_nV = inside(&(logits_nV.to_kind(Kind::Double) / temperature), truncation);
    let inside_nV = inside_nV.scatter_value(1, &targets_n.unsqueeze(1), 1);
    let pairs = inside_nV.nonzero().to_device(Device::Cpu);
    let column = |i: i64| Vec::<i64>::try_from(pairs.select(1, i)).expect("indices are whole numbers");
    let mut ids = vec![Vec::new(); rows];
    for (row, id) in column(0).into_iter().zip(column(1)) {
        ids[row as usize].push(id as u32);
    }
    ids.iter().map(|ids| Support::new(ids, vocabulary as usize)).collect()
}

/// Which entries of `[n, V]` tempered logits are kept.
fn inside(scores_nV: &Tensor, truncation: &Truncation) -> Tensor {
    let mut scores_nV = scores_nV.copy();
    let vocabulary = scores_nV.size()[1];
    let top_k = i64::from(truncation.top_k);
    if top_k > 0 && top_k < vocabulary {
        let (largest_nk, _) = scores_nV.topk(top_k, 1, true, true);
        let below_nV = scores_nV.less_tensor(&largest_nk.narrow(1, top_k - 1, 1));
        let _ = scores_nV.masked_fill_(&below_nV, f64::NEG_INFINITY);
    }
    if truncation.top_p < 1.0 {
        let (ascending_nV, order_nV) = scores_nV.sort_stable(true, 1, false);
        let mass_nV = ascending_nV.softmax(1, None::<Kind>).cumsum(1, None::<Kind>);
        let removed_nV = mass_nV.le(1.0 - truncation.top_p);
        let _ = removed_nV.narrow(1, vocabulary - 1, 1).fill_(0);
        let removed_nV = removed_nV.zeros_like().scatter(1, &order_nV, &removed_nV);
        let _ = scores_nV.masked_fill_(&removed_nV, f64::NEG_INFINITY);
    }
    if let Some(min_p) = truncation.min_p {
        let probabilities_nV = scores_nV.softmax(1, None::<Kind>);
        let floor_n1 = probabilities_nV.amax([1i64].as_slice(), true) * min_p;
        let _ = scores_nV.masked_fill_(&probabilities_nV.less_tensor(&floor_n1), f64::NEG_INFINITY);
    }
    scores_nV.isfinite()
}

/// Which entries of `[n, V]` logits lie outside the supports. What rows share is looked up once: a set may be as large
/// as the vocabulary.
pub fn outside(sets: &[Arc<Support>], logits_nV: &Tensor) -> Tensor {
    let (mut distinct, mut known, mut numbers) = (Vec::new(), HashMap::new(), Vec::with_capacity(sets.len()));
    for set in sets {
        let number = *known.entry(Arc::as_ptr(set)).or_insert_with(|| {
            distinct.push(set);
            distinct.len() as i64 - 1
        });
        numbers.push(number);
    }
    let (vocabulary, device) = (logits_nV.size()[1], logits_nV.device());
    let flat = |(row, set): (usize, &&Arc<Support>)| {
        set.ids().into_iter().map(move |id| row as i64 * vocabulary + i64::from(id)).collect::<Vec<i64>>()
    };
    let inside: Vec<i64> = distinct.iter().enumerate().flat_map(flat).collect();
    let inside = Tensor::from_slice(&inside).to_device(device);
    let mut outside_V = Tensor::ones([distinct.len() as i64 * vocabulary], (Kind::Bool, device));
    let outside_dV = outside_V.index_fill_(0, &inside, 0).view([distinct.len() as i64, vocabulary]);
    if distinct.len() == sets.len() {
        return outside_dV;
    }
    outside_dV.index_select(0, &Tensor::from_slice(&numbers).to_device(device))
}
