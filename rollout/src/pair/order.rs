//! The endless sequence of prompts: every position of it is a row of the dataset, the same on every machine.

use shared::generation::rng;

/// Distinguishes the order within a source from the order of an epoch.
const SOURCE_KEY: u64 = 0x736f_7572;

/// The part of an epoch that is drawn from one of several sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The first of the source's rows among all.
    first: usize,
    rows: usize,
    drawn: usize,
}

impl Share {
    /// The shares of sources in an epoch, in proportion to weights; `None` without weights. `sizes` has the number of
    /// rows of each source, and an epoch has as many prompts as all sources have rows.
    ///
    /// # Errors
    /// The index of a source whose weight is too small for a single prompt.
    pub fn of(sizes: &[usize], weights: &[f64]) -> Result<Option<Vec<Self>>, usize> {
        if weights.is_empty() {
            return Ok(None);
        }
        let drawn = apportion(sizes.iter().sum(), weights);
        if let Some(index) = drawn.iter().position(|&drawn| drawn == 0) {
            return Err(index);
        }
        let firsts = sizes.iter().scan(0, |first, rows| Some(std::mem::replace(first, *first + rows)));
        let share = |((first, &rows), drawn)| Self { first, rows, drawn };
        Ok(Some(firsts.zip(sizes).zip(drawn).map(share).collect()))
    }

    /// Prompts of an epoch that are drawn from the source.
    #[must_use]
    pub fn drawn(&self) -> usize {
        self.drawn
    }

    /// The rows of the source that an epoch draws, one after the other. They go on where the epoch before has ended,
    /// and every row comes once before one comes again.
    fn rows_of(&self, epoch: u64, source: u64, seed: Option<u64>) -> Vec<usize> {
        let begin = epoch * self.drawn as u64;
        let mut pass: Option<(u64, Vec<u32>)> = None;
        let mut row = |draw: u64| {
            let (number, index) = (draw / self.rows as u64, (draw % self.rows as u64) as usize);
            let Some(seed) = seed else { return self.first + index };
            let (_, order) = match pass.take() {
                Some(known) if known.0 == number => pass.insert(known),
                _ => pass.insert((number, rng::permutation(self.rows, &[seed, SOURCE_KEY, source, number]))),
            };
            self.first + order[index] as usize
        };
        (begin..begin + self.drawn as u64).map(&mut row).collect()
    }
}

/// Whole numbers that add up to `total`, in proportion to weights. They are rounded down, and the numbers that lost
/// most by this share the rest.
fn apportion(total: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * total as f64).collect();
    let mut parts: Vec<usize> = exact.iter().map(|part| part.floor() as usize).collect();
    let mut by_loss: Vec<usize> = (0..weights.len()).collect();
    by_loss.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let missing = total - parts.iter().sum::<usize>();
    by_loss.iter().take(missing).for_each(|&index| parts[index] += 1);
    parts
}

/// Order in which the rows of a dataset are drawn.
#[derive(Debug)]
pub struct PromptOrder {
    /// Prompts of an epoch.
    length: usize,
    /// The share of each source; without shares, every row is drawn once.
    shares: Vec<Share>,
    /// Seed of the shuffle; `None` = the order of the files, again and again.
    seed: Option<u64>,
    /// The rows of the epoch that was needed last, with its number: positions mostly come in ascending order.
    drawn: Option<(u64, Vec<usize>)>,
}

impl PromptOrder {
    /// The order over `rows` rows (at least one), shuffled with a seed.
    #[must_use]
    pub fn new(rows: usize, seed: Option<u64>) -> Self {
        Self { length: rows, shares: Vec::new(), seed, drawn: None }
    }

    /// The order over several sources, of which each epoch draws its shares.
    #[must_use]
    pub fn mixture(shares: Vec<Share>, seed: Option<u64>) -> Self {
        Self { length: shares.iter().map(|share| share.drawn).sum(), shares, seed, drawn: None }
    }

    /// (epoch, row) of a position.
    pub fn at(&mut self, position: u64) -> (u32, usize) {
        let epoch = position / self.length as u64;
        let index = (position % self.length as u64) as usize;
        let rows = match self.drawn.take() {
            Some((known, rows)) if known == epoch => rows,
            _ => self.rows_of(epoch),
        };
        let row = rows[index];
        self.drawn = Some((epoch, rows));
        (u32::try_from(epoch).expect("nobody trains for 2^32 epochs"), row)
    }

