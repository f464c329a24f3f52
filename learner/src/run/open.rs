//! A trainer in the state that a run begins with or goes on from.

use std::path::Path;

use shared::{
    ModelDir,
    config::{AdvantageEstimator, TrainConfig},
};
use tch::{Device, Kind};

use crate::{
    checkpoint::{self, REFERENCE_DIR, TrainerState},
    critic::{CRITIC_DIR, Critic},
    error::LearnerError,
    model::{self, LoadOptions},
    step::Trainer,
};

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
    let options = LoadOptions { kind: Kind::Float, device, trainable: true };
    let weights = checkpoint.map(ModelDir::open).transpose()?;
    let policy = model::load(weights.as_ref().unwrap_or(model), options)?;
    // The reference is the model the run started from, not the checkpoint it goes on from, unless it moves.
    let moved = checkpoint.filter(|_| config.sync_ref_model).map(|path| path.join(REFERENCE_DIR));
    let moved = moved.filter(|path| path.is_dir()).map(ModelDir::open).transpose()?;
    let reference = (config.beta != 0.0)
        .then(|| model::load(moved.as_ref().unwrap_or(model), LoadOptions { trainable: false, ..options }))
        .transpose()?;
    let mut trainer = Trainer::new(config, policy, reference)?;
    if config.advantage_estimator == AdvantageEstimator::Gae {
        // A checkpoint of a run without one leaves the critic to begin anew.
        let checkpoint = checkpoint.filter(|path| path.join(CRITIC_DIR).is_dir());
        let critic = Critic::open(config, checkpoint, model.config().vocab_size, options)?;
        trainer.credit_mut().set_critic(critic);
    }
    let total_steps = config.max_steps.unwrap_or_default();
    let state = match checkpoint {
        None => TrainerState::start(config, total_steps),
        Some(path) => TrainerState { total_steps, ..restore(path, &mut trainer)? },
    };
    Ok((trainer, state))
}

fn restore(checkpoint: &Path, trainer: &mut Trainer) -> Result<TrainerState, LearnerError> {
    let saved = TrainerState::read(checkpoint)?;
    trainer.restore(saved.updates, &checkpoint::read_optimizer(checkpoint)?)?;
    trainer.credit_mut().restore_kl_coef(saved.kl_coef);
    trainer.entropy_mut().restore(saved.entropy);
    let critic_dir = checkpoint.join(CRITIC_DIR);
    if let Some(critic) = trainer.credit_mut().critic_mut().filter(|_| critic_dir.is_dir()) {
        critic.restore(saved.updates, &checkpoint::read_optimizer(&critic_dir)?)?;
    }
    Ok(saved)
}
