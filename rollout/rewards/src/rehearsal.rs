//! Reward functions on sample completions, before a run depends on them.
//!
//! A function that fails on every sample cannot work. Something odd, such as the same score for everything, may be
//! intended and is only remarked on.

use std::time::{Duration, Instant};

use shared::{FinishReason, RewardOutcome, metrics::Figure};

use crate::{RewardCompletion, RewardFunction, RewardInput, pool::checked, rules::tags};

/// The kind of a sample completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// Without text.
    Empty,
    /// A sentence without an answer.
    Plain,
    /// As long as completions may be, and cut off.
    Overlong,
    /// The right answer of the row, in every form that rules look for.
    Right,
    /// Sampled from the model that is to be trained.
    Model,
}

impl Sample {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Plain => "plain",
            Self::Overlong => "overlong",
            Self::Right => "right",
            Self::Model => "of the model",
        }
    }
}

/// A row with sample completions, as many as groups will have.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The input of the functions.
    pub input: RewardInput,
    /// The kind of each completion.
    pub samples: Vec<Sample>,
}

/// The run's demands on a function.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// How long a call may take.
    pub timeout: Duration,
    /// Completions of a step.
    pub completions_per_step: usize,
}

/// The result of a rehearsal of one function.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rehearsed {
    /// Samples that it was asked about.
    pub samples: usize,
    /// Samples on which it failed.
    pub failed: usize,
    /// Samples on which it abstained.
    pub abstained: usize,
    /// Lowest and highest score.
    pub range: Option<(f64, f64)>,
    /// Highest score of a right answer.
    pub right: Option<f64>,
    /// Mean score of the completions that the model made.
    pub of_model: Option<f64>,
    /// Seconds for one completion; the first call, in which programs may still load, is not counted.
    pub seconds: Option<f64>,
    /// Correlation of the score with the number of tokens, right answers left out.
    pub length: Option<f64>,
    /// Why it cannot work.
    pub refusal: Option<String>,
    /// Remarks on its oddities.
    pub warnings: Vec<String>,
    /// Whether completions of the model may show that it is not odd: a function may look for something that only they
    /// have.
    pub in_doubt: bool,
    /// The last words of its program, if it failed.
    pub words: Vec<String>,
}

/// After this long, a rehearsal asks no further group.
const ENOUGH: Duration = Duration::from_secs(10);

/// From this correlation on, a score goes by length.
const GOES_BY_LENGTH: f64 = 0.9;

/// From this many seconds for each step on, scoring is slow.
const SLOW_STEP: f64 = 10.0;

/// One completion with what a function said about it.
struct Observed {
    sample: Sample,
    tokens: usize,
    outcome: RewardOutcome,
}

/// A function that is asked about trials.
pub struct Rehearsal<'a> {
    function: &'a RewardFunction,
    demand: Demand,
    observed: Vec<Observed>,
    /// Seconds for a completion, of every call but the first.
    times: Vec<f64>,
    /// Completions of a call.
    group: usize,
    /// The remark on a tag that a prompt opens, once the function was tested with one. The test is made only once.
    opened_tag: Option<Option<String>>,
}

impl<'a> Rehearsal<'a> {
    /// A rehearsal without any calls yet.
    #[must_use]
    pub fn new(function: &'a RewardFunction, demand: Demand) -> Self {
        Self { function, demand, observed: Vec::new(), times: Vec::new(), group: 0, opened_tag: None }
    }

    /// Asks about every trial, in order, until it has taken long enough.
    pub fn ask(&mut self, trials: &[Trial]) {
        let begin = Instant::now();
        for trial in trials {
            if begin.elapsed() > ENOUGH {
                break;
            }
            let call = Instant::now();
            let input = RewardInput { deadline: call.checked_add(self.demand.timeout), ..trial.input.clone() };
            let (reward, is_first) = (self.function.reward(), self.observed.is_empty());
            let outcomes = if is_first { reward.score_first(&input) } else { reward.score(&input) };
            if is_first {
                self.group = trial.samples.len();
            } else {
                self.times.push(call.elapsed().as_secs_f64() / trial.samples.len() as f64);
            }
            self.observed.extend(observe(trial, outcomes));
            let works = || self.observed.iter().any(|o| !o.outcome.has_failed());
            if let Some(tag) = tags::opened(&trial.input.prompt).filter(|_| self.opened_tag.is_none() && works()) {
                self.opened_tag = Some(opened_tag(self.function, tag, trial, self.demand));
            }
        }
    }

