//! A policy that an update has broken: the reward is gone, and what is sampled is nothing like before.

use std::collections::VecDeque;

use shared::{
    config::TrainConfig,
    metrics::{self, Figure},
    run::notices::{Notice, NoticeKind},
};

use super::{Detector, Seen, streak::steps};

/// Steps that are compared with those before.
const RECENT: usize = 3;
/// Steps of which the best are the measure; at the beginning of a run there are fewer.
const BEFORE: usize = 5;
/// A fall is none by chance when it is this many times the standard error of the two means.
const ERRORS: f64 = 4.0;
/// Steps in a row, and standard errors, that are enough where next to nothing is left to learn from and the policy is
/// another by far: a run with a prompt or two a step has large errors.
const UTTER: (usize, f64) = (5, 1.0);
/// Share of the rewards' spread that the rewards of a broken policy have at most, unless they fell by the whole of it.
const SPREAD_LEFT: f64 = 0.25;
/// An entropy that has risen by this factor and by so many nats, or fallen by the other factor, is that of another
/// policy.
const RISEN: (f64, f64) = (2.0, 0.1);
const FALLEN: f64 = 1.0 / 3.0;
/// The same where completions are cut off that were not before.
const RISEN_AND_CUT: f64 = 1.3;
const FALLEN_AND_CUT: f64 = 0.7;
/// By how much the share of truncated completions has then risen.
const CUT: f64 = 0.5;
/// The same for an entropy that is another by far.
const FAR: (f64, f64) = (3.0, 0.2);

/// What is looked at of a step.
#[derive(Debug, Clone, Copy)]
struct Point {
    step: u64,
    reward: f64,
    /// Standard deviation of the rewards of the step's completions.
    std: f64,
    entropy: Option<f64>,
    clipped: f64,
}

/// Means over some steps in a row.
#[derive(Debug, Clone, Copy)]
struct Window {
    first: u64,
    last: u64,
    reward: f64,
    std: f64,
    /// Square of the standard error of `reward`.
    error: f64,
    entropy: Option<f64>,
    clipped: f64,
}

impl Window {
    /// Of steps of so many groups of so many completions each; the prompts of a step are as unlike as its completions.
    fn of(points: &[Point], groups: f64) -> Self {
        let count = points.len() as f64;
        let mean = |of: &dyn Fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / count;
        let reward = mean(&|point| point.reward);
        let within = mean(&|point| point.std.powi(2)) / groups;
        let between = mean(&|point| (point.reward - reward).powi(2));
        let entropies: Option<Vec<f64>> = points.iter().map(|point| point.entropy).collect();
        Self {
            first: points.first().map_or(0, |point| point.step),
            last: points.last().map_or(0, |point| point.step),
            reward,
            std: mean(&|point| point.std),
            error: within.max(between) / count,
            entropy: entropies.map(|list| list.iter().sum::<f64>() / count),
            clipped: mean(&|point| point.clipped),
        }
    }

    /// What the reward is at least, most likely: the measure of what was reached.
    fn surely(&self) -> f64 {
        self.reward - self.error.sqrt()
    }

    fn steps(&self) -> String {
        steps(self.first, self.last)
    }
}

/// The reward of the last steps against the best before, and whether the policy is another one.
pub struct Collapse {
    /// Steps that are compared with those before.
    recent: usize,
    /// Groups of a step.
    groups: f64,
    points: VecDeque<Point>,
    best: Option<Window>,
    /// The last steps look like a collapse, or are one.
    explains: bool,
    /// Half-way between what was reached and what a collapse has left: below it, the policy has not recovered.
    half_way: Option<f64>,
}

impl Collapse {
    pub fn new(config: &TrainConfig) -> Self {
        let recent = config.max_steps.map_or(RECENT, |steps| (steps as usize).saturating_sub(1).clamp(1, RECENT));
        let groups = f64::from(config.groups_per_step());
        Self { recent, groups: groups.max(1.0), points: VecDeque::new(), best: None, explains: false, half_way: None }
    }

    /// Whether a notice of this kind would name another reason for what the collapse has done.
    pub fn explains(&self, kind: NoticeKind) -> bool {
        use NoticeKind::{ConstantReward, EntropyGone, EqualGroups, Mismatch, NoGradient, RewardFallen, Truncated};
        self.explains
            && matches!(
                kind,
                ConstantReward | EntropyGone | EqualGroups | Mismatch | NoGradient | RewardFallen | Truncated
            )
    }

