//! Sampling of one row.

use std::collections::{BTreeMap, BTreeSet};

use shared::{SamplingParams, TokenLogprob};

use super::{
    stats::{BLOCK, argmax, block_exp_sums, block_maxima, exp_nonpositive},
    top::{TopLogprob, largest, tokens_of},
    truncate::{Candidate, LogitsRow, TruncateScratch},
};

/// A sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// Its log-probs.
    pub logprob: TokenLogprob,
}

/// A row that no token can be drawn from.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RowError {
    /// NaN or infinity among the logits.
    #[error("the logits are not finite: the weights are damaged or too large for the number format")]
    NotFinite,
    /// Finite logits that are not after division by the temperature or the penalty.
    #[error("temperature {temperature} and repetition_penalty {repetition_penalty} take the logits out of range")]
    Overflow {
        /// The temperature among the sampling parameters.
        temperature: f32,
        /// The repetition penalty among the sampling parameters.
        repetition_penalty: f32,
    },
}

impl RowError {
    pub(crate) fn overflow(params: &SamplingParams) -> Self {
        let SamplingParams { temperature, repetition_penalty, .. } = *params;
        Self::Overflow { temperature, repetition_penalty }
    }
}

/// Buffers of one sampling thread, reused from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    maxima: Vec<f32>,
    sums: Vec<f64>,
    penalised: Vec<f32>,
    /// A row without the tokens that may not come.
    pub(super) masked: Vec<f32>,
    pub(crate) truncate: TruncateScratch,
}

/// The tokens of a prompt, and those of its completion so far with their numbers, for the penalties.
#[derive(Debug, Default, Clone)]
pub struct SeenTokens {
    prompt: BTreeSet<u32>,
    completion: BTreeMap<u32, u32>,
}

impl SeenTokens {
    /// Those of a prompt.
    #[must_use]
    pub fn new(prompt: &[u32]) -> Self {
        Self { prompt: prompt.iter().copied().collect(), completion: BTreeMap::new() }
    }

    /// Adds a token of the completion.
    pub fn insert(&mut self, token: u32) {
        *self.completion.entry(token).or_default() += 1;
    }

    /// Changes the logits of these tokens: first as transformers' `RepetitionPenaltyLogitsProcessor` (positive ones are
    /// divided, negative ones multiplied), then as vLLM's `apply_penalties`.
    fn penalise(&self, row: &mut [f32], params: &SamplingParams) {
        let factor = params.repetition_penalty;
        if factor != 1.0 {
            let of_both = self.prompt.iter().chain(self.completion.keys().filter(|token| !self.prompt.contains(token)));
            for &token in of_both {
                if let Some(logit) = row.get_mut(token as usize) {
                    *logit = if *logit < 0.0 { *logit * factor } else { *logit / factor };
                }
            }
        }
        for (&token, &count) in &self.completion {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit -= params.frequency_penalty * count as f32;
                *logit -= params.presence_penalty;
            }
        }
    }
}

