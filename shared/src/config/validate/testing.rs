//! Configurations for the tests of validation.

use crate::config::TrainConfig;

/// The defaults, with the options that every run must give.
pub(super) fn valid() -> TrainConfig {
    TrainConfig {
        model: "model".into(),
        dataset: "train.jsonl".into(),
        reward_funcs: vec!["format".into()],
        ..TrainConfig::default()
    }
}

fn changed(change: impl FnOnce(&mut TrainConfig)) -> TrainConfig {
    let mut config = valid();
    change(&mut config);
    config
}

/// Checks that the configuration is refused after a change, in one line with these words.
pub(super) fn refused(words: &str, change: impl FnOnce(&mut TrainConfig)) {
    let message = changed(change).validate().expect_err(words).to_string();
    assert!(message.contains(words) && !message.contains('\n'), "{words}: {message}");
}

/// Checks that the configuration is still valid after a change.
pub(super) fn accepted(change: impl FnOnce(&mut TrainConfig)) {
    changed(change).validate().unwrap();
}
