//! What the guard does in whole runs.

use std::{fs, sync::atomic::AtomicBool};

use harness::memory;
use learner::{LearnerError, checkpoint::TrainerState, pair::run};
use shared::{
    ModelDir, RunDir,
    channel::RunId,
    config::TrainConfig,
    metrics::{self, MetricRecord},
    run::notices::{self, NoticeKind},
};
use tch::Device;

use crate::{
    pair::{Folder, assert_same_checkpoint, train},
    support::{self, Manners},
};

/// The fourth step comes with log-probs that are far off.
const ONCE: Manners =
    Manners { strange: Some((3, 4)), untidy: false, pinned: None, fails_from: None, speechless: false, refuses: None };

fn config(folder: &Folder, guard: &str) -> TrainConfig {
    let config = TrainConfig { guard: vec![guard.into()], ..folder.config() };
    config.validate().unwrap();
    config
}

fn fails(run_dir: &RunDir, config: &TrainConfig, manners: Manners) -> String {
    let (sampler, learner) = memory::pair(4);
    let _sampler = support::sampler(sampler, config.clone(), manners);
    let failed = run((run_dir, RunId::NONE), config, Device::Cpu, learner, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(failed, LearnerError::Guard(_)), "{failed}");
    failed.to_string()
}

fn weights(run_dir: &RunDir, step: u64) -> Vec<u8> {
    fs::read(run_dir.checkpoint(step).join("model.safetensors")).unwrap()
}

fn records(run_dir: &RunDir) -> Vec<MetricRecord> {
    metrics::read(&run_dir.metrics()).unwrap()
}

/// Steps of the notices that the guard gave.
fn told(run_dir: &RunDir) -> Vec<u64> {
    let all = notices::read(&run_dir.notices()).unwrap();
    all.iter().filter(|notice| notice.kind == NoticeKind::Guard).map(|notice| notice.step).collect()
}

#[test]
fn a_step_that_is_left_out_makes_a_version_with_the_weights_of_the_one_before() {
    let folder = Folder::new();
    let config = TrainConfig { save_steps: 1, ..config(&folder, "mismatch=skip_step:above=50") };
    let run_dir = folder.run_dir("run");
    train(&run_dir, &config, ONCE);
    assert!(weights(&run_dir, 3) == weights(&run_dir, 4));
    assert!(weights(&run_dir, 2) != weights(&run_dir, 3));
    assert!(weights(&run_dir, 4) != weights(&run_dir, 5));
    let skipped = |metric| records(&run_dir).iter().map(|r| r.get(metric)).collect::<Vec<_>>();
    assert_eq!(skipped(metrics::SKIPPED_UPDATES), [0.0, 0.0, 0.0, 4.0, 0.0, 0.0].map(Some));
    assert_eq!(skipped(metrics::GUARD_SKIPPED_STEPS), [None, None, None, Some(1.0), Some(1.0), Some(1.0)]);
    assert_eq!(told(&run_dir), [4]);
    let state = TrainerState::read(&run_dir.checkpoint(6)).unwrap();
    assert_eq!((state.step, state.cursor, state.carried.updates), (6, 18, 24), "the schedule goes on");
}

#[test]
fn a_roll_back_has_the_weights_of_the_last_healthy_checkpoint_and_goes_on_behind_the_step() {
    let folder = Folder::new();
    let config = config(&folder, "mismatch=roll_back:above=50");
    let (run_dir, again) = (folder.run_dir("run"), folder.run_dir("again"));
    let last = train(&run_dir, &config, ONCE);
    assert_eq!((last.step.0, last.cursor), (6, 18));
    assert_eq!(last.given_up.map(|(after, through)| (after.0, through.0)), Some((2, 3)));
    assert!(weights(&run_dir, 2) == weights(&run_dir, 4));
    assert!(weights(&run_dir, 4) != weights(&run_dir, 6));
    let state = TrainerState::read(&run_dir.checkpoint(4)).unwrap();
    assert_eq!((state.step, state.cursor, state.carried.updates), (4, 12, 16), "its prompts are not drawn again");
    let steps: Vec<Option<f64>> = records(&run_dir).iter().map(|record| record.get(metrics::STEP)).collect();
    assert_eq!(steps, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(Some));
    assert_eq!(records(&run_dir)[4].get(metrics::GUARD_ROLL_BACKS), Some(1.0));
    assert_eq!(told(&run_dir), [4]);
    train(&again, &config, ONCE);
    assert_same_checkpoint(&run_dir, &again, 6);
}

