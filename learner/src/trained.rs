//! A model under training: what every kind of training carries from one optimiser update to the next.
//!
//! Policy, critic, reward model and supervised warm start differ in the pass that gives a loss and its gradients. The
//! rest of an update is the same for all of them, and is here.

use std::{ops::Range, path::Path, sync::Arc, time::Instant};

use shared::process::pace::Pace;

use crate::{
    error::LearnerError,
    model::{Gradients, Parameters, Trainable},
    optimizer::{AdamW, AdamWOptions},
    ranks::{self, Alone, Ranks},
    schedule::Schedule,
};

/// The ranks that train a model, and whether they share its optimiser's state out.
#[derive(Debug, Clone)]
pub struct Among {
    /// The ranks.
    pub ranks: Arc<dyn Ranks>,
    /// `shard_optimizer`.
    pub shards: bool,
}

impl Default for Among {
    fn default() -> Self {
        Self { ranks: Arc::new(Alone), shards: false }
    }
}

impl Among {
    /// Number of ranks that have a part of the state of their own.
    fn shards(&self) -> usize {
        if self.shards { self.ranks.count() } else { 1 }
    }
}

/// A model with its optimiser, its gradients and its place in the schedule.
#[derive(Debug)]
pub struct Trained<M> {
    model: M,
    optimizer: AdamW,
    gradients: Gradients,
    among: Among,
    schedule: Schedule,
    updates: u64,
    /// Factor of the schedule's rates.
    rate_factor: f64,
    /// Whether every update so far has left finite numbers behind.
    finite: bool,
}

/// What became of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// The loss.
    pub loss: f64,
    /// Global gradient norm before clipping; NaN where the loss was not finite.
    pub grad_norm: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Whether it moved the model; an update whose loss or norm is not finite never does.
    pub applied: bool,
}

/// Progress of [`Trained::fit`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Updates done.
    pub update: u64,
    /// Updates in all.
    pub updates: u64,
    /// Loss of the last update.
    pub loss: f64,
    /// Its gradient norm, before clipping.
    pub grad_norm: f64,
    /// Seconds so far.
    pub seconds: f64,
}

impl<M: Trainable> Trained<M> {
    /// A model before its first update.
    #[must_use]
    pub fn new(model: M, options: AdamWOptions, schedule: Schedule) -> Self {
        Self::among(model, options, schedule, Among::default())
    }

    /// A model before its first update, which several ranks train.
    #[must_use]
    pub fn among(model: M, options: AdamWOptions, schedule: Schedule, among: Among) -> Self {
        let parameters = model.trained();
        let shards = among.shards();
        let rank = if shards > 1 { among.ranks.rank() } else { 0 };
        Self {
            optimizer: AdamW::of_shard(parameters, options, rank, shards),
            gradients: parameters.gradients(),
            among,
            schedule,
            updates: 0,
            rate_factor: 1.0,
            finite: true,
            model,
        }
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model's parameters that the optimiser moves.
    pub fn parameters(&self) -> &Parameters {
        self.model.trained()
    }

    /// The elements of the flat buffer that this rank moves, and whose gradients it has: all, unless the state is
    /// shared out.
    #[must_use]
    pub fn own(&self) -> Range<i64> {
        self.optimizer.own()
    }

    /// The gradients of the last update, as it has left them: AdamW multiplies them by its clipping and by √(1 − β₂) on
    /// the way.
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    /// Updates so far, skipped ones included, which is what the schedule counts.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Factor of the schedule's rates: 1, unless they were lowered.
    #[must_use]
    pub fn rate_factor(&self) -> f64 {
        self.rate_factor
    }

    /// Sets the factor of the schedule's rates from now on.
    pub fn set_rate_factor(&mut self, factor: f64) {
        self.rate_factor = factor;
    }

    /// Whether every update so far has left finite numbers in weights and optimiser. After an update that has not, they
    /// are of no use.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.finite
    }

