//! Combinations of options: what is refused, and in [`warnings`] what is only remarked on.

/// Refuses a configuration that violates a condition, in the words of `format!`.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        let holds: bool = $holds;
        if !holds {
            return Err(ConfigError::Value(format!($($message)+)));
        }
    };
}

mod agent;
mod best;
mod fleet;
mod method;
mod mismatch;
#[cfg(test)]
mod testing;
mod tools;
mod warnings;

use std::fmt::Display;

use super::{ConfigError, Device, Kernels, KvDtype, RolloutDtype, RouterReplay, TrainConfig, WeightSwap};

/// Trackers that `report_to` can name.
const TRACKERS: [&str; 2] = ["wandb", "trackio"];
/// Other words that `report_to` may have, as TRL's, which change nothing: event files for TensorBoard are always
/// written.
const WITHOUT_TRACKERS: [&str; 2] = ["none", "tensorboard"];

impl TrainConfig {
    /// Checks the bounds that are declared with the options, then combinations.
    ///
    /// # Errors
    /// A [`ConfigError::Value`] that names the option and what it may be: the first of [`Self::problems`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// All faults: options that are missing or out of their bounds, and the first invalid combination in each subject.
    /// Combinations of values out of their bounds are not looked at.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut list = self.missing();
        let out_of_bounds = self.out_of_bounds();
        if !out_of_bounds.is_empty() {
            list.extend(out_of_bounds);
            return list;
        }
        let checks = [
            Self::check_prompts,
            Self::check_pair,
            Self::check_guard,
            Self::check_sampling,
            Self::check_tools,
            Self::check_agent,
            Self::check_advantages,
            Self::check_critic,
            Self::check_objective,
            Self::check_entropy,
            Self::check_reference,
            Self::check_adapter,
            Self::check_mismatch,
            Self::check_routing,
            Self::check_trackers,
            Self::check_best,
            Self::check_schedule,
            Self::check_fleet,
        ];
        list.extend(checks.iter().filter_map(|check| check(self).err()));
        list
    }

    /// Whether an option has another value than its default.
    fn is_set(&self, key: &str) -> bool {
        let value = |config: &Self| serde_json::to_value(config).map(|mut all| all[key].take()).ok();
        value(self) != value(&Self::default())
    }

    fn check_routing(&self) -> Result<(), ConfigError> {
        if self.router_replay == RouterReplay::Disabled {
            return Ok(());
        }
        ensure!(
            self.rollout_kernels == Kernels::Packed && self.rollout_device == Device::Cpu,
            "`router_replay` needs `rollout_kernels` packed on the CPU: nothing else tells which experts it chose"
        );
        ensure!(
            !self.has_tools() && self.agent.is_none() && self.listen.is_none(),
            "`router_replay` cannot be combined with `tools`, `environment_factory`, `agent` or `listen`: choices \
             travel with completions of one turn that the sampler beside the learner makes"
        );
        ensure!(
            self.weight_swap != WeightSwap::Recompute,
            "`router_replay` cannot be combined with `weight_swap` recompute: the new weights choose experts anew for \
             tokens that earlier weights drew"
        );
        Ok(())
    }

    fn check_prompts(&self) -> Result<(), ConfigError> {
        let given = self.template_date.as_deref().unwrap_or_default();
        ensure!(
            given.is_empty() || self.template_now().is_some(),
            "`template_date` must be a moment such as 2026-01-31T12:00:00Z, got {given}"
        );
        Ok(())
    }

    fn check_trackers(&self) -> Result<(), ConfigError> {
        let known = |name: &&String| TRACKERS.contains(&name.as_str()) || WITHOUT_TRACKERS.contains(&name.as_str());
        match self.report_to.iter().find(|name| !known(name)) {
            Some(name) => Err(ConfigError::Value(format!(
                "`report_to` knows {}, got `{name}`; docs/runs.md says how to tell others",
                TRACKERS.join(" and ")
            ))),
            None => Ok(()),
        }
    }

    /// The trackers in `report_to` that have to be started.
    pub fn trackers(&self) -> impl Iterator<Item = &str> {
        self.report_to.iter().map(String::as_str).filter(|name| TRACKERS.contains(name))
    }

    fn check_guard(&self) -> Result<(), ConfigError> {
        self.guard_rules().map(drop).map_err(ConfigError::Value)
    }

    fn check_sampling(&self) -> Result<(), ConfigError> {
        ensure!(
            self.repetition_penalty == 1.0,
            "`repetition_penalty` must be 1 in training: with a penalty, completions come from a distribution that \
             changes with every token and whose log-probs the learner does not have; punish repetition with the reward \
             function repetition_penalty instead"
        );
        Ok(())
    }

    fn check_adapter(&self) -> Result<(), ConfigError> {
        let keys = [
            "lora_r",
            "lora_alpha",
            "lora_target_modules",
            "lora_dropout",
            "use_rslora",
            "load_in_8bit",
            "load_in_4bit",
        ];
        ensure!(
            !(self.load_in_8bit && self.load_in_4bit),
            "`load_in_8bit` and `load_in_4bit` cannot both be true: they are two formats of the frozen model"
        );
        if let Some(key) = keys.into_iter().find(|key| !self.use_peft && self.is_set(key)) {
            return Err(ConfigError::Value(format!("`{key}` has no effect without `use_peft`; set it to true")));
        }
        ensure!(
            self.lora_dropout == 0.0,
            "`lora_dropout` must be 0, got {}: what a pass drops the sampler does not, so log-probs would not be those \
             of the policy that sampled",
            self.lora_dropout
        );
        ensure!(
            !(self.use_peft && self.sync_ref_model) || self.ref_model_mixup_alpha == 1.0,
            "`ref_model_mixup_alpha` must be 1 with `use_peft`, got {}: a mixture of two adapters' factors is no \
             mixture of their weights",
            self.ref_model_mixup_alpha
        );
        Ok(())
    }

    /// Options that every run must give, or that another option requires.
    fn missing(&self) -> Vec<ConfigError> {
        let (weights, functions) = (self.reward_weights.len(), self.reward_funcs.len());
        let (shares, datasets) = (self.dataset_weights.len(), self.dataset.len());
        let cases = [
            (self.model.as_os_str().is_empty(), "`model` is missing: name a Hugging Face model directory".to_owned()),
            (self.dataset.is_empty(), "`dataset` is missing: name a file or folder with prompts".to_owned()),
            (
                shares != 0 && shares != datasets,
                format!(
                    "`dataset_weights` has {shares} entries, and `dataset` names {datasets}: give each its own, or none"
                ),
            ),
            (
                self.evaluates() && self.eval_dataset.is_none(),
                "`eval_steps` needs `eval_dataset`: name a file or folder with prompts to evaluate on".to_owned(),
            ),
            (
                functions == 0 && self.environment_factory.is_none() && self.agent.is_none(),
                "`reward_funcs` is empty: name at least one reward function".to_owned(),
            ),
            (
                weights != 0 && weights != functions,
                format!("`reward_weights` has {weights} entries for {functions} reward functions"),
            ),
        ];
        cases.into_iter().filter(|(wrong, _)| *wrong).map(|(_, words)| ConfigError::Value(words)).collect()
    }

    fn check_pair(&self) -> Result<(), ConfigError> {
        ensure!(
            self.learner_device != Device::Tensorrt,
            "`learner_device` must be cpu or cuda: TensorRT does not train"
        );
        ensure!(
            self.rollout_device != Device::Tensorrt,
            "`rollout_device` must be cpu or cuda in training: an engine of TensorRT holds its weights and can be \
             refitted with identical ones only, so every version would take the minutes of a new engine; `tandem \
             generate`, `eval` and `bench` take it"
        );
        ensure!(
            self.learner_ranks <= self.groups_per_step(),
            "`learner_ranks` {} is more than the {} groups of a step: each rank trains on whole groups",
            self.learner_ranks,
            self.groups_per_step()
        );
        ensure!(
            self.max_staleness >= self.publish_every - 1,
            "`publish_every` {} needs `max_staleness` of at least {}, and it is {}: the last step before a version is \
             published is made with the one before",
            self.publish_every,
            self.publish_every - 1,
            self.max_staleness
        );
        ensure!(
            !self.rollout_cuda_graphs || self.rollout_device == Device::Cuda,
            "`rollout_cuda_graphs` needs `rollout_device` cuda"
        );
        let stock = self.rollout_device != Device::Cpu || self.rollout_kernels == Kernels::Stock;
        let unfit = self.given().into_iter().find(|(option, _)| option.needs_stock && !stock);
        ensure!(
            unfit.is_none(),
            "`{}` needs `rollout_device` cuda or `rollout_kernels` stock",
            unfit.map_or("", |(option, _)| option.key)
        );
        ensure!(
            self.rollout_dtype == RolloutDtype::Auto || self.rollout_device == Device::Cpu,
            "`rollout_dtype` int8, int4, bf16, bf16dot and bf16x3 are for `rollout_device` cpu: on CUDA the sampler \
             computes in fp16"
        );
        ensure!(
            self.kv_dtype == KvDtype::Auto || self.rollout_device == Device::Cpu,
            "`kv_dtype` int8 and bf16 are for `rollout_device` cpu: on CUDA keys and values are fp16"
        );
        Ok(())
    }
}

