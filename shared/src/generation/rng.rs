//! Counter-based randomness: a random number is a pure function of its purpose.
//!
//! There is no generator state, so a completion does not depend on batch size, slot, thread count, order of arrival or
//! restart, and any token can be drawn again on its own. The mixing function is SplitMix64's finaliser (Steele, Lea,
//! Flood 2014, "Fast splittable pseudorandom number generators"), chained over the keys.

/// SplitMix64's increment, the odd integer nearest to 2^64 / φ.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A 64-bit hash of a sequence of keys; the order of the keys matters.
#[must_use]
pub fn hash(keys: &[u64]) -> u64 {
    keys.iter()
        .fold(GOLDEN_GAMMA, |state, &key| mix(state.wrapping_add(GOLDEN_GAMMA) ^ mix(key.wrapping_add(GOLDEN_GAMMA))))
}

/// A uniform draw in the open interval (0, 1) with 53 random bits, from a hash of the keys.
#[must_use]
pub fn uniform(keys: &[u64]) -> f64 {
    ((hash(keys) >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

/// The draw for one token of one completion: the only randomness of sampling.
#[must_use]
pub fn token_uniform(seed: u64, epoch: u32, prompt_id: u64, sample: u32, position: u32) -> f64 {
    uniform(&[seed, u64::from(epoch), prompt_id, u64::from(sample), u64::from(position)])
}

/// A stream of draws for code that needs a generator (weight initialisation, shuffling).
#[derive(Debug, Clone)]
pub struct Stream {
    key: u64,
    counter: u64,
}

impl Stream {
    /// A stream that depends on the keys alone.
    #[must_use]
    pub fn new(keys: &[u64]) -> Self {
        Self { key: hash(keys), counter: 0 }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.counter += 1;
        hash(&[self.key, self.counter])
    }

    /// The next uniform draw in (0, 1).
    pub fn next_f64(&mut self) -> f64 {
        ((self.next_u64() >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
    }

    /// The next integer in `0..n`, free of modulo bias for every `n` that fits in 32 bits.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "an empty range has no element to draw");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// The next draw from the standard normal distribution (Box-Muller, cosine half).
    pub fn next_normal(&mut self) -> f64 {
        let radius = (-2.0 * self.next_f64().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next_f64()).cos()
    }
}

/// A permutation of `0..n` (Fisher-Yates) that depends on the keys alone.
#[must_use]
pub fn permutation(n: usize, keys: &[u64]) -> Vec<u32> {
    let mut stream = Stream::new(keys);
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        let j = stream.below(i as u64 + 1) as usize;
        order.swap(i, j);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_and_independent_of_neighbouring_keys() {
        let n = 100_000u32;
        let (mut mean, mut var, mut lag) = (0.0, 0.0, 0.0);
        let mut previous = 0.5;
        for i in 0..n {
            let u = token_uniform(42, 0, u64::from(i / 64), i % 8, i % 64);
            mean += u;
            var += (u - 0.5) * (u - 0.5);
            lag += (u - 0.5) * (previous - 0.5);
            previous = u;
        }
        let n = f64::from(n);
        assert!((mean / n - 0.5).abs() < 0.005, "{}", mean / n);
        assert!((var / n - 1.0 / 12.0).abs() < 0.002, "{}", var / n);
        assert!((lag / n).abs() < 0.002, "{}", lag / n);
    }

    #[test]
    fn every_key_matters() {
        let base = token_uniform(1, 2, 3, 4, 5);
        for other in [
            token_uniform(9, 2, 3, 4, 5),
            token_uniform(1, 9, 3, 4, 5),
            token_uniform(1, 2, 9, 4, 5),
            token_uniform(1, 2, 3, 9, 5),
            token_uniform(1, 2, 3, 4, 9),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = permutation(1000, &[7, 1]);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
