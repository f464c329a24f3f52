//! The versions that a run has published: which they are, and with which canaries.

use std::time::Duration;

use shared::{ModelDir, PolicyVersion, RunDir, WeightSender, channel::SamplerStatus, config::TrainConfig};

use crate::{
    canaries,
    error::LearnerError,
    model::Decoder,
    publish::{NewVersion, Publisher, export_options},
    step::StepBatch,
};

/// What a run has published, and what it publishes next.
#[derive(Debug)]
pub struct PublishedVersions {
    publisher: Publisher,
    /// The newest version that is published.
    newest: PolicyVersion,
    /// Tokens of its canaries; none with the gate off.
    canaries: Option<Vec<u32>>,
    /// Versions that were published with canaries of their batch.
    of_batches: u64,
}

impl PublishedVersions {
    /// Makes `version`, which a process begins with, the newest of the run directory.
    ///
    /// # Errors
    /// A model that cannot be exported; any error of the file system.
    pub fn open(
        config: &TrainConfig,
        run_dir: &RunDir,
        model: &ModelDir,
        version: PolicyVersion,
        policy: &Decoder,
    ) -> Result<Self, LearnerError> {
        let options = export_options(config, model.config())?;
        let mut publisher = Publisher::new(run_dir.clone(), model.clone(), options)?;
        let vocabulary = model.config().vocab_size;
        let canaries = config.conformity_gate.then(|| canaries::drawn(config.seed, version, vocabulary));
        publisher.rewind(version, policy, canaries.as_deref())?;
        Ok(Self { publisher, newest: version, canaries, of_batches: 0 })
    }

    /// The newest version that is published.
    pub fn newest(&self) -> PolicyVersion {
        self.newest
    }

    /// What writes versions, into checkpoints too.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Publishes a version with canaries of the batch that it was trained on, after those have gone that the sampler
    /// uses no longer. Returns what the canaries took.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub fn publish(
        &mut self,
        version: PolicyVersion,
        policy: &Decoder,
        batch: &StepBatch<'_>,
        sampler: Option<&SamplerStatus>,
    ) -> Result<Duration, LearnerError> {
        if let Some(sampler) = sampler {
            self.publisher.let_go(self.newest, &[sampler.oldest_in_use])?;
        }
        self.newest = version;
        self.choose_canaries(batch);
        Ok(self.publisher.publish(NewVersion { version, policy, canaries: self.canaries.as_deref() })?.gate)
    }

    /// Publishes in the place of a version that was refused what the steps since have made of it, with the export
    /// behind it made anew where that is damaged.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub fn publish_again(&mut self, version: PolicyVersion, policy: &Decoder) -> Result<(), LearnerError> {
        self.publisher.renew_base()?;
        self.newest = version;
        self.publisher.publish(NewVersion { version, policy, canaries: self.canaries.as_deref() }).map(drop)
    }

    fn choose_canaries(&mut self, batch: &StepBatch<'_>) {
        if let Some(token_ids) = &mut self.canaries
            && let Some(chosen) = canaries::of_batch(batch, self.of_batches)
        {
            *token_ids = chosen;
            self.of_batches += 1;
        }
    }
}

/// Whether the version after so many steps is published: every `publish_every`-th, those that are evaluated, and the
/// last.
pub fn is_due(step: u64, total_steps: u64, config: &TrainConfig) -> bool {
    let every = |n: u64| step.is_multiple_of(n);
    every(config.publish_every) || config.eval_steps.is_some_and(every) || step == total_steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_published_when_it_is_due_to_be_evaluated_or_the_last() {
        let published = |publish_every, eval_steps| -> Vec<u64> {
            let config = TrainConfig { publish_every, eval_steps, ..TrainConfig::default() };
            (1..=8).filter(|&step| is_due(step, 8, &config)).collect()
        };
        assert_eq!(published(1, None), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(published(3, None), [3, 6, 8]);
        assert_eq!(published(3, Some(4)), [3, 4, 6, 8]);
    }
}
