//! A trainer in the state that a run begins with or goes on from.

use std::path::{Path, PathBuf};

use shared::{
    BaseFormat, ModelDir, RunDir,
    config::TrainConfig,
    run::{
        checkpoints::{self, Damage, Depth, Voucher},
        resume,
    },
};
use tch::Device;

use super::{CRITIC_DIR, OPTIMIZER_FILE, REFERENCE_DIR, TrainerState};
use crate::{
    critic::Critic,
    error::LearnerError,
    model::{self, Decoder, LoadOptions, Trainable},
    ranks::{self, Ranks},
    step::{Carried, Trainer},
    trained::Among,
};

/// Where a run goes on.
#[derive(Debug)]
pub struct Found {
    /// The checkpoint; none for a run that begins.
    pub path: Option<PathBuf>,
    /// Whether no checksum vouches for the checkpoint, only that it can be read.
    pub unchecked: bool,
    /// Newer checkpoints that are damaged, with the damage of each.
    pub damaged: Vec<(u64, Damage)>,
}

/// Finds where a run goes on: at the newest whole checkpoint of its own directory, else at the one that
/// `resume_from_checkpoint` names (`latest` means the former), else at none. Damaged checkpoints stay as they are until
/// [`set_aside`].
///
/// # Errors
/// A named checkpoint that does not exist, no checkpoint that is whole, or a directory that cannot be listed.
pub fn find(run_dir: &RunDir, wanted: Option<&str>) -> Result<Found, LearnerError> {
    let found = checkpoints::newest(run_dir, Depth::Contents)?;
    let (path, voucher) = match found.usable(run_dir).map_err(LearnerError::Config)? {
        Some(step) => (Some(run_dir.checkpoint(step)), found.voucher),
        None => find_first(wanted)?.map_or((None, Voucher::Checksums), |(path, voucher)| (Some(path), voucher)),
    };
    Ok(Found { path, unchecked: voucher == Voucher::Reading, damaged: found.damaged })
}

/// Sets damaged checkpoints aside. Returns a line about each.
///
/// # Errors
/// Any error of the file system.
pub fn set_aside(run_dir: &RunDir, damaged: &[(u64, Damage)]) -> Result<Vec<String>, LearnerError> {
    let aside = |(step, damage): &(u64, Damage)| {
        Ok(format!("checkpoint-{step} is {} now, since {damage}", checkpoints::set_aside(run_dir, *step)?))
    };
    damaged.iter().map(aside).collect()
}

/// Where a run begins: at the checkpoint that `resume_from_checkpoint` names, or at none.
///
/// # Errors
/// A named checkpoint that does not exist or is not whole.
pub fn find_first(wanted: Option<&str>) -> Result<Option<(PathBuf, Voucher)>, LearnerError> {
    let Some(path) = wanted.filter(|&path| path != "latest") else { return Ok(None) };
    if let Some(words) = resume::foreign(Path::new(path)) {
        return Err(LearnerError::Config(format!("`resume_from_checkpoint`: {words}")));
    }
    let voucher = checkpoints::check(Path::new(path), Depth::Contents).map_err(|damage| {
        let way = "name another checkpoint-N folder, or `latest`";
        LearnerError::Config(format!("`resume_from_checkpoint`: {path} is no whole checkpoint: {damage}; {way}"))
    })?;
    Ok(Some((path.into(), voucher)))
}

/// The trainer of a run of `model`, with everything as `checkpoint` holds it; without one, as a run begins.
///
/// # Errors
/// An unusable model or configuration, or a checkpoint that does not fit.
pub fn open_trainer(
    config: &TrainConfig,
    model: &ModelDir,
    checkpoint: Option<&Path>,
    device: Device,
) -> Result<(Trainer, TrainerState), LearnerError> {
    open_rank(config, model, checkpoint, device, &Among::default())
}

