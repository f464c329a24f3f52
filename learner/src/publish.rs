//! Weight versions: written whole into their own folder, never over a file that a sampler may have mapped. The folder
//! lies in the run directory or in shared memory ([`shared::run::versions`]).

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use exporters::{DEFAULT_MAX_POSITIONS, ExportError, ExportOptions, VersionDir, ensure_export, renew_export};
use shared::{
    BaseFormat, Canaries, Dtype, ModelConfig, ModelDir, PolicyVersion, RunDir, TensorRole, WeightManifest,
    WeightSender, config::TrainConfig, files::atomic, run::versions,
};

use crate::{
    canaries,
    error::LearnerError,
    model::{Decoder, HostParameters, Weights},
};

/// How the versions of a run are exported: for its sampler's device, with positions for its longest sequences.
///
/// How long the prompts are, the sampler alone knows. Unless `max_model_len` or `max_prompt_length` says it, they get
/// half of the positions that an export has anyway; where completions take more than the other half, the model's limit
/// is exported.
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
    Ok(ExportOptions { dtype: config.rollout_device.export_dtype(), max_positions, base: BaseFormat::of(config) })
}

/// Writes versions into a run directory and removes those that nobody uses any longer.
#[derive(Debug)]
pub struct Publisher {
    run_dir: RunDir,
    model: ModelDir,
    options: ExportOptions,
    /// An export of the model: the graph and constants that every version shares.
    base: PathBuf,
    /// The version that was written last, if it has canaries.
    last: Option<Written>,
}

/// What is remembered of a version.
#[derive(Debug)]
struct Written {
    version: PolicyVersion,
    /// Of what was stored.
    hash: String,
    /// The learner's norms.
    norms: BTreeMap<String, f64>,
}

/// What a version is published from.
#[derive(Debug, Clone, Copy)]
pub struct NewVersion<'a> {
    /// Which version it becomes.
    pub version: PolicyVersion,
    /// The policy after the steps of that version.
    pub policy: &'a Decoder,
    /// Tokens of its canaries; none with the gate off.
    pub canaries: Option<&'a [u32]>,
}

/// A version that was published.
#[derive(Debug)]
pub struct Published {
    /// Its manifest.
    pub manifest: WeightManifest,
    /// What its canaries took.
    pub gate: Duration,
}

impl Publisher {
    /// A publisher of versions of `model`, which share graph and constants with its export.
    ///
    /// # Errors
    /// As [`ensure_export`].
    pub fn new(run_dir: RunDir, model: ModelDir, options: ExportOptions) -> Result<Self, LearnerError> {
        let base = ensure_export(&model, &options)?;
        Ok(Self { run_dir, model, options, base, last: None })
    }

    /// Makes the export anew, if it is no longer what was exported.
    ///
    /// # Errors
    /// As [`renew_export`].
    pub fn renew_base(&mut self) -> Result<(), LearnerError> {
        self.base = renew_export(&self.model, &self.options)?;
        Ok(())
    }

    fn write(
        &self,
        version: PolicyVersion,
        policy: &Decoder,
        host: &HostParameters<'_>,
        canaries: Option<&Canaries>,
    ) -> Result<WeightManifest, LearnerError> {
        let fill = |dir: &Path| {
            if let Some(canaries) = canaries {
                canaries.write(dir)?;
            }
            let mut read = |name: &str| Ok(host.values(name)?.into());
            match policy.weights().adapter() {
                Some((config, _)) => exporters::fill_adapter_version(&self.base, dir, version, config, &mut read),
                None => exporters::fill_version(&self.base, dir, version, &mut read),
            }
        };
        let write = |run_dir: &RunDir| {
            let mut manifest = None;
            atomic::write_passing_dir(&run_dir.version(version), |dir| {
                manifest = Some(fill(dir)?);
                Ok::<_, ExportError>(())
            })?;
            Ok(manifest.expect("a folder that was written has a manifest"))
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

    /// Writes graph and weights into a folder that is there, opens them again and compares them with the learner's: one
    /// part of a checkpoint. They are those of the safetensors beside them, which training goes on from: with `bf16`,
    /// the float32 ones and not what is rounded of them for the passes. That of an adapter has neither.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub fn fill(&self, dir: &Path, version: PolicyVersion, weights: &Weights) -> Result<(), LearnerError> {
        if weights.adapter().is_none() {
            let host = weights.trained().host();
            let mut read = |name: &str| Ok(host.values(name)?.into());
            exporters::fill_version(&self.base, dir, version, &mut read)?;
            VersionDir::open(dir)?.require(&mut read)?;
        }
        Ok(())
    }

    /// Makes the run directory's newest version the given one: versions of a future that was lost with a killed learner
    /// go, and `version` is written unless it is there already with the values of `policy`, canaries where there are to
    /// be any, and the graph of now, which another sampler device or program may have changed. With `bf16` the values
    /// are the rounded ones, of which a checkpoint has none: so the version itself is compared.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn rewind(
        &mut self,
        version: PolicyVersion,
        policy: &Decoder,
        canaries: Option<&[u32]>,
    ) -> Result<(), LearnerError> {
        for newer in self.run_dir.versions()?.into_iter().filter(|v| *v > version) {
            atomic::remove_dir(&self.run_dir.version(newer))?;
        }
        let base = WeightManifest::read(&self.base).map_err(ExportError::from)?;
        let dir = self.run_dir.version(version);
        let has_canaries = || Canaries::read(&dir).is_ok_and(|found| found.is_some_and(|c| c.version == version));
        let whole = VersionDir::open(&dir).is_ok_and(|there| holds(&there, &base, policy));
        if !whole || canaries.is_some() && !has_canaries() {
            self.publish(NewVersion { version, policy, canaries })?;
        }
        Ok(())
    }
}

