//! Rows of different lengths as one run of tokens, with sums over a row and values spread over it.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

/// Which row each of N tokens belongs to. Nothing is padded, so nothing needs a mask.
#[derive(Debug)]
pub struct Rows {
    row_N: Tensor,
    lengths_R: Tensor,
}

impl Rows {
    /// Rows of the given lengths, one after the other; a row may be empty.
    #[must_use]
    pub fn new(lengths: &[usize], device: Device) -> Self {
        let row: Vec<i64> = lengths.iter().enumerate().flat_map(|(r, &n)| std::iter::repeat_n(r as i64, n)).collect();
        let lengths: Vec<f64> = lengths.iter().map(|&n| n as f64).collect();
        Self {
            row_N: Tensor::from_slice(&row).to_device(device),
            lengths_R: Tensor::from_slice(&lengths).to_device(device),
        }
    }

    /// Number of tokens of each row, `[R]` float64.
    pub fn lengths(&self) -> &Tensor {
        &self.lengths_R
    }

    /// Sums over rows, `[N]` to `[R]`.
    pub fn sum(&self, values_N: &Tensor) -> Tensor {
        Tensor::zeros_like(&self.lengths_R).index_add(0, &self.row_N, &values_N.to_kind(Kind::Double))
    }

    /// Means over rows, `[N]` to `[R]`; 0 for an empty row.
    pub fn mean(&self, values_N: &Tensor) -> Tensor {
        self.sum(values_N) / self.lengths_R.clamp_min(1.0)
    }

    /// Each row's value at each of its tokens, `[R]` to `[N]`.
    pub fn spread(&self, values_R: &Tensor) -> Tensor {
        values_R.index_select(0, &self.row_N)
    }

    /// The tokens with the given numbers, for losses that look at one token at a time.
    #[must_use]
    pub(super) fn slice(&self, run: &Range<i64>) -> Self {
        Self { row_N: self.row_N.narrow(0, run.start, run.end - run.start), lengths_R: self.lengths_R.shallow_clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_row_has_a_mean_of_zero() {
        let rows = Rows::new(&[2, 0, 1], Device::Cpu);
        let values_N = Tensor::from_slice(&[1.0, 3.0, 5.0]);
        assert_eq!(Vec::<f64>::try_from(rows.sum(&values_N)).unwrap(), [4.0, 0.0, 5.0]);
        let mean_R = rows.mean(&values_N);
        assert_eq!(Vec::<f64>::try_from(&mean_R).unwrap(), [2.0, 0.0, 5.0]);
        assert_eq!(Vec::<f64>::try_from(rows.spread(&mean_R)).unwrap(), [2.0, 2.0, 5.0]);
    }
}
