//! The conformity gate: what the learner published is what tokens are drawn from, or nothing is drawn.
//!
//! A version is looked at where it lies before it is packed or mapped ([`Gate::examine`]): its bytes must be those that
//! its manifest was written for, and its norms those of the learner's own parameters. Once it is loaded, it scores a
//! few tokens of which the learner has left log-probs ([`Examined::pass`]). That covers what no hash can: the graph,
//! its constants, packing, rounding and kernels. The loss of four bits is as large as most faults there. So a version
//! is scored in bytes as well, and of what is packed in four bits only gross faults are found.

use std::{
    io::ErrorKind,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use exporters::{Adapter, ExportError, Inspected, VersionDir};
use memmap2::Mmap;
use rollout_kernels::element::{Format, KvFormat};
use shared::{
    Canaries, Dtype, ModelConfig, PolicyVersion, TensorRole, WeightManifest,
    channel::fleet::KernelClass,
    config::{Kernels, KvDtype, RolloutDtype},
    model::manifest::{AdapterEntry, ManifestError},
};

use super::{
    EngineError, EngineOptions, WeightSource,
    backend::EachRow,
    session::{read_manifest, require_finite},
    types::GivenLogprob,
};
use crate::sampling::{
    TopLogprob,
    stats::{block_exp_sums, block_maxima},
    top::{largest, tokens_of},
};

/// Tensors that a refusal names.
const NAMED: usize = 5;
/// What is scored of a version without canaries, for the sake of finite logits. Two tokens have each other to attend
/// to.
const PROBE: [u32; 3] = [0, 1, 2];

/// The gate of an engine. Clones of it are one.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    on: bool,
    /// What the linear layers of its engine compute in.
    dtype: RolloutDtype,
    /// Hash of the base of adapters that was looked at.
    base: Arc<Mutex<Option<String>>>,
}

/// What a backend and the files that it reads are rounded to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounding {
    /// Element type of the files.
    pub stored: Dtype,
    /// What linear layers compute in.
    pub weights: Format,
    /// What keys and values are stored as.
    pub kv: KvFormat,
}

/// A version that is, as far as it is stored, what the learner published.
pub(super) struct Examined {
    version: PolicyVersion,
    canaries: Option<Canaries>,
    /// The weights as they are mapped, where they were: what was looked at need not be mapped once more.
    data: Option<Mmap>,
    time: Duration,
}

impl Gate {
    /// The gate of an engine with these options, or none.
    pub fn of(options: &EngineOptions) -> Self {
        Self { on: options.conformity_gate, dtype: options.rollout_dtype, base: Arc::default() }
    }

    /// Whether versions are looked at.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Looks at the graph alone, before anything is decided by what it is.
    ///
    /// # Errors
    /// As [`Gate::examine`].
    pub fn examine_graph(&self, source: &WeightSource, manifest: &WeightManifest) -> Result<(), EngineError> {
        let dir = manifest.export_dir(&source.dir);
        if self.on {
            VersionDir::open(dir).map_err(|error| of_files(source.version, dir, &error))?;
        }
        Ok(())
    }

