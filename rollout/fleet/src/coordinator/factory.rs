//! A coordinator from the configuration of a run.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use rollout::{
    data::Tokenizer,
    engine::EngineOptions,
    generate::PairGenerator,
    pair::factory::{GeneratorFactory, RunParts},
};
use shared::{
    ModelDir, RunDir,
    channel::incarnation,
    config::{RewardsOn, TrainConfig},
    run::workers,
};
use shared_fleet::{ListenOptions, ZenohCoordinator};
use shared_store::Store;

use super::{
    arbiter::{Arbiter, ArbiterOptions},
    check::Checks,
    fleet::{Door, Fleet},
    scheduler::{Scheduler, SchedulerOptions},
};
use crate::{
    messages::{class_of, publish_facts},
    weights::{Origin, Publisher, Sending},
};

/// Sequences that the engine beside the learner decodes at once.
const CHECKED_AT_ONCE: usize = 8;

/// Makes the generator of a run with workers. The first version goes to them once the step loop follows the learner.
#[derive(Debug, Clone, Copy)]
pub struct FleetFactory;

impl GeneratorFactory for FleetFactory {
    fn check(&self, config: &TrainConfig) -> anyhow::Result<()> {
        config.listen.as_ref().map(drop).context("`listen` is missing")
    }

    fn generator(&self, run: RunParts<'_>) -> anyhow::Result<Option<Box<dyn PairGenerator>>> {
        let fleet = open(run.run_dir, run.config, run.model, run.tokenizer, run.options)?;
        Ok(Some(Box::new(fleet)))
    }
}

/// Opens the coordinator of a run: puts the model's files into the store and listens for workers. `options` are those
/// of the engine beside the learner, which decides whose completions are right.
///
/// # Errors
/// A store or an address that does not work, with the option.
fn open(
    run_dir: &RunDir,
    config: &TrainConfig,
    model: &ModelDir,
    tokenizer: &Tokenizer,
    options: EngineOptions,
) -> anyhow::Result<Fleet> {
    let place = config.weights_store.clone().unwrap_or_else(|| run_dir.store().display().to_string());
    let store = Arc::new(Store::open(&place).context("`weights_store`")?);
    let facts = publish_facts(&store, &place, config, run_dir, model, options.max_model_len)?;
    let origin = Origin::of(&store, facts.run_dir.as_ref().map(RunDir::new));
    let listen = ListenOptions::from_config(config)?.context("`listen` is missing")?;
    let end = ZenohCoordinator::open(&listen)?;
    let scheduler = Scheduler::new(SchedulerOptions {
        coordinator: incarnation(),
        facts,
        class: class_of(config),
        accept_other_kernels: config.accept_other_kernels,
        lease_timeout: Duration::from_secs_f64(config.lease_timeout),
        vocab_size: model.config().vocab_size,
        rewards: config.reward_funcs.len(),
        checks: Checks::new(config.verify_share),
    });
    let sending = Sending {
        store,
        versions_stay: config.versions_stay(),
        model: model.config().clone(),
        conformity_gate: config.conformity_gate,
        rounded: config.stores_rounded().then_some(config.rollout_dtype),
        rounded_dir: run_dir.rounded(),
    };
    let publisher = Publisher::open(sending, run_dir, config.store_versions as usize)?;
    let arbiter = Arbiter::new(ArbiterOptions {
        origin,
        scratch: run_dir.root().to_path_buf(),
        model: model.clone(),
        tokenizer: tokenizer.clone(),
        engine: EngineOptions { max_num_seqs: CHECKED_AT_ONCE, hot_swap: false, memory: None, ..options },
    });
    let workers_score = config.rewards_on == RewardsOn::Workers;
    let door =
        Door { listen: config.listen.clone().unwrap_or_default(), join: workers::join(config).unwrap_or_default() };
    let weights =
        if config.versions_stay() { run_dir.weights().display().to_string() } else { store_name(&place).to_owned() };
    tracing::info!("workers join at {}, and find weights in {weights}", door.listen);
    Fleet::start(end, scheduler, publisher, arbiter, workers_score, run_dir.clone(), door)
        .context("thread that answers workers")
}

/// A place without its parts that may be secret.
fn store_name(place: &str) -> &str {
    place.split('?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_workers_is_left_to_the_engine() {
        let listening = TrainConfig { listen: Some("tcp/127.0.0.1:7447".into()), ..TrainConfig::default() };
        FleetFactory.check(&listening).unwrap();
        assert_eq!(FleetFactory.check(&TrainConfig::default()).unwrap_err().to_string(), "`listen` is missing");
    }

    #[test]
    fn what_stands_behind_the_place_of_a_store_is_not_logged() {
        assert_eq!(store_name("https://host/run?key=secret"), "https://host/run");
        assert_eq!(store_name("s3://bucket/run"), "s3://bucket/run");
    }
}
