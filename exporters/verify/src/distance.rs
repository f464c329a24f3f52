//! How far an export's log-probs are from its model's.

use ndarray::ArrayView1;

use crate::{Reader, VerifyError};

/// Differences between two readers, over all tokens of some rows but the first of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distance {
    /// Tokens that were compared.
    pub tokens: usize,
    /// Largest absolute difference of the log-probs of the rows' own tokens, in nats.
    pub largest: f64,
    /// Mean absolute difference of these log-probs, in nats.
    pub mean: f64,
    /// Mean Kullback-Leibler divergence of the export's distribution over the vocabulary from the model's, in nats.
    pub kl: f64,
    /// Share of tokens behind which both think the same token the likeliest.
    pub same_greedy: f64,
}

impl Distance {
    /// Checks the largest difference.
    ///
    /// # Errors
    /// A larger one than `bound`, with both figures.
    pub fn require(&self, bound: f64) -> Result<(), VerifyError> {
        if self.largest <= bound {
            return Ok(());
        }
        Err(VerifyError::TooFar { difference: self.largest, bound })
    }
}

/// Runs both readers on the rows and compares their log-probs. A row of one token compares nothing.
///
/// # Errors
/// What a reader reports, logits that are not finite or of another shape, or rows without a second token.
pub fn compare(
    reference: &mut dyn Reader,
    export: &mut dyn Reader,
    rows: &[Vec<u32>],
) -> Result<Distance, VerifyError> {
    let (mut sums, mut tokens) = (Distance { tokens: 0, largest: 0.0, mean: 0.0, kl: 0.0, same_greedy: 0.0 }, 0.0);
    for row in rows.iter().filter(|row| row.len() > 1) {
        let (a, b) = (reference.logits(row)?, export.logits(row)?);
        if a.dim() != b.dim() {
            let message = format!("its logits have the shape {:?}, the model's have {:?}", b.dim(), a.dim());
            return Err(VerifyError::Differs(message));
        }
        for ((a, b), &token) in a.rows().into_iter().zip(b.rows()).zip(&row[1..]) {
            let (p, q) = (log_softmax(a)?, log_softmax(b)?);
            let difference = (p[token as usize] - q[token as usize]).abs();
            sums.largest = sums.largest.max(difference);
            sums.mean += difference;
            sums.kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            sums.same_greedy += f64::from(u8::from(likeliest(&p) == likeliest(&q)));
            tokens += 1.0;
        }
    }
    if tokens == 0.0 {
        return Err(VerifyError::Differs("no row has two tokens, so nothing could be compared".into()));
    }
    // A divergence is not negative, but its sum in floats may be by a hair.
    let (mean, kl, same_greedy) = (sums.mean / tokens, (sums.kl / tokens).max(0.0), sums.same_greedy / tokens);
    Ok(Distance { tokens: tokens as usize, mean, kl, same_greedy, ..sums })
}

fn log_softmax(logits: ArrayView1<'_, f32>) -> Result<Vec<f64>, VerifyError> {
    if let Some(value) = logits.iter().find(|value| !value.is_finite()) {
        return Err(VerifyError::Differs(format!("a logit is {value}")));
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    Ok(logits.iter().map(|&logit| f64::from(logit) - f64::from(largest) - sum.ln()).collect())
}

/// The first of the likeliest tokens.
fn likeliest(logprobs: &[f64]) -> usize {
    (1..logprobs.len()).fold(0, |best, token| if logprobs[token] > logprobs[best] { token } else { best })
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    struct Fixed(Array2<f32>);

    impl Reader for Fixed {
        fn logits(&mut self, _: &[u32]) -> Result<Array2<f32>, VerifyError> {
            Ok(self.0.clone())
        }
    }

    fn between(a: Array2<f32>, b: Array2<f32>, row: Vec<u32>) -> Result<Distance, VerifyError> {
        compare(&mut Fixed(a), &mut Fixed(b), &[row])
    }

    #[test]
    fn figures_are_those_of_the_formulas() {
        // Odds of 3:1 and of 1:1; the last row has no token behind it.
        let (a, b) = (array![[3_f32.ln(), 0.0], [0.0, 0.0]], array![[5.0_f32, 5.0], [9.0, 0.0]]);
        let found = between(a.clone(), b.clone(), vec![0, 1]).unwrap();
        assert_eq!((found.tokens, found.same_greedy), (1, 1.0), "of equals, the first is the likeliest");
        assert!((found.largest - 2_f64.ln()).abs() < 1e-7 && found.mean == found.largest);
        assert!((found.kl - (0.75 * 1.5_f64.ln() + 0.25 * 0.5_f64.ln())).abs() < 1e-7, "{}", found.kl);
        let other = between(a, array![[0.0, 1.0], [0.0, 0.0]], vec![0, 1]).unwrap();
        assert_eq!(other.same_greedy, 0.0);
        let error = found.require(0.5).unwrap_err().to_string();
        assert!(error.contains("differs from the model's by 6.931e-1, the bound is 5e-1"), "{error}");
        found.require(0.7).unwrap();
    }

    #[test]
    fn what_cannot_be_compared_is_an_error() {
        let two = array![[0.0_f32, 1.0], [0.0, 0.0]];
        assert!(between(two.clone(), two.clone(), vec![0]).unwrap_err().to_string().contains("no row has two tokens"));
        let other = array![[0.0_f32, 1.0, 2.0], [0.0, 0.0, 0.0]];
        assert!(between(two.clone(), other, vec![0, 1]).unwrap_err().to_string().contains("shape (2, 3)"));
        let broken = array![[f32::NAN, 1.0], [0.0, 0.0]];
        assert!(between(two, broken, vec![0, 1]).unwrap_err().to_string().contains("a logit is NaN"));
    }
}
