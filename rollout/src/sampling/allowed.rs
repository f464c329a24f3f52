//! Sampling of a row of which only some tokens may come: constrained decoding.

use shared::{SamplingParams, TokenLogprob};

use super::{
    row::{Distribution, Draw, RowError, Scratch, SeenTokens},
    top::TopLogprob,
};

/// As [`sample_row`](super::sample_row), of the tokens whose bits are set in `allowed` (bit `t % 32` of word `t / 32`);
/// none if the row has no such token.
///
/// The other tokens leave before anything else is done, and truncation cuts what is left. To the log-probs, the
/// constraint is a truncation: `log_kept_mass` is the mass of the tokens that both leave, `kept_count` their number.
/// Greedy sampling has these figures too, at temperature 1, and of the tokens that the constraint leaves.
///
/// # Errors
/// When the logits are not finite.
pub fn sample_allowed(
    logits: &[f32],
    allowed: &[u32],
    params: &SamplingParams,
    seen: &SeenTokens,
    uniform: f64,
    scratch: &mut Scratch,
) -> Result<Option<Draw>, RowError> {
    let drawn = sample_allowed_and_top(logits, allowed, params, seen, uniform, 0, scratch)?;
    Ok(drawn.map(|(draw, _)| draw))
}

/// As [`sample_allowed`], with the `top` likeliest of the tokens that are left.
///
/// # Errors
/// As [`sample_allowed`].
pub fn sample_allowed_and_top(
    logits: &[f32],
    allowed: &[u32],
    params: &SamplingParams,
    seen: &SeenTokens,
    uniform: f64,
    top: usize,
    scratch: &mut Scratch,
) -> Result<Option<(Draw, Vec<TopLogprob>)>, RowError> {
    let mut masked = std::mem::take(&mut scratch.masked);
    let count = mask(logits, allowed, &mut masked);
    let drawn = (count > 0).then(|| sample(logits, (&masked, count), params, seen, uniform, top, scratch));
    scratch.masked = masked;
    drawn.transpose()
}

/// Writes the row with negative infinity for all tokens that may not come; returns the number of the others.
fn mask(logits: &[f32], allowed: &[u32], masked: &mut Vec<f32>) -> u32 {
    masked.clear();
    masked.resize(logits.len(), f32::NEG_INFINITY);
    let mut count = 0;
    for ((&word, from), to) in allowed.iter().zip(logits.chunks(32)).zip(masked.chunks_mut(32)) {
        if word == 0 {
            continue;
        }
        for (bit, (&logit, to)) in from.iter().zip(to).enumerate() {
            if word >> bit & 1 == 1 {
                *to = logit;
                count += 1;
            }
        }
    }
    count
}

fn sample(
    logits: &[f32],
    (masked, count): (&[f32], u32),
    params: &SamplingParams,
    seen: &SeenTokens,
    uniform: f64,
    top: usize,
    scratch: &mut Scratch,
) -> Result<(Draw, Vec<TopLogprob>), RowError> {
    let of_allowed = Distribution::new(masked, params, seen, scratch)?;
    let token = of_allowed.draw(uniform);
    let (within, kept) = (of_allowed.logprob(token), of_allowed.kept().map(|kept| kept.len() as u32));
    let top = of_allowed.top(top);
    let whole = Distribution::cut(logits, params, false, seen, scratch)?.logprob(token);
    // At temperature 0 nothing is truncated, and the figures are those at temperature 1.
    let (at_temperature, sampling, kept_count) = match params.greedy() {
        true => (whole.logprob, within.logprob, count),
        false => (whole.logprob_at_temperature, within.sampling_logprob(), kept.unwrap_or(count)),
    };
    let logprob = TokenLogprob {
        logprob: whole.logprob,
        logprob_at_temperature: at_temperature,
        log_kept_mass: (at_temperature - sampling).min(0.0),
        kept_count,
    };
    Ok((Draw { token, logprob }, top))
}

#[cfg(test)]
mod tests {
    use shared::generation::rng::Stream;

    use super::*;
    use crate::sampling::sample_row_and_top;

    fn bits(tokens: &[u32], vocab: usize) -> Vec<u32> {
        let mut bits = vec![0; vocab.div_ceil(32)];
        tokens.iter().for_each(|token| bits[*token as usize / 32] |= 1 << (token % 32));
        bits
    }

