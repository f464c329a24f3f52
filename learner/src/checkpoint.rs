//! `checkpoint-N/`: a Hugging Face directory, an ONNX model and everything that exact resumption needs, in one folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use shared::{
    ModelDir, RunDir, atomic,
    config::TrainConfig,
    manifest::{DATA_FILE, MANIFEST_FILE, MODEL_FILE},
};
use tch::Tensor;

use crate::{
    critic::{CRITIC_DIR, Critic},
    error::LearnerError,
    loss::entropy::EntropyState,
    step::Trainer,
};

/// AdamW's moments and step count.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Folder of the reference policy, where it is not simply the model that the run started from.
pub const REFERENCE_DIR: &str = "reference";
/// Where the run is.
pub const STATE_FILE: &str = "trainer_state.json";
/// Version of the format of [`STATE_FILE`].
const STATE_FORMAT: u32 = 1;

/// Options that may change between a checkpoint and its resumption without changing what is computed.
const HARMLESS: [&str; 15] = [
    "output_dir",
    "resume_from_checkpoint",
    "save_steps",
    "save_total_limit",
    "eval_steps",
    "eval_dataset",
    "logging_steps",
    "log_completions",
    "save_step_batches",
    "rollout_trace",
    "peer_timeout",
    "max_restarts",
    "max_num_seqs",
    "max_num_batched_tokens",
    "rollout_threads",
];

/// How far a run has come. There is no generator state: all randomness is a function of the seed and these counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Version of this format.
    pub format: u32,
    /// Completed steps, which is also the policy version.
    pub step: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// Dataset positions used up.
    pub cursor: u64,
    /// Optimiser updates, skipped ones included.
    pub updates: u64,
    /// Prompt and completion tokens seen. TRL `num_tokens`.
    pub num_tokens: u64,
    /// Weight of the KL penalty in the reward, which an adaptive controller moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_coef: Option<f64>,
    /// Coefficient of the entropy bonus, where it is adaptive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<EntropyState>,
    /// The configuration of the run.
    pub config: serde_json::Value,
}

impl TrainerState {
    /// The state of a run before its first step.
    #[must_use]
    pub fn start(config: &TrainConfig, total_steps: u64) -> Self {
        let config = serde_json::to_value(config).expect("a configuration is serialisable");
        Self {
            format: STATE_FORMAT,
            step: 0,
            total_steps,
            cursor: 0,
            updates: 0,
            num_tokens: 0,
            kl_coef: None,
            entropy: None,
            config,
        }
    }

    /// Reads the state of a checkpoint.
    ///
    /// # Errors
    /// A missing or damaged file, by name.
    pub fn read(checkpoint: &Path) -> Result<Self, LearnerError> {
        let path = checkpoint.join(STATE_FILE);
        let text = fs::read(&path).map_err(|e| LearnerError::content(&path, format!("cannot be read: {e}")))?;
        let state: Self = serde_json::from_slice(&text)
            .map_err(|e| LearnerError::content(&path, format!("is no trainer state: {e}")))?;
        if state.format != STATE_FORMAT {
            let message = format!("has format {}, this program reads format {STATE_FORMAT}", state.format);
            return Err(LearnerError::content(&path, message));
        }
        Ok(state)
    }

    /// Options that differ from those of `config` and change what is computed.
    #[must_use]
    pub fn changed_options(&self, config: &TrainConfig) -> Vec<String> {
        let now = serde_json::to_value(config).expect("a configuration is serialisable");
        let Some(options) = now.as_object() else {
            return Vec::new();
        };
        let differs = |key: &str, value: &serde_json::Value| self.config.get(key) != Some(value);
        let changed = options.iter().filter(|(key, value)| !HARMLESS.contains(&key.as_str()) && differs(key, value));
        changed.map(|(key, _)| key.clone()).collect()
    }
}

