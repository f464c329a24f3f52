//! Threads that stay awake between the operators of a step.
//!
//! A step is hundreds of operators of some ten to hundred microseconds, each of which wants all threads at once. This
//! pool has a single job at a time and no queues, and a thread that comes late is not waited for, since work is claimed
//! task by task: a core that another process holds costs its share and no more.

use std::{
    cell::UnsafeCell,
    hint,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::parallel::Threads;

/// A job may be entered.
const OPEN: u64 = 1;
/// One thread inside, in the same word.
const ENTERED: u64 = 2;
/// The number of the job, in the same word: a thread enters each job once at most.
const NUMBER: u64 = 1 << 16;
/// Looks at the word between two looks at the clock.
const LOOKS: u32 = 256;

/// Threads waiting for jobs.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// [`OPEN`], [`ENTERED`] times the threads inside, [`NUMBER`] times the number of the job.
    word: AtomicU64,
    /// The job; valid for whoever has entered.
    job: UnsafeCell<Option<&'static (dyn Fn() + Sync)>>,
    sleeping: AtomicUsize,
    bell: (Mutex<()>, Condvar),
    stop: AtomicBool,
    spin: Duration,
}

// SAFETY: `job` is written only while no thread is inside and none can enter.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the caller's among them, that look for the next job for `spin` before they sleep.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(threads: usize, spin: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            word: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            sleeping: AtomicUsize::new(0),
            bell: (Mutex::new(()), Condvar::new()),
            stop: AtomicBool::new(false),
            spin,
        });
        let mut pool = Self { shared, threads: Vec::new() };
        for i in 1..threads {
            let shared = Arc::clone(&pool.shared);
            pool.threads.push(thread::Builder::new().name(format!("kernel-{i}")).spawn(move || shared.serve())?);
        }
        Ok(pool)
    }
}

impl Threads for Pool {
    fn count(&self) -> usize {
        self.threads.len() + 1
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        if self.threads.is_empty() {
            return work();
        }
        // SAFETY: no thread is inside and the job is not open, so nobody reads it now. It is closed, and all who entered
        // have left, before this function returns and the borrow ends: also when `work` panics, by the guard.
        unsafe {
            *self.shared.job.get() = Some(std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work));
        }
        let _closing = Closing(&self.shared);
        self.shared.word.fetch_add(NUMBER | OPEN, Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::SeqCst) > 0 {
            drop(self.shared.bell.0.lock().unwrap_or_else(PoisonError::into_inner));
            self.shared.bell.1.notify_all();
        }
        work();
    }
}

/// Closes the job and waits until everybody has left.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0_u32;
        while !self.0.word.load(Ordering::Acquire).is_multiple_of(NUMBER) {
            looks += 1;
            if looks.is_multiple_of(LOOKS) { thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

impl Shared {
    /// The life of a thread.
    fn serve(&self) {
        let mut last = 0;
        while let Some(number) = self.enter(last) {
            last = number;
            // SAFETY: this thread has entered, so the job is valid until it leaves.
            let job = unsafe { (*self.job.get()).expect("an open job is set") };
            // A panic shows in the caller too, which runs the same code; this thread must leave in any case.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            self.word.fetch_sub(ENTERED, Ordering::Release);
            if result.is_err() {
                std::process::abort();
            }
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

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.bell.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.bell.1.notify_all();
        for thread in self.threads.drain(..) {
            // The thread aborts the process rather than panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::parallel::Claims;

    #[test]
    fn every_task_is_done_once_whether_threads_spin_or_sleep() {
        for (threads, spin) in [(1, 0), (2, 0), (4, 0), (4, 200)] {
            let pool = Pool::new(threads, Duration::from_micros(spin)).unwrap();
            assert_eq!(pool.count(), threads);
            for round in 0..300_usize {
                let counts: Vec<AtomicUsize> = (0..round % 17).map(|_| AtomicUsize::new(0)).collect();
                let claims = Claims::new(counts.len());
                pool.run(&|| {
                    claims.run_all(|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    })
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, round {round}");
                if round % 50 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }
}
