//! What the sampler's kernels need in a learner: threads, beside those of libtorch, and the numbers of tensors.

use std::{
    slice,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rollout_kernels::{parallel::Machine, simd::Isa, thread_pool::ThreadPool};
use tch::Tensor;

/// How long a thread without work spins: libtorch's threads want the cores next.
const SPIN: Duration = Duration::from_micros(100);

/// The process's threads for kernels, as many as libtorch has now.
pub(super) fn threads() -> Arc<ThreadPool> {
    static POOL: Mutex<Option<(i32, Arc<ThreadPool>)>> = Mutex::new(None);
    let wanted = tch::get_num_threads();
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    match &*pool {
        Some((count, pool)) if *count == wanted => Arc::clone(pool),
        _ => {
            let new = Arc::new(start(wanted));
            *pool = Some((wanted, Arc::clone(&new)));
            new
        }
    }
}

/// Threads; this one alone where the system gives no others.
fn start(threads: i32) -> ThreadPool {
    let pool = ThreadPool::new(usize::try_from(threads).unwrap_or(1), SPIN);
    pool.or_else(|_| ThreadPool::new(1, SPIN)).expect("a pool of the calling thread alone starts none")
}

/// Runs a kernel.
pub(super) fn with_machine(kernel: impl FnOnce(Machine<'_>)) {
    let (threads, mut scratch) = (threads(), Vec::new());
    kernel(Machine { isa: Isa::detect(), threads: &threads, scratch: &mut scratch });
}

/// The numbers of a tensor.
///
/// # Safety
/// The tensor is dense, on the CPU, of elements `T`. It lives while they are in use, and nobody else writes them, nor
/// reads them if they are written.
pub(super) unsafe fn numbers<'a, T>(x: &Tensor) -> &'a mut [T] {
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts_mut(x.data_ptr().cast(), x.numel()) }
}
