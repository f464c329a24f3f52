//! Work spread over a few threads.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Calls `work` for every number below `count`, in about ascending order, on `threads` threads; each thread has one
/// buffer, whose content the next call finds.
///
/// # Errors
/// The first error; numbers that are not begun by then are left out.
pub fn in_parallel<E: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(&mut Vec<u8>, usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let one = || {
        let mut buffer = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            if let Err(error) = work(&mut buffer, number) {
                next.store(count, Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            scope.spawn(one);
        }
        one();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_worked_on_once_and_an_error_ends_it() {
        let seen: Vec<_> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        in_parallel::<()>(4, seen.len(), |_, n| {
            seen[n].fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));

        let calls = AtomicUsize::new(0);
        let failed = in_parallel(4, usize::MAX / 2, |_, n| {
            calls.fetch_add(1, Ordering::Relaxed);
            if n == 10 { Err(n) } else { Ok(()) }
        });
        assert_eq!(failed, Err(10));
    }
}
