//! From the configuration of a run to its conversations.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use rollout_environments::{Environments, Sources, StartError};
use serde_json::Value;
use shared::{
    ModelDir,
    config::{AdvantageLevel, TrainConfig},
};

use super::{Conversing, Patience, Rewards, prompts};
use crate::{
    conversation::{Dialogue, Limits},
    data::{Dataset, DatasetError, Tokenizer},
    engine::EngineOptions,
    generate::PairGenerator,
};

/// Where the environments of a run come from.
fn sources(config: &TrainConfig, raters: Vec<String>) -> Sources {
    Sources {
        tools: config.tools.clone(),
        environment_factory: config.environment_factory.clone(),
        raters,
        host: config.reward_host(),
        timeout: Duration::from_secs_f64(config.environment_timeout),
        reward_timeout: Duration::from_secs_f64(config.reward_timeout),
    }
}

/// Tells the traceback, or the last words of the interpreter.
fn say_more(error: &StartError) {
    error.words().iter().for_each(|line| tracing::error!("{line}"));
}

/// The tools, environments and template of a run.
pub struct Conversations {
    environments: Environments,
    dialogue: Dialogue,
    rewards: Rewards,
    patience: Patience,
}

impl Conversations {
    /// Starts the environments of a run, and proves that the chat template can hold conversations. The raters, by names
    /// that are read as the option `reward_funcs` is, are called where the environments are. None for a run without
    /// tools.
    ///
    /// # Errors
    /// A template that cannot, and a tool or an environment that cannot be used, with the option to change.
    pub fn of(
        config: &TrainConfig,
        model: &ModelDir,
        tokenizer: &Tokenizer,
        raters: Vec<String>,
    ) -> anyhow::Result<Option<Self>> {
        if !config.has_tools() {
            return Ok(None);
        }
        let limits = Limits {
            max_completion_length: config.max_completion_length as usize,
            // No more is known before the prompts are. `around` has the length of the engine.
            max_model_len: config.max_model_len.unwrap_or(model.config().max_position_embeddings),
            max_tool_calling_iterations: config.max_tool_calling_iterations,
        };
        let dialogue =
            Dialogue::new(tokenizer, &model.generation().eos_token_ids, limits).context("`chat_template`")?;
        let many = raters.len();
        let environments = Environments::start(&sources(config, raters)).inspect_err(say_more)?;
        if config.reward_funcs.is_empty() && !environments.give_rewards() {
            bail!(
                "nothing would give a reward: no class has a method `get_reward`, no program says that it gives \
                 rewards, and `reward_funcs` is empty"
            );
        }
        if config.advantage_level == AdvantageLevel::Turn && !environments.give_turn_rewards() {
            bail!(
                "`advantage_level`: no environment gives rewards by turn: classes in Python give one at the end, \
                 `get_reward`; use `builtin:shaped_maze`, a program that gives rewards, or `advantage_level` \
                 trajectory"
            );
        }
        let rewards = Rewards::of(config.environment_factory.as_ref()).with_raters(many);
        Ok(Some(Self { environments, dialogue, rewards, patience: Patience::of(config) }))
    }

    /// Adds the tools of each row to the prompts of a dataset.
    ///
    /// # Errors
    /// The first row that cannot begin a conversation.
    pub fn add_tools(&self, dataset: &mut Dataset) -> Result<(), DatasetError> {
        prompts::add_tools(dataset, &self.dialogue, |row| {
            let tools: &[Value] = self.environments.tools(row).map_err(|error| error.to_string())?;
            Ok(Arc::from(tools))
        })
    }

    /// A generator of conversations whose turns `inner` samples, an engine with these options.
    #[must_use]
    pub fn around(self, inner: Box<dyn PairGenerator>, options: &EngineOptions) -> Box<dyn PairGenerator> {
        let hosts = (Box::new(self.environments) as _, self.rewards);
        let conversing = Conversing::new(inner, self.dialogue.within(options.max_model_len), hosts);
        Box::new(conversing.with_patience(self.patience).with_kept_states(options.kept_states))
    }
}