    /// The means of the last `count` steps.
    fn last(&self, count: usize) -> Option<Window> {
        let from = self.points.len().checked_sub(count)?;
        let points: Vec<Point> = self.points.iter().skip(from).copied().collect();
        Some(Window::of(&points, self.groups))
    }

    /// The best steps before the last ones.
    fn measure(&mut self) {
        let before = self.points.len().saturating_sub(self.recent);
        let points: Vec<Point> = self.points.iter().take(before).skip(before.saturating_sub(BEFORE)).copied().collect();
        if points.is_empty() {
            return;
        }
        let window = Window::of(&points, self.groups);
        if self.best.is_none_or(|best| window.surely() >= best.surely()) {
            self.best = Some(window);
        }
    }
}

impl Detector for Collapse {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let get = |metric| seen.record.get(metric).filter(|value: &f64| value.is_finite());
        let Some(reward) = get(metrics::REWARD) else {
            return Vec::new();
        };
        self.points.push_back(Point {
            step: seen.step(),
            reward,
            std: get(metrics::REWARD_STD).unwrap_or(0.0),
            entropy: get(metrics::ENTROPY),
            clipped: get(metrics::COMPLETIONS_CLIPPED_RATIO).unwrap_or(0.0),
        });
        if self.points.len() > BEFORE + UTTER.0 {
            self.points.pop_front();
        }
        self.measure();
        let (Some(best), Some(now)) = (self.best, self.last(self.recent)) else {
            return Vec::new();
        };
        let broken = is_another_policy(&best, &now) && is_broken(&best, &now) && fell(&best, &now, UTTER.1);
        self.half_way = self.half_way.filter(|half_way| now.reward < *half_way);
        // A step is enough to hold back what would name another reason: where it was chance, that is told a step later.
        let looks_broken = |last: Window| is_another_policy(&best, &last) && fell(&best, &last, UTTER.1);
        self.explains = broken || self.half_way.is_some() || self.last(1).is_some_and(looks_broken);
        let utter = || self.last(UTTER.0).is_some_and(|long| is_utter(&best, &long));
        if !broken || !(fell(&best, &now, ERRORS) || utter()) {
            return Vec::new();
        }
        self.half_way = self.half_way.or(Some(f64::midpoint(best.reward, now.reward)));
        vec![Notice::new(NoticeKind::Collapse, now.last, words(&best, &now), remedy(seen.config, best.last))]
    }
}

/// Whether the reward fell by so many standard errors.
fn fell(best: &Window, now: &Window, errors: f64) -> bool {
    let fall = best.reward - now.reward;
    fall > 0.0 && fall > errors * (best.error + now.error).sqrt()
}

/// Whether there is next to nothing left to learn from, or all of it is lost.
fn is_broken(best: &Window, now: &Window) -> bool {
    best.std > 0.0 && (now.std <= SPREAD_LEFT * best.std || best.reward - now.reward >= best.std)
}

/// Whether what is sampled is of another policy.
fn is_another_policy(best: &Window, now: &Window) -> bool {
    moved(best, now, RISEN.0, FALLEN) || is_cut_otherwise(best, now)
}

/// Whether the entropy has risen by a factor, or fallen by another.
fn moved(best: &Window, now: &Window, risen: f64, fallen: f64) -> bool {
    let both = best.entropy.zip(now.entropy);
    both.is_some_and(|(before, after)| after > (risen * before).max(before + RISEN.1) || after < fallen * before)
}

/// Whether completions are cut off that were not before, and the entropy is not what it was.
fn is_cut_otherwise(best: &Window, now: &Window) -> bool {
    now.clipped - best.clipped >= CUT && moved(best, now, RISEN_AND_CUT, FALLEN_AND_CUT)
}

/// Whether several steps, each of them after the best, have next to no contrast and are those of a policy that is
/// another by far.
fn is_utter(best: &Window, long: &Window) -> bool {
    let far = moved(best, long, FAR.0, FAR.1) || is_cut_otherwise(best, long);
    far && long.first > best.last && long.std <= SPREAD_LEFT * best.std && fell(best, long, UTTER.1)
}