/// As [`open_trainer`], as one of several ranks, all of which must call it. Only the first has the checkpoint. It gives
/// the others its contents, and they need the model alone.
///
/// # Errors
/// As [`open_trainer`]; a rank that is gone.
pub fn open_rank(
    config: &TrainConfig,
    model: &ModelDir,
    checkpoint: Option<&Path>,
    device: Device,
    among: &Among,
) -> Result<(Trainer, TrainerState), LearnerError> {
    let options = LoadOptions::training(device, config.bf16, config.gradient_checkpointing);
    // The reference is the model the run started from, not the checkpoint it goes on from, unless it moves.
    let moved = checkpoint.filter(|_| config.sync_ref_model).map(|path| path.join(REFERENCE_DIR));
    let moved = moved.filter(|path| path.is_dir());
    let frozen = LoadOptions { trainable: false, base: BaseFormat::of(config), ..options };
    if let Some(path) = checkpoint {
        resume::check(config, model, path)?;
    }
    let (policy, reference) = if let Some(adapter) = model::adapter_config(config, model)? {
        let base = model::load(model, frozen)?;
        let adapted = |saved: Option<&Path>| -> Result<Decoder, LearnerError> {
            let parameters = model::load_adapter(&adapter, model, saved, config.seed, options)?;
            Ok(base.with_adapter(Some((adapter.clone(), parameters))))
        };
        let reference = match (config.beta != 0.0, config.sync_ref_model) {
            (false, _) => None,
            (true, false) => Some(base.with_adapter(None)),
            (true, true) => Some(adapted(moved.as_deref())?),
        };
        (adapted(checkpoint)?, reference)
    } else {
        let open = |path: Option<&Path>, options| -> Result<Decoder, LearnerError> {
            let found = path.map(ModelDir::open).transpose()?;
            model::load(found.as_ref().unwrap_or(model), options)
        };
        // A reference that moves is mixed in the precision of the trained weights.
        let of_reference = LoadOptions { trainable: config.sync_ref_model, ..options };
        let reference = (config.beta != 0.0).then(|| open(moved.as_deref(), of_reference)).transpose()?;
        (open(checkpoint, options)?, reference)
    };
    let mut trainer = Trainer::among(config, policy, reference, among.clone())?;
    if config.advantage_estimator.spec().critic {
        // With a checkpoint of a run without a critic, the critic begins anew.
        let saved = checkpoint.map(|path| path.join(CRITIC_DIR)).filter(|dir| dir.is_dir());
        let critic = Critic::open(config, saved.as_deref(), model.config().vocab_size, options, among.clone())?;
        trainer.credit_mut().set_critic(critic);
    }
    let total_steps = config.max_steps.unwrap_or_default();
    let saved = checkpoint.map(TrainerState::read).transpose()?.map(|state| state.with_updates_of(config));
    follow_first(&mut trainer, &*among.ranks)?;
    restore(&mut trainer, &*among.ranks, checkpoint.zip(saved.as_ref()))?;
    let state = saved.unwrap_or_else(|| TrainerState::start(config, total_steps));
    Ok((trainer, TrainerState { total_steps, ..state }))
}

/// Gives all ranks the models of the first.
fn follow_first(trainer: &mut Trainer, ranks: &dyn Ranks) -> Result<(), LearnerError> {
    trainer.policy_mut().follow_first()?;
    if let Some(reference) = trainer.moving_reference() {
        ranks::copy(ranks, reference.weights().trained().flat())?;
        reference.moved();
    }
    trainer.credit_mut().critic_mut().map_or(Ok(()), |critic| critic.trained_mut().follow_first())
}

/// Gives all ranks the optimisers of the first one's checkpoint, if it has one, and the rest of the state that is
/// carried from step to step.
fn restore(
    trainer: &mut Trainer,
    ranks: &dyn Ranks,
    saved: Option<(&Path, &TrainerState)>,
) -> Result<(), LearnerError> {
    // With a checkpoint of a run without a critic, the critic begins anew.
    let critic = saved.map(|(checkpoint, _)| checkpoint.join(CRITIC_DIR)).filter(|dir| dir.is_dir());
    let known = saved.map(|(_, state)| (state.carried, critic.is_some()));
    let known = serde_json::to_vec(&known).expect("numbers and names become JSON");
    let known: Option<(Carried, bool)> = serde_json::from_slice(&ranks.bytes_of_first(known)?)
        .map_err(|e| LearnerError::Peer(format!("the first rank's state is damaged: {e}")))?;
    let Some((carried, has_critic)) = known else { return Ok(()) };
    if let Some(of_run) = trainer.credit_mut().critic_mut().filter(|_| has_critic) {
        of_run.trained_mut().restore(carried.updates, critic.map(|dir| dir.join(OPTIMIZER_FILE)).as_deref())?;
    }
    trainer.restore(&carried);
    let file = saved.map(|(checkpoint, _)| checkpoint.join(OPTIMIZER_FILE));
    trainer.policy_mut().restore(carried.updates, file.as_deref())
}