/// Choices as a list in words.
fn words(choices: &[impl Display]) -> String {
    let names: Vec<String> = choices.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{accepted, refused, valid},
        *,
    };

    #[test]
    fn the_defaults_with_model_dataset_and_reward_are_valid() {
        valid().validate().unwrap();
    }

    #[test]
    fn everything_that_is_missing_or_out_of_bounds_is_said_at_once() {
        let config = TrainConfig { num_generations: 1, publish_every: 0, ..TrainConfig::default() };
        let found: Vec<String> = config.problems().iter().map(ToString::to_string).collect();
        let expected = ["`model`", "`dataset`", "`reward_funcs`", "`num_generations`", "`publish_every`"];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(problem, key)| problem.starts_with(key)), "{found:?}");
        assert_eq!(config.validate().unwrap_err().to_string(), found[0]);
        let several = TrainConfig { rollout_cuda_graphs: true, lora_r: 4, ..valid() };
        assert_eq!(several.problems().len(), 2);
    }

    #[test]
    fn ranks_of_a_learner_may_compute_on_gpus() {
        accepted(|c| (c.learner_ranks, c.generation_batch_size, c.learner_device) = (2, Some(16), Device::Cuda));
        refused("TensorRT does not train", |c| (c.learner_ranks, c.learner_device) = (2, Device::Tensorrt));
        refused("whole groups", |c| (c.learner_ranks, c.learner_device) = (c.groups_per_step() + 1, Device::Cuda));
    }

    #[test]
    fn every_refusal_names_its_option() {
        type Break = fn(&mut TrainConfig);
        let cases: [(&str, Break); 42] = [
            ("guard", |c| c.guard = vec!["mismatch=halt".into()]),
            ("model", |c| c.model = "".into()),
            ("dataset", |c| c.dataset = "".into()),
            ("`dataset` has an empty entry", |c| c.dataset = ["a".into(), "".into()].into_iter().collect()),
            ("`dataset_weights` has 2 entries", |c| c.dataset_weights = vec![1.0, 2.0]),
            ("dataset_weights", |c| c.dataset_weights = vec![0.0]),
            ("output_dir", |c| c.output_dir = "".into()),
            ("reward_funcs", |c| c.reward_funcs.clear()),
            ("reward_weights", |c| c.reward_weights = vec![1.0, 2.0]),
            ("reward_weights", |c| c.reward_weights = vec![f64::NAN]),
            ("eval_dataset", |c| c.eval_steps = Some(5)),
            ("num_generations", |c| c.num_generations = 1),
            ("steps_per_generation", |c| c.steps_per_generation = Some(0)),
            ("max_steps", |c| c.max_steps = Some(0)),
            ("logging_steps", |c| c.logging_steps = 0),
            ("num_train_epochs", |c| c.num_train_epochs = 0.0),
            ("learning_rate", |c| c.learning_rate = f64::NAN),
            ("epsilon", |c| c.epsilon = 1.0),
            ("adam_beta2", |c| c.adam_beta2 = 1.0),
            ("adam_epsilon", |c| c.adam_epsilon = 0.0),
            ("warmup_ratio", |c| c.warmup_ratio = 1.5),
            ("temperature", |c| c.temperature = 0.0),
            ("temperature", |c| c.temperature = f32::NAN),
            ("top_p", |c| c.top_p = 0.0),
            ("repetition_penalty", |c| c.repetition_penalty = 1.1),
            ("peer_timeout", |c| c.peer_timeout = 0.0),
            ("peer_timeout", |c| c.peer_timeout = 1e30),
            ("load_timeout", |c| c.load_timeout = 0.0),
            ("step_timeout", |c| c.step_timeout = f64::NAN),
            ("save_timeout", |c| c.save_timeout = 1e30),
            ("reward_timeout", |c| c.reward_timeout = f64::INFINITY),
            ("max_staleness", |c| c.max_staleness = u64::MAX),
            ("learner_device", |c| c.learner_device = Device::Tensorrt),
            ("whole groups", |c| c.learner_ranks = c.groups_per_step() + 1),
            ("refitted with identical ones", |c| c.rollout_device = Device::Tensorrt),
            ("`max_staleness` of at least 3", |c| (c.publish_every, c.max_staleness) = (4, 2)),
            ("publish_every", |c| c.publish_every = 0),
            ("rollout_cuda_graphs", |c| c.rollout_cuda_graphs = true),
            ("rollout_prefill_batch", |c| c.rollout_prefill_batch = 2),
            ("rollout_candidates", |c| c.rollout_candidates = 64),
            ("rollout_dtype", |c| (c.rollout_dtype, c.rollout_device) = (RolloutDtype::Int8, Device::Cuda)),
            ("kv_dtype", |c| (c.kv_dtype, c.rollout_device) = (KvDtype::Int8, Device::Cuda)),
        ];
        for (key, break_it) in cases {
            let mut config = valid();
            break_it(&mut config);
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(key) && !message.contains('\n'), "{key}: {message}");
        }
    }
}