    /// Looks at the files of a version. Without canaries beside them, only at their bytes. Weights that were rounded
    /// for engines of another kind are refused without a gate, too.
    ///
    /// # Errors
    /// [`EngineError::Refused`], with the names of the tensors, or files that cannot be read.
    pub fn examine(&self, source: &WeightSource, manifest: &WeightManifest) -> Result<Examined, EngineError> {
        let (version, begun) = (source.version, Instant::now());
        let refuse = |reason: String| Err(EngineError::Refused { version, reason });
        if let Some(rounded) = manifest.rounded.filter(|rounded| *rounded != self.dtype) {
            let dtype = self.dtype;
            return refuse(format!(
                "its weights were rounded for `rollout_dtype` {rounded}, and this sampler's is {dtype}"
            ));
        }
        if !self.on {
            return Ok(Examined { version, canaries: None, data: None, time: Duration::ZERO });
        }
        let canaries = match Canaries::read(&source.dir) {
            Err(error) if error.kind() == ErrorKind::InvalidData => return refuse(error.to_string()),
            read => read.map_err(|e| unreadable(&source.dir, e.to_string()))?,
        };
        if let Some(found) = canaries.as_ref().map(|canaries| canaries.version).filter(|found| *found != version) {
            return refuse(format!("the canaries beside it are those of v{found}"));
        }
        let looked_at = match &manifest.adapter {
            None => look_at(&source.dir, canaries.as_ref()).map(|(wrong, data)| (wrong, Some(data))),
            Some(entry) => {
                let wrong = self.wrong_in_adapter(&source.dir, manifest, entry, canaries.as_ref());
                wrong.map(|wrong| (wrong, None))
            }
        };
        match looked_at.map_err(|error| of_files(version, &source.dir, &error))? {
            (Some(reason), _) => refuse(reason),
            (None, data) => Ok(Examined { version, canaries, data, time: begun.elapsed() }),
        }
    }

    /// As [`look_at`], for an adapter. Its base is looked at once.
    fn wrong_in_adapter(
        &self,
        dir: &Path,
        manifest: &WeightManifest,
        entry: &AdapterEntry,
        canaries: Option<&Canaries>,
    ) -> Result<Option<String>, ExportError> {
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        if base.as_ref() != Some(&manifest.data_blake3) {
            if let (Some(reason), _) = look_at(&entry.base, None)? {
                return Ok(Some(format!("its base {}: {reason}", entry.base.display())));
            }
            *base = Some(manifest.data_blake3.clone());
        }
        let adapter = Adapter::open(dir, manifest.parameters())?;
        let mut unlike = Vec::new();
        for (name, values) in adapter.tensors() {
            if canaries.is_some_and(|canaries| !canaries.has(&name, exporters::norm(values), 0.0)) {
                unlike.push(name);
            }
        }
        unlike.sort();
        if adapter.blake3() != entry.blake3 {
            unlike.push("adapter_model.safetensors as a whole, by its hash".into());
        }
        Ok((!unlike.is_empty()).then(|| format!("not what the learner published: {}", list(&unlike))))
    }
}

/// Looks at the files of a version that somebody else is to sample from, and reads its manifest.
///
/// # Errors
/// Files that cannot be read, or that are not what the learner published.
pub fn examine(source: &WeightSource, config: &ModelConfig, on: bool) -> Result<WeightManifest, EngineError> {
    let manifest = read_manifest(source, config)?;
    // What the learner publishes is not rounded for anybody.
    Gate { on, dtype: RolloutDtype::Auto, base: Arc::default() }.examine(source, &manifest)?;
    Ok(manifest)
}

/// What is wrong with the files of an export or of a version that is one, if anything, and its weights.
fn look_at(dir: &Path, canaries: Option<&Canaries>) -> Result<(Option<String>, Mmap), ExportError> {
    let version = VersionDir::open(dir)?;
    let wrong = wrong_tensors(&version, canaries);
    Ok((wrong, version.into_data()))
}

fn wrong_tensors(version: &VersionDir, canaries: Option<&Canaries>) -> Option<String> {
    let tensors = version.inspect();
    let names = |wrong: &dyn Fn(&Inspected<'_>) -> bool| -> Vec<&str> {
        tensors.iter().filter(|tensor| wrong(tensor)).map(|tensor| tensor.entry.name.as_str()).collect()
    };
    let damaged = names(&|tensor| !tensor.intact);
    if !damaged.is_empty() {
        return Some(format!("bytes that are not those of the manifest: {}", list(&damaged)));
    }
    let unlike = names(&|Inspected { entry, norm, .. }| {
        let elements = entry.length as f64 / entry.dtype.size() as f64;
        // Half the distance of neighbours, of the values and of what is next to nothing.
        let slack = if entry.dtype == Dtype::Fp32 { 0.0 } else { 1e-3 * norm + elements.sqrt() * 2.0_f64.powi(-25) };
        let is_unlike = |canaries: &Canaries| !canaries.has(&entry.name, *norm, slack);
        entry.role == TensorRole::Parameter && canaries.is_some_and(is_unlike)
    });
    (!unlike.is_empty()).then(|| format!("not what the learner has, by the norms: {}", list(&unlike)))
}