/// Writes `checkpoint-N` for the state's step and removes the oldest ones beyond `limit`.
///
/// `version_dir` is the published version with the same weights; its files are shared, not copied, where the file
/// system can.
///
/// # Errors
/// Any error of the file system; the checkpoint is then not there.
pub fn save(
    run_dir: &RunDir,
    model: &ModelDir,
    version_dir: &Path,
    trainer: &Trainer,
    state: &TrainerState,
    limit: Option<u32>,
) -> Result<(), LearnerError> {
    atomic::write_dir(&run_dir.checkpoint(state.step), |dir| {
        fill(dir, model, trainer, state)?;
        for name in [MODEL_FILE, DATA_FILE, MANIFEST_FILE] {
            share(&version_dir.join(name), &dir.join(name))?;
        }
        Ok::<_, LearnerError>(())
    })?;
    let Some(limit) = limit else {
        return Ok(());
    };
    let steps = run_dir.checkpoints()?;
    let surplus = steps.len().saturating_sub(limit.max(1) as usize);
    for step in &steps[..surplus] {
        atomic::remove_dir(&run_dir.checkpoint(*step))?;
    }
    Ok(())
}

/// Writes everything that training goes on from: policy, optimiser, critic, a reference that moves, and the state.
///
/// # Errors
/// Any error of the file system.
pub fn fill(dir: &Path, model: &ModelDir, trainer: &Trainer, state: &TrainerState) -> Result<(), LearnerError> {
    let parameters = trainer.policy().parameters();
    exporters::fill_hf(model, dir, &mut |name| parameters.read_f32(name).map_err(Into::into))?;
    Tensor::write_safetensors(&trainer.optimizer().state(parameters), dir.join(OPTIMIZER_FILE))?;
    if let Some(reference) = trainer.moving_reference() {
        let parameters = reference.parameters();
        let folder = dir.join(REFERENCE_DIR);
        fs::create_dir(&folder)?;
        exporters::fill_hf(model, &folder, &mut |name| parameters.read_f32(name).map_err(Into::into))?;
    }
    if let Some(critic) = trainer.credit().critic() {
        save_critic(critic, &dir.join(CRITIC_DIR))?;
    }
    let text = serde_json::to_vec_pretty(state).expect("a trainer state is valid JSON");
    fs::write(dir.join(STATE_FILE), text)?;
    Ok(())
}

/// The critic as a Hugging Face directory of its own, with the state of its optimiser.
fn save_critic(critic: &Critic, dir: &Path) -> Result<(), LearnerError> {
    fs::create_dir(dir)?;
    let parameters = critic.parameters();
    exporters::fill_hf_scorer(critic.model(), dir, &mut |name| parameters.read_f32(name).map_err(Into::into))?;
    Tensor::write_safetensors(&critic.optimizer().state(parameters), dir.join(OPTIMIZER_FILE))?;
    Ok(())
}

/// Version files never change, so one copy on disk serves both names.
fn share(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(|_| ()))
}

/// The optimiser state of a checkpoint, or of a critic's folder in one.
///
/// # Errors
/// A missing or damaged file.
pub fn read_optimizer(checkpoint: &Path) -> Result<Vec<(String, Tensor)>, LearnerError> {
    let path = checkpoint.join(OPTIMIZER_FILE);
    Tensor::read_safetensors(&path).map_err(|e| LearnerError::content(&path, format!("cannot be read: {e}")))
}

/// Where a run goes on: the newest checkpoint of its own directory, else the one that `resume_from_checkpoint` names
/// (`latest` means the former), else nowhere.
///
/// # Errors
/// A named checkpoint that does not exist, or a directory that cannot be listed.
pub fn find(run_dir: &RunDir, wanted: Option<&str>) -> Result<Option<PathBuf>, LearnerError> {
    if let Some(step) = run_dir.checkpoints()?.last() {
        return Ok(Some(run_dir.checkpoint(*step)));
    }
    match wanted {
        None | Some("latest") => Ok(None),
        Some(path) if Path::new(path).join(STATE_FILE).is_file() => Ok(Some(path.into())),
        Some(path) => Err(LearnerError::Config(format!(
            "`resume_from_checkpoint`: {path} is no checkpoint (it has no {STATE_FILE}); name a checkpoint-N folder, \
             or `latest`"
        ))),
    }
}