    /// One update. `pass` adds the gradients of a loss to buffers that are 0 and returns the loss. With several ranks,
    /// each `pass` adds the gradients of its share, and all return the whole loss.
    ///
    /// # Errors
    /// Those of `pass`; the update then counts for nothing. A rank that is gone.
    pub fn update(
        &mut self,
        pass: impl FnOnce(&M, &mut Gradients) -> Result<f64, LearnerError>,
    ) -> Result<Update, LearnerError> {
        let mut update = self.differentiate(pass)?;
        self.apply(&mut update)?;
        Ok(update)
    }

    /// The first half of an update, which moves nothing but the schedule: loss and gradients.
    ///
    /// # Errors
    /// As [`Trained::update`].
    pub fn differentiate(
        &mut self,
        pass: impl FnOnce(&M, &mut Gradients) -> Result<f64, LearnerError>,
    ) -> Result<Update, LearnerError> {
        self.gradients.zero();
        let loss = pass(&self.model, &mut self.gradients)?;
        let learning_rate = self.skip();
        let grad_norm = self.sum_gradients()?;
        let grad_norm = if loss.is_finite() { grad_norm } else { f64::NAN };
        Ok(Update { loss, grad_norm, learning_rate, applied: false })
    }

    /// Sums the gradients over all ranks and returns their global norm. If the state is shared out, each rank sums its
    /// own part.
    fn sum_gradients(&self) -> Result<f64, LearnerError> {
        let (ranks, flat) = (&*self.among.ranks, self.gradients.flat());
        if self.among.shards() > 1 {
            ranks::sum_shards(ranks, flat)?;
            let mut squares = [self.gradients.squares(self.own())];
            ranks.sum(&mut squares)?;
            return Ok(squares[0].sqrt());
        }
        ranks::sum(ranks, flat)?;
        // All ranks take the first one's number, however each rounds it.
        ranks.of_first(self.gradients.norm())
    }

