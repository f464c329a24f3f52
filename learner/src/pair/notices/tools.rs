//! Tools that nobody calls, calls that all fail, and environments that are lost.

use shared::{
    config::{RAISE_MAX_MODEL_LEN, TrainConfig},
    metrics,
    run::notices::{Notice, NoticeKind},
};

use super::{
    super::failures::{Failures, Who},
    Detector, Seen,
    streak::Streak,
};

/// Share of conversations from which on lost environments are no accident.
const LOST_SHARE: f64 = 0.1;

/// What is wrong with the tools of a run, several steps running.
pub struct Tools {
    uncalled: Streak,
    failing: Streak,
    lost: Lost,
}

/// Conversations that have lost their environments so far. What was told of a server that failed for a while says
/// nothing of one that is gone for good, so it is told again when it has grown, and when it lasts.
struct Lost {
    /// The largest share that was told.
    told: Option<f64>,
    /// Steps with more than [`LOST_SHARE`].
    steps: u64,
    /// Steps in a row in which no conversation that called a tool has kept its environment.
    no_callers: Streak,
    /// Whether such a streak was told, as long as it lasts.
    is_streak_told: bool,
}

impl Lost {
    /// Counts a step; whether it is to be told, and whether no callers have been left for several steps.
    fn count(&mut self, share: f64, no_caller_is_left: bool) -> (bool, bool) {
        let is_much = share > LOST_SHARE;
        self.steps += u64::from(is_much);
        let has_grown = self.told.is_none_or(|told| share >= 2.0 * told);
        let lasts = self.steps >= 10 && self.steps == 10_u64.pow(self.steps.ilog10());
        let no_callers = self.no_callers.is_long(no_caller_is_left);
        let is_told = is_much && (has_grown || lasts) || no_callers && !self.is_streak_told;
        self.is_streak_told = no_callers;
        if is_told {
            self.told = Some(self.told.map_or(share, |told| told.max(share)));
        }
        (is_told, no_callers)
    }
}

impl Tools {
    pub fn new(config: &TrainConfig) -> Self {
        let lost = Lost { told: None, steps: 0, no_callers: Streak::new(config), is_streak_told: false };
        Self { uncalled: Streak::new(config), failing: Streak::new(config), lost }
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
                 needs examples first (`tandem sft`)",
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

    fn lost(&mut self, seen: &Seen<'_>) -> Option<Notice> {
        let is_first = self.lost.told.is_none();
        let lost = |metric| seen.record.get(metric).unwrap_or(0.0);
        let (failed, late) = (lost(metrics::ENVIRONMENT_FAILED), lost(metrics::ENVIRONMENT_LATE));
        let stragglers = lost(metrics::ENVIRONMENT_STRAGGLERS);
        let all = f64::from(seen.config.completions_per_step());
        let is_agent = seen.config.agent.is_some();
        let (what, more) =
            if is_agent { ("agent", "") } else { ("environment", ", `episode_timeout` or `straggler_after`") };
        let known = seen.failures.iter().find(|found| found.who == Who::Environments);
        let correct = if known.is_some_and(Failures::wants_room) {
            format!("{RAISE_MAX_MODEL_LEN} as the last one says")
        } else {
            format!("correct the {what}")
        };
        let last = known.map_or_else(String::new, |failures| format!(", the last so: {}", failures.reason));
        let calls = seen.record.get(metrics::TOOLS_CALL_FREQUENCY).is_some_and(|calls| calls > 0.0);
        let no_caller_is_left =
            calls && failed + late > 0.0 && seen.record.get(metrics::TOOLS_CALLERS_KEPT) == Some(0.0);
        let (is_told, no_callers) = self.lost.count((failed + late + stragglers) / all, no_caller_is_left);
        if !is_told {
            return None;
        }
        let no_callers = if no_callers {
            let steps = self.lost.no_callers.words(seen.step());
            format!(
                "; every conversation of {steps} that called a tool lost its {what}, so the run trains only on \
                 conversations that call nothing"
            )
        } else {
            String::new()
        };
        let notice = Notice::new(
            NoticeKind::EnvironmentLost,
            seen.step(),
            format!(
                "of {all} conversations {failed} lost their {what} to a failure, {late} were late and {stragglers} \
                 were stragglers{last}{no_callers}"
            ),
            format!("logs/rollout.log has the reasons; {correct}, or give it more time with `{what}_timeout`{more}"),
        );
        // One that is told again is told from the first by what it is about.
        Some(if is_first { notice } else { notice.about(&format!("step {}", seen.step())) })
    }
}

impl Detector for Tools {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        [self.uncalled(seen), self.failing(seen), self.lost(seen)].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use shared::metrics::MetricRecord;