fn list(names: &[impl AsRef<str>]) -> String {
    let named: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    let more = names.len() - named.len();
    named.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Files that are there and hold something else are refused; those that cannot be read may be there in a moment.
fn of_files(version: PolicyVersion, dir: &Path, error: &ExportError) -> EngineError {
    match error {
        ExportError::Io(_) | ExportError::Manifest(ManifestError::Io(_)) => unreadable(dir, error.to_string()),
        _ => EngineError::Refused { version, reason: error.to_string() },
    }
}

fn unreadable(dir: &Path, message: String) -> EngineError {
    EngineError::Weights { path: dir.display().to_string(), message }
}

impl Examined {
    /// The weights that were looked at, once.
    pub fn take_data(&mut self) -> Option<Mmap> {
        self.data.take()
    }

    /// Tokens that are to be scored.
    fn token_ids(&self) -> &[u32] {
        self.canaries.as_ref().map_or(&PROBE, |canaries| &canaries.token_ids)
    }

    /// Positions that scoring takes.
    pub fn positions(&self) -> usize {
        self.token_ids().len()
    }

    /// Compares log-probs with the learner's. `score` gives the rows of logits (`[vocab]`) that precede the last tokens
    /// of a sequence, so many. Returns the time that the gate took.
    ///
    /// # Errors
    /// [`EngineError::Refused`], or those of `score`.
    pub fn pass(
        &self,
        vocab: usize,
        rounding: Rounding,
        score: impl FnOnce(&[u32], usize, EachRow<'_>) -> Result<(), EngineError>,
    ) -> Result<Duration, EngineError> {
        let begun = Instant::now();
        let Some(canaries) = &self.canaries else { return probe(vocab, score).map(|()| self.time) };
        let refuse = |reason: String| Err(EngineError::Refused { version: self.version, reason });
        if let Some(token) = canaries.token_ids.iter().find(|&&token| token as usize >= vocab) {
            return refuse(format!("canary {token} is outside the vocabulary of {vocab} tokens"));
        }
        let (tokens, count) = (&canaries.token_ids, canaries.scored());
        let found = logprobs(&tokens[tokens.len() - count..], |each| score(tokens, count, each))?;
        let (distance, tolerance) = (distance_of(&found, &canaries.logprobs), rounding.tolerance(canaries.dtype));
        tracing::debug!(version = %self.version, distance, tolerance, "canaries");
        if distance <= tolerance {
            return Ok(self.time + begun.elapsed());
        }
        refuse(format!(
            "every tensor is the learner's, and the log-probs of {} canaries are not: they are {distance:.1e} apart \
             (tolerance {tolerance:.0e}); graph, constants, packing or kernels differ",
            count
        ))
    }
}

/// Whether the logits after a fixed prompt are finite. `score` is that of [`Examined::pass`].
pub(super) fn probe(
    vocab: usize,
    score: impl FnOnce(&[u32], usize, EachRow<'_>) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let probe = PROBE.map(|token| token % vocab as u32);
    let mut found = None;
    score(&probe, 1, &mut |row| found = Some(require_finite(row)))?;
    found.expect("a row of logits was asked for")
}

/// How far log-probs are from those that they should be: the mean of |Δ| / (1 + |log-prob|), which is the absolute
/// difference for likely tokens and the relative one for unlikely ones.
pub fn distance_of(found: &[f64], meant: &[f64]) -> f64 {
    let distances = found.iter().zip(meant).map(|(found, meant)| (found - meant).abs() / (1.0 + meant.abs()));
    distances.sum::<f64>() / meant.len() as f64
}

/// Log-probs of tokens, by the rows of logits that `score` gives, one for each.
pub(super) fn logprobs(
    tokens: &[u32],
    score: impl FnOnce(EachRow<'_>) -> Result<(), EngineError>,
) -> Result<Vec<f64>, EngineError> {
    Ok(given_logprobs(tokens, 0, score)?.into_iter().map(|given| given.logprob).collect())
}

/// As [`logprobs`], each with the `top` likeliest tokens in the same place.
pub(super) fn given_logprobs(
    tokens: &[u32],
    top: usize,
    score: impl FnOnce(EachRow<'_>) -> Result<(), EngineError>,
) -> Result<Vec<GivenLogprob>, EngineError> {
    let (mut maxima, mut sums, mut found) = (Vec::new(), Vec::new(), Vec::with_capacity(tokens.len()));
    score(&mut |row| {
        let max = block_maxima(row, &mut maxima);
        let token = row[tokens[found.len()] as usize];
        let log_sum = block_exp_sums(row, max, 1.0, &mut sums).ln();
        let logprob = |logit: f32| f64::from(logit - max) - log_sum;
        let top = largest(tokens_of(row), top).into_iter();
        let top = top.map(|(token, logit)| TopLogprob { token, logprob: logprob(logit) }).collect();
        found.push(GivenLogprob { logprob: logprob(token), top });
    })?;
    assert_eq!(found.len(), tokens.len(), "a row of logits for each token");
    Ok(found)
}

/// How far the log-probs of two engines may be apart, by [`distance_of`], that have the same weights and compute
/// otherwise.
pub fn tolerance_between(one: KernelClass, other: KernelClass) -> f64 {
    // Both are compared with the learner where it computes in fp32.
    Rounding::of(one).tolerance(Dtype::Fp32) + Rounding::of(other).tolerance(Dtype::Fp32)
}

impl Rounding {
    fn of(class: KernelClass) -> Self {
        let packed = class.kernels == Kernels::Packed;
        let weights = match class.rollout_dtype {
            RolloutDtype::Int8 if packed => Format::Int8,
            RolloutDtype::Int4 if packed => Format::Int4,
            RolloutDtype::Bf16 if packed => Format::Bf16,
            RolloutDtype::Bf16Dot if packed => Format::Bf16Dot,
            RolloutDtype::Bf16x3 if packed => Format::Bf16x3,
            _ => Format::Fp32,
        };
        let kv = match class.kv_dtype {
            KvDtype::Int8 if packed => KvFormat::Int8,
            KvDtype::Bf16 if packed => KvFormat::Bf16,
            _ => KvFormat::Fp32,
        };
        Self { stored: class.device.export_dtype(), weights, kv }
    }

    /// The largest [`distance_of`] log-probs from a learner that computes in `learner`: several times what was found
    /// between honest sides, on trained and on random models (fp32 8e-7, bf16x3 9e-6, fp16 5e-4, bf16 5e-3, int8 2e-2,
    /// int4 0.2, keys and values in int8 3e-2, a learner in bf16 8e-3). A version that has nothing to do with its
    /// canaries is 0.15 away and more. So int4 alone would let it pass.
    fn tolerance(self, learner: Dtype) -> f64 {
        let weights = match (self.weights, self.stored) {
            (Format::Fp32, Dtype::Fp32) | (Format::Bf16x3, _) => 1e-3,
            (Format::Fp32, Dtype::Fp16 | Dtype::Bf16) => 0.02,
            (Format::Bf16 | Format::Bf16Dot, _) => 0.05,
            (Format::Int8, _) => 0.15,
            (Format::Int4, _) => 0.5,
        };
        let kv = match self.kv {
            KvFormat::Fp32 => 0.0,
            KvFormat::Bf16 => 0.05,
            KvFormat::Int8 => 0.15,
        };
        let learner = if learner == Dtype::Fp32 { 0.0 } else { 0.05 };
        weights + kv + learner
    }
}
