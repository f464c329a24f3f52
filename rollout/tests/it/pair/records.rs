//! The sampler's own records in the run directory.

use std::collections::BTreeSet;

use harness::timeline::Timeline;
use shared::metrics::{self, catalogue};

use super::support::Run;

#[test]
fn versions_are_evaluated_once_the_last_one_included() {
    let run = Run::new(|config| {
        config.eval_steps = Some(2);
        config.max_steps = Some(6);
    });
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(3);
    sampler.kill();
    let sampler = run.sampler();
    learner.train(6);
    learner.dismiss(sampler);
    let records = metrics::read(&run.run_dir.eval()).unwrap();
    let steps: Vec<f64> = records.iter().map(|r| r.get(metrics::STEP).unwrap()).collect();
    assert_eq!(steps, [0.0, 2.0, 4.0, 6.0]);
    // Every metric of evaluations but those of `rollout eval` alone, and nothing else.
    let recorded: BTreeSet<&str> = records[0]
        .values()
        .keys()
        .map(|key| catalogue::find(key).expect(key).key)
        .filter(|key| *key != "step")
        .collect();
    let declared = catalogue::EVALUATION.metrics.iter().filter(|metric| metric.when.is_none());
    assert_eq!(recorded, declared.map(|metric| metric.key).collect());
    assert!(records.iter().all(|record| record.values().values().all(|value| value.is_number())), "{records:?}");
}

#[test]
fn a_run_leaves_a_timeline_of_its_sampler() {
    let run = Run::new(|config| config.rollout_trace = true);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(5);
    let groups = learner.dismiss(sampler);
    let timeline = Timeline::read(&run.run_dir.trace());
    for part in ["prefill", "decode", "sampler"] {
        assert!(!timeline.track(part).is_empty() && timeline.within(part, "engine steps"), "{part}");
    }
    // Each version after the first one was loaded beside generation and taken into use between two steps.
    let versions = |track: &str| -> Vec<u64> {
        timeline.track(track).iter().map(|span| span.args["version"].as_u64().unwrap()).collect()
    };
    assert!(versions("weights: load").starts_with(&[1, 2, 3, 4]));
    assert!(versions("weights: swap").starts_with(&[1, 2, 3, 4]));
    let rewards = (0..256).map(|thread| timeline.track(&format!("rewards {thread}")));
    let scored: u64 = rewards.flatten().map(|span| span.args["completions"].as_u64().unwrap()).sum();
    let completions: usize = groups.values().map(|group| group.completions.len()).sum();
    assert_eq!(scored, 2 * completions as u64, "two functions score each completion");
    assert!(timeline.track("engine steps").iter().any(|span| span.name == "wait"), "it waits for the learner");
}