    use super::{
        super::testing::{step, told},
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

    /// The steps in which something is told of conversations that are lost, of 16, and the texts.
    fn told_of(steps: impl IntoIterator<Item = (u64, Option<u64>)>) -> Vec<Notice> {
        let config = TrainConfig { num_generations: 8, generation_batch_size: Some(16), ..TrainConfig::default() };
        let mut tools = Tools::new(&config);
        let look = |(number, (failed, kept)): (u64, (u64, Option<u64>))| {
            let mut record = step(number);
            record.count(metrics::ENVIRONMENT_FAILED, failed);
            if let Some(kept) = kept {
                record.set(metrics::TOOLS_CALL_FREQUENCY, 0.5).count(metrics::TOOLS_CALLERS_KEPT, kept);
            }
            tools.look(&Seen { config: &config, record: &record, failures: &[] })
        };
        (1..).zip(steps).flat_map(look).collect()
    }

    #[test]
    fn lost_environments_are_told_of_again_when_they_are_twice_as_many_and_when_it_lasts() {
        let steps = |failed: &[u64]| -> Vec<u64> {
            told_of(failed.iter().map(|&failed| (failed, Some(1)))).iter().map(|notice| notice.step).collect()
        };
        assert_eq!(steps(&[2, 3, 4, 7, 8, 16]), [1, 3, 5, 6]);
        assert_eq!(steps(&[8, 2, 8, 15, 16]), [1, 5], "what has been as many is no news");
        assert_eq!(steps(&[4; 120]), [1, 10, 100]);
        assert_eq!(steps(&[4, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4]), [1, 11], "a step with next to none is not counted");
        let told = told_of([(4, Some(1)), (8, Some(1)), (16, Some(1))]);
        assert!(!told[1].repeats(&told[0]) && !told[2].repeats(&told[1]), "the file would leave it out");
    }

    #[test]
    fn a_run_of_which_no_caller_is_left_is_told_so_after_three_steps() {
        let words =
            "every conversation of steps 2 to 4 that called a tool lost its environment, so the run trains only";
        let told = told_of([(4, Some(3)), (4, Some(0)), (4, Some(0)), (4, Some(0)), (4, Some(0))]);
        assert_eq!(told.iter().map(|notice| notice.step).collect::<Vec<_>>(), [1, 4]);
        assert!(!told[0].text.contains("called a tool") && told[1].text.contains(words), "{}", told[1].text);
        // Also where hardly any conversation calls a tool.
        assert_eq!(told_of([(1, Some(0)); 9]).iter().map(|notice| notice.step).collect::<Vec<_>>(), [3]);
        assert_eq!(told_of([(1, None); 9]), [], "nobody has called one");
        assert_eq!(told_of([(0, Some(0)); 9]), [], "all were cut off, and none has failed");
    }

    #[test]
    fn a_model_that_calls_nothing_is_sent_to_the_command_that_there_is() {
        let uncalled = |record: &mut MetricRecord| {
            record.set(metrics::TOOLS_CALL_FREQUENCY, 0.0);
        };
        assert!(notices(None, 3, uncalled)[0].remedy.contains("(`tandem sft`)"));
    }

    #[test]
    fn lost_environments_are_told_of_with_the_last_reason() {
        let config = TrainConfig { num_generations: 8, generation_batch_size: Some(8), ..TrainConfig::default() };
        let mut record = step(1);
        record.count(metrics::ENVIRONMENT_FAILED, 6);
        let failed = |reason: String, without_room| {
            [Failures { who: Who::Environments, failed: 6, asked: 8, reason, without_room }]
        };
        let failures = failed("e.py:f: no sea".into(), 0);
        let seen = Seen { config: &config, record: &record, failures: &failures };
        let told = Tools::new(&config).look(&seen).remove(0);
        let text = "of 8 conversations 6 lost their environment to a failure, 0 were late and 0 were stragglers, the \
                    last so: e.py:f: no sea";
        assert_eq!(told.text, text);
        assert!(!told.remedy.contains(RAISE_MAX_MODEL_LEN), "{}", told.remedy);
        let reason = format!("no room: {RAISE_MAX_MODEL_LEN}");
        let failures = failed(reason, 6);
        let seen = Seen { config: &config, record: &record, failures: &failures };
        let told = Tools::new(&config).look(&seen).remove(0);
        assert!(told.remedy.contains(RAISE_MAX_MODEL_LEN), "{}", told.remedy);
    }
}
