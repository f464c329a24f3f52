//! Spreading the tasks of a kernel over threads.

use std::{
    hint,
    sync::atomic::{AtomicUsize, Ordering},
};

use crossbeam::utils::CachePadded;

use super::{simd::Isa, thread_pool::ThreadPool};

/// The resources of a kernel.
pub struct Machine<'a> {
    /// The instruction set.
    pub isa: Isa,
    /// The threads.
    pub threads: &'a ThreadPool,
    /// Memory that calls reuse.
    pub scratch: &'a mut Vec<f32>,
}

/// Hands out the tasks `0..count`, each once.
pub struct Claims {
    next: CachePadded<AtomicUsize>,
    done: CachePadded<AtomicUsize>,
    count: usize,
}

impl Claims {
    /// None handed out yet.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { next: AtomicUsize::new(0).into(), done: AtomicUsize::new(0).into(), count }
    }

    /// The next task.
    pub fn claim(&self) -> Option<usize> {
        // Looks first, so that threads that come again and again do not raise the count without end.
        if self.next.load(Ordering::Relaxed) >= self.count {
            return None;
        }
        let task = self.next.fetch_add(1, Ordering::Relaxed);
        (task < self.count).then_some(task)
    }

    /// Runs tasks until none is left, then waits for those of other threads. What they wrote can be read afterwards.
    ///
    /// A task that panics counts as done, so that no thread waits for it; [`ThreadPool::run`] passes the panic on.
    pub fn run_all(&self, task: impl Fn(usize)) {
        while let Some(i) = self.claim() {
            let _counts = Counts(&self.done);
            task(i);
        }
        // A thread that has claimed a task counts it, however the task ends. So this loop ends.
        let mut spins = 0_u32;
        while self.done.load(Ordering::Acquire) < self.count {
            spins += 1;
            if spins < 10_000 { hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// Counts a task when it ends, by a panic too.
struct Counts<'a>(&'a AtomicUsize);

impl Drop for Counts<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// A buffer whose parts are written by different threads.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(*mut T, usize);

// SAFETY: the type only carries the pointer; each use vouches that parts written at the same time do not overlap.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for `Send`; what is shared is the address alone.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(buffer: &mut [T]) -> Self {
        Self(buffer.as_mut_ptr(), buffer.len())
    }

    /// Address of an element; whoever follows it vouches that it lies within the buffer.
    pub fn at(&self, index: usize) -> *mut T {
        debug_assert!(index <= self.1, "element {index} of {}", self.1);
        self.0.wrapping_add(index)
    }
}
