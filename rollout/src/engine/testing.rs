//! What tests ask an engine for.

use std::sync::Arc;

use shared::{PromptId, SamplingParams};

use super::GroupRequest;

/// Completions of a short prompt.
pub fn group(tag: u64, samples: u32) -> GroupRequest {
    GroupRequest {
        tag,
        prompt_id: PromptId(tag),
        epoch: 0,
        prompt_ids: Arc::from([1, 2]),
        samples: (0..samples).collect(),
        sampling: Arc::new(SamplingParams::default()),
        lengths: None,
        stop_criterion: None,
        constraint: None,
    }
}
