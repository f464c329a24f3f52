//! How often guesses come true, by how well they are founded.

use crate::engine::history::{Guess, LONGEST};

/// Kinds of support that a guess may have.
const SUPPORTS: usize = 6;
/// What a kind of guess counts for before any was judged: rather a miss.
const PRIOR: Rate = Rate { hits: 0.5, tries: 2.0 };
/// Judgements that are remembered: the policy changes, and with it what can be guessed.
const MEMORY: f32 = 2000.0;

#[derive(Debug, Clone, Copy)]
struct Rate {
    hits: f32,
    tries: f32,
}

/// Measured rates of all kinds of guesses.
#[derive(Debug)]
pub struct Rates([[Rate; SUPPORTS]; LONGEST]);

impl Default for Rates {
    fn default() -> Self {
        Self([[PRIOR; SUPPORTS]; LONGEST])
    }
}

impl Rates {
    /// The probability that a guess comes true.
    pub fn of(&self, guess: &Guess) -> f32 {
        let Rate { hits, tries } = self.0[guess.context - 1][support(guess)];
        hits / tries
    }

    /// A guess was right or wrong.
    pub fn judge(&mut self, guess: &Guess, right: bool) {
        let rate = &mut self.0[guess.context - 1][support(guess)];
        if rate.tries >= MEMORY {
            rate.hits *= 0.5;
            rate.tries *= 0.5;
        }
        rate.tries += 1.0;
        rate.hits += if right { 1.0 } else { 0.0 };
    }
}

/// Always the same token, seen once, twice or more often; or one of several, with a majority of some size.
fn support(guess: &Guess) -> usize {
    match (guess.votes, guess.seen) {
        (_, 1) => 0,
        (2, 2) => 1,
        (votes, seen) if votes == seen => 2,
        (votes, seen) if 2 * votes >= seen => 3,
        (votes, seen) if 5 * votes >= seen => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_guesses_are_judged_on_their_own_and_old_judgements_fade() {
        let guess = |context, votes, seen| Guess { token: 1, context, votes, seen };
        let (sure, torn) = (guess(4, 9, 9), guess(1, 0, 8));
        let mut rates = Rates::default();
        assert!(rates.of(&sure) < 0.5);
        for _ in 0..3000 {
            rates.judge(&sure, true);
            rates.judge(&torn, false);
        }
        assert!(rates.of(&sure) > 0.99 && rates.of(&torn) < 0.01);
        assert_eq!(rates.of(&guess(3, 9, 9)), rates.of(&guess(4, 1, 1)), "neither was seen");
        for _ in 0..2000 {
            rates.judge(&sure, false);
        }
        assert!(rates.of(&sure) < 0.5, "the policy has changed");
    }
}
