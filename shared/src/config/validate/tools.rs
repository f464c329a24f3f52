//! Tools and environments: what they cannot be combined with.

use crate::{
    config::{AdvantageLevel, ConfigError, TrainConfig, rewards},
    methods::advantage::CreditUnit,
};

impl TrainConfig {
    pub(super) fn check_tools(&self) -> Result<(), ConfigError> {
        self.check_level()?;
        if !self.has_tools() {
            return Ok(());
        }
        ensure!(
            self.structured_outputs_regex.is_none(),
            "`structured_outputs_regex` cannot be combined with `tools` or `environment_factory`: an expression \
             describes one answer, and a conversation has several turns; remove one of them"
        );
        ensure!(
            self.listen.is_none(),
            "`listen` cannot be combined with `tools` or `environment_factory`: workers do not run tools; leave \
             `listen` out, and the sampler runs beside the learner"
        );
        ensure!(
            self.max_prompt_length.is_none(),
            "`max_prompt_length` cannot be combined with `tools` or `environment_factory`: it would cut the \
             description of the tools from the prompt; leave it out, and `max_model_len` leaves long prompts out"
        );
        Ok(())
    }

    /// Turns are steps where an environment may give rewards by turn, and only there.
    fn check_level(&self) -> Result<(), ConfigError> {
        let (estimator, level) = (self.advantage_estimator, self.advantage_level);
        let takes_steps = estimator.spec().unit == CreditUnit::Step;
        if level == AdvantageLevel::Trajectory {
            ensure!(
                !takes_steps || !self.has_tools(),
                "`advantage_estimator` {estimator} takes the turns of a conversation for steps: set `advantage_level` \
                 turn, with an environment that gives rewards by turn, or use grpo"
            );
            return Ok(());
        }
        ensure!(
            self.environment_factory.is_some(),
            "`advantage_level` {level} needs `environment_factory`: an environment that gives rewards by turn"
        );
        ensure!(
            takes_steps,
            "`advantage_level` {level} needs `advantage_estimator` process, and it is {estimator}, which has one \
             advantage for a whole conversation"
        );
        let is_of_steps = |entry: &&String| {
            let parts = rewards::parts(entry);
            rewards::short_name(entry) == "step_arithmetic" || parts.iter().any(|part| part == "scope=steps")
        };
        let of_steps = self.reward_funcs.iter().find(is_of_steps);
        ensure!(
            of_steps.is_none(),
            "`reward_funcs`: `{}` scores parts of a text, and with `advantage_level` {level} the steps are turns; \
             remove one of them",
            of_steps.map_or("", String::as_str)
        );
        Ok(())
    }

    /// Options of conversations that are set in a run without any.
    pub(super) fn unused_by_tools(&self) -> Vec<&'static str> {
        let keys = [
            "max_tool_calling_iterations",
            "environment_timeout",
            "max_kept_states",
            "episode_timeout",
            "stragglers",
            "straggler_after",
        ];
        let is_used = |key: &str| self.has_tools() || key == "max_kept_states" && self.agent.is_some();
        keys.into_iter().filter(|key| !is_used(key) && self.is_set(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{
        AdvantageEstimator, AdvantageLevel, TrainConfig,
        validate::testing::{accepted, refused, valid},
    };

    fn with_tool(config: &mut TrainConfig) {
        config.tools = vec!["my_tools.py:add".into()];
    }

    #[test]
    fn conversations_are_not_combined_with_what_knows_one_turn_alone() {
        accepted(with_tool);
        refused("`structured_outputs_regex` cannot be combined with `tools`", |c| {
            with_tool(c);
            c.structured_outputs_regex = Some("a".into());
        });
        refused("`listen` cannot be combined with `tools`", |c| {
            with_tool(c);
            c.listen = Some("tcp/127.0.0.1:7447".into());
        });
        refused("`max_prompt_length` cannot be combined with `tools`", |c| {
            with_tool(c);
            c.max_prompt_length = Some(8);
        });
        refused("`advantage_estimator` process takes the turns of a conversation for steps", |c| {
            with_tool(c);
            c.advantage_estimator = AdvantageEstimator::Process;
        });
    }

    #[test]
    fn turns_are_steps_of_process_supervision_with_an_environment() {
        let by_turn = |c: &mut TrainConfig| {
            c.environment_factory = "builtin:shaped_maze".parse().ok();
            (c.advantage_level, c.advantage_estimator) = (AdvantageLevel::Turn, AdvantageEstimator::Process);
        };
        accepted(by_turn);
        refused("`advantage_level` turn needs `environment_factory`", |c| {
            by_turn(c);
            c.environment_factory = None;
            with_tool(c);
        });
        refused("`advantage_level` turn needs `advantage_estimator` process, and it is grpo", |c| {
            by_turn(c);
            c.advantage_estimator = AdvantageEstimator::Grpo;
        });
        for entry in ["step_arithmetic", "model:path=/m:scope=steps"] {
            refused(&format!("`{entry}` scores parts of a text"), |c| {
                by_turn(c);
                c.reward_funcs.push(entry.into());
            });
        }
    }

    #[test]
    fn options_of_conversations_are_remarked_on_without_a_tool_or_an_environment() {
        let remark = |config: &TrainConfig| {
            config.warnings().into_iter().find(|line| line.contains("has no effect without `tools`"))
        };
        let mut config = TrainConfig { max_kept_states: Some(2), ..valid() };
        assert!(remark(&config).is_some_and(|line| line.starts_with("`max_kept_states` has no effect")));
        with_tool(&mut config);
        assert_eq!(remark(&config), None);
        refused("max_tool_calling_iterations", |c| {
            with_tool(c);
            c.max_tool_calling_iterations = Some(0);
        });
    }

    #[test]
    fn the_reward_of_an_environment_is_reward_enough() {
        accepted(|c| {
            c.reward_funcs.clear();
            c.environment_factory = "my_env.py:Maze".parse().ok();
        });
        refused("`reward_funcs` is empty", |c| {
            c.reward_funcs.clear();
            with_tool(c);
        });
    }
}
