//! The passes over a whole row of logits: block maxima and block sums of exponentials.
//!
//! Rows are cut into blocks of [`BLOCK`] entries. Within a block, [`LANES`] single-precision partial sums are kept; the
//! lanes and then the blocks are added in double precision. That order is part of the code, not of the instruction set:
//! the same figures come out with SSE, AVX2 and AVX-512.

/// Entries of one block.
pub const BLOCK: usize = 256;
/// Partial sums within a block.
const LANES: usize = 16;

/// Below this argument `exp` is taken as 0 (the smallest normal number is about exp(-87.3)).
const MIN_ARGUMENT: f32 = -87.0;
/// Adding and subtracting 1.5·2²³ rounds to the nearest whole number, which then sits in the low bits.
const ROUND: f32 = 12_582_912.0;

/// exp(x) for x ≤ 0, relative error below 2e-7; 0 below [`MIN_ARGUMENT`], NaN for NaN.
///
/// Cephes' `expf`: x = n·ln 2 + r with |r| ≤ ln 2 / 2 and a polynomial of degree 6 in r. Only additions and
/// multiplications, so that the compiler turns a loop of it into vector instructions.
#[inline(always)]
#[must_use]
pub fn exp_nonpositive(x: f32) -> f32 {
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.987_569_2e-4_f32;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let mantissa = p * (r * r) + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x < MIN_ARGUMENT { 0.0 } else { mantissa * f32::from_bits(exponent) }
}

/// Defines a pass and compiles it for the widest vectors of the processor that runs it. The arithmetic is the same in
/// every version: Rust neither reorders nor contracts floating-point operations.
macro_rules! vectorised {
    ($(#[$doc:meta])* pub fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty $body:block) => {
        $(#[$doc])*
        pub fn $name($($arg: $kind),*) -> $result {
            #[inline(always)]
            fn pass($($arg: $kind),*) -> $result $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $kind),*) -> $result {
                    pass($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $kind),*) -> $result {
                    pass($($arg),*)
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the processor has these features.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has this feature.
                    return unsafe { avx2($($arg),*) };
                }
            }
            pass($($arg),*)
        }
    };
}

vectorised! {
    /// Maxima of the blocks of a row, written to `maxima`; returns the maximum of the row (NaN entries are passed over:
    /// they show in [`block_exp_sums`]).
    pub fn block_maxima(row: &[f32], maxima: &mut Vec<f32>) -> f32 {
        maxima.clear();
        let mut top = f32::NEG_INFINITY;
        for block in row.chunks(BLOCK) {
            let max = max_of(block);
            top = if max > top { max } else { top };
            maxima.push(max);
        }
        top
    }
}

vectorised! {
    /// Sums over each block of exp((l − max) · scale), written to `sums`; returns their total, which is not finite when
    /// an entry is NaN or `max` is not finite.
    pub fn block_exp_sums(row: &[f32], max: f32, scale: f32, sums: &mut Vec<f64>) -> f64 {
        sums.clear();
        let mut total = 0.0;
        for block in row.chunks(BLOCK) {
            let sum = exp_sum_of(block, max, scale);
            total += sum;
            sums.push(sum);
        }
        total
    }
}

/// Index of the first entry of the row that equals its maximum.
#[must_use]
pub fn argmax(row: &[f32], max: f32, maxima: &[f32]) -> Option<usize> {
    let block = maxima.iter().position(|&m| m == max)?;
    let start = block * BLOCK;
    let end = row.len().min(start + BLOCK);
    row[start..end].iter().position(|&l| l == max).map(|i| start + i)
}

#[inline(always)]
fn max_of(block: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &l) in lanes.iter_mut().zip(chunk) {
            *lane = if l > *lane { l } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max })
}

#[inline(always)]
fn exp_sum_of(block: &[f32], max: f32, scale: f32) -> f64 {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &l) in lanes.iter_mut().zip(chunk) {
            *lane += exp_nonpositive((l - max) * scale);
        }
    }
    for (lane, &l) in lanes.iter_mut().zip(rest) {
        *lane += exp_nonpositive((l - max) * scale);
    }
    lanes.iter().map(|&s| f64::from(s)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::generation::rng::Stream;

    fn random_row(n: usize, spread: f64) -> Vec<f32> {
        let mut stream = Stream::new(&[n as u64]);
        (0..n).map(|_| (stream.next_normal() * spread) as f32).collect()
    }

    #[test]
    fn exp_is_close_to_libm_over_its_range() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-88.0), 0.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert!(exp_nonpositive(f32::NAN).is_nan());
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp_nonpositive(x)) - exact).abs() / exact;
            assert!(error < 2e-7, "exp({x}): relative error {error}");
        }
    }

    #[test]
    fn sums_and_maxima_agree_with_plain_loops_and_with_the_scalar_version() {
        for n in [1, 15, 16, 255, 256, 257, 1000, 4096 + 3] {
            let row = random_row(n, 5.0);
            let (mut maxima, mut sums) = (Vec::new(), Vec::new());
            let max = block_maxima(&row, &mut maxima);
            assert_eq!(max, row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(row[argmax(&row, max, &maxima).unwrap()], max);
            let total = block_exp_sums(&row, max, 0.7, &mut sums);
            let exact: f64 = row.iter().map(|&l| (f64::from(l - max) * f64::from(0.7_f32)).exp()).sum();
            assert!((total - exact).abs() < 1e-6 * exact, "{n}: {total} against {exact}");
            let scalar: Vec<f64> = row.chunks(BLOCK).map(|b| exp_sum_of(b, max, 0.7)).collect();
            assert_eq!(sums, scalar, "vector and scalar versions must agree bit for bit");
        }
    }

    #[test]
    fn entries_that_are_no_numbers_show_in_the_total() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = random_row(300, 1.0);
            row[280] = bad;
            let (mut maxima, mut sums) = (Vec::new(), Vec::new());
            let max = block_maxima(&row, &mut maxima);
            assert!(!block_exp_sums(&row, max, 1.0, &mut sums).is_finite());
        }
    }
}
