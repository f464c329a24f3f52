//! Bounds of logits, in the families that have them.

use super::{
    parallel::{Claims, Machine, Shared},
    simd::{LANES, Simd, Task, capped, load_up_to, store_up_to},
};

/// Numbers of a task.
const STRETCH: usize = 4096;

/// Replaces each logit `z` by `cap * tanh(z / cap)`.
pub fn cap_logits(cap: f32, logits: &mut [f32], machine: Machine<'_>) {
    let (isa, count) = (machine.isa, logits.len());
    let (claims, logits) = (Claims::new(count.div_ceil(STRETCH)), Shared::new(logits));
    machine.threads.run(&|| claims.run_all(|task| isa.run(Cap { cap, logits, count, task })));
}

struct Cap {
    cap: f32,
    logits: Shared<f32>,
    count: usize,
    task: usize,
}

impl Task for Cap {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let first = self.task * STRETCH;
        let end = self.count.min(first + STRETCH);
        for begin in (first..end).step_by(LANES) {
            // SAFETY: so many numbers are there, and they belong to this task alone; the caller vouches for the
            // instruction set.
            unsafe {
                let at = self.logits.at(begin);
                let x = load_up_to::<S>(at, end - begin);
                store_up_to::<S>(at, end - begin, capped::<S>(x, self.cap));
            }
        }
    }
}
