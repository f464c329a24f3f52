//! The norm of a block's result before it is added to the residual stream, in the families that have one.

use super::{
    linear::{Norm, rms_norm},
    parallel::{Claims, Machine, Shared},
    simd::{Simd, Task},
};

/// Rows of a task.
const ROWS: usize = 4;

/// `out = factor * (residual + norm(x))`, all of them `[rows, width]`. A row depends on its own inputs alone, bit for
/// bit.
///
/// # Panics
/// When sizes do not fit each other.
pub fn add_normed(norm: Norm<'_>, factor: f32, x: &[f32], residual: &[f32], out: &mut [f32], machine: Machine<'_>) {
    let width = norm.gamma.len();
    assert!(x.len().is_multiple_of(width), "whole rows");
    assert_eq!((x.len(), residual.len()), (out.len(), out.len()), "input, residual and output");
    let (isa, claims) = (machine.isa, Claims::new((x.len() / width).div_ceil(ROWS)));
    let out = Shared::new(out);
    machine.threads.run(&|| claims.run_all(|task| isa.run(AddNormed { norm, factor, x, residual, out, task })));
}

struct AddNormed<'a> {
    norm: Norm<'a>,
    factor: f32,
    x: &'a [f32],
    residual: &'a [f32],
    out: Shared<f32>,
    task: usize,
}

impl Task for AddNormed<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.norm.gamma.len();
        let first = self.task * ROWS * width;
        let end = self.x.len().min(first + ROWS * width);
        for start in (first..end).step_by(width) {
            let row = start..start + width;
            // SAFETY: the row lies within the output and belongs to this task alone; the caller vouches for the
            // instruction set.
            let out = unsafe {
                let out = std::slice::from_raw_parts_mut(self.out.at(start), width);
                rms_norm::<S>(&self.x[row.clone()], self.norm, out);
                out
            };
            for (out, residual) in out.iter_mut().zip(&self.residual[row]) {
                *out += residual;
            }
            if self.factor != 1.0 {
                out.iter_mut().for_each(|out| *out *= self.factor);
            }
        }
    }
}
