//! A run's notices about a lack of learning, and about figures that are easily misread: each one appears once, with
//! what to do about it. The learner finds and writes them; terminal and report show them.

mod conclusion;
mod file;
mod length;
mod rate;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::declare::choices;

pub use conclusion::{NothingLearned, had_gradient, nothing_learned};
pub use file::{NoticesFile, read, read_all};
pub use length::model_length;
pub use rate::learning_rate;

choices! {
    /// Kind of a notice.
    NoticeKind {
        /// `learning_rate` is far from what works for an adapter, or for a whole model of its size.
        LearningRate = "learning_rate",
        /// The model, or `max_model_len`, is shorter than the lengths that are asked for.
        ModelLength = "model_length",
        /// The run goes on with other options than its checkpoint was made with.
        OptionsChanged = "options_changed",
        /// The run goes on with another content of dataset or model than its checkpoint was made with.
        DataChanged = "data_changed",
        /// The run goes on with other programs, or other files of reward functions, than its checkpoint was made with.
        CodeChanged = "code_changed",
        /// The run goes on with other vector instructions than its checkpoint was made with, so sums are rounded in
        /// another order.
        ProcessorChanged = "processor_changed",
        /// A checkpoint was not as it was written, so the run goes on from an older one.
        CheckpointDamaged = "checkpoint_damaged",
        /// The checkpoint from which the run goes on has lost its list of checksums, so damage to it is not noticed.
        CheckpointUnchecked = "checkpoint_unchecked",
        /// Records of the run are damaged or missing: lines or steps of its journals. Charts and detectors go on
        /// without them.
        RecordsDamaged = "records_damaged",
        /// The disk was about to be full, so the oldest files of the run were removed.
        DiskShort = "disk_short",
        /// Completions and records have reached `records_size_limit`, so the oldest are removed from now on.
        RecordsRemoved = "records_removed",
        /// The sampler refused a version of the weights, since it was not the one that the learner had published. Told
        /// at each refusal.
        VersionRefused = "version_refused",
        /// A reward function failed on more than a tenth of the completions of a step. Told once for each function.
        RewardFailures = "reward_failures",
        /// A reward function has given the same score to every completion for many steps, while others differ. Told
        /// once for each function.
        ConstantReward = "constant_reward",
        /// The policy has collapsed: the reward is gone, and completions are nothing like before. `learning_rate` is
        /// the first suspect. Consequences, such as truncated completions, then get no notice of their own.
        Collapse = "collapse",
        /// The completions of every prompt earned the same, several steps running: nothing says which is better.
        EqualGroups = "equal_groups",
        /// Most completions were cut off at `max_completion_length`, several steps running.
        Truncated = "truncated",
        /// The policy called no tool, several steps running.
        NoToolCalls = "no_tool_calls",
        /// Every call of a tool failed, several steps running.
        ToolsFail = "tools_fail",
        /// More than a tenth of the conversations of a step lost their environment: it failed, or was late.
        EnvironmentLost = "environment_lost",
        /// More than a tenth of the prompts of an evaluation have no score, since environments or reward functions
        /// failed. Told once for each evaluation.
        EvaluationLost = "evaluation_lost",
        /// No update of several steps running had a gradient, for another reason than equal rewards.
        NoGradient = "no_gradient",
        /// Every update of several steps running was left out, since loss or gradient was not finite.
        SkippedUpdates = "skipped_updates",
        /// The entropy is next to nothing, several steps running: the completions of a prompt hardly differ.
        EntropyGone = "entropy_gone",
        /// The reward of the last 20 steps is far below that of the best 20 steps before.
        RewardFallen = "reward_fallen",
        /// Sampler and learner disagree about the log-probs of tokens by more than their formats explain.
        Mismatch = "mismatch",
        /// The guard has seen a sign of trouble.
        Guard = "guard",
        /// Evaluations do not improve any more, so the run ends before its last step (`early_stopping_patience`).
        StoppedEarly = "stopped_early",
        /// The loss is near 0 in the first step that had a gradient, which is as it should be.
        LossNearZero = "loss_near_zero",
    }
}