    fn rows_of(&self, epoch: u64) -> Vec<usize> {
        let rows = self.mixed(epoch);
        match self.seed {
            Some(seed) => rng::permutation(self.length, &[seed, epoch]).into_iter().map(|i| rows[i as usize]).collect(),
            None => rows,
        }
    }

    /// The rows of an epoch before they are shuffled, with the rows of each source spread evenly.
    fn mixed(&self, epoch: u64) -> Vec<usize> {
        if self.shares.is_empty() {
            return (0..self.length).collect();
        }
        let of_source = |(source, share): (u64, &Share)| {
            let rows = share.rows_of(epoch, source, self.seed);
            // The middle of the row's part of the epoch, as a fraction.
            let drawn = share.drawn as u64;
            rows.into_iter().zip(0..).map(move |(row, i): (usize, u64)| ((2 * i + 1, drawn), row)).collect::<Vec<_>>()
        };
        let mut rows: Vec<((u64, u64), usize)> = (0..).zip(&self.shares).flat_map(of_source).collect();
        rows.sort_by(|((a, m), _), ((b, n), _)| {
            (u128::from(*a) * u128::from(*n)).cmp(&(u128::from(*b) * u128::from(*m)))
        });
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_holds_every_row_once_in_an_order_of_its_own() {
        let mut order = PromptOrder::new(50, Some(7));
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
        let mut one = PromptOrder::new(9, Some(3));
        let forwards: Vec<_> = (0..30).map(|p| one.at(p)).collect();
        let backwards: Vec<_> = (0..30).rev().map(|p| PromptOrder::new(9, Some(3)).at(p)).collect();
        assert_eq!(forwards, backwards.into_iter().rev().collect::<Vec<_>>());
        assert_ne!(forwards, (0..30).map(|p| PromptOrder::new(9, Some(4)).at(p)).collect::<Vec<_>>());
    }

    #[test]
    fn without_shuffling_the_file_is_read_again_and_again() {
        let mut order = PromptOrder::new(3, None);
        let drawn: Vec<_> = (0..7).map(|p| order.at(p)).collect();
        assert_eq!(drawn, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]);
    }

    fn mixture(sizes: &[usize], weights: &[f64], seed: Option<u64>) -> PromptOrder {
        PromptOrder::mixture(Share::of(sizes, weights).unwrap().unwrap(), seed)
    }

    #[test]
    fn an_epoch_of_a_mixture_has_the_shares_and_each_source_is_gone_through_in_turn() {
        let mut order = mixture(&[30, 10], &[1.0, 3.0], Some(7));
        let drawn: Vec<usize> = (0..120).map(|position| order.at(position).1).collect();
        for epoch in drawn.chunks(40) {
            assert_eq!(epoch.iter().filter(|&&row| row < 30).count(), 10);
        }
        let mut of_first: Vec<usize> = drawn.iter().copied().filter(|&row| row < 30).collect();
        of_first.sort_unstable();
        assert_eq!(of_first, (0..30).collect::<Vec<_>>(), "three epochs of 10 are every row once");
        for row in 30..40 {
            assert_eq!(drawn.iter().filter(|&&drawn| drawn == row).count(), 9);
        }
        assert_ne!(drawn[..40], drawn[40..80]);
    }

    #[test]
    fn a_position_of_a_mixture_does_not_depend_on_what_was_asked_before() {
        let fresh = |seed| mixture(&[7, 5, 3], &[0.2, 0.5, 0.3], Some(seed));
        let mut one = fresh(3);
        let forwards: Vec<_> = (0..60).map(|position| one.at(position)).collect();
        let backwards: Vec<_> = (0..60).rev().map(|position| fresh(3).at(position)).collect();
        assert_eq!(forwards, backwards.into_iter().rev().collect::<Vec<_>>());
        assert_ne!(forwards, (0..60).map(|position| fresh(4).at(position)).collect::<Vec<_>>());
    }

    #[test]
    fn without_shuffling_a_mixture_is_spread_evenly() {
        let mut order = mixture(&[2, 6], &[1.0, 1.0], None);
        let drawn: Vec<usize> = (0..10).map(|position| order.at(position).1).collect();
        assert_eq!(drawn, [0, 2, 1, 3, 0, 4, 1, 5, 0, 6]);
    }

    #[test]
    fn shares_add_up_and_none_is_nothing() {
        assert_eq!(apportion(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
        assert_eq!(apportion(7, &[0.5, 0.25, 0.25]), [3, 2, 2]);
        assert_eq!(Share::of(&[90, 10], &[1.0, 1e-6]), Err(1));
        assert_eq!(Share::of(&[90, 10], &[]), Ok(None));
    }
}
