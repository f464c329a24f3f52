//! Weight versions: written whole into their own folder, never over a file that a sampler may have mapped.

use std::path::PathBuf;

use shared::{PolicyVersion, RunDir, WeightManifest, atomic};

use crate::{error::LearnerError, model::Parameters};

/// The newest versions that stay on disk whatever the sampler uses: the current one, and the one before it for a
/// sampler that is just opening it.
const KEEP: u64 = 2;

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

    /// Writes a version; it appears under its name only when every byte is on disk.
    ///
    /// # Errors
    /// Any error of the file system, or values that are no finite numbers.
    pub fn publish(&self, version: PolicyVersion, parameters: &Parameters) -> Result<WeightManifest, LearnerError> {
        let mut read = |name: &str| parameters.read_f32(name).map_err(Into::into);
        Ok(exporters::write_version(&self.base, &self.run_dir.version(version), version, &mut read)?)
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
        parameters: &Parameters,
    ) -> Result<(), LearnerError> {
        for newer in self.run_dir.versions()?.into_iter().filter(|v| *v > version) {
            atomic::remove_dir(&self.run_dir.version(newer))?;
        }
        let there = WeightManifest::read(&self.run_dir.version(version)).ok();
        let base = WeightManifest::read(&self.base).map_err(exporters::ExportError::from)?;
        let same = match (&there, saved) {
            (Some(there), Some(saved)) => {
                there.data_blake3 == saved.data_blake3 && there.model_blake3 == base.model_blake3
            }
            _ => false,
        };
        if !same {
            self.publish(version, parameters)?;
        }
        Ok(())
    }

    /// Removes versions that are older than the newest few and than `oldest_in_use`, the oldest that the sampler still
    /// maps.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn prune(&self, current: PolicyVersion, oldest_in_use: PolicyVersion) -> Result<(), LearnerError> {
        for version in self.run_dir.versions()? {
            if version < oldest_in_use && version.0 + KEEP <= current.0 {
                atomic::remove_dir(&self.run_dir.version(version))?;
            }
        }
        Ok(())
    }
}
