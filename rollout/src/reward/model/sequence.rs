//! The tokens of a completion that a reward model reads.

use rollout_rewards::{RewardCompletion, RewardInput, steps::Step};

use crate::data::Tokenizer;

/// Tokens of a prompt with a completion, and the places whose scores are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sequence {
    pub ids: Vec<u32>,
    /// Indices in `ids`; none for an empty completion.
    pub places: Vec<usize>,
    /// For each place, the last token of the step within the completion; `None` when the completion is scored as a
    /// whole.
    pub steps: Option<Vec<u32>>,
}

impl Sequence {
    /// The policy's own tokens.
    pub fn of_tokens(input: &RewardInput, completion: &RewardCompletion, steps: Option<Vec<Step>>) -> Self {
        let ids: Vec<u32> = input.prompt_ids.iter().chain(&completion.token_ids).copied().collect();
        let place = |step: &Step| input.prompt_ids.len() + step.end as usize;
        Self::new(ids, steps.as_ref().map(|steps| steps.iter().map(place).collect()), steps)
    }

    /// The tokens that `tokenizer` makes of the texts, without special tokens around them.
    ///
    /// # Errors
    /// When the tokenizer's model cannot represent the text.
    pub fn of_text(
        tokenizer: &Tokenizer,
        input: &RewardInput,
        completion: &RewardCompletion,
        steps: Option<Vec<Step>>,
    ) -> Result<Self, String> {
        let text = format!("{}{}", input.prompt, completion.text);
        let tokens = tokenizer.encode_with_offsets(&text).map_err(|e| e.to_string())?;
        let ids = tokens.iter().map(|token| token.id).collect();
        // The last token that begins within the step: all pieces of a character begin where it does.
        let place = |step: &Step| {
            let end = input.prompt.len() + step.text.end;
            tokens.partition_point(|token| token.start < end).saturating_sub(1)
        };
        Ok(Self::new(ids, steps.as_ref().map(|steps| steps.iter().map(place).collect()), steps))
    }

    fn new(ids: Vec<u32>, places: Option<Vec<usize>>, steps: Option<Vec<Step>>) -> Self {
        let places = places.unwrap_or_else(|| ids.len().checked_sub(1).into_iter().collect());
        Self { ids, places, steps: steps.map(|steps| steps.iter().map(|step| step.end).collect()) }
    }
}
