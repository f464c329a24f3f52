//! Actions when a run is in trouble: the entries of `guard`, checked before the weights move.
//!
//! A sign that shows for as many steps as its entry asks for triggers its action once. It can trigger again only after
//! it was gone for as many steps. Gone means clearly past the threshold (below half of it, or above twice of it if low
//! figures are the sign), so a figure that lingers around the threshold does not trigger over and over. Steps are left
//! out for as long as the sign shows.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use shared::{
    config::{GuardAction, GuardRule, GuardSign, TrainConfig},
    metrics::{self, MetricRecord},
    run::notices::{Notice, NoticeKind},
};

use crate::{
    error::LearnerError,
    step::{Before, record},
};

/// Number of gradient norms that the median is taken over.
const NORMS: usize = 32;
/// Fewest gradient norms that a median is taken over.
const FEWEST_NORMS: usize = 8;

/// What the guard carries from step to step; part of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GuardState {
    /// Signs that show now, or did lately.
    #[serde(default)]
    signs: BTreeMap<String, SignState>,
    /// Gradient norms of the last steps, oldest first.
    #[serde(default)]
    norms: VecDeque<f64>,
    /// Steps that were left out.
    #[serde(default)]
    pub skipped_steps: u64,
    /// How often the run has gone back.
    #[serde(default)]
    pub roll_backs: u32,
    /// The newest checkpoint that was made while there was no sign.
    #[serde(default)]
    pub healthy: Option<u64>,
    /// Versions that the last roll-back has given up: those after the first and up to the second.
    #[serde(default)]
    pub given_up: Option<(u64, u64)>,
}

impl GuardState {
    /// Takes note of a roll-back that gives up the versions after the first and up to the second. All signs start anew,
    /// because the weights are others.
    pub fn gone_back(&mut self, after: u64, through: u64) {
        self.signs.clear();
        self.roll_backs += 1;
        self.given_up = Some((after, through));
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct SignState {
    /// Steps in a row in which the sign showed.
    there: u64,
    /// Steps in a row in which the sign was clearly gone.
    gone: u64,
    /// The action has been done, and the sign has not been gone for long enough since.
    acted: bool,
}

/// What is to be done about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verdict {
    /// Nothing.
    #[default]
    GoOn,
    /// The updates that follow have a lower rate.
    LowerLearningRate,
    /// The updates were left out.
    SkipStep,
    /// The updates were left out, and the run goes back.
    RollBack,
    /// The updates were left out, and the run ends.
    Stop,
}

/// The guard of a run.
#[derive(Debug)]
pub struct Guard {
    rules: Vec<GuardRule>,
    /// What goes into the next checkpoint.
    pub state: GuardState,
    verdict: Verdict,
    /// Notices about the step, each with the verdict that follows from it.
    notices: Vec<(Verdict, Notice)>,
}

impl Guard {
    /// The guard of a configuration, in the state that a run goes on with.
    ///
    /// # Errors
    /// An entry that makes no sense.
    pub fn new(config: &TrainConfig, state: GuardState) -> Result<Self, LearnerError> {
        let rules = config.guard_rules().map_err(LearnerError::Config)?;
        Ok(Self { rules, state, verdict: Verdict::GoOn, notices: Vec::new() })
    }

    /// Whether the next update of a step may be made. `step` is the number of the step.
    pub fn allows(&mut self, before: &Before<'_>, step: u64) -> bool {
        if before.update == 0 {
            let rests_on_record = self.rules.iter().any(|rule| rule.sign != GuardSign::NonFinite);
            let record = match rests_on_record {
                true => record(before.batch, before.inputs, before.metrics),
                false => MetricRecord::default(),
            };
            self.look(&record, before.finite, f64::from(before.batch.rows.len() as u32), step);
        } else if !before.finite {
            self.look_for(GuardSign::NonFinite, 1.0, step);
        }
        self.verdict < Verdict::SkipStep
    }

    /// The verdict on the step that was checked, and the notices about it. The notice with the gravest verdict comes
    /// last.
    pub fn take(&mut self) -> (Verdict, Vec<Notice>) {
        let verdict = std::mem::take(&mut self.verdict);
        self.state.skipped_steps += u64::from(verdict >= Verdict::SkipStep);
        self.notices.sort_by_key(|(verdict, _)| *verdict);
        (verdict, self.notices.drain(..).map(|(_, notice)| notice).collect())
    }

