//! Everything that the sampler would refuse in a run, checked before there is a run.

use std::{fmt::Display, path::PathBuf};

use exporters::{Checkpoint, ExportOptions, refuse_unsupported};
use rollout_environments::StartError;
use rollout_rewards::{RewardFunction, program::Containment};
use shared::{
    ModelDir,
    config::{RewardHost, TrainConfig},
    process::command_line::tell_warnings,
    run::prompts::LongPrompts,
};

use super::setup;
use crate::{
    data::{Dataset, Tokenizer},
    engine::{EngineOptions, check_model},
    reward,
    turns::Conversations,
};

/// Every reason why a run of this configuration would not start, in words. The launcher itself finds some reasons,
/// which are left out: a model or a dataset that cannot be opened, a dataset without rows, and an expression that no
/// completion can follow.
#[must_use]
pub fn problems(config: &TrainConfig) -> Vec<String> {
    let mut found = Problems::default();
    let registry = reward::registry().on(RewardHost { processes: 1, ..config.reward_host() });
    let functions = config.reward_funcs.iter().map(|spec| found.take("reward_funcs", registry.function(spec)));
    let functions: Vec<RewardFunction> = functions.collect::<Vec<_>>().into_iter().flatten().collect();
    if config.agent.is_some() && config.verifiers().is_none() {
        found.take("agent", Containment::of(&config.reward_host()));
    }
    let Ok(model) = ModelDir::open(&config.model) else { return found.0 };
    found.take("model", Checkpoint::open(&model));
    found.take("model", refuse_unsupported(model.config(), &ExportOptions::default()));
    let engine = EngineOptions::of(config, model.config(), model.config().max_position_embeddings);
    found.take("model", check_model(model.config(), &engine));
    let with_template = model.with_chat_template(config.chat_template.as_deref());
    let Some(model) = found.take("chat_template", with_template) else { return found.0 };
    let Some(tokenizer) = found.take("model", Tokenizer::open_at(&model, config.template_now())) else {
        return found.0;
    };
    let tokenizer = tokenizer.with_template_kwargs(config.chat_template_kwargs.as_ref());
    let conversations = Conversations::of(config, &model, &tokenizer, reward::names_of_raters(&functions));
    let reason = conversations.as_ref().err().and_then(|error| error.downcast_ref::<StartError>());
    if let Some(entry @ StartError::Entry { .. }) = reason {
        // It names its option.
        found.0.push(entry.to_string());
        return found.0;
    }
    let option = if config.environment_factory.is_some() { "environment_factory" } else { "tools" };
    let Some(conversations) = found.take(option, conversations) else { return found.0 };
    tell_warnings(tokenizer.remarks());
    let room = setup::room(config, model.config().max_position_embeddings, usize::MAX);
    let held_out = config.eval_dataset.as_ref().filter(|_| config.evaluates());
    let sources = [
        ("dataset", &config.dataset[..], config.train_part()),
        ("eval_dataset", held_out.map_or(&[][..], std::slice::from_ref), config.test_part()),
    ];
    let options = setup::prompt_options(config);
    let mut trained: Option<Dataset> = None;
    for (key, paths, part) in sources {
        let is_known = |path| shared_data::read(path, part).and_then(|table| table.describe(&options.columns)).is_err();
        if paths.is_empty() || paths.iter().any(|path: &PathBuf| is_known(path)) {
            continue;
        }
        let loaded = Dataset::load(paths, part, &tokenizer, &options);
        let Some(mut dataset) = found.take(key, loaded) else { continue };
        if let Some(conversations) = &conversations
            && found.take(key, conversations.add_tools(&mut dataset)).is_none()
        {
            continue;
        }
        for function in &functions {
            found.take("reward_funcs", reward::check(std::slice::from_ref(function), &dataset));
        }
        let seen = setup::look_over(&mut dataset, trained.as_ref(), &tokenizer, &functions, config, room);
        tell_warnings(found.take(key, seen).iter().flat_map(LongPrompts::lines));
        if key == "dataset" {
            found.take("dataset_weights", setup::shares(&dataset, config));
            trained = Some(dataset);
        }
    }
    found.0
}

/// The problems that were found, in words.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    /// The value of a check. If the check failed, its error is kept, with the option that it is about.
    fn take<T, E: Display>(&mut self, key: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|problem| self.0.push(format!("`{key}`: {problem:#}"))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_an_agent_may_write_to_is_looked_for() {
        let with = |agent: &str| {
            let writable = Some("/nowhere/at/all".into());
            problems(&TrainConfig { agent: Some(agent.into()), reward_writable: writable, ..TrainConfig::default() })
        };
        let found = with("python3 my_agent.py");
        assert!(found.len() == 1 && found[0].starts_with("`agent`: `reward_writable`: /nowhere/at/all: "), "{found:?}");
        assert_eq!(with("verifiers:tcp://127.0.0.1:5000"), [""; 0]);
    }
}
