//! What an adapter adds to one linear layer.

use rayon::prelude::*;

/// The update `scaling * B A` of a weight `[out, in]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    pub(super) scaling: f32,
    /// `[r, in]`.
    pub(super) a: Vec<f32>,
    /// `[out, r]`.
    pub(super) b: Vec<f32>,
    pub(super) r: usize,
}

impl LowRank {
    /// A, `[r, in]`.
    #[must_use]
    pub fn a(&self) -> &[f32] {
        &self.a
    }

    /// B, `[out, r]`.
    #[must_use]
    pub fn b(&self) -> &[f32] {
        &self.b
    }

    /// Adds the update to one row (`[in]`) of the weight. Each value takes its `r` products one after the other, each
    /// with one rounding, so its bits depend neither on its neighbours nor on the instruction set.
    ///
    /// # Panics
    /// When there is no such row, or it has another length.
    pub fn add_to_row(&self, row: usize, values: &mut [f32]) {
        assert_eq!(values.len() * self.r, self.a.len(), "the row has another length");
        let factors: Vec<f32> = self.b[row * self.r..][..self.r].iter().map(|b| self.scaling * b).collect();
        add_products(values, &factors, &self.a);
    }

    /// Adds the update to a weight (`[out, in]`, row-major).
    ///
    /// # Panics
    /// When the weight has another size.
    pub fn add_to(&self, weight: &mut [f32]) {
        let inputs = self.a.len() / self.r;
        assert_eq!(weight.len() * self.r, self.b.len() * inputs, "the weight has another size");
        weight.par_chunks_mut(inputs).enumerate().for_each(|(row, values)| self.add_to_row(row, values));
    }
}

/// `values += factors · a`, with `a` `[factors, values]`.
fn add_products(values: &mut [f32], factors: &[f32], a: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn on_avx2(values: &mut [f32], factors: &[f32], a: &[f32]) {
            in_order(values, factors, a);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has both.
            return unsafe { on_avx2(values, factors, a) };
        }
    }
    in_order(values, factors, a);
}

/// Four products at a time: the values are then loaded and stored a quarter as often.
#[inline(always)]
fn in_order(values: &mut [f32], factors: &[f32], a: &[f32]) {
    let inputs = values.len();
    let (fours, rest) = factors.as_chunks::<4>();
    for (&[f0, f1, f2, f3], a) in fours.iter().zip(a.chunks_exact(4 * inputs)) {
        let (a0, a) = a.split_at(inputs);
        let (a1, a) = a.split_at(inputs);
        let (a2, a3) = a.split_at(inputs);
        for (value, (((&a0, &a1), &a2), &a3)) in values.iter_mut().zip(a0.iter().zip(a1).zip(a2).zip(a3)) {
            *value = f3.mul_add(a3, f2.mul_add(a2, f1.mul_add(a1, f0.mul_add(a0, *value))));
        }
    }
    for (&factor, a) in rest.iter().zip(a[4 * inputs * fours.len()..].chunks_exact(inputs)) {
        values.iter_mut().zip(a).for_each(|(value, &a)| *value = factor.mul_add(a, *value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut stream = shared::generation::rng::Stream::new(&[seed]);
        (0..count).map(|_| stream.next_normal() as f32).collect()
    }

    #[test]
    fn every_rank_gives_the_sum_in_order_on_every_path() {
        for (r, outputs, inputs) in [(1, 3, 5), (4, 2, 16), (6, 5, 33), (16, 7, 64)] {
            let update = LowRank { scaling: 0.75, a: numbers(r * inputs, 1), b: numbers(outputs * r, 2), r };
            let before = numbers(outputs * inputs, 3);
            let mut after = before.clone();
            update.add_to(&mut after);
            for (place, (&before, &after)) in before.iter().zip(&after).enumerate() {
                let (row, column) = (place / inputs, place % inputs);
                let products = (0..r).map(|k| (0.75 * update.b[row * r + k], update.a[k * inputs + column]));
                let in_order = products.clone().fold(before, |sum, (b, a)| b.mul_add(a, sum));
                let exact = products.fold(f64::from(before), |sum, (b, a)| sum + f64::from(b) * f64::from(a));
                assert_eq!(after.to_bits(), in_order.to_bits(), "rank {r}");
                assert!((f64::from(after) - exact).abs() < 1e-5 * (1.0 + exact.abs()));
            }
        }
    }
}