#[test]
fn a_run_without_a_checkpoint_goes_back_to_where_it_began() {
    let folder = Folder::new();
    let config = TrainConfig { save_steps: 100, ..config(&folder, "mismatch=roll_back:above=50") };
    let run_dir = folder.run_dir("run");
    train(&run_dir, &config, ONCE);
    let of = |path| {
        let model = exporters::Checkpoint::open(&ModelDir::open(path).unwrap()).unwrap();
        model.read_f32("model.layers.0.mlp.up_proj.weight").unwrap()
    };
    assert!(of(support::model()) == of(run_dir.checkpoint(4)));
    assert!(of(run_dir.checkpoint(4)) != of(run_dir.checkpoint(6)));
}

#[test]
fn a_stop_keeps_what_was_before_the_step() {
    let folder = Folder::new();
    let run_dir = folder.run_dir("run");
    let error = fails(&run_dir, &config(&folder, "mismatch=stop:above=50"), ONCE);
    assert!(
        error.starts_with("step 4: guard, mismatch=stop: mismatch_kl is ") && error.contains("the run ends"),
        "{error}"
    );
    assert_eq!(run_dir.checkpoints().unwrap(), [2, 3]);
    assert_eq!(records(&run_dir).len(), 3);
}

#[test]
fn a_run_does_not_go_back_for_ever() {
    let folder = Folder::new();
    let run_dir = folder.run_dir("run");
    let config = TrainConfig { guard_max_roll_backs: 1, ..config(&folder, "mismatch=roll_back:above=50") };
    let error = fails(&run_dir, &config, Manners { strange: Some((3, 6)), ..Manners::default() });
    assert!(error.contains("it has gone back 1 times, as often as `guard_max_roll_backs` allows"), "{error}");
    assert_eq!(run_dir.checkpoints().unwrap(), [2, 4]);
}

#[test]
fn weights_that_are_no_finite_numbers_are_neither_saved_nor_published() {
    let folder = Folder::new();
    let run_dir = folder.run_dir("run");
    let config = TrainConfig { learning_rate: 1e38, warmup_steps: 0, save_steps: 1, ..folder.config() };
    let error = fails(&run_dir, &config, Manners::default());
    assert!(
        error.contains("has left weights that are no finite numbers") && error.contains("`learning_rate`"),
        "{error}"
    );
    let start = exporters::Checkpoint::open(&ModelDir::open(support::model()).unwrap()).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    for step in run_dir.checkpoints().unwrap() {
        let saved = exporters::Checkpoint::open(&ModelDir::open(run_dir.checkpoint(step)).unwrap()).unwrap();
        assert!(saved.read_f32(name).unwrap() == start.read_f32(name).unwrap(), "checkpoint-{step}");
    }
    assert_eq!(run_dir.checkpoints().unwrap(), [1, 2, 3], "each goes back to the beginning");
}

#[test]
fn the_last_healthy_checkpoint_is_never_removed() {
    let folder = Folder::new();
    let run_dir = folder.run_dir("run");
    let config = TrainConfig {
        save_steps: 1,
        save_total_limit: Some(1),
        ..config(&folder, "mismatch=roll_back:above=50:steps=50")
    };
    train(&run_dir, &config, Manners { strange: Some((2, 6)), ..Manners::default() });
    assert_eq!(run_dir.checkpoints().unwrap(), [2, 6]);
}