    fn samplings() -> Vec<SamplingParams> {
        let base = SamplingParams::default();
        let mut all = vec![SamplingParams { temperature: 0.0, ..base.clone() }];
        for (temperature, top_k, top_p, min_p, repetition_penalty) in [
            (1.0, 0, 1.0, None, 1.0),
            (0.7, 0, 1.0, None, 1.3),
            (1.3, 5, 1.0, None, 1.0),
            (1.0, 400, 1.0, None, 1.0),
            (1.0, 0, 0.8, None, 1.0),
            (0.9, 0, 1.0, Some(0.1), 1.2),
            (1.0, 50, 0.9, Some(0.01), 1.0),
        ] {
            all.push(SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, ..base.clone() });
        }
        all
    }

    /// The reference has never heard of masks: it samples a row that has the allowed tokens and no others.
    #[test]
    fn a_token_is_drawn_as_from_a_row_of_the_allowed_tokens_alone() {
        let mut stream = Stream::new(&[5]);
        let logits: Vec<f32> = (0..1000).map(|_| (stream.next_normal() * 3.0) as f32).collect();
        let mut scratch = Scratch::default();
        for few in [1, 3, 40, 700] {
            let mut tokens: Vec<u32> = (0..few).map(|_| (stream.next_f64() * 1000.0) as u32).collect();
            tokens.sort_unstable();
            tokens.dedup();
            let allowed = bits(&tokens, logits.len());
            let row: Vec<f32> = tokens.iter().map(|&token| logits[token as usize]).collect();
            // Every third of them was there before.
            let repeated: Vec<u32> = (0..tokens.len() as u32).step_by(3).collect();
            let seen_of =
                |of: &dyn Fn(u32) -> u32| SeenTokens::new(&repeated.iter().map(|&token| of(token)).collect::<Vec<_>>());
            let (here, there) = (seen_of(&|at| tokens[at as usize]), seen_of(&|at| at));
            for params in samplings() {
                for _ in 0..50 {
                    let uniform = stream.next_f64();
                    let drawn = sample_allowed_and_top(&logits, &allowed, &params, &here, uniform, 4, &mut scratch);
                    let (Draw { token, logprob }, top) = drawn.unwrap().expect("some tokens are allowed");
                    let of_row = sample_row_and_top(&row, &params, &there, uniform, 4, &mut Scratch::default());
                    let (alone, top_alone) = of_row.unwrap();
                    assert_eq!(token, tokens[alone.token as usize], "{params:?}");
                    assert_eq!(top.len(), top_alone.len(), "{params:?}");
                    for (found, alone) in top.iter().zip(&top_alone) {
                        assert_eq!(found.token, tokens[alone.token as usize], "{params:?}");
                        assert!((found.logprob - alone.logprob).abs() < 2e-5, "{params:?}: {found:?} and {alone:?}");
                    }
                    let exact = if params.greedy() { alone.logprob.logprob } else { alone.logprob.sampling_logprob() };
                    assert!((logprob.sampling_logprob() - exact).abs() < 2e-5, "{params:?}: {logprob:?} and {exact}");
                    let count = if params.truncated() { alone.logprob.kept_count } else { tokens.len() as u32 };
                    assert_eq!(logprob.kept_count, count, "{params:?}");
                    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
                    let of_model = f64::from(logits[token as usize]) - total.ln();
                    assert!((f64::from(logprob.logprob) - of_model).abs() < 1e-5, "that of the model itself");
                }
            }
        }
    }

    #[test]
    fn where_no_token_may_come_none_does_and_a_damaged_row_is_an_error() {
        let (seen, params) = (SeenTokens::default(), SamplingParams::default());
        let mut scratch = Scratch::default();
        let mut draw = |logits: &[f32], allowed: &[u32]| {
            let drawn = sample_allowed(logits, allowed, &params, &seen, 0.5, &mut scratch);
            drawn.map(|drawn| drawn.map(|drawn| drawn.token))
        };
        assert_eq!(draw(&[0.0; 40], &[0, 0]), Ok(None));
        assert_eq!(draw(&[0.0; 40], &[]), Ok(None));
        assert_eq!(draw(&[0.0; 40], &[0, 1 << 7]), Ok(Some(39)));
        assert_eq!(draw(&[0.0; 40], &[0, 1 << 8]), Ok(None), "the row has no such token");
        let mut damaged = [0.0; 40];
        damaged[3] = f32::NAN;
        assert_eq!(draw(&damaged, &[1, 0]), Err(RowError::NotFinite), "though it may not come");
    }
}
