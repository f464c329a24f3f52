//! What a run leaves behind: checkpoints, and at its end an account of what is in flight.

use std::path::Path;

use shared::{
    Step,
    channel::in_flight::read_groups,
    heartbeat::{self, Phase},
    ledger::LedgerLine,
    run_dir::IN_FLIGHT_FILE,
};

use super::{Collector, Link, Run, in_flight::Request, ledger};
use crate::{checkpoint, crew::Crew, error::LearnerError};

impl Run<'_> {
    /// Writes a checkpoint of where the run is.
    pub(super) fn save(&mut self, link: &Link) -> Result<(), LearnerError> {
        if self.guard.is_calm() {
            self.guard.state.healthy = Some(self.state.step);
            self.state.guard.healthy = self.guard.state.healthy;
        }
        heartbeat::beat(Phase::Save);
        let limit = self.config.save_total_limit;
        // A synchronous run samples lost completions again as they were.
        let request = (self.config.max_staleness > 0).then(|| Request::make(self.run_dir, link)).transpose()?;
        self.records.settle()?;
        let journals = self.journals()?;
        journals.metrics.sync()?;
        journals.ledger.sync()?;
        let mut in_flight = false;
        let more = |dir: &Path| {
            in_flight = request.map_or(Ok(false), |request| request.take(self.run_dir, link, dir))?;
            Ok(())
        };
        self.ask_for_parts()?;
        checkpoint::save(self.run_dir, &self.model, &self.publisher, &self.trainer, &self.state, limit, more)?;
        (self.durable, self.in_flight) = (self.state.step, in_flight);
        link.announce(|status| {
            status.durable_step = Step(self.durable);
            status.in_flight = in_flight;
            status.saving = false;
        });
        tracing::info!("saved {}", self.run_dir.checkpoint(self.durable).display());
        Ok(())
    }

    /// Asks the other ranks for their parts of the optimisers' state, which is written next.
    pub(super) fn ask_for_parts(&mut self) -> Result<(), LearnerError> {
        let sharded = self.trainer.policy().is_sharded();
        self.crew.as_mut().filter(|_| sharded).map_or(Ok(()), Crew::save)
    }

    /// Puts into the ledger what is in flight when the run ends.
    pub(super) fn record_left(&mut self, collector: &Collector) -> Result<(), LearnerError> {
        let is_last = self.in_flight && self.durable == self.state.step;
        let path = self.run_dir.checkpoint(self.durable).join(IN_FLIGHT_FILE);
        let read = |path: &Path| {
            let problem = |error| tracing::warn!("{} {error}: the ledger lacks what was in flight", path.display());
            read_groups(path).map_err(problem).unwrap_or_default()
        };
        let at_sampler = if is_last { read(&path) } else { Vec::new() };
        let from = (self.state.step + 1, self.state.cursor);
        let left = ledger::left(collector, &at_sampler, from, self.config.num_generations as usize);
        let lines: Vec<LedgerLine> = left.into_iter().map(LedgerLine::Group).collect();
        Ok(self.journals()?.ledger.append(&lines)?)
    }
}
