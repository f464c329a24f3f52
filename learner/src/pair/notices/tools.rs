//! Tools that nobody calls, calls that all fail, and environments that are lost.

use shared::{
    config::TrainConfig,
    metrics,
    run::notices::{Notice, NoticeKind},
};

use super::{super::failures::Who, Detector, Seen, streak::Streak};

/// Share of conversations from which on lost environments are no accident.
const LOST_SHARE: f64 = 0.1;

/// What is wrong with the tools of a run, several steps running.
pub struct Tools {
    uncalled: Streak,
    failing: Streak,
}

impl Tools {
    pub fn new(config: &TrainConfig) -> Self {
        Self { uncalled: Streak::new(config), failing: Streak::new(config) }
    }

    fn uncalled(&mut self, seen: &Seen<'_>) -> Option<Notice> {
        // An agent may well have no tools.
        let may_call = seen.config.agent.is_none();
        let is_uncalled = may_call && seen.record.get(metrics::TOOLS_CALL_FREQUENCY) == Some(0.0);
        self.uncalled.is_long(is_uncalled).then(|| {
            Notice::new(
                NoticeKind::NoToolCalls,
                seen.step(),
                format!("the policy has called no tool in {}", self.uncalled.words(seen.step())),
                "say in `system_prompt` or in the prompts when a tool helps, and look at completions/step-N.jsonl for \
                 calls in a form that the chat template does not know; a model that was never trained to call tools \
                 needs examples first (`learner sft`)",
            )
        })
    }

    fn failing(&mut self, seen: &Seen<'_>) -> Option<Notice> {
        let all_fail = seen.record.get(metrics::TOOLS_FAILURE_FREQUENCY) == Some(1.0);
        self.failing.is_long(all_fail).then(|| {
            Notice::new(
                NoticeKind::ToolsFail,
                seen.step(),
                format!("every call of a tool has failed in {}", self.failing.words(seen.step())),
                "`messages` in completions/step-N.jsonl have the errors; correct the tool, or its description",
            )
        })
    }
}

impl Detector for Tools {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let lost = |metric| seen.record.get(metric).unwrap_or(0.0);
        let (failed, late) = (lost(metrics::ENVIRONMENT_FAILED), lost(metrics::ENVIRONMENT_LATE));
        let stragglers = lost(metrics::ENVIRONMENT_STRAGGLERS);
        let all = f64::from(seen.config.completions_per_step());
        let is_agent = seen.config.agent.is_some();
        let (what, more) =
            if is_agent { ("agent", "") } else { ("environment", ", `episode_timeout` or `straggler_after`") };
        let known = seen.failures.iter().find(|found| found.who == Who::Environments);
        let last = known.map_or_else(String::new, |failures| format!(", the last so: {}", failures.reason));
        let lost = (failed + late + stragglers > LOST_SHARE * all).then(|| {
            Notice::new(
                NoticeKind::EnvironmentLost,
                seen.step(),
                format!(
                    "of {all} conversations {failed} lost their {what} to a failure, {late} were late and \
                     {stragglers} were stragglers{last}"
                ),
                format!(
                    "logs/rollout.log has the reasons; correct the {what}, or give it more time with \
                     `{what}_timeout`{more}"
                ),
            )
        });
        [self.uncalled(seen), self.failing(seen), lost].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use shared::metrics::MetricRecord;

    use super::{
        super::{
            super::failures::Failures,
            testing::{step, told},
        },
        *,
    };

    fn after(steps: u64, change: impl Fn(&mut MetricRecord)) -> Vec<NoticeKind> {
        notices(None, steps, change).into_iter().map(|notice| notice.kind).collect()
    }

    fn notices(agent: Option<&str>, steps: u64, change: impl Fn(&mut MetricRecord)) -> Vec<Notice> {
        let agent = agent.map(str::to_owned);
        let config =
            TrainConfig { num_generations: 8, generation_batch_size: Some(16), agent, ..TrainConfig::default() };
        told(&mut Tools::new(&config), &config, steps, change)
    }

    #[test]
    fn agents_need_no_tools_and_are_lost_by_their_own_name() {
        let uncalled = |record: &mut MetricRecord| {
            record.set(metrics::TOOLS_CALL_FREQUENCY, 0.0).count(metrics::ENVIRONMENT_LATE, 2);
        };
        let told = notices(Some("my_agent"), 3, uncalled);
        assert!(told.iter().all(|notice| notice.kind == NoticeKind::EnvironmentLost), "{told:?}");
        assert!(told.iter().any(|notice| notice.to_string().contains("`agent_timeout`")), "{told:?}");
    }

    #[test]
    fn tools_that_nobody_calls_or_that_always_fail_are_told_of_after_three_steps() {
        let uncalled = |record: &mut MetricRecord| {
            record.set(metrics::TOOLS_CALL_FREQUENCY, 0.0);
        };
        assert_eq!((after(2, uncalled), after(3, uncalled)), (vec![], vec![NoticeKind::NoToolCalls]));
        let failing = |share| {
            move |record: &mut MetricRecord| {
                record.set(metrics::TOOLS_CALL_FREQUENCY, 2.0).set(metrics::TOOLS_FAILURE_FREQUENCY, share);
            }
        };
        assert_eq!((after(3, failing(1.0)), after(9, failing(0.9))), (vec![NoticeKind::ToolsFail], vec![]));
        assert_eq!(after(9, |_| {}), [], "a run without tools has no such metrics");
    }

    #[test]
    fn lost_environments_are_told_of_where_they_are_more_than_a_tenth() {
        let lost = |[failed, late, stragglers]: [u64; 3]| {
            after(1, move |record| {
                record.count(metrics::ENVIRONMENT_FAILED, failed).count(metrics::ENVIRONMENT_LATE, late);
                record.count(metrics::ENVIRONMENT_STRAGGLERS, stragglers);
            })
        };
        assert_eq!(lost([1, 0, 0]), []);
        for many in [[1, 1, 0], [1, 0, 1], [0, 1, 1]] {
            assert_eq!(lost(many), [NoticeKind::EnvironmentLost], "{many:?}");
        }
    }

    #[test]
    fn lost_environments_are_told_of_with_the_last_reason() {
        let config = TrainConfig { num_generations: 8, generation_batch_size: Some(8), ..TrainConfig::default() };
        let mut record = step(1);
        record.count(metrics::ENVIRONMENT_FAILED, 6);
        let failures = [Failures { who: Who::Environments, failed: 6, asked: 8, reason: "e.py:f: no sea".into() }];
        let seen = Seen { config: &config, record: &record, failures: &failures };
        let told = Tools::new(&config).look(&seen).remove(0);
        let text = "of 8 conversations 6 lost their environment to a failure, 0 were late and 0 were stragglers, the \
                    last so: e.py:f: no sea";
        assert_eq!(told.text, text);
    }
}