    /// To be called when the weights, or the state of the optimiser, are not finite after a step: neither may be kept,
    /// whatever the entries say.
    pub fn condemn(&mut self, step: u64) -> (Verdict, Notice) {
        let stops = |rule: &GuardRule| rule.sign == GuardSign::NonFinite && rule.action == GuardAction::Stop;
        let verdict = if self.rules.iter().any(stops) { Verdict::Stop } else { Verdict::RollBack };
        let done = if verdict == Verdict::Stop { "the run ends" } else { "the run goes back to what was before" };
        let text = format!("step {step} has left weights that are no finite numbers: {done}");
        (verdict, Notice::new(NoticeKind::Guard, step, text, remedy(GuardSign::NonFinite)))
    }

    /// Whether no sign shows whose action is more than a warning. A checkpoint made now is then worth going back to.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let matters = |rule: &&GuardRule| rule.action != GuardAction::Warn;
        let state = |rule: &GuardRule| self.state.signs.get(&rule.sign.to_string()).copied().unwrap_or_default();
        self.rules.iter().filter(matters).map(state).all(|sign| sign.there == 0 && !sign.acted)
    }

    /// Records what the guard has done so far, if it has done anything. `rate_factor` is the factor of the learning
    /// rates.
    pub fn record(&self, rate_factor: f64, line: &mut MetricRecord) {
        if self.state.skipped_steps > 0 {
            line.count(metrics::GUARD_SKIPPED_STEPS, self.state.skipped_steps);
        }
        if self.state.roll_backs > 0 {
            line.count(metrics::GUARD_ROLL_BACKS, self.state.roll_backs.into());
        }
        if rate_factor != 1.0 {
            line.set(metrics::GUARD_LEARNING_RATE_FACTOR, rate_factor);
        }
    }

    fn look(&mut self, record: &MetricRecord, finite: bool, completions: f64, step: u64) {
        let norm = record.get(metrics::GRAD_NORM).filter(|norm| *norm > 0.0);
        let signs: Vec<GuardSign> = self.rules.iter().map(|rule| rule.sign).collect();
        for sign in signs {
            let failed = || record.family(metrics::REWARDS_FAILED).filter_map(|(_, failed)| failed);
            let figure = match sign {
                GuardSign::NonFinite => Some(f64::from(u8::from(!finite))),
                GuardSign::Mismatch => record.get(metrics::MISMATCH_KL),
                GuardSign::GradientSpike => norm.zip(self.median()).map(|(norm, median)| norm / median),
                GuardSign::Kl => record.get(metrics::KL),
                GuardSign::EntropyGone => record.get(metrics::ENTROPY),
                GuardSign::Truncated => record.get(metrics::COMPLETIONS_CLIPPED_RATIO),
                GuardSign::EqualGroups => record.get(metrics::FRAC_REWARD_ZERO_STD),
                GuardSign::RewardFailures => failed().reduce(f64::max).map(|failed| failed / completions),
            };
            if let Some(figure) = figure {
                self.look_for(sign, figure, step);
            }
        }
        if let Some(norm) = norm {
            self.state.norms.push_back(norm);
            let surplus = self.state.norms.len().saturating_sub(NORMS);
            self.state.norms.drain(..surplus);
        }
    }

    fn median(&self) -> Option<f64> {
        let mut norms: Vec<f64> = self.state.norms.iter().copied().collect();
        norms.sort_by(f64::total_cmp);
        norms.get(norms.len() / 2).copied().filter(|_| norms.len() >= FEWEST_NORMS)
    }

    fn look_for(&mut self, sign: GuardSign, figure: f64, step: u64) {
        let Some(rule) = self.rules.iter().find(|rule| rule.sign == sign).copied() else { return };
        let low = sign.figure().1;
        let there = if low { figure < rule.threshold } else { figure > rule.threshold };
        let gone = if low { figure >= 2.0 * rule.threshold } else { figure <= rule.threshold / 2.0 };
        let state = self.state.signs.entry(sign.to_string()).or_default();
        state.there = if there { state.there + 1 } else { 0 };
        state.gone = if gone { state.gone + 1 } else { 0 };
        let begins = !state.acted && state.there >= rule.steps;
        state.acted = begins || state.acted && state.gone < rule.steps;
        let (steps, acts) = (state.there, begins || state.acted && there && rule.action == GuardAction::SkipStep);
        if acts {
            self.verdict = self.verdict.max(verdict(rule.action));
        }
        if begins {
            self.notices.push((verdict(rule.action), notice(&rule, figure, steps, step)));
        }
    }
}