/// One notice: a line of `notices.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Its kind.
    pub kind: NoticeKind,
    /// Completed steps when it was found; 0 for a fact that is known before the first step.
    pub step: u64,
    /// The reward function, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The finding.
    pub text: String,
    /// What to do about it.
    pub remedy: String,
}

impl Notice {
    /// A notice about the run as a whole.
    #[must_use]
    pub fn new(kind: NoticeKind, step: u64, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind, step, subject: None, text: text.into(), remedy: remedy.into() }
    }

    /// The same notice about one reward function.
    #[must_use]
    pub fn about(self, subject: &str) -> Self {
        Self { subject: Some(subject.to_owned()), ..self }
    }

    /// Whether both notices say the same of the same subject, so that one is enough. Some kinds are news each time:
    /// changed options at each resume, actions of the guard, refusals, a full disk, and an early end; and a learning
    /// rate may first be too high and then too low. Each evaluation has its own notice, also when it is made again.
    #[must_use]
    pub fn repeats(&self, other: &Self) -> bool {
        use NoticeKind::{
            CheckpointDamaged, CheckpointUnchecked, CodeChanged, DataChanged, DiskShort, EvaluationLost, Guard,
            LearningRate, OptionsChanged, ProcessorChanged, RecordsDamaged, StoppedEarly, VersionRefused,
        };
        let at_resume = matches!(
            self.kind,
            OptionsChanged
                | DataChanged
                | CodeChanged
                | ProcessorChanged
                | CheckpointDamaged
                | CheckpointUnchecked
                | RecordsDamaged
        );
        let event = at_resume || matches!(self.kind, Guard | DiskShort | VersionRefused | StoppedEarly);
        let by_its_step = event || self.kind == EvaluationLost;
        let by_its_words = event || self.kind == LearningRate;
        self.kind == other.kind
            && self.subject == other.subject
            && (!by_its_step || self.step == other.step)
            && (!by_its_words || self.text == other.text)
    }
}

/// `step 3: what was found; what to do about it`.
impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.step > 0 {
            write!(f, "step {}: ", self.step)?;
        }
        write!(f, "{}; {}", self.text, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_repeats_another_of_its_kind_and_subject_but_for_what_changed_at_a_resume() {
        let of = |kind, step| Notice::new(kind, step, "text", "remedy");
        assert!(of(NoticeKind::Truncated, 3).repeats(&of(NoticeKind::Truncated, 9)));
        assert!(!of(NoticeKind::Truncated, 3).repeats(&of(NoticeKind::EqualGroups, 3)));
        let failures = of(NoticeKind::RewardFailures, 3);
        assert!(!failures.clone().about("a").repeats(&failures.clone().about("b")));
        assert!(failures.clone().about("a").repeats(&failures.about("a")));
        assert!(!of(NoticeKind::OptionsChanged, 3).repeats(&of(NoticeKind::OptionsChanged, 9)));
        assert!(of(NoticeKind::OptionsChanged, 3).repeats(&of(NoticeKind::OptionsChanged, 3)));
        for kind in [NoticeKind::OptionsChanged, NoticeKind::LearningRate] {
            let again = Notice { text: "another change".into(), ..of(kind, 3) };
            assert!(!again.repeats(&of(kind, 3)), "a second resume at the same checkpoint may change something else");
        }
    }

    #[test]
    fn a_line_has_step_finding_and_remedy() {
        let notice = Notice::new(NoticeKind::Truncated, 3, "cut off", "raise it");
        assert_eq!(notice.to_string(), "step 3: cut off; raise it");
        assert_eq!(Notice { step: 0, ..notice }.to_string(), "cut off; raise it");
    }
}
