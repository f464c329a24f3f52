//! What a worker does for one coordinator after the other.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rollout::{
    data::Tokenizer,
    engine::{Engine, EngineOptions, GroupRequest, Output, WeightSource, auto_max_num_seqs, available_memory},
    generate::{
        self, Work, drive,
        follower::{Publication, WeightFollower},
    },
};
use shared::{
    ModelDir, PolicyVersion, RunDir,
    channel::{
        SamplerStatus,
        fleet::{Edition, Lease, Orders, RunFacts},
    },
    config::{RewardsOn, TrainConfig, WeightSwap, layers},
};
use shared_store::{Store, StoreError};

use super::{Client, Left, Scratch, WorkerOptions, fetcher::Fetcher};
use crate::{
    messages::{class_of, made},
    scores::Scorer,
    weights::{GiveUp, MODEL, Origin, keep_only, sees_versions},
};

/// How long orders are waited for when nothing is to be done.
const IDLE: Duration = Duration::from_millis(20);
/// The same while something else is under way.
const SHORT: Duration = Duration::from_millis(2);

/// Works until the run is over.
pub(super) fn work(
    client: &Client,
    scratch: &Scratch,
    options: &WorkerOptions,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Left> {
    tracing::info!("worker {} calls the coordinator", options.name);
    let mut orders = None;
    loop {
        let Some(first) = first_orders(client, orders.take(), stop)? else { return Ok(Left::BySignal) };
        if first.finished {
            return Ok(Left::RunOver);
        }
        let facts = first.facts.clone().expect("they were waited for");
        let next = match Session::open(client, scratch, options, stop, facts, first)? {
            Opened::Session(mut session, mut engine) => drive(&mut *engine, &mut *session)?,
            Opened::Next(next) => next,
        };
        match next {
            Next::Left(left) => return Ok(left),
            Next::OtherRun(next) => orders = Some(*next),
        }
    }
}

/// A session, or what comes instead of it.
enum Opened<'a> {
    Session(Box<Session<'a>>, Box<Engine>),
    Next(Next),
}

/// What comes after a session.
enum Next {
    Left(Left),
    /// The coordinator has begun anew with other facts.
    OtherRun(Box<Orders>),
}

/// Waits for the facts of a run.
fn first_orders(client: &Client, orders: Option<Orders>, stop: &AtomicBool) -> anyhow::Result<Option<Orders>> {
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

fn refuse(orders: &Orders) -> anyhow::Result<()> {
    match &orders.refused {
        Some(reason) => bail!("the coordinator wants nothing of this worker: {reason}"),
        None => Ok(()),
    }
}

struct Session<'a> {
    client: &'a Client,
    scratch: &'a Scratch,
    options: &'a WorkerOptions,
    stop: &'a AtomicBool,
    facts: RunFacts,
    /// The coordinator that its leases are of.
    coordinator: u64,
    tokenizer: Tokenizer,
    /// Scores what is made, where the run wants that.
    scorer: Option<Scorer>,
    weights: WeightFollower,
    status: Mutex<SamplerStatus>,
    fetcher: Fetcher,
    /// What the coordinator wants to be sampled from.
    wanted: Option<Edition>,
    /// What is sampled from.
    in_use: Edition,
    /// Since when the wanted edition is.
    wanted_since: Instant,
    /// Leases that have not started, in the order in which they were given.
    waiting: VecDeque<Lease>,
    /// Completions still to be made of those that have.
    started: BTreeMap<u64, usize>,
    /// Tokens that were decoded before the step at hand.
    decoded: u64,
}

impl<'a> Session<'a> {
    /// Fetches model and first weights and opens the engine.
    fn open(
        client: &'a Client,
        scratch: &'a Scratch,
        options: &'a WorkerOptions,
        stop: &'a AtomicBool,
        facts: RunFacts,
        orders: Orders,
    ) -> anyhow::Result<Opened<'a>> {
        let mut config = config_of(&facts, scratch)?;
        config.rollout_kernels = options.kernels.unwrap_or(config.rollout_kernels);
        config.rollout_device = options.device.unwrap_or(config.rollout_device);
        let coordinator = orders.coordinator;
        client.report(|report| {
            report.coordinator = coordinator;
            report.class = Some(class_of(&config));
            report.held.clear();
            report.made.clear();
            report.edition = None;
        });
        let place = options.store.as_deref().unwrap_or(&facts.store);
        let run_dir = facts.run_dir.as_ref().map(RunDir::new);
        run_dir.as_ref().map_or(Ok(()), sees_versions)?;
        let store =
            Arc::new(Store::open(place).context("the store of weights; --store says where it is for this host")?);
        let model_dir = scratch.run_dir().root().join(MODEL);
        if model_dir.exists() {
            fs::remove_dir_all(&model_dir)?;
        }
        match store.fetch(MODEL, &facts.model, &model_dir, &GiveUp::default()) {
            Err(error @ (StoreError::DiskFull(_) | StoreError::File(_))) => {
                return Err(error).with_context(|| format!("the model's files, --cache {}", options.cache.display()));
            }
            fetched => fetched.with_context(|| {
                format!("the model's files from {place}; --store says where the store is for this host")
            })?,
        };
        let model = ModelDir::open(&model_dir)?;
        let tokenizer = Tokenizer::open_at(&model, config.template_now())?;
        config.reward_dir = options.reward_dir.clone().or(config.reward_dir);
        let is_to_score = config.rewards_on == RewardsOn::Workers;
        let mut scorer = is_to_score.then(|| Scorer::open(&config, &tokenizer)).transpose()?;
        let mut fetcher = Fetcher::new(Origin::of(&store, run_dir), scratch.run_dir().clone());
        let (mut wanted, mut wanted_since) = (orders.edition.clone(), Instant::now());
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(Opened::Next(Next::Left(Left::BySignal)));
            }
            if let Some(here) = fetcher.look(wanted.as_ref(), None, false)? {
                let bytes = (here.came.bytes, here.came.seconds);
                let source = WeightSource {
                    dir: scratch.run_dir().version(here.edition.version),
                    version: here.edition.version,
                };
                let engine = match open_engine(source, &model, &config, options, &facts) {
                    Ok(engine) => engine,
                    Err(error) if fetcher.has_lost(&here.edition) => {
                        tracing::warn!("weights v{} went while they were opened: {error:#}", here.edition.version);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let in_use = here.edition;
                tracing::info!("samples from weights v{}", in_use.version);
                let (places, edition) = (engine.options().max_num_seqs as u32, in_use.clone());
                client.report(|report| {
                    report.max_num_seqs = places;
                    report.edition = Some(edition);
                    report.work.fetched_bytes += bytes.0;
                    report.work.fetch_s += bytes.1;
                    report.work.swap_s = wanted_since.elapsed().as_secs_f64();
                });
                let swap = if config.max_staleness == 0 { WeightSwap::Drain } else { config.weight_swap };
                let weights = WeightFollower::new(scratch.run_dir().clone(), swap);
                let status = Mutex::new(SamplerStatus::default());
                let started = BTreeMap::new();
                let session = Box::new(Self {
                    client,
                    scratch,
                    options,
                    stop,
                    facts,
                    coordinator,
                    tokenizer,
                    scorer: scorer.take(),
                    weights,
                    status,
                    fetcher,
                    wanted,
                    in_use,
                    wanted_since,
                    waiting: VecDeque::new(),
                    started,
                    decoded: 0,
                });
                return Ok(Opened::Session(session, Box::new(engine)));
            }
            tell_unfetched(client, &fetcher);
            if let Some(next) = client.orders(SHORT)? {
                refuse(&next)?;
                if next.finished {
                    return Ok(Opened::Next(Next::Left(Left::RunOver)));
                }
                if next.facts.as_ref().is_some_and(|others| *others != facts) {
                    return Ok(Opened::Next(Next::OtherRun(Box::new(next))));
                }
                // Nothing is leased to a worker that has told of no edition.
                if next.edition != wanted {
                    (wanted, wanted_since) = (next.edition, Instant::now());
                }
            }
        }
    }

    /// Leases whose completions are being scored.
    fn scoring(&self) -> u32 {
        self.scorer.as_ref().map_or(0, Scorer::scoring)
    }

    /// Takes orders; something comes after this session where they say so.
    fn obey(&mut self, engine: &mut Engine, orders: Orders) -> anyhow::Result<Option<Next>> {
        refuse(&orders)?;
        if orders.finished {
            tracing::info!("the run is over");
            return Ok(Some(Next::Left(Left::RunOver)));
        }
        if orders.coordinator != self.coordinator {
            if orders.facts.as_ref() != Some(&self.facts) {
                engine.abort_all();
                return Ok(orders.facts.is_some().then(|| Next::OtherRun(Box::new(orders))));
            }
            tracing::info!("the coordinator has begun anew");
            self.coordinator = orders.coordinator;
            engine.abort_all();
            self.waiting.clear();
            self.started.clear();
            self.scorer.iter_mut().for_each(|scorer| scorer.retain(&[]));
            self.client.report(|report| {
                report.coordinator = orders.coordinator;
                report.held.clear();
                report.made.clear();
            });
        }
        if orders.edition != self.wanted {
            (self.wanted, self.wanted_since) = (orders.edition.clone(), Instant::now());
        }
        self.waiting.retain(|lease| orders.leases.contains(&lease.id));
        self.started.retain(|id, _| {
            let is_wanted = orders.leases.contains(id);
            if !is_wanted {
                // It has been given to others, or nobody wants it any more: its places are for what is wanted.
                engine.cancel(*id, None);
            }
            is_wanted
        });
        self.scorer.iter_mut().for_each(|scorer| scorer.retain(&orders.leases));
        let known = self.held();
        self.waiting.extend(orders.granted.into_iter().filter(|lease| !known.contains(&lease.id)));
        self.tell_held();
        Ok(None)
    }

    /// Leases of which there is something to do, ascending.
    fn held(&self) -> Vec<u64> {
        let begun = self.started.keys().copied().chain(self.scorer.iter().flat_map(Scorer::leases));
        let mut held: Vec<u64> = self.waiting.iter().map(|lease| lease.id).chain(begun).collect();
        held.sort_unstable();
        held.dedup();
        held
    }

    /// The next call says what is held.
    fn tell_held(&self) {
        let (held, scoring) = (self.held(), self.scoring());
        self.client.update(|report| (report.held, report.work.scoring) = (held, scoring));
    }

    /// Sends what has been scored.
    fn send_scored(&mut self) {
        let scored = self.scorer.as_mut().map(Scorer::finished).unwrap_or_default();
        if scored.is_empty() {
            return;
        }
        self.tell_held();
        self.client.report(|report| {
            report.work.scored += scored.len() as u64;
            report.made.extend(scored);
        });
    }

    /// Fetches the wanted edition, and goes over to it.
    fn follow(&mut self, engine: &mut Engine) -> anyhow::Result<()> {
        if let Some(here) = self.fetcher.look(self.wanted.as_ref(), Some(&self.in_use), self.weights.pending())? {
            self.client.update(|report| {
                report.work.fetched_bytes += here.came.bytes;
                report.work.fetch_s += here.came.seconds;
            });
            if here.edition.version == engine.version() && here.edition.blake3 != self.in_use.blake3 {
                // Made again, with other weights.
                let before = PolicyVersion(here.edition.version.0.saturating_sub(1));
                self.weights.forget(engine, before);
            }
        }
        tell_unfetched(self.client, &self.fetcher);
        let Some(here) = self.fetcher.here().cloned().filter(|here| *here != self.in_use) else { return Ok(()) };
        let wanted = Publication { version: here.version, number: here.publication, is_last: false };
        self.weights.follow(engine, wanted, &self.status)?;
        let refusal = self.status.lock().expect("no holder of the lock panics").refusal.clone();
        let settled = engine.version() == here.version && self.weights.is_settled();
        if settled {
            self.in_use = here.clone();
            keep_only(self.scratch.run_dir(), &[here.version]);
        }
        let (swap_s, edition) = (self.wanted_since.elapsed().as_secs_f64(), self.in_use.clone());
        let change = |report: &mut shared::channel::fleet::Report| {
            report.edition = Some(edition);
            report.refusal = refusal;
            if settled {
                report.work.swap_s = swap_s;
            }
        };
        if settled {
            self.client.report(change)
        } else {
            self.client.update(change)
        }
        Ok(())
    }

    /// Starts leases that the weights in use are for.
    fn begin(&mut self, engine: &mut Engine) -> anyhow::Result<()> {
        if !self.weights.takes_groups(engine) {
            return Ok(());
        }
        let (able, later): (VecDeque<Lease>, VecDeque<Lease>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|lease| lease.version <= self.in_use.version);
        self.waiting = later;
        for lease in able {
            self.started.insert(lease.id, lease.samples.len());
            self.scorer.iter_mut().try_for_each(|scorer| scorer.begin(&lease))?;
            let group = GroupRequest {
                tag: lease.id,
                prompt_id: lease.prompt_id,
                epoch: lease.epoch,
                prompt_ids: lease.prompt_ids.into(),
                samples: lease.samples.into(),
                stop_criterion: self.tokenizer.stop_criterion(&lease.sampling.stop),
                sampling: lease.sampling.into(),
                lengths: None,
            };
            engine.begin(group.into())?;
        }
        Ok(())
    }

    /// Waits as long as a worker of the wanted rate would have worked.
    fn hold_back(&self, begun: Instant, tokens: u64) {
        if let Some(rate) = self.options.tokens_per_second {
            let whole = Duration::from_secs_f64(tokens as f64 / rate);
            thread::sleep(whole.saturating_sub(begun.elapsed()));
        }
    }
}

