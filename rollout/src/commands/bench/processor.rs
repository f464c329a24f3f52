//! How much of the processor this process has had.

/// Processor time of all threads so far, in seconds.
pub(super) fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid, and the call writes nothing else. It cannot fail for this clock; the time would
    // stay 0.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn it_grows_with_work() {
        let before = processor_seconds();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {}
        assert!(processor_seconds() > before);
    }
}