    /// The result so far.
    #[must_use]
    pub fn found(&self) -> Rehearsed {
        let times = &self.times;
        let seconds = (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64);
        let mut found = figures(&self.observed, seconds);
        if found.failed > 0 {
            found.words = self.function.reward().last_words();
        }
        judge(&mut found, &self.observed, self.function);
        let processes = self.function.reward().concurrency();
        found.warnings.extend(slowness(&found, self.group, self.demand, processes));
        found.warnings.extend(self.opened_tag.clone().flatten());
        found
    }
}

fn observe(trial: &Trial, outcomes: Vec<RewardOutcome>) -> Vec<Observed> {
    let asked = trial.samples.len();
    let wrong = (outcomes.len() != asked)
        .then(|| RewardOutcome::Failed(format!("returned {} outcomes for {asked} completions", outcomes.len())));
    let mut outcomes = outcomes.into_iter();
    let completions = trial.samples.iter().zip(&trial.input.completions);
    let each = |(&sample, completion): (&Sample, &crate::RewardCompletion)| {
        let outcome = wrong.clone().or_else(|| outcomes.next()).unwrap_or(RewardOutcome::NotApplicable);
        Observed { sample, tokens: completion.length(), outcome: checked(outcome, &completion.into()) }
    };
    completions.map(each).collect()
}

fn figures(observed: &[Observed], seconds: Option<f64>) -> Rehearsed {
    let scores = || observed.iter().filter_map(|o| o.outcome.score());
    let wrong = observed.iter().filter(|o| o.sample != Sample::Right);
    let by_length: Vec<(f64, f64)> = wrong.filter_map(|o| Some((o.tokens as f64, o.outcome.score()?))).collect();
    let of = |sample: Sample| -> Vec<f64> {
        observed.iter().filter(|o| o.sample == sample).filter_map(|o| o.outcome.score()).collect()
    };
    let of_model = of(Sample::Model);
    let failed = observed.iter().filter(|o| o.outcome.has_failed()).count();
    Rehearsed {
        samples: observed.len(),
        failed,
        abstained: observed.len() - failed - scores().count(),
        range: scores().reduce(f64::min).zip(scores().reduce(f64::max)),
        right: of(Sample::Right).into_iter().reduce(f64::max),
        of_model: (!of_model.is_empty()).then(|| of_model.iter().sum::<f64>() / of_model.len() as f64),
        seconds,
        length: correlation(&by_length),
        ..Rehearsed::default()
    }
}

/// Pearson's correlation; none where one side is constant.
fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let n = pairs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|pair| of(pair.0 - x, pair.1 - y)).sum::<f64>();
    let scale = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    (scale > 0.0).then(|| sum(&|a, b| a * b) / scale)
}

/// Refuses a function that cannot work and remarks on what is odd. A rule of the sampler is known to look at something.
/// It is odd only where it judges answers and has seen right ones.
fn judge(found: &mut Rehearsed, observed: &[Observed], function: &RewardFunction) {
    let all = found.samples;
    let reason = observed.iter().find_map(|o| match &o.outcome {
        RewardOutcome::Failed(reason) => Some(reason),
        _ => None,
    });
    if let Some(reason) = reason {
        if found.failed == all {
            found.refusal = Some(format!("failed on all {all} sample completions: {reason}"));
            return;
        }
        let failed = found.failed;
        found.warnings.push(format!("failed on {failed} of {all} sample completions ({}): {reason}", kinds(observed)));
    }
    let saw = |sample: Sample| observed.iter().filter(|o| o.sample == sample).count();
    let judges = saw(Sample::Right) > 0 && !function.columns.is_empty();
    if !function.own && !judges {
        return;
    }
    let included = match (saw(Sample::Right), saw(Sample::Model)) {
        (0, 0) => String::new(),
        (_, 0) => ", right answers included".into(),
        (0, own) => format!(", {own} of the model's own included"),
        (_, own) => format!(", right answers and {own} of the model's own included"),
    };
    let before = found.warnings.len();
    match found.range {
        None if found.abstained + found.failed == all => {
            found.warnings.push(format!("has no score for any of {all} sample completions{included}"));
        }
        Some((low, high)) if low == high => found.warnings.push(format!(
            "gives {} to each of {} sample completions{included}; where all completions of a prompt get the same, \
             nothing is learned",
            Figure(low),
            all - found.failed - found.abstained
        )),
        _ => {}
    }
    if let Some(r) = found.length.filter(|r| function.own && r.abs() >= GOES_BY_LENGTH) {
        let what = if r > 0.0 { "long" } else { "short" };
        found.warnings.push(format!(
            "goes by the length of sample completions (correlation {r:.2}), and would teach to be {what}"
        ));
    }
    found.in_doubt = found.warnings.len() > before && saw(Sample::Model) == 0;
}

