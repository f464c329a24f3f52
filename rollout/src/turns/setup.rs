//! From the configuration of a run to its conversations.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use rollout_environments::{Environments, Factory, Sources, StartError};
use serde_json::Value;
use shared::{
    ModelDir,
    config::{EnvironmentFactory, TrainConfig},
};

use super::{Conversing, Rewards, prompts};
use crate::{
    conversation::{Dialogue, Limits},
    data::{Dataset, DatasetError, Tokenizer},
    generate::PairGenerator,
};

/// Where the environments of a run come from.
fn sources(config: &TrainConfig) -> Sources {
    let named = |(name, class): (Option<&str>, &str)| (name.unwrap_or_default().to_owned(), class.to_owned());
    let factory = |factory: &EnvironmentFactory| match factory {
        EnvironmentFactory::One(class) => Factory::One(class.clone()),
        EnvironmentFactory::Named(_) => Factory::ByColumn(factory.classes().map(named).collect()),
    };
    Sources {
        tools: config.tools.clone(),
        environment_factory: config.environment_factory.as_ref().map(factory),
        reward_funcs: config.reward_funcs.clone(),
        host: config.reward_host(),
        timeout: Duration::from_secs_f64(config.environment_timeout),
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
    tokenizer: Tokenizer,
    stop_tokens: Vec<u32>,
    limits: Limits,
}

impl Conversations {
    /// Starts the environments of a run, and proves that the chat template can hold conversations. None for a run
    /// without tools.
    ///
    /// # Errors
    /// A template that cannot, and a tool or an environment that cannot be used, with the option to change.
    pub fn of(config: &TrainConfig, model: &ModelDir, tokenizer: &Tokenizer) -> anyhow::Result<Option<Self>> {
        if !config.has_tools() {
            return Ok(None);
        }
        let limits = Limits {
            max_completion_length: config.max_completion_length as usize,
            // No more is known before the prompts are. `around` has the length of the engine.
            max_model_len: config.max_model_len.unwrap_or(model.config().max_position_embeddings),
            max_tool_calling_iterations: config.max_tool_calling_iterations,
        };
        let stop_tokens = model.generation().eos_token_ids.clone();
        let dialogue = Dialogue::new(tokenizer, &stop_tokens, limits).context("`chat_template`")?;
        let environments = Environments::start(&sources(config)).inspect_err(say_more)?;
        if let Some(function) = environments.scorers().first() {
            bail!(
                "`reward_funcs`: {function} asks for `environments`, which reward functions do not get; give the \
                 reward in `get_reward` of the class"
            );
        }
        let rewards = Rewards::of(config.environment_factory.as_ref());
        let tokenizer = tokenizer.clone();
        Ok(Some(Self { environments, dialogue, rewards, tokenizer, stop_tokens, limits }))
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

    /// A generator of conversations whose turns `inner` samples, with at most `max_model_len` tokens each.
    ///
    /// # Errors
    /// A template that cannot hold conversations.
    pub fn around(self, inner: Box<dyn PairGenerator>, max_model_len: usize) -> anyhow::Result<Box<dyn PairGenerator>> {
        let limits = Limits { max_model_len, ..self.limits };
        let dialogue = Dialogue::new(&self.tokenizer, &self.stop_tokens, limits).context("`chat_template`")?;
        let hosts = (Box::new(self.environments) as _, self.rewards);
        Ok(Box::new(Conversing::new(inner, dialogue, hosts, max_model_len)))
    }
}
