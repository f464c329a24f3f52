//! The learner's half of the pair: collect the groups of a step, train, publish, announce, keep records.

mod collector;
mod completions;
mod failures;
mod gate;
mod ledger;
mod link;
mod notices;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use shared::{
    ModelDir, PolicyVersion, RunDir, Step, WeightManifest,
    channel::{LearnerEnd, LearnerStatus, SamplerStatus, incarnation},
    config::TrainConfig,
    metrics::{self, Metric, MetricRecord, MetricsFile},
};
use tch::Device;

pub use collector::Collector;
use failures::Failures;
use gate::Gate;
pub use link::Link;
use notices::{Notices, Seen};

use crate::{
    checkpoint::{self, Origin, TrainerState},
    error::LearnerError,
    publish::{Publisher, export_options},
    step::{StepBatch, TrainedStep, Trainer, record},
};

/// Most groups that wait for the trainer in its own memory; more wait in the channel.
const MAX_QUEUED: u64 = 1 << 16;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every step is done.
    Finished,
    /// It was asked to stop; the last completed step is in a checkpoint.
    Stopped,
}

/// A run in progress.
struct Run<'a> {
    config: &'a TrainConfig,
    run_dir: &'a RunDir,
    model: ModelDir,
    trainer: Trainer,
    publisher: Publisher,
    state: TrainerState,
    /// The newest version that is published.
    newest: PolicyVersion,
    gate: Gate,
    metrics: MetricsFile,
    notices: Notices,
    /// Rows of the dataset, for `epoch`.
    prompts: u64,
    /// Steps whose state is in a checkpoint.
    durable: u64,
    /// The sampler's counters at the last record.
    sampler: SamplerStatus,
}

/// Trains until the last step, or until `stop` is set.
///
/// # Errors
/// An unusable model, configuration or run directory; a sampler that breaks the contract or falls silent.
pub fn run(
    run_dir: &RunDir,
    config: &TrainConfig,
    device: Device,
    end: impl LearnerEnd + 'static,
    stop: &AtomicBool,
) -> Result<Outcome, LearnerError> {
    run_dir.create()?;
    run_dir.remove_litter()?;
    run_dir.reopen()?;
    let mut run = Run::open(run_dir, config, device)?;
    let version = PolicyVersion(run.state.step);
    let status = LearnerStatus {
        incarnation: incarnation(),
        version,
        step: Step(run.state.step),
        cursor: run.state.cursor,
        durable_step: Step(run.durable),
        total_steps: run.state.total_steps,
        ..LearnerStatus::default()
    };
    let link = Link::start(end, status, queue_capacity(config), Duration::from_secs_f64(config.peer_timeout));
    let mut collector = Collector::new(config, run.model.config().vocab_size);
    let outcome = run.all_steps(&mut collector, &link, stop)?;
    if run.durable < run.state.step {
        run.save(&link)?;
    }
    if outcome == Outcome::Finished {
        LearnerStatus { finished: true, ..link.status() }.leave(run_dir)?;
    }
    link.finish();
    Ok(outcome)
}

impl<'a> Run<'a> {
    fn open(run_dir: &'a RunDir, config: &'a TrainConfig, device: Device) -> Result<Self, LearnerError> {
        let model = ModelDir::open(&config.model)?;
        let (found, aside) = checkpoint::find(run_dir, config.resume_from_checkpoint.as_deref())?;
        let (trainer, state) = checkpoint::open_trainer(config, &model, found.as_deref(), device)?;
        let options = export_options(config, model.config())?;
        let mut publisher = Publisher::new(run_dir.clone(), model.clone(), options)?;
        let saved = found.as_ref().and_then(|path| WeightManifest::read(path).ok());
        let gate = Gate::new(config, PolicyVersion(state.step), model.config().vocab_size);
        publisher.rewind(PolicyVersion(state.step), saved.as_ref(), trainer.policy().model(), gate.token_ids())?;
        let metrics = MetricsFile::open(&run_dir.metrics(), state.step)?;
        let records = metrics::read(&run_dir.metrics())?;
        let mut notices = Notices::open(&run_dir.notices(), config, state.step, &records)?;
        notices.tell(shared::notices::learning_rate(config, model.config().parameter_count()))?;
        let origin = Origin::of(config);
        if let Some(path) = &found {
            notices.tell(notices::since_checkpoint(&state, config, &origin))?;
            notices.tell(aside.into_iter().map(|what| notices::damaged(state.step, what)))?;
            tracing::info!("going on from {} after step {}", path.display(), state.step);
        }
        let state = TrainerState { config: TrainerState::start(config, state.total_steps).config, origin, ..state };
        Ok(Self {
            metrics,
            notices,
            prompts: prompts(config)?,
            durable: state.step,
            newest: PolicyVersion(state.step),
            gate,
            sampler: SamplerStatus::default(),
            config,
            run_dir,
            model,
            trainer,
            publisher,
            state,
        })
    }

