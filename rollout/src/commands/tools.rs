//! Tools and environments of `eval` and `compare`: those that flags name, else those of the run that a model is of.

use std::path::{self, PathBuf};

use anyhow::{Context, bail, ensure};
use rollout_rewards::RewardFunction;
use shared::config::{AdvantageLevel, EnvironmentFactory, OptionValue, Stragglers, TrainConfig, layers};

use super::{
    flags::{RewardFlags, bounded, help},
    model::NamedModel,
};

/// Tools of the policy, and bounds of conversations with them.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Tools and environments")]
pub struct ToolFlags {
    #[arg(long, env = "TANDEM_TOOLS", value_name = "NAMES", value_delimiter = ',',
          help = help("tools") + ". Separated by commas [default: those of the model's run]")]
    pub(super) tools: Vec<String>,
    #[arg(long, env = "TANDEM_ENVIRONMENT_FACTORY", value_name = "CLASS",
          help = help("environment_factory") + " [default: that of the model's run]")]
    pub(super) environment_factory: Option<EnvironmentFactory>,
    /// Complete the prompts as they are, although the run of the model has tools, an environment or an agent
    #[arg(long, conflicts_with_all = ["tools", "environment_factory"])]
    pub(super) without_tools: bool,
    #[arg(long, env = "TANDEM_MAX_TOOL_CALLING_ITERATIONS", value_name = "N",
          value_parser = bounded::<u32>("max_tool_calling_iterations"), help = help("max_tool_calling_iterations"))]
    pub(super) max_tool_calling_iterations: Option<u32>,
    #[arg(long, env = "TANDEM_ENVIRONMENT_TIMEOUT", value_name = "SECONDS",
          value_parser = bounded::<f64>("environment_timeout"), help = help("environment_timeout"))]
    pub(super) environment_timeout: Option<f64>,
    #[arg(long, env = "TANDEM_EPISODE_TIMEOUT", value_name = "SECONDS",
          value_parser = bounded::<f64>("episode_timeout"), help = help("episode_timeout"))]
    pub(super) episode_timeout: Option<f64>,
    #[arg(long, env = "TANDEM_MAX_KEPT_STATES", value_name = "N", help = help("max_kept_states"))]
    pub(super) max_kept_states: Option<usize>,
}

impl ToolFlags {
    /// The configuration of conversations with a model: of its tools, their processes and their bounds. None where the
    /// model completes its prompts without tools.
    ///
    /// # Errors
    /// A run whose conversations no command can hold, and bounds of conversations without tools.
    pub fn of(&self, model: &NamedModel, rewards: &RewardFlags) -> anyhow::Result<Option<TrainConfig>> {
        self.with_bounds(self.found(model, rewards)?)
    }

    /// As [`ToolFlags::of`], for two models that are compared, which get the same tools. Where one of them is of no run
    /// with tools, it gets those of the other.
    ///
    /// # Errors
    /// As [`ToolFlags::of`], and runs with different tools.
    pub fn of_both(&self, models: &[NamedModel; 2], rewards: &RewardFlags) -> anyhow::Result<Option<TrainConfig>> {
        let found = [self.found(&models[0], rewards)?, self.found(&models[1], rewards)?];
        if let [Some(a), Some(b)] = &found {
            let [a, b] = [self.bounded(a), self.bounded(b)];
            ensure!(
                a == b,
                "A and B are of runs with other tools each, or with other bounds of conversations ({a:?} and {b:?}): \
                 name those that both are to get with --tools or --environment-factory and the flags of bounds, or \
                 complete the prompts as they are with --without-tools"
            );
        }
        let [a, b] = found;
        self.with_bounds(a.or(b))
    }

    /// The tools that flags name, else those of the model's run.
    fn found(&self, model: &NamedModel, rewards: &RewardFlags) -> anyhow::Result<Option<TrainConfig>> {
        if self.without_tools {
            return Ok(None);
        }
        if self.tools.is_empty() && self.environment_factory.is_none() {
            return of_run(model);
        }
        ensure!(
            self.environment_factory.as_ref().is_none_or(|factory| !factory.has_empty_text()),
            "--environment-factory is empty: name a class, or leave the flag out"
        );
        ensure!(
            !self.tools.iter().any(String::is_empty),
            "--tools has an empty entry: name a tool there, or leave it out"
        );
        let (tools, environment_factory) = (self.tools.clone(), self.environment_factory.clone());
        Ok(Some(TrainConfig { tools, environment_factory, ..rewards.config() }))
    }

