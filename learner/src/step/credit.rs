//! Credit assignment of a step: KL penalty, critic and advantages, with the state that they carry from step to step.

use shared::{
    config::TrainConfig,
    metrics::{self, MetricRecord},
};

use super::{Carried, StepBatch};
use crate::{
    advantage::{CreditOptions, KlController, KlPenalty, credit},
    batch::Sequence,
    critic::{Critic, CriticStats, explained_variance, spread},
    error::LearnerError,
    ragged::Ragged,
};

/// Turns the rewards of a batch into advantages, and trains the critic if there is one.
#[derive(Debug)]
pub struct CreditAssigner {
    options: CreditOptions,
    kl: Option<KlController>,
    critic: Option<Critic>,
    critic_warmup_steps: u64,
}

/// Parts and results of the credit of one generation batch.
#[derive(Debug, Default)]
pub struct Assignment {
    penalty: Option<KlPenalty>,
    /// The critic's values when the step began; absent without a critic.
    values: Option<Ragged<f64>>,
    returns: Ragged<f64>,
    /// Rows that the critic learns from: trained, and with a reward.
    learns: Vec<bool>,
    stats: CriticStats,
}

impl CreditAssigner {
    /// The assigner of a run. The critic comes later, since it is loaded like the policy: [`Self::set_critic`].
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        Self {
            options: CreditOptions::from_config(config),
            kl: KlController::from_config(config),
            critic: None,
            critic_warmup_steps: config.critic_warmup_steps,
        }
    }

    /// Gives it the critic that gae needs.
    pub fn set_critic(&mut self, critic: Critic) {
        self.critic = Some(critic);
    }

    /// The critic.
    #[must_use]
    pub fn critic(&self) -> Option<&Critic> {
        self.critic.as_ref()
    }

    /// Current weight of the KL penalty in the reward, if there is one.
    #[must_use]
    pub fn kl_coef(&self) -> Option<f64> {
        self.kl.map(|controller| controller.coef)
    }

    /// The critic, to be restored.
    pub fn critic_mut(&mut self) -> Option<&mut Critic> {
        self.critic.as_mut()
    }

    /// Goes on from a checkpoint; the critic is restored separately.
    pub(super) fn restore(&mut self, carried: &Carried) {
        if let (Some(controller), Some(coef)) = (&mut self.kl, carried.kl_coef) {
            controller.coef = coef;
        }
    }

    /// Whether log-probs of the old and the reference policy must be known for every valid row before [`Self::assign`].
    #[must_use]
    pub fn needs_logprobs(&self) -> bool {
        self.kl.is_some()
    }

    /// Whether the policy is updated in the step that follows `done` steps; in the critic's warm-up it is not.
    #[must_use]
    pub fn trains_policy(&self, done: u64) -> bool {
        self.critic.is_none() || done >= self.critic_warmup_steps
    }

    /// Advantages of a batch. A row without log-probs is empty in `old_logprobs` and `ref_logprobs`.
    ///
    /// # Errors
    /// When gae has no critic.
    pub fn assign(
        &mut self,
        batch: &StepBatch<'_>,
        sequences: &[Sequence<'_>],
        old_logprobs: &Ragged<f64>,
        ref_logprobs: &Ragged<f64>,
    ) -> Result<(Ragged<f64>, Assignment), LearnerError> {
        let samples = batch.samples();
        let penalty = self.kl.map(|controller| controller.penalise(old_logprobs, ref_logprobs));
        let penalties = penalty.as_ref().map(|penalty| &penalty.penalties);
        if self.options.estimator.spec().critic && self.critic.is_none() {
            return Err(LearnerError::Config("`advantage_estimator` gae needs a critic".into()));
        }
        let valid: Vec<usize> = (0..samples.len()).filter(|&row| samples[row].valid).collect();
        let values = self.critic.as_ref().map(|critic| critic.values(sequences, &valid)).transpose()?;
        let found = credit(&self.options, &samples, penalties, values.as_ref());
        if let (Some(controller), Some(penalty)) = (&mut self.kl, &penalty) {
            controller.update(penalty.mean_kl, penalty.completions);
        }
        let rewards = &batch.rewards.rewards;
        let assignment = Assignment {
            penalty,
            values,
            returns: found.returns,
            learns: samples.iter().zip(rewards).map(|(s, reward)| s.trained && reward.is_some()).collect(),
            stats: CriticStats::default(),
        };
        Ok((found.advantages, assignment))
    }

    /// Trains the critic on the rows of one update.
    pub fn update(
        &mut self,
        assignment: &mut Assignment,
        sequences: &[Sequence<'_>],
        rows: &[usize],
    ) -> Result<(), LearnerError> {
        let Assignment { values, returns, learns, stats, .. } = assignment;
        let (Some(critic), Some(values)) = (&mut self.critic, values) else {
            return Ok(());
        };
        let rows: Vec<usize> = rows.iter().copied().filter(|&row| learns[row]).collect();
        critic.update(sequences, &rows, values, returns, stats)
    }

    /// Leaves an update of the critic out.
    pub fn skip(&mut self, assignment: &mut Assignment) {
        if let Some(critic) = &mut self.critic {
            assignment.stats.learning_rate = critic.trained_mut().skip();
        }
    }
}

impl Assignment {
    /// The metrics of the step.
    #[must_use]
    pub fn record(&self, advantages: &Ragged<f64>) -> MetricRecord {
        let mut record = MetricRecord::default();
        if let Some(penalty) = &self.penalty {
            record.set(metrics::ACTOR_REWARD_KL_PENALTY, penalty.mean_kl);
            record.set(metrics::ACTOR_REWARD_KL_PENALTY_COEFF, penalty.coef);
        }
        let Some(values) = &self.values else {
            return record;
        };
        let learning: Vec<usize> = (0..self.learns.len()).filter(|&row| self.learns[row]).collect();
        let (values, returns) = (values.gather(&learning), self.returns.gather(&learning));
        self.stats.record(&mut record);
        record.set(metrics::CRITIC_VF_EXPLAINED_VAR, explained_variance(&returns, &values));
        spread(&mut record, "returns", &returns);
        spread(&mut record, "values", &values);
        spread(&mut record, "advantages", &advantages.gather(&learning));
        record
    }
}
