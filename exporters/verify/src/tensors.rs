//! Weights as a file has them, and what the rounding of their types allows.

use crate::VerifyError;

/// A parameter with its values, in fp32.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Row-major, `[out, in]` for linear layers.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
    /// How the values were rounded when they were stored.
    pub rounding: Rounding,
}

/// How values were rounded when they were stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Rounding {
    /// Not at all: fp32.
    None,
    /// To the nearest of a type of 16 bits: half a unit in the last place, relative to the value, and the same of the
    /// smallest values.
    Nearest {
        /// `2^-11` for fp16, `2^-8` for bf16.
        relative: f32,
        /// Half of the smallest positive value.
        smallest: f32,
    },
    /// To a whole number of steps in blocks.
    Blocks(Blocks),
    /// Computed, not stored: the sum of a base and an adapter, in another order perhaps.
    Computed {
        /// Most that the order of the sum changes.
        error: f32,
    },
}

/// Blocks of values that share a scale: a value is `scale * q`, with `q` a whole number between two bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocks {
    /// The step of each block.
    pub scales: Vec<f32>,
    /// Most values of a block. Blocks lie within rows, so the last one of a row may be shorter.
    pub length: usize,
    /// Values of a row.
    pub columns: usize,
    /// The lowest `q`.
    pub lowest: i8,
    /// The highest `q`.
    pub highest: i8,
    /// Whether the scales are stored in fp16, so that steps were counted with others.
    pub rounded_scales: bool,
}

/// Relative rounding of a scale in fp16, and its smallest half step.
const SCALE: (f32, f32) = (1.0 / 2048.0, 1.0 / (1 << 25) as f32);
/// The same of a scale in fp32, with the rounding of a product with it.
const EXACT_SCALE: (f32, f32) = (2.0 * f32::EPSILON, f32::MIN_POSITIVE);

impl Blocks {
    /// Whether the value with an index may be stored in place of `meant`: it is within half a step, where the bounds of
    /// `q` let it. Beyond a bound, `meant` may lie one step off at most: the scale of Q4_0 is chosen so that the
    /// largest value is `-8`, and a value as large of the other sign becomes `7`.
    fn allows(&self, meant: f32, stored: f32, index: usize, error: f32) -> bool {
        let (row, column) = (index / self.columns, index % self.columns);
        let scale = self.scales[row * self.columns.div_ceil(self.length) + column / self.length];
        if !scale.is_finite() {
            return false;
        }
        let (a, b) = (f32::from(self.lowest) * scale, f32::from(self.highest) * scale);
        let reachable = meant.clamp(a.min(b), a.max(b));
        let most = f32::from(self.lowest).abs().max(f32::from(self.highest));
        // Steps were counted with the scale before its own rounding.
        let (relative, smallest) = if self.rounded_scales { SCALE } else { EXACT_SCALE };
        let slack = most * (scale.abs() * relative + smallest) + error;
        let short = self.lowest.unsigned_abs() > self.highest.unsigned_abs() && reachable == b;
        let beyond = if short { scale.abs() } else { 0.0 };
        (reachable - stored).abs() <= scale.abs() / 2.0 + slack && (meant - reachable).abs() <= beyond + slack
    }
}

impl Rounding {
    /// Whether a value may be stored in place of `meant`, which is itself known up to `error`.
    pub(crate) fn allows(&self, meant: f32, stored: f32, index: usize, error: f32) -> bool {
        match self {
            Self::None | Self::Computed { .. } => (meant - stored).abs() <= error,
            Self::Nearest { relative, smallest } => {
                (meant - stored).abs() <= (meant.abs() * relative).max(*smallest) + error
            }
            Self::Blocks(blocks) => blocks.allows(meant, stored, index, error),
        }
    }
}

/// Parameters by their Hugging Face names.
pub trait Weights: Send {
    /// The names of all parameters.
    fn names(&self) -> Vec<String>;

    /// A parameter.
    ///
    /// # Errors
    /// An unknown name, or a file that cannot be read.
    fn read(&self, name: &str) -> Result<Tensor, VerifyError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_allows_half_a_unit_and_no_more() {
        let half = Rounding::Nearest { relative: 1.0 / 2048.0, smallest: 1.0 / (1 << 25) as f32 };
        assert!(half.allows(1.0004, 1.0, 0, 0.0) && !half.allows(1.0006, 1.0, 0, 0.0));
        let allows = |meant, stored, error| Rounding::None.allows(meant, stored, 0, error);
        assert!(allows(0.1, 0.1, 0.0) && !allows(0.1, 0.100_000_01, 0.0) && allows(0.1, 0.100_000_01, 1e-7));
        assert!(!half.allows(1.0, f32::NAN, 0, 0.0) && !allows(1.0, f32::NAN, 0.0));
    }

    #[test]
    fn a_block_allows_half_a_step_and_a_whole_one_at_its_short_end_alone() {
        let four =
            Blocks { scales: vec![0.5, -0.5], length: 2, columns: 4, lowest: -8, highest: 7, rounded_scales: true };
        let allows = |meant, stored, index| Rounding::Blocks(four.clone()).allows(meant, stored, index, 0.0);
        assert!(allows(1.2, 1.0, 0) && allows(1.25, 1.0, 1));
        assert!(!allows(1.3, 1.0, 0), "more than half a step");
        assert!(allows(4.0, 3.5, 0), "8 becomes 7");
        assert!(!allows(3.5, 3.0, 0) && !allows(4.6, 3.5, 0), "within the bounds, or more than a step beyond them");
        assert!(allows(-4.0, -4.0, 0) && !allows(-4.4, -4.0, 0), "no value lies beyond the long end");
        assert!(allows(-4.0, -3.5, 2), "with a negative scale, the short end is the other one");
        let eight = Blocks { scales: vec![0.5], length: 32, columns: 32, lowest: -127, highest: 127, ..four.clone() };
        let allows = |meant, stored| Rounding::Blocks(eight.clone()).allows(meant, stored, 0, 0.0);
        assert!(allows(63.52, 63.5) && !allows(63.6, 63.5), "Q8_0 has no short end");
    }

    #[test]
    fn a_row_ends_its_last_block_and_a_scale_in_fp32_leaves_no_slack() {
        let blocks = Blocks {
            scales: vec![1.0, 0.01, 0.1, 0.01],
            length: 2,
            columns: 3,
            lowest: -128,
            highest: 127,
            rounded_scales: false,
        };
        let allows = |meant, stored, index| Rounding::Blocks(blocks.clone()).allows(meant, stored, index, 0.0);
        assert!(allows(0.4, 0.0, 1) && !allows(0.4, 0.0, 2), "the third value has a block of its own");
        assert!(allows(0.04, 0.0, 3) && !allows(0.04, 0.0, 5), "the fourth value begins a row");
        assert!(allows(0.5, 0.0, 0) && !allows(0.501, 0.0, 0), "half a step and no more");
    }
}
