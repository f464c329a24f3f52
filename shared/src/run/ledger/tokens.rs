//! The loss's treatment of a completion's tokens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A completion: a line of `completions/tokens-N.jsonl`. Lists have one number for each token, or none at all where it
/// was in no pass of the learner. Given tokens have null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Index of the group within the step's batch.
    pub group: u32,
    /// Index of the completion within its group.
    pub sample: u32,
    /// The tokens, sampled and given.
    pub tokens: Vec<u32>,
    /// The owner mask: 1 for each sampled token, 0 for each given one; left out if all were sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner: Vec<u8>,
    /// First tokens of the conversations of an agent beside the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<u32>,
    /// Runs of versions of the weights: (first token, version).
    pub versions: Vec<(u32, u64)>,
    /// Log-probs under the distribution that the sampler drew from.
    #[serde(with = "nullable")]
    pub sampler: Vec<f32>,
    /// Log-probs under the learner's policy at the beginning of the step.
    #[serde(with = "nullable")]
    pub learner: Vec<f32>,
    /// Entropies of the learner's distributions, in nats; null for tokens outside the loss.
    #[serde(with = "nullable")]
    pub entropy: Vec<f32>,
    /// Advantages.
    #[serde(with = "nullable")]
    pub advantages: Vec<f32>,
    /// Weights of the correction for the mismatch: one for each token, or one for the completion; none without a
    /// correction.
    #[serde(with = "nullable")]
    pub weights: Vec<f32>,
    /// Tokens that were clipped or masked in any pass, by the metric that counts them.
    pub marks: BTreeMap<String, Vec<u32>>,
}

impl TokenRecord {
    /// Whether a token was given to the policy.
    #[must_use]
    pub fn is_given(&self, token: usize) -> bool {
        self.owner.get(token) == Some(&0)
    }
}

/// JSON has no NaN.
mod nullable {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| value.is_finite().then_some(*value)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
        let values = Vec::<Option<f32>>::deserialize(deserializer)?;
        Ok(values.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect())
    }
}

impl crate::files::journal::Entry for TokenRecord {
    fn step(&self) -> Option<u64> {
        Some(0)
    }
}