fn words(best: &Window, now: &Window) -> String {
    let mut text = format!(
        "the policy has collapsed: the reward fell from {:.3} in {} to {:.3} in {}",
        Figure(best.reward),
        best.steps(),
        Figure(now.reward),
        now.steps()
    );
    if let (Some(before), Some(after)) = (best.entropy, now.entropy) {
        text += &format!(", and the entropy went from {before:.3} to {after:.3} nats per token");
    }
    if now.clipped - best.clipped >= CUT {
        text += &format!(
            "; {:.0} % of the completions are cut off, {:.0} % were before",
            100.0 * now.clipped,
            100.0 * best.clipped
        );
    }
    text
}

/// What is to be done about it: the usual cause first, then what the options make likely.
/// `good` is the last step whose completions were those of a good policy.
fn remedy(config: &TrainConfig, good: u64) -> String {
    let rate = config.learning_rate;
    let mut text = format!("`learning_rate` {rate:e} is the first suspect: lower it tenfold or more");
    let without_beta = config.beta == 0.0;
    let mut others = Vec::new();
    if without_beta && config.updates_per_step() > 1 {
        others.push(format!("{} updates on each batch without `beta`", config.updates_per_step()));
    }
    if config.epsilon > 0.5 || config.epsilon_high.is_some_and(|epsilon| epsilon > 1.0) {
        others.push("a wide `epsilon`".to_owned());
    }
    if config.max_grad_norm <= 0.0 || config.max_grad_norm > 10.0 {
        others.push("`max_grad_norm`, which clips nothing".to_owned());
    }
    if !others.is_empty() {
        text += &format!("; then {}", others.join(", "));
    }
    text += "; the weights seldom recover by themselves: begin again";
    // The completions of a step are those of the policy before it, or of older ones; of none of them it is known which.
    match good.saturating_sub(1 + config.max_staleness) {
        0 => text,
        step => text + &format!(", or go on from a checkpoint up to checkpoint-{step}"),
    }
}

#[cfg(test)]
mod tests {
    use shared::metrics::MetricRecord;

    use super::{super::testing::step, *};

    /// 32 groups of 8 completions.
    fn config() -> TrainConfig {
        TrainConfig {
            per_device_train_batch_size: 256,
            num_generations: 8,
            learning_rate: 0.1,
            ..TrainConfig::default()
        }
    }

    /// Shows steps that `change` makes; returns the steps at which a collapse is found, the first notice, and those at
    /// which it explains other signs.
    fn found(
        config: &TrainConfig,
        count: u64,
        change: impl Fn(u64, &mut MetricRecord),
    ) -> (Vec<u64>, Option<Notice>, Vec<u64>) {
        let mut detector = Collapse::new(config);
        let (mut at, mut first, mut explained) = (Vec::new(), None, Vec::new());
        for number in 1..=count {
            let mut record = step(number);
            change(number, &mut record);
            let notices = detector.look(&Seen { config, record: &record, failures: &[] });
            at.extend(notices.iter().map(|notice| notice.step));
            first = first.or(notices.into_iter().next());
            explained.extend(detector.explains(NoticeKind::EqualGroups).then_some(number));
        }
        (at, first, explained)
    }

    fn broken(record: &mut MetricRecord, entropy: f64) {
        record.set(metrics::REWARD, 0.0).set(metrics::REWARD_STD, 0.0).set(metrics::ENTROPY, entropy);
        record.set(metrics::COMPLETIONS_CLIPPED_RATIO, 1.0).set(metrics::FRAC_REWARD_ZERO_STD, 1.0);
    }

    /// A number from -1 to 1 that is another for every step and seed.
    fn noise(step: u64, seed: u64) -> f64 {
        ((step * 31 + seed * 977) as f64 * 12.9898).sin()
    }

    #[test]
    fn a_policy_that_breaks_at_once_has_collapsed_within_five_steps_whatever_it_says_now() {
        for (entropy, after) in [(4.0, 1), (0.0, 1), (9.0, 3), (0.01, 6)] {
            let (at, notice, explained) = found(&config(), 12, |number, record| {
                if number > after {
                    broken(record, entropy);
                }
            });
            assert_eq!(at.first(), Some(&(after + 3)), "{entropy}");
            // There is nothing to measure by before the fourth step.
            let expected = (after + 1).max(4);
            assert_eq!(explained.first(), Some(&expected), "{entropy}: nothing else is named meanwhile");
            let notice = notice.unwrap();
            assert_eq!(notice.kind, NoticeKind::Collapse);
            assert!(notice.text.contains("has collapsed: the reward fell from 0.500 in step"), "{}", notice.text);
            assert!(notice.text.contains("100 % of the completions are cut off"), "{}", notice.text);
            assert!(
                notice.remedy.starts_with("`learning_rate` 1e-1 is the first suspect: lower it"),
                "{}",
                notice.remedy
            );
        }
    }

