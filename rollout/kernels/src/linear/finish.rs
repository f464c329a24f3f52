//! The way from sums to outputs: scales, bias, activation, factor, residual.

use super::{
    super::{
        packed::Columns,
        simd::{LANES, Simd, gelu, silu},
        tile::PANEL,
    },
    Activation, Panels,
};

/// Scales the sums of products of bytes of one row of a panel and goes on with [`finish_biased`].
///
/// # Safety
/// As for [`finish_row`].
#[inline(always)]
pub(super) unsafe fn finish_bytes<S: Simd>(job: &Panels<'_>, panel: usize, row: usize, sums: &[i32; PANEL]) {
    let quantized = job.layer.quantized.expect("scales belong to bytes");
    let scales = &quantized.scales[panel * PANEL..][..PANEL];
    // SAFETY: the scale of the row is within the left side; for the rest the caller vouches.
    unsafe {
        let scale = S::splat(*job.left.at(job.layout.scale(row)));
        let low = S::mul(S::load_whole(sums.as_ptr()), S::mul(scale, S::load(scales.as_ptr())));
        let high = S::mul(S::load_whole(sums[LANES..].as_ptr()), S::mul(scale, S::load(scales[LANES..].as_ptr())));
        finish_biased::<S>(job, panel, row, low, high);
    }
}

/// Adds the bias to one row of a panel and goes on with [`finish_row`].
///
/// # Safety
/// As for [`finish_row`].
#[inline(always)]
pub(super) unsafe fn finish_biased<S: Simd>(job: &Panels<'_>, panel: usize, row: usize, mut low: S::V, mut high: S::V) {
    // SAFETY: the bias has a place for every column of the panel; for the rest the caller vouches.
    unsafe {
        if let Some(bias) = job.layer.bias {
            let bias = &bias[panel * PANEL..][..PANEL];
            low = S::add(low, S::load(bias.as_ptr()));
            high = S::add(high, S::load(bias[LANES..].as_ptr()));
        }
        finish_row::<S>(job, panel, row, low, high);
    }
}

/// Activation, residual and store of one row of a panel.
///
/// # Safety
/// The instruction set of `S` must be available, row and panel be those of the layer, and no other thread write there.
#[inline(always)]
pub(super) unsafe fn finish_row<S: Simd>(job: &Panels<'_>, panel: usize, row: usize, low: S::V, high: S::V) {
    let shape = job.layer.shape;
    let column = panel * shape.panel_outputs();
    let (at, valid) = (row * shape.outputs + column, shape.outputs - column);
    // SAFETY: the caller vouches for row, panel and instruction set.
    unsafe {
        match shape.columns {
            Columns::Gated => {
                let gate = match job.layer.activation {
                    Activation::Silu => silu::<S>(low),
                    Activation::GeluTanh => gelu::<S>(low),
                };
                finish::<S>(job, at, valid, S::mul(gate, high));
            }
            Columns::Joined => {
                finish::<S>(job, at, valid, low);
                if valid > LANES {
                    finish::<S>(job, at + LANES, valid - LANES, high);
                }
            }
        }
    }
}

/// Applies the factor, adds the residual and writes up to a block of outputs.
#[inline(always)]
unsafe fn finish<S: Simd>(job: &Panels<'_>, at: usize, valid: usize, mut v: S::V) {
    let (residual, factor) = (job.input.residual.map(<[f32]>::as_ptr), job.layer.factor);
    // SAFETY: `valid` outputs from `at` on are within the row; whole blocks are touched only if they are valid.
    unsafe {
        if factor != 1.0 {
            v = S::mul(v, S::splat(factor));
        }
        if valid >= LANES {
            if let Some(residual) = residual {
                v = S::add(v, S::load(residual.add(at)));
            }
            S::store(job.out.at(at), v);
            return;
        }
        let mut lanes = [0.0; LANES];
        S::store(lanes.as_mut_ptr(), v);
        for (i, &x) in lanes.iter().enumerate().take(valid) {
            *job.out.at(at + i) = x + residual.map_or(0.0, |r| *r.add(at + i));
        }
    }
}
