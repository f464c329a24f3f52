//! Reward functions that fail, and one that says the same of everything.

use std::collections::BTreeMap;

use shared::{
    metrics::{self, Figure},
    run::notices::{Notice, NoticeKind},
};

use super::{super::failures::Who, Detector, Seen, streak::steps};

/// Share of completions from which on failures are no accident: where a tenth of the scores is missing, baselines
/// shift.
const FAILED_SHARE: f64 = 0.1;
/// Steps in a row with one and the same score after which a function is called constant: long enough for one that is
/// earned seldom.
const CONSTANT_STEPS: u64 = 10;
/// Deviations up to this are rounding.
const NO_DEVIATION: f64 = 1e-9;

/// A function that fails on many completions of a step.
pub struct Failing;

impl Detector for Failing {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let (step, completions) = (seen.step(), f64::from(seen.config.completions_per_step()));
        let failed = seen.record.family(metrics::REWARDS_FAILED);
        let often =
            failed.filter_map(|(name, failed)| Some((name, failed.filter(|&n| n > FAILED_SHARE * completions)?)));
        let notice = |(name, failed): (&str, f64)| {
            let known = seen.failures.iter().find(|found| matches!(&found.who, Who::Function(own) if own == name));
            let reason = known.map_or_else(String::new, |failures| format!(", the last: {}", failures.reason));
            Notice::new(
                NoticeKind::RewardFailures,
                step,
                format!("reward function `{name}` failed on {failed} of {completions} completions{reason}"),
                "correct it (what it printed is in logs/rollout.log, with `rewards_on` workers in the log of one), or \
                 give it more time with `reward_timeout`; `reward_failure` says what becomes of such completions",
            )
            .about(name)
        };
        often.map(notice).collect()
    }
}

/// A function that has given the same to every completion for many steps, while others tell completions apart.
#[derive(Default)]
pub struct Constant {
    /// By function: its score, and since when it gives that.
    since: BTreeMap<String, (f64, u64)>,
}

impl Detector for Constant {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let step = seen.step();
        let others_differ = seen.record.get(metrics::REWARD_STD).is_some_and(|std| std > NO_DEVIATION);
        let mut found = Vec::new();
        for (name, std) in seen.record.family(metrics::REWARDS_STD) {
            let mean = seen.record.get(metrics::REWARDS_MEAN.of(name));
            let Some(score) = mean.filter(|_| others_differ && std.is_some_and(|std| std <= NO_DEVIATION)) else {
                self.since.remove(name);
                continue;
            };
            let (before, since) = self.since.entry(name.to_owned()).or_insert((score, step));
            if (*before - score).abs() > NO_DEVIATION {
                (*before, *since) = (score, step);
            }
            if step + 1 >= *since + CONSTANT_STEPS {
                found.push(constant(name, score, *since, step));
            }
        }
        found
    }
}

fn constant(name: &str, score: f64, since: u64, step: u64) -> Notice {
    Notice::new(
        NoticeKind::ConstantReward,
        step,
        format!(
            "reward function `{name}` gave {} to every completion of {}, so it moves no advantage",
            Figure(score),
            steps(since, step)
        ),
        "look at completions/step-N.jsonl to see whether it should have; one that has done its work can be left out",
    )
    .about(name)
}

#[cfg(test)]
mod tests {
    use shared::{config::TrainConfig, metrics::MetricRecord};

    use super::{
        super::{
            super::failures::Failures,
            testing::{step, told},
        },
        *,
    };

    fn config() -> TrainConfig {
        TrainConfig { num_generations: 8, generation_batch_size: Some(16), ..TrainConfig::default() }
    }

    #[test]
    fn a_function_that_fails_on_more_than_a_tenth_is_named_with_its_reason() {
        let failed = |count| {
            let mut record = step(4);
            record.count(metrics::REWARDS_FAILED.of("judge"), count).count(metrics::REWARDS_FAILED.of("format"), 0);
            let failures = [Failures {
                who: Who::Function("judge".into()),
                failed: 2,
                asked: 16,
                reason: "KeyError: 'x'".into(),
                without_room: 0,
            }];
            Failing.look(&Seen { config: &config(), record: &record, failures: &failures })
        };
        assert_eq!(failed(1), []);
        let notice = failed(2).remove(0);
        assert_eq!((notice.subject.as_deref(), notice.step), (Some("judge"), 4));
        assert_eq!(notice.text, "reward function `judge` failed on 2 of 16 completions, the last: KeyError: 'x'");
    }

    #[test]
    fn a_function_is_constant_after_ten_equal_steps_while_others_differ() {
        let constant = |steps, std: f64, score: fn(f64) -> f64, of_all: f64| {
            let change = |record: &mut MetricRecord| {
                let score = score(record.get(metrics::STEP).unwrap());
                record.set(metrics::REWARDS_MEAN.of("format"), score).set(metrics::REWARDS_STD.of("format"), std);
                record.set(metrics::REWARDS_MEAN.of("gsm8k"), 0.5).set(metrics::REWARDS_STD.of("gsm8k"), 0.5);
                record.set(metrics::REWARD_STD, of_all);
            };
            told(&mut Constant::default(), &config(), steps, change)
        };
        assert_eq!(constant(9, 0.0, |_| 1.0, 0.5), []);
        assert_eq!(constant(20, 0.1, |_| 1.0, 0.5), [], "it differs within steps");
        assert_eq!(constant(20, 0.0, |step| step, 0.5), [], "it differs from step to step");
        assert_eq!(constant(20, 0.0, |_| 1.0, 0.0), [], "then groups are equal, which is said otherwise");
        let notice = constant(10, 0.0, |_| 1.0, 0.5).remove(0);
        assert!(notice.text.starts_with("reward function `format` gave 1 to every completion of steps 1 to 10"));
    }
}
