//! A damaged state of a checkpoint. It is tried here and not beside its code, because tests of interfaces are
//! optimised: a parser of all options tries five times as many inputs.

use std::fs;

use learner::checkpoint::{STATE_FILE, TrainerState};
use shared::config::TrainConfig;

/// The states are spoilt as the inputs of `tests/fuzz` are.
#[test]
fn a_state_is_read_as_it_was_written_or_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let state = TrainerState { cursor: 12, ..TrainerState::start(&TrainConfig::default(), 5) };
    let seed = serde_json::to_vec_pretty(&state).unwrap();
    harness::fuzz::explore("trainer_state", &[seed], |bytes| {
        fs::write(dir.path().join(STATE_FILE), bytes).unwrap();
        match TrainerState::read(dir.path()) {
            Ok(state) => {
                let written = serde_json::to_string(&state).unwrap();
                let again: TrainerState = serde_json::from_str(&written).unwrap();
                assert_eq!(serde_json::to_string(&again).unwrap(), written);
            }
            Err(error) => assert!(error.to_string().contains(STATE_FILE), "{error}"),
        }
    });
}