fn verdict(action: GuardAction) -> Verdict {
    match action {
        GuardAction::Warn => Verdict::GoOn,
        GuardAction::LowerLearningRate => Verdict::LowerLearningRate,
        GuardAction::SkipStep => Verdict::SkipStep,
        GuardAction::RollBack => Verdict::RollBack,
        GuardAction::Stop => Verdict::Stop,
    }
}

fn notice(rule: &GuardRule, figure: f64, steps: u64, step: u64) -> Notice {
    let done = match rule.action {
        GuardAction::Warn => "nothing is done about it",
        GuardAction::LowerLearningRate => "the learning rate is lowered",
        GuardAction::SkipStep => "steps are left out for as long as that is so",
        GuardAction::RollBack => "the run goes back to its last healthy checkpoint",
        GuardAction::Stop => "the run ends",
    };
    let seen = if rule.sign == GuardSign::NonFinite {
        "the loss or the gradient of an update is no finite number".to_owned()
    } else {
        let (name, low) = rule.sign.figure();
        let side = if low { "below" } else { "above" };
        let lasting = if steps > 1 { format!(" for the {steps}th step in a row") } else { String::new() };
        format!("{name} is {figure:.3e}, {side} {:e}{lasting}", rule.threshold)
    };
    let text = format!("guard, {}={}: {seen}: {done}", rule.sign, rule.action);
    Notice::new(NoticeKind::Guard, step, text, remedy(rule.sign))
}

