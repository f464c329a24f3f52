//! The configuration of a run: `run.toml`, with TRL's names and defaults.
//!
//! **An option is declared once**, in `options/`, and a value of a choice once, in `choices.rs` or, where others go
//! by it, in [`crate::methods`], [`crate::system::compute`] and [`crate::generation::group`]. An option looks like
//! this:
//!
//! ```text
//! /// Clip range below (and above, without `epsilon_high`).
//! epsilon: f64 = 0.2, trl, also(&["clip_ratio", "eps_clip"]), at_least(0.0), below(1.0);
//! ```
//!
//! Behind type and default stand, in any order, the words that [`OptionSpec`] has: what it means that an `Option` is
//! absent (`absent`), where the option comes from (`trl`, `source`), other spellings (`also`), which numbers it may be
//! (`at_least`, `above`, `at_most`, `below`, `or_infinite`, `because`), which other option has the share of all steps
//! that a number of steps below 1 is (`share`), whether a run may be resumed with another value (`keeps_results`), and
//! whether only the stock kernels take other values than the default (`needs_stock`). A `PathBuf` and each of `Paths`
//! is relative to the file that it is given in; with `on_hub`, it may be a name on the Hugging Face Hub. To add an
//! option is to add such lines. From them come:
//!
//! - the field of [`TrainConfig`] and its default;
//! - the key of `run.toml` and the flag of the command line, with their errors and suggestions ([`layers`]);
//! - the bounds that [`TrainConfig::validate`] checks before it looks at combinations, which are in `validate/`;
//! - the page `docs/configuration.md`, the [`schema`] for editors, `tandem train --help`, its manual page and what
//!   shells complete, and the help of the flags of `rollout` that mean the same;
//! - what `tandem import-config` knows of TRL's keys, and what a resumed run may change.
//!
//! The other settings of a run are the address of a coordinator ([`endpoint`]) and the variables of [`torchrun`], which
//! tell a learner its rank.

mod best_metric;
mod choices;
mod elsewhere;
pub mod endpoint;
pub mod environments;
mod guard;
mod hub;
pub mod layers;
mod option;
mod options;
pub mod rewards;
mod sampling;
mod schedule;
pub mod schema;
mod shares;
pub mod torchrun;
mod validate;

pub use best_metric::BestMetric;
pub use choices::{
    ImportanceSamplingMode, KlController, LoneAdvantage, LrSchedulerType, RewardsOn, RouterReplay, StepDeviation,
    StoreFormat, Stragglers, VersionStorage, WeightSwap,
};
pub use environments::EnvironmentFactory;
pub use guard::{GuardAction, GuardRule, GuardSign};
pub use hub::{hub_name, on_hub};
pub use option::{OptionSpec, Origin};
pub use options::{OPTIONS, TrainConfig};
pub use rewards::{JudgeEndpoint, RewardBounds, RewardHost};
pub use schedule::{RampShape, ScheduleSettings};

