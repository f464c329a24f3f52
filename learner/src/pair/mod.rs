//! The learner's half of the pair: collect the groups of a step, train, publish, announce, keep records.
//!
//! A thread of its own owns the channel. Another writes completions and tokens to disk while the next step is made;
//! each checkpoint waits for it. Metrics and ledger are flushed before a checkpoint too, so no checkpoint outlives its
//! records. A learner that goes on from a checkpoint cuts `metrics.jsonl`, `notices.jsonl` and `ledger.jsonl` back to
//! it, with its first step. A version between two published ones exists in checkpoints only; a run that goes on from
//! such a checkpoint publishes it.
//!
//! A checkpoint takes in what is in flight at the sampler: the learner moves the sampler's file there before the
//! checkpoint is visible. The learner waits for that file for seconds at most, and rather goes without it than stands
//! still.
//!
//! The guard looks at a step between its gradients and the optimiser. A roll-back writes a checkpoint of the present
//! step with the weights of an earlier one, without anything in flight, and goes on from that as after a restart.
//!
//! With `metric_for_best_model`, the learner waits for the result of each evaluation before it makes the next step.
//!
//! A version that the sampler refuses is published again while the learner waits for groups. The gate is no part of the
//! training: no checkpoint holds anything of it.

mod collector;
mod completions;
mod distributed;
mod dynamic_sampling;
mod evaluations;
mod failures;
mod in_flight;
mod journals;
mod ledger;
mod link;
mod notices;
mod published;
mod records;
mod refusals;
mod run;
mod sampler;
mod step_loop;
mod tokens;
mod writer;

use std::sync::atomic::{AtomicBool, Ordering};

use shared::{
    RunDir,
    channel::{LearnerEnd, LearnerStatus, RunId},
    config::TrainConfig,
    files::atomic,
    process::heartbeat::Deadlines,
};
use tch::Device;

pub use collector::Collector;
pub use link::Link;
use run::Run;
use step_loop::{StepLoop, Stretch};

use crate::error::LearnerError;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every step is done, or evaluations do not improve any more (`early_stopping_patience`).
    Finished,
    /// It was asked to stop; the last completed step is in a checkpoint.
    Stopped,
}

/// Trains until the last step or an early end, or until `stop` is set: the run with this id, as long as its directory
/// has that.
///
/// # Errors
/// An unusable model, configuration or run directory; a sampler that breaks the contract or falls silent.
pub fn run(
    (run_dir, id): (&RunDir, RunId),
    config: &TrainConfig,
    device: Device,
    end: impl LearnerEnd + 'static,
    stop: &AtomicBool,
) -> Result<Outcome, LearnerError> {
    run_dir.create()?;
    run_dir.remove_litter()?;
    let mut run = match Run::open((run_dir, id), config, device, stop) {
        // It has waited for the other ranks, and no step was made.
        Err(LearnerError::Peer(_)) if stop.load(Ordering::Relaxed) => return Ok(Outcome::Stopped),
        opened => opened?,
    };
    let mut collector = Collector::new(config, run.model.config().vocab_size);
    let status = run.begin(&mut collector);
    let link = Link::start(end, status, link::capacity(config), Deadlines::of(config).silence_of_peer());
    let outcome = loop {
        match StepLoop::new(&mut run, &mut collector, &link, stop).make_steps()? {
            Stretch::Ended(outcome) => break outcome,
            Stretch::RollBack => {
                run = run.go_back(device, stop)?;
                let status = run.begin(&mut collector);
                link.announce(|known| *known = status);
            }
        }
    };
    RunId::join(run_dir, Some(id))?;
    run.save_if_behind(&link)?;
    if outcome == Outcome::Finished || run.records.journals.are_taken_over() {
        run.record_left(&collector)?;
    }
    if let Err(error) = run.trainer.end() {
        tracing::warn!("the run is over, and not all ranks have heard of it: {error}");
    }
    if outcome == Outcome::Finished {
        run.choose_model()?;
        LearnerStatus { finished: true, ..link.status() }.leave(run_dir, id)?;
    }
    link.finish();
    // An answer that came too late for its checkpoint.
    atomic::remove_file(&run_dir.in_flight())?;
    Ok(outcome)
}
