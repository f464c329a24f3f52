//! The endless sequence of prompts: every position of it is a row of the dataset, the same on every machine.

use shared::rng;

/// Order in which the rows of a dataset are drawn.
#[derive(Debug)]
pub struct PromptOrder {
    rows: usize,
    /// Seed of the shuffle; `None` = the order of the file, again and again.
    seed: Option<u64>,
    /// The permutation that was needed last, with its epoch: positions mostly come in ascending order.
    shuffled: Option<(u64, Vec<u32>)>,
}

impl PromptOrder {
    /// The order over `rows` rows (at least one).
    #[must_use]
    pub fn new(rows: usize, shuffle: bool, seed: u64) -> Self {
        Self { rows, seed: shuffle.then_some(seed), shuffled: None }
    }

    /// (epoch, row) of a position.
    pub fn at(&mut self, position: u64) -> (u32, usize) {
        let epoch = position / self.rows as u64;
        let index = (position % self.rows as u64) as usize;
        let row = match self.seed {
            Some(seed) => self.permutation(seed, epoch)[index] as usize,
            None => index,
        };
        (u32::try_from(epoch).expect("nobody trains for 2^32 epochs"), row)
    }

    fn permutation(&mut self, seed: u64, epoch: u64) -> &[u32] {
        let (_, order) = match self.shuffled.take() {
            Some(known) if known.0 == epoch => self.shuffled.insert(known),
            _ => self.shuffled.insert((epoch, rng::permutation(self.rows, &[seed, epoch]))),
        };
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_holds_every_row_once_in_an_order_of_its_own() {
        let mut order = PromptOrder::new(50, true, 7);
        let epochs: Vec<Vec<usize>> = (0..3u64)
            .map(|epoch| {
                let drawn: Vec<_> = (0..50).map(|i| order.at(epoch * 50 + i)).collect();
                assert!(drawn.iter().all(|(e, _)| u64::from(*e) == epoch));
                drawn.into_iter().map(|(_, row)| row).collect()
            })
            .collect();
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs[1], epochs[2]);
        for mut rows in epochs {
            rows.sort_unstable();
            assert_eq!(rows, (0..50).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_position_does_not_depend_on_what_was_asked_before() {
        let mut one = PromptOrder::new(9, true, 3);
        let forwards: Vec<_> = (0..30).map(|p| one.at(p)).collect();
        let backwards: Vec<_> = (0..30).rev().map(|p| PromptOrder::new(9, true, 3).at(p)).collect();
        assert_eq!(forwards, backwards.into_iter().rev().collect::<Vec<_>>());
        assert_ne!(forwards, (0..30).map(|p| PromptOrder::new(9, true, 4).at(p)).collect::<Vec<_>>());
    }

    #[test]
    fn without_shuffling_the_file_is_read_again_and_again() {
        let mut order = PromptOrder::new(3, false, 1);
        let drawn: Vec<_> = (0..7).map(|p| order.at(p)).collect();
        assert_eq!(drawn, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]);
    }
}