impl Work<Engine> for Session<'_> {
    type End = Next;

    fn feed(&mut self, engine: &mut Engine) -> anyhow::Result<generate::Next<Next>> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(generate::Next::End(Next::Left(Left::BySignal)));
        }
        let idle = engine.is_idle();
        let busy = self.weights.pending() || self.fetcher.here() != self.wanted.as_ref() || self.scoring() > 0;
        let wait = match (idle, busy) {
            (true, false) => IDLE,
            (true, true) => SHORT,
            (false, _) => Duration::ZERO,
        };
        let begun = Instant::now();
        if let Some(orders) = self.client.orders(wait)?
            && let Some(next) = self.obey(engine, orders)?
        {
            return Ok(generate::Next::End(next));
        }
        if idle {
            self.client.update(|report| report.work.idle_s += begun.elapsed().as_secs_f64());
        }
        self.follow(engine)?;
        self.begin(engine)?;
        self.decoded = engine.profile().decode_tokens;
        let can_start = engine.waiting() > 0 && self.weights.lets_start(engine);
        Ok(if engine.running() == 0 && !can_start { generate::Next::Idle } else { generate::Next::Advance })
    }

    fn take(&mut self, engine: &mut Engine, outputs: Vec<Output>, begun: Instant) -> anyhow::Result<()> {
        let finished: Vec<_> = outputs.into_iter().filter_map(Output::ended).collect();
        let tokens = engine.profile().decode_tokens - self.decoded + finished.len() as u64;
        self.hold_back(begun, tokens);
        let mut sent = Vec::new();
        for sequence in finished {
            let lease = sequence.tag;
            // Of a lease that was taken back, what comes is not wanted.
            let Some(left) = self.started.get_mut(&lease) else { continue };
            *left -= 1;
            if *left == 0 {
                self.started.remove(&lease);
            }
            let made = made(lease, sequence);
            sent.extend(match &mut self.scorer {
                Some(scorer) => scorer.add(made)?,
                None => Some(made),
            });
        }
        let busy = begun.elapsed().as_secs_f64();
        let has_news = !sent.is_empty();
        if has_news || self.scoring() > 0 {
            self.tell_held();
        }
        let change = |report: &mut shared::channel::fleet::Report| {
            report.work.tokens += tokens;
            report.work.busy_s += busy;
            report.made.extend(sent);
        };
        if has_news {
            self.client.report(change)
        } else {
            self.client.update(change)
        }
        self.send_scored();
        Ok(())
    }

    /// What waits is the next look at orders.
    fn idle(&mut self, _: &mut Engine) -> anyhow::Result<()> {
        self.send_scored();
        Ok(())
    }
}

/// The next call says what does not come from the store.
fn tell_unfetched(client: &Client, fetcher: &Fetcher) {
    client.update(|report| report.unfetched = fetcher.unfetched().cloned());
}

fn config_of(facts: &RunFacts, scratch: &Scratch) -> anyhow::Result<TrainConfig> {
    let path = scratch.run_dir().config();
    shared::atomic::write(&path, facts.config.as_bytes())?;
    layers::load(Some(&path), &Vec::new()).context("the configuration of the run")
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
    if wanted.is_none() {
        let dtype = config.rollout_device.export_dtype();
        let memory = available_memory(&engine)?;
        engine.max_num_seqs = auto_max_num_seqs(model.config(), dtype, &engine, engine.max_num_seqs, memory)?;
    }
    Ok(Engine::new(source, model, engine)?)
}
