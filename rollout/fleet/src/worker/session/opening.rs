//! From a coordinator's first orders to an engine that can sample: what the run is, its model, its first weights.

use std::{
    fs,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, bail};
use rollout::{
    data::Tokenizer,
    engine::{Engine, EngineOptions, WeightSource},
    generate::follower::WeightFollower,
    structured_outputs,
};
use shared::{
    ModelDir, RunDir, WeightReceiver,
    channel::{
        fleet::{Orders, RunFacts},
        weights::SwapReport,
    },
    config::{RewardsOn, TrainConfig, layers},
};
use shared_store::{Store, StoreError};

use super::{IDLE, Next, SHORT, Session, leases::Leases};
use crate::{
    messages::class_of,
    scores::Scorer,
    weights::{GiveUp, MODEL, Origin, sees_versions},
    worker::{Client, Left, Scratch, WorkerOptions, receiver::EditionReceiver},
};

/// What a worker has whatever the run is.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub client: &'a Client,
    pub scratch: &'a Scratch,
    pub options: &'a WorkerOptions,
    pub stop: &'a AtomicBool,
}

/// A session, or what comes instead of it.
pub(super) enum Opened<'a> {
    Session(Box<Session<'a>>, Box<Engine>),
    Next(Next),
}

/// Waits for the facts of a run.
pub(super) fn first_orders(
    client: &Client,
    orders: Option<Orders>,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Orders>> {
    let mut next = orders;
    while !stop.load(Ordering::Relaxed) {
        if let Some(orders) = next.take() {
            refuse(&orders)?;
            if orders.facts.is_some() || orders.finished {
                return Ok(Some(orders));
            }
        }
        next = client.orders(IDLE)?;
    }
    Ok(None)
}

/// Fails where the coordinator wants nothing of this worker.
pub(super) fn refuse(orders: &Orders) -> anyhow::Result<()> {
    match &orders.refused {
        Some(reason) => bail!("the coordinator wants nothing of this worker: {reason}"),
        None => Ok(()),
    }
}

/// Fetches model and first weights and opens the engine.
pub(super) fn open(host: Host<'_>, facts: RunFacts, orders: Orders) -> anyhow::Result<Opened<'_>> {
    let config = config_of(&facts, host)?;
    let coordinator = orders.coordinator;
    host.client.report(|report| {
        report.coordinator = coordinator;
        report.class = Some(class_of(&config));
        report.held.clear();
        report.made.clear();
        report.edition = None;
    });
    let place = host.options.store.as_deref().unwrap_or(&facts.store);
    let run_dir = facts.run_dir.as_ref().map(RunDir::new);
    run_dir.as_ref().map_or(Ok(()), sees_versions)?;
    let store = Arc::new(Store::open(place).context("the store of weights; --store says where it is for this host")?);
    let model_dir = host.scratch.run_dir().root().join(MODEL);
    fetch_model(&store, place, &facts, &model_dir, &host.options.cache)?;
    let model = ModelDir::open(&model_dir)?;
    let tokenizer = Tokenizer::open_at(&model, config.template_now())?;
    let constraint = structured_outputs::of_run(&config, &model, &tokenizer).context("`structured_outputs_regex`")?;
    let is_to_score = config.rewards_on == RewardsOn::Workers;
    let scorer = is_to_score.then(|| Scorer::open(&config, &tokenizer)).transpose()?;
    let (origin, versions) = (Origin::of(&store, run_dir), host.scratch.run_dir().clone());
    let mut receiver = EditionReceiver::new(host.client, origin, versions, orders.edition);
    let open_engine = |source| open_engine(source, &model, &config, host.options, &facts);
    let engine = match first_engine(host, &facts, &mut receiver, open_engine)? {
        ControlFlow::Continue(engine) => engine,
        ControlFlow::Break(next) => return Ok(Opened::Next(next)),
    };
    let session = Session {
        client: host.client,
        options: host.options,
        stop: host.stop,
        facts,
        coordinator,
        weights: WeightFollower::of(&config),
        receiver,
        leases: Leases::new(host.client, tokenizer, constraint, scorer),
        decoded: 0,
    };
    Ok(Opened::Session(Box::new(session), Box::new(engine)))
}

/// The configuration of the run, with what this host computes with and where it has reward functions.
fn config_of(facts: &RunFacts, host: Host<'_>) -> anyhow::Result<TrainConfig> {
    let path = host.scratch.run_dir().config();
    shared::files::atomic::write(&path, facts.config.as_bytes())?;
    let config = layers::load(Some(&path), &Vec::new()).context("the configuration of the run")?;
    Ok(TrainConfig {
        rollout_kernels: host.options.kernels.unwrap_or(config.rollout_kernels),
        rollout_device: host.options.device.unwrap_or(config.rollout_device),
        reward_dir: host.options.reward_dir.clone().or(config.reward_dir),
        ..config
    })
}

/// Fetches configuration and tokenizer of the model; what is there is another run's.
fn fetch_model(store: &Store, place: &str, facts: &RunFacts, model_dir: &Path, cache: &Path) -> anyhow::Result<()> {
    if model_dir.exists() {
        fs::remove_dir_all(model_dir)?;
    }
    match store.fetch(MODEL, &facts.model, model_dir, &GiveUp::default()) {
        Err(error @ (StoreError::DiskFull(_) | StoreError::File(_))) => {
            Err(error).with_context(|| format!("the model's files, --cache {}", cache.display()))
        }
        fetched => fetched
            .map(drop)
            .with_context(|| format!("the model's files from {place}; --store says where the store is for this host")),
    }
}

/// Waits for the first weights and opens the engine with them, unless something else comes first.
fn first_engine(
    host: Host<'_>,
    facts: &RunFacts,
    receiver: &mut EditionReceiver<'_>,
    open: impl Fn(WeightSource) -> anyhow::Result<Engine>,
) -> anyhow::Result<ControlFlow<Next, Engine>> {
    loop {
        if host.stop.load(Ordering::Relaxed) {
            return Ok(ControlFlow::Break(Next::Left(Left::BySignal)));
        }
        if let Some(first) = receiver.newest()? {
            let version = first.source.version;
            let engine = match open(first.source) {
                Ok(engine) => engine,
                Err(error) if receiver.has_lost() => {
                    tracing::warn!("weights v{version} went while they were opened: {error:#}");
                    continue;
                }
                Err(error) => return Err(error),
            };
            tracing::info!("samples from weights v{version}");
            let places = engine.options().max_num_seqs as u32;
            host.client.update(|report| report.max_num_seqs = places);
            receiver.taken(&SwapReport::of_first(version));
            return Ok(ControlFlow::Continue(engine));
        }
        if let Some(next) = host.client.orders(SHORT)? {
            refuse(&next)?;
            if next.finished {
                return Ok(ControlFlow::Break(Next::Left(Left::RunOver)));
            }
            if next.facts.as_ref().is_some_and(|others| others != facts) {
                return Ok(ControlFlow::Break(Next::OtherRun(Box::new(next))));
            }
            // Nothing is leased to a worker that has told of no edition.
            receiver.want(next.edition);
        }
    }
}

fn open_engine(
    source: WeightSource,
    model: &ModelDir,
    config: &TrainConfig,
    options: &WorkerOptions,
    facts: &RunFacts,
) -> anyhow::Result<Engine> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let wanted = options.max_num_seqs.or(config.max_num_seqs);
    let of_run = EngineOptions::of(config, model.config(), facts.max_model_len as usize);
    // A worker has its machine to itself.
    let mut engine = EngineOptions {
        threads: options.threads.unwrap_or(cores),
        max_num_seqs: wanted.unwrap_or(of_run.max_num_seqs),
        spinning: true,
        ..of_run
    };
    engine.fit(wanted, model.config(), config.rollout_device.export_dtype())?;
    Ok(Engine::new(source, model, engine)?)
}