    fn all_steps(
        &mut self,
        collector: &mut Collector,
        link: &Link,
        stop: &AtomicBool,
    ) -> Result<Outcome, LearnerError> {
        while self.state.step < self.state.total_steps {
            let start = Instant::now();
            let step = Step(self.state.step);
            let cursor = self.state.cursor;
            let Some(groups) = collector.collect(step, cursor, link, stop, &mut || self.answer_refusal(link))? else {
                return Ok(Outcome::Stopped);
            };
            let waited = start.elapsed();
            let failures = failures::of(&groups);
            self.look_at_failures(&failures, link)?;
            if self.config.save_step_batches {
                checkpoint::save_step_batch(self.run_dir, &self.model, &self.trainer, &self.state, &groups)?;
            }
            let batch = StepBatch::new(&groups, self.config, PolicyVersion(self.state.step));
            let trained = self.trainer.step(&batch, self.state.step)?;
            self.advance(&batch);
            let (published, gate) = self.publish(&batch, link)?;
            let record = self.keep_records(&batch, &trained, link, Durations { start, waited, published, gate })?;
            self.notices.look(&Seen { config: self.config, record: &record, failures: &failures })?;
            if self.state.step.is_multiple_of(self.config.save_steps) || self.state.step == self.state.total_steps {
                self.save(link)?;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(Outcome::Stopped);
            }
        }
        Ok(Outcome::Finished)
    }

    /// Says which reward functions failed in a step, and ends the run where one has failed on everything: what would be
    /// trained on then is not what was asked for. The steps before it are kept.
    fn look_at_failures(&mut self, found: &[Failures], link: &Link) -> Result<(), LearnerError> {
        let step = self.state.step + 1;
        for failures in found {
            let Failures { name, failed, asked, reason } = failures;
            if !failures.everywhere() || !self.config.reward_failure_stops {
                tracing::warn!(
                    "step {step}: reward function `{name}` failed on {failed} of {asked} completions, the last: {reason}"
                );
                continue;
            }
            if self.durable < self.state.step {
                self.save(link)?;
            }
            return Err(LearnerError::Reward(format!(
                "reward function `{name}` failed on all {asked} completions of step {step}, the last: {reason}; what it \
                 printed is in {}; correct it, or set `reward_failure_stops` to false to train without it",
                self.run_dir.log("rollout").display()
            )));
        }
        Ok(())
    }

    fn advance(&mut self, batch: &StepBatch<'_>) {
        self.state.step += 1;
        self.state.cursor = batch.cursor();
        self.state.carried = self.trainer.carried();
        let tokens = |row: &crate::step::Row<'_>| row.group.prompt_ids.len() + row.completion.token_ids.len();
        self.state.num_tokens += batch.valid().map(tokens).sum::<usize>() as u64;
    }

    /// Publishes the version of the step that was made, if it is one that is to be published, and says where the run is. Returns
    /// what that took, and what of it were the canaries.
    fn publish(&mut self, batch: &StepBatch<'_>, link: &Link) -> Result<(Duration, Duration), LearnerError> {
        let start = Instant::now();
        let (step, mut gate) = (self.state.step, Duration::ZERO);
        if is_published(step, self.state.total_steps, self.config) {
            if let Some(sampler) = link.sampler() {
                self.publisher.prune(self.newest, sampler.oldest_in_use)?;
            }
            self.newest = PolicyVersion(step);
            self.gate.choose(batch);
            gate = self.publisher.publish(self.newest, self.trainer.policy().model(), self.gate.token_ids())?.gate;
        }
        link.announce(|status| {
            status.version = self.newest;
            status.step = Step(step);
            status.cursor = self.state.cursor;
            status.received.clear();
            status.next_cursor = self.state.cursor;
        });
        Ok((start.elapsed(), gate))
    }

    fn keep_records(
        &mut self,
        batch: &StepBatch<'_>,
        trained: &TrainedStep,
        link: &Link,
        durations: Durations,
    ) -> Result<MetricRecord, LearnerError> {
        let step = self.state.step;
        if self.config.log_completions {
            completions::write(&self.run_dir.step_completions(step), step, batch, &trained.inputs.advantages)?;
        }
        let mut line = MetricRecord::default();
        line.count(metrics::STEP, step).count(metrics::TOTAL_STEPS, self.state.total_steps);
        line.set(metrics::EPOCH, self.state.cursor as f64 / self.prompts.max(1) as f64);
        line.count(metrics::NUM_TOKENS, self.state.num_tokens);
        line.extend(record(batch, trained));
        line.extend(ledger::record(batch, self.config, step));
        line.set(metrics::PERF_ROLLOUT_WAIT_S, durations.waited.as_secs_f64());
        line.set(metrics::PERF_PUBLISH_S, durations.published.as_secs_f64());
        line.set(metrics::PERF_GATE_S, durations.gate.as_secs_f64());
        if let Some(now) = link.sampler() {
            rollout_metrics(&self.sampler, &now, &mut line);
            self.sampler = now;
        }
        let step_time = durations.start.elapsed().as_secs_f64();
        line.set(metrics::PERF_IDLE_SHARE, durations.waited.as_secs_f64() / step_time);
        line.set(metrics::STEP_TIME, step_time);
        self.metrics.append(&line)?;
        let shown = |metric: &'static Metric| line.get(metric).unwrap_or(f64::NAN);
        tracing::info!(
            "step {step}/{}: reward {:.4}, loss {:.5}, grad norm {:.4}, entropy {:.4}, mismatch kl {:.2e}, {:.2} s",
            self.state.total_steps,
            shown(metrics::REWARD),
            shown(metrics::LOSS),
            shown(metrics::GRAD_NORM),
            shown(metrics::ENTROPY),
            shown(metrics::MISMATCH_KL),
            shown(metrics::STEP_TIME),
        );
        Ok(line)
    }