    /// The second half: moves the model, unless the gradients are not finite.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn apply(&mut self, update: &mut Update) -> Result<(), LearnerError> {
        if !update.grad_norm.is_finite() {
            return Ok(());
        }
        let (norm, rate) = (update.grad_norm, update.learning_rate);
        let finite = self.optimizer.update(self.model.trained(), &self.gradients, norm, rate);
        let mut overflows = [f64::from(u8::from(!finite))];
        if self.among.shards() > 1 {
            self.among.ranks.sum(&mut overflows)?;
            ranks::gather(&*self.among.ranks, self.model.trained().flat())?;
        }
        self.finite &= overflows[0] == 0.0;
        self.model.moved();
        update.applied = true;
        Ok(())
    }

    /// Leaves an update out and returns the rate that it would have had: the schedule goes on, so that it ends with the
    /// run.
    pub fn skip(&mut self) -> f64 {
        let rate = self.schedule.rate(self.updates) * self.rate_factor;
        self.updates += 1;
        rate
    }

    /// Supervised training: `updates` updates in a row, none of which may be left out. `pass` is told how many are
    /// done. `report` is called every few seconds and after the last one. Returns the losses.
    ///
    /// # Errors
    /// Those of `pass`, or the first update whose loss or gradient is not finite.
    pub fn fit(
        &mut self,
        updates: u64,
        pass: &mut dyn FnMut(u64, &M, &mut Gradients) -> Result<f64, LearnerError>,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Vec<f64>, LearnerError> {
        let (start, mut pace, mut losses) = (Instant::now(), Pace::default(), Vec::new());
        for done in 0..updates {
            let Update { loss, grad_norm, applied, learning_rate } =
                self.update(|model, gradients| pass(done, model, gradients))?;
            let update = done + 1;
            if !applied {
                return Err(LearnerError::Config(format!(
                    "the loss or the gradient of update {update} is not finite (loss {loss}, gradient norm \
                     {grad_norm}); lower --learning-rate"
                )));
            }
            if !self.finite {
                return Err(LearnerError::Config(format!(
                    "update {update} has left weights that are no finite numbers (learning rate {learning_rate:e}); \
                     lower --learning-rate"
                )));
            }
            losses.push(loss);
            let seconds = start.elapsed().as_secs_f64();
            if done == 0 || pace.is_due() || update == updates {
                report(Progress { update, updates, loss, grad_norm, seconds });
            }
        }
        Ok(losses)
    }

    /// Whether all ranks are needed to write the optimiser's state.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.among.shards() > 1
    }

    /// Writes the optimiser's state to a file, for a checkpoint. Where it is shared out, all ranks must call it, and
    /// the first alone has the file.
    ///
    /// # Errors
    /// Any error of the file system; a rank that is gone.
    pub fn save_state(&self, file: Option<&Path>) -> Result<(), LearnerError> {
        self.optimizer.save(self.parameters(), &*self.among.ranks, file)
    }

    /// Goes on from the state of a checkpoint and the number of updates before it. All ranks must call it, and the
    /// first alone has the file.
    ///
    /// # Errors
    /// A file that cannot be read, or a tensor that is missing or does not fit the model, by name; a rank that is gone.
    pub fn restore(&mut self, updates: u64, file: Option<&Path>) -> Result<(), LearnerError> {
        self.updates = updates;
        self.optimizer.restore(self.model.trained(), &*self.among.ranks, file)
    }

    /// Takes over the parameters of the first rank; all ranks must call it.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn follow_first(&mut self) -> Result<(), LearnerError> {
        ranks::copy(&*self.among.ranks, self.model.trained().flat())?;
        self.model.moved();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shared::{
        ModelDir,
        config::{LrSchedulerType, ScheduleSettings},
    };

    use super::*;
    use crate::model::{LoadOptions, Scorer, load_scorer};

    /// A scorer before its first update, with a linear schedule of two updates.
    fn trained() -> Trained<Scorer> {
        let model = ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap();
        let settings = ScheduleSettings::default();
        let schedule = Schedule { kind: LrSchedulerType::Linear, peak: 0.5, warmup: 0, total: 2, settings };
        Trained::new(load_scorer(&model, LoadOptions::default()).unwrap(), AdamWOptions::default(), schedule)
    }

    fn ones(gradients: &mut Gradients) {
        let _ = gradients.flat().narrow(0, 0, 16).fill_(1.0);
    }

    #[test]
    fn an_update_without_a_finite_loss_moves_nothing_but_the_schedule() {
        let mut trained = trained();
        let before = trained.parameters().flat().copy();
        let skipped = trained.update(|_, gradients| (ones(gradients), Ok(f64::NAN)).1).unwrap();
        assert!(!skipped.applied && skipped.grad_norm.is_nan() && skipped.learning_rate == 0.5);
        assert!(trained.parameters().flat().equal(&before));
        let applied = trained.update(|_, gradients| (ones(gradients), Ok(1.0)).1).unwrap();
        assert!(applied.applied && applied.grad_norm > 1.0 && applied.learning_rate == 0.25);
        assert!(!trained.parameters().flat().equal(&before));
        assert_eq!(trained.updates(), 2);
    }

    #[test]
    fn supervised_training_ends_at_the_first_update_that_is_not_finite() {
        let mut reports = Vec::new();
        let mut pass = |done: u64, _: &Scorer, gradients: &mut Gradients| {
            ones(gradients);
            Ok(if done == 2 { f64::INFINITY } else { 1.0 })
        };
        let losses = trained().fit(2, &mut pass, &mut |progress| reports.push(progress.update)).unwrap();
        assert_eq!(
            (losses, reports.as_slice()),
            (vec![1.0; 2], [1, 2].as_slice()),
            "the first and the last are reported"
        );
        let error = trained().fit(4, &mut pass, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("update 3") && error.contains("--learning-rate"), "{error}");
    }
}