/// The distribution from which one token is drawn.
#[derive(Debug)]
pub struct Distribution<'a> {
    /// The logits as the model gave them, with their maximum and the log of the sum of exp(l − max).
    reference: (&'a [f32], f64, f64),
    /// The logits after the penalties.
    row: &'a [f32],
    max: f32,
    /// Sum of exp((l − max) / T), as a whole and over each block.
    total: f64,
    sums: &'a [f64],
    /// The support in the order of the vocabulary and its mass; absent without truncation.
    kept: Option<(&'a [Candidate], f64)>,
    /// 0 for greedy.
    temperature: f32,
    argmax: u32,
}

impl<'a> Distribution<'a> {
    /// The distribution of a row of logits (`[vocab]`); `seen` is only looked at with penalties.
    ///
    /// # Errors
    /// When the logits are not finite.
    pub fn new(
        logits: &'a [f32],
        params: &SamplingParams,
        seen: &SeenTokens,
        scratch: &'a mut Scratch,
    ) -> Result<Self, RowError> {
        Self::cut(logits, params, params.truncated(), seen, scratch)
    }

    /// As [`Distribution::new`], truncated or not.
    pub(super) fn cut(
        logits: &'a [f32],
        params: &SamplingParams,
        truncated: bool,
        seen: &SeenTokens,
        scratch: &'a mut Scratch,
    ) -> Result<Self, RowError> {
        let Scratch { maxima, sums, penalised, truncate, .. } = scratch;
        let mut max = block_maxima(logits, maxima);
        let mut total = block_exp_sums(logits, max, 1.0, sums);
        if !total.is_finite() {
            return Err(RowError::NotFinite);
        }
        let reference = (logits, f64::from(max), total.ln());

        let mut row = logits;
        if params.penalised() {
            penalised.clear();
            penalised.extend_from_slice(logits);
            seen.penalise(penalised, params);
            row = penalised;
            max = block_maxima(row, maxima);
        }
        let overflow = || RowError::overflow(params);
        let argmax = argmax(row, max, maxima).ok_or_else(overflow)? as u32;
        if !params.greedy() && (params.penalised() || params.temperature != 1.0) {
            total = block_exp_sums(row, max, 1.0 / params.temperature, sums);
            if !total.is_finite() {
                return Err(overflow());
            }
        }
        let kept = truncated.then(|| {
            let kept = truncate.keep(&LogitsRow { logits: row, maxima, max, total }, params);
            (kept, kept.iter().map(|c| c.weight).sum())
        });
        Ok(Self { reference, row, max, total, sums, kept, temperature: params.temperature, argmax })
    }

    /// The token at which the cumulative probability passes `uniform` (in (0, 1)); the arg-max at temperature 0.
    #[must_use]
    pub fn draw(&self, uniform: f64) -> u32 {
        if self.temperature == 0.0 {
            return self.argmax;
        }
        let Some((kept, mass)) = self.kept else {
            return invert(self.row, self.max, 1.0 / self.temperature, self.sums, uniform * self.total);
        };
        draw_kept(kept, uniform * mass).map_or(self.argmax, |c| c.token)
    }

    /// The log-probs of a token.
    #[must_use]
    pub fn logprob(&self, token: u32) -> TokenLogprob {
        let (logits, max, log_total) = self.reference;
        let logprob = (f64::from(logits[token as usize]) - max - log_total) as f32;
        let distance = f64::from(self.row[token as usize]) - f64::from(self.max);
        token_logprob(logprob, distance, self.temperature, self.total, self.kept)
    }

    /// The `count` likeliest tokens with their log-probs, the likeliest first; fewer where the support has fewer. At
    /// temperature 0, which leaves one token, they are those of the model itself.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<TopLogprob> {
        let greedy = self.temperature == 0.0;
        let found = match self.kept {
            Some((kept, _)) => largest(kept.iter().map(|c| (c.token, c.logit)), count),
            None => largest(tokens_of(if greedy { self.reference.0 } else { self.row }), count),
        };
        let logprob = |token: u32| {
            let figures = self.logprob(token);
            f64::from(if greedy { figures.logprob } else { figures.sampling_logprob() })
        };
        found.into_iter().map(|(token, _)| TopLogprob { token, logprob: logprob(token) }).collect()
    }

    /// The support in the order of the vocabulary; absent without truncation.
    #[must_use]
    pub fn kept(&self) -> Option<&[Candidate]> {
        self.kept.map(|(kept, _)| kept)
    }
}

/// The candidate at which the cumulative weight passes `target`, by inversion in the order of the vocabulary.
pub(crate) fn draw_kept(kept: &[Candidate], target: f64) -> Option<&Candidate> {
    let mut rest = target;
    let drawn = kept.iter().find(|c| {
        rest -= c.weight;
        rest < 0.0
    });
    // Rounding can leave a remainder after the last token.
    drawn.or(kept.last())
}

/// The log-probs of a token, from `logprob` under the model itself, the `distance` of its logit from the largest (both
/// after the penalties), the `total` of exp(distance / T) over the vocabulary, and the support with its part
/// of that sum.
pub(crate) fn token_logprob(
    logprob: f32,
    distance: f64,
    temperature: f32,
    total: f64,
    kept: Option<(&[Candidate], f64)>,
) -> TokenLogprob {
    if temperature == 0.0 {
        return TokenLogprob { logprob, ..TokenLogprob::default() };
    }
    let scaled = distance / f64::from(temperature);
    let (log_kept_mass, kept_count) =
        kept.map_or((0.0, 0), |(kept, mass)| ((mass / total).ln().min(0.0) as f32, kept.len() as u32));
    TokenLogprob { logprob, logprob_at_temperature: (scaled - total.ln()) as f32, log_kept_mass, kept_count }
}

