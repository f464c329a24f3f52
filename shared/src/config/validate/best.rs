//! The best checkpoint by the evaluations, and the early end of a run.

use crate::config::{ConfigError, TrainConfig};

impl TrainConfig {
    /// Checks the options of the best checkpoint. Metrics of evaluations are named after reward functions, and a
    /// function in Python has its name only after a rehearsal: then this is to be called again.
    ///
    /// # Errors
    /// A [`ConfigError::Value`] that names the option.
    pub fn check_best(&self) -> Result<(), ConfigError> {
        let dependent = [
            ("greater_is_better", "metric_for_best_model"),
            ("load_best_model_at_end", "metric_for_best_model"),
            ("early_stopping_patience", "metric_for_best_model"),
            ("early_stopping_threshold", "early_stopping_patience"),
        ];
        for (key, needed) in dependent {
            ensure!(
                !self.is_set(key) || self.is_set(needed),
                "`{key}` has no effect without `{needed}`; {}",
                match needed {
                    "metric_for_best_model" => "name a metric of the evaluations, such as eval_accuracy or eval_reward",
                    _ => "set both or none",
                }
            );
        }
        ensure!(
            self.metric_for_best_model.is_none() || self.evaluates(),
            "`metric_for_best_model` needs evaluations: set `eval_steps` and `eval_dataset`"
        );
        self.best_metric().map_err(ConfigError::Value)?;
        self.check_that_checkpoints_are_evaluated()
    }

    /// As transformers checks it; shares of all steps are compared once they are numbers of steps.
    fn check_that_checkpoints_are_evaluated(&self) -> Result<(), ConfigError> {
        let Some(every) = self.eval_steps.filter(|_| self.load_best_model_at_end) else { return Ok(()) };
        if self.save_ratio.is_some() || self.eval_ratio.is_some() {
            return Ok(());
        }
        ensure!(
            self.save_steps.is_multiple_of(every),
            "`load_best_model_at_end` needs checkpoints that are evaluated: `save_steps` {} must be a multiple of \
             `eval_steps` {every}; {} is one",
            self.save_steps,
            self.save_steps.next_multiple_of(every)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{
        TrainConfig,
        validate::testing::{accepted, refused},
    };

    fn evaluating(c: &mut TrainConfig) {
        c.eval_dataset = Some("test.jsonl".into());
        (c.eval_steps, c.save_steps) = (Some(10), 20);
        c.metric_for_best_model = Some("accuracy".into());
    }

    #[test]
    fn the_options_of_the_best_checkpoint_need_each_other() {
        accepted(evaluating);
        accepted(|c| {
            evaluating(c);
            (c.load_best_model_at_end, c.early_stopping_patience, c.early_stopping_threshold) = (true, Some(3), 0.1);
        });
        refused("needs evaluations", |c| c.metric_for_best_model = Some("accuracy".into()));
        refused("`load_best_model_at_end` has no effect without `metric_for_best_model`", |c| {
            c.load_best_model_at_end = true;
        });
        refused("`early_stopping_patience` has no effect without", |c| c.early_stopping_patience = Some(1));
        refused("`greater_is_better` has no effect without", |c| c.greater_is_better = Some(true));
        refused("`early_stopping_threshold` has no effect without `early_stopping_patience`", |c| {
            evaluating(c);
            c.early_stopping_threshold = 0.5;
        });
        refused("the nearest names are eval_reward", |c| {
            evaluating(c);
            c.metric_for_best_model = Some("rewad".into());
        });
    }

    #[test]
    fn every_checkpoint_must_be_evaluated_where_the_best_becomes_the_model() {
        let with = |save_steps: u64, load: bool| {
            move |c: &mut TrainConfig| {
                evaluating(c);
                (c.save_steps, c.load_best_model_at_end) = (save_steps, load);
            }
        };
        accepted(with(15, false));
        accepted(with(30, true));
        refused("a multiple of `eval_steps` 10; 20 is one", with(15, true));
        // A share is a number of steps only once the run knows how many it has.
        accepted(|c| {
            with(15, true)(c);
            c.save_ratio = Some(0.5);
        });
    }
}
