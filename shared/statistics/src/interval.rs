//! Intervals of shares.

use statrs::distribution::Normal;

use crate::{mean, mean_and_error, reach, students_t};

/// The ends of the 95 % interval of a mean of shares, one for each prompt; NaN where there are too few prompts.
///
/// Where each share is 0 or 1, this is Wilson's interval, which holds near 0 and 1 too. Else it is Student's t, with
/// the prompt as the observation, since the completions of a prompt are alike.
#[must_use]
pub fn of_share(values: &[f64]) -> [f64; 2] {
    if values.iter().all(|value| [0.0, 1.0].contains(value)) {
        return wilson(mean(values.iter().copied()), values.len() as f64);
    }
    let (mean, error) = mean_and_error(values.iter().copied());
    let half = students_t(values.len()).map_or(f64::NAN, |freedom| error * reach(&freedom));
    [mean - half, mean + half].map(|end| end.clamp(0.0, 1.0))
}

/// Wilson's score interval (Wilson 1927) of `share` of `count` draws.
fn wilson(share: f64, count: f64) -> [f64; 2] {
    let z = reach(&Normal::standard());
    let weight = z * z / count;
    let centre = share + weight / 2.0;
    let half = (weight * (share * (1.0 - share) + weight / 4.0)).sqrt();
    [(centre - half) / (1.0 + weight), (centre + half) / (1.0 + weight)].map(|end| end.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use shared::generation::rng::Stream;

    use super::*;

    fn near(found: [f64; 2], expected: [f64; 2]) {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 5e-4), "{found:?} {expected:?}");
    }

    /// Newcombe 1998, table I, method 3.
    #[test]
    fn wilsons_interval_is_that_of_the_literature() {
        for (right, of, expected) in [
            (81, 263, [0.2553, 0.3662]),
            (15, 148, [0.0624, 0.1605]),
            (0, 20, [0.0, 0.1611]),
            (1, 29, [0.0061, 0.1718]),
        ] {
            let values: Vec<f64> = (0..of).map(|i| f64::from(u8::from(i < right))).collect();
            near(of_share(&values), expected);
        }
    }

    #[test]
    fn clustered_intervals_are_of_prompts_and_stay_within_the_shares() {
        // t of 3 degrees of freedom is 3.1824; the error is 0.1021.
        near(of_share(&[0.25, 0.5, 0.5, 0.75]), [0.1752, 0.8248]);
        near(of_share(&[0.0, 0.0, 0.25]), [0.0, 0.4420]);
        assert!(of_share(&[]).iter().chain(&of_share(&[0.5])).all(|end| end.is_nan()));
    }

    #[test]
    fn nineteen_of_twenty_hold_the_truth() {
        let random = &mut Stream::new(&[5]);
        for k in [1, 4] {
            let mut held = 0;
            for _ in 0..2_000 {
                // Half of the prompts are hard, with a chance of 0.1; half are easy, with a chance of 0.9.
                let values: Vec<f64> = (0..100)
                    .map(|_| {
                        let chance = if random.next_f64() < 0.5 { 0.1 } else { 0.9 };
                        (0..k).filter(|_| random.next_f64() < chance).count() as f64 / f64::from(k)
                    })
                    .collect();
                let [low, high] = of_share(&values);
                held += u32::from(low <= 0.5 && 0.5 <= high);
            }
            assert!((1_870..=1_930).contains(&held), "{held} of 2000 with {k} for each prompt");
        }
    }
}
