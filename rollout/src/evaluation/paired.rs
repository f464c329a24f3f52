//! Whether one model really does better than another on the same prompts, or by chance.

use serde::Serialize;
use shared::Scored;
use shared_statistics::{CONFIDENCE, Paired, mean, paired};

use super::{Judging, accuracy};

/// The verdict on a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Significantly better than the first model.
    Better,
    /// Significantly worse than the first model.
    Worse,
    /// No significant difference.
    NoDifference,
}

/// Two models on the prompts that both have a figure for.
///
/// A prompt is one observation: its figure is the mean over its completions. The differences between the two models'
/// figures are averaged. Both models answer the same prompts, so the difficulty of the prompts drops out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Prompts.
    pub prompts: usize,
    /// Mean of the first model.
    pub a: f64,
    /// Mean of the second model.
    pub b: f64,
    /// Mean of the second less that of the first.
    pub difference: f64,
    /// Lower and upper end of the 95 % interval of the difference: Student's t, paired by prompt.
    pub interval: [f64; 2],
    /// The chance of a difference as large as this one between equally good models: by a two-sided t-test or, where all
    /// differences are the same, by a sign test.
    pub p_value: f64,
    /// The verdict on the second model.
    pub verdict: Verdict,
}

/// Compares figures, one of each model for each prompt. `None` for fewer than two prompts.
#[must_use]
pub fn compare(pairs: &[(f64, f64)]) -> Option<Difference> {
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
    let Paired { difference, interval, p_value } = paired(&differences)?;
    // Shares cannot differ by more than 1.
    let are_shares = pairs.iter().all(|(a, b)| [a, b].iter().all(|figure| (0.0..=1.0).contains(*figure)));
    let bound = if are_shares { 1.0 } else { f64::INFINITY };
    let verdict = match p_value <= 1.0 - CONFIDENCE {
        true if difference > 0.0 => Verdict::Better,
        true => Verdict::Worse,
        false => Verdict::NoDifference,
    };
    Some(Difference {
        prompts: pairs.len(),
        a: mean(pairs.iter().map(|(a, _)| *a)),
        b: mean(pairs.iter().map(|(_, b)| *b)),
        difference,
        interval: interval.map(|end| end.clamp(-bound, bound)),
        p_value,
        verdict,
    })
}

/// The share of right completions of each prompt, for prompts whose completions could all be scored for both models.
#[must_use]
pub fn accuracies(a: &[Scored], b: &[Scored], judging: Judging) -> Vec<(f64, f64)> {
    pairs(a, b, |group| accuracy(group, judging.correct_at))
}

/// The mean reward of each prompt for which both models have a completion with a reward.
#[must_use]
pub fn rewards(a: &[Scored], b: &[Scored], judging: Judging) -> Vec<(f64, f64)> {
    let reward = |group: &Scored| {
        let weights = || group.reward_names.iter().map(|(_, weight)| *weight);
        let scored = group.completions.iter().filter(|c| !c.environment_failed());
        let mean = mean(scored.filter_map(|c| judging.failure.reward(&c.rewards, weights())));
        mean.is_finite().then_some(mean)
    };
    pairs(a, b, reward)
}

fn pairs(a: &[Scored], b: &[Scored], figure: impl Fn(&Scored) -> Option<f64>) -> Vec<(f64, f64)> {
    a.iter().zip(b).filter_map(|(a, b)| Some((figure(a)?, figure(b)?))).collect()
}

#[cfg(test)]
mod tests {
    use shared::generation::rng::Stream;

    use super::*;

    /// Shares of `k` completions that are right, of prompts of all kinds of difficulty.
    fn sampled(random: &mut Stream, prompts: usize, k: usize, advantage: f64) -> Vec<(f64, f64)> {
        let share =
            |chance: f64, random: &mut Stream| (0..k).filter(|_| random.next_f64() < chance).count() as f64 / k as f64;
        (0..prompts)
            .map(|_| {
                let chance = random.next_f64() * (1.0 - advantage);
                (share(chance, random), share(chance + advantage, random))
            })
            .collect()
    }

    #[test]
    fn equal_models_differ_by_chance_alone_and_better_ones_are_found() {
        let random = &mut Stream::new(&[7]);
        let mut verdicts = |advantage: f64| -> Vec<Verdict> {
            (0..400).map(|_| compare(&sampled(random, 100, 4, advantage)).unwrap().verdict).collect()
        };
        let count = |verdicts: &[Verdict], of: Verdict| verdicts.iter().filter(|verdict| **verdict == of).count();
        let equal = count(&verdicts(0.0), Verdict::NoDifference);
        // Of 400, 380 on average, give or take 4.4.
        assert!((365..=395).contains(&equal), "{equal}");
        assert!(count(&verdicts(0.15), Verdict::Better) > 390);
    }

    #[test]
    fn intervals_are_those_of_a_bootstrap() {
        let random = &mut Stream::new(&[11]);
        let pairs = sampled(random, 200, 4, 0.1);
        let found = compare(&pairs).unwrap();
        let mut means: Vec<f64> = (0..4_000)
            .map(|_| {
                let drawn = (0..pairs.len()).map(|_| pairs[(random.next_f64() * pairs.len() as f64) as usize]);
                mean(drawn.map(|(a, b)| b - a))
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let width = found.interval[1] - found.interval[0];
        for (end, at) in found.interval.into_iter().zip([0.025, 0.975]) {
            let expected = means[(at * means.len() as f64) as usize];
            assert!((end - expected).abs() < 0.06 * width, "{end} {expected}");
        }
    }

    #[test]
    fn the_interval_of_shares_goes_no_further_than_they_can() {
        assert_eq!(compare(&[(1.0, 0.0), (1.0, 0.5)]).unwrap().interval[0], -1.0);
        assert!(compare(&[(2.0, 0.0), (1.0, 0.5)]).unwrap().interval[0] < -1.0, "sums of rewards have no such bounds");
    }

    #[test]
    fn what_does_not_vary_has_signs_alone() {
        let same = compare(&[(0.5, 0.5), (1.0, 1.0)]).unwrap();
        assert_eq!((same.verdict, same.p_value, same.interval), (Verdict::NoDifference, 1.0, [0.0, 0.0]));
        let worse = |prompts| compare(&vec![(1.0, 0.0); prompts]).unwrap();
        assert_eq!((worse(2).verdict, worse(2).p_value), (Verdict::NoDifference, 0.5), "two may be luck");
        assert_eq!((worse(6).verdict, worse(6).difference), (Verdict::Worse, -1.0));
        assert_eq!(compare(&[(1.0, 0.0)]), None, "one prompt says nothing of others");
        assert_eq!(compare(&[]), None);
    }
}
