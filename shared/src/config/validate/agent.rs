//! Agents: what they cannot be combined with.

use std::net::IpAddr;

use crate::{
    config::{ConfigError, TrainConfig, environments::VERIFIERS},
    methods::advantage::CreditUnit,
};

impl TrainConfig {
    pub(super) fn check_agent(&self) -> Result<(), ConfigError> {
        let Some(agent) = &self.agent else { return Ok(()) };
        let (estimator, spec) = (self.advantage_estimator, self.advantage_estimator.spec());
        ensure!(!agent.trim().is_empty(), "`agent` is empty: give it a command line, or leave it out");
        ensure!(
            !agent.starts_with(VERIFIERS) || self.verifiers().is_some_and(is_place),
            "`agent` {agent:?} needs the address of a server of verifiers on this machine, as in \
             `verifiers:tcp://127.0.0.1:5000`: its episodes ask the policy at 127.0.0.1"
        );
        ensure!(
            !self.has_tools(),
            "`agent` cannot be combined with `tools` or `environment_factory`: an agent has tools of its own; remove \
             one of them"
        );
        ensure!(
            self.structured_outputs_regex.is_none(),
            "`structured_outputs_regex` cannot be combined with `agent`: an expression describes one answer, and an \
             agent asks for several; remove one of them"
        );
        ensure!(
            self.listen.is_none(),
            "`listen` cannot be combined with `agent`: workers do not run agents; leave `listen` out, and the sampler \
             runs beside the learner"
        );
        ensure!(
            spec.unit != CreditUnit::Step,
            "`advantage_estimator` {estimator} cannot be combined with `agent`: rewards are for whole conversations; \
             use grpo"
        );
        Ok(())
    }

    /// Options of agents that are set in a run without any.
    pub(super) fn unused_by_agent(&self) -> Vec<&'static str> {
        let keys = ["max_concurrent_agents", "agent_timeout"];
        keys.into_iter().filter(|key| self.agent.is_none() && self.is_set(key)).collect()
    }
}

/// Whether a text is `HOST:PORT` with this machine as host.
fn is_place(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let ip = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let is_here = host == "localhost" || ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        is_here && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{
        AdvantageEstimator, TrainConfig,
        validate::testing::{accepted, refused, valid},
    };

    fn with_agent(config: &mut TrainConfig) {
        config.agent = Some("python3 my_agent.py".into());
    }

    #[test]
    fn an_agent_is_not_combined_with_what_knows_one_turn_alone_or_has_tools_itself() {
        accepted(with_agent);
        refused("`agent` is empty", |c| c.agent = Some(" ".into()));
        refused("`agent` cannot be combined with `tools`", |c| {
            with_agent(c);
            c.tools = vec!["my_tools.py:add".into()];
        });
        refused("`structured_outputs_regex` cannot be combined with `agent`", |c| {
            with_agent(c);
            c.structured_outputs_regex = Some("a".into());
        });
        refused("`listen` cannot be combined with `agent`", |c| {
            with_agent(c);
            c.listen = Some("tcp/127.0.0.1:7447".into());
        });
        refused("`advantage_estimator` process cannot be combined with `agent`", |c| {
            with_agent(c);
            c.advantage_estimator = AdvantageEstimator::Process;
        });
    }

    #[test]
    fn a_server_of_verifiers_has_a_host_and_a_port() {
        let named = |agent: &str| {
            let agent = agent.to_owned();
            move |config: &mut TrainConfig| config.agent = Some(agent)
        };
        for place in ["127.0.0.1:5000", "localhost:1", "[::1]:5000"] {
            accepted(named(&format!("verifiers:tcp://{place}")));
            let mut config = valid();
            named(&format!("verifiers:tcp://{place}"))(&mut config);
            assert_eq!(config.verifiers(), Some(place));
        }
        let here = "tcp://localhost";
        for rest in ["", "my-env", "tcp://", here, "tcp://:1", "tcp://my-host:1", "tcp://10.0.0.1:1"]
            .map(str::to_owned)
            .into_iter()
            .chain(["0", "70000", "1/x"].map(|port| format!("{here}:{port}")))
        {
            refused("needs the address of a server of verifiers on this machine", named(&format!("verifiers:{rest}")));
        }
        let mut config = valid();
        with_agent(&mut config);
        assert_eq!(config.verifiers(), None);
    }

    #[test]
    fn the_reward_of_an_agent_is_reward_enough_and_has_its_name() {
        accepted(|c| {
            c.reward_funcs.clear();
            with_agent(c);
        });
        let mut config = valid();
        let before = config.weighted_rewards();
        with_agent(&mut config);
        let with = config.weighted_rewards();
        assert_eq!((&with[..before.len()], &with[before.len()..]), (&before[..], &[("agent".to_owned(), 1.0)][..]));
    }

    #[test]
    fn options_of_agents_are_remarked_on_without_one() {
        let remark = |config: &TrainConfig| {
            config.warnings().into_iter().find(|line| line.contains("has no effect without `agent`"))
        };
        let mut config = TrainConfig { agent_timeout: 5.0, ..valid() };
        assert!(remark(&config).is_some_and(|line| line.starts_with("`agent_timeout` has no effect")));
        with_agent(&mut config);
        assert_eq!(remark(&config), None);
    }
}