impl WeightSender for Publisher {
    type Weights<'a> = NewVersion<'a>;
    type Version = PolicyVersion;
    type Published = Published;
    type Error = LearnerError;

    /// Writes a version, with canaries of the given tokens; it appears under its name only when it is whole. Where
    /// shared memory is full, the versions of the run go to disk from then on.
    ///
    /// # Errors
    /// Any error of the file system, values that are no finite numbers, or stored values that are still those of the
    /// version before although the learner's have changed.
    fn publish(&mut self, new: NewVersion<'_>) -> Result<Published, LearnerError> {
        let NewVersion { version, policy, canaries } = new;
        let host = policy.weights().host();
        let begun = Instant::now();
        let canaries = canaries.map(|ids| canaries::measure(policy, &host, version, ids)).transpose()?;
        let gate = begun.elapsed();
        let manifest = match self.write(version, policy, &host, canaries.as_ref()) {
            Err(LearnerError::Export(error @ ExportError::Damaged { .. })) => {
                tracing::warn!("{}: {error}", self.base.display());
                self.renew_base()?;
                self.write(version, policy, &host, canaries.as_ref())?
            }
            written => written?,
        };
        if let Some(Canaries { norms, .. }) = canaries {
            let hash = manifest.adapter.as_ref().map_or(&manifest.data_blake3, |adapter| &adapter.blake3).clone();
            let now = Written { version, hash, norms };
            if manifest.adapter.is_some() || self.options.dtype == Dtype::Fp32 {
                now.require_news(self.last.as_ref())?;
            }
            self.last = Some(now);
        }
        Ok(Published { manifest, gate })
    }

    /// Removes versions that are older than the newest one and than all that the sampler still maps.
    ///
    /// # Errors
    /// Any error of the file system.
    fn let_go(&mut self, newest: PolicyVersion, in_use: &[PolicyVersion]) -> Result<(), LearnerError> {
        let oldest = in_use.iter().fold(newest, |oldest, version| oldest.min(*version));
        for version in self.run_dir.versions()?.into_iter().filter(|version| *version < oldest) {
            atomic::remove_dir(&self.run_dir.version(version))?;
        }
        Ok(())
    }
}

/// Whether a version is intact and has the values of a policy, with the graph and the constants of an export.
fn holds(there: &VersionDir, base: &WeightManifest, policy: &Decoder) -> bool {
    fn of(manifest: &WeightManifest, all: bool) -> impl Iterator<Item = (&str, &str)> {
        let stored = manifest.tensors.iter().filter(move |tensor| all || tensor.role == TensorRole::Constant);
        stored.map(|tensor| (tensor.name.as_str(), tensor.blake3.as_str()))
    }
    let (manifest, weights) = (there.manifest(), policy.weights());
    let host = weights.host();
    let same_values = match (there.adapter(), weights.adapter()) {
        (None, None) => there.require(&mut |name| Ok(host.values(name)?.into())).is_ok(),
        (Some(adapter), Some((config, _))) => {
            let same = |(name, values): (String, &[f32])| {
                host.values(&name)
                    .is_ok_and(|own| own.iter().map(|v| v.to_bits()).eq(values.iter().map(|v| v.to_bits())))
            };
            adapter.config() == config && adapter.tensors().all(same)
        }
        _ => return false,
    };
    // An adapter's base is all of the export.
    let all = there.adapter().is_some();
    same_values
        && manifest.model_blake3 == base.model_blake3
        && of(manifest, all).eq(of(base, all))
        && there.is_intact()
}

impl Written {
    /// Of parameters that have changed, something else must have been stored than before.
    fn require_news(&self, before: Option<&Self>) -> Result<(), LearnerError> {
        let Some(before) = before.filter(|before| before.hash == self.hash) else {
            return Ok(());
        };
        // By its bits: NaN is unlike itself, and no change.
        let bits = |norms: &BTreeMap<String, f64>, name: &str| norms.get(name).map(|norm| norm.to_bits());
        let is_changed = |name: &&String| bits(&self.norms, name) != bits(&before.norms, name);
        let changed: Vec<&String> = self.norms.keys().filter(is_changed).collect();
        if changed.is_empty() {
            return Ok(());
        }
        Err(LearnerError::Conformity(format!(
            "weights v{} were published with the values of v{}, although training has changed {} tensors since ({}, \
             …); this is an error of the program: report it",
            self.version,
            before.version,
            changed.len(),
            changed[0]
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_were_trained_are_not_published_as_they_were_before() {
        let written = |version, hash: &str, norm| Written {
            version: PolicyVersion(version),
            hash: hash.into(),
            norms: [("a".to_owned(), 1.0), ("b".to_owned(), norm)].into(),
        };
        let first = written(4, "x", 2.0);
        written(5, "y", 2.5).require_news(Some(&first)).unwrap();
        written(5, "x", 2.0).require_news(Some(&first)).unwrap();
        written(5, "x", 2.5).require_news(None).unwrap();
        written(5, "x", f64::NAN).require_news(Some(&written(4, "x", f64::NAN))).unwrap();
        let error = written(5, "x", 2.5).require_news(Some(&first)).unwrap_err();
        assert!(matches!(error, LearnerError::Conformity(_)));
        assert!(
            error.to_string().contains("v5 were published with the values of v4") && error.to_string().contains("(b,")
        );
    }

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
