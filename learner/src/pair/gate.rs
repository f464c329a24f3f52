//! The learner's part of the conformity gate: which tokens are canaries, and what becomes of a refusal.

use exporters::cache_dir;
use shared::{
    PolicyVersion, WeightSender,
    channel::Refusal,
    config::TrainConfig,
    notices::{Notice, NoticeKind},
};

use super::{Link, Run};
use crate::{canaries, error::LearnerError, publish::NewVersion, step::StepBatch};

/// What is remembered between versions.
#[derive(Debug)]
pub struct Gate {
    /// Canaries of the newest version; none with the gate off.
    token_ids: Option<Vec<u32>>,
    /// Versions that were published with canaries of their batch.
    published: u64,
    /// Refusals since the sampler last took a version.
    refusals: u32,
    /// The last of them.
    seen: Option<Refusal>,
}

impl Gate {
    /// That of a process that begins with publishing `version`.
    pub fn new(config: &TrainConfig, version: PolicyVersion, vocabulary: usize) -> Self {
        let token_ids = config.conformity_gate.then(|| canaries::drawn(config.seed, version, vocabulary));
        Self { token_ids, published: 0, refusals: 0, seen: None }
    }

    /// Canaries of the newest version.
    pub fn token_ids(&self) -> Option<&[u32]> {
        self.token_ids.as_deref()
    }

    /// Takes the canaries of the next version from the batch that it was trained on.
    pub fn choose(&mut self, batch: &StepBatch<'_>) {
        if let Some(token_ids) = &mut self.token_ids
            && let Some(chosen) = canaries::of_batch(batch, self.published)
        {
            *token_ids = chosen;
            self.published += 1;
        }
    }

    /// How many refusals there have been in a row, if this is another one.
    fn count(&mut self, refusal: Option<&Refusal>) -> Option<u32> {
        if refusal.is_none() {
            self.refusals = 0;
        }
        if refusal.is_none() || refusal == self.seen.as_ref() {
            return None;
        }
        self.seen = refusal.cloned();
        self.refusals += 1;
        Some(self.refusals)
    }
}

impl Run<'_> {
    /// Publishes the version again that the sampler has refused, with the export behind it made anew where that is
    /// damaged. In its place comes what the steps since have made of it.
    ///
    /// # Errors
    /// Too many refusals in a row, after a checkpoint; any error of the file system.
    pub(super) fn answer_refusal(&mut self, link: &Link) -> Result<(), LearnerError> {
        let refusal = link.sampler().and_then(|sampler| sampler.refusal);
        let (Some(count), Some(refusal)) = (self.gate.count(refusal.as_ref()), refusal) else {
            return Ok(());
        };
        let (most, Refusal { version, publication, reason }) = (self.config.max_refusals, refusal);
        let step = self.state.step;
        self.journals()?.notices.tell([Notice::new(
            NoticeKind::VersionRefused,
            step,
            format!("the sampler refused the weights v{version} ({count} of {most} in a row): {reason}"),
            "they are published again; if it comes again, check memory and disk",
        )])?;
        if count >= most {
            if self.durable < self.state.step {
                self.save(link)?;
            }
            let cache = cache_dir().map_or_else(|e| e.to_string(), |dir| dir.join("exports").display().to_string());
            return Err(LearnerError::Conformity(format!(
                "the sampler refused {count} weights in a row (`max_refusals`), the last of v{version}: {reason}; \
                 check memory and disk, remove the exports in {cache}, and go on with --resume_from_checkpoint latest"
            )));
        }
        let current = link.status();
        if (current.version, current.publication) != (version, publication) {
            return Ok(());
        }
        self.publisher.renew_base()?;
        self.newest = PolicyVersion(self.state.step);
        let (policy, canaries) = (self.trainer.policy().model(), self.gate.token_ids());
        self.publisher.publish(NewVersion { version: self.newest, policy, canaries })?;
        link.announce(|status| {
            status.version = self.newest;
            status.publication += 1;
        });
        Ok(())
    }
}
