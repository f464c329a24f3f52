//! Sequence lengths beyond those of a model.

use super::{Notice, NoticeKind};
use crate::config::TrainConfig;

/// A notice if a model with `positions` positions allows fewer tokens of prompt and completion together than the
/// options ask for.
#[must_use]
pub fn model_length(config: &TrainConfig, positions: usize) -> Option<Notice> {
    let (limit, what) = match config.max_model_len {
        Some(limit) => (limit, "`max_model_len`"),
        None => (positions, "the positions of the model (`max_position_embeddings`)"),
    };
    let completion = config.max_completion_length as usize;
    let (asked, names) = match config.max_prompt_length {
        Some(prompt) => (prompt as usize + completion, "`max_prompt_length` and `max_completion_length` are"),
        // A prompt has at least one token.
        None => (completion + 1, "a prompt and `max_completion_length` are at least"),
    };
    (asked > limit).then(|| {
        let text = format!("{names} {asked} tokens, and {what} {limit}: completions are cut off there");
        let remedy = format!("lower `max_completion_length` {completion}, or take a model that is long enough");
        Notice::new(NoticeKind::ModelLength, 0, text, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_the_model_are_told_with_both_figures() {
        let told = |max_completion_length, max_prompt_length, max_model_len, positions| {
            let config =
                TrainConfig { max_completion_length, max_prompt_length, max_model_len, ..TrainConfig::default() };
            model_length(&config, positions).map(|notice| notice.to_string())
        };
        assert_eq!(told(4096, None, None, 32_768), None);
        assert_eq!(told(63, None, None, 64), None);
        assert_eq!(told(512, Some(512), None, 1024), None);
        let text = told(4096, None, None, 64).unwrap();
        assert!(text.contains("at least 4097 tokens") && text.contains("(`max_position_embeddings`) 64:"), "{text}");
        assert!(text.contains("lower `max_completion_length` 4096"), "{text}");
        assert!(
            told(512, Some(513), None, 1024)
                .unwrap()
                .contains("`max_prompt_length` and `max_completion_length` are 1025")
        );
        assert!(told(512, None, Some(512), 1024).unwrap().contains("`max_model_len` 512:"));
    }
}
