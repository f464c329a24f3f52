//! Versions that are not what the learner published: nothing is drawn from them, and the run goes on once they are
//! right.

use std::{
    fs,
    time::{Duration, Instant},
};

use shared::{
    PolicyVersion, WeightManifest,
    channel::{LearnerEnd, Refusal},
    model::manifest::DATA_FILE,
};

use super::support::{Learner, Run, STUCK, assert_same, synchronous_run};

/// Writes a version with a byte that is wrong; returns the bytes as they should be.
fn write_damaged(run: &Run, version: u64) -> Vec<u8> {
    run.write_version(version);
    let dir = run.run_dir.version(PolicyVersion(version));
    let manifest = WeightManifest::read(&dir).unwrap();
    let good = fs::read(dir.join(DATA_FILE)).unwrap();
    let mut bad = good.clone();
    bad[manifest.tensor("model.layers.1.mlp.up_proj.weight").unwrap().offset as usize] ^= 1;
    fs::write(dir.join(DATA_FILE), bad).unwrap();
    good
}

/// Waits until the sampler refuses a version, while groups are taken.
fn refusal(learner: &mut Learner<'_>) -> Refusal {
    let begin = Instant::now();
    loop {
        learner.speak();
        learner.take_next(Duration::from_millis(1));
        if let Some(refusal) = learner.end.sampler_status().unwrap().and_then(|status| status.refusal) {
            return refusal;
        }
        assert!(begin.elapsed() < STUCK, "nothing is refused");
    }
}

/// Takes messages and groups for a moment.
fn listen(learner: &mut Learner<'_>) {
    for _ in 0..50 {
        learner.speak();
        learner.take_next(Duration::from_millis(10));
    }
}

fn put_right(run: &Run, learner: &mut Learner<'_>, version: u64, good: &[u8]) {
    fs::write(run.run_dir.version(PolicyVersion(version)).join(DATA_FILE), good).unwrap();
    listen(learner);
    assert_eq!(
        refusal(learner).publication,
        learner.status.publication,
        "it is not tried before it is published again"
    );
    learner.status.publication += 1;
}

#[test]
fn a_synchronous_run_waits_for_a_version_to_be_published_again_and_is_the_same() {
    let run = Run::new(|_| {});
    let first = write_damaged(&run, 0);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    let reason = refusal(&mut learner).reason;
    assert!(reason.contains("model.layers.1.mlp.up_proj.weight"), "{reason}");
    put_right(&run, &mut learner, 0, &first);
    learner.train(1);

    let second = write_damaged(&run, 2);
    learner.train(2);
    let found = refusal(&mut learner);
    assert_eq!((found.version, found.publication), (PolicyVersion(2), 1));
    listen(&mut learner);
    assert!(learner.groups.keys().all(|id| id.step.0 < 2), "nothing is drawn from a refused version");
    put_right(&run, &mut learner, 2, &second);
    learner.train(5);
    assert_same(&synchronous_run(|_| {}), &learner.dismiss(sampler));
}

#[test]
fn the_version_before_goes_on_within_its_bound() {
    let run = Run::new(|config| config.max_staleness = 1);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    let good = write_damaged(&run, 1);
    learner.train(1);
    assert_eq!(refusal(&mut learner).version, PolicyVersion(1));
    learner.receive(3);
    listen(&mut learner);
    assert!(learner.groups.values().all(|group| group.policy_version.0 == 0 && group.id.step.0 <= 1));
    put_right(&run, &mut learner, 1, &good);
    learner.train(5);
    learner.dismiss(sampler);
}

/// Without the gate, the same version is drawn from.
#[test]
fn without_the_gate_nothing_is_looked_at() {
    let run = Run::new(|config| config.conformity_gate = false);
    write_damaged(&run, 1);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(5);
    learner.dismiss(sampler);
}
