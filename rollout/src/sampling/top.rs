//! The likeliest tokens of a row, for those who want to see what else could have come.

/// One of the likeliest tokens in a place (OpenAI's `top_logprobs`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopLogprob {
    /// The token.
    pub token: u32,
    /// Its log-prob, under the distribution that the log-prob of the drawn or given token is reported of.
    pub logprob: f64,
}

/// The `count` largest of these logits, the largest first; of equal ones, those that come first. A logit of negative
/// infinity is none.
pub(crate) fn largest(logits: impl Iterator<Item = (u32, f32)>, count: usize) -> Vec<(u32, f32)> {
    let mut found: Vec<(u32, f32)> = Vec::new();
    if count == 0 {
        return found;
    }
    let mut bound = f32::NEG_INFINITY;
    for (token, logit) in logits {
        if logit > bound {
            found.insert(found.partition_point(|(_, other)| *other >= logit), (token, logit));
            found.truncate(count);
            if found.len() == count {
                bound = found[count - 1].1;
            }
        }
    }
    found
}

/// The logits of a row with their tokens.
pub(crate) fn tokens_of(row: &[f32]) -> impl Iterator<Item = (u32, f32)> {
    (0..).zip(row.iter().copied())
}

#[cfg(test)]
mod tests {
    use shared::generation::rng::Stream;

    use super::*;

    #[test]
    fn the_largest_are_those_that_sorting_would_put_first() {
        let mut stream = Stream::new(&[8]);
        for count in [0, 1, 5, 20, 300] {
            // Rounded, so that many are equal.
            let row: Vec<f32> = (0..200).map(|_| (stream.next_normal() * 2.0).round() as f32).collect();
            let mut sorted: Vec<(u32, f32)> = tokens_of(&row).collect();
            sorted.sort_by(|(_, one), (_, other)| other.partial_cmp(one).expect("numbers"));
            sorted.truncate(count);
            assert_eq!(largest(tokens_of(&row), count), sorted, "{count}");
        }
        let masked = [f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY];
        assert_eq!(largest(tokens_of(&masked), 3), [(1, 2.0)]);
    }
}
