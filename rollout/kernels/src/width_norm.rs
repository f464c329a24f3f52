//! Norms of all queries and of all keys of a token, in the families that norm them over their whole width.

use super::{
    linear::{Norm, rms_norm},
    parallel::{Claims, Machine, Shared},
    simd::{Simd, Task},
};

/// Tokens of a task.
const TOKENS: usize = 4;

/// Norms queries and keys of `qkv` (`[tokens, width]`, the queries of a token first, then its keys, then its values)
/// into `out`, and copies the values. A token depends on its own inputs alone, bit for bit.
///
/// # Panics
/// When sizes do not fit each other.
pub fn norm_queries_and_keys(norms: [Norm<'_>; 2], width: usize, qkv: &[f32], out: &mut [f32], machine: Machine<'_>) {
    let normed: usize = norms.iter().map(|norm| norm.gamma.len()).sum();
    assert!(width > normed && qkv.len().is_multiple_of(width), "queries, keys and values of whole tokens");
    assert_eq!(qkv.len(), out.len(), "input and output");
    let (isa, claims) = (machine.isa, Claims::new((qkv.len() / width).div_ceil(TOKENS)));
    let out = Shared::new(out);
    machine.threads.run(&|| claims.run_all(|task| isa.run(WidthNorms { norms, width, qkv, out, task })));
}

struct WidthNorms<'a> {
    norms: [Norm<'a>; 2],
    width: usize,
    qkv: &'a [f32],
    out: Shared<f32>,
    task: usize,
}

impl Task for WidthNorms<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let first = self.task * TOKENS * self.width;
        let end = self.qkv.len().min(first + TOKENS * self.width);
        for start in (first..end).step_by(self.width) {
            let x = &self.qkv[start..start + self.width];
            // SAFETY: the token lies within the output and belongs to this task alone.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.at(start), self.width) };
            let mut begin = 0;
            for norm in self.norms {
                let part = begin..begin + norm.gamma.len();
                begin = part.end;
                // SAFETY: the caller vouches for the instruction set.
                unsafe { rms_norm::<S>(&x[part.clone()], norm, &mut out[part]) };
            }
            out[begin..].copy_from_slice(&x[begin..]);
        }
    }
}