/// Draws a token from a row of logits (`[vocab]`) with `uniform` in (0, 1).
///
/// # Errors
/// When the logits are not finite.
pub fn sample_row(
    logits: &[f32],
    params: &SamplingParams,
    seen: &SeenTokens,
    uniform: f64,
    scratch: &mut Scratch,
) -> Result<Draw, RowError> {
    Ok(sample_row_and_top(logits, params, seen, uniform, 0, scratch)?.0)
}

/// As [`sample_row`], with the `top` likeliest tokens of the distribution that is drawn from ([`Distribution::top`]).
///
/// # Errors
/// As [`sample_row`].
pub fn sample_row_and_top(
    logits: &[f32],
    params: &SamplingParams,
    seen: &SeenTokens,
    uniform: f64,
    top: usize,
    scratch: &mut Scratch,
) -> Result<(Draw, Vec<TopLogprob>), RowError> {
    let distribution = Distribution::new(logits, params, seen, scratch)?;
    let token = distribution.draw(uniform);
    Ok((Draw { token, logprob: distribution.logprob(token) }, distribution.top(top)))
}

/// The token at which the cumulative weight passes `target`; the last token with any weight when rounding leaves a
/// remainder.
fn invert(row: &[f32], max: f32, scale: f32, sums: &[f64], target: f64) -> u32 {
    let mut rest = target;
    let mut last = 0;
    for (b, (&sum, block)) in sums.iter().zip(row.chunks(BLOCK)).enumerate() {
        if rest >= sum && b + 1 < sums.len() {
            rest -= sum;
            continue;
        }
        for (i, &logit) in block.iter().enumerate() {
            let weight = f64::from(exp_nonpositive((logit - max) * scale));
            if weight > 0.0 {
                last = b * BLOCK + i;
                rest -= weight;
                if rest < 0.0 {
                    return last as u32;
                }
            }
        }
    }
    last as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use shared::generation::rng;

    fn floats(value: &Value) -> Vec<f64> {
        value
            .as_array()
            .expect("an array")
            .iter()
            .map(|v| v.as_f64().or_else(|| (v == "-inf").then_some(f64::NEG_INFINITY)).expect("a number"))
            .collect()
    }

    fn keys(value: &Value) -> Vec<&str> {
        let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    fn draw(logits: &[f32], params: &SamplingParams, seen: &SeenTokens, uniform: f64) -> Draw {
        sample_row(logits, params, seen, uniform, &mut Scratch::default()).expect("finite logits")
    }

    #[test]
    fn golden_sampling_distribution() {
        let golden = harness::golden("sampling.json");
        assert_eq!(golden["kind"], "sampling");
        let cases = golden["cases"].as_array().expect("cases");
        assert!(!cases.is_empty());
        for case in cases {
            let name = case["name"].as_str().expect("a name");
            assert_eq!(keys(case), ["expected", "inputs", "name", "params"], "{name}");
            let p = &case["params"];
            assert_eq!(keys(p), ["min_p", "repetition_penalty", "temperature", "top_k", "top_p"], "{name}");
            assert_eq!(keys(&case["inputs"]), ["context_ids", "logits"], "{name}");
            assert_eq!(keys(&case["expected"]), ["kept", "logprobs_kept", "probs"], "{name}");
            let params = SamplingParams {
                temperature: p["temperature"].as_f64().unwrap() as f32,
                top_k: p["top_k"].as_u64().unwrap() as u32,
                top_p: p["top_p"].as_f64().unwrap() as f32,
                min_p: p["min_p"].as_f64().map(|v| v as f32),
                repetition_penalty: p["repetition_penalty"].as_f64().unwrap() as f32,
                ..SamplingParams::default()
            };
            let logits: Vec<f32> = floats(&case["inputs"]["logits"]).iter().map(|&l| l as f32).collect();
            let context: Vec<u32> = floats(&case["inputs"]["context_ids"]).iter().map(|&t| t as u32).collect();
            let kept: Vec<usize> = floats(&case["expected"]["kept"]).iter().map(|&t| t as usize).collect();
            check_distribution(name, &params, &logits, &SeenTokens::new(&context), &kept, &case["expected"]);
        }
    }

    fn check_distribution(
        name: &str,
        params: &SamplingParams,
        logits: &[f32],
        seen: &SeenTokens,
        kept: &[usize],
        expected: &Value,
    ) {
        let probs = floats(&expected["probs"]);
        let mut logprobs = floats(&expected["logprobs_kept"]);
        if logprobs.is_empty() {
            logprobs = kept.iter().map(|&token| probs[token].ln()).collect();
        }
        assert_eq!((kept.len(), logits.len()), (logprobs.len(), probs.len()), "{name}");
        let mut scratch = Scratch::default();
        let distribution = Distribution::new(logits, params, seen, &mut scratch).expect("finite logits");
        let own: Vec<usize> =
            distribution.kept().map_or((0..logits.len()).collect(), |k| k.iter().map(|c| c.token as usize).collect());
        assert_eq!(own, kept, "{name}: support");
        let mut before = 0.0;
        for (&token, &exact) in kept.iter().zip(&logprobs) {
            let got = distribution.logprob(token as u32);
            let error = (f64::from(got.sampling_logprob()) - exact).abs();
            // The reference takes the logarithm of a probability, which is rounded to few bits below 1e-308.
            let rounding = if exact < f64::MIN_POSITIVE.ln() { 1.0 } else { 0.0 };
            let bound = 1e-5 * exact.abs().max(1.0) + rounding;
            assert!(error <= bound, "{name}: token {token}: {got:?} against {exact}");
            assert_eq!(got.kept_count as usize, if params.truncated() { kept.len() } else { 0 }, "{name}");
            // Tokens come in the order of the vocabulary: every point of a token's interval must give it.
            let prob = probs[token];
            for part in [0.01, 0.5, 0.99] {
                if prob > 1e-4 {
                    assert_eq!(distribution.draw(before + part * prob) as usize, token, "{name}");
                }
            }
            before += prob;
        }
        assert!((before - 1.0).abs() < 1e-9, "{name}: the expected probabilities sum to {before}");
        let mut likeliest: Vec<(usize, f64)> = kept.iter().copied().zip(logprobs).collect();
        likeliest.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let own = |token: u32| likeliest.iter().find(|(other, _)| *other == token as usize).expect("of the support").1;
        let top = distribution.top(5);
        assert_eq!(top.len(), kept.len().min(5), "{name}");
        for (found, &(_, exact)) in top.iter().zip(&likeliest) {
            let rounding = if exact < f64::MIN_POSITIVE.ln() { 1.0 } else { 0.0 };
            let bound = 1e-5 * exact.abs().max(1.0) + rounding;
            // Equal ones may stand in any order.
            let apart = (found.logprob - exact).abs().max((own(found.token) - exact).abs());
            assert!(apart <= bound, "{name}: {found:?} against {exact}");
        }
    }

    #[test]
    fn reference_log_probs_ignore_penalty_and_temperature() {
        let logits = [1.0_f32, -2.0, 0.5, 3.0];
        let params =
            SamplingParams { temperature: 0.5, repetition_penalty: 1.5, top_k: 2, ..SamplingParams::default() };
        let z: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for u in [0.01, 0.5, 0.99] {
            let drawn = draw(&logits, &params, &SeenTokens::new(&[3, 1]), u);
            let exact = f64::from(logits[drawn.token as usize]) - z.ln();
            assert!((f64::from(drawn.logprob.logprob) - exact).abs() < 1e-6);
            assert!(drawn.logprob.log_kept_mass < 0.0 && drawn.logprob.kept_count == 2);
        }
    }

    /// As vLLM's `apply_penalties`: the repetition penalty counts prompt and completion, OpenAI's the completion alone.
    #[test]
    fn penalties_change_the_logits_of_earlier_tokens() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplingParams::default()
        };
        let mut seen = SeenTokens::new(&[0, 1, 1]);
        for token in [1, 2, 2, 2] {
            seen.insert(token);
        }
        let (logits, mut scratch) = ([1.0_f32, 2.0, -1.0, 0.5], Scratch::default());
        let distribution = Distribution::new(&logits, &params, &seen, &mut scratch).unwrap();
        let penalised = [0.5, 1.0 - 0.75, -2.0 - 1.25, 0.5];
        assert_eq!(distribution.row, penalised);
        let total: f64 = penalised.iter().map(|&logit| f64::from(logit).exp()).sum();
        for (token, logit) in penalised.into_iter().enumerate() {
            let found = distribution.logprob(token as u32).sampling_logprob();
            assert!((f64::from(found) - (f64::from(logit) - total.ln())).abs() < 1e-6, "{token}");
        }
        // A reward for tokens that are there already.
        let fond = SamplingParams { presence_penalty: -2.0, temperature: 0.0, ..SamplingParams::default() };
        assert_eq!(draw(&logits, &fond, &seen, 0.5).token, 1);
        seen.insert(3);
        assert_eq!(draw(&[1.0, 1.0, -1.0, 2.0], &fond, &seen, 0.5).token, 3);
    }

    #[test]
    fn greedy_takes_the_first_maximum_and_reports_temperature_one_only() {
        let params = SamplingParams { temperature: 0.0, top_k: 2, top_p: 0.5, ..SamplingParams::default() };
        let drawn = draw(&[0.0, 2.0, 2.0, -1.0], &params, &SeenTokens::default(), 0.99);
        assert_eq!(drawn.token, 1);
        let z: f64 = [0.0_f64, 2.0, 2.0, -1.0].iter().map(|l| l.exp()).sum();
        assert!((f64::from(drawn.logprob.logprob) - (2.0 - z.ln())).abs() < 1e-6);
        let none = TokenLogprob { logprob: drawn.logprob.logprob, ..TokenLogprob::default() };
        assert_eq!(drawn.logprob, none);
        let penalty = SamplingParams { repetition_penalty: 2.0, ..params };
        assert_eq!(draw(&[0.0, 2.0, 1.5, -1.0], &penalty, &SeenTokens::new(&[1]), 0.5).token, 2);
    }

    #[test]
    fn frequencies_follow_the_distribution_over_many_blocks() {
        let mut stream = rng::Stream::new(&[3]);
        let logits: Vec<f32> = (0..1000).map(|_| (stream.next_normal() * 2.0) as f32).collect();
        let z: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let draws = 200_000;
        let mut counts = vec![0u32; logits.len()];
        let (params, seen, mut scratch) = (SamplingParams::default(), SeenTokens::default(), Scratch::default());
        for i in 0..draws {
            let u = rng::token_uniform(1, 0, 0, 0, i);
            counts[sample_row(&logits, &params, &seen, u, &mut scratch).unwrap().token as usize] += 1;
        }
        // Chi-squared over the tokens with enough expected draws: its mean is the degrees of freedom.
        let (mut chi, mut cells) = (0.0, 0.0);
        for (&count, &l) in counts.iter().zip(&logits) {
            let expected = f64::from(l).exp() / z * f64::from(draws);
            if expected >= 10.0 {
                chi += (f64::from(count) - expected).powi(2) / expected;
                cells += 1.0;
            }
        }
        assert!(cells > 300.0 && (chi - cells).abs() < 5.0 * (2.0_f64 * cells).sqrt(), "chi² {chi} over {cells} cells");
    }

    #[test]
    fn damaged_logits_are_an_error() {
        for bad in [f32::NAN, f32::INFINITY] {
            let result = sample_row(
                &[0.0, bad, 1.0],
                &SamplingParams::default(),
                &SeenTokens::default(),
                0.5,
                &mut Scratch::default(),
            );
            assert_eq!(result, Err(RowError::NotFinite));
        }
    }

    #[test]
    fn parameters_that_no_logits_survive_are_an_error() {
        let tiny = 1e-39;
        for (temperature, repetition_penalty) in [(tiny, 1.0), (1.0, tiny)] {
            let params = SamplingParams { temperature, repetition_penalty, ..SamplingParams::default() };
            let result = sample_row(&[0.5, 2.0, 1.0], &params, &SeenTokens::new(&[1]), 0.5, &mut Scratch::default());
            assert_eq!(result, Err(RowError::Overflow { temperature, repetition_penalty }));
        }
    }
}