    fn save(&mut self, link: &Link) -> Result<(), LearnerError> {
        let limit = self.config.save_total_limit;
        self.metrics.sync()?;
        checkpoint::save(self.run_dir, &self.model, &self.publisher, &self.trainer, &self.state, limit)?;
        self.durable = self.state.step;
        link.announce(|status| status.durable_step = Step(self.durable));
        tracing::info!("saved {}", self.run_dir.checkpoint(self.durable).display());
        Ok(())
    }
}

/// Times of a step that are known only to the loop.
struct Durations {
    start: Instant,
    waited: Duration,
    published: Duration,
    gate: Duration,
}

/// Whether the version after so many steps is published: every `publish_every`-th, those that are evaluated, and the last.
fn is_published(step: u64, total_steps: u64, config: &TrainConfig) -> bool {
    let every = |n: u64| step.is_multiple_of(n);
    every(config.publish_every) || config.eval_steps.is_some_and(every) || step == total_steps
}

/// Groups that wait for the trainer: as many as the sampler may be ahead, so that it is held back by `max_staleness`
/// before it is by the channel. The queue's memory is taken at once, which is why there is a bound.
fn queue_capacity(config: &TrainConfig) -> usize {
    let steps = config.max_staleness.saturating_add(1);
    u64::from(config.groups_per_step()).saturating_mul(steps).min(MAX_QUEUED) as usize
}

/// Rows of the training prompts; those that the sampler leaves out for their length are counted.
fn prompts(config: &TrainConfig) -> Result<u64, LearnerError> {
    config.dataset.iter().map(|path| Ok(shared_data::count(path, config.train_part())?)).sum()
}

/// What the sampler did since the last record.
fn rollout_metrics(before: &SamplerStatus, now: &SamplerStatus, line: &mut MetricRecord) {
    let zero = SamplerStatus::default();
    let before = if before.incarnation == now.incarnation { before } else { &zero };
    let since = |pick: fn(&SamplerStatus) -> u64| pick(now).saturating_sub(pick(before)) as f64;
    let busy = since(|s| s.busy_micros) / 1e6;
    line.set(metrics::ROLLOUT_SWAP_S, now.swap_micros as f64 / 1e6);
    line.set(metrics::ROLLOUT_GATE_S, now.gate_micros as f64 / 1e6);
    line.set(metrics::ROLLOUT_SWAP_STALL_S, now.swap_stall_micros as f64 / 1e6);
    let idle = since(|s| s.idle_micros) / 1e6;
    line.set(metrics::ROLLOUT_BUSY_S, busy);
    line.set(metrics::ROLLOUT_IDLE_S, idle);
    line.set(metrics::ROLLOUT_IDLE_SHARE, idle / (busy + idle));
    line.set(metrics::ROLLOUT_TOKENS_PER_S, since(|s| s.generated_tokens) / busy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_published_when_it_is_due_to_be_evaluated_or_the_last() {
        let published = |publish_every, eval_steps| -> Vec<u64> {
            let config = TrainConfig { publish_every, eval_steps, ..TrainConfig::default() };
            (1..=8).filter(|&step| is_published(step, 8, &config)).collect()
        };
        assert_eq!(published(1, None), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(published(3, None), [3, 6, 8]);
        assert_eq!(published(3, Some(4)), [3, 4, 6, 8]);
    }

    #[test]
    fn the_queue_holds_what_the_sampler_may_be_ahead_within_bounds() {
        let of = |batch, max_staleness| {
            let config = TrainConfig { generation_batch_size: Some(batch), max_staleness, ..TrainConfig::default() };
            queue_capacity(&config)
        };
        assert_eq!((of(64, 0), of(64, 3)), (8, 32));
        for (batch, max_staleness) in [(64, 1_000_000), (u32::MAX, 0), (u32::MAX, u64::MAX)] {
            assert_eq!(of(batch, max_staleness), MAX_QUEUED as usize);
        }
    }
}
