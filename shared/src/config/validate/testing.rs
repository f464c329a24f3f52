//! Configurations for the tests of validation.

use crate::config::TrainConfig;

/// The defaults with what every run must name.
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

/// A change after which the configuration is refused in one line with these words.
pub(super) fn refused(words: &str, change: impl FnOnce(&mut TrainConfig)) {
    let message = changed(change).validate().expect_err(words).to_string();
    assert!(message.contains(words) && !message.contains('\n'), "{words}: {message}");
}

/// A change after which it is still valid.
pub(super) fn accepted(change: impl FnOnce(&mut TrainConfig)) {
    changed(change).validate().unwrap();
}