    /// The same with the bounds of the flags.
    fn with_bounds(&self, found: Option<TrainConfig>) -> anyhow::Result<Option<TrainConfig>> {
        let Some(found) = found else {
            let given = [
                ("--max-tool-calling-iterations", self.max_tool_calling_iterations.is_some()),
                ("--environment-timeout", self.environment_timeout.is_some()),
                ("--episode-timeout", self.episode_timeout.is_some()),
                ("--max-kept-states", self.max_kept_states.is_some()),
            ];
            if let Some((flag, _)) = given.iter().find(|(_, is_given)| *is_given) {
                bail!("{flag} has no effect without tools: name some with --tools or --environment-factory");
            }
            return Ok(None);
        };
        let Held { max_tool_calling_iterations, environment_timeout, episode_timeout, .. } = self.bounded(&found);
        let max_kept_states = self.max_kept_states.or(found.max_kept_states);
        Ok(Some(TrainConfig {
            max_tool_calling_iterations,
            environment_timeout,
            episode_timeout,
            max_kept_states,
            ..found
        }))
    }

    /// What conversations of a configuration depend on, with the bounds of the flags.
    fn bounded(&self, found: &TrainConfig) -> Held {
        let classes = found.environment_factory.iter().flat_map(EnvironmentFactory::classes);
        let has_code = found.tools.iter().any(|tool| !layers::is_built_in(tool))
            || classes.into_iter().any(|(_, class)| !layers::is_built_in(class));
        Held {
            tools: found.tools.clone(),
            environment_factory: found.environment_factory.clone(),
            place: has_code.then(|| (found.reward_dir.clone(), found.reward_python.clone())),
            max_tool_calling_iterations: self.max_tool_calling_iterations.or(found.max_tool_calling_iterations),
            environment_timeout: self.environment_timeout.unwrap_or(found.environment_timeout),
            episode_timeout: self.episode_timeout.or(found.episode_timeout),
        }
    }
}

/// What conversations depend on.
#[derive(Debug, PartialEq)]
struct Held {
    tools: Vec<String>,
    environment_factory: Option<EnvironmentFactory>,
    /// The folder of the user's code and its interpreter, where some of it is the user's.
    place: Option<(Option<PathBuf>, String)>,
    max_tool_calling_iterations: Option<u32>,
    environment_timeout: f64,
    episode_timeout: Option<f64>,
}

/// The configuration of the run that a model is of, as far as it is about tools; none without a run or without tools.
fn of_run(model: &NamedModel) -> anyhow::Result<Option<TrainConfig>> {
    let Some(run) = model.run() else { return Ok(None) };
    let path = run.config();
    if !path.exists() {
        return Ok(None);
    }
    let config = layers::load(Some(&path), &Vec::new()).with_context(|| {
        format!(
            "the tools of the model's run are not known; name them with --tools or --environment-factory, or complete \
             the prompts as they are with --without-tools ({})",
            path.display()
        )
    })?;
    if let Some(agent) = &config.agent {
        bail!(
            "the policy of {} was asked by an agent, {agent:?} (`agent`), which only the evaluations of a run can \
             start (`eval_dataset`); --without-tools completes the prompts as they are, and --tools or \
             --environment-factory name others",
            path.display()
        );
    }
    if !config.has_tools() {
        return Ok(None);
    }
    let named: Vec<String> =
        config.tools.iter().cloned().chain(config.environment_factory.iter().map(ToString::to_string)).collect();
    shared::tell!("completions are conversations, with the tools of {}: {}", path.display(), named.join(", "));
    // Every conversation is awaited, and its reward is one for the whole.
    Ok(Some(TrainConfig { stragglers: Stragglers::Wait, advantage_level: AdvantageLevel::Trajectory, ..config }))
}

/// The configuration of conversations that a command holds: with its reward functions and its longest conversation.
pub(super) fn held(
    tools: &TrainConfig,
    rewards: &RewardFlags,
    functions: &[RewardFunction],
    max_completion_length: u32,
) -> TrainConfig {
    TrainConfig {
        reward_funcs: functions.iter().map(|function| found_from_here(function.name())).collect(),
        reward_weights: rewards.reward_weights.clone(),
        reward_timeout: rewards.reward_timeout,
        max_completion_length,
        max_model_len: None,
        ..tools.clone()
    }
}

