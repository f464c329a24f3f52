//! Threads that stay awake between the operators of a step.
//!
//! A step is hundreds of operators of some ten to hundred microseconds, each of which wants all threads at once. So
//! this pool has no queues and a single job at a time. Work is claimed task by task, and nobody waits for a thread that
//! comes late: a core that another process holds costs its share and no more. A caller that comes during a job, from
//! another thread or from within the job, works alone.

use std::{
    cell::UnsafeCell,
    hint,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A job may be entered.
const OPEN: u64 = 1;
/// One thread inside, in the same word.
const ENTERED: u64 = 2;
/// The number of the job, in the same word: a thread enters each job once at most.
const NUMBER: u64 = 1 << 16;
/// Looks at the word between two looks at the clock.
const LOOKS: u32 = 256;

/// Threads waiting for jobs.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Whether there is a job.
    busy: AtomicBool,
    /// [`OPEN`], [`ENTERED`] times the threads inside, [`NUMBER`] times the number of the job.
    word: AtomicU64,
    /// The job; valid for whoever has entered.
    job: UnsafeCell<Option<&'static (dyn Fn() + Sync)>>,
    sleeping: AtomicUsize,
    bell: (Mutex<()>, Condvar),
    stop: AtomicBool,
    spin: Duration,
}

// SAFETY: `job` is written only by whoever has made the pool busy, while no thread is inside and none can enter.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread: the job may be called from any, as its type says.
unsafe impl Send for Shared {}

impl ThreadPool {
    /// A pool of `threads` threads, the caller's among them, that look for the next job for `spin` before they sleep.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(threads: usize, spin: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { spin, ..Shared::default() });
        let mut pool = Self { shared, threads: Vec::new() };
        for i in 1..threads {
            let shared = Arc::clone(&pool.shared);
            pool.threads.push(thread::Builder::new().name(format!("kernel-{i}")).spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    /// Calls `work` on up to that many threads, this one among them, and returns when all calls have.
    ///
    /// # Panics
    /// When one of the calls does, on whichever thread.
    pub fn run(&self, work: &(dyn Fn() + Sync)) {
        if self.threads.is_empty() || self.shared.busy.swap(true, Ordering::Acquire) {
            return work();
        }
        // The caller waits until a thread has left the job, so the thread must leave it even after a panic. The caller
        // passes the panic on.
        let panicked = AtomicBool::new(false);
        let job = || {
            if panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
                panicked.store(true, Ordering::Relaxed);
            }
        };
        let job: &(dyn Fn() + Sync) = &job;
        // SAFETY: the pool was not busy, so no thread is inside and the job is not open: nobody reads or writes it now.
        // It is closed, and all who entered have left, before this function returns and the borrow ends: also when
        // `work` panics, by the guard.
        unsafe {
            *self.shared.job.get() = Some(std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(job));
        }
        let closing = Closing(&self.shared);
        self.shared.word.fetch_add(NUMBER | OPEN, Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::SeqCst) > 0 {
            drop(self.shared.bell.0.lock().unwrap_or_else(PoisonError::into_inner));
            self.shared.bell.1.notify_all();
        }
        work();
        drop(closing);
        assert!(!panicked.into_inner(), "a thread of the pool panicked; its message is above");
    }
}

/// Closes the job, waits until everybody has left, and frees the pool for the next one.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0_u32;
        while !self.0.word.load(Ordering::Acquire).is_multiple_of(NUMBER) {
            looks += 1;
            if looks.is_multiple_of(LOOKS) { thread::yield_now() } else { hint::spin_loop() }
        }
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Shared {
    /// The main loop of a thread.
    fn serve(&self) {
        let mut last = 0;
        while let Some(number) = self.enter(last) {
            last = number;
            // SAFETY: this thread has entered, so the job is valid until it leaves.
            let job = unsafe { (*self.job.get()).expect("an open job is set") };
            job();
            self.word.fetch_sub(ENTERED, Ordering::Release);
        }
    }

    /// Waits for a job other than `last` and enters it; `None` when the pool ends.
    fn enter(&self, last: u64) -> Option<u64> {
        let mut since = Instant::now();
        let mut looks = 0_u32;
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word & OPEN != 0 && word / NUMBER != last {
                let entered = word + ENTERED;
                if self.word.compare_exchange_weak(word, entered, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Some(word / NUMBER);
                }
                continue;
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) && since.elapsed() >= self.spin {
                self.sleep(last);
                since = Instant::now();
            }
            hint::spin_loop();
        }
    }

    /// Sleeps until a job other than `last` is open or the pool ends.
    fn sleep(&self, last: u64) {
        let mut guard = self.bell.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if (word & OPEN != 0 && word / NUMBER != last) || self.stop.load(Ordering::SeqCst) {
                break;
            }
            guard = self.bell.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.bell.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.bell.1.notify_all();
        for thread in self.threads.drain(..) {
            // The thread catches panics of its jobs.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{panic::catch_unwind, sync::Barrier};

    use super::*;
    use crate::parallel::Claims;

    #[test]
    fn every_task_is_done_once_whether_threads_spin_or_sleep() {
        for (threads, spin) in [(1, 0), (2, 0), (4, 0), (4, 200)] {
            let pool = ThreadPool::new(threads, Duration::from_micros(spin)).unwrap();
            assert_eq!(pool.threads.len() + 1, threads);
            for round in 0..300_usize {
                assert_eq!(count(&pool, round % 17), vec![1; round % 17], "{threads} threads, round {round}");
                if round % 50 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    /// Runs `tasks` tasks on `threads`, and returns how often each was done.
    fn count(threads: &ThreadPool, tasks: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        let claims = Claims::new(tasks);
        threads.run(&|| {
            claims.run_all(|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            })
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn a_panic_ends_the_call_and_no_thread_waits_for_it() {
        let pool = ThreadPool::new(2, Duration::ZERO).unwrap();
        let caller = thread::current().id();
        for caller_panics in [true, false] {
            let (claims, both) = (Claims::new(2), Barrier::new(2));
            let work = || {
                claims.run_all(|_| {
                    // Each thread has one of the two tasks.
                    both.wait();
                    assert!((thread::current().id() == caller) != caller_panics, "of the test's own making");
                })
            };
            assert!(catch_unwind(AssertUnwindSafe(|| pool.run(&work))).is_err());
            assert_eq!(count(&pool, 5), [1; 5], "the threads go on to work");
        }
    }

    #[test]
    fn calls_at_the_same_time_and_within_a_job_do_all_their_tasks() {
        let pool = ThreadPool::new(3, Duration::from_micros(50)).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for tasks in 0..300 {
                        assert_eq!(count(&pool, tasks % 17), vec![1; tasks % 17]);
                    }
                });
            }
        });
        let claims = Claims::new(6);
        pool.run(&|| claims.run_all(|tasks| assert_eq!(count(&pool, tasks), vec![1; tasks])));
    }
}
