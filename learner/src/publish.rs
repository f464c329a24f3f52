//! Weight versions: written whole into their own folder, never over a file that a sampler may have mapped.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use exporters::{DEFAULT_MAX_POSITIONS, ExportError, ExportOptions, VersionDir};
use shared::{ModelConfig, PolicyVersion, RunDir, WeightManifest, atomic, config::TrainConfig, versions};

use crate::{error::LearnerError, model::Weights};

/// How the versions of a run are exported: for its sampler's device, with positions for its longest sequences.
///
/// How long the prompts are, the sampler alone knows. Unless `max_model_len` or `max_prompt_length` says it, they get half
/// of the positions that an export has anyway; where completions take more than the other half, the model's limit is
/// exported.
///
/// # Errors
/// A `max_model_len` beyond the model's limit.
pub fn export_options(config: &TrainConfig, model: &ModelConfig) -> Result<ExportOptions, LearnerError> {
    let limit = model.max_position_embeddings;
    config.check_model(model).map_err(|error| LearnerError::Config(error.to_string()))?;
    let completion = config.max_completion_length as usize;
    let bounded = config.max_prompt_length.map(|prompt| prompt as usize + completion);
    let unbounded = if completion > DEFAULT_MAX_POSITIONS / 2 { limit } else { DEFAULT_MAX_POSITIONS };
    let wanted = config.max_model_len.or(bounded).unwrap_or(unbounded).min(limit);
    let max_positions = (wanted > DEFAULT_MAX_POSITIONS).then_some(wanted);
    Ok(ExportOptions { dtype: config.rollout_device.export_dtype(), max_positions })
}

/// Writes versions into a run directory and removes those that nobody uses any longer.
#[derive(Debug)]
pub struct Publisher {
    run_dir: RunDir,
    /// An export of the model: the graph and constants that every version shares.
    base: PathBuf,
}

impl Publisher {
    /// A publisher of versions that share graph and constants with the export `base`.
    #[must_use]
    pub fn new(run_dir: RunDir, base: PathBuf) -> Self {
        Self { run_dir, base }
    }

    /// Writes a version; it appears under its name only when it is whole. Where shared memory is full, the versions of the
    /// run go to disk from then on.
    ///
    /// # Errors
    /// Any error of the file system, or values that are no finite numbers.
    pub fn publish(&self, version: PolicyVersion, weights: &Weights) -> Result<WeightManifest, LearnerError> {
        let write = |run_dir: &RunDir| {
            let out = run_dir.version(version);
            let host = weights.read().host();
            let mut read = |name: &str| Ok(host.values(name)?.into());
            match weights.adapter() {
                Some((config, _)) => exporters::write_adapter_version(&self.base, &out, version, config, &mut read),
                None => exporters::write_version(&self.base, &out, version, &mut read),
            }
        };
        let full = match write(&self.run_dir) {
            Err(ExportError::Io(error)) if error.kind() == ErrorKind::StorageFull => error,
            written => return Ok(written?),
        };
        let Some(manifest) = versions::move_to_disk(&self.run_dir, write)? else {
            return Err(ExportError::Io(full).into());
        };
        tracing::warn!("versions of the weights go to disk from now on: {full}");
        Ok(manifest)
    }

    /// Writes the version's graph and weights into a folder that is there: one part of a checkpoint. That of an adapter has
    /// neither.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub fn fill(&self, dir: &Path, version: PolicyVersion, weights: &Weights) -> Result<(), LearnerError> {
        if weights.adapter().is_none() {
            let host = weights.base().host();
            exporters::fill_version(&self.base, dir, version, &mut |name| Ok(host.values(name)?.into()))?;
        }
        Ok(())
    }

    /// Makes the run directory's newest version the given one: versions of a future that was lost with a killed learner
    /// go, and `version` is written unless it is there already with the content of `saved` and the graph of now, which
    /// another sampler device or program may have changed.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn rewind(
        &self,
        version: PolicyVersion,
        saved: Option<&WeightManifest>,
        weights: &Weights,
    ) -> Result<(), LearnerError> {
        for newer in self.run_dir.versions()?.into_iter().filter(|v| *v > version) {
            atomic::remove_dir(&self.run_dir.version(newer))?;
        }
        let base = WeightManifest::read(&self.base).map_err(ExportError::from)?;
        let same = |there: &VersionDir, saved: &WeightManifest| {
            let WeightManifest { data_blake3, model_blake3, adapter, .. } = there.manifest();
            let same = (data_blake3, adapter) == (&saved.data_blake3, &saved.adapter);
            same && *model_blake3 == base.model_blake3 && there.is_intact()
        };
        let there = VersionDir::open(&self.run_dir.version(version)).ok();
        if !there.zip(saved).is_some_and(|(there, saved)| same(&there, saved)) {
            self.publish(version, weights)?;
        }
        Ok(())
    }

    /// Removes versions that are older than the newest, `current`, and than `oldest_in_use`, the oldest that the sampler
    /// still maps.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn prune(&self, current: PolicyVersion, oldest_in_use: PolicyVersion) -> Result<(), LearnerError> {
        let unused = |version: &PolicyVersion| *version < oldest_in_use.min(current);
        for version in self.run_dir.versions()?.into_iter().filter(unused) {
            atomic::remove_dir(&self.run_dir.version(version))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shared::ModelDir;

    use super::*;

    #[test]
    fn an_export_has_positions_for_the_longest_sequence() {
        let model = ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap();
        let long = ModelConfig { max_position_embeddings: 131_072, ..model.config().clone() };
        let of = |model: &ModelConfig, completion, prompt, max_model_len| {
            let config = TrainConfig {
                max_completion_length: completion,
                max_prompt_length: prompt,
                max_model_len,
                ..TrainConfig::default()
            };
            export_options(&config, model).map(|options| options.max_positions)
        };
        // What every export has, so that runs of one model share theirs.
        assert_eq!(of(&long, 512, None, None).unwrap(), None);
        assert_eq!(of(&long, 512, None, Some(2048)).unwrap(), None);
        assert_eq!(of(&long, 20_000, Some(1000), None).unwrap(), None);
        assert_eq!(of(&long, 40_000, Some(1000), None).unwrap(), Some(41_000));
        assert_eq!(of(&long, 512, None, Some(35_000)).unwrap(), Some(35_000));
        assert_eq!(of(&long, 40_000, None, None).unwrap(), Some(131_072));
        assert_eq!(of(&long, 131_072, Some(1000), None).unwrap(), Some(131_072));
        assert_eq!(of(model.config(), 40_000, None, None).unwrap(), None, "its limit is lower");
        let error = of(&long, 512, None, Some(200_000)).unwrap_err().to_string();
        assert!(error.contains("`max_model_len` 200000") && error.contains("131072"), "{error}");
    }
}