fn remedy(sign: GuardSign) -> &'static str {
    match sign {
        GuardSign::NonFinite | GuardSign::GradientSpike => {
            "lower `learning_rate` or `max_grad_norm`; completions/step-N.jsonl has what the step was made of"
        }
        GuardSign::Mismatch => "see what the notices say of `mismatch_kl`, and which versions the samples are of",
        GuardSign::Kl => "lower `learning_rate`, or raise `beta`",
        GuardSign::EntropyGone => "lower `learning_rate`, or raise `temperature` or `entropy_coef`",
        GuardSign::Truncated => "raise `max_completion_length`, or ask for shorter answers",
        GuardSign::EqualGroups => "take prompts that the model solves now and then",
        GuardSign::RewardFailures => {
            "correct the reward function; what it printed is in logs/rollout.log, with `rewards_on` workers in the log \
             of one"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(entries: &[&str]) -> Guard {
        let guard = entries.iter().map(|entry| (*entry).to_owned()).collect();
        Guard::new(&TrainConfig { guard, ..TrainConfig::default() }, GuardState::default()).unwrap()
    }

    /// The verdicts on steps in which one metric has these values, and the steps in which a notice was given.
    fn verdicts(entry: &str, metric: &'static metrics::Metric, values: &[f64]) -> (Vec<Verdict>, Vec<u64>, Guard) {
        let mut guard = guard(&[entry]);
        let (mut found, mut told) = (Vec::new(), Vec::new());
        for (step, &value) in (1..).zip(values) {
            let mut record = MetricRecord::default();
            record.set(metrics::GRAD_NORM, 1.0).set(metric, value);
            guard.look(&record, true, 8.0, step);
            let (verdict, notices) = guard.take();
            found.push(verdict);
            told.extend(notices.iter().map(|notice| notice.step));
        }
        (found, told, guard)
    }

    use Verdict::{GoOn, LowerLearningRate, RollBack, SkipStep, Stop};

    #[test]
    fn a_sign_is_acted_on_once_and_again_only_after_it_was_clearly_gone() {
        let values = [0.0, 2.0, 2.0, 2.0, 0.9, 2.0, 2.0, 0.4, 0.4, 2.0, 2.0];
        let (found, told, _) = verdicts("mismatch=roll_back:above=1:steps=2", metrics::MISMATCH_KL, &values);
        let expected = [GoOn, GoOn, RollBack, GoOn, GoOn, GoOn, GoOn, GoOn, GoOn, GoOn, RollBack];
        assert_eq!((found.as_slice(), told.as_slice()), (&expected[..], &[3, 11][..]));
    }

    #[test]
    fn steps_are_left_out_while_the_sign_is_there_and_told_of_once() {
        let values = [2.0, 2.0, 0.9, 2.0, 0.1, 2.0];
        let (found, told, guard) = verdicts("mismatch=skip_step:above=1", metrics::MISMATCH_KL, &values);
        assert_eq!(found, [SkipStep, SkipStep, GoOn, SkipStep, GoOn, SkipStep]);
        assert_eq!((told.as_slice(), guard.state.skipped_steps), (&[1, 6][..], 4));
    }

    #[test]
    fn low_entropy_is_a_sign_and_high_is_not() {
        let (found, ..) = verdicts("entropy_gone=stop:below=0.1", metrics::ENTROPY, &[0.5, 0.05, 0.05, 0.05]);
        assert_eq!(found, [GoOn, GoOn, GoOn, Stop]);
    }

    #[test]
    fn a_gradient_is_compared_with_the_median_of_those_before_it() {
        let mut values = vec![1.0; 7];
        values.extend([50.0, 2.0, 11.0, 1.0]);
        let entry = "gradient_spike=lower_learning_rate";
        let (found, ..) = verdicts(entry, metrics::GRAD_NORM, &values);
        assert_eq!(found[..9], [GoOn; 9], "too few are known when it is 50");
        assert_eq!(found[9..], [LowerLearningRate, GoOn]);
    }

    #[test]
    fn what_is_saved_while_a_sign_is_there_is_not_worth_going_back_to() {
        let calm = |entry, values: &[f64]| verdicts(entry, metrics::MISMATCH_KL, values).2.is_calm();
        let entry = "mismatch=roll_back:above=1:steps=2";
        assert!(calm(entry, &[0.0]) && !calm(entry, &[2.0]) && !calm(entry, &[2.0, 2.0, 0.9]));
        assert!(calm(entry, &[2.0, 2.0, 0.1, 0.1]) && calm("mismatch=warn:above=1", &[2.0]));
    }

    #[test]
    fn updates_that_are_not_finite_are_left_out_without_any_entry() {
        let mut guard = guard(&[]);
        guard.look(&MetricRecord::default(), false, 8.0, 3);
        let (verdict, notices) = guard.take();
        assert_eq!(verdict, SkipStep);
        assert!(notices[0].to_string().starts_with("step 3: guard, non_finite=skip_step: the loss or the gradient"));
        assert_eq!(guard.condemn(4).0, RollBack);
        assert_eq!(
            super::Guard::new(
                &TrainConfig { guard: vec!["non_finite=stop".into()], ..TrainConfig::default() },
                GuardState::default()
            )
            .unwrap()
            .condemn(4)
            .0,
            Stop
        );
    }

    #[test]
    fn what_leads_to_the_most_is_told_last() {
        let mut guard = guard(&["mismatch=stop:above=1", "entropy_gone=warn:steps=1"]);
        let mut record = MetricRecord::default();
        record.set(metrics::MISMATCH_KL, 2.0).set(metrics::ENTROPY, 0.0);
        guard.look(&record, true, 8.0, 3);
        let (verdict, notices) = guard.take();
        assert_eq!((verdict, notices.len()), (Stop, 2));
        assert!(notices[1].text.starts_with("guard, mismatch=stop:"), "{}", notices[1]);
    }

    #[test]
    fn a_guard_goes_on_from_its_state() {
        let (_, _, first) = verdicts("mismatch=roll_back:above=1:steps=2", metrics::MISMATCH_KL, &[2.0]);
        let text = serde_json::to_string(&first.state).unwrap();
        let mut second = guard(&["mismatch=roll_back:above=1:steps=2"]);
        second.state = serde_json::from_str(&text).unwrap();
        assert_eq!(second.state, first.state);
        second.look_for(GuardSign::Mismatch, 2.0, 2);
        assert_eq!(second.take().0, RollBack);
    }
}