    /// What is left of it may have contrast, and be as unlike the policy before as that of other steps.
    #[test]
    fn a_collapse_explains_what_follows_until_the_reward_is_back() {
        let (at, _, explained) = found(&config(), 30, |number, record| {
            if (4..20).contains(&number) {
                broken(record, if number < 8 { 4.0 } else { 1.6 });
                record.set(metrics::REWARD_STD, if number < 8 { 0.0 } else { 0.3 });
                record.set(metrics::REWARD, if number < 8 { 0.0 } else { 0.1 });
            }
        });
        assert_eq!(at.first(), Some(&6));
        assert_eq!(
            explained,
            (4..=20).collect::<Vec<_>>(),
            "from the second step after the first good one, the reward is back"
        );
    }

    #[test]
    fn a_run_of_one_group_a_step_has_collapsed_when_nothing_is_left_for_five_steps() {
        let config = TrainConfig { per_device_train_batch_size: 8, ..config() };
        let (at, _, _) = found(&config, 12, |number, record| {
            record.set(metrics::REWARD, 0.5 + 0.3 * noise(number, 1));
            if number > 3 {
                broken(record, 6.0);
            }
        });
        assert!(at.first().is_some_and(|first| *first <= 10), "{at:?}");
    }

    #[test]
    fn noise_hard_prompts_and_a_policy_that_gets_certain_are_no_collapse() {
        for seed in 0..20 {
            let small = TrainConfig { per_device_train_batch_size: 8, ..config() };
            let (at, _, _) = found(&small, 400, |number, record| {
                // All or nothing by chance, with an entropy that wanders.
                let reward = if noise(number, seed) > 0.3 { 0.0 } else { 0.5 };
                let std = if reward == 0.0 { 0.0 } else { 0.5 };
                record.set(metrics::REWARD, reward).set(metrics::REWARD_STD, std);
                record.set(metrics::ENTROPY, 0.8 + 0.4 * noise(number, seed + 100));
            });
            assert!(at.is_empty(), "{seed}: {at:?}");
        }
        let certain = found(&config(), 400, |number, record| {
            let share = (number as f64 / 200.0).min(1.0);
            record.set(metrics::REWARD, share).set(metrics::REWARD_STD, (share * (1.0 - share)).sqrt());
            record.set(metrics::ENTROPY, 1.5 * (1.0 - 0.99 * share));
        });
        assert!(certain.0.is_empty(), "{certain:?}");
        let harder = found(&config(), 60, |number, record| {
            if number > 30 {
                record.set(metrics::REWARD, 0.0).set(metrics::REWARD_STD, 0.0).set(metrics::ENTROPY, 1.8);
                record.set(metrics::COMPLETIONS_CLIPPED_RATIO, 1.0);
            }
        });
        assert!(
            harder.0.is_empty() && harder.2.is_empty(),
            "the same policy at prompts that it cannot solve: {harder:?}"
        );
    }

    #[test]
    fn what_the_options_make_likely_is_named_after_the_learning_rate() {
        let risky = TrainConfig { num_iterations: 8, epsilon: 100.0, max_grad_norm: 1e9, beta: 0.0, ..config() };
        let text = remedy(&risky, 5);
        let order = [
            "`learning_rate`",
            "8 updates on each batch without `beta`",
            "`epsilon`",
            "`max_grad_norm`",
            "up to checkpoint-4",
        ];
        let places: Vec<_> = order.iter().map(|words| text.find(words)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
        let plain = remedy(&TrainConfig { beta: 0.04, ..config() }, 5);
        assert!(!plain.contains("; then "), "{plain}");
    }

    /// The reward of a step is that of the policy which the step before has left.
    #[test]
    fn the_checkpoint_that_is_named_is_one_from_before_the_fall() {
        for (good, max_staleness, expected) in
            [(5, 0, Some("checkpoint-4")), (5, 2, Some("checkpoint-2")), (1, 0, None), (3, 2, None)]
        {
            let text = remedy(&TrainConfig { max_staleness, ..config() }, good);
            match expected {
                Some(name) => assert!(text.ends_with(&format!("begin again, or go on from a checkpoint up to {name}"))),
                None => assert!(text.ends_with("recover by themselves: begin again"), "{text}"),
            }
        }
    }
}
