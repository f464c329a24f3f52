//! The learner's threads: its own share of the cores and, while the sampler waits, the sampler's too.
//!
//! libtorch has one number of threads for the whole process, and so has this module. The number changes between two
//! forward passes only. Sums may be rounded differently with another number of threads. So a synchronous run borrows
//! none: both halves have all cores in turn, and the run repeats byte for byte.

use std::{
    env,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

static OWN: AtomicUsize = AtomicUsize::new(1);
/// Threads of the sampler that may be borrowed.
static BORROWED: AtomicUsize = AtomicUsize::new(0);
static SAMPLER_WAITS: AtomicBool = AtomicBool::new(false);

/// OpenMP's bound on the threads of a process. Beyond it libtorch asks for more threads than it gets, and what the
/// missing ones should have computed in bfloat16 is left out.
const THREAD_LIMIT: &str = "OMP_THREAD_LIMIT";

/// Sets the learner's own threads; `None` takes every core this process may use. Returns the number, which is within
/// OpenMP's bound.
pub fn set_threads(threads: Option<usize>) -> usize {
    let threads = threads.unwrap_or_else(all).min(limit()).max(1);
    OWN.store(threads, Ordering::Relaxed);
    tch::set_num_threads(threads as i32);
    threads
}

/// From now on, the learner uses this many threads of a sampler on the same cores while that sampler waits.
pub fn borrow_from_sampler(threads: usize) {
    BORROWED.store(threads, Ordering::Relaxed);
}

/// The sampler waits, or has work again.
pub fn sampler_waits(waits: bool) {
    SAMPLER_WAITS.store(waits, Ordering::Relaxed);
}

/// Whether the sampler waits, as it said last.
pub fn does_sampler_wait() -> bool {
    SAMPLER_WAITS.load(Ordering::Relaxed)
}

/// Takes or gives back the sampler's cores; between two forward passes.
pub fn follow_sampler() {
    let borrowed = BORROWED.load(Ordering::Relaxed);
    if borrowed > 0 {
        let wanted = threads(OWN.load(Ordering::Relaxed), borrowed, does_sampler_wait(), all());
        if wanted as i32 != tch::get_num_threads() {
            tch::set_num_threads(wanted as i32);
        }
    }
}

fn threads(own: usize, borrowed: usize, sampler_waits: bool, all: usize) -> usize {
    if sampler_waits { (own + borrowed).min(all).max(own) } else { own }
}

/// Every core that this process may use, as far as OpenMP's bound goes.
pub fn all() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(limit())
}

fn limit() -> usize {
    bound(env::var(THREAD_LIMIT).ok().as_deref())
}

/// The bound that a value of the variable sets. OpenMP passes over one that is no positive number.
fn bound(value: Option<&str>) -> usize {
    value.and_then(|value| value.trim().parse().ok()).filter(|threads| *threads > 0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampler_s_cores_are_used_while_it_waits_and_no_core_twice() {
        assert_eq!(threads(4, 4, false, 8), 4);
        assert_eq!(threads(4, 4, true, 8), 8);
        assert_eq!(threads(6, 6, true, 8), 8, "they were shared before");
        assert_eq!(threads(3, 1, true, 2), 3, "what the user asked for stands");
    }

    #[test]
    fn the_bound_of_open_mp_is_kept() {
        assert_eq!([Some("1"), Some(" 3 ")].map(bound), [1, 3]);
        assert_eq!([None, Some(""), Some("0"), Some("many")].map(bound), [usize::MAX; 4]);
    }
}
