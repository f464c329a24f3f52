//! What the tests of detectors have in common.

use shared::{
    config::TrainConfig,
    metrics::{self, MetricRecord},
    run::notices::Notice,
};

use super::{Detector, Seen};

/// The record of a step that learns as it should.
pub fn step(number: u64) -> MetricRecord {
    let mut record = MetricRecord::default();
    record.count(metrics::STEP, number).set(metrics::REWARD, 0.5).set(metrics::REWARD_STD, 0.4);
    record.set(metrics::FRAC_REWARD_ZERO_STD, 0.25).set(metrics::GRAD_NORM, 0.8).set(metrics::LOSS, -0.02);
    record.count(metrics::SKIPPED_UPDATES, 0).set(metrics::ENTROPY, 1.5);
    record.set(metrics::COMPLETIONS_CLIPPED_RATIO, 0.1).set(metrics::MISMATCH_KL, 1e-12);
    record
}

/// What a detector says of steps that are all alike but for their numbers.
pub fn told(
    detector: &mut dyn Detector,
    config: &TrainConfig,
    steps: u64,
    change: impl Fn(&mut MetricRecord),
) -> Vec<Notice> {
    let mut found = Vec::new();
    for number in 1..=steps {
        let mut record = step(number);
        change(&mut record);
        found.extend(detector.look(&Seen { config, record: &record, failures: &[] }));
    }
    found
}
