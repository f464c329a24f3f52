//! Speculative decoding: tokens that are likely to come next are computed along with the newest one.
//!
//! A draft is what followed the same last tokens before, in the prompt or in any completion of the group. Tokens are
//! drawn at every position as always; while the drawn token is the draft, the next row of logits is there already. So
//! drafts change how many steps a completion takes, and no bit of it. How many are worth a row is decided anew for
//! every step: by how often such guesses came true, and by what a step with more rows takes. Reading the weights
//! dominates steps with few rows, and there drafts are all but free.

mod drafts;
mod prices;
mod rates;

use std::{sync::PoisonError, time::Duration};

pub(super) use drafts::Drafts;

use super::{history::LONGEST, sequence::Sequence};
use prices::Prices;
use rates::Rates;

/// Chains of guesses end where they become less likely than this.
const LEAST_LIKELY: f32 = 0.05;

/// Decides what is drafted.
#[derive(Default)]
pub(super) struct Drafter {
    /// Most drafts of a sequence in a step.
    most: usize,
    /// Most rows of a step, drafts and newest tokens together.
    rows: usize,
    rates: Rates,
    prices: Prices,
    chains: Vec<Chain>,
    /// Slots in the order in which drafts were taken.
    order: Vec<usize>,
    context: Vec<u32>,
}

/// What a sequence may go on with.
#[derive(Debug, Default)]
struct Chain {
    tokens: Vec<u32>,
    /// The probability that a token and all before it come true.
    likely: Vec<f32>,
    taken: usize,
}

impl Drafter {
    pub fn new(most: usize, rows: usize) -> Self {
        Self { most, rows, ..Self::default() }
    }

    /// The drafts of the next step, for the sequences of the slots from 0 on.
    pub fn draft(&mut self, slots: &[Option<Sequence>], drafts: &mut Drafts) {
        drafts.clear();
        if slots.len() >= self.rows {
            return;
        }
        self.chains.resize_with(self.chains.len().max(slots.len()), Chain::default);
        for (slot, sequence) in slots.iter().enumerate() {
            self.guess(slot, sequence.as_ref().expect("decoding runs on slots without holes"));
        }
        self.choose(slots.len());
        for chain in &self.chains[..slots.len()] {
            drafts.push(&chain.tokens[..chain.taken]);
        }
    }

    /// Follows the history from the end of a sequence.
    fn guess(&mut self, slot: usize, sequence: &Sequence) {
        let Self { most, rates, chains, context, .. } = self;
        let Chain { tokens, likely, taken } = &mut chains[slot];
        tokens.clear();
        likely.clear();
        *taken = 0;
        // The newest token is followed by one in any case, which takes one of those that remain.
        let most = (*most).min(sequence.remaining() - 1);
        let Some(history) = sequence.history() else { return };
        let history = history.lock().unwrap_or_else(PoisonError::into_inner);
        sequence.tail(LONGEST, context);
        let mut all = 1.0;
        while tokens.len() < most {
            let Some(guess) = history.guess(context) else { return };
            all *= rates.of(&guess);
            if all < LEAST_LIKELY {
                return;
            }
            tokens.push(guess.token);
            likely.push(all);
            context.push(guess.token);
        }
    }

    /// Takes the likeliest drafts, as many as make the most tokens in the least time.
    fn choose(&mut self, sequences: usize) {
        let Self { rows, prices, chains, order, .. } = self;
        let chains = &mut chains[..sequences];
        order.clear();
        let mut expected = sequences as f32;
        let (mut best, mut worth) = (expected / prices.of(sequences), 0);
        for rows in sequences + 1..=*rows {
            let next = chains.iter().enumerate().filter_map(|(slot, c)| Some((slot, *c.likely.get(c.taken)?)));
            let Some((slot, likely)) = next.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            chains[slot].taken += 1;
            order.push(slot);
            expected += likely;
            let rate = expected / prices.of(rows);
            if rate > best {
                (best, worth) = (rate, order.len());
            }
        }
        for &slot in &order[worth..] {
            chains[slot].taken -= 1;
        }
    }

    /// A step with so many rows took so long.
    pub fn took(&mut self, rows: usize, time: Duration) {
        self.prices.add(rows, time);
    }

    /// A sequence has a new token: judges the guess there would have been, and remembers what came.
    pub fn learn(&mut self, sequence: &Sequence) {
        let Some(history) = sequence.history() else { return };
        sequence.tail(LONGEST + 1, &mut self.context);
        let Some((&token, context)) = self.context.split_last() else { return };
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(guess) = history.guess(context) {
            self.rates.judge(&guess, guess.token == token);
        }
        history.add(context, token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drafter with these chains, on a machine where `free` rows cost what one does.
    fn drafter(rows: usize, free: usize, chains: &[&[f32]]) -> Drafter {
        let mut drafter = Drafter::new(8, rows);
        for rows in 1..=64 {
            drafter.took(rows, Duration::from_millis(rows.max(free) as u64));
        }
        drafter.chains = chains
            .iter()
            .map(|likely| Chain { tokens: vec![0; likely.len()], likely: likely.to_vec(), taken: 0 })
            .collect();
        drafter.choose(chains.len());
        drafter
    }

    fn taken(rows: usize, free: usize, chains: &[&[f32]]) -> Vec<usize> {
        drafter(rows, free, chains).chains.iter().map(|chain| chain.taken).collect()
    }

    #[test]
    fn free_rows_go_to_the_likeliest_drafts_and_dear_ones_to_none() {
        let chains: [&[f32]; 3] = [&[0.9, 0.8, 0.1], &[0.3, 0.2], &[]];
        assert_eq!(taken(64, 24, &chains), [3, 2, 0], "all are free");
        assert_eq!(taken(5, 24, &chains), [2, 0, 0], "two rows are left");
        assert_eq!(taken(64, 1, &chains), [0, 0, 0], "every row costs as much as the first, and not all come true");
    }
}
