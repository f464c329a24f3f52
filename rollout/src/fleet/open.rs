//! A hub from the configuration of a run.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use shared::{
    ModelDir, RunDir,
    channel::incarnation,
    config::{RewardsOn, TrainConfig},
};
use shared_fleet::{ListenOptions, ZenohHub};
use shared_store::Store;

use super::{
    check::Checks,
    desk::{Desk, DeskOptions},
    facts::{self, class_of},
    hub::Fleet,
    judge::{Bench, Judge},
    weights::{Origin, Publisher, Sending},
};
use crate::{data::Tokenizer, engine::EngineOptions};

/// Sequences that the engine beside the learner decodes at once.
const JUDGED_AT_ONCE: usize = 8;

/// Opens the hub of a run: leaves the model's files in the store and listens for workers. `options` are those of an engine
/// beside the learner, which decides whose completions are right.
///
/// # Errors
/// A store or an address that does not work, with the option.
pub fn open(
    run_dir: &RunDir,
    config: &TrainConfig,
    model: &ModelDir,
    tokenizer: &Tokenizer,
    options: EngineOptions,
) -> anyhow::Result<Fleet> {
    let place = config.weights_store.clone().unwrap_or_else(|| run_dir.store().display().to_string());
    let store = Arc::new(Store::open(&place).context("`weights_store`")?);
    let facts = facts::publish(&store, &place, config, run_dir, model, options.max_model_len)?;
    let origin = Origin::of(&store, facts.run_dir.as_ref().map(RunDir::new));
    let listen = ListenOptions::from_config(config)?.context("`listen` is missing")?;
    let end = ZenohHub::open(&listen)?;
    let class = class_of(config);
    let desk = Desk::new(DeskOptions {
        hub: incarnation(),
        facts,
        class,
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
    let judge = Judge::new(Bench {
        origin,
        scratch: run_dir.root().to_path_buf(),
        model: model.clone(),
        tokenizer: tokenizer.clone(),
        options: EngineOptions { max_num_seqs: JUDGED_AT_ONCE, hot_swap: false, memory: None, ..options },
    });
    let workers_score = config.rewards_on == RewardsOn::Workers;
    let at = config.listen.clone().unwrap_or_default();
    let weights =
        if config.versions_stay() { run_dir.weights().display().to_string() } else { store_name(&place).to_owned() };
    tracing::info!("workers join at {at}, and find weights in {weights}");
    Fleet::start(end, desk, publisher, judge, workers_score, run_dir.clone(), at).context("thread that answers workers")
}

/// A place without what may be secret in it.
fn store_name(place: &str) -> &str {
    place.split('?').next().unwrap_or_default()
}
