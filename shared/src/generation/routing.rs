//! Experts that the sampler chose, for a learner that chooses the same ones (rollout routing replay, Ma et al. 2025,
//! arXiv:2510.11370; verl's R3).

use serde::{Deserialize, Serialize};

/// The chosen experts of every token that the sampler computed, from the first one of the prompt on. The last token of
/// a completion is computed by nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Routing {
    /// Choices of a token: layers with experts, times experts of a token in a layer.
    pub width: u32,
    /// Numbers of experts, token by token, layer by layer.
    pub choices: Vec<u16>,
}

impl Routing {
    /// The choices of a token, counted from the beginning of the prompt; `None` where the sampler computed none.
    #[must_use]
    pub fn of(&self, token: usize) -> Option<&[u16]> {
        let width = self.width as usize;
        self.choices.get(token * width..(token + 1) * width)
    }

    /// Number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.choices.len().checked_div(self.width as usize).unwrap_or(0)
    }
}