pub use crate::declare::{Bounds, Choice, ChoiceSpec, JsonTable, OptionValue, Paths, UnknownChoice, ValueKind};
pub use crate::generation::group::RewardFailure;
pub use crate::methods::{
    advantage::{AdvantageEstimator, AdvantageLevel, MultiObjectiveAggregation, ScaleRewards},
    kl::KlEstimator,
    loss::{ImportanceSamplingLevel, LossType},
    reduction::LossAggregation,
};
pub use crate::system::compute::{Device, Kernels, KvDtype, Precision, RolloutDtype};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::Contrast;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: String,
        /// The fault.
        message: String,
    },
    /// A key that does not exist.
    #[error("unknown option `{key}` \
        ({origin}){}", suggestion.as_ref().map(|s| format!("; did you mean `{s}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key.
        key: String,
        /// File or command line.
        origin: String,
        /// The nearest known key.
        suggestion: Option<String>,
    },
    /// Several errors, in the order of the file or of the command line.
    #[error("{}", in_words(.0))]
    Several(Vec<ConfigError>),
    /// A value that is out of range or does not fit another option.
    #[error("{0}")]
    Value(String),
}

/// Problems in one line.
fn in_words(problems: &[ConfigError]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// How advice begins where a conversation has found no room. No environment and no agent is at fault then, and messages
/// that pass the reason on must not say so.
pub const RAISE_MAX_MODEL_LEN: &str = "raise `max_model_len`";

/// The largest whole number that a configuration file can hold.
const LARGEST: u64 = i64::MAX as u64;

/// Bytes of a number of GiB.
fn bytes(gib: f64) -> u64 {
    (gib * f64::from(1 << 30)) as u64
}

/// The option of a key, or of another spelling of it.
#[must_use]
pub fn option(spelling: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|option| option.key == spelling || option.aliases.contains(&spelling))
}

impl TrainConfig {
    /// Groups per step: the generation batch in whole groups, rounded up. Sizes of 0, which [`TrainConfig::validate`]
    /// refuses, count as 1.
    #[must_use]
    pub fn groups_per_step(&self) -> u32 {
        let steps = self.steps_per_generation.unwrap_or(self.gradient_accumulation_steps);
        let completions = self.generation_batch_size.unwrap_or(self.per_device_train_batch_size.saturating_mul(steps));
        completions.div_ceil(self.num_generations.max(1))
    }

    /// Completions per step.
    #[must_use]
    pub fn completions_per_step(&self) -> u32 {
        self.groups_per_step().saturating_mul(self.num_generations)
    }

    /// Sequences that the sampler decodes at once where memory has room for them: `max_num_seqs`, else a whole step.
    #[must_use]
    pub fn sequences_wanted(&self) -> usize {
        self.max_num_seqs.unwrap_or(self.completions_per_step() as usize)
    }

    /// Tokens that a sequence may have behind the prompt of its row: a completion, and as much for the first words of
    /// an environment or the prompts of an agent, which are not known before they come. Memory is planned for them, so
    /// it is not all that the model has.
    #[must_use]
    pub fn room_behind_prompts(&self) -> usize {
        let completion = self.max_completion_length as usize;
        let opens_later = self.environment_factory.is_some() || self.agent.is_some();
        if opens_later { 2 * completion } else { completion }
    }

    /// Completions that an optimiser update is meant to take: the last one of a step takes what is left.
    #[must_use]
    pub fn completions_per_update(&self) -> u32 {
        self.per_device_train_batch_size.saturating_mul(self.gradient_accumulation_steps)
    }

    /// Optimiser updates per step. Sizes of 0 count as for [`TrainConfig::groups_per_step`].
    #[must_use]
    pub fn updates_per_step(&self) -> u64 {
        let updates = self.completions_per_step().div_ceil(self.completions_per_update().max(1));
        u64::from(updates) * u64::from(self.num_iterations)
    }

    /// Optimiser updates of a number of steps.
    #[must_use]
    pub fn updates_of(&self, steps: u64) -> u64 {
        steps.saturating_mul(self.updates_per_step())
    }

    /// Steps of the run, given the number of training prompts.
    #[must_use]
    pub fn total_steps(&self, prompts: u64) -> u64 {
        self.max_steps.unwrap_or_else(|| {
            let per_epoch = prompts as f64 / f64::from(self.groups_per_step());
            ((per_epoch * self.num_train_epochs).ceil() as u64).clamp(1, LARGEST)
        })
    }

    /// The time that chat templates see, if it is given in the right form: `template_date`, in the form of RFC 3339.
    #[must_use]
    pub fn template_now(&self) -> Option<OffsetDateTime> {
        OffsetDateTime::parse(self.template_date.as_deref()?, &Rfc3339).ok()
    }

    /// Fixes the time that chat templates see: as it is given, else as in `before`, else this moment.
    pub fn fix_template_date(&mut self, before: Option<&Self>) {
        let now = || OffsetDateTime::now_utc().replace_nanosecond(0).ok()?.format(&Rfc3339).ok();
        self.template_date = self.template_date.take().or_else(|| before?.template_date.clone()).or_else(now);
    }

    /// Split and configuration of `dataset`.
    #[must_use]
    pub fn train_part(&self) -> (&str, Option<&str>) {
        (&self.dataset_train_split, self.dataset_config.as_deref())
    }

    /// Split and configuration of `eval_dataset`.
    #[must_use]
    pub fn test_part(&self) -> (&str, Option<&str>) {
        (&self.dataset_test_split, self.dataset_config.as_deref())
    }

    /// The difference within a group that is needed to learn from it.
    #[must_use]
    pub fn contrast(&self) -> Contrast {
        let several = self.multi_objective_aggregation.spec();
        several.contrast.unwrap_or(self.advantage_estimator.spec().contrast)
    }

    /// Settings for the processes of reward functions.
    #[must_use]
    pub fn reward_host(&self) -> RewardHost {
        RewardHost {
            dir: self.reward_dir.clone().unwrap_or_else(|| ".".into()),
            python: self.reward_python.clone(),
            processes: self.reward_processes as usize,
            bounds: RewardBounds {
                network: self.reward_network,
                env: self.reward_env.clone(),
                writable: self.reward_writable.as_deref().unwrap_or_default().to_vec(),
                memory: self.reward_memory.map(bytes),
                cpu: self.reward_cpu,
                processes: self.reward_max_processes as usize,
                file_size: bytes(self.reward_file_size),
                disk: bytes(self.reward_disk.unwrap_or(4.0 * self.reward_file_size)),
            },
            judge: JudgeEndpoint {
                base_url: self.judge_base_url.clone(),
                model: self.judge_model.clone(),
                api_key_env: self.judge_api_key_env.clone(),
            },
            with_environments: self.environment_factory.is_some(),
        }
    }

    /// Estimator of the KL penalty: the one that is configured, else the default of the method's source for the place
    /// of the penalty.
    #[must_use]
    pub fn kl_estimator_in_use(&self) -> KlEstimator {
        self.kl_estimator.unwrap_or(if self.use_kl_in_reward { KlEstimator::K1 } else { KlEstimator::K3 })
    }

    /// Threads of (sampler, learner) on a machine with `cores` cores.
    #[must_use]
    pub fn threads(&self, cores: usize) -> (usize, usize) {
        // Workers on other hosts leave all cores of this one to the learner.
        let share = if self.max_staleness == 0 || self.listen.is_some() { cores } else { (cores / 2).max(1) };
        (self.rollout_threads.unwrap_or(share), self.learner_threads.unwrap_or(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_epochs_is_a_number_of_steps_that_can_be_written() {
        let config = TrainConfig { num_train_epochs: 1e300, ..TrainConfig::default() };
        let resolved = TrainConfig { max_steps: Some(config.total_steps(100)), ..config };
        assert!(layers::to_toml(&resolved).contains("max_steps = 9223372036854775807\n"));
    }

    #[test]
    fn a_run_without_a_foreseeable_end_has_no_more_updates_than_can_be_counted() {
        let config = TrainConfig { num_iterations: 4, ..TrainConfig::default() };
        assert_eq!((config.updates_of(10), config.updates_of(u64::MAX / 2)), (40, u64::MAX));
    }
}