/// Completions behind a tag that the prompt has opened: one goes on with the reasoning, one with the answer.
const BEHIND_REASONING: &str = "It follows from what is given.\n</think>\n</reasoning>\n<answer>\n2\n</answer>";
const BEHIND_ANSWER: &str = "2\n</answer>";

/// A remark where the prompt opens a tag that a function looks for in completions. Rules of the sampler count the tag
/// as part of completions. Other functions see only the sampled text.
fn opened_tag(function: &RewardFunction, tag: &str, trial: &Trial, demand: Demand) -> Option<String> {
    let name = tag.trim_end();
    let right = trial.samples.iter().zip(&trial.input.completions).find(|(sample, _)| **sample == Sample::Right);
    let pattern = trial.input.completions.first()?;
    let text = if name == "<answer>" { BEHIND_ANSWER } else { BEHIND_REASONING };
    let behind = RewardCompletion { text: text.into(), finish_reason: FinishReason::Stop, ..pattern.clone() };
    let probes: Vec<RewardCompletion> = right.map(|(_, right)| right.clone()).into_iter().chain([behind]).collect();
    // `None` where the function fails.
    let scores = |prompt: &str, tag: &str| -> Option<Vec<Option<f64>>> {
        let with_tag =
            |probe: &RewardCompletion| RewardCompletion { text: format!("{tag}{}", probe.text), ..probe.clone() };
        let completions = probes.iter().map(with_tag).collect();
        let deadline = Instant::now().checked_add(demand.timeout);
        let input = RewardInput { prompt: prompt.into(), completions, deadline, ..trial.input.clone() };
        let outcomes = function.reward().score(&input);
        outcomes
            .iter()
            .all(|outcome| !outcome.has_failed())
            .then(|| outcomes.iter().map(RewardOutcome::score).collect())
    };
    if function.own {
        let (without, with) = (scores(&trial.input.prompt, "")?, scores(&trial.input.prompt, tag)?);
        let more = without.iter().zip(&with).any(|(without, with)| with > without);
        return more.then(|| {
            format!(
                "wants `{name}` in completions, and the chat template puts it at the end of the prompt, so that they \
                 begin behind it; let the function put it before them, or name another template with `chat_template`"
            )
        });
    }
    (scores("", "")? != scores(&trial.input.prompt, "")?)
        .then(|| format!("counts `{name}`, which the chat template puts at the end of the prompt, to completions"))
}

/// The kinds of the samples that failed.
fn kinds(observed: &[Observed]) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    for o in observed.iter().filter(|o| o.outcome.has_failed()) {
        if !kinds.contains(&o.sample.words()) {
            kinds.push(o.sample.words());
        }
    }
    kinds.join(", ")
}

fn slowness(found: &Rehearsed, group: usize, demand: Demand, processes: usize) -> Option<String> {
    let seconds = found.seconds?;
    let (call, limit) = (seconds * group as f64, demand.timeout.as_secs_f64());
    if call > limit / 2.0 {
        return Some(format!("takes {call:.1} s for {group} completions, and fails after `reward_timeout`, {limit} s"));
    }
    let step = seconds * demand.completions_per_step as f64 / processes.min(demand.completions_per_step).max(1) as f64;
    (step > SLOW_STEP).then(|| {
        format!(
            "takes {seconds:.2} s for a completion, {step:.0} s for a step; `reward_processes` scores several \
            groups at once"
        )
    })
}

#[cfg(test)]
#[path = "rehearsal_tests.rs"]
mod tests;
