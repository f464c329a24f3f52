//! The canaries of a version: the learner's log-probs of a few tokens, which a sampler checks before it draws from the
//! version.

use shared::{Canaries, Dtype, PolicyVersion, generation::rng::Stream};
use tch::Kind;

use crate::{
    batch::Sequence,
    error::LearnerError,
    model::{Decoder, HostParameters},
    step::{StepBatch, evaluate},
};

/// Tokens that are scored.
const SCORED: usize = 8;
/// Every so many versions, the canaries are a whole sequence, whose last tokens are scored: it reaches far into the
/// tables of positions. Otherwise they are [`SCORED`] tokens and one before them.
const WHOLE_EVERY: u64 = 100;
/// Distinguishes canaries from other uses of the seed.
const KEY: u64 = 0x6361_6e61;

/// Tokens of a step's batch for the `published`-th version that this process publishes: the beginning of a sequence, or
/// all of the longest one. None where every sequence is a single token.
#[must_use]
pub fn of_batch(batch: &StepBatch<'_>, published: u64) -> Option<Vec<u32>> {
    let rows = || batch.rows.iter().map(|row| row.sequence()).filter(|row| row.length() > 1);
    let (row, most) = if published.is_multiple_of(WHOLE_EVERY) {
        (rows().max_by_key(Sequence::length)?, usize::MAX)
    } else {
        (rows().nth(published as usize % rows().count().max(1))?, SCORED + 1)
    };
    Some(row.longest_text().take(most).collect())
}

/// Tokens for a version before the first batch.
#[must_use]
pub fn drawn(seed: u64, version: PolicyVersion, vocabulary: usize) -> Vec<u32> {
    let mut stream = Stream::new(&[seed, KEY, version.0]);
    (0..=SCORED).map(|_| stream.below(vocabulary as u64) as u32).collect()
}

/// The canaries of `policy` for some tokens, two at least. `host` has the policy's parameters.
///
/// # Errors
/// When libtorch cannot copy values, or a log-prob is not finite.
pub fn measure(
    policy: &Decoder,
    host: &HostParameters<'_>,
    version: PolicyVersion,
    token_ids: &[u32],
) -> Result<Canaries, LearnerError> {
    let scored = SCORED.min(token_ids.len() - 1);
    let (prompt, completion) = token_ids.split_at(token_ids.len() - scored);
    let sequence = Sequence::new(prompt, completion);
    let found = evaluate(policy, &[sequence], &[0], 1.0, token_ids.len(), policy.device())?;
    require_finite(version, &found.logprobs[0])?;
    let weights = policy.weights();
    let norm = |(name, _): (&str, _)| Ok((name.to_owned(), exporters::norm(host.values(name)?)));
    Ok(Canaries {
        version,
        dtype: if weights.base().flat().kind() == Kind::BFloat16 { Dtype::Bf16 } else { Dtype::Fp32 },
        token_ids: token_ids.to_vec(),
        logprobs: found.logprobs[0].to_vec(),
        norms: weights.read().named().map(norm).collect::<Result<_, LearnerError>>()?,
    })
}

/// Finite weights may be so large that the log-probs are not finite.
fn require_finite(version: PolicyVersion, logprobs: &[f64]) -> Result<(), LearnerError> {
    if logprobs.iter().all(|logprob| logprob.is_finite()) {
        return Ok(());
    }
    let way_out = if version.0 == 0 {
        "take another model, or one that is stored in bfloat16 or float32"
    } else {
        "training has diverged: lower `learning_rate` first, and go on from an earlier checkpoint or begin again"
    };
    Err(LearnerError::Diverged(format!("the log-probs of weights v{version} are not finite; {way_out}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_whose_log_probs_are_no_numbers_has_diverged() {
        require_finite(PolicyVersion(7), &[-0.5, -80.0]).unwrap();
        for wrong in [f64::NAN, f64::NEG_INFINITY] {
            let error = require_finite(PolicyVersion(7), &[-0.5, wrong]).unwrap_err();
            assert!(matches!(error, LearnerError::Diverged(_)));
            let text = error.to_string();
            assert!(
                text.starts_with("the log-probs of weights v7 are not finite; ") && text.contains("`learning_rate`")
            );
        }
        let text = require_finite(PolicyVersion(0), &[f64::NAN]).unwrap_err().to_string();
        assert!(!text.contains("learning_rate"), "nothing was trained: {text}");
    }
}