/// The name of a function, whose file is found from the working directory although the run's tools lie elsewhere.
pub(super) fn found_from_here(function: &str) -> String {
    let Some((stem, name)) = function.split_once(".py:") else { return function.to_owned() };
    let file = format!("{stem}.py");
    let full = path::absolute(&file).map_or(file, |full| full.display().to_string());
    format!("{full}:{name}")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use clap::{Args as _, Command, FromArgMatches};
    use shared::RunDir;

    use super::*;

    #[derive(Debug, clap::Args)]
    struct Both {
        #[command(flatten)]
        tools: ToolFlags,
        #[command(flatten)]
        rewards: RewardFlags,
    }

    fn parsed(line: &str) -> Both {
        let matches = Both::augment_args(Command::new("eval"))
            .try_get_matches_from(format!("eval {line}").split_whitespace())
            .unwrap();
        Both::from_arg_matches(&matches).unwrap()
    }

    /// A checkpoint of a run with these lines in its configuration.
    fn model(root: &Path, name: &str, lines: &str) -> NamedModel {
        let (llama, run) = (harness::golden_dir().join("models/llama"), root.join(name));
        fs::create_dir_all(&run).unwrap();
        std::os::unix::fs::symlink(&llama, run.join("checkpoint-1")).unwrap();
        if !lines.is_empty() {
            let head = format!("model = {llama:?}\ndataset = \"d.jsonl\"\noutput_dir = \".\"\n");
            fs::write(RunDir::new(&run).config(), format!("{head}{lines}")).unwrap();
        }
        NamedModel::find(&run.join("checkpoint-1")).unwrap()
    }

    fn of(line: &str, model: &NamedModel) -> Result<Option<TrainConfig>, String> {
        let Both { tools, rewards } = parsed(line);
        tools.of(model, &rewards).map_err(|error| error.to_string())
    }

    #[test]
    fn tools_are_those_of_the_flags_else_those_of_the_run_else_none() {
        let dir = tempfile::tempdir().unwrap();
        let run = "tools = [\"builtin:calculator\"]\nmax_tool_calling_iterations = 2\nenvironment_timeout = 3.0\n";
        let [with, without] = [("with", run), ("without", "")].map(|(name, lines)| model(dir.path(), name, lines));
        let found = of("--environment-timeout 4", &with).unwrap().unwrap();
        assert_eq!(found.tools, ["builtin:calculator"]);
        assert_eq!((found.max_tool_calling_iterations, found.environment_timeout), (Some(2), 4.0));
        let found = of("--environment-factory builtin:maze", &with).unwrap().unwrap();
        assert!(found.tools.is_empty() && found.max_tool_calling_iterations.is_none(), "{found:?}");
        assert_eq!(of("--without-tools", &with), Ok(None));
        assert_eq!(of("", &without), Ok(None));
        let refused = of("--episode-timeout 4", &without).unwrap_err();
        assert!(refused.starts_with("--episode-timeout has no effect without tools"), "{refused}");
        let refused = of("--environment-factory {}", &without).unwrap_err();
        assert!(refused.starts_with("--environment-factory is empty"), "{refused}");
        let refused = of("--tools a.py:f,", &without).unwrap_err();
        assert!(refused.starts_with("--tools has an empty entry"), "{refused}");
    }

    #[test]
    fn a_run_with_an_agent_is_refused_with_the_ways_out() {
        let dir = tempfile::tempdir().unwrap();
        let model = model(dir.path(), "run", "agent = \"python3 my_agent.py\"\n");
        let refused = of("", &model).unwrap_err();
        assert!(refused.contains("my_agent.py") && refused.contains("--without-tools"), "{refused}");
        assert_eq!(of("--without-tools", &model), Ok(None));
        assert!(of("--tools builtin:calculator", &model).unwrap().is_some());
    }

    #[test]
    fn two_models_get_the_same_tools() {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str, lines: &str| model(dir.path(), name, lines);
        let of = |line: &str, models: [NamedModel; 2]| {
            let Both { tools, rewards } = parsed(line);
            tools.of_both(&models, &rewards).map_err(|error| error.to_string())
        };
        let with = "tools = [\"builtin:calculator\"]\n";
        let one = of("--environment-timeout 4", [made("a", ""), made("b", with)]).unwrap().unwrap();
        assert_eq!((&one.tools[..], one.environment_timeout), (&["builtin:calculator".to_owned()][..], 4.0));
        let other = "environment_factory = \"builtin:maze\"\n";
        let refused = of("", [made("c", with), made("d", other)]).unwrap_err();
        assert!(refused.contains("other tools each"), "{refused}");
        assert!(of("--tools builtin:calculator", [made("e", with), made("f", other)]).unwrap().is_some());
        assert_eq!(of("", [made("g", ""), made("h", "")]), Ok(None));
    }
}
